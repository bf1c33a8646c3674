"""What middlewares that look at whole answers share: the answer of an app, held back; and bodies of a promised length."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from keelstore.common.errors import KeelstoreError
from keelstore.common.http import BODYLESS, Environ, WSGIApp
from keelstore.common.relay import Pieces, Region, close, file_pieces, file_region, file_region_sent

Header = tuple[str, str]


class WrongLength(KeelstoreError):
    """A body that is not as long as its Content-Length, or of a HEAD; the connection must be closed."""


class Answer:
    """What an app has answered: ``status`` line, ``headers``, ``body``, nothing of it sent yet."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, app: WSGIApp, environ: Environ):
        """Calls ``app``; one that answers only when its body is iterated is taken that far."""
        self.status = ""
        self.headers: list[Header] = []
        body = app(environ, self._start)
        if not self.status:
            iterator = iter(body)
            first = next(iterator, b"")
            if not self.status:
                close(body)
                raise KeelstoreError("the application did not start its response")
            body = Chained(first, iterator, body)
        self.body: Iterable[bytes] = body

    def _start(self, status: str, headers: list[Header], exc_info: Any = None) -> None:
        self.status, self.headers = status, headers


class Chained:
    """A body whose first part has been taken already."""

    __slots__ = ("_first", "_owner", "_rest")

    def __init__(self, first: bytes, rest: Iterator[bytes], owner: Iterable[bytes]):
        self._first, self._rest, self._owner = first, rest, owner

    def __iter__(self) -> Iterator[bytes]:
        if self._first:
            yield self._first
        yield from self._rest

    def close(self) -> None:
        close(self._owner)


def held_pieces(pieces: Pieces, length: int) -> Pieces:
    """``pieces`` held to ``length`` bytes as :class:`Exact` holds a body; what is too much is not sent at all."""
    left = length
    for piece in pieces:
        left -= piece[2] if type(piece) is tuple else len(piece)
        if left < 0:
            raise WrongLength(f"the body is longer than its {length} bytes")
        yield piece
    if left:
        raise WrongLength(f"the body ended {left} bytes short of its {length}")


def promised_length(status: str, headers: list[Header], method: str) -> int | None:
    """The bytes that the body of this answer must have; None when it does not say (chunked)."""
    if method == "HEAD" or int(status[:3]) in BODYLESS:
        return 0
    for name, value in headers:
        if len(name) == 14 and name.lower() == "content-length":
            return int(value) if value.isascii() and value.isdigit() else None
    return None


class Exact:
    """A body held to its length: what is too much is cut off, and too much or too little raises WrongLength at the end."""

    __slots__ = ("_body", "_length")

    def __init__(self, body: Iterable[bytes], length: int):
        self._body, self._length = body, length

    def __iter__(self) -> Iterator[bytes]:
        left = self._length
        for part in self._body:
            left -= len(part)
            if left < 0:
                if len(part) + left > 0:
                    yield part[:left]
                raise WrongLength(f"the body is longer than its {self._length} bytes")
            yield part
        if left:
            raise WrongLength(f"the body ended {left} bytes short of its {self._length}")

    def file_region(self) -> Region | None:
        region = file_region(self._body)
        return region if region is not None and region[2] == self._length else None

    def file_region_sent(self) -> None:
        file_region_sent(self._body)

    def file_pieces(self) -> Pieces | None:
        pieces = file_pieces(self._body)
        return None if pieces is None else held_pieces(pieces, self._length)

    def close(self) -> None:
        close(self._body)


def held_to(body: Iterable[bytes], length: int | None) -> Iterable[bytes]:
    """``body`` itself when it is known to be of ``length``, else one that is held to it."""
    if length is None:
        return body
    if type(body) is tuple or type(body) is list:
        size = 0
        for part in body:
            size += len(part)
        if size == length:
            return body
    return Exact(body, length)
