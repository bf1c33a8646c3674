"""What an S3 request is about: service, bucket or object; by path or by host name (``spec: s3-api 1.1``). Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from keelstore.common.middleware.s3api.errors import S3Error

MAX_KEY_BYTES: Final = 1024
SEGMENTS: Final = "+segments"  # of a bucket: its container of parts
_DNS = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]\Z")
_LOOSE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9_-]\Z")
_IPV4 = re.compile(r"\d{1,3}(\.\d{1,3}){3}\Z")


@dataclass(frozen=True)
class Target:
    """``bucket`` None: the service; ``key`` None: the bucket. ``by_host``: the bucket was named by the host."""

    bucket: str | None = None
    key: str | None = None
    by_host: bool = False

    @property
    def resource(self) -> str:
        """As errors name it."""
        return "/" if self.bucket is None else f"/{self.bucket}" if self.key is None else f"/{self.bucket}/{self.key}"


def bucket_of_host(host: str, domains: tuple[str, ...]) -> str | None:
    """The bucket that a Host header names, below one of ``domains``."""
    name = host.rpartition(":")[0] if ":" in host and not host.endswith("]") else host
    for domain in domains:
        suffix = "." + domain.lstrip(".")
        if name.lower().endswith(suffix.lower()) and len(name) > len(suffix):
            return name[: -len(suffix)]
    return None


def target_of(path: str, host: str, domains: tuple[str, ...]) -> Target:
    """``path``: decoded text; octets that are not UTF-8 as surrogate escapes. They are refused, as is NUL. Raises S3Error."""
    if "\0" in path or (not path.isascii() and any("\ud800" <= char <= "\udfff" for char in path)):
        raise S3Error("InvalidURI", URI=path.replace("\0", "%00").encode("utf-8", "replace").decode())
    bucket, key = bucket_of_host(host, domains) if domains else None, path[1:]
    by_host = bucket is not None
    if bucket is None:
        name, _, key = key.partition("/")
        bucket = name or None
    if key and len(key.encode()) > MAX_KEY_BYTES:
        raise S3Error("KeyTooLongError")
    return Target(bucket, key or None, by_host)


def is_bucket_name(name: str, dns_compliant: bool) -> bool:
    if dns_compliant:
        good = _DNS.match(name) is not None and not any(pair in name for pair in ("..", ".-", "-."))
    else:
        good = _LOOSE.match(name) is not None
    return good and not _IPV4.match(name)
