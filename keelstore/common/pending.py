"""Row updates that wait beside a database: the ``.pending`` file (``doc/formats/databases.md``).

A sequence of ``:`` and the base64 of a pickle (protocol 2) of one tuple. Appended to, read and emptied under the lock of the
directory. A torn last entry, from a crash in the middle of an append, costs only itself: the next begins with ``:``.

Ours do not hold that lock while what waits goes into the database (:class:`Merge`), so that who adds to it need not wait;
but the file itself is locked then, so that one brings it there at a time. The field's daemons hold the directory's lock all
along, and do not look at the other: what both take goes in twice, which changes nothing where order does not count.
"""

from __future__ import annotations

import binascii
import os
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from keelstore.common import fs, plainpickle
from keelstore.common.locks import lock_directory, take_file, wait_for

CAP = 262144  # bytes; beyond it an update goes into the database with all that waits,
MERGING_CAP = 4 * CAP  # or beyond this, while that is on its way there
DONE_S = 1.0  # that what is in the database waits to be taken out; it can stay until the next time


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
    """Add an entry; False, with nothing done, when it is for the caller to bring it into the database, as too much waits. The
    caller holds the lock.

    Raises FileNotFoundError when the directory is gone, DeviceFull, OSError.
    """
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        size = os.fstat(fd).st_size
        if size > CAP and (size > MERGING_CAP or take_file(fd)):
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
    """As :func:`append`, under the lock of the directory. False, with nothing done, when another holds the lock, too, for
    longer than it takes to add something. Raises as ``append``.
    """
    lock = lock_directory(directory)
    if not (lock.take() or lock.take() or lock.take()):
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


class Merge:
    """What waits in ``path`` on its way into the database: read, and taken out of the file by :meth:`done` once it is there.
    A crash in between has it go there again. Others may add to it meanwhile, but not take it; ``alone``: nor may they add,
    nor daemons of the field take it.

    Raises LockTimeout, OSError, FileNotFoundError when the directory is gone.
    """

    def __init__(self, path: str, directory: str, timeout_s: float, alone: bool = False):
        self._path, self._directory, self._timeout_s, self._alone = path, directory, timeout_s, alone
        self._fd = -1
        self._lock = lock_directory(directory, timeout_s)
        self._is_locked = False
        self._taken = b""

    def __enter__(self) -> Merge:
        try:
            if not self._take():
                wait_for(self._take, self._path, self._timeout_s)
            if self._fd >= 0 or self._alone:
                self._lock.__enter__()
                self._is_locked = True
                self._taken = fs.read_open(self._fd) if self._fd >= 0 else b""
                if not self._alone:
                    self._unlock()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *args: object) -> None:
        self._unlock()
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def records(self, on_bad: Callable[[Exception], None]) -> list[Any]:
        """As :func:`decode`."""
        return decode(self._taken, on_bad)

    def done(self) -> None:
        """They are in the database. What has come meanwhile stays, in a file of its own: were it moved to the beginning of
        this one, a crash could leave parts of old entries beside parts of new ones, which might make one. Raises
        FileNotFoundError when the file is gone, DeviceFull.
        """
        if not self._taken:
            return
        if self._alone:
            if self._is_in_place():
                fs.truncate(self._path)
            return
        with lock_directory(self._directory, min(self._timeout_s, DONE_S)):
            waiting = fs.read_open(self._fd)
            if not self._is_in_place() or not waiting.startswith(self._taken):
                return  # its directory was removed and made anew, or a daemon of the field has taken it meanwhile
            rest = waiting[len(self._taken):]
            if rest:
                fs.replace_file(self._path, rest, is_durable=False, temporary=f"{os.path.basename(self._path)}.tmp")
            else:
                fs.truncate(self._path)

    def _take(self) -> bool:
        """Whether the file, if there is one, is ours now."""
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        is_ours = False
        try:
            is_ours = take_file(fd) and os.fstat(fd).st_nlink > 0  # else another has just put a new one in its place
        finally:
            if is_ours:
                self._fd = fd
            else:
                os.close(fd)
        return is_ours

    def _is_in_place(self) -> bool:
        return os.path.samestat(os.stat(self._path), os.fstat(self._fd))

    def _unlock(self) -> None:
        if self._is_locked:
            self._is_locked = False
            self._lock.release()
