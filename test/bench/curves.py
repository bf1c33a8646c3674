"""Curves of what something costs as work grows, as an SVG picture written by hand: panels in a grid, both axes logarithmic. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from test.bench.plot import GRID, SOFT, line, text

COLUMNS, WIDTH, HEIGHT = 2, 300, 210
LEFT, RIGHT, TOP, BOTTOM, MARGIN = 64, 178, 46, 44, 16  # around the plot of a panel: numbers, names of the curves, title, sizes
COLOURS = ("#2a6fbb", "#c2572b", "#2f8f4e", "#8a4fb0", "#b58900", "#11828a", "#c23b7a", "#555555", "#7a5a3a")
LABEL = 13  # the least distance of two names


@dataclass(frozen=True)
class Curve:
    """One measure: (size, value), in order of size."""

    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Panel:
    title: str
    unit: str
    sizes: str  # what the sizes are
    curves: tuple[Curve, ...]


def decades(values: Sequence[float]) -> tuple[int, int]:
    """The powers of ten that hold the values, at least two apart, so that what hardly grows looks flat."""
    low, high = math.floor(math.log10(min(values)) + 1e-9), math.ceil(math.log10(max(values)) - 1e-9)
    return low, max(high, low + 2)


def shown_power(power: int) -> str:
    if power > 3:
        return f"10{''.join('⁰¹²³⁴⁵⁶⁷⁸⁹'[int(digit)] for digit in str(power))}"
    return f"{10.0 ** power:,.6g}"


def apart(wanted: Sequence[float], least: float, low: float, high: float) -> list[float]:
    """Places for labels, as near as may be to the wanted ones, in their order, ``least`` apart."""
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    found = [0.0] * len(wanted)
    last = low - least
    for index in order:
        last = found[index] = max(wanted[index], last + least)
    last = high + least
    for index in reversed(order):
        last = found[index] = min(found[index], last - least)
    return found


def panel(left: float, top: float, shown: Panel) -> list[str]:
    x0, y0, x1, y1 = left + LEFT, top + TOP, left + LEFT + WIDTH, top + TOP + HEIGHT
    points = [point for curve in shown.curves for point in curve.points]
    (first, last), (low, high) = decades([size for size, _ in points]), decades([value for _, value in points])

    def x(size: float) -> float:
        return x0 + (math.log10(size) - first) / (last - first) * WIDTH

    def y(value: float) -> float:
        return y1 - (math.log10(value) - low) / (high - low) * HEIGHT

    found = [text(x0 - LEFT + 8, top + 18, shown.title, weight="bold"), text(x0 - LEFT + 8, top + 34, shown.unit, size=11, fill=SOFT)]
    for power in range(low, high + 1):
        found += [line(x0, y(10.0 ** power), x1, y(10.0 ** power), GRID), text(x0 - 6, y(10.0 ** power) + 4, shown_power(power), size=10, anchor="end", fill=SOFT)]
    for power in range(first, last + 1):
        found += [line(x(10.0 ** power), y0, x(10.0 ** power), y1, GRID), text(x(10.0 ** power), y1 + 15, shown_power(power), size=10, anchor="middle", fill=SOFT)]
    found.append(text((x0 + x1) / 2, y1 + 31, shown.sizes, size=11, anchor="middle", fill=SOFT))
    ends = apart([y(curve.points[-1][1]) + 4 for curve in shown.curves], LABEL, y0, y1 + 6)
    for number, (curve, end) in enumerate(zip(shown.curves, ends, strict=True)):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{x(size):.1f},{y(value):.1f}" for size, value in curve.points)
        found.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
        found += [f'<circle cx="{x(size):.1f}" cy="{y(value):.1f}" r="2.6" fill="{colour}"/>' for size, value in curve.points]
        found.append(line(x(curve.points[-1][0]) + 4, y(curve.points[-1][1]), x1 + 8, end - 4, colour, 0.6))
        found.append(text(x1 + 11, end, curve.name, size=11, fill=colour))
    return found


def picture(title: str, subtitle: str, panels: Sequence[Panel]) -> str:
    """The whole picture. Panels without a curve are left out."""
    drawn = [one for one in panels if any(curve.points for curve in one.curves)]
    wide, high = LEFT + WIDTH + RIGHT, TOP + HEIGHT + BOTTOM
    body = [text(MARGIN + 8, 30, title, size=17, weight="bold"), text(MARGIN + 8, 50, subtitle, fill=SOFT)]
    for number, one in enumerate(drawn):
        body += panel(MARGIN + number % COLUMNS * wide, 66 + number // COLUMNS * high, one)
    width, height = MARGIN * 2 + COLUMNS * wide, 66 + math.ceil(len(drawn) / COLUMNS) * high + MARGIN
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="Helvetica, Arial, sans-serif">', f"<title>{escape(title)}</title>",
        '<rect width="100%" height="100%" fill="#ffffff"/>', *body, "</svg>"]) + "\n"
