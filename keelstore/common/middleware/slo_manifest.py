"""The manifest of a static large object as a client sends it (``spec: middleware 19.1``). Pure.

A JSON list; its entries are ``{"path": "/container/object"[, "etag"][, "size_bytes"][, "range": "a-b" | "a-" | "-n"]}`` or
``{"data": "<base64>"}``. What it says of an object is checked against the object by :func:`resolve`.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from keelstore.common.byteranges import parse_pairs, spans_of
from keelstore.common.errors import BadRequest, EntityTooLarge
from keelstore.common.segments import DataSegment, ObjectSegment, Segment

_OBJECT_KEYS: Final = frozenset({"path", "etag", "size_bytes", "range"})
TOO_SMALL: Final = "too small; each segment must be at least 1 byte."
_NO_PATH: Final = "path does not refer to an object. Path must be of the form /container/object."
Pair = tuple[int | None, int | None]


@dataclass(frozen=True, slots=True)
class Wish:
    """An entry of a client's manifest: an object (``path`` is ``/container/object``, text), and what is said of it.

    ``given`` is the path as the client spelt it, by which it is told of errors.
    """

    path: str
    etag: str | None = None
    size: int | None = None
    range: Pair | None = None
    given: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """What is known of the object at a path; for a manifest, of the large object. ``problem``: why it cannot be used."""

    size: int = 0
    etag: str = ""
    content_type: str = ""
    last_modified: str = ""
    is_manifest: bool = False
    problem: str = ""


def parse(body: bytes, own_path: str, max_segments: int) -> list[Wish | DataSegment]:
    """The entries of a client's manifest for the object at ``own_path``. Raises BadRequest, one line for each bad entry, or
    EntityTooLarge."""
    try:
        entries = json.loads(body)
    except (ValueError, RecursionError):
        raise BadRequest("Manifest must be valid JSON.\n") from None
    if type(entries) is not list:
        raise BadRequest("Manifest must be a list.\n")
    found: list[Wish | DataSegment] = []
    problems: list[str] = []
    for index, entry in enumerate(entries):
        try:
            found.append(_entry(entry, own_path, index == len(entries) - 1))
        except ValueError as error:
            problems.append(f"Index {index}: {error}\n")
    if problems:
        raise BadRequest("".join(problems))
    objects = sum(type(item) is Wish for item in found)
    if objects > max_segments:
        raise EntityTooLarge(f"Number of object-backed segments must be <= {max_segments}")
    if found and not objects:
        raise BadRequest("Inline data segments require at least one object-backed segment.\n")
    return found


def _entry(entry: Any, own_path: str, is_last: bool) -> Wish | DataSegment:
    """Raises ValueError, with what the client is told."""
    if type(entry) is not dict:
        raise ValueError("not a JSON object")
    if "data" in entry:
        _no_other_keys(entry, frozenset({"data"}))
        return DataSegment(_data(entry["data"]))
    _no_other_keys(entry, _OBJECT_KEYS)
    if "path" not in entry:
        raise ValueError('one of "path" and "data" is required')
    path = _path(entry["path"])
    if path == own_path:
        raise ValueError("manifest must not include itself as a segment")
    etag = entry.get("etag")
    if etag is not None and type(etag) is not str:
        raise ValueError('"etag" must be a string or null (if provided)')
    size = _size(entry.get("size_bytes"))
    if size is not None and size < 1 and not (is_last and size == 0):
        raise ValueError(TOO_SMALL)
    return Wish(path, etag or None, size, _range(entry.get("range")), entry["path"])


def _no_other_keys(entry: Mapping[str, Any], allowed: frozenset[str]) -> None:
    extra = sorted(entry.keys() - allowed)
    if extra:
        raise ValueError("extraneous keys " + ", ".join(json.dumps(name) for name in extra))


def _data(value: Any) -> bytes:
    try:
        data = base64.b64decode(value, validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise ValueError("data must be valid base64") from None
    if not data:
        raise ValueError(TOO_SMALL)
    return data


def _path(value: Any) -> str:
    if type(value) is not str:
        raise ValueError('"path" must be a string')
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError('"path" must be valid Unicode') from None
    container, slash, obj = value.lstrip("/").partition("/")
    if not container or not slash or not obj:
        raise ValueError(_NO_PATH)
    return f"/{container}/{obj}"


def _size(value: Any) -> int | None:
    if value is None:
        return None
    if (type(value) is str and len(value) < 100) or type(value) is int:
        try:
            return int(value)
        except ValueError:
            pass
    raise ValueError("invalid size_bytes")


def _range(value: Any) -> Pair | None:
    if value is None or value == "":
        return None
    pairs = parse_pairs(f"bytes={value}") if type(value) is str else None
    if pairs is None:
        raise ValueError("invalid range")
    if len(pairs) > 1:
        raise ValueError("multiple ranges (only one allowed)")
    return pairs[0]


def resolve(wishes: list[Wish | DataSegment], found: Mapping[str, Found]) -> tuple[list[Segment], list[tuple[str, str]]]:
    """The segments, and what is wrong with them as (percent-encoded path as given, problem), each thing once; ``found`` by
    path."""
    segments: list[Segment] = []
    problems: dict[tuple[str, str], str] = {}  # (path, problem): path as first given
    for index, wish in enumerate(wishes):
        if type(wish) is DataSegment:
            segments.append(wish)
            continue
        assert type(wish) is Wish
        known = found[wish.path]
        told = []
        if known.problem:
            told.append(known.problem)
        else:
            if wish.size is not None and wish.size != known.size:
                told.append("Size Mismatch")
            if wish.etag is not None and wish.etag.strip('"') != known.etag:
                told.append("Etag Mismatch")
            start, stop = 0, known.size
            if wish.range is not None:
                spans = spans_of([wish.range], known.size)
                if spans:
                    start, stop = spans[0]
                elif spans is not None:
                    told.append("Unsatisfiable Range")
            if stop - start < 1 and index < len(wishes) - 1 and not told:
                told.append(TOO_SMALL[0].upper() + TOO_SMALL[1:])
            segments.append(ObjectSegment(wish.path, known.size, known.etag, start, stop, known.is_manifest,
                                          known.content_type, known.last_modified))
        for problem in told:
            problems.setdefault((wish.path, problem), wish.given or wish.path)
    return segments, [(quote(given), problem) for (_path, problem), given in problems.items()]
