"""Signatures of temporary URLs and upload forms: their forms, what is signed, and the comparison. Pure.

A signature is a hex HMAC, whose length tells the digest, or ``digest:base64`` (either alphabet, with or without ``=``).
What is signed is lines of text; wire strings here (octets as latin-1), so a path is signed as the octets of its name::

    temporary URL   [ip=RANGE] METHOD EXPIRES PATH          PATH is /v1/a/c/o, or prefix:/v1/a/c/PREFIX
    form            PATH REDIRECT MAX_FILE_SIZE MAX_FILE_COUNT EXPIRES

Used by the filters tempurl and formpost and by ``keelstore explain``. Comparisons take the same time for every wrong
signature (``security: S15``).
"""

from __future__ import annotations

import base64
import binascii
import hmac
from calendar import timegm
from collections.abc import Iterable, Sequence
from ipaddress import ip_address, ip_network
from time import strptime
from typing import Any, Final

from keelstore.common.errors import KeelstoreError

DIGESTS: Final = ("sha1", "sha256", "sha512")
DEPRECATED: Final = frozenset({"sha1"})
_OF_LENGTH: Final = {40: "sha1", 64: "sha256", 128: "sha512"}
_LENGTHS: Final = {20: "sha1", 32: "sha256", 64: "sha512"}
_MAX_SIGNATURE: Final = 256
LAST_SECOND: Final = 253402300799  # of the year 9999, the last that a date header can name


class Refused(KeelstoreError):
    """A signature, or what it covers, that is not good. ``check`` names in a word what failed, the text says it whole."""

    def __init__(self, check: str, text: str):
        super().__init__(text)
        self.check = check


def digests_check(names: Sequence[str]) -> str | None:
    """The check of an option that lists digests."""
    return None if names and set(names) <= set(DIGESTS) else f"one or more of {' '.join(DIGESTS)}"


def digests_info(names: Iterable[str]) -> dict[str, Any]:
    """What ``/info`` says of the digests allowed."""
    allowed = sorted(set(names))
    found: dict[str, Any] = {"allowed_digests": allowed}
    deprecated = sorted(DEPRECATED.intersection(allowed))
    if deprecated:
        found["deprecated_digests"] = deprecated
    return found


def parse_signature(text: str) -> tuple[str, str]:
    """(digest, hex) of a signature in any form. Raises Refused."""
    if not text:
        raise Refused("no-signature", "the signature is missing")
    if len(text) <= _MAX_SIGNATURE and text.isascii():
        digest, colon, value = text.partition(":")
        if not colon:
            found = _OF_LENGTH.get(len(text))
            if found is not None:
                return found, text
        elif digest in DIGESTS:
            value = value.rstrip("=").replace("+", "-").replace("/", "_")
            try:
                raw = base64.b64decode(value + "=" * (-len(value) % 4), b"-_", validate=True)
            except (binascii.Error, ValueError):
                raw = b""
            if _LENGTHS.get(len(raw)) == digest:
                return digest, raw.hex()
    raise Refused("signature-form", f"the signature has no known form ({len(text)} characters): it must be 40, 64 or 128 hex "
                                    "digits (sha1, sha256, sha512), or sha256:BASE64")


def parse_expires(text: str) -> int:
    """Unix time of an expiry: a whole number, or ``YYYY-MM-DDTHH:MM:SSZ``. Raises Refused."""
    if not text:
        raise Refused("no-expires", "the expiry is missing")
    try:
        if len(text) <= 32:
            return timegm(strptime(text, "%Y-%m-%dT%H:%M:%SZ")) if text[-1:] == "Z" else int(text)
    except (ValueError, OverflowError):
        pass
    raise Refused("expires-form", f"the expiry {text[:40]!r} is neither a unix time in seconds nor YYYY-MM-DDTHH:MM:SSZ")


def check_expires(expires: int, now: float) -> None:
    """Raises Refused for a time that has passed."""
    if expires < now:
        raise Refused("expired", f"it expired {int(now - expires)} seconds ago (at {expires})")


def check_digest(digest: str, allowed: Iterable[str]) -> None:
    if digest not in allowed:
        raise Refused("digest-not-allowed", f"the digest {digest} is not allowed here, only {' '.join(sorted(allowed))}")


def check_address(address: str, allowed: str) -> None:
    """Raises Refused unless ``address`` lies in ``allowed``, an address or a network (``a.b.c.d/n`` without host bits)."""
    try:
        network = ip_network(allowed)
    except ValueError:
        raise Refused("ip-range-form", f"the address range {allowed[:80]!r} is no address or network (a network has no "
                                       "bits set beyond its prefix)") from None
    try:
        inside = ip_address(address) in network
    except ValueError:
        inside = False
    if not inside:
        raise Refused("ip-range", f"the client's address {address} is not in {allowed}")


def url_text(method: str, expires: int, path: str, ip_range: str | None = None) -> str:
    """What a temporary URL's signature is made of; wire strings."""
    text = f"{method}\n{expires}\n{path}"
    return text if ip_range is None else f"ip={ip_range}\n{text}"


def form_text(path: str, redirect: str, max_file_size: str, max_file_count: str, expires: str) -> str:
    """What a form's signature is made of; wire strings, the numbers as the form spells them."""
    return f"{path}\n{redirect}\n{max_file_size}\n{max_file_count}\n{expires}"


def sign(key: str, digest: str, text: str) -> str:
    """The hex signature of ``text`` with ``key``; both are wire strings."""
    return hmac.digest(key.encode("latin-1"), text.encode("latin-1"), digest).hex()


def matching(given: str, digest: str, keys: Sequence[str], texts: Sequence[str]) -> int | None:
    """The index of the key that made the signature ``given`` (hex) of one of ``texts``; None for no key.

    All keys and texts are tried, whatever is found before, so that the time tells nothing.
    """
    found = None
    for index, key in enumerate(keys):
        for text in texts:
            if hmac.compare_digest(sign(key, digest, text), given) and found is None:
                found = index
    return found
