"""symlink: an object that leads to another one (``spec: middleware 23``).

``PUT`` with ``X-Symlink-Target: container/object`` makes a link; reading it reads the target, with the reader's rights on
every object of the way. A static link (``X-Symlink-Target-Etag``) leads only to what had that ETag when it was made: when the
target has changed since, reading the link is an error. Deleting a link deletes the link. What is no link passes after a look
at its answer's headers.

Stands after slo, dlo and versioned_writes, which see the target; before encryption. Needs nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from keelstore.common.errors import BadRequest, PreconditionFailed, RequestError
from keelstore.common.headers import Headers, is_true
from keelstore.common.http import (
    AUTHORIZE,
    AUTHORIZE_OVERRIDE,
    Environ,
    Request,
    Response,
    StartResponse,
    WSGIApp,
    call_app,
    error_response,
)
from keelstore.common.internal import subrequest
from keelstore.common.middleware.bodies import Answer
from keelstore.common.names import api_path, quoted
from keelstore.common.options import option, parse
from keelstore.common.registry import register_info
from keelstore.common.relay import close

AFTER: Final = ("catch_errors", "gatekeeper", "proxy_logging", "memcache", "tempurl", "tempauth", "authtoken", "keystoneauth",
                "staticweb", "copy", "container_quotas", "account_quotas", "slo", "dlo", "versioned_writes")
BEFORE: Final = ("keymaster", "kms_keymaster", "kmip_keymaster", "encryption")

SOURCE: Final = "SYM"
OVERRIDE: Final = "swift.symlink_override"
LINK_TYPE: Final = "application/symlink"
EMPTY_ETAG: Final = "d41d8cd98f00b204e9800998ecf8427e"
_SYSMETA: Final = "X-Object-Sysmeta-Symlink-Target"
_SHOWN: Final = {  # as stored, as clients know it
    _SYSMETA: "X-Symlink-Target",
    f"{_SYSMETA}-Account": "X-Symlink-Target-Account",
    f"{_SYSMETA}-Etag": "X-Symlink-Target-Etag",
    f"{_SYSMETA}-Bytes": "X-Symlink-Target-Bytes",
}
_LENGTH: Final = len(_SYSMETA)
EXTENDS: Final = "X-Object-Sysmeta-Symloop-Extend"  # a link of another filter: does not count as one of the way
RESERVED: Final = "X-Object-Sysmeta-Allow-Reserved-Names"  # a link of another filter that leads where clients cannot go
# What of the client's request is meant for the target, too.
_PASSED: Final = ("Range", "If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since", "X-Newest",
                  "X-Auth-Token", "X-Service-Token", "X-Open-Expired", "X-Backend-Etag-Is-At",
                  "X-Backend-Ignore-Range-If-Metadata-Present", "X-Backend-Allow-Reserved-Names",
                  "X-Backend-Use-Replication-Network")
_POSTED: Final = "The requested POST was applied to a symlink. POST directly to the target to apply requested metadata."


@dataclass(frozen=True)
class SymlinkOptions:
    """Options of ``[filter:symlink]``."""

    symloop_max: int = option(2, "Links that one read follows at most; below 1: the default.")


@dataclass(frozen=True)
class Target:
    """Where a link leads: names as text. ``etag`` of a static link, '' otherwise."""

    account: str
    path: str  # container/object
    etag: str = ""
    has_account: bool = False
    extends: bool = False
    reserved: bool = False

    def location(self, version: str) -> str:
        """The URL's path, text."""
        return f"/{version}/{self.account}/{self.path}"

    def quoted(self, version: str) -> str:
        return quoted(self.location(version))

    @classmethod
    def of(cls, headers: Headers, account: str) -> Target | None:
        """That of a stored link; ``account`` is the link's own."""
        value = headers.get(_SYSMETA)
        if value is None:
            return None
        other = headers.get(f"{_SYSMETA}-Account")
        return cls(_decoded(other) if other else account, _decoded(value), headers.get(f"{_SYSMETA}-Etag", ""), bool(other),
                   is_true(headers.get(EXTENDS)), is_true(headers.get(RESERVED)))


class Symlink:
    def __init__(self, app: WSGIApp, options: SymlinkOptions):
        self.app = app
        self.most = options.symloop_max if options.symloop_max >= 1 else SymlinkOptions.symloop_max

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        names = api_path(environ["PATH_INFO"])
        method = environ["REQUEST_METHOD"]
        if not names.obj:
            if method == "GET" and names.container:
                return self._list(environ, start_response)
            return self.app(environ, start_response)
        try:
            if method == "GET" or method == "HEAD":
                return self._read(environ, start_response)
            if method == "PUT":
                if "HTTP_X_SYMLINK_TARGET" not in environ:
                    return self.app(environ, start_response)
                answer = self._put(Request(environ))
            elif method == "POST":
                if "HTTP_X_SYMLINK_TARGET" in environ:
                    raise BadRequest("A PUT request is required to set a symlink target")
                return self._post(environ, start_response)
            else:
                return self.app(environ, start_response)
        except RequestError as error:
            answer = error_response(error)
        return answer(environ, start_response)

    # -- reading -------------------------------------------------------------------------------------------------------

    def _read(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        wants_link = bool(environ.get("QUERY_STRING")) and Request(environ).params.get("symlink") == "get"
        asked = environ if wants_link else environ.copy()
        answer = Answer(self.app, environ)
        if not is_link(answer.headers):
            start_response(answer.status, answer.headers)
            return answer.body
        if wants_link:
            start_response(answer.status, [(_SHOWN.get(name, name), value) for name, value in answer.headers])
            return answer.body
        close(answer.body)
        response = self._follow(Request(asked), Headers(answer.headers), self.most)
        return response(asked, start_response)

    def _follow(self, request: Request, headers: Headers, left: int) -> Response:
        """What the link with ``headers`` leads to, along at most ``left`` links. Raises RequestError."""
        _, version, account, _rest = request.path.split("/", 3)
        target = Target.of(headers, account)
        while target is not None:
            if not target.extends:
                left -= 1
                if left < 0:
                    raise RequestError(f"Too many levels of symbolic links, maximum allowed is {self.most}", status=409)
            response = self._ask(request, request.method, version, target)
            there = Target.of(response.headers, target.account)
            if target.etag and response.status in (200, 206, 304, 412, 416):
                etag = (there.etag if there else "") or response.headers.get("Etag", "")
                if etag.strip('"') != target.etag:
                    response.close()
                    raise _mismatch(etag, target, version)
            if there is None:
                response.headers["Content-Location"] = target.quoted(version)
                return response
            response.close()
            target = there
        raise AssertionError("a link without a target")

    def _ask(self, request: Request, method: str, version: str, target: Target, is_bare: bool = False) -> Response:
        """The target's answer, with the client's rights; of a link of another filter into the reserved names, with ours."""
        environ = request.environ
        names = _PASSED if not is_bare else ("X-Auth-Token", "X-Service-Token", "X-Backend-Allow-Reserved-Names")
        headers = {name: value for name in names if (value := request.header(name)) is not None}
        if target.reserved:
            headers["X-Backend-Allow-Reserved-Names"] = "true"
        asked = subrequest(environ, method, target.location(version), headers=headers, source=SOURCE)
        if target.reserved:
            asked[AUTHORIZE] = _may
            asked[AUTHORIZE_OVERRIDE] = True
        return call_app(self.app, asked)

    # -- writing -------------------------------------------------------------------------------------------------------

    def _put(self, request: Request) -> Any:
        """Store a link: sets headers of the request and gives the app, or the answer that refuses. Raises RequestError."""
        environ = request.environ
        _, version, account, container, obj = request.path.split("/", 4)
        target = _target_of(request, account)
        if target.account == account and target.path == f"{container}/{obj}":
            raise BadRequest("Symlink cannot target itself")
        if request.content_length or (request.content_length is None and request.body_file.read(1)):
            raise BadRequest("Symlink requests require a zero byte body", headers={"Connection": "close"})
        headers = Headers({_SYSMETA: quoted(target.path)})
        if target.has_account:
            headers[f"{_SYSMETA}-Account"] = quoted(target.account)
        override = []
        if target.etag:
            if environ.get(OVERRIDE):
                size, slo_etag, kind = request.header("X-Symlink-Target-Bytes"), None, None
            else:
                size, slo_etag, kind = self._look_up(request, version, target)
            headers[f"{_SYSMETA}-Etag"] = target.etag
            if size is not None:
                headers[f"{_SYSMETA}-Bytes"] = size
            if slo_etag:
                override.append(f"slo_etag={slo_etag}")
            if not environ.get("CONTENT_TYPE") and kind:
                environ["CONTENT_TYPE"] = kind
        if not environ.get("CONTENT_TYPE"):
            environ["CONTENT_TYPE"] = LINK_TYPE
        for name, key in ((_SYSMETA, "symlink_target"), (f"{_SYSMETA}-Account", "symlink_target_account"),
                          (f"{_SYSMETA}-Etag", "symlink_target_etag"), (f"{_SYSMETA}-Bytes", "symlink_target_bytes")):
            if name in headers:
                override.append(f"{key}={headers[name]}")
        headers["X-Object-Sysmeta-Container-Update-Override-Etag"] = "; ".join([EMPTY_ETAG, *override])
        for name, value in headers.items():
            request.set_header(name, value)
        for name in _SHOWN.values():
            request.set_header(name, None)
        return self.app

    def _look_up(self, request: Request, version: str, target: Target) -> tuple[str | None, str | None, str | None]:
        """Size, ETag as a static large object, and content type of a static link's target. Raises RequestError when it is not
        what the link is to lead to."""
        place, left = target, self.most
        while True:
            response = self._ask(request, "HEAD", version, place, is_bare=True)
            response.drain()
            found = response.headers
            if response.status == 404:
                raise RequestError("X-Symlink-Target does not exist", status=409, headers=_at(place, version))
            if not response.is_success:
                raise RequestError(status=response.status, headers={
                    "Content-Location": place.quoted(version),
                    **({"WWW-Authenticate": found["Www-Authenticate"]} if "Www-Authenticate" in found else {})})
            there = Target.of(found, place.account)
            etag = (there.etag if there else "") or found.get("Etag", "").strip('"')
            if etag != target.etag:
                raise _mismatch(etag, target, version)
            if there is None or not there.etag:
                is_large = is_true(found.get("X-Static-Large-Object"))
                size = found.get("X-Object-Sysmeta-Slo-Size") if is_large else None
                return (size or found.get("Content-Length"), found.get("X-Object-Sysmeta-Slo-Etag") if is_large else None,
                        found.get("Content-Type"))
            left -= 0 if there.extends else 1
            if left < 0:
                raise RequestError(f"Too many levels of symbolic links, maximum allowed is {self.most}", status=409)
            place = there

    def _post(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Changes the link itself; its client is told where the target is."""
        path = Request(environ).path
        answer = Answer(self.app, environ)
        if answer.status[0] != "2" or not is_link(answer.headers):
            start_response(answer.status, answer.headers)
            return answer.body
        close(answer.body)
        headers = Headers(answer.headers)
        _, version, account, _rest = path.split("/", 3)
        target = Target.of(headers, account)
        assert target is not None
        environ["swift.leave_relative_location"] = True
        told = {"Location": target.quoted(version)}
        if target.etag:
            told["X-Symlink-Target-Etag"] = target.etag
        if target.reserved or target.extends:  # for the filter whose link it is
            told.update((name, value) for name, value in headers.items() if name.startswith("X-Object-Sysmeta-"))
        return Response(307, told, body=_POSTED, content_type="text/plain")(environ, start_response)

    # -- listings ------------------------------------------------------------------------------------------------------

    def _list(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """A container's listing; what its rows hold of links in fields of its own."""
        path = Request(environ).path
        answer = Answer(self.app, environ)
        if answer.status[:3] != "200" or not _is_json(answer.headers):
            start_response(answer.status, answer.headers)
            return answer.body
        try:
            data = b"".join(answer.body)
        finally:
            close(answer.body)
        if b"; symlink_target" in data:
            _, version, account, _rest = path.split("/", 3)
            data = with_links(data, version, account)
            answer.headers = [header for header in answer.headers if header[0].lower() != "content-length"]
            answer.headers.append(("Content-Length", str(len(data))))
        start_response(answer.status, answer.headers)
        return (data,)


def _may(_request: Any) -> None:
    """The authorisation of links that only another filter can make."""


def is_link(headers: Iterable[tuple[str, str]]) -> bool:
    return any(len(name) == _LENGTH and name.lower() == "x-object-sysmeta-symlink-target" for name, _value in headers)


def _is_json(headers: Iterable[tuple[str, str]]) -> bool:
    return any(len(name) == 12 and name.lower() == "content-type" and value.startswith("application/json")
               for name, value in headers)


def _at(target: Target, version: str) -> dict[str, str]:
    return {"Content-Location": target.quoted(version), "Content-Type": "text/plain"}


def _mismatch(etag: str, target: Target, version: str) -> RequestError:
    etag = etag.strip('"')
    return RequestError(f"Object Etag {etag!r} does not match X-Symlink-Target-Etag header {target.etag!r}", status=409,
                        headers=_at(target, version))


def _decoded(wire: str) -> str:
    return unquote_to_bytes(wire.encode("latin-1")).decode("utf-8", "surrogateescape")


def _target_of(request: Request, account: str) -> Target:
    """What the headers of a PUT name. Raises RequestError."""
    path = _decoded(request.header("X-Symlink-Target"))
    container, slash, obj = path.partition("/")
    if not container or not slash or not obj:
        raise PreconditionFailed("X-Symlink-Target header must be of the form <container name>/<object name>")
    given = request.header("X-Symlink-Target-Account")
    if given is not None:
        account = _decoded(given)
        if not account:
            raise PreconditionFailed("Account name cannot be empty")
        if "/" in account:
            raise PreconditionFailed("Account name cannot contain slashes")
    etag = (request.header("X-Symlink-Target-Etag") or "").strip()
    etag = etag[1:-1] if len(etag) > 1 and etag[0] == etag[-1] == '"' else etag
    if any(mark in etag for mark in ';"\\'):
        raise BadRequest("Bad X-Symlink-Target-Etag format")
    return Target(account, path, etag, given is not None)


def with_links(listing: bytes, version: str, account: str) -> bytes:
    """A JSON listing of a container in ``account`` (text), what hashes hold of links taken out into fields."""
    try:
        entries = json.loads(listing)
        for entry in entries:
            text = entry.get("hash", "")
            if ";" in text:
                _take_apart(entry, text, version, account)
        return json.dumps(entries).encode("ascii")
    except (ValueError, TypeError, AttributeError):
        return listing


def _take_apart(entry: dict[str, Any], text: str, version: str, account: str) -> None:
    kept, found = [], {}
    for part in text.split("; "):
        name, equals, value = part.partition("=")
        if equals and name.startswith("symlink_target"):
            found[name] = value
        else:
            kept.append(part)
    if "symlink_target" not in found:
        return
    entry["hash"] = "; ".join(kept)
    owner = found.get("symlink_target_account") or quoted(account)
    entry["symlink_path"] = f"/{version}/{owner}/{found['symlink_target']}"
    if "symlink_target_etag" in found:
        entry["symlink_etag"] = found["symlink_target_etag"]
    size = found.get("symlink_target_bytes", "")
    if size.isdigit():
        entry["symlink_bytes"] = int(size)


def filter_factory(global_conf: dict[str, str], **local_conf: str) -> Callable[[WSGIApp], Symlink]:
    options = parse(SymlinkOptions, {**global_conf, **local_conf}, section="filter:symlink", local=local_conf,
                    known=("use", "set *", "log_*"))
    most = options.symloop_max if options.symloop_max >= 1 else SymlinkOptions.symloop_max
    register_info("symlink", symloop_max=most, static_links=True)
    return lambda app: Symlink(app, options)
