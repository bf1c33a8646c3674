"""Reading of open files that hold data: what the page cache has of them, and what the disk has to be asked for."""

from __future__ import annotations

import errno
import os

_nowait_works = True
LARGEST_KEPT = 1 << 20  # bytes
BUFFERS_KEPT = 4
_buffers: list[bytearray] = []  # that nobody reads into at the moment


def read_cached(fd: int, size: int, offset: int) -> bytes | None:
    """What of these bytes the page cache holds, from ``offset`` on; None when the disk would have to be asked.

    Also None at the end of the file where that cannot be told. Cheap enough to be called outside of disk threads.
    """
    global _nowait_works
    if _nowait_works:
        try:
            buffer = _buffers.pop()
        except IndexError:
            buffer = bytearray()
        if len(buffer) < size:
            buffer = bytearray(size)
        try:
            count = os.preadv(fd, (memoryview(buffer)[:size],), offset, os.RWF_NOWAIT)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
            _nowait_works = False
            return None
        data = bytes(memoryview(buffer)[:count]) if count or not size else None
        if len(buffer) <= LARGEST_KEPT and len(_buffers) < BUFFERS_KEPT:
            _buffers.append(buffer)
        return data
    return None


def read_at(fd: int, size: int, offset: int) -> bytes:
    """``size`` bytes from ``offset``, fewer only at the end of the file."""
    return os.pread(fd, size, offset)


def drop_cache(fd: int, offset: int = 0, length: int = 0) -> None:
    """Tell the kernel that this part of a file will not be read again soon; 0: to the end."""
    os.posix_fadvise(fd, offset, length, os.POSIX_FADV_DONTNEED)
