"""Room on a device: what clients may not fill, and room taken ahead of what is written."""

from __future__ import annotations

import ctypes
import errno
import os
import time
from dataclasses import dataclass, field

from keelstore.common.errors import DeviceFull
from keelstore.common.fs import translated

PLENTY = 4 << 30  # bytes: more than all who write to a device fill
PLENTY_S = 0.5  # in so many seconds
_NO_FALLOCATE = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})


@dataclass(frozen=True)
class Reserve:
    """Room that clients may not fill: ``amount`` in bytes, or in percent of the device. 0: no check."""

    amount: float = 1.0
    is_percent: bool = True
    _plenty: dict[int | str, float] = field(default_factory=dict, init=False, repr=False, compare=False)
    """By path of a device: until when it is known to have room for twice PLENTY."""

    @classmethod
    def parse(cls, text: str) -> Reserve:
        """From ``fallocate_reserve``: ``1%`` or a number of bytes. Raises ValueError saying what was expected."""
        text = text.strip()
        is_percent = text.endswith("%")
        try:
            amount = float(text[:-1]) if is_percent else int(text)
        except ValueError:
            raise ValueError("a number of bytes, or a percentage such as 1%") from None
        if amount < 0 or (is_percent and not amount <= 100):
            raise ValueError("a number of bytes of 0 or more, or a percentage from 0% to 100%")
        return cls(amount, is_percent)

    def allows(self, target: int | str, size: int = 0) -> bool:
        """Whether the device of ``target`` (descriptor or path) has room for ``size`` more bytes above the reserve.

        With a size, what is left must exceed the reserve; without (unknown size) it may equal it (``spec: on-disk
        3.6``). A path that had plenty just now is not looked at again.
        """
        if not self.amount:
            return True
        now = time.monotonic()
        if size < PLENTY and now < self._plenty.get(target, 0.0):
            return True
        left = self.left_in(os.statvfs(target)) - size
        if left > 2 * PLENTY and type(target) is str:
            self._plenty[target] = now + PLENTY_S
        return left > 0 if size else left >= 0

    def left_in(self, room: os.statvfs_result) -> float:
        """Bytes above the reserve in what ``statvfs`` just said of a device; below 0 where the reserve is begun."""
        total = room.f_frsize * room.f_blocks or 1
        return room.f_frsize * room.f_bavail - (self.amount * total / 100 if self.is_percent else self.amount)

    def check(self, target: int | str, size: int = 0) -> None:
        """Raises DeviceFull when the device of ``target`` has no room for ``size`` more bytes."""
        if not self.allows(target, size):
            raise DeviceFull(f"within the reserve of {self.amount:g}{'%' if self.is_percent else ' bytes'}")


def reserve_problem(value: str) -> str | None:
    """What was expected of a ``fallocate_reserve``; None when it is well. For ``option(check=...)``."""
    try:
        Reserve.parse(value)
    except ValueError as error:
        return str(error)
    return None


_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
_KEEP_SIZE = 1


def check_room(target: int | str, size: int) -> None:
    """Raises DeviceFull where the device of an open file, or of a path, has no room for so many bytes."""
    room = os.statvfs(target)
    if size > room.f_frsize * room.f_bavail:
        raise DeviceFull(os.strerror(errno.ENOSPC))


def allocate(fd: int, size: int, start: int = 0) -> None:
    """Reserve the bytes from ``start`` to ``size`` for an open file without changing its length. Raises DeviceFull.

    A file system that cannot allocate ahead is left alone.
    """
    check_room(fd, size - start)  # else the kernel takes all there is before it says so
    if size > start and _libc.fallocate(fd, _KEEP_SIZE, start, size - start) != 0:
        code = ctypes.get_errno()
        if code not in _NO_FALLOCATE:
            raise translated(OSError(code, f"fallocate: {os.strerror(code)}"))
