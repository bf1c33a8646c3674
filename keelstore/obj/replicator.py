"""The object replicator: every copy where it belongs, and all of them the same (``spec: daemons 11``).

A pass visits every partition of the devices of this node: ``jobs.py`` says what each needs, ``partition_work.py`` does it.
Between passes, and beside them, the replicator acts on what it is told: a server that has taken a write for another device
says so at once (``events.HANDOFF``), and that partition goes home as soon as its primaries answer. A job that failed is
tried again, later each time, and at once when the peer is back that it failed for.

Policies of erasure coding are the reconstructor's; a policy whose part power is being increased is left alone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Hashable, Iterator, Mapping
from typing import Any, ClassVar, Final

from keelstore.common import concurrency, events, fs
from keelstore.common.cluster import Cluster
from keelstore.common.concurrency import on_disk_thread
from keelstore.common.daemon_frame import ALL, SHOW_S, Daemon, Selection, World
from keelstore.common.device_walk import Device, own_nodes, partitions, usable_devices
from keelstore.common.errors import DeviceUnavailable, StorageError
from keelstore.common.peers import Address, Peers
from keelstore.common.policy import Policy
from keelstore.common.ring.ring import Node, Ring, RingFile
from keelstore.common.work import Risk, Throttle, Workers, WorkQueue, back_off_s, jitter
from keelstore.obj import jobs, layout
from keelstore.obj.jobs import Job, Key, Kind
from keelstore.obj.options import ObjectReplicatorOptions
from keelstore.obj.partition_work import Collaborators, PartitionWork, Result
from keelstore.obj.rsync import RsyncOptions, module_of
from keelstore.obj.ssync.sender import Sender
from keelstore.obj.store import ObjectStore

HINT_DELAY_S: Final = 0.5  # so that the writes of one burst go out in one session
FIRST_RETRY_S: Final = 2.0
LAST_RETRY_S: Final = 300.0
BUSY_RETRY_S: Final = 1.0  # a peer that has no place free, or a partition somebody else works on
QUIET_REST: Final = 40.0  # times as long as a pass that found all well the replicator rests after it,
MAX_QUIET_S: Final = 600.0  # but no longer than this
MAX_REMEMBERED: Final = 100_000  # partitions of which a failure, or a lack of copies, is remembered


class ObjectReplicator(Daemon):
    name: ClassVar[str] = "object-replicator"
    starts_at_once: ClassVar[bool] = True
    hints: ClassVar[frozenset[str]] = frozenset({events.HANDOFF})

    def __init__(self, options: ObjectReplicatorOptions, world: World, rings: Mapping[int, RingFile], cluster: Cluster,
                 backend: Any, addresses: Collection[Address]):
        """``rings`` by policy index; ``addresses``: those of this node's object servers. Raises ConfigError."""
        super().__init__(world, options.interval, options.concurrency)
        self.options, self._cluster, self._addresses = options, cluster, frozenset(addresses)
        self._rings = {index: ring for index, ring in rings.items()
                       if not cluster.policies.by_index[index].stores_fragments}
        store = ObjectStore(cluster.hash_path, reserve=fs.Reserve.parse("0"), reclaim_age_s=options.reclaim_age,
                            logger=self.log, clock=world.clock, remembers=0)
        self.peers = Peers(backend, world.clock, self._on_return)
        rsync = RsyncOptions(options.rsync_module, options.rsync_timeout, options.rsync_io_timeout, options.rsync_bwlimit,
                             options.rsync_compress, options.log_rsync_transfers, options.rsync_error_log_line_length)
        for ring in self._rings.values():
            for node in ring.current().nodes[:1]:
                module_of(rsync.module, node)  # raises what is wrong with it now rather than at night
        sender = Sender(store, backend, self.log, node_timeout_s=options.node_timeout, http_timeout_s=options.http_timeout,
                        clock=world.clock)
        self.work = PartitionWork(Collaborators(
            store, self.peers, sender, self.log, world, options, rsync, Throttle(2), self._stop_if_ring_changed,
        ))  # fmt: skip
        self.queue: WorkQueue[Key] = WorkQueue(MAX_REMEMBERED)
        self.workers = Workers(self.queue, self._on_due, options.concurrency, self.log, world.clock,
                               lane_of=lambda key: key[1])
        self._is_forever = False
        self._busy: set[Key] = set()
        self._reverting = 0
        self._failures: dict[Key, int] = {}
        self._waits_for: dict[Address, set[Key]] = {}
        self.handoffs: set[Key] = set()
        self.below_full: dict[tuple[int, int], int] = {}  # (policy, partition): copies that are not known to be there
        self._ring_changed = False
        self._quiet_s = 0.0  # what the last pass took, if it found all well
        self.stats = _no_stats()

    # -- a pass --------------------------------------------------------------------------------------------------------

    def before_pass(self, only: Selection) -> None:
        self.stats = _no_stats()
        self.stats["start"] = self.world.clock()
        self._ring_changed = False
        self.work.cycle += 1
        if only.is_all and not self._is_forever:
            self.peers.forget()

    def plan(self, only: Selection) -> Iterator[Job]:
        """One job for each partition: first those of handoffs. With ``handoffs_first`` those of primaries follow only when no
        handoff is left.
        """
        found: list[Job] = []
        for policy, ring in self._policies(only):
            found += self._jobs_of(policy, ring, only)
        self.handoffs = {job.key for job in found if job.kind is Kind.REVERT} | (set() if only.is_all else self.handoffs)
        self.progress.total = len(found)
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

    def _policies(self, only: Selection) -> Iterator[tuple[Policy, Ring]]:
        for index, file in sorted(self._rings.items()):
            policy, ring = self._cluster.policies.by_index[index], file.current()
            if not only.has_policy(index):
                continue
            if ring.next_part_power is not None:
                self.log.warning("next_part_power set in policy '%s'. Skipping", policy.name)
                continue
            yield policy, ring

    def own(self, ring: Ring) -> dict[str, Node]:
        """The devices of a ring that are this node's, by name."""
        return {node.device: node for node in own_nodes(ring.nodes, self._addresses)}

    def _jobs_of(self, policy: Policy, ring: Ring, only: Selection) -> list[Job]:
        own = self.own(ring)
        devices = usable_devices(self.options.devices, self.options.mount_check, self.log, only)
        for name in sorted(own.keys() - {device.name for device in devices}):
            if only.has_device(name):
                self.log.warning("%s is not mounted", name)
                self._failed_node(own[name], 1)
        found: list[Job] = []
        for device in devices:
            if device.name not in own:
                continue
            try:
                numbers = on_disk_thread(device.name, _prepare, device, policy.index, self.world.clock(),
                                         self.options.reclaim_age, only)
            except OSError as error:
                self.log.error("device %s cannot be listed: %s", device.name, error)
                self._failed_node(own[device.name], 1)
                continue
            for partition in numbers:
                job = jobs.job_of(ring, policy.index, own[device.name], partition, self.world.random)
                if job is not None:
                    found.append(job)
        return found

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
        self._note(job, result)
        return result.is_success

    def _stop_if_ring_changed(self, job: Job) -> bool:
        return self._rings[job.policy].current().version != job.ring_version

    # -- what came of it -----------------------------------------------------------------------------------------------

    def _note(self, job: Job, result: Result) -> None:
        stats = self.stats
        stats["attempted"] += 1
        for name, value in result.counts.items():
            stats[name] += value
        for node in result.failed:
            self._failed_node(node, 1)
        stats["success"] += len(result.done)
        key, place = job.key, (job.policy, job.partition)
        if result.is_gone:
            self.handoffs.discard(key)
        elif job.kind is Kind.REVERT:
            self.handoffs.add(key)
        if result.lacking:
            if len(self.below_full) < MAX_REMEMBERED:
                self.below_full[place] = result.lacking
        else:
            self.below_full.pop(place, None)
        if result.is_success:
            self._failures.pop(key, None)
            return
        if not self._is_forever or len(self._failures) >= MAX_REMEMBERED:
            return
        count = self._failures[key] = self._failures.get(key, 0) + 1
        if result.is_busy:
            wait_s = BUSY_RETRY_S * (1 + jitter(self.world.random, 1.0))
        else:
            wait_s = back_off_s(count, FIRST_RETRY_S, LAST_RETRY_S, jitter(self.world.random))
        for node in result.failed:
            if self.peers.is_down(node.replication_address):
                self._waits_for.setdefault(node.replication_address, set()).add(key)
        self.queue.reschedule(key, key, self._risk(key), self.world.clock() + wait_s, key[1])
        self.workers.kick()

    def _risk(self, key: Key) -> Risk:
        if (key[0], key[2]) in self.below_full:
            return Risk.DURABILITY
        return Risk.HANDOFF if key in self.handoffs else Risk.MOVE

    def _failed_node(self, node: Node, count: int) -> None:
        self.stats["failure"] += count
        devices = self.stats["failure_nodes"].setdefault(node.replication_ip, {})
        devices[node.device] = devices.get(node.device, 0) + count

    # -- between passes ------------------------------------------------------------------------------------------------

    def run_forever(self) -> None:
        self._is_forever = True
        tasks = [concurrency.spawn(self.workers.run), concurrency.spawn(self.peers.watch),
                 concurrency.spawn(self._watch_rings), concurrency.spawn(self._keep_showing)]
        try:
            super().run_forever()
        finally:
            for task in tasks:
                task.kill()

    def rest(self, seconds: float) -> None:
        """A pass that found nothing to do costs the more the more there is; so it is followed by a longer rest."""
        if self._quiet_s:
            seconds = max(seconds, min(self._quiet_s * QUIET_REST, MAX_QUIET_S))
        super().rest(seconds)

    def _keep_showing(self) -> None:
        """What happens between passes is seen, too."""
        shown: dict[str, Any] = {}
        while True:
            concurrency.sleep(SHOW_S)
            figures = self.figures()
            if figures != shown:
                shown = figures
                self.show(force=True)

    def _watch_rings(self) -> None:
        """A new ring is worth a pass at once."""
        versions = {index: ring.current().version for index, ring in self._rings.items()}
        while True:
            concurrency.sleep(self.options.ring_check_interval)
            for index, ring in self._rings.items():
                if ring.current().version != versions[index]:
                    versions[index] = ring.current().version
                    self.wake()

    def on_hint(self, kind: str, fields: tuple[str, ...]) -> None:
        """A server of this node took what belongs to another device."""
        if kind == events.HANDOFF and len(fields) == 3 and fields[1].isdecimal() and fields[2].isdecimal():
            self.enqueue((int(fields[1]), os.path.basename(fields[0]), int(fields[2])), Risk.DURABILITY, HINT_DELAY_S)

    def enqueue(self, key: Key, risk: Risk, delay_s: float = 0.0) -> None:
        """Have a partition looked at soon; an operator's or another module's wish, too."""
        if key[0] in self._rings and key not in self.queue:
            self.queue.put(key, key, risk, self.world.clock() + delay_s, key[1])
            self.workers.kick()

    def _on_return(self, address: Address) -> None:
        """A peer is back: what waits for it goes first."""
        now = self.world.clock()
        for key in self._waits_for.pop(address, ()):
            self._failures.pop(key, None)
            self.queue.reschedule(key, key, Risk.DURABILITY, now, key[1])
        self.workers.kick()

    def _on_due(self, _key: Hashable, key: Key) -> None:
        if key in self._busy:
            self.queue.put(key, key, self._risk(key), self.world.clock() + BUSY_RETRY_S, key[1])
            return
        job = self.job_now(key)
        if job is None:
            self._failures.pop(key, None)
            self.handoffs.discard(key)
            return
        self._carry_out(job)
        self.show()

    def job_now(self, key: Key) -> Job | None:
        """What a partition needs by the ring of now; None when it is not there, or not ours to see to."""
        index, name, partition = key
        ring = self._rings[index].current()
        own = self.own(ring).get(name)
        if own is None or ring.next_part_power is not None:
            return None
        try:
            path = fs.check_device(self.options.devices, name, self.options.mount_check)
        except DeviceUnavailable:
            return None
        if not os.path.isdir(f"{path}/{layout.objects_dir(index)}/{partition}"):
            return None
        return jobs.job_of(ring, index, own, partition, self.world.random)

    # -- what is seen --------------------------------------------------------------------------------------------------

    def figures(self) -> dict[str, Any]:
        return {
            "handoff_partitions": len(self.handoffs), "partitions_below_full": len(self.below_full),
            "copies_missing": sum(self.below_full.values()), "queued": len(self.queue),
            "objects_sent": self.work.objects_sent, "bytes_sent": self.work.bytes_sent,
            "objects_removed": self.work.objects_removed, "failures": self.stats["failure"],
            "peers_down": sorted(f"{ip}:{port}" for ip, port in self.peers.down),
        }  # fmt: skip

    def after_pass(self, only: Selection, took_s: float) -> None:
        stats = {key: value for key, value in self.stats.items() if key != "start"}
        self.log.info("object replication: %d partitions in %.1f s, %d below full count, %d handoffs, %d failures",
                      stats["attempted"], took_s, len(self.below_full), len(self.handoffs), stats["failure"])
        self._quiet_s = 0.0 if stats["failure"] or stats["suffix_sync"] else took_s
        if self._ring_changed:
            self.wake()
        if only.is_all:
            now, minutes = self.world.clock(), took_s / 60
            self.world.leave("object", {
                "replication_stats": {**stats, "failure_nodes": stats["failure_nodes"] or {}}, "replication_time": minutes,
                "replication_last": now, "object_replication_time": minutes, "object_replication_last": now,
            })  # fmt: skip

    def run_once(self, only: Selection = ALL) -> None:
        self._reverting = 0
        super().run_once(only)


def _no_stats() -> dict[str, Any]:
    counts = ("attempted", "failure", "hashmatch", "remove", "rsync", "success", "suffix_count", "suffix_hash", "suffix_sync")
    return {**dict.fromkeys(counts, 0), "failure_nodes": {}, "start": time.time()}


def _prepare(device: Device, policy: int, now: float, reclaim_age_s: float, only: Selection) -> list[int]:
    """The partitions of a device; its directory is made, and old temporary files go. On a disk thread."""
    datadir = layout.objects_dir(policy)
    fs.make_directories(f"{device.path}/{datadir}")
    tmp = f"{device.path}/{layout.tmp_dir(policy)}"
    try:
        with os.scandir(tmp) as entries:
            for entry in entries:
                if entry.is_file(follow_symlinks=False) and now - entry.stat(follow_symlinks=False).st_mtime > reclaim_age_s:
                    fs.remove_file(entry.path)
    except (OSError, StorageError):
        pass
    return partitions(device.path, datadir, only)
