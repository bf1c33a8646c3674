"""What the filter ``encryption`` does to answers about objects (``spec: middleware 25``).

Headers come first: they tell whether anything is encrypted, and with what. An object whose crypto meta is missing in part,
is damaged, or belongs to a key that is not the one at hand (the stored MAC of the ETag tells) is answered 500: what it would
give is not what was stored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from keelstore.common.errors import BackendError, KeelstoreError
from keelstore.common.headers import title
from keelstore.common.middleware.bodies import Header
from keelstore.common.middleware.crypto import cipher, meta
from keelstore.common.middleware.crypto.keys import Callback, Keys
from keelstore.common.middleware.crypto.told import Sealed
from keelstore.common.relay import close

BODY, HEADER, NO_KEYS = "Error decrypting object", "Error decrypting header", "Unable to retrieve encryption keys."
_PREFIXES: Final = ("X-Object-Sysmeta-Crypto-", meta.USER_META)
_EXPOSED: Final = "Access-Control-Expose-Headers"
_CONTENT_RANGE: Final = re.compile(r"\A\s*bytes ([0-9]{1,19})-([0-9]{1,19})/(?:[0-9]{1,19}|\*)\s*\Z", re.IGNORECASE)
_BOUNDARY: Final = re.compile(r'\Amultipart/byteranges\s*;.*?\bboundary="?([^";\s]{1,70})"?\s*\Z', re.IGNORECASE)
_MAX_HEAD: Final = 65536  # bytes of the headers of one part


class CannotDecrypt(KeelstoreError):
    """An answer that cannot be given. ``text`` is for the client; the message, without secrets, for the log."""

    def __init__(self, text: str, reason: object):
        super().__init__(str(reason))
        self.text = text


def fetched(fetch: Callback | None, key_id: Any = None) -> Keys:
    """The keys of ``key_id``, or of the request's path. Raises CannotDecrypt."""
    if fetch is None:
        raise CannotDecrypt(NO_KEYS, "no keymaster in the pipeline has given a callback for keys")
    try:
        return fetch() if key_id is None else fetch(key_id=key_id)
    except KeelstoreError as error:
        raise CannotDecrypt(BODY, error) from error
    except Exception as error:  # of a keymaster that is not ours
        raise CannotDecrypt(NO_KEYS, f"{type(error).__name__} from the keymaster") from error


class BodyKey:
    """Key and IV of a body, and the id of the root secret that they come from."""

    __slots__ = ("iv", "key", "secret_id")

    def __init__(self, key: bytes, iv: bytes, secret_id: str | None):
        self.key, self.iv, self.secret_id = key, iv, secret_id


class HeaderDecrypter:
    """The headers of one answer, decrypted. ``body``: how its body is encrypted, or None. ``is_withheld``: the body cannot be
    decrypted, since ``customer_key`` is not the key that it needs beside ours. ``sealed``: of a body that needs one, where
    ``wants_sealed``: it stays as it is."""

    def __init__(self, headers: list[Header], fetch: Callback | None, customer_key: bytes | None = None,
                 wants_sealed: bool = False):
        """Raises CannotDecrypt."""
        self._fetch, self._customer_key, self._wants_sealed = fetch, customer_key, wants_sealed
        self.is_withheld = False
        self.sealed: Sealed | None = None
        self._ciphers: dict[bytes, cipher.ShortTexts] = {}
        self.body: BodyKey | None = None
        self.headers = headers
        crypto: dict[str, str] = {}
        plain: list[Header] = []
        for pair in headers:
            name = title(pair[0])
            if name.startswith(_PREFIXES) or (name == meta.LISTING_ETAG and meta.PARAMETER in pair[1]):
                crypto[name] = pair[1]
            else:
                plain.append(pair)
        if crypto:
            self._decrypt(crypto, plain)

    def _decrypt(self, crypto: dict[str, str], plain: list[Header]) -> None:
        self.headers = plain
        body, etag = crypto.get(meta.BODY_META), crypto.get(meta.ETAG)
        if (body is None) != (etag is None):
            raise CannotDecrypt(BODY, "crypto meta of the body, or of the ETag, is missing")
        if body is not None and etag is not None:
            self._decrypt_body_meta(body, etag, crypto.get(meta.ETAG_MAC), crypto.get(meta.CUSTOMER))
        listed = crypto.get(meta.LISTING_ETAG)
        if listed is not None:
            self.headers.append((meta.LISTING_ETAG, self._text(listed, None, "container")))
        self._decrypt_user_metadata(crypto)

    def _decrypt_body_meta(self, text: str, etag: str, mac: str | None, mark: str | None) -> None:
        try:
            found = meta.decode(text)
            if not found.body_key or not found.iv:
                raise meta.BadCryptoMeta("crypto meta of a body without key or IV")
            keys = fetched(self._fetch, found.key_id)
            wrapping_key = keys["object"]
            if mark is not None:
                wrapping_key = self._with_customers(wrapping_key, mark)
                own = meta.decode(meta.split_text(etag)[1]).key_id
                if own is not None:  # it was moved sealed: only the body is still as it was
                    keys = fetched(self._fetch, own)
            key = self._cipher(wrapping_key).apply(found.body_key_iv, found.body_key)
        except (meta.BadCryptoMeta, ValueError, KeyError) as error:
            raise CannotDecrypt(BODY, f"bad crypto meta of the body: {error}") from None
        plain = self._text(etag, keys, "object")
        if mac is not None and mac != cipher.mac(keys["object"], plain):
            raise CannotDecrypt(BODY, "its root secret is not the one it was encrypted with, or its metadata is damaged")
        self.body = BodyKey(key, found.iv, found.key_id.get("secret_id") if found.key_id is not None else None)
        if mark is not None and self._wants_sealed:
            stored = next((value for name, value in self.headers if title(name) == "Etag"), "")
            self.sealed = Sealed(text, mark, stored.strip('"'), plain)
        self.headers = [pair for pair in self.headers if title(pair[0]) != "Etag"]
        self.headers.append(("Etag", plain))

    def _with_customers(self, object_key: bytes, mark: str) -> bytes:
        key = self._customer_key
        if key is None or not cipher.is_marked(key, mark):
            self.is_withheld = True
            return object_key
        return cipher.customer_wrapping_key(object_key, key)

    def _decrypt_user_metadata(self, crypto: dict[str, str]) -> None:
        prefix = meta.USER_META_PREFIX
        names = [name for name in crypto if name.startswith(prefix) and len(name) > len(prefix)]
        if not names:
            return
        shared = crypto.get(meta.USER_META)
        try:
            keys = fetched(self._fetch, meta.decode(shared).key_id if shared is not None else None)
        except meta.BadCryptoMeta as error:
            raise CannotDecrypt(BODY, f"bad crypto meta of user metadata: {error}") from None
        found = [("X-Object-Meta-" + name[len(prefix):], self._text(crypto[name], keys, "object")) for name in names]
        replaced = {name for name, _value in found}
        self.headers = [pair for pair in self.headers if title(pair[0]) not in replaced]
        self.headers += found
        self._expose([name.lower() for name in sorted(replaced)])

    def _expose(self, names: list[str]) -> None:
        """Let scripts of other origins read what the server could not know to be there."""
        for index, (name, value) in enumerate(self.headers):
            if title(name) == _EXPOSED:
                known = {part.strip().lower() for part in value.split(",")}
                self.headers[index] = (name, ", ".join([value, *(new for new in names if new not in known)]))
                return

    def _cipher(self, key: bytes) -> cipher.ShortTexts:
        known = self._ciphers.get(key)
        if known is None:
            known = self._ciphers[key] = cipher.ShortTexts(key)
        return known

    def _text(self, value: str, keys: Keys | None, which: str) -> str:
        """A header's value decrypted with a key of ``keys``, or of its own key id. Raises CannotDecrypt."""
        sealed, crypto_meta = meta.split_text(value)
        try:
            if not crypto_meta:
                raise meta.BadCryptoMeta("no crypto meta")
            found = meta.decode(crypto_meta)
            if keys is None:
                keys = fetched(self._fetch, found.key_id)
            return meta.decrypt_text(self._cipher(keys[which]), sealed, found.iv)
        except (meta.BadCryptoMeta, ValueError, KeyError) as error:
            raise CannotDecrypt(HEADER, f"bad crypto meta of a header: {error}") from None


# -- bodies ------------------------------------------------------------------------------------------------------------


def decrypted_body(body: Any, key: BodyKey, status: int, headers: dict[str, str]) -> Iterable[bytes]:
    """The body of a 200 or 206, whose ``headers`` are by Title-Cased name. Raises CannotDecrypt."""
    offset = 0
    if status == 206:
        content_range = headers.get("Content-Range")
        if content_range is None:
            boundary = _BOUNDARY.match(headers.get("Content-Type", ""))
            if boundary is None:
                raise CannotDecrypt(BODY, "a 206 that does not tell its range")
            return MultipartBody(body, key, boundary[1].encode("latin-1"))
        match = _CONTENT_RANGE.match(content_range)
        if match is None:
            raise CannotDecrypt(BODY, "a 206 that does not tell its range")
        offset = int(match[1])
    stream = cipher.stream(key.key, key.iv, offset)
    if type(body) is tuple or type(body) is list:
        return [stream.update(part) for part in body]
    return StreamedBody(body, stream)


class StreamedBody:
    """One run of octets, decrypted as it comes."""

    __slots__ = ("_body", "_stream")

    def __init__(self, body: Iterable[bytes], stream: Any):
        self._body, self._stream = body, stream

    def __iter__(self) -> Iterator[bytes]:
        return map(self._stream.update, self._body)

    def close(self) -> None:
        close(self._body)


class MultipartBody:
    """The parts of a multipart/byteranges message, each decrypted from its own offset; what is between stays as it is."""

    def __init__(self, body: Iterable[bytes], key: BodyKey, boundary: bytes):
        self._body, self._key = body, key
        self._delimiter = b"--" + boundary

    def close(self) -> None:
        close(self._body)

    def __iter__(self) -> Iterator[bytes]:
        """Raises BackendError for a body that is not what it says, or that ends early."""
        pieces = iter(self._body)
        held = b""
        while True:
            held, head = self._head(pieces, held)
            yield head
            if head.endswith(b"--"):
                yield from (piece for piece in (held, *pieces) if piece)
                return
            start, left = self._span(head)
            stream = cipher.stream(self._key.key, self._key.iv, start)
            while left:
                data = held or next(pieces, b"")
                if not data:
                    raise BackendError("a part of several ranges ended early")
                held = data[left:]
                if held:
                    data = data[:left]
                left -= len(data)
                yield stream.update(data)

    def _head(self, pieces: Iterator[bytes], held: bytes) -> tuple[bytes, bytes]:
        """What follows, and the octets up to the data of the next part, or to the end of the closing delimiter."""
        end = b"\r\n\r\n"
        while True:
            at = held.find(self._delimiter)
            after = at + len(self._delimiter)
            if at >= 0 and held[after:after + 2] == b"--":
                return held[after + 2:], held[:after + 2]
            stop = held.find(end, after) if at >= 0 else -1
            if stop >= 0:
                return held[stop + len(end):], held[:stop + len(end)]
            data = next(pieces, b"")
            if not data or len(held) > _MAX_HEAD:
                raise BackendError("an answer of several ranges that is not one")
            held += data

    @staticmethod
    def _span(head: bytes) -> tuple[int, int]:
        for line in head.decode("latin-1").split("\r\n"):
            name, _colon, value = line.partition(":")
            match = _CONTENT_RANGE.match(value) if name.strip().lower() == "content-range" else None
            if match is not None:
                return int(match[1]), int(match[2]) + 1 - int(match[1])
        raise BackendError("a part of several ranges that does not tell its own")
