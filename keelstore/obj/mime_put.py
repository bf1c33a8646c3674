"""The multi-stage PUT: body, then a footer of metadata, then perhaps a commit, as MIME documents (``spec:
backend-protocol 4.2``).

The format, within the chunked body of the request; ``B`` is the boundary that a header names, each line ends with
CRLF::

    --B
    X-Document: object body
    <empty line>
    <data>
    --B
    X-Document: object metadata
    Content-MD5: <hex md5 of the JSON>
    <empty line>
    <JSON object>
    --B--                            (footer only; with a commit to follow: --B)

and, in a second body after another 100 Continue::

    X-Document: put commit
    <empty line>
    put_commit_confirmation
    --B--
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from hashlib import md5
from typing import Any

from keelstore.common import aligned
from keelstore.common.errors import BadRequest, ClientDisconnect, RequestError, UnprocessableEntity
from keelstore.common.headers import Headers

MAX_BOUNDARY = 200
MAX_HEADERS = 16384  # bytes of a document's headers
MAX_FOOTER = 1 << 20
PIECE = 524288  # bytes of a body of known size taken at once, where so many are there
_KNOWN: Mapping[bytes, Headers] = {
    f"X-Document: {name}".encode(): Headers({"X-Document": name}) for name in ("object body", "put commit")
}  # headers of documents; for reading only


class MimeDocuments:
    """Reads the documents of one request in turn. ``source`` has ``read(size)``."""

    def __init__(self, source: Any, boundary: str, chunk_size: int = 65536):
        if not boundary or len(boundary) > MAX_BOUNDARY:
            raise BadRequest("no MIME boundary")
        self._source, self._chunk_size = source, chunk_size
        self._read = getattr(source, "read1", None) or source.read
        self._delimiter = b"\r\n--" + boundary.encode("latin-1")
        self._held = b"\r\n"  # so that the first delimiter is like the others
        self.at_end = False  # the closing delimiter was seen

    def _fill(self) -> bool:
        data = self._read(self._chunk_size)
        self._held += data
        return bool(data)

    def _line(self, limit: int) -> bytes:
        while True:
            end = self._held.find(b"\r\n")
            if end >= 0:
                line, self._held = self._held[:end], self._held[end + 2 :]
                return line
            if len(self._held) > limit:
                raise BadRequest("MIME header too long")
            if not self._fill():
                raise ClientDisconnect("the body ended within a MIME header")

    def start(self) -> None:
        """Read up to the first document. Raises BadRequest, ClientDisconnect."""
        self._skip_delimiter()

    def _skip_delimiter(self) -> None:
        size = len(self._delimiter)
        while len(self._held) < size + 2:
            if not self._fill():
                raise ClientDisconnect("the body ended before a MIME document")
        if not self._held.startswith(self._delimiter):
            raise BadRequest("no MIME boundary where one must be")
        rest, self._held = self._held[size : size + 2], self._held[size + 2 :]
        if rest == b"--":
            self.at_end = True
        elif rest != b"\r\n":
            raise BadRequest("bad MIME boundary")

    def headers(self) -> Headers:
        """Of the document that comes next. Raises BadRequest, ClientDisconnect."""
        if not self._held:
            self._fill()
        end = self._held.find(b"\r\n\r\n", 1)
        if 0 < end <= MAX_HEADERS and self._held[:2] != b"\r\n":  # all of them are here, as they mostly are
            block, self._held = self._held[:end], self._held[end + 4 :]
            return _KNOWN.get(block) or _headers(block.split(b"\r\n"))
        lines: list[bytes] = []
        size = 0
        while line := self._line(MAX_HEADERS):
            size += len(line)
            if size > MAX_HEADERS:
                raise BadRequest("bad MIME header")
            lines.append(line)
        return _headers(lines)

    def body(self) -> Iterator[bytes]:
        """The content of the document, and read past the delimiter behind it. Raises ClientDisconnect when it ends
        early.
        """
        keep = len(self._delimiter) - 1
        while True:
            at = self._held.find(self._delimiter)
            if at >= 0:
                data, self._held = self._held[:at], self._held[at:]
                if data:
                    yield data
                self._skip_delimiter()
                return
            if len(self._held) > keep:
                data, self._held = self._held[:-keep], self._held[-keep:]
                yield data
            if not self._fill():
                raise ClientDisconnect("the body ended within a MIME document")

    def small_body(self, limit: int) -> bytes:
        at = self._held.find(self._delimiter)
        if 0 <= at <= limit:  # all of it is here
            data, self._held = self._held[:at], self._held[at:]
            self._skip_delimiter()
            return data
        parts, size = [], 0
        for part in self.body():
            size += len(part)
            if size > limit:
                raise RequestError("MIME document too large", status=413)
            parts.append(part)
        return b"".join(parts)

    # -- the documents of a PUT ----------------------------------------------------------------------------------------

    def object_body(self, size: int | None = None) -> Iterator[bytes | memoryview]:
        """The data, first of the documents; when its ``size`` is known it is not searched for its end, and that of a large
        one is such as can be written past the page cache. Raises ClientDisconnect when it is of another.
        """
        self.start()
        if self.at_end:
            raise BadRequest("no object body in the MIME documents")
        self.headers()
        return self.body() if size is None else self._sized_body(size)

    def _sized_body(self, size: int) -> Iterator[bytes | memoryview]:
        left = size
        content = _Content(self._source, self._held[:size], size)
        self._held = self._held[size:]
        pieces = iter(lambda: content.read(min(left, PIECE)), b"") if size < aligned.LARGE else aligned.pieces(content, size)
        for data in pieces:
            left -= len(data)
            yield data
            del data  # its memory may be used again
            if not left:
                break
        if left:
            raise ClientDisconnect("the body ended within a MIME document")
        try:
            self._skip_delimiter()
        except BadRequest:
            raise ClientDisconnect(f"the data is not of the announced {size} bytes") from None

    def footer(self) -> Headers:
        """The metadata that came after the data, in header form. Raises BadRequest, UnprocessableEntity."""
        if self.at_end:
            raise BadRequest("couldn't find footer MIME doc")
        try:
            headers = self.headers()
            if headers.get("X-Document", "").lower() != "object metadata":
                raise BadRequest("couldn't find footer MIME doc")
            text = self.small_body(MAX_FOOTER)
        except ClientDisconnect:
            raise BadRequest("couldn't find footer MIME doc") from None
        wanted = headers.get("Content-Md5")
        if not wanted:
            raise BadRequest("no Content-MD5 in footer")
        if wanted.lower() != md5(text, usedforsecurity=False).hexdigest():
            raise UnprocessableEntity("footer MD5 mismatch")
        try:
            values = json.loads(text)
        except (ValueError, RecursionError):
            raise BadRequest("invalid JSON for footer doc") from None
        if not isinstance(values, dict) or not all(
            isinstance(value, (str, int, float)) and "\n" not in key for key, value in values.items()
        ):
            raise BadRequest("invalid JSON for footer doc")
        return Headers(values)

    def commit(self) -> None:
        """Read the document that confirms the write, first of a new body. Raises BadRequest; RequestError 500 when it
        is another; ClientDisconnect and ClientTimeout when the sender gives up.
        """
        self._held = b""
        try:
            headers = self.headers()
            if headers.get("X-Document", "").lower() != "put commit":
                raise RequestError("not a commit document", status=500)
            self.small_body(MAX_HEADERS)
        except ClientDisconnect as error:
            if error.__cause__ is not None or not getattr(self._source, "ended", True):
                raise
            raise BadRequest("couldn't find PUT commit MIME doc") from None

    def drain(self) -> None:
        """Read what is left of the body, so that the connection can be used again. Bounded by what the framing allows."""
        self._held = b""
        while self._read(self._chunk_size):
            pass


def _headers(lines: Iterable[bytes]) -> Headers:
    found = Headers()
    for line in lines:
        name, colon, value = line.decode("latin-1").partition(":")
        if not colon:
            raise BadRequest("bad MIME header")
        found[name.strip()] = value.strip()
    return found


class _Content:
    """The ``size`` bytes of a document, as they come: ``held`` of it, and then what ``source`` has."""

    __slots__ = ("_held", "_left", "_take")

    def __init__(self, source: Any, held: bytes, size: int):
        self._held: bytes | memoryview = held
        self._left = size - len(held)  # of the source
        # of the class, as in aligned.pieces; a view of what a proxy in this process sends
        self._take = source.take if hasattr(type(source), "take") else getattr(source, "read1", None) or source.read

    def read(self, size: int) -> bytes:
        """1 to ``size`` bytes, b'' at the end."""
        data = bytes(self._held or self._more(size))
        self._held = data[size:]
        return data[:size]

    def readinto(self, view: memoryview) -> int:
        """As :meth:`read`, into memory of the caller; how much."""
        data = self._held or memoryview(self._more(aligned.PIECE))  # whole, however little room is left
        count = min(len(data), len(view))
        view[:count] = data[:count]
        self._held = data[count:]
        return count

    def _more(self, size: int) -> bytes | memoryview:
        data: bytes | memoryview = self._take(min(size, self._left)) if self._left else b""
        self._left -= len(data)
        return data
