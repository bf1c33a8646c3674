"""A plain HTTP client for tests: it sends exactly what it is told, and shows exactly what came back.

``Endpoint`` is a running proxy, ``Account`` a logged-in user of it, ``Answer`` one response. Nothing is retried, followed or
decoded, so that a test sees what a client of another make would see.
"""

from __future__ import annotations

import http.client
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO, Any
from urllib.parse import quote, urlsplit

http.client._MAXHEADERS = 400  # type: ignore[attr-defined]  # 90 metadata items and ours are more than its default of 100

Body = bytes | str | IO[bytes] | Iterable[bytes] | None
TIMEOUT_S = 60.0
_numbers = itertools.count(1)


def unique(prefix: str = "c") -> str:
    """A name that no other test of this run uses."""
    return f"{prefix}-{os.getpid()}-{next(_numbers)}"


class HeaderMap(dict[str, str]):
    """Response headers: any-case lookup, values as latin-1 text of the octets."""

    def __init__(self, items: Iterable[tuple[str, str]]):
        super().__init__()
        self.names: list[str] = []
        for name, value in items:
            self.names.append(name)
            key = name.lower()
            super().__setitem__(key, f"{self[key]}, {value}" if key in self else value)

    def __getitem__(self, name: str) -> str:
        return super().__getitem__(name.lower())

    def __contains__(self, name: object) -> bool:
        return super().__contains__(str(name).lower())

    def get(self, name: str, default: Any = None) -> Any:
        return super().get(name.lower(), default)

    def text(self, name: str) -> str:
        """The value as UTF-8 text."""
        return self[name].encode("latin-1").decode()


@dataclass(frozen=True)
class Answer:
    """One HTTP response, its body read whole."""

    status: int
    reason: str
    headers: HeaderMap
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def lines(self) -> list[str]:
        """A plain listing; only for names without a newline."""
        return self.body.decode().splitlines()

    def expect(self, *statuses: int) -> Answer:
        """This answer, when its status is one of those (or any 2xx, when none is named)."""
        ok = self.status in statuses if statuses else 200 <= self.status < 300
        assert ok, f"{self.status} {self.reason}, expected {statuses or '2xx'}: {self.body[:500]!r} {dict(self.headers)}"
        return self


def wire(value: str | bytes | int) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


@dataclass
class Connection:
    """One TCP connection to a server, kept open until ``close``."""

    host: str
    port: int
    timeout: float = TIMEOUT_S
    raw: http.client.HTTPConnection = field(init=False)

    def __post_init__(self) -> None:
        self.raw = http.client.HTTPConnection(self.host, self.port, timeout=self.timeout)

    def send(self, method: str, target: str, headers: Mapping[str, Any] | None = None, body: Body = None) -> None:
        """Send a request. ``target`` is the request target as it goes on the wire, already quoted."""
        headers = dict(headers or {})
        names = {name.lower() for name in headers}
        self.raw.putrequest(method, target, skip_host="host" in names, skip_accept_encoding=True)
        if isinstance(body, str):
            body = body.encode()
        if isinstance(body, bytes) and not names & {"content-length", "transfer-encoding"}:
            headers["Content-Length"] = len(body)
        elif body is None and method in ("PUT", "POST") and not names & {"content-length", "transfer-encoding"}:
            headers["Content-Length"] = 0
        chunked = str(headers.get("Transfer-Encoding", "")).lower() == "chunked"
        for name, value in headers.items():
            self.raw.putheader(name, wire(value))
        self.raw.endheaders()
        for piece in _pieces(body):
            if chunked:
                self.raw.send(b"%x\r\n%b\r\n" % (len(piece), piece))
            else:
                self.raw.send(piece)
        if chunked:
            self.raw.send(b"0\r\n\r\n")

    def response(self) -> http.client.HTTPResponse:
        return self.raw.getresponse()

    def answer(self) -> Answer:
        response = self.response()
        body = response.read()
        return Answer(response.status, response.reason, HeaderMap(response.getheaders()), body)

    def request(self, method: str, target: str, headers: Mapping[str, Any] | None = None, body: Body = None) -> Answer:
        self.send(method, target, headers, body)
        return self.answer()

    def close(self) -> None:
        self.raw.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _pieces(body: Body) -> Iterator[bytes]:
    if body is None:
        return
    if isinstance(body, bytes):
        if body:
            yield body
    elif hasattr(body, "read"):
        yield from iter(lambda: body.read(1 << 18), b"")
    else:
        yield from (piece for piece in body if piece)  # type: ignore[misc]


@dataclass(frozen=True)
class Endpoint:
    """A proxy, or any HTTP server, at an address."""

    host: str
    port: int

    @classmethod
    def of(cls, url: str) -> Endpoint:
        parts = urlsplit(url)
        return cls(parts.hostname or "127.0.0.1", parts.port or 80)

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def auth_url(self) -> str:
        return f"{self.url}/auth/v1.0"

    def connect(self, timeout: float = TIMEOUT_S) -> Connection:
        return Connection(self.host, self.port, timeout)

    def request(self, method: str, target: str, headers: Mapping[str, Any] | None = None, body: Body = None,
                timeout: float = TIMEOUT_S) -> Answer:
        """One request on a connection of its own."""
        with self.connect(timeout) as connection:
            return connection.request(method, target, headers, body)

    def authenticate(self, user: str, key: str) -> Answer:
        return self.request("GET", "/auth/v1.0", {"X-Auth-User": user, "X-Auth-Key": key})

    def login(self, user: str = "test:tester", key: str = "testing") -> Account:
        answer = self.authenticate(user, key).expect(200)
        path = urlsplit(answer.headers["X-Storage-Url"]).path
        return Account(self, path, answer.headers["X-Auth-Token"], user, key)


def join(base: str, *names: str | bytes) -> str:
    """A request target below ``base``; every name is quoted whole, slashes of the last one excepted."""
    safe = [""] * max(len(names) - 1, 0) + ["/"]
    return "/".join([base, *(quote(name, safe=mark) for name, mark in zip(names, safe))]) if names else base


@dataclass(frozen=True)
class Account:
    """A user's account at an endpoint. Names are given plain (text or octets) and quoted here."""

    endpoint: Endpoint
    path: str
    token: str
    user: str = ""
    key: str = ""

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    def target(self, *names: str | bytes, query: str = "") -> str:
        return join(self.path, *names) + (f"?{query}" if query else "")

    def request(self, method: str, *names: str | bytes, query: str = "", headers: Mapping[str, Any] | None = None,
                body: Body = None, connection: Connection | None = None) -> Answer:
        sent = {"X-Auth-Token": self.token, **(headers or {})}
        if not sent["X-Auth-Token"]:
            del sent["X-Auth-Token"]
        return (connection or self.endpoint).request(method, self.target(*names, query=query), sent, body)

    def get(self, *names: str | bytes, **options: Any) -> Answer:
        return self.request("GET", *names, **options)

    def head(self, *names: str | bytes, **options: Any) -> Answer:
        return self.request("HEAD", *names, **options)

    def put(self, *names: str | bytes, **options: Any) -> Answer:
        return self.request("PUT", *names, **options)

    def post(self, *names: str | bytes, **options: Any) -> Answer:
        return self.request("POST", *names, **options)

    def delete(self, *names: str | bytes, **options: Any) -> Answer:
        return self.request("DELETE", *names, **options)

    def of(self, other: Account) -> Account:
        """``other``'s account, asked with our token."""
        return Account(self.endpoint, other.path, self.token, self.user, self.key)

    def anonymous(self) -> Account:
        return Account(self.endpoint, self.path, "")

    def at(self, endpoint: Endpoint) -> Account:
        """The same account through another proxy."""
        return Account(endpoint, self.path, self.token, self.user, self.key)

    def listing(self, *names: str | bytes, query: str = "") -> list[dict[str, Any]]:
        """A JSON listing."""
        query = f"format=json&{query}" if query else "format=json"
        result = self.get(*names, query=query).expect(200).json()
        assert isinstance(result, list)
        return result

    def empty(self, container: str) -> None:
        """Delete a container with all it holds; absent is well."""
        while True:
            answer = self.get(container, query="format=json")
            if answer.status == 404 or not answer.expect().json():
                break
            with self.endpoint.connect() as connection:
                for entry in answer.json():
                    self.delete(container, entry["name"], connection=connection).expect(204, 404)
        self.delete(container).expect(204, 404)
