"""What the filter ``encryption`` tells filters further left of an object, in headers that no client sees, and how they have
it write again what they have read."""

from __future__ import annotations

from typing import Any, Final

from keelstore.common.headers import Headers
from keelstore.common.http import ENCRYPTS, KMS_KEY

CIPHER: Final = "X-Backend-Crypto-Cipher"  # of a body that was encrypted
SECRET_ID: Final = "X-Backend-Crypto-Secret-Id"  # of its root secret; absent for the one without id


def as_read(headers: Headers) -> dict[str, Any]:
    """Environ keys with which what an answer with these ``headers`` gave is written as it was encrypted."""
    return {ENCRYPTS: CIPHER in headers, KMS_KEY: headers.get(SECRET_ID)}
