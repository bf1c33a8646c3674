"""Pure: what a partition on a device of this node needs: nothing, a sync, or a revert; and what may be removed after it.

A device that belongs to a partition (a *primary*) compares hashes with the other primaries, and brings them what they
lack. One that does not (it took writes while a primary was away, or a new ring moved the partition) brings everything to
all primaries, and then removes what they were proven to hold.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from keelstore.common.ring.ring import Node
from keelstore.common.work import Risk
from keelstore.obj.fileset import FileSet


class Kind(Enum):
    SYNC = "sync"
    REVERT = "revert"


class RingView(Protocol):
    """What of a ring is asked here."""

    @property
    def version(self) -> int | None: ...

    def primaries(self, part: int) -> Sequence[Node]: ...


Key = tuple[int, str, int]  # policy index, device, partition


@dataclass(frozen=True, slots=True)
class Job:
    """One partition of one device. ``targets``: the primaries but the device itself, in the order of asking; ``risk``: how
    urgent it is as far as one can tell without asking them.
    """

    kind: Kind
    policy: int
    device: str
    partition: int
    own: Node
    targets: tuple[Node, ...]
    ring_version: int | None
    risk: Risk = Risk.ROUTINE

    @property
    def key(self) -> Key:
        return self.policy, self.device, self.partition

    def __str__(self) -> str:
        where = " ".join(node.key for node in self.targets)
        return f"{self.kind.value} policy {self.policy} partition {self.partition} of {self.device} with {where}"


def job_of(ring: RingView, policy: int, own: Node, partition: int, chance: random.Random | None = None) -> Job | None:
    """What a partition that the device ``own`` holds needs; None when nobody else has a part in it.

    A sync asks the others in the order of the ring, from the device's own place on, so that the primaries do not all
    begin with the same one; a revert in any order.
    """
    primaries = ring.primaries(partition)
    place = next((index for index, node in enumerate(primaries) if node.id == own.id), None)
    if place is None:
        targets = list(primaries)
        if chance is not None:
            chance.shuffle(targets)
        kind, risk = Kind.REVERT, Risk.HANDOFF
    else:
        targets = [*primaries[place + 1 :], *primaries[:place]]
        kind, risk = Kind.SYNC, Risk.ROUTINE
    if not targets:
        return None
    return Job(kind, policy, own.device, partition, own, tuple(targets), ring.version, risk)


def in_order(jobs: Iterable[Job], chance: random.Random) -> list[Job]:
    """The jobs of a pass: by risk, in each by chance, so that the devices take turns and no partition is always the last."""
    found = list(jobs)
    chance.shuffle(found)
    found.sort(key=lambda job: job.risk)
    return found


# -- comparing ---------------------------------------------------------------------------------------------------------

Hashes = Mapping[str, Any]


def differing(ours: Hashes, theirs: Hashes) -> list[str]:
    """The suffixes that we hold and they do not hold alike. What only they hold is theirs to bring."""
    return sorted(suffix for suffix, value in ours.items() if value is not None and theirs.get(suffix) != value)


def missing(ours: Hashes, theirs: Hashes) -> int:
    """How many of our suffixes they have nothing of: copies that are not there, not only not up to date."""
    return sum(1 for suffix in ours if not theirs.get(suffix))


# -- regions -----------------------------------------------------------------------------------------------------------


class RegionGate:
    """Sends data over each long way once: of the primaries of another region, one gets it, and shares it with the rest."""

    def __init__(self, own_region: int):
        self._own_region = own_region
        self._served: set[int] = set()

    def is_closed(self, node: Node) -> bool:
        return node.region != self._own_region and node.region in self._served

    def served(self, node: Node) -> None:
        """``node`` has what we have."""
        if node.region != self._own_region:
            self._served.add(node.region)


# -- removing ----------------------------------------------------------------------------------------------------------


def removable(
    held: Sequence[Mapping[str, FileSet]], needed: int, same: Callable[[FileSet, FileSet], bool]
) -> dict[str, FileSet]:
    """The objects of which at least ``needed`` peers proved that they hold them as we do; ``held``: what each proved.

    An object that changed here between two peers' words is none of them.
    """
    if needed <= 0 or len(held) < needed:
        return {}
    counts: dict[str, int] = {}
    first: dict[str, FileSet] = {}
    for proven in held:
        for name_hash, found in proven.items():
            known = first.setdefault(name_hash, found)
            counts[name_hash] = counts.get(name_hash, 0) + same(known, found)
    return {name_hash: first[name_hash] for name_hash, count in counts.items() if count >= needed}
