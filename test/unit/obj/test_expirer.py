"""The object expirer over an in-process cluster: what is due goes, what has another time stays, and the queue empties."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keelstore.common.errors import ConfigError
from keelstore.common.headers import Headers
from keelstore.common.timestamp import Timestamp
from keelstore.obj.expiry_queue import Delays, Share, Task, is_expected, parse_task, spread
from test.support.cluster import InProcessCluster
from test.support.daemons import Daemons

QUEUE = "/v1/.expiring_objects"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[InProcessCluster]:
    cluster = InProcessCluster(tmp_path, allow_open_expired="true")
    cluster.ask("PUT", "/v1/a/c")
    yield cluster
    cluster.close()


@pytest.fixture
def daemons(cluster: InProcessCluster) -> Daemons:
    return Daemons(cluster)


def put(cluster: InProcessCluster, name: str, after: int, body: bytes = b"x") -> None:
    assert cluster.ask("PUT", f"/v1/a/c/{name}", {"X-Delete-After": str(after)}, body=body).status == 201


def queued(cluster: InProcessCluster) -> list[str]:
    found = []
    for container in json.loads(cluster.ask("GET", QUEUE, query="format=json").read() or b"[]"):
        answer = cluster.ask("GET", f"{QUEUE}/{container['name']}", query="format=json")
        found += [row["name"].partition("-")[2] for row in json.loads(answer.read() or b"[]")]
    return sorted(found)


def listed(cluster: InProcessCluster) -> list[str]:
    return [row["name"] for row in json.loads(cluster.ask("GET", "/v1/a/c", query="format=json").read() or b"[]")]


def settle(daemons: Daemons) -> None:
    """What object servers left to the updater, such as the removal of old entries of the queue, is delivered."""
    for node in daemons.nodes:
        daemons.object_updater(node).run_once()
    for node in daemons.nodes:
        daemons.container_updater(node).run_once()


def later(daemons: Daemons, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Time passes for everybody."""
    daemons.clock.ahead_s += seconds
    for app in daemons.cluster.apps.values():
        monkeypatch.setattr(app, "clock", daemons.clock)
    monkeypatch.setattr(daemons.cluster.proxy, "clock", daemons.clock)


def test_what_is_due_goes_and_nothing_else(cluster: InProcessCluster, daemons: Daemons, monkeypatch: pytest.MonkeyPatch) -> None:
    put(cluster, "soon", 10)
    put(cluster, "later", 1000)
    cluster.ask("PUT", "/v1/a/c/never", body=b"x")
    settle(daemons)
    expirer = daemons.expirer()
    expirer.run_once()
    assert listed(cluster) == ["later", "never", "soon"] and expirer.counts["objects"] == 0
    later(daemons, monkeypatch, 20)
    assert next(iter(expirer.dry_run())).startswith("delete /a/c/soon, due ")
    expirer.run_once()
    assert expirer.counts["objects"] == 1
    assert listed(cluster) == ["later", "never"]
    assert queued(cluster) == ["a/c/later"]
    for node in cluster.primaries("object", "/a/c/soon"):
        part = cluster.proxy.rings.object(cluster.proxy.cluster.policies.default).current().partition(
            cluster.proxy.cluster.hash_path.digest("a", "c", "soon"))
        answer = cluster.proxy.backend.call(node.address, "HEAD", f"/{node.device}/{part}/a/c/soon", Headers({"X-Backend-Open-Expired": "true"}))
        assert answer.status == 404 and "X-Backend-Timestamp" in answer.headers
    recon = json.loads((daemons.recon(0) / "object.recon").read_text())
    assert (recon["expired_last_pass"], recon["object_expirer_lag"]) == (1, 0.0)


def test_an_object_written_anew_with_another_time_is_kept(cluster: InProcessCluster, daemons: Daemons, monkeypatch: pytest.MonkeyPatch) -> None:
    put(cluster, "o", 10, b"old")
    settle(daemons)
    old = queued(cluster)
    part, rows = _rows(cluster)
    put(cluster, "o", 1000, b"new")
    settle(daemons)
    _restore(cluster, part, rows)  # the entry of the first PUT comes back, as when its removal was lost
    assert old == ["a/c/o"] and queued(cluster) == ["a/c/o", "a/c/o"]
    later(daemons, monkeypatch, 20)
    expirer = daemons.expirer()
    expirer.run_once()
    assert cluster.ask("GET", "/v1/a/c/o").read() == b"new"
    assert queued(cluster) == ["a/c/o", "a/c/o"]  # kept: the object with that time may be on its way
    assert (expirer.counts["objects"], expirer.counts["errors"], expirer.lag_s) == (0, 0, 0.0)
    expirer.run_once()
    assert expirer.counts["tasks.stale"] == 1  # not asked for again at once
    old_expirer = daemons.expirer(reclaim_age=15)
    daemons.clock.ahead_s += 10
    old_expirer.run_once()
    assert queued(cluster) == ["a/c/o"]
    assert cluster.ask("GET", "/v1/a/c/o").read() == b"new"


def _rows(cluster: InProcessCluster) -> tuple[str, list[dict[str, Any]]]:
    container = json.loads(cluster.ask("GET", QUEUE, query="format=json").read())[0]["name"]
    return container, json.loads(cluster.ask("GET", f"{QUEUE}/{container}", query="format=json").read())


def _restore(cluster: InProcessCluster, container: str, rows: list[dict[str, Any]]) -> None:
    ring = cluster.proxy.rings.container.current()
    part = ring.partition(cluster.proxy.cluster.hash_path.digest(".expiring_objects", container))
    for node in ring.primaries(part):
        for row in rows:
            cluster.proxy.backend.call(node.address, "PUT", f"/{node.device}/{part}/.expiring_objects/{container}/{row['name']}", Headers({
                "X-Timestamp": Timestamp(time.time()).internal, "X-Size": "0", "X-Content-Type": "text/plain", "X-Etag": "e"}))


def test_a_replica_that_missed_a_change_does_not_delete(cluster: InProcessCluster, daemons: Daemons, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tombstone would win over the data that all have, and with it over the acknowledged POST."""
    put(cluster, "o", 10)
    settle(daemons)
    missing = cluster.primaries("object", "/a/c/o")[0]
    cluster.stop(missing.address)
    assert cluster.ask("POST", "/v1/a/c/o", {"X-Delete-After": "1000"}).status == 202
    cluster.start(missing.address)
    later(daemons, monkeypatch, 20)
    expirer = daemons.expirer()
    expirer.run_once()
    assert cluster.files(".ts") == [] and expirer.counts["objects"] == 0
    assert cluster.ask("GET", "/v1/a/c/o", {"X-Newest": "true"}).read() == b"x"


def test_what_fails_is_late_until_it_succeeds(cluster: InProcessCluster, daemons: Daemons, monkeypatch: pytest.MonkeyPatch) -> None:
    put(cluster, "o", 10)
    settle(daemons)
    later(daemons, monkeypatch, 100)
    nodes = cluster.primaries("object", "/a/c/o")
    for node in nodes:
        monkeypatch.setattr(cluster.apps[node.address], "device_path", _broken)
    expirer = daemons.expirer()
    expirer.run_once()
    assert expirer.counts["errors"] == 1 and 80 < expirer.lag_s < 100
    assert queued(cluster) == ["a/c/o"]
    monkeypatch.undo()
    later(daemons, pytest.MonkeyPatch(), 0)
    expirer.run_once()
    assert expirer.lag_s == 0 and queued(cluster) == []


def _broken(_device: str) -> str:
    raise OSError(5, "broken")


def test_a_delay_keeps_what_is_due(cluster: InProcessCluster, daemons: Daemons, monkeypatch: pytest.MonkeyPatch) -> None:
    put(cluster, "o", 10)
    settle(daemons)
    later(daemons, monkeypatch, 20)
    expirer = daemons.expirer()
    expirer.delays = Delays.parse({"delay_reaping_a": "5", "delay_reaping_a/c": "3600"})
    expirer.run_once()
    assert expirer.counts["tasks.delayed"] == 1 and queued(cluster) == ["a/c/o"]
    assert cluster.ask("GET", "/v1/a/c/o").status == 404
    assert cluster.ask("GET", "/v1/a/c/o", {"X-Open-Expired": "true"}).status == 200
    later(daemons, monkeypatch, 3600)
    expirer.run_once()
    assert queued(cluster) == []


def test_a_deletion_that_a_user_asked_for_needs_no_time_on_the_object(cluster: InProcessCluster, daemons: Daemons) -> None:
    cluster.ask("PUT", "/v1/a/c/o", body=b"x")
    when = time.time()
    row = {"name": f"{when:016.5f}-a/c/o", "created_at": Timestamp(when).internal, "size": 0, "etag": "d41d8cd98f00b204e9800998ecf8427e",
           "content_type": "application/async-deleted", "deleted": 0, "storage_policy_index": 0}
    container = f"{int(when) // 86400 * 86400 - 5:010d}"
    ring = cluster.proxy.rings.container.current()
    part = ring.partition(cluster.proxy.cluster.hash_path.digest(".expiring_objects", container))
    for node in ring.primaries(part):
        assert cluster.proxy.backend.call(node.address, "UPDATE", f"/{node.device}/{part}/.expiring_objects/{container}", Headers({
            "X-Timestamp": Timestamp(when).internal, "X-Backend-Storage-Policy-Index": "0"}), body=json.dumps([row]).encode()).is_success
    for node in daemons.nodes:
        daemons.container_updater(node).run_once()
    daemons.clock.ahead_s = 1
    expirer = daemons.expirer()
    expirer.run_once()
    assert expirer.counts["objects"] == 1 and cluster.ask("GET", "/v1/a/c/o").status == 404


def test_an_empty_container_of_the_queue_goes(cluster: InProcessCluster, daemons: Daemons, monkeypatch: pytest.MonkeyPatch) -> None:
    put(cluster, "o", 10)
    settle(daemons)
    later(daemons, monkeypatch, 20)
    expirer = daemons.expirer()
    expirer.run_once()
    expirer.run_once()
    assert json.loads(cluster.ask("GET", QUEUE, query="format=json").read() or b"[]") == []


def test_shares_leave_nothing_out_and_take_nothing_twice() -> None:
    tasks = [parse_task("1700000000", f"1700000001-a/c/{number}") for number in range(200)]
    taken = Counter(task.name for index in range(3) for task in tasks if Share(index, 3).holds(task))
    assert set(taken.values()) == {1} and len(taken) == 200
    assert all(Share().holds(task) for task in tasks)


def test_what_nobody_else_did_is_taken_over(cluster: InProcessCluster, daemons: Daemons, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(8):
        put(cluster, f"o{number}", 10)
    settle(daemons)
    later(daemons, monkeypatch, 15)
    expirer = daemons.expirer(processes=2, process=0)
    expirer.run_once()
    first = expirer.counts["objects"]
    assert 0 < first < 8 and expirer.counts["tasks.skipped"] == 8 - first
    later(daemons, monkeypatch, 400)
    expirer.run_once()
    assert expirer.counts["objects"] == 8


def task(target: str, number: int) -> Task:
    return parse_task("1700000000", f"1700000001-{target}/{number}")


def test_containers_take_turns() -> None:
    tasks = [task("a/c", 1), task("a/c", 2), task("a/c", 3), task("b/d", 1)]
    assert [one.target + one.obj for one in spread(tasks, 100)] == ["a/c1", "b/d1", "a/c2", "a/c3"]
    assert sorted(spread(tasks, 2)) == sorted(tasks)


@pytest.mark.parametrize("name", ["", "1700000001", "1700000001-a", "1700000001-a/c", "x-a/c/o", "1700000001-a//o", "-a/c/o"])
def test_other_names_are_no_entries(name: str) -> None:
    with pytest.raises(ValueError):
        parse_task("1700000000", name)


def test_an_entry_says_what_and_when() -> None:
    found = parse_task("1700000000", "1700000001-a/c/o/p-q", "text/plain;swift_expirer_bytes=3")
    assert found == Task("1700000000", "1700000001-a/c/o/p-q", Timestamp(1700000001), "a", "c", "o/p-q", False)
    assert parse_task("1", "1700000001.12345-a/c/o", "application/async-deleted").is_async


def test_names_of_queue_containers() -> None:
    divisor = 86400
    assert is_expected(f"{divisor * 20:010d}", divisor) and is_expected(f"{divisor * 20 - 99:010d}", divisor)
    assert not is_expected(f"{divisor * 20 - 101:010d}", divisor) and not is_expected("x", divisor)


def test_the_closest_delay_counts() -> None:
    delays = Delays.parse({"delay_reaping_AUTH_a": "1", "delay_reaping_AUTH_a/c%2Fd": "2", "interval": "3"})
    assert [delays.of(task(target, 1)) for target in ("AUTH_a/x", "AUTH_b/x")] == [1, 0]
    with pytest.raises(ConfigError, match="delay_reaping_a/b/c"):
        Delays.parse({"delay_reaping_a/b/c": "1"})
    with pytest.raises(ConfigError):
        Delays.parse({"delay_reaping_a": "soon"})
