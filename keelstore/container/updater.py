"""The container updater: tells accounts how many objects and bytes their containers hold (``spec: daemons 7``).

Every replica of a container tells every replica of its account, and remembers what it told (``reported_*``). A container
server's hint brings a change within seconds; the scan of each pass brings what hints did not. A scan passes over a database
that has not changed since it was found to be told, at the cost of a ``stat``.

Counts have no time of their own, so an account's replica that comes late, from a place where the ring no longer has it,
can bring old ones back after all were told. So each container is told once a day whether or not it changed; when in the day
comes from the name of its database.

A container whose account does not exist on any node, primary or handoff, goes to quarantine: nothing could ever list or
delete it. Nothing less than an answer of 404 from every one of them is enough for that.
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import islice
from typing import Any, ClassVar, Final, NamedTuple

from keelstore.common import concurrency, events
from keelstore.common.broker import RACY_NS, DatabaseNotFound
from keelstore.common.broker_steps import Connection, timestamp_of
from keelstore.common.daemon_frame import ALL, Daemon, Selection, World
from keelstore.common.device_walk import Device, databases_with, usable_devices
from keelstore.common.disk_calls import on_disk_thread
from keelstore.common.errors import BackendError, StorageError
from keelstore.common.headers import Headers
from keelstore.common.names import HashPath, database_file
from keelstore.common.peers import Address, Peers
from keelstore.common.quorum import majority_size
from keelstore.common.ring.ring import Node, RingFile
from keelstore.common.work import RateLimit, Risk, Workers, WorkQueue, jitter
from keelstore.container import shard_rows
from keelstore.container.broker import ContainerBroker, ContainerInfo
from keelstore.container.options import ContainerUpdaterOptions

DATADIR: Final = "containers"
MAX_SETTLED: Final = 200_000  # databases of which it is remembered that nothing is to be told
MAX_TOLD: Final = 20_000  # databases of which it is remembered when they last told something
HINT_DELAY_S: Final = 1.5  # longer than hints of the same change are held back (events.SAME_S)
AGAIN_S: Final = 86400  # in which each container tells its account what it should know already
LEAST_BETWEEN_S: Final = 4.0  # two reports of a container that changes all the time

Stamp = tuple[int, int, int, int]


class Report(NamedTuple):
    """What an account is to be told of a container."""

    account: str
    container: str
    put_timestamp: str
    delete_timestamp: str
    object_count: int
    bytes_used: int
    policy_index: int


def report_of(info: ContainerInfo, is_root: bool, is_again: bool = False) -> Report | None:
    """What the account does not know yet of a container, or, ``is_again``, ought to know of one that is not deleted; None
    when there is nothing.

    A shard tells its account that it is there, and no counts: its root tells those.
    """
    if not timestamp_of(info.put_timestamp):
        return None
    count, size = (info.object_count, info.bytes_used) if is_root else (0, 0)
    if (
        not (is_again and not info.is_deleted)
        and timestamp_of(info.put_timestamp) <= timestamp_of(info.reported_put_timestamp)
        and timestamp_of(info.delete_timestamp) <= timestamp_of(info.reported_delete_timestamp)
        and count == info.reported_object_count
        and size == info.reported_bytes_used
    ):
        return None
    return Report(info.account, info.container, info.put_timestamp, info.delete_timestamp, count, size,
                  info.storage_policy_index)


def is_due_again(path: str, since: float, now: float) -> bool:
    """Whether the moment of the day at which the database in the hash directory ``path`` tells again lies in (since, now]."""
    moment = int(path[-8:], 16) % AGAIN_S
    return (now - moment) // AGAIN_S > (since - moment) // AGAIN_S


class Job(NamedTuple):
    device: Device
    path: str  # of the hash directory
    is_again: bool = False

    @property
    def database(self) -> str:
        return database_file(self.path)


class ContainerUpdater(Daemon):
    name: ClassVar[str] = "container-updater"
    hints: ClassVar[frozenset[str]] = frozenset({events.CONTAINER})
    rest_share: ClassVar[float] = 10.0  # a scan of very many databases may not take more than a tenth of the time

    def __init__(self, options: ContainerUpdaterOptions, world: World, ring: RingFile, hash_path: HashPath, backend: Any):
        super().__init__(world, options.interval, options.concurrency)
        self.options, self._ring, self._hash_path = options, ring, hash_path
        self.peers = Peers(backend, world.clock, self._on_return)
        self.queue: WorkQueue[Job] = WorkQueue(MAX_TOLD)
        self.workers = Workers(self.queue, self._on_due, options.concurrency, self.log, world.clock)
        self._rate = RateLimit(options.rate)
        self._settled: dict[str, Stamp] = {}
        self._told: OrderedDict[str, float] = OrderedDict()
        self._suppressed: dict[str, float] = {}  # account to when it is tried again
        self._began, self._again_until = 0.0, world.clock()
        self.counts = dict.fromkeys(("successes", "failures", "no_changes"), 0)

    # -- passes --------------------------------------------------------------------------------------------------------

    def plan(self, only: Selection) -> Iterator[Job]:
        """Every container database that changed since it was found to have nothing to tell, or whose moment has come."""
        now = self.world.clock()
        for device in usable_devices(self.options.devices, self.options.mount_check, self.log, only):
            try:
                for path, stamp in databases_with(device, DATADIR, _stamp, only):
                    job = Job(device, path, is_due_again(path, self._again_until, now))
                    if job.is_again or stamp is None or self._settled.get(path) != stamp:
                        yield job
                    else:
                        self._count("no_changes")
            except OSError as error:
                self.log.error("%s: its containers cannot be listed: %s", device.path, error)

    def dry_run(self, only: Selection = ALL) -> Iterator[str]:
        """Those of the plan that have something to tell, which takes opening them."""
        for job in self.plan(only):
            line = self._would_tell(job)
            if line:
                yield line

    def describe(self, job: Job) -> str:
        return job.path

    def _would_tell(self, job: Job) -> str:
        broker = self._broker(job)
        try:
            report = report_of(*_facts(broker), job.is_again)
        except (StorageError, OSError) as error:
            return f"{job.path}: {error}"
        finally:
            broker.close()
        if report is None:
            return f"{job.path}: has updates that wait to be merged" if broker.pending_size() else ""
        return f"tell account {report.account}: {report.container} has {report.object_count} objects, " \
               f"{report.bytes_used} bytes"

    def carry_out(self, job: Job) -> bool:
        delay = self._rate.delay_s(self.world.clock())
        if delay:
            concurrency.sleep(delay)
        return self.update(job)

    def run_once(self, only: Selection = ALL) -> None:
        if not self._is_forever:
            self.peers.forget()
            self._suppressed.clear()
        super().run_once(only)

    def beside(self) -> Iterable[Callable[[], Any]]:
        return self.workers.run, self.peers.watch

    def before_pass(self, only: Selection) -> None:
        self._began = self.world.clock()

    def after_pass(self, only: Selection, took_s: float) -> None:
        if only.is_all:
            self._again_until = self._began
        self.world.leave("container", {"container_updater_sweep": took_s})

    def figures(self) -> dict[str, Any]:
        return {"waiting": len(self.queue), "down": sorted(f"{ip}:{port}" for ip, port in self.peers.down), **self.counts}

    def _count(self, what: str) -> None:
        self.counts[what] += 1
        self.world.stats.increment(what)

    # -- hints ---------------------------------------------------------------------------------------------------------

    def on_hint(self, kind: str, fields: tuple[str, ...]) -> None:
        """A container changed (device path, path of the hash directory)."""
        if self._is_forever and len(fields) == 2:
            path = fields[0]
            due = max(self.world.clock() + HINT_DELAY_S, self._told.get(fields[1], 0.0) + LEAST_BETWEEN_S)
            self.queue.put(fields[1], Job(Device(path.rpartition("/")[2], path), fields[1]), Risk.UPDATE, due)
            self.workers.kick()

    def _on_due(self, key: Hashable, job: Job) -> None:
        self.progress.step(self.world.clock(), self.carry_out(job))

    def _on_return(self, address: Address) -> None:
        """An account server is back: those that wait for it go now."""
        self.log.info("%s:%d is back", *address)
        self._suppressed.clear()
        self.wake()

    # -- telling -------------------------------------------------------------------------------------------------------

    def _broker(self, job: Job) -> ContainerBroker:
        return ContainerBroker(job.database, job.device.path, self.log)

    def update(self, job: Job) -> bool:
        """Tell the account what it does not know of this container. False: it could not be told."""
        broker = self._broker(job)
        began = self.world.clock()
        try:
            broker.merge_pending()
            stamp = on_disk_thread(job.device.name, _stamp, job.path)
            facts = _facts(broker)
            report = report_of(*facts)
            is_again = report is None and job.is_again
            if is_again:
                report = report_of(*facts, True)
            if report is None:
                self._count("no_changes")
                self._settle(job.path, stamp)
                return True
            if self._suppressed.get(report.account, 0.0) > began:
                return False
            is_told = self._tell(job, broker, report, is_again)
            self._count("successes" if is_told else "failures")
            if is_told:
                self._remember_told(job.path)
            if is_again:
                self._settle(job.path, stamp)
            self.world.stats.timing_since("timing", began)
            return is_told
        except DatabaseNotFound:  # removed meanwhile
            return True
        except (StorageError, OSError) as error:
            self._count("failures")
            self.log.error("%s: %s", job.path, error or type(error).__name__)
            return False
        finally:
            broker.close()

    def _settle(self, path: str, stamp: Stamp | None) -> None:
        if stamp is not None and (path in self._settled or len(self._settled) < MAX_SETTLED):
            self._settled[path] = stamp

    def _remember_told(self, path: str) -> None:
        self._told[path] = self.world.clock()
        self._told.move_to_end(path)
        if len(self._told) > MAX_TOLD:
            self._told.popitem(last=False)

    def _tell(self, job: Job, broker: ContainerBroker, report: Report, is_again: bool) -> bool:
        ring = self._ring.current()
        part = ring.partition(self._hash_path.digest(report.account))
        nodes = ring.primaries(part)
        headers = Headers({
            "X-Put-Timestamp": report.put_timestamp,
            "X-Delete-Timestamp": report.delete_timestamp,
            "X-Object-Count": str(report.object_count),
            "X-Bytes-Used": str(report.bytes_used),
            "X-Account-Override-Deleted": "yes",
            "X-Backend-Storage-Policy-Index": str(report.policy_index),
            "User-Agent": f"container-updater {os.getpid()}",
        })  # fmt: skip
        names = f"{part}/{report.account}/{report.container}"
        tasks = [concurrency.spawn(self._ask, "PUT", node, f"/{node.device}/{names}", headers) for node in nodes]
        statuses = [task.wait() for task in tasks]
        if sum(200 <= status < 300 for status in statuses) >= majority_size(len(nodes)):
            # A replica that missed it could bring its old counts back to the others: counts have no time of their own.
            # So it is told again with the next pass, until all have it.
            if not is_again and all(200 <= status < 300 for status in statuses):
                broker.write(lambda connection: broker.set_reported(
                    connection, report.put_timestamp, report.delete_timestamp, report.object_count, report.bytes_used))
            self._suppressed.pop(report.account, None)
            return True
        if statuses and all(status == 404 for status in statuses) and self._is_nowhere(report.account):
            broker.quarantine(f"no account replicas exist of {report.account}")
            self._settled.pop(job.path, None)
            return False
        if len(self._suppressed) >= MAX_TOLD:
            self._suppressed.clear()
        wait = self.options.account_suppression_time * (1 + jitter(self.world.random))
        self._suppressed[report.account] = self.world.clock() + wait
        if self._is_forever and wait:
            self.queue.put(job.path, job, Risk.UPDATE, self.world.clock() + wait)
        self.log.info("account %s cannot be told of %s: %s", report.account, report.container, statuses)
        return False

    def _ask(self, method: str, node: Node, path: str, headers: Headers) -> int:
        """The status, 0 when there was no answer."""
        try:
            answer = self.peers.call(node.replication_address, method, path, headers, timeout_s=self.options.node_timeout)
            answer.drain()
            return answer.status
        except BackendError as error:
            self.log.info("%s cannot be asked: %s", node.key, error)
            return 0

    def _is_nowhere(self, account: str) -> bool:
        """Whether as many handoffs as there are primaries know nothing of an account that no primary has."""
        ring = self._ring.current()
        part = ring.partition(self._hash_path.digest(account))
        headers = Headers({"User-Agent": f"container-updater {os.getpid()}"})
        return all(self._ask("HEAD", node, f"/{node.device}/{part}/{account}", headers) == 404
                   for node in islice(ring.handoffs(part), len(ring.primaries(part))))


def _facts(broker: ContainerBroker) -> tuple[ContainerInfo, bool]:
    """What a database says, and whether it is that of a root."""

    def step(connection: Connection) -> tuple[ContainerInfo, bool]:
        return broker.info_in(connection), shard_rows.is_root(connection)

    return broker.read(step)


def _stamp(path: str) -> Stamp | None:
    """What changes with the database of a hash directory; None while updates of it are pending, or when that cannot be told
    from one file.

    A file that has changed a moment ago may change again without its times showing it: None as well.
    """
    database = database_file(path)
    try:
        status = os.stat(database)
    except OSError:
        return None  # not there, or under a name with an epoch
    try:
        if os.stat(f"{database}.pending").st_size:
            return None
    except OSError:
        pass
    if time.time_ns() - status.st_mtime_ns < RACY_NS:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size
