"""Loading a service's pipeline from its configuration, with what every server has in common: options, order, secrets.

``load(path)`` gives a :class:`Service`: the WSGI app with all its filters, the addresses to listen on and the server options.
Nothing is bound or started here; ``node/supervisor.py`` does that.

What a pipeline may look like (``spec: proxy 2``, ``security: S21``):

- Filters that Swift adds by itself are added here too (:data:`MANDATORY`), as far as we have them.
- Each of our filters names those it must stand ``AFTER`` and ``BEFORE``. A pipeline that breaks such a rule does not start: a
  filter that serves data before authentication would show private containers to everybody.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import importlib
import ipaddress
import logging
import os
import socket
import ssl
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

from keelstore.common import registry
from keelstore.common.cluster import Cluster, load_cluster
from keelstore.common.daemon import ProcessOptions, between
from keelstore.common.entry_points import APPS, FILTERS
from keelstore.common.errors import ConfigError
from keelstore.common.http import WSGIApp
from keelstore.common.httpserver import ServerOptions, server_options
from keelstore.common.logs import LogOptions, logger_for
from keelstore.common.metrics import Meter
from keelstore.common.options import not_negative, option, parse, positive, unused
from keelstore.common.paste_config import Component, Configuration, pipeline_of, read_config
from keelstore.common.stats import stats_for

log = logging.getLogger("keelstore.config")

STORAGE_KINDS = ("account", "container", "object")
AUTHENTICATION = ("tempauth", "keystoneauth", "authtoken")
_FRONT = ("catch_errors", "gatekeeper", "proxy_logging")
MANDATORY: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("catch_errors", ()),
    ("gatekeeper", ("catch_errors",)),
    ("listing_formats", ("catch_errors", "gatekeeper", "proxy_logging", "memcache")),
    ("copy", ("staticweb", "tempauth", "keystoneauth", *_FRONT)),
    ("dlo", ("copy", "staticweb", "tempauth", "keystoneauth", *_FRONT)),
    ("versioned_writes", ("slo", "dlo", "copy", "staticweb", "tempauth", "keystoneauth", *_FRONT)),
)
"""Filters of a proxy that are added when absent, and the filters that they stand after."""

_NO_PORT = "bind_port wasn't properly set in the config file. It must be explicitly set to a valid port number."
PLACEHOLDERS = frozenset({b"", b"changeme", b"%SWIFT_HASH_PATH_PREFIX%", b"%SWIFT_HASH_PATH_SUFFIX%"})
WELL_KNOWN_KEYS = {"user_admin_admin": "admin", "user_test_tester": "testing", "user_test2_tester2": "testing2",
                   "user_test_tester2": "testing2", "user_test_tester3": "testing3", "user_test5_tester5": "testing5"}


@dataclass(frozen=True)
class ListenOptions:
    """Options of ``[DEFAULT]`` that every server has, beside those of its connections (``httpserver.py``)."""

    bind_ip: str = option("", "Address to listen on. Empty: all (proxy), or those that the ring has for this host (others).")
    bind_port: int | None = option(None, "Port to listen on; must be set.")
    bind_timeout: float = option(30.0, "Seconds to retry while the port is in use.", check=not_negative)
    backlog: int = option(4096, "Connections that may wait to be accepted.", check=positive)
    keep_idle: int = option(600, "Seconds of silence before TCP asks whether the peer is there.", check=between(1, 32766))
    swift_dir: str = option("/etc/swift", "Directory of the cluster file and the rings.")
    workers: int | None = option(None, "Worker processes; auto: one for each CPU.", check=not_negative)
    cert_file: str = option("", "Certificate to serve TLS with, for tests.")
    key_file: str = option("", "Its key.")
    stale_worker_timeout: float = option(86400.0, "Seconds that a worker may finish its requests after a reload.",
                                         check=not_negative)
    eventlet_debug: bool = unused(False, "it is a switch of a library that serves no connection here.")
    allow_placeholder_secrets: bool = option(
        False, "Start although the hash path prefix and suffix are placeholders such as 'changeme', or tempauth has "
               "the well-known test users on an address that others reach.")


@dataclass(frozen=True)
class Service:
    """One role, loaded: what listens where."""

    kind: str  # proxy, account, container, object; or the entry name of a foreign app
    name: str  # for logs: proxy-server
    config: Configuration
    options: ListenOptions
    connections: ServerOptions
    process: ProcessOptions
    addresses: tuple[tuple[str, int], ...]
    app: WSGIApp
    logger: logging.Logger
    ssl_context: ssl.SSLContext | None
    pipeline: tuple[str, ...]
    meter: Meter

    @property
    def workers(self) -> int:
        return cpu_count() if self.options.workers is None else self.options.workers


def cpu_count() -> int:
    return max(1, len(os.sched_getaffinity(0)))


def load(path: str) -> Service:
    """Read the configuration at ``path`` and build its pipeline. Raises ConfigError."""
    config = read_config(path)
    filters, app = pipeline_of(config)
    kind = app.entry
    options = parse(ListenOptions, config.defaults, section="DEFAULT", file=config.path)
    process = parse(ProcessOptions, config.defaults, section="DEFAULT", file=config.path)
    if options.bind_port is None or not 1 <= options.bind_port <= 65535:
        raise ConfigError(_NO_PORT, file=config.path)
    cluster = load_cluster(options.swift_dir)
    if kind == "proxy":
        registry.forget_all()
        filters = with_mandatory(filters, config)
        check_order(filters, config.path)
    name = f"{kind}-server" if kind in APPS else kind
    logger = logger_for(app.global_conf, name)
    addresses = listen_addresses(kind, options, cluster, config)
    if not options.allow_placeholder_secrets:
        check_secrets(filters, cluster, addresses, config)
    _look_at_defaults((*filters, app), config)
    if kind == "object":  # all others look for themselves
        module = sys.modules[app.origin.partition(":")[0]]
        warn_of_unknown_in(app.local_conf, _classes_of(module), config.path, app.section)
    meter = Meter(kind)
    wsgi_app = build(filters, app, config, meter)
    # The field has client_timeout and others in the app's section, too.
    connections = server_options({**app.global_conf, **app.local_conf}, cluster.limits)
    return Service(kind, name, config, options, connections, process, addresses, wsgi_app, logger,
                   tls_context(options, config),
                   tuple(component.entry for component in (*filters, app)), meter)


# -- the pipeline ------------------------------------------------------------------------------------------------------


def canonical(name: str) -> str:
    """A filter's name as the rules have it: that of its entry point."""
    name = name.replace("-", "_")
    return {"cache": "memcache", "auth_token": "authtoken"}.get(name, name)


def names_of(component: Component) -> str:
    return "authtoken" if component.origin.startswith("keystonemiddleware") else canonical(component.entry)


def with_mandatory(filters: Sequence[Component], config: Configuration) -> list[Component]:
    """``filters`` with those of :data:`MANDATORY` put in that are absent and that we have."""
    found = list(filters)
    for name, predecessors in reversed(MANDATORY):
        names = [names_of(component) for component in found]
        if name in names or name not in FILTERS:
            continue
        if name == "gatekeeper" and names[:1] != ["catch_errors"]:
            predecessors = ()
        implied = _implied(name, config)
        own = getattr(sys.modules[implied.origin.partition(":")[0]], "AFTER", ())  # quotas, which Swift's rule leaves out
        after = {*predecessors, *(map(canonical, own) if name != "gatekeeper" else ())}
        place = max((names.index(other) + 1 for other in after if other in names), default=0)
        found.insert(place, implied)
        log.info("%s: the pipeline lacks %s, which is put in at place %d", config.path, name, place + 1)
    return found


def _last(names: Sequence[str], name: str) -> int:
    return len(names) - 1 - names[::-1].index(name)


def _implied(name: str, config: Configuration) -> Component:
    origin = FILTERS[name]
    module, _, attribute = origin.partition(":")
    try:
        factory = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"the filter {name} cannot be loaded: {error}", file=config.path) from error
    return Component("filter", f"filter:{name}", name, origin, factory, config.defaults, {})


@dataclass(frozen=True)
class Rule:
    """``name`` must stand after (``is_after``) or before ``other``."""

    name: str
    other: str
    is_after: bool


def rules_of(filters: Iterable[Component]) -> list[Rule]:
    """What our filters of a pipeline ask of the others."""
    rules = []
    for component in filters:
        if not component.is_ours:
            continue
        module = sys.modules.get(component.origin.partition(":")[0])
        for attribute, is_after in (("AFTER", True), ("BEFORE", False)):
            for other in getattr(module, attribute, ()):
                rules.append(Rule(names_of(component), canonical(other), is_after))
    return rules


def broken_rules(names: Sequence[str], rules: Iterable[Rule]) -> list[Rule]:
    """The rules that a pipeline of filters ``names``, in order of request, breaks. Rules on absent filters hold.

    A filter may stand in a pipeline twice: every one of its places must be after the first of those it follows; its first
    must be before the last of those it precedes.
    """
    broken = []
    for rule in rules:
        if rule.name not in names or rule.other not in names or rule.name == rule.other:
            continue
        first = names.index(rule.name)
        if first < names.index(rule.other) if rule.is_after else first > _last(names, rule.other):
            broken.append(rule)
    return broken


def check_order(filters: Sequence[Component], path: str) -> None:
    """Raises ConfigError for a pipeline in unsafe order: it names section, filter and reason."""
    names = [names_of(component) for component in filters]
    sections = {names_of(component): component.section.partition(":")[2] for component in filters}
    for rule in broken_rules(names, rules_of(filters)):
        name, other = sections[rule.name], sections[rule.other]
        where = "after" if rule.is_after else "before"
        reason = f"{name!r} must stand {where} {other!r}"
        if rule.other in AUTHENTICATION and rule.is_after:
            reason += f": standing before it, {name!r} would answer requests that nobody has authenticated"
        elif rule.name in AUTHENTICATION and not rule.is_after:
            reason += f": standing before it, {other!r} would answer requests that nobody has authenticated"
        elif "gatekeeper" in (rule.name, rule.other):
            reason += ": gatekeeper takes away the headers that only the cluster itself may send"
        else:
            reason += ", else one would not see what the other does"
        raise ConfigError(f"unsafe order: {reason}", file=path, section="pipeline:main", option="pipeline",
                          value=" ".join(sections[name] for name in names))


def build(filters: Sequence[Component], app: Component, config: Configuration, meter: Meter | None = None) -> Any:
    """Call the factories from the app outwards. Raises ConfigError.

    Every filter gets an attribute ``logged_app``: the right-most proxy-logging and what follows it, where sub-requests may
    go that skip the filters between. All get ``meter``, where the role's requests are counted; a storage server's app counts
    them itself, since its own node calls it without a socket. What a filter gets as its app is the method ``__call__`` of the
    next: the interpreter calls that within its loop, where calling the object costs a level of the C stack, and all of
    them together some 5 % of a small GET. What an app answers to its own node without an environ (``localcall.at_once``,
    ``obj/together``) passes by filters that say that they leave such requests alone, and by no others.
    """
    built = _built(app, config)
    logged = None
    chain = []
    if app.entry in STORAGE_KINDS and app.is_ours:
        conf = {**app.global_conf, **app.local_conf}
        built.measure_by(stats_for(conf, conf.get("log_name") or f"{app.entry}-server"))
        built.meter = meter
    past = {name: getattr(built, name) for name in ("at_once", "row_taker", "together") if hasattr(built, name)}
    for component in reversed(filters):
        make = _built(component, config)
        try:
            built = make(_method(built))
        except ConfigError as error:
            raise _placed(error, component, config) from error
        if logged is None and names_of(component) == "proxy_logging":
            logged = built
        if not getattr(type(built), "leaves_nodes_alone", False):
            past = {}
        for name, method in past.items():
            setattr(built, name, method)
        chain.append(built)
    for element in chain:
        with contextlib.suppress(AttributeError):  # one with __slots__ does not want it
            element.logged_app = logged
            element.meter = meter
    return built


def _method(app: Any) -> Any:
    """What to call to call ``app``."""
    call = getattr(type(app), "__call__", None)  # noqa: B004 (what it is called by, not whether it can be)
    return app.__call__ if isinstance(call, FunctionType) else app


def _built(component: Component, config: Configuration) -> Any:
    try:
        return component.build()
    except ConfigError as error:
        raise _placed(error, component, config) from error
    except Exception as error:
        if component.is_ours:
            raise
        raise ConfigError(f"{component.origin} failed: {type(error).__name__}: {error}", file=config.path,
                          section=component.section) from error


def _placed(error: ConfigError, component: Component, config: Configuration) -> ConfigError:
    """The error with file and section filled in where the factory did not know them."""
    return ConfigError(error.reason, file=error.file or config.path, section=error.section or component.section,
                       option=error.option, value=error.value)


# -- unknown options ---------------------------------------------------------------------------------------------------


def known_options(classes: Iterable[type]) -> set[str]:
    names: set[str] = set()
    for cls in classes:
        for item in dataclasses.fields(cls):
            names.update(item.metadata.get("names") or (item.name,))
    return names


COMMON_OPTIONS = frozenset(known_options((ListenOptions, ServerOptions, ProcessOptions, LogOptions))) | {
    "log_requests", "log_format", "log_anonymization_method", "log_anonymization_salt"}
_OTHERS = frozenset({"here", "servers_per_port", "ring_ip"})
COMMON_PATTERNS = ("log_statsd_", "statsd_", "access_", "__", "reveal_")


def warn_of_unknown_in(names: Iterable[str], classes: Iterable[type], path: str, section: str) -> None:
    """Warn of the option names in a section that none of ``classes`` has."""
    known = known_options(classes)
    for name in names:
        if name in known or name in COMMON_OPTIONS or name.startswith(COMMON_PATTERNS):
            continue
        close = difflib.get_close_matches(name, known | COMMON_OPTIONS, n=1)
        log.warning("%s [%s]: unknown option %s%s", path, section, name,
                    f" (did you mean {close[0]}?)" if close else "")


def _classes_of(module: ModuleType) -> list[type]:
    """The option classes that a factory's module has or imports."""
    return [value for name, value in vars(module).items()
            if name.endswith("Options") and isinstance(value, type) and dataclasses.is_dataclass(value)]


def _look_at_defaults(components: Iterable[Component], config: Configuration) -> None:
    """Warn of names in ``[DEFAULT]`` that look like a slip of the pen. It belongs to daemons and to foreign filters too, so a
    name that resembles none of ours is theirs."""
    known = set(COMMON_OPTIONS)
    for component in components:
        if component.is_ours:
            known |= known_options(_classes_of(sys.modules[component.origin.partition(":")[0]]))
    for name, value in config.defaults.items():
        if name == "servers_per_port" and value.strip() not in ("", "0"):
            log.warning("%s [DEFAULT]: servers_per_port is not supported: every worker serves all devices, and disk calls "
                        "run on threads of their device", config.path)
        if name in known or name in _OTHERS or name.startswith((*COMMON_PATTERNS, "log_", "set ")):
            continue
        close = difflib.get_close_matches(name, known, n=1, cutoff=0.85)
        if close:
            log.warning("%s [DEFAULT]: unknown option %s (did you mean %s?)", config.path, name, close[0])


# -- addresses and secrets ---------------------------------------------------------------------------------------------


def listen_addresses(kind: str, options: ListenOptions, cluster: Cluster,
                     config: Configuration) -> tuple[tuple[str, int], ...]:
    """Where a server listens. A storage server without ``bind_ip`` does not open itself to every network, since its
    protocol knows no authentication (``security: S55``): it listens where the rings say that it is. Raises ConfigError."""
    port = options.bind_port or 0
    if options.bind_ip:
        return ((options.bind_ip, port),)
    if kind not in STORAGE_KINDS:
        return (("0.0.0.0", port),)
    from keelstore.common.ring.ring import RingFile

    names = [policy.ring_name for policy in cluster.policies] if kind == "object" else [kind]
    ours = own_addresses()
    found: set[tuple[str, int]] = set()
    for name in names:
        if not os.path.exists(cluster.ring_path(name)):
            continue
        for node in RingFile(cluster.ring_path(name)).current().nodes:
            found.update(address for address in (node.address, node.replication_address)
                         if address[0] in ours and address[1] == port)
    if not found:
        raise ConfigError(f"bind_ip is not set, and the rings have no {kind} device of this host with port {port}: "
                          "set bind_ip to the address to listen on", file=config.path, section="DEFAULT")
    return tuple(sorted(found))


def own_addresses() -> set[str]:
    """The IP addresses of this host."""
    import psutil  # only where it is needed: most servers are told their address

    families = (socket.AF_INET, socket.AF_INET6)
    return {entry.address.partition("%")[0] for entries in psutil.net_if_addrs().values() for entry in entries
            if entry.family in families}


def reached_as(address: tuple[str, int]) -> list[tuple[str, int]]:
    """The addresses under which callers know a listener: itself, or each of this host's when it listens on all."""
    ip, port = address
    if ip in ("0.0.0.0", "::"):
        return [(own, port) for own in sorted(own_addresses() | {"127.0.0.1"})]
    return [address]


def is_loopback(ip: str) -> bool:
    try:
        return ipaddress.ip_address(ip).is_loopback
    except ValueError:
        return ip == "localhost"


def check_secrets(filters: Iterable[Component], cluster: Cluster, addresses: Iterable[tuple[str, int]],
                  config: Configuration) -> None:
    """Refuse secrets that everybody knows (``security: R15``). Raises ConfigError."""
    hashing = cluster.hash_path
    if hashing.prefix in PLACEHOLDERS and hashing.suffix in PLACEHOLDERS:
        raise ConfigError(
            "swift_hash_path_prefix and swift_hash_path_suffix are placeholders: put in secrets of your own before the "
            "first object is stored (a cluster that already stores objects with them: set "
            f"allow_placeholder_secrets = true in [DEFAULT] of {config.path})", file=cluster.file, section="swift-hash")
    if all(is_loopback(ip) for ip, _ in addresses):
        return
    for component in filters:
        if names_of(component) != "tempauth":
            continue
        for name, key in WELL_KNOWN_KEYS.items():
            if component.local_conf.get(name, "").split()[:1] == [key]:
                raise ConfigError("a user with a well-known key on an address that others reach: change the key, or set "
                                  "allow_placeholder_secrets = true in [DEFAULT]", file=config.path,
                                  section=component.section, option=name)


def tls_context(options: ListenOptions, config: Configuration) -> ssl.SSLContext | None:
    """For ``cert_file`` and ``key_file``. Raises ConfigError."""
    if not options.cert_file:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(options.cert_file, options.key_file or None)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"cannot be used: {error}", file=config.path, section="DEFAULT", option="cert_file",
                          value=options.cert_file) from None
    return context
