"""Pure: what a partition of fragments on a device of this node needs (``spec: daemons 12``).

A device that belongs to the partition (a *primary*) has one fragment index, and looks after three others: its neighbours
left and right among the primaries, and the one opposite (with duplication, that is where the same fragments are). What
one of them lacks it makes for it (*sync*). Fragments of other indexes go home (*revert*), and so do tombstones of a device
that does not belong.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from keelstore.common.policy import ErasureCodingPolicy
from keelstore.common.ring.ring import Node
from keelstore.common.work import Risk
from keelstore.obj.jobs import RingView

Hashes = Mapping[str, Any]  # suffix: {fragment index or None: hash}


class Kind(Enum):
    SYNC = "sync"
    REVERT = "revert"
    TOMBSTONES = "revert the tombstones of"


@dataclass(frozen=True, slots=True)
class FragmentJob:
    """What is to be done with one fragment index of a partition of a device.

    ``fragment``: that which is here; None for tombstones. ``targets``: whom to compare with, or bring it to; ``needed``: how
    many of them must have it before it goes from here. ``suffixes``: those that hold it.
    """

    kind: Kind
    policy: int
    device: str
    partition: int
    own: Node
    fragment: int | None
    targets: tuple[Node, ...]
    needed: int
    suffixes: tuple[str, ...]
    ring_version: int | None

    def __str__(self) -> str:
        what = f" fragment #{self.fragment}" if self.fragment is not None else ""
        where = " ".join(node.key for node in self.targets)
        return f"{self.kind.value} policy {self.policy} partition {self.partition} of {self.device}{what} with {where}"


def place_of(primaries: Sequence[Node], own: Node) -> int | None:
    """The index of a device among the primaries; None when it is none."""
    return next((index for index, node in enumerate(primaries) if node.id == own.id), None)


def neighbours(primaries: Sequence[Node], index: int) -> tuple[Node, ...]:
    """Left, right and opposite of the primary with this index, each once, never itself."""
    count = len(primaries)
    found = dict.fromkeys(((index - 1) % count, (index + 1) % count, (index + count // 2) % count))
    return tuple(primaries[other] for other in found if other != index)


def jobs_of(ring: RingView, policy: ErasureCodingPolicy, own: Node, partition: int, hashes: Hashes,
            chance: random.Random | None = None) -> list[FragmentJob]:
    """The jobs of a partition that the device ``own`` holds: what is its own first, then what it holds for others, the
    index of fewest suffixes first, so that something is soon gone.

    A fragment index that no primary has (a ring of fewer replicas than it should be) has no job.
    """
    primaries = ring.primaries(partition)
    if not primaries:
        return []
    place = place_of(primaries, own)
    mine = None if place is None else policy.backend_index(place)

    def job(kind: Kind, fragment: int | None, targets: Iterable[Node], needed: int, suffixes: Iterable[str]) -> FragmentJob:
        return FragmentJob(kind, policy.index, own.device, partition, own, fragment, tuple(targets), needed,
                           tuple(sorted(suffixes)), ring.version)

    found = []
    if place is not None:
        targets = neighbours(primaries, place)
        if targets:
            found.append(job(Kind.SYNC, mine, targets, len(targets), hashes))
    held: dict[int, list[str]] = {}
    for suffix, value in hashes.items():
        for index in value if isinstance(value, Mapping) else ():
            if isinstance(index, int) and index != mine:
                held.setdefault(index, []).append(suffix)
    for index in sorted(held, key=lambda index: (len(held[index]), index)):
        homes = [node for node in primaries if policy.backend_index(node.index or 0) == index]
        if homes:
            found.append(job(Kind.REVERT, index, homes, len(homes), held[index]))
    if place is None:
        # As many that know of a deletion as leave too few others to decode what was deleted.
        targets = tuple(primaries)
        if chance is not None:
            targets = tuple(chance.sample(primaries, len(primaries)))
        found.append(job(Kind.TOMBSTONES, None, targets, max(1, len(primaries) - policy.ndata + 1), hashes))
    return found


def differing(ours: Hashes, theirs: Hashes, own_index: int, their_index: int) -> list[str]:
    """The suffixes of which a peer has not all that we know of: our fragments, as its own, and metadata, tombstones and marks
    of durability. What only the peer has is for it to bring. A suffix without our fragment, and the same in all else, is
    not ours to mend.
    """
    found = []
    for suffix, value in ours.items():
        if not isinstance(value, Mapping):
            continue
        other = theirs.get(suffix)
        other = other if isinstance(other, Mapping) else {}
        mine = value.get(own_index)
        if value.get(None) != other.get(None) or (mine is not None and mine != other.get(their_index)):
            found.append(suffix)
    return sorted(found)


def lacking(ours: Hashes, theirs: Hashes, own_index: int, their_index: int) -> list[str]:
    """The suffixes of which the peer has nothing of its own, though we have: fragments that are not there at all, as far as
    can be told. Of suffixes with several objects this sees only those of which all are gone.
    """
    found = []
    for suffix, value in ours.items():
        other = theirs.get(suffix)
        if isinstance(value, Mapping) and own_index in value and not (isinstance(other, Mapping) and their_index in other):
            found.append(suffix)
    return sorted(found)


def risk_of(missing: int) -> int:
    """The place in the queue of a partition of which the primaries lack so many fragments: the fewer remain, the sooner."""
    return Risk.DURABILITY - missing


def stand_ins(handoffs: Iterable[Node], limit: int, index: int) -> list[Node]:
    """The handoffs to which the fragments of an unmounted primary may go, in the order of asking: the first ``limit``
    (negative: all), from a place on that depends on the fragment, so that two lost devices do not become one.
    """
    found: list[Node] = []
    for node in handoffs:
        if 0 <= limit <= len(found):
            break
        found.append(node)
    start = index % len(found) if found else 0
    return found[start:] + found[:start]
