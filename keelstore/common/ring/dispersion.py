"""How well the replicas of each partition are kept apart. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from keelstore.common.ring.plan import Tier, ceil, most_when_even
from keelstore.common.ring.topology import DEPTHS, Topology

Graph = dict[Tier, list[int]]
_CHUNK = 1 << 16  # partitions looked at in one go: they stay in the processor's cache


def occurrences(numbers: NDArray[np.int32]) -> tuple[NDArray[np.int8], NDArray[np.bool_]]:
    """For each entry of rows by partitions, how often it occurs in its column, and whether it is the first there."""
    rows, _ = numbers.shape
    times = np.ones(numbers.shape, dtype=np.int8)
    first = np.ones(numbers.shape, dtype=bool)
    for i in range(rows):
        for j in range(i):
            same = numbers[i] == numbers[j]
            times[i] += same
            times[j] += same
            first[i] &= ~same
    return times, first


def measure(topology: Topology, able: Iterable[Tier], table: NDArray[np.int32], replicas: float,
            common: int) -> tuple[Graph, float]:
    """The number of partitions by tier and by replicas in it, and the dispersion in percent.

    ``able`` are the tiers of the devices that have weight; what lies on others is badly dispersed. ``table`` holds device
    ids, rows by partitions, ``topology.none`` where there is none. Only the first ``common`` partitions, those that every
    row has, count for the dispersion: the field's rule. 0 is best.
    """
    rows, partitions = table.shape
    limit = most_when_even(able, replicas)
    columns = max(ceil(replicas), rows) + 1
    counts = [np.zeros((len(names), columns), dtype=np.int64) for names in topology.tiers]
    over = 0
    for begin in range(0, partitions, _CHUNK):
        part = table[:, begin:begin + _CHUNK]
        worst = np.zeros(part.shape[1], dtype=np.int64)
        for depth in range(DEPTHS):
            number = topology.of[depth][part]
            times, first = occurrences(number)
            real = first & (number >= 0)
            flat = number[real].astype(np.int64) * columns + times[real]
            counts[depth] += np.bincount(flat, minlength=counts[depth].size).reshape(counts[depth].shape)
            allowed = np.array([limit.get(name, 0) for name in topology.tiers[depth]] + [columns], dtype=np.int32)
            excess = np.where(real, np.maximum(times - allowed[number], 0), 0).sum(axis=0)
            np.maximum(worst, excess, out=worst)
        over += int(worst[:max(0, common - begin)].sum())
    graph: Graph = {}
    for depth, names in enumerate(topology.tiers):
        counts[depth][:, 0] = partitions - counts[depth][:, 1:].sum(axis=1)
        for name, row in zip(names, counts[depth].tolist(), strict=True):
            graph[name] = row
    return graph, 100.0 * over / (partitions * replicas) if partitions else 0.0


def tier_dispersion(row: Sequence[int], most: int) -> float:
    """Percent of the replicas in a tier that are more than it should hold; ``row`` is its line of the graph."""
    held = sum(count * times for times, count in enumerate(row))
    return 100.0 * sum(count * (times - most) for times, count in enumerate(row) if times > most) / held if held else 0.0
