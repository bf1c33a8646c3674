"""The audit of one suffix directory: what is in it, object by object, and what is wrong with it. Quarantines nothing itself.

Blocks; runs on a disk thread, but for the bodies, which are read in pieces at the auditor's pace.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from keelstore.common import fs
from keelstore.common.codec import Codec, FragmentError, codec_for
from keelstore.common.disk_calls import on_disk_thread
from keelstore.common.errors import ObjectCorrupt, ObjectNotFound, ObjectStateChanged, StorageError
from keelstore.common.policy import ErasureCodingPolicy, Policy
from keelstore.obj import hashes, layout
from keelstore.obj.fileset import FileSet, resolve
from keelstore.obj.hashdir import DAMAGED_DIRECTORY, parse_names
from keelstore.obj.layout import is_hash, is_temporary
from keelstore.obj.place import Place
from keelstore.obj.reader import StoredObject, Validation
from keelstore.obj.store import ObjectStore

EVERY_BYTE = Validation(100.0, 0.0)
_EC_KEYS = ("X-Object-Sysmeta-Ec-Frag-Index", "X-Object-Sysmeta-Ec-Etag")


class AuditStore(ObjectStore):
    """A store that only notes what it would quarantine: the auditor decides, as it sees the whole device."""

    def __init__(self, base: ObjectStore):
        super().__init__(base.hash_path, reserve=base.reserve, logger=base.log, clock=base.clock, remembers=0)
        self.wrong: dict[str, str] = {}  # hash directory: reason

    def quarantine(self, place: Place, reason: str) -> None:
        self.wrong.setdefault(place.directory, reason)


@dataclass
class Finding:
    """One hash directory. ``reason``: why it is to be quarantined, if it is; ``opened``: the object, open, if it has data;
    ``is_unwanted``: a watcher wants its data file removed.
    """

    place: Place
    reason: str = ""
    opened: StoredObject | None = None
    policy: ErasureCodingPolicy | None = None  # of a fragment
    error: str = ""  # it could not be looked at, and that may be nobody's fault
    is_unwanted: bool = False


@dataclass
class Inspector:
    """What a look at a device needs. ``temporary_age_s``: how old the file of an interrupted rsync must be to go."""

    store: AuditStore
    log: logging.Logger
    clock: Callable[[], float]
    reclaim_age_s: float
    temporary_age_s: float

    def suffixes(self, path: str) -> list[str]:
        """The suffix directories of a partition, on a disk thread."""
        try:
            return sorted(name for name in os.listdir(path) if layout.is_suffix(name))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def hash_names(self, path: str) -> list[str]:
        try:
            return sorted(name for name in os.listdir(path) if is_hash(name))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def look(self, device: str, device_path: str, policy: Policy, partition: int, name_hash: str) -> Finding | None:
        """One hash directory, on a disk thread; None when there is nothing to check. Its object is left open."""
        place = self.store.place_of_hash(device, device_path, policy, str(partition), name_hash)
        try:
            found = self._resolve(place)
        except (FileNotFoundError, _Wrong) as error:
            return Finding(place, str(error)) if isinstance(error, _Wrong) else None
        except OSError as error:
            return Finding(place, error=f"cannot be listed: {error}")
        if self._has_outlived(found):
            self._invalidate(place)  # who hashes the suffix next removes it
        if found.data is None:
            return None
        try:
            opened = self.store.open(place, open_expired=True, found=found)
        except ObjectCorrupt as error:
            return Finding(place, self.store.wrong.pop(place.directory, str(error)))
        except (ObjectStateChanged, ObjectNotFound):
            return None  # it changed under us; the next pass sees it
        except (StorageError, OSError) as error:
            return Finding(place, error=f"{type(error).__name__}: {error}")
        try:
            opened.add_checksum()
        except (OSError, StorageError) as error:
            self.log.warning("%s: its metadata checksum cannot be added: %s", place.directory, error)
        if policy.stores_fragments:
            lacking = [key for key in _EC_KEYS if not opened.data_metadata.get(key)]
            if lacking:
                opened.close()
                return Finding(place, f"a fragment without {lacking[0]}")
        return Finding(place, opened=opened, policy=policy if isinstance(policy, ErasureCodingPolicy) else None)

    def _has_outlived(self, found: FileSet) -> bool:
        """Whether there is a tombstone, or a fragment that nobody committed, whose time is up."""
        waiting = found.reclaimable if found.tombstone is None else (found.tombstone, *found.reclaimable)
        return any(self.clock() - float(file.timestamp) > self.reclaim_age_s for file in waiting)

    def _resolve(self, place: Place) -> FileSet:
        """Raises _Wrong, FileNotFoundError, OSError."""
        try:
            names = os.listdir(place.directory)
        except NotADirectoryError as error:
            raise _Wrong(f"is no directory: {error}") from None
        except OSError as error:
            if error.errno in DAMAGED_DIRECTORY:
                raise _Wrong(f"cannot be listed: {error}") from None
            raise
        for name in names:
            if is_temporary(name):
                self._remove_old(f"{place.directory}/{name}")
        return resolve(parse_names(names, place.directory, place.fragments), stores_fragments=place.fragments > 0)

    def _remove_old(self, path: str) -> None:
        try:
            if self.clock() - os.stat(path).st_mtime > self.temporary_age_s:
                fs.remove_file(path)
        except FileNotFoundError:
            pass

    def _invalidate(self, place: Place) -> None:
        try:
            hashes.invalidate(place.partition_path, place.suffix)
        except (StorageError, OSError) as error:
            self.log.warning("%s/%s cannot be invalidated: %s", place.partition_path, place.suffix, error)

    def read(self, finding: Finding, chunk_size: int) -> Iterator[int]:
        """Read the whole body, giving the size of each piece; sets ``finding.reason`` when it is not what it should be."""
        opened = finding.opened
        assert opened is not None
        place = finding.place
        body = opened.body(0, opened.size, EVERY_BYTE, chunk_size, keep_cache=False)
        check = FragmentCheck.of(finding.policy, opened.data_metadata, opened.size) if finding.policy else None
        try:
            for piece in body:
                if check is not None:
                    check.take(piece)
                yield len(piece)
            if check is not None:
                finding.reason = check.reason
        except ObjectCorrupt as error:
            finding.reason = self.store.wrong.pop(place.directory, str(error))
        finally:
            body.close()
        finding.reason = finding.reason or self.store.wrong.pop(place.directory, "")

    def quarantine(self, place: Place, reason: str) -> str | None:
        """Put a hash directory aside; where it is now."""
        return on_disk_thread(place.device, self.store.quarantine_directory, place.directory, place.device_path,
                              place.datadir, reason)


class FragmentCheck:
    """Whether an archive is made of fragments of its index, one for each segment, by what their headers say.

    The library sees a damaged header, not a damaged payload: that the archive's MD5 is for. This finds what was written
    wrong.
    """

    def __init__(self, codec: Codec, index: int, fragment_size: int, size: int):
        self._codec, self._index, self._size = codec, index, fragment_size
        self._left = size
        self._held: list[bytes] = []
        self._have = self._number = 0
        self.reason = ""

    @classmethod
    def of(cls, policy: ErasureCodingPolicy, metadata: Mapping[str, str], size: int) -> FragmentCheck | None:
        """For an archive with this metadata; None when that says too little to tell."""
        index, segment = metadata.get(_EC_KEYS[0], ""), metadata.get("X-Object-Sysmeta-Ec-Segment-Size", "")
        if not (index.isdecimal() and segment.isdecimal() and int(segment)):
            return None
        codec = codec_for(policy.scheme, policy.ndata, policy.nparity)
        return cls(codec, int(index), codec.fragment_size(int(segment)), size)

    def take(self, piece: bytes) -> None:
        """The next bytes of the archive; at most one fragment is held."""
        if self.reason:
            return
        self._held.append(piece)
        self._have += len(piece)
        self._left -= len(piece)
        while self._have >= self._size or (not self._left and self._have):
            data = b"".join(self._held)
            fragment, rest = data[: self._size], data[self._size :]
            self._held, self._have = [rest] if rest else [], len(rest)
            try:
                found = self._codec.facts(fragment).fragment
            except FragmentError as error:
                self.reason = f"segment {self._number}: {error}"
                return
            if found != self._index:
                self.reason = f"segment {self._number} is of fragment {found}, not {self._index}"
                return
            self._number += 1


class _Wrong(Exception):
    """A hash directory that is none."""


# -- the brake ---------------------------------------------------------------------------------------------------------


@dataclass
class Brake:
    """Pure: whether a device fails as a whole. Then nothing of it is quarantined: its objects may be fine.

    Of the last WINDOW objects that were looked at, the share ``limit`` may be wrong, and at least LEAST objects in any case.
    """

    limit: float
    WINDOW = 1000
    LEAST = 5
    seen: int = 0
    wrong: list[int] = field(default_factory=list)  # the numbers of those that were wrong
    is_on: bool = False

    def note(self, is_wrong: bool) -> bool:
        """One more object. Whether it may be quarantined, if it is wrong."""
        self.seen += 1
        start = self.seen - self.WINDOW
        while self.wrong and self.wrong[0] <= start:
            del self.wrong[0]
        if is_wrong:
            self.wrong.append(self.seen)
            allowed = max(self.LEAST, self.limit * min(self.seen, self.WINDOW))
            if len(self.wrong) > allowed:
                self.is_on = True
        return is_wrong and not self.is_on

    def describe(self) -> str:
        return f"{len(self.wrong)} of the last {min(self.seen, self.WINDOW)} objects are wrong"
