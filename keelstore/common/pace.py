"""How fast the devices were of late: which disk calls leave a worker's own thread, decided from how long others took.

Source of time and the calls themselves are ``disk_calls``'.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from keelstore.common.concurrency import native_module

T = TypeVar("T")
_monotonic = native_module("time").monotonic

SLOW_S = 1.0  # a disk call that takes longer shows a slow device,
STUCK_S = 4.0  # of a call: who comes then need not wait, too
SLOW_FOR_S = 10.0  # which is then kept off the worker's own thread for this long


class Pace:
    """Which devices were slow of late, so that calls which could wait for them leave the worker's own thread."""

    __slots__ = ("_running", "_slow_until", "_wary_until", "clock")

    def __init__(self, clock: Callable[[], float] = _monotonic) -> None:
        self.clock = clock
        self._running: dict[str, dict[object, float]] = {}  # device: {call: began}, oldest first
        self._slow_until: dict[str, float] = {}
        self._wary_until = 0.0

    def is_slow(self, device: str, now: float) -> bool:
        """Whether a call on the device runs, or ran in the last SLOW_FOR_S, for longer than SLOW_S."""
        return self.longest_s(device, now) > SLOW_S or now < self._slow_until.get(device, 0.0)

    def keeps_off(self, device: str, now: float) -> bool:
        """Whether calls on the device leave the worker's own thread: because it is slow; or for a while after any was so on
        that thread, since devices may share a file system, a controller or a journal.
        """
        return now < self._wary_until or self.is_slow(device, now)

    def may_be_slow(self, device: str) -> bool:
        """False: the device is not slow, nor is any other; True: that is to be looked at."""
        return bool(self._slow_until or self._running.get(device))

    def running(self, device: str) -> int:
        """How many calls on the device run, or wait for a thread."""
        found = self._running.get(device)
        return 0 if found is None else len(found)

    def longest_s(self, device: str, now: float) -> float:
        """How long the first of them has been running."""
        for began in self._running.get(device, {}).values():
            return now - began
        return 0.0

    def run(self, device: str, now: float, function: Callable[..., T], *args: Any) -> T:
        """A call on the worker's own thread."""
        try:
            return self.run_apart(device, now, function, *args)
        finally:
            if self._slow_until and self._slow_until.get(device, 0.0) > now + SLOW_FOR_S:  # this call's, or one beside it
                self._wary_until = max(self._wary_until, self._slow_until[device])

    def run_apart(self, device: str, now: float, function: Callable[..., T], *args: Any) -> T:
        """A call on another."""
        call = object()
        running = self._running.setdefault(device, {})
        running[call] = now
        try:
            return function(*args)
        finally:
            del running[call]
            ended = self.clock()
            if ended - now > SLOW_S:
                self._slow_until[device] = ended + SLOW_FOR_S
