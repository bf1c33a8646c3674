"""A first assignment of all partitions, in one go. Pure.

Systematic sampling: lay the devices side by side on a line, each as long as its share, the devices of a tier next to each
other, and put ``replicas`` points on it at equal distances. Moving the points over the line gives one partition after
another, and every tier, of whatever size, gets its share rounded down or up in each partition. Since that pairs always
the same devices, the line is laid anew, in another random order of regions, zones, servers and devices, for each of many
small batches of partitions.

Where weights force a tier to hold more than keeps replicas well apart, such tiers go to an end of their parent. Then it is
the same partitions that are badly placed at each depth, and so the fewest of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from keelstore.common.ring.plan import EPSILON
from keelstore.common.ring.topology import DEPTHS, Ints, Limits, Topology

BATCHES = 2048  # more of them mix the devices better and take longer


def spread(topology: Topology, limits: Limits, crowded: tuple[NDArray[np.bool_], ...], quota: Ints, partitions: int,
           replicas: int, extra: int, rng: np.random.Generator, report: Callable[[float], None]) -> NDArray[np.int32]:
    """Rows of device ids: ``replicas`` of them, and one more for the first ``extra`` partitions.

    ``quota`` (by device id) sums to the number of slots; ``crowded`` tells, by depth, the tiers that cannot but hold too
    much. ``report`` is told the share that is done. Returns an array of ``replicas (+1 if extra)`` by ``partitions``;
    what the short row does not have is ``topology.none``.
    """
    quotas: NDArray[np.int64] = quota.astype(np.int64)
    if not extra:
        return _sample(topology, crowded, quotas, partitions, replicas, rng, report)
    table = np.full((replicas + 1, partitions), topology.none, dtype=np.int32)
    first = _divide(topology, limits, quotas, extra, replicas + 1, partitions - extra)
    table[:, :extra] = _sample(topology, crowded, first, extra, replicas + 1, rng, report)
    if replicas and extra < partitions:
        table[:replicas, extra:] = _sample(topology, crowded, quotas - first, partitions - extra,
                                            replicas, rng, report)
    return table


def _sample(topology: Topology, crowded: tuple[NDArray[np.bool_], ...], quotas: NDArray[np.int64], partitions: int,
            replicas: int, rng: np.random.Generator, report: Callable[[float], None]) -> NDArray[np.int32]:
    table = np.empty((replicas, partitions), dtype=np.int32)
    left = quotas.copy()
    batch = max(1, -(-partitions // BATCHES))
    places = rng.permutation(partitions)  # so that neighbours are not alike: handoffs are sought among neighbours
    devices = np.flatnonzero(quotas > 0)
    tiers = [topology.of[depth][devices] for depth in range(DEPTHS)]
    for begin in range(0, partitions, batch):
        remaining = partitions - begin
        report(begin / partitions)
        count = min(batch, remaining)
        order = devices[_order(tiers, crowded, rng)]
        ends = np.cumsum(left[order])
        # ``left`` sums to replicas * remaining. The points of one partition are ``remaining`` apart; those of the batch
        # are as even as whole numbers allow, which keeps every tier's rest within what the rest of partitions can take.
        starts = (np.arange(count, dtype=np.int64) * remaining + int(rng.integers(remaining))) // count
        points = np.add.outer(np.arange(replicas, dtype=np.int64) * remaining, np.sort(starts % remaining)).ravel()
        taken = np.diff(np.searchsorted(points, ends), prepend=0)
        left[order] -= taken
        table[:, places[begin:begin + count]] = np.repeat(order, taken).reshape(replicas, count)
    return table


def _order(tiers: list[Ints], crowded: tuple[NDArray[np.bool_], ...], rng: np.random.Generator) -> NDArray[np.int64]:
    """A random order of devices in which those of each tier stay together, crowded tiers at an end of their parent."""
    keys = []
    span = 1
    for number, full in zip(tiers, crowded, strict=True):
        size = len(full)
        place = rng.permutation(size)
        if full.any():
            place += size  # so that the crowded ones can go before or behind the others, half of them each
            place[full] += np.where(place[full] & 1, -size, size)
            size *= 3
        span *= size
        keys.append(place[number])
    if span >= 1 << 62:  # too much for one number
        return np.lexsort(keys[::-1])
    key = keys[0].astype(np.int64)
    for more, full in zip(keys[1:], crowded[1:], strict=True):
        key = key * (len(full) * 3 if full.any() else len(full)) + more
    return np.argsort(key)


def _divide(topology: Topology, limits: Limits, quotas: NDArray[np.int64], partitions: int, replicas: int,
            others: int) -> NDArray[np.int64]:
    """The part of each device's quota that the first ``partitions`` use, each of which has one replica more.

    Both they and the ``others`` must find their tiers within the limits with what they get.
    """
    wanted = np.zeros(topology.size, dtype=np.int64)
    amounts = np.array([partitions * replicas], dtype=np.int64)
    for depth in range(DEPTHS):
        number = topology.of[depth][:-1]
        present = number >= 0
        total = np.bincount(number[present], weights=quotas[present], minlength=len(topology.tiers[depth]))
        least, most = limits.least[depth].astype(np.int64), limits.most[depth].astype(np.int64)
        low = np.maximum.reduce([np.zeros_like(total), total - most * others, np.minimum(least * partitions, total)])
        high = np.minimum.reduce([total, most * partitions, np.maximum(total - least * others, 0)])
        low = np.minimum(low, high)
        given = np.zeros(len(total), dtype=np.int64)
        for parent, amount in enumerate(amounts):
            mine = np.flatnonzero(topology.parents[depth] == parent)
            given[mine] = _bounded(int(amount), total[mine], low[mine], high[mine])
        amounts = given
    for name, amount in zip(topology.tiers[-1], amounts, strict=True):
        wanted[int(name[-1])] = amount
    return wanted


def _bounded(amount: int, weights: NDArray[Any], low: NDArray[Any], high: NDArray[Any]) -> NDArray[np.int64]:
    """``amount`` in whole numbers, in proportion to ``weights`` within bounds as far as they allow."""
    scale_low, scale_high = 0.0, 1.0
    while np.clip(weights * scale_high, low, high).sum() < min(amount, high.sum()) - EPSILON and scale_high < 1e9:
        scale_high *= 2
    for _ in range(60):
        middle = (scale_low + scale_high) / 2
        if np.clip(weights * middle, low, high).sum() < amount:
            scale_low = middle
        else:
            scale_high = middle
    exact = np.clip(weights * scale_high, low, high)
    whole = np.floor(exact + 1e-6).astype(np.int64)
    missing = amount - int(whole.sum())
    order = np.argsort(-(exact - whole), kind="stable")
    for step in (1, -1):
        while missing * step > 0:
            room = [i for i in order if (whole[i] < high[i] if step > 0 else whole[i] > low[i])]
            if not room:
                room = [i for i in order if (whole[i] < weights[i] if step > 0 else whole[i] > 0)]
            if not room:
                break
            for i in room[:abs(missing)]:
                whole[i] += step
            missing = amount - int(whole.sum())
    return whole
