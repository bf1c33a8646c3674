"""The object updater over an in-process cluster: what a container server missed reaches it, once, and is then forgotten."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from keelstore.common.daemon_frame import ALL
from keelstore.common.headers import Headers
from keelstore.common.http import Response
from keelstore.common.timestamp import Timestamp
from keelstore.obj.updates import decode_pending, encode_pending
from test.support.cluster import InProcessCluster
from test.support.daemons import Daemons


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[InProcessCluster]:
    cluster = InProcessCluster(tmp_path)
    cluster.ask("PUT", "/v1/a/c")
    cluster.ask("HEAD", "/v1/a/c")  # so that the proxy knows it, also while no container server answers
    yield cluster
    cluster.close()


@pytest.fixture
def daemons(cluster: InProcessCluster) -> Daemons:
    return Daemons(cluster)


def pendings(cluster: InProcessCluster) -> list[Path]:
    return [path for path in cluster.root.rglob("async_pending*/*/*") if path.is_file()]


def listed(cluster: InProcessCluster, node: Any, container: str = "a/c") -> list[str]:
    account, name = container.split("/")
    part = cluster.proxy.rings.container.current().partition(cluster.proxy.cluster.hash_path.digest(account, name))
    answer = cluster.proxy.backend.call(node.address, "GET", f"/{node.device}/{part}/{container}", Headers(), "format=json")
    return [entry["name"] for entry in json.loads(answer.read() or b"[]")] if answer.status == 200 else [str(answer.status)]


def run_all(daemons: Daemons, **options: Any) -> list[Any]:
    updaters = [daemons.object_updater(node, **options) for node in daemons.nodes]
    for updater in updaters:
        updater.run_once()
    return updaters


def put(cluster: InProcessCluster, *names: str) -> None:
    for name in names:
        assert cluster.ask("PUT", f"/v1/a/c/{name}", body=b"x").status == 201


def test_what_a_server_missed_reaches_it(cluster: InProcessCluster, daemons: Daemons) -> None:
    node = cluster.primaries("container", "/a/c")[0]
    cluster.stop(node.address)
    put(cluster, "one", "two")
    assert pendings(cluster)
    run_all(daemons)  # the server is still down: nothing is lost, what others have is written down
    assert all(len(decode_pending(path.read_bytes())["successes"]) == 2 for path in pendings(cluster))
    cluster.start(node.address)
    assert listed(cluster, node) == []
    updaters = run_all(daemons)
    assert listed(cluster, node) == ["one", "two"]
    assert pendings(cluster) == []
    assert sum(updater.counts["successes"] for updater in updaters) == sum(updater.counts["unlinks"] for updater in updaters) > 0


def test_many_updates_of_a_container_are_one_request_to_each_server(cluster: InProcessCluster, daemons: Daemons) -> None:
    node = cluster.primaries("container", "/a/c")[1]
    cluster.stop(node.address)
    names = [f"o{number:02}" for number in range(40)]
    put(cluster, *names)
    assert cluster.ask("DELETE", "/v1/a/c/o39").status == 204
    cluster.start(node.address)
    sent: list[tuple[str, str]] = []
    real = cluster.proxy.backend.call

    def call(address: Any, method: str, path: str, *args: Any, **kwargs: Any) -> Response:
        sent.append((method, path))
        return real(address, method, path, *args, **kwargs)

    for number in daemons.nodes:
        updater = daemons.object_updater(number)
        updater.peers._backend = type("Spy", (), {"call": staticmethod(call)})
        updater.run_once()
    assert listed(cluster, node) == names[:-1]
    assert pendings(cluster) == []
    rows = [path for method, path in sent if method == "PUT"]
    assert any(method == "UPDATE" for method, _ in sent) and len(rows) < 20


def test_a_container_server_without_the_container_keeps_updates_waiting(cluster: InProcessCluster, daemons: Daemons) -> None:
    node = cluster.primaries("container", "/a/c")[0]
    cluster.stop(node.address)
    put(cluster, "one")
    before = len(pendings(cluster))
    cluster.start(node.address)
    for path in cluster.device_path(node.device).glob("containers/*/*/*"):
        path.rename(cluster.root / "away")
    run_all(daemons)
    assert listed(cluster, node) == ["404"]
    assert len(pendings(cluster)) == before
    os.rename(cluster.root / "away", path)
    run_all(daemons)
    assert pendings(cluster) == [] and listed(cluster, node) == ["one"]


def test_of_an_object_the_newest_update_counts_and_the_older_go(cluster: InProcessCluster, daemons: Daemons) -> None:
    for node in cluster.primaries("container", "/a/c"):
        cluster.stop(node.address)
    put(cluster, "one")
    put(cluster, "one")
    count = len(pendings(cluster))
    for node in cluster.primaries("container", "/a/c"):
        cluster.start(node.address)
    updaters = run_all(daemons)
    assert sum(updater.counts["outdated_unlinks"] for updater in updaters) == count // 2
    assert sum(updater.counts["unlinks"] for updater in updaters) == count - count // 2
    assert pendings(cluster) == []


def test_a_put_is_told_beside_a_post_that_is_newer_and_about_older_data(cluster: InProcessCluster, daemons: Daemons) -> None:
    """The POST came from a proxy whose clock is ahead (seed 1453 of the simulation)."""
    now = time.time()
    cluster.ask("PUT", "/v1/a/c/one", {"X-Timestamp": Timestamp(now).normal}, b"old")
    run_all(daemons)
    for node in cluster.primaries("container", "/a/c"):
        cluster.stop(node.address)
    assert cluster.ask("POST", "/v1/a/c/one", {"X-Timestamp": Timestamp(now + 9).normal, "X-Object-Meta-A": "1"}).status == 202
    assert cluster.ask("PUT", "/v1/a/c/one", {"X-Timestamp": Timestamp(now + 5).normal}, b"newer").status == 201
    assert len(pendings(cluster)) == 6
    for node in cluster.primaries("container", "/a/c"):
        cluster.start(node.address)
    for _ in range(2):
        run_all(daemons)
    assert pendings(cluster) == []
    assert [entry["bytes"] for entry in json.loads(cluster.ask("GET", "/v1/a/c", query="format=json").body)] == [5]


def test_what_is_no_update_goes_to_quarantine(cluster: InProcessCluster, daemons: Daemons) -> None:
    device = cluster.device_path("d00")
    for number, content in enumerate((b"", b"cos\nsystem\n(S'true'\ntR.", b"(lp0\n.")):
        folder = device / "async_pending" / "27e"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}41d8cd98f00b204e9800998ecf8427e-0000000001.00000").write_bytes(content)
    updater = daemons.object_updater(0)
    updater.run_once()
    assert pendings(cluster) == []
    assert len(list((device / "quarantined" / "objects").iterdir())) == 3
    assert updater.counts["quarantines"] == 3


def test_recon_names_the_containers_that_wait_longest(cluster: InProcessCluster, daemons: Daemons) -> None:
    for number in range(8):
        cluster.ask("PUT", f"/v1/a/c{number}")
        cluster.ask("HEAD", f"/v1/a/c{number}")
    addresses = {node.address for number in range(8) for node in cluster.primaries("container", f"/a/c{number}")}
    for address in addresses:
        cluster.stop(address)
    for number in range(8):
        assert cluster.ask("PUT", f"/v1/a/c{number}/o", body=b"x").status == 201
    found: dict[str, set[int]] = {}
    for path in pendings(cluster):
        found.setdefault(decode_pending(path.read_bytes())["container"], set()).add(int(path.relative_to(cluster.root).parts[0][4:]))
    run_all(daemons)
    for node in daemons.nodes:
        recon = json.loads((daemons.recon(node) / "object.recon").read_text())
        stats = recon["object_updater_stats"]
        mine = sorted(name for name, nodes in found.items() if node in nodes)
        assert stats["failures_account_container_count"] == len(mine)
        entries = stats["failures_oldest_timestamp_account_containers"]
        assert [entry["container"] for entry in entries["oldest_entries"]] == mine[:5]
        assert entries["oldest_count"] == min(5, len(mine))
        assert recon["object_updater_last"] > 0 and recon["object_updater_sweep"] >= 0


def test_a_redirect_is_followed_at_once_and_written_down(cluster: InProcessCluster, daemons: Daemons) -> None:
    cluster.ask("PUT", "/v1/a/shard")
    nodes = cluster.primaries("container", "/a/c")
    for node in nodes:
        cluster.stop(node.address)
    put(cluster, "one")
    for node in nodes:
        cluster.start(node.address)
    real, asked = cluster.proxy.backend.call, []

    def call(address: Any, method: str, path: str, *args: Any, **kwargs: Any) -> Response:
        asked.append(path)
        if path.endswith("/a/c/one"):
            return Response(301, {"Location": "/a/shard/one", "X-Backend-Location-Is-Quoted": "true",
                                  "X-Backend-Redirect-Timestamp": "0000000009.00000"}, b"")
        if path.endswith("/a/shard/one") and is_down:
            return Response(503, body=b"")
        return real(address, method, path, *args, **kwargs)

    for is_down in (True, False):
        for number in daemons.nodes:
            updater = daemons.object_updater(number)
            updater.peers._backend = type("Redirecting", (), {"call": staticmethod(call)})
            updater.run_once()
        if is_down:
            assert {decode_pending(path.read_bytes())["container_path"] for path in pendings(cluster)} == {"a/shard"}
            asked.clear()
    assert not any(path.endswith("/a/c/one") for path in asked)  # the second time it is known
    assert pendings(cluster) == []
    shard = cluster.primaries("container", "/a/shard")[0]
    assert listed(cluster, shard, "a/shard") == ["one"]


def test_a_server_that_redirects_in_a_circle_does_not_hold_the_updater(cluster: InProcessCluster, daemons: Daemons) -> None:
    nodes = cluster.primaries("container", "/a/c")
    for node in nodes:
        cluster.stop(node.address)
    put(cluster, "one")
    updater = daemons.object_updater(0)
    updater.peers._backend = type("Circle", (), {"call": staticmethod(lambda *args, **kwargs: Response(
        301, {"Location": "/a/c/one", "X-Backend-Redirect-Timestamp": "0000000009.00000"}, b""))})
    count = len(pendings(cluster))
    for _ in range(3):
        updater.run_once()
    assert len(pendings(cluster)) == count


def test_a_crash_at_any_point_costs_a_repetition(cluster: InProcessCluster, daemons: Daemons, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that could not be removed after they were sent are sent again, which changes nothing."""
    from keelstore.obj import updater as module

    node = cluster.primaries("container", "/a/c")[0]
    cluster.stop(node.address)
    put(cluster, "one")
    cluster.start(node.address)
    real = module._remove

    def failing(some: Any) -> int:
        raise OSError(5, "disk error")

    monkeypatch.setattr(module, "_remove", failing)
    run_all(daemons)
    assert listed(cluster, node) == ["one"] and pendings(cluster)
    monkeypatch.setattr(module, "_remove", real)
    run_all(daemons)
    assert listed(cluster, node) == ["one"] and not pendings(cluster)


def test_updates_for_a_device_alone(cluster: InProcessCluster, daemons: Daemons) -> None:
    from keelstore.common.daemon_frame import Selection

    for node in cluster.primaries("container", "/a/c"):
        cluster.stop(node.address)
    put(cluster, *(f"o{number}" for number in range(10)))
    for node in cluster.primaries("container", "/a/c"):
        cluster.start(node.address)
    device = pendings(cluster)[0].relative_to(cluster.root).parts[1]
    updater = daemons.object_updater(int(device[1]))
    lines = list(updater.dry_run(Selection(devices=frozenset({device}))))
    assert lines and "a/c" in lines[0]
    before = len(pendings(cluster))
    updater = daemons.object_updater(int(device[1]))
    updater.run_once(Selection(devices=frozenset({device})))
    left = [path.relative_to(cluster.root).parts[1] for path in pendings(cluster)]
    assert 0 < len(left) < before and device not in left


def test_a_swift_update_is_understood(cluster: InProcessCluster, daemons: Daemons) -> None:
    """A file as a Swift object server writes it, with headers that ours would not send."""
    digest = cluster.proxy.cluster.hash_path.hexdigest("a", "c", "swift\u00e9")
    headers = Headers({"X-Timestamp": "0000000010.00000", "X-Size": "3", "X-Content-Type": "text/plain", "X-Etag": "e",
                       "Referer": "PUT http://x", "X-Trans-Id": "tx1", "User-Agent": "object-server 1"})
    folder = cluster.device_path("d00") / "async_pending" / digest[-3:]
    folder.mkdir(parents=True)
    (folder / f"{digest}-0000000010.00000").write_bytes(encode_pending(
        {"op": "PUT", "account": "a", "container": "c", "obj": "swift\u00e9", "headers": headers, "db_state": None}))
    daemons.object_updater(0).run_once()
    for node in cluster.primaries("container", "/a/c"):
        assert listed(cluster, node) == ["swift\u00e9"]


def test_more_than_there_is_room_for_is_sent_all_the_same(cluster: InProcessCluster, daemons: Daemons) -> None:
    for node in cluster.primaries("container", "/a/c"):
        cluster.stop(node.address)
    put(cluster, *(f"o{number:02}" for number in range(12)))
    for node in cluster.primaries("container", "/a/c"):
        cluster.start(node.address)
    for node in daemons.nodes:
        updater = daemons.object_updater(node)
        updater.backlog.size = 3
        updater.run_once()
    assert pendings(cluster) == []
    assert listed(cluster, cluster.primaries("container", "/a/c")[0]) == [f"o{number:02}" for number in range(12)]


def test_case_X10_what_cannot_be_sent_holds_up_nothing_else(cluster: InProcessCluster, daemons: Daemons) -> None:
    """Neither in the first pass of an updater that was just started, nor when a file is gone by the time it is its turn."""
    other = next(name for name in map(str, range(1000))
                 if not {node.address for node in cluster.primaries("container", f"/a/{name}")} >= {node.address for node in cluster.primaries("container", "/a/c")})
    cluster.ask("PUT", f"/v1/a/{other}")
    cluster.ask("HEAD", f"/v1/a/{other}")
    addresses = {node.address for name in ("c", other) for node in cluster.primaries("container", f"/a/{name}")}
    for address in addresses:
        cluster.stop(address)
    put(cluster, *(f"stuck {number}" for number in range(20)))
    assert cluster.ask("PUT", f"/v1/a/{other}/free", body=b"x").status == 201
    stuck = {node.address for node in cluster.primaries("container", "/a/c")}
    for address in addresses - stuck:
        cluster.start(address)
    free = [node for node in cluster.primaries("container", f"/a/{other}") if node.address not in stuck]
    assert free
    for _ in range(2):  # each time a new updater, as after a restart
        run_all(daemons)
        assert [listed(cluster, node, f"a/{other}") for node in free] == [["free"]] * len(free)
    for address in stuck:
        cluster.start(address)
    for number in daemons.nodes:
        updater = daemons.object_updater(number)
        jobs = list(updater.plan(ALL))
        for path in pendings(cluster):
            if path.is_relative_to(cluster.devices(number)):
                path.unlink()  # another updater was faster
        assert all(updater.carry_out(job) for job in jobs)
        assert updater.counts["quarantines"] == updater.counts["errors"] == updater.counts["failures"] == 0
    assert pendings(cluster) == []


def test_case_C15_an_update_for_a_shard_beyond_ascii_is_not_lost(cluster: InProcessCluster, daemons: Daemons) -> None:
    """The root tells where its row belongs, percent-encoded; nothing of the names is ASCII."""
    root, shard, name = "ключ", "осколок 日本", "ключ/日本 %20"
    for container in (root, shard):
        cluster.ask("PUT", f"/v1/a/{container}")
        cluster.ask("HEAD", f"/v1/a/{container}")
    nodes = cluster.primaries("container", f"/a/{root}")
    for node in nodes:
        cluster.stop(node.address)
    assert cluster.ask("PUT", f"/v1/a/{root}/{name}", body=b"x").status == 201
    for node in nodes:
        cluster.start(node.address)
    real = cluster.proxy.backend.call

    def call(address: Any, method: str, path: str, *args: Any, **kwargs: Any) -> Response:
        if path.endswith(f"/a/{root}/{name}"):
            return Response(301, {"Location": f"/a/{quote(shard)}/{quote(name)}", "X-Backend-Location-Is-Quoted": "true",
                                  "X-Backend-Redirect-Timestamp": "0000000009.00000"}, b"")
        return real(address, method, path, *args, **kwargs)

    for number in daemons.nodes:
        updater = daemons.object_updater(number)
        updater.peers._backend = type("Redirecting", (), {"call": staticmethod(call)})
        updater.run_once()
        assert updater.counts["quarantines"] == updater.counts["failures"] == 0
    assert pendings(cluster) == []
    assert listed(cluster, cluster.primaries("container", f"/a/{shard}")[0], f"a/{shard}") == [name]
