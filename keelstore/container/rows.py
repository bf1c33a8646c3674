"""Object rows, and how two accounts of one object become one row. Pure.

A row holds three things, each with its time: the data (size, etag, deleted, and the ``swift_bytes`` that travels in the
content type), the content type, and the time of the last metadata change. Each is taken from whoever is newer in it, so rows
merge in any order, any number of times and in any grouping to the same row. ``created_at`` holds all three times
(:func:`~keelstore.common.timestamp.encode_timestamps`).

Equal times. Data: deleted wins, then the greater (etag, size, swift_bytes). Content type: any other wins over that of a
tombstone, then the greater. Content-type and metadata times are compared without offset, because the encoding drops it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from keelstore.common.listing_render import split_swift_bytes
from keelstore.common.timestamp import Timestamp, decode_timestamps, encode_timestamps

DELETED_TYPE = "application/deleted"
DELETED_ETAG = "noetag"


class ObjectRow(NamedTuple):
    """What is known of one object. ``content_type_raw`` and ``meta_raw`` are times in raw units."""

    name: str
    policy_index: int
    data_timestamp: Timestamp
    content_type_raw: int
    meta_raw: int
    size: int
    etag: str
    deleted: int
    content_type: str
    swift_bytes: str

    @classmethod
    def from_item(cls, item: Mapping[str, Any]) -> ObjectRow:
        """The row of a peer's or a pending item. Raises ValueError, KeyError, TypeError for what is none.

        Keys: the columns of ``object`` and, optionally, ``data_timestamp``, ``ctype_timestamp``, ``meta_timestamp``.
        """
        text = item.get("data_timestamp") or item["created_at"]
        if len(text) == 16:
            data = Timestamp(text)
            content_type_raw = meta_raw = data.raw
        else:
            data, second, third = decode_timestamps(text)
            content_type_raw = second.raw if second is not None else data.raw
            meta_raw = third.raw if third is not None else content_type_raw
        explicit = item.get("ctype_timestamp")
        if explicit:
            content_type_raw = meta_raw = Timestamp(explicit).raw
        explicit = item.get("meta_timestamp")
        if explicit:
            meta_raw = Timestamp(explicit).raw
        content_type, swift_bytes = split_swift_bytes(item["content_type"])
        name = item["name"]
        if not isinstance(name, str) or not name:
            raise ValueError("a row needs a name")
        return cls(
            name, int(item.get("storage_policy_index") or 0), data, content_type_raw, meta_raw, int(item["size"]),
            str(item["etag"]), 1 if item.get("deleted") in (1, True, "1") else 0, content_type, swift_bytes or "",
        )  # fmt: skip

    @classmethod
    def from_record(cls, record: Sequence[Any]) -> ObjectRow:
        """The row of one record of a container's ``.pending`` file. Raises IndexError and as ``from_item``."""
        if len(record) == 9:
            name, created_at, size, content_type, etag, deleted, policy_index, content_type_at, meta_at = record
            # what nearly all are: one time for everything, and each value of its type
            if (content_type_at is None and meta_at is None and len(created_at) == 16 and "swift_bytes" not in content_type
                    and name and type(name) is str and type(etag) is str and type(size) is int
                    and type(deleted) is int and type(policy_index) is int):
                data = Timestamp(created_at)
                return cls(name, policy_index, data, data.raw, data.raw, size, etag, int(deleted == 1), content_type, "")
        return cls.from_item(item_of(record))

    @property
    def key(self) -> tuple[str, int]:
        return self.name, self.policy_index

    @property
    def created_at(self) -> str:
        if self.data_timestamp.raw == self.content_type_raw == self.meta_raw:
            return self.data_timestamp.short
        content_type = Timestamp.from_raw(self.content_type_raw)
        return encode_timestamps(self.data_timestamp, content_type, Timestamp.from_raw(self.meta_raw))

    @property
    def full_content_type(self) -> str:
        return f"{self.content_type};swift_bytes={self.swift_bytes}" if self.swift_bytes else self.content_type

    @property
    def _data_key(self) -> tuple[int, int, int, str, int, str]:
        data = self.data_timestamp
        return data.raw, data.offset, self.deleted, self.etag, self.size, self.swift_bytes

    @property
    def _content_type_key(self) -> tuple[int, bool, str]:
        return self.content_type_raw, self.content_type != DELETED_TYPE, self.content_type


def merge(one: ObjectRow, other: ObjectRow) -> ObjectRow:
    """The row that both make together; ``one`` itself when the other adds nothing. They have the same key."""
    merged = one
    if other._data_key > one._data_key:
        merged = merged._replace(data_timestamp=other.data_timestamp, size=other.size, etag=other.etag,
                                 deleted=other.deleted, swift_bytes=other.swift_bytes)  # fmt: skip
    if other._content_type_key > one._content_type_key:
        merged = merged._replace(content_type_raw=other.content_type_raw, content_type=other.content_type)
    if other.meta_raw > one.meta_raw:
        merged = merged._replace(meta_raw=other.meta_raw)
    return merged


def deletion(name: str, timestamp: str, policy_index: int) -> tuple[Any, ...]:
    """The record of a ``.pending`` file for a row that goes."""
    return (name, timestamp, 0, DELETED_TYPE, DELETED_ETAG, 1, policy_index, None, None)


def item_of(record: Sequence[Any]) -> dict[str, Any]:
    """The item of one record of a container's ``.pending`` file. Raises IndexError, TypeError."""
    return {
        "name": record[0], "created_at": record[1], "size": record[2], "content_type": record[3], "etag": record[4],
        "deleted": record[5],
        "storage_policy_index": record[6] if len(record) > 6 else 0,
        "ctype_timestamp": record[7] if len(record) > 7 else None,
        "meta_timestamp": record[8] if len(record) > 8 else None,
    }  # fmt: skip


def meta_time(created_at: str) -> str:
    """The internal form of the last time that ``created_at`` holds: what a listing shows."""
    if len(created_at) == 16:
        return created_at
    third = decode_timestamps(created_at)[2]
    return third.internal if third is not None else created_at
