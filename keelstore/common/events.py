"""Hints from the servers of a node to its daemons: something happened that a daemon would else find at its next scan.

A hint is never the only record of anything: what it points to is on disk, and a scan finds it when the hint is lost. So
sending never waits; what the channel cannot hold is dropped. The channel is a pair of sockets made before the processes of a
node are forked; a process that has none (a server that runs alone, a test) drops every hint at the cost of one comparison.

Kinds in use, with their fields:

==================  ========================================  =======================================================
``async-pending``   device path, policy index, file name      an update of a container waits on this device
``container``       device path, path of the hash directory   rows or the state of a container changed
``database``        device path, path of the hash directory   an account changed; or a peer has less of an account or a
                                                              container than we have
``handoff``         device path, policy index, partition      a device holds what belongs elsewhere
``partition``       device path, policy index, partition      a peer wants this partition to be looked at
``lost``            device path or nothing, policy index,     something of this suffix is gone, on that device or on some
                    partition, suffix                         device
==================  ========================================  =======================================================
"""

from __future__ import annotations

import _socket
import time
from typing import Any, Final

MAX_HINT: Final = 8192  # bytes; a longer one is not sent
SAME_S: Final = 1.0  # a hint about the same thing is sent once in this time
MAX_KNOWN: Final = 4096  # things whose last hint a process remembers

ASYNC_PENDING: Final = "async-pending"
CONTAINER: Final = "container"
DATABASE: Final = "database"
HANDOFF: Final = "handoff"
PARTITION: Final = "partition"
LOST: Final = "lost"

_sender: Any = None
_last: dict[tuple[str, ...], float] = {}


def is_heard() -> bool:
    """Whether hints of this process go anywhere: else what they cost to find out can be spared."""
    return _sender is not None


def hint(kind: str, *fields: str) -> None:
    """Tell the daemons of this node."""
    if _sender is None:
        return
    data = "\0".join((kind, *fields)).encode("utf-8", "surrogateescape")
    if len(data) <= MAX_HINT:
        try:
            _sender.send(data)
        except OSError:  # full, or nobody is left to read it
            pass


def hint_change(kind: str, *fields: str) -> None:
    """As ``hint``, for what may change very often: at most once in ``SAME_S`` for the same thing."""
    if _sender is None:
        return
    key = (kind, *fields)
    now = time.monotonic()
    if now - _last.get(key, -SAME_S) < SAME_S:
        return
    if len(_last) >= MAX_KNOWN:
        _last.clear()
    _last[key] = now
    hint(*key)


def parse(data: bytes) -> tuple[str, tuple[str, ...]]:
    """The kind and the fields of a hint."""
    kind, *fields = data.decode("utf-8", "surrogateescape").split("\0")
    return kind, tuple(fields)


class Channel:
    """Both ends; made before forking. Senders call ``attach``, the process of the daemons reads ``receiver``."""

    def __init__(self) -> None:
        self.receiver, self._sending = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_DGRAM)
        self._sending.setblocking(False)
        self._sending.setsockopt(_socket.SOL_SOCKET, _socket.SO_SNDBUF, 1 << 20)

    def attach(self) -> None:
        """Hints of this process go into this channel from now on."""
        global _sender
        _sender = self._sending

    def close(self) -> None:
        detach()
        self.receiver.close()
        self._sending.close()


def detach() -> None:
    """Hints of this process are dropped from now on."""
    global _sender
    _sender = None
    _last.clear()
