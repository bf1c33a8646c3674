"""cname_lookup: host names of customers, which their DNS makes aliases of ours (``spec: middleware 30``).

A Host that is neither an address nor below a storage domain is looked up: the CNAME that ends in a storage domain takes its
place, for domain_remap to read. What was found is cached for as long as DNS says, what was not for a minute.

Stands before domain_remap and authentication, after cache. Needs dnspython.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final

from keelstore.common.errors import ConfigError
from keelstore.common.http import CACHE, Environ, Response, StartResponse, WSGIApp
from keelstore.common.logs import logger_for
from keelstore.common.options import option, parse, positive
from keelstore.common.registry import register_info

AFTER: Final = ("catch_errors", "gatekeeper", "memcache")
BEFORE: Final = ("domain_remap", "listing_formats", "container_sync", "bulk", "tempurl", "formpost", "tempauth", "authtoken",
                 "keystoneauth")

NEGATIVE_S: Final = 60
_MAX_TTL_S: Final = 86400.0
Lookup = Callable[[str], tuple[float, str | None]]
"""Name to (seconds that the answer is good for, the name that it is an alias of)."""


@dataclass(frozen=True)
class CnameLookupOptions:
    """Options of ``[filter:cname_lookup]``."""

    storage_domain: tuple[str, ...] = option(("example.com",), "Domains that a name must end in.")
    lookup_depth: int = option(1, "How many aliases to follow.", check=positive)
    nameservers: tuple[str, ...] = option((), "Servers to ask, ADDRESS or ADDRESS:PORT; none: those of the system.")


class CnameLookup:
    def __init__(self, app: WSGIApp, options: CnameLookupOptions, lookup: Lookup, logger: logging.Logger):
        self.app, self.options, self._lookup, self.log = app, options, lookup, logger
        self._domains = tuple("." + domain.lower().lstrip(".") for domain in options.storage_domain if domain.strip("."))

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        host = environ.get("HTTP_HOST") or environ.get("SERVER_NAME", "")
        name, colon, port = host.partition(":")
        if host[:1] == "[" or not name or not self._domains or self._is_ours(name) or _is_address(name):
            return self.app(environ, start_response)
        found = self._resolve(environ.get(CACHE), name.lower().rstrip("."))
        if found is None:
            return Response(400, body="CNAME lookup failed to resolve to a valid domain",
                            content_type="text/plain")(environ, start_response)
        environ["HTTP_HOST"] = f"{found}{colon}{port}"
        return self.app(environ, start_response)

    def _is_ours(self, name: str) -> bool:
        lowered = name.lower().rstrip(".")
        return lowered.endswith(self._domains) or f".{lowered}" in self._domains

    def _resolve(self, cache: Any, name: str) -> str | None:
        """The name below a storage domain that ``name`` is an alias of."""
        for _ in range(self.options.lookup_depth):
            found = self._alias(cache, name)
            if not found or found == name:
                return None
            if self._is_ours(found):
                return found
            name = found
        return None

    def _alias(self, cache: Any, name: str) -> str | None:
        key = f"cname-{name}"
        if cache is not None:
            known = cache.get(key)
            if isinstance(known, str):
                return known or None
        try:
            ttl_s, found = self._lookup(name)
        except Exception as error:  # of whatever kind the resolver has
            self.log.info("lookup of %s failed: %s", name, error)
            ttl_s, found = NEGATIVE_S, None
        if cache is not None:
            cache.set(key, found or "", min(max(ttl_s, 1.0), _MAX_TTL_S) if found else NEGATIVE_S)
        return found


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def dns_lookup(nameservers: Iterable[str]) -> Lookup:
    """Lookups through dnspython. Raises ConfigError when it is not there, or for a server that is no address."""
    try:
        import dns.exception
        import dns.resolver
    except ImportError:
        raise ConfigError("the filter cname_lookup needs the library dnspython", section="filter:cname_lookup") from None
    servers = list(nameservers)
    resolver = dns.resolver.Resolver(configure=not servers)
    addresses = []
    for server in servers:
        address, _, port = server.rpartition(":") if server.count(":") == 1 else (server, "", "")
        address = address.strip("[]")
        if not _is_address(address) or (port and not port.isdigit()):
            raise ConfigError("expected addresses", section="filter:cname_lookup", option="nameservers", value=server)
        addresses.append(address)
        if port:
            resolver.nameserver_ports[address] = int(port)
    if addresses:
        resolver.nameservers = addresses
    resolver.lifetime = 5.0

    def lookup(name: str) -> tuple[float, str | None]:
        try:
            answer = resolver.resolve(name, "CNAME")
        except (dns.resolver.NXDOMAIN, dns.resolver.NoAnswer):
            return NEGATIVE_S, None
        if not answer.rrset:
            return NEGATIVE_S, None
        return float(answer.rrset.ttl), answer.rrset[0].target.to_text().rstrip(".").lower()

    return lookup


def filter_factory(global_conf: dict[str, str], **local_conf: str) -> Callable[[WSGIApp], CnameLookup]:
    conf = {**global_conf, **local_conf}
    options = parse(CnameLookupOptions, conf, section="filter:cname_lookup", local=local_conf,
                    known=("use", "set *", "log_*"))
    lookup = dns_lookup(options.nameservers)
    register_info("cname_lookup", lookup_depth=options.lookup_depth)
    logger = logger_for(conf, "cname_lookup")
    return lambda app: CnameLookup(app, options, lookup, logger)
