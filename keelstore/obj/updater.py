"""The object updater: sends the container updates that an object server could not deliver (``spec: daemons 14``).

The backlog is held by container (``obj/backlog.py``), so that the updates of one container go out together: where a
container server holds an unsharded database of it they are one UPDATE request for up to ``BATCH`` rows; elsewhere, one
request each, as they may be redirected to a shard. A container that cannot be told waits longer each time; one that waits
for a server that was down is told as soon as that is back. An object server's hint brings a new update into the backlog at
once; the scan of each pass brings what hints did not.

A file goes when every primary of the container has its row. Until then it keeps the ids of those that have (``successes``).
An update that arrives twice changes nothing, so a crash at any point costs a repetition at most.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Final

from keelstore.common import concurrency, events, fs
from keelstore.common.daemon_frame import ALL, Daemon, Selection, World
from keelstore.common.device_walk import Device, entries, usable_devices
from keelstore.common.disk_calls import on_disk_thread
from keelstore.common.errors import BackendError, DeviceUnavailable, StorageError
from keelstore.common.headers import Headers
from keelstore.common.names import HashPath
from keelstore.common.peers import Address, Peers
from keelstore.common.ring.ring import Node, RingFile
from keelstore.common.timestamp import Timestamp
from keelstore.common.work import RateLimit, Risk, Workers, WorkQueue, back_off_s, jitter
from keelstore.obj import layout
from keelstore.obj.backlog import Backlog, Pending, Target, parse_pending, target_of
from keelstore.obj.options import ObjectUpdaterOptions
from keelstore.obj.update_rows import includes, redirected, request_headers, row_of
from keelstore.obj.updates import decode_pending, encode_pending, redirect_of

BATCH: Final = 1000  # updates that are read and sent together
BATCH_FROM: Final = 4  # from so many updates of one container on, one request for all is worth asking for its state first
SUFFIXES_AT_ONCE: Final = 128  # directories that are listed in one call
MAX_WAIT_S: Final = 300.0  # between two tries for one container
FIRST_WAIT_S: Final = 1.0
HINT_DELAY_S: Final = 0.3  # so that the updates of one burst go out together
MAX_NEW: Final = 10_000  # hints that wait to be read; the scan finds the rest
OLD_DIRECTORY_S: Final = 3600.0  # an empty suffix directory unchanged for this long is removed
MAX_FILE: Final = 1 << 20  # bytes of an update
_BATCHABLE: Final = ("unsharded", "collapsed")


class ObjectUpdater(Daemon):
    name: ClassVar[str] = "object-updater"
    hints: ClassVar[frozenset[str]] = frozenset({events.ASYNC_PENDING})

    def __init__(self, options: ObjectUpdaterOptions, world: World, ring: RingFile, hash_path: HashPath, backend: Any,
                 policy_indexes: Sequence[int]):
        super().__init__(world, options.interval, options.concurrency)
        self.options, self._ring, self._hash_path = options, ring, hash_path
        self._policies = frozenset(policy_indexes)
        self.peers = Peers(backend, world.clock, self._on_return)
        self.backlog = Backlog()
        self.queue: WorkQueue[Target] = WorkQueue()
        self.workers = Workers(self.queue, self._on_due, options.concurrency, self.log, world.clock)
        self._failures: dict[Target, int] = {}
        self._waits_for: dict[Target, set[Address]] = {}
        self._sending: set[Target] = set()
        self._new: dict[Pending, None] = {}  # hinted at, not yet read
        self._rate = RateLimit(options.objects_per_second)
        self._is_partial = False  # the last scan left something on the disks for want of room
        self._scanned: list[str] = []  # devices
        self.counts = dict.fromkeys(("successes", "failures", "unlinks", "outdated_unlinks", "quarantines", "redirects",
                                     "errors", "skips"), 0)

    # -- a pass --------------------------------------------------------------------------------------------------------

    def plan(self, only: Selection) -> Iterator[Target]:
        """Every container that updates wait for, those of the oldest first. Reads what is not in the backlog yet."""
        devices = usable_devices(self.options.devices, self.options.mount_check, self.log, only)
        self._scanned = [device.name for device in devices]
        self._rate.per_second = self.options.objects_per_second * max(1, len(devices))
        while True:
            is_whole = all([self._scan(device, only) for device in devices])  # noqa: C419 - scan every one of them
            yield from self._in_order()
            self._is_partial = not is_whole
            if is_whole or self._is_forever:
                return
            concurrency.sleep(0)  # what was planned begins,
            while self._sending:  # and makes room
                concurrency.sleep(0.01)
            if self.backlog.is_full:  # nothing of it could be sent
                return

    def _in_order(self) -> list[Target]:
        order = {(account, container): number for number, (_, account, container)
                 in enumerate(self.backlog.oldest(self.backlog.size).entries)}
        return sorted(self.backlog.targets(), key=lambda target: order.get((target.account, target.container), 0))

    def carry_out(self, job: Target) -> bool:
        return self.send(job)

    def describe(self, job: Target) -> str:
        return f"send {self.backlog.waiting_for(job)} updates to {job.path}"

    def beside(self) -> Iterable[Callable[[], Any]]:
        """Passes scan; what is due is sent by workers that never rest while anything is."""
        return self.workers.run, self.peers.watch

    def run_once(self, only: Selection = ALL) -> None:
        if not self._is_forever:
            self.peers.forget()
            self.backlog = Backlog(self.backlog.size)
            super().run_once(only)
            return
        began = self.world.clock()
        self.progress.begin(began)
        for target in self.plan(only):
            if target not in self._failures:
                self.queue.put(target, target, Risk.UPDATE, self.world.clock())
        self.progress.total = self.progress.done + len(self.backlog)
        self.workers.kick()
        deadline = began + self.interval_s
        while self._is_busy() and self.world.clock() < deadline:
            concurrency.sleep(0.1)
        ended = self.world.clock()
        self.progress.end(ended)
        self.passes += 1
        self.after_pass(only, ended - began)
        self.show(force=True)

    def _is_busy(self) -> bool:
        due = self.queue.next_due_s()
        return self.workers.running > 0 or (due is not None and due <= self.world.clock())

    def after_pass(self, only: Selection, took_s: float) -> None:
        now = self.world.clock()
        values: dict[str, Any] = {
            "object_updater_sweep": took_s, "object_updater_last": now, "object_updater_stats": self._stats(now),
            "object_updater_per_device": {device: self._stats(now, device) for device in self._scanned},
        }  # fmt: skip
        self.world.leave("object", values)

    def _stats(self, now: float, device: str | None = None) -> dict[str, Any]:
        """What waits still, as the field shows it; of one device, or of all."""
        options = self.options
        oldest = self.backlog.oldest(options.async_tracker_max_entries, device)
        first = float(oldest.entries[0][0]) if oldest.entries else None
        shown = oldest.entries[: options.async_tracker_dump_count]
        return {
            "failures_oldest_timestamp": first,
            "failures_oldest_timestamp_age": now - first if first is not None else None,
            "failures_account_container_count": oldest.containers,
            "failures_oldest_timestamp_account_containers": {
                "oldest_count": len(shown),
                "oldest_entries": [{"timestamp": stamp.normal, "account": account, "container": container}
                                   for stamp, account, container in shown],
            },
            "tracker_memory_usage": 0,
        }  # fmt: skip

    def figures(self) -> dict[str, Any]:
        oldest = self.backlog.oldest(1)
        return {
            "waiting": len(self.backlog), "waiting_containers": oldest.containers,
            "oldest": float(oldest.entries[0][0]) if oldest.entries else None,
            "down": sorted(f"{ip}:{port}" for ip, port in self.peers.down), **self.counts,
        }  # fmt: skip

    def _count(self, what: str, count: int = 1) -> None:
        if count:
            self.counts[what] += count
            self.world.stats.update(what, count)

    # -- finding -------------------------------------------------------------------------------------------------------

    def _scan(self, device: Device, only: Selection) -> bool:
        """Bring the updates of a device into the backlog. False: there was no room for all."""
        try:
            for policy, suffixes in on_disk_thread(device.name, _suffixes, device.path, self._policies):
                if not only.has_policy(policy):
                    continue
                for start in range(0, len(suffixes), SUFFIXES_AT_ONCE):
                    some = suffixes[start : start + SUFFIXES_AT_ONCE]
                    found = on_disk_thread(device.name, _pending_files, device.path, policy, some, self.world.clock())
                    if not self._take_in(device, found):
                        return False
        except OSError as error:
            self._count("errors")
            self.log.error("%s: its updates cannot be listed: %s", device.path, error)
        return True

    def _take_in(self, device: Device, found: Sequence[Pending]) -> bool:
        """Read files and add what they say to the backlog, of each object the newest. Older ones go if it says all that they
        do; else they stay for a later pass.
        """
        new: list[Pending] = []
        older: list[tuple[Pending, Pending]] = []  # and what is newer
        for pending in found:  # of each object the newest first
            if pending in self.backlog:
                continue
            newer = self.backlog.newer_than(pending)
            if newer is None and new and new[-1].key == pending.key:
                newer = new[-1]
            if newer is None:
                new.append(pending)
            else:
                older.append((pending, newer))
        for start in range(0, len(new), BATCH):
            if self.backlog.is_full:
                return False
            for pending, update in self._load(device.name, new[start : start + BATCH]):
                old = self.backlog.add(pending, target_of(update))
                if old is not None:
                    older.append((old, pending))
        for start in range(0, len(older), BATCH):
            self._count("outdated_unlinks", on_disk_thread(device.name, _remove_included, older[start : start + BATCH]))
        return True

    def _load(self, device: str, some: Sequence[Pending]) -> list[tuple[Pending, dict[str, Any]]]:
        """The updates in these files; what cannot be read goes to quarantine, what is gone is forgotten."""
        found, bad = [], []
        for pending, update in on_disk_thread(device, _read, some):
            if isinstance(update, dict):
                found.append((pending, update))
            else:
                self.backlog.remove(pending)
                if update is not None:
                    bad.append((pending, update))
        for pending, why in bad:
            self._count("quarantines")
            try:
                target = on_disk_thread(device, fs.quarantine, pending.path,
                                        layout.quarantine_dir(pending.device_path, "objects"))
                self.log.error("%s is no update (%s); it is now %s", pending.path, why, target)
            except (OSError, DeviceUnavailable) as error:
                self.log.error("%s is no update (%s) and could not be moved away: %s", pending.path, why, error)
        return found

    def on_hint(self, kind: str, fields: tuple[str, ...]) -> None:
        """An object server has just kept an update (device path, policy, name)."""
        if not self._is_forever or len(fields) != 3 or not fields[1].isdigit() or len(self._new) >= MAX_NEW:
            return
        pending = parse_pending(fields[0], int(fields[1]), fields[2][29:32], fields[2])
        if pending is not None:
            self._new[pending] = None
            if len(self._new) == 1:
                concurrency.spawn(self._take_in_new)

    def _take_in_new(self) -> None:
        """A moment after the first of them: what was hinted at since."""
        concurrency.sleep(HINT_DELAY_S)
        new, self._new = sorted(self._new, key=lambda pending: pending.name, reverse=True), {}
        for path in {pending.device_path for pending in new}:
            some = [pending for pending in new if pending.device_path == path]
            try:
                self._take_in(Device(some[0].device, path), some)
            except OSError as error:
                self.log.error("%s: updates cannot be read: %s", path, error)
        now = self.world.clock()
        for target in {self.backlog.where(pending) for pending in new}:
            if target is not None and target not in self._failures:
                self.queue.put(target, target, Risk.UPDATE, now)
        self.workers.kick()

    # -- when ----------------------------------------------------------------------------------------------------------

    def _on_due(self, key: Hashable, target: Target) -> None:
        """A container's turn has come."""
        is_well = self.send(target)
        self.progress.step(self.world.clock(), is_well)
        if self._is_partial and len(self.backlog) < self.backlog.size // 2:
            self._is_partial = False
            self.wake()
        if not self.backlog.waiting_for(target):
            self._failures.pop(target, None)
            self._waits_for.pop(target, None)
            return
        failures = 0 if is_well else self._failures.get(target, 0) + 1
        if failures:
            self._failures[target] = failures
            wait = back_off_s(failures, FIRST_WAIT_S, MAX_WAIT_S, jitter(self.world.random))
        else:
            self._failures.pop(target, None)
            wait = HINT_DELAY_S
        self.queue.put(target, target, Risk.UPDATE, self.world.clock() + wait)

    def _on_return(self, address: Address) -> None:
        """A container server is back: whoever waits for it goes now."""
        self.log.info("%s:%d is back", *address)
        now = self.world.clock()
        for target, addresses in list(self._waits_for.items()):
            if address in addresses:
                self._failures.pop(target, None)
                if self.backlog.waiting_for(target):
                    self.queue.put(target, target, Risk.UPDATE, now)
        self.workers.kick()

    # -- sending -------------------------------------------------------------------------------------------------------

    def send(self, target: Target) -> bool:
        """Tell a container all that waits for it now. False: some of it waits still, because somebody could not be told."""
        if target in self._sending:
            return True
        self._sending.add(target)
        started = self.world.clock()
        try:
            self._waits_for.pop(target, None)
            waiting, is_well, began = self.backlog.of(target), True, self.world.clock()
            for start in range(0, len(waiting), BATCH):
                left, is_hopeless = self._send_batch(target, waiting[start : start + BATCH])
                is_well = is_well and not left
                rest = len(waiting) - start - BATCH
                if rest > 0 and (is_hopeless or self.world.clock() - began > self.interval_s):
                    self._count("skips", rest)
                    return False
            return is_well
        finally:
            self._sending.discard(target)
            self.world.stats.timing_since("timing", started)

    def _send_batch(self, target: Target, batch: Sequence[Pending], is_redirected: bool = False) -> tuple[int, bool]:
        """(how many of these updates wait still, whether there was nobody who took any)."""
        sent: list[_Sent] = []
        by_device: dict[str, list[Pending]] = {}
        for pending in batch:
            by_device.setdefault(pending.device, []).append(pending)
        for device, some in by_device.items():
            sent += [_Sent(pending, update) for pending, update in self._load(device, some)]
        if not sent:
            return 0, False
        account, _, container = target.path.partition("/")
        ring = self._ring.current()
        part = ring.partition(self._hash_path.digest(account, container))
        nodes = ring.primaries(part)
        self._to_all(target, nodes, part, sent)
        wanted = {node.id for node in nodes}
        done, left, moved = [], [], []
        for one in sent:
            update = redirected(one.update, one.redirects)
            if update is not None:
                one.update, one.before, one.taken = update, set(), set()
                moved.append(one)
            elif wanted <= one.known:
                done.append(one)
            else:
                left.append(one)
        self._count("successes", len(done))
        self._count("failures", len(left))
        self._count("redirects", len(moved))
        self._finish(done, [*moved, *(one for one in left if one.taken)])
        return len(left) + self._follow(moved, is_redirected), not moved and not any(one.taken for one in sent)

    def _follow(self, moved: Sequence[_Sent], is_redirected: bool) -> int:
        """Send what was redirected where it belongs, once at once, later if that redirects again. How many wait still."""
        by_target: dict[Target, list[Pending]] = {}
        for one in moved:
            target = target_of(one.update)
            self.backlog.move(one.pending, target)
            by_target.setdefault(target, []).append(one.pending)
        left = 0
        for target, some in by_target.items():
            if not is_redirected:
                left += self._send_batch(target, some, is_redirected=True)[0]
            else:
                left += len(some)
            if self._is_forever and self.backlog.waiting_for(target):
                self.queue.put(target, target, Risk.UPDATE, self.world.clock() + FIRST_WAIT_S)
        return left

    def _to_all(self, target: Target, nodes: Sequence[Node], part: int, sent: Sequence[_Sent]) -> None:
        tasks = []
        for node in nodes:
            some = [one for one in sent if node.id not in one.known]
            if some:
                path = f"/{node.device}/{part}/{target.path}"
                tasks.append((node, concurrency.spawn(self._to_node, node, path, some)))
        for node, task in tasks:
            if not task.wait():
                self._waits_for.setdefault(target, set()).add(node.replication_address)

    def _to_node(self, node: Node, path: str, sent: Sequence[_Sent]) -> bool:
        """Tell one node. False: it could not be reached."""
        address = node.replication_address
        try:
            if len(sent) >= BATCH_FROM:
                sent = self._as_one(node, path, sent)
            tried = False
            while sent:
                self._one_row(address, path, node, sent[0])
                sent = sent[1:]
                if not tried and len(sent) >= BATCH_FROM:  # it may have come into being with that row
                    tried = True
                    sent = self._as_one(node, path, sent)
        except BackendError as error:
            self.log.info("%s cannot be told of %d updates of %s: %s", node.key, len(sent), path, error)
            return False
        except Exception:
            self.log.exception("%s: updates of %s failed", node.key, path)
            return False
        return True

    def _as_one(self, node: Node, path: str, sent: Sequence[_Sent]) -> Sequence[_Sent]:
        """Send as many as possible in one request; gives those that must go one by one. Raises BackendError."""
        address, headers = node.replication_address, Headers({"User-Agent": f"object-updater {os.getpid()}"})
        answer = self._call(address, "HEAD", path, headers)
        if answer.status // 100 != 2 or answer.headers.get("X-Backend-Sharding-State") not in _BATCHABLE:
            return sent
        rows = [(one, row_of(one.update)) for one in sent]
        together = [(one, row) for one, row in rows if row is not None]
        if not together:
            return sent
        headers.update({"X-Timestamp": Timestamp(self.world.clock()).internal, "Content-Type": "application/json"})
        body = json.dumps([row for _, row in together]).encode("ascii")
        answer = self._call(address, "UPDATE", path, headers, body)
        if not answer.is_success:
            self.log.warning("%s answered %d to %d updates of %s; they are sent one by one", node.key, answer.status,
                             len(together), path)
            return sent
        for one, _ in together:
            one.taken.add(node.id)
        return [one for one, row in rows if row is None]

    def _one_row(self, address: Address, path: str, node: Node, one: _Sent) -> None:
        update = one.update
        began = self.world.clock()
        answer = self._call(address, update["op"], f"{path}/{update['obj']}", request_headers(update))
        self.world.stats.timing_since(f"updater.timing.status.{answer.status}", began)
        if answer.is_success:
            one.taken.add(node.id)
        elif answer.status == 301:
            path = redirect_of(answer.headers)
            if path:
                one.redirects.append((path, answer.headers.get("X-Backend-Redirect-Timestamp", "0")))
        elif answer.status != 404:
            self.log.warning("%s answered %d to the update of /%s/%s/%s", node.key, answer.status, update["account"],
                             update["container"], update["obj"])

    def _call(self, address: Address, method: str, path: str, headers: Headers, body: bytes = b"") -> Any:
        delay = self._rate.delay_s(self.world.clock())
        if delay:
            concurrency.sleep(delay)
        answer = self.peers.call(address, method, path, headers, body=body, timeout_s=self.options.node_timeout)
        answer.drain()
        return answer

    def _finish(self, done: Sequence[_Sent], changed: Sequence[_Sent]) -> None:
        """Remove what is done, write down what of the others is."""
        for device, some in _by_device(done).items():
            try:
                self._count("unlinks", on_disk_thread(device, _remove, [one.pending for one in some]))
            except OSError as error:
                self.log.error("device %s: sent updates could not be removed: %s", device, error)
                continue
            for one in some:
                self.backlog.remove(one.pending)
        for device, some in _by_device(changed).items():
            files = [(one.pending.path, encode_pending({**one.update, "successes": sorted(one.known)})) for one in some]
            try:
                on_disk_thread(device, _rewrite, files)
            except (OSError, StorageError) as error:  # then they are sent again to those that have them
                self.log.warning("device %s: what is done of updates could not be written down: %s", device, error)


class _Sent:
    """An update on its way: the nodes that have it from ``before``, those that have ``taken`` it now, and where others say
    that it belongs (container path, timestamp)."""

    __slots__ = ("before", "pending", "redirects", "taken", "update")

    def __init__(self, pending: Pending, update: dict[str, Any]):
        self.pending, self.update = pending, update
        self.before = {node for node in update.get("successes") or () if isinstance(node, int)}
        self.taken: set[int] = set()
        self.redirects: list[tuple[str, str]] = []

    @property
    def known(self) -> set[int]:
        return self.before | self.taken


def _by_device(sent: Sequence[_Sent]) -> dict[str, list[_Sent]]:
    found: dict[str, list[_Sent]] = {}
    for one in sent:
        found.setdefault(one.pending.device, []).append(one)
    return found


# -- on the disk -------------------------------------------------------------------------------------------------------


def _suffixes(device_path: str, policies: frozenset[int]) -> list[tuple[int, list[str]]]:
    """Policy and suffix directories of every ``async_pending[-N]`` of a device."""
    found = []
    for policy in sorted(policies):
        names = [name for name in entries(f"{device_path}/{layout.async_dir(policy)}") if layout.is_suffix(name)]
        if names:
            found.append((policy, names))
    return found


def _pending_files(device_path: str, policy: int, suffixes: Sequence[str], now: float) -> list[Pending]:
    """The updates in these directories, of each object the newest first; old empty directories are removed."""
    found = []
    for suffix in suffixes:
        path = f"{device_path}/{layout.async_dir(policy)}/{suffix}"
        names = entries(path)
        if not names:
            try:
                if now - os.stat(path).st_mtime > OLD_DIRECTORY_S:
                    fs.remove_directory(path)  # a server that is about to write there makes it again
            except FileNotFoundError:
                pass
        for name in reversed(names):
            pending = parse_pending(device_path, policy, suffix, name)
            if pending is not None:
                found.append(pending)
    return found


def _read(some: Sequence[Pending]) -> list[tuple[Pending, dict[str, Any] | str | None]]:
    """Each with its update; with None when it is gone, with what is wrong when it is no update."""
    found: list[tuple[Pending, dict[str, Any] | str | None]] = []
    for pending in some:
        try:
            data = fs.read_file(pending.path, MAX_FILE)
            found.append((pending, decode_pending(data) if data is not None else None))
        except ValueError as error:
            found.append((pending, str(error) or "it cannot be read"))
    return found


def _remove(some: Sequence[Pending]) -> int:
    return sum(fs.remove_file(pending.path) for pending in some)


def _remove_included(pairs: Sequence[tuple[Pending, Pending]]) -> int:
    """Remove each first one of which the second, which is newer, says all."""
    needless = []
    newest = dict(_read(list({new for _, new in pairs})))
    for (old, older), (_, new) in zip(_read([old for old, _ in pairs]), pairs, strict=True):
        newer = newest[new]
        if isinstance(older, dict) and isinstance(newer, dict) and includes(newer, older):
            needless.append(old)
    return _remove(needless)


def _rewrite(files: Sequence[tuple[str, bytes]]) -> None:
    """Replace files that are there. A crash in between leaves the old content: a repetition, no loss."""
    for path, data in files:
        if os.path.exists(path):
            fs.replace_file(path, data)
