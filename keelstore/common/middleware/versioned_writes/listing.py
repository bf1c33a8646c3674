"""Listings of versions: what to ask of the two containers, and one list made of their answers. Pure.

A container with object versioning has its objects in two places: the container itself holds, for each name, a link to the
current version or (written while versioning was off) an object, the *null version*; the hidden container holds all other
versions, those that links point at included. A listing of versions is the union, ordered by name and then from the newest to
the oldest. A null version is always current, and so comes first. The reverse listing is exactly the other way round.

Of a page with ``limit`` entries each container is asked for ``limit``. That is enough, for every link has its version in the
hidden container, so that no name within the page can be missed. Entries are the dicts of JSON listings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from keelstore.common.errors import BadRequest
from keelstore.common.headers import is_true
from keelstore.common.limits import is_valid_text, listing_limit
from keelstore.common.middleware.versioned_writes.names import (
    MARKER_TYPE,
    NULL,
    Version,
    hidden_prefix,
    parse_version_id,
    shown_container,
    split_version_name,
)
from keelstore.common.timestamp import Timestamp

Entry = dict[str, Any]
_TEXTS = ("marker", "end_marker", "prefix", "delimiter", "version_marker", "path")
_HTML = {"Content-Type": "text/html; charset=UTF-8"}


@dataclass(frozen=True)
class VersionsQuery:
    """What a client asks of a listing of versions. ``is_resumed``: in the middle of the versions of ``marker``, after
    ``version_marker`` (None: its null version)."""

    limit: int
    marker: str = ""
    end_marker: str = ""
    prefix: str = ""
    delimiter: str = ""
    is_reverse: bool = False
    is_resumed: bool = False
    version_marker: Timestamp | None = None

    @classmethod
    def of(cls, params: Mapping[str, str], maximum: int) -> VersionsQuery:
        """Raises BadRequest, or PreconditionFailed for a limit beyond ``maximum``."""
        for name in _TEXTS:
            if not is_valid_text(params.get(name, "")):
                raise BadRequest(f'"{name}" parameter not valid UTF-8', headers=_HTML)
        delimiter, prefix = params.get("delimiter", ""), params.get("prefix", "")
        if any(char in "0123456789." for char in delimiter):  # they would split names at the time they end with
            raise BadRequest("invalid delimiter param", headers=_HTML)
        version_marker: Timestamp | None = None
        text = params.get("version_marker")
        if text:
            if not params.get("marker"):
                raise BadRequest("version_marker param requires marker", headers=_HTML)
            try:
                version_marker = parse_version_id(text)
            except ValueError:
                raise BadRequest("invalid version_marker param", headers=_HTML) from None
        if "path" in params:
            delimiter, prefix = "/", params["path"].rstrip("/") + "/" if params["path"].rstrip("/") else ""
        return cls(listing_limit(params.get("limit"), maximum), params.get("marker", ""), params.get("end_marker", ""),
                   prefix, delimiter, is_true(params.get("reverse")), bool(text), version_marker)

    def _common(self) -> dict[str, str]:
        found = {"format": "json", "limit": str(self.limit)}
        if self.delimiter:
            found["delimiter"] = self.delimiter
        if self.is_reverse:
            found["reverse"] = "true"
        return found

    def of_container(self) -> dict[str, str]:
        """What to ask of the container itself."""
        found = self._common()
        for name in ("marker", "end_marker", "prefix"):
            if getattr(self, name):
                found[name] = getattr(self, name)
        return found

    def of_marker(self) -> dict[str, str] | None:
        """What to ask of the container itself to know of the name in whose versions the page begins; None: nothing."""
        name, end = self.marker, self.end_marker
        if not self.is_resumed or not name.startswith(self.prefix) or (end and (name <= end if self.is_reverse else
                                                                                name >= end)):
            return None
        if self.delimiter and self.delimiter in name[len(self.prefix):]:
            return None
        return {"format": "json", "limit": "1", "prefix": name}

    def of_hidden(self) -> dict[str, str]:
        """What to ask of the hidden container. NUL sorts before, and \\x01 after, all that follows an object's name."""
        found = self._common()
        found["prefix"] = f"\0{self.prefix}"
        if self.marker:
            if not self.is_resumed:
                found["marker"] = f"\0{self.marker}" if self.is_reverse else f"\0{self.marker}\x01"
            elif self.version_marker is None:
                found["marker"] = f"\0{self.marker}" if self.is_reverse else f"\0{self.marker}\0"
            else:
                found["marker"] = f"\0{self.marker}\0{self.version_marker.invert().internal}"
        if self.end_marker:
            found["end_marker"] = f"\0{self.end_marker}\x01" if self.is_reverse else f"\0{self.end_marker}"
        return found


def version_of(entry: Entry) -> Version | None:
    """The version that an entry of a container is a link to."""
    path = entry.get("symlink_path")
    return Version.of(path.split("/", 3)[-1]) if path else None


def with_link_shown(entry: Entry, container: str) -> Entry:
    """An entry of the container ``container`` as clients see it: a link to a version has the looks of that version."""
    version = version_of(entry)
    if version is None or version.container != container:
        return entry
    shown = dict(entry)
    _look_like_target(shown)
    shown["symlink_path"] = f"{entry['symlink_path'].rpartition('%00versions%00')[0]}{version.shown}"
    shown["version_symlink"] = True
    return shown


def _look_like_target(entry: Entry) -> None:
    etag, size = entry.pop("symlink_etag", None), entry.pop("symlink_bytes", None)
    if size is not None:
        entry["bytes"] = size
    if etag is not None:
        _own, separator, rest = entry["hash"].partition(";")  # what follows is for middlewares further out
        entry["hash"] = f"{etag}{separator}{rest}"


class VersionsPage:
    """One page of a listing of versions."""

    def __init__(self, query: VersionsQuery, container: str):
        self.query, self.container = query, container
        self._links: dict[str, tuple[Version, Entry]] = {}
        self._nulls: list[Entry] = []
        self._null_names: set[str] = set()
        self._subdirs: set[str] = set()
        self._hidden: list[tuple[str, Timestamp | None, Entry]] = []
        self._hidden_is_full = self._has_hidden = False

    def add_marker(self, entries: list[Entry]) -> None:
        """The answer to ``of_marker``."""
        for entry in entries:
            if entry.get("name") != self.query.marker:
                continue
            if self.query.version_marker is None:  # a null version was shown as the current one: no other is, on these pages
                self._null_names.add(self.query.marker)
            else:
                self._add(entry, self.query.is_reverse)

    def add_container(self, entries: list[Entry]) -> None:
        for entry in entries:
            self._add(entry, True)

    def _add(self, entry: Entry, is_shown: bool) -> None:
        if "subdir" in entry:
            self._subdirs.add(entry["subdir"])
            self._nulls.append(entry)
            return
        name = entry["name"]
        version = version_of(entry)
        if version is not None and version.container == self.container and version.obj == name:
            self._links[name] = version, entry
            return
        self._null_names.add(name)
        if is_shown:
            self._nulls.append({**entry, "version_id": NULL, "is_latest": True})

    def add_hidden(self, entries: list[Entry]) -> None:
        """The listing of the hidden container; not called when there is none."""
        self._has_hidden = True
        self._hidden_is_full = len(entries) >= self.query.limit
        for entry in entries:
            if "subdir" in entry:
                name = entry["subdir"][1:]
                if name not in self._subdirs:
                    self._hidden.append((name, None, {"subdir": name}))
                continue
            try:
                name, timestamp = split_version_name(entry["name"])
            except ValueError:
                continue  # nothing of ours
            self._hidden.append((name, timestamp, entry))

    def entries(self) -> list[Entry]:
        newest = self._newest()
        versions = []
        for name, timestamp, entry in self._hidden:
            if timestamp is None:
                versions.append(entry)
                continue
            link = self._links.get(name)
            if link is not None:
                is_latest = link[0].timestamp == timestamp
            else:  # nothing is current: that is so because of a delete marker
                is_latest = newest.get(name) == timestamp and entry.get("content_type") == MARKER_TYPE
            versions.append({**entry, "name": name, "version_id": timestamp.internal, "is_latest": is_latest})
        if self._has_hidden:
            versions = self._with_missing(versions)
        both = [*versions, *self._nulls] if self.query.is_reverse else [*self._nulls, *versions]
        both.sort(key=_name, reverse=self.query.is_reverse)  # stable: keeps the order of one name's versions
        return both[:self.query.limit]

    def _newest(self) -> dict[str, Timestamp]:
        """The newest version of each name, of those that no earlier or later page can hold a newer one of."""
        found: dict[str, Timestamp] = {}
        for name, timestamp, _entry in self._hidden:
            if timestamp is not None and name not in self._null_names and (name not in found or timestamp > found[name]):
                found[name] = timestamp
        if self.query.is_reverse:
            if self._hidden_is_full and self._hidden:
                found.pop(self._hidden[-1][0], None)
        elif self.query.version_marker is not None:
            found.pop(self.query.marker, None)
        return found

    def _with_missing(self, versions: list[Entry]) -> list[Entry]:
        """Add the current versions that the hidden container does not list yet, as their links tell of them.

        Its row may come late, as any row may; a page must not be shorter for it.
        """
        seen = {name for name, timestamp, _ in self._hidden
                if name in self._links and timestamp == self._links[name][0].timestamp}
        last = self._hidden[-1][0] if self._hidden_is_full and self._hidden else None
        missing = []
        for name, (version, link) in self._links.items():
            is_beyond = last is not None and (name <= last if self.query.is_reverse else name >= last)
            if name in seen or is_beyond or (self.query.is_resumed and name == self.query.marker):
                continue
            entry = {key: value for key, value in link.items() if key not in ("symlink_path", "symlink_account")}
            _look_like_target(entry)
            missing.append({**entry, "version_id": version.id, "is_latest": True})
        if not missing:
            return versions
        return [*versions, *missing] if self.query.is_reverse else [*missing, *versions]


def _name(entry: Entry) -> str:
    return entry.get("name") or entry.get("subdir") or ""


# -- accounts ----------------------------------------------------------------------------------------------------------


def hidden_account_params(params: Mapping[str, str]) -> dict[str, str]:
    """What to ask of an account for the hidden containers of what a listing with ``params`` shows."""
    found = {"format": "json", "prefix": hidden_prefix(params.get("prefix", ""))}
    for name in ("marker", "end_marker"):
        if params.get(name):
            found[name] = hidden_prefix(params[name])
    for name in ("limit", "delimiter", "reverse"):
        if params.get(name):
            found[name] = params[name]
    return found


def with_hidden_bytes(entries: list[Entry], hidden: list[Entry], limit: int, is_reverse: bool) -> list[Entry]:
    """Containers with the bytes of their versions added; versions without a container are told as an empty one."""
    by_name: dict[str, Entry] = {}
    for entry in hidden:
        name = shown_container(entry.get("name", ""))
        if name:
            by_name[name] = entry
    found = []
    for entry in entries:
        own = by_name.pop(entry.get("name", ""), None)
        found.append(entry if own is None else {**entry, "bytes": entry["bytes"] + own["bytes"]})
    found += [{**entry, "name": name, "count": 0} for name, entry in by_name.items()]
    found.sort(key=_name, reverse=is_reverse)
    return found[:limit]
