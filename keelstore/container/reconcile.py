"""Objects under the wrong policy: the queue that names them, and what is to be done with each. Pure.

When two replicas of a container were created with different policies, one policy wins; rows, and the objects behind them,
that were written under the other are *misplaced*. The queue is the account ``.misplaced_objects``; its containers are hours
(the metadata time of the row, rounded down to 3600 s), its rows name the objects (``spec: on-disk 9, daemons 9``)::

    name          <policy index>:/<account>/<container>/<object>      the policy is the wrong one
    content type  application/x-put, or application/x-delete when the row is that of a deleted object
    etag          the row's created_at, with all its times: the data time is the one that counts
    created_at    the same;  size 0;  policy 0

What a reconciler writes is newer than what the user wrote, and older than what comes 10 us later, by the offset of its
timestamp: +1 for the tombstone in the wrong policy, +2 for the removal of the queue's row, +3 for the object, or its
tombstone, in the right policy. Offsets add up when an object is moved again, so those of tombstones that only clean up are
always one more than a multiple of three. Such a tombstone says nothing that the right policy needs to know: it is not queued,
else it would queue itself without end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final

from keelstore.common.timestamp import ZERO, Timestamp, decode_timestamps

ACCOUNT: Final = ".misplaced_objects"
HOUR_S: Final = 3600
PUT_TYPE: Final = "application/x-put"
DELETE_TYPE: Final = "application/x-delete"
TOMBSTONE_OFFSET, POP_OFFSET, MOVE_OFFSET = 1, 2, 3


# -- the queue ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """A row of the queue. ``timestamp``: the data time of the misplaced row; ``recorded``: the row's last modification."""

    queue: str  # the container of the queue
    name: str
    policy_index: int
    account: str
    container: str
    obj: str
    is_delete: bool
    timestamp: Timestamp
    recorded: Timestamp

    @property
    def path(self) -> str:
        return f"/{self.account}/{self.container}/{self.obj}"


def queue_of(time: Timestamp | float) -> str:
    """The container of the queue for a row whose metadata time this is."""
    return str(int(time) // HOUR_S * HOUR_S)


def entry_name(policy_index: int, account: str, container: str, obj: str) -> str:
    return f"{policy_index}:/{account}/{container}/{obj}"


def parse_name(name: str) -> tuple[int, str, str, str]:
    """The policy index, account, container and object of an entry's name. Raises ValueError."""
    index, colon, path = name.partition(":")
    parts = path.split("/", 3)
    if not colon or not (index.isascii() and index.isdigit()) or len(parts) != 4 or parts[0] or not all(parts[1:]):
        raise ValueError(f"no entry of the queue of misplaced objects: {name!r}")
    return int(index), parts[1], parts[2], parts[3]


def parse_entry(queue: str, listed: Mapping[str, Any]) -> Entry:
    """The entry that a line of a container listing (JSON) stands for. Raises ValueError, KeyError."""
    name = listed["name"]
    index, account, container, obj = parse_name(name)
    content_type = str(listed["content_type"]).partition(";")[0].strip()
    if content_type not in (PUT_TYPE, DELETE_TYPE):
        raise ValueError(f"an entry of the queue of misplaced objects cannot be of type {content_type!r}: {name!r}")
    timestamp = decode_timestamps(str(listed["hash"]))[0]
    return Entry(queue, name, index, account, container, obj, content_type == DELETE_TYPE, timestamp,
                 _listed_time(str(listed["last_modified"])))


def _listed_time(text: str) -> Timestamp:
    """The time that a listing shows. Raises ValueError."""
    moment = datetime.fromisoformat(text.removesuffix("Z")).replace(tzinfo=UTC)
    units = (int(moment.replace(microsecond=0).timestamp()) * 1_000_000 + moment.microsecond) // 10
    return Timestamp.from_raw(units)


def queue_rows(account: str, container: str, rows: Iterable[Mapping[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Rows of a container that are under the wrong policy, as rows of the queue, by the queue's container.

    Each row has the columns of ``object``. Raises ValueError for one whose time cannot be read.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        created_at = row["created_at"]
        data, _, meta = decode_timestamps(created_at)
        if row["deleted"] and data.offset % MOVE_OFFSET == TOMBSTONE_OFFSET:
            continue
        found.setdefault(queue_of(meta if meta is not None else data), []).append({
            "name": entry_name(row["storage_policy_index"], account, container, row["name"]),
            "created_at": created_at, "size": 0, "etag": created_at, "deleted": 0, "storage_policy_index": 0,
            "content_type": DELETE_TYPE if row["deleted"] else PUT_TYPE,
        })  # fmt: skip
    return found


def later(timestamp: Timestamp, offset: int) -> Timestamp:
    """``timestamp`` with so much added to the offset it has."""
    return Timestamp(timestamp, offset=offset)


# -- what is to be done ------------------------------------------------------------------------------------------------


class Step(Enum):
    """``NOTHING``: the object is where it belongs. ``CLEAN``: the right policy knows as much or more, so what the wrong one
    has goes. ``DELETE``: the deletion is carried over. ``COPY``: the object is. ``LOST``: it was never found in so long a
    time that it never will be. ``RETRY``: later.
    """

    NOTHING = "nothing"
    CLEAN = "clean"
    DELETE = "delete"
    COPY = "copy"
    LOST = "lost"
    RETRY = "retry"


@dataclass(frozen=True)
class Found:
    """What a policy has of an object: ``status`` of the request; time of the object's data, or of its tombstone."""

    status: int
    timestamp: Timestamp = ZERO
    is_expired: bool = False

    @property
    def is_there(self) -> bool:
        return 200 <= self.status < 300

    @property
    def is_known(self) -> bool:
        """Whether the policy could say at all."""
        return self.is_there or self.status == 404


def is_settled(entry: Entry, right: Found) -> bool:
    """Whether the right policy has what the entry is about, or something newer."""
    return right.is_known and right.timestamp >= entry.timestamp


def next_step(entry: Entry, source: Found, now: float, reclaim_age_s: float) -> Step:
    """What to do when the right policy has only what is older; ``source``: what the wrong one has.

    A deletion is carried over unless the wrong policy has an object that is as new. An object that is not found, or not as
    new as the entry, may still be on its way, until everything that old would be reclaimed.
    """
    if source.is_there and source.timestamp >= entry.timestamp:
        return Step.DELETE if source.is_expired else Step.COPY
    if not source.is_known:
        return Step.RETRY
    if entry.is_delete:
        return Step.DELETE
    return Step.LOST if float(entry.timestamp) < now - reclaim_age_s else Step.RETRY
