"""What the lines of all rounds come to: medians, factors with their spread, and a Markdown page of them. Pure.

A factor says how many times we are ahead: the other's CPU for each operation by ours, our rate by theirs, their latency, memory and
time to start by ours. Factors are taken round by round, since what else a machine does changes in between; the median counts.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from test.bench.loads import Row

ENOUGH = 100  # operations in a round, for a p99 to say something

Line = dict[str, Any]


@dataclass(frozen=True)
class Factor:
    """The median over the rounds, and the least and the most."""

    median: float
    least: float
    most: float

    def __str__(self) -> str:
        text = f"{shown(self.median)}"
        return text if self.least == self.most else f"{text} ({shown(self.least)}–{shown(self.most)})"


@dataclass(frozen=True)
class Compared:
    """One row beside one other side."""

    row: Row
    ours: list[Line]
    theirs: list[Line]
    cpu: Factor | None
    rate: Factor | None
    p50: Factor | None
    p99: Factor | None
    cpu_aim: float | None = None
    rate_aim: float | None = None


@dataclass(frozen=True)
class NodeRow:
    """What is measured of a whole side, not of an operation. ``ours`` and ``theirs`` in its unit."""

    title: str
    unit: str
    ours: float
    theirs: float
    aim: str = ""

    @property
    def factor(self) -> Factor:
        value = self.theirs / self.ours
        return Factor(value, value, value)


def shown(value: float) -> str:
    """Three digits that count, no more."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def factor(pairs: Iterable[tuple[float | None, float | None]]) -> Factor | None:
    """Of (numerator, denominator) of each round; None when no round has both."""
    found = [above / below for above, below in pairs if above and below]
    return Factor(statistics.median(found), min(found), max(found)) if found else None


def compare(row: Row, other: str, ours: Sequence[Line], theirs: Sequence[Line]) -> Compared:
    """Lines of the same row by two sides; those of rounds that both have are compared."""
    by_round = {line["round"]: line for line in theirs}
    pairs = [(line, by_round[line["round"]]) for line in ours if line["round"] in by_round]

    def of(name: str) -> list[tuple[float | None, float | None]]:
        return [(their.get(name), own.get(name)) for own, their in pairs]

    has_tail = not row.is_large and all(line["ops"] >= ENOUGH for pair in pairs for line in pair)
    return Compared(row, list(ours), list(theirs), factor(of("server_cpu_ms_op")), factor((own, their) for their, own in of("ops_s")),
                    factor(of("p50_ms")), factor(of("p99_ms")) if has_tail else None, *row.aims(other))


def median(lines: Iterable[Line], name: str) -> float | None:
    found = [line[name] for line in lines if line.get(name) is not None]
    return statistics.median(found) if found else None


def cell(lines: Sequence[Line], name: str) -> str:
    value = median(lines, name)
    return "" if value is None else shown(value)


def rate_cell(row: Row, lines: Sequence[Line]) -> str:
    return f"{cell(lines, 'mib_s')} MiB/s" if row.is_large else cell(lines, "ops_s")


def mark(found: Factor | None, aim: float | None) -> str:
    return "" if found is None or aim is None else f"{aim:g} {'met' if found.median >= aim else '**not met**'}"


def table(headings: Sequence[str], lines: Iterable[Sequence[str]], left: int = 1) -> str:
    head = ["| " + " | ".join(headings) + " |", "|" + "---|" * left + "--:|" * (len(headings) - left)]
    return "\n".join(head + ["| " + " | ".join(line) + " |" for line in lines])


def beside(other: str, found: Sequence[Compared]) -> str:
    """The tables of all rows beside one other side: first the factors, then what they are made of."""
    text = [table(("", "connections", "CPU for each operation", "aim", "operations/s", "aim", "p50", "p99"), (
        (f"{one.row.kind.title}: {one.row.title}", str(one.row.connections), str(one.cpu or ""), mark(one.cpu, one.cpu_aim),
         str(one.rate or ""), mark(one.rate, one.rate_aim), str(one.p50 or ""), str(one.p99 or "")) for one in found))]
    text.append("What the factors are made of, medians of the rounds; latency is p50 and p99 in ms:")
    text.append(table(("", "connections", f"{other}: ms CPU", "rate", "latency", "keelstore: ms CPU", "rate", "latency"), (
        (f"{one.row.kind.title}: {one.row.title}", str(one.row.connections), *side_cells(one.row, one.theirs, one.p99 is not None),
         *side_cells(one.row, one.ours, one.p99 is not None)) for one in found)))
    return "\n\n".join(text)


def side_cells(row: Row, lines: Sequence[Line], has_tail: bool) -> tuple[str, str, str]:
    latency = cell(lines, "p50_ms") + (f", {cell(lines, 'p99_ms')}" if has_tail else "")
    return cell(lines, "server_cpu_ms_op"), rate_cell(row, lines), latency


def nodes(other: str, rows: Sequence[NodeRow]) -> str:
    return table(("", other, "keelstore", "factor", "aim"), (
        (row.title, f"{shown(row.theirs)} {row.unit}", f"{shown(row.ours)} {row.unit}", shown(row.factor.median), row.aim) for row in rows))


def failures(lines: Iterable[Line], labels: Callable[[Line], str]) -> list[str]:
    """A line for each measurement that saw answers other than good ones."""
    return [f"{labels(line)}: {line['errors']} of {line['ops'] + line['errors']} failed: {line['statuses']}"
            for line in lines if line.get("errors")]
