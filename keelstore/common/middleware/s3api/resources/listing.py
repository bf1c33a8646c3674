"""ListObjects, versions 1 and 2 (``spec: s3-api 3.3``)."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from keelstore.common.http import Response
from keelstore.common.middleware.s3api import acl
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.etags import listing_etag
from keelstore.common.middleware.s3api.outcome import check
from keelstore.common.middleware.s3api.request import S3Request
from keelstore.common.middleware.s3api.routing import BUCKET, Route
from keelstore.common.middleware.s3api.times import s3_time
from keelstore.common.middleware.s3api.xml import Writer, text_of


def encoder(request: S3Request) -> Callable[[str], str]:
    """How names are written: as they are, or percent-encoded where the client asks for it. Raises S3Error."""
    kind = request.query.get("encoding-type")
    if not kind:
        return lambda name: name
    if kind != "url":
        raise S3Error(
            "InvalidArgument",
            "Invalid Encoding Method specified in Request",
            ArgumentName="encoding-type",
            ArgumentValue=kind,
        )
    return lambda name: quote(name, safe="/-_.~", errors="surrogateescape")


def list_objects(request: S3Request) -> Response:
    query = request.query
    second = request.number("list-type", 1) == 2
    limit = min(
        asked := request.number("max-keys", request.options.max_bucket_listing), request.options.max_bucket_listing
    )
    coded = encoder(request)
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    if delimiter and query.get("allow-unordered") == "true":
        raise S3Error("InvalidArgument", ArgumentName="allow-unordered")
    token = query.get("continuation-token") if second else None
    marker = query.get("start-after", "") if second else query.get("marker", "")
    entries, truncated = _page(request, prefix, delimiter, _marker_of(token) if token else marker, limit)
    last = _name_of(entries[-1]) if entries else ""

    writer = Writer("ListBucketResult").leaf("Name", request.bucket).leaf("Prefix", coded(prefix) if second else prefix)
    if second:
        writer.leaf("NextContinuationToken", base64.b64encode(last.encode()).decode() if truncated else None)
        writer.leaf("ContinuationToken", token)
        writer.leaf("StartAfter", coded(marker) if "start-after" in query else None)
        writer.leaf("KeyCount", len(entries))
    else:
        writer.leaf("Marker", coded(marker))
        writer.leaf("NextMarker", coded(last) if truncated and delimiter else None)
    writer.leaf("MaxKeys", min(asked, request.options.max_bucket_listing))
    writer.leaf("Delimiter", coded(delimiter) if delimiter else None)
    writer.leaf("EncodingType", query.get("encoding-type") or None).leaf("IsTruncated", truncated)
    owner = b""
    if not second or query.get("fetch-owner") == "true":
        owner_id = text_of((request.bucket_acl().owner if request.options.s3_acl else None) or request.user)
        owner = b"<Owner><ID>%b</ID><DisplayName>%b</DisplayName></Owner>" % (owner_id, owner_id)
    for entry in entries:
        if "name" in entry:
            writer.raw(
                b"<Contents><Key>%b</Key><LastModified>%b</LastModified><ETag>%b</ETag><Size>%d</Size>%b"
                b"<StorageClass>STANDARD</StorageClass></Contents>"
                % (
                    text_of(coded(entry["name"])),
                    s3_time(entry["last_modified"]).encode(),
                    text_of(listing_etag(entry)),
                    entry["bytes"],
                    owner,
                )
            )
    for entry in entries:
        if "subdir" in entry:
            writer.raw(b"<CommonPrefixes><Prefix>%b</Prefix></CommonPrefixes>" % text_of(coded(entry["subdir"])))
    return Response(
        200, {"x-amz-bucket-region": request.options.location}, body=writer.to_bytes(), content_type="application/xml"
    )


def _page(
    request: S3Request, prefix: str, delimiter: str, marker: str, limit: int
) -> tuple[list[dict[str, Any]], bool]:
    """Entries of Swift's listing, and whether more follow."""
    if limit == 0:
        request.bucket_info()
        return [], False
    query = {"format": "json", "limit": str(limit + 1)}
    for name, value in (("prefix", prefix), ("delimiter", delimiter), ("marker", marker)):
        if value:
            query[name] = value
    response = check(request, request.swift("GET", request.bucket, query=query))
    entries = json.loads(response.read() or b"[]")
    return entries[:limit], len(entries) > limit


def _marker_of(token: str) -> str:
    try:
        return base64.b64decode(token, validate=True).decode()
    except (binascii.Error, ValueError):
        raise S3Error(
            "InvalidArgument", "The continuation token provided is incorrect", ArgumentName="continuation-token"
        ) from None


def _name_of(entry: dict[str, Any]) -> str:
    name: str = entry["name"] if "name" in entry else entry["subdir"]
    return name


ROUTES = (Route(BUCKET, "GET", list_objects, "s3:ListBucket", acl.READ),)
