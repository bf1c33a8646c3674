"""Pure: what a database on a device of this node needs, and what one peer needs of it (``spec: daemons 4``).

A device that belongs to the database's partition (a *primary*) brings the others what they lack. One that does not (it was
created there while a primary was away, or a new ring moved the partition) brings everything to all primaries, and goes when
they are proven to hold it.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from keelstore.common.names import database_file
from keelstore.common.ring.ring import Node

SMALL_SHARE = 0.5  # of our rows: with less than that, a peer gets the whole file


class Kind(Enum):
    SYNC = "sync"
    REVERT = "revert"


class RingView(Protocol):
    """What of a ring is asked here."""

    @property
    def version(self) -> int | None: ...

    def partition(self, digest: bytes) -> int: ...

    def primaries(self, part: int) -> Sequence[Node]: ...


@dataclass(frozen=True, slots=True)
class Job:
    """One database: ``path`` is its hash directory, ``partition`` where it belongs, which may differ from where it is.
    ``targets``: the primaries but the device itself, in the order of asking.
    """

    kind: Kind
    device: str
    device_path: str
    path: str
    partition: int
    own: Node
    targets: tuple[Node, ...]
    ring_version: int | None

    @property
    def name_hash(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def database(self) -> str:
        return database_file(self.path)

    def __str__(self) -> str:
        where = " ".join(node.key for node in self.targets)
        return f"{self.kind.value} {self.path} with {where}"


def job_of(ring: RingView, own: Node, device_path: str, path: str, chance: random.Random | None = None) -> Job | None:
    """What the database in the hash directory ``path``, on the device ``own``, needs; None when it belongs nowhere.

    A sync asks the others in the order of the ring, from the device's own place on, so that the primaries do not all
    begin with the same one, and nobody when there are none: what is old in it is to be forgotten all the same. A revert
    goes in any order. A database in the directory of a wrong partition is to be moved, to
    its own device too if that is a primary.
    """
    _, found_in, _, name_hash = path.rsplit("/", 3)
    partition = ring.partition(bytes.fromhex(name_hash))
    primaries = ring.primaries(partition)
    place = next((index for index, node in enumerate(primaries) if node.id == own.id), None)
    if place is None or found_in != str(partition):
        targets = list(primaries)
        if chance is not None:
            chance.shuffle(targets)
        kind = Kind.REVERT
    else:
        targets = [*primaries[place + 1 :], *primaries[:place]]
        kind = Kind.SYNC
    if not primaries:
        return None
    return Job(kind, own.device, device_path, path, partition, own, tuple(targets), ring.version)


def in_order(places: Iterable[tuple[bool, Any]], chance: random.Random) -> list[Any]:
    """``(is it a handoff's, what)``: handoffs first, each sort by chance, so that no partition is always the last."""
    found = list(places)
    chance.shuffle(found)
    found.sort(key=lambda item: not item[0])
    return [what for _, what in found]


# -- one peer ----------------------------------------------------------------------------------------------------------


class Step(Enum):
    """What a peer needs. EQUAL: nothing, and its rows are ours; HAS_OURS: nothing, it has all of ours and maybe others."""

    EQUAL = "equal"
    HAS_OURS = "has ours"
    ROWS = "rows"
    WHOLE = "whole file"


@dataclass(frozen=True, slots=True)
class Extent:
    """How far a database goes: the highest row number it ever gave, and the hash of all its rows."""

    max_row: int
    hash: str


def step_for(ours: Extent, theirs: Extent, point: int, per_diff: int) -> Step:
    """``point``: up to which of our row numbers the peer has our rows."""
    if ours.hash == theirs.hash:
        return Step.EQUAL
    if point >= ours.max_row:
        return Step.HAS_OURS
    if theirs.max_row < SMALL_SHARE * ours.max_row and ours.max_row - point > per_diff:
        return Step.WHOLE
    return Step.ROWS


def may_remove(proofs: int, targets: int, handoff_delete: int | None) -> bool:
    """Whether a handoff's copy may go when so many of its targets are proven to hold it."""
    return targets > 0 and proofs >= (min(handoff_delete, targets) if handoff_delete else targets)
