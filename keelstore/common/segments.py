"""What a large object is made of, and which bytes of which segment make a part of it. Pure.

A manifest, as it is stored, is a JSON list (``spec: middleware 19.1``); its entries are objects of

    {"name": "/c/o", "bytes": 9, "hash": "<md5>", "content_type": "a/b", "last_modified": "2020-01-02T03:04:05.000000"
     [, "range": "2-5"] [, "sub_slo": true]}        a segment; bytes and hash are those of the whole segment object
    {"data": "<base64>"}                            bytes that the manifest itself holds

``range`` (inclusive) selects a part of the segment. ``sub_slo`` marks a segment that is a manifest itself: its bytes and hash
are those of the large object that it stands for.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import md5
from typing import Any, Final, NamedTuple

MAX_MANIFESTS: Final = 10  # that a read goes down through, the first one included


class ManifestError(ValueError):
    """What is stored is no manifest."""


@dataclass(frozen=True, slots=True)
class ObjectSegment:
    """The bytes ``start`` up to before ``stop`` of the object at ``path`` (``/container/object``, text).

    ``size`` is that of the whole object; ``etag`` its MD5, '' when not known. ``content_type`` and ``last_modified`` only
    tell the reader of a manifest.
    """

    path: str
    size: int
    etag: str
    start: int
    stop: int
    is_manifest: bool = False
    content_type: str = ""
    last_modified: str = ""

    @property
    def length(self) -> int:
        return self.stop - self.start

    @property
    def is_whole(self) -> bool:
        return self.start == 0 and self.stop == self.size

    @property
    def range(self) -> str | None:
        """As manifests spell it; None for the whole."""
        return None if self.is_whole else f"{self.start}-{self.stop - 1}"


@dataclass(frozen=True, slots=True)
class DataSegment:
    data: bytes

    @property
    def length(self) -> int:
        return len(self.data)


Segment = ObjectSegment | DataSegment


def whole(path: str, size: int, etag: str) -> ObjectSegment:
    return ObjectSegment(path, size, etag, 0, size)


def length_of(segments: Iterable[Segment]) -> int:
    return sum(segment.length for segment in segments)


def etag_of(segments: Iterable[Segment]) -> str:
    """The ETag of a static large object, without quotes (``spec: client-api 16``)."""
    digest = md5(usedforsecurity=False)
    for segment in segments:
        if isinstance(segment, DataSegment):
            text = md5(segment.data, usedforsecurity=False).hexdigest()
        else:
            text = segment.etag if segment.is_whole else f"{segment.etag}:{segment.range};"
        digest.update(text.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


# -- the manifest as it is stored --------------------------------------------------------------------------------------


def encode(segments: Iterable[Segment]) -> bytes:
    entries: list[dict[str, Any]] = []
    for segment in segments:
        if isinstance(segment, DataSegment):
            entries.append({"data": base64.b64encode(segment.data).decode("ascii")})
            continue
        entry = {"name": segment.path, "bytes": segment.size, "hash": segment.etag, "content_type": segment.content_type,
                 "last_modified": segment.last_modified}
        if not segment.is_whole:
            entry["range"] = segment.range
        if segment.is_manifest:
            entry["sub_slo"] = True
        entries.append(entry)
    return json.dumps(entries).encode("ascii")


def decode(data: bytes) -> list[Segment]:
    """The segments of a stored manifest. Raises ManifestError."""
    try:
        entries = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"no JSON: {error}") from None
    if type(entries) is not list:
        raise ManifestError("no list")
    try:
        return [_decoded(entry) for entry in entries]
    except (KeyError, TypeError, ValueError, AttributeError, binascii.Error) as error:
        raise ManifestError(f"a bad entry: {error!r}") from None


def _decoded(entry: dict[str, Any]) -> Segment:
    data = entry.get("data")
    if data is not None:
        return DataSegment(base64.b64decode(data, validate=True))
    size, path = int(entry["bytes"]), entry["name"]
    if size < 0 or not isinstance(path, str):
        raise ValueError("name or bytes")
    start, stop = 0, size
    text = entry.get("range")
    if text is not None:
        first, last = str(text).split("-")
        start, stop = int(first), int(last) + 1
        if not 0 <= start < stop <= size:
            raise ValueError("range")
    return ObjectSegment(path if path.startswith("/") else f"/{path}", size, str(entry["hash"]), start, stop,
                         bool(entry.get("sub_slo")), str(entry.get("content_type") or ""),
                         str(entry.get("last_modified") or ""))


def as_request(segments: Iterable[Segment]) -> bytes:
    """The manifest as a client would have to send it to make the same object again (``format=raw``)."""
    entries: list[dict[str, Any]] = []
    for segment in segments:
        if isinstance(segment, DataSegment):
            entries.append({"data": base64.b64encode(segment.data).decode("ascii")})
            continue
        entry = {"etag": segment.etag, "path": segment.path, "size_bytes": segment.size}
        if not segment.is_whole:
            entry["range"] = segment.range
        entries.append(entry)
    return json.dumps(entries, sort_keys=True).encode("ascii")


# -- which bytes to fetch ----------------------------------------------------------------------------------------------


class Fetch(NamedTuple):
    """The bytes ``start`` up to before ``stop`` of a segment's object (or of what its manifest stands for)."""

    segment: ObjectSegment
    start: int
    stop: int

    @property
    def length(self) -> int:
        return self.stop - self.start

    @property
    def is_whole(self) -> bool:
        return self.start == 0 and self.stop == self.segment.size


Piece = bytes | Fetch


def plan(segments: Iterable[Segment], start: int = 0, stop: int | None = None) -> Iterator[Piece]:
    """The pieces, in order, of the bytes ``start`` up to before ``stop`` (default: the end) of a large object.

    Neighbours that go on within one object are one fetch. Empty pieces are left out.
    """
    pending: Fetch | None = None
    position = 0
    for segment in segments:
        if stop is not None and position >= stop:
            break
        skipped = start - position if start > position else 0
        length = segment.length
        position += length
        end = length if stop is None or position <= stop else length - (position - stop)
        if skipped >= end:
            continue
        if isinstance(segment, DataSegment):
            if pending is not None:
                yield pending
                pending = None
            yield segment.data[skipped:end]
            continue
        fetch = Fetch(segment, segment.start + skipped, segment.start + end)
        if pending is not None and _go_on(pending, fetch):
            pending = Fetch(pending.segment, pending.start, fetch.stop)
            continue
        if pending is not None:
            yield pending
        pending = fetch
    if pending is not None:
        yield pending


def _go_on(one: Fetch, other: Fetch) -> bool:
    """Whether ``other`` begins in the object of ``one`` where that ends."""
    a, b = one.segment, other.segment
    return (one.stop == other.start and a.path == b.path and a.etag == b.etag and a.size == b.size
            and a.is_manifest == b.is_manifest)


def span_of(segments: Sequence[Segment], number: int) -> tuple[int, int] | None:
    """Where the segment ``number`` (from 1) lies in the large object, as (start, stop); None without such a segment."""
    if not 1 <= number <= len(segments):
        return None
    start = length_of(segments[: number - 1])
    return start, start + segments[number - 1].length
