"""CopyObject: a PUT with ``x-amz-copy-source`` (``spec: s3-api 3.6``)."""

from __future__ import annotations

from typing import Final

from keelstore.common.headers import Headers
from keelstore.common.http import Response, parse_http_date
from keelstore.common.middleware.s3api import encrypting, kept_alive, locks
from keelstore.common.middleware.s3api.checksums import ALGORITHMS, FULL_OBJECT, Algorithm, named
from keelstore.common.middleware.s3api.copy_source import MAX_COPY_BYTES, CopySource, open_source
from keelstore.common.middleware.s3api.copying import copy_data
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.guard import guarded
from keelstore.common.middleware.s3api.history import written
from keelstore.common.middleware.s3api.metadata import from_client
from keelstore.common.middleware.s3api.new_acl import object_acl_headers
from keelstore.common.middleware.s3api.outcome import check
from keelstore.common.middleware.s3api.request import OBJECT_SYSMETA, S3Request
from keelstore.common.middleware.s3api.resources.object_lock import sent_lock
from keelstore.common.middleware.s3api.resources.tagging import OBJECT_TAGS, sent_tags
from keelstore.common.middleware.s3api.stored_checksum import stored_checksum
from keelstore.common.middleware.s3api.times import s3_time_of
from keelstore.common.middleware.s3api.upload import CHECKSUM
from keelstore.common.middleware.s3api.xml import Writer

# What the copy of an upload in parts must not inherit: it is one plain object, with a plain ETag.
NOT_COPIED = {
    OBJECT_SYSMETA + "Etag": "",
    OBJECT_SYSMETA + "Upload-Id": "",
    "X-Object-Sysmeta-Swift3-Etag": "",
    "X-Object-Sysmeta-Slo-Etag": "",
    "X-Object-Sysmeta-Slo-Size": "",
}
# What is said of one object and not of its copies.
_NOT_INHERITED: Final = (locks.RETENTION, locks.LEGAL_HOLD, locks.CHANGED_RETENTION, locks.CHANGED_LEGAL_HOLD)


# Of a large source the client is kept waiting by blanks.
LONG_BYTES: Final = 64 << 20
_CONTENT: Final = (
    "Content-Type",
    "Content-Encoding",
    "Content-Disposition",
    "Content-Language",
    "Cache-Control",
    "Expires",
    "X-Robots-Tag",
)


def copy_object(request: S3Request) -> Response:
    if request.header("Range") or request.header("X-Amz-Copy-Source-Range"):
        raise S3Error("InvalidArgument", ArgumentName="Range")
    replaces = _directive(request, "X-Amz-Metadata-Directive", "Unknown metadata directive.")
    replaces_tags = _directive(request, "X-Amz-Tagging-Directive", "Unknown tagging directive.")
    algorithm = _algorithm(request)
    source = open_source(request)
    _check(request, source, replaces)
    headers = dict.fromkeys(_NOT_INHERITED, "")
    if replaces:
        headers |= from_client(request)
    headers |= object_acl_headers(request)
    headers |= sent_lock(request)
    kept = encrypting.of_write(request)
    for mark in (encrypting.MARK, encrypting.KMS_MARK):
        headers[mark] = kept.get(mark, "")
    if algorithm is None and (encrypting.MARK in kept or source.key_of_customer is not None):
        algorithm = ALGORITHMS["CRC64NVME"]  # the data have to come through here, for they change keys
    headers[OBJECT_TAGS] = (sent_tags(request) if replaces_tags else source.headers.get(OBJECT_TAGS)) or ""
    if source.size < LONG_BYTES:
        return _copy(request, source, headers, replaces, algorithm)
    return kept_alive.respond(
        lambda: _copy(request, source, headers, replaces, algorithm), request.target.resource, request.trans_id
    )


def _copy(
    request: S3Request, source: CopySource, headers: dict[str, str], replaces: bool, algorithm: Algorithm | None
) -> Response:
    kept = stored_checksum(source.headers)
    if kept is not None and kept[2] != FULL_OBJECT:
        kept = None  # of parts, which the copy does not have
    with guarded(request) as guard:
        if guard is not None:
            guard.decide()
            headers |= guard.headers()
        is_rekeyed = bool(headers.get(encrypting.MARK)) or source.key_of_customer is not None
        if algorithm is not None and (is_rekeyed or kept is None or kept[0] is not algorithm):
            if not replaces:
                headers |= {name: value for name, value in source.headers.items() if _is_described(name)}
            headers = {name: value for name, value in headers.items() if value or name.startswith("X-Object-Meta-")}
            response, value = copy_data(request, source, request.bucket, request.key, headers, algorithm)
            kept = (algorithm, value, FULL_OBJECT)
        else:
            headers |= {
                **NOT_COPIED,
                "X-Copy-From": request.listing_path(source.bucket, source.key),
                "X-Copy-From-Account": source.account,
                CHECKSUM: f"{kept[0].name}={kept[1]};type={FULL_OBJECT}" if kept is not None else "",
            }
            if replaces:
                headers["X-Fresh-Metadata"] = "True"
            query = {"version-id": source.version} if source.version is not None else {}
            response = request.swift("PUT", request.bucket, request.key, headers=headers, query=query)
        if guard is not None:
            guard.settle(response)
    check(request, response).drain()
    return copy_answer(request, response, source, "CopyObjectResult", kept)


def _is_described(name: str) -> bool:
    return name in _CONTENT or name.startswith("X-Object-Meta-")


def _algorithm(request: S3Request) -> Algorithm | None:
    """The checksum that the copy is to have, whatever the source has. Raises S3Error."""
    name = request.header("X-Amz-Checksum-Algorithm")
    if not name:
        return None
    found = named(name)
    if found is None:
        raise S3Error(
            "InvalidRequest",
            "Checksum algorithm provided is unsupported. Please try again with any of the valid types: "
            f"[{', '.join(ALGORITHMS)}]",
        )
    return found


def copy_answer(
    request: S3Request,
    response: Response,
    source: CopySource,
    root: str,
    checksum: tuple[Algorithm, str, str] | None = None,
) -> Response:
    """The document of a copy that was made, of an object or of a part."""
    modified = parse_http_date(response.headers.get("Last-Modified")) or 0
    writer = (
        Writer(root)
        .leaf("LastModified", s3_time_of(modified))
        .leaf("ETag", f'"{response.headers.get("Etag", "").strip(chr(34))}"')
    )
    if checksum is not None:
        writer.leaf(checksum[0].element, checksum[1])
        if root == "CopyObjectResult":
            writer.leaf("ChecksumType", checksum[2])
    found = Headers()
    encrypting.show(request, found)
    if source.copied_version is not None:
        found["x-amz-copy-source-version-id"] = source.copied_version
    made = response.headers.get("X-Object-Version-Id")
    if root == "CopyObjectResult":
        made = written(request, made)
    if made is not None:
        found["x-amz-version-id"] = made
    return Response(200, found, body=writer.to_bytes(), content_type="application/xml")


def _directive(request: S3Request, name: str, message: str) -> bool:
    """Whether it says REPLACE. Raises S3Error."""
    value = (request.header(name) or "COPY").upper()
    if value not in ("COPY", "REPLACE"):
        raise S3Error("InvalidArgument", message, ArgumentName=name.lower(), ArgumentValue=value)
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
