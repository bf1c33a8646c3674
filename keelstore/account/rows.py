"""Container rows of an account, and how two accounts of one container become one row. Pure.

Put and delete time are each the newest known. The counts have no time of their own; they come from whoever knows of the newer
put or delete, so that an update that was under way for long neither brings a deleted container back nor undoes a count of a
recreated one. At equal times the later arrival counts: containers report their counts again until the account has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from keelstore.common.timestamp import Timestamp


@dataclass(frozen=True, slots=True)
class ContainerRow:
    """What an account knows of one container; None: not told. Times as :func:`time_text` gives them."""

    name: str
    put_timestamp: str | None
    delete_timestamp: str | None
    object_count: int | None
    bytes_used: int | None
    policy_index: int | None

    @classmethod
    def from_item(cls, item: Mapping[str, Any]) -> ContainerRow:
        """The row of a peer's or a pending item. Raises ValueError, KeyError, TypeError for what is none."""
        name = item["name"]
        if not isinstance(name, str) or not name:
            raise ValueError("a row needs a name")
        put, delete, policy = item["put_timestamp"], item["delete_timestamp"], item.get("storage_policy_index")
        return cls(
            name, None if put is None else time_text(put), None if delete is None else time_text(delete),
            _number(item["object_count"]), _number(item["bytes_used"]), None if policy is None else int(policy),
        )  # fmt: skip

    @property
    def deleted(self) -> int:
        """1 when it was deleted after it was last put, and holds nothing."""
        return int((self.delete_timestamp or "0") > (self.put_timestamp or "0") and not self.object_count)

    @property
    def activity(self) -> str:
        return max(self.put_timestamp or "0", self.delete_timestamp or "0")

    def values(self) -> tuple[str, str, str, int, int, int, int]:
        """The columns name, put, delete, object count, bytes, deleted, policy."""
        return (
            self.name, self.put_timestamp or "0", self.delete_timestamp or "0", self.object_count or 0,
            self.bytes_used or 0, self.deleted, self.policy_index or 0,
        )  # fmt: skip


def time_text(text: str) -> str:
    """A timestamp as rows hold it: internal form, but ``0`` stays ``0``, since the hash of a row is made of this text.

    Such texts order as the times do. Raises ValueError.
    """
    return "0" if text == "0" else Timestamp(text).internal


def _number(value: Any) -> int | None:
    return None if value is None else int(value)


def merge(known: ContainerRow, new: ContainerRow) -> ContainerRow:
    """The row that ``known`` becomes when ``new`` arrives. They have the same name."""
    first, second = (new, known) if new.activity >= known.activity else (known, new)
    return ContainerRow(
        known.name, _newest(known.put_timestamp, new.put_timestamp),
        _newest(known.delete_timestamp, new.delete_timestamp),
        second.object_count if first.object_count is None else first.object_count,
        second.bytes_used if first.bytes_used is None else first.bytes_used,
        second.policy_index if first.policy_index is None else first.policy_index,
    )  # fmt: skip


def _newest(one: str | None, other: str | None) -> str | None:
    if one is None or other is None:
        return one if other is None else other
    return max(one, other)


def item_of(record: Sequence[Any]) -> dict[str, Any]:
    """The item of one record of an account's ``.pending`` file. Raises IndexError, TypeError."""
    return {
        "name": record[0], "put_timestamp": record[1], "delete_timestamp": record[2], "object_count": record[3],
        "bytes_used": record[4], "deleted": record[5], "storage_policy_index": record[6] if len(record) > 6 else 0,
    }  # fmt: skip
