"""What the reconstructor does with one partition of one device: see what it needs, and do each of those things.

``look`` compares, and gives *repairs*; ``carry_out`` does one. So repairs of all partitions can wait for each other in the
order of risk.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from keelstore.common import concurrency
from keelstore.common.daemon_frame import World
from keelstore.common.disk_calls import on_disk_thread
from keelstore.common.errors import LockTimeout
from keelstore.common.headers import REBUILD_NOW
from keelstore.common.locks import lock_directory
from keelstore.common.policy import ErasureCodingPolicy
from keelstore.common.ring.ring import Node, Ring
from keelstore.common.work import Risk
from keelstore.obj import layout
from keelstore.obj.fileset import FileSet
from keelstore.obj.fragment_jobs import (
    FragmentJob,
    Kind,
    differing,
    jobs_of,
    lacking,
    place_of,
    risk_of,
    stand_ins,
)
from keelstore.obj.jobs import removable
from keelstore.obj.options import ObjectReconstructorOptions
from keelstore.obj.partition_work import LISTING_CYCLE, LOCK_S, Result
from keelstore.obj.peer_hashes import SuffixHashes
from keelstore.obj.reader import StoredObject
from keelstore.obj.rebuild import Rebuilder, Rebuilt
from keelstore.obj.sessions import Sessions
from keelstore.obj.ssync.listing import objects_of, remove_fragments, remove_partition, state_of, suffixes_of
from keelstore.obj.ssync.protocol import Part, select
from keelstore.obj.ssync.sender import Build, Outcome, Sender, Source
from keelstore.obj.store import ObjectStore


@dataclass
class Tools:
    store: ObjectStore  # one that remembers nothing
    suffix_hashes: SuffixHashes
    sessions: Sessions
    sender: Sender
    rebuilder: Rebuilder
    log: logging.Logger
    world: World
    options: ObjectReconstructorOptions
    has_ring_changed: Callable[[FragmentJob], bool]


_numbers = itertools.count()


@dataclass(frozen=True, order=True)
class Repair:
    """One thing to do, ordered by risk. For a sync ``node`` is to have ``fragment`` of the objects in ``suffixes``, of which
    the primaries lack ``missing`` fragments.
    """

    risk: int
    number: int = field(default_factory=lambda: next(_numbers))
    job: FragmentJob = field(compare=False, kw_only=True)
    node: Node | None = field(default=None, compare=False, kw_only=True)
    fragment: int | None = field(default=None, compare=False, kw_only=True)
    suffixes: tuple[str, ...] = field(default=(), compare=False, kw_only=True)
    missing: int = field(default=0, compare=False, kw_only=True)

    def __str__(self) -> str:
        if self.node is None:
            return str(self.job)
        return (f"sync policy {self.job.policy} partition {self.job.partition} of {self.job.device}: fragment "
                f"#{self.fragment} of {len(self.suffixes)} suffixes to {self.node.key}, {self.missing} missing in all")


class FragmentWork:
    def __init__(self, tools: Tools):
        self._tools, self._store, self._log = tools, tools.store, tools.log
        self.cycle = tools.world.random.randrange(LISTING_CYCLE)
        self.fragments_removed = 0

    def source(self, policy: ErasureCodingPolicy, device: str, partition: int, fragment: int | None = None,
               part: Part = Part.FRAGMENTS) -> Source:
        return Source(device, f"{self._tools.options.devices}/{device}", policy, partition, fragment, part)

    # -- looking -------------------------------------------------------------------------------------------------------

    def look(self, policy: ErasureCodingPolicy, ring: Ring, own: Node, partition: int) -> tuple[list[Repair], Result]:
        """What a partition needs, and what came of finding that out. Raises OSError when the device cannot be read."""
        source, result = self.source(policy, own.device, partition), Result()
        ours = self._own(source, result, do_listdir=(partition + self.cycle) % LISTING_CYCLE == 0)
        repairs: list[Repair] = []
        for job in jobs_of(ring, policy, own, partition, ours, self._tools.world.random):
            if job.kind is not Kind.SYNC:
                repairs.append(Repair(Risk.HANDOFF, job=job, suffixes=job.suffixes))
            elif ours and not self._tools.options.handoffs_only:
                repairs += self._compare(job, source, policy, ring, ours, result)
        return repairs, result

    def _own(self, source: Source, result: Result, suffixes: Sequence[str] = (), do_listdir: bool = False) -> dict[str, Any]:
        computed, found = self._tools.suffix_hashes.own(source, suffixes, do_listdir)
        if computed:
            result.count("suffix_hash", computed)
        return found

    def _compare(self, job: FragmentJob, source: Source, policy: ErasureCodingPolicy, ring: Ring, ours: dict[str, Any],
                 result: Result) -> list[Repair]:
        mine = job.fragment
        assert mine is not None
        found: list[Repair] = []
        asked: dict[int, Any] = {}
        for node in job.targets:
            index = policy.backend_index(node.index or 0)
            theirs = asked[node.id] = self._tools.suffix_hashes.of(node, source)
            if theirs is None:
                result.failed.append(node)
                result.lacking += 1
                continue
            receiver = node
            if theirs == 507:
                result.failed.append(node)
                result.lacking += 1
                standin = self._stand_in(ring, source, job, index, ours, mine)
                if standin is None:
                    continue
                receiver, theirs = standin
            assert isinstance(theirs, dict)
            suffixes = differing(ours, theirs, mine, index)
            result.count("suffix_count", len(ours))
            if suffixes:
                ours = self._own(source, result, suffixes)
                suffixes = differing(ours, theirs, mine, index)
            if not suffixes:
                result.count("hashmatch")
                result.done.append(receiver)
                continue
            is_missing = bool(lacking({suffix: ours[suffix] for suffix in suffixes}, theirs, mine, index))
            found.append(Repair(Risk.MOVE, job=job, node=receiver, fragment=index, suffixes=tuple(suffixes),
                                missing=int(is_missing)))
        if any(repair.missing for repair in found):
            found = self._weigh(found, source, policy, ring, ours, asked)
        return found

    def _weigh(self, found: list[Repair], source: Source, policy: ErasureCodingPolicy, ring: Ring, ours: dict[str, Any],
               asked: dict[int, Any]) -> list[Repair]:
        """Something is lost: ask the other primaries, too, so that what has the fewest fragments left goes first."""
        own = found[0].job.own
        suffixes = {suffix for repair in found for suffix in repair.suffixes}
        mine = found[0].job.fragment
        assert mine is not None
        theirs: dict[int, Any] = {}
        for node in ring.primaries(source.partition):
            if node.id != own.id:
                theirs[node.index or 0] = asked[node.id] if node.id in asked else self._tools.suffix_hashes.of(node, source)
        missing = dict.fromkeys(suffixes, 0)
        for index, hashes in theirs.items():
            gone = suffixes if not isinstance(hashes, dict) else lacking(
                {suffix: ours.get(suffix) for suffix in suffixes}, hashes, mine, policy.backend_index(index))
            for suffix in gone:
                missing[suffix] += 1
        weighed = []
        for repair in found:
            worst = max((missing[suffix] for suffix in repair.suffixes), default=0)
            weighed.append(Repair(risk_of(worst) if repair.missing else Risk.MOVE, job=repair.job, node=repair.node,
                                  fragment=repair.fragment, suffixes=repair.suffixes, missing=worst))
        return weighed

    def _stand_in(self, ring: Ring, source: Source, job: FragmentJob, index: int, ours: dict[str, Any],
                  mine: int) -> tuple[Node, dict[str, Any]] | None:
        """The handoff that is to hold what an unmounted primary should, and what it has; None when there is none. One that
        holds all of it already is taken before one that would have to be given it.
        """
        best = None
        for node in stand_ins(ring.handoffs(source.partition), self._tools.options.rebuild_handoff_node_count, index):
            if node.id == job.own.id:
                continue
            theirs = self._tools.suffix_hashes.of(node, source)
            if isinstance(theirs, dict):
                if not differing(ours, theirs, mine, index):
                    return node, theirs
                best = best or (node, theirs)
        return best

    # -- doing ---------------------------------------------------------------------------------------------------------

    def carry_out(self, repair: Repair, policy: ErasureCodingPolicy, ring: Ring) -> Result:
        """Do one thing. Raises OSError when the device cannot be read."""
        if repair.job.kind is Kind.SYNC:
            return self._sync(repair, policy, ring)
        result = Result()
        if repair.job.kind is Kind.REVERT:
            for part in (Part.DURABLE, Part.WAITING):
                self._send_home(repair.job, policy, part, result)
        else:
            self._send_home(repair.job, policy, Part.TOMBSTONES, result)
        if place_of(ring.primaries(repair.job.partition), repair.job.own) is None and not result.is_held_back:
            self._remove_partition(repair.job, policy, result)
        return result

    def _sync(self, repair: Repair, policy: ErasureCodingPolicy, ring: Ring) -> Result:
        """Have another primary, or who stands in for it, hold its fragment of all that is durable here."""
        job, node, result = repair.job, repair.node, Result()
        assert node is not None and job.fragment is not None and repair.fragment is not None
        wanted = repair.fragment
        source = self.source(policy, job.device, job.partition, job.fragment)

        def rebuild(opened: StoredObject) -> Rebuilt | None:
            return self._tools.rebuilder.build(opened, policy, ring, job.own, wanted)

        outcome = self._bring(job, source, node, repair.suffixes, fragment=wanted,
                              build=None if wanted == job.fragment else rebuild)
        result.count("suffix_sync", len(repair.suffixes))
        self._tools.world.stats.update("suffix.syncs", len(repair.suffixes))
        if outcome.is_success and not outcome.skipped:
            result.done.append(node)
        else:
            result.failed.append(node)
            result.is_busy = outcome.status == 503
            result.lacking = max(1, repair.missing)
        return result

    def _bring(self, job: FragmentJob, source: Source, node: Node, suffixes: Sequence[str], *, max_objects: int = 0,
               fragment: int | None = None, build: Build | None = None) -> Outcome:
        what = f"{source.part.value} of partition {job.partition} of {job.device}"
        return self._tools.sessions.run(node, what, lambda: self._tools.sender.sync(
            source, node, suffixes, ring_version=job.ring_version, max_objects=max_objects, fragment=fragment, build=build))

    def _send_home(self, job: FragmentJob, policy: ErasureCodingPolicy, part: Part, result: Result) -> None:
        """Send what is not this device's home, and remove what enough of those that belong proved to hold."""
        source = self.source(policy, job.device, job.partition, job.fragment, part)
        here = on_disk_thread(source.device, self._selected, source)
        if not here:
            return
        suffixes = sorted({name_hash[-3:] for name_hash in here})
        proofs: list[dict[str, FileSet]] = []
        failed = []
        for node in job.targets:
            if len(proofs) >= job.needed:
                break
            outcome = self._bring(job, source, node, suffixes, max_objects=self._tools.options.max_objects_per_revert)
            if not outcome.is_success:
                failed.append(node)
                result.is_busy = result.is_busy or outcome.status == 503
                continue
            result.done.append(node)
            if outcome.is_proof:
                proofs.append(outcome.held)
            else:
                self._log.info("%s: its ring is not ours; partition %d stays on %s", node.key, job.partition, job.device)
        result.count("suffix_sync", len(suffixes))
        self._tools.world.stats.update("suffix.syncs", len(suffixes))
        if len(proofs) < job.needed:
            result.failed += failed
            result.lacking = max(result.lacking, len(failed))
        if self._tools.has_ring_changed(job):
            result.is_held_back = True
            return
        proven = removable(proofs, job.needed, _same)
        if proven:
            rules = self._store.rules(layout.fragment_count(policy))
            removed = on_disk_thread(source.device, remove_fragments, source.partition_path, part, proven, rules,
                                     self._tools.world.clock())
            self.fragments_removed += removed
            result.count("remove", removed)
        if on_disk_thread(source.device, self._selected, source):
            result.is_held_back = True

    def _selected(self, source: Source) -> list[str]:
        """The hashes of the objects of which there is a part such as ``source`` offers. On a disk thread."""
        rules = self._store.rules(layout.fragment_count(source.policy))
        return [
            item.name_hash for suffix in suffixes_of(source.partition_path)
            for item in objects_of(source.partition_path, suffix, rules, self._tools.world.clock(), lambda directory: None)
            if select(item.found, source.part, source.fragment) is not None
        ]  # fmt: skip

    def _remove_partition(self, job: FragmentJob, policy: ErasureCodingPolicy, result: Result) -> None:
        path = self.source(policy, job.device, job.partition).partition_path
        try:
            with lock_directory(path, LOCK_S, name="replication"):
                result.is_gone = on_disk_thread(job.device, remove_partition, path)
        except FileNotFoundError:
            result.is_gone = True
        except LockTimeout:
            self._tools.world.stats.increment("partition.lock-failure.count")

    # -- asking for help -----------------------------------------------------------------------------------------------

    def call_for(self, policy: ErasureCodingPolicy, partition: int, suffix: str, nodes: Sequence[Node]) -> bool:
        """Have other nodes look at this partition now, since something of it is lost; whether one said it would."""
        source = self.source(policy, "", partition)
        tasks = [concurrency.spawn(self._tools.suffix_hashes.of, node, source, [suffix], {REBUILD_NOW: "true"})
                 for node in nodes]
        return any(isinstance(task.wait(), dict) for task in tasks)


def _same(ours: FileSet, theirs: FileSet) -> bool:
    return state_of(ours) == state_of(theirs) and ours.data == theirs.data
