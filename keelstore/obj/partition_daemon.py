"""What the daemons have in common that care for partitions of objects: passes, a queue beside them, and what fails.

A pass visits every partition of the devices of this node. Between passes, and beside them, the daemon acts on what it is
told: a server that has taken a write for another device says so at once (``events.HANDOFF``), and that partition is looked
at as soon as its peers answer. A job that failed is tried again, later each time, and at once when the peer is back that it
failed for.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar, Final

from keelstore.common import between_passes, concurrency, daemon_shares, events, fs
from keelstore.common.cluster import Cluster
from keelstore.common.daemon_frame import Daemon, Selection, World
from keelstore.common.device_walk import Device, own_nodes, partitions, usable_device, usable_devices
from keelstore.common.disk_calls import on_disk_thread
from keelstore.common.errors import DeviceUnavailable, StorageError
from keelstore.common.peers import Address, Peers
from keelstore.common.policy import Policy
from keelstore.common.ring.ring import Node, Ring, RingFile
from keelstore.common.room import Reserve
from keelstore.common.work import Risk, Workers, WorkQueue, back_off_s, jitter
from keelstore.obj import layout
from keelstore.obj.jobs import Key
from keelstore.obj.options import PartitionDaemonOptions
from keelstore.obj.partition_work import Result
from keelstore.obj.store import ObjectStore

HINT_DELAY_S: Final = 0.5  # so that the writes of one burst go out in one session
FIRST_RETRY_S: Final = 2.0
LAST_RETRY_S: Final = 300.0
BUSY_RETRY_S: Final = 1.0  # a peer that has no place free, or a partition somebody else works on
MAX_REMEMBERED: Final = 100_000  # partitions of which a failure, or a lack of copies, is remembered
STATS: Final = ("attempted", "failure", "hashmatch", "remove", "rsync", "success", "suffix_count", "suffix_hash",
                "suffix_sync")


class PartitionDaemon(Daemon):
    """Subclasses give ``plan`` and ``carry_out``, and ``care_for`` for one partition out of turn."""

    starts_at_once: ClassVar[bool] = True
    hints: ClassVar[frozenset[str]] = frozenset({events.HANDOFF, events.PARTITION})
    noun: ClassVar[str] = ""  # of a pass: replication

    def __init__(self, options: PartitionDaemonOptions, world: World, rings: Mapping[int, RingFile], cluster: Cluster,
                 backend: Any, addresses: Collection[Address]):
        """``rings`` by policy index: those of the policies that are cared for; ``addresses``: those of this node's object
        servers.
        """
        super().__init__(world, options.interval, options.concurrency)
        self._cluster, self._addresses, self._rings = cluster, frozenset(addresses), dict(rings)
        self._common = options
        self.store = ObjectStore(
            cluster.hash_path, reserve=Reserve.parse("0"), reclaim_age_s=options.reclaim_age,
            commit_window_s=options.commit_window, logger=self.log, clock=world.clock, remembers=0,
        )  # fmt: skip
        self.peers = Peers(backend, world.clock, self._on_return)
        self.queue: WorkQueue[Key] = WorkQueue(MAX_REMEMBERED)
        self.workers = Workers(self.queue, self._on_due, options.concurrency, self.log, world.clock,
                               lane_of=lambda key: key[1])
        self._busy: set[Key] = set()
        self._failures: dict[Key, int] = {}
        self._own: dict[int, tuple[Ring, frozenset[str] | None, dict[str, Node]]] = {}  # by id of the ring, which is held
        self._waits_for: dict[Address, set[Key]] = {}
        self.handoffs: set[Key] = set()
        self.below_full: dict[tuple[int, int], int] = {}  # (policy, partition): copies that are not known to be there
        self.share: frozenset[str] | None = None  # the devices that this process cares for; None: all of the node
        self._ring_changed = False
        self._quiet_s = 0.0  # what the last pass took, if it found all well
        self.stats = no_stats()

    # -- for passes ----------------------------------------------------------------------------------------------------

    def before_pass(self, only: Selection) -> None:
        self.stats = no_stats()
        self.stats["start"] = self.world.clock()
        self._ring_changed = False
        if only.is_all and not self._is_forever:
            self.peers.forget()

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
        """The devices of a ring that are this node's, or this process's share of them, by name. Not to be changed."""
        known = self._own.get(id(ring))
        if known is None or known[1] != self.share:
            if len(self._own) >= len(self._rings):
                self._own.clear()  # some are of rings that are no more
            known = self._own[id(ring)] = ring, self.share, {
                node.device: node for node in own_nodes(ring.nodes, self._addresses)
                if self.share is None or node.device in self.share}
        return known[2]

    def own_device_names(self) -> set[str]:
        """Of all rings, whether or not they can be used."""
        return {name for file in self._rings.values() for name in self.own(file.current())}

    def own_partitions(self, policy: Policy, ring: Ring, only: Selection) -> Iterator[tuple[Node, int]]:
        """Every partition on the devices of this node. Devices that cannot be used are logged, and count as failures."""
        own = self.own(ring)
        devices = [device for device in usable_devices(self._common.devices, self._common.mount_check, self.log, only)
                   if self.share is None or device.name in self.share]
        for name in sorted(own.keys() - {device.name for device in devices}):
            if only.has_device(name):
                self.log.warning("%s is not mounted", name)
                self._failed_node(own[name], 1)
        for device in devices:
            if device.name not in own:
                continue
            try:
                numbers = on_disk_thread(device.name, _prepare, device, policy.index, self.world.clock(),
                                         self._common.reclaim_age, only)
            except (OSError, StorageError) as error:
                self.log.error("device %s cannot be listed: %s", device.name, error)
                self._failed_node(own[device.name], 1)
                continue
            for partition in numbers:
                yield own[device.name], partition

    def ring_changed_since(self, policy: int, version: int | None) -> bool:
        return self._rings[policy].current().version != version

    def care_for(self, key: Key, ring: Ring, own: Node) -> None:
        """Look at one partition, at which nobody is, and do what it needs; then ``note`` it. Busy before it waits."""
        raise NotImplementedError

    # -- what came of it -----------------------------------------------------------------------------------------------

    def note(self, key: Key, result: Result, is_handoff: bool) -> None:
        """What came of a job for the partition ``key``; one that failed is put into the queue."""
        stats = self.stats
        stats["attempted"] += 1
        for name, value in result.counts.items():
            stats[name] = stats.get(name, 0) + value
        for node in result.failed:
            self._failed_node(node, 1)
        stats["success"] += len(result.done)
        place = (key[0], key[2])
        if result.is_gone:
            self.handoffs.discard(key)
        elif is_handoff:
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
        self.queue.reschedule(key, key, self.risk(key), self.world.clock() + wait_s, key[1])
        self.workers.kick()

    def risk(self, key: Key) -> int:
        """Of a partition that waits."""
        if (key[0], key[2]) in self.below_full:
            return Risk.DURABILITY
        return Risk.HANDOFF if key in self.handoffs else Risk.MOVE

    def _failed_node(self, node: Node, count: int) -> None:
        self.stats["failure"] += count
        devices = self.stats["failure_nodes"].setdefault(node.replication_ip, {})
        devices[node.device] = devices.get(node.device, 0) + count

    # -- between passes ------------------------------------------------------------------------------------------------

    def beside(self) -> Iterable[Callable[[], Any]]:
        rings, every_s = list(self._rings.values()), self._common.ring_check_interval
        watch = partial(between_passes.watch_rings, self, self.peers, rings, every_s)
        return self.workers.run, self.peers.watch, watch, partial(between_passes.keep_showing, self)

    def rest(self, seconds: float) -> None:
        super().rest(between_passes.rest_s(seconds, self._quiet_s))

    def on_hint(self, kind: str, fields: tuple[str, ...]) -> None:
        """A server of this node took what belongs to another device; or a partition of ours may be short of something."""
        is_known = kind in (events.HANDOFF, events.PARTITION) and len(fields) == 3
        if is_known and fields[1].isdecimal() and fields[2].isdecimal():
            key = int(fields[1]), os.path.basename(fields[0]), int(fields[2])
            if kind == events.PARTITION and key in self.queue:  # something is short, however long it was to rest
                self.queue.put(key, key, Risk.DURABILITY, self.world.clock() + HINT_DELAY_S, key[1])
                self.workers.kick()
            else:
                self.enqueue(key, Risk.DURABILITY, HINT_DELAY_S)

    def enqueue(self, key: Key, risk: int, delay_s: float = 0.0) -> None:
        """Have a partition looked at soon; an operator's or another module's wish, too."""
        if key[0] in self._rings and key not in self.queue:
            self.queue.put(key, key, risk, self.world.clock() + delay_s, key[1])
            self.workers.kick()

    def ask(self, only: Selection) -> None:
        """What an operator names goes into the queue at once, also while a pass runs. The partitions of a device are those
        that it has and those that are to be brought to it.
        """
        concurrency.spawn(self._enqueue_asked, only)

    def _enqueue_asked(self, only: Selection) -> None:
        count = 0
        for policy, ring in self._policies(only):
            for node in self.own(ring).values():
                try:
                    device = usable_device(self._common.devices, node.device, self._common.mount_check)
                    found = on_disk_thread(node.device, partitions, device.path, layout.objects_dir(policy.index), only)
                except (DeviceUnavailable, OSError) as error:
                    self.log.warning("device %s cannot be looked at as was asked: %s", node.device, error)
                    continue
                for partition in found:
                    if only.has_device(node.device) or any(one.device in only.devices for one in ring.primaries(partition)):
                        key = policy.index, node.device, partition
                        self._failures.pop(key, None)
                        self.queue.reschedule(key, key, Risk.DURABILITY, self.world.clock(), node.device)
                        count += 1
        self.workers.kick()
        self.log.info("%d partitions are looked at, as was asked", count)

    def _on_return(self, address: Address) -> None:
        """A peer is back: what waits for it goes first."""
        now = self.world.clock()
        for key in self._waits_for.pop(address, ()):
            self._failures.pop(key, None)
            self.queue.reschedule(key, key, min(self.risk(key), Risk.DURABILITY), now, key[1])
        self.workers.kick()

    def _on_due(self, _key: Hashable, key: Key) -> None:
        if key in self._busy:
            self.queue.put(key, key, self.risk(key), self.world.clock() + BUSY_RETRY_S, key[1])
            return
        found = self.own_now(key)
        if found is None:
            self._failures.pop(key, None)
            self.handoffs.discard(key)
            self.below_full.pop((key[0], key[2]), None)
            return
        if key in self._busy:  # since we looked: the disk thread let others run
            self.queue.put(key, key, self.risk(key), self.world.clock() + BUSY_RETRY_S, key[1])
            return
        self.care_for(key, *found)
        self.show()

    def own_now(self, key: Key) -> tuple[Ring, Node] | None:
        """The ring of now and the device of a partition; None when it is not there, or not ours. Waits for the disk."""
        index, name, partition = key
        ring = self._rings[index].current()
        own = self.own(ring).get(name)
        if own is None or ring.next_part_power is not None:
            return None
        try:
            device = usable_device(self._common.devices, name, self._common.mount_check)
        except DeviceUnavailable:
            return None
        is_there = on_disk_thread(name, os.path.isdir, f"{device.path}/{layout.objects_dir(index)}/{partition}")
        return (ring, own) if is_there else None

    # -- what is seen --------------------------------------------------------------------------------------------------

    def leave(self, state: dict[str, Any]) -> None:
        if self.share and self.world.recon is not None:
            daemon_shares.leave(self.world.recon, self.name, self.share, state, may_end=not self._is_forever)
        else:
            super().leave(state)

    def after_pass(self, only: Selection, took_s: float) -> None:
        stats = self.stats
        self.log.info("object %s: %d partitions in %.1f s, %d below full count, %d handoffs, %d failures", self.noun,
                      stats["attempted"], took_s, len(self.below_full), len(self.handoffs), stats["failure"])
        self._quiet_s = 0.0 if stats["failure"] or stats["suffix_sync"] else took_s
        if self._ring_changed:
            self.wake()


def no_stats() -> dict[str, Any]:
    return {**dict.fromkeys(STATS, 0), "failure_nodes": {}, "start": time.time()}


def _prepare(device: Device, policy: int, now: float, reclaim_age_s: float, only: Selection) -> list[int]:
    """The partitions of a device; its directory is made, and old temporary files go. On a disk thread."""
    datadir = layout.objects_dir(policy)
    fs.make_directories(f"{device.path}/{datadir}", device.path)
    tmp = f"{device.path}/{layout.tmp_dir(policy)}"
    try:
        with os.scandir(tmp) as entries:
            for entry in entries:
                if entry.is_file(follow_symlinks=False) and now - entry.stat(follow_symlinks=False).st_mtime > reclaim_age_s:
                    fs.remove_file(entry.path)
    except (OSError, StorageError):
        pass
    return partitions(device.path, datadir, only)
