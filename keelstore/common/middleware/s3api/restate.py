"""Changing what is said about an object while it stays as it is: tags, retention, legal hold.

A POST of Swift replaces all that it can change, so everything else that an object has is sent along as it was read. It goes
to the version itself, by the name that object versioning stores it under: Swift knows no POST to a version by its id.
It keeps the time of what is there, so Last-Modified and listings stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from keelstore.common.headers import Headers
from keelstore.common.internal import lent
from keelstore.common.middleware.authorizing import denial
from keelstore.common.middleware.crypto.told import as_read
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.exclusive import exclusive
from keelstore.common.middleware.s3api.outcome import check
from keelstore.common.middleware.s3api.reading import headers_of
from keelstore.common.middleware.s3api.request import S3Request
from keelstore.common.middleware.versioned_writes.names import NULL, hidden_container, version_name
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


@contextmanager
def to_restate(request: S3Request) -> Iterator[Headers]:
    """The headers of the object, of all its copies the newest, while nobody else restates it. Raises S3Error.

    What one copy has missed, or another request changes meanwhile, would be taken away by who sends on what he has read.
    """
    with exclusive(request.environ, request.account, request.bucket, request.key):
        yield headers_of(request, newest=True)[0]


def restate(request: S3Request, headers: Headers, changes: Mapping[str, str]) -> None:
    """``headers``: of the object, from ``to_restate``. ``changes``: headers to set; '' takes one away.

    Raises S3Error.
    """
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
    if version is not None and version != NULL:
        container, key = hidden_container(container), version_name(key, Timestamp(version))
        sent["X-Backend-Allow-Reserved-Names"] = "true"
    elif "Content-Location" in headers:
        raise S3Error("InvalidRequest", "The object is a link to another, whose metadata can only be changed there.")
    sent["X-Timestamp"] = _time_after(headers).internal
    with lent(request.environ, as_read(headers)):  # metadata are encrypted as the object is
        response = request.swift("POST", container, key, headers=sent, as_cluster=True)
    if response.status in (404, 409):
        response.drain()
        raise S3Error("OperationAborted")  # it was replaced, changed or deleted meanwhile
    check(request, response).drain()


def _time_after(headers: Headers) -> Timestamp:
    """Newer than what is there, and shown as the same time: that time, with what has passed since as offset (``rewrite``)."""
    found = Timestamp(headers.get("X-Backend-Timestamp") or headers["X-Timestamp"])
    return Timestamp.from_raw(found.raw, max(found.offset + 1, Timestamp.now().raw - found.raw))


def _may_write(request: S3Request) -> None:
    """By the ACL of the container, where Swift's decide; those of S3 have been asked before."""
    if request.options.s3_acl:
        return
    asked = dict(request.environ)
    asked.update(request.identity.rights)
    asked["REQUEST_METHOD"], asked["PATH_INFO"] = "POST", f"/v1/{request.account}/{request.bucket}/o"
    if denial(asked, request.bucket_info().write_acl) is not None:
        raise S3Error("AccessDenied")
