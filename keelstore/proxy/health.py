"""Devices that failed lately, and how fast nodes answered; what one worker process has seen for itself.

A device that has failed more than ``limit`` times, the last time less than ``interval_s`` ago, is not asked
(``spec: proxy 3``).

A node that let a whole time limit pass is *suspect* until it answers again, or ``interval_s`` have gone by: reads ask
it last, and it is given a tenth of the time. So a frozen node, whose devices would each have to fail many times at full
length, costs one wait and not hundreds.

A device that has no room is sound: it still serves, deletes, and takes what is smaller than what it refused. Only PUTs of
that size, or larger ones, pass it by for ``FULL_S``. Nor is one at fault that is slow and has enough waiting for it: PUTs
pass it by for ``BUSY_S``, and for less where it is of this process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from keelstore.common.errors import BackendTimeout, WaitTimeout
from keelstore.common.stats import NoStats

SUSPECT_SHARE = 10
BUSY_S = 1.0  # that a device with too much to do gets no PUT: as long as clients are told to wait
OWN_BUSY_S = 0.1  # the same of a device of this process, which costs little to ask
FULL_S = 15.0  # that a device without room gets no PUT; short, since asking one costs little
_MAX_KEYS = 100_000  # devices remembered; a ring is smaller


class Health:
    """``clock`` gives seconds. Nodes are anything with ``key`` (``ip:port/device``) and ``ip``."""

    def __init__(self, limit: int, interval_s: float, timing_expiry_s: float, clock: Callable[[], float],
                 logger: logging.Logger, stats: NoStats | None = None):
        self.stats = stats or NoStats()
        self.is_own: Callable[[tuple[str, int]], bool] = lambda _address: False  # of this process, which cannot be frozen
        self.limit, self.interval_s, self.timing_expiry_s = limit, interval_s, timing_expiry_s
        self.clock, self.logger = clock, logger
        self._errors: dict[str, list[float]] = {}  # key: [count, time of the last]
        self._full: dict[str, tuple[float, int]] = {}  # key: (until when, the smallest size refused)
        self._busy: dict[str, float] = {}  # key: until when
        self._timings: dict[str, tuple[float, float]] = {}  # ip: (milliseconds, expiry)
        self._suspects: dict[tuple[str, int], float] = {}  # address: until when

    def is_limited(self, node: Any) -> bool:
        """Whether the device is to be left alone for now."""
        if not self._errors:
            return False
        record = self._errors.get(node.key)
        if record is None:
            return False
        if record[1] < self.clock() - self.interval_s:
            del self._errors[node.key]
            return False
        if record[0] > self.limit:
            self.stats.increment("error_limiter.is_limited")
            return True
        return False

    def error(self, node: Any, what: object) -> None:
        """Count one failure of a device. ``what`` goes to the log."""
        record = self._record(node)
        record[0] += 1
        record[1] = self.clock()
        self.stats.increment("error_limiter.incremented_limit")
        self.logger.warning("node %s: %s", node.key, what)
        if record[0] == self.limit + 1:
            self.logger.warning("node %s is not asked for %g s after %d errors", node.key, self.interval_s, record[0])

    def limit_now(self, node: Any, what: object) -> None:
        """Leave the device alone at once: it has said that it cannot work (507)."""
        record = self._record(node)
        record[0] = self.limit + 1
        record[1] = self.clock()
        self.stats.increment("error_limiter.forced_limit")
        self.logger.warning("node %s is not asked for %g s: %s", node.key, self.interval_s, what)

    def full(self, node: Any, size: int, what: object) -> None:
        """The device has no room for ``size`` bytes more."""
        if len(self._full) >= _MAX_KEYS:
            self._full.clear()
        now = self.clock()
        until, least = self._full.get(node.key, (0.0, 0))
        self._full[node.key] = now + min(FULL_S, self.interval_s), min(size, least) if until > now else size
        self.stats.increment("error_limiter.full")
        self.logger.warning("node %s has no room: %s", node.key, what)

    def is_full(self, node: Any, size: int) -> bool:
        """Whether the device has lately had no room for so many bytes."""
        record = self._full.get(node.key)
        if record is None:
            return False
        if record[0] <= self.clock():
            del self._full[node.key]
            return False
        return size >= record[1]

    def busy(self, node: Any) -> None:
        """The device has so much to do that it takes nothing more for now."""
        if len(self._busy) >= _MAX_KEYS:
            self._busy.clear()
        now = self.clock()
        if self._busy.get(node.key, 0.0) < now - self.interval_s or node.key not in self._busy:
            self.logger.warning("node %s is slow, and refuses what it cannot do soon", node.key)
        self._busy[node.key] = now + min(OWN_BUSY_S if self.is_own(node.address) else BUSY_S, self.interval_s)
        self.stats.increment("error_limiter.busy")

    @property
    def has_busy(self) -> bool:
        """Whether any device has ever been busy."""
        return bool(self._busy)

    def is_busy(self, node: Any) -> bool:
        """Whether the device has just refused something for having too much to do."""
        until = self._busy.get(node.key)
        return until is not None and until > self.clock()

    def passed_by(self, size: int) -> Callable[[Any], bool]:
        """Which devices are to get no PUT of so many bytes."""
        return lambda node: (self.is_limited(node) or (bool(self._full) and self.is_full(node, size))
                             or (bool(self._busy) and self.is_busy(node)))

    def failed(self, node: Any, what: str, error: BaseException) -> None:
        """Count a request that got no answer; a node that kept silent becomes suspect. ``what``: method and path. A PUT
        that a device of this process did not carry out in time tells of that device alone, which refuses more by itself.
        """
        if isinstance(error, (BackendTimeout, WaitTimeout)):
            if self.is_own(node.address):
                if what.startswith("PUT "):
                    self.busy(node)
                    return
                self.error(node, f"{what}: {error}")
                return
            if len(self._suspects) >= _MAX_KEYS:
                self._suspects.clear()
            self._suspects[node.address] = self.clock() + self.interval_s
        self.error(node, f"{what}: {error}")

    def answered(self, node: Any) -> None:
        """The node has given an answer, whatever it said."""
        if self._suspects:
            self._suspects.pop(node.address, None)

    @property
    def has_suspects(self) -> bool:
        return bool(self._suspects)

    def is_suspect(self, node: Any) -> bool:
        if not self._suspects:
            return False
        until = self._suspects.get(node.address)
        if until is not None and until < self.clock():
            del self._suspects[node.address]
            return False
        return until is not None

    def patience_s(self, node: Any, seconds: float) -> float:
        """How long to wait for the node where others get ``seconds``."""
        return seconds / SUSPECT_SHARE if self._suspects and self.is_suspect(node) else seconds

    def _record(self, node: Any) -> list[float]:
        if len(self._errors) >= _MAX_KEYS:
            self._errors.clear()
        return self._errors.setdefault(node.key, [0, 0.0])

    def record_timing(self, node: Any, seconds: float) -> None:
        """How long the node took to answer; for ``sorting_method = timing``."""
        if len(self._timings) >= _MAX_KEYS:
            self._timings.clear()
        self._timings[node.ip] = (round(seconds * 1000, 3), self.clock() + self.timing_expiry_s)

    def timing_ms(self, node: Any) -> float:
        """Milliseconds, or -1 when nothing is known: such nodes come first, so that something will be."""
        found = self._timings.get(node.ip)
        if found is None or found[1] < self.clock():
            return -1.0
        return found[0]

    def limited(self) -> list[str]:
        """The keys of the devices that are left alone now; for status pages."""
        now = self.clock()
        return sorted(key for key, (count, last) in self._errors.items()
                      if count > self.limit and last >= now - self.interval_s)
