"""The cache that proxies share: what it promises, and which of the two kinds a node uses.

``memcached`` (``cache_memcached``) when servers are configured: one cache for the whole cluster, laid out as Swift lays it
out, so that proxies of both kinds can share it. Otherwise the embedded cache (``cache_embedded``): shared memory of
the worker processes of one node.

Values are JSON, never anything else: what is not JSON reads as a miss.
"""

from __future__ import annotations

import json
from typing import Any, Protocol

from keelstore.common.errors import KeelstoreError

MAX_TTL_S = 30 * 24 * 3600  # memcached takes more seconds than this for a date


class CacheError(KeelstoreError):
    """The cache could not do what was asked, and the caller asked to be told (``raise_on_error``)."""


class Cache(Protocol):
    """What ``environ["swift.cache"]`` holds.

    ``ttl_s`` 0 keeps a value until it is pushed out; ``time`` is another name for it, which middlewares of others use.
    Errors are logged and read as a miss; with ``raise_on_error`` they raise CacheError. ``at``: a key beside which, on the
    same server, another is kept.
    """

    def get(self, key: str, raise_on_error: bool = False) -> Any:
        """The value, or None. Not to be changed: the same object may be given again."""

    def get_raw(self, key: str, raise_on_error: bool = False) -> bytes | None:
        """The value as the JSON text it is kept as, or None; for callers that know what they parsed last."""

    def get_beside(self, key: str, beside: str) -> tuple[bytes | None, bytes | None]:
        """The values of ``key``, and of ``beside``, which is kept ``at`` it, as JSON texts; one question."""

    def set(self, key: str, value: Any, ttl_s: float = 0, *, serialize: bool = True, time: float = 0,
            raise_on_error: bool = False, at: str = "") -> None: ...

    def delete(self, key: str, at: str = "") -> None: ...

    def incr(self, key: str, delta: int = 1, ttl_s: float = 0, *, time: float = 0) -> int:
        """Add to a counter; one that is not there starts at ``delta``, or 0 when that is negative. Never below 0.

        ``ttl_s`` counts from when the counter is made. Raises CacheError.
        """

    def decr(self, key: str, delta: int = 1, ttl_s: float = 0, *, time: float = 0) -> int: ...


def encode(value: Any) -> bytes:
    """The JSON text of a value; bytes are taken for UTF-8 text. Raises TypeError, ValueError for what has none."""
    if isinstance(value, bytes):
        value = value.decode("utf-8")
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def decode(data: bytes) -> Any:
    """The value of a JSON text, or None for what is none."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None
