"""What the container replicator does besides rows: shard ranges, misplaced objects, links of synced containers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keelstore.common.ranges import ShardRange, State
from keelstore.common.timestamp import Timestamp
from keelstore.container import shard_rows
from test.support.cluster import InProcessCluster
from test.support.daemons import Daemons
from test.support.databases import Replicas

NOW = Timestamp.now()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[InProcessCluster]:
    cluster = InProcessCluster(tmp_path, nodes=4, devices=1)
    yield cluster
    cluster.close()


@pytest.fixture
def daemons(cluster: InProcessCluster) -> Daemons:
    return Daemons(cluster)


@pytest.fixture
def replicas(cluster: InProcessCluster) -> Replicas:
    cluster.ask("PUT", "/v1/a")
    cluster.ask("PUT", "/v1/a/c")
    return Replicas(cluster, "a", "c")


def run(daemons: Daemons, *nodes: int, **options: Any) -> list[dict[str, Any]]:
    found = []
    for node in nodes or daemons.nodes:
        replicator = daemons.replicator("container", node, **options)
        replicator.run_once()
        found.append(replicator.stats)
    return found


def merge(replicas: Replicas, node: Any, *ranges: ShardRange) -> None:
    broker = replicas.broker(node)
    broker.write(lambda connection: shard_rows.merge_ranges(connection, ranges))
    broker.close()


def ranges_at(replicas: Replicas, node: Any) -> set[ShardRange]:
    broker = replicas.broker(node)
    try:
        return set(broker.read(shard_rows.all_ranges))
    finally:
        broker.close()


def test_shard_ranges_go_both_ways(replicas: Replicas, daemons: Daemons) -> None:
    one, two, three = replicas.primaries
    left = ShardRange.create(".shards_a/c-1", NOW, upper="m", state=State.CREATED)
    right = ShardRange.create(".shards_a/c-2", NOW, lower="m", state=State.FOUND)
    merge(replicas, one, left)
    merge(replicas, two, right)
    stats = run(daemons, replicas.node_of(one))
    assert ranges_at(replicas, one) == ranges_at(replicas, two) == {left, right}
    run(daemons, replicas.node_of(one))
    assert ranges_at(replicas, three) == {left, right}
    assert sum(stat["failure"] for stat in stats) == 0


def test_a_container_that_is_being_sharded_sends_no_rows_and_stays(replicas: Replicas, daemons: Daemons) -> None:
    one, two, _ = replicas.primaries
    where = replicas.handoffs[0]
    own = ShardRange.create("a/c", NOW, state=State.SHARDING, epoch=NOW)
    broker = replicas.broker(where)
    broker.initialize("a", "c", Timestamp.now().internal, 0)
    broker.put_object("only here", Timestamp.now().internal, 1, "t", "e", 0)
    broker.close()
    merge(replicas, where, own, ShardRange.create(".shards_a/c-1", NOW, state=State.CREATED))
    stats = run(daemons, replicas.node_of(where))
    assert sum(stat["deferred"] for stat in stats) == 3
    assert where.device in replicas.holders() and "only here" not in replicas.names(one)
    assert own in ranges_at(replicas, two)


def test_what_a_peer_says_of_our_own_range_without_an_epoch_is_ignored(
    replicas: Replicas, daemons: Daemons, caplog: pytest.LogCaptureFixture,
) -> None:
    one, two, _ = replicas.primaries
    ours = ShardRange.create("a/c", NOW, state=State.ACTIVE, epoch=NOW)
    theirs = ShardRange.create("a/c", Timestamp(float(NOW) + 1), state=State.ACTIVE)
    merge(replicas, one, ours)
    merge(replicas, two, theirs)
    run(daemons, replicas.node_of(one))
    assert ranges_at(replicas, one) == {ours} and "Ignoring remote osr w/o epoch" in caplog.text


def test_objects_under_another_policy_are_queued_and_the_queue_goes_home(replicas: Replicas, daemons: Daemons) -> None:
    one = replicas.primaries[0]
    stamp = Timestamp.now()
    broker = replicas.broker(one)
    broker.put_object("misplaced", stamp.internal, 1, "text/plain", "e", 1)
    broker.close()
    stats = run(daemons, replicas.node_of(one))
    queue = Replicas(replicas.cluster, ".misplaced_objects", str(int(stamp) // 3600 * 3600))
    assert queue.holders() == [node.device for node in queue.primaries]
    assert all(queue.names(node) == ["1:/a/c/misplaced"] for node in queue.primaries)
    assert sum(stat["failure"] for stat in stats) == 0
    assert replicas.cluster.ask("HEAD", "/v1/a/c").status == 204
    point = replicas.broker(one).read(lambda connection: connection.execute("SELECT reconciler_sync_point FROM container_info").fetchone()[0])
    assert point > 0


def test_the_link_of_a_synced_container_follows_it(replicas: Replicas, daemons: Daemons) -> None:
    one, two, _ = replicas.primaries
    for node in replicas.primaries:
        broker = replicas.broker(node)
        broker.write(lambda connection, broker=broker: broker.update_metadata(
            connection, {"X-Container-Sync-To": ("//r/c/a/c", NOW.internal), "X-Container-Sync-Key": ("k", NOW.internal)}))
        broker.close()
    run(daemons, replicas.node_of(two))
    link = replicas.cluster.device_path(two.device) / "sync_containers" / replicas.path(two).relative_to(replicas.cluster.device_path(two.device) / "containers")
    assert link.is_symlink() and link.resolve() == replicas.path(two).resolve()
    where = replicas.handoffs[0]
    broker = replicas.broker(where)
    broker.initialize("a", "c", Timestamp.now().internal, 0)
    broker.close()
    run(daemons, replicas.node_of(where))
    assert not (replicas.cluster.device_path(where.device) / "sync_containers").exists() or not any(
        (replicas.cluster.device_path(where.device) / "sync_containers").rglob("*.db"))
    assert one.device in replicas.holders() and where.device not in replicas.holders()
