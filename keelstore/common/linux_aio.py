"""fsync without waiting, by Linux's asynchronous I/O: submit a descriptor, hear of it on an eventfd.

Why: a sync on a native thread costs two hand-overs of the interpreter for each system call around it, and under load these
were most of the cost of a write (doc/design/performance). The kernel's own workers need neither. Kernels from 4.18 on, x86-64
and arm64; where the calls are missing or refused (seccomp, ``fs.aio-max-nr``), :meth:`AsyncSync.open` says so and the caller
uses threads.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Sequence

MAX_EVENTS = 256  # syncs under way at once; beyond, submit() takes no more
BATCH = 64  # syncs of one call, and ends heard of by one

_NUMBERS = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}  # io_setup, io_destroy, io_getevents, io_submit
_FSYNC, _FDSYNC = 2, 3
_FLAG_EVENTFD = 1


# struct iocb of a little-endian machine: data, key, rw_flags, opcode, priority, fd, buffer, nbytes, offset, reserved, flags,
# eventfd
_CONTROL = struct.Struct("<QIIHhIQQqQII")
_EVENT = struct.Struct("<QQqq")  # struct io_event: data, control, result, result2


class AsyncSync:
    """One kernel queue of syncs. Not for use after a fork: make another.

    ``eventfd`` becomes readable when syncs have ended.
    """

    def __init__(self, numbers: tuple[int, int, int, int]):
        # PyDLL keeps the interpreter: none of these calls waits, and giving it up would let other threads in each time
        self._call = ctypes.PyDLL(None, use_errno=True).syscall
        self._call.restype = ctypes.c_long
        self._numbers = numbers
        self._context = ctypes.c_ulong(0)
        if self._call(numbers[0], MAX_EVENTS, ctypes.byref(self._context)) != 0:
            code = ctypes.get_errno()
            raise OSError(code, f"io_setup: {os.strerror(code)}")
        self.eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._controls = ctypes.create_string_buffer(BATCH * _CONTROL.size)
        first = ctypes.addressof(self._controls)
        self._pointers = (ctypes.c_void_p * BATCH)(*range(first, first + BATCH * _CONTROL.size, _CONTROL.size))
        self._events = ctypes.create_string_buffer(BATCH * _EVENT.size)
        self._no_wait = (ctypes.c_long * 2)(0, 0)

    @classmethod
    def open(cls) -> AsyncSync | None:
        """A queue, or None where this machine offers none."""
        numbers = _NUMBERS.get(platform.machine())
        if numbers is None or os.name != "posix":
            return None
        try:
            return cls(numbers)
        except OSError:
            return None

    def submit(self, syncs: Sequence[tuple[int, int, bool]]) -> tuple[int, bool]:
        """Begin to sync up to BATCH of (descriptor, token, whether only its data). Gives how many were taken, from the first
        on, and for 0 whether the first could be later: the kernel has enough for now. Else it does not sync this kind of
        file this way.

        A token (0 to 2**64 - 1) comes back in :meth:`ended`, for each of its syncs. The kernel holds the files: descriptors
        may be closed before that. Raises OSError when the first cannot be synced at all.
        """
        at, controls, eventfd = 0, self._controls, self.eventfd
        syncs = syncs[:BATCH]
        for fd, token, data_only in syncs:
            code = _FDSYNC if data_only else _FSYNC
            _CONTROL.pack_into(controls, at, token, 0, 0, code, 0, fd, 0, 0, 0, 0, _FLAG_EVENTFD, eventfd)
            at += _CONTROL.size
        taken: int = self._call(self._numbers[3], self._context, len(syncs), self._pointers)
        if taken > 0:
            return taken, True
        code = ctypes.get_errno()
        if code in (errno.EAGAIN, errno.EINTR):
            return 0, True
        if code in (errno.EINVAL, errno.ENOSYS, errno.EPERM):
            return 0, False
        raise OSError(code, f"io_submit: {os.strerror(code)}")

    def ended(self) -> list[tuple[int, int]]:
        """The syncs that have ended since: (token, error number or 0). Empties the eventfd."""
        try:
            os.eventfd_read(self.eventfd)
        except BlockingIOError:
            return []
        found: list[tuple[int, int]] = []
        while True:
            count = self._call(self._numbers[2], self._context, 0, BATCH, self._events, self._no_wait)
            if count > 0:
                ends = memoryview(self._events)[: count * _EVENT.size]
                found.extend([(token, -result if result < 0 else 0) for token, _, result, _ in _EVENT.iter_unpack(ends)])
            if count < BATCH:
                return found

    def close(self) -> None:
        """Waits for what is under way."""
        self._call(self._numbers[1], self._context)
        os.close(self.eventfd)
