"""Closing files whose last close may take long, beside everything else: that of a file without a name frees its blocks.

A message that carries descriptors holds the files. Whoever receives it without room for them closes them, in that
system call: here a native thread, which needs the interpreter once for each message. So all that was let go in one turn of
the hub costs one message. A disk that hangs holds up the thread, messages fill the socket, and what comes then is closed
where it is let go: the files that wait are bounded by the socket's buffer.
"""

from __future__ import annotations

import os
from typing import Any, Final

from keelstore.common.concurrency import get_hub, native_module

_AT_ONCE: Final = 200  # descriptors of one message; the kernel takes 253
_socket = native_module("socket")
_thread = native_module("_thread")


class LastCloses:
    """Of one process; not for use after a fork. ``let_go`` is for the hub's own thread alone."""

    def __init__(self) -> None:
        self._fds: list[int] = []
        self._ours: Any = None

    def let_go(self, fd: int) -> None:
        """Have a descriptor closed, soon. It must not be used any more."""
        self._fds.append(fd)
        if len(self._fds) == 1:
            get_hub().schedule_call_global(0, self._send)

    def _send(self) -> None:
        fds, self._fds = self._fds, []
        if self._ours is None:
            self._ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
            self._ours.setblocking(False)
            _thread.start_new_thread(_close, (theirs,))
        for start in range(0, len(fds), _AT_ONCE):
            some = fds[start : start + _AT_ONCE]
            try:
                _socket.send_fds(self._ours, (b"\n",), some)
            except OSError:
                pass  # too many wait: the close here is the last
            for fd in some:
                os.close(fd)

    def end(self) -> None:
        """After what was let go is closed, so is the thread."""
        self._send()
        self._ours.close()


def _close(sock: Any) -> None:
    while sock.recv(1):  # with no room for descriptors
        pass
    sock.close()
