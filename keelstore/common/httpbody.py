"""Reading message bodies off a connection: of known length, chunked, or up to the end. Used by server and client.

A source gives raw errors, which its user translates: OSError and EOFError (the peer went away), WaitTimeout (it is silent),
ProtocolError (broken chunk framing). After any of them the connection is of no more use.
"""

from __future__ import annotations

from typing import Protocol

from keelstore.common.httpparse import MAX_CHUNK_LINE, MAX_TRAILERS, ProtocolError, check_trailer, parse_chunk_line
from keelstore.common.sockets import Stream

CHUNK = 65536


class Wire:
    """A stream and what was read from it too far: ``pending[start:]``."""

    __slots__ = ("pending", "start", "stream")

    def __init__(self, stream: Stream):
        self.stream = stream
        self.pending = b""
        self.start = 0

    def some(self, size: int) -> bytes:
        """1 to ``size`` bytes. Raises EOFError at the end of the stream."""
        pending = self.pending
        if pending:
            start = self.start
            if len(pending) - start <= size:
                self.pending, self.start = b"", 0
                return pending[start:] if start else pending
            self.start = start + size
            return pending[start : start + size]
        data = self.stream.receive(size)
        if not data:
            raise EOFError("the peer closed the connection")
        return data

    def into(self, view: memoryview) -> int:
        """As :meth:`some`, into memory of the caller; how much."""
        if self.pending:
            data = self.some(len(view))
            count = len(data)
            view[:count] = data
        else:
            count = self.stream.receive_into(view)
            if not count:
                raise EOFError("the peer closed the connection")
        return count

    def line(self, limit: int) -> bytes:
        """Up to the next CRLF, without it. Raises ProtocolError beyond ``limit`` bytes, or when LF comes without CR."""
        while True:
            end = self.pending.find(b"\n", self.start)
            if end >= 0:
                line = self.pending[self.start : end]
                self.start = end + 1
                if self.start == len(self.pending):
                    self.pending, self.start = b"", 0
                if not line.endswith(b"\r"):
                    raise ProtocolError("line end without CR")
                if len(line) > limit:
                    raise ProtocolError("line too long")
                return line[:-1]
            if len(self.pending) - self.start > limit:
                raise ProtocolError("line too long")
            data = self.stream.receive(CHUNK)
            if not data:
                raise EOFError("the peer closed the connection")
            self.pending, self.start = self.pending[self.start :] + data, 0


class Source(Protocol):
    """What a body is read from. ``ended``: all of it was read, its framing included."""

    @property
    def ended(self) -> bool: ...

    def more(self, size: int) -> bytes:
        """1 to ``size`` bytes, b'' at the end."""


class Fixed:
    """A body of known length."""

    __slots__ = ("remaining", "wire")

    def __init__(self, wire: Wire, length: int):
        self.wire, self.remaining = wire, length

    @property
    def ended(self) -> bool:
        return not self.remaining

    def more(self, size: int) -> bytes:
        remaining = self.remaining
        if not remaining:
            return b""
        data = self.wire.some(size if size < remaining else remaining)
        self.remaining = remaining - len(data)
        return data

    def into(self, view: memoryview) -> int:
        """As :meth:`more`, into memory of the caller; how much, 0 at the end."""
        remaining = self.remaining
        if not remaining:
            return 0
        count = self.wire.into(view if len(view) <= remaining else view[:remaining])
        self.remaining = remaining - count
        return count


class Chunked:
    """A chunked body. Trailers are read, bounded and dropped: to pass them on would let a peer add headers late."""

    __slots__ = ("_left", "_needs_break", "ended", "wire")

    def __init__(self, wire: Wire):
        self.wire = wire
        self.ended = False
        self._left = 0
        self._needs_break = False

    def more(self, size: int) -> bytes:
        if self.ended:
            return b""
        if not self._left:
            if self._needs_break:
                if self.wire.line(2):
                    raise ProtocolError("chunk is longer than its size")
                self._needs_break = False
            self._left = parse_chunk_line(self.wire.line(MAX_CHUNK_LINE))
            if not self._left:
                self._skip_trailers()
                self.ended = True
                return b""
        data = self.wire.some(size if size < self._left else self._left)
        self._left -= len(data)
        self._needs_break = not self._left
        return data

    def end_if_buffered(self) -> bool:
        """Whether the body is at its end, looking no further than at what has been received already."""
        if not self.ended and not self._left:
            rest = b"\r\n0\r\n\r\n" if self._needs_break else b"0\r\n\r\n"
            if self.wire.pending.startswith(rest, self.wire.start):
                self.more(1)
        return self.ended

    def restart(self) -> None:
        """Another chunked body follows (two-phase PUT). Only after the end of the one before."""
        self.ended = False

    def _skip_trailers(self) -> None:
        room = MAX_TRAILERS
        while True:
            line = self.wire.line(room)
            if not line:
                return
            check_trailer(line)
            room -= len(line) + 2
            if room <= 0:
                raise ProtocolError("trailers too long")


class UntilClose:
    """A body that ends with its connection; only for answers. It cannot be known to be whole."""

    __slots__ = ("ended", "wire")

    def __init__(self, wire: Wire):
        self.wire = wire
        self.ended = False

    def more(self, size: int) -> bytes:
        if self.ended:
            return b""
        try:
            return self.wire.some(size)
        except EOFError:
            self.ended = True
            return b""
