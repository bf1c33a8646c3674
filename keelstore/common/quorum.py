"""Many backend answers to one outcome: how many must agree, and whose answer speaks for all (``spec: proxy 5``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def quorum_size(count: int) -> int:
    """``(n + 1) // 2``: 1 of 1, 1 of 2, 2 of 3, 2 of 4, 3 of 5."""
    return (count + 1) // 2


def majority_size(count: int) -> int:
    return count // 2 + 1


def have_quorum(statuses: Sequence[int], node_count: int, quorum: int | None = None) -> bool:
    """Whether some class 1xx to 4xx has enough members to stop waiting."""
    if quorum is None:
        quorum = quorum_size(node_count)
    if len(statuses) < quorum:
        return False
    counts = [0] * 6
    for status in statuses:
        counts[min(status // 100, 5)] += 1
    return any(counts[kind] >= quorum for kind in (1, 2, 3, 4))


def best_response(
    statuses: Sequence[int], quorum: int | None = None, overrides: Mapping[int, int] | None = None
) -> tuple[int, int] | None:
    """The (status, index into ``statuses``) of the answer that speaks for all, or None: answer 503.

    In the first class of 2xx, 3xx, 4xx with a quorum, the numerically highest status does, the first of equals. When no
    class has one, ``overrides`` (such as 404 counting as 204 for a delete) are tried; an overridden answer counts but never
    speaks, unless nothing else of its class was given.
    """
    if quorum is None:
        quorum = quorum_size(len(statuses))
    found = _choose(list(statuses), quorum, frozenset())
    if found is None and overrides:
        faked = frozenset(i for i, status in enumerate(statuses) if status in overrides)
        found = _choose([overrides.get(status, status) for status in statuses], quorum, faked)
    return found


def _choose(statuses: list[int], quorum: int, faked: frozenset[int]) -> tuple[int, int] | None:
    for kind in (2, 3, 4):
        members = [i for i, status in enumerate(statuses) if status // 100 == kind]
        if len(members) >= quorum:
            speakers = [i for i in members if i not in faked]
            if not speakers:
                continue
            best = max(speakers, key=lambda i: (statuses[i], -i))
            return statuses[best], best
    return None
