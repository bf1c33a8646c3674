"""Which uploads a busy worker takes on: as many as it can serve while others get their turn.

All requests of a worker share its one native thread: with hundreds of uploads at work, each turn of all of them takes long,
and whoever wants but a small thing waits several. So once FEW uploads are at work, it is measured how late a green thread
wakes up. When that is later than ``lag_s``, no more may be at work than two thirds of those that are, and further ones are
refused before anything of their bodies is read; while it is not, a few more may be each time, and in the end as many as come.
Slow clients cost no time, and have nobody refused; a disk call that holds the thread up does. Nothing is measured while fewer
are at work.
"""

from __future__ import annotations

import logging
from time import monotonic

from keelstore.common import concurrency

FEW = 64  # uploads at work that are never too many
ANY = 1 << 30
_STEP_S = 0.05  # between two measurements
_GROWTH = 1.1
_CALM = 40  # measurements in a row that were not late, after which there is no bound


class Admission:
    """Of one worker. ``lag_s`` 0: everything is admitted."""

    def __init__(self, lag_s: float, logger: logging.Logger):
        self._limit_s, self._logger = lag_s, logger
        self._at_work = self._refused = 0
        self._most = ANY  # that may be at work
        self._is_measuring = False

    def admits(self) -> bool:
        """Whether one more upload may begin. If so, ``ended`` is to be called."""
        if self._at_work >= FEW and self._limit_s:
            if not self._is_measuring:
                self._is_measuring = True
                concurrency.spawn(self._measure)
            if self._at_work >= self._most:
                self._refused += 1
                return False
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
            self._is_measuring, self._most = False, ANY
            if self._refused:
                self._logger.warning("uploads are taken as they come; %d were refused", self._refused)
                self._refused = 0

    def note(self, late_s: float, calm: int = 0) -> int:
        """A green thread woke up so late, after so many that were not; how many those are now."""
        if late_s > self._limit_s:
            if self._most == ANY:
                self._logger.warning("%d uploads at work take turns of more than %g s (overload_lag): refusing more",
                                     self._at_work, self._limit_s)
            self._most = max(FEW, min(self._most, self._at_work) * 2 // 3)
            return 0
        if self._most != ANY:
            self._most = ANY if calm >= _CALM else int(self._most * _GROWTH)
        return calm + 1
