"""The Range header, and the octets of an answer that carries several ranges (spec: client-api 6.2). Pure.

    Range: bytes=0-4,-2     on 10 bytes:   (0, 5) and (8, 10); stops are exclusive here, inclusive on the wire.

Sets that cost far more than they can be worth are treated as unsatisfiable (RFC 9110 14.2): see the limits below. The
reference does not count equal ranges as overlapping, so that it gives a body fifty times over; here they count.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

MAX_RANGES: Final = 50  # satisfiable ones of one request
MAX_OVERLAPS: Final = 2  # pairs that overlap
MAX_UNSORTED: Final = 8  # so many ranges must be in ascending order

_HUGE: Final = 10**18


class Span(NamedTuple):
    start: int
    stop: int  # exclusive

    @property
    def size(self) -> int:
        return self.stop - self.start

    def content_range(self, length: int) -> str:
        """The value of Content-Range."""
        return f"bytes {self.start}-{self.stop - 1}/{length}"


def parse(header: str | None, length: int) -> list[Span] | None:
    """What a Range header asks of a body of ``length`` bytes.

    None: ignore it, the whole body is the answer (no header, or not understood). Empty: nothing can be given (416).
    Else the satisfiable ranges in the order asked. Linear in the size of the header.
    """
    pairs = parse_pairs(header)
    return None if pairs is None else spans_of(pairs, length)


def parse_pairs(header: str | None) -> list[tuple[int | None, int | None]] | None:
    """The ranges as written, (first, last) inclusive: (None, n) are the last n bytes, (n, None) all from n on."""
    if not header:
        return None
    unit, equals, rest = header.replace(" ", "").partition("=")
    if not equals or unit.lower() != "bytes":
        return None
    pairs: list[tuple[int | None, int | None]] = []
    for item in rest.split(","):
        first, hyphen, last = item.partition("-")
        if not hyphen or not (first or last):
            return None
        start, stop = _number(first), _number(last)
        if start is False or stop is False:
            return None
        if start is not None and stop is not None and stop < start:
            return None
        pairs.append((start, stop))
    return pairs


def _number(text: str) -> int | None:
    """None for no digits; False for what is no number."""
    if not text:
        return None
    if not (text.isascii() and text.isdigit()):
        return False
    return int(text) if len(text) <= 18 else _HUGE if text.lstrip("0")[18:] else int(text.lstrip("0") or "0")


def spans_of(pairs: Iterable[tuple[int | None, int | None]], length: int) -> list[Span] | None:
    """The satisfiable of the ranges for a body of ``length`` bytes; as :func:`parse`."""
    spans: list[Span] = []
    for first, last in pairs:
        if first is None:
            if not last:
                continue
            if not length:
                return None  # the last n bytes of nothing: an empty 200
            spans.append(Span(max(length - last, 0), length))
        elif first < length:
            spans.append(Span(first, length if last is None else min(last + 1, length)))
    return [] if _is_egregious(spans) else spans


def _is_egregious(spans: list[Span]) -> bool:
    count = len(spans)
    if count < 2:
        return False
    if count > MAX_RANGES:
        return True
    ascending = sorted(spans)
    if count >= MAX_UNSORTED and ascending != spans:
        return True
    overlaps = 0
    for index, span in enumerate(ascending):
        for later in ascending[index + 1 :]:
            if later.start >= span.stop:
                break
            overlaps += 1
            if overlaps > MAX_OVERLAPS:
                return True
    return False


# -- answers -----------------------------------------------------------------------------------------------------------


def new_boundary() -> str:
    return secrets.token_hex(16)


class Multipart:
    """An answer of several ranges: its Content-Type, exact length, and parts."""

    def __init__(self, spans: list[Span], length: int, content_type: str, boundary: str | None = None):
        self.boundary = boundary or new_boundary()
        self.spans = spans
        start = f"--{self.boundary}\r\nContent-Type: {content_type}\r\nContent-Range: "
        self._heads = [f"{start}{span.content_range(length)}\r\n\r\n".encode("latin-1") for span in spans]
        self._end = f"--{self.boundary}--".encode("latin-1")

    @property
    def content_type(self) -> str:
        return f"multipart/byteranges;boundary={self.boundary}"

    @property
    def content_length(self) -> int:
        return sum(len(head) + span.size + 2 for head, span in zip(self._heads, self.spans, strict=True)) + len(self._end)

    def body(self, read_range: Callable[[int, int], Iterable[bytes]]) -> Iterator[bytes]:
        """The parts; ``read_range(start, stop)`` gives the bytes of one range and is closed after it."""
        for head, span in zip(self._heads, self.spans, strict=True):
            yield head
            parts = read_range(span.start, span.stop)
            try:
                yield from parts
            finally:
                close = getattr(parts, "close", None)
                if close is not None:
                    close()
            yield b"\r\n"
        yield self._end
