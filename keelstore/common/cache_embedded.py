"""The embedded cache: one piece of shared memory for the worker processes of a node.

It is made before the workers are forked, so all of them share it and it outlives any of them. The memory is
``sets`` sets of ``WAYS`` slots::

    headers   sets x WAYS x 32 bytes: digest 16, expiry 8 (double, seconds since the epoch), length 4, checksum 4
    data      sets x WAYS x slot_size bytes

The digest of a key (MD5) gives its set; within the set any slot may hold it. An empty slot has a digest of zeros. The
checksum is the CRC-32 of digest, expiry, length and data.

Readers take no lock: they copy the header and the data and believe them only if the checksum holds, so what a writer
changes meanwhile is a miss. Writers hold a byte-range lock (one byte a set) on an unlinked file: the kernel frees it
when a process dies. A slot that a dying writer leaves half written fails its checksum and is written over.

A full set loses the entry that expires first, so that listings of a minute's life never push out tokens of a day's.
Counters without end count as an hour from their last change.
"""

from __future__ import annotations

import _thread
import fcntl
import mmap
import os
import struct
import time as clock
import weakref
from collections.abc import Callable
from hashlib import md5
from typing import Any
from zlib import crc32

from keelstore.common.cache import CacheError, decode, encode

WAYS = 8
HEADER = struct.Struct("=16sdII")
_REST = struct.Struct("=dII")  # a header without its digest
_EMPTY = b"\x00" * 16
_BLOCK = HEADER.size * WAYS
_KNOWN_KEYS = 16384  # keys whose digest a process remembers
_KNOWN_VALUES = 1024  # values whose parsed form a process remembers: parsing costs four times what finding does
_LOCK_WAIT_S = 0.5  # locks are held for microseconds; longer: a busy machine, or a stopped process
_IMPATIENCE_S = 5.0  # after such a wait was in vain, locks are only tried, so that a stopped process costs one wait
_UNLIMITED_WORTH_S = 3600.0  # what an entry without expiry is worth to a full set

_Place = tuple[bytes, int, int, int]  # digest, its checksum, offset of the set's headers, offset of the set's data


class EmbeddedCache:
    """A :class:`~keelstore.common.cache.Cache` in shared memory. Make it before forking.

    A value longer than ``slot_size`` is not kept. Safe to call from green threads (nothing in here switches) and from
    native ones.
    """

    def __init__(self, slots: int = 4096, slot_size: int = 8192, now: Callable[[], float] = clock.time):
        self._sets = max(1, slots // WAYS)
        self._slot_size = slot_size
        self._now = now
        self._data_start = self._sets * _BLOCK
        self._memory = mmap.mmap(-1, self._data_start + self._sets * WAYS * slot_size)
        self._lock_fd = os.memfd_create("keelstore-cache-locks", os.MFD_CLOEXEC)
        self._finalizer = weakref.finalize(self, os.close, self._lock_fd)
        self._mutex = _thread.allocate_lock()  # byte-range locks do not tell the threads of a process apart
        self._impatient_until = 0.0
        self._places: dict[str, _Place] = {}
        self._parsed: dict[str, tuple[bytes, Any]] = {}

    # -- reading -----------------------------------------------------------------------------------------------------

    def get(self, key: str, raise_on_error: bool = False) -> Any:
        data = self.get_raw(key)
        if data is None:
            return None
        last = self._parsed.get(key)
        if last is not None and last[0] == data:
            return last[1]
        value = decode(data)
        if len(self._parsed) >= _KNOWN_VALUES:
            self._parsed.clear()
        self._parsed[key] = (data, value)
        return value

    def get_raw(self, key: str, raise_on_error: bool = False) -> bytes | None:
        place = self._places.get(key) or self._place(key)
        entry = self._read(place)
        if entry is None or 0 < entry[0] <= self._now():
            return None
        return entry[1]

    def get_beside(self, key: str, beside: str) -> tuple[bytes | None, bytes | None]:
        return self.get_raw(key), self.get_raw(beside)

    def _place(self, key: str) -> _Place:
        digest = md5(key.encode("utf-8", "surrogateescape"), usedforsecurity=False).digest()
        index = int.from_bytes(digest[:8], "little") % self._sets
        place = (digest, crc32(digest), index * _BLOCK, self._data_start + index * WAYS * self._slot_size)
        if len(self._places) >= _KNOWN_KEYS:
            self._places.clear()
        self._places[key] = place
        return place

    def _read(self, place: _Place) -> tuple[float, bytes] | None:
        """Expiry and data of a whole entry, or None."""
        digest, checksum, headers, data_start = place
        block = self._memory[headers : headers + _BLOCK]
        at = block.find(digest)
        while at > 0 and at % 32:  # a digest's bytes across two fields: as good as impossible
            at = block.find(digest, at + 1)
        if at < 0:
            return None
        expiry, length, expected = _REST.unpack_from(block, at + 16)
        if length > self._slot_size:
            return None
        start = data_start + (at >> 5) * self._slot_size
        data = self._memory[start : start + length]
        if crc32(data, crc32(block[at + 16 : at + 28], checksum)) != expected:
            return None
        return expiry, data

    # -- writing -----------------------------------------------------------------------------------------------------

    def set(self, key: str, value: Any, ttl_s: float = 0, *, serialize: bool = True, time: float = 0,
            raise_on_error: bool = False, at: str = "") -> None:
        try:
            data = encode(value)
        except (TypeError, ValueError) as error:
            raise CacheError(f"a value that is no JSON: {error}") from None
        ttl_s = ttl_s or time
        if len(data) > self._slot_size:
            self.delete(key)
            if raise_on_error:
                raise CacheError(f"a value of {len(data)} bytes does not fit")
            return
        place = self._places.get(key) or self._place(key)
        if not self._lock(place):
            if raise_on_error:
                raise CacheError("the cache is locked")
            return
        try:
            self._write(place, self._now() + ttl_s if ttl_s > 0 else 0.0, data)
        finally:
            self._unlock(place)

    def delete(self, key: str, at: str = "") -> None:
        place = self._places.get(key) or self._place(key)
        if not self._lock(place):
            return
        try:
            self._forget(place)
        finally:
            self._unlock(place)

    def incr(self, key: str, delta: int = 1, ttl_s: float = 0, *, time: float = 0) -> int:
        place = self._places.get(key) or self._place(key)
        ttl_s = ttl_s or time
        if not self._lock(place):
            raise CacheError("the cache is locked")
        try:
            now = self._now()
            entry = self._read(place)
            if entry is None or 0 < entry[0] <= now:
                expiry, value = now + ttl_s if ttl_s > 0 else 0.0, max(delta, 0)
            else:
                held = decode(entry[1])
                if type(held) is not int:
                    raise CacheError("not a counter")
                expiry, value = entry[0], max(held + delta, 0)
            self._write(place, expiry, b"%d" % value)
            return value
        finally:
            self._unlock(place)

    def decr(self, key: str, delta: int = 1, ttl_s: float = 0, *, time: float = 0) -> int:
        return self.incr(key, -delta, ttl_s, time=time)

    def clear(self) -> None:
        """Forget everything; for tests and operators. Not safe beside writers."""
        for at in range(0, self._data_start, HEADER.size):
            self._memory[at : at + 16] = _EMPTY

    def _forget(self, place: _Place) -> None:
        digest, _, headers, _ = place
        for at in range(headers, headers + _BLOCK, HEADER.size):
            if self._memory[at : at + 16] == digest:
                self._memory[at : at + 16] = _EMPTY

    def _write(self, place: _Place, expiry: float, data: bytes) -> None:
        """Under the lock: take the slot of this key, or the one of least worth; empty it, fill it, then name it."""
        digest, checksum, headers, data_start = place
        memory = self._memory
        way = self._choose(memory[headers : headers + _BLOCK], digest, data_start)
        header = headers + way * HEADER.size
        start = data_start + way * self._slot_size
        memory[header : header + 16] = _EMPTY
        memory[start : start + len(data)] = data
        fields = struct.pack("=dI", expiry, len(data))
        memory[header + 16 : header + 32] = fields + struct.pack("=I", crc32(data, crc32(fields, checksum)))
        memory[header : header + 16] = digest

    def _choose(self, block: bytes, digest: bytes, data_start: int) -> int:
        now = self._now()
        best, least = 0, float("inf")
        for way, (held, expiry, _, _) in enumerate(HEADER.iter_unpack(block)):
            if held == digest:
                return way
            if held == _EMPTY or 0 < expiry <= now:
                worth = 0.0
            else:
                worth = expiry or now + _UNLIMITED_WORTH_S
            if worth < least:
                best, least = way, worth
        return best

    def _lock(self, place: _Place) -> bool:
        """Whether the lock of the set was had in time."""
        if not self._mutex.acquire(True, _LOCK_WAIT_S):
            return False
        deadline = 0.0
        while True:
            try:
                fcntl.lockf(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place[2])
                return True
            except (BlockingIOError, PermissionError):
                moment = clock.monotonic()
                if not deadline:
                    deadline = moment + _LOCK_WAIT_S
                if moment > deadline or moment < self._impatient_until:
                    if moment > deadline:
                        self._impatient_until = moment + _IMPATIENCE_S
                    self._mutex.release()
                    return False
                os.sched_yield()

    def _unlock(self, place: _Place) -> None:
        fcntl.lockf(self._lock_fd, fcntl.LOCK_UN, 1, place[2])
        self._mutex.release()
