"""An ``os`` module whose disk-changing calls are counted, recorded, and fail or "lose power" at a chosen one.

    faults = FaultyOs(fail_at=3, error=errno.ENOSPC)
    faults.install(monkeypatch)

``crash_at`` raises Crash (a BaseException, as ``except OSError`` must not see it) at that call and at every later one, so
that clean-up code cannot run after the power is gone either. ``syncs=False`` counts syncs and does not do them, which is
fast.
"""

from __future__ import annotations

import os
from typing import Any

from keelstore.common import disk_calls, fs

STEPS = frozenset({
    "fdatasync", "fsync", "link", "mkdir", "open", "pwrite", "rename", "removexattr", "rmdir", "setxattr", "truncate", "unlink",
    "write", "writev",
})  # fmt: skip


class Crash(BaseException):
    """The power went."""


class FaultyOs:
    def __init__(self, *, fail_at: int = 0, error: int = 0, crash_at: int = 0, only: frozenset[str] = STEPS,
                 syncs: bool = True):
        self.fail_at, self.error, self.crash_at, self.only = fail_at, error, crash_at, only
        self.calls: list[tuple[str, Any]] = []
        self.is_on = True
        self._syncs = syncs

    def install(self, monkeypatch: Any) -> None:
        """Put it under ``fs``, and have syncs pass through it instead of the kernel's queue."""
        monkeypatch.setattr(fs, "os", self)
        monkeypatch.setattr(disk_calls._syncs, "is_possible", False)

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in self.only:
            return real

        def call(*args: Any, **kwargs: Any) -> Any:
            if not self.is_on:
                return real(*args, **kwargs)
            if name == "open" and not args[1] & (os.O_CREAT | os.O_TMPFILE & ~os.O_DIRECTORY):
                return real(*args, **kwargs)
            number = len(self.calls) + 1
            if self.crash_at and number >= self.crash_at:
                raise Crash(f"{name}{args}")
            self.calls.append((name, args))
            if number == self.fail_at:
                raise OSError(self.error, os.strerror(self.error))
            if not self._syncs and name in ("fsync", "fdatasync"):
                return None
            return real(*args, **kwargs)

        return call
