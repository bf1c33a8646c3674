"""The memcached client, laid out as Swift lays it out so that proxies of both kinds share a cache (``spec: proxy 11.3``).

* The key on the wire is the lower-case hex MD5 of the key's UTF-8.
* Each server has 50 points on a ring of MD5 values, ``md5hex("<server>-<i>")``. A key goes to the server of the *second*
  point after it, and on errors to the next distinct servers, ``tries`` in all. (The second: observed of Swift 2.38, and
  what sharing a cache with it depends on.)
* Values are JSON with flag 2. Flag 1 marks a pickle of long ago: a miss.
* A server with more than ``error_suppression_limit`` errors in ``error_suppression_interval`` seconds is left alone for
  that long.
"""

from __future__ import annotations

import logging
import socket
import ssl
import time as clock
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import md5
from typing import Any, TypeVar

from pymemcache.client.base import Client
from pymemcache.exceptions import MemcacheError

from keelstore.common.cache import MAX_TTL_S, CacheError, decode, encode
from keelstore.common.concurrency import Semaphore
from keelstore.common.errors import ConfigError, WaitTimeout

POINTS_PER_SERVER = 50
DEFAULT_PORT = 11211
FLAG_PICKLE, FLAG_JSON = 1, 2

T = TypeVar("T")


@dataclass(frozen=True)
class MemcachedOptions:
    """How to reach the servers; times in seconds."""

    servers: tuple[str, ...]
    max_connections: int = 2
    connect_timeout_s: float = 0.3
    pool_timeout_s: float = 1.0
    io_timeout_s: float = 2.0
    tries: int = 3
    error_suppression_interval_s: float = 60.0
    error_suppression_limit: int = 10
    item_size_warning_threshold: int = -1
    tls: ssl.SSLContext | None = None


def address_of(server: str) -> tuple[str, int]:
    """``host[:port]``, ``ip[:port]`` or ``[ip6][:port]`` as (host, port). Raises ConfigError."""
    host, port = server, ""
    if server.startswith("["):
        host, bracket, port = server[1:].partition("]")
        if not bracket or (port and not port.startswith(":")):
            raise ConfigError("expected host:port", option="memcache_servers", value=server)
        port = port[1:]
    elif server.count(":") == 1:
        host, _, port = server.partition(":")
    if not host or (port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536)):
        raise ConfigError("expected host:port", option="memcache_servers", value=server)
    return host, int(port) if port else DEFAULT_PORT


class _Flagged:
    """Lets values pass as (bytes, flags)."""

    def serialize(self, key: Any, value: tuple[bytes, int]) -> tuple[bytes, int]:
        return value

    def deserialize(self, key: Any, value: bytes, flags: int) -> tuple[bytes, int]:
        return value, flags


class _Server:
    """Connections to one server, and its recent errors."""

    def __init__(self, name: str, options: MemcachedOptions):
        self.name, self.options = name, options
        self.address = address_of(name)
        self.idle: list[Client] = []
        self.places = Semaphore(options.max_connections)
        self.errors: deque[float] = deque(maxlen=options.error_suppression_limit + 1)
        self.limited_until = 0.0

    def take(self) -> Client:
        """A connection; give it back with ``give`` or ``drop``. Raises WaitTimeout."""
        if not self.places.acquire(self.options.pool_timeout_s):
            raise WaitTimeout("all connections are in use")
        if self.idle:
            return self.idle.pop()
        return Client(
            self.address,
            serde=_Flagged(),
            connect_timeout=self.options.connect_timeout_s,
            timeout=self.options.io_timeout_s,
            no_delay=True,
            default_noreply=False,
            tls_context=self.options.tls,
        )

    def give(self, client: Client) -> None:
        self.idle.append(client)
        self.places.release()

    def drop(self, client: Client) -> None:
        client.close()
        self.places.release()


class MemcachedCache:
    """A :class:`~keelstore.common.cache.Cache` over memcached servers."""

    def __init__(self, options: MemcachedOptions, logger: logging.Logger | None = None,
                 now: Callable[[], float] = clock.time):
        self._options = options
        self._log = logger or logging.getLogger("keelstore.cache")
        self._now = now
        points = sorted(
            (md5(f"{name}-{i}".encode(), usedforsecurity=False).hexdigest(), name)
            for name in sorted(set(options.servers))
            for i in range(POINTS_PER_SERVER)
        )
        self._points = [point for point, _ in points]
        self._owners = [name for _, name in points]
        self._servers = {name: _Server(name, options) for name in options.servers}

    # -- placement ---------------------------------------------------------------------------------------------------

    def servers_for(self, key: str) -> list[str]:
        """The servers of a key in the order they are tried."""
        return list(self._order(_wire_key(key)))

    def _order(self, wire: str) -> Iterator[str]:
        start = bisect_right(self._points, wire) + 1
        seen: set[str] = set()
        count = len(self._owners)
        for i in range(count):
            name = self._owners[(start + i) % count]
            if name not in seen:
                seen.add(name)
                yield name
                if len(seen) >= self._options.tries:
                    return

    def _ask(self, key: str, what: str, call: Callable[[Client, bytes], T], raise_on_error: bool = False,
             at: str = "") -> T | None:
        """``call`` on the first server of the key (of ``at``, if given) that answers; None (or CacheError) when none does."""
        wire = _wire_key(key)
        for name in self._order(_wire_key(at) if at else wire):
            server = self._servers[name]
            if server.limited_until > self._now():
                continue
            try:
                client = server.take()
            except WaitTimeout as error:
                self._count_error(server, what, error)
                continue
            try:
                found = call(client, wire.encode())
            except (MemcacheError, OSError, WaitTimeout, ValueError) as error:
                server.drop(client)
                self._count_error(server, what, error)
            except BaseException:  # a time limit or a kill in mid-answer: what comes next on it is not ours
                server.drop(client)
                raise
            else:
                server.give(client)
                return found
        if raise_on_error:
            raise CacheError(f"no memcached server answered {what}")
        return None

    def _count_error(self, server: _Server, what: str, error: Exception) -> None:
        text = "timeout" if isinstance(error, socket.timeout | WaitTimeout) else type(error).__name__
        self._log.error("Error talking to memcached: %s: %s while %s", server.name, text, what)
        now = self._now()
        interval = self._options.error_suppression_interval_s
        if interval <= 0:
            return
        server.errors.append(now)
        if len(server.errors) > self._options.error_suppression_limit and server.errors[0] > now - interval:
            server.errors.clear()
            server.limited_until = now + interval
            self._log.error("Error limiting memcached server %s for %g s", server.name, interval)

    def _expiry(self, ttl_s: float) -> int:
        seconds = int(ttl_s) if ttl_s > 0 else 0
        if ttl_s > 0:
            seconds = max(seconds, 1)
        return seconds + int(self._now()) if seconds > MAX_TTL_S else seconds

    # -- the calls ---------------------------------------------------------------------------------------------------

    def get(self, key: str, raise_on_error: bool = False) -> Any:
        data = self.get_raw(key, raise_on_error)
        return None if data is None else decode(data)

    def get_raw(self, key: str, raise_on_error: bool = False) -> bytes | None:
        found = self._ask(key, "get", lambda client, wire: client.get(wire) or (b"", FLAG_PICKLE), raise_on_error)
        if found is None or found[1] & FLAG_PICKLE:
            return None
        return found[0]

    def get_beside(self, key: str, beside: str) -> tuple[bytes | None, bytes | None]:
        other = _wire_key(beside).encode()
        found = self._ask(key, "get", lambda client, wire: client.get_many((wire, other)))
        return _text(found, _wire_key(key).encode()), _text(found, other)

    def set(self, key: str, value: Any, ttl_s: float = 0, *, serialize: bool = True, time: float = 0,
            raise_on_error: bool = False, at: str = "") -> None:
        try:
            if serialize:
                data, flags = encode(value), FLAG_JSON
            else:
                data, flags = value if isinstance(value, bytes) else str(value).encode(), 0
        except (TypeError, ValueError) as error:
            raise CacheError(f"a value that is no JSON: {error}") from None
        if 0 <= self._options.item_size_warning_threshold <= len(data):
            self._log.warning("Item size larger than warning threshold: %d (%d)", len(data),
                              self._options.item_size_warning_threshold)
        expiry = self._expiry(ttl_s or time)
        stored = self._ask(key, "set", lambda client, wire: client.set(wire, (data, flags), expire=expiry),
                           raise_on_error, at)
        if stored is False and raise_on_error:
            raise CacheError("memcached did not keep the value")

    def delete(self, key: str, at: str = "") -> None:
        self._ask(key, "delete", lambda client, wire: client.delete(wire), at=at)

    def incr(self, key: str, delta: int = 1, ttl_s: float = 0, *, time: float = 0) -> int:
        expiry = self._expiry(ttl_s or time)
        first = (b"%d" % max(delta, 0), 0)

        def call(client: Client, wire: bytes) -> int:
            for _ in range(3):  # another may make the counter, or it may expire, between two commands
                found = client.incr(wire, delta) if delta >= 0 else client.decr(wire, -delta)
                if found is not None:
                    return int(found)
                if client.add(wire, first, expire=expiry):
                    return max(delta, 0)
            raise MemcacheError("the counter comes and goes")

        found = self._ask(key, "incr", call, raise_on_error=True)
        assert found is not None
        return found

    def decr(self, key: str, delta: int = 1, ttl_s: float = 0, *, time: float = 0) -> int:
        return self.incr(key, -delta, ttl_s, time=time)

    def close(self) -> None:
        for server in self._servers.values():
            while server.idle:
                server.idle.pop().close()


def _text(found: dict[bytes, tuple[bytes, int]] | None, wire: bytes) -> bytes | None:
    data, flags = found.get(wire, (b"", FLAG_PICKLE)) if found else (b"", FLAG_PICKLE)
    return None if flags & FLAG_PICKLE else data


def _wire_key(key: str) -> str:
    return md5(key.encode("utf-8", "surrogateescape"), usedforsecurity=False).hexdigest()
