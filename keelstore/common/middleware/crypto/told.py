"""What the filter ``encryption`` tells filters further left of an object, in headers that no client sees, and how they have
it write again what they have read.

A body that needs a customer's key cannot be read without it, but it can be moved as it is, *sealed*: a read with
``WANTS_SEALED`` in its environ gives it as it is stored, and tells what to write it with; all else of the object is read, and
written, as ever.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from keelstore.common.headers import Headers
from keelstore.common.http import ENCRYPTS, KMS_KEY

CIPHER: Final = "X-Backend-Crypto-Cipher"  # of a body that was encrypted
SECRET_ID: Final = "X-Backend-Crypto-Secret-Id"  # of its root secret; absent for the one without id

WANTS_SEALED: Final = "keelstore.wants_sealed"  # in the environ of a read
SEALED: Final = "keelstore.sealed"  # in that of a write: what its body is, a Sealed, or None
_META: Final = "X-Backend-Crypto-Sealed-Meta"
_MARK: Final = "X-Backend-Crypto-Sealed-Mark"
_ETAG: Final = "X-Backend-Crypto-Sealed-Etag"


@dataclass(frozen=True)
class Sealed:
    """How a body that is moved was encrypted. ``etag``: of what is stored; ``plain_etag``: of what it holds."""

    body_meta: str = field(repr=False)
    mark: str = field(repr=False)
    etag: str
    plain_etag: str

    def headers(self) -> list[tuple[str, str]]:
        """What is told of it; the plain ETag is that of the answer."""
        return [(_META, self.body_meta), (_MARK, self.mark), (_ETAG, self.etag)]

    @classmethod
    def of(cls, headers: Headers) -> Sealed | None:
        """What the answer to a read told."""
        if _META not in headers:
            return None
        return cls(headers[_META], headers[_MARK], headers[_ETAG], headers["Etag"].strip('"'))


def as_read(headers: Headers) -> dict[str, Any]:
    """Environ keys with which what an answer with these ``headers`` gave is written as it was encrypted."""
    return {ENCRYPTS: CIPHER in headers, KMS_KEY: headers.get(SECRET_ID), SEALED: Sealed.of(headers)}
