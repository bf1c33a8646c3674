"""Headers of objects, both ways between S3 and Swift (``spec: s3-api 2.6, 2.7``). Each way is an allow-list."""

from __future__ import annotations

from collections.abc import Iterator
from email.header import Header
from typing import Final

from keelstore.common.headers import Headers, wire_to_text
from keelstore.common.middleware.s3api.encrypting import show_stored
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.etags import object_etag
from keelstore.common.middleware.s3api.request import S3Request
from keelstore.common.middleware.s3api.versions import shown_version

MAX_USER_METADATA: Final = 8192
DELETED_TYPE: Final = "application/x-deleted;swift_versions_deleted=1"
_META: Final = "HTTP_X_AMZ_META_"
_UNFIT_IN_NAMES = frozenset(' "),/;<=>?@[\\]{}')
_CONTENT: Final = (
    ("CONTENT_TYPE", "Content-Type"),
    ("HTTP_CONTENT_DISPOSITION", "Content-Disposition"),
    ("HTTP_CONTENT_LANGUAGE", "Content-Language"),
    ("HTTP_CACHE_CONTROL", "Cache-Control"),
    ("HTTP_EXPIRES", "Expires"),
    ("HTTP_X_ROBOTS_TAG", "X-Robots-Tag"),
)
# What would change where or how an object is kept or deleted, and is not there: to take it silently would deceive.
_REFUSED: Final = (
    "HTTP_X_AMZ_MFA",
    "HTTP_X_AMZ_WEBSITE_REDIRECT_LOCATION",
    "HTTP_X_AMZ_WRITE_OFFSET_BYTES",
)
_SHOWN: Final = (
    "Content-Length",
    "Content-Type",
    "Content-Range",
    "Content-Encoding",
    "Content-Disposition",
    "Content-Language",
    "Last-Modified",
    "Cache-Control",
    "Expires",
    "X-Robots-Tag",
    "Accept-Ranges",
)
_RENAMED: Final = (("X-Parts-Count", "x-amz-mp-parts-count"),)


def refuse(request: S3Request) -> None:
    """Raises S3Error for headers of a write or deletion that are not implemented, and must not be passed over."""
    for key in _REFUSED:
        if key in request.environ:
            raise S3Error("NotImplemented", Header=key[5:].replace("_", "-").lower())


def from_client(request: S3Request) -> dict[str, str]:
    """What a PUT, or the start of an upload in parts, says of its object, as Swift's headers. Raises S3Error."""
    environ, found = request.environ, {}
    refuse(request)
    storage_class = environ.get("HTTP_X_AMZ_STORAGE_CLASS")
    if storage_class and storage_class != "STANDARD":
        raise S3Error("InvalidStorageClass", StorageClassRequested=storage_class)
    for key, name in _CONTENT:
        value = environ.get(key)
        if value:
            found[name] = value
    found.setdefault("Content-Type", "binary/octet-stream")
    encoding = content_encoding(environ.get("HTTP_CONTENT_ENCODING", ""))
    if encoding:
        found["Content-Encoding"] = encoding
    for name in ("X-Delete-At", "X-Delete-After"):
        if request.header(name):
            found[name] = request.header(name)
    size = 0
    for name, value in user_metadata(request):
        size += len(name) + len(value)
        found["X-Object-Meta-" + name.replace("_", "=5F")] = value
    if size > MAX_USER_METADATA:
        raise S3Error("MetadataTooLarge", Size=size, MaxSizeAllowed=MAX_USER_METADATA)
    return found


def content_encoding(text: str) -> str:
    """Without ``aws-chunked``, which is about the request and not about the object; '' when nothing is left."""
    if "aws-chunked" not in text.lower():
        return text.strip()
    return ", ".join(
        token for token in (part.strip() for part in text.split(",")) if token and token.lower() != "aws-chunked"
    )


def user_metadata(request: S3Request) -> Iterator[tuple[str, str]]:
    """Names (lower case) and values of ``x-amz-meta-*``."""
    for key, value in request.environ.items():
        if key.startswith(_META):
            name = key[len(_META) :].replace("_", "-").replace("=5F", "_").lower()
            if name and not _UNFIT_IN_NAMES.intersection(name):
                yield name, _printable(value)


def _printable(value: str) -> str:
    """A header value, as it was sent: UTF-8 too. What is no text at all becomes an RFC 2047 word."""
    if value.isascii():
        if value.isprintable():
            return value
    elif (text := wire_to_text(value)).isprintable():
        return value
    else:
        value = text
    return Header(value.encode("utf-8", "replace"), "UTF-8", maxlinelen=1 << 16).encode()


def to_client(request: S3Request, headers: Headers) -> Headers:
    """The headers of an answer about an object."""
    found = Headers()
    for name in _SHOWN:
        value = headers.get(name)
        if value is not None:
            found[name] = value
    found["ETag"] = f'"{object_etag(headers)}"'
    for name, shown in _RENAMED:
        value = headers.get(name)
        if value is not None:
            found[shown] = value
    version = headers.get("X-Object-Version-Id")
    if version is not None:
        found["x-amz-version-id"] = shown_version(version, request.bucket_info())
    if headers.get("X-Backend-Content-Type", headers.get("Content-Type")) == DELETED_TYPE:
        found["x-amz-delete-marker"] = "true"
    if "X-Delete-At" in headers:
        from keelstore.common.http import http_date

        found["x-amz-expiration"] = (
            f'expiry-date="{http_date(int(headers["X-Delete-At"]))}", rule-id="swift-object-expiration"'
        )
    show_stored(headers, found)
    for name, value in headers.items():
        if name.startswith("X-Object-Meta-"):
            found["x-amz-meta-" + name[14:].replace("=5F", "_").replace("=5f", "_").lower()] = value
    return found
