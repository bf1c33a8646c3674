"""Changing what is said about an object while it stays as it is: tags, retention, legal hold.

A POST of Swift replaces all that it can change, so everything else that an object has is sent along as it was read. It goes
to the version itself, by the name that object versioning stores it under: Swift knows no POST to a version by its id.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from keelstore.common.headers import Headers
from keelstore.common.middleware.authorizing import denial
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.outcome import check
from keelstore.common.middleware.s3api.request import S3Request
from keelstore.common.middleware.versioned_writes.names import hidden_container, version_name
from keelstore.common.timestamp import Timestamp

_KEPT: Final = frozenset(
    (
        "Content-Encoding",
        "Content-Disposition",
        "Content-Language",
        "Cache-Control",
        "Expires",
        "X-Robots-Tag",
        "X-Delete-At",
    )
)
_TRANSIENT: Final = "X-Object-Transient-Sysmeta-"
_CRYPTO: Final = "X-Object-Transient-Sysmeta-Crypto-"


def restate(request: S3Request, headers: Headers, changes: Mapping[str, str]) -> None:
    """``headers``: of the object, as its HEAD (of that version) gave them. ``changes``: headers to set; '' takes one away."""
    _may_write(request)
    sent = {
        name: value
        for name, value in headers.items()
        if name in _KEPT
        or name.startswith("X-Object-Meta-")
        or (name.startswith(_TRANSIENT) and not name.startswith(_CRYPTO))
    }
    sent.update(changes)
    sent = {name: value for name, value in sent.items() if value != "" or name.startswith("X-Object-Meta-")}
    version = headers.get("X-Object-Version-Id")
    container, key = request.bucket, request.key
    if version is not None and version != "null":
        container, key = hidden_container(container), version_name(key, Timestamp(version))
        sent["X-Backend-Allow-Reserved-Names"] = "true"
    check(request, request.swift("POST", container, key, headers=sent, as_cluster=True)).drain()


def _may_write(request: S3Request) -> None:
    """By the ACL of the container, where Swift's decide; those of S3 have been asked before."""
    if request.options.s3_acl:
        return
    asked = dict(request.environ)
    asked.update(request.identity.rights)
    asked["REQUEST_METHOD"], asked["PATH_INFO"] = "POST", f"/v1/{request.account}/{request.bucket}/o"
    if denial(asked, request.bucket_info().write_acl) is not None:
        raise S3Error("AccessDenied")
