"""CopyObject: a PUT with ``x-amz-copy-source`` (``spec: s3-api 3.6``)."""

from __future__ import annotations

from keelstore.common.headers import Headers
from keelstore.common.http import Response, parse_http_date
from keelstore.common.middleware.s3api.copy_source import MAX_COPY_BYTES, CopySource, open_source
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.metadata import from_client
from keelstore.common.middleware.s3api.new_acl import object_acl_headers
from keelstore.common.middleware.s3api.outcome import check
from keelstore.common.middleware.s3api.request import OBJECT_SYSMETA, S3Request
from keelstore.common.middleware.s3api.times import s3_time_of
from keelstore.common.middleware.s3api.xml import Writer

# What the copy of an upload in parts must not inherit: it is one plain object, with a plain ETag.
NOT_COPIED = {
    OBJECT_SYSMETA + "Etag": "",
    OBJECT_SYSMETA + "Upload-Id": "",
    "X-Object-Sysmeta-Swift3-Etag": "",
    "X-Object-Sysmeta-Slo-Etag": "",
    "X-Object-Sysmeta-Slo-Size": "",
    "X-Object-Sysmeta-Container-Update-Override-Etag": "",
}


def copy_object(request: S3Request) -> Response:
    if request.header("Range") or request.header("X-Amz-Copy-Source-Range"):
        raise S3Error("InvalidArgument", ArgumentName="Range")
    replaces = _directive(request, "X-Amz-Metadata-Directive")
    source = open_source(request)
    _check(request, source, replaces)
    headers = {"X-Copy-From": request.listing_path(source.bucket, source.key), "X-Copy-From-Account": source.account}
    headers |= NOT_COPIED
    if replaces:
        headers |= from_client(request)
        headers["X-Fresh-Metadata"] = "True"
    headers |= object_acl_headers(request)
    query = {"version-id": source.version} if source.version is not None else {}
    response = check(request, request.swift("PUT", request.bucket, request.key, headers=headers, query=query))
    response.drain()
    return copy_answer(response, source, "CopyObjectResult")


def copy_answer(response: Response, source: CopySource, root: str) -> Response:
    """The document of a copy that was made, of an object or of a part."""
    modified = parse_http_date(response.headers.get("Last-Modified")) or 0
    writer = (
        Writer(root)
        .leaf("LastModified", s3_time_of(modified))
        .leaf("ETag", f'"{response.headers.get("Etag", "").strip(chr(34))}"')
    )
    found = Headers()
    if source.copied_version is not None:
        found["x-amz-copy-source-version-id"] = source.copied_version
    if "X-Object-Version-Id" in response.headers:
        found["x-amz-version-id"] = response.headers["X-Object-Version-Id"]
    return Response(200, found, body=writer.to_bytes(), content_type="application/xml")


def _directive(request: S3Request, name: str) -> bool:
    """Whether it says REPLACE. Raises S3Error."""
    value = (request.header(name) or "COPY").upper()
    if value not in ("COPY", "REPLACE"):
        raise S3Error("InvalidArgument", "Unknown metadata directive.", ArgumentName=name.lower(), ArgumentValue=value)
    return value == "REPLACE"


def _check(request: S3Request, source: CopySource, replaces: bool) -> None:
    same = (source.account, source.bucket, source.key) == (request.account, request.bucket, request.key)
    changes = (
        replaces
        or source.version is not None
        or request.header("X-Amz-Storage-Class")
        or request.header("X-Amz-Server-Side-Encryption")
        or request.header("X-Amz-Website-Redirect-Location")
    )
    if same and not changes:
        raise S3Error(
            "InvalidRequest",
            "This copy request is illegal because it is trying to copy an object to itself without changing "
            "the object's metadata, storage class, website redirect location or encryption attributes.",
        )
    if source.size > MAX_COPY_BYTES:
        raise S3Error(
            "InvalidRequest",
            f"The specified copy source is larger than the maximum allowable size for a copy source: {MAX_COPY_BYTES}",
        )
