"""Putting files into hash directories, so that what was acknowledged is there after a crash.

The order, for each kind of file (``fs.py`` says what a crash between the steps leaves):

1. the hash directory is made, and a file without a name in it; 2. room is checked and taken; the body is written,
with a sync every ``bytes_per_sync``; 3. the metadata is set; what does not fit goes, whole, into the file itself
(``.meta`` and ``.ts`` have no other content), or
   for data into an attributes file beside it, which is synced and gets its name first: a data file never stands
   without it;
4. the file is synced, and with it the directories that were made for it;
5. it gets its name; the suffix is noted as changed; its directory is synced, and what is new above it since: acknowledged;
6. while the part power grows, a second name in the other partition;
7. what the new file makes obsolete is removed. A crash before this leaves both, and the newer one counts.

All functions wait for the disk: they run through ``disk_calls.on_disk``.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Mapping
from hashlib import md5
from typing import Any

from keelstore.common import fs, reads
from keelstore.common.disk_calls import on_disk, write_on_disk_thread
from keelstore.common.disk_turns import NO_TURN, Turn
from keelstore.common.errors import DeviceFull, ObjectStateChanged, StorageError
from keelstore.common.room import Reserve, allocate, check_room
from keelstore.common.timestamp import Timestamp
from keelstore.obj import attributes, hashes, layout
from keelstore.obj.fileset import resolve
from keelstore.obj.hashdir import Rules, clean, parse_names
from keelstore.obj.layout import DATA, META, TOMBSTONE, StoredFile
from keelstore.obj.place import Place

log = logging.getLogger("keelstore.obj")

MAX_ATTEMPTS = 3  # to name a file whose directory a cleaner removes meanwhile
ALLOCATE_FROM = 65536  # bytes; below, the room check and the write itself do
ALLOCATE_AHEAD = 16 << 20  # bytes held beyond what has come: who announces much and sends nothing fills no disk
SMALL = 65536  # bytes of a body that is written whole
WRITE_SIZE = 524288  # bytes that a streamed body collects for one visit to a disk thread


class Publication:
    """How and where a file is made public. ``attrs`` is the name that an attributes file would get.

    ``looks``: clean up also when the hash directory is new to us; others may have written in it since. ``replaces``: the
    only file that was in it just now, of data, which the new one makes obsolete: that goes, and nothing is looked for.
    """

    __slots__ = ("attrs", "clean_up", "kind", "looks", "name", "next_part_power", "noted", "now", "place", "replaces",
                 "rules")  # fmt: skip

    def __init__(self, place: Place, rules: Rules, now: float, kind: str, name: str, *, attrs: str = "",
                 next_part_power: int | None = None, clean_up: bool = True):
        self.place, self.rules, self.now, self.kind, self.name, self.attrs = place, rules, now, kind, name, attrs
        self.next_part_power, self.clean_up, self.looks = next_part_power, clean_up, False
        self.replaces = ""
        self.noted = 0  # size of the partition's journal with the note, when the hash directory was new

    def publish(self, new: fs.NewFile, made: tuple[str, ...], metadata: Mapping[str, str]) -> None:
        """Steps 3 to 7. ``made``: directories to sync beside the hash directory. Raises DeviceFull,
        XattrNotSupported, OSError.
        """
        fs.carry_out(self.publishing(new, made, metadata))

    def publishing(self, new: fs.NewFile, made: tuple[str, ...], metadata: Mapping[str, str]) -> fs.Steps:
        """:meth:`publish`."""
        place = self.place
        directory = place.directory
        rest = self._set_metadata(new.fd, metadata)
        extra: fs.NewFile | None = None
        try:
            if rest is not None:
                extra = fs.create_file(directory, place.tmp_path, place.device_path)
                fs.write_all(extra.fd, rest)
                yield from fs.syncing_file_and_above(extra.fd, directory, ())
            is_new = bool(made)
            try:
                yield from fs.syncing_file_and_above(new.fd, directory, made)
                made = ()
            except FileNotFoundError:  # a cleaner removed what was made; naming the file makes it again
                yield from fs.syncing_file_and_above(new.fd, directory, ())
            for attempt in range(MAX_ATTEMPTS):
                try:
                    if extra is not None:
                        fs.link_unsynced(extra, f"{directory}/{self.attrs}")
                    noted = hashes.changing(place.partition_path, place.suffix)
                    yield from fs.linking(new, f"{directory}/{self.name}", made, noted)
                    self.noted = noted.after if is_new else 0
                    break
                except FileNotFoundError:
                    if attempt == MAX_ATTEMPTS - 1:
                        raise
                    made, is_new = made + fs.make_directories(directory, place.device_path), True
        finally:
            if extra is not None:
                extra.discard()
        if self.next_part_power is not None:
            self._follow_part_power(rest is not None)
        if self.replaces:
            _discard(f"{directory}/{self.replaces}")
        elif self.clean_up and (self.looks or not is_new):
            _clean(directory, self.rules, self.now)

    def _set_metadata(self, fd: int, metadata: Mapping[str, str]) -> bytes | None:
        """Step 3: the whole record if an attributes file must hold it."""
        try:
            rest = attributes.write(fd, metadata)
            if rest is not None and self.kind != DATA:
                fs.write_all(fd, rest)
                rest = None
            return rest
        except DeviceFull:
            if self.kind != TOMBSTONE:
                raise
            # its name says all that counts, and what it makes obsolete makes room
            log.warning("no room for the metadata of %s/%s", self.place.directory, self.name)
            return None

    def _follow_part_power(self, has_attrs: bool) -> None:
        """Both places of an object are kept equal while the ring's part power grows (``spec: on-disk 3.6``)."""
        assert self.next_part_power is not None
        other = self.place.moved(self.next_part_power)
        if other.directory != self.place.directory:
            try:
                for name in (self.attrs, self.name) if has_attrs else (self.name,):
                    fs.link_existing(f"{self.place.directory}/{name}", f"{other.directory}/{name}",
                                     other.device_path)
                hashes.invalidate(other.partition_path, other.suffix)  # until the relinker has been here, nobody compares it
            except (OSError, StorageError) as error:  # the object itself is safe; the relinker will do it
                log.warning("cannot link %s/%s into partition %s: %s", self.place.directory, self.name,
                            other.partition, error)
        else:
            other = self.place.moved(self.next_part_power - 1)
        if self.clean_up:
            _clean(other.directory, self.rules, self.now)


def _discard(path: str) -> None:
    try:
        fs.discard_file(path)
    except OSError as error:  # as below
        log.error("cannot remove %s: %s", path, error)


def _clean(directory: str, rules: Rules, now: float) -> None:
    try:
        clean(directory, rules, now)
    except FileNotFoundError:
        pass
    except OSError as error:  # what is obsolete stays obsolete; the next visitor removes it
        log.error("cannot clean %s: %s", directory, error)


def commit_fragment(place: Place, rules: Rules, now: float, timestamp: Timestamp, fragment: int,
                    next_part_power: int | None, noted: int = 0) -> None:
    """Give a fragment that was written without it the name that says that the whole object is there (``spec: on-disk
    3.6``, step 7). ``noted``: :attr:`Publication.noted` of the fragment. Where nothing in its partition has changed since,
    nothing is in its directory beside it, and that is not listed; what slipped in before the note, the next visitor removes.

    A crash before the rename is safe leaves a fragment that is not durable, as before; other nodes' say that it is.
    It may be gone meanwhile, but only for something as new. Raises ObjectStateChanged when it is gone for nothing.
    """
    source, target = layout.data_name(timestamp, fragment, False), layout.data_name(timestamp, fragment, True)
    note = hashes.changing(place.partition_path, place.suffix)
    try:
        with note:
            os.rename(f"{place.directory}/{source}", f"{place.directory}/{target}")
    except FileNotFoundError:
        if not _is_superseded(place, timestamp):
            raise ObjectStateChanged(f"{place.directory}/{source} vanished before its commit") from None
        return
    fs.sync_directory(place.directory)
    if next_part_power is not None:
        other = place.moved(next_part_power)
        if other.directory != place.directory:
            try:
                os.rename(f"{other.directory}/{source}", f"{other.directory}/{target}")
                hashes.invalidate(other.partition_path, other.suffix)
                fs.sync_directory(other.directory)
            except (OSError, StorageError) as error:  # the object itself is safe; the relinker will do it
                log.warning("cannot commit %s/%s: %s", other.directory, source, error)
            _clean(other.directory, rules, now)
    if not noted or note.before != noted:
        _clean(place.directory, rules, now)


def _is_superseded(place: Place, timestamp: Timestamp) -> bool:
    try:
        files = parse_names(os.listdir(place.directory), place.directory, place.fragments)
    except FileNotFoundError:
        return False
    found = resolve(files, stores_fragments=True)
    durable, tombstone = found.durable, _newest_tombstone(files)
    return (durable is not None and durable >= timestamp) or (tombstone is not None and tombstone >= timestamp)


def _newest_tombstone(files: list[StoredFile]) -> Timestamp | None:
    return max((file.timestamp for file in files if file.kind == TOMBSTONE), default=None)


def make_directory(place: Place) -> tuple[bool, tuple[str, ...]]:
    """The hash directory, with those it is in: whether it is new, and the directories that got an entry, to be synced. Raises
    DeviceUnavailable, DeviceFull, OSError.

    Its suffix first: in most partitions most suffixes hold nothing yet.
    """
    directory = place.directory
    above = fs.make_directories(directory.rpartition("/")[0], place.device_path)
    made = fs.make_directories(directory, place.device_path)
    return bool(made), made + above


def _create(place: Place, made: tuple[str, ...] | None) -> tuple[fs.NewFile, tuple[str, ...]]:
    """Step 1, and what was made in all. ``made``: what :func:`make_directory` gave just now, nothing where the directory
    was seen; None: it is to be made.
    """
    if made is None:
        _, made = make_directory(place)
    try:
        return fs.create_file(place.directory, place.tmp_path, place.device_path), made
    except FileNotFoundError:  # a cleaner of empty directories was quicker
        made += make_directory(place)[1]
        return fs.create_file(place.directory, place.tmp_path, place.device_path), made


def _start(place: Place, reserve: Reserve, size: int | None, allocates: bool,
           made: tuple[str, ...] | None = None) -> tuple[fs.NewFile, tuple[str, ...]]:
    """Step 1 and the first half of 2."""
    new, made = _create(place, made)
    try:
        reserve.check(place.device_path, size or 0)
        if size is not None and size >= ALLOCATE_FROM and allocates:
            check_room(new.fd, size)
            allocate(new.fd, min(size, ALLOCATE_AHEAD))
    except BaseException:
        new.discard()
        raise
    return new, made


def writing_small(publication: Publication, reserve: Reserve, body: bytes, metadata: Mapping[str, str],
                  made: tuple[str, ...] | None = None) -> fs.Steps:
    """A data file whose body is at hand. ``made``: what :func:`make_directory` gave just now."""
    new, made = _start(publication.place, reserve, len(body), False, made)
    try:
        if body:
            fs.write_all(new.fd, body)
        yield from publication.publishing(new, made, metadata)
    finally:
        new.discard()


def write_meta(publication: Publication, reserve: Reserve, metadata: Mapping[str, str]) -> None:
    """A metadata file."""
    assert publication.kind == META
    new, made = _start(publication.place, reserve, None, False)
    try:
        publication.publish(new, made, metadata)
    finally:
        new.discard()


def writing_tombstone(publication: Publication, metadata: Mapping[str, str], is_there: bool) -> fs.Steps:
    """A tombstone: room is not asked for, so that a full device can be emptied. ``is_there``: the hash directory
    was, just now.
    """
    assert publication.kind == TOMBSTONE
    new, made = _create(publication.place, () if is_there else None)
    try:
        yield from publication.publishing(new, made, metadata)
    finally:
        new.discard()


class Upload:
    """A data file whose body comes in pieces. Not thread-safe: one green thread drives it.

    Nothing is made on the disk before there is something to write. At most WRITE_SIZE bytes and one piece are held; each
    WRITE_SIZE is one visit to a disk thread, which also computes the MD5 unless ``digests`` is false; what is no larger than
    SMALL in all is written with the commit, as :func:`writing_small` does. A piece that is a view
    (``common/aligned.py``) is a visit of its own, and is written past the page cache while all before it were.
    """

    def __init__(self, place: Place, reserve: Reserve, size: int | None, *, bytes_per_sync: int, allocates: bool,
                 digests: bool, turn: Turn = NO_TURN):
        reserve.check(place.device_path, size or 0)
        if size is not None and size >= ALLOCATE_FROM and allocates:
            check_room(place.device_path, size)
        self._expected, self._turn = size, turn
        self._place, self._reserve, self._bytes_per_sync = place, reserve, bytes_per_sync
        self._hash: Any = md5(usedforsecurity=False) if digests else None
        self._announced = size if allocates and size else 0
        self._allocated = ALLOCATE_AHEAD
        self._pieces: list[bytes | memoryview] = []
        self._held = 0
        self._hashed = 0  # of the pieces
        self._unsynced = 0
        self._synced_to = 0
        self._is_busy = False
        self._is_direct = False
        self.size = 0  # bytes taken so far
        self._new: fs.NewFile | None = None
        self._made: tuple[str, ...] = ()
        self._is_over = False
        self._allocates = allocates

    def write(self, data: bytes | memoryview) -> None:
        """Take a piece. Raises DeviceFull, OSError."""
        if not self.size and isinstance(data, memoryview):
            self._visit(self._first)
            self._is_direct = self._new is not None and fs.set_direct(self._new.fd, True)
        self._pieces.append(data)
        self._held += len(data)
        self.size += len(data)
        if self._held >= WRITE_SIZE or self._is_direct:
            self.flush()

    def flush(self) -> None:
        if self.size <= SMALL and self._new is None:
            if self._hash is not None:
                for piece in self._pieces[self._hashed :]:
                    self._hash.update(piece)
                self._hashed = len(self._pieces)
            return
        pieces, self._pieces, self._held = self._pieces, [], 0
        if pieces:
            self._visit(self._write, pieces, self._hashed)
            self._hashed = 0

    def _visit(self, function: Callable[..., None], *args: Any) -> None:
        self._turn.begin()
        self._is_busy = True
        try:
            write_on_disk_thread(self._place.device, function, *args)
        finally:
            self._turn.rest()

    def _first(self) -> None:
        try:
            self._begin()
        finally:
            self._is_busy = False

    def _begin(self) -> None:
        if self._new is None and not self._is_over:
            self._new, self._made = _start(self._place, self._reserve, self._expected, self._allocates)

    def _write(self, pieces: list[bytes | memoryview], hashed: int = 0) -> None:
        """``hashed``: so many of the pieces are."""
        try:
            self._begin()
            new = self._new
            if new is None:
                return  # given up before this began
            if self._allocated < min(self.size, self._announced):
                upto = min(self.size + ALLOCATE_AHEAD, self._announced)
                allocate(new.fd, upto, self._allocated)
                self._allocated = upto
            if self._is_direct:
                (piece,) = pieces
                self._is_direct = fs.write_direct(new.fd, piece)
            else:
                fs.write_pieces(new.fd, pieces)
            for number, piece in enumerate(pieces):
                if self._hash is not None and number >= hashed:
                    self._hash.update(piece)
                self._unsynced += len(piece)
            self._reserve.check(new.fd)  # a body of unknown length must not eat it up
            if self._unsynced >= self._bytes_per_sync:
                fs.sync_data(new.fd)
                reads.drop_cache(new.fd, self._synced_to, self._unsynced)
                self._synced_to += self._unsynced
                self._unsynced = 0
        finally:
            self._is_busy = False

    @property
    def digest(self) -> str:
        """The hex MD5 of what was flushed."""
        return str(self._hash.hexdigest())

    def commit(self, publication: Publication, metadata: Mapping[str, str]) -> None:
        """Make it the object. Raises DeviceFull, XattrNotSupported, OSError; in any case the upload is over."""
        self._turn.begin()
        try:
            on_disk(self._place.device, self._commit, publication, metadata)
        finally:
            self._turn.end()  # what may follow, as the second phase of a PUT, waits for uploads that have no turn yet

    def _commit(self, publication: Publication, metadata: Mapping[str, str]) -> None:
        self._begin()
        pieces, self._pieces = self._pieces, []
        new, self._new, self._is_over = self._new, None, True
        if new is None:
            raise ObjectStateChanged(f"{self._place.directory}: the upload was given up")
        publication.looks = True
        try:
            if pieces:
                fs.write_pieces(new.fd, pieces)
            publication.publish(new, self._made, metadata)
        finally:
            new.discard()

    def abort(self) -> None:
        """Let go of it, if it was not committed; the empty directory that may be left is as good as none."""
        new, self._new, self._is_over = self._new, None, True
        if new is not None and not self._is_busy:  # a thread that still writes discards it by letting go
            new.discard()
            if self._made:
                with contextlib.suppress(OSError):
                    fs.remove_directory(self._place.directory)
