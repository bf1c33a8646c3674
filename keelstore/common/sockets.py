"""TCP, Unix and TLS connections whose waits let other green threads run and are bounded; listening sockets.

The sockets and TLS contexts are of the unpatched kind: the library's own would wait in ways that cost more.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from typing import Any

from keelstore.common.concurrency import Waits, is_ready, native_module, sleep, wait_for
from keelstore.common.errors import PeerSilent, WaitTimeout
from keelstore.common.send_ahead import SendAhead, hold_little

_AGAIN = (errno.EAGAIN, errno.EWOULDBLOCK)
_ssl, _plain = native_module("ssl"), native_module("socket")
_RESET = struct.pack("ii", 1, 0)  # linger: on, 0 s
_GREEDY = 1 << 20  # bytes that one green thread may move without a wait before it lets others run
_REQUEST = _GREEDY // 4  # what a request counts for in that, whatever it moves


class Stream:
    """A connected, non-blocking socket. Every wait is bounded by ``timeout`` seconds (WaitTimeout).

    A peer that is always ready never makes its green thread wait; such a stream steps aside each megabyte, and every four
    requests.
    """

    __slots__ = ("_ahead", "_moved", "_waits", "fd", "is_tls", "sock", "timeout")

    def __init__(self, sock: socket.socket, timeout: float | None):
        sock.setblocking(False)
        self.sock, self.timeout, self.fd = sock, timeout, sock.fileno()
        self.is_tls = isinstance(sock, _ssl.SSLSocket)
        self._moved = 0
        self._waits: Waits | None = None
        self._ahead: SendAhead | None = None

    def __del__(self) -> None:
        if self.fd >= 0:
            self.close()

    def _wait(self, timeout: float | None, write: bool) -> None:
        self._moved = 0
        waits = self._waits
        if waits is None:
            if self.fd < 0:
                raise OSError(errno.EBADF, "the stream is closed")
            waits = self._waits = Waits(self.fd)
        if timeout is not None and timeout <= 0:
            raise WaitTimeout("no time left to wait for the peer")
        try:
            waits.wait(timeout, write)
        except WaitTimeout as error:
            if error.args:
                raise  # another limit's, that ended during this wait
            raise PeerSilent(f"peer was silent for {timeout:.3g} s") from None

    def _wait_to_write(self, timeout: float | None) -> None:
        if timeout is None:
            timeout = self.timeout
        if self._ahead is None:
            self._wait(timeout, True)
        else:
            self._ahead.wait(timeout)

    def begin_large(self) -> None:
        """What follows is large: for a reader that is quick the kernel may hold more of it."""
        if self.sock.family != socket.AF_UNIX:
            self._ahead = SendAhead(self.sock, lambda timeout: self._wait(timeout, True))

    def end_large(self) -> None:
        """It has been sent: wait until the kernel holds little of it. Raises OSError, WaitTimeout."""
        if self._ahead is not None:
            self._ahead.end(self.timeout)
            self._ahead = None

    def wait(self, write: bool, timeout: float | None = None) -> None:
        """Until the peer takes more (``write``), or has sent more. Only after a call on the socket that found nothing to do.
        Raises OSError, WaitTimeout."""
        if write:
            self._wait_to_write(timeout)
        else:
            self._wait(self.timeout if timeout is None else timeout, False)

    def count_moved(self, count: int) -> int:
        """``count``, the bytes that a call of someone else has moved; others run after each megabyte."""
        self._moved += count
        if self._moved > _GREEDY:
            self._step_aside()
        return count

    def end_request(self) -> None:
        """One has been answered. A peer that always has the next one there lets others run now and then."""
        self.count_moved(_REQUEST)

    def _step_aside(self) -> None:
        self._moved = 0
        sleep(0)

    def to_tls(self, context: ssl.SSLContext) -> Stream:
        """The server's side of a TLS connection over this one, which is used up; then call ``handshake`` of it.

        ``context`` as :func:`tls_context` gives.
        """
        self._forget_waits()
        self.fd = -1
        return Stream(context.wrap_socket(self.sock, server_side=True, do_handshake_on_connect=False), self.timeout)

    def handshake(self, timeout: float | None = None) -> None:
        """The TLS handshake of a stream that :meth:`to_tls` made. Raises OSError, WaitTimeout."""
        while True:
            try:
                self.sock.do_handshake()  # type: ignore[attr-defined]
                return
            except ssl.SSLWantReadError:
                self._wait(self.timeout if timeout is None else timeout, False)
            except ssl.SSLWantWriteError:
                self._wait(self.timeout if timeout is None else timeout, True)

    def receive(self, size: int = 65536, timeout: float | None = None) -> bytes:
        """At least one byte, at most ``size``; b'' when the peer has closed. Raises OSError, WaitTimeout."""
        data: bytes | None = self._receive(self.sock.recv, size, timeout)
        if data is None:
            return b""
        self._moved += len(data)
        if self._moved > _GREEDY:
            self._step_aside()
        return data

    def receive_into(self, view: memoryview, timeout: float | None = None) -> int:
        """As :meth:`receive`, into memory of the caller; how much came, 0 when the peer has closed."""
        count: int | None = self._receive(self.sock.recv_into, view, timeout)
        if count is None:
            return 0
        self._moved += count
        if self._moved > _GREEDY:
            self._step_aside()
        return count

    def _receive(self, take: Callable[[Any], Any], what: Any, timeout: float | None) -> Any:
        """What ``take(what)`` gives once there is something; None when the peer's TLS has ended without a word."""
        while True:
            try:
                return take(what)
            except (BlockingIOError, ssl.SSLWantReadError):
                self._wait(self.timeout if timeout is None else timeout, False)
            except ssl.SSLWantWriteError:
                self._wait_to_write(timeout)
            except ssl.SSLEOFError:
                return None

    def send(self, data: bytes | bytearray | memoryview, timeout: float | None = None) -> None:
        """All of ``data``. Raises OSError, WaitTimeout (the peer takes nothing)."""
        view: Any = data
        while True:
            try:
                sent = self.sock.send(view)
            except (BlockingIOError, ssl.SSLWantWriteError):
                self._wait_to_write(timeout)
                continue
            except ssl.SSLWantReadError:
                self._wait(self.timeout if timeout is None else timeout, False)
                continue
            self._moved += sent
            if sent == len(view):
                if self._moved > _GREEDY:
                    self._step_aside()
                return
            view = memoryview(view)[sent:]

    def send_parts(self, parts: list[bytes | bytearray | memoryview], timeout: float | None = None) -> None:
        """All of ``parts`` in order, in one call where the peer takes it, without joining them."""
        if self.is_tls:
            for part in parts:
                if part:
                    self.send(part, timeout)
            return
        try:
            sent = self.sock.sendmsg(parts)
        except BlockingIOError:
            sent = 0
        self._moved += sent
        for part in parts:
            size = len(part)
            if sent >= size:
                sent -= size
            else:
                self.send(memoryview(part)[sent:] if sent else part, timeout)
                sent = 0
        if self._moved > _GREEDY:
            self._step_aside()

    def send_file(self, fd: int, offset: int, count: int, timeout: float | None = None) -> None:
        """``count`` bytes of an open file from ``offset``, without passing through Python. Not for TLS.

        Raises EOFError when the file is shorter.
        """
        while count:
            try:
                sent = os.sendfile(self.fd, fd, offset, min(count, _GREEDY))
            except BlockingIOError:
                self._wait_to_write(timeout)
                continue
            if not sent:
                raise EOFError("file is shorter than promised")
            offset += sent
            count -= sent
            self._moved += sent
            if self._moved > _GREEDY:
                self._step_aside()

    def is_readable(self) -> bool:
        """Whether a read would not wait: for a kept-alive connection at rest, that its peer closed or misbehaved."""
        return is_ready(self.fd)

    def shutdown_write(self) -> None:
        """Tell the peer that nothing more comes."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)

    def shutdown_read(self) -> None:
        """What has arrived may still be received, then b'': wakes a green thread that waits for the peer."""
        with contextlib.suppress(OSError):
            _plain.socket.shutdown(self.sock, socket.SHUT_RD)

    def abort(self) -> None:
        """Close with a reset, so that what was sent cannot be taken for whole."""
        if self.fd >= 0:
            with contextlib.suppress(OSError):
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self.close()

    def close(self) -> None:
        """Close at once. Safe to call again. A green thread that waits for the peer gets an OSError."""
        if self.fd >= 0:
            self.fd = -1
            self._forget_waits()
            self.sock.close()
            if self._ahead is not None:
                self._ahead.drop()
                self._ahead = None

    def forget(self) -> None:
        """In a forked child: close the child's descriptor, and touch neither the connection nor the parent's hub."""
        if self.fd >= 0:
            self.fd = -1
            self._waits = None
            self.sock.close()

    def _forget_waits(self) -> None:
        waits, self._waits = self._waits, None
        if waits is not None:
            waits.end()


def connect(address: tuple[str, int], timeout: float, stream_timeout: float | None = None) -> Stream:
    """A TCP connection to an IP address (v4 or v6). Raises OSError, or WaitTimeout after ``timeout`` seconds."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    sock = _new_socket(family)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        code = sock.connect_ex(address)
        if code in (errno.EINPROGRESS, *_AGAIN):
            try:
                wait_for(sock.fileno(), True, timeout)
            except WaitTimeout:
                raise WaitTimeout(f"no connection to {address[0]}:{address[1]} within {timeout} s") from None
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, f"connect to {address[0]}:{address[1]}: {os.strerror(code)}")
        return Stream(sock, stream_timeout)
    except BaseException:
        sock.close()
        raise


def _new_socket(family: int) -> socket.socket:
    """A socket of the unpatched kind: waiting is Stream's job."""
    return _plain.socket(family, socket.SOCK_STREAM)


def tls_context(cert_file: str, key_file: str | None = None) -> ssl.SSLContext:
    """A server's TLS context, unpatched: waiting is Stream's job. Raises OSError for files that cannot be used."""
    context: ssl.SSLContext = _ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert_file, key_file or None)
    return context


def pace_nothing(sock: socket.socket) -> None:
    """For a listening socket that only this machine reaches: what is accepted on it is not paced, which ``bbr`` has the
    kernel do with a timer for each 64 KiB. A connection that began with ``bbr`` stays so; where ``reno`` is refused, all do.
    """
    with contextlib.suppress(OSError):
        if sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0") == b"bbr":
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")


def listen(address: tuple[str, int], backlog: int = 4096, reuse_port: bool = False) -> socket.socket:
    """A listening TCP socket, non-blocking. Raises OSError."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    sock = _new_socket(family)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        hold_little(sock)  # as all these, inherited by what is accepted
        sock.bind(address)
        bound = sock.getsockname()[0]
        if bound.startswith("127.") or bound == "::1":
            pace_nothing(sock)
        sock.listen(backlog)
        sock.setblocking(False)
        return sock
    except BaseException:
        sock.close()
        raise


def listen_at(path: str, backlog: int = 8) -> socket.socket:
    """A listening Unix socket, non-blocking, that only its owner may connect to. Raises OSError."""
    sock = _new_socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        sock.bind(path)
        sock.listen(backlog)
        sock.setblocking(False)
        return sock
    except BaseException:
        sock.close()
        raise
    finally:
        os.umask(before)


def accept(sock: socket.socket) -> Iterator[tuple[socket.socket, Any]]:
    """Connections as they come, until the socket is closed or the green thread is stopped."""
    while True:
        try:
            yield sock.accept()
        except BlockingIOError:
            wait_for(sock.fileno(), False)
        except ConnectionAbortedError:
            continue
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                sleep(0.05)  # out of descriptors: let some connections end
                continue
            raise


def plain_socket(fd: int) -> socket.socket:
    """A socket object of the unpatched kind for a descriptor that was inherited."""
    return _plain.socket(fileno=fd)
