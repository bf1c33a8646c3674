"""Bytes that stay in the kernel: what a body offers of that, and how it passes from one connection to another.

:func:`arrived` tells how much of what a peer has sent waits in the receive buffer of its stream; :func:`send_on` moves just
that, through a pipe, into another stream (splice(2)). Only what is there already is ever promised, so that an error while it
is moved can only be the receiver's, and whoever reads from the sender can still go on elsewhere when it breaks off.

What a body may offer besides being iterated over is written in ``httpconnection.py``; :func:`file_region` and its like ask.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct
import termios
from collections.abc import Iterator
from typing import Any, Final

from keelstore.common.sockets import Stream

PIPE_BYTES: Final = 1 << 20  # asked for; the kernel may grant less
PIPES_AT_REST: Final = 32
_FLAGS: Final = 0x1 | 0x2  # SPLICE_F_MOVE, SPLICE_F_NONBLOCK

_rest: list[tuple[int, int]] = []  # empty pipes


def _forget() -> None:
    """After a fork the pipes are the parent's."""
    while _rest:
        for fd in _rest.pop():
            os.close(fd)


os.register_at_fork(after_in_child=_forget)


class Arrived:
    """``count`` bytes at the head of a stream's receive buffer. They must be moved before anything else is read from it."""

    __slots__ = ("count", "stream")

    def __init__(self, stream: Stream, count: int):
        self.stream, self.count = stream, count

    def __len__(self) -> int:
        return self.count


Region = tuple[int, int, int]  # fd, offset, count: a whole body as part of an open file
Pieces = Iterator[bytes | Region | Arrived]  # a body in several parts, some of them of open files or other connections


def close(body: Any) -> None:
    """Close a body that can be closed."""
    method = getattr(body, "close", None)
    if method is not None:
        method()


def file_region(body: Any) -> Region | None:
    """The region of a body that offers one: the server sends it without passing it through Python."""
    method = getattr(body, "file_region", None)
    return method() if method is not None else None


def file_region_sent(body: Any) -> None:
    """Tell a body that its region has been sent whole."""
    method = getattr(body, "file_region_sent", None)
    if method is not None:
        method()


def file_pieces(body: Any) -> Pieces | None:
    """The pieces of a body that offers them, in place of iterating over it; None for one that does not."""
    method = getattr(body, "file_pieces", None)
    return method() if method is not None else None


def arrived(stream: Stream, limit: int) -> Arrived:
    """What has arrived, at least one byte and at most ``limit``. Raises EOFError when the peer has closed, OSError,
    WaitTimeout."""
    while True:
        count = struct.unpack("i", fcntl.ioctl(stream.fd, termios.FIONREAD, b"\0\0\0\0"))[0]
        if count:
            return Arrived(stream, min(count, limit))
        try:
            if not stream.sock.recv(1, socket.MSG_PEEK):
                raise EOFError("the peer closed the connection")
        except BlockingIOError:
            stream.wait(False)


def send_on(part: Arrived, to: Stream) -> None:
    """Send all of ``part``. Raises OSError, WaitTimeout: of ``to``."""
    reader, writer = _rest.pop() if _rest else _new_pipe()
    left, held = part.count, 0
    source, target = part.stream.fd, to.fd
    try:
        while left or held:
            if left:
                try:
                    moved = os.splice(source, writer, left, flags=_FLAGS)
                except BlockingIOError:  # the pipe is full
                    moved = 0
                left -= moved
                held += moved
                if not held:
                    raise OSError(errno.EIO, "what had arrived cannot be moved")
            try:
                held -= to.count_moved(os.splice(reader, target, held, flags=_FLAGS))
            except BlockingIOError:
                to.wait(True)
    finally:
        if left or held or len(_rest) >= PIPES_AT_REST:
            os.close(reader)
            os.close(writer)
        else:
            _rest.append((reader, writer))


def _new_pipe() -> tuple[int, int]:
    pipe = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        fcntl.fcntl(pipe[1], fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    except OSError:  # a user may have only so many large ones
        pass
    return pipe
