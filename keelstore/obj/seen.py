"""What was seen of late by any process of a node, and which bodies stay in the page cache for it."""

from __future__ import annotations

import mmap
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keelstore.obj.reader import StoredObject


class Seen:
    """When something was noted last, in memory that this process shares with those it forks: ``slots`` pairs of a key, never
    0, and a time (monotonic, ns). What falls into a slot that is taken replaces what was there. Two writers of one slot may
    mix: then the one that stays has been noted, too, at one of both times.
    """

    def __init__(self, slots: int, interval_s: float):
        """``interval_s`` 0: nothing is ever known."""
        self._slots, self._interval_ns = slots if interval_s > 0 else 1, int(interval_s * 1e9)
        self._table = memoryview(mmap.mmap(-1, self._slots * 16)).cast("Q")

    def knows(self, key: int) -> bool:
        """Whether it was noted within the interval."""
        table, slot = self._table, key % self._slots * 2
        return table[slot] == key and time.monotonic_ns() - table[slot + 1] < self._interval_ns

    def note(self, key: int) -> None:
        table, slot = self._table, key % self._slots * 2
        table[slot] = 0  # who looks meanwhile finds nothing
        table[slot + 1] = time.monotonic_ns()
        table[slot] = key


def key_of(*what: object) -> int:
    """For :class:`Seen`, of integers and tuples of them: the same in all processes."""
    return hash(what) & 0xFFFF_FFFF_FFFF_FFFF or 1


class Rereads:
    """What is read again within ``interval_s``: then the page cache pays, however large it is. 0: nothing."""

    SLOTS = 16384

    def __init__(self, interval_s: float = 60.0):
        self._seen = Seen(self.SLOTS, interval_s)

    def begins(self, stored: StoredObject, start: int) -> bool:
        """The file is read from ``start`` on: whether it was before, unchanged, within the interval."""
        key = key_of(stored.identity, start)
        is_known = self._seen.knows(key)
        self._seen.note(key)
        return is_known
