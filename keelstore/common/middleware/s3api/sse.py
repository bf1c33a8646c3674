"""Server-side encryption as requests ask for it: the headers, read and checked (``spec: s3-api 3.16``). Pure.

An object that was encrypted with a customer's key keeps a *mark* of it in system metadata, ``Sse-C``: a salt and an HMAC of
it made with the key, both in base64. It tells whether another key is the same, and nothing else of it.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from hashlib import md5
from typing import Any, Final

from keelstore.common.middleware.crypto import cipher
from keelstore.common.middleware.s3api.errors import S3Error

AES256: Final = "AES256"
KMS: Final = "aws:kms"
ALGORITHM: Final = "X-Amz-Server-Side-Encryption"
CUSTOMER: Final = ALGORITHM + "-Customer"
COPY_SOURCE: Final = "X-Amz-Copy-Source-Server-Side-Encryption-Customer"
KMS_KEY_ID: Final = ALGORITHM + "-Aws-Kms-Key-Id"
_CONTEXT: Final = ALGORITHM + "-Context"
_OF_KMS: Final = (KMS_KEY_ID, _CONTEXT, ALGORITHM + "-Bucket-Key-Enabled")
KEY_BYTES: Final = 32
_NEEDS: Final = "Requests specifying Server Side Encryption with Customer provided keys must provide"

Header = Callable[[str], Any]


@dataclass(frozen=True)
class CustomerKey:
    """``digest``: the MD5 of the key, in base64, as answers repeat it."""

    key: bytes = field(repr=False)
    digest: str

    def mark(self) -> str:
        return cipher.customer_mark(self.key, cipher.new_iv())

    def fits(self, mark: str) -> bool:
        return cipher.is_marked(self.key, mark)


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""


def _invalid(message: str, name: str) -> S3Error:
    return S3Error("InvalidArgument", message, ArgumentName=name.lower())


def customer_key(header: Header, prefix: str = CUSTOMER) -> CustomerKey | None:
    """The key that the headers hold; None when there are none. Raises S3Error."""
    algorithm, key, digest = header(f"{prefix}-Algorithm"), header(f"{prefix}-Key"), header(f"{prefix}-Key-Md5")
    if algorithm is None and key is None and digest is None:
        return None
    if not algorithm:
        raise _invalid(
            f"{_NEEDS} a valid encryption algorithm.",
            f"{prefix}-Algorithm",
        )
    if algorithm != AES256:
        raise S3Error("InvalidEncryptionAlgorithmError")
    if not key:
        raise _invalid(
            f"{_NEEDS} an appropriate secret key.",
            f"{prefix}-Key",
        )
    if not digest:
        raise _invalid(
            f"{_NEEDS} the MD5 of the secret key.",
            f"{prefix}-Key-Md5",
        )
    octets = _decoded(key)
    if len(octets) != KEY_BYTES:
        raise _invalid("The secret key was invalid for the specified algorithm.", f"{prefix}-Key")
    found = base64.b64encode(md5(octets, usedforsecurity=False).digest()).decode()
    if found != digest:
        raise _invalid(
            "The calculated MD5 hash of the key did not match the hash that was provided.", f"{prefix}-Key-Md5"
        )
    return CustomerKey(octets, found)


@dataclass(frozen=True)
class Wanted:
    """How the store is to encrypt: with a key that was named, or with its own."""

    kms_key: str | None = None


def kms_key(name: str | None, offered: Collection[str], header: str) -> str:
    """The id of a key that is named, one of those that are ``offered``. Raises S3Error."""
    if not offered:
        raise S3Error("NotImplemented", "Encryption with a key manager is not set up here.", Header=header)
    if not name:
        raise _invalid("This store has no default key of a key manager: name one.", KMS_KEY_ID)
    if name not in offered:
        raise S3Error("KMS.NotFoundException")
    return name


def wanted(header: Header, offered: Collection[str]) -> Wanted | None:
    """How a write asks to be encrypted; None when it does not. ``offered``: ids of keys that may be named. Raises S3Error."""
    algorithm = header(ALGORITHM)
    of_kms = [name for name in _OF_KMS if header(name) is not None]
    if algorithm is None:
        if of_kms:
            raise _invalid("Server Side Encryption with a key manager needs its algorithm.", ALGORITHM)
        return None
    by_customer = [name for suffix in ("-Algorithm", "-Key", "-Key-Md5") if header(name := CUSTOMER + suffix) is not None]
    if by_customer:
        raise _invalid(
            "Server Side Encryption with Customer provided key is incompatible with the encryption method specified",
            by_customer[0],
        )
    if algorithm == KMS:
        key = kms_key(header(KMS_KEY_ID), offered, ALGORITHM.lower())
        if header(_CONTEXT) is not None:
            raise S3Error("NotImplemented", "An encryption context is not implemented.", Header=_CONTEXT.lower())
        return Wanted(key)
    if algorithm == "aws:kms:dsse":
        raise S3Error("NotImplemented", "Encryption in two layers is not implemented.", Header=ALGORITHM.lower())
    if algorithm != AES256:
        raise _invalid("The encryption method specified is not supported", ALGORITHM)
    if of_kms:
        raise _invalid("The encryption method specified does not take a key of a key manager.", of_kms[0])
    return Wanted()


def refuse_on_read(header: Header) -> None:
    """Raises S3Error for what is a header of writes only."""
    if header(ALGORITHM) is not None:
        raise _invalid(f"{ALGORITHM.lower()} is not applicable to GET or HEAD requests.", ALGORITHM)
