"""A queue of syncs in place of the kernel's: those of files below some directories do not end until they are let go, or fail.

    syncs = HeldSyncs()
    syncs.install(monkeypatch)
    syncs.hold(f"{root}/sda1")
    ...
    syncs.let_go()
    ...
    syncs.remove()

What is not held is synced when it is asked for.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Sequence
from typing import Any

from keelstore.common import disk_calls, fs
from keelstore.common.linux_aio import AsyncSync
from keelstore.common.syncs import Syncing, Syncs


def synced_here(fds: Sequence[int]) -> Syncing:
    """A set of syncs that has ended, made by ``fs.os``."""
    syncing = Syncing(0, 0)
    try:
        fs.sync_files(fds)
    except OSError as error:
        syncing.code = error.errno or errno.EIO
    return syncing


class HeldSyncs:
    def __init__(self) -> None:
        self.eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.held: list[tuple[int, str]] = []  # token and path
        self.asked: list[list[str]] = []  # paths of each call
        self._ended: list[tuple[int, int]] = []
        self._holds: tuple[str, ...] = ()
        self._errors: dict[str, int] = {}

    def install(self, monkeypatch: Any) -> None:
        monkeypatch.setattr(disk_calls, "_syncs", Syncs())
        monkeypatch.setattr(AsyncSync, "open", lambda: self)

    def remove(self) -> None:
        """To be called before the hub sleeps again. Who still asks then waits for ever."""
        if disk_calls._syncs._hub is not None:
            disk_calls._syncs._hub.remove_descriptor(self.eventfd)
        fd, self.eventfd = self.eventfd, -1  # its number will be another file's
        os.close(fd)

    def hold(self, *below: str) -> None:
        self._holds = below

    def fail(self, below: str, code: int = errno.EIO) -> None:
        """0: no longer."""
        self._errors[below] = code

    def let_go(self, code: int = 0) -> None:
        """What is held ends, and nothing is held any more."""
        self._holds = ()
        self._ended += [(token, code) for token, _ in self.held]
        self.held.clear()
        self._tell()

    def _tell(self) -> None:
        if self.eventfd >= 0:
            os.eventfd_write(self.eventfd, 1)

    # -- as AsyncSync --------------------------------------------------------------------------------------------------

    def submit(self, syncs: Sequence[tuple[int, int, bool]]) -> tuple[int, bool]:
        if self.eventfd < 0:
            return len(syncs), False
        paths = []
        for fd, token, _ in syncs:
            path = os.readlink(f"/proc/self/fd/{fd}")
            paths.append(path)
            if path.startswith(self._holds) and self._holds:
                self.held.append((token, path))
            else:
                code = next((code for below, code in self._errors.items() if path.startswith(below)), 0)
                if not code:
                    os.fsync(fd)
                self._ended.append((token, code))
        self.asked.append(paths)
        self._tell()
        return len(syncs), False

    def ended(self) -> list[tuple[int, int]]:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.eventfd)
        found, self._ended = self._ended, []
        return found
