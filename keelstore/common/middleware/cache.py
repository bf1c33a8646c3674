"""cache: put the cache that proxies share into ``environ["swift.cache"]``.

With ``memcache_servers`` here or in ``memcache.conf`` it is memcached; without, the embedded cache: shared memory made
when the filter is loaded, so before workers are forked, and lost when the node stops. Loading the same section again in
the same process (a reload) finds the same memory.

Stands before whatever uses it: ratelimit, authentication, the proxy. The entry point is ``memcache``. Needs nothing.
"""

from __future__ import annotations

import configparser
import logging
import os
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from keelstore.common.cache import Cache
from keelstore.common.cache_embedded import EmbeddedCache
from keelstore.common.cache_memcached import MemcachedCache, MemcachedOptions, address_of
from keelstore.common.errors import ConfigError
from keelstore.common.http import CACHE, Environ, StartResponse, WSGIApp
from keelstore.common.logs import logger_for
from keelstore.common.options import not_negative, option, parse, positive

AFTER: Final = ("catch_errors",)
BEFORE: Final = ("ratelimit", "tempauth", "authtoken", "keystoneauth", "copy")


@dataclass(frozen=True)
class CacheOptions:
    """Options of ``[filter:cache]``; those of memcached may stand in ``[memcache]`` of ``memcache.conf`` instead."""

    memcache_servers: tuple[str, ...] = option((), "memcached servers, host:port; none: the embedded cache.")
    memcache_max_connections: int = option(2, "Connections of a worker to each server.", check=positive,
                                           names=("memcache_max_connections", "max_connections"))
    connect_timeout: float = option(0.3, "Seconds to connect.", check=positive)
    pool_timeout: float = option(1.0, "Seconds to wait for a free connection.", check=positive)
    tries: int = option(3, "Servers that are tried for a key.", check=positive)
    io_timeout: float = option(2.0, "Seconds to wait for an answer.", check=positive)
    error_suppression_interval: float = option(60.0, "Seconds that errors of a server are counted, and that it is left "
                                                     "alone when there were too many.", check=not_negative)
    error_suppression_limit: int = option(10, "Errors that are too many beyond this.", check=not_negative)
    tls_enabled: bool = option(False, "Speak TLS to the servers.")
    tls_cafile: str = option("", "Certificates to trust; empty: the system's.")
    tls_certfile: str = option("", "Own certificate.")
    tls_keyfile: str = option("", "Its key.")
    item_size_warning_threshold: int = option(-1, "Warn of values of this many bytes or more; -1: never.")
    swift_dir: str = option("/etc/swift", "Directory of memcache.conf.")
    embedded_cache_slots: int = option(4096, "Values that the embedded cache holds.", check=positive)
    embedded_cache_slot_size: int = option(8192, "Largest value in bytes that the embedded cache holds.", check=positive)


class CacheFilter:
    def __init__(self, app: WSGIApp, cache: Cache):
        self.app, self.cache = app, cache

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        environ[CACHE] = self.cache
        return self.app(environ, start_response)


def memcache_conf(directory: str) -> dict[str, str]:
    """``[memcache]`` of ``memcache.conf`` in ``directory``; {} when there is none. Raises ConfigError."""
    path = os.path.join(directory, "memcache.conf")
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read(path)
    except (configparser.Error, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot be read: {error}", file=path) from None
    return dict(parser.items("memcache")) if parser.has_section("memcache") else {}


def tls_context(options: CacheOptions) -> ssl.SSLContext | None:
    if not options.tls_enabled:
        return None
    try:
        context = ssl.create_default_context(cafile=options.tls_cafile or None)
        if options.tls_certfile:
            context.load_cert_chain(options.tls_certfile, options.tls_keyfile or None)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"TLS to memcached: {error}", section="filter:cache") from None
    return context


_embedded: dict[tuple[Any, ...], EmbeddedCache] = {}  # by section: what a reload in the same process must find again


def make_cache(options: CacheOptions, logger: logging.Logger, owner: tuple[str, ...] | None = None) -> Cache:
    """The cache of these options. ``owner`` names the section: equal owners share an embedded cache. Raises ConfigError."""
    if options.memcache_servers:
        for server in options.memcache_servers:
            address_of(server)
        return MemcachedCache(MemcachedOptions(
            options.memcache_servers,
            max_connections=options.memcache_max_connections,
            connect_timeout_s=options.connect_timeout,
            pool_timeout_s=options.pool_timeout,
            io_timeout_s=options.io_timeout,
            tries=options.tries,
            error_suppression_interval_s=options.error_suppression_interval,
            error_suppression_limit=options.error_suppression_limit,
            item_size_warning_threshold=options.item_size_warning_threshold,
            tls=tls_context(options),
        ), logger)
    slots, size = options.embedded_cache_slots, options.embedded_cache_slot_size
    if owner is None:
        return EmbeddedCache(slots, size)
    key = (owner, slots, size)
    if key not in _embedded:
        _embedded[key] = EmbeddedCache(slots, size)
    return _embedded[key]


def filter_factory(global_conf: dict[str, str], **local_conf: str) -> Callable[[WSGIApp], CacheFilter]:
    conf = {**global_conf, **local_conf}
    elsewhere = memcache_conf(conf.get("swift_dir", CacheOptions.swift_dir))
    options = parse(CacheOptions, {**elsewhere, **conf}, section="filter:cache", local=local_conf,
                    known=("use", "set *", "log_*", "memcache_serialization_support"))
    file = conf.get("__file__", "")
    cache = make_cache(options, logger_for(conf, "cache"), ("filter:cache", os.path.abspath(file)) if file else None)
    return lambda app: CacheFilter(app, cache)
