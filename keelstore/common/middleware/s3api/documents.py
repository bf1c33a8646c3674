"""Configuration documents of a bucket (CORS, lifecycle, policy, ...), kept with its container.

A short one is system metadata of the container, in base64 behind the mark ``1:``, so every proxy has it with what it
knows of the container anyhow. A long one (servers limit the size of headers) is an object of the cluster's own
account ``.s3``, and the container names it: ``2:<its MD5>.<8 hex digits by chance>``. An object is written before the
container names it and removed after the container forgot it; each has a name of its own, so who removes one never takes
away what another request has just stored.
"""

from __future__ import annotations

import base64
import binascii
import os
from hashlib import md5
from typing import Final

from keelstore.common.http import CACHE
from keelstore.common.info import ContainerInfo
from keelstore.common.middleware.s3api import own_account
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.outcome import change_bucket, check
from keelstore.common.middleware.s3api.request import CONTAINER_SYSMETA, S3Request

CONTAINER: Final = "documents"
INLINE_BYTES: Final = 3072
CACHED_S: Final = 300


def load(
    request: S3Request,
    name: str,
    info: ContainerInfo | None = None,
    bucket: str | None = None,
    account: str | None = None,
) -> bytes | None:
    """The document ``name`` (in lower case) of the bucket; None when there is none.

    ``info``, ``bucket`` and ``account`` where it is not the request's own bucket, or its info is at hand.
    """
    info = request.bucket_info() if info is None else info
    kept = info.sysmeta.get(f"s3api-{name}")
    if not kept:
        return None
    kind, _, value = kept.partition(":")
    if kind == "1":
        try:
            return base64.b64decode(value, validate=True)
        except binascii.Error:
            raise S3Error("InternalError", reason=f"bad_{name}") from None
    return _load_long(request, name, value, bucket or request.bucket, account or request.account)


def note_bucket(request: S3Request, name: str) -> None:
    """Write down, in a container of the cluster's own account, that the bucket is to have the document ``name``: for who has
    to find all such buckets. To be done before the document is stored."""
    path = f"{name}/{request.account}/{request.bucket}"
    check(request, own_account.put(request.environ, request.app, path)).drain()


def store(request: S3Request, name: str, data: bytes) -> None:
    if len(data) <= INLINE_BYTES:
        value = "1:" + base64.b64encode(data).decode()
    else:
        digest = f"{md5(data, usedforsecurity=False).hexdigest()}.{os.urandom(4).hex()}"
        path = _own_path(request, name, digest)
        check(request, own_account.put(request.environ, request.app, path, body=data)).drain()
        value = f"2:{digest}"
    _set(request, name, value)


def remove(request: S3Request, name: str) -> None:
    request.bucket_info()
    _set(request, name, "")


def forget(request: S3Request, info: ContainerInfo) -> None:
    """After a bucket was deleted, of which ``info`` was known: its long documents."""
    for key, value in info.sysmeta.items():
        if key.startswith("s3api-") and value.startswith("2:"):
            _delete(request, _own_path(request, key[len("s3api-") :], value[2:]))


def _set(request: S3Request, name: str, value: str) -> None:
    before = request.bucket_info().sysmeta.get(f"s3api-{name}", "")
    header = CONTAINER_SYSMETA + name.title()
    change_bucket(request, {header: value})
    if before.startswith("2:") and before != value:
        _delete(request, _own_path(request, name, before[2:]))


def path_of(account: str, bucket: str, name: str, digest: str) -> str:
    """Where a long document is in the cluster's own account."""
    return f"{CONTAINER}/{account}/{bucket}/{name}/{digest}"


def _own_path(request: S3Request, name: str, digest: str) -> str:
    return path_of(request.account, request.bucket, name, digest)


def _delete(request: S3Request, path: str) -> None:
    own_account.ask(request.environ, request.app, "DELETE", path).drain()


def _load_long(request: S3Request, name: str, digest: str, bucket: str, account: str) -> bytes:
    path = path_of(account, bucket, name, digest)
    cache, key = request.environ.get(CACHE), f"s3document{path}"
    found = cache.get(key) if cache is not None else None
    if isinstance(found, str):
        return base64.b64decode(found)
    response = own_account.ask(request.environ, request.app, "GET", path)
    if not response.is_success:  # to do without would be to do what it may forbid
        response.drain()
        raise S3Error("ServiceUnavailable", reason=f"no_{name}")
    data = response.read(4 << 20)
    if cache is not None:
        cache.set(key, base64.b64encode(data).decode(), CACHED_S)
    return data
