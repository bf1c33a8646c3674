"""An object open for reading, and its body."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Mapping
from hashlib import md5
from typing import Any

from keelstore.common import reads
from keelstore.common.concurrency import sleep
from keelstore.common.disk_calls import on_disk_thread
from keelstore.common.errors import ObjectCorrupt
from keelstore.common.timestamp import Timestamp
from keelstore.obj import attributes
from keelstore.obj.fileset import FileSet
from keelstore.obj.place import Place
from keelstore.obj.seen import Seen, key_of

CHECK_SIZE = 524288  # bytes read at once to check a file

Quarantine = Callable[[Place, str], None]


class StoredObject:
    """What ``ObjectStore.open`` found. ``metadata`` is that of the object, ``data_metadata`` that of its data file
    alone, ``meta_metadata`` that of its metadata file, or None. Close it when done; bodies that were handed out close
    it too.
    """

    __slots__ = ("_fd", "_quarantine", "data_metadata", "found", "identity", "meta_metadata", "metadata", "place", "size")

    def __init__(self, place: Place, found: FileSet, fd: int, status: os.stat_result, metadata: Mapping[str, str],
                 data_metadata: Mapping[str, str], meta_metadata: Mapping[str, str] | None, quarantine: Quarantine):
        self.place, self.found, self._fd, self.size = place, found, fd, status.st_size
        self.identity = (status.st_dev, status.st_ino, status.st_ctime_ns)
        self.metadata, self.data_metadata, self.meta_metadata = metadata, data_metadata, meta_metadata
        self._quarantine = quarantine

    @property
    def data_timestamp(self) -> Timestamp:
        assert self.found.data
        return self.found.data.timestamp

    @property
    def sole(self) -> str:
        """The name of the data file, where no other file is in the hash directory; else ''."""
        found = self.found
        if found.data is None or found.meta or found.attrs or found.obsolete or found.reclaimable or found.fragments:
            return ""
        return found.data.name

    @property
    def timestamp(self) -> Timestamp:
        """Of the newest change: the metadata file's, if there is one."""
        return self.found.meta.timestamp if self.found.meta else self.data_timestamp

    @property
    def content_type_timestamp(self) -> Timestamp:
        text = self.metadata.get("Content-Type-Timestamp")
        return Timestamp(text) if text else self.data_timestamp

    @property
    def delete_at(self) -> int | None:
        text = self.metadata.get("X-Delete-At")
        return int(text) if text else None

    def is_expired(self, now: float) -> bool:
        delete_at = self.delete_at
        return delete_at is not None and delete_at <= now

    def add_checksum(self) -> None:
        """Give its metadata the checksum that an old writer left out. Raises OSError, StorageError."""
        if not attributes.is_checksummed(self._fd):
            attributes.add_checksum(self._fd)

    def close(self) -> None:
        """Safe to call again."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _corrupt(self, reason: str) -> ObjectCorrupt:
        self._quarantine(self.place, reason)
        return ObjectCorrupt(f"{self.place.directory}: {reason}")

    def _read(self, size: int, offset: int) -> bytes:
        """Some of the bytes asked for; raises ObjectCorrupt when there are none, or the disk fails."""
        try:
            data = reads.read_cached(self._fd, size, offset)
            if data is None:
                data = on_disk_thread(self.place.device, reads.read_at, self._fd, size, offset)
        except OSError as error:
            raise self._corrupt(f"cannot be read: {error}") from error
        if not data:
            raise self._corrupt(f"ends after {offset} of {self.size} bytes")
        return data

    def check_first(self, validation: Validation, always: bool = False) -> None:
        """Read the whole and check its MD5, where that is due (``always``: unless it was done of late), before anything
        of it is given. Raises ObjectCorrupt: quarantined.
        """
        if self.size and (not validation.has_passed(self) if always else validation.is_due(self)):
            try:
                digest = on_disk_thread(self.place.device, _digest_of, self._fd, self.size)
            except OSError as error:
                raise self._corrupt(f"cannot be read: {error}") from error
            if digest != self.metadata.get("ETag"):
                raise self._corrupt(f"MD5 is {digest}, not {self.metadata.get('ETag')}")
            validation.passed(self)

    def read_all(self, validation: Validation, gives_wrong: bool = True) -> bytes:
        """The whole body of a small object; closes it. A wrong MD5 quarantines it, but the data is given, or
        ObjectCorrupt raised unless ``gives_wrong``.
        """
        try:
            data = self._read(self.size, 0) if self.size else b""
            while len(data) < self.size:
                data += self._read(self.size - len(data), len(data))
            if validation.is_due(self):
                is_right = self._check(md5(data, usedforsecurity=False).hexdigest(), validation)
                if not is_right and not gives_wrong:
                    raise ObjectCorrupt(f"{self.place.directory}: wrong MD5")
            return data
        finally:
            self.close()

    def _check(self, digest: str, validation: Validation) -> bool:
        is_right = digest == self.metadata.get("ETag")
        if is_right:
            validation.passed(self)
        else:
            self._quarantine(self.place, f"MD5 is {digest}, not {self.metadata.get('ETag')}")
        return is_right

    def body(self, start: int, stop: int, validation: Validation, chunk_size: int = 65536, keep_cache: bool = True,
             cooperative_period: int = 0) -> Body:
        """The bytes from ``start`` up to before ``stop``; the object is closed with them."""
        return Body(self, start, stop, validation, chunk_size, keep_cache, cooperative_period)

    def part(self, start: int, stop: int, chunk_size: int) -> Iterator[bytes]:
        """As :meth:`body`, for one of several parts: the object stays open, and nothing is checked."""
        while start < stop:
            data = self._read(min(stop - start, chunk_size), start)
            start += len(data)
            yield data


def _digest_of(fd: int, size: int) -> str:
    """The hex MD5 of a file's first ``size`` bytes. Waits for the disk."""
    found, at = md5(usedforsecurity=False), 0
    while at < size:
        data = os.pread(fd, min(CHECK_SIZE, size - at), at)
        if not data:
            break
        found.update(data)
        at += len(data)
    return found.hexdigest()


class Validation:
    """Which full reads check the MD5: ``percentage`` of them, but none that repeats, within ``interval_s`` seconds,
    one of the same unchanged file by any process of this node: the page cache gives the same bytes again. The auditor reads
    everything.
    """

    SLOTS = 65536

    def __init__(self, percentage: float = 100.0, interval_s: float = 3600.0):
        self._percentage = percentage
        self._seen = Seen(self.SLOTS, interval_s)

    def has_passed(self, stored: StoredObject) -> bool:
        """Whether the very file was read and found right within the interval."""
        return self._seen.knows(key_of(stored.identity))

    def is_due(self, stored: StoredObject) -> bool:
        if self.has_passed(stored):
            return False
        return self._percentage >= 100 or random.random() * 100 < self._percentage

    def passed(self, stored: StoredObject) -> None:
        self._seen.note(key_of(stored.identity))


class Body:
    """Iterates over a part of an object; closes the object at its end or on ``close``.

    A read from the first byte to the last checks the MD5 where that is due, and quarantines the object when it is
    wrong: the reader has the data by then, the next one will not get it. A file that ends early raises ObjectCorrupt,
    which must break the connection.
    """

    __slots__ = ("_chunk_size", "_count", "_hash", "_keep_cache", "_period", "_position", "_stored", "_validation",
                 "start", "stop")  # fmt: skip

    def __init__(self, stored: StoredObject, start: int, stop: int, validation: Validation, chunk_size: int,
                 keep_cache: bool, cooperative_period: int):
        self._stored, self.start, self.stop, self._position = stored, start, stop, start
        self._chunk_size, self._keep_cache, self._validation = chunk_size, keep_cache, validation
        self._period, self._count = cooperative_period, 0
        is_full = start == 0 and stop == stored.size
        self._hash: Any = md5(usedforsecurity=False) if is_full and validation.is_due(stored) else None

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        left = self.stop - self._position
        if left <= 0:
            self.close()
            raise StopIteration
        try:
            data = self._stored._read(min(left, self._chunk_size), self._position)
        except BaseException:
            self._hash = None
            self._stored.close()
            raise
        self._position += len(data)
        if self._hash is not None:
            self._hash.update(data)
        if self._period:
            self._count += 1
            if not self._count % self._period:
                sleep()
        return data

    def file_region(self) -> tuple[int, int, int] | None:
        """(descriptor, offset, count) of the whole, for sendfile, before anything was read. None when the bytes must
        pass through here, to be checked. Who sends them calls ``close`` after that.
        """
        if self._hash is not None or self._stored._fd < 0 or self._position != self.start:
            return None
        return self._stored._fd, self.start, self.stop - self.start

    def close(self) -> None:
        stored, digest = self._stored, self._hash
        self._hash = None
        if stored._fd >= 0:
            if not self._keep_cache:
                reads.drop_cache(stored._fd, self.start, self.stop - self.start)
            stored.close()
        if digest is not None and self._position == self.stop:
            stored._check(digest.hexdigest(), self._validation)
