"""One thing that is wrong with a cluster: what, why, and the command that helps; and the words for it.

Two severities. ``danger``: something stored has fewer copies than it should, or may get lost or stale, or nobody can tell;
``status`` ends with 1. ``warning``: nothing is lost, but someone should know.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from keelstore.cli.view import ordered

DANGER: Final = "danger"
WARNING: Final = "warning"


@dataclass(frozen=True)
class Problem:
    severity: str
    code: str  # stable, for tools
    what: str
    why: str
    do: str  # the command that helps, or what to do
    node: str = ""
    device: str = ""
    count: int | float | None = None


def is_safe(problems: Iterable[Problem]) -> bool:
    return all(problem.severity != DANGER for problem in problems)


def listed(names: Iterable[str]) -> str:
    found = ordered(names)
    return ", ".join(found) if len(found) <= 4 else f"{', '.join(found[:3])} and {len(found) - 3} more"


def counted(count: float, what: str) -> str:
    """``1 device``, ``2 devices``."""
    return f"{count:.0f} {what}{'' if count == 1 else 's'}"


def span(seconds: float) -> str:
    """As people say it."""
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds" if seconds >= 2 or seconds < 0.5 else "1 second"


def number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0
