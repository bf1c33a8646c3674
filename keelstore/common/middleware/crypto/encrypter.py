"""What the filter ``encryption`` does to writes, and to the conditions of reads (``spec: middleware 25``).

The body is encrypted on its way with a random key, which the object's key wraps. What is known only at its end (ETags, and
the crypto meta, since an empty body is not encrypted) goes on as footers; user metadata goes on as headers.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from hashlib import md5
from typing import Any, Final

from keelstore.common.errors import UnprocessableEntity
from keelstore.common.headers import is_true
from keelstore.common.http import CUSTOMER_KEY, Environ
from keelstore.common.httpinput import FileLike
from keelstore.common.middleware.crypto import cipher, meta
from keelstore.common.middleware.crypto.keys import Callback, Keys
from keelstore.common.middleware.crypto.told import SEALED, Sealed

FOOTERS: Final = "swift.callback.update_footers"
EMPTY_MD5: Final = "d41d8cd98f00b204e9800998ecf8427e"
ETAG_IS_AT: Final = "HTTP_X_BACKEND_ETAG_IS_AT"
CONDITIONS: Final = ("HTTP_IF_MATCH", "HTTP_IF_NONE_MATCH")
_META: Final = "HTTP_X_OBJECT_META_"
_CRYPTO_META: Final = "HTTP_X_OBJECT_TRANSIENT_SYSMETA_CRYPTO_META"
# What a listing is to say in place of the ETag, the strongest first; in each form a footer is stronger than a header.
_BACKEND_OVERRIDE: Final = "X-Backend-Container-Update-Override-Etag"
_OVERRIDES: Final = ((meta.LISTING_ETAG, "HTTP_X_OBJECT_SYSMETA_CONTAINER_UPDATE_OVERRIDE_ETAG"),
                     (_BACKEND_OVERRIDE, "HTTP_X_BACKEND_CONTAINER_UPDATE_OVERRIDE_ETAG"))


def encrypt_metadata(environ: Environ, keys: Keys, key_id: str) -> None:
    """Put encrypted user metadata in place of the plain; a value that is empty stays as it is."""
    names = [key for key in environ if key.startswith(_META)]
    if not names:
        return
    found = False
    for key in names:
        value = environ[key]
        if value:
            environ[f"{_CRYPTO_META}_{key[len(_META):]}"] = meta.encrypt_text(keys["object"], value)
            del environ[key]
            found = True
    if found:
        environ[_CRYPTO_META] = meta.user_meta(key_id)


class EncryptingBody(FileLike):
    """The input of a PUT, encrypted. ``started``: whether there was anything; ``etag``: the MD5 of the plain body so far."""

    __slots__ = ("_hasher", "_source", "_stream", "iv", "key", "started")

    def __init__(self, source: Any):
        super().__init__()
        self._source = source
        self._hasher = md5(usedforsecurity=False)
        self._stream: Any = None
        self.started = False
        self.key = self.iv = b""

    @property
    def etag(self) -> str:
        return self._hasher.hexdigest()

    def _encrypted(self, data: bytes) -> bytes:
        if not data:
            return data
        if not self.started:
            self.started, self.key, self.iv = True, cipher.new_key(), cipher.new_iv()
            self._stream = cipher.stream(self.key, self.iv)
        self._hasher.update(data)
        found: bytes = self._stream.update(data)
        return found

    def _more(self, size: int) -> bytes:
        read = getattr(self._source, "read1", None) or self._source.read
        return self._encrypted(read(size))

    def read(self, size: int | None = -1) -> bytes:
        if self._held:
            return super().read(size)
        return self._encrypted(self._source.read() if size is None or size < 0 else self._source.read(size))


class SealedBody:
    """In the place of an ``EncryptingBody`` whose data are encrypted already, and pass as they are."""

    __slots__ = ("etag", "sealed", "started")

    def __init__(self, sealed: Sealed):
        self.sealed, self.etag, self.started = sealed, sealed.plain_etag, True


class Footers:
    """The callback that a PUT goes on with: adds what could not be known before the body had passed."""

    def __init__(self, environ: Environ, body: EncryptingBody | SealedBody, keys: Keys, key_id: str):
        self._body, self._keys, self._key_id = body, keys, key_id
        self._outer: Callable[[MutableMapping[str, str]], None] | None = environ.get(FOOTERS)
        self._wanted: str | None = environ.pop("HTTP_ETAG", None)
        self._overrides = [environ.get(key) for _name, key in _OVERRIDES]
        # A manifest is not what a client gave: who deletes a large object has to read it without its key.
        is_manifest = is_true(environ.get("HTTP_X_STATIC_LARGE_OBJECT", ""))
        self._customer_key: bytes | None = None if is_manifest else environ.get(CUSTOMER_KEY)

    def __call__(self, footers: MutableMapping[str, str]) -> None:
        """Raises UnprocessableEntity when the body is not the one whose ETag was announced."""
        if self._outer is not None:
            self._outer(footers)
        body, keys = self._body, self._keys
        etag = body.etag
        wanted = footers.pop("Etag", None) or self._wanted
        if wanted and wanted.strip().strip('"').lower() != etag:
            raise UnprocessableEntity()
        if body.started:
            if isinstance(body, SealedBody):
                footers[meta.BODY_META], footers[meta.CUSTOMER] = body.sealed.body_meta, body.sealed.mark
                footers[meta.ETAG] = meta.encrypt_text(keys["object"], etag, self._key_id)
            else:
                footers[meta.BODY_META] = self._wrapped(body, footers)
                footers[meta.ETAG] = meta.encrypt_text(keys["object"], etag)
            footers[meta.ETAG_MAC] = cipher.mac(keys["object"], etag)
        listed = self._listed(footers)
        if listed is None:
            listed = etag if body.started else ""
        if listed and (body.started or listed != EMPTY_MD5):
            footers[meta.LISTING_ETAG] = meta.encrypt_text(keys["container"], listed, self._key_id)

    def _wrapped(self, body: EncryptingBody, footers: MutableMapping[str, str]) -> str:
        """The crypto meta of the body; a customer's key that wraps its key gets its mark."""
        wrapping_iv = cipher.new_iv()
        wrapping_key, customer_key = self._keys["object"], self._customer_key
        if customer_key is not None:
            wrapping_key = cipher.customer_wrapping_key(wrapping_key, customer_key)
            footers[meta.CUSTOMER] = cipher.customer_mark(customer_key, cipher.new_iv())
        wrapped = cipher.apply(wrapping_key, wrapping_iv, body.key)
        return meta.body_meta(body.iv, self._key_id, wrapped, wrapping_iv)

    def _listed(self, footers: MutableMapping[str, str]) -> str | None:
        """What a filter further left wants the listing to say."""
        for (name, _key), header in zip(_OVERRIDES, self._overrides, strict=True):
            value = footers.get(name, header)
            if value is not None:
                footers.pop(_BACKEND_OVERRIDE, None)
                return value
        return None


def encrypt_put(environ: Environ, keys: Keys) -> EncryptingBody | SealedBody:
    """Make a PUT one of encrypted data; the body tells afterwards what was plain."""
    key_id = meta.quoted_key_id(keys["id"])
    encrypt_metadata(environ, keys, key_id)
    sealed: Sealed | None = environ.get(SEALED)
    body = EncryptingBody(environ["wsgi.input"]) if sealed is None else SealedBody(sealed)
    environ[FOOTERS] = Footers(environ, body, keys, key_id)
    if isinstance(body, SealedBody):
        environ["HTTP_ETAG"] = body.sealed.etag
    else:
        environ["wsgi.input"] = body
    return body


# -- conditions --------------------------------------------------------------------------------------------------------


def mask_conditions(environ: Environ, fetch: Callback) -> None:
    """Add to the ETags of a condition what stands for them in encrypted objects, and tell the servers where that is."""
    found = False
    object_keys: list[bytes] | None = None
    for key in CONDITIONS:
        header = environ.get(key)
        if not header:
            continue
        tags: dict[str, None] = {}
        for part in header.split(","):
            tag = part.strip()
            bare = tag[1:-1] if len(tag) > 1 and tag[0] == tag[-1] == '"' else tag
            if not bare:
                continue
            if bare == "*":
                tags["*"] = None
                continue
            if object_keys is None:
                object_keys = [fetch(key_id=key_id)["object"] for key_id in fetch()["all_ids"]]
            tags[f'"{bare}"'] = None
            for object_key in object_keys:
                tags[f'"{cipher.mac(object_key, bare)}"'] = None
            found = True
        environ[key] = ", ".join(tags)
    if found:
        others = environ.get(ETAG_IS_AT)
        environ[ETAG_IS_AT] = f"{others},{meta.ETAG_MAC}" if others else meta.ETAG_MAC
