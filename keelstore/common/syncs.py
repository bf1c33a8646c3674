"""Syncs of files that green threads wait for while the kernel works."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import Any

from keelstore.common.concurrency import current_green, get_hub, resume, time_limit
from keelstore.common.errors import WaitTimeout
from keelstore.common.linux_aio import AsyncSync


class _Waiter:
    """A green thread that waits for ``left`` sets of syncs."""

    __slots__ = ("green", "left")

    def __init__(self, green: Any, left: int):
        self.green, self.left = green, left


class Syncing:
    """Syncs of open files that somebody waits for. ``left``: how many have not ended. ``code``: the first error's number, or
    0. ``refused``: what the kernel does not sync this way.
    """

    __slots__ = ("code", "left", "refused", "token", "waiter")

    def __init__(self, token: int, left: int):
        self.token, self.left = token, left
        self.code = 0
        self.refused: list[int] = []
        self.waiter: _Waiter | None = None

    @property
    def error(self) -> OSError | None:
        return OSError(self.code, f"fsync: {os.strerror(self.code)}") if self.code else None


class Syncs:
    """Syncs that green threads wait for while the kernel works (``linux_aio.py``). One for each process.

    What is asked for in one turn of the hub goes to the kernel in one call, at the beginning of the next: else its workers
    take the processor from us each time, and a journal commits for each of those who could share a commit.
    """

    def __init__(self) -> None:
        self._queue: AsyncSync | None = None
        self._hub: Any = None
        self._asked: list[tuple[int, int, bool]] = []  # as AsyncSync.submit wants them
        self._is_called = False  # the hub will call _submit
        self._under_way = 0
        self._waiting: dict[int, Syncing] = {}  # by token
        self._last = 0
        self.is_possible = True

    def sync(self, fds: Sequence[int], data_only: bool) -> Sequence[int]:
        """Sync open files; those that the caller must sync another way. Raises OSError."""
        if not fds or not self.opens():
            return fds
        syncing = self._begin(fds, data_only)
        try:
            self._wait((syncing,))
        finally:
            self.forget((syncing,))
        error = syncing.error
        if error is not None:
            raise error
        return syncing.refused

    def sync_sets(self, sets: Sequence[Sequence[int]], seconds: float) -> list[Syncing]:
        """Sync several sets of open files side by side. Those that are not over after ``seconds`` go on: :meth:`finish`
        them, with their files open. Only where :meth:`opens`.
        """
        found = [self._begin(fds, False) for fds in sets]
        ended = False
        try:
            with time_limit(seconds) as limit:
                try:
                    self._wait(found)
                except WaitTimeout:
                    if not limit.is_over:
                        raise
            ended = True
        finally:
            self.forget([one for one in found if not one.left] if ended else found)
        return found

    def finish(self, syncing: Syncing) -> None:
        """Wait for what :meth:`sync_sets` left, however long that takes."""
        try:
            if syncing.left:
                self._wait((syncing,))
        finally:
            self.forget((syncing,))

    def opens(self) -> bool:
        """Whether this green thread may wait for the queue; opens it at first."""
        hub = get_hub()
        current = current_green()
        if current is hub.greenlet or not self.is_possible:
            return False
        if hub is not self._hub:
            if self._queue is not None:
                return False  # another native thread, or a hub made anew
            queue = self._queue = AsyncSync.open()
            if queue is None:
                self.is_possible = False
                return False
            self._hub = hub
            hub.add(hub.READ, queue.eventfd, self._on_ended, current.throw, lambda *_: None)
        return True

    def _begin(self, fds: Sequence[int], data_only: bool) -> Syncing:
        self._last = token = self._last + 1
        syncing = self._waiting[token] = Syncing(token, len(fds))
        asked = self._asked
        for fd in fds:
            asked.append((fd, token, data_only))
        if not self._is_called:
            self._is_called = True
            self._hub.schedule_call_global(0, self._submit)
        return syncing

    def _wait(self, all_of: Sequence[Syncing]) -> None:
        """Until all have ended, or something is thrown at this green thread."""
        waiter = _Waiter(current_green(), 0)
        for syncing in all_of:
            if syncing.left:
                syncing.waiter = waiter
                waiter.left += 1
        if not waiter.left:
            return
        try:
            self._hub.switch()
        finally:
            waiter.green = None
            for syncing in all_of:
                syncing.waiter = None

    def forget(self, all_of: Sequence[Syncing]) -> None:
        """Nobody waits for them any more."""
        for syncing in all_of:
            self._waiting.pop(syncing.token, None)
            if syncing.left:  # its waiter was stopped; its descriptors may be closed now
                self._asked = [sync for sync in self._asked if sync[1] != syncing.token]

    @property
    def is_open(self) -> bool:
        """Whether this thread's hub has the queue."""
        return self._queue is not None and self._hub is get_hub()

    def _submit(self) -> None:
        queue, self._is_called = self._queue, False
        assert queue is not None
        while self._asked:
            try:
                taken, is_later = queue.submit(self._asked)
                code = 0
            except OSError as error:
                taken, is_later, code = 0, False, error.errno or errno.EIO
            if taken:
                self._under_way += taken
                del self._asked[:taken]
            elif is_later and self._under_way:
                return  # until some have ended
            else:
                fd, token, _ = self._asked.pop(0)
                entry = self._waiting.get(token)
                if entry is not None:
                    if not code:
                        entry.refused.append(fd)
                    self._one_ended(entry, code)

    def _one_ended(self, entry: Syncing, code: int) -> None:
        entry.code = entry.code or code
        entry.left -= 1
        if entry.left or entry.waiter is None:
            return
        waiter = entry.waiter
        waiter.left -= 1
        if not waiter.left and waiter.green is not None:
            resume(waiter.green)

    def _on_ended(self, _fd: int) -> None:
        assert self._queue is not None
        ended = self._queue.ended()
        self._under_way -= len(ended)
        for token, code in ended:
            entry = self._waiting.get(token)
            if entry is not None:  # else its waiter was stopped
                self._one_ended(entry, code)
        if self._asked and not self._is_called:
            self._submit()
