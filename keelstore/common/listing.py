"""One page of a listing: marker, end marker, prefix, delimiter, path, reverse, limit (``spec: client-api 8``).

Pure: what to look up next is decided here, looking up is the caller's. Names sort by code point, which is the byte order of
their UTF-8, the order of SQLite's BINARY collation. A page is always full while there are names left, and its cost follows
the page: what a delimiter rolls up is passed by a seek, not row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

Row = tuple[Any, ...]  # its first item is the name

STEPS_BEFORE_SEEK = 6  # rows of a rolled-up prefix that are stepped over, at most, before a new query is the cheaper way
PROBE_EVERY = 16  # of prefixes that are not stepped into, because those before had many names, one is: this one may have few
_LAST = "\U0010ffff"


@dataclass(frozen=True, slots=True)
class Span:
    """A range of names to look up. '' as a bound means none."""

    lower: str = ""
    is_lower_included: bool = False
    upper: str = ""
    is_upper_included: bool = False

    @property
    def is_empty(self) -> bool:
        if not self.lower or not self.upper or self.lower < self.upper:
            return False
        return not (self.lower == self.upper and self.is_lower_included and self.is_upper_included)


Seek = Callable[[Span, int | None], Iterable[Row]]
"""``seek(span, limit)``: the first ``limit`` rows in the order of the query; None: all, found as they are taken."""


@dataclass(frozen=True, slots=True)
class ListingQuery:
    """What a client asks for. Markers are given in the order of the listing: with ``reverse`` names go from below
    ``marker`` down to above ``end_marker``. ``path`` None: not asked; '' means the top level.
    """

    limit: int
    marker: str = ""
    end_marker: str = ""
    prefix: str = ""
    delimiter: str = ""
    path: str | None = None
    is_reverse: bool = False
    shows_reserved: bool = False


@dataclass(frozen=True, slots=True)
class Subdir:
    """A prefix that stands for all names beginning with it."""

    name: str


def after_prefix(prefix: str) -> str:
    """The least text above everything that begins with ``prefix``; '' if there is none."""
    while prefix:
        last = prefix[-1]
        if last == _LAST:
            prefix = prefix[:-1]
            continue
        code = ord(last) + 1
        return prefix[:-1] + chr(0xE000 if 0xD800 <= code <= 0xDFFF else code)
    return ""


def bounds(query: ListingQuery, prefix: str) -> Span:
    """All names that may appear, before any roll-up."""
    low, high = (query.end_marker, query.marker) if query.is_reverse else (query.marker, query.end_marker)
    lower, is_included = low, False
    if prefix > lower:
        lower, is_included = prefix, True
    if not query.shows_reserved and lower < "\x01":
        lower, is_included = "\x01", True
    upper = high
    end = after_prefix(prefix)
    if end and (not upper or end < upper):
        upper = end
    return Span(lower, is_included, upper)


def page(query: ListingQuery, seek: Seek) -> list[Row | Subdir]:
    """At most ``query.limit`` entries: the rows that ``seek`` found, and Subdirs.

    A Subdir equal to the marker (to the end marker, when reversed) is not given: the client has it already.
    """
    if query.limit <= 0:
        return []
    prefix, delimiter = query.prefix, query.delimiter
    is_path = query.path is not None
    if query.path is not None:
        delimiter = "/"
        prefix = query.path.rstrip("/") + "/" if query.path else ""
    span = bounds(query, prefix)
    if span.is_empty:
        return []
    if not delimiter:
        return list(seek(span, query.limit))
    return _rolled_up(query, seek, span, prefix, delimiter, is_path)


def _rolled_up(
    query: ListingQuery, seek: Seek, span: Span, prefix: str, delimiter: str, is_path: bool
) -> list[Row | Subdir]:
    found: list[Row | Subdir] = []
    limit, start, width = query.limit, len(prefix), len(delimiter)
    # Rows of one prefix that are stepped over: fewer after one that had more, more again after one that ended before.
    patience, passes = STEPS_BEFORE_SEEK, 0
    # What the client's earlier page ended with; a reversed listing meets it as the lower bound.
    seen = query.end_marker if query.is_reverse else query.marker
    while not span.is_empty:
        passed: Subdir | None = None  # what this round has rolled up last
        stepped, has_child = 0, False  # rows of it, and whether the child of its name was among them
        for row in seek(span, None):
            name: str = row[0]
            if passed is not None and name.startswith(passed.name):
                if is_path and name == passed.name:  # reversed: the child itself comes after its content
                    found.append(row)
                    has_child = True
                    if len(found) == limit:
                        return found
                stepped += 1
                if stepped > patience:
                    patience //= 2
                    break
                continue
            if passed is not None:
                patience = min(STEPS_BEFORE_SEEK, 2 * patience + 1)
            passed = None
            end = name.find(delimiter, start)
            if end < 0:
                if is_path and name == prefix:
                    continue
                found.append(row)
            else:
                subdir = name[: end + width]
                passed, stepped, has_child = Subdir(subdir), 0, name == subdir
                if is_path:
                    if name == subdir:
                        found.append(row)
                elif subdir != seen:
                    found.append(passed)
            if len(found) == limit:
                return found
            if passed is not None and not patience:
                passes += 1
                if passes % PROBE_EVERY:
                    break
        else:
            return found
        span = _past(span, passed.name, query.is_reverse, is_path and not has_child) if passed else span
    return found


def _past(span: Span, subdir: str, is_reverse: bool, is_path: bool) -> Span:
    """What is left of ``span`` once the names under ``subdir`` are behind."""
    if is_reverse:
        return Span(span.lower, span.is_lower_included, subdir, is_path)
    end = after_prefix(subdir)
    return Span(end, True, span.upper, span.is_upper_included) if end else Span("\x01", False, "\x01", False)
