"""Crypto meta: which cipher, IV and key something was encrypted with, as it stands in headers. Pure.

The format (``doc/formats/encryption.md``)::

    crypto meta     JSON, keys sorted, separators ", " and ": ", ASCII; then quoted as a form (space: +)
                    {"cipher": "AES_CTR_256", "iv": <base64 of 16 bytes>}, and where its place has them
                    "key_id": {"path": ..., "secret_id": ..., "v": ...}, "body_key": {"iv": <base64>, "key": <base64>}
    a short text    <base64 of the encrypted text>; swift_meta=<crypto meta>

Headers are built by putting strings together, and read by a pattern where they are as they are written, since each request
has many of them; ``encode`` and ``_decode_any`` do the same in general.
"""

from __future__ import annotations

import binascii
import json
import re
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote_plus, unquote_plus

from keelstore.common.errors import KeelstoreError
from keelstore.common.middleware.crypto import cipher

BODY_META: Final = "X-Object-Sysmeta-Crypto-Body-Meta"
ETAG: Final = "X-Object-Sysmeta-Crypto-Etag"
ETAG_MAC: Final = "X-Object-Sysmeta-Crypto-Etag-Mac"
CUSTOMER: Final = "X-Object-Sysmeta-Crypto-Customer-Key"  # which key of a client's wraps the body's key beside the object's
LISTING_ETAG: Final = "X-Object-Sysmeta-Container-Update-Override-Etag"
USER_META: Final = "X-Object-Transient-Sysmeta-Crypto-Meta"
USER_META_PREFIX: Final = "X-Object-Transient-Sysmeta-Crypto-Meta-"
PARAMETER: Final = "swift_meta="

KeyId = Mapping[str, Any]


class BadCryptoMeta(KeelstoreError):
    """What should be crypto meta, or a text encrypted with it, is not."""


@dataclass(frozen=True, slots=True)
class CryptoMeta:
    """``key_id`` None: that of the object. ``iv`` b'' where the place has none; ``body_key`` is wrapped, with its own IV."""

    iv: bytes = field(default=b"", repr=False)
    key_id: KeyId | None = None
    body_key: bytes = field(default=b"", repr=False)
    body_key_iv: bytes = field(default=b"", repr=False)


# -- writing -----------------------------------------------------------------------------------------------------------

_FORM: Final = str.maketrans({"+": "%2B", "/": "%2F", "=": "%3D"})  # the characters of base64 that a form quotes
_CIPHER: Final = quote_plus(f'"cipher": "{cipher.NAME}"')
_IV: Final = quote_plus('"iv": "')
_KEY: Final = quote_plus('", "key": "')
_NEXT: Final = quote_plus(", ")
_OPEN, _CLOSE, _QUOTE = quote_plus("{"), quote_plus("}"), quote_plus('"')
_BODY_KEY: Final = quote_plus('"body_key": {')
_KEY_ID: Final = quote_plus('"key_id": ')


def encode(value: Mapping[str, Any]) -> str:
    """Crypto meta out of a mapping whose binary items are base64 already."""
    return quote_plus(json.dumps(value, sort_keys=True))


def quoted_key_id(key_id: KeyId) -> str:
    """A key id as it stands within crypto meta; made once a request."""
    return quote_plus(json.dumps(key_id, sort_keys=True))


def _base64(data: bytes) -> str:
    return b64encode(data).decode().translate(_FORM)


def text_meta(iv: bytes, key_id: str = "") -> str:
    """Of a short text; ``key_id`` quoted, '' for none."""
    end = f"{_QUOTE}{_NEXT}{_KEY_ID}{key_id}{_CLOSE}" if key_id else _QUOTE + _CLOSE
    return f"{_OPEN}{_CIPHER}{_NEXT}{_IV}{_base64(iv)}{end}"


def user_meta(key_id: str) -> str:
    """What all user metadata of an object share."""
    return f"{_OPEN}{_CIPHER}{_NEXT}{_KEY_ID}{key_id}{_CLOSE}"


def body_meta(iv: bytes, key_id: str, wrapped_key: bytes, wrapped_key_iv: bytes) -> str:
    return (f"{_OPEN}{_BODY_KEY}{_IV}{_base64(wrapped_key_iv)}{_KEY}{_base64(wrapped_key)}{_QUOTE}{_CLOSE}{_NEXT}"
            f"{_CIPHER}{_NEXT}{_IV}{_base64(iv)}{_QUOTE}{_NEXT}{_KEY_ID}{key_id}{_CLOSE}")


def encrypt_text(key: bytes, text: str, key_id: str = "") -> str:
    """A wire string as a header holds it encrypted."""
    iv = cipher.new_iv()
    sealed = b64encode(cipher.apply(key, iv, text.encode("latin-1"))).decode()
    return f"{sealed}; {PARAMETER}{text_meta(iv, key_id)}"


# -- reading -----------------------------------------------------------------------------------------------------------


_BINARY: Final = r"([0-9A-Za-z%]{4,90})"
_AS_WRITTEN: Final = re.compile(
    rf"\A{_OPEN}(?:{re.escape(_BODY_KEY)}{re.escape(_IV)}{_BINARY}{re.escape(_KEY)}{_BINARY}{_QUOTE}{_CLOSE}{re.escape(_NEXT)})?"
    rf"{re.escape(_CIPHER)}(?:{re.escape(_NEXT)}{re.escape(_IV)}{_BINARY}{_QUOTE})?"
    rf"(?:{re.escape(_NEXT)}{re.escape(_KEY_ID)}({_OPEN}[!-~]*{_CLOSE}))?{_CLOSE}\Z")
_KEY_ID_AS_WRITTEN: Final = re.compile(
    r"\A%7B%22path%22%3A\+%22((?:[^%+]|%2F)*)%22(?:%2C\+%22secret_id%22%3A\+%22([0-9A-Za-z_.-]*)%22)?"
    r"%2C\+%22v%22%3A\+%22([0-9])%22%7D\Z")


def decode(text: str) -> CryptoMeta:
    """Raises BadCryptoMeta; the error does not repeat the text."""
    match = _AS_WRITTEN.match(text)
    if match is None:
        return _decode_any(text)
    body_key_iv, body_key, iv, key_id = match.groups()
    try:
        own = _unquoted(iv, cipher.IV_SIZE) if iv else b""
        if not body_key:
            return CryptoMeta(own, _key_id(key_id) if key_id else None)
        return CryptoMeta(own, _key_id(key_id) if key_id else None, _unquoted(body_key, cipher.KEY_SIZE),
                          _unquoted(body_key_iv, cipher.IV_SIZE))
    except ValueError:
        raise BadCryptoMeta("not crypto meta") from None


def _unquoted(text: str, size: int) -> bytes:
    if "%" in text:
        text = text.replace("%3D", "=").replace("%2B", "+").replace("%2F", "/")
    return _binary(text, size)


@lru_cache(maxsize=1024)
def _key_id(text: str) -> KeyId:
    """Of a quoted key id; an object's own stands in it several times. Raises ValueError."""
    match = _KEY_ID_AS_WRITTEN.match(text)
    if match is None or "\\" in match[1]:
        found = json.loads(unquote_plus(text))
        if not isinstance(found, dict):
            raise ValueError
        return found
    path = match[1].replace("%2F", "/")
    return {"path": path, "v": match[3]} if match[2] is None else {"path": path, "secret_id": match[2], "v": match[3]}


def _decode_any(text: str) -> CryptoMeta:
    try:
        found = json.loads(unquote_plus(text))
        if found["cipher"] != cipher.NAME:
            raise BadCryptoMeta("a cipher that is not known")
        iv = _binary(found["iv"], cipher.IV_SIZE) if "iv" in found else b""
        key_id = found.get("key_id")
        if key_id is not None and not isinstance(key_id, dict):
            raise BadCryptoMeta("no key id")
        if "body_key" not in found:
            return CryptoMeta(iv, key_id)
        wrapped = found["body_key"]
        return CryptoMeta(iv, key_id, _binary(wrapped["key"], cipher.KEY_SIZE), _binary(wrapped["iv"], cipher.IV_SIZE))
    except (ValueError, TypeError, KeyError, RecursionError):
        raise BadCryptoMeta("not crypto meta") from None


def _binary(text: str, size: int) -> bytes:
    data = b64decode(text)
    if len(data) != size:
        raise ValueError
    return data


def split_text(value: str) -> tuple[str, str]:
    """An encrypted text and its crypto meta, both still encoded; the latter '' for a value that is not encrypted."""
    text, semicolon, parameters = value.partition(";")
    if semicolon:
        for parameter in parameters.split(";"):
            parameter = parameter.strip()
            if parameter.startswith(PARAMETER):
                return text.strip(), parameter[len(PARAMETER):]
    return value, ""


def decrypt_text(key: bytes | cipher.ShortTexts, text: str, iv: bytes) -> str:
    """The wire string that ``text`` (base64) is. Raises BadCryptoMeta."""
    if not iv:
        raise BadCryptoMeta("no IV")
    try:
        data = b64decode(text)
        return (cipher.apply(key, iv, data) if isinstance(key, bytes) else key.apply(iv, data)).decode("latin-1")
    except (ValueError, binascii.Error):
        raise BadCryptoMeta("not an encrypted text") from None
