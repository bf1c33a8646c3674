"""The lifecycle daemon: carries out the lifecycle rules of S3 buckets (``spec: s3-api 3.13``).

Which buckets have rules is written down in the container ``lifecycle`` of the cluster's own account, one entry for each, so a
pass costs what those buckets cost and nothing for all others. For each it reads the rules as they are now, walks the listing
of the part of the bucket that they are about, and deletes what is due by the same code that serves S3's clients: versions,
delete markers, object lock and uploads in parts are what they are there. ``lifecycle_plan`` says what is due. Whatever is cut
off, or done twice, is found as it is by the next pass.
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
from keelstore.common.internal import InternalClient, subrequest
from keelstore.common.middleware.s3api import lifecycle, lifecycle_plan, own_account, tags, upload
from keelstore.common.middleware.s3api.deletion import delete_object
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.history import versions_of
from keelstore.common.middleware.s3api.lifecycle_plan import Due, Version
from keelstore.common.middleware.s3api.lifecycle_rules import Rule
from keelstore.common.middleware.s3api.metadata import DELETED_TYPE
from keelstore.common.middleware.s3api.options import S3ApiOptions
from keelstore.common.middleware.s3api.outcome import check
from keelstore.common.middleware.s3api.request import S3Request
from keelstore.common.middleware.s3api.target import Target
from keelstore.common.middleware.s3api.versions import NULL, status_of
from keelstore.common.names import HashPath
from keelstore.common.timestamp import Timestamp
from keelstore.container.options import ContainerLifecycleOptions

PAGE: Final = 1000
FORGET_S: Final = 86400.0  # an entry of a bucket without rules goes when it is that old: its rules may be on their way
STATS: Final = ("expired", "versions", "markers", "uploads", "locked", "failures")


class Bucket(NamedTuple):
    account: str
    name: str
    noted_s: float  # since when it is written down

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

    def plan(self, only: Selection) -> Iterator[Bucket]:
        index, count = self._share()
        for entry in self.client.list_container(own_account.ACCOUNT, lifecycle.NAME):
            account, slash, bucket = str(entry.get("name", "")).partition("/")
            if not slash:
                continue
            digest = self._hash_path.digest(account, bucket)
            if count and int.from_bytes(digest, "big") % count == index:
                yield Bucket(account, bucket, _seconds(entry["last_modified"]))

    def describe(self, job: Bucket) -> str:
        return f"carry out the lifecycle rules of {job.path}"

    def figures(self) -> dict[str, Any]:
        return dict(self.counts)

    def after_pass(self, only: Selection, took_s: float) -> None:
        if any(self.counts.values()):
            self.log.info("lifecycle: %s", {name: count for name, count in self.counts.items() if count})

    def carry_out(self, job: Bucket) -> bool:
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

    def _request(self, job: Bucket, key: str | None = None) -> S3Request:
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

    def _delete_plain(self, job: Bucket, version: Version, request: S3Request) -> None:
        """What was listed, and nothing that is newer: the tombstone has the time just after it. Raises S3Error."""
        headers = self._head(job, version)
        if headers is None:
            return
        stamp = Timestamp(headers["X-Timestamp"])
        if float(stamp) > version.modified_s + 1:
            return
        if is_true(headers.get("X-Static-Large-Object", "")):
            delete_object(request, version.key, None)
            return
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
        request = self._request(job, key)
        begun = upload.Upload(key, upload_id, Headers())
        try:
            with upload.alone(request, key, upload_id):
                names = [begun.marker]
                if not upload.is_complete(request, key, upload_id):
                    names[:0] = [begun.part(number) for number in upload.parts(request, begun)]
                for name in names:
                    check(request, request.swift("DELETE", request.segments, name), 404).drain()
        except S3Error as error:
            self._count("failures")
            self.log.error("%s: the upload %s could not be aborted: %s", job.path, begun.marker, error)
            return False
        self._count("uploads")
        return True

    def run_once(self, only: Selection = ALL) -> None:
        self.counts = dict.fromkeys(STATS, 0)
        super().run_once(only)


def _all(tasks: list[Any]) -> bool:
    """Whether all of them, each of which is waited for, did well."""
    return all([bool(task.wait()) for task in tasks])  # noqa: C419


def _seconds(iso: str) -> float:
    """Of a listing's time."""
    try:
        return datetime.fromisoformat(iso).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return time.time()
