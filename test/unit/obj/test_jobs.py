from __future__ import annotations

import random
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from keelstore.common.ring.ring import Node
from keelstore.common.work import Risk
from keelstore.obj.fileset import FileSet
from keelstore.obj.jobs import Job, Kind, RegionGate, differing, in_order, job_of, missing, removable


def node(number: int, region: int = 1, index: int | None = None) -> Node:
    ip = f"10.0.0.{number}"
    return Node(number, region, 1, ip, 6200, ip, 6200, f"d{number}", 1.0, index=index)


class FakeRing:
    version = 7

    def __init__(self, *numbers: int):
        self._numbers = numbers

    def primaries(self, part: int) -> Sequence[Node]:
        return [node(number, index=index) for index, number in enumerate(self._numbers)]


def targets(job: Job | None) -> list[int]:
    assert job is not None
    return [target.id for target in job.targets]


def test_a_primary_syncs_with_the_others_from_its_own_place_on() -> None:
    job = job_of(FakeRing(1, 2, 3), 0, node(2), 5)
    assert job is not None and job.kind is Kind.SYNC and job.ring_version == 7 and job.key == (0, "d2", 5)
    assert targets(job) == [3, 1]
    assert targets(job_of(FakeRing(1, 2, 3), 0, node(1), 5)) == [2, 3]


def test_a_handoff_reverts_to_all_primaries() -> None:
    job = job_of(FakeRing(1, 2, 3), 0, node(9), 5, random.Random(1))
    assert job is not None and job.kind is Kind.REVERT and sorted(targets(job)) == [1, 2, 3] and job.risk is Risk.HANDOFF
    assert "revert" in str(job) and "10.0.0.1:6200/d1" in str(job)


def test_nothing_is_to_do_where_nobody_else_is() -> None:
    assert job_of(FakeRing(1), 0, node(1), 5) is None  # a policy of one replica
    assert job_of(FakeRing(), 0, node(1), 5) is None  # a number that is no partition


def test_handoffs_come_first() -> None:
    jobs = [job_of(FakeRing(1, 2), 0, node(own), part) for own in (1, 9) for part in range(10)]
    found = in_order([job for job in jobs if job], random.Random(3))
    assert [job.kind for job in found] == [Kind.REVERT] * 10 + [Kind.SYNC] * 10
    assert [job.partition for job in found[:10]] != list(range(10))


def test_what_differs() -> None:
    ours = {"aaa": "1", "bbb": "2", "ccc": "3", "ddd": None}
    assert differing(ours, {"aaa": "1", "bbb": "x", "eee": "9"}) == ["bbb", "ccc"]
    assert missing(ours, {"aaa": "1", "bbb": "x"}) == 2
    assert differing(ours, {}) == ["aaa", "bbb", "ccc"] and differing({}, ours) == []


def test_each_other_region_gets_data_once() -> None:
    gate = RegionGate(1)
    near, far, farther = node(1), node(2, region=2), node(3, region=3)
    gate.served(near)
    assert not gate.is_closed(near) and not gate.is_closed(far)
    gate.served(far)
    assert gate.is_closed(node(4, region=2)) and not gate.is_closed(farther) and not gate.is_closed(near)


# -- removing: no delete without proof ---------------------------------------------------------------------------------


def state(number: int) -> FileSet:
    """Told apart by their reclaimable files, which is enough here."""
    return FileSet(obsolete=(number,))  # type: ignore[arg-type]


def same(one: FileSet, other: FileSet) -> bool:
    return one == other


def test_only_what_all_proved_goes() -> None:
    held = [{"a": state(1), "b": state(1)}, {"a": state(1), "b": state(2)}, {"a": state(1), "b": state(1), "c": state(1)}]
    assert removable(held, 3, same) == {"a": state(1)}
    assert removable(held[:2], 3, same) == {}  # one peer said nothing
    assert removable([], 3, same) == {}
    assert set(removable(held, 1, same)) == {"a", "b", "c"}
    assert removable(held, 0, same) == {}


proofs = st.lists(st.dictionaries(st.sampled_from("abcd"), st.builds(state, st.integers(0, 1))), max_size=4)


@given(proofs, st.integers(1, 4))
def test_what_goes_was_proven_often_enough(held: list[dict[str, FileSet]], needed: int) -> None:
    for name, found in removable(held, needed, same).items():
        assert sum(proven.get(name) == found for proven in held) >= needed


@given(proofs)
def test_a_further_doubt_never_removes_more(held: list[dict[str, FileSet]]) -> None:
    """With all needed: a peer that proves nothing keeps everything."""
    assert removable([*held, {}], len(held) + 1, same) == {}
