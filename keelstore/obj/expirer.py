"""The object expirer: deletes objects whose time has come, and what users marked for deletion (``spec: daemons 15``).

Entries of the queue are worked through in order of time. An object is deleted only if its X-Delete-At still is the one of
the entry (``X-If-Delete-At``; all replicas are asked before, as one may have missed a change): one that was written anew with
another time answers 412 and is left alone. Its entry stays until it is older than ``reclaim_age``, as the object with that
time may still be on its way to us; it is looked at again ever more seldom. When the object is gone, so is the entry, from
every replica of the queue's container.

*Lag* is how late the oldest entry is that should be gone and is not, entries that wait on purpose (a delay, a 412) aside.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Final

from keelstore.common import concurrency
from keelstore.common.daemon_frame import ALL, Daemon, Selection, World
from keelstore.common.errors import BackendError, KeelstoreError
from keelstore.common.headers import Headers
from keelstore.common.internal import InternalClient, UnexpectedResponse, make_path
from keelstore.common.names import HashPath
from keelstore.common.peers import Peers
from keelstore.common.ring.ring import Node, RingFile
from keelstore.common.timestamp import Timestamp
from keelstore.common.work import RateLimit, back_off_s
from keelstore.obj.expiry_queue import Delays, Share, Task, is_expected, parse_task, queue_time, spread
from keelstore.obj.options import ObjectExpirerOptions

TAKE_OVER_S: Final = 30.0  # an entry this late is taken by whoever sees it: the one whose share it is may be down
MAX_STALE: Final = 20_000  # entries of which it is remembered that their objects were not as expected
STALE_FIRST_S, STALE_MOST_S = 60.0, 3600.0


class ObjectExpirer(Daemon):
    name: ClassVar[str] = "object-expirer"

    def __init__(self, options: ObjectExpirerOptions, world: World, client: InternalClient, ring: RingFile,
                 hash_path: HashPath, backend: Any, delays: Delays | None = None,
                 share: Callable[[], Share] | None = None):
        """``share``: which entries are this process's, where no ``processes`` are configured."""
        super().__init__(world, options.interval, options.concurrency)
        self.options, self.client, self._ring, self._hash_path = options, client, ring, hash_path
        self.peers = Peers(backend, world.clock)
        self.delays = delays or Delays({})
        self._share = share or (lambda: Share(options.process, options.processes))
        self._rate = RateLimit(options.tasks_per_second)
        self._account = f".{options.expiring_objects_account_name.lstrip('.')}"
        self._stale: OrderedDict[tuple[str, str], tuple[int, float]] = OrderedDict()  # entry: (times seen, look again at)
        self._left: dict[str, float] = {}  # of entries that failed in this pass: when they were due
        self._is_dry = False
        self.lag_s = 0.0
        self.counts = dict.fromkeys(("objects", "errors", "tasks.parse_errors", "tasks.skipped", "tasks.delayed",
                                     "tasks.assigned", "tasks.stale"), 0)
        self._deleted_before = 0

    # -- a pass --------------------------------------------------------------------------------------------------------

    def plan(self, only: Selection) -> Iterator[Task]:
        if not self.options.dequeue_from_legacy:
            self.log.info("dequeue_from_legacy is false: the queue is left to others")
            return iter(())
        return spread(self._due(self._share()), self.options.round_robin_task_cache_size)

    def _due(self, share: Share) -> Iterator[Task]:
        now = self.world.clock()
        for entry in self.client.list_account(self._account):
            container = entry.get("name")
            if container is None:
                continue
            time = queue_time(container)
            if time is None:
                self._count("tasks.parse_errors")
                self.log.warning("%s/%s is no container of the expiry queue", self._account, container)
                continue
            if float(time) > now:
                return
            if not is_expected(container, self.options.expiring_objects_container_divisor):
                self.log.info("%s/%s is an unusual container of the expiry queue", self._account, container)
            try:
                yield from self._due_in(container, now, share)
            except (KeelstoreError, OSError, ValueError) as error:  # its turn comes with the next pass
                self._count("errors")
                self.log.error("%s/%s of the expiry queue could not be listed: %s", self._account, container, error)

    def _due_in(self, container: str, now: float, share: Share) -> Iterator[Task]:
        is_empty = True
        for entry in self.client.list_container(self._account, container):
            is_empty = False
            try:
                task = parse_task(container, entry["name"], entry.get("content_type", ""))
            except (ValueError, KeyError) as error:
                self._count("tasks.parse_errors")
                self.log.error("%s/%s: %s", self._account, container, error)
                continue
            due = float(task.delete_at)
            if due > now:
                return
            if not task.is_async and due > now - self.delays.of(task):
                self._count("tasks.delayed")
            elif not share.holds(task) and now - due < TAKE_OVER_S + self.interval_s:
                self._count("tasks.skipped")
            elif self._is_stale(task, now):
                self._count("tasks.stale")
            else:
                self._count("tasks.assigned")
                yield task
        if is_empty and not self._is_dry:
            self._delete_container(container)

    def dry_run(self, only: Selection = ALL) -> Iterator[str]:
        self._is_dry = True
        try:
            yield from super().dry_run(only)
        finally:
            self._is_dry = False

    def describe(self, job: Task) -> str:
        return f"delete /{job.account}/{job.container}/{job.obj}, due {job.delete_at.isoformat}" \
               + (" (marked by a user)" if job.is_async else "")

    def before_pass(self, only: Selection) -> None:
        self._left.clear()
        self.peers.forget()
        self._deleted_before = self.counts["objects"]

    def after_pass(self, only: Selection, took_s: float) -> None:
        now = self.world.clock()
        self.lag_s = max((now - due for due in self._left.values()), default=0.0)
        deleted = self.counts["objects"] - self._deleted_before
        self.world.leave("object", {"object_expiration_pass": took_s, "expired_last_pass": deleted,
                                    "object_expirer_lag": self.lag_s, "object_expirer_failed": len(self._left)})
        if deleted or self._left:
            self.log.info("pass of %.1f s: %d objects expired, %d failed", took_s, deleted, len(self._left))

    def figures(self) -> dict[str, Any]:
        return {"lag_s": self.lag_s, "failed_tasks": len(self._left), **self.counts}

    def _count(self, what: str) -> None:
        self.counts[what] += 1
        self.world.stats.increment(what)

    # -- entries that wait on purpose ----------------------------------------------------------------------------------

    def _is_stale(self, task: Task, now: float) -> bool:
        known = self._stale.get((task.queue_container, task.name))
        return known is not None and now < known[1]

    def _remember_stale(self, task: Task) -> None:
        key = (task.queue_container, task.name)
        times = self._stale.get(key, (0, 0.0))[0] + 1
        self._stale[key] = (times, self.world.clock() + back_off_s(times, STALE_FIRST_S, STALE_MOST_S))
        self._stale.move_to_end(key)
        if len(self._stale) > MAX_STALE:
            self._stale.popitem(last=False)

    # -- one entry -----------------------------------------------------------------------------------------------------

    def carry_out(self, job: Task) -> bool:
        """Delete the object and the entry. False: something failed, the next pass tries again."""
        delay = self._rate.delay_s(self.world.clock())
        if delay:
            concurrency.sleep(delay)
        began = self.world.clock()
        try:
            self._delete_object(job)
            self._pop(job)
        except UnexpectedResponse as error:
            if error.status in (404, 412):
                if began - float(job.delete_at) <= self.options.reclaim_age:
                    self._remember_stale(job)
                    return True
                return self._pop_safely(job)
            return self._failed(job, error)
        except (KeelstoreError, OSError) as error:
            return self._failed(job, error)
        self._stale.pop((job.queue_container, job.name), None)
        self._count("objects")
        self.world.stats.timing_since("timing", began)
        return True

    def _failed(self, task: Task, error: Exception) -> bool:
        self._count("errors")
        self._left[task.name] = float(task.delete_at)
        self.log.error("%s could not be expired: %s", task.name, error)
        return False

    def _pop_safely(self, task: Task) -> bool:
        try:
            self._pop(task)
        except KeelstoreError as error:
            return self._failed(task, error)
        self._stale.pop((task.queue_container, task.name), None)
        return True

    def _delete_object(self, task: Task) -> None:
        """Raises UnexpectedResponse and whatever the pipeline raises."""
        path = make_path(task.account, task.container, task.obj)
        headers = {"X-Timestamp": task.delete_at.normal}
        acceptable: tuple[int, ...] = (2, 404, 409)
        if not task.is_async:
            self._check_newest(task, path)
            acceptable = (2, 409)
            headers.update({"X-If-Delete-At": task.delete_at.normal, "X-Backend-Clean-Expiring-Object-Queue": "no"})
        self.client.request("DELETE", path, headers, acceptable).drain()

    def _check_newest(self, task: Task, path: str) -> None:
        """A replica that missed a POST, or a PUT, still has the old time, and would delete what others have with a new
        one: so all that answer are asked first. Raises UnexpectedResponse (412) when the newest has another time.
        """
        headers = {"X-Newest": "true", "X-Backend-Open-Expired": "true"}
        response = self.client.request("HEAD", path, headers, (2,), params={"symlink": "get"})  # a link has a time of its own
        response.close()
        found = response.headers.get("X-Delete-At", "0")
        if found != str(int(float(task.delete_at))):
            raise UnexpectedResponse(f"the newest of {path} is to go at {found}", 412, response.headers, b"")

    def _pop(self, task: Task) -> None:
        """Remove an entry from every replica that answers. Raises BackendError when none did."""
        ring = self._ring.current()
        part = ring.partition(self._hash_path.digest(self._account, task.queue_container))
        headers = Headers({"X-Timestamp": Timestamp(self.world.clock()).internal,
                           "User-Agent": f"object-expirer {os.getpid()}"})
        path = f"{part}/{self._account}/{task.queue_container}/{task.name}"
        tasks = [concurrency.spawn(self._pop_one, node, path, headers) for node in ring.primaries(part)]
        if not sum(one.wait() for one in tasks):
            raise BackendError(f"no replica of {self._account}/{task.queue_container} took the removal")

    def _pop_one(self, node: Node, path: str, headers: Headers) -> bool:
        try:
            answer = self.peers.call(node.replication_address, "DELETE", f"/{node.device}/{path}", headers,
                                     timeout_s=self.options.node_timeout)
            answer.drain()
            return answer.is_success or answer.status == 404
        except BackendError as error:
            self.log.info("%s: an entry of the expiry queue could not be removed: %s", node.key, error)
            return False

    def _delete_container(self, container: str) -> None:
        try:
            self.client.delete_container(self._account, container, acceptable=(2, 404, 409))
        except (KeelstoreError, OSError) as error:
            self.log.warning("%s/%s is empty and could not be deleted: %s", self._account, container, error)
