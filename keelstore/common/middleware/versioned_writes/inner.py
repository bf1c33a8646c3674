"""The requests that versioning makes of the pipeline behind it, and what of an object goes with a copy of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from keelstore.common.acl import ACL
from keelstore.common.errors import BadRequest, EntityTooLarge, PreconditionFailed, RequestError
from keelstore.common.headers import Headers, is_sysmeta, is_transient_sysmeta, is_true, is_user_meta
from keelstore.common.http import CUSTOMER_KEY, Environ, Request, Response, WSGIApp, call_app
from keelstore.common.internal import BodyOf, subrequest
from keelstore.common.middleware.crypto.told import WANTS_SEALED, as_read
from keelstore.common.middleware.versioned_writes.names import MARKER_TYPE
from keelstore.common.timestamp import Timestamp

RESERVED: Final = "X-Backend-Allow-Reserved-Names"
HTML: Final = "text/html; charset=UTF-8"
TYPE_OVERRIDDEN: Final = "swift.content_type_overridden"
FOOTERS: Final = "swift.callback.update_footers"
S3_ETAG: Final = "X-Object-Sysmeta-S3api-Etag"
OVERRIDE_ETAG: Final = "X-Object-Sysmeta-Container-Update-Override-Etag"
VERSIONS_LINK: Final = "X-Object-Sysmeta-Versions-Symlink"
EMPTY_MD5: Final = "d41d8cd98f00b204e9800998ecf8427e"

# What an object keeps besides its metadata; of a request, what describes the object that it writes.
PERSISTED: Final = frozenset({
    "Content-Type", "Content-Disposition", "Content-Encoding", "Content-Language", "Cache-Control", "Expires",
    "X-Robots-Tag", "X-Delete-At", "X-Object-Manifest", "X-Static-Large-Object",
})  # fmt: skip
_OVERRIDES: Final = ("X-Object-Sysmeta-Container-Update-Override-", "X-Backend-Container-Update-Override-")
_LINK: Final = "X-Object-Sysmeta-Symlink-Target"


def settle_timestamp(environ: Environ, clock: Callable[[], float] = time.time) -> Timestamp:
    """The time of the request, fixed now: what is written for it in several places is named and ordered by it."""
    text = environ.get("HTTP_X_TIMESTAMP")
    try:
        timestamp = Timestamp(clock() if text is None else text)
    except ValueError:
        raise BadRequest("X-Timestamp should be a UNIX timestamp float value") from None
    environ["HTTP_X_TIMESTAMP"] = timestamp.internal
    return timestamp


class Inner:
    """Pre-authorised requests on behalf of a client's. ``source`` is their tag in logs."""

    def __init__(self, app: WSGIApp, source: str, max_file_size: int, persisted: frozenset[str] = PERSISTED):
        self.app, self.source, self.max_file_size, self.persisted = app, source, max_file_size, persisted

    def ask(self, environ: Environ, method: str, path: str, headers: Mapping[str, str] | None = None, *,
            query: Mapping[str, str] | str = "", body: Any = b"", length: int | None = None, pre_authed: bool = True,
            extra: Mapping[str, Any] | None = None) -> Response:
        """The answer of what is behind; ``extra`` are further environ keys."""
        made = subrequest(environ, method, path, headers=headers, query=query, body=body, length=length,
                          source=self.source, pre_authed=pre_authed)
        made["HTTP_X_BACKEND_ALLOW_RESERVED_NAMES"] = "true"
        made.pop(ACL, None)
        if extra:
            made.update(extra)
        return call_app(self.app, made)

    def done(self, response: Response) -> int:
        """The status of an answer of which nothing else matters."""
        response.drain()
        return response.status

    def current(self, environ: Environ, path: str, method: str = "GET") -> Response | None:
        """The object at ``path``, as it is stored; a link itself, a manifest as it is. None when there is none.

        The body of one that a customer's key was given for is still encrypted: to keep it takes no key (and a client that
        replaces it need not have that key). Raises RequestError when that cannot be told.
        """
        response = self.ask(environ, method, path, {"X-Newest": "true"}, query="symlink=get", extra={WANTS_SEALED: True})
        if response.is_success:
            return response
        response.drain()
        if response.status == 404:
            return None
        raise failure(response.status)

    def copy(self, environ: Environ, source: Response, path: str) -> int:
        """Write ``source``, an answer of ``current``, to ``path``, encrypted as that is; gives the status of that.

        Raises EntityTooLarge, and RequestError (503) when the source breaks off.
        """
        headers = self._kept(source.headers)
        delete_at = headers.get("X-Delete-At", "")
        if delete_at.isdigit() and int(delete_at) <= time.time():
            source.close()
            return 201  # it has expired since it was found: there is nothing to keep
        size = source.headers.get("Content-Length") or (None if source.app_iter else str(len(source.body or b"")))
        if not size or not size.isdigit() or int(size) > self.max_file_size:
            source.close()
            raise EntityTooLarge
        body = BodyOf(source, int(size))
        try:
            status = self.done(self.ask(environ, "PUT", path, headers, body=body, length=body.length,
                                        extra={TYPE_OVERRIDDEN: True, CUSTOMER_KEY: None, **as_read(source.headers)}))
        finally:
            body.close()
        if body.is_broken:
            raise RequestError(status=503)
        return status

    def _kept(self, found: Headers) -> Headers:
        """What goes with a copy of an object."""
        kept = Headers()
        for name, value in found.items():
            if name in self.persisted or is_user_meta("object", name) or is_transient_sysmeta(name) or (
                    is_sysmeta("object", name) and not name.startswith(_OVERRIDES)):
                kept[name] = value
        for name, value in found.items():
            if name.startswith("X-Symlink-Target"):  # as the answer has it; stored under another name
                kept[f"X-Object-Sysmeta-{name[2:]}"] = value
        etag = found.get("Etag", "").strip('"')
        if len(etag) == 32:
            kept["Etag"] = etag
        with_listing_values(kept, etag)
        return kept

    def write_marker(self, environ: Environ, path: str, timestamp: Timestamp) -> int:
        """Put a delete marker to ``path``; gives the status."""
        headers = {"Content-Type": MARKER_TYPE, "X-Timestamp": timestamp.internal}
        return self.done(self.ask(environ, "PUT", path, headers, extra={TYPE_OVERRIDDEN: True}))


def listed_etag(etag: str, slo_etag: str, s3_etag: str | None) -> str:
    """What a container lists as the ETag of a large object, with what other APIs show of it."""
    return f"{etag}{f'; s3_etag={s3_etag}' if s3_etag else ''}; slo_etag={slo_etag}"


def with_listing_values(headers: Headers, etag: str) -> None:
    """Add to an object's headers what its container is to list of it, where that is not what the object itself shows.

    Large objects are listed with their whole size and ETag (LP 1840322), symlinks with their target. That part of an
    object's own headers is not copied: with encryption it can only be read in the container that it was made for.
    """
    if is_true(headers.get("X-Static-Large-Object")):
        slo_etag, size = headers.get("X-Object-Sysmeta-Slo-Etag"), headers.get("X-Object-Sysmeta-Slo-Size")
        if size and "swift_bytes" not in headers.get("Content-Type", ""):
            headers["Content-Type"] = f"{headers.get('Content-Type', 'application/octet-stream')};swift_bytes={size}"
        if slo_etag:
            headers[OVERRIDE_ETAG] = listed_etag(etag, slo_etag, headers.get(S3_ETAG))
    target = headers.get(_LINK)
    if target:
        headers[OVERRIDE_ETAG] = "; ".join([EMPTY_MD5, *link_parameters(headers)])


def link_parameters(headers: Headers) -> list[str]:
    """What a container lists of a link, from the link's own headers."""
    found = []
    for ending, name in (("", "symlink_target"), ("-Account", "symlink_target_account"), ("-Etag", "symlink_target_etag"),
                         ("-Bytes", "symlink_target_bytes")):
        value = headers.get(_LINK + ending)
        if value:
            found.append(f"{name}={value}")
    return found


def failure(status: int) -> RequestError:
    """What the client is told when a request made for it failed so."""
    if status == 404:
        return PreconditionFailed(headers={"Content-Type": HTML})
    if status == 413:
        return EntityTooLarge()
    if status // 100 == 4:
        return RequestError(status=status)
    return RequestError(status=503)


def params_without(request: Request, name: str) -> dict[str, str]:
    return {key: value for key, value in request.params.items() if key != name}


def is_link(found: Headers) -> bool:
    """Whether this is a link to a version that object versioning has made."""
    return is_true(found.get(VERSIONS_LINK))
