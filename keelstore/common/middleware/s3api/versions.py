"""Versions: as requests name them, and which of them is ``null`` (``spec: s3-api 2.9``). Pure.

To S3 what was written while versioning was off, or suspended, is the version ``null``. Swift gives it an id of its own, its
time, when it keeps it beside a newer version. So the bucket remembers when it had no versioning, in system metadata
``Null-Versions``: spans ``from-to`` with a comma between, an open end for what goes on now; an id within is ``null``.
"""

from __future__ import annotations

import re
from typing import Final

from keelstore.common.headers import is_true
from keelstore.common.info import ContainerInfo
from keelstore.common.middleware.s3api.errors import S3Error

ENABLED: Final = "Enabled"
SUSPENDED: Final = "Suspended"
NULL: Final = "null"
SPANS: Final = "X-Container-Sysmeta-S3api-Null-Versions"
MAX_SPANS: Final = 100
_VERSION = re.compile(r"\d{10}\.\d{5}(_[0-9a-f]{16})?\Z")
_NEVER: Final = "9999999999.99999"


def status_of(info: ContainerInfo) -> str:
    """``Enabled``, ``Suspended``, or nothing for a bucket that never had versions."""
    enabled = info.sysmeta.get("versions-enabled")
    return "" if enabled is None else ENABLED if is_true(enabled) else SUSPENDED


def version_id_of(text: str | None) -> str | None:
    """The version that a request names, as Swift names it. Raises S3Error for what is no version id."""
    if text is None:
        return None
    if text != NULL and not _VERSION.match(text):
        raise S3Error("InvalidArgument", "Invalid version id specified", ArgumentName="versionId", ArgumentValue=text)
    return text


def has_nulls(info: ContainerInfo) -> bool:
    """Whether versions with ids may be ``null``."""
    return bool(info.sysmeta.get("s3api-null-versions"))


def is_null(version: str, info: ContainerInfo) -> bool:
    """Whether Swift's id is that of what S3 calls ``null``."""
    if version == NULL:
        return True
    spans = info.sysmeta.get("s3api-null-versions")
    if not spans:
        return False
    for span in spans.split(","):
        first, _, end = span.partition("-")
        if first <= version < (end or _NEVER):  # of equal width, so in order of time
            return True
    return False


def shown_version(version: str, info: ContainerInfo) -> str:
    """As clients see it."""
    return NULL if is_null(version, info) else version


def spans_after(info: ContainerInfo, enables: bool, now_s: float) -> str:
    """What the bucket remembers when its versioning changes now."""
    spans = info.sysmeta.get("s3api-null-versions", "")
    now, before = f"{now_s:016.5f}", status_of(info)
    if enables and before == "":
        return f"{0:016.5f}-{now}"
    if enables and before == SUSPENDED:
        return spans + now if spans.endswith("-") else spans
    if not enables and before == ENABLED:
        kept = spans.split(",") if spans else []
        return ",".join([*kept[-MAX_SPANS + 1 :], f"{now}-"])
    return spans or f"{0:016.5f}-" if not enables and before == "" else spans
