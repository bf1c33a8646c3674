"""Reading a ``multipart/form-data`` body as it comes in (RFC 7578, RFC 2046 5.1): one part after the other.

A delimiter is CRLF, two hyphens and the boundary; the last has two more hyphens. A body that ends without the last one was
cut off, and reading it raises, so that half a file is never taken for a whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from keelstore.common.errors import BadRequest, ClientDisconnect
from keelstore.common.headers import Headers
from keelstore.common.httpinput import FileLike

MAX_HEADERS: Final = 16384  # bytes of the headers of one part
_CHUNK: Final = 65536
_PARAMETER: Final = re.compile(r';\s*([A-Za-z0-9_*-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s;"]*))', re.DOTALL)


def boundary_of(content_type: str) -> bytes | None:
    """The boundary of a form's Content-Type; None for any other type."""
    kind, _, _ = content_type.partition(";")
    if kind.strip().lower() != "multipart/form-data":
        return None
    found = parameters(content_type).get("boundary", "")
    return found.encode("latin-1") if 0 < len(found) <= 200 else None


def parameters(value: str) -> dict[str, str]:
    """The parameters of a structured header by lower-case name. Of backslashes only those before quotes are taken out: some
    browsers send whole Windows paths."""
    return {match[1].lower(): match[2].replace('\\"', '"') if match[2] is not None else match[3]
            for match in _PARAMETER.finditer(value)}


class Part(FileLike):
    """One part; its content is to be read before the next part is asked for (what is left is skipped)."""

    __slots__ = ("_form", "file_name", "headers", "name")

    def __init__(self, form: Form, headers: Headers):
        super().__init__()
        self._form, self.headers = form, headers
        disposition = parameters(headers.get("Content-Disposition", ""))
        self.name = disposition.get("name", "")
        self.file_name = disposition.get("filename")  # None for a field; wire string

    def _more(self, size: int) -> bytes:
        return self._form.content(size)

    def value(self, limit: int) -> str:
        """The content of a field, cut at ``limit`` bytes; a wire string."""
        return self.read(limit).decode("latin-1")


class Form:
    """The parts of a body. Raises BadRequest for what is no form, ClientDisconnect where it is cut off."""

    def __init__(self, body: Any, boundary: bytes):
        self._body, self._delimiter = body, b"\r\n--" + boundary
        self._buffer = b"\r\n"  # the first delimiter has no line before it
        self._in_part = False

    def __iter__(self) -> Iterator[Part]:
        self._start()
        while self._next():
            yield Part(self, self._headers())
            while self.content(_CHUNK):
                pass

    def _fill(self) -> None:
        data = self._body.read1(_CHUNK)
        if not data:
            raise ClientDisconnect("the form is cut off")
        self._buffer += data

    def _need(self, count: int) -> None:
        while len(self._buffer) < count:
            self._fill()

    def _start(self) -> None:
        """Only empty lines may go before the first delimiter."""
        delimiter = self._delimiter
        try:
            self._need(len(delimiter))
            while self._buffer.startswith(b"\r\n\r\n"):
                self._buffer = self._buffer[2:]
                self._need(len(delimiter))
        except ClientDisconnect:
            raise BadRequest("FormPost: invalid starting boundary") from None
        if not self._buffer.startswith(delimiter):
            raise BadRequest("FormPost: invalid starting boundary")

    def _next(self) -> bool:
        """Step over a delimiter; whether a part follows."""
        self._need(len(self._delimiter) + 2)
        rest = self._buffer[len(self._delimiter):]
        if rest.startswith(b"--"):
            self._buffer = b""
            return False
        self._buffer = rest
        while b"\r\n" not in self._buffer:
            if len(self._buffer) > 256:
                raise BadRequest("FormPost: invalid boundary")
            self._fill()
        padding, _, self._buffer = self._buffer.partition(b"\r\n")
        if padding.strip(b" \t"):
            raise BadRequest("FormPost: invalid boundary")
        return True

    def _headers(self) -> Headers:
        found = Headers()
        self._buffer = b"\r\n" + self._buffer
        while b"\r\n\r\n" not in self._buffer:
            if len(self._buffer) > MAX_HEADERS:
                raise BadRequest("FormPost: the headers of a part are too long")
            self._fill()
        head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        for line in head.decode("latin-1").split("\r\n"):
            name, colon, value = line.partition(":")
            if colon and name.strip():
                found[name.strip()] = value.strip()
        self._buffer = b"\r\n" + self._buffer if self._buffer.startswith(self._delimiter[2:]) else self._buffer
        self._in_part = True
        return found

    def content(self, size: int) -> bytes:
        """1 to ``size`` bytes of the current part; b'' at its end."""
        if not self._in_part:
            return b""
        delimiter = self._delimiter
        while True:
            at = self._buffer.find(delimiter)
            if at == 0:
                self._in_part = False
                return b""
            ready = at if at > 0 else len(self._buffer) - len(delimiter) + 1
            if ready > 0:
                data, self._buffer = self._buffer[:min(ready, size)], self._buffer[min(ready, size):]
                return data
            self._fill()
