"""Virtual time: an event loop that jumps to the next moment at which something is due, and clocks that follow it.

Two runs in which the same happens have the same order of everything: what is due at the same moment goes in the order in which
it was asked for. ``time.time`` and its kin tell this time, with the skew of the node whose code asks.
"""

from __future__ import annotations

import heapq
import sys
import time
import traceback
from typing import Any

import eventlet.hubs
from eventlet.hubs.hub import BaseHub

from test.simulation import lives

EPOCH = 1_800_000_000.0  # later than any real time stamp of a file that the simulation does not set
STEP_S = 0.00002  # the least by which two time stamps of clients differ

real_monotonic = time.monotonic
real_cpu = time.process_time


class Stalled(Exception):
    """Nothing is due and the story has not ended: somebody waits for ever."""


class VirtualHub(BaseHub):
    """Without descriptors: nothing in a simulation waits for one."""

    def __init__(self) -> None:
        self.now = 0.0
        self._queue: list[tuple[float, int, Any]] = []
        self._number = 0
        super().__init__(clock=lambda: self.now)

    def add_timer(self, timer: Any) -> float:
        self._number += 1
        when = self.now + max(timer.seconds or 0.0, 0.0)
        heapq.heappush(self._queue, (when, self._number, timer))
        return when

    def timer_canceled(self, timer: Any) -> None:
        pass

    def run(self, *_args: Any, **_kwargs: Any) -> None:
        queue = self._queue
        while queue:
            when, _number, timer = heapq.heappop(queue)
            if timer.called:
                continue
            if when > self.now:
                self.now = when
            try:
                timer()
            except lives.Crash:
                pass
            except self.SYSTEM_EXCEPTIONS:
                raise
            except BaseException:
                traceback.print_exc(file=sys.stderr)
        raise Stalled

    def wait(self, seconds: float | None = None) -> None:
        raise AssertionError("the loop is in run")


hub: VirtualHub


def install() -> None:
    """Make this process's time virtual. Before any module is loaded that keeps a clock as a default.

    To look at the clock takes no time: else who logs would be in another world.
    """

    def now() -> float:
        return EPOCH + hub.now + lives.skew_s()

    def monotonic() -> float:
        return 1000.0 + hub.now

    time.time = now
    time.time_ns = lambda: int(now() * 1e9)
    time.monotonic = monotonic
    time.monotonic_ns = lambda: int(monotonic() * 1e9)


def begin() -> None:
    """A new loop at time zero; in each process that runs a seed."""
    global hub
    eventlet.hubs.use_hub(VirtualHub)
    found = eventlet.hubs.get_hub()
    assert isinstance(found, VirtualHub)
    hub = found


def stamp_ns() -> int:
    """The time for a file that is being changed."""
    return int((EPOCH + hub.now) * 1e9)


def elapsed_s() -> float:
    """Virtual seconds since the seed began."""
    return hub.now
