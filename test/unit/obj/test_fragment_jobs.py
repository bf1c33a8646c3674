"""What a partition of fragments needs, on values."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelstore.common.policy import ErasureCodingPolicy
from keelstore.common.ring.ring import Node
from keelstore.common.work import Risk
from keelstore.obj.fragment_jobs import Kind, differing, jobs_of, lacking, neighbours, risk_of, stand_ins

POLICY = ErasureCodingPolicy(2, "ec42", (), False, False, "isa_l_rs_vand", 4, 2, 65536, 1)
TWICE = ErasureCodingPolicy(2, "ec42", (), False, False, "isa_l_rs_vand", 4, 2, 65536, 2)


def node(number: int, index: int | None = None) -> Node:
    return Node(number, 1, number, "127.0.0.1", 6200 + number, "127.0.0.1", 6200 + number, f"d{number}", 1.0, "", index,
                None if index is not None else 0)


class Ring:
    version = 7

    def __init__(self, count: int):
        self.nodes = tuple(node(number, number) for number in range(count))

    def primaries(self, part: int) -> tuple[Node, ...]:
        return self.nodes


def brief(jobs: list[Any]) -> list[tuple[Any, ...]]:
    return [(job.kind, job.fragment, [target.id for target in job.targets], job.needed, job.suffixes) for job in jobs]


def test_a_primary_looks_after_left_right_and_opposite() -> None:
    ring = Ring(6)
    assert brief(jobs_of(ring, POLICY, ring.nodes[1], 0, {"abc": {1: "x", None: "y"}})) == [(Kind.SYNC, 1, [0, 2, 4], 3, ("abc",))]


def test_what_belongs_to_others_goes_to_them_the_least_first() -> None:
    ring = Ring(6)
    hashes = {"aaa": {1: "x", 3: "z"}, "bbb": {3: "z", 4: "w", None: "y"}, "ccc": "no fragments"}
    assert brief(jobs_of(ring, POLICY, ring.nodes[1], 0, hashes))[1:] == [
        (Kind.REVERT, 4, [4], 1, ("bbb",)), (Kind.REVERT, 3, [3], 1, ("aaa", "bbb"))]


def test_with_duplicates_both_homes_must_have_it() -> None:
    ring = Ring(12)
    jobs = jobs_of(ring, TWICE, node(20), 0, {"aaa": {3: "z"}})
    assert brief(jobs[:1]) == [(Kind.REVERT, 3, [3, 9], 2, ("aaa",))]
    assert [target.id for target in jobs_of(ring, TWICE, ring.nodes[8], 0, {})[0].targets] == [7, 9, 2]


def test_tombstones_leave_a_handoff_when_too_few_are_left_to_decode_what_was() -> None:
    ring = Ring(6)
    jobs = jobs_of(ring, POLICY, node(20), 0, {"aaa": {None: "t"}}, random.Random(1))
    assert [(job.kind, job.needed, sorted(target.id for target in job.targets)) for job in jobs] == [(Kind.TOMBSTONES, 3, list(range(6)))]


def test_an_index_that_nobody_has_stays() -> None:
    assert [job.kind for job in jobs_of(Ring(4), POLICY, node(20), 0, {"aaa": {5: "z"}})] == [Kind.TOMBSTONES]


@given(st.integers(2, 20), st.data())
def test_everybody_is_somebodys_neighbour(count: int, data: st.DataObject) -> None:
    nodes = Ring(count).nodes
    lost = data.draw(st.integers(0, count - 1))
    watchers = [index for index in range(count) if nodes[lost] in neighbours(nodes, index)]
    assert lost not in watchers and len(watchers) >= min(count - 1, 2)
    assert all(len(set(neighbours(nodes, index))) == len(neighbours(nodes, index)) for index in range(count))


@pytest.mark.parametrize(("ours", "theirs", "expected"), [
    ({"a": {1: "x", None: "d"}}, {"a": {2: "x", None: "d"}}, []),
    ({"a": {1: "x", None: "d"}}, {}, ["a"]),
    ({"a": {1: "x", None: "d"}}, {"a": {2: "x"}}, ["a"]),
    ({"a": {1: "x", None: "d"}}, {"a": {1: "x", None: "d"}}, ["a"]),
    ({"a": {5: "x", None: "d"}}, {"a": {2: "x", None: "d"}}, []),  # our own fragment is missing: others see to that
    ({"a": {None: "t"}}, {"a": {None: "t"}}, []),
    ({"a": {None: "t"}}, {}, ["a"]),
    ({"a": None}, {}, []),
    ({"a": {1: "x"}}, {"a": "hex of a replicated policy"}, ["a"]),
])
def test_differing(ours: dict[str, Any], theirs: dict[str, Any], expected: list[str]) -> None:
    assert differing(ours, theirs, 1, 2) == expected


def test_lacking_is_what_is_not_there_at_all() -> None:
    ours = {"a": {1: "x"}, "b": {1: "x"}, "c": {None: "t"}, "d": {1: "x"}}
    assert lacking(ours, {"a": {2: "other"}, "b": {1: "x"}}, 1, 2) == ["b", "d"]


def test_the_fewer_are_left_the_sooner() -> None:
    assert risk_of(2) < risk_of(1) < Risk.DURABILITY < Risk.HANDOFF


@pytest.mark.parametrize(("limit", "index", "expected"), [(2, 0, [0, 1]), (2, 1, [1, 0]), (2, 4, [0, 1]), (0, 3, []), (-1, 1, [1, 2, 0]), (9, 0, [0, 1, 2])])
def test_stand_ins(limit: int, index: int, expected: list[int]) -> None:
    assert [found.id for found in stand_ins(iter([node(number) for number in range(3)]), limit, index)] == expected
