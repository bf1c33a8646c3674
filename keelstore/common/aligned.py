"""Large bodies in pieces that a file takes past the page cache (``fs.write_direct``), and that nobody copies.

A piece is a view of a buffer that begins at a page. The same piece goes to the digest and to each copy of the object; its
memory is used again when the last who holds a view of it lets go, a disk thread whose waiter was stopped included.

Bounds: an upload has up to four pieces of PIECE bytes at a time (one being filled, one hashed and waiting, one being written,
one that a slower device still has), a process LIMIT in all. Where none is left, and where a client is slow, the rest of a
body goes in small pieces as it comes, by the page cache.
"""

from __future__ import annotations

import ctypes
import mmap
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, Final

PIECE: Final = 1 << 20  # bytes
LARGE: Final = 4 << 20  # bytes of a body from which on it is worth it
LIMIT: Final = 64  # pieces of a process in use at once
KEPT: Final = 16  # buffers of a process at rest
PATIENCE_S: Final = 2.0  # after which a piece goes on as far as it has come, and the rest of its body the ordinary way
STEP: Final = 65536  # bytes of an ordinary piece


class _Lease(ctypes.c_char * PIECE):  # type: ignore[misc]
    """A buffer in use: every view holds it."""

    owner: Buffers
    memory: mmap.mmap

    def __del__(self) -> None:
        self.owner._take_back(self.memory)


class Buffers:
    """The buffers of a process. What is given back may be so on any thread: each step here is one call of a deque."""

    def __init__(self, limit: int = LIMIT, kept: int = KEPT):
        self._permits = deque([None] * limit)
        self._kept: deque[mmap.mmap] = deque(maxlen=kept)

    def take(self) -> memoryview | None:
        """PIECE bytes, with anything in them; None when too many are in use."""
        try:
            self._permits.pop()
        except IndexError:
            return None
        try:
            memory = self._kept.pop()
        except IndexError:
            try:
                memory = mmap.mmap(-1, PIECE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            except (OSError, MemoryError):
                self._permits.append(None)
                return None
        lease = _Lease.from_buffer(memory)
        lease.owner, lease.memory = self, memory
        return memoryview(lease).cast("B")

    def _take_back(self, memory: mmap.mmap) -> None:
        self._kept.append(memory)  # the oldest goes, when there are enough
        self._permits.append(None)


buffers: Final = Buffers()


def pieces(source: Any, length: int, of: Buffers = buffers) -> Iterator[bytes | memoryview]:
    """The next ``length`` bytes of a request's body, fewer where it ends early: as views of PIECE bytes and a last, shorter
    one; or, from where that ceases to be possible, as ``source.read`` gives them.
    """
    # of the class: one that passes on whatever it has not would have its source read past it
    read_into = getattr(type(source), "readinto", None)
    left = length
    while left:
        buffer = of.take()
        if buffer is None:
            break
        wanted = min(PIECE, left)
        count = _fill(source, read_into, buffer[:wanted])
        left -= count
        piece = [buffer[:count]]
        del buffer
        if count:
            yield piece.pop()  # held by nobody here
        if count < wanted:
            break
    while left:
        data = source.read(min(left, STEP))
        if not data:
            return
        left -= len(data)
        yield data


def _fill(source: Any, read_into: Any, view: memoryview) -> int:
    """How much has come: all that there is room for, unless the body ends or its sender is slow."""
    at, size, give_up = 0, len(view), 0.0
    while at < size:
        if read_into is not None:
            count = read_into(source, view[at:])
        else:
            data = source.read(min(size - at, STEP))
            count = len(data)
            view[at : at + count] = data
        if not count:
            break
        at += count
        if at < size:
            now = time.monotonic()
            if not give_up:
                give_up = now + PATIENCE_S
            elif now > give_up:
                break
    return at
