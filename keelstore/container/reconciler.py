"""The container reconciler: moves objects that were written under the wrong storage policy (``spec: daemons 9``).

``reconcile.py`` has the form of the queue and what is to be done with an entry; this module asks and does. For each entry it
asks the container's replicas which policy is right, the right policy's devices what they have of the object and, if that is
older, the wrong policy's. What is in the right policy counts only when as many devices have it as a write needs: a copy is
never removed because of a move that came to a single device. Whatever order entries come in, and however often, nothing
older replaces anything newer: every write has the time of the object itself, with an offset.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Any, ClassVar, Final, NamedTuple

from keelstore.common import concurrency
from keelstore.common.cluster import Cluster
from keelstore.common.daemon_frame import ALL, Daemon, Selection, World
from keelstore.common.errors import BackendError, KeelstoreError
from keelstore.common.headers import Headers
from keelstore.common.internal import BodyOf, InternalClient, make_path
from keelstore.common.peers import Peers
from keelstore.common.policy import Policy
from keelstore.common.quorum import majority_size
from keelstore.common.ring.ring import Node, Ring
from keelstore.common.timestamp import ZERO, Timestamp
from keelstore.common.work import back_off_s
from keelstore.container import reconcile
from keelstore.container.options import ContainerReconcilerOptions
from keelstore.container.policy_rule import PolicyClaim, remote_wins
from keelstore.container.reconcile import MOVE_OFFSET, POP_OFFSET, TOMBSTONE_OFFSET, Entry, Found, Step, later

POLICY_FOR_S: Final = 30.0  # the right policy of a container is asked anew after this long
MAX_KNOWN: Final = 10_000  # containers of which it is remembered, entries that wait to be tried again
TAKE_OVER_S: Final = 60.0  # an entry that is still there so long after we saw it first: whose share it is may be down
FIRST_RETRY_S, LAST_RETRY_S = 15.0, 600.0
PAGE: Final = 1000

STATS: Final = (
    "success", "retry", "pop_queue", "cleanup_attempt", "cleanup_failed", "cleanup_success", "unavailable_container",
    "noop_object", "ppi_skip", "unavailable_destination", "found_object", "misplaced_object", "lost_source",
    "unavailable_source", "copy_attempt", "copy_failed", "copy_success", "delete_attempt", "delete_failed",
    "delete_success", "unhandled_error", "invalid_record",
)  # fmt: skip

# Of an answer to GET, what is not the object's.
_NOT_KEPT: Final = frozenset({
    "Accept-Ranges", "Connection", "Content-Length", "Content-Range", "Date", "Keep-Alive", "Last-Modified", "Server",
    "Transfer-Encoding", "Vary", "X-Openstack-Request-Id", "X-Storage-Policy", "X-Timestamp", "X-Trans-Id",
})  # fmt: skip


class Survey(NamedTuple):
    """What the devices of a policy have of an object: the newest, how many have what is as new as an entry, and its content
    type as it is stored.
    """

    found: Found
    holders: int
    content_type: str = ""


class ContainerReconciler(Daemon):
    name: ClassVar[str] = "container-reconciler"
    starts_at_once: ClassVar[bool] = True

    def __init__(self, options: ContainerReconcilerOptions, world: World, client: InternalClient, rings: Any,
                 cluster: Cluster, backend: Any, share: Callable[[], tuple[int, int]] | None = None):
        """``share``: (index, count): the entries of this process, where no ``processes`` are configured."""
        super().__init__(world, options.interval, options.concurrency)
        self.options, self._rings, self._cluster = options, rings, cluster
        self.client = client
        self._writer = InternalClient(_as_stored(client.app), client.user_agent, 1, client.use_replication_network)
        self.peers = Peers(backend, world.clock)
        self._share = share or (lambda: (options.process, options.processes))
        self._policies: OrderedDict[tuple[str, str], tuple[float, int | None]] = OrderedDict()
        self._waits: OrderedDict[str, tuple[int, float]] = OrderedDict()  # entries: (times tried, try again at)
        self._seen: OrderedDict[str, float] = OrderedDict()  # entries of others' shares: since when
        self._is_dry = False
        self.counts = dict.fromkeys(STATS, 0)
        self.left = 0  # entries that the last pass could not finish

    # -- a pass --------------------------------------------------------------------------------------------------------

    def plan(self, only: Selection) -> Iterator[Entry]:
        now = self.world.clock()
        current = reconcile.queue_of(now)
        for queue in chain([current], (queue for queue in self._queues() if queue != current)):
            try:
                yield from self._entries(queue, now)
            except (KeelstoreError, OSError, ValueError) as error:  # its turn comes with the next pass
                self._count("unhandled_error")
                self.log.error("%s/%s could not be listed: %s", reconcile.ACCOUNT, queue, error)

    def _queues(self) -> Iterator[str]:
        """The containers of the queue, those of each page latest first."""
        names = (entry["name"] for entry in self.client.list_account(reconcile.ACCOUNT, limit=str(PAGE)) if "name" in entry)
        while page := list(islice(names, PAGE)):
            yield from reversed(page)

    def _entries(self, queue: str, now: float) -> Iterator[Entry]:
        is_empty = True
        for listed in self.client.list_container(reconcile.ACCOUNT, queue):
            is_empty = False
            try:
                entry = reconcile.parse_entry(queue, listed)
            except (ValueError, KeyError) as error:
                self._count("invalid_record")
                self.log.error("%s/%s: %s", reconcile.ACCOUNT, queue, error)
                continue
            if self._is_ours(entry, now) and now >= self._waits.get(entry.name, (0, 0.0))[1]:
                yield entry
        if is_empty and not self._is_dry and queue.isdigit() and int(queue) < now - self.options.reclaim_age:
            self._delete_queue(queue)

    def _is_ours(self, entry: Entry, now: float) -> bool:
        index, count = self._share()
        digest = self._cluster.hash_path.digest(entry.account, entry.container, entry.obj)
        if count <= 1 or int.from_bytes(digest, "big") % count == index:
            return True
        since = self._seen.setdefault(entry.name, now)
        if len(self._seen) > MAX_KNOWN:
            self._seen.popitem(last=False)
        if now - since < TAKE_OVER_S:
            return False
        del self._seen[entry.name]
        return True

    def dry_run(self, only: Selection = ALL) -> Iterator[str]:
        self._is_dry = True
        try:
            yield from super().dry_run(only)
        finally:
            self._is_dry = False

    def describe(self, job: Entry) -> str:
        what = "deletion of" if job.is_delete else "object"
        line = f"{what} {job.path} under policy {job.policy_index}, of {job.timestamp.isoformat}"
        if not self._is_dry:
            return line
        right = self._right_policy(job)
        if right is None:
            return f"{line}: its container's policy is not known now"
        return f"{line}: belongs under policy {right}" if right != job.policy_index else f"{line}: is where it belongs"

    def before_pass(self, only: Selection) -> None:
        self.peers.forget()
        self.left = 0

    def after_pass(self, only: Selection, took_s: float) -> None:
        if self.progress.done:
            self.log.info("Reconciler Stats: %s", {name: count for name, count in self.counts.items() if count})

    def figures(self) -> dict[str, Any]:
        return {"left": self.left, "waiting": len(self._waits), **self.counts}

    def _count(self, what: str, count: int = 1) -> None:
        self.counts[what] += count
        self.world.stats.increment(what)

    # -- one entry -----------------------------------------------------------------------------------------------------

    def carry_out(self, job: Entry) -> bool:
        """Bring an object where it belongs. False: it has to be tried again, if not at once by the next pass."""
        try:
            is_done = self._reconcile(job)
            if is_done:
                self._pop(job)
                self._count("pop_queue")
        except (KeelstoreError, OSError) as error:
            is_done = False
            self._count("unhandled_error")
            self.log.error("%s under policy %d could not be reconciled: %s", job.path, job.policy_index, error)
        self._count("success" if is_done else "retry")
        if is_done:
            self._waits.pop(job.name, None)
            self._seen.pop(job.name, None)
            return True
        self.left += 1
        times = self._waits.get(job.name, (0, 0.0))[0] + 1
        self._waits[job.name] = times, self.world.clock() + back_off_s(times, FIRST_RETRY_S, LAST_RETRY_S)
        if len(self._waits) > MAX_KNOWN:
            self._waits.popitem(last=False)
        return False

    def _reconcile(self, entry: Entry) -> bool:
        """Whether the entry may go."""
        index = self._right_policy(entry)
        policies = self._cluster.policies.by_index
        if index is None or index not in policies:
            self._count("unavailable_container")
            return False
        if index == entry.policy_index:
            self._count("noop_object")
            return True
        if entry.policy_index not in policies:
            self._count("unavailable_source")
            self.log.error("%s: there is no policy %d", entry.path, entry.policy_index)
            return False
        right, wrong = policies[index], policies[entry.policy_index]
        if any(self._rings.object(policy).current().next_part_power is not None for policy in (right, wrong)):
            self._count("ppi_skip")
            return False
        destination = self._survey(entry, right)
        if destination is None:
            self._count("unavailable_destination")
            return False
        replicas = len(self._rings.object(right).current().primaries(0))
        if reconcile.is_settled(entry, destination.found) and destination.holders >= right.write_quorum(replicas):
            self._count("found_object")
            if entry.is_delete:
                source = self._survey(entry, wrong)
                if source is not None and source.found.status == 404 and source.found.timestamp >= entry.timestamp:
                    return True  # a tombstone more would be queued again by others, without end
            return self._clean(entry, entry.timestamp)
        source = self._survey(entry, wrong)
        if source is None:
            self._count("unavailable_source")
            return False
        now = self.world.clock()
        step = reconcile.next_step(entry, source.found, now, self.options.reclaim_age)
        time = max(entry.timestamp, source.found.timestamp) if source.found.is_there else entry.timestamp
        if step is Step.LOST:
            self._count("lost_source")
            self.log.warning("%s of %s was never found under policy %d and is given up", entry.path,
                             entry.timestamp.isoformat, wrong.index)
            return True
        if step is Step.RETRY:
            self._count("unavailable_source")
            return False
        self._count("misplaced_object")
        is_moved = self._delete(entry, time, right) if step is Step.DELETE else self._copy(entry, source, time, right)
        return is_moved and self._clean(entry, time)

    # -- asking --------------------------------------------------------------------------------------------------------

    def _right_policy(self, entry: Entry) -> int | None:
        key = entry.account, entry.container
        now = self.world.clock()
        asked, index = self._policies.get(key, (-POLICY_FOR_S, None))
        if not 0 <= now - asked < POLICY_FOR_S:
            index = self._ask_policy(*key)
            self._policies[key] = now, index
            self._policies.move_to_end(key)
            if len(self._policies) > MAX_KNOWN:
                self._policies.popitem(last=False)
        return index

    def _ask_policy(self, account: str, container: str) -> int | None:
        """The policy that a majority's answers make the right one; None when that cannot be told."""
        ring: Ring = self._rings.container.current()
        part = ring.partition(self._cluster.hash_path.digest(account, container))
        nodes = ring.primaries(part)
        answers = self._ask_all(nodes, "HEAD", f"{part}/{account}/{container}", Headers())
        known = [headers for status, headers in answers if 200 <= status < 300 or status == 404]
        if len(known) < majority_size(len(nodes)):
            return None
        best: PolicyClaim | None = None
        for headers in known:
            claim = claim_of(headers)
            if claim is not None and (best is None or remote_wins(best, claim)):
                best = claim
        return best.policy_index if best is not None else None

    def _survey(self, entry: Entry, policy: Policy) -> Survey | None:
        """What a policy's devices, and as many handoffs, have of an object; None when too few answered to tell."""
        ring: Ring = self._rings.object(policy).current()
        part = ring.partition(self._cluster.hash_path.digest(entry.account, entry.container, entry.obj))
        primaries = ring.primaries(part)
        nodes = [*primaries, *islice(ring.handoffs(part), len(primaries))]
        answers = self._ask_all(nodes, "HEAD", f"{part}{entry.path}", Headers({
            "X-Backend-Storage-Policy-Index": str(policy.index), "X-Backend-Open-Expired": "true"}))
        needed = majority_size(len(primaries))
        known = [status for status, _ in answers[:len(primaries)] if 200 <= status < 300 or status == 404]
        best = Survey(Found(404), 0)
        holders = 0
        for status, headers in answers:
            time = data_time(status, headers)
            if time is None:
                continue
            holders += time >= entry.timestamp
            is_there = 200 <= status < 300
            # A tombstone wins over data of the same time.
            if time > best.found.timestamp or (time == best.found.timestamp and best.found.is_there and not is_there):
                best = Survey(Found(200 if is_there else 404, time, _is_expired(headers, self.world.clock())), 0,
                              headers.get("Content-Type", "") if is_there else "")
        if len(known) < needed and best.found.timestamp < entry.timestamp:
            return None
        return best._replace(holders=holders)

    def _ask_all(self, nodes: Any, method: str, path: str, headers: Headers) -> list[tuple[int, Headers]]:
        tasks = [concurrency.spawn(self._ask, method, node, path, headers) for node in nodes]
        return [task.wait() for task in tasks]

    def _ask(self, method: str, node: Node, path: str, headers: Headers) -> tuple[int, Headers]:
        """Status and headers; a status of 0 when there was no answer."""
        headers = Headers(headers)
        headers["User-Agent"] = f"{self.name} {os.getpid()}"
        headers["X-Backend-Allow-Reserved-Names"] = "true"
        try:
            answer = self.peers.call(node.replication_address, method, f"/{node.device}/{path}", headers,
                                     timeout_s=self.options.node_timeout)
            answer.drain()
            return answer.status, answer.headers
        except BackendError as error:
            self.log.info("%s cannot be asked: %s", node.key, error)
            return 0, Headers()

    # -- doing ---------------------------------------------------------------------------------------------------------

    def _copy(self, entry: Entry, source: Survey, time: Timestamp, right: Policy) -> bool:
        self._count("copy_attempt")
        try:
            is_copied = self._copy_now(entry, source, time, right)
        except (KeelstoreError, OSError) as error:
            is_copied = False
            self.log.warning("%s could not be copied to policy %d: %s", entry.path, right.index, error)
        self._count("copy_success" if is_copied else "copy_failed")
        return is_copied

    def _copy_now(self, entry: Entry, source: Survey, time: Timestamp, right: Policy) -> bool:
        """Raises KeelstoreError, OSError."""
        names = entry.account, entry.container, entry.obj
        read = self.client.get_object(*names, headers={
            "X-Backend-Storage-Policy-Index": str(entry.policy_index), "X-Newest": "true"})
        try:
            found = data_time(read.status, read.headers)
            if found is None or found != source.found.timestamp:
                return False  # not the one that was seen
            headers = {name: value for name, value in read.headers.items()
                       if name not in _NOT_KEPT and not name.startswith(("X-Backend-", "X-Object-Sysmeta-Ec-"))}
            headers.update({"X-Timestamp": later(time, MOVE_OFFSET).internal, "Content-Type": source.content_type,
                            "X-Backend-Storage-Policy-Index": str(right.index)})
            length = int(read.headers["Content-Length"])
            self._writer.put_object(BodyOf(read, length), *names, headers=headers, length=length)
        finally:
            read.close()
        return True

    def _delete(self, entry: Entry, time: Timestamp, right: Policy) -> bool:
        self._count("delete_attempt")
        is_deleted = self._throw_tombstone(entry, right.index, later(time, MOVE_OFFSET))
        self._count("delete_success" if is_deleted else "delete_failed")
        return is_deleted

    def _clean(self, entry: Entry, time: Timestamp) -> bool:
        """Remove from the wrong policy what is not newer than ``time``."""
        self._count("cleanup_attempt")
        is_clean = self._throw_tombstone(entry, entry.policy_index, later(time, TOMBSTONE_OFFSET))
        self._count("cleanup_success" if is_clean else "cleanup_failed")
        return is_clean

    def _throw_tombstone(self, entry: Entry, policy_index: int, time: Timestamp) -> bool:
        try:
            answer = self.client.request("DELETE", make_path(entry.account, entry.container, entry.obj), {
                "X-Timestamp": time.internal, "X-Backend-Storage-Policy-Index": str(policy_index),
                "X-Backend-Clean-Expiring-Object-Queue": "f"}, acceptable=(2, 404, 409))
            answer.drain()
        except (KeelstoreError, OSError) as error:
            self.log.warning("%s could not be deleted from policy %d: %s", entry.path, policy_index, error)
            return False
        if answer.status == 404 and not answer.headers.get("X-Backend-Timestamp"):  # no object server's answer
            self.log.warning("%s could not be deleted from policy %d: its container is not there", entry.path, policy_index)
            return False
        return True

    def _pop(self, entry: Entry) -> None:
        """Remove an entry from the replicas of the queue. Raises BackendError when a majority did not take that."""
        ring: Ring = self._rings.container.current()
        part = ring.partition(self._cluster.hash_path.digest(reconcile.ACCOUNT, entry.queue))
        nodes = ring.primaries(part)
        time = later(max(entry.recorded, entry.timestamp), POP_OFFSET)
        answers = self._ask_all(nodes, "DELETE", f"{part}/{reconcile.ACCOUNT}/{entry.queue}/{entry.name}",
                                Headers({"X-Timestamp": time.internal}))
        if sum(200 <= status < 300 or status == 404 for status, _ in answers) < majority_size(len(nodes)):
            raise BackendError(f"too few replicas of {reconcile.ACCOUNT}/{entry.queue} took the removal of an entry")

    def _delete_queue(self, queue: str) -> None:
        try:
            self.client.delete_container(reconcile.ACCOUNT, queue, acceptable=(2, 404, 409, 412))
        except (KeelstoreError, OSError) as error:
            self.log.warning("%s/%s is empty and could not be deleted: %s", reconcile.ACCOUNT, queue, error)


def claim_of(headers: Headers) -> PolicyClaim | None:
    """What an answer of a container server says of the policy; None when it knows nothing of the container."""
    try:
        put, delete, changed = (Timestamp(headers.get(f"X-Backend-{name}") or "0")
                                for name in ("Put-Timestamp", "Delete-Timestamp", "Status-Changed-At"))
        index = int(headers.get("X-Backend-Storage-Policy-Index") or "")
        count = int(headers.get("X-Container-Object-Count") or 0)
    except ValueError:
        return None
    return PolicyClaim(index, put, delete, changed, count) if put or delete or changed else None


def data_time(status: int, headers: Headers) -> Timestamp | None:
    """The time of an object's data, or of its tombstone; None when an answer tells none."""
    names = ("X-Backend-Data-Timestamp", "X-Backend-Timestamp", "X-Timestamp") if 200 <= status < 300 \
        else ("X-Backend-Timestamp",) if status == 404 else ()
    for name in names:
        text = headers.get(name)
        if text:
            try:
                return Timestamp(text)
            except ValueError:
                return None
    return ZERO if status == 404 else None


def _is_expired(headers: Headers, now: float) -> bool:
    text = headers.get("X-Delete-At") or ""
    return text.isdigit() and int(text) <= now


def _as_stored(app: Any) -> Any:
    """``app``, taking content types as they are stored, with the parameters of middlewares."""

    def trusting(environ: Any, start_response: Any) -> Any:
        environ["swift.content_type_overridden"] = True
        return app(environ, start_response)

    return trusting

