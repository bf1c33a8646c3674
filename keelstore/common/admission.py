"""Which uploads a busy worker takes on: as many as it can serve while others get their turn.

All requests of a worker share its one native thread: with hundreds of uploads at work, each turn of all of them takes long,
and whoever wants but a small thing waits several. So once FEW uploads are at work, it is measured how late a green thread
wakes up. When that is later than ``lag_s``, only START uploads may begin until the next measurement, fewer when it is
late again, LEAST at least; further ones are refused before anything of their bodies is read. While it is not late a few more
may begin each time, and in the end as many as come. It is beginnings that are bounded and not those at work: slow clients are
at work for long, cost no time, and must not keep others out. Nothing is measured while fewer than FEW are at work.
"""

from __future__ import annotations

import logging
from time import monotonic

from keelstore.common import concurrency

FEW = 64  # uploads at work that are never too many
START, LEAST = 16, 4  # that may begin between two measurements, at first and at least
ANY = 1 << 30
_STEP_S = 0.05  # between two measurements
_CALM = 40  # measurements in a row that were not late, after which there is no bound


class Admission:
    """Of one worker. ``lag_s`` 0: everything is admitted."""

    def __init__(self, lag_s: float, logger: logging.Logger):
        self._limit_s, self._logger = lag_s, logger
        self._at_work = self._refused = 0
        self._each = self._room = ANY  # that may begin between two measurements; how many of them still may
        self._is_measuring = False

    def admits(self) -> bool:
        """Whether one more upload may begin. If so, ``ended`` is to be called."""
        if self._at_work >= FEW and self._limit_s:
            if not self._is_measuring:
                self._is_measuring = True
                concurrency.spawn(self._measure)
            if self._room <= 0:
                self._refused += 1
                return False
            self._room -= 1
        self._at_work += 1
        return True

    def ended(self) -> None:
        self._at_work -= 1

    def _measure(self) -> None:
        calm = 0
        try:
            while calm < _CALM or self._at_work >= FEW:
                began = monotonic()
                concurrency.sleep(_STEP_S)
                calm = self.note(monotonic() - began - _STEP_S, calm)
        finally:
            self._is_measuring = False
            self._end_bound()

    def _end_bound(self) -> None:
        self._each = self._room = ANY
        if self._refused:
            self._logger.warning("uploads are taken as they come; %d were refused", self._refused)
            self._refused = 0

    def note(self, late_s: float, calm: int = 0) -> int:
        """A green thread woke up so late, after so many that were not; how many those are now."""
        if late_s > self._limit_s:
            if self._each == ANY:
                self._logger.warning("%d uploads at work take turns of more than %g s (overload_lag): refusing some",
                                     self._at_work, self._limit_s)
                self._each = START
            else:
                self._each = max(LEAST, self._each * 2 // 3)
            self._room = self._each
            return 0
        if self._each != ANY:
            if calm >= _CALM:
                self._end_bound()
            else:
                self._each += self._each // 8 + 1
                self._room = self._each
        return calm + 1
