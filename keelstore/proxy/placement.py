"""The order of nodes for a read or a write, and which node tells which container server. Pure (``spec: proxy 3, 10``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Protocol

NO_MATCH = 2**32  # priority of a node that no read affinity names

Shuffle = Callable[[list[Any]], None]


class NodeLike(Protocol):
    """What is asked of a ring's node."""

    @property
    def region(self) -> int: ...
    @property
    def zone(self) -> int: ...


def order_for_read(
    primaries: Iterable[Any],
    method: str,
    affinity: Sequence[tuple[int, int | None, int]],
    timing_ms: Callable[[Any], float],
    shuffle: Shuffle,
    comes_last: Callable[[Any], bool] | None = None,
) -> list[Any]:
    """The primaries in the order in which to ask them: shuffled, those that ``comes_last`` names after the others, then
    sorted by time or by affinity, stably.
    """
    found = list(primaries)
    shuffle(found)
    if comes_last is not None:
        found.sort(key=comes_last)
    if method == "timing":
        found.sort(key=timing_ms)
    elif method == "affinity" and affinity:
        found.sort(key=lambda node: priority_of(node, affinity))
    return found


def priority_of(node: NodeLike, affinity: Sequence[tuple[int, int | None, int]]) -> int:
    """The number of the first rule that names the node's region, or region and zone."""
    for region, zone, priority in affinity:
        if node.region == region and (zone is None or node.zone == zone):
            return priority
    return NO_MATCH


def is_local(node: NodeLike, affinity: Sequence[tuple[int, int | None]]) -> bool:
    return any(node.region == region and (zone is None or node.zone == zone) for region, zone in affinity)


def order_for_write(
    primaries: Sequence[Any], handoffs: Iterable[Any], affinity: Sequence[tuple[int, int | None]], local_count: int
) -> tuple[list[Any], Iterator[Any]]:
    """The nodes of an object PUT under write affinity, as (to be treated as primaries, the rest in order).

    First up to ``local_count`` local nodes out of primaries and handoffs, then all others in their order; nobody twice.
    """
    everyone = _Remembering(chain(primaries, handoffs))
    local: list[Any] = []
    for node in everyone:
        if is_local(node, affinity):
            local.append(node)
            if len(local) == local_count:
                break
    taken = {id(node) for node in local}
    others = (node for node in chain(everyone.seen, everyone) if id(node) not in taken)
    ordered = chain(local, others)
    first = [node for _, node in zip(range(len(primaries)), ordered, strict=False)]
    return first, ordered


class _Remembering:
    """An iterator that keeps what it has given."""

    def __init__(self, source: Iterator[Any]):
        self._source = source
        self.seen: list[Any] = []

    def __iter__(self) -> Iterator[Any]:
        for node in self._source:
            self.seen.append(node)
            yield node


def order_for_delete(
    primaries: Sequence[Any], handoffs: Iterable[Any], affinity: Sequence[tuple[int, int | None]],
    handoff_count: int | None,
) -> tuple[list[Any], Iterator[Any], int]:
    """The nodes of an object DELETE under write affinity: (primaries and local handoffs, the rest, how many the former are).

    ``handoff_count`` None: as many local handoffs as there are primaries that are not local.
    """
    if handoff_count is None:
        handoff_count = len(primaries) - sum(is_local(node, affinity) for node in primaries)
    everyone = _Remembering(iter(handoffs))
    local: list[Any] = []
    if handoff_count > 0:
        for node in everyone:
            if is_local(node, affinity):
                local.append(node)
                if len(local) == handoff_count:
                    break
    taken = {id(node) for node in local}
    rest = (node for node in chain(list(everyone.seen), everyone) if id(node) not in taken)
    first = [*primaries, *local]
    return first, rest, len(first)


class Nodes:
    """The nodes one request may be tried on, in order; shared by the green threads that work for it.

    ``limit`` nodes are given at most; error-limited ones are skipped and not counted, nor is one counted that became so
    while it was asked. ``on_handoff`` is told of each node after the primaries. Primaries that were skipped are kept for
    :meth:`last_resort`.
    """

    __slots__ = ("_handoffs", "_is_limited", "_last", "_left", "_on_handoff", "_position", "_primaries", "_rest", "_skipped",
                 "primary_count")

    def __init__(
        self,
        primaries: Sequence[Any],
        handoffs: Callable[[], Iterable[Any]],
        limit: int,
        is_limited: Callable[[Any], bool],
        on_handoff: Callable[[Any], None] | None = None,
    ):
        self._primaries, self._handoffs, self._is_limited, self._on_handoff = primaries, handoffs, is_limited, on_handoff
        self.primary_count = len(primaries)
        self._position, self._left = 0, limit
        self._rest: Iterator[Any] | None = None
        self._last: Any = None
        self._skipped: list[Any] = []

    def last_resort(self) -> Any:
        """A primary that was skipped and not given here before, or None: for a reader that can otherwise only say 503."""
        return self._skipped.pop(0) if self._skipped else None

    def __iter__(self) -> Nodes:
        return self

    def __next__(self) -> Any:
        if self._last is not None:
            if not self._is_limited(self._last):
                self._left -= 1
            self._last = None
        if self._left <= 0:
            raise StopIteration
        while self._position < self.primary_count:
            node = self._primaries[self._position]
            self._position += 1
            if not self._is_limited(node):
                self._last = node
                return node
            self._skipped.append(node)
        if self._rest is None:
            self._rest = iter(self._handoffs())
        for node in self._rest:
            if not self._is_limited(node):
                if self._on_handoff is not None:
                    self._on_handoff(node)
                self._last = node
                return node
        raise StopIteration


# -- who updates whom --------------------------------------------------------------------------------------------------


def updates_needed(container_replicas: int, object_count: int, object_quorum: int) -> int:
    """How many (object request, container server) pairs make sure that a quorum of container servers hears of a write that
    only a quorum of object servers takes: ``max(Rc, Qc + Ro - Qo)``. And one for each object server at least: a write that
    fails may still have been taken by any one of them, and come to life when it is repaired."""
    container_quorum = (container_replicas + 1) // 2
    return max(container_replicas, object_count, container_quorum + object_count - object_quorum)


def share_updates(nodes: Sequence[Any], requests: int, count: int | None = None, backwards: bool = False) -> list[list[Any]]:
    """Deal ``count`` (default: all) nodes in turn to so many requests: node ``n mod len(nodes)`` to request
    ``n mod requests``, or counted from the last request when ``backwards``."""
    shares: list[list[Any]] = [[] for _ in range(requests)]
    if nodes and requests:
        for n in range(len(nodes) if count is None else count):
            index = n % requests
            shares[requests - 1 - index if backwards else index].append(nodes[n % len(nodes)])
    return shares
