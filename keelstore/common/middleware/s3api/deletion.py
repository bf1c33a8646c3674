"""Deleting one object or version: what DeleteObject and DeleteObjects have in common (``spec: s3-api 2.5, 2.9, 3.7``)."""

from __future__ import annotations

import json
from dataclasses import dataclass

from keelstore.common.headers import is_true
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.metadata import DELETED_TYPE
from keelstore.common.middleware.s3api.outcome import check
from keelstore.common.middleware.s3api.request import OBJECT_SYSMETA, S3Request


@dataclass(frozen=True)
class Deleted:
    """``version``: of what was deleted, or of the marker that was made. ``is_marker``: that is a delete marker."""

    version: str | None = None
    is_marker: bool = False


def delete_object(request: S3Request, key: str, version: str | None) -> Deleted:
    """Delete a key, or one version of it. What is not there counts as deleted. Raises S3Error."""
    info = request.bucket_info()
    versioned = "versions-enabled" in info.sysmeta
    if version is not None and version != "null" and not versioned:
        return Deleted(version)
    query = {"symlink": "get"}
    if version is not None:
        query["version-id"] = version
    head = request.swift("HEAD", request.bucket, key, query=query)
    head.close()
    if not head.is_success and head.status != 404:
        raise check_failure(request, head.status)
    is_marker = head.headers.get("X-Backend-Content-Type", head.headers.get("Content-Type")) == DELETED_TYPE
    sent: dict[str, str] = dict(query) if version is not None else {}
    if is_true(head.headers.get("X-Static-Large-Object", "")) and (version is not None or not versioned):
        sent["multipart-manifest"] = "delete"
        if OBJECT_SYSMETA + "Etag" in head.headers:
            sent["async"] = "on"
    response = request.swift("DELETE", request.bucket, key, query=sent)
    check(request, response, 404).drain()
    if version is not None and response.headers.get("X-Object-Current-Version-Id") == "null":
        _restore(request, key)
    if version is not None:
        return Deleted(version, is_marker)
    made = response.headers.get("X-Object-Version-Id")
    return Deleted(made, made is not None) if versioned else Deleted()


def check_failure(request: S3Request, status: int) -> S3Error:
    return S3Error("AccessDenied") if status in (401, 403) else S3Error("ServiceUnavailable", reason=str(status))


def _restore(request: S3Request, key: str) -> None:
    """The current version was deleted: the newest that is left becomes current, unless that is a delete marker."""
    query = {"versions": "", "prefix": key, "format": "json", "limit": "100"}
    response = request.swift("GET", request.bucket, query=query)
    if not response.is_success:
        response.drain()
        return
    for entry in json.loads(response.read() or b"[]"):
        if entry.get("name") == key:
            if entry.get("content_type") != DELETED_TYPE:
                request.swift("PUT", request.bucket, key, query={"version-id": entry["version_id"]}).drain()
            return
