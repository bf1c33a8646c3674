"""Background work: jobs that wait in order of risk, and what keeps that work from hurting clients (design section 6).

``WorkQueue`` holds jobs, ``Workers`` carries them out, ``Throttle`` bounds what runs at once for each device and peer,
``RateLimit`` what runs in a second, ``Progress`` tells how far it is. All but ``Workers`` are pure: they see no clock, they
are told the time.

A queue is bounded. What does not fit is dropped, the least risk first, and counted: whatever makes jobs finds them again,
since a job is a plan, and what it is made from is on disk.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import random
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, Generic, TypeVar

from keelstore.common import concurrency
from keelstore.common.errors import WaitTimeout

J = TypeVar("J")


class Risk(IntEnum):
    """What waits longer when a job does; the smallest goes first."""

    DURABILITY = 0  # fewer copies than there should be
    HANDOFF = 1  # enough copies, one of them in the wrong place
    UPDATE = 2  # a listing or a count is behind
    MOVE = 3  # a partition that a ring change moved
    ROUTINE = 4  # what is looked at to be sure


# -- the queue ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Entry(Generic[J]):
    job: J
    risk: int
    due_s: float
    lane: str
    token: int


class WorkQueue(Generic[J]):
    """Jobs by key: at most ``size``, each key once.

    A *lane* is what a job keeps busy, as a rule a device; ``take`` passes over lanes that are full. Of the jobs that are due
    the one of least ``risk`` goes first, then the one that has been due the longest.
    """

    def __init__(self, size: int = 100_000):
        self.size, self.dropped = size, 0
        self._entries: dict[Hashable, _Entry[J]] = {}
        self._ready: dict[str, list[tuple[int, float, int, Hashable]]] = {}  # by lane: heap of (risk, due, token, key)
        self._later: list[tuple[float, int, Hashable]] = []  # heap of (due, token, key)
        self._tokens = itertools.count()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._entries

    def put(self, key: Hashable, job: J, risk: int = Risk.ROUTINE, due_s: float = 0.0, lane: str = "") -> bool:
        """Add a job, or replace the one of this key: it keeps the greater urgency and the earlier time of both.

        False: there was no room for it.
        """
        have = self._entries.get(key)
        if have is not None:
            risk, due_s = min(risk, have.risk), min(due_s, have.due_s)
        elif len(self._entries) >= self.size and not self._make_room(risk):
            self.dropped += 1
            return False
        self._add(key, job, risk, due_s, lane)
        return True

    def reschedule(self, key: Hashable, job: J, risk: int, due_s: float, lane: str = "") -> bool:
        """As ``put``, but the time given counts, also when it is later."""
        self._entries.pop(key, None)
        return self.put(key, job, risk, due_s, lane)

    def _add(self, key: Hashable, job: J, risk: int, due_s: float, lane: str) -> None:
        token = next(self._tokens)
        self._entries[key] = _Entry(job, risk, due_s, lane, token)
        heapq.heappush(self._later, (due_s, token, key))

    def _make_room(self, risk: int) -> bool:
        """Drop a job of less urgency than ``risk``, if there is one. Seldom, so a walk over all is well."""
        worst = max(self._entries, key=lambda key: (self._entries[key].risk, self._entries[key].due_s))
        if self._entries[worst].risk <= risk:
            return False
        del self._entries[worst]
        self.dropped += 1
        return True

    def discard(self, key: Hashable) -> J | None:
        entry = self._entries.pop(key, None)
        return entry.job if entry is not None else None

    def take(self, now_s: float, is_free: Callable[[str], bool] | None = None) -> tuple[Hashable, J] | None:
        """The next job that is due, out of a lane that ``is_free``; it leaves the queue."""
        self._ripen(now_s)
        best: tuple[int, float, int, Hashable] | None = None
        best_lane = ""
        for lane, heap in list(self._ready.items()):
            while heap and not self._is_current(heap[0][2], heap[0][3]):
                heapq.heappop(heap)
            if not heap:
                del self._ready[lane]
            elif (best is None or heap[0][:3] < best[:3]) and (is_free is None or is_free(lane)):
                best, best_lane = heap[0], lane
        if best is None:
            return None
        heapq.heappop(self._ready[best_lane])
        return best[3], self._entries.pop(best[3]).job

    def _is_current(self, token: int, key: Hashable) -> bool:
        entry = self._entries.get(key)
        return entry is not None and entry.token == token

    def _ripen(self, now_s: float) -> None:
        later = self._later
        while later and later[0][0] <= now_s:
            due_s, token, key = heapq.heappop(later)
            if self._is_current(token, key):
                entry = self._entries[key]
                heapq.heappush(self._ready.setdefault(entry.lane, []), (entry.risk, due_s, token, key))
        if len(later) > 64 and len(later) > 2 * len(self._entries):  # entries that were replaced or discarded
            self._later = [item for item in later if self._is_current(item[1], item[2])]
            heapq.heapify(self._later)

    def next_due_s(self) -> float | None:
        """When the first job is due; None when the queue is empty."""
        if any(self._is_current(item[2], item[3]) for heap in self._ready.values() for item in heap):
            return 0.0
        return self.next_later_s()

    def next_later_s(self) -> float | None:
        """When the first job that is not due yet will be; None when there is none."""
        while self._later and not self._is_current(self._later[0][1], self._later[0][2]):
            heapq.heappop(self._later)
        return self._later[0][0] if self._later else None

    def counts(self) -> dict[int, int]:
        """How many jobs wait, by risk."""
        found: dict[int, int] = {}
        for entry in self._entries.values():
            found[entry.risk] = found.get(entry.risk, 0) + 1
        return found



def back_off_s(failures: int, first_s: float, most_s: float, jitter: float = 0.0) -> float:
    """How long to wait after so many failures in a row: doubling, up to ``most_s``, longer by a share up to ``jitter``."""
    return min(most_s, first_s * 2 ** min(max(failures - 1, 0), 30)) * (1 + jitter)


# -- limits ------------------------------------------------------------------------------------------------------------


class RateLimit:
    """So many a second, and no more than ``burst_s`` seconds' worth at once. 0: no limit."""

    def __init__(self, per_second: float, burst_s: float = 1.0):
        self.per_second, self._burst_s = per_second, burst_s
        self._free_at = 0.0

    def delay_s(self, now_s: float, count: int = 1) -> float:
        """Take ``count``; how long to wait before going on."""
        if self.per_second <= 0:
            return 0.0
        start = max(self._free_at, now_s - self._burst_s)
        self._free_at = start + count / self.per_second
        return max(0.0, start - now_s)


SLOW_FACTOR: Final = 2.0  # a call that takes this many times as long as calls do in peace shows a busy device
LEAST_SLOW_S: Final = 0.05  # and never less than this


@dataclass(slots=True)
class _Limit:
    allowed: float
    running: int = 0
    base_s: float = 0.0
    recent_s: float = 0.0
    lowered_at: float = field(default=-1e9)


class Throttle:
    """How many jobs may use a device or peer at once: between 1 and ``most``, fewer while its calls take long.

    Clients and background work wait for the same disks, so what background calls take shows what clients suffer. Each key
    has the time that a call takes in peace (the least of late) and of late (a running mean); when the latter is well above
    the former the number is halved, at most once a second, else it grows by one for as many calls as it allows.
    """

    def __init__(self, most: int, max_keys: int = 4096):
        self.most, self._max_keys = most, max_keys
        self._limits: dict[str, _Limit] = {}

    def _of(self, key: str) -> _Limit:
        found = self._limits.get(key)
        if found is None:
            if len(self._limits) >= self._max_keys:
                self._limits = {name: limit for name, limit in self._limits.items() if limit.running}
            found = self._limits[key] = _Limit(float(self.most))
        return found

    def is_free(self, key: str) -> bool:
        found = self._limits.get(key)
        return found is None or found.running < int(found.allowed)

    def begin(self, key: str) -> None:
        self._of(key).running += 1

    def end(self, key: str, took_s: float | None, now_s: float) -> None:
        """A job ended. ``took_s``: what a comparable part of it took; None says nothing about the device."""
        limit = self._of(key)
        limit.running = max(0, limit.running - 1)
        if took_s is not None:
            self.note(key, took_s, now_s)

    def note(self, key: str, took_s: float, now_s: float) -> None:
        """One call took so long."""
        limit = self._of(key)
        if not limit.base_s:
            limit.base_s = limit.recent_s = took_s
        limit.recent_s += (took_s - limit.recent_s) * 0.2
        limit.base_s = min(took_s, limit.base_s * 1.01)  # forgets slowly, so that it follows what the device is now
        if limit.recent_s > max(SLOW_FACTOR * limit.base_s, LEAST_SLOW_S):
            if now_s - limit.lowered_at >= 1.0:
                limit.allowed, limit.lowered_at = max(1.0, limit.allowed / 2), now_s
        else:
            limit.allowed = min(float(self.most), limit.allowed + 1.0 / max(1.0, limit.allowed))

    def allowed(self, key: str) -> int:
        found = self._limits.get(key)
        return self.most if found is None else int(found.allowed)


# -- progress ----------------------------------------------------------------------------------------------------------


class Progress:
    """How far a pass is: what is done, of how much, and when it will end at the pace of late."""

    def __init__(self) -> None:
        self.begun_s: float | None = None
        self.ended_s: float | None = None
        self.total: int | None = None
        self.done = self.failed = 0
        self.took_s: float | None = None
        self._pace = 0.0
        self._mark: tuple[float, int] = (0.0, 0)

    def begin(self, now_s: float, total: int | None = None) -> None:
        self.begun_s, self.ended_s, self.total = now_s, None, total
        self.done = self.failed = 0
        self._pace, self._mark = 0.0, (now_s, 0)

    def step(self, now_s: float, is_well: bool = True, count: int = 1) -> None:
        self.done += count
        if not is_well:
            self.failed += count
        since, before = self._mark
        if now_s - since >= 1.0:
            pace = (self.done - before) / (now_s - since)
            self._pace = pace if not self._pace else self._pace * 0.8 + pace * 0.2
            self._mark = (now_s, self.done)

    def end(self, now_s: float) -> None:
        self.ended_s = now_s
        self.took_s = now_s - (self.begun_s if self.begun_s is not None else now_s)

    def eta_s(self) -> float | None:
        """Seconds until the end; None when nothing runs, or nobody can tell."""
        if self.begun_s is None or self.ended_s is not None or self.total is None or not self._pace:
            return None
        return max(0.0, (self.total - self.done) / self._pace)

    def as_dict(self) -> dict[str, Any]:
        return {"running": self.begun_s is not None and self.ended_s is None, "done": self.done, "failed": self.failed,
                "total": self.total, "eta_s": self.eta_s(), "begun": self.begun_s, "last_pass_s": self.took_s}


MAX_DEVICES: Final = 1000  # whose progress is kept


class DeviceProgress:
    """As ``Progress``, device by device: what is left of a pass, when it will be done, and when the last one was.

    Jobs are ``expect``-ed by a plan that knows them all; without that only what is done is counted, and a device counts as
    done when the pass is.
    """

    def __init__(self) -> None:
        self._begun_s = 0.0
        self._left: dict[str, int] = {}
        self._done: dict[str, int] = {}
        self._ended_at: dict[str, float] = {}

    def begin(self, now_s: float) -> None:
        self._begun_s, self._left, self._done = now_s, {}, {}

    def expect(self, devices: Iterable[str]) -> None:
        """The devices of the jobs of this pass, one for each job."""
        for device in devices:
            self._left[device] = self._left.get(device, 0) + 1

    def step(self, device: str, now_s: float) -> None:
        if device not in self._done and len(self._done) >= MAX_DEVICES:
            return
        self._done[device] = self._done.get(device, 0) + 1
        left = self._left.get(device)
        if left:
            self._left[device] = left - 1
            if left == 1:
                self._ended_at[device] = now_s

    def end(self, now_s: float) -> None:
        """The pass came to its end: also devices that had nothing in it are done."""
        for device in (*self._done, *self._ended_at):
            if not self._left.get(device):
                self._ended_at[device] = now_s

    def as_dict(self, now_s: float) -> dict[str, dict[str, float]]:
        found: dict[str, dict[str, float]] = {}
        for device in sorted({*self._done, *self._left, *self._ended_at}):
            entry = found[device] = {"done": self._done.get(device, 0)}
            left, done = self._left.get(device), self._done.get(device, 0)
            if left is not None:
                entry["left"] = left
            if left and done:
                entry["eta_s"] = round(left * max(0.0, now_s - self._begun_s) / done, 1)
            if device in self._ended_at:
                entry["pass_at"] = self._ended_at[device]
        return found


# -- carrying out ------------------------------------------------------------------------------------------------------


def for_each(jobs: Iterable[J], function: Callable[[J], Any], concurrency_limit: int) -> None:
    """Call ``function`` for every job, at most so many at once. An error of one, raised after all have ended."""
    if concurrency_limit <= 1:
        for job in jobs:
            function(job)
        return
    pool = concurrency.Pool(concurrency_limit)
    failed: list[BaseException] = []

    def one(job: J) -> None:
        try:
            function(job)
        except Exception as error:
            failed.append(error)

    for job in jobs:
        pool.start(one, job)
        if failed:
            break
    pool.wait_all()
    if failed:
        raise failed[0]


class Workers(Generic[J]):
    """Green threads that take jobs from a queue as they come due, until stopped.

    ``carry_out(key, job)`` is called for each; what it raises is logged. With ``lane_of``, a lane has as many jobs at once as
    ``throttle`` allows it, which learns from how long they take: only for jobs that are alike. ``lane_of(job)`` must be the
    lane under which it was put in. Call ``kick`` after putting something in.
    """

    def __init__(self, queue: WorkQueue[J], carry_out: Callable[[Hashable, J], None], count: int,
                 logger: logging.Logger, now: Callable[[], float], throttle: Throttle | None = None,
                 lane_of: Callable[[J], str] | None = None):
        self.queue, self._carry_out, self._count, self._log, self._now = queue, carry_out, count, logger, now
        self._throttle, self._lane_of = throttle or Throttle(count), lane_of
        self._changed = concurrency.Event()
        self._running = 0

    def kick(self) -> None:
        self._changed.set()

    @property
    def running(self) -> int:
        return self._running

    def run(self) -> None:
        """Never returns; stop its green thread."""
        while True:
            changed = self._changed = concurrency.Event()
            while self._running < self._count:
                found = self.queue.take(self._now(), self._throttle.is_free if self._lane_of is not None else None)
                if found is None:
                    break
                self._start(*found)
            wait = None
            if self._running < self._count:
                # What is due and was not taken waits for a lane, which one that ends gives free, and wakes us.
                due = self.queue.next_later_s()
                if due is not None:
                    wait = min(60.0, max(0.01, due - self._now()))
            try:
                changed.wait(wait)
            except WaitTimeout:
                pass

    def run_until_empty(self) -> None:
        """Carry out all that waits, due or not, and what is put in meanwhile; for a single pass."""
        pool = concurrency.Pool(self._count)
        while True:
            found = self.queue.take(float("inf"))
            if found is None:
                pool.wait_all()
                if not len(self.queue):
                    return
                continue
            self._begin(found[1])
            pool.start(self._one, *found)

    def _begin(self, job: J) -> None:
        """Before its green thread runs, so that whoever takes the next job sees that the lane is busier."""
        if self._lane_of is not None:
            self._throttle.begin(self._lane_of(job))

    def _start(self, key: Hashable, job: J) -> None:
        self._running += 1
        self._begin(job)
        concurrency.spawn(self._counted, key, job)

    def _counted(self, key: Hashable, job: J) -> None:
        try:
            self._one(key, job)
        finally:
            self._running -= 1
            self.kick()

    def _one(self, key: Hashable, job: J) -> None:
        began = self._now()
        took: float | None = None
        try:
            self._carry_out(key, job)
            took = self._now() - began
        except Exception:
            self._log.exception("job %s failed", key)
        finally:
            if self._lane_of is not None:
                self._throttle.end(self._lane_of(job), took, self._now())


def jitter(source: random.Random, share: float = 0.2) -> float:
    """A share to lengthen a wait by, so that what failed together is not tried again together."""
    return source.random() * share
