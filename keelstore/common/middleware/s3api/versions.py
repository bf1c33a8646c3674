"""Versions, as requests name them (``spec: s3-api 2.9``). Pure."""

from __future__ import annotations

import re
from typing import Final

from keelstore.common.headers import is_true
from keelstore.common.info import ContainerInfo
from keelstore.common.middleware.s3api.errors import S3Error

ENABLED: Final = "Enabled"
SUSPENDED: Final = "Suspended"
_VERSION = re.compile(r"\d{10}\.\d{5}(_[0-9a-f]{16})?\Z")


def status_of(info: ContainerInfo) -> str:
    """``Enabled``, ``Suspended``, or nothing for a bucket that never had versions."""
    enabled = info.sysmeta.get("versions-enabled")
    return "" if enabled is None else ENABLED if is_true(enabled) else SUSPENDED


def version_id_of(text: str | None) -> str | None:
    """The version that a request names, as Swift names it. Raises S3Error for what is no version id."""
    if text is None:
        return None
    if text != "null" and not _VERSION.match(text):
        raise S3Error("InvalidArgument", "Invalid version id specified", ArgumentName="versionId", ArgumentValue=text)
    return text
