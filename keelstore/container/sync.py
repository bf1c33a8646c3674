"""Container sync: brings what is written to a container to its copy in another cluster, or in this one (``spec: daemons 8``).

A container with ``X-Container-Sync-To`` and ``X-Container-Sync-Key`` has a link in ``sync_containers`` of the device of each
of its replicas. Each replica sends the rows that its database has gained, in order of ROWID, in two passes:

- *first*, rows after sync point 1: only those whose name's hash falls to this replica, so that the replicas share the work.
  Point 1 goes on whether they arrive or not.
- *again*, rows from sync point 2 up to point 1: all of them, whosever they were, so that the failure of one replica is made
  good by the others. Point 2 stops before the first row that does not arrive.

A row is sent as the object that it stands for now, with its time, unless the copy has it; a deleted one as a deletion with
the time of the deletion. So what arrives late or twice changes nothing. Rows under another policy than the container's are
passed over: they come again when the reconciler has moved their objects.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar, Final, NamedTuple, Protocol

from keelstore.common import events
from keelstore.common.broker import DatabaseNotFound
from keelstore.common.broker_steps import Connection
from keelstore.common.daemon_frame import Daemon, Selection, World
from keelstore.common.device_walk import Device, hash_directories, own_nodes, partitions, usable_devices
from keelstore.common.disk_calls import on_disk_thread
from keelstore.common.errors import KeelstoreError, StorageError
from keelstore.common.headers import Headers, is_true, text_to_wire
from keelstore.common.internal import BodyOf, InternalClient
from keelstore.common.names import HashPath, database_file
from keelstore.common.ring.ring import RingFile
from keelstore.common.sync_realms import Realms
from keelstore.common.timestamp import Timestamp, decode_timestamps
from keelstore.common.work import Risk, Workers, WorkQueue, back_off_s, for_each
from keelstore.container import sync_to
from keelstore.container.broker import ContainerBroker, ContainerInfo
from keelstore.container.options import SyncDaemonOptions
from keelstore.container.sync_remote import Answer, RemoteDown, Target, target_of

LINKS: Final = "sync_containers"
BATCH: Final = 100  # rows that are read at once
MAX_TOLD: Final = 20_000  # containers of which it is remembered when they were synced last
HINT_DELAY_S: Final = 1.5  # longer than hints of the same change are held back (events.SAME_S)
FIRST_AGAIN_S: Final = 5.0  # from the first failure of a row to the next try
LEAST_BETWEEN_S: Final = 4.0  # two runs for a container that changes all the time
VERSIONS: Final = "X-Container-Sysmeta-Versions-Enabled"
VERSIONS_LINK: Final = "X-Object-Sysmeta-Versions-Symlink"

# Of an answer to GET, what is not the object's, or not for the other cluster.
_NOT_SENT: Final = frozenset({
    "Accept-Ranges", "Connection", "Content-Range", "Date", "Keep-Alive", "Last-Modified", "Server", "Transfer-Encoding",
    "Vary", "X-Openstack-Request-Id", "X-Storage-Policy", "X-Trans-Id",
})  # fmt: skip
_ENCRYPTED: Final = ("X-Object-Sysmeta-Crypto-", "X-Object-Transient-Sysmeta-Crypto-")
_NOT_SENT_PREFIXES: Final = ("X-Backend-", "X-Object-Sysmeta-", "X-Object-Transient-Sysmeta-")


class Sender(Protocol):
    """What is used of :class:`~keelstore.container.sync_remote.Remote`."""

    def request(self, method: str, url: str, headers: Headers, body: Any = None) -> Answer: ...


class Job(NamedTuple):
    """A container with a link. ``path``: of the hash directory of its database."""

    device: Device
    partition: int
    path: str


class _Work(NamedTuple):
    """A container that is being synced."""

    info: ContainerInfo
    to: str  # X-Container-Sync-To, as it is stored
    target: Target
    position: int  # of this replica
    replicas: int


class ContainerSyncer(Daemon):
    name: ClassVar[str] = "container-sync"
    hints: ClassVar[frozenset[str]] = frozenset({events.CONTAINER})

    def __init__(self, options: SyncDaemonOptions, world: World, client: InternalClient, ring: RingFile,
                 hash_path: HashPath, addresses: Collection[tuple[str, int]], realms: Realms, remote: Sender):
        super().__init__(world, options.interval)
        self.options, self.client, self._ring, self._hash_path = options, client, ring, hash_path
        self._addresses, self._realms, self._remote = frozenset(addresses), realms, remote
        self.queue: WorkQueue[Job] = WorkQueue(MAX_TOLD)
        self.workers = Workers(self.queue, self._on_due, 1, self.log, world.clock)
        self._synced: OrderedDict[str, float] = OrderedDict()
        self._busy: set[str] = set()
        self._waits: dict[str, tuple[int, float]] = {}  # containers: (times that rows did not arrive, send them again at)
        self.counts = dict.fromkeys(("syncs", "puts", "deletes", "skips", "failures"), 0)
        self._reported = dict(self.counts)

    # -- passes --------------------------------------------------------------------------------------------------------

    def plan(self, only: Selection) -> Iterator[Job]:
        for device in usable_devices(self.options.devices, self.options.mount_check, self.log, only):
            try:
                for part in on_disk_thread(device.name, partitions, device.path, LINKS, only):
                    for path in on_disk_thread(device.name, _linked, f"{device.path}/{LINKS}/{part}"):
                        yield Job(device, part, f"{device.path}/containers/{path.split(f'/{LINKS}/', 1)[1]}")
            except OSError as error:
                self.log.error("%s: its synced containers cannot be listed: %s", device.path, error)

    def describe(self, job: Job) -> str:
        broker = self._broker(job)
        try:
            broker.merge_pending()
            work = self._work(job, broker)
            if work is None:
                return f"{job.path}: nothing is to be synced"
            info = work.info
            point1, point2 = info.x_container_sync_point1, info.x_container_sync_point2
            new = max(0, broker.read(broker.max_row) - max(0, point1))
            return f"sync /{info.account}/{info.container} to {work.target.url}: {new} rows that are new, " \
                   f"{max(0, point1 - max(0, point2))} again"
        except (StorageError, OSError, ValueError) as error:
            return f"{job.path}: {error}"
        finally:
            broker.close()

    def beside(self) -> Iterable[Callable[[], Any]]:
        return (self.workers.run,)

    def after_pass(self, only: Selection, took_s: float) -> None:
        if self.counts != self._reported:
            self._reported = dict(self.counts)
            self.log.info("containers synced %(syncs)d times: %(puts)d objects put, %(deletes)d deleted, %(skips)d "
                          "containers skipped, %(failures)d failures", self.counts)

    def figures(self) -> dict[str, Any]:
        return {"waiting": len(self.queue), **self.counts}

    def _count(self, what: str) -> None:
        self.counts[what] += 1
        self.world.stats.increment(what)

    def on_hint(self, kind: str, fields: tuple[str, ...]) -> None:
        """A container changed (device path, path of the hash directory)."""
        if not self._is_forever or len(fields) != 2:
            return
        device, path = fields
        prefix = f"{device}/containers/"
        if not path.startswith(prefix) or not os.path.lexists(f"{device}/{LINKS}/{path[len(prefix):]}"):
            return
        part = path[len(prefix):].partition("/")[0]
        if part.isdigit():
            due = max(self.world.clock() + HINT_DELAY_S, self._synced.get(path, 0.0) + LEAST_BETWEEN_S)
            self.queue.put(path, Job(Device(device.rpartition("/")[2], device), int(part), path), Risk.UPDATE, due)
            self.workers.kick()

    def _on_due(self, _key: Hashable, job: Job) -> None:
        self.progress.step(self.world.clock(), self.carry_out(job))

    # -- one container -------------------------------------------------------------------------------------------------

    def _broker(self, job: Job) -> ContainerBroker:
        return ContainerBroker(database_file(job.path), job.device.path, self.log)

    def carry_out(self, job: Job) -> bool:
        if job.path in self._busy:
            return True
        self._busy.add(job.path)
        broker = self._broker(job)
        try:
            broker.merge_pending()
            work = self._work(job, broker)
            if work is None:
                self._count("skips")
                return True
            is_well = self._sync(broker, work)
            self._count("syncs")
            return is_well
        except DatabaseNotFound:  # the link is left over
            self._count("skips")
            return True
        except (KeelstoreError, OSError, ValueError) as error:
            self._count("failures")
            self.log.error("%s cannot be synced: %s", job.path, error or type(error).__name__)
            return False
        finally:
            broker.close()
            self._busy.discard(job.path)
            self._synced[job.path] = self.world.clock()
            self._synced.move_to_end(job.path)
            if len(self._synced) > MAX_TOLD:
                self._synced.popitem(last=False)

    def _work(self, job: Job, broker: ContainerBroker) -> _Work | None:
        """What is to be synced where; None when it is not, or not from here. Raises StorageError, ValueError."""
        primaries = self._ring.current().primaries(job.partition)
        own = own_nodes(primaries, self._addresses)
        position = next((node.index for node in own if node.device == job.device.name), None)
        if position is None:
            return None
        info = broker.read(broker.info_in)
        metadata = info.metadata
        to, key = (metadata.get(name, ("", ""))[0] for name in (sync_to.TO, sync_to.KEY))
        if info.is_deleted or not to or not key:
            return None
        if is_true(metadata.get(VERSIONS, ("", ""))[0]):
            self.log.warning("/%s/%s keeps versions of its objects, and so is not synced", info.account, info.container)
            return None
        target = target_of(to, text_to_wire(key), self.options.allowed_sync_hosts, self._realms.current())
        return _Work(info, to, target, position, len(primaries))

    def _sync(self, broker: ContainerBroker, work: _Work) -> bool:
        """Both passes, until the time for a container is over. False: something did not arrive. Raises StorageError."""
        deadline = self.world.clock() + self.options.container_time
        try:
            is_well = self._again_unless_it_waits(broker, work, deadline)
            return self._first(broker, work, deadline) and is_well
        except RemoteDown as error:
            self._count("failures")
            self.log.error("/%s/%s cannot be synced: %s", work.info.account, work.info.container, error)
            return False

    def _again_unless_it_waits(self, broker: ContainerBroker, work: _Work, deadline: float) -> bool:
        """As ``_again``; but not at every change while some row never arrives, as all behind it are asked for each time."""
        now, path = self.world.clock(), broker.directory
        times, not_before = self._waits.pop(path, (0, 0.0))
        if self._is_forever and now < not_before:
            self._waits[path] = times, not_before
            return True
        is_well = self._again(broker, work, deadline)
        if not is_well and len(self._waits) < MAX_TOLD:
            self._waits[path] = times + 1, now + back_off_s(times + 1, FIRST_AGAIN_S, max(FIRST_AGAIN_S, self.interval_s))
        return is_well

    def _again(self, broker: ContainerBroker, work: _Work, deadline: float) -> bool:
        """All rows between the points. Raises RemoteDown, StorageError."""
        last, start = work.info.x_container_sync_point1, work.info.x_container_sync_point2
        reached, is_well = start, True
        try:
            while reached < last and self.world.clock() < deadline:
                rows = [row for row in broker.read(partial(broker.rows_since, start=reached, count=BATCH))
                        if row["ROWID"] <= last]
                failed = self._send(rows, work)
                if failed is not None and is_well:
                    is_well = False
                    start = failed - 1
                reached = rows[-1]["ROWID"] if rows else last
                if is_well:
                    start = reached
        finally:
            self._advance(broker, work, "x_container_sync_point2", start)
        return is_well

    def _first(self, broker: ContainerBroker, work: _Work, deadline: float) -> bool:
        """This replica's share of the rows that are new. Raises RemoteDown, StorageError."""
        reached, is_well = work.info.x_container_sync_point1, True
        while self.world.clock() < deadline:
            rows = broker.read(partial(broker.rows_since, start=reached, count=BATCH))
            if not rows:
                break
            is_well &= self._send([row for row in rows if self._is_own(row, work)], work) is None
            reached = rows[-1]["ROWID"]
            self._advance(broker, work, "x_container_sync_point1", reached)
        return is_well

    def _is_own(self, row: dict[str, Any], work: _Work) -> bool:
        digest = self._hash_path.digest(work.info.account, work.info.container, row["name"])
        return int.from_bytes(digest[:4], "big") % work.replicas == work.position

    def _advance(self, broker: ContainerBroker, work: _Work, column: str, point: int) -> None:
        """Set a sync point, unless the container goes elsewhere since."""

        def step(connection: Connection) -> None:
            if broker.metadata(connection).get(sync_to.TO, ("", ""))[0] == work.to:
                connection.execute(f"UPDATE container_info SET {column} = ?", (point,))

        if getattr(work.info, column) != point:
            broker.write(step)

    # -- rows ----------------------------------------------------------------------------------------------------------

    def _send(self, rows: Sequence[dict[str, Any]], work: _Work) -> int | None:
        """Send rows; the least ROWID of those that did not arrive, or None. Raises RemoteDown."""
        failed: list[int] = []

        def one(row: dict[str, Any]) -> None:
            try:
                is_well = self.sync_row(row, work)
            except RemoteDown:
                raise
            except (KeelstoreError, OSError, ValueError, KeyError) as error:
                is_well = False
                self.log.error("/%s/%s/%s cannot be synced: %s", work.info.account, work.info.container, row["name"],
                               error or type(error).__name__)
            if not is_well:
                failed.append(row["ROWID"])
                self._count("failures")

        for_each(rows, one, self.options.sync_row_concurrency)
        return min(failed, default=None)

    def sync_row(self, row: dict[str, Any], work: _Work) -> bool:
        """Whether the copy has what a row stands for, or something newer.

        Raises RemoteDown, KeelstoreError, OSError, ValueError, KeyError.
        """
        info = work.info
        if row["storage_policy_index"] != info.storage_policy_index:
            return True
        data, _, meta = decode_timestamps(row["created_at"])
        if row["deleted"]:
            return self._delete(row["name"], data, work)
        return self._put(row["name"], meta or data, work)

    def _request(self, method: str, name: str, timestamp: Timestamp | str, work: _Work, headers: Headers | None = None,
                 body: Any = None) -> Answer:
        headers = Headers(headers or {})
        text = timestamp if isinstance(timestamp, str) else timestamp.internal
        headers.update(work.target.headers(method, name, text))
        headers["User-Agent"] = f"{self.name} {os.getpid()}"
        if body is None and method != "HEAD":
            headers["Content-Length"] = "0"
        query = "?symlink=get" if method == "HEAD" else ""  # of a symlink, not of what it points at
        return self._remote.request(method, work.target.url_of(name) + query, headers, body)

    def _delete(self, name: str, time: Timestamp, work: _Work) -> bool:
        began = self.world.clock()
        answer = self._request("DELETE", name, time, work)
        if not (200 <= answer.status < 300 or answer.status in (404, 409)):
            return self._refused("DELETE", name, work, answer)
        self._count("deletes")
        self.world.stats.timing_since("deletes.timing", began)
        return True

    def _put(self, name: str, time: Timestamp, work: _Work) -> bool:
        answer = self._request("HEAD", name, time, work)
        if 200 <= answer.status < 300:
            if Timestamp(answer.headers.get("X-Timestamp") or "0") >= time:
                return True
        elif answer.status != 404:
            return self._refused("HEAD", name, work, answer)
        began = self.world.clock()
        info = work.info
        source = self.client.get_object(info.account, info.container, name, {
            "X-Newest": "true", "X-Backend-Storage-Policy-Index": str(info.storage_policy_index),
        }, acceptable=(2, 404), params={"symlink": "get"})  # fmt: skip
        try:
            found = Timestamp(source.headers.get("X-Backend-Timestamp") or source.headers.get("X-Timestamp") or "0")
            if source.status == 404:
                return found > time  # its deletion is a row that comes after this one
            if found < time:
                self.log.info("/%s/%s/%s is not yet as new as its row", info.account, info.container, name)
                return False
            if VERSIONS_LINK in source.headers:
                return True
            if any(key.startswith(_ENCRYPTED) for key in source.headers):
                self.log.error("/%s/%s/%s is encrypted, and what it is read through does not decrypt: give the file of "
                               "internal_client_conf_path the filters keymaster and encryption", info.account, info.container,
                               name)
                return False
            return self._put_object(name, source.headers, source, work, began)
        finally:
            source.close()

    def _put_object(self, name: str, found: Headers, source: Any, work: _Work, began: float) -> bool:
        headers = Headers({key: value for key, value in found.items()
                           if key not in _NOT_SENT and not key.startswith(_NOT_SENT_PREFIXES)})
        headers["Etag"] = headers["Etag"].strip('"')
        kind = headers.get("Content-Type", "")
        headers["Content-Type"] = ";".join(part for part in kind.split(";") if not part.strip().startswith("swift_bytes="))
        length = int(headers["Content-Length"])
        body = BodyOf(source, length) if length else None
        try:
            answer = self._request("PUT", name, headers["X-Timestamp"], work, headers, body)
        except RemoteDown as error:  # it has just answered: this object may be what it does not like
            self.log.error("PUT of /%s/%s/%s: %s", work.info.account, work.info.container, name, error)
            return False
        if not (200 <= answer.status < 300 or answer.status == 409):
            return self._refused("PUT", name, work, answer)
        self._count("puts")
        self.world.stats.timing_since("puts.timing", began)
        return True

    def _refused(self, method: str, name: str, work: _Work, answer: Answer) -> bool:
        hint = {401: ": do both containers have the same X-Container-Sync-Key, and both clusters the realm's key?",
                404: ": the container is not there"}.get(answer.status, "")
        self.log.error("%s of /%s/%s/%s at %s was answered %d%s", method, work.info.account, work.info.container, name,
                       work.target.url, answer.status, hint)
        return False


def _linked(partition_path: str) -> list[str]:
    return list(hash_directories(partition_path))
