"""What the replicator does with one partition of one device: compare it and bring peers what they lack, or send it home."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from keelstore.common import concurrency
from keelstore.common.daemon_frame import World
from keelstore.common.disk_calls import on_disk_thread
from keelstore.common.errors import LockTimeout
from keelstore.common.locks import lock_directory
from keelstore.common.peers import Peers
from keelstore.common.policy import Policy
from keelstore.common.ring.ring import Node, Ring
from keelstore.common.work import Throttle
from keelstore.obj import layout, rsync
from keelstore.obj.fileset import FileSet
from keelstore.obj.jobs import Job, Kind, RegionGate, differing, missing, removable
from keelstore.obj.options import ObjectReplicatorOptions
from keelstore.obj.peer_hashes import SuffixHashes
from keelstore.obj.rsync import RsyncOptions
from keelstore.obj.sessions import Sessions
from keelstore.obj.ssync.listing import objects_of, remove_objects, remove_partition, state_of, suffixes_of
from keelstore.obj.ssync.sender import Outcome, Sender, Source
from keelstore.obj.store import ObjectStore

LOCK_S: Final = 0.2  # a partition that somebody receives into is not sent home now
LISTING_CYCLE: Final = 10  # in one of so many passes a partition's suffixes are listed anew


@dataclass
class Collaborators:
    store: ObjectStore  # one that remembers nothing
    peers: Peers
    sender: Sender
    log: logging.Logger
    world: World
    options: ObjectReplicatorOptions
    rsync: RsyncOptions
    throttle: Throttle
    has_ring_changed: Callable[[Job], bool]


@dataclass
class Result:
    """``done`` and ``failed``: peers; ``lacking``: copies that are not known to be where they should be."""

    done: list[Node] = field(default_factory=list)
    failed: list[Node] = field(default_factory=list)
    lacking: int = 0
    is_busy: bool = False  # nothing is wrong: somebody else was at it
    is_gone: bool = False  # the partition is not here any more
    is_held_back: bool = False  # everything was sent, and yet something stays
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def is_success(self) -> bool:
        return not self.failed and not self.is_busy and not self.is_held_back

    def count(self, name: str, number: int = 1) -> None:
        self.counts[name] = self.counts.get(name, 0) + number


class PartitionWork:
    def __init__(self, given: Collaborators):
        self._given, self._store, self._log = given, given.store, given.log
        self.cycle = given.world.random.randrange(LISTING_CYCLE)
        self.objects_removed = 0
        self._suffix_hashes = SuffixHashes(self._store, given.peers, self._log, given.world, given.options.http_timeout)
        self.sessions = Sessions(given.peers, given.throttle, self._log, given.world.clock, given.options.conn_timeout * 4)

    def carry_out(self, job: Job, policy: Policy, device_path: str, ring: Ring) -> Result:
        """Do a job. Raises OSError when the device cannot be read."""
        source = Source(job.device, device_path, policy, job.partition)
        return self._revert(job, source) if job.kind is Kind.REVERT else self._sync(job, source, ring)

    # -- sync ----------------------------------------------------------------------------------------------------------

    def _sync(self, job: Job, source: Source, ring: Ring) -> Result:
        """Bring the other primaries what this one has; where a device is not mounted, a handoff stands in for it."""
        result = Result()
        ours = self._hashes(source, result, do_listdir=(job.partition + self.cycle) % LISTING_CYCLE == 0)
        gate = RegionGate(job.own.region)
        handoffs = ring.handoffs(job.partition)
        waiting = list(job.targets)
        while waiting:
            node = waiting.pop(0)
            if gate.is_closed(node):
                continue
            theirs = self._suffix_hashes.of(node, source)
            if theirs is None:
                result.failed.append(node)
                result.lacking += 1
                continue
            if theirs == 507:
                result.failed.append(node)
                result.lacking += not node.is_handoff
                standin = next((other for other in handoffs if other.id != job.own.id), None)
                if standin is not None:
                    waiting.append(standin)
                continue
            assert isinstance(theirs, dict)
            suffixes = differing(ours, theirs)
            result.count("suffix_count", len(ours))
            if suffixes:
                ours = self._hashes(source, result, suffixes)
                suffixes = differing(ours, theirs)
            if not suffixes:
                result.count("hashmatch")
                result.done.append(node)
                gate.served(node)
                continue
            result.count("suffix_sync", len(suffixes))
            self._given.world.stats.update("suffix.syncs", len(suffixes))
            outcome = self._bring(job, source, node, suffixes)
            if outcome.is_success:
                result.done.append(node)
                gate.served(node)
            else:
                result.failed.append(node)
                result.is_busy = result.is_busy or outcome.status == 503
                result.lacking += missing({suffix: ours[suffix] for suffix in suffixes if suffix in ours}, theirs) > 0
        return result

    def _hashes(self, source: Source, result: Result, recalculate: Iterable[str] = (),
                do_listdir: bool = False) -> dict[str, Any]:
        computed, found = self._suffix_hashes.own(source, recalculate, do_listdir)
        if computed:
            result.count("suffix_hash", computed)
        return found

    # -- revert --------------------------------------------------------------------------------------------------------

    def _revert(self, job: Job, source: Source) -> Result:
        """Send a partition home, and remove what every primary proved to hold."""
        result = Result()
        path = source.partition_path
        try:
            with lock_directory(path, LOCK_S, name="replication"):
                suffixes = on_disk_thread(source.device, suffixes_of, path)
                if suffixes:
                    self._send_home(job, source, suffixes, result)
                if not suffixes or result.is_success:
                    result.is_gone = on_disk_thread(source.device, remove_partition, path)
        except FileNotFoundError:
            result.is_gone = True
        except LockTimeout:
            self._given.world.stats.increment("partition.lock-failure.count")
            result.is_busy = True
        result.lacking = len([node for node in result.failed if not node.is_handoff])
        return result

    def _send_home(self, job: Job, source: Source, suffixes: Sequence[str], result: Result) -> None:
        gate = RegionGate(job.own.region)
        near = [node for node in job.targets if node.region == job.own.region]
        outcomes = self._at_once([lambda node=node: self._bring(job, source, node, suffixes) for node in near])  # type: ignore[misc]
        for node in job.targets:
            if node not in near:
                outcome = self._bring(job, source, node, suffixes, check_only=gate.is_closed(node))
                if outcome.is_success:
                    gate.served(node)
                outcomes.append(outcome)
        proofs = []
        for outcome in outcomes:
            if outcome.is_success:
                result.done.append(outcome.node)
                if outcome.is_proof:
                    proofs.append(outcome.held)
                else:
                    self._log.info("%s: its ring is not ours; partition %d stays on %s", outcome.node.key, job.partition,
                                   job.device)
            else:
                result.failed.append(outcome.node)
                result.is_busy = result.is_busy or outcome.status == 503
        self._given.world.stats.update("suffix.syncs", len(suffixes))
        result.count("suffix_sync", len(suffixes))
        if self._given.has_ring_changed(job):
            result.is_held_back = True
            return
        needed = self._given.options.handoff_delete or len(job.targets)
        proven = removable(proofs, needed, _same)
        if proven:
            removed = on_disk_thread(source.device, remove_objects, source.partition_path, proven, self._store.rules(0))
            self.objects_removed += removed
            result.count("remove")
        if len(proofs) >= needed:
            result.failed = []
        result.is_held_back = bool(on_disk_thread(source.device, self._left, source))

    def _left(self, source: Source) -> bool:
        """Whether objects remain. On a disk thread."""
        return any(
            item.found.timestamp is not None
            for suffix in suffixes_of(source.partition_path) for item in self._listed(source, suffix)
        )  # fmt: skip

    def _listed(self, source: Source, suffix: str) -> list[Any]:
        return objects_of(source.partition_path, suffix, self._store.rules(0), self._given.world.clock(),
                          lambda directory: None)

    @staticmethod
    def _at_once(calls: Sequence[Callable[[], Outcome]]) -> list[Outcome]:
        tasks = [concurrency.spawn(call) for call in calls[1:]]
        first = [calls[0]()] if calls else []
        return [*first, *(task.wait() for task in tasks)]

    # -- bringing ------------------------------------------------------------------------------------------------------

    def _bring(self, job: Job, source: Source, node: Node, suffixes: Sequence[str], check_only: bool = False) -> Outcome:
        """Bring suffixes of a partition to a peer, by the method that is set."""

        def session() -> Outcome:
            if self._given.options.sync_method == "rsync":
                return self._by_rsync(job, source, node, suffixes)
            return self._given.sender.sync(source, node, suffixes, check_only=check_only, ring_version=job.ring_version)

        return self.sessions.run(node, f"partition {job.partition} of {job.device}", session)

    def _by_rsync(self, job: Job, source: Source, node: Node, suffixes: Sequence[str]) -> Outcome:
        """rsync says success when every file is there, by its name: so that is what was proven of each object."""
        outcome = Outcome(node, is_proof=True)
        datadir = layout.objects_dir(source.policy.index)
        listed = [item for suffix in suffixes for item in on_disk_thread(source.device, self._listed, source, suffix)]
        command = rsync.arguments(self._given.rsync, [f"{source.partition_path}/{suffix}" for suffix in suffixes], node,
                                  datadir, job.partition, node.region != job.own.region)
        outcome.is_success = rsync.run(command, self._given.rsync, self._log)
        if outcome.is_success:
            outcome.held = {item.name_hash: item.found for item in listed if item.found.timestamp is not None}
            self._suffix_hashes.of(node, source, suffixes)
        else:
            outcome.reason = "rsync failed"
        return outcome


def _same(ours: FileSet, theirs: FileSet) -> bool:
    return state_of(ours) == state_of(theirs)
