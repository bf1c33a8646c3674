"""The ETags of a listing, decrypted (``spec: middleware 25``).

Only the values are replaced, where they stand in the JSON text: a page of ten thousand names is neither parsed nor rendered
again. In JSON ``"hash":`` can only be a key, since a quotation mark inside of a string is escaped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final

from keelstore.common.middleware.crypto import cipher, meta
from keelstore.common.middleware.crypto.keys import Callback

UNKNOWN: Final = "<unknown>"
_HASH: Final = re.compile(rb'("hash"\s*:\s*)("[^"\\]*(?:\\.[^"\\]*)*")')
_MARK: Final = meta.PARAMETER.encode()


def decrypted_listing(data: bytes, fetch: Callback, on_failure: Callable[[str], None]) -> bytes:
    """A listing as JSON with its ETags in the clear; ``<unknown>`` for those that cannot be, of which ``on_failure`` is told
    once, with the first reason."""
    if _MARK not in data:
        return data
    container_key: Callable[[Any], bytes] = (getattr(fetch, "container_key", None)
                                             or (lambda key_id: fetch(key_id=key_id)["container"]))
    failures: list[str] = []
    ciphers: dict[bytes, cipher.ShortTexts] = {}

    def cipher_of(key_id: Any) -> cipher.ShortTexts:
        key = container_key(key_id)
        known = ciphers.get(key)
        if known is None:
            known = ciphers[key] = cipher.ShortTexts(key)
        return known

    def replace(match: re.Match[bytes]) -> bytes:
        value = match[2]
        if _MARK not in value:
            return match[0]
        try:
            text = _decrypted(json.loads(value) if b"\\" in value else value[1:-1].decode("utf-8"), cipher_of)
            if text.isalnum():
                return b'%b"%b"' % (match[1], text.encode("ascii"))
        except Exception as error:  # whatever is wrong with one row, or with a keymaster that is not ours
            failures.append(f"{type(error).__name__}: {error}")
            text = UNKNOWN
        return match[1] + json.dumps(text).encode("ascii")

    found = _HASH.sub(replace, data)
    if failures:
        on_failure(f"{len(failures)} ETags cannot be decrypted ({failures[0]})")
    return found


def _decrypted(value: str, cipher_of: Callable[[Any], cipher.ShortTexts]) -> str:
    sealed, crypto_meta = meta.split_text(value)
    if not crypto_meta:
        return value
    found = meta.decode(crypto_meta)
    text = meta.decrypt_text(cipher_of(found.key_id), sealed, found.iv)
    if not (text.isascii() and text.isprintable()):  # another secret than it was encrypted with
        raise meta.BadCryptoMeta("another root secret of the same id")
    return text
