"""The MD5s of objects that are read at the same time, computed side by side on one native thread.

An object's MD5 is one chain of steps, which no vector instruction makes shorter. But the chains of eight objects cost little
more than that of one (``common/digests.py``). So what is to be hashed is put down here, and taken up together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from keelstore.common import concurrency
from keelstore.common.concurrency import Event
from keelstore.common.digests import Feed, take_together
from keelstore.common.disk_calls import on_disk_thread
from keelstore.common.errors import WaitTimeout

LANES: Final = 8  # objects hashed in one go
GATHER_S: Final = 0.02  # how long what is to be hashed waits for company that is on its way


class SharedDigests:
    """One for each process; its green threads share it."""

    def __init__(self) -> None:
        self.makers = 0  # green threads that will put something down before long: for these it is worth to wait
        self._waiting: list[tuple[Sequence[Feed], Event]] = []
        self._is_running = False
        self._enough: Event | None = None

    def take(self, feeds: Sequence[Feed]) -> Event:
        """Have the next bytes of some streams hashed; the event says when that is done, or raises what it raised. Not for a
        stream whose last event has not come.
        """
        event = Event()
        self._waiting.append((feeds, event))
        if not self._is_running:
            self._is_running = True
            concurrency.spawn(self._run)
        elif self._enough is not None and len(self._waiting) >= self._wanted():
            self._enough.set()
        return event

    def leave(self) -> None:
        """One maker less."""
        self.makers -= 1
        if self._enough is not None and len(self._waiting) >= self._wanted():
            self._enough.set()

    def _wanted(self) -> int:
        return min(LANES, max(1, self.makers))

    def _run(self) -> None:
        try:
            while self._waiting:
                if len(self._waiting) < self._wanted():
                    self._enough = Event()
                    try:
                        self._enough.wait(GATHER_S)
                    except WaitTimeout:
                        pass
                    finally:
                        self._enough = None
                batch, self._waiting = self._waiting[:LANES], self._waiting[LANES:]
                self._hash(batch)
        finally:
            self._is_running = False

    @staticmethod
    def _hash(batch: Sequence[tuple[Sequence[Feed], Event]]) -> None:
        most = max(len(feeds) for feeds, _ in batch)
        together = [feeds[number] for number in range(most) for feeds, _ in batch if len(feeds) > number]
        error: BaseException | None = None
        try:
            on_disk_thread("digests", take_together, together)
        except Exception as problem:
            error = problem
        for _, event in batch:
            event.set(error)
