"""The lifecycle rules of a bucket as a request finds them, and what clients see of them: ``x-amz-expiration``.

They are carried out by ``container/lifecycle.py``.
"""

from __future__ import annotations

import time
from functools import lru_cache
from typing import Final

from keelstore.common.headers import Headers
from keelstore.common.http import parse_http_date
from keelstore.common.info import ContainerInfo
from keelstore.common.middleware.s3api import documents, lifecycle_rules, tags, xml
from keelstore.common.middleware.s3api.lifecycle_rules import Rule
from keelstore.common.middleware.s3api.request import S3Request

NAME: Final = "lifecycle"
KEPT: Final = "s3api-lifecycle"
OBJECT_TAGS: Final = "X-Object-Transient-Sysmeta-S3api-Tags"
EXPIRATION: Final = "x-amz-expiration"


@lru_cache(256)
def _rules(data: bytes) -> tuple[Rule, ...]:
    return lifecycle_rules.read(xml.parse(data))


def rules_of(request: S3Request, info: ContainerInfo) -> tuple[Rule, ...]:
    """None for a bucket without lifecycle. Raises S3Error."""
    if KEPT not in info.sysmeta:
        return ()
    data = documents.load(request, NAME, info)
    return _rules(data) if data is not None else ()


def show_expiration(request: S3Request, found: Headers, headers: Headers) -> None:
    """Add to the answer ``found`` when the current object of a key, whose ``headers`` were read, will end."""
    info = request.container_info(request.bucket)
    if KEPT not in info.sysmeta or "versionId" in request.query:
        return
    modified_s = parse_http_date(headers.get("Last-Modified"))
    size = found.get("Content-Range", "").rpartition("/")[2] or found.get("Content-Length", "0")
    if modified_s is not None and size.isdigit():
        _show(request, info, found, modified_s, int(size), headers.get(OBJECT_TAGS))


def show_new_expiration(request: S3Request, found: Headers, size: int, kept_tags: str | None) -> None:
    """Add to the answer ``found`` when an object that was just written will end."""
    info = request.container_info(request.bucket)
    if KEPT in info.sysmeta:
        _show(request, info, found, time.time(), size, kept_tags)


def _show(
    request: S3Request, info: ContainerInfo, found: Headers, modified_s: float, size: int, kept_tags: str | None
) -> None:
    value = lifecycle_rules.expiration_header(
        rules_of(request, info), modified_s, request.key, size, lambda: tags.decode(kept_tags)
    )
    if value is not None:
        found[EXPIRATION] = value
