"""The object reconstructor: every fragment where it belongs, and lost ones made anew (``spec: daemons 12``).

A pass looks at every partition of the devices of this node (``fragment_jobs.py`` says what each may need,
``fragment_work.py`` compares and does it, ``rebuild.py`` makes fragments). What is found waits in order of risk: the fewer
fragments of an object are left, the sooner; what has none to spare does not even wait for the end of the looking.

``partition_daemon.py`` has what happens between passes, to which comes: a server that puts a rotten fragment aside, or a
proxy that misses one, says so at once (``events.LOST``), and the neighbours of the loss are asked to look.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from keelstore.common import concurrency, events
from keelstore.common.cluster import Cluster
from keelstore.common.daemon_frame import ALL, Selection, World
from keelstore.common.device_walk import own_nodes
from keelstore.common.disk_calls import on_disk_thread
from keelstore.common.options import node_count
from keelstore.common.peers import Address
from keelstore.common.policy import ErasureCodingPolicy
from keelstore.common.ring.ring import Node, Ring, RingFile
from keelstore.common.work import Risk, Throttle
from keelstore.obj.fragment_jobs import Kind, neighbours, place_of, risk_of
from keelstore.obj.fragment_work import FragmentWork, Repair, Tools
from keelstore.obj.jobs import Key
from keelstore.obj.options import ObjectReconstructorOptions
from keelstore.obj.partition_daemon import HINT_DELAY_S, PartitionDaemon
from keelstore.obj.partition_work import Result
from keelstore.obj.peer_hashes import SuffixHashes
from keelstore.obj.place import Place
from keelstore.obj.rebuild import Rebuilder, RebuildOptions
from keelstore.obj.sessions import Sessions
from keelstore.obj.ssync.sender import Sender

MAX_WAITING: Final = 10_000  # repairs that wait for the end of the looking; then the most urgent go first
MAX_CALLS: Final = 1000  # calls for help that are under way


@dataclass(frozen=True)
class Look:
    """A partition that is to be looked at."""

    key: Key
    own: Node

    def __str__(self) -> str:
        return f"look at policy {self.key[0]} partition {self.key[2]} of {self.key[1]}"


@dataclass
class _State:
    """What came of a partition so far, and how many repairs of it are left."""

    result: Result
    left: int
    has_reverts: bool = False
    repairs: list[Repair] = field(default_factory=list)


class ObjectReconstructor(PartitionDaemon):
    name: ClassVar[str] = "object-reconstructor"
    noun: ClassVar[str] = "reconstruction"
    hints: ClassVar[frozenset[str]] = frozenset({events.HANDOFF, events.PARTITION, events.LOST})

    def __init__(self, options: ObjectReconstructorOptions, world: World, rings: Mapping[int, RingFile], cluster: Cluster,
                 backend: Any, addresses: Collection[Address]):
        """``rings`` by policy index; ``addresses``: those of this node's object servers."""
        rings = {index: ring for index, ring in rings.items() if cluster.policies.by_index[index].stores_fragments}
        super().__init__(options, world, rings, cluster, backend, addresses)
        self.options, self.worker_count = options, options.reconstructor_workers
        throttle = Throttle(2)
        sender = Sender(self.store, backend, self.log, node_timeout_s=options.node_timeout,
                        http_timeout_s=options.http_timeout, clock=world.clock, user_agent=self.name)
        self.rebuilder = Rebuilder(
            self.peers,
            RebuildOptions(options.node_timeout, options.quarantine_threshold,
                           options.reclaim_age if options.quarantine_age is None else options.quarantine_age,
                           lambda replicas: node_count(options.request_node_count, replicas)),
            self.log, world.clock, self._put_aside, f"{self.name} {os.getpid()}",
        )  # fmt: skip
        self.sessions = Sessions(self.peers, throttle, self.log, world.clock, options.conn_timeout * 4)
        self.work = FragmentWork(Tools(
            self.store, SuffixHashes(self.store, self.peers, self.log, world, options.http_timeout), self.sessions, sender,
            self.rebuilder, self.log, world, options,
            lambda job: self.ring_changed_since(job.policy, job.ring_version),
        ))  # fmt: skip
        self._found: list[Repair] = []
        self._states: dict[Key, _State] = {}
        self._looking = 0
        self._calls = 0

    # -- a pass --------------------------------------------------------------------------------------------------------

    def before_pass(self, only: Selection) -> None:
        super().before_pass(only)
        self.work.cycle += 1
        self._found, self._states, self._looking = [], {}, 0

    def _looks(self, only: Selection) -> list[Look]:
        found = [Look((policy.index, own.device, partition), own) for policy, ring in self._policies(only)
                 for own, partition in self.own_partitions(policy, ring, only)]
        self.world.random.shuffle(found)
        if only.is_all:
            self.handoffs &= {look.key for look in found}
        return found

    def plan(self, only: Selection) -> Iterator[Look | Repair]:
        """First a look at each partition; then what that found, by risk. What has no fragment to spare goes between looks."""
        looks = self._looks(only)
        self.progress.total = len(looks)
        rings = {index: ring.current() for index, ring in self._rings.items()}
        for look in looks:
            if self._rings[look.key[0]].current() is not rings[look.key[0]]:
                self.log.info("Ring change detected. Aborting current reconstruction pass.")
                self._ring_changed = True
                return
            while self._found and (self._is_pressing(self._found[0]) or len(self._found) >= MAX_WAITING):
                yield heapq.heappop(self._found)
            self._looking += 1
            yield look
        while self._looking or self._found:
            if self._found:
                yield heapq.heappop(self._found)
            else:
                concurrency.sleep(0.01)

    def _is_pressing(self, repair: Repair) -> bool:
        return repair.missing > 0 and repair.missing >= self._policy(repair.job.policy).nparity

    def _policy(self, index: int) -> ErasureCodingPolicy:
        policy = self._cluster.policies.by_index[index]
        assert isinstance(policy, ErasureCodingPolicy)
        return policy

    def dry_run(self, only: Selection = ALL) -> Iterator[str]:
        """What the partitions need, a line for each thing. Peers are asked for their hashes."""
        self.before_pass(only)
        for look in self._looks(only):
            state = self._look(look.key, self._rings[look.key[0]].current(), look.own)
            for repair in sorted(state.repairs):
                if repair.job.kind is not Kind.TOMBSTONES:
                    yield str(repair)

    def carry_out(self, job: Look | Repair) -> bool:
        if isinstance(job, Repair):
            return self._repair(job)
        try:
            if job.key in self._busy:
                return True  # the queue's workers are at it
            self._busy.add(job.key)
            try:
                state = self._look(job.key, self._rings[job.key[0]].current(), job.own)
            finally:
                self._busy.discard(job.key)
            if state.repairs:
                self._states[job.key] = state
                for repair in state.repairs:
                    heapq.heappush(self._found, repair)
                if self.progress.total is not None:
                    self.progress.total += len(state.repairs)
                return not state.result.failed
            return self._finish(job.key, state)
        finally:
            self._looking -= 1

    def _look(self, key: Key, ring: Ring, own: Node) -> _State:
        repairs, result = self.work.look(self._policy(key[0]), ring, own, key[2])
        return _State(result, len(repairs), any(repair.job.kind is not Kind.SYNC for repair in repairs), repairs)

    def _repair(self, repair: Repair, state: _State | None = None) -> bool:
        """Do one thing, and note what came of a partition when it was the last one."""
        job = repair.job
        key = (job.policy, job.device, job.partition)
        state = state or self._states.get(key)
        began, is_well = self.world.clock(), True
        try:
            result = self.work.carry_out(repair, self._policy(job.policy), self._rings[job.policy].current())
            is_well = result.is_success
            if state is not None:
                _merge(state.result, result)
        except BaseException:
            if state is not None:
                state.result.is_held_back = True
            raise
        finally:
            kind = "update" if job.kind is Kind.SYNC else "delete"
            self.world.stats.increment(f"partition.{kind}.count.{job.device}")
            self.world.stats.timing_since(f"partition.{kind}.timing", began)
            if state is not None:
                state.left -= 1
                if state.left <= 0:
                    self._states.pop(key, None)
                    self._finish(key, state)
        return is_well

    def _finish(self, key: Key, state: _State) -> bool:
        is_well = state.result.is_success
        self.note(key, state.result, state.has_reverts and not is_well)
        if is_well:
            self.handoffs.discard(key)
        return is_well

    def care_for(self, key: Key, ring: Ring, own: Node) -> None:
        self._busy.add(key)
        try:
            state = self._look(key, ring, own)
            if not state.repairs:
                self._finish(key, state)
            for repair in sorted(state.repairs):
                self._repair(repair, state)
        finally:
            self._busy.discard(key)

    def risk(self, key: Key) -> int:
        missing = self.below_full.get((key[0], key[2]))
        if missing:
            return risk_of(missing)
        return Risk.HANDOFF if key in self.handoffs else Risk.MOVE

    def _put_aside(self, place: Place, reason: str) -> bool:
        moved = on_disk_thread(place.device, self.store.quarantine_directory, place.directory, place.device_path,
                               place.datadir, reason)
        return moved is not None

    # -- between passes ------------------------------------------------------------------------------------------------

    def on_hint(self, kind: str, fields: tuple[str, ...]) -> None:
        if kind == events.LOST:
            if len(fields) == 4 and fields[1].isdecimal() and fields[2].isdecimal() and self._calls < MAX_CALLS:
                self._calls += 1
                concurrency.spawn(self._call, os.path.basename(fields[0]), int(fields[1]), int(fields[2]), fields[3])
            return
        super().on_hint(kind, fields)

    def _call(self, device: str, index: int, partition: int, suffix: str) -> None:
        """Something was lost on ``device`` of this node; on some device, if that is empty. Have those look who can help."""
        try:
            if index not in self._rings:
                return
            concurrency.sleep(HINT_DELAY_S)
            ring = self._rings[index].current()
            primaries = ring.primaries(partition)
            own = self.own(ring).get(device)
            place = place_of(primaries, own) if own is not None else None
            nodes = primaries if place is None else neighbours(primaries, place)
            if nodes:
                self.work.call_for(self._policy(index), partition, suffix, nodes)
        except Exception:
            self.log.exception("policy %d partition %d: nobody could be asked for help", index, partition)
        finally:
            self._calls -= 1

    # -- what is seen --------------------------------------------------------------------------------------------------

    def figures(self) -> dict[str, Any]:
        return {
            "handoff_partitions": len(self.handoffs), "partitions_below_full": len(self.below_full),
            "fragments_missing": sum(self.below_full.values()), "most_missing": max(self.below_full.values(), default=0),
            "queued": len(self.queue) + len(self._found), "fragments_rebuilt": self.rebuilder.objects,
            "bytes_rebuilt": self.rebuilder.bytes, "rebuilds_failed": self.rebuilder.failures,
            "unrecoverable": len(self.rebuilder.unbuildable),
            "objects_sent": self.sessions.objects_sent, "bytes_sent": self.sessions.bytes_sent,
            "fragments_removed": self.work.fragments_removed, "failures": self.stats["failure"],
            "peers_down": sorted(f"{ip}:{port}" for ip, port in self.peers.down),
        }  # fmt: skip

    def after_pass(self, only: Selection, took_s: float) -> None:
        super().after_pass(only, took_s)
        if only.is_all:
            now, minutes = self.world.clock(), took_s / 60
            self.rebuilder.forget_unbuildable(now - took_s)
            if self.share is None:
                self.world.leave("object", {"object_reconstruction_time": minutes, "object_reconstruction_last": now})
            else:
                self.world.leave("object", {"object_reconstruction_per_disk": {
                    device: {"object_reconstruction_time": minutes, "object_reconstruction_last": now, "pid": os.getpid()}
                    for device in sorted(self.share)}})
                self.gather_recon()

    def gather_recon(self) -> None:
        """Of several processes that share the devices: what all of them have done, which is what the last of them has."""
        recon = self.world.recon
        each = (recon.read("object") if recon is not None else {}).get("object_reconstruction_per_disk") or {}
        devices = {node.device for file in self._rings.values() for node in own_nodes(file.current().nodes, self._addresses)}
        if devices and devices <= each.keys():
            oldest = min((each[device] for device in devices), key=lambda entry: entry["object_reconstruction_last"])
            self.world.leave("object", {name: oldest[name] for name in
                                        ("object_reconstruction_time", "object_reconstruction_last")})


def _merge(into: Result, other: Result) -> None:
    into.done += other.done
    into.failed += other.failed
    into.lacking = max(into.lacking, other.lacking)
    into.is_busy = into.is_busy or other.is_busy
    into.is_gone = into.is_gone or other.is_gone
    into.is_held_back = into.is_held_back or other.is_held_back
    for name, number in other.counts.items():
        into.count(name, number)
