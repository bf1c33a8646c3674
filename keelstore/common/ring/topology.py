"""The tiers of a set of devices as arrays, for the arithmetic of a rebalance. Pure.

A device is its id, an index; the id after the last, ``none``, stands for "no device". At each of four depths (region,
zone, server, device) a tier is a number, and a device that is not there has tier -1, which no other shares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from keelstore.common.ring.plan import Tier, ceil, floor

Ints = NDArray[np.int32]
DEPTHS = 4


@dataclass(frozen=True)
class Topology:
    """Tiers of devices, in sorted order at each depth.

    ``tiers[depth]`` are the tier tuples; ``of[depth][id]`` is the number of a device's tier, with one more entry (-1) for
    "none"; ``parents[depth][tier]`` is the number of a tier's parent, one depth up.
    """

    size: int
    tiers: tuple[tuple[Tier, ...], ...]
    of: tuple[Ints, ...]
    parents: tuple[Ints, ...]

    @property
    def none(self) -> int:
        return self.size


def build(devices: Sequence[Tier | None]) -> Topology:
    """The topology of devices given as tier tuples by id, None where there is no such device."""
    present = [tier for tier in devices if tier is not None]
    tiers, of, parents = [], [], []
    above: dict[Tier, int] = {(): 0}
    for depth in range(DEPTHS):
        names = tuple(sorted({tier[:depth + 1] for tier in present}))
        numbers = {name: number for number, name in enumerate(names)}
        lookup = np.full(len(devices) + 1, -1, dtype=np.int32)
        for device_id, tier in enumerate(devices):
            if tier is not None:
                lookup[device_id] = numbers[tier[:depth + 1]]
        tiers.append(names)
        of.append(lookup)
        parents.append(np.array([above[name[:-1]] for name in names], dtype=np.int32))
        above = numbers
    return Topology(len(devices), tuple(tiers), tuple(of), tuple(parents))


@dataclass(frozen=True)
class Limits:
    """The least and the most replicas of one partition in each tier, by depth."""

    least: tuple[Ints, ...]
    most: tuple[Ints, ...]


def limits_of(topology: Topology, plan: Mapping[Tier, float]) -> Limits:
    """Each tier holds its planned number, rounded down or up; a tier that is not in the plan holds none."""
    least, most = [], []
    for names in topology.tiers:
        least.append(np.array([floor(plan.get(name, 0.0)) for name in names], dtype=np.int32))
        most.append(np.array([ceil(plan.get(name, 0.0)) for name in names], dtype=np.int32))
    return Limits(tuple(least), tuple(most))


def crowded_tiers(topology: Topology, limits: Limits, most: Mapping[Tier, int]) -> tuple[NDArray[np.bool_], ...]:
    """By depth, the tiers that are planned to hold more of a partition than ``most`` says they should."""
    return tuple(limits.most[depth] > np.array([most.get(name, 0) for name in names], dtype=np.int32)
                 for depth, names in enumerate(topology.tiers))


def quotas_of(topology: Topology, plan: Mapping[Tier, float], even: Mapping[Tier, float], slots: int,
              current: Ints) -> Ints:
    """How many of ``slots`` part-replicas each device should hold; they sum to ``slots``.

    Every tier gets its planned share rounded down or up. Where both would do, the one nearer to what it holds now
    (``current``, by device id) wins, so that a ring in balance stays as it is; then the one nearer to the ``even`` plan.
    """
    quota = np.zeros(topology.size, dtype=np.int32)
    replicas = plan.get((), 0.0)
    if not replicas or not topology.tiers[0]:
        return quota
    scale = slots / replicas
    held_by = np.zeros(topology.size + 1, dtype=np.int64)
    held_by[:-1] = current
    amounts = [slots]
    for depth, names in enumerate(topology.tiers):
        present = topology.of[depth] >= 0
        held = np.bincount(topology.of[depth][present], weights=held_by[present], minlength=len(names))
        shares = np.array([plan.get(name, 0.0) for name in names]) * scale
        wanted = np.array([even.get(name, 0.0) for name in names]) * scale
        given = np.zeros(len(names), dtype=np.int64)
        parents = topology.parents[depth]
        bounds = np.searchsorted(parents, np.arange(len(amounts) + 1))
        for parent, amount in enumerate(amounts):
            begin, end = bounds[parent], bounds[parent + 1]
            given[begin:end] = _whole(amount, shares[begin:end], held[begin:end], wanted[begin:end])
        amounts = [int(value) for value in given]
    for name, amount in zip(topology.tiers[-1], amounts, strict=True):
        quota[int(name[-1])] = amount
    return quota


def _whole(total: int, shares: NDArray[Any], held: NDArray[Any], wanted: NDArray[Any]) -> NDArray[np.int64]:
    """Shares rounded down or up so that they sum to ``total``, which their own sum is within one of."""
    base = np.floor(shares + 1e-6).astype(np.int64)
    rest = np.maximum(shares - base, 0.0)
    missing = total - int(base.sum())
    if missing > 0:
        gain = (1 - 2 * rest) / np.maximum(shares, 1e-9)  # the smaller the share, the more a wrong rounding shows
        order = np.lexsort((gain, shares > wanted + 1e-6, held <= base, rest <= 1e-6, shares <= 0))
        base[order[:missing]] += 1
    elif missing < 0:
        order = np.lexsort((rest, base <= 0))
        base[order[:-missing]] -= 1
    return base
