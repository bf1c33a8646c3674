"""Fakes of what the proxy stands on: nodes that answer as told, rings of a few devices, a cache."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from keelstore.common.cluster import Cluster
from keelstore.common.errors import BackendError
from keelstore.common.headers import Headers, environ_key
from keelstore.common.http import Environ, Response, call_app, text_path_to_wire
from keelstore.common.limits import Limits
from keelstore.common.names import HashPath
from keelstore.common.policy import Policies, ReplicationPolicy
from keelstore.common.ring.ring import Node

Reply = Response | int | Exception | tuple[int, dict[str, str]] | tuple[int, dict[str, str], bytes] | None


class Call:
    """One backend request as it was sent."""

    def __init__(self, address: Any, method: str, path: str, headers: Headers, query: str = "", body: bytes = b""):
        self.address, self.method, self.path, self.headers = address, method, path, Headers(headers)
        self.query, self.body = query, body
        self.was_aborted = False
        parts = path.split("/", 5)
        self.device = parts[1]
        self.kind = {4: "account", 5: "container", 6: "object"}[len(parts)]

    def __repr__(self) -> str:
        return f"<{self.method} {self.path} on {self.address}>"


def as_response(reply: Reply) -> Response:
    if isinstance(reply, Response):
        return reply
    if isinstance(reply, int):
        return Response(reply, body=b"")
    if isinstance(reply, tuple):
        return Response(reply[0], Headers(reply[1]), reply[2] if len(reply) > 2 else b"")
    assert reply is not None
    raise reply if isinstance(reply, Exception) else AssertionError(reply)


class FakeBackend:
    """Answers what was scripted for a kind of request, in the order of asking, then what its ``rules`` say.

    ``script("object", "PUT", 201, 201, 503)``; a reply is a status, (status, headers[, body]), a Response or an error to
    raise. ``rules`` are functions (call) -> reply or None. Otherwise accounts and containers exist, objects do not.
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.scripts: dict[tuple[str, str], list[Reply]] = {}
        self.rules: list[Callable[[Call], Reply]] = []
        self.container_headers: dict[str, str] = {}
        self.account_headers: dict[str, str] = {}

    def script(self, kind: str, method: str, *replies: Reply) -> None:
        self.scripts.setdefault((kind, method), []).extend(replies)

    def sent(self, kind: str, method: str) -> list[Call]:
        return [call for call in self.calls if call.kind == kind and call.method == method]

    def together(self, address: tuple[str, int]) -> None:
        """No node is in this process."""

    def reply(self, call: Call) -> Response:
        script = self.scripts.get((call.kind, call.method))
        if script:
            return as_response(script.pop(0))
        for rule in self.rules:
            reply = rule(call)
            if reply is not None:
                return as_response(reply)
        if call.kind == "account" and call.method in ("HEAD", "GET"):
            return Response(204, {"X-Account-Container-Count": "3", "X-Put-Timestamp": "0000000001.00000",
                                  **self.account_headers}, b"")
        if call.kind == "container" and call.method in ("HEAD", "GET"):
            return Response(204, {"X-Container-Object-Count": "5", "X-Container-Bytes-Used": "7",
                                  "X-Backend-Storage-Policy-Index": "0", "X-Put-Timestamp": "0000000001.00000",
                                  "X-Backend-Timestamp": "0000000001.00000", **self.container_headers}, b"")
        return Response(404, body=b"")

    def call(self, address: Any, method: str, path: str, headers: Headers, query: str = "", body: bytes = b"",
             timeout_s: float | None = None, digest: Callable[[], str] | None = None) -> Response:
        made = Call(address, method, path, headers, query, body)
        self.calls.append(made)
        return self.reply(made)

    def upload(self, address: Any, path: str, headers: Headers, query: str = "", method: str = "PUT",
               length: int | None = None, timeout_s: float | None = None,
               digest: Callable[[], str] | None = None) -> FakeUpload:
        made = Call(address, method, path, headers, query)
        self.calls.append(made)
        return FakeUpload(self, made, length)

    def is_local(self, address: Any) -> bool:
        return False

    def row_taker(self, address: Any, method: str, path: str, headers: Headers) -> None:
        """No container server is in this process."""


class FakeUpload:
    """Scripted under ``("object", "EXPECT")`` for the first answer (None: go on; the default) and the method's name after."""

    def __init__(self, backend: FakeBackend, made: Call, length: int | None):
        self.backend, self.made, self.length, self.address = backend, made, length, made.address
        self.continue_headers = Headers({"X-Obj-Metadata-Footer": "yes"})
        self.is_over = False

    def ready(self, timeout_s: float | None = None) -> Response | None:
        script = self.backend.scripts.get((self.made.kind, "EXPECT"))
        reply = script.pop(0) if script else None
        if reply is None:
            return None
        self.is_over = True
        return as_response(reply)

    def send(self, data: bytes) -> None:
        fault = self.backend.scripts.get((self.made.kind, "SEND"))
        if fault and isinstance(reply := fault.pop(0), Exception):
            self.is_over = True
            raise reply
        self.made.body += data

    def finish(self, timeout_s: float | None = None) -> Response:
        self.is_over = True
        return self.backend.reply(self.made)

    def abort(self) -> None:
        if not self.is_over:
            self.made.was_aborted = True
        self.is_over = True


class FakeRing:
    """``replicas`` primaries and ``handoffs`` handoffs for every partition, one device and port each."""

    def __init__(self, replicas: int = 3, handoffs: int = 5, base_port: int = 6200, prefix: str = "sd"):
        self.replica_count: float = replicas
        self.part_shift, self.part_power, self.next_part_power = 24, 8, None
        self.partition_count = 256
        self._primaries = tuple(self._node(i, base_port, prefix, i, None) for i in range(replicas))
        self._handoffs = tuple(self._node(replicas + i, base_port, prefix, None, i) for i in range(handoffs))
        self.nodes = self._primaries + self._handoffs

    @staticmethod
    def _node(number: int, port: int, prefix: str, index: int | None, handoff_index: int | None) -> Node:
        return Node(number, 1 + number % 2, number, f"10.0.0.{number}", port, f"10.1.0.{number}", port,
                    f"{prefix}{number}", 1.0, "", index, handoff_index)

    def partition(self, digest: bytes) -> int:
        return digest[0]

    def primaries(self, part: int) -> tuple[Node, ...]:
        return self._primaries

    def handoffs(self, part: int) -> Iterator[Node]:
        return iter(self._handoffs)

    def current(self) -> FakeRing:
        return self


class FakeRings:
    def __init__(self, replicas: int = 3, handoffs: int = 5):
        self.account = FakeRing(replicas, handoffs, 6202, "ac")
        self.container = FakeRing(replicas, handoffs, 6201, "co")
        self.ring = FakeRing(replicas, handoffs, 6200, "ob")

    def object(self, policy: Any) -> FakeRing:
        return self.ring


class FakeCache:
    """Keeps JSON texts; time does not pass. ``ttls`` tells how long each was to be kept."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.ttls: dict[str, float] = {}

    def get(self, key: str, raise_on_error: bool = False) -> Any:
        value = self.values.get(key)
        return None if value is None else json.loads(value)

    def get_raw(self, key: str, raise_on_error: bool = False) -> bytes | None:
        return self.values.get(key)

    def set(self, key: str, value: Any, ttl_s: float = 0, **_kwargs: Any) -> None:
        self.values[key], self.ttls[key] = json.dumps(value).encode(), ttl_s

    def delete(self, key: str) -> None:
        self.values.pop(key, None)

    def incr(self, key: str, delta: int = 1, ttl_s: float = 0, **_kwargs: Any) -> int:
        value = max(self.get(key) or 0, 0) + delta
        self.set(key, max(value, 0), ttl_s)
        return max(value, 0)

    def decr(self, key: str, delta: int = 1, ttl_s: float = 0, **_kwargs: Any) -> int:
        return self.incr(key, -delta, ttl_s)


def fake_cluster(directory: str = "/nonexistent", policies: Policies | None = None, **limits: Any) -> Cluster:
    if policies is None:
        policies = Policies.of([ReplicationPolicy(0, "gold", ("first",), is_default=True), ReplicationPolicy(1, "silver")])
    return Cluster(directory, f"{directory}/keelstore.conf", HashPath(b"", b"changeme"), policies, Limits(**limits))


def silent_logger(name: str = "test") -> logging.Logger:
    logger = logging.getLogger(f"keelstore.{name}")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger


class Input(io.BytesIO):
    """A client's body; ``was_read`` tells whether anybody asked (and so sent the 100 Continue)."""

    was_read = False

    def read(self, size: int | None = -1) -> bytes:
        self.was_read = True
        return super().read(size)


def environ(method: str, path: str, headers: dict[str, str] | None = None, body: bytes | Any = b"",
            query: str = "") -> Environ:
    """``path`` is text."""
    made: Environ = {
        "REQUEST_METHOD": method, "PATH_INFO": text_path_to_wire(path), "QUERY_STRING": query, "SCRIPT_NAME": "",
        "SERVER_NAME": "localhost", "SERVER_PORT": "8080", "SERVER_PROTOCOL": "HTTP/1.1", "HTTP_HOST": "localhost:8080",
        "wsgi.url_scheme": "http", "wsgi.input": Input(body) if isinstance(body, bytes) else body,
        "wsgi.errors": io.StringIO(), "swift.trans_id": "tx-test",
    }  # fmt: skip
    if method in ("PUT", "POST") and isinstance(body, bytes):
        made["CONTENT_LENGTH"] = str(len(body))
    for name, value in (headers or {}).items():
        if value is None:
            made.pop(environ_key(name), None)
        else:
            made[environ_key(name)] = value
    return made


def ask(app: Any, method: str, path: str, headers: dict[str, Any] | None = None, body: bytes | Any = b"",
        query: str = "", **extra: Any) -> Response:
    """The answer of a WSGI app, its body read. ``extra`` go into the environ (with dots for double underscores)."""
    made = environ(method, path, headers, body, query)
    for key, value in extra.items():
        made[key.replace("__", ".")] = value
    response = call_app(app, made)
    response.body = response.read()
    response.app_iter = None
    return response


class Breaking:
    """A body that gives parts, then raises (or, with error None, just ends)."""

    def __init__(self, parts: Iterable[bytes], error: Exception | None = None):
        self.parts, self.error, self.is_closed = list(parts), error, False

    def __iter__(self) -> Iterator[bytes]:
        yield from self.parts
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        self.is_closed = True


DOWN = BackendError("connection refused")
