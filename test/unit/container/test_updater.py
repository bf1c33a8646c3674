"""The container updater over an in-process cluster: accounts learn what containers hold, and nothing is told twice."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelstore.common import concurrency
from keelstore.common.daemon_frame import Selection
from keelstore.common.headers import Headers
from keelstore.container.broker import ContainerInfo
from keelstore.container.options import ContainerUpdaterOptions
from keelstore.container.updater import AGAIN_S, Report, is_due_again, report_of
from test.support.cluster import InProcessCluster
from test.support.daemons import Daemons
from test.support.hub_disk import watched


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[InProcessCluster]:
    cluster = InProcessCluster(tmp_path)
    cluster.ask("PUT", "/v1/a/c")
    cluster.ask("PUT", "/v1/a/c/o", body=b"1234")
    yield cluster
    cluster.close()


@pytest.fixture
def daemons(cluster: InProcessCluster) -> Daemons:
    return Daemons(cluster)


def info(**values: Any) -> ContainerInfo:
    return ContainerInfo(**{
        "account": "a", "container": "c", "created_at": "1", "put_timestamp": "0000000002.00000", "delete_timestamp": "0", "status": "",
        "status_changed_at": "0", "object_count": 3, "bytes_used": 9, "reported_put_timestamp": "0000000002.00000",
        "reported_delete_timestamp": "0", "reported_object_count": 3, "reported_bytes_used": 9, "hash": "", "id": "",
        "x_container_sync_point1": -1, "x_container_sync_point2": -1, "storage_policy_index": 1, "metadata_text": "", **values})


@pytest.mark.parametrize(("values", "is_told"), [
    ({}, False),
    ({"put_timestamp": "0000000003.00000"}, True),
    ({"put_timestamp": "0000000001.00000"}, False),
    ({"delete_timestamp": "0000000001.00000"}, True),
    ({"object_count": 4}, True),
    ({"bytes_used": 0}, True),
    ({"put_timestamp": "0", "object_count": 4}, False),
])
def test_what_an_account_does_not_know(values: dict[str, Any], is_told: bool) -> None:
    assert (report_of(info(**values), is_root=True) is not None) == is_told


def test_what_an_account_ought_to_know_is_told_again_unless_it_is_deleted() -> None:
    assert report_of(info(), True, is_again=True) == Report("a", "c", "0000000002.00000", "0", 3, 9, 1)
    deleted = {"delete_timestamp": "0000000003.00000", "reported_delete_timestamp": "0000000003.00000", "object_count": 0,
               "reported_object_count": 0, "bytes_used": 0, "reported_bytes_used": 0}
    assert report_of(info(**deleted), True, is_again=True) is None


@given(st.integers(0, 2**32 - 1), st.lists(st.floats(0.5, 50000.0), min_size=1, max_size=30), st.floats(0, 1e9))
def test_each_container_has_its_moment_once_a_day(digest: int, steps: list[float], start: float) -> None:
    """However the passes fall, none is left out and none comes twice."""
    times = [start, *(start + sum(steps[: count + 1]) for count in range(len(steps)))]
    found = sum(is_due_again(f"/d/containers/1/abc/{digest:032x}", since, now) for since, now in pairwise(times))
    assert abs(found - (times[-1] - start) / AGAIN_S) < 1


def test_a_shard_tells_no_counts() -> None:
    assert report_of(info(), is_root=False) == Report("a", "c", "0000000002.00000", "0", 0, 0, 1)
    assert report_of(info(reported_object_count=0, reported_bytes_used=0), is_root=False) is None


def counts(cluster: InProcessCluster, account: str = "a") -> list[tuple[str, str]]:
    """(objects, bytes) as each account server knows them."""
    found = []
    ring = cluster.proxy.rings.account.current()
    part = ring.partition(cluster.proxy.cluster.hash_path.digest(account))
    for node in ring.primaries(part):
        answer = cluster.proxy.backend.call(node.address, "HEAD", f"/{node.device}/{part}/{account}", Headers())
        found.append((answer.headers.get("X-Account-Object-Count"), answer.headers.get("X-Account-Bytes-Used")))
    return found


def run_all(daemons: Daemons) -> dict[str, int]:
    total: dict[str, int] = {}
    for node in daemons.nodes:
        updater = daemons.container_updater(node)
        updater.run_once()
        for name, count in updater.counts.items():
            total[name] = total.get(name, 0) + count
    return total


def test_every_replica_of_the_account_learns_the_counts(cluster: InProcessCluster, daemons: Daemons) -> None:
    assert counts(cluster) == [("0", "0")] * 3
    assert run_all(daemons) == {"successes": 3, "failures": 0, "no_changes": 0}
    assert counts(cluster) == [("1", "4")] * 3
    assert run_all(daemons) == {"successes": 0, "failures": 0, "no_changes": 3}


def test_an_account_that_was_told_old_counts_late_is_told_again(cluster: InProcessCluster, daemons: Daemons) -> None:
    run_all(daemons)
    backend, path = cluster.proxy.backend, "/a/c"
    holder = cluster.primaries("container", path)[0]
    ring = cluster.proxy.rings
    part = ring.container.current().partition(cluster.proxy.cluster.hash_path.digest("a", "c"))
    head = backend.call(holder.address, "HEAD", f"/{holder.device}/{part}{path}", Headers())
    part = ring.account.current().partition(cluster.proxy.cluster.hash_path.digest("a"))
    for node in cluster.primaries("account", "/a"):
        backend.call(node.address, "PUT", f"/{node.device}/{part}{path}", Headers({
            "X-Put-Timestamp": head.headers["X-Backend-Put-Timestamp"], "X-Delete-Timestamp": "0", "X-Object-Count": "9",
            "X-Bytes-Used": "9", "X-Account-Override-Deleted": "yes"}))  # fmt: skip
    assert counts(cluster) == [("9", "9")] * 3
    updaters = [daemons.container_updater(node) for node in daemons.nodes]
    for updater in updaters:
        updater.run_once()
    assert counts(cluster) == [("9", "9")] * 3
    for updater in updaters:
        updater._again_until -= AGAIN_S  # as if the last pass had been a day ago
        updater.run_once()
    assert counts(cluster) == [("1", "4")] * 3
    assert run_all(daemons)["successes"] == 0


def test_a_database_that_has_not_changed_is_not_opened(cluster: InProcessCluster, daemons: Daemons, monkeypatch: pytest.MonkeyPatch) -> None:
    node = next(node for node in daemons.nodes if any(cluster.devices(node).rglob("containers/*/*/*/*.db")))
    updater = daemons.container_updater(node)
    updater.run_once()
    concurrency.sleep(0.03)  # beyond what a file's times may hide
    updater.run_once()
    assert list(updater.plan(daemons_all())) == []
    cluster.ask("PUT", "/v1/a/c/p", body=b"1")
    assert len(list(updater.plan(daemons_all()))) >= 1


def daemons_all() -> Any:
    from keelstore.common.daemon_frame import ALL

    return ALL


def test_one_account_server_down_is_no_failure_two_are(cluster: InProcessCluster, daemons: Daemons) -> None:
    nodes = cluster.primaries("account", "/a")
    cluster.stop(nodes[0].address)
    assert run_all(daemons)["successes"] == 3
    cluster.ask("PUT", "/v1/a/c/p", body=b"1")
    cluster.stop(nodes[1].address)
    assert run_all(daemons) == {"successes": 0, "failures": 3, "no_changes": 0}
    cluster.start(nodes[0].address)
    cluster.start(nodes[1].address)
    assert run_all(daemons)["successes"] == 3
    assert counts(cluster) == [("2", "5")] * 3


def test_an_account_that_could_not_be_told_is_left_alone_for_the_rest_of_a_pass(cluster: InProcessCluster, daemons: Daemons) -> None:
    for number in range(12):
        cluster.ask("PUT", f"/v1/a/c{number}")
        cluster.ask("PUT", f"/v1/a/c{number}/o", body=b"x")
    for node in cluster.primaries("account", "/a"):
        cluster.stop(node.address)
    for node in daemons.nodes:
        updater = daemons.container_updater(node, concurrency=1)
        updater.run_once()
        assert updater.counts["failures"] == 1


def test_a_container_of_no_account_goes_to_quarantine(cluster: InProcessCluster, daemons: Daemons) -> None:
    for path in cluster.root.glob("node*/*/accounts"):
        shutil.rmtree(path)
    assert run_all(daemons)["failures"] == 3
    assert len(list(cluster.root.glob("node*/*/quarantined/containers/*"))) == 3
    assert not list(cluster.root.glob("node*/*/containers/*/*/*/*.db"))


def test_a_container_whose_account_may_exist_stays(cluster: InProcessCluster, daemons: Daemons) -> None:
    """404 from all primaries, but a handoff has the account: as after all primaries were down when it was made."""
    primaries = cluster.primaries("account", "/a")
    ring = cluster.proxy.rings.account.current()
    part = ring.partition(cluster.proxy.cluster.hash_path.digest("a"))
    handoff = next(iter(ring.handoffs(part)))
    source = cluster.device_path(primaries[0].device) / "accounts"
    shutil.copytree(source, cluster.device_path(handoff.device) / "accounts", dirs_exist_ok=True)
    for node in primaries:
        shutil.rmtree(cluster.device_path(node.device) / "accounts")
    run_all(daemons)
    assert not list(cluster.root.glob("node*/*/quarantined"))


def test_nothing_is_quarantined_while_a_server_does_not_answer(cluster: InProcessCluster, daemons: Daemons) -> None:
    for path in cluster.root.glob("node*/*/accounts"):
        shutil.rmtree(path)
    cluster.stop(cluster.primaries("account", "/a")[2].address)
    run_all(daemons)
    assert not list(cluster.root.glob("node*/*/quarantined"))


def test_a_deleted_container_is_told(cluster: InProcessCluster, daemons: Daemons) -> None:
    cluster.ask("DELETE", "/v1/a/c/o")
    nodes = cluster.primaries("account", "/a")
    cluster.stop(nodes[0].address)
    assert cluster.ask("DELETE", "/v1/a/c").status == 204
    cluster.start(nodes[0].address)
    run_all(daemons)
    ring = cluster.proxy.rings.account.current()
    part = ring.partition(cluster.proxy.cluster.hash_path.digest("a"))
    answer = cluster.proxy.backend.call(nodes[0].address, "GET", f"/{nodes[0].device}/{part}/a", Headers())
    assert answer.read() == b""


@pytest.mark.parametrize("per_second,slowdown,rate", [(50, None, 50), (50, 0.1, 10), (50, 0.01, 50), (50, 0, 50), (0, 0.5, 2), (0, None, 0)])
def test_the_slower_of_both_options_counts(per_second: float, slowdown: float | None, rate: float) -> None:
    assert ContainerUpdaterOptions(containers_per_second=per_second, slowdown=slowdown).rate == rate


def test_no_pass_asks_a_disk_on_the_thread_of_the_others(cluster: InProcessCluster, daemons: Daemons, monkeypatch: pytest.MonkeyPatch) -> None:
    updaters = [daemons.container_updater(node) for node in daemons.nodes]
    calls = watched(monkeypatch, cluster.root)
    jobs = [job for updater in updaters for job in updater.plan(Selection())]
    assert len(jobs) == 3
    assert [call for call in calls if not call[1].endswith(tuple(f"node{node}" for node in daemons.nodes))] == []
