"""The C library's allocator, told to keep what bodies pass through.

glibc gives memory at the end of its heap back as soon as twice the largest buffer is free, which for pieces of bodies is
after every few of them; the next ones are then zeroed and mapped by the kernel again, page by page. Encoding a segment of
1 MiB took 2.0 ms in place of 0.1 (doc/design/performance.md, Erasure coding).
"""

from __future__ import annotations

import ctypes
import os
from typing import Any, Final

KEPT: Final = 8 << 20  # bytes free at the end of a heap that a process does not give back
FROM_KERNEL: Final = 4 << 20  # a buffer from this size on comes from the kernel, and goes back to it at once
_TRIM_THRESHOLD: Final = -1  # of <malloc.h>
_MMAP_THRESHOLD: Final = -3
_OPERATORS: Final = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_buffers() -> bool:
    """For processes that serve bodies, at their start; children inherit it. Whether it was done: not where the environment
    says how memory is to be had, nor with a C library that cannot be told.
    """
    if any(name in os.environ for name in _OPERATORS):
        return False
    try:
        mallopt: Any = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    mallopt.argtypes, mallopt.restype = [ctypes.c_int, ctypes.c_int], ctypes.c_int
    return bool(mallopt(_MMAP_THRESHOLD, FROM_KERNEL)) and bool(mallopt(_TRIM_THRESHOLD, KEPT))
