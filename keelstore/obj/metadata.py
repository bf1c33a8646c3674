"""Pure: the metadata record of an object file (``spec: on-disk 3.4``; ours: ``doc/formats/objects.md``).

A record is a pickle, protocol 2, of a dict with bytes keys and values, cut into chunks of 65536 bytes; its checksum
is the hex MD5 of the whole. In memory it is a dict of str: header names Title-Cased, values *wire strings* (the
octets of the wire as latin-1, as WSGI has them), but ``name``, which is text. Both are UTF-8 (surrogateescape) in the
pickle: an octet FF of a header is C3 BF on disk. That is how Swift on Python 3 has it; a record of Python 2 holds the
octets themselves.

What does not fit into the attributes of a file system with little room (ext4: one block) is kept as one whole record
in another place, named by MARKER in a record that holds what does fit.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from functools import lru_cache
from hashlib import md5

from keelstore.common import plainpickle
from keelstore.common.headers import is_sysmeta
from keelstore.common.timestamp import Timestamp

RECORD_XATTR = "user.swift.metadata"
CHECKSUM_XATTR = "user.swift.metadata_checksum"
ATTRS_XATTR = "user.keelstore.attrs"  # hex MD5 of the whole record that is kept elsewhere
CHUNK = 65536
MARKER = "X-Keelstore-Attrs"  # key of a cut record; its value is that of ATTRS_XATTR

_PYTHON3_MARK = b"_codecs\nencode"
_FROM_DATA = ("Content-Length", "deleted", "ETag", "X-Static-Large-Object")  # a POST does not change these
_FIRST = ("X-Timestamp", "Content-Type", "Content-Length", "ETag", "Content-Type-Timestamp")


class BadRecord(ValueError):
    """Metadata that is missing, or cannot be read, or whose checksum is wrong."""


def encode(metadata: Mapping[str, str]) -> bytes:
    """The record of ``metadata``."""
    return _encoded(tuple(metadata.items()))


@lru_cache(maxsize=16)
def _encoded(items: tuple[tuple[str, str], ...]) -> bytes:
    """Remembered for a moment: the servers of all copies of an object, in one process, write the same."""
    return pickle.dumps(
        {key.encode("utf-8", "surrogateescape"): value.encode("utf-8", "surrogateescape") for key, value in items},
        protocol=2,
    )  # fmt: skip


def decode(record: bytes) -> dict[str, str]:
    """The metadata of a record, of Python 3 or 2. Raises BadRecord."""
    return dict(_decoded(record))


@lru_cache(maxsize=16)
def _decoded(record: bytes) -> dict[str, str]:
    """Remembered for a moment, as by :func:`_encoded`."""
    try:
        value = plainpickle.loads(record, encoding="bytes")
    except ValueError as error:
        raise BadRecord(str(error)) from None
    if type(value) is not dict:
        raise BadRecord("the record is not a dict")
    if _PYTHON3_MARK in record[:32]:
        try:
            return {
                key.decode("utf-8", "surrogateescape"): item.decode("utf-8", "surrogateescape")
                for key, item in value.items()
            }
        except AttributeError:
            pass  # not all are bytes
        codec = "utf-8"
    else:
        codec = "latin-1"
    found = {}
    for key, item in value.items():
        name = key.decode(codec, "surrogateescape") if isinstance(key, bytes) else key
        if not isinstance(name, str) or not isinstance(item, (bytes, str, int, float)):
            raise BadRecord("the record holds more than strings")
        if isinstance(item, bytes):
            item = item.decode("utf-8" if name == "name" else codec, "surrogateescape")
        found[name] = str(item)
    return found


@lru_cache(maxsize=16)  # as _encoded
def checksum(record: bytes) -> bytes:
    return md5(record, usedforsecurity=False).hexdigest().encode("ascii")


def chunks(record: bytes) -> list[tuple[str, bytes]]:
    """The attributes that hold a record, by name."""
    return [
        (f"{RECORD_XATTR}{start // CHUNK or ''}", record[start : start + CHUNK])
        for start in range(0, len(record), CHUNK)
    ]


def may_continue(chunk: bytes) -> bool:
    """Whether a further chunk may follow: this one is full (old writers filled 254 bytes), or the pickle has no end."""
    return len(chunk) in (CHUNK, 254) or not chunk.endswith(b".")


def cut(metadata: Mapping[str, str], room: int, mark: str) -> bytes | None:
    """A record of at most ``room`` bytes with MARKER = ``mark`` and what fits, the most needed first.

    None when not even the marker fits. What comes first: times, type, size and ETag, the name, system metadata, then
    the rest.
    """

    def rank(key: str) -> int:
        if key in _FIRST:
            return 0
        if key == "name":
            return 1
        return 2 if is_sysmeta("object", key) else 3

    kept = {MARKER: mark}
    size = len(encode(kept))
    if size > room:
        return None
    for key in sorted(metadata, key=rank):
        value = metadata[key]
        # a bound: each byte may take two, opcodes and memo entries up to 48 an item
        size += 2 * (len(key.encode("utf-8", "surrogateescape")) + len(value.encode("utf-8", "surrogateescape"))) + 48
        if size > room:
            size = len(encode({**kept, key: value}))
            if size > room:
                size = len(encode(kept))
                continue
        kept[key] = value
    return encode(kept)


def merge(
    data: Mapping[str, str], meta: Mapping[str, str], ctype: Mapping[str, str] | None, data_timestamp: Timestamp
) -> dict[str, str]:
    """What an object shows when a metadata file applies to its data.

    User metadata and the other headers are those of ``meta`` alone; what belongs to the body, and system metadata,
    are those of ``data``. The content type is the newest of ``ctype`` (or ``meta`` when None) and ``data``, by its
    own timestamp.
    """
    merged = dict(meta)
    for key in _FROM_DATA:
        if key in data:
            merged[key] = data[key]
        else:
            merged.pop(key, None)
    for key in [key for key in merged if is_sysmeta("object", key)]:
        del merged[key]
    for key, value in data.items():
        if is_sysmeta("object", key):
            merged[key] = value
    if "name" in data:
        merged["name"] = data["name"]
    source = meta if ctype is None else ctype
    stamp = source.get("Content-Type-Timestamp")
    if stamp is not None and "Content-Type" in source and Timestamp(stamp) > data_timestamp:
        merged["Content-Type"] = source["Content-Type"]
        merged["Content-Type-Timestamp"] = stamp
    else:
        merged.pop("Content-Type-Timestamp", None)
        merged.pop("Content-Type", None)
        if "Content-Type" in data:
            merged["Content-Type"] = data["Content-Type"]
    return merged
