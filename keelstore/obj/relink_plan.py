"""Pure: what a relinker does to a hash directory, and what it remembers of a device (``spec: daemons 21``).

While a ring's part power grows by one, an object has two places on a device: in its *old* partition and in the *new*
one, by the power that the ring names as its next. ``relink`` gives every file of the old place a second name in the
new one; when the rings have the new power, ``cleanup`` takes the old names away. A cancelled increase is cleaned up by
the same rule: then the ring's next power is the one that it has, and what is not where that says moves there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from keelstore.common.names import partition_of
from keelstore.obj.fileset import resolve
from keelstore.obj.layout import ATTRS, DATA, DURABLE, META, TOMBSTONE, StoredFile, data_name, parse_name

RELINK: Final = "relink"
CLEANUP: Final = "cleanup"
STEPS: Final = (RELINK, CLEANUP)
MAX_POWER: Final = 32


def applies(step: str, part_power: int, next_part_power: int | None) -> bool:
    """Whether a step is what a ring asks for: relink once it is prepared, cleanup once it is increased or cancelled."""
    return next_part_power is not None and (next_part_power == part_power) == (step == CLEANUP)


def new_partition(name_hash: str, next_part_power: int) -> int:
    """Where an object belongs by the ring's next power."""
    return partition_of(bytes.fromhex(name_hash[:8]), MAX_POWER - next_part_power)


# -- one hash directory ------------------------------------------------------------------------------------------------

_LINK_ORDER: Final = {ATTRS: 0, DATA: 1, DURABLE: 2, META: 3, TOMBSTONE: 4}
_REMOVAL_ORDER: Final = {DATA: 0, DURABLE: 1, ATTRS: 2, META: 3, TOMBSTONE: 5}
_UNKNOWN: Final = 4


class HashDirPlan(NamedTuple):
    """``links``: names of the old place that the new one needs, in order. ``removals``: all names of the old place, in the
    order in which they may go once those are linked. ``is_untidy``: something here is, or may soon be, to be removed
    anyway. ``twins``: names of the new place that a fragment had before its commit, which gave it another.
    """

    links: tuple[str, ...] = ()
    removals: tuple[str, ...] = ()
    is_untidy: bool = False
    twins: tuple[str, ...] = ()


def plan_hash_dir(old: Iterable[str], new: Iterable[str], fragments: int, step: str) -> HashDirPlan:
    """What one object needs, by the names in its two hash directories.

    Files of both places are one object: the rules of ``fileset`` say which of them count, and what is obsolete is not
    linked. Names that are none of ours are linked by cleanup only, so that a directory can go and nothing is lost.

    Order of links: attributes before the data that needs them, data before what is posted to it (metadata alone may be
    taken for rubbish). Order of removals: what is obsolete first, the tombstone last, so that a reader of the old place
    finds the newest, or nothing, and never what was before.
    """
    old, new = list(old), set(new)
    files = {name: file for name in {*old, *new} if (file := parse_name(name, fragments)) is not None}
    found = resolve(files.values(), stores_fragments=fragments > 0)
    obsolete = {file.name for file in found.obsolete}
    early = _before_commit(files)
    unknown = [name for name in old if name not in files]
    links = [name for name in old if name in files and name not in obsolete and name not in early]
    links.sort(key=lambda name: (_LINK_ORDER[files[name].kind], name))
    if step == CLEANUP:
        links += sorted(unknown)
    removals = sorted(old, key=lambda name: (
        name not in obsolete, _REMOVAL_ORDER[files[name].kind] if name in files else _UNKNOWN, name))
    is_untidy = bool(found.obsolete or found.reclaimable or found.tombstone)
    return HashDirPlan(tuple(links), tuple(removals), is_untidy, tuple(sorted(early & new)))


def _before_commit(files: Mapping[str, StoredFile]) -> set[str]:
    """The names of fragments that have their durable names, too: the commit reached one of the places only."""
    return {name for name, file in files.items() if file.kind == DATA and file.fragment is not None and not file.is_durable
            and data_name(file.timestamp, file.fragment, True) in files}


# -- what is remembered of a device ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Powers:
    """Of a ring, with its version: what the state of a device is about."""

    part_power: int
    next_part_power: int
    version: int | None = None


@dataclass
class State:
    """Which partitions of a device and policy are done. ``previous``: the power before an increase that was relinked
    here: old places are in partitions below 2 to that power only.
    """

    powers: Powers
    done: dict[int, bool] = field(default_factory=dict)
    previous: int | None = None

    def adopt(self, partitions: Iterable[int], step: str) -> None:
        """Take in the partitions of the device. One that came since the first look is done, as who made it has linked it; for
        cleanup it is not.
        """
        is_first = not self.done
        limit = limit_of(self, step)
        for partition in partitions:
            if limit is None or partition < limit:
                self.done.setdefault(partition, step == RELINK and not is_first)

    def to_do(self) -> list[int]:
        """Highest first: links go into partitions at least as high as their own, which are then done already."""
        return sorted((partition for partition, is_done in self.done.items() if not is_done), reverse=True)

    @property
    def count_done(self) -> int:
        return sum(self.done.values())


def limit_of(state: State, step: str) -> int | None:
    """Partitions from this number on hold nothing in its old place; None: any may."""
    if step == RELINK:
        return 1 << state.powers.part_power
    return None if state.previous is None else 1 << state.previous


def encode(state: State) -> bytes:
    value: dict[str, Any] = {"part_power": state.powers.part_power, "next_part_power": state.powers.next_part_power,
                             "state": {str(partition): is_done for partition, is_done in state.done.items()}}
    if state.previous is not None:
        value["prev_part_power"] = state.previous
    if state.powers.version is not None:
        value["ring_version"] = state.powers.version
    return json.dumps(value).encode("ascii")


def decode(data: bytes | None, powers: Powers) -> State | None:
    """What a state file says that holds for a ring of these powers; None: nothing, and the file is to go.

    After an increase the file of the relinking is superseded: what is left of it is the power before. The version of the
    ring is ours: an increase that was cancelled and prepared anew has the same powers, and nothing is done.
    """
    try:
        value = json.loads(data or b"")
        power, following, states = value["part_power"], value["next_part_power"], value["state"]
        previous = value.get("prev_part_power")
        done = {int(name): is_done for name, is_done in states.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    is_sound = (all(isinstance(is_done, bool) for is_done in done.values()) and min(done, default=0) >= 0
                and type(power) is int and type(following) is int
                and (previous is None or (type(previous) is int and 0 <= previous <= MAX_POWER)))
    if not is_sound or following != powers.next_part_power:
        return None
    if power == powers.part_power:
        return State(powers, done if value.get("ring_version", powers.version) == powers.version else {}, previous)
    if power == powers.part_power - 1:
        return State(powers, {}, power)
    return None
