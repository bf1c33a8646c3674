"""Replicators of databases over an in-process cluster: replicas become equal, handoffs go home, what is old goes."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keelstore.common import concurrency, db_replicator, events
from keelstore.common.broker_steps import merge_metadata
from keelstore.common.daemon_frame import Selection
from keelstore.common.timestamp import Timestamp
from test.support.cluster import InProcessCluster
from test.support.daemons import Daemons
from test.support.databases import Replicas
from test.support.hub_disk import watched
from test.support.waiting import until

NOW = int(time.time()) - 3600

@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[InProcessCluster]:
    cluster = InProcessCluster(tmp_path, nodes=4, devices=1)
    cluster.ask("PUT", "/v1/a")
    yield cluster
    cluster.close()


@pytest.fixture
def daemons(cluster: InProcessCluster) -> Daemons:
    return Daemons(cluster)


@pytest.fixture(params=["container", "account"])
def replicas(request: pytest.FixtureRequest, cluster: InProcessCluster) -> Replicas:
    """A container with objects, or an account with containers, that all replicas know alike."""
    cluster.ask("PUT", "/v1/a/c", {"X-Container-Meta-One": "1"})
    if request.param == "account":
        return Replicas(cluster, "a")
    found = Replicas(cluster, "a", "c")
    add(found, "o", found.primaries)
    return found


def add(replicas: Replicas, name: str, nodes: list[Any], at: float = NOW, deleted: bool = False, size: int = 3) -> None:
    """A row, written to these nodes only."""
    for node in nodes:
        broker = replicas.broker(node)
        stamp = Timestamp(at).internal
        if replicas.container and deleted:
            broker.delete_object(name, stamp, 0)
        elif replicas.container:
            broker.put_object(name, stamp, size, "text/plain", "etag", 0)
        else:
            broker.put_container(name, "0" if deleted else stamp, stamp if deleted else "0", 0 if deleted else 1, 0 if deleted else size, 0)
        broker.close()


def run(daemons: Daemons, kind: str, *nodes: int, **options: Any) -> list[dict[str, Any]]:
    """One pass on each of these nodes; gives their stats."""
    found = []
    for node in nodes or daemons.nodes:
        replicator = daemons.replicator(kind, node, **options)
        replicator.run_once()
        found.append(replicator.stats)
    return found


def total(stats: list[dict[str, Any]], name: str) -> int:
    return sum(stat[name] for stat in stats)


def turn() -> bool:
    concurrency.sleep(0.01)
    return False


# -- rows --------------------------------------------------------------------------------------------------------------


def test_rows_that_replicas_miss_come_to_them(replicas: Replicas, daemons: Daemons) -> None:
    one, two, three = replicas.primaries
    add(replicas, "first", [one])
    add(replicas, "second", [two], at=NOW + 1)
    add(replicas, "gone", [one, two, three])
    add(replicas, "gone", [three], at=NOW + 2, deleted=True)
    assert not replicas.agree()
    stats = run(daemons, replicas.kind)
    assert replicas.agree()
    assert {"first", "second"} <= set(replicas.names(three)) and "gone" not in replicas.names(one)
    assert total(stats, "diff") and not total(stats, "failure") and not total(stats, "rsync")
    again = run(daemons, replicas.kind)
    assert total(again, "diff") == 0 and total(again, "hashmatch") == total(again, "success") > 0


def test_metadata_and_times_are_merged_key_by_key(replicas: Replicas, daemons: Daemons) -> None:
    one, two, _ = replicas.primaries
    early, late = Timestamp(NOW).internal, Timestamp(NOW + 1).internal
    for node, items in ((one, {"X-Thing": ("old", early), "X-One": ("1", early)}), (two, {"X-Thing": ("", late), "X-Two": ("2", early)})):
        broker = replicas.broker(node)
        broker.write(lambda connection, broker=broker, items=items: broker.update_metadata(connection, items))
        broker.write(lambda connection, broker=broker, node=node: broker.update_put_timestamp(connection, f"99000000{node.id:02d}.00000"))
        broker.close()
    run(daemons, replicas.kind)
    assert replicas.agree()
    state = replicas.state(two)
    assert state["metadata"]["X-Thing"] == ("", late) and {"X-One", "X-Two"} <= set(state["metadata"])
    assert state["times"][1] == f"99000000{max(one.id, two.id):02d}.00000"


def test_what_is_far_behind_gets_so_many_rows_at_a_time(replicas: Replicas, daemons: Daemons) -> None:
    one, two, three = replicas.primaries
    for number in range(7):
        add(replicas, f"n{number}", [one], at=NOW + number)
    stats = run(daemons, replicas.kind, replicas.node_of(one), per_diff=2, max_diffs=2)
    assert total(stats, "diff_capped") + total(stats, "remote_merge") == 2
    for _ in range(3):
        run(daemons, replicas.kind, replicas.node_of(one), per_diff=2, max_diffs=2)
    assert replicas.names(one) == replicas.names(two) == replicas.names(three)


def test_points_keep_rows_from_being_sent_again(replicas: Replicas, daemons: Daemons) -> None:
    one, _, _ = replicas.primaries
    add(replicas, "x", [one])
    replicator = daemons.replicator(replicas.kind, replicas.node_of(one))
    replicator.run_once()
    sent = replicator.sync.rows_sent
    add(replicas, "y", [one], at=NOW + 5)
    replicator.run_once()
    assert replicator.sync.rows_sent == sent + 2  # one row to two peers


# -- whole files -------------------------------------------------------------------------------------------------------


def test_a_lost_database_is_made_anew(replicas: Replicas, daemons: Daemons) -> None:
    one, two, three = replicas.primaries
    add(replicas, "x", [two, three])
    replicas.cluster.remove_device(one.device)
    replicas.cluster.device_path(one.device).mkdir()
    stats = run(daemons, replicas.kind, replicas.node_of(two))
    assert total(stats, "rsync") >= 1 and "x" in replicas.names(one)
    run(daemons, replicas.kind)
    assert replicas.agree()
    ids = {read(replicas, node, "id") for node in replicas.primaries}
    assert len(ids) == 3
    assert os.listdir(replicas.cluster.device_path(one.device) / "tmp") == []
    assert os.listdir(replicas.cluster.device_path(two.device) / "tmp") == []


def read(replicas: Replicas, node: Any, name: str) -> Any:
    broker = replicas.broker(node)
    try:
        return getattr(broker.info(), name)
    finally:
        broker.close()


def test_a_replica_that_lacks_most_gets_the_whole_file_and_keeps_its_own(replicas: Replicas, daemons: Daemons) -> None:
    one, two, three = replicas.primaries
    for number in range(12):
        add(replicas, f"n{number:02d}", [one], at=NOW + number)
    add(replicas, "own", [two])
    add(replicas, "n05", [two], at=NOW + 500, deleted=True)
    before = read(replicas, two, "id")
    stats = run(daemons, replicas.kind, replicas.node_of(one), per_diff=3)
    assert total(stats, "remote_merge") == 2
    assert read(replicas, two, "id") != before
    assert "own" in replicas.names(two) and "n05" not in replicas.names(two) and len(replicas.names(three)) >= 12
    run(daemons, replicas.kind)
    assert replicas.agree() and "n05" not in replicas.names(one)


def test_a_database_that_is_torn_comes_back_from_the_others(replicas: Replicas, daemons: Daemons) -> None:
    one, two, _ = replicas.primaries
    path = replicas.path(one)
    path.write_bytes(path.read_bytes()[:5000] + b"\xff" * 3000)
    auditor = daemons.auditor(replicas.kind, replicas.node_of(one))
    auditor.run_once()
    assert (auditor.quarantined, auditor.failed) == (1, 1)
    assert not path.exists()
    aside = replicas.cluster.device_path(one.device) / "quarantined" / f"{replicas.kind}s" / path.parent.name
    assert (aside / path.name).exists()
    run(daemons, replicas.kind, replicas.node_of(two))
    assert path.exists()
    run(daemons, replicas.kind)
    assert replicas.agree()


def test_no_file_is_sent_when_there_is_no_room_for_its_copy(replicas: Replicas, daemons: Daemons, caplog: pytest.LogCaptureFixture) -> None:
    one, two, _ = replicas.primaries
    shutil.rmtree(replicas.path(one).parent)
    stats = run(daemons, replicas.kind, replicas.node_of(two), fallocate_reserve="100%")
    assert total(stats, "failure") == 0  # ours is at fault, not a node of the ring
    assert (not replicas.path(one).exists() and "100" in caplog.text) or "room" in caplog.text or "space" in caplog.text


# -- handoffs ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def handoff(cluster: InProcessCluster) -> Replicas:
    """A container that was made while a primary was down: one primary has none, a handoff has."""
    found = Replicas(cluster, "a", "h")
    cluster.stop(found.primaries[0].address)
    assert cluster.ask("PUT", "/v1/a/h").status == 201
    cluster.start(found.primaries[0].address)
    assert found.holders() == [node.device for node in [*found.primaries[1:], found.handoffs[0]]]
    return found


def test_a_handoff_goes_home_and_then_goes(handoff: Replicas, daemons: Daemons) -> None:
    where = handoff.handoffs[0]
    add(handoff, "late", [where])
    stats = run(daemons, "container", handoff.node_of(where))
    assert handoff.holders() == [node.device for node in handoff.primaries]
    assert total(stats, "remove") == 1
    assert handoff.names(handoff.primaries[0]) == ["late"]
    part = handoff.cluster.device_path(where.device) / "containers" / str(handoff.part)
    assert not part.exists()


def test_a_handoff_stays_while_a_primary_is_down(handoff: Replicas, daemons: Daemons) -> None:
    where, down = handoff.handoffs[0], handoff.primaries[1]
    handoff.cluster.stop(down.address)
    stats = run(daemons, "container", handoff.node_of(where))
    assert where.device in handoff.holders() and handoff.path(handoff.primaries[0]).exists()
    assert stats[0]["failure_nodes"] == {down.replication_ip: {down.device: stats[0]["failure"]}}
    handoff.cluster.start(down.address)
    run(daemons, "container", handoff.node_of(where))
    assert where.device not in handoff.holders()


def test_in_an_emergency_fewer_primaries_are_enough(handoff: Replicas, daemons: Daemons) -> None:
    where = handoff.handoffs[0]
    handoff.cluster.stop(handoff.primaries[1].address)
    run(daemons, "container", handoff.node_of(where), handoff_delete=2)
    assert where.device not in handoff.holders()


def test_a_row_that_comes_while_a_handoff_goes_home_is_not_lost(handoff: Replicas, daemons: Daemons) -> None:
    where = handoff.handoffs[0]
    replicator = daemons.replicator("container", handoff.node_of(where))
    bring = replicator.sync.bring
    asked = []

    def and_a_row(talk: Any, *args: Any, **kwargs: Any) -> Any:
        found = bring(talk, *args, **kwargs)
        asked.append(talk.node.device)
        if len(asked) == 3:  # every primary has said that it has everything
            add(handoff, "meanwhile", [where])
        return found

    replicator.sync.bring = and_a_row  # type: ignore[method-assign]
    replicator.run_once()
    assert len(asked) == 6 and where.device not in handoff.holders()
    assert [handoff.names(node) for node in handoff.primaries] == [["meanwhile"]] * 3


def test_a_peer_by_an_older_ring_is_no_proof(handoff: Replicas, daemons: Daemons, monkeypatch: pytest.MonkeyPatch) -> None:
    where = handoff.handoffs[0]
    replicator = daemons.replicator("container", handoff.node_of(where))
    ring = handoff.cluster.proxy.rings.container.current()
    monkeypatch.setattr("keelstore.common.db_replicator.job_of", lambda *args: newer(job_of(*args), ring.version + 1))
    from keelstore.common.db_rules import job_of

    replicator.run_once()
    assert where.device in handoff.holders() and handoff.path(handoff.primaries[0]).exists()


def newer(job: Any, version: int) -> Any:
    from dataclasses import replace

    return replace(job, ring_version=version)


def test_only_handoffs(handoff: Replicas, daemons: Daemons) -> None:
    stats = run(daemons, "container", handoffs_only=True)
    assert total(stats, "attempted") == 1 and handoff.holders() == [node.device for node in handoff.primaries]


def test_a_device_that_is_gone_has_a_handoff_stand_in(replicas: Replicas, daemons: Daemons) -> None:
    one, two, _ = replicas.primaries
    replicas.cluster.remove_device(one.device)
    stats = run(daemons, replicas.kind, replicas.node_of(two))
    assert replicas.handoffs[0].device in replicas.holders()
    assert total(stats, "failure") >= 1
    replicas.cluster.device_path(one.device).mkdir()
    run(daemons, replicas.kind)
    assert replicas.holders() == [node.device for node in replicas.primaries] and replicas.agree()


def test_a_database_in_the_directory_of_a_wrong_partition_moves(replicas: Replicas, daemons: Daemons) -> None:
    one = replicas.primaries[0]
    right = replicas.path(one)
    add(replicas, "only here", [one])
    wrong = right.parents[2].parent / str((replicas.part + 1) % 32) / right.parents[0].parent.name / right.parent.name
    wrong.parent.mkdir(parents=True)
    right.parent.rename(wrong)
    run(daemons, replicas.kind, replicas.node_of(one))
    assert right.exists() and not wrong.exists()
    assert replicas.agree() and "only here" in replicas.names(one)


# -- what is old -------------------------------------------------------------------------------------------------------


def test_tombstones_go_when_they_are_old(replicas: Replicas, daemons: Daemons) -> None:
    now = daemons.clock()
    add(replicas, "old", replicas.primaries, at=now - 1000, deleted=True)
    add(replicas, "new", replicas.primaries, at=now - 10, deleted=True)
    for _ in range(2):  # first each learns that all others know
        run(daemons, replicas.kind, reclaim_age=500)
    names = [row[0] for row in replicas.state(replicas.primaries[0])["rows"]]
    assert "old" not in names and "new" in names and replicas.agree()


def test_tombstones_of_a_single_replica_go_too(replicas: Replicas, daemons: Daemons, monkeypatch: pytest.MonkeyPatch) -> None:
    one = replicas.primaries[0]
    add(replicas, "old", [one], at=daemons.clock() - 1000, deleted=True)
    ring = getattr(replicas.cluster.proxy.rings, replicas.kind).current()
    monkeypatch.setattr(ring, "primaries", lambda part: (one,))
    run(daemons, replicas.kind, replicas.node_of(one), reclaim_age=500)
    assert "old" not in [row[0] for row in replicas.state(one)["rows"]]


def test_a_tombstone_waits_for_a_primary_that_does_not_know_of_it(replicas: Replicas, daemons: Daemons) -> None:
    one, two, three = replicas.primaries
    now = daemons.clock()
    add(replicas, "x", [one, two, three], at=now - 2000)
    replicas.cluster.stop(three.address)
    add(replicas, "x", [one, two], at=now - 1000, deleted=True)
    run(daemons, replicas.kind, replicas.node_of(one), replicas.node_of(two), reclaim_age=500)
    assert "x" in [row[0] for row in replicas.state(one)["rows"]]
    replicas.cluster.start(three.address)
    for _ in range(4):
        run(daemons, replicas.kind, replicas.node_of(three), replicas.node_of(one), replicas.node_of(two), reclaim_age=500)
    assert [[row[0] for row in replicas.state(node)["rows"]].count("x") for node in replicas.primaries] == [0] * 3


def test_a_deleted_container_goes_when_its_account_knows(cluster: InProcessCluster, daemons: Daemons) -> None:
    cluster.ask("PUT", "/v1/a/d")
    found = Replicas(cluster, "a", "d")
    assert cluster.ask("DELETE", "/v1/a/d").status == 204
    daemons.clock.ahead_s = 1000
    run(daemons, "container", reclaim_age=500)
    assert len(found.holders()) == 3  # nobody has told the account
    daemons.clock.ahead_s = 0
    for node in daemons.nodes:
        daemons.container_updater(node).run_once()
    run(daemons, "container", reclaim_age=500)
    assert len(found.holders()) == 3  # too young
    daemons.clock.ahead_s = 1000
    stats = run(daemons, "container", reclaim_age=500)
    assert found.holders() == [] and total(stats, "remove") == 3
    assert not any(cluster.root.glob(f"node*/*/containers/{found.part}"))


def test_a_deleted_account_goes_when_it_is_empty(cluster: InProcessCluster, daemons: Daemons) -> None:
    cluster.ask("PUT", "/v1/b")
    found = Replicas(cluster, "b")
    cluster.ask("DELETE", "/v1/b")
    daemons.clock.ahead_s = 1000
    run(daemons, "account", reclaim_age=2000)
    assert len(found.holders()) == 3
    run(daemons, "account", reclaim_age=500)
    assert found.holders() == []


def test_a_late_replica_does_not_bring_back_a_deleted_container(cluster: InProcessCluster, daemons: Daemons) -> None:
    cluster.ask("PUT", "/v1/a/d", {"X-Container-Meta-A": "1"})
    found = Replicas(cluster, "a", "d")
    cluster.stop(found.primaries[0].address)
    assert cluster.ask("DELETE", "/v1/a/d").status in (204, 404)
    cluster.start(found.primaries[0].address)
    assert not found.state(found.primaries[0])["is_deleted"]
    run(daemons, "container")
    states = [found.state(node) for node in found.primaries]
    assert all(state["is_deleted"] for state in states) and found.agree()
    assert states[0]["metadata"]["X-Container-Meta-A"][0] == ""
    assert cluster.ask("HEAD", "/v1/a/d").status == 404


def test_rubbish_goes(replicas: Replicas, daemons: Daemons) -> None:
    one = replicas.primaries[0]
    device = replicas.cluster.device_path(one.device)
    old, new = replicas.path(one).parent / "x.tmp", replicas.path(one).parent / "y.tmp"
    arrived, removed, sent = device / "tmp" / "arrived", device / "tmp" / "removed-1", device / "tmp" / "sent-1"
    removed.mkdir(parents=True)
    (removed / "file").touch()
    for path in (old, new, arrived, sent):
        path.touch()
    for path in (old, arrived):
        os.utime(path, (1, 1))
    os.utime(sent, (time.time() - 4000,) * 2)
    empty = device / f"{replicas.kind}s" / "3" / "abc" / ("0" * 29 + "abc")
    empty.mkdir(parents=True)
    (empty / ".lock").touch()
    for path in (empty, empty.parent, empty.parents[1]):
        os.utime(path, (1, 1))
    run(daemons, replicas.kind, replicas.node_of(one))
    assert not any(path.exists() for path in (old, arrived, removed, sent, empty)) and new.exists()


# -- policies ----------------------------------------------------------------------------------------------------------


def test_the_policy_of_a_container_is_settled(cluster: InProcessCluster, daemons: Daemons) -> None:
    found = Replicas(cluster, "a", "p")
    for node, index, at in zip(found.primaries, (0, 1, 1), (NOW + 2, NOW + 1, NOW + 1)):
        found.broker(node).initialize("a", "p", Timestamp(at).internal, index)
    run(daemons, "container")
    assert [found.state(node)["policy"] for node in found.primaries] == [1, 1, 1]
    assert {found.state(node)["times"][1] for node in found.primaries} == {Timestamp(NOW + 2).internal}


# -- what is seen ------------------------------------------------------------------------------------------------------


def test_a_pass_leaves_its_figures(replicas: Replicas, daemons: Daemons) -> None:
    node = replicas.node_of(replicas.primaries[0])
    run(daemons, replicas.kind, node)
    left = json.loads((daemons.recon(node) / f"{replicas.kind}.recon").read_text())
    assert left["replication_stats"]["attempted"] >= 1 and left["replication_time"] >= 0 and left["replication_last"] > NOW
    mine = json.loads((daemons.recon(node) / "daemons.recon").read_text())["daemons"][f"{replicas.kind}-replicator"]
    assert {"handoff_databases", "databases_below_full", "rows_sent", "peers_down"} <= set(mine)


def test_a_plan_can_be_printed_and_narrowed(handoff: Replicas, daemons: Daemons) -> None:
    where = handoff.handoffs[0]
    replicator = daemons.replicator("container", handoff.node_of(where))
    lines = list(replicator.dry_run())
    assert any(line.startswith("revert ") and str(handoff.path(where).parent) in line for line in lines)
    assert list(replicator.dry_run(Selection(devices=frozenset({"other"})))) == []
    assert where.device in handoff.holders()


def test_a_node_that_is_not_in_the_ring_says_so(cluster: InProcessCluster, daemons: Daemons, caplog: pytest.LogCaptureFixture) -> None:
    replicator = daemons.replicator("container", bind_port=9)
    replicator.run_once()
    assert "Can't find itself" in caplog.text and replicator.stats["attempted"] == 0


# -- between passes ----------------------------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("QUIET_S", "LEAST_BETWEEN_S", "HANDOFF_DELAY_S"):
        monkeypatch.setattr(db_replicator, name, 0.05)


def hint(replicator: Any, replicas: Replicas, node: Any, kind: str = events.DATABASE) -> None:
    replicator.on_hint(kind, (str(replicas.cluster.device_path(node.device)), str(replicas.path(node).parent)))


def test_a_change_that_a_peer_missed_goes_to_it_when_it_is_back(
    replicas: Replicas, daemons: Daemons, quick: None, monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, two, three = replicas.primaries
    monkeypatch.setattr("keelstore.common.peers.PROBE_S", 0.05)
    replicator = daemons.replicator(replicas.kind, replicas.node_of(one), interval=1000)
    task = concurrency.spawn(replicator.run_forever)
    try:
        until(lambda: turn() or replicator.passes, "the first pass is over")
        replicas.cluster.stop(two.address)
        add(replicas, "missed", [one, three])
        hint(replicator, replicas, one)
        until(lambda: turn() or replicator.peers.down, "it is found that a peer is down")
        until(lambda: turn() or replicator.figures()["databases_below_full"] == 1, "it is known what it lacks")
        replicas.cluster.start(two.address)
        until(lambda: turn() or "missed" in replicas.names(two), "it has what it missed")
        assert replicator.passes == 1
        until(lambda: turn() or replicator.figures()["databases_below_full"] == 0, "nothing is lacking")
    finally:
        task.kill()


def test_an_operator_has_a_device_filled_at_once(replicas: Replicas, daemons: Daemons) -> None:
    one, two, _ = replicas.primaries
    shutil.rmtree(replicas.path(one).parents[3])
    replicator = daemons.replicator(replicas.kind, replicas.node_of(two), interval=1000)
    replicator._is_forever = True
    task = concurrency.spawn(replicator.workers.run)
    try:
        replicator.ask(Selection(policies=frozenset({1})))
        replicator.ask(Selection(devices=frozenset({one.device})))
        until(lambda: turn() or replicas.path(one).exists(), "it is filled")
    finally:
        task.kill()


def test_a_handoff_that_is_gone_is_forgotten(handoff: Replicas, daemons: Daemons) -> None:
    where = handoff.handoffs[0]
    replicator = daemons.replicator("container", handoff.node_of(where))
    known = handoff.path(where).parent
    replicator.handoffs = {str(known), f"{known}0"}
    list(replicator.plan(Selection()))
    assert replicator.handoffs == {str(known)}


def test_a_row_on_a_handoff_goes_home_at_once(handoff: Replicas, daemons: Daemons, quick: None) -> None:
    where = handoff.handoffs[0]
    replicator = daemons.replicator("container", handoff.node_of(where), interval=1000)
    replicator._is_forever = True
    task = concurrency.spawn(replicator.workers.run)
    try:
        hint(replicator, handoff, where, events.CONTAINER)
        until(lambda: turn() or where.device not in handoff.holders(), "the handoff went home")
        assert handoff.path(handoff.primaries[0]).exists() and replicator.handoffs == set()
    finally:
        task.kill()


def test_a_server_hints_when_a_peer_knows_less(replicas: Replicas, daemons: Daemons, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two, _ = replicas.primaries
    run(daemons, replicas.kind)
    told: list[tuple[str, ...]] = []
    monkeypatch.setattr("keelstore.common.db_server.hint_change", lambda *fields: told.append(fields))
    add(replicas, "unknown to one", [two])
    run(daemons, replicas.kind, replicas.node_of(one))
    assert told == [(events.DATABASE, str(replicas.cluster.device_path(two.device)), str(replicas.path(two).parent))]
    run(daemons, replicas.kind, replicas.node_of(two))
    told.clear()
    run(daemons, replicas.kind, replicas.node_of(one))
    assert told == []


def test_rows_of_what_changes_all_the_time_wait(replicas: Replicas, daemons: Daemons) -> None:
    one, two, _ = replicas.primaries
    replicator = daemons.replicator(replicas.kind, replicas.node_of(one))
    replicator.run_once()
    replicator._is_forever = True
    add(replicas, "x", [one])
    job = replicator.job_now(str(replicas.path(one).parent))
    assert job is not None
    assert replicator._carry_out(job).is_moving and "x" not in replicas.names(two)
    assert str(replicas.path(one).parent) in replicator.queue
    daemons.clock.ahead_s = 100
    assert replicator._carry_out(job).is_success and "x" in replicas.names(two)


def test_rows_of_a_burst_into_what_is_new_wait(replicas: Replicas, daemons: Daemons) -> None:
    one, two, _ = replicas.primaries
    replicator = daemons.replicator(replicas.kind, replicas.node_of(one))
    replicator._is_forever = True
    add(replicas, "x", [one])
    hint(replicator, replicas, one)
    job = replicator.job_now(str(replicas.path(one).parent))
    assert job is not None
    assert replicator._carry_out(job).is_moving and "x" not in replicas.names(two)
    daemons.clock.ahead_s = 30
    hint(replicator, replicas, one)  # it goes on
    daemons.clock.ahead_s = 100
    assert replicator._carry_out(job).is_success and "x" in replicas.names(two)


def test_two_workers_are_never_at_one_database(replicas: Replicas, daemons: Daemons, monkeypatch: pytest.MonkeyPatch) -> None:
    one = replicas.primaries[0]
    replicator, path = daemons.replicator(replicas.kind, replicas.node_of(one)), str(replicas.path(one).parent)

    def look(device: str, function: Any, *args: Any) -> Any:
        replicator._busy.add(path)  # another green thread came to it meanwhile
        return function(*args)

    monkeypatch.setattr(db_replicator, "on_disk_thread", look)
    monkeypatch.setattr(replicator, "_carry_out", lambda job: pytest.fail("two at once"))
    replicator._on_due(path, path)
    assert path in replicator.queue


@pytest.mark.parametrize("fields", [(), ("/x",), ("/x", "/y/containers/1/abc/" + "0" * 32), ("/x", "/x/containers/1"), ("/x", "/x/containers/1/abc/nothing")])
def test_hints_that_make_no_sense_are_dropped(daemons: Daemons, fields: tuple[str, ...]) -> None:
    replicator = daemons.replicator("container")
    replicator._is_forever = True
    replicator.on_hint(events.CONTAINER, fields)
    assert len(replicator.queue) == 0


def test_merged_metadata_does_not_depend_on_the_order() -> None:
    one, two = {"A": ("1", "2"), "B": ("x", "1")}, {"A": ("", "2"), "C": ("y", "1")}
    assert merge_metadata(one, two) == merge_metadata(two, one)


def test_what_is_due_and_hinted_at_asks_no_disk_on_the_thread_of_the_others(
        replicas: Replicas, daemons: Daemons, monkeypatch: pytest.MonkeyPatch) -> None:
    one = replicas.primaries[0]
    replicator, path = daemons.replicator(replicas.kind, replicas.node_of(one)), replicas.path(one).parent
    replicator._is_forever = True
    calls = watched(monkeypatch, replicas.cluster.root)
    assert replicator.job_now(str(path)) is not None
    assert replicator.job_now(f"{path.parent}/{'0' * 29}{path.parent.name}") is None
    replicator.on_hint(events.DATABASE, (str(path.parents[3]), str(path)))
    assert str(path) in replicator.queue
    assert calls == []
    path.parents[3].rename(path.parents[3].with_name("away"))
    assert replicator.job_now(str(path)) is None
