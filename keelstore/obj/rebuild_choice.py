"""Pure: which answers to the GETs of a rebuild are fragments of the object that is to be whole again, and what it means when
they are too few (``spec: daemons 12``).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from keelstore.common.headers import Headers
from keelstore.common.ring.ring import Node
from keelstore.common.timestamp import Timestamp

EC_ETAG: Final = "X-Object-Sysmeta-Ec-Etag"
EC_INDEX: Final = "X-Object-Sysmeta-Ec-Frag-Index"
EC_LENGTH: Final = "X-Object-Sysmeta-Ec-Content-Length"
EC_SEGMENT: Final = "X-Object-Sysmeta-Ec-Segment-Size"
MAX_TOLD: Final = 64  # fragments of one time that a node may tell of


@dataclass(frozen=True, slots=True)
class Answer:
    """What a node answered. ``told``: the fragments of the wanted time that it holds; ``source`` is the caller's."""

    status: int
    fragment: int | None = None
    data_time: Timestamp | None = None
    time: Timestamp | None = None
    etag: str = ""
    told: frozenset[int] = frozenset()
    source: Any = None
    is_handoff: bool = False


def answer_of(status: int, headers: Headers, wanted: Timestamp, source: Any = None, is_handoff: bool = False) -> Answer:
    """What cannot be read counts as not said."""
    index = headers.get(EC_INDEX) or ""
    time = _time(headers.get("X-Backend-Timestamp"))
    data_time = _time(headers.get("X-Backend-Data-Timestamp"))
    return Answer(status, int(index) if index.isascii() and index.isdigit() and len(index) < 6 else None, data_time, time,
                  headers.get(EC_ETAG) or "", _told(headers.get("X-Backend-Fragments"), wanted), source, is_handoff)


def _time(text: str | None) -> Timestamp | None:
    try:
        return Timestamp(text) if text else None
    except ValueError:
        return None


def _told(text: str | None, wanted: Timestamp) -> frozenset[int]:
    try:
        found = json.loads(text or "{}").get(wanted.internal, ())
        return frozenset(int(index) for index in found[:MAX_TOLD])
    except (ValueError, TypeError, AttributeError, RecursionError, KeyError):
        return frozenset()


@dataclass
class Gathering:
    """The answers so far. Only fragments of the very object count: of its time, its ETag, and none twice.

    ``fragment`` is the one to be made; nobody's answer with it is of use.
    """

    ndata: int
    fragments: int
    timestamp: Timestamp
    etag: str
    fragment: int
    good: dict[int, Answer] = field(default_factory=dict)
    others: dict[Timestamp, set[int]] = field(default_factory=dict)  # fragments of other times, or other objects
    errors: Counter[int] = field(default_factory=Counter)  # of primaries
    handoff_errors: Counter[int] = field(default_factory=Counter)
    ok: int = 0
    deleted: Timestamp | None = None  # somebody knows it to be deleted then

    def add(self, answer: Answer) -> bool:
        """Take an answer into account; whether its body is of use."""
        if answer.status != 200:
            counts = self.handoff_errors if answer.is_handoff else self.errors
            counts[answer.status] += 1
            if answer.status == 404 and answer.time is not None and answer.time >= self.timestamp:
                self.deleted = max(answer.time, self.deleted or answer.time)
            return False
        self.ok += 1
        index = answer.fragment
        if index is None or index >= self.fragments or answer.data_time is None:
            return False
        if answer.data_time != self.timestamp or answer.etag != self.etag:
            self.others.setdefault(answer.data_time, set()).add(index)
            return False
        if index == self.fragment or index in self.good:
            return False
        self.good[index] = answer
        return True

    def drop(self, index: int) -> None:
        """What this fragment's node sends is of no use after all."""
        self.good.pop(index, None)

    @property
    def shortfall(self) -> int:
        return max(0, self.ndata - len(self.good))

    def describe(self, with_handoffs: bool = False) -> str:
        """How many fragments of one object there are, of those needed, and what the other nodes said."""
        best = max([len(self.good), *(len(indexes) for indexes in self.others.values())])
        errors = self.errors + self.handoff_errors if with_handoffs else self.errors
        said = ", ".join(f"{count} x {'no answer' if status == 0 else status}" for status, count in sorted(errors.items()))
        text = f"({best}/{self.ndata} from {self.ok} ok responses)"
        return f"{text} ({said} error responses)" if said else text

    def is_solitary(self, own: int, age_s: float, quarantine_age_s: float, threshold: int) -> bool:
        """Whether what is here is the remains of an object that was deleted long ago: everybody else knows of nothing at all,
        neither of this object nor of any other of its name.
        """
        errors = self.errors + self.handoff_errors
        return (
            self.ok <= threshold and self.ok < self.ndata and own in self.good and not self.others
            and not self.deleted and set(errors) == {404} and age_s > quarantine_age_s
        )  # fmt: skip


def in_order(primaries: Sequence[Node], own: Node, ndata: int, fragments: int, fragment: int) -> list[Node]:
    """The primaries in the order of asking: those with data fragments first, which need the least computing, one of each
    index before any second one; the device at hand before others. Whoever should hold the fragment to be made is not asked.
    """

    def urgency(node: Node) -> tuple[int, bool, bool]:
        index = (node.index or 0) % fragments
        return (node.index or 0) // fragments, index >= ndata, node.id != own.id

    asked = [node for node in primaries if (node.index or 0) % fragments != fragment]
    asked.sort(key=urgency)
    return asked


def wish(timestamp: Timestamp, exclude: Iterable[int]) -> str:
    """X-Backend-Fragment-Preferences for a fragment of this time, durable or not, that is none of ``exclude``."""
    return json.dumps([{"timestamp": timestamp.internal, "exclude": sorted(exclude)}])


def number(metadata: Mapping[str, str], name: str, fallback: int = 0) -> int:
    """A size in the metadata of a fragment."""
    text = metadata.get(name) or ""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else fallback
