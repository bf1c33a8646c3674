"""A TCP relay to a server, which breaks a connection when a test wants it: what a network does to clients that hold on."""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_PIECE = 64 << 10


class Relay:
    """Passes on what comes, both ways. ``break_down`` and ``break_up`` count octets: the next connection on which that many have
    gone from, or to, the server is reset, once; ``broken`` counts those."""

    def __init__(self, host: str, port: int):
        self.target = (host, port)
        self.break_down: int | None = None
        self.break_up: int | None = None
        self.broken = 0
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads: list[threading.Thread] = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def stop(self) -> None:
        self._stopped.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(30)

    def _accept(self) -> None:
        while not self._stopped.is_set():
            try:
                client = self._listener.accept()[0]
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(client,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, client: socket.socket) -> None:
        with client:
            try:
                server = socket.create_connection(self.target, 30)
            except OSError:
                return
            with server, selectors.DefaultSelector() as waiting:
                for sock in (client, server):
                    sock.settimeout(30)
                    waiting.register(sock, selectors.EVENT_READ)
                with suppress(OSError):
                    self._pass_on(waiting, client, server)

    def _pass_on(self, waiting: selectors.BaseSelector, client: socket.socket, server: socket.socket) -> None:
        down = up = 0
        while not self._stopped.is_set():
            for key, _ in waiting.select(0.5):
                source = key.fileobj
                assert isinstance(source, socket.socket)
                data = source.recv(_PIECE)
                if not data:  # HTTP's clients do not close one half
                    return
                if source is server:
                    down += len(data)
                    client.sendall(data)
                else:
                    up += len(data)
                    server.sendall(data)
                if self._is_due(down, up):
                    return

    def _is_due(self, down: int, up: int) -> bool:
        with self._lock:
            if self.break_down is not None and down >= self.break_down:
                self.break_down = None
            elif self.break_up is not None and up >= self.break_up:
                self.break_up = None
            else:
                return False
            self.broken += 1
            return True


@contextmanager
def relay(host: str, port: int) -> Iterator[Relay]:
    made = Relay(host, port)
    try:
        yield made
    finally:
        made.stop()
