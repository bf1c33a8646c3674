"""What the proxy decides about fragments (``spec: proxy 13, 14``). Pure: which node gets which fragment of a write; which
of the answers to a read are one object that can be decoded, and what is still missing; which bytes of the fragment
archives hold a range of the object.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from keelstore.common.headers import Headers
from keelstore.common.policy import ErasureCodingPolicy
from keelstore.common.timestamp import ZERO, Timestamp

EC_PREFIX = "X-Object-Sysmeta-Ec-"
EC_ETAG = f"{EC_PREFIX}Etag"
EC_LENGTH = f"{EC_PREFIX}Content-Length"
EC_INDEX = f"{EC_PREFIX}Frag-Index"
MAX_TIMES = 16  # of objects that a node may tell of
MAX_TOLD = 256  # fragments of one time that a node may tell of; more is nonsense


# -- writing -----------------------------------------------------------------------------------------------------------


def assign_fragments(primary_indexes: Sequence[int | None], fragments: int) -> list[int]:
    """The fragment for each node: a primary has its own (place among the primaries modulo the number of fragments),
    a handoff (None) gets one that is missing, the least held first, the lowest of equals.
    """
    counts = [0] * fragments
    for index in primary_indexes:
        if index is not None:
            counts[index % fragments] += 1
    found = []
    for index in primary_indexes:
        if index is None:
            chosen = min(range(fragments), key=lambda fragment: (counts[fragment], fragment))
            counts[chosen] += 1
        else:
            chosen = index % fragments
        found.append(chosen)
    return found


# -- ranges ------------------------------------------------------------------------------------------------------------


def archive_range(first: int | None, last: int | None, segment_size: int, fragment_size: int) -> str:
    """The Range header that asks for the whole segments' fragments which hold a range of the object; its length need not
    be known. (None, n) are the last n bytes, (n, None) all from n on.
    """
    if first is None:
        assert last is not None
        return f"bytes=-{(-(-last // segment_size) + 1) * fragment_size}"
    start = first // segment_size * fragment_size
    if last is None:
        return f"bytes={start}-"
    return f"bytes={start}-{(last // segment_size + 1) * fragment_size - 1}"


# -- reading -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Facts:
    """What a node's answer says of fragments. ``held``: the fragments of the node, by time. ``source`` is the caller's."""

    status: int
    source: Any = None
    data_time: Timestamp | None = None
    time: Timestamp | None = None
    durable: Timestamp | None = None
    fragment: int | None = None
    etag: str = ""
    held: Mapping[Timestamp, frozenset[int]] = field(default_factory=dict)

    @property
    def is_good(self) -> bool:
        return self.status in (200, 206, 416) and self.fragment is not None


def facts_of(status: int, headers: Headers, source: Any = None) -> Facts:
    """What cannot be read counts as not said."""
    index = dict.get(headers, EC_INDEX, "")
    data_time = _time(dict.get(headers, "X-Backend-Data-Timestamp"))
    durable = _time(dict.get(headers, "X-Backend-Durable-Timestamp"))
    time = _time(dict.get(headers, "X-Backend-Timestamp"))
    if data_time is None and status < 400:  # an old server, which knows only durable ones
        data_time = durable = _time(dict.get(headers, "X-Timestamp"))
    return Facts(status, source, data_time, time, durable, int(index) if index.isascii() and index.isdigit() else None,
                 dict.get(headers, EC_ETAG, ""), _held(dict.get(headers, "X-Backend-Fragments")))


def _time(text: str | None) -> Timestamp | None:
    if not text:
        return None
    try:
        return Timestamp(text)
    except ValueError:
        return None


def _held(text: str | None) -> dict[Timestamp, frozenset[int]]:
    if not text:
        return {}
    try:
        return {
            Timestamp(stamp): frozenset(int(index) for index in indexes[:MAX_TOLD])
            for stamp, indexes in islice(json.loads(text).items(), MAX_TIMES)
        }
    except (ValueError, TypeError, AttributeError, RecursionError):
        return {}


class Bucket:
    """The good answers of one data timestamp: fragments of one object, whose ETag the first of them tells."""

    __slots__ = ("answers", "etag", "is_durable", "policy", "timestamp", "told")

    def __init__(self, policy: ErasureCodingPolicy, timestamp: Timestamp):
        self.policy, self.timestamp, self.etag = policy, timestamp, ""
        self.is_durable = False
        self.answers: dict[int, list[Facts]] = {}  # by fragment; the first of each is the one to use
        self.told: dict[int, list[Facts]] = {}  # fragments that nodes hold beside the one they gave

    @property
    def have(self) -> int:
        return len(self.answers)

    @property
    def shortfall(self) -> int:
        """How many answers more to ask for. One that is not known to be durable is asked for until somebody says it is,
        or nobody can be left who knows.
        """
        policy = self.policy
        missing = policy.ndata - self.have
        if self.is_durable or any(facts.status == 416 for group in self.answers.values() for facts in group):
            return max(missing, 0)
        everyone = policy.fragments * policy.duplication
        answered = sum(map(len, self.answers.values()))
        return max(1, missing, min(everyone - answered, policy.nparity))

    @property
    def shortfall_with_told(self) -> int:
        return max(self.policy.ndata - len(self.answers.keys() | self.told.keys()), 0)

    @property
    def is_complete(self) -> bool:
        return self.have >= self.policy.ndata

    def chosen(self) -> list[Facts]:
        """As many answers as decoding needs: data fragments first, which need no computing."""
        return [self.answers[index][0] for index in sorted(self.answers)[: self.policy.ndata]]


class Choice:
    """Answers to one read, sorted into buckets; the outcome does not depend on their order, but for which of two
    answers with the same fragment is used, and which of two different objects of one timestamp is believed (the first).
    """

    def __init__(self, policy: ErasureCodingPolicy):
        self.policy = policy
        self.buckets: dict[Timestamp, Bucket] = {}
        self.bad: list[Facts] = []
        self.newest_tombstone = ZERO
        self._durable: set[Timestamp] = set()

    def add(self, facts: Facts) -> bool:
        """Take an answer into account; whether it is one that may be decoded. Others' bodies are not needed."""
        if facts.durable is not None:
            self._durable.add(facts.durable)
            if facts.durable in self.buckets:
                self.buckets[facts.durable].is_durable = True
        if not facts.is_good or facts.data_time is None:
            self.bad.append(facts)
            if facts.status == 404 and facts.time is not None:
                self.newest_tombstone = max(self.newest_tombstone, facts.time)
            return False
        assert facts.fragment is not None
        bucket = self._bucket(facts.data_time)
        if (bucket.answers and bucket.etag != facts.etag) or facts.fragment >= self.policy.fragments:
            return False
        bucket.etag = facts.etag
        bucket.answers.setdefault(facts.fragment, []).append(facts)
        for time, indexes in facts.held.items():
            told = self._bucket(time).told
            for index in indexes:
                if index < self.policy.fragments and (index != facts.fragment or time != facts.data_time):
                    told.setdefault(index, []).append(facts)
        return True

    def _bucket(self, time: Timestamp) -> Bucket:
        bucket = self.buckets.get(time)
        if bucket is None:
            bucket = self.buckets[time] = Bucket(self.policy, time)
            bucket.is_durable = time in self._durable
        return bucket

    def ranked(self) -> list[Bucket]:
        """Best first; those that a tombstone has deleted are left out. A 404 with the time of the data itself is of a device
        that takes the object for expired; it may have missed that it is not (``spec: scenarios-fault`` 118).
        """
        return sorted(
            (bucket for bucket in self.buckets.values() if bucket.timestamp >= self.newest_tombstone),
            key=lambda bucket: (bucket.is_durable, bucket.is_complete, -bucket.shortfall_with_told, bucket.timestamp),
            reverse=True,
        )

    def newest_durable(self) -> Bucket | None:
        return max((bucket for bucket in self.ranked() if bucket.is_durable), key=lambda bucket: bucket.timestamp,
                   default=None)

    @property
    def best(self) -> Bucket | None:
        return next(iter(self.ranked()), None)

    @property
    def shortfall(self) -> int:
        """How many answers more to ask for."""
        best = self.best
        if best is not None:
            return best.shortfall
        # Nothing to decode. What as many agree on as would have sufficed for decoding settles it (not modified, not as
        # demanded); that there is nothing is believed only when all were asked.
        counts: dict[int, int] = {}
        for facts in self.bad:
            if facts.status < 500 and facts.status != 404:
                counts[facts.status] = counts.get(facts.status, 0) + 1
        return self.policy.ndata - max(counts.values(), default=0)

    @property
    def can_serve(self) -> Bucket | None:
        best = self.best
        return best if best is not None and best.is_durable and best.shortfall <= 0 else None

    def preferences(self) -> str:
        """The value of X-Backend-Fragment-Preferences for the next node: what would help most, first."""
        return preferences((bucket.timestamp, bucket.answers) for bucket in self.ranked())

    def answers_that_count(self, suppressed: int) -> list[Facts]:
        """The answers that decide what the client hears when there is nothing to serve. Left out: what is older than
        the best durable object, and up to ``suppressed`` 404s that prove nothing.
        """
        best = self.best
        floor = best.timestamp if best is not None and best.is_durable else None
        found = []
        for facts in self.bad:
            if floor is not None and facts.time is not None and facts.time < floor:
                continue
            if facts.status == 404 and facts.time is None and suppressed > 0:
                suppressed -= 1
                continue
            found.append(facts)
        return found


def preferences(wishes: Iterable[tuple[Timestamp, Iterable[int]]]) -> str:
    return json.dumps([{"timestamp": timestamp.internal, "exclude": sorted(held)} for timestamp, held in wishes])
