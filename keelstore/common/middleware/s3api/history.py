"""The versions of one key: looked through and, where S3 has at most one that is ``null``, kept to one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from keelstore.common.headers import Headers, is_true
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.metadata import DELETED_TYPE
from keelstore.common.middleware.s3api.outcome import check
from keelstore.common.middleware.s3api.request import OBJECT_SYSMETA, S3Request
from keelstore.common.middleware.s3api.versions import NULL, SUSPENDED, has_nulls, is_null, status_of
from keelstore.common.middleware.versioned_writes.inner import TYPE_OVERRIDDEN
from keelstore.common.middleware.versioned_writes.names import hidden_container, version_name
from keelstore.common.timestamp import Timestamp

_PAGE: Final = 100
_MAX_PAGES: Final = 1000


def versions_of(
    request: S3Request, key: str, bucket: str | None = None, account: str | None = None, must: bool = False
) -> Iterator[dict[str, Any]]:
    """The entries of a key in the listing of versions, newest first; none when they cannot be listed.

    ``must``: something is taken away for what is not among them: all, whatever the user may see. Raises S3Error when they
    cannot be listed.
    """
    marker = ""
    for _ in range(_MAX_PAGES):
        query = {"versions": "", "prefix": key, "format": "json", "limit": str(_PAGE)}
        if marker:
            query |= {"marker": key, "version_marker": marker}
        response = request.swift(
            "GET", bucket or request.bucket, query=query, account=account, as_cluster=must or None
        )
        if not response.is_success:
            response.drain()
            if must and response.status != 404:
                raise S3Error("ServiceUnavailable", reason=f"versions_{response.status}")
            return
        entries = json.loads(response.read() or b"[]")
        found = [entry for entry in entries if entry.get("name") == key]
        yield from found
        if len(found) < len(entries) or len(entries) < _PAGE:
            return
        marker = found[-1].get("version_id") or NULL
    if must:
        raise S3Error("ServiceUnavailable", reason="too_many_versions")


def is_marker(entry: dict[str, Any]) -> bool:
    return bool(entry.get("content_type") == DELETED_TYPE)


def id_of(entry: dict[str, Any]) -> str:
    return str(entry.get("version_id") or NULL)


def current_marker(request: S3Request, key: str) -> str | None:
    """The version id of the delete marker that is what a key is now; None when it is none."""
    newest = next(versions_of(request, key), None)
    return id_of(newest) if newest is not None and is_marker(newest) else None


def real_version(
    request: S3Request, key: str, version: str | None, bucket: str | None = None, account: str | None = None
) -> str | None:
    """What Swift calls the version that a client named: ``null`` may be one that is kept beside a newer one."""
    if version != NULL:
        return version
    info = request.bucket_info(bucket, account)
    if not has_nulls(info):
        return NULL
    query = {"version-id": NULL, "symlink": "get"}
    response = request.swift("HEAD", bucket or request.bucket, key, query=query, account=account)
    response.close()
    if response.is_success:
        return NULL
    found = (id_of(entry) for entry in versions_of(request, key, bucket, account))
    return next((name for name in found if is_null(name, info)), NULL)


def forget_nulls(request: S3Request, key: str) -> None:
    """Remove the kept ``null`` versions of a key, data or delete markers: a new one has come, or is about to."""
    info = request.bucket_info()
    if not has_nulls(info):
        return
    found = [id_of(entry) for entry in versions_of(request, key)]
    for version in found:
        if version != NULL and is_null(version, info):
            query = {"version-id": version, "symlink": "get"}
            head = request.swift("HEAD", request.bucket, key, query=query)
            head.close()
            query |= large_query(head.headers if head.is_success else None)
            check(request, request.swift("DELETE", request.bucket, key, query=query), 404).drain()


def written(request: S3Request, version: str | None) -> str | None:
    """After a write of the request's object, whose ``version`` is what Swift told: what clients are told.

    While versioning is suspended the object is the one that is ``null``, and no id is told.
    """
    if version is None and status_of(request.bucket_info()) == SUSPENDED:
        forget_nulls(request, request.key)
    return version


def large_query(found: Headers | None) -> dict[str, str]:
    """The query that deletes the segments of an object along with it, by the headers of the object."""
    if found is None or not is_true(found.get("X-Static-Large-Object", "")):
        return {}
    sent = {"multipart-manifest": "delete"}
    if OBJECT_SYSMETA + "Etag" in found:
        sent["async"] = "on"
    return sent


def add_null_marker(request: S3Request, key: str, now_s: float) -> None:
    """Make a delete marker, which is ``null`` by its time: Swift itself makes none while versioning is suspended."""
    timestamp = Timestamp(now_s)
    headers = {
        "Content-Type": DELETED_TYPE,
        "X-Timestamp": timestamp.internal,
        "X-Backend-Allow-Reserved-Names": "true",
    }
    container, name = hidden_container(request.bucket), version_name(key, timestamp)
    made = request.swift("PUT", container, name, headers=headers, as_cluster=True, extra={TYPE_OVERRIDDEN: True})
    check(request, made).drain()
