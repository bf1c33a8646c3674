"""GetObjectAttributes (``spec: s3-api 3.9``)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from keelstore.common import concurrency
from keelstore.common.headers import Headers, is_true
from keelstore.common.http import Response
from keelstore.common.middleware.s3api import access, acl, encrypting
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.etags import object_etag
from keelstore.common.middleware.s3api.history import real_version
from keelstore.common.middleware.s3api.outcome import check
from keelstore.common.middleware.s3api.reading import headers_of
from keelstore.common.middleware.s3api.request import S3Request
from keelstore.common.middleware.s3api.routing import OBJECT, Route
from keelstore.common.middleware.s3api.stored_checksum import stored_checksum
from keelstore.common.middleware.s3api.versions import shown_version
from keelstore.common.middleware.s3api.xml import Writer

NAMES: Final = frozenset(("ETag", "Checksum", "ObjectParts", "StorageClass", "ObjectSize"))
MAX_PARTS: Final = 1000
HEADS_AT_ONCE: Final = 8


@dataclass(frozen=True)
class ObjectPart:
    """``path``: of its segment, with the container, without the account."""

    number: int
    size: int
    path: str


def get_attributes(request: S3Request) -> Response:
    asked = {name.strip() for name in (request.header("X-Amz-Object-Attributes") or "").split(",")}
    if not asked <= NAMES:
        raise S3Error(
            "InvalidArgument",
            "Invalid attribute name specified.",
            ArgumentName="x-amz-object-attributes",
            ArgumentValue=request.header("X-Amz-Object-Attributes"),
        )
    most = min(_number(request, "X-Amz-Max-Parts", MAX_PARTS), MAX_PARTS)
    marker = _number(request, "X-Amz-Part-Number-Marker", 0)
    headers, version = headers_of(request)
    encrypting.check_key(request, headers)
    access.check_object(request, headers, acl.READ, "s3:GetObjectAttributes")
    writer = Writer("GetObjectAttributesResponse")
    if "ETag" in asked:
        writer.leaf("ETag", object_etag(headers))
    kept = stored_checksum(headers)
    if "Checksum" in asked and kept is not None:
        algorithm, value, kind = kept
        writer.open("Checksum").leaf(algorithm.element, value).leaf("ChecksumType", kind).close()
    if "ObjectParts" in asked and "-" in object_etag(headers) and is_true(headers.get("X-Static-Large-Object", "")):
        _write_parts(request, writer, parts_of(request, version), most, marker, has_checksums=kept is not None)
    if "StorageClass" in asked:
        writer.leaf("StorageClass", "STANDARD")
    if "ObjectSize" in asked:
        writer.leaf("ObjectSize", headers.get("Content-Length", "0"))
    found = Headers({"Last-Modified": headers.get("Last-Modified", "")})
    if "X-Object-Version-Id" in headers:
        found["x-amz-version-id"] = shown_version(headers["X-Object-Version-Id"], request.bucket_info())
    return Response(200, found, body=writer.to_bytes(), content_type="application/xml")


def parts_of(request: S3Request, version: str | None) -> list[ObjectPart]:
    """The parts of an object that was uploaded in parts, or of another large object of Swift's, by its manifest."""
    query = {"multipart-manifest": "get"}
    if version is not None:
        query["version-id"] = real_version(request, request.key, version) or version
    response = check(request, request.swift("GET", request.bucket, request.key, query=query))
    found = []
    for place, segment in enumerate(json.loads(response.read() or b"[]"), 1):
        path = str(segment.get("name", ""))
        last = path.rpartition("/")[2]
        number = int(last) if last.isascii() and last.isdigit() else place
        found.append(ObjectPart(number, int(segment.get("bytes", 0)), path))
    return found


def _write_parts(
    request: S3Request, writer: Writer, parts: Sequence[ObjectPart], most: int, marker: int, has_checksums: bool
) -> None:
    rest = [part for part in parts if part.number > marker]
    shown = rest[:most]
    writer.open("ObjectParts").leaf("PartsCount", len(parts)).leaf("PartNumberMarker", marker)
    writer.leaf("NextPartNumberMarker", shown[-1].number if shown else 0).leaf("MaxParts", most)
    writer.leaf("IsTruncated", len(rest) > len(shown))
    stored = headers_of_parts(request, shown) if has_checksums else [Headers()] * len(shown)
    for part, headers in zip(shown, stored, strict=True):
        kept = stored_checksum(headers)
        writer.open("Part").leaf("PartNumber", part.number).leaf("Size", part.size)
        if kept is not None:
            writer.leaf(kept[0].element, kept[1])
        writer.close()
    writer.close()


def headers_of_parts(request: S3Request, parts: Sequence[ObjectPart]) -> list[Headers]:
    """Of the segments, which keep each part's checksum. The object's own ACL has allowed this."""
    pool = concurrency.Pool(HEADS_AT_ONCE)

    def head(path: str) -> Headers:
        container, _, name = path.removeprefix("/").partition("/")
        response = request.swift("HEAD", container, name)
        response.close()
        return response.headers if response.is_success else Headers()

    tasks = [pool.spawn(head, part.path) for part in parts]
    return [task.wait() for task in tasks]


def _number(request: S3Request, name: str, default: int) -> int:
    text = request.header(name)
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise S3Error("InvalidArgument", ArgumentName=name.lower(), ArgumentValue=text)
    return int(text)


ROUTES = (Route(OBJECT, "GET", get_attributes, "s3:GetObjectAttributes", acl.READ, sub="attributes", on_object=True),)
