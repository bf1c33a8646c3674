"""Deleting one object or version: what DeleteObject and DeleteObjects have in common (``spec: s3-api 2.5, 2.9, 3.15``)."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from keelstore.common.headers import Headers
from keelstore.common.info import ContainerInfo
from keelstore.common.middleware.s3api.conditions import DeleteConditions
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.exclusive import exclusive
from keelstore.common.middleware.s3api.history import (
    add_null_marker,
    current_marker,
    forget_nulls,
    id_of,
    large_query,
    real_version,
    versions_of,
)
from keelstore.common.middleware.s3api.history import is_marker as entry_is_marker
from keelstore.common.middleware.s3api.locks import is_locked
from keelstore.common.middleware.s3api.outcome import check
from keelstore.common.middleware.s3api.reading import is_marker
from keelstore.common.middleware.s3api.request import S3Request
from keelstore.common.middleware.s3api.versions import ENABLED, NULL, SUSPENDED, status_of

PROTECTED = "Access Denied because object protected by object lock."


@dataclass(frozen=True)
class Deleted:
    """``version``: of what was deleted, or of the marker that was made. ``is_marker``: that is a delete marker."""

    version: str | None = None
    is_marker: bool = False


def delete_object(
    request: S3Request,
    key: str,
    version: str | None,
    *,
    conditions: DeleteConditions | None = None,
    bypasses: bool = False,
) -> Deleted:
    """Delete a key, or one version of it. What is not there counts as deleted. Raises S3Error.

    ``conditions``: what it must be like. ``bypasses``: even where governance keeps it.
    """
    info = request.bucket_info()
    status = status_of(info)
    if version is not None and version != NULL and not status:
        return Deleted(version)
    alone: AbstractContextManager[None] = nullcontext()
    if conditions is not None or version is not None:  # which version is to be the current one is decided here, too
        alone = exclusive(request.environ, request.account, request.bucket, key)
    with alone:
        real = real_version(request, key, version)
        takes_away = version is not None or status != ENABLED
        found = None
        if takes_away or conditions is not None:
            # Which copy is asked must not decide about a condition or a lock.
            newest = conditions is not None or "s3api-object-lock" in info.sysmeta
            found = _look(request, key, real, newest=newest, follow=not takes_away)
        marker = found is not None and is_marker(found)
        if conditions is not None:
            if found is None and status and version is None and current_marker(request, key) is not None:
                conditions.check(Headers({"Content-Length": "0"}), True)
            elif found is None:
                return Deleted(version)  # no condition fails of what is not there, and nothing is done to it
            else:
                conditions.check(found, marker)
        if found is not None and takes_away and is_locked(found, time.time(), bypasses):
            raise S3Error("AccessDenied", PROTECTED)
        if version is None and status == SUSPENDED:
            return _suspended(request, key, found)
        if real == NULL and found is None:
            return Deleted(version)  # what is there, if anything, is another version
        # Where only a marker comes nothing goes away, least of all the parts of what conditions looked at.
        return _delete(request, key, version, real, found if takes_away else None, info)


def _delete(
    request: S3Request, key: str, version: str | None, real: str | None, found: Headers | None, info: ContainerInfo
) -> Deleted:
    """``real``: what Swift calls the ``version``; ``found``: headers of what goes away, where that was looked at."""
    sent = large_query(found)
    if real is not None:
        sent |= {"symlink": "get", "version-id": real}
    response = request.swift("DELETE", request.bucket, key, query=sent)
    check(request, response, 404).drain()
    if version is None:
        made = response.headers.get("X-Object-Version-Id")
        return Deleted(made, made is not None)
    if real == NULL or response.headers.get("X-Object-Current-Version-Id") == NULL:
        if status_of(info):
            _restore(request, key)
    return Deleted(version, found is not None and is_marker(found))


def _suspended(request: S3Request, key: str, found: Headers | None) -> Deleted:
    """Of a bucket whose versioning is suspended: what is ``null`` goes, a marker that is ``null`` comes, all else stays."""
    forget_nulls(request, key)
    add_null_marker(request, key, time.time())
    if found is not None:
        query = large_query(found) | {"symlink": "get"}
        check(request, request.swift("DELETE", request.bucket, key, query=query), 404).drain()
    return Deleted(NULL, True)


def _look(request: S3Request, key: str, version: str | None, newest: bool, follow: bool) -> Headers | None:
    """Headers of what is to be deleted, of a delete marker too; None when there is nothing. Raises S3Error.

    ``newest``: of all copies; ``follow``: of what a link leads to.
    """
    query = {} if follow else {"symlink": "get"}
    if version is not None:
        query["version-id"] = version
    head = request.swift("HEAD", request.bucket, key, query=query, headers={"X-Newest": "true"} if newest else None)
    head.close()
    if head.is_success:
        return head.headers
    if head.status == 404:
        return head.headers if is_marker(head.headers) else None
    if head.status in (401, 403):
        raise S3Error("AccessDenied")
    raise S3Error("ServiceUnavailable", reason=str(head.status))


def _restore(request: S3Request, key: str) -> None:
    """The current version was deleted: the newest that is left becomes current, unless that is a delete marker."""
    newest = next(versions_of(request, key), None)
    if newest is not None and not entry_is_marker(newest) and id_of(newest) != NULL and not newest.get("is_latest"):
        request.swift("PUT", request.bucket, key, query={"version-id": id_of(newest)}).drain()
