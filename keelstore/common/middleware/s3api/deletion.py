"""Deleting one object or version: what DeleteObject and DeleteObjects have in common (``spec: s3-api 2.5, 2.9, 3.15``)."""

from __future__ import annotations

import json
import time
from contextlib import nullcontext
from dataclasses import dataclass

from keelstore.common.headers import Headers, is_true
from keelstore.common.middleware.s3api.conditions import DeleteConditions
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.exclusive import exclusive
from keelstore.common.middleware.s3api.locks import is_locked
from keelstore.common.middleware.s3api.metadata import DELETED_TYPE
from keelstore.common.middleware.s3api.outcome import check
from keelstore.common.middleware.s3api.reading import is_marker
from keelstore.common.middleware.s3api.request import OBJECT_SYSMETA, S3Request

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
    versioned = "versions-enabled" in info.sysmeta
    if version is not None and version != "null" and not versioned:
        return Deleted(version)
    alone = nullcontext() if conditions is None else exclusive(request.environ, request.account, request.bucket, key)
    with alone:
        takes_away = version is not None or not versioned
        found = None
        if takes_away or conditions is not None:
            found = _look(request, key, version, newest=conditions is not None, follow=not takes_away)
        marker = found is not None and is_marker(found)
        if conditions is not None:
            if found is None and versioned and version is None:
                found_marker = _current_marker(request, key)
                conditions.check(found_marker, is_marker=True)
            else:
                conditions.check(found, marker)
        if found is not None and takes_away and is_locked(found, time.time(), bypasses):
            raise S3Error("AccessDenied", PROTECTED)
        sent: dict[str, str] = {"symlink": "get", "version-id": version} if version is not None else {}
        if found is not None and takes_away and is_true(found.get("X-Static-Large-Object", "")):
            sent["multipart-manifest"] = "delete"
            if OBJECT_SYSMETA + "Etag" in found:
                sent["async"] = "on"
        response = request.swift("DELETE", request.bucket, key, query=sent)
        check(request, response, 404).drain()
    if version is not None:
        if response.headers.get("X-Object-Current-Version-Id") == "null":
            _restore(request, key)
        return Deleted(version, marker)
    made = response.headers.get("X-Object-Version-Id")
    return Deleted(made, made is not None) if versioned else Deleted()


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


def _current_marker(request: S3Request, key: str) -> Headers | None:
    """Headers as of the delete marker that is the current version of a key; None when there is none."""
    for entry in _versions(request, key):
        if entry.get("content_type") == DELETED_TYPE:
            return Headers({"Content-Length": "0"})
        return None
    return None


def _versions(request: S3Request, key: str) -> list[dict[str, str]]:
    """The listed versions of a key, newest first: those of one page."""
    query = {"versions": "", "prefix": key, "format": "json", "limit": "100"}
    response = request.swift("GET", request.bucket, query=query)
    if not response.is_success:
        response.drain()
        return []
    return [entry for entry in json.loads(response.read() or b"[]") if entry.get("name") == key]


def _restore(request: S3Request, key: str) -> None:
    """The current version was deleted: the newest that is left becomes current, unless that is a delete marker."""
    for entry in _versions(request, key):
        if entry.get("content_type") != DELETED_TYPE:
            request.swift("PUT", request.bucket, key, query={"version-id": entry["version_id"]}).drain()
        return
