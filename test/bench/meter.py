"""CPU time of server processes, and rounds that compare."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass


def cpu_s(pids: Iterable[int]) -> float:
    """CPU seconds that the threads of these processes have used: to the nanosecond, or in ticks of a kernel without schedstat."""
    return sum(_of_task(f"/proc/{pid}/task/{task}") for pid in pids for task in os.listdir(f"/proc/{pid}/task"))


def _of_task(path: str) -> float:
    """0 for a thread that has just ended."""
    try:
        with suppress(FileNotFoundError), open(f"{path}/schedstat", encoding="ascii") as file:
            return int(file.read().split()[0]) / 1e9
        with open(f"{path}/stat", encoding="utf-8") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (FileNotFoundError, ProcessLookupError):
        return 0.0


@dataclass(frozen=True)
class Sample:
    """What one round of one side took."""

    cpu_s: float
    wall_s: float


def in_turns(sides: Mapping[str, Callable[[], Sample]], rounds: int) -> dict[str, list[Sample]]:
    """Each side once a round, the order turned from round to round; a first round is not counted."""
    found: dict[str, list[Sample]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        names = list(sides)
        for name in names if number % 2 else reversed(names):
            sample = sides[name]()
            if number:
                found[name].append(sample)
    return found


def median_cpu_s(samples: Iterable[Sample]) -> float:
    return statistics.median(sample.cpu_s for sample in samples)


def median_wall_s(samples: Iterable[Sample]) -> float:
    return statistics.median(sample.wall_s for sample in samples)
