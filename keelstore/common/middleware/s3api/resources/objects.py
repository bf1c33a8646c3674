"""Objects: put, get, head, delete (``spec: s3-api 3.5``)."""

from __future__ import annotations

from typing import Any, Final

from keelstore.common.headers import Headers
from keelstore.common.http import Response
from keelstore.common.middleware.s3api import access, acl
from keelstore.common.middleware.s3api.checksums import BY_HEADER
from keelstore.common.middleware.s3api.deletion import delete_object
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.etags import bare
from keelstore.common.middleware.s3api.metadata import DELETED_TYPE, from_client, to_client
from keelstore.common.middleware.s3api.new_acl import object_acl_headers
from keelstore.common.middleware.s3api.outcome import check, error_of
from keelstore.common.middleware.s3api.request import ETAG_IS_AT, OBJECT_SYSMETA, S3Request
from keelstore.common.middleware.s3api.resources.copies import copy_object
from keelstore.common.middleware.s3api.resources.versioning import version_id_of
from keelstore.common.middleware.s3api.routing import OBJECT, Route
from keelstore.common.middleware.s3api.stored_checksum import keep_checksum

MAX_PUT_BYTES: Final = 5 << 30
_OVERRIDES: Final = {
    "response-content-type": "Content-Type",
    "response-content-language": "Content-Language",
    "response-expires": "Expires",
    "response-cache-control": "Cache-Control",
    "response-content-disposition": "Content-Disposition",
    "response-content-encoding": "Content-Encoding",
}
_CONDITIONS: Final = ("If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since")


def put(request: S3Request) -> Response:
    if request.header("X-Amz-Copy-Source"):
        return copy_object(request)
    headers = from_client(request)
    length = request.content_length()
    if length is not None and length > MAX_PUT_BYTES:
        raise S3Error("EntityTooLarge", ProposedSize=length, MaxSizeAllowed=MAX_PUT_BYTES)
    md5 = request.content_md5()
    if md5 is not None:
        headers["ETag"] = md5
    headers |= object_acl_headers(request)
    if request.header("If-None-Match"):
        headers["If-None-Match"] = request.header("If-None-Match")
    body = request.open_body()
    footers = keep_checksum(body, headers)
    response = request.swift(
        "PUT", request.bucket, request.key, headers=headers, body=body, length=body.length, footers=footers
    )
    if response.status == 404:
        raise S3Error("NoSuchBucket", BucketName=request.bucket)
    check(request, response).drain()
    found = Headers({"ETag": f'"{response.headers.get("Etag", "").strip(chr(34))}"'})
    if "X-Object-Version-Id" in response.headers:
        found["x-amz-version-id"] = response.headers["X-Object-Version-Id"]
    for algorithm, value in body.expected.items():
        found[algorithm.header] = value or body.value(algorithm)
        found["x-amz-checksum-type"] = "FULL_OBJECT"
    return Response(200, found, body=b"")


def get(request: S3Request) -> Response:
    """GET and HEAD."""
    query: dict[str, str] = {}
    version = version_id_of(request, request.query.get("versionId"))
    if version is not None:
        if "versions-enabled" not in request.bucket_info().sysmeta and version != "null":
            raise S3Error("NoSuchVersion", Key=request.key, VersionId=version)
        query["version-id"] = version
    headers: dict[str, Any] = {"X-Backend-Etag-Is-At": ETAG_IS_AT}
    for name in _CONDITIONS:
        value = request.header(name)
        if value:
            headers[name] = _with_plain(value) if name.endswith("Match") else value
    if (wanted := request.header("Range")) and "," not in wanted and wanted.startswith("bytes="):
        headers["Range"] = wanted
    response = request.swift(request.method, request.bucket, request.key, query=query, headers=headers)
    if response.status // 100 == 2 or response.status in (304, 412, 416):
        try:
            access.check_object(request, response.headers, acl.READ)
        except S3Error:
            response.close()
            raise
    if response.status == 304:
        response.drain()
        return Response(
            304,
            {
                name: value
                for name, value in to_client(request, response.headers).items()
                if name in ("Etag", "Last-Modified", "Cache-Control", "Expires")
            },
        )
    if response.status not in (200, 206):
        raise access.hidden(request, _not_there(request, response, version))
    found = to_client(request, response.headers)
    if request.header("X-Amz-Checksum-Mode", "").upper() == "ENABLED" and response.status == 200:
        _add_checksum(found, response.headers.get(OBJECT_SYSMETA + "Checksum", ""))
    for name, header in _OVERRIDES.items():
        if name in request.query:
            if request.signed is None:
                raise S3Error(
                    "InvalidRequest", "Request specific response headers cannot be used for anonymous GET requests."
                )
            found[header] = request.query[name].replace("\r", " ").replace("\n", " ")
    return Response(response.status, found, body=response.body, app_iter=response.app_iter)


def _not_there(request: S3Request, response: Response, version: str | None) -> S3Error:
    """Of an object that was not read; a delete marker is told from what never was."""
    if response.status != 404:
        return error_of(request, response)
    shown = {}
    if response.headers.get("Content-Type", "").startswith(DELETED_TYPE) or "X-Object-Version-Id" in response.headers:
        shown = {"x-amz-delete-marker": "true", "x-amz-version-id": response.headers.get("X-Object-Version-Id", "null")}
    error = error_of(request, response)
    if error.code != "NoSuchKey":
        return error
    if version is None:
        return S3Error("NoSuchKey", headers=shown, Key=request.key)
    if shown:
        shown["Allow"] = "DELETE"
        return S3Error("MethodNotAllowed", headers=shown, Method=request.method, ResourceType="DeleteMarker")
    return S3Error("NoSuchVersion", Key=request.key, VersionId=version)


def _with_plain(value: str) -> str:
    """A condition of ETags that have a part count also names them without it: Swift's own manifests have none."""
    tags = [tag.strip() for tag in value.split(",")]
    plain = [f'"{bare(tag)[:-2]}"' for tag in tags if bare(tag).endswith("-N")]
    return ", ".join((*tags, *plain))


def _add_checksum(found: Headers, stored: str) -> None:
    value, _, kind = stored.partition(";type=")
    name, _, value = value.partition("=")
    if value and f"x-amz-checksum-{name.lower()}" in BY_HEADER:
        found[f"x-amz-checksum-{name.lower()}"] = value
        found["x-amz-checksum-type"] = kind or "FULL_OBJECT"


def delete(request: S3Request) -> Response:
    version = version_id_of(request, request.query.get("versionId"))
    deleted = delete_object(request, request.key, version)
    found = Headers()
    if deleted.version is not None:
        found["x-amz-version-id"] = deleted.version
    if deleted.is_marker:
        found["x-amz-delete-marker"] = "true"
    return Response(204, found)


ROUTES = (
    Route(OBJECT, "PUT", put, "s3:PutObject", acl.WRITE),
    Route(OBJECT, "GET", get, "s3:GetObject", acl.READ, on_object=True),
    Route(OBJECT, "HEAD", get, "s3:GetObject", acl.READ, on_object=True),
    Route(OBJECT, "DELETE", delete, "s3:DeleteObject", acl.WRITE),
)
