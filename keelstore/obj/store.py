"""ObjectStore: the objects on the devices of one node: open, write, delete, quarantine, suffix hashes.

``open`` reads directory and metadata where the caller stands (the page cache has them, as a rule); what writes or
walks runs on the device's disk threads.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack

from keelstore.common import events, fs
from keelstore.common.disk_calls import look, on_disk, on_disk_thread, open_to_read
from keelstore.common.disk_turns import NO_TURN, Turn
from keelstore.common.errors import (
    ObjectCollision,
    ObjectCorrupt,
    ObjectDeleted,
    ObjectExpired,
    ObjectNotFound,
    ObjectStateChanged,
    StorageError,
)
from keelstore.common.names import HashPath
from keelstore.common.policy import Policy
from keelstore.common.room import Reserve
from keelstore.common.stats import NO_STATS, NoStats
from keelstore.common.timestamp import Timestamp
from keelstore.obj import attributes, hashes, layout, writer
from keelstore.obj.fileset import FileSet, Preference, resolve
from keelstore.obj.hashdir import DAMAGED_DIRECTORY, Rules, parse_names
from keelstore.obj.layout import DATA, META, TOMBSTONE
from keelstore.obj.metadata import BadRecord, merge
from keelstore.obj.place import Place
from keelstore.obj.reader import StoredObject
from keelstore.obj.writer import Publication, Upload

MAX_RECORDS = 4096  # decoded metadata records remembered, of files that did not change since
ARRIVAL_S = 3600.0  # how long after a data file its attributes file may still be on its way (rsync)


class ObjectStore:
    stats: NoStats = NO_STATS  # of the server; set when the pipeline is built

    def __init__(
        self,
        hash_path: HashPath,
        *,
        reserve: Reserve,
        reclaim_age_s: float = 604800.0,
        commit_window_s: float = 60.0,
        bytes_per_sync: int = 512 << 20,
        allocates: bool = True,
        logger: logging.Logger | None = None,
        clock: Callable[[], float] = time.time,
        remembers: int = MAX_RECORDS,
    ):
        """``remembers``: records of metadata; 0 makes ``open`` and ``look`` safe for disk threads."""
        self.hash_path, self.reserve, self.clock = hash_path, reserve, clock
        self.log = logger or logging.getLogger("keelstore.obj")
        self._reclaim_age_s, self._commit_window_s = reclaim_age_s, commit_window_s
        self._bytes_per_sync, self._allocates = bytes_per_sync, allocates
        self._remembers = remembers
        self._rules: dict[int, Rules] = {}
        self._records: dict[str, tuple[int, int, dict[str, str]]] = {}  # path: inode, ctime, metadata

    def scanner(self) -> ObjectStore:
        """The same store for those who look at everything once, on disk threads: it remembers nothing."""
        return ObjectStore(
            self.hash_path, reserve=self.reserve, reclaim_age_s=self._reclaim_age_s,
            commit_window_s=self._commit_window_s, bytes_per_sync=self._bytes_per_sync, allocates=self._allocates,
            logger=self.log, clock=self.clock, remembers=0,
        )  # fmt: skip

    def rules(self, fragments: int) -> Rules:
        found = self._rules.get(fragments)
        if found is None:
            found = self._rules[fragments] = Rules(fragments, self._reclaim_age_s, self._commit_window_s)
        return found

    def place(self, device: str, device_path: str, policy: Policy, partition: str,
              account: str, container: str, obj: str) -> Place:
        return Place(device, device_path, policy.index, layout.fragment_count(policy), partition,
                     f"/{account}/{container}/{obj}", self.hash_path.digest(account, container, obj))

    def place_of_hash(self, device: str, device_path: str, policy: Policy, partition: str, name_hash: str) -> Place:
        """The place of an object whose name is not known; opening it takes the name that its metadata has."""
        return Place(device, device_path, policy.index, layout.fragment_count(policy), partition, "",
                     bytes.fromhex(name_hash))

    # -- reading -------------------------------------------------------------------------------------------------------

    def open(
        self,
        place: Place,
        *,
        now: float | None = None,
        open_expired: bool = False,
        fragment: int | None = None,
        preferences: Sequence[Preference] | None = None,
        found: FileSet | None = None,
    ) -> StoredObject:
        """The object, its metadata checked (``spec: on-disk 3.5``). Raises ObjectNotFound and its kinds (deleted,
        expired, corrupt: quarantined), ObjectCollision, ObjectStateChanged, XattrNotSupported. ``now`` is for expiry;
        ``found``: what :meth:`look` gave just now.

        A fragment that is not known to be durable may be of a write that failed: where it is expired, that tells nothing, and
        what is durable counts.
        """
        if found is None:
            found = self.look(place, fragment=fragment, preferences=preferences)
        data = found.data
        if data is None:
            if found.tombstone:
                raise ObjectDeleted(timestamp=found.tombstone.timestamp)
            raise ObjectNotFound()
        fd = self._open_file(place, data.name)
        try:
            stored = self._opened(place, found, fd)
        except BadRecord as error:
            os.close(fd)
            raise self._corrupt(place, str(error)) from None
        except OSError as error:
            os.close(fd)
            raise self._corrupt(place, f"metadata cannot be read: {error}") from None
        except BaseException:
            os.close(fd)
            raise
        try:
            delete_at = stored.delete_at
        except ValueError:
            stored.close()
            raise self._corrupt(place, f"X-Delete-At is {stored.metadata['X-Delete-At']!r}") from None
        if delete_at is not None and not open_expired and delete_at <= (self.clock() if now is None else now):
            stored.close()
            if found.durable != stored.data_timestamp:
                return self.open(place, now=now, fragment=fragment)
            raise ObjectExpired(timestamp=stored.timestamp, metadata=dict(stored.metadata))
        return stored

    def look(
        self, place: Place, *, fragment: int | None = None, preferences: Sequence[Preference] | None = None
    ) -> FileSet:
        """The files that are the object; an empty set when there is nothing. Raises ObjectCorrupt (quarantined),
        OSError.
        """
        try:
            names = look(place.device, os.listdir, place.directory)
        except FileNotFoundError:
            return FileSet()
        except NotADirectoryError as error:
            raise self._corrupt(place, f"is no directory: {error}") from None
        except OSError as error:
            if error.errno in DAMAGED_DIRECTORY:
                raise self._corrupt(place, f"cannot be listed: {error}") from None
            raise
        files = parse_names(names, place.directory, place.fragments)
        return resolve(files, stores_fragments=place.fragments > 0, fragment=fragment, preferences=preferences)

    def _open_file(self, place: Place, name: str) -> int:
        try:
            return open_to_read(place.device, f"{place.directory}/{name}")
        except FileNotFoundError:
            raise ObjectStateChanged(f"{place.directory}/{name} vanished") from None
        except OSError as error:
            if error.errno == errno.EIO or error.errno in DAMAGED_DIRECTORY:
                raise self._corrupt(place, f"{name} cannot be opened: {error}") from None
            raise

    def _opened(self, place: Place, found: FileSet, fd: int) -> StoredObject:
        status = os.fstat(fd)
        assert found.data
        metadata = self._record(f"{place.directory}/{found.data.name}", fd, status,
                                lambda: self._attrs_record(place, found, status.st_ctime))
        name = metadata.get("name")
        if name is None:
            raise BadRecord("metadata without a name")
        if not place.name:
            names = name[1:].split("/", 2)
            if len(names) < 3 or not all(names) or self.hash_path.digest(*names) != place.digest:
                raise BadRecord(f"holds {name!r}, whose place is another")
            place.name = name
        elif name != place.name:
            raise ObjectCollision(f"{place.directory} holds {name!r}, not {place.name!r}")
        length = metadata.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()) or int(length) != status.st_size:
            raise BadRecord(f"size is {status.st_size}, Content-Length {length!r}")
        if found.meta is None:
            return StoredObject(place, found, fd, status, metadata, metadata, None, self.quarantine)
        meta = self._meta_record(place, found.meta.name)
        ctype = None
        if found.ctype and found.ctype != found.meta:
            ctype = self._meta_record(place, found.ctype.name)
        try:
            merged = merge(metadata, meta, ctype, found.data.timestamp)
        except ValueError as error:
            raise BadRecord(str(error)) from None
        return StoredObject(place, found, fd, status, merged, metadata, meta, self.quarantine)

    def _meta_record(self, place: Place, name: str) -> Mapping[str, str]:
        fd = self._open_file(place, name)
        try:
            status = os.fstat(fd)
            return self._record(f"{place.directory}/{name}", fd, status, lambda: os.pread(fd, status.st_size, 0))
        finally:
            os.close(fd)

    def _record(
        self, path: str, fd: int, status: os.stat_result, elsewhere: Callable[[], bytes | None]
    ) -> Mapping[str, str]:
        """The metadata of an open file. Every change of it changes its ctime; the path names object and timestamp, so that
        what an inode used to be cannot be taken for what it is.
        """
        if not self._remembers:
            return attributes.read(fd, elsewhere)
        known = self._records.get(path)
        if known is not None and known[0] == status.st_ino and known[1] == status.st_ctime_ns:
            return known[2]
        metadata = attributes.read(fd, elsewhere)
        if known is not None:
            del self._records[path]
        elif len(self._records) >= self._remembers:
            del self._records[next(iter(self._records))]
        self._records[path] = (status.st_ino, status.st_ctime_ns, metadata)
        return metadata

    def _attrs_record(self, place: Place, found: FileSet, arrived: float) -> bytes | None:
        data = found.data
        assert data
        name = layout.attrs_name(data.timestamp, data.fragment)
        record = fs.read_file(f"{place.directory}/{name}")
        if record is None and time.time() - arrived < ARRIVAL_S:
            raise ObjectStateChanged(f"{place.directory}/{name} is not there yet")
        return record

    def _corrupt(self, place: Place, reason: str) -> StorageError:
        if not place.quarantines:
            return StorageError(f"{place.directory}: {reason}")
        self.quarantine(place, reason)
        return ObjectCorrupt(f"{place.directory}: {reason}")

    # -- quarantine ----------------------------------------------------------------------------------------------------

    def quarantine(self, place: Place, reason: str) -> None:
        """Put the hash directory aside, for an operator to look at; replication brings a good copy. Errors
        are logged.
        """
        on_disk_thread(place.device, self.quarantine_directory, place.directory, place.device_path, place.datadir,
                       reason)

    def quarantine_directory(self, directory: str, device_path: str, datadir: str, reason: str) -> str | None:
        """As :meth:`quarantine`, on a disk thread: where it is now, or None. When the hash directory cannot be moved
        its suffix directory is.
        """
        into = layout.quarantine_dir(device_path, datadir)
        suffix = os.path.dirname(directory)
        target = None
        for path in (directory, suffix):
            try:
                with ExitStack() as around:
                    try:
                        around.enter_context(hashes.changing(os.path.dirname(suffix), os.path.basename(suffix)))
                    except (OSError, StorageError) as error:
                        self.log.warning("cannot invalidate %s: %s", suffix, error)
                    target = fs.quarantine(path, into)
                break
            except FileNotFoundError:
                break  # another reader was first
            except (OSError, StorageError) as error:
                self.log.error("cannot quarantine %s: %s", path, error)
                if not isinstance(error, OSError) or error.errno not in (*DAMAGED_DIRECTORY, errno.ENOTDIR):
                    break
        if target:
            self.log.error("quarantined %s to %s: %s", directory, target, reason)
            self.stats.increment("quarantines")
            if events.is_heard():
                events.hint_change(events.LOST, device_path, datadir.partition("-")[2] or "0",
                                   os.path.basename(os.path.dirname(suffix)), os.path.basename(suffix))
        return target

    # -- writing -------------------------------------------------------------------------------------------------------

    def _data_publication(self, place: Place, timestamp: Timestamp, next_part_power: int | None,
                          fragment: int | None, is_durable: bool) -> Publication:
        return Publication(
            place, self.rules(place.fragments), self.clock(), DATA, layout.data_name(timestamp, fragment, is_durable),
            attrs=layout.attrs_name(timestamp, fragment), next_part_power=next_part_power,
            clean_up=fragment is None or is_durable,
        )  # fmt: skip

    def write(self, place: Place, timestamp: Timestamp, body: bytes, metadata: Mapping[str, str], *,
              next_part_power: int | None = None, fragment: int | None = None, is_durable: bool = True) -> int:
        """Store a small object, durably; what :meth:`make_durable` may be told of it. Raises DeviceFull, XattrNotSupported,
        LockTimeout, OSError.
        """
        publication = self._data_publication(place, timestamp, next_part_power, fragment, is_durable)
        on_disk(place.device, fs.carry_out, writer.writing_small(publication, self.reserve, body, metadata))
        return publication.noted

    def writing(self, place: Place, timestamp: Timestamp, body: bytes, metadata: Mapping[str, str],
                made: tuple[str, ...]) -> fs.Steps:
        """:meth:`write` of a whole copy, in steps, into a directory that ``writer.make_directory`` has made."""
        publication = self._data_publication(place, timestamp, None, None, True)
        return writer.writing_small(publication, self.reserve, body, metadata, made)

    def upload(self, place: Place, size: int | None, *, digests: bool = True, turn: Turn = NO_TURN) -> Upload:
        """Begin to store an object whose body comes in pieces. Raises DeviceFull, OSError."""
        return Upload(place, self.reserve, size, bytes_per_sync=self._bytes_per_sync, allocates=self._allocates,
                      digests=digests, turn=turn)

    def commit(self, upload: Upload, place: Place, timestamp: Timestamp, metadata: Mapping[str, str], *,
               next_part_power: int | None = None, fragment: int | None = None, is_durable: bool = True) -> None:
        """Make a flushed upload the object, durably. Raises as :meth:`write`."""
        upload.commit(self._data_publication(place, timestamp, next_part_power, fragment, is_durable), metadata)

    def make_durable(self, place: Place, timestamp: Timestamp, fragment: int, *,
                     next_part_power: int | None = None, noted: int = 0) -> None:
        """Second phase of storing a fragment: enough others are stored too. ``noted``: what :meth:`write` gave just now.
        Raises ObjectStateChanged, LockTimeout, OSError.
        """
        on_disk(place.device, writer.commit_fragment, place, self.rules(place.fragments), self.clock(), timestamp,
                fragment, next_part_power, noted)

    def write_meta(self, place: Place, timestamp: Timestamp, metadata: Mapping[str, str], *,
                   next_part_power: int | None = None) -> None:
        """Store what a POST changes; ``metadata`` may hold Content-Type with Content-Type-Timestamp. Raises as
        ``write``.
        """
        stamp = metadata.get("Content-Type-Timestamp")
        name = layout.meta_name(timestamp, Timestamp(stamp) if stamp else None)
        publication = Publication(place, self.rules(place.fragments), self.clock(), META, name,
                                  next_part_power=next_part_power)
        on_disk(place.device, writer.write_meta, publication, self.reserve, metadata)

    def delete(self, place: Place, timestamp: Timestamp, *, next_part_power: int | None = None,
               is_there: bool = False, sole: str = "") -> None:
        """Store a tombstone, durably; works within the reserve. ``is_there``: files of the object were seen just now;
        ``sole``: :attr:`StoredObject.sole` of them. Raises DeviceFull, XattrNotSupported, LockTimeout, OSError.
        """
        on_disk(place.device, fs.carry_out, self.deleting(place, timestamp, next_part_power=next_part_power,
                                                          is_there=is_there, sole=sole))

    def deleting(self, place: Place, timestamp: Timestamp, *, next_part_power: int | None = None,
                 is_there: bool = False, sole: str = "") -> fs.Steps:
        """:meth:`delete`, in steps."""
        publication = Publication(place, self.rules(place.fragments), self.clock(), TOMBSTONE,
                                  layout.tombstone_name(timestamp), next_part_power=next_part_power)
        publication.replaces = sole
        metadata = {"X-Timestamp": timestamp.internal, "name": place.name}
        return writer.writing_tombstone(publication, metadata, is_there)

    # -- suffix hashes -------------------------------------------------------------------------------------------------

    def hashes(
        self, device: str, device_path: str, policy: Policy, partition: str, recalculate: Iterable[str] = (),
        do_listdir: bool = False,
    ) -> dict[str, hashes.SuffixHash]:
        """The suffix hashes of a partition, computed where they are not known; {} when it does not exist."""
        datadir = layout.objects_dir(policy.index)

        def quarantine(directory: str) -> None:
            self.quarantine_directory(directory, device_path, datadir, "cannot be listed")

        _, found = on_disk_thread(
            device, hashes.get_hashes, f"{device_path}/{datadir}/{partition}", self.rules(layout.fragment_count(policy)),
            self.clock(), quarantine, tuple(recalculate), do_listdir,
        )  # fmt: skip
        return found

    def invalidate(
        self, device: str, device_path: str, policy: Policy, partition: str, suffixes: Iterable[str]
    ) -> None:
        """Have these suffixes computed anew when asked for next."""
        path = f"{device_path}/{layout.objects_dir(policy.index)}/{partition}"
        for suffix in suffixes:
            on_disk(device, hashes.invalidate, path, suffix)
