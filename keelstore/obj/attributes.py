"""The metadata of an open object file: read and written (format: ``metadata.py``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from keelstore.common import fs
from keelstore.common.errors import DeviceFull
from keelstore.obj import metadata as records
from keelstore.obj.metadata import ATTRS_XATTR, CHECKSUM_XATTR, MARKER, RECORD_XATTR, BadRecord

# Bytes to try for a record that must be cut. An ext4 block of 4096 takes about 4000 with the other attributes beside
# it; what other software (labels, access lists) has there is not known, and blocks may be of 1024 bytes.
_ROOMS = (3700, 3000, 2000, 1000, 700, 300, 150)


def read(fd: int, elsewhere: Callable[[], bytes | None]) -> dict[str, str]:
    """The metadata of an open file. Raises BadRecord when it cannot be trusted, OSError, XattrNotSupported.

    ``elsewhere`` gives the whole record of a file whose attributes hold only a part of it; None when that is missing.
    """
    record = fs.get_xattr(fd, RECORD_XATTR)
    if record is None:
        raise BadRecord("no metadata")
    if records.may_continue(record):
        record = _read_on(fd, record)
    wanted = fs.get_xattr(fd, CHECKSUM_XATTR)
    if wanted is not None and records.checksum(record) != wanted:
        raise BadRecord("metadata checksum does not match")
    found = records.decode(record)
    if MARKER in found:
        mark = fs.get_xattr(fd, ATTRS_XATTR)
        if mark is None:  # a server that does not know of it copied what it saw
            del found[MARKER]
            return found
        whole = elsewhere()
        if whole is None:
            raise BadRecord("the rest of the metadata is missing")
        if records.checksum(whole) != mark:
            raise BadRecord("the rest of the metadata is damaged")
        return records.decode(whole)
    return found


def _read_on(fd: int, first: bytes) -> bytes:
    parts = [first]
    while len(parts) < 1024:
        part = fs.get_xattr(fd, f"{RECORD_XATTR}{len(parts)}")
        if part is None:
            break
        parts.append(part)
    return b"".join(parts)


def is_checksummed(fd: int) -> bool:
    """Whether the file has a metadata checksum; the auditor adds missing ones."""
    return fs.get_xattr(fd, CHECKSUM_XATTR) is not None


def add_checksum(fd: int) -> None:
    record = fs.get_xattr(fd, RECORD_XATTR) or b""
    fs.set_xattr(fd, CHECKSUM_XATTR, records.checksum(_read_on(fd, record)))


def write(fd: int, metadata: Mapping[str, str]) -> bytes | None:
    """Set the metadata of a new file. None when the attributes took it all.

    Else they hold what fits, and the whole record is given back: the caller must put it where ``read``'s
    ``elsewhere`` will look, before the file gets its name. Raises DeviceFull, XattrNotSupported.
    """
    record = records.encode(metadata)
    try:
        if len(record) <= records.CHUNK:
            fs.set_xattr(fd, RECORD_XATTR, record)
        else:
            for name, chunk in records.chunks(record):
                fs.set_xattr(fd, name, chunk)
        fs.set_xattr(fd, CHECKSUM_XATTR, records.checksum(record))
        return None
    except DeviceFull:
        if len(record) < _ROOMS[-1]:
            raise  # such a record fits anywhere
    _forget(fd)
    mark = records.checksum(record)
    full = DeviceFull("no room for the attributes of a file")
    for room in _ROOMS:
        if room >= len(record):
            continue
        part = records.cut(metadata, room, mark.decode("ascii"))
        if part is None:
            break
        try:
            fs.set_xattr(fd, RECORD_XATTR, part)
            fs.set_xattr(fd, CHECKSUM_XATTR, records.checksum(part))
            fs.set_xattr(fd, ATTRS_XATTR, mark)
            return record
        except DeviceFull as error:
            full = error
            _forget(fd)
    raise full


def _forget(fd: int) -> None:
    for name in fs.list_xattrs(fd):
        if name.startswith((RECORD_XATTR, ATTRS_XATTR)):
            fs.remove_xattr(fd, name)
