"""A client's request with the names it is about, and the headers that backends get for it.

Backend headers are built from an allow-list, name by name, so that no header a storage server trusts can come from a client:
the ``X-Account-*``, ``X-Container-*`` and ``X-Delete-At-*`` headers that name hosts and devices are made by the proxy alone
(CVE-2026-50221; ``spec: security S05``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from keelstore.common.headers import Headers, header_of, title
from keelstore.common.http import Environ, Request
from keelstore.common.timestamp import Timestamp

_USER_AGENT = f"proxy-server {os.getpid()}"


def _renew_user_agent() -> None:
    global _USER_AGENT
    _USER_AGENT = f"proxy-server {os.getpid()}"


os.register_at_fork(after_in_child=_renew_user_agent)


class ProxyRequest(Request):
    """``account``, ``container``, ``obj`` are text, '' when absent; ``timestamp`` orders the request in the cluster."""

    __slots__ = ("account", "acl", "container", "obj", "timestamp")
    account: str
    container: str
    obj: str
    timestamp: Timestamp
    acl: str | None

    def __init__(self, environ: Environ):
        super().__init__(environ)
        self.account = self.container = self.obj = ""
        self.acl = None

    @property
    def is_owner(self) -> bool:
        """Whether authorisation found the account's owner, or an administrator."""
        return bool(self.environ.get("swift_owner"))

    @property
    def uses_replication_network(self) -> bool:
        return self.is_true_header("X-Backend-Use-Replication-Network")


@dataclass(frozen=True, slots=True)
class Verb:
    """A method of a controller. ``authorizes_late``: the handler itself authorises, once it knows the ACL."""

    handler: Callable[[ProxyRequest], Any]
    authorizes_late: bool = False
    has_cors: bool = False
    is_private: bool = False


def allow_header(verbs: Mapping[str, Verb]) -> str:
    return ", ".join(sorted(name for name, verb in verbs.items() if not verb.is_private))


# -- the allow-list ----------------------------------------------------------------------------------------------------

# Set by daemons and middlewares; the gatekeeper keeps outsiders from sending any X-Backend header.
_BACKEND_ALL: Final = frozenset({"X-Backend-Allow-Reserved-Names"})
_BACKEND_CONTAINER: Final = frozenset({
    "X-Backend-Storage-Policy-Index", "X-Backend-Storage-Policy-Default", "X-Backend-Record-Type",
    "X-Backend-Record-Shard-Format", "X-Backend-Record-Storage-Policy-Index", "X-Backend-Include-Deleted",
    "X-Backend-Override-Deleted", "X-Backend-Override-Shard-Name-Filter", "X-Backend-No-Timestamp-Update",
    "X-Backend-Auto-Create", "X-Backend-Accept-Redirect", "X-Backend-Accept-Quoted-Location",
})  # fmt: skip
_BACKEND_OBJECT: Final = frozenset({
    "X-Backend-Clean-Expiring-Object-Queue", "X-Backend-Open-Expired", "X-Backend-Etag-Is-At",
    "X-Backend-Ignore-Range-If-Metadata-Present", "X-Backend-Fragment-Preferences",
})  # fmt: skip
_OBJECT: Final = frozenset({
    "Content-Type", "Etag", "Range", "If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since",
    "Content-Disposition", "Content-Encoding", "Content-Language", "Cache-Control", "Expires", "X-Robots-Tag",
    "X-Delete-At", "X-If-Delete-At", "X-Object-Manifest", "X-Static-Large-Object",
})  # fmt: skip
_CONTAINER: Final = frozenset({
    "X-Container-Read", "X-Container-Write", "X-Container-Sync-Key", "X-Container-Sync-To", "X-Versions-Location",
})  # fmt: skip
_EXACT: Final = {
    "account": _BACKEND_ALL,
    "container": _BACKEND_ALL | _BACKEND_CONTAINER | _CONTAINER,
    "object": _BACKEND_ALL | _BACKEND_OBJECT | _OBJECT,
}
_PREFIXES: Final = {
    "account": ("X-Account-Meta-", "X-Account-Sysmeta-"),
    "container": ("X-Container-Meta-", "X-Container-Sysmeta-"),
    "object": ("X-Object-Meta-", "X-Object-Sysmeta-", "X-Object-Transient-Sysmeta-",
               "X-Backend-Container-Update-Override-"),
}
_REMOVABLE: Final[dict[str, dict[str, str]]] = {
    "account": {},
    "container": {f"X-Remove-{name[2:]}": name for name in _CONTAINER},
    "object": {},
}

_MAX_KNOWN = 8192  # environ keys whose fate is remembered, per level
_UNKNOWN: Final = object()


class HeaderMap:
    """Which headers of a request go on to the servers of one level, and what they are called."""

    def __init__(self, level: str, extra: tuple[str, ...] = ()):
        self.level = level
        self._exact = _EXACT[level] | {title(name) for name in extra}
        self._prefixes = _PREFIXES[level]
        self._removable = _REMOVABLE[level]
        self._remove_prefix = f"X-Remove-{level.capitalize()}-Meta-" if level != "object" else "\n"
        self._known: dict[str, Any] = {}

    def _name(self, key: str) -> str | None:
        name = header_of(key)
        if name is None:
            return None
        if name in self._exact or any(name.startswith(p) and len(name) > len(p) for p in self._prefixes):
            return name
        return None

    def forwarded(self, environ: Environ) -> Headers:
        """The headers of the request that may pass. A remove header becomes the header itself with an empty value."""
        found = Headers()
        known = self._known
        put = dict.__setitem__
        for key, value in environ.items():
            name = known.get(key, _UNKNOWN)
            if name is _UNKNOWN:
                name = self._name(key)
                if len(known) >= _MAX_KNOWN:
                    known.clear()
                known[key] = name
            if name is not None:
                put(found, name, value)
        return found

    def removals(self, environ: Environ, found: Headers) -> None:
        """Add what ``X-Remove-*`` headers ask for; a value sent in the same request wins."""
        for key in environ:
            if not key.startswith("HTTP_X_REMOVE_"):
                continue
            name = header_of(key)
            if name is None:
                continue
            target = self._removable.get(name)
            if target is None and name.startswith(self._remove_prefix) and len(name) > len(self._remove_prefix):
                target = f"X-{name[9:]}"
            if target is not None and not found.get(target):
                found[target] = ""


def common_headers(request: ProxyRequest, found: Headers) -> Headers:
    """Add what every backend request says of where it comes from."""
    environ = request.environ
    query = environ.get("QUERY_STRING")
    url = request.url()
    if query and "sig" not in query.lower():  # signatures would let a reader of logs repeat the request
        url = f"{url}?{query}"
    dict.update(
        found,
        {
            "X-Timestamp": request.timestamp.internal,
            "X-Trans-Id": request.trans_id or "-",
            "User-Agent": _USER_AGENT,
            "Referer": f"{environ['REQUEST_METHOD']} {url}",
        },
    )
    return found


# -- what comes back ---------------------------------------------------------------------------------------------------

_DROPPED: Final = frozenset({
    "Date", "Connection", "Keep-Alive", "Transfer-Encoding", "Server", "X-Put-Timestamp", "X-Delete-After", "X-Trans-Id",
})  # fmt: skip


def client_headers(headers: Headers, keep_length: bool = False) -> Headers:
    """The headers of a backend's answer that go on to the client; quotes around an ETag go."""
    found = Headers()
    put = dict.__setitem__
    for name, value in headers.items():
        if name not in _DROPPED:
            put(found, name, value)
    if not keep_length:
        dict.pop(found, "Content-Length", None)
    etag = dict.get(found, "Etag")
    if etag is not None and etag[:1] == '"':
        put(found, "Etag", etag.strip('"'))
    return found
