"""How fast file systems were of late: which disk calls leave a worker's own thread, and how many uploads may write at once.
Decides from how long calls took; source of time and the calls themselves are ``disk_calls``', who waits is ``disk_turns``'.

Devices that are known to share a file system (``share``) share its journal, and so all that is said here.

The window is the number of uploads that may be at work on the disk at once. An upload's call ends when its data is safe, and
what is begun beside it gets into the same journal commit, so a call takes about as long as the disk needs for all that are
at work (Little's law). A call that took t > SLOW_S shrinks the window by SLOW_S / t, to a quarter at most, once for all that
ran beside it; each that was quick, while none was slow, lets one more in, as long as the window is used. So where a disk
serves a few uploads a second, as many are at work as it ends in about a second, and all it does goes into uploads that end.

A file system that was slow has recovered when for CALM_S no call was; it may have MORE waiting then, if the window is wide.
One slow moment is a hiccup, until HICCUP_S after it: what a narrow window, of a disk that had little to do, says is no reason
yet to refuse what a few clients ask for.
Of what seems slow the time is left out in which the process did not run (``pauses``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from keelstore.common.pauses import Pauses, Start

T = TypeVar("T")

SLOW_S = 1.0  # a disk call that takes longer shows a slow device,
STUCK_S = 4.0  # of a call: who comes then need not wait, too
SLOW_FOR_S = 10.0  # which is then kept off the worker's own thread for this long
CALM_S = 0.5  # without a slow call to end: a device was slow, and is no more;
MORE = 4  # times as many uploads may be pending then,
HICCUP_S = 1.0  # or until so long after the first slow call has ended
LOOK_S = 2.0  # that a short call of a read may take
LATE_S = 0.1  # of a call: what comes while it runs is kept off that thread, too; it may be held up by the same commit
QUICK_S = 0.25  # a disk call that takes no longer lets another upload in
START, LEAST, MOST = 4.0, 3.0, 1024.0  # of the window: at first and after IDLE_S, and its limits
IDLE_S = 10.0
_SHRINKS = 0.25  # to this part at most, at once
_WATCH_S = 10.0  # that pauses are watched after the last call


class Volume:
    """A file system. ``running``: {call: began}, oldest first. ``used``: how many uploads are at work."""

    __slots__ = ("_last", "_pauses", "_shrunk", "_slow_since", "looks", "running", "slow_until", "used", "window")

    def __init__(self, pauses: Pauses) -> None:
        self._pauses = pauses
        self.running: dict[object, float] = {}
        self.looks: dict[object, float] = {}  # as running, of short calls that had to leave the worker's own thread
        self.slow_until = self._slow_since = self._shrunk = self._last = 0.0
        self.window = START
        self.used = 0

    def lasted_s(self, began: float, now: float) -> float:
        """How long something took, pauses left out where that matters."""
        took = now - began
        return took if took <= SLOW_S else took - self._pauses.away_s(began, now)

    def longest_s(self, now: float) -> float:
        """How long the first of the calls has been running."""
        for began in self.running.values():
            return self.lasted_s(began, now)
        return 0.0

    def is_slow(self, now: float) -> bool:
        """Whether a call runs, or ran in the last SLOW_FOR_S, for longer than SLOW_S."""
        return now < self.slow_until or self.longest_s(now) > SLOW_S

    def has_recovered(self, now: float) -> bool:
        """Of one that is slow: it has ended calls since, none of them slow, and what it has begun is not late."""
        slow_at = self.slow_until - SLOW_FOR_S
        return self._last > slow_at and now - slow_at > CALM_S and self.longest_s(now) <= QUICK_S

    def room(self, most: int, now: float) -> float:
        """How many uploads may be at work, or wait for that, while it is slow: what it ends in two seconds, and no more than
        ``most``, or MORE once it has recovered. In a hiccup, MORE.
        """
        if self.longest_s(now) > STUCK_S:
            return min(most, LEAST)
        if now >= self.slow_until or now - self._slow_since <= HICCUP_S:
            return most * MORE
        return min(most * MORE if self.has_recovered(now) else most, 2 * self.window)

    def is_stuck(self, now: float) -> bool:
        """Whether a short call has not come back for LOOK_S: another would not, either."""
        looks = list(self.looks.values())  # in one step: disk threads take theirs out
        return bool(looks) and self.lasted_s(looks[0], now) > LOOK_S

    def wakes(self, now: float) -> None:
        """An upload begins where none is at work: what was known of a disk long ago is not."""
        if now - self._last > IDLE_S:
            self.window = min(self.window, START)

    def is_used(self, now: float) -> bool:
        """Whether calls run, or did of late."""
        return bool(self.running) or now - self._last < _WATCH_S

    def ended(self, began: float, now: float, is_safe: bool) -> bool:
        """A call has ended; whether it was slow. ``is_safe``: what it wrote is on disk then, and not only in the page cache.
        """
        took, self._last = self.lasted_s(began, now), now
        if took > SLOW_S:
            if now >= self.slow_until:
                self._slow_since = now
            self.slow_until = now + SLOW_FOR_S
            if began >= self._shrunk:
                self._shrunk = now
                self.window = max(LEAST, self.window * max(_SHRINKS, SLOW_S / took))
            return True
        if is_safe and self.used * 2 >= self.window and self.window < MOST:
            longest = self.longest_s(now)
            if took <= QUICK_S and longest <= QUICK_S:
                self.window += 1.0
            elif longest <= SLOW_S:
                self.window += 1.0 / self.window
        return False


class Pace:
    """What is known of the file systems of all devices."""

    __slots__ = ("_has_been_slow", "_pauses", "_shared", "_volumes", "_wary_until", "clock")

    def __init__(self, clock: Callable[[], float], start: Start | None = None) -> None:
        """``start``: of a native thread that looks for pauses; None: there are none."""
        self.clock = clock
        self._pauses = Pauses(clock, self._is_used, start)
        self._volumes: dict[str, Volume] = {}  # by device
        self._shared: dict[object, Volume] = {}  # by file system
        self._has_been_slow = False
        self._wary_until = 0.0

    def volume(self, device: str) -> Volume:
        found = self._volumes.get(device)
        if found is None:
            found = self._volumes[device] = Volume(self._pauses)
        return found

    def _is_used(self, now: float) -> bool:
        return any(volume.is_used(now) for volume in list(self._volumes.values()))  # in one step: another thread asks

    def share(self, device: str, file_system: object) -> Volume:
        """The device is on this file system, from now on. Devices of one name share it anyway."""
        found = self._shared.get(file_system)
        if found is None:
            known = self._volumes.get(device)
            is_own = known is not None and known not in self._shared.values()
            found = self._shared[file_system] = known if known is not None and is_own else Volume(self._pauses)
        self._volumes[device] = found
        return found

    def keeps_off(self, device: str, now: float) -> bool:
        """Whether calls on the device leave the worker's own thread: because it is slow, or late with one right now; or for
        a while after any was slow on that thread, since devices may share a controller.
        """
        if now < self._wary_until:
            return True
        found = self._volumes.get(device)
        return found is not None and (now < found.slow_until or found.longest_s(now) > LATE_S)

    def may_be_slow(self, device: str) -> bool:
        """False: the device is not slow, nor is any other; True: that is to be looked at."""
        if self._has_been_slow:
            return True
        found = self._volumes.get(device)
        return found is not None and bool(found.running)

    def run(self, device: str, now: float, function: Callable[..., T], *args: Any) -> T:
        """A call on the worker's own thread."""
        call = object()
        volume = self.begin(device, now, call)
        try:
            return function(*args)
        finally:
            self.end(volume, now, call, True, is_own=True)

    def run_apart(self, device: str, now: float, is_safe: bool, function: Callable[..., T], *args: Any) -> T:
        """A call on another. ``is_safe``: as :meth:`Volume.ended` wants it."""
        call = object()
        volume = self.begin(device, now, call)
        try:
            return function(*args)
        finally:
            self.end(volume, now, call, is_safe)

    def begin(self, device: str, now: float, call: object) -> Volume:
        """``call`` runs from now on, until :meth:`end`, which wants this volume."""
        volume = self._volumes.get(device) or self.volume(device)
        volume.running[call] = now
        if not self._pauses.are_watched:
            self._pauses.watch(now)
        return volume

    def leave_out(self, volume: Volume, call: object) -> None:
        """What ``call`` waits for now is no disk: how long it took tells nothing."""
        del volume.running[call]

    def end(self, volume: Volume, began: float, call: object, is_safe: bool, is_own: bool = False) -> None:
        """``is_own``: it was on the worker's own thread."""
        del volume.running[call]
        now = self.clock()
        if volume.ended(began, now, is_safe):
            self._has_been_slow = True
        if is_own and self._has_been_slow and volume.slow_until > began + SLOW_FOR_S:  # this call's, or one beside it
            self._wary_until = max(self._wary_until, volume.slow_until)
