"""The body of an object read, which goes on from another node when one breaks off (``spec: proxy 6``, Resume).

The layout of a body is known from its headers: one run of the object's bytes, or for several ranges the parts of a
multipart/byteranges message. When a node fails after N bytes, the rest is fetched as single ranges from nodes that hold the
same ETag, and the framing between parts is made here. When no node can go on the body ends with an error, which breaks
the client's connection: a body never looks complete when it is not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from keelstore.common.errors import BackendError
from keelstore.common.headers import Headers
from keelstore.common.http import Response
from keelstore.common.relay import Region, close, file_pieces, file_region
from keelstore.proxy.fanout import FAILURES
from keelstore.proxy.reader import Reading
from keelstore.proxy.request import ProxyRequest

if TYPE_CHECKING:
    from keelstore.proxy.app import ProxyApp

Piece = bytes | tuple[int, int]  # framing, or the first and last byte of the object

_CONTENT_RANGE = re.compile(r"\Abytes ([0-9]{1,20})-([0-9]{1,20})/([0-9]{1,20})\Z")
_BOUNDARY = re.compile(r'boundary="?([0-9A-Za-z]{1,70})"?\Z')
_PART_HEAD = re.compile(rb"\A--[0-9A-Za-z]{1,70}\r\nContent-Type: ([^\r\n]{0,8192})\r\n"
                        rb"Content-Range: bytes [0-9]{1,20}-[0-9]{1,20}/([0-9]{1,20})\r\n\r\n")
_MAX_HEAD = 9000  # bytes of a multipart body kept, to learn its type and the object's size
_DROPPED = ("If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since",
            "X-Backend-Ignore-Range-If-Metadata-Present")


def with_resume(app: ProxyApp, request: ProxyRequest, reading: Reading, response: Response) -> Iterable[bytes]:
    """The body of ``response``, which ``reading`` got, so that it survives the failure of its node."""
    body = response.app_iter
    assert body is not None
    length = response.headers.get("Content-Length", "")
    if response.status not in (200, 206) or not length.isdigit():
        return body
    return ResumingBody(app, reading, response, int(length), request.header("Range") or "")


class ResumingBody:
    def __init__(self, app: ProxyApp, reading: Reading, response: Response, length: int, asked_ranges: str):
        self._app, self._reading, self._length, self._asked = app, reading, length, asked_ranges
        self._current: Any = response.app_iter
        self._etag = response.headers.get("Etag", "")
        self._content_type = response.headers.get("Content-Type", "")
        self._range = response.headers.get("Content-Range") if response.status == 206 else None
        self._status = response.status
        self._node = reading.source[0] if reading.source else None
        self._keeps_head = self._status == 206 and self._range is None
        self._head = b""  # of a multipart body

    def file_region(self) -> Region | None:
        """See ``common/httpconnection``: a body that is part of an open file is sent without passing through here."""
        return file_region(self._current)

    def close(self) -> None:
        close(self._current)

    def file_pieces(self) -> Iterator[Any] | None:
        """As iterating, but what comes from another node may stay in the kernel (see ``common/httpconnection``)."""
        if self._keeps_head:
            return None
        pieces = file_pieces(self._current)
        return None if pieces is None else self._whole(pieces)

    def __iter__(self) -> Iterator[bytes]:
        return self._whole(self._current)

    def _whole(self, parts: Iterable[Any]) -> Iterator[Any]:
        """``parts``, and from other nodes what they lack."""
        sent, keeps_head = 0, self._keeps_head
        try:
            for data in parts:
                sent += len(data)
                if keeps_head and len(self._head) < _MAX_HEAD:
                    self._head += data[:_MAX_HEAD]
                yield data
            failure: object = "body ended early"
        except FAILURES as error:
            failure = error
        if sent < self._length:
            self._give_up_node(failure, sent)
            yield from self._rest(sent)

    def _give_up_node(self, failure: object, sent: int) -> None:
        self.close()
        if self._node is not None:
            self._app.health.error(self._node, f"GET {self._reading.target.path}: {failure} after {sent} bytes")
            self._node = None

    def _rest(self, sent: int) -> Iterator[bytes]:
        for piece in after(self._layout(), sent):
            if isinstance(piece, bytes):
                yield piece
            else:
                yield from self._fetch(*piece)

    def _layout(self) -> list[Piece]:
        """The body as pieces. Raises BackendError when it cannot be told."""
        if self._status == 200:
            return [(0, self._length - 1)]
        if self._range is not None:
            found = _CONTENT_RANGE.match(self._range)
            if found:
                return [(int(found[1]), int(found[2]))]
        else:
            boundary, head = _BOUNDARY.search(self._content_type), _PART_HEAD.match(self._head)
            if boundary and head:
                total = int(head[2])
                layout = multipart_layout(spans_of(self._asked, total), boundary[1].encode(), head[1], total)
                if sum(size_of(piece) for piece in layout) == self._length:
                    return layout
        raise BackendError(f"GET {self._reading.target.path}: cannot go on from another node")

    def _fetch(self, first: int, last: int) -> Iterator[bytes]:
        """The object's bytes ``first`` to ``last`` from whoever has them."""
        node = self._node
        while first <= last:
            response = None
            if node is None:
                node = next(self._reading.nodes, None)
                if node is None:
                    raise BackendError(f"GET {self._reading.target.path}: no other node to go on from")
            self._node = node
            try:
                response = self._open(node, first, last)
                if response is not None:
                    self._current = response.app_iter if response.app_iter is not None else (response.body or b"",)
                    for data in self._current:
                        data = data[:last + 1 - first]
                        first += len(data)
                        yield data
                    if first > last:
                        return
                    self._give_up_node("body ended early", first)
            except FAILURES as error:
                self._give_up_node(error, first)
            node = self._node = None

    def _open(self, node: Any, first: int, last: int) -> Response | None:
        """The node's answer when it holds the same object, else None."""
        headers = Headers(self._reading.target.headers)
        for name in _DROPPED:
            dict.pop(headers, name, None)
        headers["Range"] = f"bytes={first}-{last}"
        response = self._reading.ask(node, headers)
        if response is None:
            return None
        whole = response.status == 200 and response.headers.get("Content-Length") == str(last + 1 - first) and not first
        if (response.status == 206 or whole) and response.headers.get("Etag", "").strip('"') == self._etag.strip('"'):
            return response
        response.close()
        return None


# -- pure --------------------------------------------------------------------------------------------------------------


def size_of(piece: Piece) -> int:
    return len(piece) if isinstance(piece, bytes) else piece[1] - piece[0] + 1


def after(layout: Iterable[Piece], sent: int) -> Iterator[Piece]:
    """What is left of a body after its first ``sent`` bytes."""
    for piece in layout:
        size = size_of(piece)
        if sent >= size:
            sent -= size
        else:
            yield piece[sent:] if isinstance(piece, bytes) else (piece[0] + sent, piece[1])
            sent = 0


def spans_of(asked: str, total: int) -> list[tuple[int, int]]:
    """The satisfiable ranges of a Range header that a server has accepted, in its order."""
    found = []
    for part in asked.replace(" ", "").partition("=")[2].split(","):
        start, dash, end = part.partition("-")
        if not dash:
            continue
        if start.isdigit():
            first, last = int(start), min(int(end), total - 1) if end.isdigit() else total - 1
        elif end.isdigit() and int(end):
            first, last = max(total - int(end), 0), total - 1
        else:
            continue
        if first <= last:
            found.append((first, last))
    return found


def multipart_layout(spans: Iterable[tuple[int, int]], boundary: bytes, content_type: bytes, total: int) -> list[Piece]:
    """The pieces of a multipart/byteranges body (``spec: client-api 6.2``)."""
    layout: list[Piece] = []
    for first, last in spans:
        layout.append(b"--%b\r\nContent-Type: %b\r\nContent-Range: bytes %d-%d/%d\r\n\r\n"
                      % (boundary, content_type, first, last, total))
        layout.append((first, last))
        layout.append(b"\r\n")
    layout.append(b"--%b--" % boundary)
    return layout
