"""The account reaper over an in-process cluster: all content of a deleted account goes, everywhere at one time, and no other."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelstore.account.broker import AccountInfo
from keelstore.account.reaper import is_due, share_of
from keelstore.common.headers import Headers
from keelstore.common.timestamp import Timestamp
from test.support.cluster import InProcessCluster
from test.support.daemons import Daemons

RESERVED = {"X-Backend-Allow-Reserved-Names": "true"}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[InProcessCluster]:
    cluster = InProcessCluster(tmp_path)
    for policy in ("gold", "silver"):
        for prefix in ("", "\x00"):
            cluster.ask("PUT", f"/v1/a/{prefix}{policy}", {"X-Storage-Policy": policy, **RESERVED})
            for number in range(3):
                assert cluster.ask("PUT", f"/v1/a/{prefix}{policy}/{prefix}o{number}", RESERVED, body=b"x").status == 201
    cluster.ask("PUT", "/v1/b/c")
    cluster.ask("PUT", "/v1/b/c/o", body=b"x")
    yield cluster
    cluster.close()


@pytest.fixture
def daemons(cluster: InProcessCluster) -> Daemons:
    found = Daemons(cluster)
    for node in found.nodes:
        found.container_updater(node).run_once()
    return found


def delete_account(cluster: InProcessCluster, account: str = "a") -> None:
    """On every primary itself, as the reseller's DELETE does."""
    direct(cluster, "account", "DELETE", f"/{account}", {"X-Timestamp": Timestamp(time.time()).internal})


def direct(cluster: InProcessCluster, kind: str, method: str, path: str, headers: dict[str, str] | None = None, policy: int = 0) -> list[Any]:
    names = path[1:].split("/", 2)
    rings = cluster.proxy.rings
    ring = (rings.object(cluster.proxy.cluster.policies.by_index[policy]) if kind == "object" else getattr(rings, kind)).current()
    part = ring.partition(cluster.proxy.cluster.hash_path.digest(*names))
    return [cluster.proxy.backend.call(node.address, method, f"/{node.device}/{part}{path}", Headers({
        "X-Backend-Storage-Policy-Index": str(policy), **RESERVED, **(headers or {})})) for node in ring.primaries(part)]


def reap(daemons: Daemons, **options: Any) -> dict[str, int]:
    total: dict[str, int] = {}
    for node in daemons.nodes:
        reaper = daemons.reaper(node, **options)
        reaper.run_once()
        for name, count in reaper.counts.items():
            total[name] = total.get(name, 0) + count
    return total


def objects(policy: str) -> list[str]:
    return [f"/a/{prefix}{policy}/{prefix}o{number}" for prefix in ("", "\x00") for number in range(3)]


def test_all_content_of_a_deleted_account_goes_at_one_time_everywhere(cluster: InProcessCluster, daemons: Daemons) -> None:
    delete_account(cluster)
    counts = reap(daemons)
    assert (counts["objects_deleted"], counts["containers_deleted"]) == (12, 4)
    assert not any(counts[f"{kind}_{what}"] for kind in ("objects", "containers") for what in ("remaining", "possibly_remaining", "failures"))
    for index, policy in enumerate(("gold", "silver")):
        for path in objects(policy):
            answers = direct(cluster, "object", "HEAD", path, policy=index)
            assert {answer.status for answer in answers} == {404}
            assert len({answer.headers["X-Backend-Timestamp"] for answer in answers}) == 1
        for prefix in ("", "\x00"):
            answers = direct(cluster, "container", "HEAD", f"/a/{prefix}{policy}")
            assert {answer.status for answer in answers} == {404}
            assert len({answer.headers["X-Backend-DELETE-Timestamp"] for answer in answers}) == 1
    assert reap(daemons)["objects_deleted"] == 0  # nothing is left to look at
    assert cluster.ask("GET", "/v1/b/c/o").status == 200


def test_an_account_that_lives_is_left_alone(cluster: InProcessCluster, daemons: Daemons) -> None:
    assert sum(reap(daemons).values()) == 0
    for node in daemons.nodes:
        assert list(daemons.reaper(node).dry_run()) == []
    assert cluster.ask("GET", "/v1/a/gold/o0").status == 200


def test_a_delay_is_kept(cluster: InProcessCluster, daemons: Daemons) -> None:
    delete_account(cluster)
    assert sum(reap(daemons, delay_reaping=30).values()) == 0
    assert {answer.status for answer in direct(cluster, "object", "HEAD", "/a/gold/o0")} == {200}
    daemons.clock.ahead_s = 31
    assert reap(daemons, delay_reaping=30)["objects_deleted"] == 12


def test_what_cannot_be_reached_is_left_for_the_next_pass(cluster: InProcessCluster, daemons: Daemons) -> None:
    delete_account(cluster)
    stopped = {node.address for path in objects("gold") for node in cluster.primaries("object", path)[:2]}
    for address in stopped:
        cluster.stop(address)
    counts = reap(daemons)
    assert counts["objects_possibly_remaining"] + counts["objects_remaining"] > 0
    for address in stopped:
        cluster.start(address)
    reap(daemons)
    for path in objects("gold"):
        answers = direct(cluster, "object", "HEAD", path)
        assert sum(answer.status == 404 for answer in answers) >= 2


def test_an_account_that_stays_is_warned_of(cluster: InProcessCluster, daemons: Daemons, caplog: pytest.LogCaptureFixture) -> None:
    delete_account(cluster)
    for node in cluster.primaries("container", "/a/gold"):
        cluster.stop(node.address)
    daemons.clock.ahead_s = 100
    reap(daemons, reap_warn_after=50)
    assert "Account a has not been reaped since 20" in caplog.text


def test_a_plan_can_be_printed(cluster: InProcessCluster, daemons: Daemons) -> None:
    delete_account(cluster)
    lines = [line for node in daemons.nodes for line in daemons.reaper(node).dry_run()]
    assert len(lines) == 3 and all(line.startswith("reap account a ") for line in lines)
    assert cluster.ask("GET", "/v1/b/c/o").status == 200
    assert {answer.status for answer in direct(cluster, "object", "HEAD", "/a/gold/o0")} == {200}


@given(st.text(max_size=20), st.integers(1, 7))
def test_every_container_is_exactly_one_primarys_share(name: str, count: int) -> None:
    assert 0 <= share_of(name, count) < count


@pytest.mark.parametrize(("status", "put", "deleted", "containers", "delay", "expected"), [
    ("DELETED", "1", "5", 1, 0, True), ("DELETED", "1", "5", 0, 0, False), ("", "1", "0", 1, 0, False), ("DELETED", "1", "5", 1, 100, False),
])
def test_when_an_account_is_due(status: str, put: str, deleted: str, containers: int, delay: float, expected: bool) -> None:
    row = AccountInfo("a", "1", put, deleted, status, "0", containers, 0, 0, "", "", "")
    assert is_due(row, 50, delay) == expected
