"""Locks of directories and files, which processes share."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable

from keelstore.common.errors import LockTimeout


def wait_for(take: Callable[[], bool], what: str, timeout_s: float) -> None:
    """Have a lock taken, ``what``, that another holds: try until it is. On green and on disk threads. Raises LockTimeout."""
    from keelstore.common.disk_calls import pause  # not above: operators' tools write files without green threads

    deadline = time.monotonic() + timeout_s
    wait = 0.0005  # most holders are gone in microseconds; the field's step is 10 ms
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            raise LockTimeout(f"{what}: not had within {timeout_s} s")
        pause(min(wait, left))
        if take():
            return
        wait = min(wait * 2, 0.01 if left > timeout_s / 2 else 0.1)


def take_file(fd: int) -> bool:
    """Whether nobody else had locked an open file; it is ours then, until it is closed."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise
        return False
    return True


class lock_directory:  # noqa: N801 - reads as a statement: with lock_directory(path):
    """Hold the lock of a directory, shared with every process that locks as the field does (``spec: on-disk 1``).

    flock on ``<path>/.lock[-name][-i]``; ``limit`` holders may have it at once, on ``.lock``, ``.lock-1``, ... Raises
    LockTimeout after ``timeout_s`` seconds, FileNotFoundError when the directory is missing. Works on green and on disk
    threads. Do not call ``on_disk_thread`` while holding it: the threads of the device may all be waiting for it.
    """

    __slots__ = ("_fd", "_paths", "timeout_s")

    def __init__(self, path: str, timeout_s: float = 10.0, name: str = "", limit: int = 1):
        base = f"{path}/.lock-{name}" if name else f"{path}/.lock"
        self._paths = (base,) if limit <= 1 else (base, *(f"{base}-{i}" for i in range(1, limit)))
        self.timeout_s = timeout_s
        self._fd = -1

    def take(self) -> bool:
        """Whether it was to be had at once, and is held now, until :meth:`release`."""
        for path in self._paths:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                if take_file(fd) and os.fstat(fd).st_nlink:  # else its directory was removed, and others lock another file
                    self._fd = fd
                    return True
            except OSError:
                os.close(fd)
                raise
            os.close(fd)
        return False

    def __enter__(self) -> lock_directory:
        if not self.take():
            wait_for(self.take, self._paths[0], self.timeout_s)
        return self

    def release(self) -> None:
        fd, self._fd = self._fd, -1
        os.close(fd)

    def __exit__(self, *args: object) -> None:
        self.release()
