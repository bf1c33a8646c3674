"""The container replicator: ``common/db_replicator``, and what containers have besides rows (``spec: daemons 4``).

Replicas may differ in the policy of a container: they settle it before their times are merged. Shard ranges travel both ways
with each comparison; a container that is being sharded sends no rows, its sharder moves them. Rows of another policy than the
container's are put into the queue of misplaced objects (``misplaced``).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection
from typing import Any, ClassVar, cast

from keelstore.common import events
from keelstore.common.broker import Broker
from keelstore.common.broker_steps import Connection, timestamp_of
from keelstore.common.broker_sync import Receiver
from keelstore.common.cluster import Cluster
from keelstore.common.daemon_frame import Selection, World
from keelstore.common.db_replicator import DatabaseReplicator, Result
from keelstore.common.db_rules import Job
from keelstore.common.db_sync import Collaborators, DatabaseSync, Info, Talk
from keelstore.common.device_walk import usable_device
from keelstore.common.disk_calls import on_disk_thread
from keelstore.common.errors import BackendError, DeviceUnavailable
from keelstore.common.quorum import majority_size
from keelstore.common.ranges import ShardRange
from keelstore.common.ring.ring import Node, RingFile
from keelstore.common.timestamp import Timestamp
from keelstore.container import shard_rows, sync_to
from keelstore.container.broker import SHARDING, ContainerBroker
from keelstore.container.misplaced import MisplacedQueue, NoDevice, advance
from keelstore.container.options import ContainerReplicatorOptions
from keelstore.container.policy_rule import PolicyClaim
from keelstore.container.sharding_server import ContainerReceiver, merge_remote_ranges


class ContainerSync(DatabaseSync):
    def __init__(self, given: Collaborators, has_policies: bool, logger: logging.Logger):
        super().__init__(given)
        self._has_policies, self._logger = has_policies, logger

    def arguments(self, info: Info) -> list[Any]:
        found = super().arguments(info)
        if self._has_policies:
            found += [info["status_changed_at"], info["count"], info["storage_policy_index"]]
        return found

    def is_news(self, info: Info, remote: Info) -> bool:
        return _policy_of(remote, info) != info["storage_policy_index"] or super().is_news(info, remote)

    def learn(self, connection: Connection, talk: Talk, remote: Info) -> None:
        broker = cast(ContainerBroker, talk.broker)
        if "storage_policy_index" in remote:
            broker.settle_policy(connection, PolicyClaim(
                int(remote["storage_policy_index"]), timestamp_of(remote["put_timestamp"]),
                timestamp_of(remote["delete_timestamp"]), timestamp_of(remote["status_changed_at"]),
                int(remote["count"] or 0)))  # fmt: skip
        super().learn(connection, talk, remote)

    def before_rows(self, talk: Talk, info: Info, remote: Info) -> bool:
        broker = cast(ContainerBroker, talk.broker)
        theirs = int(remote.get("shard_max_row", -1))
        if theirs >= 0:
            answer = self.ask(talk, ["get_shard_ranges"])
            if not answer.is_success:
                raise BackendError(f"answered {answer.status} to get_shard_ranges", talk.node.replication_address)
            found = [ShardRange.from_dict(item) for item in json.loads(answer.body or b"[]")]
            known = set(broker.read(shard_rows.all_ranges))
            if not known.issuperset(found):
                broker.write(lambda connection: merge_remote_ranges(connection, found, self._logger))
        if "shard_max_row" in remote:
            ours = broker.read(shard_rows.all_ranges)
            if ours:
                self.told(talk, ["merge_shard_ranges", [shard.to_dict() for shard in ours], info["id"]])
        return not broker.read(shard_rows.is_sharding_initiated)


def _policy_of(remote: Info, info: Info) -> Any:
    return remote.get("storage_policy_index", info["storage_policy_index"])


class ContainerReplicator(DatabaseReplicator):
    name: ClassVar[str] = "container-replicator"
    service: ClassVar[str] = "container"
    datadir: ClassVar[str] = "containers"
    hints: ClassVar[frozenset[str]] = frozenset({events.DATABASE, events.CONTAINER})

    def __init__(self, options: ContainerReplicatorOptions, world: World, ring: RingFile, cluster: Cluster, backend: Any,
                 addresses: Collection[tuple[str, int]]):
        super().__init__(options, world, ring, cluster, backend, addresses)
        self._misplaced = MisplacedQueue(options.devices, ring, cluster.hash_path, self._own_usable, self.log,
                                         options.per_diff)  # fmt: skip

    def make_broker(self, path: str, device_path: str) -> ContainerBroker:
        return ContainerBroker(path, device_path, self.log)

    def make_receiver(self, broker: Broker) -> Receiver:
        return ContainerReceiver(cast(ContainerBroker, broker), self.log)

    def make_sync(self, given: Collaborators) -> DatabaseSync:
        return ContainerSync(given, len(list(self.cluster.policies)) > 1, self.log)

    def is_reclaimable(self, connection: Connection, broker: Broker, before: Timestamp) -> bool:
        """Its account must know that it is gone, or it would list it for ever."""
        broker = cast(ContainerBroker, broker)
        info = broker.info_in(connection)
        deleted = timestamp_of(info.delete_timestamp)
        if not before > deleted > timestamp_of(info.put_timestamp):
            return False
        if (timestamp_of(info.reported_put_timestamp), timestamp_of(info.reported_delete_timestamp)) != (
                timestamp_of(info.put_timestamp), deleted):  # fmt: skip
            return False
        if (info.reported_object_count, info.reported_bytes_used) != (info.object_count, info.bytes_used):
            return False
        if shard_rows.is_root(connection) and (info.db_state == SHARDING or shard_rows.has_other_ranges(connection)):
            return False
        return broker.is_empty_in(connection)

    def may_leave(self, broker: Broker) -> bool:
        """One that is to be sharded keeps its rows until its sharder has moved them."""
        broker = cast(ContainerBroker, broker)

        def needs_sharding(connection: Connection) -> bool:
            return broker.state_in(connection) == SHARDING or shard_rows.is_sharding_initiated(connection)

        return not broker.read(needs_sharding)

    def after_peers(self, job: Job, broker: Broker, result: Result) -> None:
        broker = cast(ContainerBroker, broker)
        self._link(job, broker)
        self._feed(job, broker, result)

    def _feed(self, job: Job, broker: ContainerBroker, result: Result) -> None:
        """Queue rows of another policy for the reconciler. Its databases then go to where they belong."""
        try:
            fed = self._misplaced.feed(broker)
        except (NoDevice, ValueError) as error:
            self.log.error("%s: its misplaced objects cannot be queued: %s", job.path, error)
            return
        if not job.targets or len(result.done) >= majority_size(len(job.targets)):
            advance(broker, fed)
        if self._is_forever:
            self._send_queues()

    def _send_queues(self) -> None:
        self.world.stats.update("reconciler_db_created", self._misplaced.created)
        self.world.stats.update("reconciler_db_exists", self._misplaced.existed)
        for database in self._misplaced.take_written():
            if self._is_forever:
                self.enqueue(database.path)
            else:
                found = self.job_now(database.path)
                if found is not None:
                    self._carry_out(found)

    def after_pass(self, only: Selection, took_s: float) -> None:
        self._send_queues()
        super().after_pass(only, took_s)

    def _own_usable(self) -> list[Node]:
        found = []
        for name, node in self._own(self._ring.current()).items():
            try:
                usable_device(self.options.devices, name, self.options.mount_check)
                found.append(node)
            except DeviceUnavailable:
                pass
        return found

    def _link(self, job: Job, broker: ContainerBroker) -> None:
        """A container that came here whole may be one that is synced elsewhere."""
        metadata = broker.read(broker.metadata)
        is_synced = all(metadata.get(key, ("", ""))[0] for key in (sync_to.TO, sync_to.KEY)) and not broker.is_deleted()
        try:
            on_disk_thread(job.device, sync_to.update_link, job.device_path, f"{broker.base}.db", broker.path, is_synced)
        except OSError as error:
            self.log.warning("%s: its link in sync_containers could not be updated: %s", broker.path, error)

    def after_removal(self, job: Job) -> None:
        try:
            on_disk_thread(job.device, sync_to.update_link, job.device_path, job.database, job.database, False)
        except OSError as error:
            self.log.warning("%s: its link in sync_containers could not be removed: %s", job.path, error)
