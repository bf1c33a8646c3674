"""The account reaper: removes what a deleted account still holds (``spec: daemons 6``).

The primaries of an account share its containers by their names, so that each is emptied by one of them. Everything is
deleted by ordinary requests with one timestamp of now: an object or container that cannot be reached keeps its place in the
account's listing, and the next pass comes back to it. The account's database itself goes when its replicas agree that it is
empty and old; the replicator sees to that.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from hashlib import md5
from typing import Any, ClassVar, Final, NamedTuple

from keelstore.account.broker import AccountBroker, AccountInfo
from keelstore.account.options import AccountReaperOptions
from keelstore.common import concurrency
from keelstore.common.broker_steps import timestamp_of
from keelstore.common.cluster import Cluster
from keelstore.common.daemon_frame import Daemon, Selection, World
from keelstore.common.device_walk import Device, hash_directories, own_nodes, partitions, usable_device
from keelstore.common.disk_calls import on_disk_thread
from keelstore.common.errors import BackendError, DeviceUnavailable, KeelstoreError, StorageError
from keelstore.common.headers import Headers
from keelstore.common.http import encode_query
from keelstore.common.listing import ListingQuery, Subdir
from keelstore.common.names import database_file
from keelstore.common.ring.ring import Node
from keelstore.common.timestamp import Timestamp
from keelstore.common.work import for_each

DATADIR: Final = "accounts"
PAGE: Final = 1000  # names that are asked for at once
MAX_PAGE_BYTES: Final = 64 << 20
_SHARDED: Final = ("sharding", "sharded")


class Job(NamedTuple):
    """A deleted account on one of its primaries here; ``position`` of ``shares`` says which containers are its share."""

    device: Device
    partition: int
    path: str  # of the hash directory
    account: str
    position: int
    shares: int
    age_s: float  # since it was deleted


def is_due(info: AccountInfo, now_s: float, delay_s: float) -> bool:
    """Whether an account's content is to go now."""
    return info.is_status_deleted and info.container_count > 0 \
        and now_s - float(timestamp_of(info.delete_timestamp)) > delay_s


def share_of(container: str, count: int) -> int:
    """Which of an account's primaries empties a container."""
    digest = md5(container.encode("utf-8", "surrogateescape"), usedforsecurity=False).digest()
    return int.from_bytes(digest, "big") % count


class AccountReaper(Daemon):
    name: ClassVar[str] = "account-reaper"

    def __init__(self, options: AccountReaperOptions, world: World, rings: Any, cluster: Cluster, backend: Any,
                 addresses: Collection[tuple[str, int]]):
        super().__init__(world, options.interval)
        self.options, self._rings, self._cluster, self._backend = options, rings, cluster, backend
        self._addresses = frozenset(addresses)
        self._containers_at_once = max(1, int(math.sqrt(options.concurrency)))
        self._objects_at_once = self._containers_at_once
        self._living: dict[str, tuple[int, int, int]] = {}  # databases that are not deleted, as they were when looked at
        self.counts: dict[str, int] = {f"{kind}_{what}": 0 for kind in ("containers", "objects")
                                       for what in ("deleted", "remaining", "possibly_remaining", "failures")}
        self._agent = f"account-reaper {os.getpid()}"

    # -- what is to be done --------------------------------------------------------------------------------------------

    def plan(self, only: Selection) -> Iterator[Job]:
        """Every deleted account with containers left of which a device of this node is a primary."""
        ring = self._rings.account.current()
        seen = set()
        for node in own_nodes(ring.nodes, self._addresses):
            if node.device in seen or not only.has_device(node.device):
                continue
            seen.add(node.device)
            try:
                device = usable_device(self.options.devices, node.device, self.options.mount_check)
            except DeviceUnavailable:
                self.log.warning("device %s is skipped: it is not mounted", node.device)
                continue
            try:
                for part in on_disk_thread(device.name, partitions, device.path, DATADIR, only):
                    primaries = ring.primaries(part)
                    position = next((place for place, primary in enumerate(primaries) if primary.id == node.id), None)
                    if position is None:
                        continue
                    path = f"{device.path}/{DATADIR}/{part}"
                    for found in on_disk_thread(device.name, _paths, path):
                        job = self._look(device, part, found, position, len(primaries))
                        if job is not None:
                            yield job
            except OSError as error:
                self.log.error("%s: its accounts cannot be listed: %s", device.path, error)

    def _look(self, device: Device, part: int, path: str, position: int, count: int) -> Job | None:
        broker = self._broker(device, path)
        try:
            state = broker.settled_state()
            if state is not None and self._living.get(path) == state and not broker.pending_size():
                return None
            info = broker.info()
            if not info.is_status_deleted:
                if state is not None and len(self._living) < 100_000:
                    self._living[path] = state
                return None
            self._living.pop(path, None)
            now = self.world.clock()
            if not is_due(info, now, self.options.delay_reaping):
                return None
            age = now - float(timestamp_of(info.delete_timestamp))
            return Job(device, part, path, info.account, position, count, age)
        except (StorageError, OSError) as error:
            if on_disk_thread(device.name, os.path.exists, broker.path):
                self.log.error("%s: %s", path, error or type(error).__name__)
            return None
        finally:
            broker.close()

    def _broker(self, device: Device, path: str) -> AccountBroker:
        return AccountBroker(database_file(path), device.path, self.log)

    def describe(self, job: Job) -> str:
        return f"reap account {job.account} (deleted {job.age_s:.0f} s ago, share {job.position + 1} of {job.shares})"

    # -- an account ----------------------------------------------------------------------------------------------------

    def carry_out(self, job: Job) -> bool:
        """Empty and delete this node's share of the account's containers. False: something remains."""
        began = self.world.clock()
        before = dict(self.counts)
        broker = self._broker(job.device, job.path)
        account_nodes = self._rings.account.current().primaries(job.partition)
        self.log.info("account %s: reaping begins", job.account)
        try:
            marker = ""
            while True:
                names = _names(broker, ListingQuery(PAGE * job.shares, marker, shows_reserved=True))
                if not names:
                    break
                marker = names[-1]
                ours = [name for name in names if share_of(name, job.shares) == job.position]
                for_each(ours, lambda name: self._container_safely(job, account_nodes, name), self._containers_at_once)
                self.show()
            left = broker.info().container_count
        finally:
            broker.close()
        done = {name: count - before[name] for name, count in self.counts.items() if count != before[name]}
        self.log.info("account %s: reaping ends: %s", job.account,
                      ", ".join(f"{name} {count}" for name, count in done.items()) or "nothing to do")
        self.world.stats.timing_since("timing", began)
        if left and job.age_s >= self.options.reap_warn_after + self.options.delay_reaping:
            since = Timestamp(self.world.clock() - job.age_s).isoformat
            self.log.warning("Account %s has not been reaped since %s", job.account, since)
        return not any(done.get(f"{kind}_{what}") for kind in ("containers", "objects")
                       for what in ("remaining", "possibly_remaining", "failures"))

    def figures(self) -> dict[str, Any]:
        return dict(self.counts)

    def _count(self, what: str) -> None:
        self.counts[what] += 1
        self.world.stats.increment(what)

    # -- a container ---------------------------------------------------------------------------------------------------

    def _container_safely(self, job: Job, account_nodes: Sequence[Node], container: str) -> None:
        try:
            self._container(job, account_nodes, container)
        except Exception:
            self._count("containers_failures")
            self.world.stats.increment("errors")
            self.log.exception("account %s: container %s could not be reaped", job.account, container)

    def _container(self, job: Job, account_nodes: Sequence[Node], container: str) -> None:
        """Delete the objects of a container, then the container."""
        account, ring = job.account, self._rings.container.current()
        part = ring.partition(self._cluster.hash_path.digest(account, container))
        nodes = ring.primaries(part)
        for policy_index, names in self._pages(account, container):
            policy = self._cluster.policies.by_index.get(policy_index)
            if policy is None:
                self.log.error("container %s/%s: its policy %d is not known here", account, container, policy_index)
                for _ in names:
                    self._count("objects_remaining")
                continue
            for_each(names, partial(self._object_safely, account, container, policy, part, nodes), self._objects_at_once)
        stamp = Timestamp(self.world.clock()).internal
        spare = list(account_nodes)
        calls = []
        for node in nodes:
            headers = Headers({"X-Timestamp": stamp, "X-Account-Override-Deleted": "yes", "User-Agent": self._agent})
            if spare:
                told = spare.pop()
                headers.update({"X-Account-Host": _host(told), "X-Account-Partition": str(job.partition),
                                "X-Account-Device": told.device})
            calls.append((node, f"/{node.device}/{part}/{account}/{container}", headers))
        self._settle("containers", self._delete_all(calls))

    def _pages(self, account: str, container: str) -> Iterator[tuple[int, list[str]]]:
        """(policy index, names) of a container, page by page; of its shards too when it is sharded."""
        marker = ""
        while True:
            headers, page = self._listing(account, container, {"marker": marker})
            names = [entry["name"] for entry in page if "name" in entry]
            policy_index = int(headers.get("X-Backend-Storage-Policy-Index") or 0)
            if names:
                yield policy_index, names
                marker = names[-1]
                continue
            break
        if headers.get("X-Backend-Sharding-State") in _SHARDED:
            _, shards = self._listing(account, container, {"states": "listing"}, {"X-Backend-Record-Type": "shard"})
            for shard in shards:
                name, _, rest = str(shard.get("name", "")).partition("/")
                if rest and (name, rest) != (account, container):
                    for _, names in self._pages(name, rest):
                        yield policy_index, names

    def _listing(self, account: str, container: str, params: dict[str, str],
                 extra: dict[str, str] | None = None) -> tuple[Headers, list[dict[str, Any]]]:
        """Headers and entries of one page, from the last primary, or one before it that answers.

        A container that none of them has is empty. Raises KeelstoreError when none answers.
        """
        ring = self._rings.container.current()
        part = ring.partition(self._cluster.hash_path.digest(account, container))
        headers = Headers({"User-Agent": self._agent, "X-Backend-Allow-Reserved-Names": "true", **(extra or {})})
        query = encode_query({"format": "json", "limit": str(PAGE), **params})
        problem, is_absent = "", False
        for node in reversed(ring.primaries(part)):
            try:
                answer = self._backend.call(node.replication_address, "GET", f"/{node.device}/{part}/{account}/{container}",
                                            headers, query, timeout_s=self.options.node_timeout)
                body = answer.read(MAX_PAGE_BYTES)
                if answer.is_success:
                    found = json.loads(body or b"[]")
                    return answer.headers, [entry for entry in found if isinstance(entry, dict)]
                is_absent = is_absent or answer.status == 404
                problem = f"{node.key} answers {answer.status}"
            except (BackendError, ValueError) as error:
                problem = f"{node.key}: {error}"
        if is_absent:
            return Headers(), []
        raise KeelstoreError(f"{account}/{container} cannot be listed: {problem}")

    # -- an object -----------------------------------------------------------------------------------------------------

    def _object_safely(self, account: str, container: str, policy: Any, part: int, container_nodes: Sequence[Node],
                       name: str) -> None:
        try:
            self._object(account, container, policy, part, container_nodes, name)
        except Exception:
            self._count("objects_failures")
            self.world.stats.increment("errors")
            self.log.exception("object %s/%s/%s could not be reaped", account, container, name)

    def _object(self, account: str, container: str, policy: Any, container_part: int, container_nodes: Sequence[Node],
                name: str) -> None:
        ring = self._rings.object(policy).current()
        part = ring.partition(self._cluster.hash_path.digest(account, container, name))
        stamp = Timestamp(self.world.clock()).internal
        calls = []
        primaries = ring.primaries(part)
        for number, node in enumerate(primaries):
            told = container_nodes[number :: len(primaries)] or (container_nodes[number % len(container_nodes)],)
            calls.append((node, f"/{node.device}/{part}/{account}/{container}/{name}", Headers({
                "X-Timestamp": stamp, "User-Agent": self._agent, "X-Container-Host": ",".join(map(_host, told)),
                "X-Container-Partition": str(container_part), "X-Container-Device": ",".join(one.device for one in told),
                "X-Backend-Storage-Policy-Index": str(policy.index),
            })))  # fmt: skip
        self._settle("objects", self._delete_all(calls))

    def _delete_all(self, calls: Sequence[tuple[Node, str, Headers]]) -> list[bool]:
        tasks = [concurrency.spawn(self._delete, *call) for call in calls]
        return [task.wait() for task in tasks]

    def _delete(self, node: Node, path: str, headers: Headers) -> bool:
        try:
            answer = self._backend.call(node.replication_address, "DELETE", path, headers,
                                        timeout_s=self.options.node_timeout)
            answer.drain()
        except BackendError as error:
            self.log.warning("%s: DELETE %s: %s", node.key, path, error)
            return False
        self.world.stats.increment(f"return_codes.{answer.status // 100}")
        if answer.is_success or answer.status == 404:
            return True
        self.log.warning("%s answered %d to DELETE %s", node.key, answer.status, path)
        return False

    def _settle(self, kind: str, outcomes: Sequence[bool]) -> None:
        """Count what came of deleting one thing everywhere."""
        done = sum(outcomes)
        failed = len(outcomes) - done
        self._count(f"{kind}_{'deleted' if done > failed else 'possibly_remaining' if done else 'remaining'}")


def _paths(partition_path: str) -> list[str]:
    return list(hash_directories(partition_path))


def _names(broker: AccountBroker, query: ListingQuery) -> list[str]:
    rows = broker.read_fresh(lambda connection: broker.list_in(connection, query))
    return [row[0] for row in rows if not isinstance(row, Subdir)]


def _host(node: Node) -> str:
    ip = f"[{node.replication_ip}]" if ":" in node.replication_ip else node.replication_ip
    return f"{ip}:{node.replication_port}"
