"""The body of a large object: its segments, fetched in order, the next ones opened while one is sent.

Nothing that is missing, changed or short passes for the whole: each segment must have the size and ETag that the plan names,
what is read whole must have its MD5 (unless its object server has just checked that), and an error after the first byte
leaves the body unfinished, which breaks the client's connection (design 5.7). At most ``ahead`` segments are open beside the
one that is being sent, and their bodies wait in their nodes' sockets, not here. ``close`` lets go of all of them, also while
they are being opened.
"""

from __future__ import annotations

import io
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import md5
from typing import Any
from urllib.parse import unquote_to_bytes

from keelstore.common import concurrency
from keelstore.common.errors import KeelstoreError
from keelstore.common.headers import is_true
from keelstore.common.http import BODY_CHECKED, INFOCACHE, Environ, Response, WSGIApp, call_app, text_path_to_wire
from keelstore.common.internal import subrequest
from keelstore.common.relay import Region, file_pieces, file_region, file_region_sent
from keelstore.common.segments import (
    MAX_MANIFESTS,
    Fetch,
    ManifestError,
    ObjectSegment,
    Piece,
    Segment,
    decode,
    etag_of,
    plan,
)

MANIFEST_LIMIT = 64 << 20  # bytes of a stored manifest that is read
_REMEMBERED = 20  # manifests below the first, of one reading
_INHERITED = (("HTTP_X_AUTH_TOKEN", "X-Auth-Token"), ("HTTP_X_SERVICE_TOKEN", "X-Service-Token"),
              ("HTTP_X_OPEN_EXPIRED", "X-Open-Expired"),
              ("HTTP_X_BACKEND_ALLOW_RESERVED_NAMES", "X-Backend-Allow-Reserved-Names"))


class SegmentError(KeelstoreError):
    """A segment that cannot be served. ``status`` is what the client is told while nothing has been sent."""

    def __init__(self, path: str, reason: str, status: int = 409):
        super().__init__(f"segment {path}: {reason}")
        self.path, self.reason, self.status = path, reason, status


@dataclass(frozen=True)
class Pace:
    """How fast segments are read. After ``free`` small ones (less than ``small_bytes``; None: any size), so many a second."""

    small_bytes: int | None = None
    free: int = 10
    per_second: float = 1.0
    max_s: float = 86400.0
    ahead: int = 1


class SegmentSource:
    """Asks for segments on behalf of one client's request, with its rights. ``base`` is ``/v1/account``, text."""

    def __init__(self, app: WSGIApp, environ: Environ, base: str, source: str, agent: str):
        self._app, self._base = app, base
        headers = {name: environ[key] for key, name in _INHERITED if key in environ}
        headers["User-Agent"] = f"{environ.get('HTTP_USER_AGENT', '')} {agent}".strip()
        environ.setdefault(INFOCACHE, {})  # what is known of the containers is asked once
        self._common = subrequest(environ, "GET", base, headers=headers, query="multipart-manifest=get", source=source)

    def ask(self, path: str, byte_range: str | None = None, is_newest: bool = False) -> Response:
        environ = self._common.copy()  # but for the path, all segments are asked for alike
        environ["PATH_INFO"] = text_path_to_wire(self._base + path)
        environ["wsgi.input"] = io.BytesIO()
        if byte_range is not None:
            environ["HTTP_RANGE"] = byte_range
        if is_newest:
            environ["HTTP_X_NEWEST"] = "true"
        return call_app(self._app, environ)

    def open(self, fetch: Fetch) -> Response:
        """The answer that holds just the bytes of ``fetch``. Raises SegmentError.

        A node that missed a write may give an older object: one that does not fit is asked for again, of all nodes.
        """
        path = fetch.segment.path
        byte_range = None if fetch.is_whole else f"bytes={fetch.start}-{fetch.stop - 1}"
        for is_newest in (False, True):
            response = self.ask(path, byte_range, is_newest)
            _check_status(path, response)
            problem = _misfit(fetch, response)
            if problem is None:
                return response
            response.close()
        raise SegmentError(path, f"has changed: {problem}")

    def manifest(self, segment: ObjectSegment) -> list[Segment]:
        """The segments of a segment that is itself a manifest. Raises SegmentError when it is not what was referred to."""
        response = self.ask(segment.path)
        _check_status(segment.path, response)
        try:
            if response.status != 200 or not is_true(response.headers.get("X-Static-Large-Object")):
                raise SegmentError(segment.path, "is no static large object any more")
            found = decode(response.read(MANIFEST_LIMIT))
        except (ManifestError, ValueError) as error:
            raise SegmentError(segment.path, f"has a manifest that cannot be read: {error}") from None
        finally:
            response.close()
        etag = etag_of(found)
        if etag != segment.etag:
            raise SegmentError(segment.path, f"has changed: the ETag of the large object is {etag}, not {segment.etag}")
        return found


def _check_status(path: str, response: Response) -> None:
    if response.status // 100 != 2 and response.status != 416:
        response.drain()
        raise SegmentError(path, f"was answered {response.status}", 503 if response.status >= 500 else 409)


def _misfit(fetch: Fetch, response: Response) -> str | None:
    """What tells that the answer is not from the object that the plan means; None when it is."""
    segment, headers = fetch.segment, response.headers
    etag = headers.get("Etag", "").strip('"')
    if segment.etag and etag != segment.etag:
        return f"its ETag is {etag}, not {segment.etag}"
    if fetch.is_whole:
        size = headers.get("Content-Length")
        if size is None and response.app_iter is None:
            size = str(len(response.body or b""))
        return None if response.status == 200 and size == str(segment.size) else f"its size is {size}, not {segment.size}"
    expected = f"bytes {fetch.start}-{fetch.stop - 1}/{segment.size}"
    given = headers.get("Content-Range", "")
    return None if response.status == 206 and given == expected else f"asked for {expected}, got {response.status} {given}"


class _Opening:
    """A fetch that is being opened, or open, or (``response`` None) bytes at hand."""

    __slots__ = ("data", "done", "error", "fetch", "is_dropped", "response")

    def __init__(self, piece: Piece):
        self.data: bytes | None = piece if isinstance(piece, bytes) else None
        self.fetch: Fetch | None = None if isinstance(piece, bytes) else piece
        self.response: Response | None = None
        self.error: Exception | None = None
        self.done: concurrency.Event | None = None
        self.is_dropped = False

    def run(self, source: SegmentSource, wait_s: float) -> None:
        assert self.fetch is not None
        try:
            if wait_s > 0:
                concurrency.sleep(wait_s)
            if not self.is_dropped:
                self.response = source.open(self.fetch)
        except Exception as error:  # told to whoever waits for it
            self.error = error
        finally:
            if self.is_dropped:
                self._let_go()
            if self.done is not None:
                self.done.set()

    def wait(self) -> Response:
        """The open response. Raises what opening it raised."""
        if self.done is not None:
            self.done.wait()
        if self.error is not None:
            raise self.error
        assert self.response is not None
        return self.response

    def drop(self) -> None:
        """Close it, now or as soon as it has been opened."""
        self.is_dropped = True
        self._let_go()

    def _let_go(self) -> None:
        response, self.response = self.response, None
        if response is not None:
            response.close()


class SegmentedBody:
    """Iterates over the bytes of ``pieces``. :meth:`start` first, if an error is still to become an answer."""

    def __init__(self, source: SegmentSource, pieces: Iterable[Piece], pace: Pace,
                 clock: Callable[[], float] = time.monotonic):
        self._source, self._pace, self._clock = source, pace, clock
        self._known: dict[tuple[str, str], list[Segment]] = {}
        self._pieces = self._flat(pieces, 1)
        self._open: deque[_Opening] = deque()
        self._give_up = clock() + pace.max_s
        self._small, self._next_small = 0, 0.0
        self._is_closed = False
        self._iterator: Iterator[Any] | None = None

    # -- what to open, in order ----------------------------------------------------------------------------------------

    def _flat(self, pieces: Iterable[Piece], depth: int) -> Iterator[Piece]:
        """The pieces, manifests below replaced by what they stand for. Raises SegmentError."""
        for piece in pieces:
            if isinstance(piece, bytes) or not piece.segment.is_manifest:
                yield piece
                continue
            segment = piece.segment
            if depth >= MAX_MANIFESTS:
                raise SegmentError(segment.path, f"is a manifest more than {MAX_MANIFESTS} deep")
            key = (segment.path, segment.etag)
            found = self._known.get(key)
            if found is None:
                found = self._source.manifest(segment)
                if len(self._known) >= _REMEMBERED:
                    del self._known[next(iter(self._known))]
                self._known[key] = found
            yield from self._flat(plan(found, piece.start, piece.stop), depth + 1)

    def _wait_s(self, fetch: Fetch) -> float:
        """Seconds until this fetch may be opened."""
        pace = self._pace
        if pace.small_bytes is not None and fetch.length >= pace.small_bytes:
            return 0.0
        self._small += 1
        if self._small <= pace.free or pace.per_second <= 0:
            return 0.0
        now = self._clock()
        due = max(now, self._next_small)
        self._next_small = due + 1 / pace.per_second
        return due - now

    def _open_next(self, apart: bool) -> bool:
        """Open what is next, in a green thread of its own or now; False at the end."""
        try:
            piece = next(self._pieces, None)
        except Exception as error:  # of a manifest below: due when its turn comes
            opening = _Opening(b"")
            opening.data, opening.error = None, error
            self._open.append(opening)
            return False
        if piece is None:
            return False
        opening = _Opening(piece)
        self._open.append(opening)
        if opening.fetch is not None:
            wait_s = self._wait_s(opening.fetch)
            if apart:
                opening.done = concurrency.Event()
                concurrency.spawn(opening.run, self._source, wait_s)
            else:
                opening.run(self._source, wait_s)
        return True

    # -- the body ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Open the first segment. Raises SegmentError, or what reading a backend raises."""
        more = True
        while more:
            more = self._open_next(apart=False)
            if self._open and self._open[-1].data is None:
                try:
                    self._open[-1].wait()
                except BaseException:
                    self.close()
                    raise
                return

    def __iter__(self) -> Iterator[bytes]:
        if self._iterator is None:
            self._iterator = self._run(False)
        return self._iterator

    def file_pieces(self) -> Iterator[bytes | Region]:
        """As iterating, but a segment that is a part of a file here comes as (descriptor, offset, count), to be sent without
        passing through Python (see ``httpconnection``)."""
        self._iterator = self._run(True)
        return self._iterator

    def _run(self, as_files: bool) -> Iterator[Any]:
        ahead, more = self._pace.ahead, True
        try:
            while True:
                if more and not self._open:
                    more = self._open_next(apart=False)
                if not self._open:
                    return
                while more and len(self._open) <= ahead:
                    more = self._open_next(apart=True)
                opening = self._open[0]
                if opening.data is not None:
                    yield opening.data
                else:
                    yield from self._send(opening, as_files)
                self._open.popleft()
        finally:
            self.close()

    def _send(self, opening: _Opening, as_files: bool) -> Iterator[Any]:
        response, fetch = opening.wait(), opening.fetch
        assert fetch is not None
        if self._clock() > self._give_up:
            raise SegmentError(fetch.segment.path, f"not reached within {self._pace.max_s:g} s")
        body: Any = response.app_iter if response.app_iter is not None else (response.body or b"",)
        is_checked = response.headers.get(BODY_CHECKED) == "true"
        region = file_region(body) if as_files and (is_checked or not fetch.is_whole) else None
        if region is not None and region[2] == fetch.length:
            yield region
            file_region_sent(body)
            opening.drop()
            return
        digest = md5(usedforsecurity=False) if fetch.is_whole and not is_checked else None
        left = fetch.length
        pieces: Any = file_pieces(body) if as_files and digest is None else None
        for data in body if pieces is None else pieces:
            left -= data[2] if type(data) is tuple else len(data)
            if left < 0:
                raise SegmentError(fetch.segment.path, "is longer than it said")
            if digest is not None:
                digest.update(data)
                if not left:
                    _check_digest(fetch, response, digest.hexdigest())
            yield data
        if left:
            raise SegmentError(fetch.segment.path, f"ended {left} bytes early")
        opening.drop()

    def close(self) -> None:
        """Let go of everything; safe to call again, and at any time."""
        if self._is_closed:
            return
        self._is_closed = True
        iterator, self._iterator = self._iterator, iter(())
        if iterator is not None and not getattr(iterator, "gi_running", False):
            iterator.close()  # type: ignore[attr-defined]
        while self._open:
            self._open.popleft().drop()


def _check_digest(fetch: Fetch, response: Response, digest: str) -> None:
    """Before the last bytes leave. Raises SegmentError: the client must not take a damaged body for the object."""
    expected = fetch.segment.etag or response.headers.get("Etag", "").strip('"')
    if digest != expected:
        raise SegmentError(fetch.segment.path, f"is damaged: its MD5 is {digest}, not {expected}")


# -- for the filters ---------------------------------------------------------------------------------------------------


def base_of(path: str, content_location: str | None) -> str:
    """``/v1/account``, text, that the segments of the manifest at ``path`` belong to: the manifest's own account, also where
    a link in another account led to it."""
    if content_location and content_location.count("/") >= 4:
        path = unquote_to_bytes(content_location.encode("latin-1")).decode("utf-8", "surrogateescape")
    return "/".join(path.split("/", 3)[:3])


def add_name(environ: Environ, key: str, name: str) -> None:
    """Add to a header that lists names of metadata."""
    given = environ.get(key)
    environ[key] = f"{given},{name}" if given else name
