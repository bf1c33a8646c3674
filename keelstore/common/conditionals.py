"""If-Match, If-None-Match, If-Modified-Since, If-Unmodified-Since on a read (spec: client-api 6.1). Pure.

The order is Swift's, not that of RFC 9110 13.2.2: every check runs, the first that hits decides. Weak tags are not
understood.
"""

from __future__ import annotations

from collections.abc import Callable

from keelstore.common.http import parse_http_date


def evaluate(
    method: str, header: Callable[[str], str | None], etag: str | None, last_modified_s: int | None, exists: bool = True
) -> int | None:
    """304 or 412, or None to go on. ``header(name)`` gives a request's header; time linear in their sizes.

    ``last_modified_s``: whole seconds, as the Last-Modified header has them. Without ``etag`` or it the checks that need them
    do not hit. Other methods than GET and HEAD are not conditional.
    """
    if method != "GET" and method != "HEAD":
        return None
    none_match, match = header("If-None-Match"), header("If-Match")
    since, not_since = header("If-Modified-Since"), header("If-Unmodified-Since")
    if none_match is None and match is None and since is None and not_since is None:
        return None
    if exists and etag is not None:
        if none_match is not None and matches(none_match, etag):
            return 304
        if match is not None and not matches(match, etag):
            return 412
    if not exists:
        return 412 if match is not None and "*" in tags(match) else None
    if last_modified_s is not None:
        if since is not None:
            date = parse_http_date(since)
            if date is not None and last_modified_s <= date:
                return 304
        if not_since is not None:
            date = parse_http_date(not_since)
            if date is not None and last_modified_s > date:
                return 412
    return None


def tags(header: str) -> set[str]:
    """The entity tags of a header's list, one pair of quotes stripped from each; ``*`` is one."""
    return {unquoted(item.strip()) for item in header.split(",") if item.strip()}


def matches(header: str, etag: str) -> bool:
    """Whether ``etag`` (quoted or not) is in the header's list, or the list has ``*``."""
    found = tags(header)
    return "*" in found or unquoted(etag) in found


def unquoted(etag: str) -> str:
    """An entity tag without one surrounding pair of double quotes."""
    return etag[1:-1] if len(etag) > 1 and etag[0] == '"' == etag[-1] else etag
