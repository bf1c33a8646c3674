"""SIGKILL at each phase of a PUT in two phases, to the proxy and to object servers (points of ``test.support.crashes``).

What was acknowledged is there, whole; what was not is not there or is there, whole; nothing is there by half.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from http.client import HTTPException

import pytest

from test.support.client import Account
from test.support.fragment_stage import SEGMENT, Fragments, FragmentStage, object_with_sites
from test.support.waiting import until

OLD, NEW = (random.Random(size).randbytes(size) for size in (70_000, 2 * SEGMENT + 7))
CONNECTED = 6  # a proxy's uploads are told to go on once for the body, once for the commit
PROXY = [("nodes are connected", 1), ("a segment is encoded", 2), ("the body is sent", 1), ("a node says go on", CONNECTED + 1),
         ("a node says go on", CONNECTED + 5), ("all have written", 1), ("a node is told to commit", 1), ("a node is told to commit", 3),
         ("a node has committed", 1), ("a quorum has committed", 1)]  # fmt: skip
SERVER = [("a fragment is announced", 1), ("a part of it is on disk", 1), ("its footer has come", 1), ("it has no name yet", 1),
          ("it is written", 1), ("the commit has come", 1), ("it is durable", 1), ("its container was told", 1)]  # fmt: skip


@pytest.fixture
def stage(fragment_stage: FragmentStage) -> FragmentStage:
    return fragment_stage


@pytest.fixture
def account(fragment_account: Account) -> Account:
    return fragment_account


@pytest.fixture
def container(fragment_container: str) -> str:
    return fragment_container


def put(spot: Fragments) -> int:
    """The answer to the new body; 0: none."""
    try:
        return spot.account.put(spot.container, spot.name, body=NEW).status
    except (OSError, HTTPException):
        return 0


class Case:
    """A PUT during which servers die; the object was there before, or not."""

    def __init__(self, spot: Fragments, point: str, nth: int, pids: Sequence[int], has_old: bool):
        self.spot, self.point, self.has_old = spot, (point, nth, has_old), has_old
        if has_old:
            until(self.has_put_old, "the old object is there")
        spot.stage.crashes.arm(point, pids, nth)
        self.status = 0
        try:
            until(self.comes_there, f"a server comes to {point}")
        finally:
            spot.stage.crashes.disarm()
        spot.stage.revive()
        self.body: bytes | None = None

    def has_put_old(self) -> bool:
        """A server that came to the point of the case before, beside the one that was seen to die, may have died since."""
        self.spot.stage.revive()
        return self.spot.account.put(self.spot.container, self.spot.name, body=OLD).status == 201

    def comes_there(self) -> bool:
        """By one upload, mostly; by the next, when the proxy asked a server last that had just been away, which then had nothing to tell."""
        status = put(self.spot)
        if self.status != 201:
            self.status = status
        until(self.somebody_died, "it dies", 5)
        return True

    def somebody_died(self) -> bool:
        return any(not process.is_alive() for key, process in self.spot.stage.running.items() if key[0] != "memcached")

    def read(self) -> bytes | None:
        """None: it is not there."""
        answer = until(lambda: self.spot.get(**{"X-Newest": "true"}).expect(200, 404), f"{self.point} is read", every_s=0.02)
        return answer.body if answer.status == 200 else None

    def check_after_crash(self) -> None:
        self.body = self.read()
        allowed = [NEW] if self.status == 201 else [NEW, OLD if self.has_old else None]
        assert self.body in allowed, (self.point, self.status, self.body and len(self.body))

    def check_after_repair(self) -> None:
        assert self.read() == self.body, self.point
        durable = self.spot.indexes()
        assert durable == ([] if self.body is None else list(range(6))), (self.point, self.spot.stored())

    @property
    def is_reclaimed(self) -> bool:
        return self.spot.is_home if self.body is not None else not self.spot.stored()

    def check_after_reclaim(self) -> None:
        assert self.read() == self.body, self.point
        assert self.is_reclaimed, (self.point, {node.device: self.spot.names_on(node) for node in self.spot.nodes})


def check(stage: FragmentStage, cases: list[Case]) -> None:
    for case in cases:
        case.check_after_crash()
    stage.reconstruct(times=2)
    for case in cases:
        case.check_after_repair()

    def is_reclaimed() -> bool:
        stage.reclaim(commit_window=0)
        return all(case.is_reclaimed for case in cases)

    try:
        until(is_reclaimed, "what nobody completed is gone")
    finally:
        for case in cases:
            case.check_after_reclaim()


def test_the_proxy_dies(stage: FragmentStage, account: Account, container: str) -> None:
    cases = []
    for point, nth in PROXY:
        for has_old in (False, True):
            pid = stage.running["proxy", stage.proxies["keelstore"]].pid
            cases.append(Case(Fragments(stage, account, container), point, nth, [pid], has_old))
    assert {case.status for case in cases} == {0}
    check(stage, cases)
    assert {case.body is NEW or case.body == NEW for case in cases} == {True, False}


@pytest.mark.parametrize("held", [1, 2])
def test_an_object_server_dies(stage: FragmentStage, account: Account, container: str, held: int) -> None:
    cases = []
    for number, (point, nth) in enumerate([*SERVER, ("a change is noted", held + 1)]):  # the last: noted, and not yet durable
        site = None
        while site is None:  # the servers of the first three fragments are those that tell the container
            spot = object_with_sites(stage, account, container, 2, 2, 1, 1)
            site = next((one for one in spot.sites[:3] if spot.sites.count(one) == held), None)
        pid = stage.running["object", stage.ports[site]["object"]].pid
        cases.append(Case(spot, point, nth, [pid], has_old=(number + held) % 2 == 0))
        assert cases[-1].status == 201 or held == 2
    check(stage, cases)


def test_all_object_servers_die(stage: FragmentStage, account: Account, container: str) -> None:
    cases = [Case(Fragments(stage, account, container), point, nth, (), has_old)
             for point, nth in [*SERVER, ("a change is noted", 2)] for has_old in (False, True)]
    check(stage, cases)


def test_all_container_servers_die(stage: FragmentStage, account: Account, container: str) -> None:
    """What was acknowledged is listed, with the client's size and ETag, once the updater has run."""
    case = Case(Fragments(stage, account, container), "a row comes", 1, (), has_old=False)
    assert case.status == 201
    check(stage, [case])
    stage.run("object-updater", 0)
    rows = {row["name"]: (row["bytes"], row["hash"]) for row in account.listing(container)}
    assert rows[case.spot.name] == (len(NEW), hashlib.md5(NEW).hexdigest())
    assert case.spot.get().body == NEW
