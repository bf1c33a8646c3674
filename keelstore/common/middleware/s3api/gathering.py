"""Bodies that are had whole before they are written: the small ones, and as many larger ones as there is room for.

The time of an object is when its write begins. So of two uploads that overlap, the one that ends last stays, as with S3, as
long as they are gathered. And what a trailer says is known before the write, which then needs no footers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from keelstore.common.middleware.s3api.body import BodyRefused, ProvenBody

SMALL: Final = 65536  # bytes: always
LARGE: Final = 8 << 20  # bytes: while all that is held in this process is at most
ROOM: Final = 64 << 20
_held = 0  # bytes of larger bodies that are held now


@contextmanager
def gathered(body: ProvenBody, at_most: int = LARGE) -> Iterator[Any]:
    """The body as bytes, proven; or, when it is too long or of unknown length, as it is. Raises S3Error."""
    global _held  # of this process: what there is room for is its memory
    length = body.length
    if length is None or length > at_most or (length > SMALL and _held + length > ROOM):
        yield body
        return
    taken = length if length > SMALL else 0
    _held += taken
    try:
        try:
            yield body.read()
        except BodyRefused:
            if body.failure is not None:
                raise body.failure from None
            raise
    finally:
        _held -= taken
