"""The service itself: ListBuckets (``spec: s3-api 3.1``)."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from typing import Any, Final

from keelstore.common.http import Response
from keelstore.common.middleware.s3api import acl
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.outcome import check
from keelstore.common.middleware.s3api.request import S3Request
from keelstore.common.middleware.s3api.routing import ANYONE, SERVICE, Route
from keelstore.common.middleware.s3api.target import is_bucket_name
from keelstore.common.middleware.s3api.times import s3_time
from keelstore.common.middleware.s3api.xml import Writer

MAX_BUCKETS: Final = 10000


def list_buckets(request: S3Request) -> Response:
    if request.identity.user is None:
        raise S3Error("AccessDenied")
    limit = request.number("max-buckets", 0, MAX_BUCKETS, 1)
    prefix, region = request.query.get("prefix", ""), request.query.get("bucket-region", "")
    if region and region != request.options.location:
        raise S3Error(
            "InvalidArgument", f"Argument value {region} is not a valid AWS Region", ArgumentName="bucket-region"
        )
    found: list[dict[str, Any]] = []
    token = None
    for entry in _buckets(request, prefix, _marker_of(request.query.get("continuation-token", ""))):
        if limit and len(found) == limit:
            token = base64.urlsafe_b64encode(found[-1]["name"].encode()).decode()
            break
        found.append(entry)
    writer = Writer("ListAllMyBucketsResult").owner(request.user).open("Buckets")
    for entry in found:
        writer.open("Bucket").leaf("Name", entry["name"]).leaf("CreationDate", s3_time(entry.get("last_modified")))
        if limit:
            writer.leaf("BucketRegion", request.options.location)
        writer.close()
    writer.close().leaf("ContinuationToken", token).leaf("Prefix", prefix or None)
    return Response(200, body=writer.to_bytes(), content_type="application/xml")


def _marker_of(token: str) -> str:
    try:
        return base64.urlsafe_b64decode(token.encode()).decode()
    except (binascii.Error, ValueError):
        raise S3Error(
            "InvalidArgument", "The continuation token provided is incorrect", ArgumentName="continuation-token"
        ) from None


def _buckets(request: S3Request, prefix: str, marker: str) -> Iterator[dict[str, Any]]:
    """Entries of the account's listing that are buckets of the user, page by page."""
    while True:
        query = {"format": "json", "marker": marker}
        if prefix:
            query["prefix"] = prefix
        response = request.swift("GET", query=query)
        if response.status == 404:
            response.drain()
            return
        entries = json.loads(check(request, response).read() or b"[]")
        for entry in entries:
            if is_bucket_name(entry["name"], request.options.dns_compliant_bucket_names) and _is_shown(
                request, entry["name"]
            ):
                yield entry
        if not entries:
            return
        marker = entries[-1]["name"]


def _is_shown(request: S3Request, bucket: str) -> bool:
    if not (request.options.s3_acl and request.options.check_bucket_owner):
        return True
    info = request.container_info(bucket)
    owner = acl.decode(info.sysmeta.get("s3api-acl") or info.sysmeta.get("swift3-acl")).owner
    return owner == request.identity.user or (owner is None and request.options.allow_no_owner)


ROUTES = (Route(SERVICE, "GET", list_buckets, "s3:ListAllMyBuckets", ANYONE),)
