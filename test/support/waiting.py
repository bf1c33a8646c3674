"""Waiting for a condition, in place of sleeping: tests say what they wait for and how long it may take."""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Callable
from http.client import HTTPException
from typing import TypeVar

T = TypeVar("T")
DEADLINE_S = 60.0
LOOP, LOOP_S = 200_000, 0.04  # what slowness() counts to, and the seconds that it takes where the limits of our tests were set


def until(condition: Callable[[], T], what: str, deadline_s: float = DEADLINE_S, every_s: float = 0.05) -> T:
    """The first true value of ``condition``. Fails, naming ``what``, when the deadline passes first.

    An AssertionError, LookupError, OSError, HTTPException or JSONDecodeError of the condition counts as not yet.
    """
    end = time.monotonic() + deadline_s
    last: object = None
    while True:
        try:
            value = condition()
            if value:
                return value
            last = value
        except (AssertionError, LookupError, OSError, HTTPException, json.JSONDecodeError) as error:
            last = error
        if time.monotonic() >= end:
            raise AssertionError(f"not within {deadline_s} s: {what} (last: {last!r})")
        select.select([], [], [], every_s)  # between two looks at the condition


def quick(work: Callable[[], object], limit_s: float, attempts: int = 6) -> None:
    """That ``work`` takes less processor time than that: the least of some attempts, since a busy machine makes an attempt dear."""
    took = []
    for _ in range(attempts):
        began = time.thread_time()  # that of other threads is not its own
        work()
        took.append(time.thread_time() - began)
        if took[-1] < limit_s:
            return
    raise AssertionError(f"not within {limit_s} s of processor time: {took}")


def slowness() -> float:
    """How many times as long as alone, on the machine that limits were set for, something takes here now; at least 1.

    For limits of time that are asserted: by the load of the last minute, and by a small piece of work that is done now.
    """
    began, total = time.monotonic(), 0
    for number in range(LOOP):
        total += number
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1), (time.monotonic() - began) / LOOP_S)
