"""The object replicator: every copy where it belongs, and all of them the same (``spec: daemons 11``).

A pass visits every partition of the devices of this node: ``jobs.py`` says what each needs, ``partition_work.py`` does it;
``partition_daemon.py`` has what happens between passes. Policies of erasure coding are the reconstructor's; a policy whose
part power is being increased is left alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, ClassVar

from keelstore.common import concurrency
from keelstore.common.cluster import Cluster
from keelstore.common.daemon_frame import ALL, Selection, World
from keelstore.common.peers import Address
from keelstore.common.ring.ring import Node, Ring, RingFile
from keelstore.common.work import Throttle
from keelstore.obj import jobs
from keelstore.obj.jobs import Job, Key, Kind
from keelstore.obj.options import ObjectReplicatorOptions
from keelstore.obj.partition_daemon import PartitionDaemon
from keelstore.obj.partition_work import Collaborators, PartitionWork
from keelstore.obj.rsync import RsyncOptions, module_of
from keelstore.obj.ssync.sender import Sender


class ObjectReplicator(PartitionDaemon):
    name: ClassVar[str] = "object-replicator"
    noun: ClassVar[str] = "replication"

    def __init__(self, options: ObjectReplicatorOptions, world: World, rings: Mapping[int, RingFile], cluster: Cluster,
                 backend: Any, addresses: Collection[Address]):
        """``rings`` by policy index; ``addresses``: those of this node's object servers. Raises ConfigError."""
        rings = {index: ring for index, ring in rings.items() if not cluster.policies.by_index[index].stores_fragments}
        super().__init__(options, world, rings, cluster, backend, addresses)
        self.options = options
        rsync = RsyncOptions(options.rsync_module, options.rsync_timeout, options.rsync_io_timeout, options.rsync_bwlimit,
                             options.rsync_compress, options.log_rsync_transfers, options.rsync_error_log_line_length)
        for ring in rings.values():
            for node in ring.current().nodes[:1]:
                module_of(rsync.module, node)  # raises what is wrong with it now rather than at night
        sender = Sender(self.store, backend, self.log, node_timeout_s=options.node_timeout,
                        http_timeout_s=options.http_timeout, clock=world.clock)
        self.work = PartitionWork(Collaborators(
            self.store, self.peers, sender, self.log, world, options, rsync, Throttle(2),
            lambda job: self.ring_changed_since(job.policy, job.ring_version),
        ))  # fmt: skip
        self._reverting = 0

    # -- a pass --------------------------------------------------------------------------------------------------------

    def before_pass(self, only: Selection) -> None:
        super().before_pass(only)
        self.work.cycle += 1

    def plan(self, only: Selection) -> Iterator[Job]:
        """One job for each partition: first those of handoffs. With ``handoffs_first`` those of primaries follow only when no
        handoff is left.
        """
        found: list[Job] = []
        for policy, ring in self._policies(only):
            for own, partition in self.own_partitions(policy, ring, only):
                job = jobs.job_of(ring, policy.index, own, partition, self.world.random)
                if job is not None:
                    found.append(job)
        self.handoffs = {job.key for job in found if job.kind is Kind.REVERT} | (set() if only.is_all else self.handoffs)
        self.progress.total = len(found)
        self.by_device.expect(job.device for job in found)
        rings = {index: ring.current() for index, ring in self._rings.items()}
        is_home = True
        for job in jobs.in_order(found, self.world.random):
            if self._rings[job.policy].current() is not rings[job.policy]:
                self.log.info("Ring change detected. Aborting current replication pass.")
                self._ring_changed = True
                return
            if self.options.handoffs_first and job.kind is Kind.SYNC:
                while self._reverting:
                    concurrency.sleep(0.05)
                is_home = not self.handoffs
            if not is_home:
                self.log.warning("Handoffs first mode still has handoffs remaining. Aborting current replication pass.")
                return
            self._reverting += job.kind is Kind.REVERT
            yield job

    def carry_out(self, job: Job) -> bool:
        try:
            return self._carry_out(job)
        finally:
            self._reverting -= job.kind is Kind.REVERT

    def _carry_out(self, job: Job) -> bool:
        if job.key in self._busy:
            return True  # the queue's workers are at it
        self._busy.add(job.key)
        began = self.world.clock()
        try:
            result = self.work.carry_out(job, self._cluster.policies.by_index[job.policy],
                                         f"{self.options.devices}/{job.device}", self._rings[job.policy].current())
        finally:
            self._busy.discard(job.key)
        kind = "delete" if job.kind is Kind.REVERT else "update"
        self.world.stats.increment(f"partition.{kind}.count.{job.device}")
        self.world.stats.timing_since(f"partition.{kind}.timing", began)
        self.note(job.key, result, job.kind is Kind.REVERT)
        return result.is_success

    def care_for(self, key: Key, ring: Ring, own: Node) -> None:
        job = jobs.job_of(ring, key[0], own, key[2], self.world.random)
        if job is not None:
            self._carry_out(job)

    # -- what is seen --------------------------------------------------------------------------------------------------

    def figures(self) -> dict[str, Any]:
        return {
            "handoff_partitions": len(self.handoffs), "partitions_below_full": len(self.below_full),
            "copies_missing": sum(self.below_full.values()), "queued": len(self.queue),
            "objects_sent": self.work.sessions.objects_sent, "bytes_sent": self.work.sessions.bytes_sent,
            "objects_removed": self.work.objects_removed, "failures": self.stats["failure"],
            "peers_down": sorted(f"{ip}:{port}" for ip, port in self.peers.down),
        }  # fmt: skip

    def after_pass(self, only: Selection, took_s: float) -> None:
        super().after_pass(only, took_s)
        if only.is_all:
            stats = {key: value for key, value in self.stats.items() if key != "start"}
            now, minutes = self.world.clock(), took_s / 60
            self.world.leave("object", {
                "replication_stats": stats, "replication_time": minutes,
                "replication_last": now, "object_replication_time": minutes, "object_replication_last": now,
            })  # fmt: skip

    def run_once(self, only: Selection = ALL) -> None:
        self._reverting = 0
        super().run_once(only)
