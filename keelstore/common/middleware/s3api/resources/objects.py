"""Objects: put, get, head, delete (``spec: s3-api 3.5``)."""

from __future__ import annotations

import re
from typing import Any, Final

from keelstore.common.headers import Headers
from keelstore.common.http import Response
from keelstore.common.middleware.s3api import access, acl, encrypting
from keelstore.common.middleware.s3api.conditions import DeleteConditions
from keelstore.common.middleware.s3api.deletion import delete_object
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.etags import bare
from keelstore.common.middleware.s3api.gathering import gathered
from keelstore.common.middleware.s3api.guard import guarded
from keelstore.common.middleware.s3api.history import real_version, written
from keelstore.common.middleware.s3api.lifecycle import show_expiration, show_new_expiration
from keelstore.common.middleware.s3api.metadata import from_client, refuse, to_client
from keelstore.common.middleware.s3api.new_acl import object_acl_headers
from keelstore.common.middleware.s3api.outcome import check
from keelstore.common.middleware.s3api.reading import head, not_there
from keelstore.common.middleware.s3api.request import ETAG_IS_AT, S3Request
from keelstore.common.middleware.s3api.resources.attributes import headers_of_parts, parts_of
from keelstore.common.middleware.s3api.resources.copies import copy_object
from keelstore.common.middleware.s3api.resources.object_lock import bypasses, sends_lock, sent_lock, show_lock
from keelstore.common.middleware.s3api.resources.tagging import OBJECT_TAGS, sent_tags, tag_count
from keelstore.common.middleware.s3api.routing import OBJECT, Route
from keelstore.common.middleware.s3api.stored_checksum import keep_checksum, stored_checksum
from keelstore.common.middleware.s3api.versions import version_id_of

MAX_PUT_BYTES: Final = 5 << 30
_OVERRIDES: Final = {
    "response-content-type": "Content-Type",
    "response-content-language": "Content-Language",
    "response-expires": "Expires",
    "response-cache-control": "Cache-Control",
    "response-content-disposition": "Content-Disposition",
    "response-content-encoding": "Content-Encoding",
}
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})\Z")
_CONDITIONS: Final = ("If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since")


def put(request: S3Request) -> Response:
    if request.header("X-Amz-Copy-Source"):
        return copy_object(request)
    request.need_length()
    headers = from_client(request)
    length = request.content_length()
    if length is not None and length > MAX_PUT_BYTES:
        raise S3Error("EntityTooLarge", ProposedSize=length, MaxSizeAllowed=MAX_PUT_BYTES)
    md5 = request.content_md5()
    if md5 is not None:
        headers["ETag"] = md5
    headers |= object_acl_headers(request)
    headers |= sent_state(request)
    headers |= encrypting.of_write(request)
    body = request.open_body()
    if md5 is None and not body.expected and sends_lock(request):
        raise S3Error(
            "InvalidRequest",
            "Content-MD5 OR x-amz-checksum- HTTP header is required for Put Object requests with Object Lock parameters",
        )
    with guarded(request) as guard:
        if guard is not None:
            headers |= guard.headers()
            guard.watch(body)
        with gathered(body) as data:
            footers = keep_checksum(body, headers)
            response = request.swift(
                "PUT", request.bucket, request.key, headers=headers, body=data, length=body.length, footers=footers
            )
        if guard is not None:
            guard.settle(response)
    if response.status == 404:
        raise S3Error("NoSuchBucket", BucketName=request.bucket)
    check(request, response).drain()
    found = Headers({"ETag": f'"{response.headers.get("Etag", "").strip(chr(34))}"'})
    made = written(request, response.headers.get("X-Object-Version-Id"))
    if made is not None:
        found["x-amz-version-id"] = made
    for algorithm, value in body.expected.items():
        found[algorithm.header] = value or body.value(algorithm)
        found["x-amz-checksum-type"] = "FULL_OBJECT"
    show_new_expiration(request, found, body.received, headers.get(OBJECT_TAGS))
    encrypting.show(request, found)
    return Response(200, found, body=b"")


def sent_state(request: S3Request) -> dict[str, str]:
    """What a write says of its object besides data and metadata, as headers: tags, retention, legal hold. Raises S3Error."""
    found, tags = sent_lock(request), sent_tags(request)
    if tags:
        found[OBJECT_TAGS] = tags
    return found


def get(request: S3Request) -> Response:
    """GET and HEAD."""
    encrypting.of_read(request)
    query: dict[str, str] = {}
    asked = request.query
    version = part = None
    if asked:
        version = version_id_of(asked.get("versionId"))
        if version is not None:
            if "versions-enabled" not in request.bucket_info().sysmeta and version != "null":
                raise S3Error("NoSuchVersion", Key=request.key, VersionId=version)
            query["version-id"] = real_version(request, request.key, version) or version
        part = part_of(request)
        if part is not None:
            query["part-number"] = str(part)
    headers: dict[str, Any] = {"X-Backend-Etag-Is-At": ETAG_IS_AT}
    for name in _CONDITIONS:
        value = request.header(name)
        if value:
            headers[name] = _with_plain(value) if name.endswith("Match") else value
    if (wanted := request.header("Range")) and wanted.startswith("bytes="):
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
                if name in ("Etag", "Last-Modified", "Cache-Control", "Expires", "Accept-Ranges")
            },
        )
    if response.status not in (200, 206):
        if response.status in (400, 409):  # the filter's refusal of a wrong key, or of none
            encrypting.check_key(request, head(request, query.get("version-id")).headers)
        if response.status == 416 and part is not None:
            response.close()
            raise S3Error("InvalidPartNumber", PartNumber=part)
        raise access.hidden(request, not_there(request, response, version))
    try:
        encrypting.check_key(request, response.headers)
    except S3Error:
        response.close()
        raise
    status, found = response.status, to_client(request, response.headers)
    encrypting.show(request, found)
    show_lock(found, response.headers)
    if count := tag_count(response.headers):
        found["x-amz-tagging-count"] = str(count)
    show_expiration(request, found, response.headers)
    if part is not None:
        status = _as_part(status, part, found, response)
    elif status == 200 and "Range" in headers and (request.method == "HEAD" or found.get("Content-Length") == "0"):
        status = _as_range(request, headers["Range"], found)
    if request.header("X-Amz-Checksum-Mode", "").upper() == "ENABLED":
        if status == 200:
            add_checksum(found, response.headers)
        elif part is not None and stored_checksum(response.headers) is not None:
            _add_part_checksum(request, found, response.headers, part, query.get("version-id"))
    if asked:
        for name, header in _OVERRIDES.items():
            if name in asked:
                if request.signed is None:
                    raise S3Error(
                        "InvalidRequest",
                        "Request specific response headers cannot be used for anonymous GET requests.",
                    )
                found[header] = asked[name].replace("\r", " ").replace("\n", " ")
    return Response(status, found, body=response.body, app_iter=response.app_iter)


def part_of(request: S3Request) -> int | None:
    """The part of an object that a read is for. Raises S3Error."""
    text = request.query.get("partNumber")
    if text is None:
        return None
    most = request.options.max_upload_part_num
    if request.header("Range"):
        raise S3Error("InvalidRequest", "Cannot specify both Range header and partNumber query parameter")
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= most):
        raise S3Error(
            "InvalidArgument",
            f"Part number must be an integer between 1 and {most}, inclusive",
            ArgumentName="partNumber",
            ArgumentValue=text,
        )
    return int(text)


def _as_part(status: int, part: int, found: Headers, response: Response) -> int:
    """The status of an answer about a part. An object that was not uploaded in parts is one part."""
    if "X-Parts-Count" in response.headers:
        return status
    if part > 1:
        response.close()
        raise S3Error("InvalidPartNumber", PartNumber=part)
    size = int(found.get("Content-Length", "0"))
    if not size:
        return 200
    found["Content-Range"] = f"bytes 0-{size - 1}/{size}"
    return 206


def _as_range(request: S3Request, text: str, found: Headers) -> int:
    """The status of a HEAD that asks for a range, which Swift answers for the whole. Raises S3Error."""
    size = int(found.get("Content-Length", "0"))
    match = _RANGE.match(text)
    if match is None or not (match[1] or match[2]):
        return 200
    if match[1]:
        first, last = int(match[1]), min(int(match[2]), size - 1) if match[2] else size - 1
        if match[2] and int(match[2]) < first:
            return 200
    else:
        first, last = max(size - int(match[2]), 0), size - 1
    if first > last:
        raise S3Error("InvalidRange", RangeRequested=text, ActualObjectSize=size)
    found["Content-Range"], found["Content-Length"] = f"bytes {first}-{last}/{size}", str(last - first + 1)
    return 206


def _with_plain(value: str) -> str:
    """A condition of ETags that have a part count also names them without it: Swift's own manifests have none."""
    tags = [tag.strip() for tag in value.split(",")]
    plain = [f'"{bare(tag)[:-2]}"' for tag in tags if bare(tag).endswith("-N")]
    return ", ".join((*tags, *plain))


def _add_part_checksum(
    request: S3Request, found: Headers, headers: Headers, part: int, version: str | None
) -> None:
    """Show the checksum that a part has kept, or that of an object which is one part."""
    if "X-Parts-Count" not in headers:
        add_checksum(found, headers)
        return
    parts = parts_of(request, version)
    kept = stored_checksum(headers_of_parts(request, parts[part - 1 : part])[0]) if part <= len(parts) else None
    whole = stored_checksum(headers)
    if kept is not None and whole is not None:
        found[kept[0].header], found["x-amz-checksum-type"] = kept[1], whole[2]


def add_checksum(found: Headers, headers: Headers) -> None:
    """Show the checksum that an object has kept."""
    kept = stored_checksum(headers)
    if kept is not None:
        algorithm, value, kind = kept
        found[algorithm.header], found["x-amz-checksum-type"] = value, kind


def delete(request: S3Request) -> Response:
    refuse(request)
    version = version_id_of(request.query.get("versionId"))
    deleted = delete_object(
        request, request.key, version, conditions=DeleteConditions.of(request), bypasses=bypasses(request)
    )
    found = Headers()
    if deleted.version is not None:
        found["x-amz-version-id"] = deleted.version
    if deleted.is_marker:
        found["x-amz-delete-marker"] = "true"
    return Response(204, found, content_type="text/html; charset=UTF-8")


ROUTES = (
    Route(OBJECT, "PUT", put, "s3:PutObject", acl.WRITE),
    Route(OBJECT, "GET", get, "s3:GetObject", acl.READ, on_object=True),
    Route(OBJECT, "HEAD", get, "s3:GetObject", acl.READ, on_object=True),
    Route(OBJECT, "DELETE", delete, "s3:DeleteObject", acl.WRITE),
)
