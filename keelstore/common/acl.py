"""Access control lists: the grammar of container ACLs, and account ACLs as JSON. Pure (``spec: client-api 11``).

A container ACL (``X-Container-Read``, ``X-Container-Write``) is a comma list; its items are groups (``account``,
``account:user``, ``*``, role names) and, for reading, referrer rules (``.r:[-]host``, ``.rlistings``). An account ACL
(``X-Account-Access-Control``) is a JSON object of the lists ``admin``, ``read-write`` and ``read-only``.

The proxy hands the ACL that applies to a request to the authorisation function as ``environ[ACL]``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final
from urllib.parse import unquote, urlsplit

ACL: Final = "swift.acl"  # environ key: the cleaned container ACL that applies to the request, or None

ACCOUNT_ACL_SYSMETA: Final = "X-Account-Sysmeta-Core-Access-Control"
ACCOUNT_ACL_LEVELS: Final = ("admin", "read-write", "read-only")

_REFERRER_NAMES = frozenset({".r", ".ref", ".referer", ".referrer"})


def clean_acl(header: str, value: str) -> str:
    """The normal form of a container ACL. ``header`` names the header; one with "write" in it takes no referrer rules.

    Raises ValueError, with a sentence for the client, for what is no ACL.
    """
    items: list[str] = []
    for raw in value.split(","):
        item = raw.strip()
        if not item:
            continue
        kind, colon, rest = item.partition(":")
        kind, rest = kind.strip(), rest.strip()
        if not colon or not kind.startswith("."):
            items.append(item)
            continue
        if kind not in _REFERRER_NAMES:
            raise ValueError(f"Unknown designator {kind!r} in ACL: {item!r}")
        if "write" in header.lower():
            raise ValueError(f"Referrers not allowed in write ACL: {item!r}")
        negated = rest.startswith("-")
        if negated:
            rest = rest[1:].strip()
        if rest.startswith("*") and rest != "*":
            rest = rest[1:].strip()
        if rest in ("", "."):
            raise ValueError(f"No host/domain value after referrer designation in ACL: {item!r}")
        items.append(f".r:{'-' if negated else ''}{rest}")
    return ",".join(items)


def parse_acl(value: str | None) -> tuple[list[str], list[str]]:
    """A cleaned container ACL as (referrer rules, groups); groups are percent-decoded."""
    referrers: list[str] = []
    groups: list[str] = []
    for item in (value or "").split(","):
        if item.startswith(".r:"):
            referrers.append(item[3:])
        elif item:
            groups.append(unquote(item))
    return referrers, groups


def referrer_allowed(referrer: str | None, rules: Iterable[str]) -> bool:
    """Whether the host of a Referer header passes the rules; the last rule that matches decides."""
    allowed = False
    rules = list(rules)
    if not rules:
        return False
    try:
        host = urlsplit(referrer or "").hostname or "unknown"
    except ValueError:
        host = "unknown"
    for rule in rules:
        denies = rule.startswith("-")
        pattern = rule[1:] if denies else rule
        if pattern == "*" or pattern == host or (pattern.startswith(".") and host.endswith(pattern)):
            allowed = not denies
    return allowed


def parse_account_acl(value: str | None) -> dict[str, list[str]]:
    """An account ACL; {} for none. Raises ValueError, with a sentence for the client, for what is no account ACL."""
    if not value:
        return {}
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        raise ValueError("not valid JSON") from None
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")
    for key, names in found.items():
        if key not in ACCOUNT_ACL_LEVELS:
            raise ValueError(f"Key {key!r} not recognized")
        if not isinstance(names, list):
            raise ValueError(f"Value for key {key!r} must be a list")
        if not all(isinstance(name, str) for name in names):
            raise ValueError(f"Elements of {key!r} must be strings")
    return found


def format_account_acl(acl: dict[str, list[str]]) -> str:
    """The one spelling of an account ACL: ASCII, sorted keys, no spaces; '' for none."""
    return json.dumps(acl, separators=(",", ":"), sort_keys=True, ensure_ascii=True) if acl else ""
