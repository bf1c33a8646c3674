"""Changing what S3 keeps of an object in its system metadata, which a POST cannot do (``spec: s3-api 2.8``).

The object is copied onto itself, so that Swift reads the change too. It keeps its time: the copy is written with the time
of the data and an offset. So it is newer than what it replaces but older than any write since, which it can not undo;
Last-Modified, listings and version ids stay as they are. The offset is the time that has passed, in the units of
timestamps, so two changes at once are ordered as two writes are. Of a version, the hidden object is rewritten.

What is encrypted is copied as it is stored, so no key is needed. But the list of an upload's parts is read and written as
one, so it is encrypted anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from keelstore.common.headers import Headers, is_true
from keelstore.common.http import CRYPTO_BYPASS, IN_PLACE, Response
from keelstore.common.internal import lent
from keelstore.common.middleware.crypto.told import as_read
from keelstore.common.middleware.s3api import reading
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.outcome import check
from keelstore.common.middleware.s3api.request import OBJECT_SYSMETA, S3Request
from keelstore.common.middleware.versioned_writes.names import NULL, hidden_container, version_name
from keelstore.common.timestamp import Timestamp

TRIES: Final = 3
_TIMES: Final = ("X-Backend-Data-Timestamp", "X-Backend-Timestamp", "X-Timestamp")
_LISTED: Final = "X-Object-Sysmeta-Container-Update-Override-Etag"


def head(request: S3Request, version: str | None) -> Headers:
    """The newest headers of the object, or version, that the request names. Raises S3Error; nothing is allowed yet."""
    if version is not None and version != NULL and "versions-enabled" not in request.bucket_info().sysmeta:
        raise S3Error("NoSuchVersion", Key=request.key, VersionId=version)
    response = reading.head(request, version, newest=True)
    if not response.is_success:
        raise reading.not_there(request, response, version)
    return response.headers


def rewrite(request: S3Request, found: Headers, version: str | None, changes: Mapping[str, str]) -> None:
    """Set system metadata of the object whose ``head`` was ``found``; an empty value removes. Raises S3Error."""
    for _ in range(TRIES):
        response = _copy(request, found, changes)
        if response.status == 201:
            response.drain()
            return
        if response.status not in (202, 404, 409):
            check(request, response)
        response.drain()  # it was replaced, or deleted, meanwhile
        found = head(request, version)
    raise S3Error("OperationAborted")


def _place(request: S3Request, found: Headers) -> tuple[str, str]:
    """Container and name under which the data are."""
    version = found.get("X-Object-Version-Id")
    if version is not None and version != NULL:
        return hidden_container(request.bucket), version_name(request.key, Timestamp(version))
    if "Content-Location" in found:
        raise S3Error("InvalidRequest", "The object is a link to another, whose metadata can only be changed there.")
    return request.bucket, request.key


def _copy(request: S3Request, found: Headers, changes: Mapping[str, str]) -> Response:
    container, name = _place(request, found)
    written = Timestamp(next(found[name] for name in _TIMES if found.get(name)))
    offset = max(written.offset + 1, Timestamp.now().raw - written.raw)
    headers = {
        "X-Copy-From": request.listing_path(container, name),
        "X-Timestamp": Timestamp.from_raw(written.raw, offset).internal,
        "X-Backend-Allow-Reserved-Names": "true",
    }
    query = {}
    is_slo = is_true(found.get("X-Static-Large-Object", ""))
    if is_slo or "X-Object-Manifest" in found:
        query["multipart-manifest"] = "get"
    if is_slo and (etag := found.get(OBJECT_SYSMETA + "Etag")):
        headers[_LISTED] = f"; s3_etag={etag}"
    flags = {IN_PLACE: True, **(as_read(found) if is_slo else {CRYPTO_BYPASS: True})}
    with lent(request.environ, flags):
        return request.swift("PUT", container, name, headers={**headers, **changes}, query=query)
