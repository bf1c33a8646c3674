"""When this process did not run: stopped by a signal or a debugger, frozen, without a processor, or with its whole machine.

What waits meanwhile, for a disk as for anything else, is seen to end only afterwards, and seems slow. A native thread that
does nothing but wake up each BEAT_S tells: by what it comes late the process did not run. Who waits for a disk, be it the
hub's own thread, does not hold it up, since such calls let others have the interpreter. It runs while there are calls to be
judged, and is asked about those alone that took long.

Nothing else tells: SIGCONT comes after one kind of pause, and says not how long it was; time spent waiting for a processor
(``/proc/self/schedstat``) is not counted for a process that is stopped; and where the hub did not come round a disk call may
have held it up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from keelstore.common.concurrency import native_module

BEAT_S: Final = 0.25
LATE_S: Final = 0.1  # that a beat may come after its time: others had the processor, or the interpreter
_MOST: Final = 64  # pauses that are remembered; half a minute's at least
_NEVER: Final = float("inf")
_thread, _time = native_module("_thread"), native_module("time")

Start = Callable[[Callable[[], None]], object]


class Pauses:
    """Of one process; not for use after a fork. ``is_wanted(now)``, asked on another native thread: whether there are still
    calls to be judged. Without ``start``, which runs a function on a native thread, there are no pauses.
    """

    __slots__ = ("_due", "_is_wanted", "_lock", "_past", "_sleep", "_start", "are_watched", "clock")

    def __init__(self, clock: Callable[[], float], is_wanted: Callable[[float], bool], start: Start | None = None,
                 sleep: Callable[[float], None] = _time.sleep):
        self.clock, self._is_wanted, self._start, self._sleep = clock, is_wanted, start, sleep
        self.are_watched = start is None
        self._due = _NEVER  # when the next beat is
        self._past: deque[tuple[float, float]] = deque(maxlen=_MOST)  # from, to
        self._lock = _thread.allocate_lock()  # held for moments

    def watch(self, now: float) -> None:
        """From now on."""
        with self._lock, suppress(RuntimeError):  # no more threads
            if not self.are_watched:
                assert self._start is not None
                self._start(self._beat)
                self._due, self.are_watched = now + BEAT_S, True

    def away_s(self, began: float, now: float) -> float:
        """How long the process did not run between two times."""
        found, due = 0.0, self._due
        if now - due > LATE_S:  # it has just come back, and the thread not yet
            found = now - max(began, due)
        for start, end in list(self._past):  # in one step: the thread adds to them
            found += max(0.0, min(end, now, due) - max(start, began))
        return found

    def _beat(self) -> None:
        is_wanted = True
        while is_wanted:
            self._sleep(BEAT_S)
            now = self.clock()
            if now - self._due > LATE_S:
                self._past.append((self._due, now))
            with self._lock:
                self._due = now + BEAT_S
                is_wanted = self._is_wanted(now)
                if not is_wanted:
                    self._due, self.are_watched = _NEVER, False


def start_native(function: Callable[[], None]) -> object:
    return _thread.start_new_thread(function, ())
