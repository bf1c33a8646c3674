"""The factors of a comparison as an SVG picture, written by hand: bars on a logarithmic scale, spread and aim marked. Pure.

Four panels side by side share the rows: CPU, rate, p50, p99; below them one for the whole node. Right of the line at 1 we are ahead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from test.bench.report import Compared, Factor, NodeRow

LABELS, PANEL, GAP, MARGIN = 262, 192, 38, 20
ROW, BAR, GROUP = 19, 11, 27
NUMBER = 22  # the room that a number takes
LEAST, MOST = 0.25, 64.0
TICKS = (0.25, 0.5, 1, 2, 4, 8, 16, 32, 64)
AHEAD, BEHIND, AIM, INK, SOFT, GRID = "#2a6fbb", "#c2572b", "#111111", "#222222", "#666666", "#dddddd"


@dataclass(frozen=True)
class Bar:
    """One factor and the aim that it has."""

    factor: Factor | None
    aim: float | None = None


@dataclass(frozen=True)
class Drawn:
    """A row of bars, one for each panel."""

    label: str
    bars: tuple[Bar, ...]


def at(value: float) -> float:
    """Where a factor lies in a panel; what is beyond its ends at its ends."""
    value = min(max(value, LEAST), MOST)
    return PANEL * math.log(value / LEAST) / math.log(MOST / LEAST)


def text(x: float, y: float, content: str, *, size: int = 12, anchor: str = "start", fill: str = INK, weight: str = "normal") -> str:
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{fill}" font-weight="{weight}">'
            f"{escape(content)}</text>")


def line(x1: float, y1: float, x2: float, y2: float, stroke: str, width: float = 1) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{stroke}" stroke-width="{width:g}"/>'


def number(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def bar(left: float, top: float, shown: Bar) -> list[str]:
    found, middle = [], top + ROW / 2
    if shown.factor is not None:
        value, one, end = shown.factor.median, left + at(1), left + at(shown.factor.median)
        low, high = min(one, end), max(one, end)
        found.append(f'<rect x="{low:.1f}" y="{middle - BAR / 2:.1f}" width="{max(high - low, 0.8):.1f}" height="{BAR}" '
                     f'fill="{AHEAD if value >= 1 else BEHIND}"/>')
        if shown.factor.least != shown.factor.most:
            found.append(line(left + at(shown.factor.least), middle, left + at(shown.factor.most), middle, SOFT, 1.4))
        tip = max(high, left + at(shown.factor.most)) + 4
        aimed = left + at(shown.aim) if shown.aim else 0
        if tip - 6 < aimed < tip + NUMBER:  # the mark would stand in the number
            tip = aimed + 5
        found.append(text(tip, middle + 3.6, number(value), size=10))
    if shown.aim:
        x = left + at(shown.aim)
        found.append(line(x, middle - ROW / 2 + 1.5, x, middle + ROW / 2 - 1.5, AIM, 2.4))
    return found


def grid(left: float, top: float, bottom: float, title: str) -> list[str]:
    found = [text(left + PANEL / 2, top - 20, title, anchor="middle", weight="bold")]
    for tick in TICKS:
        x = left + at(tick)
        found.append(line(x, top, x, bottom, SOFT if tick == 1 else GRID, 1.2 if tick == 1 else 1))
        found.append(text(x, top - 5, f"{tick:g}", size=10, anchor="middle", fill=SOFT))
    return found


def panels(top: float, titles: Sequence[str], groups: Sequence[tuple[str, Sequence[Drawn]]]) -> tuple[list[str], float]:
    """A block of panels with its rows; its lower end too."""
    height = sum(GROUP * bool(name) + ROW * len(drawn) for name, drawn in groups)
    lefts = [MARGIN + LABELS + number * (PANEL + GAP) for number in range(len(titles))]
    found = [part for left, title in zip(lefts, titles, strict=True) for part in grid(left, top, top + height, title)]
    y = top
    for name, drawn in groups:
        if name:
            found.append(text(MARGIN, y + GROUP - 9, name, weight="bold"))
            y += GROUP
        for row in drawn:
            found.append(text(MARGIN + LABELS - 12, y + ROW / 2 + 4, row.label, anchor="end"))
            for left, one in zip(lefts, row.bars, strict=True):
                found += bar(left, y, one)
            y += ROW
    return found, y


def picture(title: str, subtitle: str, compared: Sequence[Compared], nodes: Sequence[NodeRow]) -> str:
    """The whole picture."""
    kinds = list(dict.fromkeys(one.row.kind for one in compared))
    groups = [(f"{kind.title[0].upper()}{kind.title[1:]}", [
        Drawn(f"{one.row.title}, {one.row.connections} conn.",
              (Bar(one.cpu, one.cpu_aim), Bar(one.rate, one.rate_aim), Bar(one.p50), Bar(one.p99)))
        for one in compared if one.row.kind == kind]) for kind in kinds]
    width = MARGIN * 2 + LABELS + 4 * PANEL + 3 * GAP + 14
    body = [text(MARGIN, 30, title, size=17, weight="bold"), text(MARGIN, 50, subtitle, fill=SOFT)]
    parts, bottom = panels(108, ("less CPU for each operation", "more operations a second", "lower p50", "lower p99"), groups)
    body += parts
    if nodes:
        drawn = [Drawn(row.title, (Bar(row.factor),)) for row in nodes]
        parts, bottom = panels(bottom + 68, ("less of it",), [("Whole node", drawn)])
        body += parts
    legend = bottom + 34
    body += [line(MARGIN + 6, legend - 12, MARGIN + 6, legend + 3, AIM, 2.4), text(MARGIN + 14, legend, "aim of the design", size=11),
             line(MARGIN + 140, legend - 4, MARGIN + 170, legend - 4, SOFT, 1.4), text(MARGIN + 176, legend, "least and most of the rounds", size=11),
             f'<rect x="{MARGIN + 362}" y="{legend - 10}" width="12" height="{BAR}" fill="{BEHIND}"/>', text(MARGIN + 380, legend, "behind", size=11)]
    height = legend + 22
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height:.0f}" viewBox="0 0 {width} {height:.0f}" '
        'font-family="Helvetica, Arial, sans-serif">', f"<title>{escape(title)}</title>",
        '<rect width="100%" height="100%" fill="#ffffff"/>', *body, "</svg>"]) + "\n"
