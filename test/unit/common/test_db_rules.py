"""What a database needs, and what a peer needs of it."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelstore.common.db_rules import Extent, Kind, Step, in_order, job_of, may_remove, step_for
from keelstore.common.ring.ring import Node

NODES = tuple(Node(n, 1, 1, f"10.0.0.{n}", 6201, f"10.0.0.{n}", 6201, f"d{n}", 1.0) for n in range(5))
HASH = "0a" * 16


@dataclass
class FakeRing:
    """Every partition on nodes 0, 1, 2."""

    version: int | None = 7
    replicas: int = 3

    def partition(self, digest: bytes) -> int:
        return digest[0]

    def primaries(self, part: int) -> tuple[Node, ...]:
        return NODES[: self.replicas]


def path(partition: int = 10) -> str:
    return f"/srv/node/d1/containers/{partition}/{HASH[-3:]}/{HASH}"


def test_a_primary_syncs_with_the_others_beginning_after_itself() -> None:
    job = job_of(FakeRing(), NODES[1], "/srv/node/d1", path())
    assert job is not None
    assert (job.kind, [node.id for node in job.targets], job.partition, job.ring_version) == (Kind.SYNC, [2, 0], 10, 7)
    assert job.database == f"{path()}/{HASH}.db"


def test_a_handoff_goes_to_all_primaries() -> None:
    job = job_of(FakeRing(), NODES[4], "/srv/node/d4", path(), random.Random(1))
    assert job is not None and job.kind is Kind.REVERT and sorted(node.id for node in job.targets) == [0, 1, 2]


def test_what_is_in_the_directory_of_a_wrong_partition_moves_even_on_a_primary() -> None:
    job = job_of(FakeRing(), NODES[1], "/srv/node/d1", path(3))
    assert job is not None
    assert (job.kind, job.partition, len(job.targets)) == (Kind.REVERT, 10, 3)


def test_a_single_replica_has_nobody_to_tell() -> None:
    job = job_of(FakeRing(replicas=1), NODES[0], "/srv/node/d0", path())
    assert job is not None and (job.kind, job.targets) == (Kind.SYNC, ())
    assert job_of(FakeRing(replicas=0), NODES[0], "/srv/node/d0", path()) is None


@pytest.mark.parametrize(("ours", "theirs", "point", "step"), [
    (Extent(10, "a"), Extent(3, "a"), -1, Step.EQUAL),
    (Extent(10, "a"), Extent(30, "b"), 10, Step.HAS_OURS),
    (Extent(10, "a"), Extent(9, "b"), 8, Step.ROWS),
    (Extent(10, "a"), Extent(1, "b"), -1, Step.ROWS),  # few rows, however large a share
    (Extent(1000, "a"), Extent(499, "b"), 100, Step.WHOLE),
    (Extent(1000, "a"), Extent(500, "b"), 100, Step.ROWS),
    (Extent(1000, "a"), Extent(499, "b"), 950, Step.ROWS),  # it has taken nearly all
    (Extent(-1, "a"), Extent(5, "b"), -1, Step.HAS_OURS),
])
def test_what_a_peer_needs(ours: Extent, theirs: Extent, point: int, step: Step) -> None:
    assert step_for(ours, theirs, point, per_diff=100) is step


@given(st.integers(-1, 10_000), st.integers(-1, 10_000), st.integers(-1, 10_000), st.booleans())
def test_a_peer_gets_nothing_only_if_it_has_everything(ours: int, theirs: int, point: int, same: bool) -> None:
    step = step_for(Extent(ours, "a"), Extent(theirs, "a" if same else "b"), point, 100)
    assert (step in (Step.EQUAL, Step.HAS_OURS)) == (same or point >= ours)


@pytest.mark.parametrize(("proofs", "targets", "wanted", "may"), [
    (3, 3, None, True), (2, 3, None, False), (2, 3, 0, False), (2, 3, 2, True), (1, 3, 2, False), (3, 3, 9, True), (0, 0, None, False),
])
def test_a_copy_goes_only_with_proof(proofs: int, targets: int, wanted: int | None, may: bool) -> None:
    assert may_remove(proofs, targets, wanted) is may


def test_handoffs_are_seen_to_first() -> None:
    places = [(number % 3 == 0, number) for number in range(30)]
    found = in_order(places, random.Random(3))
    assert sorted(found[:10]) == list(range(0, 30, 3)) and sorted(found) == list(range(30))
