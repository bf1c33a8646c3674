"""One writer at a time of one object: what conditional writes are decided under (``spec: s3-api 3.10``).

A lock is two things, and both must be had: an abstract socket address, which all processes of a machine see and which the
kernel gives back however its holder ends; and, where proxies share a memcached, a counter there, which proxies of other
machines see and which ends with its holder or after ``TTL_S``. Proxies that share neither decide by what the object servers
hold (``If-None-Match: *`` is sent on), which is right but for writes that cross within the moment of the commit.
"""

from __future__ import annotations

import hashlib
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from keelstore.common import concurrency
from keelstore.common.errors import KeelstoreError
from keelstore.common.http import CACHE, Environ
from keelstore.common.middleware.s3api.errors import S3Error

WAIT_S: Final = 15.0
TTL_S: Final = 120
_FIRST_PAUSE_S: Final = 0.004
_LAST_PAUSE_S: Final = 0.05


class Exclusive:
    """The right to write one object while its condition is looked at and until it is committed. Not to be shared."""

    def __init__(self, environ: Environ, account: str, container: str, obj: str):
        name = f"{account}/{container}/{obj}".encode("utf-8", "surrogateescape")
        self._name = hashlib.sha256(name).hexdigest()
        self._cache: Any = environ.get(CACHE)
        self._socket: socket.socket | None = None
        self._counted = False
        self._key = obj

    def acquire(self, wait_s: float = WAIT_S) -> None:
        """Raises S3Error when another writer does not come to an end in time."""
        if self._socket is not None:
            return
        deadline, pause = time.monotonic() + wait_s, _FIRST_PAUSE_S
        while not self._take():
            if time.monotonic() > deadline:
                raise S3Error("ConditionalRequestConflict", Key=self._key)
            concurrency.sleep(pause)
            pause = min(pause * 1.5, _LAST_PAUSE_S)

    def _take(self) -> bool:
        held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            held.bind(f"\0keelstore/s3/{self._name}")
        except OSError:
            held.close()
            return False
        if self._cache is not None:
            try:
                if self._cache.incr(f"s3lock/{self._name}", 1, TTL_S) != 1:
                    held.close()
                    return False
                self._counted = True
            except KeelstoreError:
                pass  # no cache to ask: those on this machine are kept apart still
        self._socket = held
        return True

    def release(self) -> None:
        if self._socket is not None:
            if self._counted:
                self._counted = False
                with suppress(KeelstoreError):
                    self._cache.delete(f"s3lock/{self._name}")
            self._socket.close()
            self._socket = None


@contextmanager
def exclusive(environ: Environ, account: str, container: str, obj: str, wait_s: float = WAIT_S) -> Iterator[None]:
    held = Exclusive(environ, account, container, obj)
    held.acquire(wait_s)
    try:
        yield
    finally:
        held.release()
