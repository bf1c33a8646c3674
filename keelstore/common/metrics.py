"""Requests of a role, counted: by method and status, and how long they took; and the text form that Prometheus reads.

A :class:`Meter` is one piece of shared memory, made with the role's application before the workers are forked. Each process
of a node writes its own row (``take_row``, after the fork), so that no lock is needed and a request costs three additions; a
scrape that reaches any of the workers adds the rows up, and so tells the figures of the whole node. A worker that is replaced
goes on with the row of the one before it: counts never go back but for a reload or a restart, as with any counter.

Times are whole microseconds. An upper bound of the histogram counts what took no longer than it.
"""

from __future__ import annotations

import mmap
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from keelstore.common.http import REASONS

ROWS: Final = 64  # processes of a node; more of them share rows, and may then lose a count now and then
METHODS: Final = ("GET", "HEAD", "PUT", "POST", "DELETE", "COPY", "OPTIONS", "REPLICATE", "SSYNC", "UPDATE", "other")
STATUSES: Final = (*sorted(REASONS), 0)  # 0: any other
BOUNDS_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
TEXT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_TIMES: Final = len(STATUSES)  # where a method's histogram begins, after its statuses
_SUM: Final = _TIMES + len(BOUNDS_S) + 1
_STEP: Final = _SUM + 1
_ROW: Final = _STEP * len(METHODS)
_UNUSED: Final = bytes(_ROW * 8)
_METHOD_AT: Final = {method: index * _STEP for index, method in enumerate(METHODS)}
_OTHER_METHOD: Final = _STEP * (len(METHODS) - 1)
_STATUS_AT: Final = {status: index for index, status in enumerate(STATUSES)}
_OTHER_STATUS: Final = len(STATUSES) - 1

_row = 0


def take_row(number: int) -> None:
    """This process is number ``number`` of its node, from 0; -1: the daemons' process. Called once, after the fork."""
    global _row
    _row = (ROWS - 1 if number < 0 else number % (ROWS - 1)) * _ROW


class Meter:
    """The counts of one role. Make it before forking."""

    def __init__(self, role: str):
        self.role = role
        self._table: Any = memoryview(mmap.mmap(-1, ROWS * _ROW * 8)).cast("q")

    def record(self, method: str, status: int, took_s: float) -> None:
        """One request has been answered. Safe in green threads: nothing in here switches."""
        table, at = self._table, _row + _METHOD_AT.get(method, _OTHER_METHOD)
        table[at + _STATUS_AT.get(status, _OTHER_STATUS)] += 1
        table[at + _TIMES + bisect_left(BOUNDS_S, took_s)] += 1
        table[at + _SUM] += int(took_s * 1e6)

    def totals(self) -> list[int]:
        """The sums over all processes, row by row as they were in one moment or the next."""
        found = [0] * _ROW
        for start in range(0, ROWS * _ROW, _ROW):
            row = self._table[start : start + _ROW]
            if row.tobytes() != _UNUSED:
                found = [have + new for have, new in zip(found, row)]
        return found

    def requests(self) -> dict[tuple[str, int], int]:
        """How many, by method and status (0: another)."""
        totals = self.totals()
        return {(method, status): totals[start + index] for method, start in _METHOD_AT.items()
                for index, status in enumerate(STATUSES) if totals[start + index]}

    def write(self, page: Page) -> None:
        totals = self.totals()
        base = {"role": self.role}
        page.family("keelstore_requests_total", "counter", "Requests answered, by all processes of the node.")
        for method, start in _METHOD_AT.items():
            for index, status in enumerate(STATUSES):
                if totals[start + index]:
                    page.sample({**base, "method": method, "status": status or "other"}, totals[start + index])
        page.family("keelstore_request_duration_seconds", "histogram", "From the head of a request to the end of its answer.")
        for method, start in _METHOD_AT.items():
            counts = totals[start + _TIMES : start + _SUM]
            if not any(counts):
                continue
            labels, sum_so_far = {**base, "method": method}, 0
            for bound, count in zip((*BOUNDS_S, None), counts):
                sum_so_far += count
                page.sample({**labels, "le": "+Inf" if bound is None else f"{bound:g}"}, sum_so_far, "_bucket")
            page.sample(labels, totals[start + _SUM] / 1e6, "_sum")
            page.sample(labels, sum_so_far, "_count")


# -- the text form -----------------------------------------------------------------------------------------------------

_ESCAPED: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


class Page:
    """Families of samples, in the order in which they are written; a family without samples leaves nothing."""

    def __init__(self) -> None:
        self._families: dict[str, tuple[str, list[str]]] = {}
        self._name = ""

    def family(self, name: str, kind: str, about: str) -> None:
        """What follows belongs to this one; it may be returned to."""
        self._name = name
        self._families.setdefault(name, (f"# HELP {name} {about}\n# TYPE {name} {kind}\n", []))

    def sample(self, labels: Mapping[str, object], value: float | bool | None, ending: str = "") -> None:
        """``value`` None: there is none, and nothing is written."""
        if value is None:
            return
        inner = ",".join(f'{name}="{str(text).translate(_ESCAPED)}"' for name, text in labels.items())
        place = f"{self._name}{ending}{{{inner}}}" if inner else f"{self._name}{ending}"
        self._families[self._name][1].append(f"{place} {_number(value)}\n")

    def gauge(self, name: str, about: str, samples: Iterable[tuple[Mapping[str, object], float | bool | None]]) -> None:
        """A whole family of gauges."""
        self.family(name, "gauge", about)
        for labels, value in samples:
            self.sample(labels, value)

    def parts(self) -> Iterator[str]:
        for head, samples in self._families.values():
            if samples:
                yield head
                yield from samples

    def text(self) -> bytes:
        return "".join(self.parts()).encode("utf-8", "replace")


def _number(value: float | bool) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    return str(value) if isinstance(value, int) else repr(float(value)).replace("inf", "Inf").replace("nan", "NaN")
