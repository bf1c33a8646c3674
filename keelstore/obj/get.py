"""GET and HEAD of an object (``spec: backend-protocol 4.3``)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

from keelstore.common.conditionals import evaluate
from keelstore.common.errors import BadRequest, ObjectNotFound
from keelstore.common.headers import (
    CHECK_FIRST,
    READER_CHECKS,
    Headers,
    is_sys_or_user_meta,
    is_transient_sysmeta,
    title,
)
from keelstore.common.http import BODY_CHECKED, Request, Response, http_date
from keelstore.common.ranged import ranged_response
from keelstore.common.timestamp import Timestamp
from keelstore.obj.reader import Body, StoredObject, Validation
from keelstore.obj.request import preferences

if TYPE_CHECKING:
    from keelstore.obj.server import ObjectServer

SMALL = 65536  # bytes of a body that is read at once
NOT_CHECKED = Validation(0.0, 0.0)
# A fragment whose bytes are wrong is not found, so that another is used in its place: up to these sizes it is checked
# before it is sent. The proxy checks what it makes of larger ones.
CHECKED_FIRST = 32 << 20
CHECKED_FOR_RANGE = 1 << 20


@lru_cache(maxsize=8192)
def _shown_as(name: str, allowed: frozenset[str]) -> str | None:
    """The header that a metadata key becomes in an answer, or None."""
    header = title(name)
    if header in allowed or is_sys_or_user_meta("object", name) or is_transient_sysmeta(name):
        return header
    return None


def get(server: ObjectServer, request: Request) -> Response:
    """The answer to GET or HEAD. Raises RequestError, StorageError."""
    environ = request.environ
    names = server.split(request, 5, 5)
    policy = server.policy(request)
    now = server.clock()
    text = environ.get("HTTP_X_TIMESTAMP")
    if text:
        try:
            now = float(Timestamp(text))
        except ValueError:
            raise BadRequest("Invalid X-Timestamp header") from None
    wishes = preferences(environ)
    place = server.place(policy, names)
    open_expired = server.opens_expired(request)
    fragment, _ = server.fragment_of(request, policy)
    try:
        stored = server.store.open(place, now=now, open_expired=open_expired, fragment=fragment, preferences=wishes)
    except ObjectNotFound as error:
        if isinstance(error.timestamp, Timestamp):
            return _not_found(environ.get("HTTP_IF_MATCH"), {"X-Backend-Timestamp": error.timestamp.internal})
        return _not_found(environ.get("HTTP_IF_MATCH"), {})
    try:
        return _answer(server, request, stored)
    except BaseException:
        stored.close()
        raise


def _not_found(if_match: str | None, headers: dict[str, str]) -> Response:
    return Response(412 if if_match and if_match.strip() == "*" else 404, headers)


def _headers(server: ObjectServer, stored: StoredObject) -> Headers:
    metadata, allowed = stored.metadata, server.allowed.names
    headers = Headers()
    put = dict.__setitem__
    put(headers, "Content-Type", metadata.get("Content-Type") or "application/octet-stream")
    for name, value in metadata.items():
        header = _shown_as(name, allowed)
        if header is not None:
            put(headers, header, value)
    timestamp, data_timestamp = stored.timestamp, stored.data_timestamp
    data_text = data_timestamp.internal
    put(headers, "Etag", metadata.get("ETag", ""))
    put(headers, "Last-Modified", http_date(timestamp.ceil()))
    put(headers, "Content-Length", str(stored.size))
    put(headers, "X-Timestamp", timestamp.normal)
    put(headers, "X-Backend-Timestamp", data_text if timestamp is data_timestamp else timestamp.internal)
    put(headers, "X-Backend-Data-Timestamp", data_text)
    durable = stored.found.durable
    if durable is not None:
        put(headers, "X-Backend-Durable-Timestamp", data_text if durable is data_timestamp else durable.internal)
    if stored.found.fragments:
        put(headers, "X-Backend-Fragments", json.dumps({
            stamp.internal: [file.fragment for file in members] for stamp, members in stored.found.fragments.items()
        }))  # fmt: skip
    return headers


def _answer(server: ObjectServer, request: Request, stored: StoredObject) -> Response:
    """The response; it closes ``stored`` sooner or later."""
    environ, options = request.environ, server.options
    headers = _headers(server, stored)
    etag = _etag_for_conditions(environ.get("HTTP_X_BACKEND_ETAG_IS_AT"), stored)
    status = evaluate(environ["REQUEST_METHOD"], request.header, etag, stored.timestamp.ceil())
    if status is not None:
        stored.close()
        headers["Content-Length"] = "0"
        return Response(status, headers, body=b"")
    if environ["REQUEST_METHOD"] == "HEAD":
        stored.close()
        return Response(200, headers, body=b"")
    has_range = "HTTP_RANGE" in environ
    if has_range and _ignores_range(environ.get("HTTP_X_BACKEND_IGNORE_RANGE_IF_METADATA_PRESENT"), stored):
        del environ["HTTP_RANGE"]
        has_range = False
    is_fragment = stored.place.fragments > 0
    if stored.size <= SMALL and not has_range:
        body = stored.read_all(server.validation, gives_wrong=not is_fragment)
        if is_fragment and server.validation.has_passed(stored):
            headers[BODY_CHECKED] = "true"
        return Response(200, headers, body=body)
    validation = server.validation
    if is_fragment and request.is_true_header(READER_CHECKS):
        validation = NOT_CHECKED
    elif is_fragment and request.is_true_header(CHECK_FIRST):
        stored.check_first(validation, always=True)
    elif is_fragment and stored.size <= (CHECKED_FOR_RANGE if has_range else CHECKED_FIRST):
        stored.check_first(validation)
    if (is_fragment or not has_range) and server.validation.has_passed(stored):
        headers[BODY_CHECKED] = "true"  # the whole file is as it was written
    keeps = _keeps_cache(server, request, stored)
    if has_range and "," in environ["HTTP_RANGE"]:

        def read_part(start: int, stop: int) -> Iterator[bytes]:
            return stored.part(start, stop, options.disk_chunk_size)

        response = ranged_response(request, Response(200, headers), stored.size, read_part)
        if response.app_iter is not None:
            response.app_iter = _Parts(response.app_iter, stored)
    else:

        def read_range(start: int, stop: int) -> Body:
            is_kept = keeps or server.rereads.begins(stored, start)
            return stored.body(start, stop, validation, options.disk_chunk_size, is_kept, options.cooperative_period)

        response = ranged_response(request, Response(200, headers), stored.size, read_range)
    if response.app_iter is None:
        stored.close()
    return response


def _etag_for_conditions(names: str | None, stored: StoredObject) -> str:
    for name in names.split(",") if names else ():
        value = stored.metadata.get(title(name.strip()))
        if value:  # what was emptied, as a copy is rid of what its source had, is none
            return value
    return stored.metadata.get("ETag", "")


def _ignores_range(names: str | None, stored: StoredObject) -> bool:
    return any(title(name.strip()) in stored.metadata for name in names.split(",")) if names else False


def _keeps_cache(server: ObjectServer, request: Request, stored: StoredObject) -> bool:
    options, environ = server.options, request.environ
    if options.keep_cache_slo_manifest and stored.metadata.get("X-Static-Large-Object", "").lower() == "true":
        return True
    is_private = "HTTP_X_AUTH_TOKEN" in environ or "HTTP_X_STORAGE_TOKEN" in environ
    return stored.size <= options.keep_cache_size and (options.keep_cache_private or not is_private)


class _Parts:
    """The body of an answer of several ranges; closes the object with it."""

    def __init__(self, parts: Iterable[bytes], stored: StoredObject):
        self._parts, self._stored = parts, stored

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._parts)

    def close(self) -> None:
        close = getattr(self._parts, "close", None)
        if close is not None:
            close()
        self._stored.close()
