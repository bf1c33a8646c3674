"""The lifecycle daemon: carries out the lifecycle rules of S3 buckets (``spec: s3-api 3.13``).

Which buckets have rules is written down in the container ``lifecycle`` of the cluster's own account, one entry for each, so a
pass costs what those buckets cost and nothing for all others. For each it reads the rules as they are now, walks the listing
of the part of the bucket that they are about, and deletes what is due by the same code that serves S3's clients: versions,
delete markers, object lock and uploads in parts are what they are there. ``lifecycle_plan`` says what is due. Whatever is cut
off, or done twice, is found as it is by the next pass.

Two daemons may be at one bucket, and clients always are, on machines that share no lock. So what is deleted is named: a
version by its id, an object of a bucket without versions by its time; and the delete markers of one hour have one time, and
so are one. The parts of an upload go in two steps: a note of it
comes into the container ``ending`` of the cluster's account, and the marker, without which nothing can be completed, goes, or
the object that is made of them; ``ENDING_S`` later, when whoever had found the marker has come to an end, the parts go unless
an object is made of them after all.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, ClassVar, Final, NamedTuple

from keelstore.common import concurrency
from keelstore.common.daemon_frame import ALL, Daemon, Selection, World
from keelstore.common.errors import KeelstoreError
from keelstore.common.headers import Headers, is_true
from keelstore.common.internal import InternalClient, make_path, subrequest
from keelstore.common.middleware.s3api import lifecycle, lifecycle_plan, own_account, tags, upload
from keelstore.common.middleware.s3api.deletion import delete_object
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.history import versions_of
from keelstore.common.middleware.s3api.lifecycle_plan import Due, Version
from keelstore.common.middleware.s3api.lifecycle_rules import Rule
from keelstore.common.middleware.s3api.metadata import DELETED_TYPE
from keelstore.common.middleware.s3api.options import S3ApiOptions
from keelstore.common.middleware.s3api.outcome import check
from keelstore.common.middleware.s3api.request import OBJECT_SYSMETA, S3Request
from keelstore.common.middleware.s3api.target import Target
from keelstore.common.middleware.s3api.versions import ENABLED, NULL, status_of
from keelstore.common.names import HashPath
from keelstore.common.timestamp import Timestamp
from keelstore.container.options import ContainerLifecycleOptions

PAGE: Final = 1000
UPLOAD_ID: Final = OBJECT_SYSMETA + "Upload-Id"  # of an object that is made of parts
FORGET_S: Final = 86400.0  # an entry of a bucket without rules goes when it is that old: its rules may be on their way
ENDING: Final = "ending"  # container of notes: ``account/bucket/upload id`` of parts that are to go; the body is the key
ENDING_S: Final = 3600.0
WINDOW_S: Final = 3600.0
STATS: Final = ("expired", "versions", "markers", "uploads", "locked", "failures")


class Bucket(NamedTuple):
    account: str
    name: str
    noted_s: float  # since when it is written down

    @property
    def path(self) -> str:
        return f"{self.account}/{self.name}"


class Ending(NamedTuple):
    """The parts of an upload that is over."""

    account: str
    name: str
    upload_id: str
    noted_s: float

    @property
    def path(self) -> str:
        return f"{self.account}/{self.name}"


class ContainerLifecycle(Daemon):
    name: ClassVar[str] = "container-lifecycle"
    rest_share: ClassVar[float] = 1.0  # never more than half of the time

    def __init__(
        self,
        options: ContainerLifecycleOptions,
        world: World,
        client: InternalClient,
        hash_path: HashPath,
        share: Callable[[], tuple[int, int]] | None = None,
    ):
        """``share``: (index, count): which buckets are ours; None: all."""
        super().__init__(world, options.interval, options.concurrency)
        self.options, self.client, self._hash_path = options, client, hash_path
        self._share = share or (lambda: (0, 1))
        self._s3 = S3ApiOptions(s3_acl=True)  # requests with the rights of the cluster
        self.counts = dict.fromkeys(STATS, 0)

    # -- a pass --------------------------------------------------------------------------------------------------------

    def plan(self, only: Selection) -> Iterator[Bucket | Ending]:
        for entry in self.client.list_container(own_account.ACCOUNT, ENDING):
            parts, noted_s = str(entry.get("name", "")).split("/"), _seconds(entry.get("last_modified", ""))
            if len(parts) == 3 and self._is_ours(*parts[:2]) and self.world.clock() - noted_s >= ENDING_S:
                yield Ending(parts[0], parts[1], parts[2], noted_s)
        for entry in self.client.list_container(own_account.ACCOUNT, lifecycle.NAME):
            account, slash, bucket = str(entry.get("name", "")).partition("/")
            if slash and self._is_ours(account, bucket):
                yield Bucket(account, bucket, _seconds(entry["last_modified"]))

    def _is_ours(self, account: str, bucket: str) -> bool:
        index, count = self._share()
        return bool(count) and int.from_bytes(self._hash_path.digest(account, bucket), "big") % count == index

    def describe(self, job: Bucket | Ending) -> str:
        if isinstance(job, Ending):
            return f"delete the parts of the upload {job.upload_id} of {job.path}"
        return f"carry out the lifecycle rules of {job.path}"

    def figures(self) -> dict[str, Any]:
        return dict(self.counts)

    def after_pass(self, only: Selection, took_s: float) -> None:
        if any(self.counts.values()):
            self.log.info("lifecycle: %s", {name: count for name, count in self.counts.items() if count})

    def carry_out(self, job: Bucket | Ending) -> bool:
        if isinstance(job, Ending):
            return self._end(job)
        request = self._request(job)
        try:
            info = request.container_info(job.name)
            if info.status // 100 == 5 or info.status == 0:
                raise S3Error("ServiceUnavailable", reason=str(info.status))
            rules = lifecycle.rules_of(request, info) if info.is_success else ()
        except (KeelstoreError, OSError) as error:
            return self._failed(job, error)
        if not rules:
            self._forget(job)
            return True
        try:
            is_done = self._objects(job, rules, bool(status_of(info)))
            return self._uploads(job, rules) and is_done
        except (KeelstoreError, OSError) as error:
            return self._failed(job, error)

    def _failed(self, job: Bucket, error: Exception) -> bool:
        self._count("failures")
        self.log.error("%s: its lifecycle rules could not be carried out: %s", job.path, error)
        return False

    def _forget(self, job: Bucket) -> None:
        """The bucket has no rules, or is no more: so has its entry, unless that is newer than we know."""
        if self.world.clock() - job.noted_s > FORGET_S:
            headers = {"X-Timestamp": Timestamp(job.noted_s + 1).internal}
            self.client.delete_object(own_account.ACCOUNT, lifecycle.NAME, job.path, headers, acceptable=(2, 404, 409))

    def _count(self, what: str) -> None:
        self.counts[what] += 1
        self.world.stats.increment(what)

    def _request(self, job: Bucket | Ending, key: str | None = None) -> S3Request:
        """What the code of S3 works with, of nobody, with the rights of the cluster."""
        environ = subrequest({}, "DELETE", "/", headers={"User-Agent": self.client.user_agent})
        environ["swift.trans_id"] = f"lifecycle-{job.name[:64]}"
        return S3Request(environ, self.client.app, self._s3, Target(job.name, key), None, lambda *_: job.account)

    # -- objects and versions ------------------------------------------------------------------------------------------

    def _objects(self, job: Bucket, rules: tuple[Rule, ...], has_versions: bool) -> bool:
        """Whether all that was due has gone."""
        now_s, day_s = self.world.clock(), self.options.lifecycle_day_seconds
        pool = concurrency.Pool(self.options.deletes_at_once)
        tasks: list[Any] = []
        is_done = True
        for _, lines in groupby(self._listed(job, rules, has_versions), lambda version: version.key):
            versions = list(lines)
            for due in lifecycle_plan.due(rules, versions, lambda version: self._tags(job, version), now_s, day_s):
                tasks.append(pool.spawn(self._delete, job, due, has_versions))
            if len(tasks) >= PAGE:
                is_done = _all(tasks) and is_done
                tasks = []
        return _all(tasks) and is_done

    def _listed(self, job: Bucket, rules: tuple[Rule, ...], has_versions: bool) -> Iterator[Version]:
        """Of each key, in order, the newest version first."""
        request = self._request(job)
        query = {"format": "json", "limit": str(PAGE)}
        if prefix := lifecycle_plan.common_prefix(rules):
            query["prefix"] = prefix
        if has_versions:
            query["versions"] = ""
        while True:
            response = request.swift("GET", job.name, query=query)
            if not response.is_success:
                response.drain()
                raise S3Error("ServiceUnavailable", reason=f"listing_{response.status}")
            entries = json.loads(response.read() or b"[]")
            for entry in entries:
                if has_versions and "name" in entry and "version_id" not in entry:
                    raise S3Error("InternalError", "the pipeline has no versioned_writes", reason="no_versions")
                if "name" in entry:
                    yield Version(
                        entry["name"],
                        int(entry.get("bytes", 0)),
                        _seconds(entry["last_modified"]),
                        str(entry.get("version_id") or NULL) if has_versions else "",
                        entry.get("content_type") == DELETED_TYPE,
                        bool(entry.get("is_latest", True)),
                    )
            if not entries:
                return
            query["marker"] = entries[-1].get("name") or entries[-1]["subdir"]
            if has_versions:
                query["version_marker"] = str(entries[-1].get("version_id") or NULL)

    def _head(self, job: Bucket, version: Version) -> Headers | None:
        query = {"version-id": version.version_id} if version.version_id else {}
        response = self._request(job, version.key).swift("HEAD", job.name, version.key, query=query)
        response.close()
        if response.is_success:
            return response.headers
        if response.status == 404:
            return None
        raise S3Error("ServiceUnavailable", reason=f"head_{response.status}")

    def _tags(self, job: Bucket, version: Version) -> dict[str, str]:
        headers = self._head(job, version)
        return tags.decode(headers.get(lifecycle.OBJECT_TAGS)) if headers is not None else {}

    def _delete(self, job: Bucket, due: Due, has_versions: bool) -> bool:
        version, request = due.version, self._request(job, due.version.key)
        try:
            if not has_versions:
                self._delete_plain(job, version, request)
            elif due.whole:
                newest = next(versions_of(request, version.key, must=True), {})
                if str(newest.get("version_id") or NULL) != version.version_id:
                    return True  # a newer one has come since the listing
                if status_of(request.bucket_info()) == ENABLED:
                    self._mark(job, version, request)
                else:
                    delete_object(request, version.key, None)
            else:
                delete_object(request, version.key, version.version_id)
        except S3Error as error:
            if error.code == "AccessDenied":
                self._count("locked")
                return True
            self._count("failures")
            self.log.error("%s/%s could not be deleted: %s", job.path, version.key, error)
            return False
        except (KeelstoreError, OSError) as error:
            self._count("failures")
            self.log.error("%s/%s could not be deleted: %s", job.path, version.key, error)
            return False
        self._count("expired" if due.whole else "markers" if version.is_marker else "versions")
        return True

    def _mark(self, job: Bucket, version: Version, request: S3Request) -> None:
        """A delete marker before the version that is the current object: one, whoever else makes it, too. Raises S3Error.

        It must be newer than what makes the version the current one, which is newer than the version where a delete marker
        was taken away.
        """
        current = request.swift("HEAD", job.name, version.key, query={"symlink": "get"}, headers={"X-Newest": "true"})
        current.close()
        if current.status == 404:
            return  # another was first
        if not current.is_success:
            raise S3Error("ServiceUnavailable", reason=f"head_{current.status}")
        if (current.headers.get("X-Object-Version-Id") or NULL) != version.version_id:
            return  # a newer one has come
        since_s = max(version.modified_s, float(Timestamp(current.headers["X-Timestamp"])))
        at_s = marker_s(since_s, time.time(), self.options.lifecycle_day_seconds)
        response = request.swift("DELETE", job.name, version.key, headers={"X-Timestamp": Timestamp(at_s).internal})
        response.drain()
        if not response.is_success and response.status not in (404, 409):
            raise S3Error("ServiceUnavailable", reason=f"delete_{response.status}")

    def _delete_plain(self, job: Bucket, version: Version, request: S3Request) -> None:
        """What was listed, and nothing that is newer: the tombstone has the time just after it. Raises S3Error."""
        headers = self._head(job, version)
        if headers is None:
            return
        stamp = Timestamp(headers["X-Timestamp"])
        if float(stamp) > version.modified_s + 1:
            return
        if is_true(headers.get("X-Static-Large-Object", "")):
            upload_id = headers.get(UPLOAD_ID)
            if not upload_id:  # made by a client of Swift: its segments may be anywhere
                delete_object(request, version.key, None)
                return
            self._end_later(job, version.key, upload_id)
        later = Timestamp(float(stamp) + 0.00001).internal
        response = request.swift("DELETE", job.name, version.key, headers={"X-Timestamp": later})
        response.drain()
        if not response.is_success and response.status not in (404, 409):
            raise S3Error("ServiceUnavailable", reason=f"delete_{response.status}")

    # -- uploads in parts ----------------------------------------------------------------------------------------------

    def _uploads(self, job: Bucket, rules: tuple[Rule, ...]) -> bool:
        """Whether all uploads whose time is over have gone."""
        if not any(rule.enabled and rule.abort_days is not None for rule in rules):
            return True
        now_s, is_done = self.world.clock(), True
        request = self._request(job)
        for entry in upload.listing(request, request.segments):
            key, _, upload_id = entry["name"].rpartition("/")
            if not key or len(upload_id) < upload.ID_LENGTH or entry.get("content_type") != upload.MARKER_TYPE:
                continue
            begun_s = _seconds(entry["last_modified"])
            if lifecycle_plan.ends_upload(rules, key, begun_s, now_s, self.options.lifecycle_day_seconds):
                is_done = self._abort(job, key, upload_id) and is_done
        return is_done

    def _abort(self, job: Bucket, key: str, upload_id: str) -> bool:
        """Whoever completes it may have found its marker just now: the parts stay for ``ENDING_S``."""
        request = self._request(job, key)
        try:
            self._end_later(job, key, upload_id)
            marker = upload.Upload(key, upload_id, Headers()).marker
            check(request, request.swift("DELETE", request.segments, marker), 404).drain()
        except (KeelstoreError, OSError) as error:
            self._count("failures")
            self.log.error("%s/%s: the upload %s could not be aborted: %s", job.path, key, upload_id, error)
            return False
        self._count("uploads")
        return True

    # -- parts -------------------------------------------------------------------------------------------------------------

    def _end_later(self, job: Bucket | Ending, key: str, upload_id: str) -> None:
        """Note that the parts of an upload are to go, if no object is made of them."""
        note = json.dumps(key).encode()
        place = own_account.ACCOUNT, ENDING
        answer = self.client.request("PUT", make_path(*place, f"{job.path}/{upload_id}"), acceptable=(2, 404), body=note)
        answer.drain()
        if answer.status == 404:
            self.client.create_container(*place)
            self.client.put_object(note, *place, f"{job.path}/{upload_id}")

    def _end(self, job: Ending) -> bool:
        """Delete the parts of an upload that nobody can have begun to complete for ``ENDING_S``."""
        place = own_account.ACCOUNT, ENDING, f"{job.path}/{job.upload_id}"
        try:
            note = self.client.request("GET", make_path(*place), {"X-Newest": "true"}, acceptable=(2, 404))
            body = note.read()
            if note.status == 404:
                return True  # another has done it
            if self.world.clock() - float(Timestamp(note.headers["X-Timestamp"])) < ENDING_S:
                return True  # it has been written once more since the pass was planned
            key = json.loads(body)
            ending, request = upload.Upload(key, job.upload_id, Headers()), self._request(job, key)
            response = request.swift("HEAD", request.segments, ending.marker, headers={"X-Newest": "true"})
            response.close()
            if response.status != 404:
                check(request, response)
                return self._abort(Bucket(job.account, job.name, job.noted_s), key, job.upload_id)  # it has not come to it
            info = request.container_info(job.name)
            if info.status == 404 or not upload.is_complete(request, key, job.upload_id):
                for number in upload.parts(request, ending):
                    check(request, request.swift("DELETE", request.segments, ending.part(number)), 404).drain()
            headers = {"X-Timestamp": Timestamp(job.noted_s + 0.00001).internal}  # not of a note that has come since
            self.client.delete_object(*place, headers, acceptable=(2, 404, 409))
        except (KeelstoreError, OSError, ValueError) as error:
            self._count("failures")
            self.log.error("%s: the parts of the upload %s could not be deleted: %s", job.path, job.upload_id, error)
            return False
        return True

    def run_once(self, only: Selection = ALL) -> None:
        self.counts = dict.fromkeys(STATS, 0)
        super().run_once(only)


def marker_s(modified_s: float, now_s: float, day_s: float) -> float:
    """The time of the delete marker for a version that is current since ``modified_s``: that of the hour, which all daemons
    have alike, so that what two of them make is one, and what has come meanwhile is newer. (A day may be short.)
    """
    window_s = min(WINDOW_S, day_s / 24)
    return max(now_s // window_s * window_s, modified_s + 0.00001)


def _all(tasks: list[Any]) -> bool:
    """Whether all of them, each of which is waited for, did well."""
    return all([bool(task.wait()) for task in tasks])  # noqa: C419


def _seconds(iso: str) -> float:
    """Of a listing's time."""
    try:
        return datetime.fromisoformat(iso).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return time.time()
