"""Feeding the queue of misplaced objects from the database of a container."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keelstore.common.names import HashPath
from keelstore.common.timestamp import Timestamp
from keelstore.container.broker import ContainerBroker
from keelstore.container.misplaced import MisplacedQueue, NoDevice, QueueDatabase, advance
from test.support.cluster import InProcessCluster

LOG = logging.getLogger("test")
T1, T2 = "1700000001.00000", "1700000002.00000"
QUEUE = "1699999200"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[InProcessCluster]:
    cluster = InProcessCluster(tmp_path)
    yield cluster
    cluster.close()


def make(cluster: InProcessCluster, node: int = 0, per_diff: int = 2) -> MisplacedQueue:
    ring = cluster.proxy.rings.container
    return MisplacedQueue(str(cluster.devices(node)), ring, cluster.proxy.cluster.hash_path,
                          lambda: [one for one in ring.current().nodes if one.device[1] == str(node)], LOG, per_diff)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ContainerBroker]:
    (tmp_path / "x").mkdir()
    broker = ContainerBroker(str(tmp_path / "x/containers/0/abc/y/y.db"), str(tmp_path / "x"), LOG)
    broker.initialize("a", "c", T1, 0)
    yield broker
    broker.close()


def put(broker: ContainerBroker, *names: str, policy: int = 1, deleted: int = 0, at: str = T1) -> None:
    broker.write(lambda connection: broker.merge_rows(connection, [
        {"name": name, "created_at": at, "size": 1, "content_type": "t", "etag": "e", "deleted": deleted,
         "storage_policy_index": policy} for name in names]))


def rows(database: QueueDatabase) -> list[dict[str, Any]]:
    name = database.path.rpartition("/")[2]
    broker = ContainerBroker(f"{database.path}/{name}.db", database.device_path, LOG)
    try:
        return broker.read(lambda connection: broker.rows_since(connection, -1, 100))
    finally:
        broker.close()


def test_misplaced_rows_are_queued_once_and_then_only_new_ones(cluster: InProcessCluster, broker: ContainerBroker) -> None:
    queue = make(cluster)
    put(broker, "right", policy=0)
    put(broker, "o1", "o2", "o3")
    fed = queue.feed(broker)
    assert (fed.count, fed.policy_index) == (3, 0)
    [database] = queue.take_written()
    assert {row["name"] for row in rows(database)} == {"1:/a/c/o1", "1:/a/c/o2", "1:/a/c/o3"}
    assert all(row["storage_policy_index"] == 0 and row["etag"] == row["created_at"] == T1 for row in rows(database))
    assert queue.take_written() == []
    assert queue.feed(broker).count == 3  # it was not advanced
    advance(broker, fed)
    assert queue.feed(broker).count == 0
    put(broker, "o1", deleted=1, at=T2)
    fed = queue.feed(broker)
    assert fed.count == 1
    assert {(row["name"], row["content_type"]) for row in rows(database)} >= {("1:/a/c/o1", "application/x-delete")}


def test_an_entry_that_was_removed_does_not_come_back(cluster: InProcessCluster, broker: ContainerBroker) -> None:
    queue = make(cluster)
    put(broker, "o")
    queue.feed(broker)
    [database] = queue.take_written()
    name = database.path.rpartition("/")[2]
    local = ContainerBroker(f"{database.path}/{name}.db", database.device_path, LOG)
    local.delete_object("1:/a/c/o", Timestamp(T1, offset=2).internal, 0)
    assert local.info().object_count == 0
    queue.feed(broker)
    assert local.info().object_count == 0
    local.close()


def test_a_container_of_another_policy_is_looked_at_from_its_first_row(cluster: InProcessCluster, broker: ContainerBroker) -> None:
    queue = make(cluster)
    put(broker, "old", policy=0)
    fed = queue.feed(broker)
    assert fed.count == 0
    broker.write(lambda connection: broker.set_policy_index(connection, 1, T2))
    advance(broker, fed)  # of before: says nothing about the rows of now
    fed = queue.feed(broker)
    assert (fed.count, fed.policy_index) == (1, 1)
    [database] = queue.take_written()
    assert [row["name"] for row in rows(database)] == ["0:/a/c/old"]


def test_the_queue_is_on_the_primary_device_of_this_node_or_on_any(cluster: InProcessCluster, broker: ContainerBroker) -> None:
    put(broker, "o")
    primaries = {node.device for node in cluster.primaries("container", f"/.misplaced_objects/{QUEUE}")}
    for node in range(cluster.nodes):
        queue = make(cluster, node)
        queue.feed(broker)
        [database] = queue.take_written()
        here = {device for device in primaries if device[1] == str(node)}
        assert database.device in (here or {f"d{node}0", f"d{node}1"})
        assert queue.created == queue.existed == 0


def test_a_node_without_devices_queues_nothing(cluster: InProcessCluster, broker: ContainerBroker) -> None:
    put(broker, "o")
    queue = MisplacedQueue("/nowhere", cluster.proxy.rings.container, HashPath(b"", b"x"), list, LOG)
    with pytest.raises(NoDevice):
        queue.feed(broker)
