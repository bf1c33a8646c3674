from __future__ import annotations

import os

import pytest

from keelstore.common import fs
from keelstore.common.errors import DeviceFull
from keelstore.obj import attributes
from keelstore.obj import metadata as records
from keelstore.obj.metadata import ATTRS_XATTR, CHECKSUM_XATTR, MARKER, RECORD_XATTR, BadRecord

SMALL = {"name": "/a/c/o", "X-Timestamp": "1402436408.91203", "Content-Length": "5", "ETag": "e" * 32}
LARGE = {**SMALL, **{f"X-Object-Meta-{i}": "v" * 256 for i in range(40)}}


@pytest.fixture
def fd(tmp_path):
    fd = os.open(tmp_path / "f", os.O_CREAT | os.O_RDWR)
    yield fd
    os.close(fd)


def never() -> bytes | None:
    raise AssertionError("nothing is elsewhere")


def test_what_fits_is_as_swift_writes_it(fd):
    assert attributes.write(fd, SMALL) is None
    assert sorted(fs.list_xattrs(fd)) == sorted([RECORD_XATTR, CHECKSUM_XATTR])
    record = fs.get_xattr(fd, RECORD_XATTR)
    assert record == records.encode(SMALL) and fs.get_xattr(fd, CHECKSUM_XATTR) == records.checksum(record)
    assert attributes.read(fd, never) == SMALL


@pytest.fixture
def small_block(monkeypatch):
    """As ext4 has it, on any file system: all attributes of a file in one block."""
    limit, real = [4000], fs.os.setxattr

    def setxattr(target, name, value):
        used = sum(len(other) + len(os.getxattr(target, other)) + 16 for other in os.listxattr(target) if other != name)
        if used + len(name) + len(value) + 16 > limit[0]:
            raise OSError(28, "No space left on device")
        real(target, name, value)

    monkeypatch.setattr(fs.os, "setxattr", setxattr)
    return limit


@pytest.mark.parametrize("room", [4000, 1900, 900, 600])
def test_what_does_not_fit_is_kept_elsewhere(fd, small_block, room):
    small_block[0] = room
    whole = attributes.write(fd, LARGE)
    assert whole == records.encode(LARGE)
    part = fs.get_xattr(fd, RECORD_XATTR)
    assert part and fs.get_xattr(fd, CHECKSUM_XATTR) == records.checksum(part), "as Swift checks it"
    found = records.decode(part)
    assert found.pop(MARKER) == (fs.get_xattr(fd, ATTRS_XATTR) or b"").decode() and found.items() <= LARGE.items()
    assert attributes.read(fd, lambda: whole) == LARGE


def test_no_room_at_all_is_a_full_device(fd, small_block):
    small_block[0] = 100
    for value in (SMALL, LARGE):
        with pytest.raises(DeviceFull):
            attributes.write(fd, value)
    assert fs.list_xattrs(fd) == []


@pytest.mark.parametrize("whole", [None, b"", b"damaged"])
def test_rest_that_is_missing_or_damaged_is_noticed(fd, small_block, whole):
    assert attributes.write(fd, LARGE)
    with pytest.raises(BadRecord, match="rest of the metadata"):
        attributes.read(fd, lambda: whole)


def test_marker_that_another_server_copied_means_nothing(fd):
    """Swift's SSYNC sends all keys of a record; the receiver has no rest, and is not to look for one."""
    attributes.write(fd, {**SMALL, MARKER: "m" * 32})
    assert attributes.read(fd, never) == SMALL


@pytest.mark.parametrize("size", [254, 65536])
def test_record_in_chunks_is_joined(tmp_path, fd, monkeypatch, size):
    record = records.encode(LARGE)
    stored = {f"{RECORD_XATTR}{i or ''}": record[i * size : (i + 1) * size] for i in range(len(record) // size + 1)}
    stored[CHECKSUM_XATTR] = records.checksum(record)
    monkeypatch.setattr(attributes.fs, "get_xattr", lambda target, name: stored.get(name))
    assert attributes.read(fd, never) == LARGE


def test_wrong_checksum_is_refused_and_a_missing_one_is_not(fd):
    attributes.write(fd, SMALL)
    fs.set_xattr(fd, CHECKSUM_XATTR, b"0" * 32)
    with pytest.raises(BadRecord, match="checksum"):
        attributes.read(fd, never)
    fs.remove_xattr(fd, CHECKSUM_XATTR)
    assert attributes.read(fd, never) == SMALL and not attributes.is_checksummed(fd)
    attributes.add_checksum(fd)
    assert attributes.is_checksummed(fd) and attributes.read(fd, never) == SMALL


def test_file_without_metadata_is_refused(fd):
    with pytest.raises(BadRecord, match="no metadata"):
        attributes.read(fd, never)


def test_truncated_metadata_is_refused(fd):
    attributes.write(fd, SMALL)
    record = fs.get_xattr(fd, RECORD_XATTR) or b""
    fs.remove_xattr(fd, CHECKSUM_XATTR)
    fs.set_xattr(fd, RECORD_XATTR, record[:-10])
    with pytest.raises(BadRecord):
        attributes.read(fd, never)
