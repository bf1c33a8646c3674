from __future__ import annotations

import errno
import gc
import io
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from hashlib import md5

import pytest

from keelstore.common import aligned, concurrency, disk_calls, fs
from keelstore.common.errors import (
    DeviceFull,
    KeelstoreError,
    ObjectCollision,
    ObjectCorrupt,
    ObjectDeleted,
    ObjectExpired,
    ObjectNotFound,
    ObjectStateChanged,
)
from keelstore.common.room import Reserve
from keelstore.common.timestamp import Timestamp
from keelstore.obj import attributes, layout, writer
from keelstore.obj.metadata import CHECKSUM_XATTR, RECORD_XATTR, encode
from keelstore.obj.place import Place
from keelstore.obj.reader import Validation
from test.support.faulty_os import Crash, FaultyOs
from test.support.objects import NOW, POLICIES, StoreBox, metadata_of, stamp

LARGE = {f"X-Object-Meta-{i:02}": "v" * 250 for i in range(40)}  # more than an ext4 block holds


@pytest.fixture
def box(tmp_path):
    return StoreBox(str(tmp_path))


def quarantined(box: StoreBox, datadir: str = "objects") -> list[str]:
    try:
        return os.listdir(f"{box.device_path}/quarantined/{datadir}")
    except FileNotFoundError:
        return []


def read(box: StoreBox, place: Place) -> bytes:
    stored = box.store.open(place)
    return b"".join(stored.body(0, stored.size, Validation()))


# -- round trips


def test_what_is_written_is_read(box):
    place = box.put(metadata={"X-Object-Meta-A": "1"})
    stored = box.store.open(place)
    assert stored.metadata == metadata_of(place, stamp(0), b"hello", {"X-Object-Meta-A": "1"})
    assert (stored.timestamp, stored.data_timestamp, stored.size) == (stamp(0), stamp(0), 5)
    assert stored.read_all(Validation()) == b"hello"
    assert box.files(place) == ["0.data"]
    assert set(os.listxattr(f"{place.directory}/{layout.data_name(stamp(0))}")) == {CHECKSUM_XATTR, RECORD_XATTR}


def test_who_announces_much_and_sends_little_takes_little_room(box):
    place = box.place()
    uploads = [box.store.upload(place, 5 << 30) for _ in range(3)]
    size = 40 << 20
    for upload in uploads:
        upload.write(bytes(size))
        upload.flush()
        taken = os.fstat(upload._new.fd).st_blocks * 512
        assert size < taken < size + 2 * writer.ALLOCATE_AHEAD
        upload.abort()
    whole = box.store.upload(place, size)
    for _ in range(40):
        whole.write(bytes(1 << 20))
    whole.flush()
    assert os.fstat(whole._new.fd).st_blocks * 512 < size + (1 << 20)
    whole.abort()


def test_newer_object_replaces_the_older(box):
    box.put(body=b"one", at=0)
    place = box.put(body=b"two", at=1)
    assert read(box, place) == b"two" and box.files(place) == ["1.data"]


def test_a_directory_that_is_new_is_not_looked_through(box, monkeypatch):
    looked = []
    clean = writer._clean
    monkeypatch.setattr(writer, "_clean", lambda *args: looked.append(args) or clean(*args))
    box.put(body=b"one", at=0)
    assert not looked
    box.put(body=b"two", at=1)
    assert len(looked) == 1


def test_older_object_that_comes_late_changes_nothing(box):
    box.put(body=b"two", at=1)
    place = box.put(body=b"one", at=0)
    assert read(box, place) == b"two" and box.files(place) == ["1.data"]


def test_same_timestamp_again_replaces(box):
    box.put(body=b"one")
    place = box.put(body=b"two")
    assert read(box, place) == b"two" and box.files(place) == ["0.data"]


def test_streamed_object(box):
    place, body = box.place(), bytes(range(256)) * 8192
    upload = box.store.upload(place, None)
    for start in range(0, len(body), 65536):
        upload.write(body[start : start + 65536])
    upload.flush()
    assert (upload.size, upload.digest) == (len(body), md5(body).hexdigest())
    box.store.commit(upload, place, stamp(0), metadata_of(place, stamp(0), body))
    assert read(box, place) == body


def test_a_small_upload_goes_to_the_disk_in_one_call(box, monkeypatch):
    def visit(*args):
        raise AssertionError("nothing is written before the commit")

    monkeypatch.setattr(writer, "write_on_disk_thread", visit)
    place, body = box.place(), bytes(range(256)) * 256
    upload = box.store.upload(place, None)
    for start in range(0, len(body), 4096):
        upload.write(body[start : start + 4096])
    upload.flush(), upload.flush()
    assert (upload.size, upload.digest) == (len(body), md5(body).hexdigest()) and not os.path.exists(place.directory)
    box.store.commit(upload, place, stamp(0), metadata_of(place, stamp(0), body))
    assert read(box, place) == body


def test_a_small_upload_that_goes_on_after_all(box):
    place, body = box.place(), bytes(range(256)) * 8192
    upload = box.store.upload(place, None)
    for start, stop in ((0, 10), (10, 65536), (65536, len(body))):
        upload.write(body[start:stop])
        upload.flush()
    assert (upload.size, upload.digest) == (len(body), md5(body).hexdigest())
    box.store.commit(upload, place, stamp(0), metadata_of(place, stamp(0), body))
    assert read(box, place) == body


def test_upload_that_is_given_up_leaves_nothing(box):
    place = box.place()
    upload = box.store.upload(place, 100)
    upload.write(b"x" * 50)
    upload.abort()
    upload.abort()
    assert not os.path.exists(place.directory)
    with pytest.raises(ObjectNotFound):
        box.store.open(place)


def test_writer_that_is_stopped_does_not_close_what_a_thread_still_writes(box, monkeypatch):
    """The descriptor's number would belong to another file by the time the thread uses it."""
    place = box.place()
    upload = box.store.upload(place, None)
    begun, may_go_on, used, fds = threading.Event(), threading.Event(), list[bool](), list[int]()
    real = fs.write_pieces

    def write_pieces(target, data):
        fds.append(target)
        begun.set()
        may_go_on.wait(10)
        used.append(os.path.exists(f"/proc/self/fd/{target}"))
        real(target, data)

    monkeypatch.setattr("keelstore.obj.writer.fs.write_pieces", write_pieces)

    def send():
        try:
            upload.write(b"x" * 600000)
        finally:
            upload.abort()

    task = concurrency.spawn(send)
    while not begun.is_set():
        concurrency.sleep(0.001)
    task.kill()
    (fd,) = fds
    assert os.path.exists(f"/proc/self/fd/{fd}")
    may_go_on.set()
    disk_calls.on_disk_thread("sda1", gc.collect)
    while os.path.exists(f"/proc/self/fd/{fd}"):
        concurrency.sleep(0.001)
    assert used == [True]


def views_of(body: bytes) -> Iterator[memoryview]:
    for piece in aligned.pieces(io.BytesIO(body), len(body)):
        assert isinstance(piece, memoryview)
        yield piece


@pytest.mark.parametrize("allocates", [True, False])
@pytest.mark.parametrize("digests", [True, False])
@pytest.mark.parametrize("more", [0, 1, 4096, 5000])
def test_views_go_past_the_page_cache_into_the_same_object(tmp_path, allocates, digests, more):
    box = StoreBox(str(tmp_path), allocates=allocates)
    place, body = box.place(), os.urandom(1 << 20) * 5 + b"x" * more
    upload = box.store.upload(place, len(body), digests=digests)
    for piece in views_of(body):
        upload.write(piece)
    upload.flush()
    assert upload.size == len(body) and (not digests or upload.digest == md5(body).hexdigest())
    box.store.commit(upload, place, stamp(0), metadata_of(place, stamp(0), body))
    assert read(box, place) == body
    stored = box.store.open(place)
    assert os.fstat(stored._fd).st_size == stored.size == len(body)
    stored.close()


@pytest.mark.parametrize("refuses", ["flag", "write"])
def test_views_are_written_by_the_cache_where_it_has_to_be(box, monkeypatch, refuses):
    def refuse(fd, data):
        raise OSError(errno.EINVAL, "not here")

    if refuses == "flag":
        monkeypatch.setattr(fs, "set_direct", lambda fd, is_direct: False)
    place, body = box.place(), os.urandom(1 << 20) * 3
    upload = box.store.upload(place, len(body))
    real = os.write
    for piece in views_of(body):
        if refuses == "write":
            monkeypatch.setattr(os, "write", lambda fd, data: monkeypatch.setattr(os, "write", real) or refuse(fd, data))
        upload.write(piece)
        monkeypatch.setattr(os, "write", real)
    upload.flush()
    box.store.commit(upload, place, stamp(0), metadata_of(place, stamp(0), body))
    assert read(box, place) == body


def test_an_upload_whose_pieces_become_small_goes_on(box):
    place, body = box.place(), os.urandom(1 << 20)
    upload = box.store.upload(place, None)
    parts: list[bytes | memoryview] = [*views_of(body), b"abc" * 20_000, b"de" * 300_000, *views_of(body), b"f"]
    for part in parts:
        upload.write(part)
    upload.flush()
    whole = b"".join(parts)
    assert upload.digest == md5(whole).hexdigest()
    box.store.commit(upload, place, stamp(0), metadata_of(place, stamp(0), whole))
    assert read(box, place) == whole


def test_a_device_that_is_full_says_so_of_views(box, monkeypatch):
    place = box.place()
    upload = box.store.upload(place, 1 << 22)
    FaultyOs(fail_at=1, error=errno.ENOSPC, only=frozenset({"write"})).install(monkeypatch)
    with pytest.raises(DeviceFull):
        upload.write(next(views_of(bytes(1 << 20))))
    upload.abort()
    assert not os.path.exists(place.directory)


def test_long_upload_cleans_what_others_wrote_meanwhile(box):
    place = box.place()
    upload = box.store.upload(place, 3)
    upload.write(b"new")
    upload.flush()
    box.put(body=b"old", at=1)
    box.store.commit(upload, place, stamp(2), metadata_of(place, stamp(2), b"new"))
    assert box.files(place) == ["2.data"]


def test_upload_is_synced_in_steps(tmp_path, monkeypatch):
    box = StoreBox(str(tmp_path), bytes_per_sync=1 << 20)
    faults = FaultyOs(only=frozenset({"fdatasync"}))
    faults.install(monkeypatch)
    place = box.place()
    upload = box.store.upload(place, 3 << 20)
    for _ in range(48):
        upload.write(b"x" * 65536)
    upload.flush()
    assert len(faults.calls) == 3
    upload.abort()


def test_file_system_without_unnamed_files(box, monkeypatch):
    monkeypatch.setattr(fs, "_tmpfile_works", False)
    place = box.put(metadata=LARGE)
    assert read(box, place) == b"hello" and box.store.open(place).metadata.items() >= LARGE.items()
    assert os.listdir(f"{box.device_path}/tmp") == []


def test_metadata_file_applies_and_goes_with_its_object(box):
    place = box.put(metadata={"X-Object-Meta-A": "1"})
    box.store.write_meta(place, stamp(1), {"name": place.name, "X-Timestamp": stamp(1).internal, "X-Object-Meta-B": "2"})
    stored = box.store.open(place)
    stored.close()
    assert "X-Object-Meta-A" not in stored.metadata and stored.metadata["X-Object-Meta-B"] == "2"
    assert (stored.timestamp, stored.data_timestamp) == (stamp(1), stamp(0))
    assert box.files(place) == ["0.data", "1.meta"]
    box.put(at=2)
    assert box.files(place) == ["2.data"]


def test_content_type_of_an_older_metadata_file_counts(box):
    place = box.put()
    typed = {"name": place.name, "X-Timestamp": stamp(1).internal, "Content-Type": "text/new",
             "Content-Type-Timestamp": stamp(1).internal}
    box.store.write_meta(place, stamp(1), typed)
    box.store.write_meta(place, stamp(2), {"name": place.name, "X-Timestamp": stamp(2).internal, "X-Object-Meta-B": "2"})
    stored = box.store.open(place)
    stored.close()
    assert (stored.metadata["Content-Type"], stored.content_type_timestamp) == ("text/new", stamp(1))
    assert (stored.timestamp, stored.metadata["X-Object-Meta-B"]) == (stamp(2), "2")


def test_deleted_object_says_when(box):
    place = box.put()
    box.store.delete(place, stamp(1))
    with pytest.raises(ObjectDeleted) as caught:
        box.store.open(place)
    assert caught.value.timestamp == stamp(1) and box.files(place) == ["1.ts"]


def test_a_tombstone_goes_into_a_directory_that_vanished_since_it_was_seen(box):
    place = box.place("o")
    box.store.delete(place, stamp(1), is_there=True)
    assert box.files(place) == ["1.ts"]


def test_reclaimed_tombstone_leaves_nothing(box):
    place = box.put()
    box.clock.now = NOW + 700000
    box.store.delete(place, stamp(1))
    assert not os.path.exists(place.directory)


def test_expired_object(box):
    place = box.put(metadata={"X-Delete-At": str(int(NOW) + 10)})
    box.store.open(place).close()
    box.clock.now = NOW + 10
    with pytest.raises(ObjectExpired) as caught:
        box.store.open(place)
    assert caught.value.timestamp == stamp(0) and caught.value.metadata["X-Delete-At"] == str(int(NOW) + 10)
    box.store.open(place, open_expired=True).close()
    box.store.open(place, now=NOW).close()


def test_collision_of_hashes_is_told_apart(box):
    place, other = box.put(), box.place("other")
    other.directory = place.directory
    with pytest.raises(ObjectCollision):
        box.store.open(other)
    assert box.files(place) == ["0.data"], "the object that is there stays"


def test_data_that_vanishes_between_listing_and_opening(box, monkeypatch):
    place = box.put()
    found = box.store.look(place)
    os.unlink(f"{place.directory}/{found.data.name}")
    with pytest.raises(ObjectStateChanged):
        box.store.open(place, found=found)


# -- metadata that does not fit


@pytest.mark.parametrize("name", ["o", "\U0001f600" * 1024])
def test_large_metadata_is_kept_whole(box, name):
    place = box.put(name, metadata=LARGE)
    stored = box.store.open(place)
    assert stored.metadata == metadata_of(place, stamp(0), b"hello", LARGE)
    stored.close()
    box.store.write_meta(place, stamp(1), {"name": place.name, "X-Timestamp": stamp(1).internal, **LARGE, "X-Object-Meta-Z": ""})
    stored = box.store.open(place)
    stored.close()
    assert stored.metadata.items() >= LARGE.items() and "X-Object-Meta-Z" in stored.metadata
    box.store.delete(place, stamp(2))
    assert box.files(place) == ["2.ts"]
    with pytest.raises(ObjectDeleted):
        box.store.open(place)


def needs_small_block(box: StoreBox) -> Place:
    place = box.put(metadata=LARGE)
    if box.files(place) == ["0.data"]:
        pytest.skip("this file system holds large attributes")
    return place


def test_attributes_file_goes_with_its_data(box):
    place = needs_small_block(box)
    assert box.files(place) == ["0.attrs", "0.data"]
    box.put(at=1)
    assert box.files(place) == ["1.data"]


def test_attributes_file_that_is_missing_is_waited_for_then_quarantined(box, monkeypatch):
    place = needs_small_block(box)
    os.unlink(f"{place.directory}/{layout.attrs_name(stamp(0))}")
    with pytest.raises(ObjectStateChanged):
        box.store.open(place)
    assert quarantined(box) == []
    monkeypatch.setattr("keelstore.obj.store.ARRIVAL_S", -1)
    with pytest.raises(ObjectCorrupt):
        box.store.open(place)
    assert quarantined(box) == [place.name_hash]


def test_attributes_file_that_is_damaged_is_quarantined(box):
    place = needs_small_block(box)
    with open(f"{place.directory}/{layout.attrs_name(stamp(0))}", "r+b") as file:
        file.seek(300)
        file.write(b"X")
    with pytest.raises(ObjectCorrupt):
        box.store.open(place)
    assert quarantined(box) == [place.name_hash]


def test_attributes_file_whose_data_never_came_is_cleaned_up(box):
    place = needs_small_block(box)
    os.unlink(f"{place.directory}/{layout.data_name(stamp(0))}")
    with pytest.raises(ObjectNotFound):
        box.store.open(place)
    box.put(at=1)
    assert box.files(place) == ["1.data"]


# -- part power


def test_part_power_grows(box):
    """While it does, each write has a name in both places; afterwards the old place is emptied by the writes."""
    base = box.place()
    old, new = base.moved(10), base.moved(11)
    assert old.directory != new.directory
    box.store.write(old, stamp(0), b"x", metadata_of(old, stamp(0), b"x", LARGE), next_part_power=11)
    assert box.files(old) == box.files(new)
    for place in (old, new):
        stored = box.store.open(place)
        assert stored.metadata.items() >= LARGE.items() and stored.read_all(Validation()) == b"x"
    assert os.stat(f"{old.directory}/{layout.data_name(stamp(0))}").st_nlink == 2
    box.store.write_meta(old, stamp(1), {"name": old.name, "X-Timestamp": stamp(1).internal}, next_part_power=11)
    assert box.files(new)[-1] == "1.meta"
    box.store.write(old, stamp(2), b"y", metadata_of(old, stamp(2), b"y"), next_part_power=11)
    assert box.files(old) == box.files(new) == ["2.data"]
    with open(f"{new.partition_path}/hashes.invalid") as file:
        assert file.read() == f"#boot {fs.boot_id()}\n" + f"{new.suffix}\n" * 3
    # the ring now has the new power; the old places still hold links
    fs.link_existing(f"{new.directory}/{layout.data_name(stamp(2))}", f"{old.directory}/{layout.data_name(stamp(1))}", old.device_path)
    box.store.delete(new, stamp(3), next_part_power=11)
    assert box.files(new) == ["3.ts"]


def test_part_power_link_that_fails_does_not_fail_the_write(box):
    base = box.place()
    old, new = base.moved(10), base.moved(11)
    os.makedirs(os.path.dirname(new.partition_path), exist_ok=True)
    with open(new.partition_path, "w") as file:
        file.write("in the way")
    box.store.write(old, stamp(0), b"x", metadata_of(old, stamp(0), b"x"), next_part_power=11)
    assert read(box, old) == b"x"


# -- what is wrong is quarantined


def damage_size(path: str) -> None:
    os.truncate(path, 0)


def damage_checksum(path: str) -> None:
    fs.set_xattr(path, CHECKSUM_XATTR, b"0" * 32)


def damage_metadata(path: str) -> None:
    fs.remove_xattr(path, CHECKSUM_XATTR)
    record = fs.get_xattr(path, RECORD_XATTR) or b""
    fs.set_xattr(path, RECORD_XATTR, record[: len(record) // 2])


def damage_by_loss(path: str) -> None:
    fs.remove_xattr(path, RECORD_XATTR)


class Bomb:
    def __reduce__(self):
        return (os.mkdir, ("/tmp/keelstore-was-here",))


def damage_bomb(path: str) -> None:
    fs.remove_xattr(path, CHECKSUM_XATTR)
    fs.set_xattr(path, RECORD_XATTR, pickle.dumps({b"name": Bomb()}, 2))


def rewrite(**changes: str | None) -> Callable[[str], None]:
    def damage(path: str) -> None:
        fd = os.open(path, os.O_RDWR)
        metadata = attributes.read(fd, lambda: None)
        for key, value in changes.items():
            if value is None:
                metadata.pop(key.replace("_", "-"))
            else:
                metadata[key.replace("_", "-")] = value
        attributes.write(fd, metadata)
        os.close(fd)

    return damage


@pytest.mark.parametrize(
    "damage",
    [
        damage_size, damage_checksum, damage_metadata, damage_by_loss, damage_bomb, rewrite(name=None), rewrite(Content_Length=None),
        rewrite(Content_Length="6"), rewrite(Content_Length="x"), rewrite(Content_Length="-5"), rewrite(X_Delete_At="soon"),
    ],
)  # fmt: skip
def test_damaged_object_is_quarantined(box, damage):
    place = box.put()
    damage(f"{place.directory}/{layout.data_name(stamp(0))}")
    with pytest.raises(ObjectCorrupt):
        box.store.open(place)
    assert quarantined(box) == [place.name_hash] and not os.path.exists(place.directory)
    assert not os.path.exists("/tmp/keelstore-was-here")
    with open(f"{place.partition_path}/hashes.invalid") as file:
        assert file.read() == f"#boot {fs.boot_id()}\n" + f"{place.suffix}\n" * 2
    with pytest.raises(ObjectNotFound):
        box.store.open(place)


def test_damaged_metadata_file_is_quarantined(box):
    place = box.put()
    box.store.write_meta(place, stamp(1), {"name": place.name, "X-Timestamp": stamp(1).internal})
    damage_metadata(f"{place.directory}/{layout.meta_name(stamp(1))}")
    with pytest.raises(ObjectCorrupt):
        box.store.open(place)
    assert quarantined(box) == [place.name_hash]


def test_hash_directory_that_is_a_file(box):
    place = box.place()
    os.makedirs(os.path.dirname(place.directory))
    with open(place.directory, "w") as file:
        file.write("?")
    with pytest.raises(ObjectCorrupt):
        box.store.open(place)
    assert quarantined(box) == [place.name_hash]


@pytest.mark.parametrize("error", [errno.ENODATA, errno.EUCLEAN])
def test_directory_that_cannot_be_listed(box, monkeypatch, error):
    place = box.put()
    real = os.listdir

    def listdir(path):
        if path == place.directory:
            raise OSError(error, os.strerror(error))
        return real(path)

    with monkeypatch.context() as patch, pytest.raises(ObjectCorrupt):
        patch.setattr(os, "listdir", listdir)
        box.store.open(place)
    assert quarantined(box) == [place.name_hash]


def test_second_quarantine_of_a_name_keeps_both(box):
    for at in range(2):
        place = box.put(at=at)
        damage_size(f"{place.directory}/{layout.data_name(stamp(at))}")
        with pytest.raises(ObjectCorrupt):
            box.store.open(place)
    assert len(quarantined(box)) == 2


def test_quarantine_of_another_policy(box):
    place = box.place(policy=1)
    box.store.write(place, stamp(0), b"x", metadata_of(place, stamp(0), b"x"))
    damage_size(f"{place.directory}/{layout.data_name(stamp(0))}")
    with pytest.raises(ObjectCorrupt):
        box.store.open(place)
    assert quarantined(box, "objects-1") == [place.name_hash]


def test_wrong_content_is_given_once_then_quarantined(box):
    place = box.put()
    with open(f"{place.directory}/{layout.data_name(stamp(0))}", "r+b") as file:
        file.write(b"HELLO")
    assert read(box, place) == b"HELLO"
    assert quarantined(box) == [place.name_hash]
    with pytest.raises(ObjectNotFound):
        box.store.open(place)


def test_part_of_wrong_content_is_not_checked(box):
    place = box.put()
    with open(f"{place.directory}/{layout.data_name(stamp(0))}", "r+b") as file:
        file.write(b"HELLO")
    stored = box.store.open(place)
    assert b"".join(stored.body(0, 4, Validation())) == b"HELL"
    stored = box.store.open(place)
    body = stored.body(0, 5, Validation(), chunk_size=2)
    assert next(body) == b"HE"
    body.close()
    assert quarantined(box) == []


@pytest.mark.parametrize(("start", "stop"), [(0, 100), (30, 60), (99, 100)])
def test_case_X09_only_the_range_that_was_read_leaves_the_page_cache(box, monkeypatch, start, stop):
    place = box.put(body=bytes(range(100)))
    dropped = []
    monkeypatch.setattr("keelstore.obj.reader.reads.drop_cache", lambda fd, offset, length: dropped.append((offset, length)))
    for keep in (True, False):
        body = box.store.open(place).body(start, stop, Validation(), chunk_size=16, keep_cache=keep)
        assert b"".join(body) == bytes(range(start, stop))
    assert dropped == [(start, stop - start)]




def test_file_that_ends_early_breaks_the_body(box):
    place = box.put(body=b"x" * 100)
    stored = box.store.open(place)
    os.truncate(f"{place.directory}/{layout.data_name(stamp(0))}", 40)
    with pytest.raises(ObjectCorrupt):
        list(stored.body(0, 100, Validation(), chunk_size=30))
    assert quarantined(box) == [place.name_hash]


def test_disk_error_while_reading_quarantines(box, monkeypatch):
    place = box.put()
    stored = box.store.open(place)

    def fail(*args):
        raise OSError(errno.EIO, "I/O error")

    monkeypatch.setattr("keelstore.obj.reader.reads.read_cached", fail)
    with pytest.raises(ObjectCorrupt):
        stored.read_all(Validation())
    assert quarantined(box) == [place.name_hash]


def test_unchanged_file_is_not_checked_twice(box):
    place, validation = box.put(), Validation(100, 3600)
    assert box.store.open(place).read_all(validation) == b"hello"
    stored = box.store.open(place)
    body = stored.body(0, 5, validation)
    assert body.file_region() == (stored._fd, 0, 5), "may go out by sendfile"
    body.close()
    fs.set_xattr(f"{place.directory}/{layout.data_name(stamp(0))}", "user.touched", b"1")
    body = box.store.open(place).body(0, 5, validation)
    assert body.file_region() is None, "a changed file must be read here, to be checked"
    body.close()
    never = box.store.open(place).body(0, 5, Validation(0))
    assert never.file_region() is not None
    never.close()


def test_what_one_process_has_checked_another_need_not(box):
    place, other, validation = box.put(), box.put("b"), Validation(100, 3600)
    pid = os.fork()
    if not pid:
        box.store.open(place).read_all(validation)
        os._exit(0 if validation.has_passed(box.store.open(place)) else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert validation.has_passed(box.store.open(place)) and not validation.has_passed(box.store.open(other))
    os.utime(f"{place.directory}/{os.listdir(place.directory)[0]}")
    assert not validation.has_passed(box.store.open(place))


def test_files_of_one_slot_replace_each_other(box, monkeypatch):
    monkeypatch.setattr(Validation, "SLOTS", 1)
    first, second, validation = box.put(), box.put("b"), Validation(100, 3600)
    for place in (first, second):
        stored = box.store.open(place)
        validation.passed(stored)
        assert validation.has_passed(stored)
        stored.close()
    assert not validation.has_passed(box.store.open(first)) and not Validation(100, 0).has_passed(box.store.open(second))


# -- no room


def test_reserve_keeps_writes_out_but_not_deletes(tmp_path):
    box = StoreBox(str(tmp_path))
    place = box.put(at=0)
    full = StoreBox(str(tmp_path), reserve="100%")
    with pytest.raises(DeviceFull):
        full.put(at=1)
    with pytest.raises(DeviceFull):
        full.store.write_meta(place, stamp(1), {"name": place.name, "X-Timestamp": stamp(1).internal})
    with pytest.raises(DeviceFull):
        full.store.upload(place, None)
    assert full.files(place) == ["0.data"] and read(full, place) == b"hello"
    full.store.delete(place, stamp(2))
    assert full.files(place) == ["2.ts"]


def test_body_of_unknown_length_stops_at_the_reserve(box):
    upload = box.store.upload(box.place(), None)
    upload._reserve = Reserve.parse("100%")  # as if others had filled the device meanwhile
    with pytest.raises(DeviceFull):
        for _ in range(8):
            upload.write(b"x" * 65536)
    upload.abort()


@pytest.mark.parametrize("name", ["o", "\U0001f600" * 1024])
def test_delete_needs_no_block(box, monkeypatch, name):
    """On a device without a single free block the data must still be able to go."""
    place = box.put(name)
    first = box.store.hashes("sda1", box.device_path, POLICIES.by_index[0], "7")
    calls = {"setxattr": os.setxattr, "write": os.write}

    class Full(FaultyOs):
        def __getattr__(self, attribute):
            if attribute not in calls:
                return super().__getattr__(attribute)

            def refuse(*args):
                raise OSError(errno.ENOSPC, "No space left on device")

            return refuse

    Full().install(monkeypatch)
    with pytest.raises(DeviceFull):
        box.put(name, at=1)
    box.store.delete(place, stamp(2))
    monkeypatch.setattr(fs, "os", os)
    assert box.files(place) == ["2.ts"]
    with pytest.raises(ObjectDeleted):
        box.store.open(place)
    assert box.store.hashes("sda1", box.device_path, POLICIES.by_index[0], "7") != first


def test_room_for_a_large_object_is_taken_first(box):
    with pytest.raises(DeviceFull):
        box.store.upload(box.place(), 1 << 43)
    assert not os.path.exists(box.place().directory) or os.listdir(box.place().directory) == []


# -- crashes and failures at every step


def durable_operations(box: StoreBox, place: Place) -> dict[str, Callable[[], object]]:
    meta = {"name": place.name, "X-Timestamp": stamp(2).internal, **LARGE}
    return {
        "put": lambda: box.put(body=b"new", at=2, metadata={"X-Object-Meta-V": "new"}),
        "put large": lambda: box.put(body=b"new", at=2, metadata=LARGE),
        "post": lambda: box.store.write_meta(place, stamp(2), meta),
        "delete": lambda: box.store.delete(place, stamp(2)),
    }


def state(box: StoreBox, place: Place) -> str:
    try:
        stored = box.store.open(place)
    except ObjectDeleted as error:
        assert isinstance(error.timestamp, Timestamp)
        return f"deleted {float(error.timestamp) - NOW:g}"
    except ObjectNotFound:
        return "absent"
    metadata = dict(stored.metadata)
    body = stored.read_all(Validation())
    assert md5(body).hexdigest() == metadata["ETag"] and len(body) == int(metadata["Content-Length"])
    whole = "large" if metadata.items() >= LARGE.items() else "small"
    return f"{body.decode()} {float(stored.timestamp) - NOW:g} {whole}"


AFTER = {"put": "new 2 small", "put large": "new 2 large", "post": "hello 2 large", "delete": "deleted 2"}


@pytest.mark.parametrize("tmpfile_works", [True, False])
@pytest.mark.parametrize("existing", [True, False])
@pytest.mark.parametrize("operation", ["put", "put large", "post", "delete"])
def test_crash_at_any_step_leaves_old_or_new(tmp_path, monkeypatch, operation, existing, tmpfile_works):
    before = "hello 0 small" if existing else "absent"
    after = AFTER[operation] if existing or operation != "post" else "absent"
    seen, step = set(), 0
    while True:
        step += 1
        FaultyOs(syncs=False).install(monkeypatch)
        box = StoreBox(str(tmp_path / str(step)))
        place = box.put() if existing else box.place()
        monkeypatch.setattr(fs, "_tmpfile_works", tmpfile_works)
        faults = FaultyOs(crash_at=step, syncs=False)
        faults.install(monkeypatch)
        crashed = False
        try:
            durable_operations(box, place)[operation]()
        except Crash:
            crashed = True
        FaultyOs(syncs=False).install(monkeypatch)
        found = state(box, place)
        assert found in (before, after), f"{operation} crashed at step {step}, {faults.calls[-1:]}"
        assert quarantined(box) == []
        seen.add(found)
        # whatever it left is no obstacle
        box.store.hashes("sda1", box.device_path, POLICIES.by_index[0], "7")
        box.put(body=b"later", at=3)
        assert state(box, place) == "later 3 small" and box.files(place) == ["3.data"]
        if not crashed:
            assert found == after
            break
    assert step > 6 and seen == {before, after}


@pytest.mark.parametrize("existing", [True, False])
def test_crash_at_any_step_of_an_upload_past_the_cache_leaves_old_or_new(tmp_path, monkeypatch, existing):
    body, step = os.urandom(1 << 20) * 2 + b"the end", 0
    before, seen = b"hello" if existing else None, set[bytes | None]()
    while True:
        step += 1
        FaultyOs(syncs=False).install(monkeypatch)
        box = StoreBox(str(tmp_path / str(step)))
        place = box.put() if existing else box.place()
        faults = FaultyOs(crash_at=step, syncs=False)
        faults.install(monkeypatch)
        crashed = False
        try:
            upload = box.store.upload(place, len(body))
            for piece in views_of(body):
                upload.write(piece)
            upload.flush()
            box.store.commit(upload, place, stamp(2), metadata_of(place, stamp(2), body))
        except Crash:
            crashed = True
        FaultyOs(syncs=False).install(monkeypatch)
        try:
            found: bytes | None = read(box, place)
        except ObjectNotFound:
            found = None
        assert found in (before, body), f"crashed at step {step}, {faults.calls[-1:]}"
        seen.add(found)
        if not crashed:
            names = [name for name, _ in faults.calls]
            assert found == body and names.index("fsync") < names.index("link")
            assert names[: names.index("fsync")].count("write") == 3  # all of the body; what comes later is the suffix's note
            break
    assert step > 6 and seen == {before, body}


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("existing", [True, False])
@pytest.mark.parametrize("operation", ["put", "put large", "post", "delete"])
def test_failure_at_any_step_is_told_and_leaves_old_or_new(tmp_path, monkeypatch, operation, existing, error):
    before = "hello 0 small" if existing else "absent"
    after = AFTER[operation] if existing or operation != "post" else "absent"
    step = 0
    while True:
        step += 1
        FaultyOs(syncs=False).install(monkeypatch)
        box = StoreBox(str(tmp_path / str(step)))
        place = box.put() if existing else box.place()
        faults = FaultyOs(fail_at=step, error=error, syncs=False)
        faults.install(monkeypatch)
        descriptors = len(os.listdir("/proc/self/fd"))
        failed = False
        try:
            durable_operations(box, place)[operation]()
        except (KeelstoreError, OSError) as caught:
            failed = True
            assert isinstance(caught, DeviceFull) or error == errno.EIO
        monkeypatch.setattr(fs, "os", os)
        assert len(os.listdir("/proc/self/fd")) == descriptors, "a descriptor leaks"
        found = state(box, place)
        assert found in (before, after) and quarantined(box) == []
        if not failed:
            assert found == after, "acknowledged"
        if len(faults.calls) < step:
            break
    assert step > 6


def test_acknowledged_means_synced(box, monkeypatch):
    """Content, then name, then every directory that changed: in this order, before the call returns."""
    trace = FaultyOs()
    trace.install(monkeypatch)
    place = box.put(metadata=LARGE)
    monkeypatch.setattr(fs, "os", os)
    steps = [name for name, _ in trace.calls if name in ("link", "fsync")]
    assert steps[-1] == "fsync" and "link" in steps
    last_link = max(index for index, name in enumerate(steps) if name == "link")
    assert steps[:last_link].count("fsync") == 8, (
        "both files before they get their names; above the hash directory suffix, partition, objects, device; the journal and its name")
    assert steps[last_link + 1 :] == ["fsync"], "the hash directory"
    assert read(box, place) == b"hello"


def test_directory_removed_under_a_writer_is_made_again(box, monkeypatch):
    place = box.place()
    real, done = fs.linking, list[int]()

    def linking(new, target, made, around):
        if not done:
            done.append(1)
            os.rmdir(place.directory)  # a replicator found it empty
        return real(new, target, made, around)

    monkeypatch.setattr("keelstore.obj.writer.fs.linking", linking)
    box.put()
    assert read(box, place) == b"hello"


def test_file_that_cannot_be_removed_does_not_fail_the_write(box, monkeypatch):
    box.put(at=0)
    faults = FaultyOs(fail_at=1, error=errno.EIO, only=frozenset({"unlink"}))
    faults.install(monkeypatch)
    place = box.put(body=b"new", at=1)
    monkeypatch.setattr(fs, "os", os)
    assert read(box, place) == b"new" and box.files(place) == ["0.data", "1.data"]


def test_pickle_of_the_record_is_what_swift_expects(box):
    place = box.put(metadata={"X-Object-Meta-A": "\u00c3\u00a9"})
    path = f"{place.directory}/{layout.data_name(stamp(0))}"
    assert fs.get_xattr(path, RECORD_XATTR) == encode(metadata_of(place, stamp(0), b"hello", {"X-Object-Meta-A": "\u00c3\u00a9"}))
