"""AES with a 256-bit key in counter mode, from any offset of a text; and the hashes beside it. Pure but for the random IVs.

In counter mode the same call encrypts and decrypts, and the octet at offset n depends on key, IV and n alone.
"""

from __future__ import annotations

import os
from base64 import b64decode, b64encode
from hmac import compare_digest, digest
from typing import Any, Final

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR

NAME: Final = "AES_CTR_256"
KEY_SIZE: Final = 32
IV_SIZE: Final = 16
_BLOCK: Final = 16
_COUNTERS: Final = 1 << 128


def new_iv() -> bytes:
    return os.urandom(IV_SIZE)


def new_key() -> bytes:
    return os.urandom(KEY_SIZE)


def stream(key: bytes, iv: bytes, offset: int = 0) -> Any:
    """An object whose ``update(data)`` gives data encrypted or decrypted, the first octet being that at ``offset``.

    Raises ValueError for a key or an IV of the wrong size.
    """
    if len(key) != KEY_SIZE:
        raise ValueError(f"a key of {len(key)} bytes")
    if not offset:
        return Cipher(AES256(key), CTR(iv)).encryptor()
    blocks, skipped = divmod(offset, _BLOCK)
    counter = (int.from_bytes(iv, "big") + blocks) % _COUNTERS
    found = Cipher(AES256(key), CTR(counter.to_bytes(IV_SIZE, "big"))).encryptor()
    if skipped:
        found.update(bytes(skipped))
    return found


def apply(key: bytes, iv: bytes, data: bytes) -> bytes:
    """A short text encrypted or decrypted. Raises ValueError as :func:`stream`."""
    if len(key) != KEY_SIZE:
        raise ValueError(f"a key of {len(key)} bytes")
    return Cipher(AES256(key), CTR(iv)).encryptor().update(data)


class ShortTexts:
    """Many short texts under one key."""

    __slots__ = ("_context", "_key")

    def __init__(self, key: bytes):
        self._key = key
        self._context: Any = None

    def apply(self, iv: bytes, data: bytes) -> bytes:
        """As the function of that name. The key is set up once where the library can be given another IV."""
        context = self._context
        if context is None:
            context = stream(self._key, iv)
            if hasattr(context, "reset_nonce"):
                self._context = context
        else:
            context.reset_nonce(iv)
        found: bytes = context.update(data)
        return found


def customer_wrapping_key(object_key: bytes, customer_key: bytes) -> bytes:
    """What wraps the key of a body that can be read with both keys only."""
    return digest(object_key, customer_key, "sha256")


def customer_mark(customer_key: bytes, salt: bytes) -> str:
    """What tells a customer's key from others, and nothing else of it: ``<salt>:<HMAC of the salt>``, in base64."""
    return f"{b64encode(salt).decode()}:{b64encode(digest(customer_key, salt, 'sha256')).decode()}"


def is_marked(customer_key: bytes, mark: str) -> bool:
    """Whether it is the key of the mark."""
    try:
        salt = b64decode(mark.partition(":")[0], validate=True)
    except ValueError:
        return False
    return bool(salt) and compare_digest(customer_mark(customer_key, salt).encode(), mark.encode())


def mac(key: bytes, etag: str) -> str:
    """What stands for an ETag where it must be compared and not be known."""
    return b64encode(digest(key, etag.encode("latin-1"), "sha256")).decode()
