"""The other cluster of container sync: where a container's copy is, how requests to it are signed, and sending them.

``X-Container-Sync-To`` names the copy, as ``//realm/cluster/account/container`` (the cluster's endpoint and the realm's key
are in ``container-sync-realms.conf``) or as a URL. A request carries ``X-Container-Sync-Auth: <realm> <nonce> <signature>``
for a realm, else the container's ``X-Container-Sync-Key`` itself (``spec: daemons 8, middleware 7``).
"""

from __future__ import annotations

import http.client
import ssl
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import quote, urlsplit

from keelstore.common.concurrency import time_limit
from keelstore.common.errors import KeelstoreError
from keelstore.common.headers import Headers
from keelstore.common.internal import SourceEnded
from keelstore.common.names import quoted
from keelstore.common.sync_realms import Realm, signature
from keelstore.container import sync_to

MAX_ANSWER: Final = 1 << 20  # bytes of an answer's body that are read away
MAX_AT_REST: Final = 16  # connections kept for one address
ANSWER_S: Final = 60.0  # to wait for an answer, or for the other side to take more of a body
_BLOCK: Final = 65536


class RemoteDown(KeelstoreError):
    """The other cluster gave no answer."""


class Source(Protocol):
    def read(self, size: int = -1, /) -> bytes: ...


@dataclass(frozen=True)
class Target:
    """The copy of a container. ``url``: of the container, encoded, without ``/`` at the end; ``realm`` '' for a plain URL."""

    url: str
    user_key: str = field(repr=False)  # a wire string, as is the realm's
    realm: str = ""
    realm_key: str = field(default="", repr=False)

    def url_of(self, obj: str) -> str:
        return f"{self.url}/{quoted(obj)}"

    def headers(self, method: str, obj: str, timestamp: str, nonce: Callable[[], str] = lambda: uuid.uuid4().hex) -> Headers:
        """What makes a request one of this container's owner, at this time."""
        found = Headers({"X-Timestamp": timestamp})
        if self.realm:
            once = nonce()
            path = urlsplit(self.url_of(obj)).path
            found["X-Container-Sync-Auth"] = f"{self.realm} {once} " + signature(
                self.realm_key, method, path, timestamp, once, self.user_key)
        else:
            found["X-Container-Sync-Key"] = self.user_key
        return found


def target_of(value: str, user_key: str, allowed_hosts: Iterable[str], realms: Mapping[str, Realm]) -> Target:
    """The copy that a value of X-Container-Sync-To names. Raises ValueError for one that is not allowed."""
    value = value.strip()
    problem = sync_to.problem_of(value, allowed_hosts, {name: frozenset(realm.clusters) for name, realm in realms.items()})
    if problem:
        raise ValueError(problem)
    if not value.startswith("//"):
        parts = urlsplit(value)
        path = quote(parts.path.rstrip("/"), safe="/%")
        return Target(f"{parts.scheme}://{parts.netloc}{path}", user_key)
    name, cluster, account, container = value[2:].split("/")
    realm = realms[name.upper()]
    if not realm.key:
        raise ValueError(f"the realm {realm.name} has no key")
    endpoint = realm.clusters[cluster.upper()].rstrip("/")
    if urlsplit(endpoint).scheme not in ("http", "https"):
        raise ValueError(f"the endpoint of {realm.name} {cluster.upper()} is no URL: {endpoint[:200]!r}")
    return Target(f"{endpoint}/{quote(account, safe='%')}/{quote(container, safe='%')}", user_key, realm.name, realm.key)


class Answer(NamedTuple):
    status: int
    headers: Headers


class Remote:
    """Sends requests, over connections that are kept for a while. For green threads of a process whose sockets are green."""

    def __init__(self, conn_timeout_s: float, proxies: Iterable[str] = (),
                 choose: Callable[[list[str]], str] | None = None):
        """``proxies``: HTTP proxies (URLs) of which ``choose`` picks one for each connection."""
        self._timeout_s, self._proxies = conn_timeout_s, list(proxies)
        self._choose = choose or (lambda proxies: proxies[0])
        self._rest: dict[tuple[str, str], list[http.client.HTTPConnection]] = {}

    def request(self, method: str, url: str, headers: Mapping[str, str], body: Source | None = None) -> Answer:
        """The answer; its body is dropped. ``headers`` has the Content-Length of a ``body``.

        Raises RemoteDown, and what reading ``body`` raises.
        """
        parts = urlsplit(url)
        key = parts.scheme, parts.netloc
        rest = self._rest.setdefault(key, [])
        while True:
            is_kept = bool(rest)
            try:
                connection = rest.pop() if rest else self._connect(parts.scheme, parts.netloc)
            except (OSError, http.client.HTTPException, ValueError) as error:
                raise RemoteDown(f"{parts.netloc} cannot be reached: {error or type(error).__name__}") from error
            try:
                target = url if self._proxies and parts.scheme == "http" else url[len(parts.scheme) + 3 + len(parts.netloc):]
                try:
                    connection.request(method, target, body=body, headers=dict(headers))
                except (BrokenPipeError, ConnectionResetError):
                    if body is None:
                        raise
                    # it may have answered before it had all of the body
                with time_limit(ANSWER_S, RemoteDown(f"{parts.netloc} gave no whole answer within {ANSWER_S:g} s")):
                    response = connection.getresponse()  # which goes on for as long as interim answers come
                    response.read(MAX_ANSWER)
                answer = Answer(response.status, Headers(dict(response.getheaders())))
            except SourceEnded:
                connection.close()
                raise
            except (OSError, http.client.HTTPException, ValueError) as error:
                connection.close()
                if is_kept and body is None:  # it may have been closed while it was at rest
                    continue
                raise RemoteDown(f"{parts.netloc} gave no answer: {error or type(error).__name__}") from error
            except BaseException:
                connection.close()
                raise
            if response.will_close or not response.isclosed() or len(rest) >= MAX_AT_REST:
                connection.close()
            else:
                rest.append(connection)
            return answer

    def _connect(self, scheme: str, netloc: str) -> http.client.HTTPConnection:
        """Raises OSError, HTTPException, ValueError."""
        options: dict[str, Any] = {"timeout": self._timeout_s, "blocksize": _BLOCK}
        via = urlsplit(self._choose(self._proxies)) if self._proxies else None
        at = via.netloc if via is not None else netloc
        connection: http.client.HTTPConnection
        if scheme == "https":
            connection = http.client.HTTPSConnection(at, context=ssl.create_default_context(), **options)
            if via is not None:
                connection.set_tunnel(netloc)
        else:
            connection = http.client.HTTPConnection(at, **options)
        connection.connect()
        connection.sock.settimeout(ANSWER_S)
        return connection

    def close(self) -> None:
        for rest in self._rest.values():
            for connection in rest:
                connection.close()
        self._rest.clear()
