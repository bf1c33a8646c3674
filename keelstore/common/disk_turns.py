"""Whose turn it is to write to a file system: as many uploads at once as ``pace`` says; the others wait, in order.

An upload asks before its body is read (:func:`ask`), and is refused where the file system is slow and enough wait for it
(``Volume.room``). It begins when it first has something to write; then it keeps its turn until it ends, but for a client that
lets the disk wait.
While nothing is slow nobody is refused: whoever has waited for PATIENCE_S then is let in, which widens the window.
"""

from __future__ import annotations

import os
from collections import deque

from keelstore.common import disk_calls
from keelstore.common.concurrency import Event
from keelstore.common.errors import DeviceBusy, DeviceUnavailable, WaitTimeout
from keelstore.common.pace import SLOW_S, Volume

PATIENCE_S = SLOW_S + 0.25  # a call that holds all up has shown by then that it is slow
WAIT_S = 4.0  # for a turn on a slow file system; what a proxy waits for the end of an upload is more than twice that
HOLD_S = 1.0  # that an upload may keep its turn without a thing to write, while others wait
_LOOK_S = 0.25  # between two looks whether there are such
_SAME_S = 60.0  # that a device is taken to be on the same file system


class Turns:
    """Of one file system. Uploads that have not begun, those that wait, and those at work with when they last wrote."""

    __slots__ = ("arriving", "at_work", "volume", "waiting")

    def __init__(self, volume: Volume):
        self.volume = volume
        self.arriving: dict[Turn, float] = {}
        self.waiting: deque[Turn] = deque()
        self.at_work: dict[Turn, float] = {}

    def pending(self, now: float) -> int:
        """All but those whose bodies have been coming for long: a slow client costs the disk nothing."""
        arriving = self.arriving
        while arriving:
            first, came = next(iter(arriving.items()))
            if now - came <= HOLD_S:
                break
            del arriving[first]
        return len(arriving) + len(self.waiting) + len(self.at_work)

    def enter(self, turn: Turn, now: float) -> None:
        at_work = self.at_work
        if not at_work:
            self.volume.wakes(now)
        at_work[turn] = now
        self.volume.used = len(at_work)

    def leave(self, turn: Turn) -> bool:
        """Whether it was at work."""
        was_at_work = self.at_work.pop(turn, None) is not None
        self.volume.used = len(self.at_work)
        return was_at_work

    def let_in(self, now: float) -> None:
        """Whoever is next, as long as there is room."""
        waiting, at_work, window = self.waiting, self.at_work, self.volume.window
        while waiting and len(at_work) < window:
            turn = waiting.popleft()
            self.enter(turn, now)
            turn.woken.set()

    def end_idle(self, now: float) -> None:
        """Take their turns from those who do nothing with them."""
        for turn, last in list(self.at_work.items()):
            if not turn.is_writing and now - last > HOLD_S:
                self.leave(turn)
        self.let_in(now)


_turns: dict[Volume, Turns] = {}
_known: dict[str, tuple[float, str, Turns]] = {}  # device: (until when, its path, turns)


def _forget() -> None:
    _turns.clear()
    _known.clear()


os.register_at_fork(after_in_child=_forget)


def _turns_of(device: str, path: str, now: float) -> Turns:
    """Raises DeviceUnavailable."""
    known = _known.get(device)
    if known is not None and now < known[0] and path == known[1]:
        return known[2]
    try:
        number = os.stat(path).st_dev
    except OSError:
        raise DeviceUnavailable(device) from None
    volume = disk_calls.pace().share(device, number)
    found = _turns.get(volume)
    if found is None:
        found = _turns[volume] = Turns(volume)
    _known[device] = (now + _SAME_S, path, found)
    return found


def ask(device: str, path: str, most: int) -> Turn:
    """A turn to write to a device, mounted at ``path``; ``most`` may be pending while it is slow, 0: any number, at once.
    Raises DeviceBusy, DeviceUnavailable.
    """
    if not most:
        return NO_TURN
    now = disk_calls.pace().clock()
    turns = _turns_of(device, path, now)
    volume = turns.volume
    if volume.is_slow(now) and turns.pending(now) >= volume.room(most, now):
        raise DeviceBusy(device)
    turn = Turn(turns, device)
    turns.arriving[turn] = now
    return turn


class Turn:
    """Of one upload. ``end`` is to be called in any case; what begins again after it does not wait once more."""

    __slots__ = ("_device", "_has_begun", "_turns", "is_writing", "woken")

    def __init__(self, turns: Turns, device: str):
        self._turns, self._device = turns, device
        self._has_begun = self.is_writing = False
        self.woken: Event

    def __enter__(self) -> Turn:
        return self

    def __exit__(self, *_args: object) -> None:
        self.end()

    def begin(self) -> None:
        """From now on it writes; waits for its turn when it does so first. Raises DeviceBusy."""
        turns, now = self._turns, disk_calls.pace().clock()
        if not self._has_begun:
            turns.arriving.pop(self, None)
            if turns.waiting or len(turns.at_work) >= turns.volume.window:
                self._wait(now)
                now = disk_calls.pace().clock()
            self._has_begun = True
        self.is_writing = True
        turns.enter(self, now)

    def begin_at_once(self) -> bool:
        """As :meth:`begin`, where that waits for nothing; else False, with nothing done."""
        turns = self._turns
        if not self._has_begun and (turns.waiting or len(turns.at_work) >= turns.volume.window):
            return False
        self.begin()
        return True

    def rest(self) -> None:
        """It has nothing to write for now."""
        self.is_writing = False
        turns, now = self._turns, disk_calls.pace().clock()
        if self in turns.at_work:
            turns.at_work[self] = now
        if turns.waiting:
            turns.let_in(now)  # the window may have grown

    def end(self) -> None:
        turns = self._turns
        if not self._has_begun:
            turns.arriving.pop(self, None)
        if turns.leave(self) and turns.waiting:
            turns.let_in(disk_calls.pace().clock())

    def _wait(self, began: float) -> None:
        turns, clock = self._turns, disk_calls.pace().clock
        self.woken = woken = Event()
        turns.waiting.append(self)
        try:
            while not woken.is_set:
                try:
                    woken.wait(_LOOK_S)
                    return
                except WaitTimeout:
                    now = clock()
                if turns.waiting and turns.waiting[0] is self:
                    turns.end_idle(now)
                if not woken.is_set and now - began > PATIENCE_S:
                    if not turns.volume.is_slow(now):
                        turns.volume.window = max(turns.volume.window, len(turns.at_work) + 1.0)
                        return
                    if turns.volume.lasted_s(began, now) > WAIT_S:
                        raise DeviceBusy(self._device)
        finally:
            if not woken.is_set:
                turns.waiting.remove(self)


class _NoTurn(Turn):
    """That of whoever need not wait."""

    __slots__ = ()

    def __init__(self) -> None:
        pass

    def begin(self) -> None:
        pass

    def begin_at_once(self) -> bool:
        return True

    def rest(self) -> None:
        pass

    def end(self) -> None:
        pass


NO_TURN = _NoTurn()
