"""Listening sockets that the workers of a process group share, and fairness between those workers.

The supervisor binds each address once and its workers inherit the socket: a worker that dies or is replaced takes no waiting
connection with it, which sockets of its own (SO_REUSEPORT) would. The price is that the kernel wakes all of them and the
quickest may take everything; so the workers keep count of their connections in shared memory, and one that has more than
another waits a moment before it takes the next. Whoever is free takes it meanwhile.
"""

from __future__ import annotations

import errno
import mmap
import signal
import socket
import time
from typing import Any

from keelstore.common import concurrency, sockets
from keelstore.common.errors import KeelstoreError

_MOMENT_S = 0.002
_STOP = {signal.SIGTERM, signal.SIGINT}


class BindError(KeelstoreError):
    """An address that cannot be listened on."""


class Stopped(KeelstoreError):
    """We were told to stop while waiting for a port."""


def bind(address: tuple[str, int], backlog: int, keep_idle_s: int, timeout_s: float) -> socket.socket:
    """A listening socket; waits ``timeout_s`` for a port in use. SIGTERM and SIGINT must be blocked.

    Raises BindError, Stopped.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            sock = sockets.listen(address, backlog=backlog)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() >= deadline:
                reason = "it is in use" if error.errno == errno.EADDRINUSE else error.strerror
                raise BindError(f"cannot listen on {address[0]}:{address[1]}: {reason}") from None
            if signal.sigtimedwait(_STOP, 0.1):  # a sleep that does not wake the event loop before the fork
                raise Stopped("stopped while waiting for a port") from None
        else:
            keep_alive(sock, keep_idle_s)
            return sock


def keep_alive(sock: socket.socket, idle_s: int) -> None:
    """Accepted connections inherit it."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle_s)


def adopt(fd: int) -> socket.socket:
    """The socket behind an inherited descriptor, as :func:`bind` made it."""
    found = sockets.plain_socket(fd)
    found.setblocking(False)
    return found


class Counts:
    """Open connections by worker and listener, in memory that the workers share. -1: no such worker."""

    def __init__(self, workers: int, listeners: int):
        self.workers, self.listeners = workers, listeners
        self._table: Any = memoryview(mmap.mmap(-1, max(1, workers * listeners) * 4)).cast("i")
        for worker in range(workers):
            self.reset(worker, alive=False)

    def reset(self, worker: int, alive: bool = True) -> None:
        for listener in range(self.listeners):
            self._table[worker * self.listeners + listener] = 0 if alive else -1

    def add(self, worker: int, listener: int, change: int) -> None:
        """Only ``worker`` itself writes its counts, so no lock is needed."""
        self._table[worker * self.listeners + listener] += change

    def is_ahead(self, worker: int, listener: int) -> bool:
        """Whether another worker has fewer connections of this listener, by more than an eighth where they are many."""
        table, step = self._table, self.listeners
        own = table[worker * step + listener]
        own -= own >> 3
        return any(-1 < table[place] < own for place in range(listener, self.workers * step, step))

    def has_room_elsewhere(self, worker: int, listener: int, limit: int) -> bool:
        """Whether another worker has fewer than ``limit`` connections of this listener."""
        table, step = self._table, self.listeners
        return any(-1 < table[place] < limit for place in range(listener, self.workers * step, step)
                   if place != worker * step + listener)


class SharedListener:
    """A listening socket as one worker sees it: ``accept``, ``fileno``, ``close`` of a socket, with counting."""

    def __init__(self, sock: socket.socket, counts: Counts, worker: int, listener: int):
        self._sock, self._counts, self._worker, self._listener = sock, counts, worker, listener
        self._kind: Any = type("CountedSocket", (type(sock),), {"__slots__": ("on_close",), "close": _close_counted})

    def accept(self) -> tuple[socket.socket, Any]:
        counts, worker, listener = self._counts, self._worker, self._listener
        if counts.is_ahead(worker, listener):
            concurrency.sleep(_MOMENT_S)
        sock, peer = self._sock.accept()
        counted = self._kind(sock.family, sock.type, sock.proto, sock.detach())
        counted.on_close = self._forget
        counts.add(worker, listener, 1)
        return counted, peer

    def has_room_elsewhere(self, limit: int) -> bool:
        """Whether another worker has fewer than ``limit`` connections."""
        return self._counts.has_room_elsewhere(self._worker, self._listener, limit)

    def _forget(self) -> None:
        self._counts.add(self._worker, self._listener, -1)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


def _close_counted(sock: Any) -> None:
    forget, sock.on_close = getattr(sock, "on_close", None), None
    if forget:
        forget()
    super(type(sock), sock).close()
