"""Configuration documents of a bucket (CORS, lifecycle, policy, ...), kept with its container.

A short one is system metadata of the container, in base64 behind the mark ``1:``, so every proxy has it with what it
knows of the container anyhow. A long one (servers limit the size of headers) is an object of the cluster's own
account ``.s3``, and the container names it: ``2:<its ETag>``. An object is written before the container names it and
removed after the container forgot it.
"""

from __future__ import annotations

import base64
import binascii
from hashlib import md5
from typing import Final

from keelstore.common.http import CACHE, Response, call_app
from keelstore.common.info import ContainerInfo
from keelstore.common.internal import subrequest
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.outcome import check
from keelstore.common.middleware.s3api.request import CONTAINER_SYSMETA, S3Request

ACCOUNT: Final = ".s3"
CONTAINER: Final = "documents"
INLINE_BYTES: Final = 3072
CACHED_S: Final = 300


def load(request: S3Request, name: str, info: ContainerInfo | None = None) -> bytes | None:
    """The document ``name`` (in lower case) of the bucket; None when there is none."""
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
    return _load_long(request, name, value)


def store(request: S3Request, name: str, data: bytes) -> None:
    if len(data) <= INLINE_BYTES:
        value = "1:" + base64.b64encode(data).decode()
    else:
        digest = md5(data, usedforsecurity=False).hexdigest()
        _put_long(request, name, digest, data)
        value = f"2:{digest}"
    _set(request, name, value)


def remove(request: S3Request, name: str) -> None:
    request.bucket_info()
    _set(request, name, "")


def _set(request: S3Request, name: str, value: str) -> None:
    before = request.bucket_info().sysmeta.get(f"s3api-{name}", "")
    header = CONTAINER_SYSMETA + name.title()
    check(request, request.swift("POST", request.bucket, headers={header: value})).drain()
    request.forget()
    if before.startswith("2:") and before != value:
        _ask(request, "DELETE", name, before[2:]).drain()


def _path(request: S3Request, name: str, digest: str) -> str:
    return f"/v1/{ACCOUNT}/{CONTAINER}/{request.account}/{request.bucket}/{name}/{digest}"


def _ask(request: S3Request, method: str, name: str, digest: str, body: bytes = b"") -> Response:
    environ = subrequest(request.environ, method, _path(request, name, digest), body=body, source="S3", pre_authed=True)
    return call_app(request.app, environ)


def _put_long(request: S3Request, name: str, digest: str, data: bytes) -> None:
    response = _ask(request, "PUT", name, digest, data)
    if response.status == 404:
        response.drain()
        made = subrequest(request.environ, "PUT", f"/v1/{ACCOUNT}/{CONTAINER}", source="S3", pre_authed=True)
        call_app(request.app, made).drain()
        response = _ask(request, "PUT", name, digest, data)
    check(request, response).drain()


def _load_long(request: S3Request, name: str, digest: str) -> bytes:
    cache, key = request.environ.get(CACHE), f"s3document/{request.account}/{request.bucket}/{name}/{digest}"
    found = cache.get(key) if cache is not None else None
    if isinstance(found, str):
        return base64.b64decode(found)
    data = check(request, _ask(request, "GET", name, digest)).read(4 << 20)
    if cache is not None:
        cache.set(key, base64.b64encode(data).decode(), CACHED_S)
    return data
