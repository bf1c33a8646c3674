"""Syncs of files that green threads wait for while the kernel works."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import Any

from keelstore.common.concurrency import current_green, get_hub, resume
from keelstore.common.linux_aio import AsyncSync


class _Syncing:
    """A green thread that waits for ``left`` syncs. ``refused``: what the kernel does not sync this way."""

    __slots__ = ("code", "left", "refused", "waiter")

    def __init__(self, waiter: Any, left: int):
        self.waiter, self.left = waiter, left
        self.code = 0
        self.refused: list[int] = []


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
        self._waiting: dict[int, _Syncing] = {}  # by token
        self._last = 0
        self.is_possible = True

    def sync(self, fds: Sequence[int], data_only: bool) -> Sequence[int]:
        """Sync open files; those that the caller must sync another way. Raises OSError."""
        hub = get_hub()
        current = current_green()
        if not fds or current is hub.greenlet or not self.is_possible:
            return fds
        if hub is not self._hub:
            if self._queue is not None:
                return fds  # another native thread, or a hub made anew
            queue = self._queue = AsyncSync.open()
            if queue is None:
                self.is_possible = False
                return fds
            self._hub = hub
            hub.add(hub.READ, queue.eventfd, self._on_ended, current.throw, lambda *_: None)
        self._last = token = self._last + 1
        entry = self._waiting[token] = _Syncing(current, len(fds))
        asked = self._asked
        for fd in fds:
            asked.append((fd, token, data_only))
        if not self._is_called:
            self._is_called = True
            hub.schedule_call_global(0, self._submit)
        try:
            hub.switch()
        except BaseException:  # it was stopped; its descriptors may be closed now
            self._asked = [sync for sync in self._asked if sync[1] != token]
            raise
        finally:
            self._waiting.pop(token, None)
        if entry.code:
            raise OSError(entry.code, f"fsync: {os.strerror(entry.code)}")
        return entry.refused

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

    def _one_ended(self, entry: _Syncing, code: int) -> None:
        entry.code = entry.code or code
        entry.left -= 1
        if not entry.left:
            resume(entry.waiter)

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
