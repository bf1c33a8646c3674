"""Namespaces and shard ranges: which part of a container's names is where. Pure.

A range holds the names above ``lower`` up to and including ``upper``; '' as a bound means without end. Each field of a shard
range belongs to one of three timestamps (bounds and deletion, counts, state), so that two nodes merge what they know field by
field (``spec: on-disk 7.5``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, Final

from keelstore.common.timestamp import ZERO, Timestamp

NO_END: Final = ""
_ABOVE_ALL: Final = "\U0010ffff" * 2  # sorts after any name that a bound can hold


class State(IntEnum):
    FOUND = 10
    CREATED = 20
    CLEAVED = 30
    ACTIVE = 40
    SHRINKING = 50
    SHARDING = 60
    SHARDED = 70
    SHRUNK = 80


STATS_STATES: Final = frozenset({State.ACTIVE, State.SHARDING, State.SHRINKING})
LISTING_STATES: Final = STATS_STATES | {State.CLEAVED}
UPDATING_STATES: Final = frozenset({State.CREATED, State.CLEAVED, State.ACTIVE, State.SHARDING})
AUDITING_STATES: Final = frozenset(State) - {State.FOUND}
CLEAVED_AWAY_STATES: Final = frozenset({State.SHRINKING, State.SHRUNK, State.SHARDING, State.SHARDED})

STATE_SETS: Final[Mapping[str, frozenset[State]]] = {
    "listing": LISTING_STATES, "updating": UPDATING_STATES, "auditing": AUDITING_STATES,
}  # fmt: skip


def parse_states(text: str) -> frozenset[State]:
    """A comma separated list of state names, numbers and set names. Raises ValueError ``Bad state``."""
    found: set[State] = set()
    for word in text.split(","):
        word = word.strip()
        if word in STATE_SETS:
            found |= STATE_SETS[word]
        else:
            found.add(parse_state(word))
    return frozenset(found)


def parse_state(value: object) -> State:
    """A state by name or number. Raises ValueError."""
    text = str(value).strip()
    try:
        return State(int(text)) if text.isascii() and text.isdigit() else State[text.upper()]
    except (KeyError, ValueError):
        raise ValueError(f"Bad state {text[:40]!r}") from None


@dataclass(frozen=True, slots=True)
class Namespace:
    """A part of a container's names that is kept in the container ``name`` (``account/container``)."""

    name: str
    lower: str = NO_END
    upper: str = NO_END

    def holds(self, name: str) -> bool:
        return name > self.lower and (not self.upper or name <= self.upper)

    def overlaps(self, marker: str, end_marker: str) -> bool:
        """Whether some name above ``marker`` and below ``end_marker`` ('' : without end) may be in it."""
        return (not self.upper or self.upper > marker) and (not end_marker or self.lower < end_marker)

    @property
    def upper_key(self) -> str:
        """``upper`` as something to sort by."""
        return self.upper or _ABOVE_ALL

    @property
    def end_marker(self) -> str:
        """The least name above the range; '' when it has no end."""
        return self.upper + "\x00" if self.upper else ""

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "lower": self.lower, "upper": self.upper}


@dataclass(frozen=True, slots=True)
class ShardRange(Namespace):
    """A Namespace with what sharding needs to know of it.

    ``timestamp`` dates the bounds and ``is_deleted``, ``meta_timestamp`` the counts, ``state_timestamp`` state and epoch.
    ``epoch`` names the database file that holds the range's container while and after it is sharded itself. ``is_reported``:
    the root has these counts. ``tombstones`` -1: not known.
    """

    timestamp: Timestamp = ZERO
    object_count: int = 0
    bytes_used: int = 0
    meta_timestamp: Timestamp = ZERO
    is_deleted: bool = False
    state: State = State.FOUND
    state_timestamp: Timestamp = ZERO
    epoch: Timestamp | None = None
    is_reported: bool = False
    tombstones: int = -1

    @classmethod
    def create(cls, name: str, timestamp: Timestamp, lower: str = NO_END, upper: str = NO_END, **more: Any) -> ShardRange:
        """A range whose other timestamps, where not given, equal ``timestamp``."""
        return cls(name, lower, upper, timestamp,
                   meta_timestamp=more.pop("meta_timestamp", None) or timestamp,
                   state_timestamp=more.pop("state_timestamp", None) or timestamp, **more)  # fmt: skip

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ShardRange:
        """The range of a peer's or a client's JSON object. Raises ValueError saying which key is wrong."""
        if not isinstance(data, Mapping):
            raise ValueError("a shard range is an object")
        name, lower, upper = (_text(data, key) for key in ("name", "lower", "upper"))
        account, slash, container = name.partition("/")
        if not account or not slash or not container:
            raise ValueError("name: expected account/container")
        if lower and upper and lower >= upper:
            raise ValueError("lower: expected a name below upper")
        timestamp = _time(data, "timestamp")
        if timestamp is None:
            raise ValueError("timestamp: missing")
        return cls(
            name, lower, upper, timestamp,
            _count(data, "object_count"), _count(data, "bytes_used"), _time(data, "meta_timestamp") or timestamp,
            _flag(data, "deleted"), parse_state(data.get("state") or State.FOUND),
            _time(data, "state_timestamp") or timestamp, _time(data, "epoch"),
            _flag(data, "reported"), _count(data, "tombstones", -1),
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name, "timestamp": self.timestamp.internal, "lower": self.lower, "upper": self.upper,
            "object_count": self.object_count, "bytes_used": self.bytes_used,
            "meta_timestamp": self.meta_timestamp.internal, "deleted": int(self.is_deleted), "state": int(self.state),
            "state_timestamp": self.state_timestamp.internal,
            "epoch": self.epoch.internal if self.epoch is not None else None,
            "reported": int(self.is_reported), "tombstones": self.tombstones,
        }  # fmt: skip

    @property
    def sort_key(self) -> tuple[str, int, str, str]:
        return self.upper_key, int(self.state), self.lower, self.name


def _text(data: Mapping[str, Any], key: str) -> str:
    value = data.get(key, "")
    if not isinstance(value, str):
        raise ValueError(f"{key}: expected text")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError(f"{key}: expected valid UTF-8") from None
    return value


def _time(data: Mapping[str, Any], key: str) -> Timestamp | None:
    value = data.get(key)
    if value is None or value == "":
        return None
    if not isinstance(value, (str, int, float)) or "_" in str(value):
        raise ValueError(f"{key}: expected a timestamp without offset")
    try:
        return Timestamp(value)
    except ValueError:
        raise ValueError(f"{key}: expected a timestamp") from None


def _count(data: Mapping[str, Any], key: str, least: int = 0) -> int:
    value = data.get(key, least)
    try:
        value = int(value)
    except (TypeError, ValueError):
        raise ValueError(f"{key}: expected a whole number") from None
    if value < least or value >= 1 << 63:
        raise ValueError(f"{key}: expected a whole number of {least} or more")
    return value


def _flag(data: Mapping[str, Any], key: str) -> bool:
    value = data.get(key, 0)
    if value not in (0, 1, "0", "1"):
        raise ValueError(f"{key}: expected 0 or 1")
    return bool(int(value))


def merge(new: ShardRange, existing: ShardRange | None) -> ShardRange | None:
    """What two accounts of one range make together, or None when ``new`` tells nothing that ``existing`` did not.

    Newer bounds replace everything, and what was reported no longer is. With equal bounds the counts come from the newer
    ``meta_timestamp``, state and epoch from the newer ``state_timestamp`` (at equal times the further state wins). The range
    stays reported only while counts, tombstones, state and epoch stay as they were.
    """
    if existing is None:
        return new
    if existing.timestamp < new.timestamp:
        return replace(new, is_reported=False)
    if existing.timestamp > new.timestamp:
        return None
    merged, is_changed = existing, False
    if new.meta_timestamp > existing.meta_timestamp:
        is_changed = True
        merged = replace(merged, object_count=new.object_count, bytes_used=new.bytes_used,
                         meta_timestamp=new.meta_timestamp, tombstones=new.tombstones)  # fmt: skip
    further = new.state_timestamp == existing.state_timestamp and new.state > existing.state
    if further or new.state_timestamp > existing.state_timestamp:
        is_changed = True
        merged = replace(merged, state=new.state, state_timestamp=new.state_timestamp, epoch=new.epoch)
    if existing.is_reported and _reportable(merged) == _reportable(existing):
        is_reported = True
    elif new.is_reported and not existing.is_reported and _reportable(merged) == _reportable(new):
        is_reported = is_changed = True
    else:
        is_reported = False
    return replace(merged, is_reported=is_reported) if is_changed else None


def _reportable(shard: ShardRange) -> tuple[int, int, int, State, Timestamp | None]:
    return shard.object_count, shard.bytes_used, shard.tombstones, shard.state, shard.epoch


def select(
    ranges: Iterable[ShardRange], *, marker: str = "", end_marker: str = "", includes: str = "",
    states: frozenset[State] | None = None, include_deleted: bool = False, is_reverse: bool = False,
) -> list[ShardRange]:
    """The ranges that may hold names between the markers (or the one name ``includes``), in order of their upper bounds.

    ``is_reverse``: the markers are given from above, and so are the ranges.
    """  # fmt: skip
    if is_reverse:
        marker, end_marker = end_marker, marker
    found = [
        shard for shard in ranges
        if (include_deleted or not shard.is_deleted)
        and (not states or shard.state in states)
        and (shard.holds(includes) if includes else shard.overlaps(marker, end_marker))
    ]  # fmt: skip
    found.sort(key=lambda shard: shard.sort_key, reverse=is_reverse)
    return found[:1] if includes else found


def filler(found: list[ShardRange], own: ShardRange, marker: str, end_marker: str) -> ShardRange | None:
    """The range, in the container's own name, from the end of ``found`` to the end of what was asked for; None if no gap."""
    if found and not found[-1].upper:
        return None
    last = found[-1].upper if found else max(own.lower, marker)
    wanted = own.upper
    if end_marker and (not wanted or end_marker < wanted):
        wanted = end_marker
    if wanted and last >= wanted:
        return None
    return replace(own, lower=last, upper=wanted)
