"""Waiting for a condition, in place of sleeping: tests say what they wait for and how long it may take."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
DEADLINE_S = 60.0


def until(condition: Callable[[], T], what: str, deadline_s: float = DEADLINE_S, every_s: float = 0.05) -> T:
    """The first true value of ``condition``. Fails, naming ``what``, when the deadline passes first.

    An AssertionError or OSError of the condition counts as not yet.
    """
    end = time.monotonic() + deadline_s
    last: object = None
    while True:
        try:
            value = condition()
            if value:
                return value
            last = value
        except (AssertionError, OSError) as error:
            last = error
        if time.monotonic() >= end:
            raise AssertionError(f"not within {deadline_s} s: {what} (last: {last!r})")
        select.select([], [], [], every_s)  # between two looks at the condition
