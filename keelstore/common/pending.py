"""Row updates that wait beside a database: the ``.pending`` file (``doc/formats/databases.md``).

A sequence of ``:`` and the base64 of a pickle (protocol 2) of one tuple. Appended to, read and emptied under the lock of the
directory. A torn last entry, from a crash in the middle of an append, costs only itself: the next begins with ``:``.
"""

from __future__ import annotations

import binascii
import os
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from keelstore.common import fs, plainpickle
from keelstore.common.locks import lock_directory

CAP = 262144  # bytes; beyond it an update goes into the database with all that waits


@lru_cache(maxsize=64)  # the same row goes to the databases of several devices
def encode(record: tuple[Any, ...]) -> bytes:
    return b":" + binascii.b2a_base64(plainpickle.dumps(record), newline=False)


def decode(data: bytes, on_bad: Callable[[Exception], None]) -> list[Any]:
    """The records in order; ``on_bad`` is told of each entry that cannot be read."""
    records = []
    for entry in data.split(b":"):
        if entry:
            try:
                records.append(plainpickle.loads(binascii.a2b_base64(entry)))
            except (ValueError, TypeError) as error:
                on_bad(error)
    return records


def append(path: str, entry: bytes) -> bool:
    """Add an entry; False, with nothing done, when more than ``CAP`` bytes wait already. The caller holds the lock.

    Raises FileNotFoundError when the directory is gone, DeviceFull, OSError.
    """
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        size = os.fstat(fd).st_size
        if size > CAP:
            return False
        try:
            fs.write_all(fd, entry)
        except BaseException:
            os.ftruncate(fd, size)  # a torn entry would only cost a log line, but room is short
            raise
        return True
    finally:
        os.close(fd)


def append_at_once(path: str, directory: str, entry: bytes) -> bool:
    """As :func:`append`, under the lock of the directory. False, with nothing done, when another holds the lock, too. Raises
    as ``append``.
    """
    lock = lock_directory(directory)
    if not lock.take():
        return False
    try:
        return append(path, entry)
    finally:
        lock.release()


def size(path: str) -> int:
    """Bytes that wait."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def read(path: str, on_bad: Callable[[Exception], None]) -> list[Any]:
    """The records that wait. The caller holds the lock."""
    try:
        with open(path, "rb") as file:
            return decode(file.read(), on_bad)
    except FileNotFoundError:
        return []
