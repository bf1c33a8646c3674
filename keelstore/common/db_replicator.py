"""Replicators of account and container databases: each replica in its place, and all the same (``spec: daemons 4``).

A pass visits every database of this node's devices: ``db_rules`` says what it needs, ``db_sync`` brings it to one peer.
Between passes, and beside them, the replicator acts on what it is told: a server says which databases change, and which it
found to know more than a peer that asked. A database that belongs elsewhere goes home as soon as its primaries answer. What
failed is tried again, later each time, and at once when the peer is back that it failed for.

What changes all the time is never the same anywhere at any moment: it is compared when it has come to rest for ``QUIET_S``,
and while it does not, its rows are sent no more often than every ``MOVING_S``: they are on their way to the peers already.
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Final

from keelstore.common import between_passes, concurrency, db_walk, events
from keelstore.common.broker import Broker, DatabaseNotFound
from keelstore.common.broker_steps import Connection
from keelstore.common.broker_sync import Receiver
from keelstore.common.cluster import Cluster
from keelstore.common.daemon_frame import Daemon, Selection, World
from keelstore.common.db_options import DatabaseReplicatorOptions
from keelstore.common.db_rules import Job, Kind, in_order, job_of, may_remove
from keelstore.common.db_sync import Collaborators, DatabaseSync, Outcome, Talk
from keelstore.common.device_walk import Device, own_nodes, partitions, usable_device, usable_devices
from keelstore.common.disk_calls import on_disk_thread
from keelstore.common.errors import DatabaseCorrupt, DeviceUnavailable, StorageError
from keelstore.common.peers import Address, Peers
from keelstore.common.ring.ring import Node, Ring, RingFile
from keelstore.common.rsync import module_of
from keelstore.common.timestamp import Timestamp
from keelstore.common.work import RateLimit, Risk, Workers, WorkQueue, back_off_s, jitter

QUIET_S: Final = 2.0  # without a change, then a database is compared
LEAST_BETWEEN_S: Final = 8.0  # two comparisons that changes cause
LONGEST_QUIET_S: Final = 8.0  # a database that never rests is compared nevertheless, though its rows are not sent
MOVING_S: Final = 60.0  # between two times that the rows of a database are sent that never rests
HANDOFF_DELAY_S: Final = 0.5  # so that the updates of one burst go home together
FIRST_RETRY_S: Final = 2.0
LAST_RETRY_S: Final = 300.0
DOWN_RETRY_S: Final = 1800.0  # when all that failed are down
AGAIN_S: Final = 0.5  # what was left over is gone on with
PATIENCE: Final = 4  # times the reclaim age that a tombstone is kept for a primary that does not answer
RECLAIM_EVERY_S: Final = 3600.0  # a database is searched for what is to be forgotten
RECLAIM_AGAIN_S: Final = 120.0  # again, when not everybody knew yet
MAX_REMEMBERED: Final = 50_000  # databases of which something is remembered
ROUNDS: Final = 2  # of asking all primaries, when a handoff changed meanwhile

COUNTS: Final = ("attempted", "success", "failure", "no_change", "hashmatch", "rsync", "diff", "remove", "empty",
                 "remote_merge", "diff_capped", "deferred")
_STATSD: Final = {"attempted": "attempts", "success": "successes", "failure": "failures", "diff": "diffs",
                  "diff_capped": "diff_caps", "no_change": "no_changes", "hashmatch": "hashmatches", "rsync": "rsyncs",
                  "remote_merge": "remote_merges"}


@dataclass
class Result:
    """What came of one database. ``is_gone``: it is not here any more; ``is_left``: something is to be done soon again."""

    done: list[Node] = field(default_factory=list)
    had_it: int = 0  # of those, how many lacked nothing
    failed: list[Node] = field(default_factory=list)
    lacking: int = 0  # primaries that are not known to have what they should
    is_gone: bool = False
    is_left: bool = False
    is_moving: bool = False  # it is being written to, and is compared again when that is over
    is_held: bool = False  # it was sent, and yet it has to stay
    is_broken: bool = False  # our own database could not be used

    @property
    def is_success(self) -> bool:
        return not (self.failed or self.is_left or self.is_moving or self.is_held or self.is_broken)


class DatabaseReplicator(Daemon):
    """Subclasses say which databases: ``service``, ``datadir``, and what ``make_*`` and ``is_reclaimable`` give."""

    service: ClassVar[str] = ""
    datadir: ClassVar[str] = ""
    starts_at_once: ClassVar[bool] = True
    hints: ClassVar[frozenset[str]] = frozenset({events.DATABASE})

    def __init__(self, options: DatabaseReplicatorOptions, world: World, ring: RingFile, cluster: Cluster, backend: Any,
                 addresses: Collection[Address]):
        """``addresses``: those of this node's servers of the kind. Raises ConfigError."""
        super().__init__(world, options.interval, options.concurrency)
        self.options, self.cluster, self._ring = options, cluster, ring
        self._addresses = frozenset((ip, options.bind_port or port) for ip, port in addresses)
        for node in ring.current().nodes[:1]:
            module_of(options.rsync_module, node)  # raises what is wrong with it now rather than at night
        self.peers = Peers(backend, world.clock, self._on_return)
        self.sync = self.make_sync(Collaborators(self.peers, backend, options, self.log, self._count,
                                                 f"{self.name} {os.getpid()}"))  # fmt: skip
        self.queue: WorkQueue[str] = WorkQueue(MAX_REMEMBERED)
        self.workers = Workers(self.queue, self._on_due, options.concurrency, self.log, world.clock)
        self._rate = RateLimit(options.databases_per_second)
        self._busy: set[str] = set()
        self._failures: dict[str, int] = {}
        self._waits_for: dict[Address, set[str]] = {}
        self._hinted: OrderedDict[str, float] = OrderedDict()  # since when a database waits to come to rest
        self._compared: OrderedDict[str, float] = OrderedDict()  # when it was last compared between passes
        self._settled: OrderedDict[str, float] = OrderedDict()  # when first told of, its rows last sent or found all over
        self._reclaimed: OrderedDict[str, float] = OrderedDict()
        self._own_of: tuple[Ring | None, dict[str, Node]] = (None, {})
        self.handoffs: set[str] = set()
        self.below_full: dict[str, int] = {}  # databases to primaries that are not known to have what they should
        self.removed = self.rows_reclaimed = 0
        self._quiet_s = 0.0
        self.stats = _no_stats()

    # -- what a subclass says ------------------------------------------------------------------------------------------

    def make_broker(self, path: str, device_path: str) -> Broker:
        raise NotImplementedError

    def make_receiver(self, broker: Broker) -> Receiver:
        raise NotImplementedError

    def make_sync(self, given: Collaborators) -> DatabaseSync:
        return DatabaseSync(given)

    def is_reclaimable(self, connection: Connection, broker: Broker, before: Timestamp) -> bool:
        """Whether a database was deleted before that time, holds nothing, and nobody needs to hear of it any more."""
        raise NotImplementedError

    def may_leave(self, broker: Broker) -> bool:
        """Whether a handoff may be removed once its primaries have it."""
        return True

    def after_peers(self, job: Job, broker: Broker, result: Result) -> None:
        """Called when the peers of a database have been seen to, while it is still there."""

    def after_removal(self, job: Job) -> None:
        """Called when a database was removed."""

    # -- a pass --------------------------------------------------------------------------------------------------------

    def before_pass(self, only: Selection) -> None:
        self.stats = _no_stats()
        self.stats["start"] = self.world.clock()
        if only.is_all and not self._is_forever:
            self.peers.forget()

    def plan(self, only: Selection) -> Iterator[Job]:
        """One job for each database, first those of partitions that belong elsewhere."""
        ring = self._ring.current()
        places = []
        for own, device in self._own_devices(ring, only):
            try:
                numbers = on_disk_thread(device.name, db_walk.prepare, device, self.datadir, self.world.clock(),
                                         self.options.reclaim_age, only)
            except OSError as error:
                self.log.error("device %s cannot be listed: %s", device.name, error)
                self._failed_node(own, 1)
                continue
            for number in numbers:
                is_handoff = all(node.id != own.id for node in ring.primaries(number))
                if is_handoff or not self.options.handoffs_only:
                    places.append((is_handoff, (own, device, number)))
        handoffs: set[str] = set()
        for own, device, number in in_order(places, self.world.random):
            try:
                paths = on_disk_thread(device.name, db_walk.databases_of, f"{device.path}/{self.datadir}/{number}")
            except OSError as error:
                self.log.error("partition %d of %s cannot be listed: %s", number, device.name, error)
                continue
            for path in paths:
                job = job_of(ring, own, device.path, path, self.world.random)
                if job is not None and (job.kind is Kind.REVERT or not self.options.handoffs_only):
                    if job.kind is Kind.REVERT:
                        handoffs.add(path)
                    yield job
        if only.is_all:
            self.handoffs |= handoffs
            by_device: dict[str, list[str]] = {}
            for path in self.handoffs:
                by_device.setdefault(path.rsplit("/", 5)[1], []).append(path)
            for name, some in by_device.items():
                self.handoffs -= on_disk_thread(name, db_walk.gone, some)

    def _own(self, ring: Ring) -> dict[str, Node]:
        """The devices of a ring that are this node's, by name."""
        if self._own_of[0] is not ring:
            self._own_of = ring, {node.device: node for node in own_nodes(ring.nodes, self._addresses)}
        return self._own_of[1]

    def _own_devices(self, ring: Ring, only: Selection) -> Iterator[tuple[Node, Device]]:
        own = self._own(ring)
        if not own:
            self.log.error("Can't find itself %s in %s, not replicating",
                           ", ".join(f"{ip}:{port}" for ip, port in sorted(self._addresses)), self._ring.path)
            return
        usable = {device.name: device
                  for device in usable_devices(self.options.devices, self.options.mount_check, self.log, only)}
        for name, node in sorted(own.items()):
            if name in usable:
                yield node, usable[name]
            elif only.has_device(name):
                self.log.warning("%s is not mounted", name)
                self._failed_node(node, 1)

    def describe(self, job: Job) -> str:
        return str(job)

    def carry_out(self, job: Job) -> bool:
        delay = self._rate.delay_s(self.world.clock())
        if delay:
            concurrency.sleep(delay)
        if job.path in self._busy:
            return True  # the queue's workers are at it
        result = self._carry_out(job)
        return not (result.failed or result.is_broken)

    # -- one database --------------------------------------------------------------------------------------------------

    def _carry_out(self, job: Job) -> Result:
        self._busy.add(job.path)
        began = self.world.clock()
        self._count("attempted", 1)
        result = Result()
        broker = self.make_broker(job.database, job.device_path)
        try:
            self._work(job, broker, result)
        except DatabaseNotFound:
            result.is_gone = True
        except DatabaseCorrupt:  # it is in quarantine, and the log says so
            result.is_broken = result.is_gone = True
        except (StorageError, OSError) as error:
            self.log.error("%s: %s", job.path, error or type(error).__name__)
            result.is_broken = True
        finally:
            self._busy.discard(job.path)
            broker.close()
        self.world.stats.timing_since("timing", began)
        self._note(job, result)
        return result

    def _work(self, job: Job, broker: Broker, result: Result) -> None:
        is_moving = self._is_moving(job, broker)
        now = self.world.clock()
        on_disk_thread(job.device, db_walk.remove_temporary, job.path, now - self.options.reclaim_age)
        is_old = broker.read_fresh(partial(self.is_reclaimable, broker=broker, before=self._before()))
        may_send_rows = job.kind is Kind.REVERT or not is_moving
        for _ in range(ROUNDS):
            result.done, result.failed, result.lacking, result.is_left = [], [], 0, False  # of this round
            before = broker.read_fresh(partial(_state, broker))
            proofs = self._to_peers(job, broker, result, may_send_rows, not is_old)
            self.after_peers(job, broker, result)
            if job.kind is Kind.SYNC:
                self._reclaim(job, broker, result, is_old)
                return
            if not may_remove(proofs, len(job.targets), self.options.handoff_delete):
                result.is_held = not (result.failed or result.is_left)
                return
            if not self.may_leave(broker):
                return
            if self._ring.current().version == job.ring_version and broker.remove(
                    lambda connection: _state(broker, connection) == before):  # noqa: B023 - it runs now
                self._removed(job, result)
                result.failed = []
                return
            result.is_left = True  # it changed while we asked

    def _is_moving(self, job: Job, broker: Broker) -> bool:
        """Whether it is being written to, and its rows were sent not long ago."""
        now = self.world.clock()
        if not self._is_forever or now - self._settled.get(job.path, 0.0) > MOVING_S:
            return False
        return now - on_disk_thread(job.device, db_walk.changed_at, broker) < QUIET_S

    def _before(self, patience: int = 1) -> Timestamp:
        """What was deleted before that time is forgotten."""
        return Timestamp(max(0.0, self.world.clock() - self.options.reclaim_age * patience))

    def _reclaim(self, job: Job, broker: Broker, result: Result, is_old: bool) -> None:
        """Forget what is old, rows or the whole database, when every primary is known from before to know it: one that
        does not would bring back what was deleted. ("From before": were each to forget as soon as all agree, the next would
        find that one lacks what it has itself, and send it, round and round.) One that stays away is waited for
        ``PATIENCE`` times the age.
        """
        now = self.world.clock()
        if not is_old and self._is_forever and now - self._reclaimed.get(job.path, 0.0) < RECLAIM_EVERY_S:
            return
        everybody_knows = result.is_success and result.had_it >= len(job.targets)
        before = self._before(1 if everybody_knows else PATIENCE)
        if is_old and broker.remove(partial(self.is_reclaimable, broker=broker, before=before)):
            self._removed(job, result)
            return
        patience = 2 if everybody_knows else 2 * PATIENCE
        self.rows_reclaimed += broker.reclaim(before.internal, self._before(patience).internal)
        _remember(self._reclaimed, job.path, now if everybody_knows else now - RECLAIM_EVERY_S + RECLAIM_AGAIN_S)

    def _removed(self, job: Job, result: Result) -> None:
        self.removed += 1
        result.is_gone = True
        self.after_removal(job)
        self._count("remove", 1)
        self.world.stats.increment(f"removes.{job.device}")

    def _to_peers(self, job: Job, broker: Broker, result: Result, may_send_rows: bool, may_create: bool) -> int:
        """Bring every target what it lacks; for a device that is not mounted a handoff stands in. Gives the number of
        those that are proven to have it all.
        """
        receiver = self.make_receiver(broker)
        handoffs = self._ring.current().handoffs(job.partition)
        waiting, proofs = list(job.targets), 0
        is_revert = job.kind is Kind.REVERT
        while waiting:
            node = waiting.pop(0)
            outcome = self.sync.bring(Talk(job, broker, receiver, node), may_send_rows, may_create, is_revert)
            proofs += outcome.is_proof and not node.is_handoff
            if outcome.is_success:
                result.done.append(node)
                result.had_it += outcome.had_it
                if outcome.is_deferred:
                    self._count("deferred", 1)
                    result.is_moving = result.is_moving or not may_send_rows
                elif not outcome.is_proof and is_revert:
                    self.log.info("%s: its ring is not ours; %s stays", node.key, job.path)
            elif outcome.is_capped:
                result.is_left = True
                self.log.info("%s: %d rows went to %s, more follow", job.path,
                              self.options.per_diff * self.options.max_diffs, node.key)
            else:
                self._failed(job, outcome, result)
                if outcome.status == 507:
                    standin = next((other for other in handoffs if other.id != job.own.id), None)
                    if standin is not None:
                        waiting.append(standin)
        if job.kind is Kind.SYNC and not (result.failed or result.is_left or result.is_moving):
            _remember(self._settled, job.path, self.world.clock())
        return proofs

    def _failed(self, job: Job, outcome: Outcome, result: Result) -> None:
        result.failed.append(outcome.node)
        result.lacking += not outcome.node.is_handoff
        if not self.peers.is_down(outcome.node.replication_address):
            self.log.warning("%s cannot be brought to %s: %s", job.path, outcome.node.key, outcome.reason)

    # -- what came of it -----------------------------------------------------------------------------------------------

    def _count(self, name: str, number: int) -> None:
        self.stats[name] += number
        if name in _STATSD:
            self.world.stats.update(_STATSD[name], number)

    def _note(self, job: Job, result: Result) -> None:
        for node in result.failed:
            self._failed_node(node, 1)
        self._count("success", len(result.done))
        path = job.path
        if result.is_gone:
            self.handoffs.discard(path)
        elif job.kind is Kind.REVERT and len(self.handoffs) < MAX_REMEMBERED:
            self.handoffs.add(path)
        if result.lacking and not result.is_gone and len(self.below_full) < MAX_REMEMBERED:
            self.below_full[path] = result.lacking
        else:
            self.below_full.pop(path, None)
        if result.is_success or result.is_gone:
            self._failures.pop(path, None)
            return
        if not self._is_forever or len(self._failures) >= MAX_REMEMBERED:
            return
        if (result.is_left or result.is_moving) and not result.failed:
            wait_s = AGAIN_S if result.is_left else LEAST_BETWEEN_S
        else:
            count = self._failures[path] = self._failures.get(path, 0) + 1
            wait_s = back_off_s(count, FIRST_RETRY_S, LAST_RETRY_S, jitter(self.world.random))
        down = [node for node in result.failed if self.peers.is_down(node.replication_address)]
        for node in down:
            self._waits_for.setdefault(node.replication_address, set()).add(path)
        if down and len(down) == len(result.failed) and not result.is_left:
            wait_s = max(wait_s, DOWN_RETRY_S)  # their return is what it waits for
        self.queue.reschedule(path, path, self._risk(path), self.world.clock() + wait_s)
        self.workers.kick()

    def _risk(self, path: str) -> Risk:
        if path in self.below_full:
            return Risk.DURABILITY
        return Risk.HANDOFF if path in self.handoffs else Risk.UPDATE

    def _failed_node(self, node: Node, count: int) -> None:
        self._count("failure", count)
        devices = self.stats["failure_nodes"].setdefault(node.replication_ip, {})
        devices[node.device] = devices.get(node.device, 0) + count

    # -- between passes ------------------------------------------------------------------------------------------------

    def beside(self) -> Iterable[Callable[[], Any]]:
        watch = partial(between_passes.watch_rings, self, self.peers, [self._ring], self.options.ring_check_interval)
        return self.workers.run, self.peers.watch, watch, partial(between_passes.keep_showing, self)

    def rest(self, seconds: float) -> None:
        super().rest(between_passes.rest_s(seconds, self._quiet_s))

    def on_hint(self, kind: str, fields: tuple[str, ...]) -> None:
        """A database changed, or was found to know more than a peer (device path, path of the hash directory)."""
        if not self._is_forever or len(fields) != 2 or not fields[1].startswith(f"{fields[0]}/{self.datadir}/"):
            return
        path, now = fields[1], self.world.clock()
        job = self._job_by_ring(path)
        if job is None:
            return
        if job.kind is Kind.REVERT:
            self.enqueue(path, Risk.DURABILITY, HANDOFF_DELAY_S)
            return
        if path not in self._settled:  # a burst into a new one is on its way to all peers, as any other is
            _remember(self._settled, path, now)
        since = self._hinted.setdefault(path, now)
        if len(self._hinted) > MAX_REMEMBERED:
            self._hinted.popitem(last=False)
        due = min(now + QUIET_S, since + LONGEST_QUIET_S)
        due = max(due, self._compared.get(path, 0.0) + LEAST_BETWEEN_S)
        self.queue.reschedule(path, path, Risk.UPDATE, due)
        self.workers.kick()

    def ask(self, only: Selection) -> None:
        """What an operator names goes into the queue at once, also while a pass runs. The databases of a device are those
        that it has and those that are to be brought to it. Policies are of objects: nothing here is of one.
        """
        if not only.policies:
            concurrency.spawn(self._enqueue_asked, only)

    def _enqueue_asked(self, only: Selection) -> None:
        ring, count = self._ring.current(), 0
        for name, node in self._own(ring).items():
            try:
                device = usable_device(self.options.devices, name, self.options.mount_check)
                for number in on_disk_thread(name, partitions, device.path, self.datadir, only):
                    if only.has_device(name) or any(one.device in only.devices for one in ring.primaries(number)):
                        for found in on_disk_thread(name, db_walk.databases_of, f"{device.path}/{self.datadir}/{number}"):
                            self._failures.pop(found, None)
                            self.queue.reschedule(found, found, Risk.DURABILITY, self.world.clock())
                            count += 1
            except (DeviceUnavailable, OSError) as error:
                self.log.warning("device %s cannot be looked at as was asked: %s", node.device, error)
        self.log.info("%d databases are looked at as was asked", count)
        self.workers.kick()

    def enqueue(self, path: str, risk: Risk = Risk.UPDATE, delay_s: float = 0.0) -> None:
        """Have the database in a hash directory looked at soon."""
        self.queue.put(path, path, risk, self.world.clock() + delay_s)
        self.workers.kick()

    def _on_return(self, address: Address) -> None:
        """A peer is back: what waits for it goes first."""
        now = self.world.clock()
        self.log.info("%s:%d is back", *address)
        for path in self._waits_for.pop(address, ()):
            self._failures.pop(path, None)
            self.queue.reschedule(path, path, Risk.DURABILITY, now)
        self.workers.kick()

    def _on_due(self, _key: Hashable, path: str) -> None:
        if path in self._busy:
            self.queue.put(path, path, self._risk(path), self.world.clock() + AGAIN_S)
            return
        self._hinted.pop(path, None)
        job = self.job_now(path)
        if job is None:
            self._failures.pop(path, None)
            self.handoffs.discard(path)
            self.below_full.pop(path, None)
            return
        if path in self._busy:  # since we looked: the disk thread let others run
            self.queue.put(path, path, self._risk(path), self.world.clock() + AGAIN_S)
            return
        _remember(self._compared, path, self.world.clock())
        self._carry_out(job)
        self.show()

    def job_now(self, path: str) -> Job | None:
        """What the database in a hash directory needs by the ring of now; None when it is not there, or not ours."""
        job = self._job_by_ring(path)
        if job is None:
            return None
        root, name = os.path.split(job.device_path)
        try:
            usable_device(root, name, self.options.mount_check)
        except DeviceUnavailable:
            return None
        return job if on_disk_thread(job.device, os.path.isdir, path) else None

    def _job_by_ring(self, path: str) -> Job | None:
        parts = path.rsplit("/", 5)  # device path's parent, device, datadir, partition, suffix, hash
        if len(parts) != 6 or parts[2] != self.datadir or not db_walk.is_hash(parts[5]):
            return None
        ring = self._ring.current()
        own = self._own(ring).get(parts[1])
        return None if own is None else job_of(ring, own, f"{parts[0]}/{parts[1]}", path, self.world.random)

    # -- what is seen --------------------------------------------------------------------------------------------------

    def figures(self) -> dict[str, Any]:
        return {
            "handoff_databases": len(self.handoffs), "databases_below_full": len(self.below_full),
            "queued": len(self.queue), "rows_sent": self.sync.rows_sent, "files_sent": self.sync.files_sent,
            "bytes_sent": self.sync.bytes_sent, "removed": self.removed, "rows_reclaimed": self.rows_reclaimed,
            "failures": self.stats["failure"], "peers_down": sorted(f"{ip}:{port}" for ip, port in self.peers.down),
        }  # fmt: skip

    def after_pass(self, only: Selection, took_s: float) -> None:
        stats = self.stats
        self.log.info("%s replication: %d databases in %.1f s, %d handoffs, %d behind, %d failures", self.service,
                      stats["attempted"], took_s, len(self.handoffs), len(self.below_full), stats["failure"])
        was_quiet = not any(stats[name] for name in ("failure", "diff", "rsync", "remote_merge", "remove"))
        self._quiet_s = took_s if was_quiet else 0.0
        if only.is_all:
            self.world.leave(self.service, {"replication_stats": {**stats}, "replication_time": took_s,
                                            "replication_last": self.world.clock()})


def _no_stats() -> dict[str, Any]:
    return {**dict.fromkeys(COUNTS, 0), "failure_nodes": {}, "start": time.time(), "ts_repl": 0}


def _remember(what: OrderedDict[str, float], path: str, now: float) -> None:
    what[path] = now
    what.move_to_end(path)
    if len(what) > MAX_REMEMBERED:
        what.popitem(last=False)


def _state(broker: Broker, connection: Connection) -> tuple[Any, ...]:
    """What of a database a handoff must not lose."""
    info = broker.info_dict(connection)
    kept = ("id", "hash", "created_at", "put_timestamp", "delete_timestamp", "status", "metadata")
    return (*(info[name] for name in kept), broker.max_row(connection), broker.max_row(connection, "shard_range"))
