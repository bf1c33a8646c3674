"""Keys out of root secrets: HMAC-SHA256 of a path, and the ids that tell later which secret and path it was. Pure.

    key of a container     HMAC-SHA256(root secret, "/account/container")
    key of an object       HMAC-SHA256(root secret, "/account/container/object")     paths in UTF-8
    key id                 {"v": version, "path": "/account/container/object", "secret_id": ... (none for the secret without)}

Versions of a key id differ in how it spells the path: 1 and 2 hold its UTF-8 octets as latin-1 (what Swift wrote under
Python 2 is text all the same), 3 holds text. Under version 1 an object whose name begins with a slash has that name alone
as its path. All are read; ``version`` is what is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hmac import digest
from typing import Any, Final

from keelstore.common.errors import KeelstoreError

CALLBACK: Final = "swift.callback.fetch_crypto_keys"
VERSIONS: Final = ("1", "2", "3")

KeyId = Mapping[str, Any]
Keys = dict[str, Any]  # container, object (bytes), id (a key id), all_ids (key ids, the one of ``id`` first)
Callback = Callable[..., Keys]


class UnknownKey(KeelstoreError):
    """No key can be had for a key id: its secret is not known, or it is none."""


@dataclass(frozen=True)
class RootSecrets:
    """``by_id``: secret id (None for the one without) to secret; ``active``: the id of the one that is written with."""

    by_id: Mapping[str | None, bytes] = field(repr=False)
    active: str | None = None
    version: str = "2"


def derive(secret: bytes, path: bytes) -> bytes:
    return digest(secret, path, "sha256")


def spelt(path: bytes, version: str) -> str:
    """A path as a key id of ``version`` has it."""
    return path.decode("utf-8", "surrogateescape") if version == "3" else path.decode("latin-1")


class KeySource:
    """The callback of one request, ``environ["swift.callback.fetch_crypto_keys"]``.

    ``account``, ``container`` and ``obj`` are wire strings, '' when absent. ``outer``: the callback of a keymaster further
    left, asked for secrets that are not known here.
    """

    __slots__ = ("_account", "_container", "_container_keys", "_known", "_object", "_outer", "_own", "_secrets")

    def __init__(self, secrets: RootSecrets, account: str, container: str, obj: str, outer: Callback | None = None):
        self._secrets, self._outer = secrets, outer
        self._account, self._container, self._object = account, container, obj
        self._own: Keys | None = None
        self._known: dict[tuple[str | None, bytes, str], Keys] = {}
        self._container_keys: dict[tuple[str | None, bytes], bytes] = {}

    def __call__(self, key_id: KeyId | None = None) -> Keys:
        """The keys that are written with, or those of ``key_id``. Raises UnknownKey."""
        if not self._container:
            return {}
        if key_id is None:
            if self._own is None:
                self._own = self._keys(self._secrets.active, self._secrets.version,
                                       self._container_path(), self._path(self._secrets.version))
            return self._own
        version, path, secret_id = self._parse(key_id)
        if secret_id not in self._secrets.by_id:
            if self._outer is None:
                raise UnknownKey("the key manager has no secret of this id")
            return self._outer(key_id=key_id)
        place = (secret_id, path, version)
        known = self._known.get(place)
        if known is None:
            container = self._container_of(path, version)
            known = self._known[place] = self._keys(secret_id, version, container, path if self._object else container)
        return known

    def container_key(self, key_id: KeyId | None) -> bytes:
        """The key of the container that a key id tells of, this request's without one; quick, for listings. Raises
        UnknownKey."""
        if key_id is None:
            found: bytes = self()["container"]
            return found
        version, path, secret_id = self._parse(key_id)
        secret = self._secrets.by_id.get(secret_id)
        if secret is None:
            if self._outer is None:
                raise UnknownKey("the key manager has no secret of this id")
            key: bytes = self._outer(key_id=key_id)["container"]
            return key
        place = (secret_id, self._container_of(path, version))
        known = self._container_keys.get(place)
        if known is None:
            known = self._container_keys[place] = derive(secret, place[1])
        return known

    # -- paths ---------------------------------------------------------------------------------------------------------

    def _container_path(self) -> bytes:
        return f"/{self._account}/{self._container}".encode("latin-1")

    def _path(self, version: str) -> bytes:
        if not self._object:
            return self._container_path()
        name = self._object.encode("latin-1")
        return name if version == "1" and name.startswith(b"/") else self._container_path() + b"/" + name

    def _parse(self, key_id: KeyId) -> tuple[str, bytes, str | None]:
        """Version, path and secret id. Raises UnknownKey."""
        version, text, secret_id = key_id.get("v"), key_id.get("path"), key_id.get("secret_id")
        if version not in VERSIONS or not isinstance(text, str) or text[:1] != "/" or not (
                secret_id is None or isinstance(secret_id, str)):
            raise UnknownKey("not a key id")
        if text.isascii() or version == "3":
            return version, text.encode("utf-8", "surrogateescape"), secret_id
        try:
            path = text.encode("latin-1")
            path.decode("utf-8")
        except UnicodeError:  # text: Swift under Python 2
            return version, text.encode("utf-8", "surrogateescape"), secret_id
        own = self._path(version) if self._object else self._container_path() + b"/"
        if not path.startswith(own) and text.encode("utf-8").startswith(own):
            return version, text.encode("utf-8"), secret_id
        return version, path, secret_id

    def _container_of(self, path: bytes, version: str) -> bytes:
        own = self._container_path()
        if path == own or path.startswith(own + b"/") or version == "1":
            return own  # a path of version 1 may be an object's name alone
        parts = path.split(b"/", 3)
        if len(parts) < 3 or not parts[1] or not parts[2]:
            raise UnknownKey("a key id whose path names no container")
        return b"/%b/%b" % (parts[1], parts[2])

    # -- keys ----------------------------------------------------------------------------------------------------------

    def _keys(self, secret_id: str | None, version: str, container: bytes, path: bytes) -> Keys:
        by_id = self._secrets.by_id
        secret = by_id[secret_id]
        own = _key_id(version, path, secret_id)
        found: Keys = {"container": derive(secret, container)}
        if self._object:
            found["object"] = derive(secret, path)
        found["id"] = own
        found["all_ids"] = [own, *(_key_id(version, path, other) for other in by_id if other != secret_id)]
        if version != "1" and self._object.startswith("/"):
            found["all_ids"] += [_key_id("1", self._path("1"), other) for other in by_id]
        return found


def _key_id(version: str, path: bytes, secret_id: str | None) -> dict[str, str]:
    found = {"v": version, "path": spelt(path, version)}
    if secret_id is not None:
        found["secret_id"] = secret_id
    return found
