"""Versioning of a bucket, and the listing of versions (``spec: s3-api 2.9, 3.4``)."""

from __future__ import annotations

import json
import time
from typing import Any, Final

from keelstore.common.http import Response
from keelstore.common.middleware.s3api import acl, versions
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.etags import listing_etag
from keelstore.common.middleware.s3api.history import real_version
from keelstore.common.middleware.s3api.metadata import DELETED_TYPE
from keelstore.common.middleware.s3api.outcome import change_bucket, check
from keelstore.common.middleware.s3api.request import S3Request
from keelstore.common.middleware.s3api.resources.listing import encoder
from keelstore.common.middleware.s3api.routing import BUCKET, OWNER, Route
from keelstore.common.middleware.s3api.times import s3_time
from keelstore.common.middleware.s3api.versions import (
    ENABLED,
    NULL,
    SPANS,
    SUSPENDED,
    shown_version,
    spans_after,
    status_of,
)
from keelstore.common.middleware.s3api.xml import Writer

MAX_BODY: Final = 10240


def get_versioning(request: S3Request) -> Response:
    writer = Writer("VersioningConfiguration").leaf("Status", status_of(request.bucket_info()) or None)
    return Response(200, body=writer.to_bytes(), content_type="application/xml")


def put_versioning(request: S3Request) -> Response:
    request.bucket_info()
    document = request.read_xml("VersioningConfiguration", MAX_BODY, "MalformedXML")
    status = document.value("Status")
    if document.value("MfaDelete") == "Enabled":
        raise S3Error("NotImplemented", "MFA delete is not implemented.", Header="MfaDelete")
    if status not in (ENABLED, SUSPENDED):
        raise S3Error("MalformedXML")
    if status == SUSPENDED and "s3api-object-lock" in request.bucket_info().sysmeta:
        raise S3Error(
            "InvalidBucketState",
            "An Object Lock configuration is present on this bucket, so the versioning state cannot be changed.",
        )
    set_versioning(request, status == ENABLED)
    return Response(200, body=b"")


def set_versioning(request: S3Request, enabled: bool) -> None:
    headers = {"X-Versions-Enabled": "true" if enabled else "false"}
    spans = spans_after(request.bucket_info(), enabled, time.time())
    if spans:
        headers[SPANS] = spans
    change_bucket(request, headers)


def version_id_of(request: S3Request, text: str | None) -> str | None:
    """As ``versions.version_id_of``."""
    return versions.version_id_of(text)


def list_versions(request: S3Request) -> Response:
    query, coded = request.query, encoder(request)
    cap = request.options.max_bucket_listing
    limit = min(request.number("max-keys", cap), cap)
    prefix, delimiter, key_marker = query.get("prefix", ""), query.get("delimiter", ""), query.get("key-marker", "")
    id_marker = query.get("version-id-marker", "")
    if id_marker and "key-marker" not in query:
        raise S3Error(
            "InvalidArgument",
            "A version-id marker cannot be specified without a key marker.",
            ArgumentName="version-id-marker",
            ArgumentValue=id_marker,
        )
    version_id_of(request, id_marker or None)
    if not key_marker:
        id_marker = ""
    info = request.bucket_info()
    entries, truncated = _page(
        request, prefix, delimiter, key_marker, real_version(request, key_marker, id_marker) or "", limit
    )

    writer = (
        Writer("ListVersionsResult")
        .leaf("Name", request.bucket)
        .leaf("Prefix", coded(prefix))
        .leaf("KeyMarker", coded(key_marker))
    )
    writer.leaf("VersionIdMarker", id_marker)
    if truncated and entries:
        last = entries[-1]
        writer.leaf("NextKeyMarker", coded(last.get("name") or last["subdir"]))
        writer.leaf("NextVersionIdMarker", shown_version(last.get("version_id") or NULL, info))
    writer.leaf("MaxKeys", limit).leaf("Delimiter", coded(delimiter) if delimiter else None)
    writer.leaf("EncodingType", query.get("encoding-type") or None).leaf("IsTruncated", truncated)
    owner = (request.bucket_acl().owner if request.options.s3_acl else None) or request.user
    for entry in entries:
        if "name" not in entry:
            continue
        is_marker = entry.get("content_type") == DELETED_TYPE
        writer.open("DeleteMarker" if is_marker else "Version").leaf("Key", coded(entry["name"]))
        writer.leaf("VersionId", shown_version(entry.get("version_id") or NULL, info))
        writer.leaf("IsLatest", bool(entry.get("is_latest", True)))
        writer.leaf("LastModified", s3_time(entry["last_modified"]))
        if not is_marker:
            writer.leaf("ETag", listing_etag(entry)).leaf("Size", entry["bytes"])
        writer.owner(owner)
        if not is_marker:
            writer.leaf("StorageClass", "STANDARD")
        writer.close()
    for entry in entries:
        if "subdir" in entry:
            writer.open("CommonPrefixes").leaf("Prefix", coded(entry["subdir"])).close()
    return Response(200, body=writer.to_bytes(), content_type="application/xml")


def _page(
    request: S3Request, prefix: str, delimiter: str, marker: str, id_marker: str, limit: int
) -> tuple[list[dict[str, Any]], bool]:
    if limit == 0:
        request.bucket_info()
        return [], False
    sent = {"format": "json", "limit": str(limit + 1), "versions": ""}
    for name, value in (
        ("prefix", prefix),
        ("delimiter", delimiter),
        ("marker", marker),
        ("version_marker", id_marker),
    ):
        if value:
            sent[name] = value
    response = check(request, request.swift("GET", request.bucket, query=sent))
    entries = json.loads(response.read() or b"[]")
    return entries[:limit], len(entries) > limit


ROUTES = (
    Route(BUCKET, "GET", get_versioning, "s3:GetBucketVersioning", acl.READ, sub="versioning"),
    Route(BUCKET, "PUT", put_versioning, "s3:PutBucketVersioning", OWNER, sub="versioning"),
    Route(BUCKET, "GET", list_versions, "s3:ListBucketVersions", acl.READ, sub="versions"),
)
