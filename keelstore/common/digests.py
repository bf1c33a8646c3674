"""MD5 of several streams that grow together: the archives of an object's fragments, and the object itself.

Where the library ``md5lanes`` was built (a C compiler was there at installation), the streams are hashed side by side in
the lanes of vector instructions: seven streams for little more than the longest alone costs. Elsewhere hashlib does it; the
digests are the same. doc/design/performance.md, Erasure coding, has the figures.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from hashlib import md5
from importlib.util import find_spec
from typing import Any, Protocol

_LIBRARY = "keelstore.common._md5lanes"
TRIED = 9  # streams, more than there are lanes


class Digests(Protocol):
    """MD5s of several streams. What two threads do at once to one instance must be of different streams."""

    def update(self, pieces: Sequence[bytes]) -> None:
        """The next bytes of each stream, in order of the streams; other Python threads run meanwhile if they are long."""

    def calls(self, pieces: Sequence[bytes]) -> list[Callable[[], None]]:
        """As :meth:`update`, in calls that may run side by side and must all have ended before the next."""

    def take(self, stream: int, pieces: Sequence[bytes | memoryview]) -> None:
        """The next bytes of one stream."""

    def hexdigest(self, stream: int) -> str:
        """Of what the stream has had so far."""


Feed = tuple[Digests, int, Sequence[bytes | memoryview]]  # whose stream, which, and its next bytes in pieces


def take_together(feeds: Sequence[Feed]) -> None:
    """The next bytes of streams of several instances, of each stream once. Streams that are given pieces of like sizes cost
    least where they stand next to each other.
    """
    lanes = [(each, stream, pieces) for each, stream, pieces in feeds if isinstance(each, LaneDigests)]
    if len(lanes) == len(feeds):
        LaneDigests.take_all(lanes)
        return
    for each, stream, pieces in feeds:
        each.take(stream, pieces)


def digests(count: int) -> Digests:
    """Those of ``count`` streams, that have had nothing yet."""
    return LaneDigests(count) if has_lanes() else HashlibDigests(count)


def has_lanes() -> bool:
    """Whether streams are hashed side by side here."""
    return _library() is not None


class HashlibDigests:
    """With the standard library."""

    def __init__(self, count: int):
        self._hashers: list[Any] = [md5(usedforsecurity=False) for _ in range(count)]

    def update(self, pieces: Sequence[bytes]) -> None:
        self._update(range(len(self._hashers)), pieces)

    def _update(self, numbers: range, pieces: Sequence[bytes]) -> None:
        for number in numbers:
            self._hashers[number].update(pieces[number])

    def calls(self, pieces: Sequence[bytes]) -> list[Callable[[], None]]:
        total, had, split = sum(map(len, pieces)), 0, 0
        while split < len(pieces) and 2 * had < total:  # two halves
            had += len(pieces[split])
            split += 1
        return [partial(self._update, numbers, pieces) for numbers in (range(split), range(split, len(pieces))) if numbers]

    def take(self, stream: int, pieces: Sequence[bytes | memoryview]) -> None:
        for piece in pieces:
            self._hashers[stream].update(piece)

    def hexdigest(self, stream: int) -> str:
        return str(self._hashers[stream].hexdigest())


class LaneDigests:
    """With ``md5lanes``; only where :func:`has_lanes`."""

    def __init__(self, count: int, library: Any = None):
        library = library or _library()
        size = library.md5lanes_state_size()
        self._library, self._count = library, count
        self._states = ctypes.create_string_buffer(size * count)
        self._streams = [ctypes.addressof(self._states) + size * number for number in range(count)]
        self._pointers = (ctypes.c_void_p * count)(*self._streams)
        for stream in self._streams:
            library.md5lanes_start(stream)

    def update(self, pieces: Sequence[bytes]) -> None:
        count = self._count
        if len(pieces) != count:
            raise ValueError(f"{len(pieces)} pieces for {count} streams")
        sizes = (ctypes.c_uint64 * count)(*map(len, pieces))
        self._library.md5lanes_update(self._pointers, (ctypes.c_char_p * count)(*pieces), sizes, count)

    def calls(self, pieces: Sequence[bytes]) -> list[Callable[[], None]]:
        return [partial(self.update, pieces)]

    def take(self, stream: int, pieces: Sequence[bytes | memoryview]) -> None:
        self.take_all([(self, stream, pieces)])

    @staticmethod
    def take_all(feeds: Sequence[tuple[LaneDigests, int, Sequence[bytes | memoryview]]]) -> None:
        """See :func:`take_together`."""
        streams: list[int] = []
        data: list[int] = []
        sizes: list[int] = []
        counts: list[int] = []
        for turn in range(max((len(pieces) for _, _, pieces in feeds), default=0)):
            before = len(streams)
            for each, stream, pieces in feeds:
                if len(pieces) > turn and pieces[turn]:
                    streams.append(each._streams[stream])
                    data.append(_address(pieces[turn]))
                    sizes.append(len(pieces[turn]))
            counts.append(len(streams) - before)
        total = len(streams)
        if total:  # one call: after each, a thread waits for the interpreter's lock
            feeds[0][0]._library.md5lanes_update_in_turns(
                (ctypes.c_void_p * total)(*streams), (ctypes.c_void_p * total)(*data), (ctypes.c_uint64 * total)(*sizes),
                (ctypes.c_uint * len(counts))(*counts), len(counts))

    def hexdigest(self, stream: int) -> str:
        found = ctypes.create_string_buffer(16)
        self._library.md5lanes_digest(self._streams[stream], found)
        return found.raw.hex()


class _Buffer(ctypes.Structure):
    """``Py_buffer``."""

    _fields_ = (("buf", ctypes.c_void_p), ("obj", ctypes.c_void_p), ("len", ctypes.c_ssize_t), ("itemsize", ctypes.c_ssize_t),
                ("readonly", ctypes.c_int), ("ndim", ctypes.c_int), ("format", ctypes.c_void_p), ("shape", ctypes.c_void_p),
                ("strides", ctypes.c_void_p), ("suboffsets", ctypes.c_void_p), ("internal", ctypes.c_void_p))  # fmt: skip


def _address(piece: bytes | memoryview) -> int:
    """Where the bytes are, for as long as the caller holds ``piece``: neither kind moves."""
    buffer = _Buffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(piece), ctypes.byref(buffer), 0)
    address: int = buffer.buf
    ctypes.pythonapi.PyBuffer_Release(ctypes.byref(buffer))
    return address


@lru_cache(maxsize=1)
def _library() -> Any:
    """``md5lanes``, once it has shown that it computes what hashlib does; None where it was not built or cannot be used."""
    spec = find_spec(_LIBRARY)
    if spec is None or spec.origin is None:
        return None
    try:
        library: Any = ctypes.CDLL(spec.origin)
        pointer = ctypes.c_void_p
        library.md5lanes_state_size.restype = ctypes.c_uint
        library.md5lanes_start.argtypes, library.md5lanes_start.restype = [pointer], None
        library.md5lanes_update.argtypes, library.md5lanes_update.restype = [pointer, pointer, pointer, ctypes.c_uint], None
        library.md5lanes_update_in_turns.argtypes = [pointer, pointer, pointer, pointer, ctypes.c_uint]
        library.md5lanes_update_in_turns.restype = None
        library.md5lanes_digest.argtypes, library.md5lanes_digest.restype = [pointer, pointer], None
    except (OSError, AttributeError):
        return None
    return library if _is_right(library) else None


def _is_right(library: Any) -> bool:
    """Whether it computes here what hashlib does: a wrong digest would make every fragment look rotten."""
    ours, known = LaneDigests(TRIED, library), HashlibDigests(TRIED)
    for size in (100, 1000):
        pieces = [bytes([stream]) * (size + 7 * stream) for stream in range(TRIED)]
        ours.update(pieces)
        known.update(pieces)
        for each in (ours, known):
            take_together([(each, stream, [piece[:64], piece]) for stream, piece in enumerate(pieces)])
    return all(ours.hexdigest(stream) == known.hexdigest(stream) for stream in range(TRIED))
