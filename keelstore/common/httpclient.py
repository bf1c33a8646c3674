"""A backend call over HTTP: kept-alive connections, strict answers, bounded waits.

Whatever a node does - refuses, resets, drops packets, stops, sends nonsense, sends one byte a second in its head - the caller
gets BackendError or BackendTimeout in bounded time, and never a body that looks whole and is not.
"""

from __future__ import annotations

import os
import time
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any, NoReturn
from urllib.parse import quote

from keelstore.common import sockets
from keelstore.common.errors import BackendError, BackendTimeout, WaitTimeout
from keelstore.common.headers import Headers
from keelstore.common.http import Response
from keelstore.common.httpbody import CHUNK, Chunked, Fixed, UntilClose, Wire
from keelstore.common.httpparse import CHUNKED, MAX_HEAD, ProtocolError, ResponseHead, is_plain, parse_response
from keelstore.common.relay import Arrived, arrived
from keelstore.common.two_phase import Archive, Commit

Address = tuple[str, int]

MAX_AT_REST = 64  # connections kept for one address
MAX_REST_S = 20.0  # and for how long: well below what servers allow (60 s), so that a reuse never meets their close
MAX_INTERIM = 8  # answers of class 1xx before the one that was waited for
LITTLE = 65536  # the rest of a body that is cheaper read than sent on by the kernel
DRAIN_BYTES, DRAIN_S = 65536, 0.1  # an unread body so short, and whole so soon, is read away to keep the connection
_FRAMING = frozenset({"Content-Length", "Transfer-Encoding", "Connection", "Expect", "Host"})


class ConnectionPool:
    """Connections at rest, by address."""

    def __init__(self) -> None:
        self._rest: dict[Address, deque[tuple[float, Wire]]] = {}
        self._next_sweep = 0.0
        _pools.add(self)

    def take(self, address: Address) -> Wire | None:
        """A connection that seems usable: not old, not closed by its peer, nothing unasked on it."""
        rest = self._rest.get(address)
        while rest:
            since, wire = rest.pop()
            if time.monotonic() - since < MAX_REST_S and not wire.stream.is_readable():
                return wire
            wire.stream.close()
        return None

    def give(self, address: Address, wire: Wire) -> None:
        """Keep a connection whose last answer was read to its end."""
        if wire.pending:
            wire.stream.close()  # it said more than it was asked
            return
        now = time.monotonic()
        if now > self._next_sweep:
            self._sweep(now)
        rest = self._rest.setdefault(address, deque())
        rest.append((now, wire))
        if len(rest) > MAX_AT_REST:
            rest.popleft()[1].stream.close()

    def _sweep(self, now: float) -> None:
        self._next_sweep = now + MAX_REST_S
        for address in list(self._rest):
            rest = self._rest[address]
            while rest and now - rest[0][0] >= MAX_REST_S:
                rest.popleft()[1].stream.close()
            if not rest:
                del self._rest[address]

    def close(self) -> None:
        for rest in self._rest.values():
            for _, wire in rest:
                wire.stream.close()
        self._rest.clear()

    def forget(self) -> None:
        """After a fork the connections are the parent's."""
        for rest in self._rest.values():
            for _, wire in rest:
                wire.stream.forget()
        self._rest.clear()


_pools: weakref.WeakSet[ConnectionPool] = weakref.WeakSet()


def _forget_all() -> None:
    for pool in _pools:
        pool.forget()


os.register_at_fork(after_in_child=_forget_all)


def make_head(address: Address, method: str, path: str, headers: Headers, query: str, framing: str) -> bytes:
    """The head of a request; ``framing``: the header lines that say how its body is framed. Raises ValueError."""
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    target = quote(path.encode("utf-8", "surrogateescape"))
    text = f"{method} {target}{'?' + query if query else ''} HTTP/1.1\r\nHost: {host}:{address[1]}\r\n{framing}"
    count = 3 + framing.count("\r\n")
    for name, value in headers.items():
        if name not in _FRAMING:
            text += f"{name}: {value}\r\n"
            count += 1
    data = (text + "\r\n").encode("latin-1")
    if not is_plain(data, count):
        raise ValueError("control character in a header")
    return data


def read_head(wire: Wire, method: str, timeout_s: float | None) -> ResponseHead:
    """The next head of an answer, interim ones included. Raises OSError, EOFError, WaitTimeout, ProtocolError."""
    give_up = None if timeout_s is None else time.monotonic() + timeout_s
    checked = wire.start
    while True:
        end = wire.pending.find(b"\r\n\r\n", checked)
        if end >= 0:
            data = wire.pending[wire.start : end]
            wire.start = end + 4
            if wire.start == len(wire.pending):
                wire.pending, wire.start = b"", 0
            return parse_response(data, method)
        held = len(wire.pending) - wire.start
        if held > MAX_HEAD:
            raise ProtocolError("the head of the answer is too long")
        data = wire.stream.receive(CHUNK, None if give_up is None else give_up - time.monotonic())
        if not data:
            raise EOFError("closed before an answer" if not held else "closed within the head of the answer")
        wire.pending, wire.start = wire.pending[wire.start :] + data, 0
        checked = max(held - 3, 0)


def read_answer(wire: Wire, method: str, timeout_s: float | None, takes_continue: bool = False) -> ResponseHead:
    """The next final head, or with ``takes_continue`` the next that is a 100, past a few interim ones; ``timeout_s`` is for
    all of them. Raises what :func:`read_head` does.
    """
    give_up = None if timeout_s is None else time.monotonic() + timeout_s
    for _ in range(MAX_INTERIM):
        head = read_head(wire, method, None if give_up is None else give_up - time.monotonic())
        if head.status >= 200 or (takes_continue and head.status == 100):
            return head
    raise ProtocolError("too many interim answers")


def failed(error: BaseException, address: Address, what: str) -> NoReturn:
    """Raise what the caller of a backend expects."""
    if isinstance(error, WaitTimeout):
        raise BackendTimeout(f"{what}: {error}", node=address) from error
    text = error.reason if isinstance(error, ProtocolError) else str(error) or type(error).__name__
    raise BackendError(f"{what}: {text}", node=address) from error


_ERRORS = (OSError, EOFError, WaitTimeout, ProtocolError)


class HttpClient:
    def __init__(self, conn_timeout_s: float):
        self.conn_timeout_s = conn_timeout_s
        self.pool = ConnectionPool()

    def call(
        self, address: Address, method: str, path: str, headers: Headers, query: str, body: bytes, timeout_s: float | None
    ) -> Response:
        """See ``Backend.call``."""
        framing = f"Content-Length: {len(body)}\r\n" if body or method in ("PUT", "POST") else ""
        what = f"{method} {path[:200]}"
        try:
            head = make_head(address, method, path, headers, query, framing)
        except ValueError as error:
            failed(error, address, what)
        wire = self.pool.take(address)
        if wire is not None:
            try:
                return self._exchange(wire, address, method, head, body, timeout_s)
            except (OSError, EOFError) as error:
                # It was closed under us. Nothing of an answer came, so a request that may be repeated is.
                if wire.pending or method not in ("GET", "HEAD", "OPTIONS"):
                    failed(error, address, what)
            except (WaitTimeout, ProtocolError) as error:
                failed(error, address, what)
        try:
            wire = self._connect(address, timeout_s)
            return self._exchange(wire, address, method, head, body, timeout_s)
        except _ERRORS as error:
            failed(error, address, what)

    def _connect(self, address: Address, timeout_s: float | None) -> Wire:
        return Wire(sockets.connect(address, self.conn_timeout_s, timeout_s))

    def _exchange(
        self, wire: Wire, address: Address, method: str, head: bytes, body: bytes, timeout_s: float | None
    ) -> Response:
        stream = wire.stream
        stream.timeout = timeout_s
        try:
            if not body:
                stream.send(head)
            elif len(body) <= CHUNK:
                stream.send(head + body)
            else:
                stream.send_parts([head, body])
            return self.answer(wire, address, read_answer(wire, method, timeout_s))
        except BaseException:
            stream.close()
            raise

    def answer(self, wire: Wire, address: Address, head: ResponseHead) -> Response:
        """The Response of a final head; a short body that is here already becomes its ``body``."""
        length = head.length
        response = Response(head.status, head.headers)
        if length is not None and 0 <= length <= len(wire.pending) - wire.start:
            response.body = wire.some(length) if length else b""
            self.release(wire, address, head.keep_alive)
            return response
        source = UntilClose(wire) if length is None else Chunked(wire) if length == CHUNKED else Fixed(wire, length)
        response.app_iter = HttpBody(self, wire, source, address, head.keep_alive)
        return response

    def release(self, wire: Wire, address: Address, keep_alive: bool) -> None:
        if keep_alive:
            self.pool.give(address, wire)
        else:
            wire.stream.close()


class HttpBody:
    """The body of an answer, part by part; at its end the connection goes back to the pool."""

    __slots__ = ("_address", "_client", "_is_moving", "_keep_alive", "_source", "_wire")

    def __init__(
        self, client: HttpClient, wire: Wire, source: Fixed | Chunked | UntilClose, address: Address, keep_alive: bool
    ):
        self._client, self._source, self._address, self._keep_alive = client, source, address, keep_alive
        self._wire: Wire | None = wire
        self._is_moving = False  # what has arrived is with whoever iterates over the pieces

    def __iter__(self) -> Iterator[bytes]:
        return self

    def file_pieces(self) -> Iterator[bytes | Arrived] | None:
        """As iterating, but what has arrived may come as :class:`~keelstore.common.relay.Arrived`, to be sent on before the
        next is asked for. None where the framing must be read here."""
        return self._pieces(self._source) if isinstance(self._source, Fixed) else None

    def _pieces(self, source: Fixed) -> Iterator[bytes | Arrived]:
        while (wire := self._wire) is not None:
            if wire.pending or source.remaining <= LITTLE:
                yield next(self)
                continue
            try:
                part = arrived(wire.stream, source.remaining)
            except _ERRORS as error:
                self._drop()
                failed(error, self._address, "body")
            source.remaining -= len(part)
            self._is_moving = True
            yield part
            self._is_moving = False
            if source.ended:
                self._wire = None
                self._client.release(wire, self._address, self._keep_alive)

    def __next__(self) -> bytes:
        wire = self._wire
        if wire is None:
            raise StopIteration
        try:
            data = self._source.more(CHUNK)
        except _ERRORS as error:
            self._drop()
            failed(error, self._address, "body")
        except BaseException:
            self._drop()
            raise
        if isinstance(self._source, Chunked):
            self._source.end_if_buffered()
        if self._source.ended:
            self._wire = None
            self._client.release(wire, self._address, self._keep_alive)
        if not data:
            raise StopIteration
        return data

    def _drop(self) -> None:
        if self._wire is not None:
            self._wire.stream.close()
            self._wire = None

    def close(self) -> None:
        """Let go of the rest: read it away when that is quick, else close the connection."""
        wire = self._wire
        if wire is None:
            return
        source = self._source
        if not self._keep_alive or self._is_moving or not isinstance(source, Fixed) or source.remaining > DRAIN_BYTES:
            self._drop()
            return
        give_up = time.monotonic() + DRAIN_S
        try:
            while source.remaining:
                wire.stream.timeout = give_up - time.monotonic()
                source.more(CHUNK)
        except _ERRORS:
            self._drop()
            return
        except BaseException:
            self._drop()
            raise
        self._wire = None
        self._client.release(wire, self._address, True)

    drain = close  # of ``Response.drain``


class HttpUpload:
    """See ``Backend.upload``."""

    def __init__(
        self, client: HttpClient, address: Address, method: str, path: str, headers: Headers, query: str,
        length: int | None, timeout_s: float | None,
    ):
        self.address, self.continue_headers = address, Headers()
        self._client, self._method, self._timeout_s, self._left = client, method, timeout_s, length
        self._what = f"{method} {path[:200]}"
        self._is_chunked = length is None
        self._body_ended = False
        self._early: Response | None = None  # what the node answered before it had the whole body
        framing = "Transfer-Encoding: chunked\r\n" if length is None else f"Content-Length: {length}\r\n"
        wire: Any = None
        try:
            head = make_head(address, method, path, headers, query, framing + "Expect: 100-continue\r\n")
            wire = client.pool.take(address)
            if wire is not None:
                try:
                    wire.stream.timeout = timeout_s
                    wire.stream.send(head)
                except OSError:  # closed under us, and no body has been sent
                    wire.stream.close()
                    wire = None
            if wire is None:
                wire = client._connect(address, timeout_s)
                wire.stream.send(head)
        except (*_ERRORS, ValueError) as error:
            if wire is not None:
                wire.stream.close()
            failed(error, address, self._what)
        self._wire: Wire | None = wire

    def ready(self, timeout_s: float | None = None) -> Response | None:
        """None: go on. A Response: the node has answered already."""
        if self._early is not None:
            return self._early
        wire = self._live()
        try:
            head = read_answer(wire, self._method, self._timeout_s if timeout_s is None else timeout_s, takes_continue=True)
            if head.status == 100:
                self.continue_headers = head.headers
                self._body_ended = False
                return None
            return self._answer(wire, head, False)
        except _ERRORS as error:
            self._fail(error)
        except BaseException:
            self.abort()
            raise

    def send(self, data: bytes | memoryview) -> None:
        """Some of the body. Raises BackendError, BackendTimeout; ValueError beyond the announced length."""
        if not data or self._early is not None:
            return
        if self._left is not None:
            if len(data) > self._left:
                raise ValueError("more bytes than the announced length")
            self._left -= len(data)
        if self._is_chunked:
            self._send([b"%x\r\n" % len(data), data, b"\r\n"])
        else:
            self._send([data])

    def send_whole(self, body: Archive | Commit) -> None:
        self.send(body.encoded())

    def _send(self, parts: list[bytes | bytearray | memoryview]) -> None:
        wire = self._live()
        try:
            wire.stream.send_parts(parts)
        except WaitTimeout as error:
            self._fail(error)
        except OSError as error:
            # It closed before it had all: perhaps with an answer, which is then what the caller wants to know.
            try:
                head = read_head(wire, self._method, 0)
            except _ERRORS:
                self._fail(error)
            if head.status < 200:
                self._fail(error)
            self._early = self._answer(wire, head, False)
        except BaseException:
            self.abort()
            raise

    def end_body(self) -> None:
        """The end of the current body; ``ready`` may then tell to send another (two-phase PUT)."""
        if self._early is not None:
            return
        if self._left:
            self.abort()
            raise ValueError("fewer bytes than the announced length")
        if self._is_chunked and not self._body_ended:
            self._send([b"0\r\n\r\n"])
        self._body_ended = True

    def finish(self, timeout_s: float | None = None) -> Response:
        """End the body and wait for the answer."""
        self.end_body()
        if self._early is not None:
            return self._early
        wire = self._live()
        try:
            head = read_answer(wire, self._method, self._timeout_s if timeout_s is None else timeout_s)
            return self._answer(wire, head, True)
        except _ERRORS as error:
            self._fail(error)
        except BaseException:
            self.abort()
            raise

    def abort(self) -> None:
        """Close the connection. Does nothing once an answer was given."""
        if self._wire is not None:
            self._wire.stream.close()
            self._wire = None

    def _live(self) -> Wire:
        if self._wire is None:
            raise BackendError(f"{self._what}: the upload is over", node=self.address)
        return self._wire

    def _answer(self, wire: Wire, head: ResponseHead, is_reusable: bool) -> Response:
        self._wire = None
        if not is_reusable:
            head = head._replace(keep_alive=False)
        return self._client.answer(wire, self.address, head)

    def _fail(self, error: BaseException) -> NoReturn:
        self.abort()
        failed(error, self.address, self._what)
