"""The object auditor: reads everything, and puts aside what is wrong, so that replication brings a good copy (``spec: daemons
13``).

Two scans go over the devices, each at its own pace and from where it was when it was stopped: the quick one (``ZBF``) opens
every object and checks its metadata and size; the full one (``ALL``) reads every byte. Watchers see each object that is
well; one that should have expired long ago is put into the expiry queue once more (``overdue``).

A brake: where more than a small share of a device fails at once, the device is at fault (a controller, memory, a file
system that was mounted wrongly), and putting its objects aside would turn a fault into a loss. The scan of that device then
stops, says so in log and figures, and for a day only tries whether the device is well again; what is wrong meanwhile stays
where it is. The same holds for what watchers want removed: listings that were lost do not take the objects with them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, NamedTuple

from keelstore.common import concurrency, fs
from keelstore.common.cluster import Cluster
from keelstore.common.daemon_frame import ALL, Daemon, Selection, World
from keelstore.common.device_walk import Device, partitions, usable_devices
from keelstore.common.disk_calls import on_disk_thread
from keelstore.common.errors import StorageError
from keelstore.common.policy import Policy
from keelstore.common.room import Reserve
from keelstore.common.work import RateLimit, for_each
from keelstore.obj import hashes, layout
from keelstore.obj.audit import AuditStore, Brake, Finding, Inspector
from keelstore.obj.layout import DATA
from keelstore.obj.options import ObjectAuditorOptions
from keelstore.obj.overdue import Overdue
from keelstore.obj.store import ObjectStore
from keelstore.obj.watchers import DeleteRequest, QuarantineRequest, Watcher

FULL: Final = "ALL"
QUICK: Final = "ZBF"
CHECKPOINT_S: Final = 60.0  # between two notes of how far a scan is
BRAKED_FOR_S: Final = 86400.0  # how long a device that failed as a whole is only tried
TRIAL: Final = 200  # objects that are looked at to try it
DAY_S: Final = 86400.0


class Job(NamedTuple):
    """One scan of one device."""

    kind: str
    device: Device

    def __str__(self) -> str:
        return f"{'read' if self.kind == FULL else 'check'} the objects of {self.device.name}"


@dataclass
class Totals:
    """Of one scan, over all devices."""

    passes: int = 0  # objects that are well
    quarantined: int = 0
    errors: int = 0
    bytes_processed: int = 0
    start_time: float = 0.0
    audit_time: float = 0.0  # seconds of work, without waits
    sizes: dict[str, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return {"passes": self.passes, "quarantined": self.quarantined, "errors": self.errors,
                "bytes_processed": self.bytes_processed, "start_time": self.start_time, "audit_time": self.audit_time}


@dataclass
class _Braked:
    since: float
    reason: str


class ObjectAuditor(Daemon):
    name: ClassVar[str] = "object-auditor"
    starts_at_once: ClassVar[bool] = True

    def __init__(self, options: ObjectAuditorOptions, world: World, cluster: Cluster, watchers: Sequence[Watcher] = (),
                 overdue: Overdue | None = None):
        super().__init__(world, options.interval, options.concurrency)
        self.options, self._policies, self._watchers = options, list(cluster.policies), list(watchers)
        base = ObjectStore(cluster.hash_path, reserve=Reserve.parse("0"), logger=self.log, clock=world.clock)
        self.inspector = Inspector(AuditStore(base), self.log, world.clock, options.reclaim_age,
                                   options.rsync_tempfile_timeout or DAY_S)
        self.totals = {FULL: Totals(), QUICK: Totals()}
        self.overdue = overdue
        self.braked: dict[str, _Braked] = {}
        self.kinds = (QUICK, FULL) if options.zero_byte_files_per_second else (FULL,)
        self._said_at = world.clock()

    # -- passes --------------------------------------------------------------------------------------------------------

    def plan(self, only: Selection) -> Iterator[Job]:
        for kind in self.kinds:
            yield from self._jobs(kind, only)

    def _jobs(self, kind: str, only: Selection) -> list[Job]:
        found = [Job(kind, device) for device in
                 usable_devices(self.options.devices, self.options.mount_check, self.log, only)]
        self.world.random.shuffle(found)
        return found

    def run_once(self, only: Selection = ALL) -> None:
        """Both scans, once over everything."""
        tasks = [concurrency.spawn(self._scan, kind, only) for kind in self.kinds]
        for task in tasks:
            task.wait()
        self.passes += 1
        self.show(force=True)

    def ask(self, only: Selection) -> None:
        """It reads all the time, at a rate of its own. Raises ValueError."""
        raise ValueError("object-auditor reads everything all the time; 'keelstore-object-auditor CONF once' reads it now")

    def run_forever(self) -> None:
        """Each scan over and over, with a rest after each: the quick one does not wait for the full one."""
        tasks = [concurrency.spawn(self._scan_forever, kind) for kind in self.kinds]
        try:
            for task in tasks:
                task.wait()
        finally:
            for task in tasks:
                task.kill()

    def _scan_forever(self, kind: str) -> None:
        while True:
            try:
                self._scan(kind, ALL)
            except Exception:
                self.log.exception("the %s audit failed", kind)
            if kind == FULL:
                self.passes += 1
            concurrency.sleep(max(self.interval_s, 0.05))

    def _scan(self, kind: str, only: Selection) -> None:
        totals = self.totals[kind] = Totals(start_time=self.world.clock(), sizes=dict.fromkeys(
            (*self.options.object_size_stats, "OVER"), 0) if self.options.object_size_stats else {})
        jobs = self._jobs(kind, only)
        if kind == FULL:
            self.progress.begin(totals.start_time)
        for watcher in self._watchers:
            self._guarded(watcher, "start", kind)
        try:
            for_each(jobs, self._guarded_job, self.concurrency_limit if kind == FULL else 1)
        finally:
            for watcher in self._watchers:
                self._guarded(watcher, "end")
            if kind == FULL:
                self.progress.end(self.world.clock())
            self._say(kind)

    def _guarded_job(self, job: Job) -> None:
        try:
            self.carry_out(job)
        except Exception:
            self.log.exception("%s failed", job)
            self.totals[job.kind].errors += 1

    # -- one device ----------------------------------------------------------------------------------------------------

    def carry_out(self, job: Job) -> None:
        """Scan a device, from where the last scan of this kind was stopped."""
        state = self.braked.get(job.device.name)
        scan = _Scan(self, job, is_trial=state is not None)
        if state is not None and self.world.clock() - state.since >= BRAKED_FOR_S:
            scan.brake = Brake(self.options.quarantine_limit_share)  # let it show whether it is still so bad
            scan.is_trial = False
            del self.braked[job.device.name]
        scan.run()
        if scan.is_trial and not scan.brake.is_on and scan.looked >= 1 and not scan.brake.wrong:
            self.log.warning("device %s is well again: %d objects were looked at; the audit goes on", job.device.name,
                             scan.looked)
            self.braked.pop(job.device.name, None)

    def stop_device(self, device: str, brake: Brake) -> None:
        """A device fails as a whole."""
        reason = brake.describe()
        if device not in self.braked:
            self.log.error("device %s: %s. This is not a matter of single objects, so none is quarantined any more: look at "
                           "the device, its controller and the kernel's log. The audit of it has stopped", device, reason)
        self.braked[device] = _Braked(self.world.clock(), reason)

    def see(self, kind: str, finding: Finding) -> None:
        """Show an object that is well to all who want to see it."""
        opened = finding.opened
        if opened is None or opened.found.data is None:
            return
        if self.overdue is not None and kind == self.kinds[0]:
            self.overdue.see(opened)
        path = f"{finding.place.directory}/{opened.found.data.name}"
        for watcher in self._watchers:
            try:
                watcher.see_object(dict(opened.metadata), path)
            except QuarantineRequest as error:
                finding.reason = str(error) or "a watcher asked for it"
                return
            except DeleteRequest:
                finding.is_unwanted = True
                return
            except Exception as error:
                if type(error).__name__ == "QuarantineRequest":  # of a watcher that was written for Swift
                    finding.reason = str(error) or "a watcher asked for it"
                    return
                self.log.exception("the watcher %s failed at %s", type(watcher).__name__, path)

    @staticmethod
    def delete(finding: Finding) -> None:
        """Remove a data file that a watcher does not want."""
        place, opened = finding.place, finding.opened
        assert opened is not None and opened.found.data is not None
        data = opened.found.data
        attrs = layout.attrs_name(data.timestamp, data.fragment)
        on_disk_thread(place.device, _delete_data, place.partition_path, place.suffix, f"{place.directory}/{data.name}",
                       f"{place.directory}/{attrs}")

    def _guarded(self, watcher: Watcher, method: str, *args: Any) -> None:
        try:
            getattr(watcher, method)(*args)
        except Exception:
            self.log.exception("the watcher %s failed", type(watcher).__name__)

    # -- what is seen --------------------------------------------------------------------------------------------------

    def note(self, kind: str) -> None:
        """After each object: now and then leave and say how far it is."""
        self.show()
        if self.world.clock() - self._said_at > self.options.log_time:
            self._say(kind)

    def _say(self, kind: str) -> None:
        self._said_at = self.world.clock()
        totals = self.totals[kind]
        took = max(self._said_at - totals.start_time, 1e-6)
        self.log.info("object audit (%s): %d passed, %d quarantined, %d errors, %.2f files/s, %.2f bytes/s", kind,
                      totals.passes, totals.quarantined, totals.errors, totals.passes / took, totals.bytes_processed / took)
        if totals.sizes:
            self.log.info("object audit (%s): sizes %s", kind, json.dumps(totals.sizes))
        self.world.leave("object", {f"object_auditor_stats_{kind}": totals.as_dict()})
        self.show(force=True)

    def figures(self) -> dict[str, Any]:
        return {
            "quarantined": sum(totals.quarantined for totals in self.totals.values()),
            "errors": sum(totals.errors for totals in self.totals.values()),
            "overdue": self.overdue.count if self.overdue is not None else 0,
            "braked": {device: state.reason for device, state in sorted(self.braked.items())},
            **{f"{kind.lower()}_passed": totals.passes for kind, totals in self.totals.items()},
            "bytes_processed": self.totals[FULL].bytes_processed,
        }  # fmt: skip


class _Scan:
    """One scan of one device."""

    def __init__(self, daemon: ObjectAuditor, job: Job, is_trial: bool):
        self.daemon, self.kind, self.device, self.is_trial = daemon, job.kind, job.device, is_trial
        options = daemon.options
        self.brake = Brake(options.quarantine_limit_share)
        self.looked = 0
        self._files = RateLimit(options.files_per_second if job.kind == FULL else options.zero_byte_files_per_second)
        self._bytes = RateLimit(options.bytes_per_second)
        self._noted_at = daemon.world.clock()
        self._inspector, self._totals = daemon.inspector, daemon.totals[job.kind]

    def run(self) -> None:
        policies = list(self.daemon._policies)
        left = {policy.index: self._partitions(policy) for policy in policies}
        if self.kind == FULL:
            progress = self.daemon.progress
            progress.total = (progress.total or 0) + sum(map(len, left.values()))
        while any(left.values()):
            for policy in policies:  # a partition of each in turn
                if not left[policy.index]:
                    continue
                partition = left[policy.index].pop()
                self._partition(policy, partition)
                if self.brake.is_on and not self.is_trial:
                    self.daemon.stop_device(self.device.name, self.brake)
                if self.brake.is_on or (self.is_trial and self.looked >= TRIAL):
                    self._save(policy, [*left[policy.index], partition], force=True)
                    return
                if self.kind == FULL:
                    self.daemon.progress.step(self.daemon.world.clock())
                self._save(policy, left[policy.index])
        for policy in policies:
            self._save(policy, [], force=True)

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def _path(self, policy: Policy) -> str:
        return f"{self.device.path}/{layout.objects_dir(policy.index)}/auditor_status_{self.kind}.json"

    def _partitions(self, policy: Policy) -> list[int]:
        """What is left of the last scan, or all; the last one goes first."""
        datadir = layout.objects_dir(policy.index)
        try:
            found = on_disk_thread(self.device.name, partitions, self.device.path, datadir)
            noted = _read_checkpoint(self._path(policy))
        except OSError as error:
            self.daemon.log.error("%s/%s cannot be listed: %s", self.device.path, datadir, error)
            self._totals.errors += 1
            return []
        rest = [number for number in found if number in noted]
        self.daemon.world.random.shuffle(rest or found)
        return rest or found

    def _save(self, policy: Policy, left: Sequence[int], force: bool = False) -> None:
        now = self.daemon.world.clock()
        if not force and now - self._noted_at < CHECKPOINT_S:
            return
        self._noted_at = now
        data = json.dumps({"partitions": [str(number) for number in left]}).encode()
        try:
            on_disk_thread(self.device.name, _write_checkpoint, self._path(policy), data)
        except (OSError, StorageError) as error:
            self.daemon.log.warning("%s cannot be written: %s", self._path(policy), error)

    # -- objects -------------------------------------------------------------------------------------------------------

    def _partition(self, policy: Policy, partition: int) -> None:
        path = f"{self.device.path}/{layout.objects_dir(policy.index)}/{partition}"
        inspector, device = self._inspector, self.device.name
        try:
            for suffix in on_disk_thread(device, inspector.suffixes, path):
                for name_hash in on_disk_thread(device, inspector.hash_names, f"{path}/{suffix}"):
                    self._pace(self._files, 1)
                    self._one(policy, partition, name_hash)
                    if self.brake.is_on or (self.is_trial and self.looked >= TRIAL):
                        return
        except OSError as error:
            self.daemon.log.error("%s cannot be audited: %s", path, error)
            self._totals.errors += 1

    def _pace(self, limit: RateLimit, count: int) -> None:
        delay = limit.delay_s(self.daemon.world.clock(), count)
        if delay > 0:
            concurrency.sleep(delay)

    def _one(self, policy: Policy, partition: int, name_hash: str) -> None:
        daemon, totals = self.daemon, self._totals
        began = daemon.world.clock()
        finding = on_disk_thread(self.device.name, self._inspector.look, self.device.name, self.device.path, policy,
                                 partition, name_hash)
        if finding is None:
            return
        self.looked += 1
        try:
            if finding.opened is not None and self.kind == FULL:
                for count in self._inspector.read(finding, daemon.options.disk_chunk_size):
                    totals.bytes_processed += count
                    self._pace(self._bytes, count)
            if finding.opened is not None and not finding.reason and not self.is_trial:
                daemon.see(self.kind, finding)
            size = finding.opened.size if finding.opened is not None else None
        finally:
            if finding.opened is not None:
                finding.opened.close()
        totals.audit_time += max(0.0, daemon.world.clock() - began)
        if finding.error:
            daemon.log.error("%s: %s", finding.place.directory, finding.error)
            totals.errors += 1
            daemon.world.stats.increment("errors")
        may_act = self.brake.note(bool(finding.reason or finding.error or finding.is_unwanted)) and not self.is_trial
        if finding.is_unwanted:
            if may_act:
                daemon.delete(finding)
        elif finding.reason:
            if may_act:
                if self._inspector.quarantine(finding.place, finding.reason):  # else the other scan was first
                    totals.quarantined += 1
                    daemon.world.stats.increment("quarantines")
            else:
                daemon.log.error("%s: %s; it is left where it is", finding.place.directory, finding.reason)
        elif not finding.error:
            totals.passes += 1
            if size is not None and totals.sizes:
                totals.sizes[_size_class(size, daemon.options.object_size_stats)] += 1
        daemon.world.stats.timing_since("timing", began)
        daemon.note(self.kind)


def _size_class(size: int, limits: Sequence[str]) -> str:
    return next((text for text in sorted(limits, key=int) if size <= int(text)), "OVER")


def _read_checkpoint(path: str) -> set[int]:
    try:
        found = json.loads(fs.read_file(path) or b"{}")
    except (OSError, ValueError, RecursionError):
        return set()
    numbers = found.get("partitions") if isinstance(found, Mapping) else None
    return {int(text) for text in numbers if str(text).isdecimal()} if isinstance(numbers, list) else set()


def _write_checkpoint(path: str, data: bytes) -> None:
    if os.path.isdir(os.path.dirname(path)):
        fs.replace_file(path, data, is_durable=False)


def _delete_data(partition_path: str, suffix: str, path: str, attrs_path: str) -> None:
    """Remove a data file, and what belongs to it; metadata files of it are reclaimed in time."""
    assert path.endswith(DATA)
    with hashes.changing(partition_path, suffix):
        fs.remove_file(path)
        fs.remove_file(attrs_path)
