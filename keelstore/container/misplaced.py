"""Feeding the queue of misplaced objects: rows of a container that are under another policy than the container is.

For the container replicator, on whose node the rows are (the queue's form: ``reconcile.py``). For each container database
that it has just brought together with its peers::

    queue = MisplacedQueue(devices_root, container_ring_file, hash_path, own_nodes, logger, per_diff)   # once
    fed = queue.feed(broker)      # rows after the reconciler_sync_point go into local databases of the queue
    if majority_of_peers_succeeded and no_errors:
        advance(broker, fed)      # else the same rows are queued again at the next pass, which changes nothing
    ...
    for database in queue.take_written():   # at the end of the pass: QueueDatabase(device, device_path, partition, path)
        ...                                 # replicate it to its primaries; where we are none, delete it as a handoff

- ``own_nodes()`` gives the ring devices (``Node``) of this node that are mounted; it is asked anew for each queue database.
- ``feed`` is called in a green thread (it writes on disk threads). It raises StorageError (``NoDevice``), OSError,
  ValueError (a row that cannot be read); then nothing may be advanced. With nothing new it costs one small read.
- ``fed.count`` is how many rows were queued. ``advance`` also when it is 0. It never goes back, and does nothing when the
  policy of the container has changed meanwhile: such a container starts again from its first row
  (``ContainerBroker.set_policy_index`` sees to that).
- Queueing is a merge as of any row: an entry that was removed since (its object is moved) does not come back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from keelstore.common.broker import AlreadyExists
from keelstore.common.broker_steps import Connection
from keelstore.common.errors import StorageError
from keelstore.common.names import HashPath, database_file, storage_path
from keelstore.common.ring.ring import Node, RingFile
from keelstore.common.timestamp import Timestamp
from keelstore.container import reconcile
from keelstore.container.broker import ContainerBroker

DATADIR: Final = "containers"


class NoDevice(StorageError):
    """This node has no device that could take the queue."""


class QueueDatabase(NamedTuple):
    """A local database of the queue. ``path``: of its hash directory."""

    device: str
    device_path: str
    partition: int
    path: str


@dataclass(frozen=True)
class Fed:
    """How many rows were queued, up to which ROWID rows have been looked at, and which policy the container had."""

    count: int
    point: int
    policy_index: int


class _State(NamedTuple):
    account: str
    container: str
    policy_index: int
    point: int
    last: int  # the highest ROWID


def _state_of(connection: Connection) -> _State:
    row = connection.execute("SELECT account, container, storage_policy_index, reconciler_sync_point,"
                             " (SELECT COALESCE(MAX(ROWID), -1) FROM object) FROM container_info").fetchone()
    return _State(*row)


def misplaced_rows(connection: Connection, policy_index: int, start: int, last: int, count: int) -> list[dict[str, Any]]:
    """At most ``count`` rows with a ROWID above ``start`` up to ``last``, under another policy than this, by ROWID."""
    cursor = connection.execute(
        "SELECT ROWID, name, created_at, size, content_type, etag, deleted, storage_policy_index FROM object"
        " WHERE ROWID > ? AND ROWID <= ? AND storage_policy_index <> ? ORDER BY ROWID LIMIT ?",
        (start, last, policy_index, count))
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row)) for row in cursor]


def advance(broker: ContainerBroker, fed: Fed) -> None:
    """All that ``feed`` queued is safe on a majority of nodes: it need not be looked at again."""
    state = broker.read(_state_of)
    if state.point < fed.point and state.policy_index == fed.policy_index:
        broker.write(lambda connection: connection.execute(
            "UPDATE container_info SET reconciler_sync_point = MAX(reconciler_sync_point, ?)"
            " WHERE storage_policy_index = ?", (fed.point, fed.policy_index)))


class MisplacedQueue:
    """The queue as far as this node writes it."""

    def __init__(self, devices_root: str, ring: RingFile, hash_path: HashPath, own_nodes: Callable[[], Iterable[Node]],
                 logger: logging.Logger, per_diff: int = 1000):
        self._root, self._ring, self._hash_path, self._own_nodes = devices_root, ring, hash_path, own_nodes
        self._logger, self._per_diff = logger, per_diff
        self._written: dict[str, QueueDatabase] = {}
        self.created = self.existed = 0  # queue databases, since the last take_written

    def feed(self, broker: ContainerBroker) -> Fed:
        """Queue what is misplaced and new. Raises StorageError, OSError."""
        state = broker.read(_state_of)
        count, start = 0, state.point
        while start < state.last:
            rows = broker.read(partial(misplaced_rows, policy_index=state.policy_index, start=start, last=state.last,
                                       count=self._per_diff))
            for queue, entries in reconcile.queue_rows(state.account, state.container, rows).items():
                self._put(queue, entries)
                count += len(entries)
            start = rows[-1]["ROWID"] if len(rows) == self._per_diff else state.last
        return Fed(count, state.last, state.policy_index)

    def take_written(self) -> list[QueueDatabase]:
        """The queue databases that were written to since this was called last."""
        found = list(self._written.values())
        self._written.clear()
        self.created = self.existed = 0
        return found

    def _put(self, queue: str, entries: list[dict[str, Any]]) -> None:
        place = self._place(queue)
        broker = ContainerBroker(database_file(place.path), place.device_path, self._logger)
        try:
            if broker.exists:
                self.existed += 1
            else:
                try:
                    broker.initialize(reconcile.ACCOUNT, queue, Timestamp(queue).internal, 0)
                    self.created += 1
                except AlreadyExists:
                    self.existed += 1
            broker.write(lambda connection: broker.merge_rows(connection, entries))
        finally:
            broker.close()
        self._written[place.path] = place

    def _place(self, queue: str) -> QueueDatabase:
        """Where this node keeps a queue: on its primary device for it if it has one, else on any with weight."""
        name_hash = self._hash_path.hexdigest(reconcile.ACCOUNT, queue)
        ring = self._ring.current()
        partition = ring.partition(bytes.fromhex(name_hash))
        own = {node.device: node for node in self._own_nodes()}
        device = next((node.device for node in ring.primaries(partition)
                       if node.device in own and own[node.device].key == node.key), None)
        if device is None:
            weighted = sorted(name for name, node in own.items() if node.weight > 0)
            if not weighted:
                raise NoDevice(f"no device of this node can take {reconcile.ACCOUNT}/{queue}")
            device = weighted[int(queue) // reconcile.HOUR_S % len(weighted)]
        device_path = f"{self._root}/{device}"
        return QueueDatabase(device, device_path, partition, f"{device_path}/{storage_path(DATADIR, partition, name_hash)}")
