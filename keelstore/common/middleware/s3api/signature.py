"""Signatures of S3 requests, versions 4 and 2 (``spec: s3-api 1``). Pure: no clock, no environ; of secrets
only the keys of the last few scopes are remembered.

A request as signed is a ``Signed``: method, the path as it came on the wire, the raw query string, and a look-up of headers.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from urllib.parse import quote, unquote_to_bytes

ALGORITHM: Final = "AWS4-HMAC-SHA256"
UNSIGNED_PAYLOAD: Final = "UNSIGNED-PAYLOAD"
EMPTY_SHA256: Final = hashlib.sha256(b"").hexdigest()
TERMINAL: Final = "aws4_request"
SERVICE: Final = "s3"

# Query parameters that are part of the resource that version 2 signs.
SUB_RESOURCES_V2: Final = frozenset((
    "accelerate", "acl", "analytics", "attributes", "cors", "defaultObjectAcl", "delete", "encryption",
    "intelligent-tiering", "inventory", "legal-hold", "lifecycle", "location", "logging", "metrics", "notification",
    "object-lock", "ownershipControls", "partNumber", "policy", "policyStatus", "publicAccessBlock", "replication",
    "requestPayment", "response-cache-control", "response-content-disposition", "response-content-encoding",
    "response-content-language", "response-content-type", "response-expires", "restore", "retention", "select",
    "select-type", "storageClass", "tagging", "torrent", "uploadId", "uploads", "versionId", "versioning",
    "versions", "website",
))  # fmt: skip

Pairs = list[tuple[bytes, bytes]]
_SPACES = re.compile(r"[ \t]+")
_is_plain = re.compile(rb"[A-Za-z0-9._~-]*").fullmatch  # each octet as it is signed
_is_plain_path = re.compile(r"[A-Za-z0-9._~/-]*").fullmatch


@dataclass(frozen=True)
class Scope:
    """What a version 4 key is good for: one day (YYYYMMDD), region and service."""

    date: str
    region: str
    service: str = SERVICE

    def __str__(self) -> str:
        return f"{self.date}/{self.region}/{self.service}/{TERMINAL}"

    def key(self, secret: str) -> bytes:
        return _key(secret, self)


@lru_cache(maxsize=64)  # four of the five HMACs of a request, the same for all that a user signs in a day
def _key(secret: str, scope: Scope) -> bytes:
    key = f"AWS4{secret}".encode("utf-8", "surrogateescape")
    for part in (scope.date, scope.region, scope.service, TERMINAL):
        key = hmac.digest(key, part.encode("latin-1"), "sha256")
    return key


def query_pairs(query: str) -> Pairs:
    """The parameters of a raw query string as octets, in the order they came; without ``=``: an empty value."""
    found = []
    for part in query.split("&"):
        if part:
            name, _, value = part.partition("=")
            found.append((_octets(name), _octets(value)))
    return found


def _octets(text: str) -> bytes:
    if "%" not in text and "+" not in text:
        return text.encode("latin-1")
    return unquote_to_bytes(text.replace("+", " ").encode("latin-1"))


def _coded(octets: bytes) -> str:
    return octets.decode("ascii") if _is_plain(octets) else quote(octets, safe="-_.~")


def canonical_uri(raw_path: str) -> str:
    """The path as the client sent it, each octet encoded once; dots and double slashes stay (rule 15 of s3-clients)."""
    if _is_plain_path(raw_path):
        return raw_path
    return quote(unquote_to_bytes(raw_path.encode("latin-1")), safe="/-_.~")


def canonical_query(pairs: Pairs) -> str:
    coded = sorted(
        (_coded(name), _coded(value))
        for name, value in pairs
        if name not in (b"X-Amz-Signature", b"Signature")
    )
    return "&".join(f"{name}={value}" for name, value in coded)


def canonical_headers(names: Iterable[str], header: Callable[[str], str | None]) -> str | None:
    """``name:value`` lines of the signed headers, sorted; None when one of them is not there."""
    lines = []
    for name in sorted(names):
        value = header(name)
        if value is None:
            return None
        lines.append(f"{name}:{_SPACES.sub(' ', value.strip())}\n")
    return "".join(lines)


def canonical_request(
    method: str, raw_path: str, pairs: Pairs, names: Iterable[str], headers: str, payload_hash: str
) -> str:
    signed = ";".join(sorted(names))
    return f"{method}\n{canonical_uri(raw_path)}\n{canonical_query(pairs)}\n{headers}\n{signed}\n{payload_hash}"


def string_to_sign(timestamp: str, scope: Scope, request: str) -> bytes:
    """``request``: the canonical request, or whatever else is signed."""
    digest = hashlib.sha256(request.encode("latin-1")).hexdigest()
    return f"{ALGORITHM}\n{timestamp}\n{scope}\n{digest}".encode("latin-1")


def signature(key: bytes, text: bytes) -> str:
    return hmac.digest(key, text, "sha256").hex()


def same(one: str, other: str) -> bool:
    """Whether two signatures are equal, in a time that does not tell how far they agree."""
    return hmac.compare_digest(one.encode("utf-8", "surrogateescape"), other.encode("utf-8", "surrogateescape"))


# -- version 2 ---------------------------------------------------------------------------------------------------------


def string_to_sign_v2(
    method: str,
    raw_path: str,
    bucket_of_host: str,
    pairs: Pairs,
    date: str,
    content_md5: str,
    content_type: str,
    amz_headers: Iterable[tuple[str, str]],
) -> bytes:
    """``date``: the Date header, nothing when there is an ``x-amz-date``, or the time a signed URL expires at."""
    headers = "".join(f"{name}:{value}\n" for name, value in sorted(amz_headers))
    resource = (f"/{bucket_of_host}" if bucket_of_host else "") + raw_path
    kept = sorted(
        (name.decode("latin-1"), value) for name, value in pairs if name.decode("latin-1") in SUB_RESOURCES_V2
    )
    if kept:
        resource += "?" + "&".join(f"{name}={value.decode('latin-1')}" if value else name for name, value in kept)
    return f"{method}\n{content_md5}\n{content_type}\n{date}\n{headers}{resource}".encode("latin-1")


def signature_v2(secret: str, text: bytes) -> str:
    return base64.b64encode(hmac.digest(secret.encode("utf-8", "surrogateescape"), text, "sha1")).decode()
