"""Servers and clients on loopback sockets, in the green threads of the test's own thread."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

from keelstore.common import concurrency, sockets
from keelstore.common.errors import WaitTimeout
from keelstore.common.httpserver import Server, ServerOptions
from keelstore.common.sockets import Stream

Address = tuple[str, int]


class Served:
    """A running server and what it was asked."""

    def __init__(self, server: Server):
        self.server = server
        self.address: Address = server.sock.getsockname()[:2]


@contextlib.contextmanager
def serve(app: Any, options: ServerOptions | None = None, **kwargs: Any) -> Iterator[Served]:
    sock = sockets.listen(("127.0.0.1", 0))
    server = Server(sock, app, options or ServerOptions(client_timeout_s=5), logging.getLogger("test.server"), **kwargs)
    concurrency.spawn(server.serve_forever)
    concurrency.sleep(0)
    try:
        yield Served(server)
    finally:
        server.drain(0.05)
        sock.close()


@contextlib.contextmanager
def peer(handler: Callable[[Stream], None]) -> Iterator[Address]:
    """A node that does to each connection what ``handler`` says, then closes it."""
    sock = sockets.listen(("127.0.0.1", 0))
    streams: list[Stream] = []

    def handle(stream: Stream) -> None:
        with contextlib.suppress(OSError, WaitTimeout):
            handler(stream)
        stream.close()

    def accept() -> None:
        for connection, _ in sockets.accept(sock):
            streams.append(Stream(connection, 5))
            concurrency.spawn(handle, streams[-1])

    task = concurrency.spawn(accept)
    concurrency.sleep(0)
    try:
        yield sock.getsockname()[:2]
    finally:
        task.kill()
        for stream in streams:
            stream.close()
        sock.close()


def dial(address: Address, timeout: float = 5) -> Stream:
    return sockets.connect(address, timeout, timeout)


def read_all(stream: Stream, limit: int = 1 << 24) -> bytes:
    """Everything until the peer closes; a reset ends it too."""
    parts, size = [], 0
    try:
        while size < limit:
            data = stream.receive()
            if not data:
                break
            parts.append(data)
            size += len(data)
    except OSError:
        pass
    return b"".join(parts)


def read_until(stream: Stream, mark: bytes) -> bytes:
    """Up to and with ``mark``, or to the end; what comes along after it too."""
    data = b""
    while mark not in data:
        more = stream.receive()
        if not more:
            break
        data += more
    return data


def talk(address: Address, data: bytes, timeout: float = 5) -> bytes:
    """Send ``data`` and read until the server closes."""
    stream = dial(address, timeout)
    try:
        stream.send(data)
        return read_all(stream)
    finally:
        stream.close()
