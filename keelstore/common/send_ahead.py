"""How much of an answer the kernel holds for its reader beyond what the reader lets come (TCP_NOTSENT_LOWAT).

Much of it saves turns, since the sender is woken each time the reader has taken half. But a reader that takes nothing keeps
it for as long as it may be slow. So each connection begins with LEAST, and a large body that is read quickly gets more as it
goes on, up to MOST; all readers of a process together no more than ALL.
"""

from __future__ import annotations

import fcntl
import socket
import struct
import time
from collections.abc import Callable
from typing import Final

from keelstore.common.concurrency import is_ready
from keelstore.common.errors import PeerSilent

LEAST: Final = 131072
MOST: Final = 4 << 20
ALL: Final = 64 << 20  # beyond LEAST of each
LARGE: Final = 1 << 20  # bytes of a body for which it pays
QUICK_S: Final = 0.02  # who takes half of what is held within it gets twice as much
SLOW_S: Final = 1.0  # who does not within it goes back to LEAST
_LOWAT: Final = 25  # TCP_NOTSENT_LOWAT
_UNSENT: Final = 0x894B  # SIOCOUTQNSD

_granted = 0


def hold_little(sock: socket.socket) -> None:
    """Have the kernel hold LEAST for this connection, or for each that is accepted on it."""
    sock.setsockopt(socket.IPPROTO_TCP, _LOWAT, LEAST)


def granted() -> int:
    """Bytes that readers may have beyond LEAST now."""
    return _granted


class SendAhead:
    """Of one large body on a TCP connection. ``wait(timeout)``: the connection's own wait until it can be written to, which
    raises PeerSilent.
    """

    __slots__ = ("_granted", "_mark", "_sock", "_wait")

    def __init__(self, sock: socket.socket, wait: Callable[[float | None], None]):
        self._sock, self._wait = sock, wait
        self._mark = LEAST
        self._granted = 0  # stays after the mark was lowered, until the reader has taken it

    def wait(self, timeout: float | None) -> None:
        """As the connection's own. A reader is as slow as it may be with LEAST, whatever is held for it."""
        began = time.monotonic()
        if self._granted:
            self._wait_with_more(timeout)
        else:
            self._wait(timeout)
        if self._mark < MOST and time.monotonic() - began < QUICK_S:
            self._grow()

    def end(self, timeout: float | None) -> None:
        """After the last byte: until no more than LEAST is held. Raises OSError, WaitTimeout."""
        self._lower()
        while self._granted:
            self._settle(timeout)

    def drop(self) -> None:
        """The connection is closed, or was reset."""
        global _granted
        _granted -= self._granted
        self._granted = 0

    def _grow(self) -> None:
        global _granted
        more = self._mark
        if self._granted != self._mark - LEAST or _granted + more > ALL:
            return
        self._set(self._mark + more)
        self._granted += more
        _granted += more

    def _lower(self) -> None:
        if self._mark != LEAST:
            self._set(LEAST)

    def _set(self, mark: int) -> None:
        self._sock.setsockopt(socket.IPPROTO_TCP, _LOWAT, mark)
        self._mark = mark

    def _wait_with_more(self, timeout: float | None) -> None:
        if self._mark != LEAST:
            try:
                self._wait(SLOW_S if timeout is None else min(SLOW_S, timeout))
                return
            except PeerSilent:
                self._lower()
        self._settle(timeout)

    def _settle(self, timeout: float | None) -> None:
        """After the mark was lowered: wait until the reader has taken enough, as long as that goes on."""
        if not self._holds_little():
            unsent = self._unsent()
            while True:
                try:
                    self._wait(timeout)
                    break
                except PeerSilent:
                    before, unsent = unsent, self._unsent()
                    if before - unsent < LEAST // 2:
                        raise
        if self._holds_little():
            self.drop()

    def _holds_little(self) -> bool:
        """Whether less than half of the mark is held: then the kernel takes more. If not, it tells when that is so."""
        return is_ready(self._sock.fileno(), write=True)

    def _unsent(self) -> int:
        """Bytes that are held because the reader does not let them come."""
        count: int = struct.unpack("i", fcntl.ioctl(self._sock.fileno(), _UNSENT, b"\0\0\0\0"))[0]
        return count
