"""What a temporary URL claims, and all checks of it that need no key. Pure; used by the filter tempurl and by ``explain``.

Query parameters: ``temp_url_sig``, ``temp_url_expires``, ``temp_url_prefix`` (good for every object whose name begins so),
``temp_url_ip_range`` (an address or network). Strings are wire strings.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from keelstore.common.middleware.signatures import (
    Refused,
    check_address,
    check_digest,
    check_expires,
    parse_expires,
    parse_signature,
    url_text,
)

_GRANTS: Final = {"HEAD": ("HEAD", "GET", "POST", "PUT"), "COPY": ("COPY", "PUT")}
"""The methods whose signatures a method takes, where not just its own. A COPY is told apart only to say why it is refused."""


@dataclass(frozen=True)
class Claim:
    """A request as its URL has it. ``prefix`` and ``ip_range`` are None when the URL lacks them."""

    method: str
    path: str
    signature: str
    expires: str
    prefix: str | None = None
    ip_range: str | None = None


@dataclass(frozen=True)
class Examined:
    """A claim in good order but for its signature, which is ``signature`` (hex) of one of ``texts``."""

    account: str
    container: str
    is_root: bool  # the container itself, for a page of its objects
    expires: int
    digest: str
    signature: str
    texts: tuple[str, ...]


def examine(claim: Claim, now: float, address: str, methods: Collection[str], digests: Collection[str]) -> Examined:
    """Raises Refused with the first check that fails."""
    digest, signature = parse_signature(claim.signature)
    expires = parse_expires(claim.expires)
    check_expires(expires, now)
    check_digest(digest, digests)
    method = claim.method
    if method not in methods and method != "COPY":
        raise Refused("method-not-allowed", f"the method {method} is not allowed here, only {' '.join(sorted(methods))}")
    account, container, obj = _names(claim)
    is_root = not obj.strip("/")
    prefix = claim.prefix
    path = f"/v1/{account}/{container}/{obj}"
    if prefix is not None:
        if not obj.startswith(prefix):
            raise Refused("prefix", f"the object's name does not begin with the prefix {prefix[:80]!r}")
        path = f"prefix:/v1/{account}/{container}/{prefix}"
    if claim.ip_range is not None:
        check_address(address, claim.ip_range)
    texts = tuple(url_text(granted, expires, path, claim.ip_range) for granted in _GRANTS.get(method, (method,)))
    return Examined(account, container, is_root, expires, digest, signature, texts)


def _names(claim: Claim) -> tuple[str, str, str]:
    """Account, container and object; the object may be empty for a page of a whole container only."""
    parts = claim.path.split("/", 4)
    if len(parts) < 4 or parts[0] or parts[1] != "v1" or not parts[2] or not parts[3]:
        raise Refused("path", "the path is not /v1/ACCOUNT/CONTAINER/OBJECT")
    obj = parts[4] if len(parts) > 4 else ""
    if not obj.strip("/") and not (claim.prefix == "" and claim.method in ("GET", "HEAD")):
        raise Refused("path", "the path names no object")
    return parts[2], parts[3], obj
