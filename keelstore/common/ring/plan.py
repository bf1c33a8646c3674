"""How many replicas of each partition a region, zone, server and device should hold. Pure.

A tier is a tuple: ``()`` everything, ``(region,)``, ``(region, zone)``, ``(region, zone, ip)``, ``(region, zone, ip, id)``.
Three plans give each tier a number of replicas, as a float: 0.75 is "three of four partitions have one here".

weighted    every device by its weight, but none more than one replica
dispersed   as even between the children of every tier as can be, by weight where that leaves a choice
target      from the first towards the second, as far as the overload allows: no device is asked for more than
            ``1 + overload`` times its weighted share to keep replicas apart
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

Tier = tuple[int | str, ...]
Plan = dict[Tier, float]

EPSILON = 1e-10  # what a float may be off by and still be meant as a whole number


@dataclass(frozen=True, slots=True)
class PlannedDevice:
    """A device as the plan sees it."""

    id: int
    region: int
    zone: int
    ip: str
    weight: float

    @property
    def tier(self) -> Tier:
        return (self.region, self.zone, self.ip, self.id)


def floor(value: float) -> int:
    return math.floor(value + EPSILON)


def ceil(value: float) -> int:
    return math.ceil(value - EPSILON)


def children_of(tiers: Iterable[Tier]) -> dict[Tier, list[Tier]]:
    """Each tier's children, from the tiers of devices; the children in sorted order."""
    found: dict[Tier, set[Tier]] = {}
    for tier in tiers:
        for depth in range(len(tier)):
            found.setdefault(tier[:depth], set()).add(tier[:depth + 1])
    return {parent: sorted(children) for parent, children in found.items()}


def share_out(amount: float, weights: Sequence[float], low: Sequence[float], high: Sequence[float]) -> list[float]:
    """Divide ``amount`` in proportion to positive ``weights``, each part within its bounds.

    The result is the one division ``clip(k * weight, low, high)`` that sums to ``amount``. ``sum(low) <= amount <=
    sum(high)`` must hold, within rounding.
    """
    result = [0.0] * len(weights)
    free = set(range(len(weights)))
    left = amount
    while free:
        scale = left / sum(weights[i] for i in free)
        wish = {i: weights[i] * scale for i in free}
        clipped = {i: min(max(wish[i], low[i]), high[i]) for i in free}
        error = sum(clipped.values()) - left
        if abs(error) <= EPSILON:
            for i in free:
                result[i] = clipped[i]
            break
        # Too much was given where a lower bound holds, or too little where an upper one does: those parts are final.
        fixed = [i for i in free if (clipped[i] > wish[i] if error > 0 else clipped[i] < wish[i])]
        for i in fixed:
            result[i] = clipped[i]
            left -= clipped[i]
            free.discard(i)
    return result


def weighted(devices: Sequence[PlannedDevice], replicas: float) -> Plan:
    """Replicas of each tier by weight alone, no device over one. Needs ``replicas`` devices of positive weight."""
    able = [dev for dev in devices if dev.weight > 0]
    count = len(able)
    shares = share_out(replicas, [dev.weight for dev in able], [0.0] * count, [1.0] * count)
    return _sum_up({dev.tier: share for dev, share in zip(able, shares, strict=True)})


def dispersed(devices: Sequence[PlannedDevice], replicas: float) -> Plan:
    """Replicas of each tier as even as can be. Needs ``replicas`` devices of positive weight."""
    able = [dev for dev in devices if dev.weight > 0]
    weight = _sum_up({dev.tier: dev.weight for dev in able})
    capacity = _sum_up({dev.tier: 1.0 for dev in able})
    children = children_of(dev.tier for dev in able)
    plan: Plan = {(): float(replicas)}
    todo: list[Tier] = [()]
    while todo:
        parent = todo.pop()
        below = children.get(parent)
        if not below:
            continue
        amount = plan[parent]
        lows, highs = _even_bounds(amount, [capacity[tier] for tier in below])
        for tier, share in zip(below, share_out(amount, [weight[tier] for tier in below], lows, highs), strict=True):
            plan[tier] = share
            todo.append(tier)
    return plan


def _even_bounds(amount: float, capacities: Sequence[float]) -> tuple[list[float], list[float]]:
    """The least and the most that each of several tiers gets when ``amount`` is spread as evenly as they can hold."""
    full: set[int] = set()
    while True:
        free = [i for i in range(len(capacities)) if i not in full]
        share = (amount - sum(capacities[i] for i in full)) / len(free) if free else 0.0
        tight = [i for i in free if capacities[i] < share - EPSILON]
        if not tight:
            break
        full.update(tight)
    lows = [capacities[i] if i in full else float(min(floor(share), capacities[i])) for i in range(len(capacities))]
    highs = [capacities[i] if i in full else float(min(ceil(share), capacities[i])) for i in range(len(capacities))]
    short = amount - sum(highs)
    for i in sorted(range(len(highs)), key=lambda i: highs[i]):  # where ceil() met a capacity, others take more
        if short <= EPSILON:
            break
        more = min(short, capacities[i] - highs[i])
        highs[i] += more
        short -= more
    return lows, highs


def required_overload(weighted_plan: Mapping[Tier, float], dispersed_plan: Mapping[Tier, float]) -> float:
    """The overload that the dispersed plan asks of the device it loads most; 0 when it asks none."""
    most = 0.0
    for tier, share in weighted_plan.items():
        if len(tier) == 4 and share > 0:
            most = max(most, (dispersed_plan[tier] - share) / share)
    return most


def target(devices: Sequence[PlannedDevice], replicas: float, overload: float) -> Plan:
    """Replicas of each tier that a rebalance works towards."""
    by_weight, even = weighted(devices, replicas), dispersed(devices, replicas)
    required = required_overload(by_weight, even)
    if required <= EPSILON:
        return even
    part = min(overload, required) / required
    return {tier: share + (even[tier] - share) * part for tier, share in by_weight.items()}


def _sum_up(leaves: Mapping[Tier, float]) -> Plan:
    """Values of devices, and their sums for every tier above."""
    totals: Plan = {}
    for tier, value in leaves.items():
        for depth in range(len(tier) + 1):
            totals[tier[:depth]] = totals.get(tier[:depth], 0.0) + value
    return totals


def most_when_even(tiers: Iterable[Tier], replicas: float) -> dict[Tier, int]:
    """The most replicas of a partition that each tier should hold: the measure of dispersion.

    A tier's children share what it may hold, rounded up; a device holds one.
    """
    children = children_of(tiers)
    most: dict[Tier, int] = {(): ceil(replicas)}
    todo: list[Tier] = [()]
    while todo:
        parent = todo.pop()
        below = children.get(parent, ())
        for tier in below:
            most[tier] = 1 if len(tier) == 4 else math.ceil(most[parent] / len(below))
            todo.append(tier)
    return most
