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

MAX_EVENTS = 256  # syncs under way at once; beyond, submit() says no and the caller uses a thread

_NUMBERS = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}  # io_setup, io_destroy, io_getevents, io_submit
_FSYNC, _FDSYNC = 2, 3
_FLAG_EVENTFD = 1


class _Control(ctypes.Structure):
    """``struct iocb`` of a little-endian machine."""

    _fields_ = [
        ("data", ctypes.c_uint64), ("key", ctypes.c_uint32), ("rw_flags", ctypes.c_uint32),
        ("opcode", ctypes.c_uint16), ("priority", ctypes.c_int16), ("fd", ctypes.c_uint32),
        ("buffer", ctypes.c_uint64), ("nbytes", ctypes.c_uint64), ("offset", ctypes.c_int64),
        ("reserved", ctypes.c_uint64), ("flags", ctypes.c_uint32), ("eventfd", ctypes.c_uint32),
    ]  # fmt: skip


class _Event(ctypes.Structure):
    """``struct io_event``."""

    _fields_ = [("data", ctypes.c_uint64), ("control", ctypes.c_uint64), ("result", ctypes.c_int64),
                ("result2", ctypes.c_int64)]  # fmt: skip


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
        self._control = _Control(opcode=_FSYNC, flags=_FLAG_EVENTFD, eventfd=self.eventfd)
        self._pointers = (ctypes.POINTER(_Control) * 1)(ctypes.pointer(self._control))
        self._events = (_Event * 64)()
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

    def submit(self, fd: int, token: int, data_only: bool = False) -> bool:
        """Begin to sync ``fd``; ``token`` (0 to 2**64 - 1) comes back in :meth:`ended`. False: the kernel takes no more,
        or does not sync this kind of file this way.

        The kernel holds the file itself: the descriptor may be closed before the sync ends.
        """
        control = self._control
        control.data, control.fd, control.opcode = token, fd, _FDSYNC if data_only else _FSYNC
        if self._call(self._numbers[3], self._context, 1, self._pointers) == 1:
            return True
        code = ctypes.get_errno()
        if code in (errno.EAGAIN, errno.EINVAL, errno.ENOSYS, errno.EINTR, errno.EPERM):
            return False
        raise OSError(code, f"io_submit: {os.strerror(code)}")

    def ended(self) -> list[tuple[int, int]]:
        """The syncs that have ended since: (token, error number or 0). Empties the eventfd."""
        try:
            os.eventfd_read(self.eventfd)
        except BlockingIOError:
            return []
        found: list[tuple[int, int]] = []
        while True:
            count = self._call(self._numbers[2], self._context, 0, 64, self._events, self._no_wait)
            found.extend((event.data, -min(event.result, 0)) for event in self._events[: max(count, 0)])
            if count < 64:
                return found

    def close(self) -> None:
        """Waits for what is under way."""
        self._call(self._numbers[1], self._context)
        os.close(self.eventfd)
