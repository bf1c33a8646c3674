"""From the sections of configuration files to daemons: which there are, whose file has their section, how each is made.

``DAEMONS`` names them all. A daemon of a role has its section in the role's configuration file, as the field has it:
``[object-updater]`` in ``object-server.conf``.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from keelstore.common import wsgi
from keelstore.common.backend import Backend
from keelstore.common.cluster import Cluster, load_cluster
from keelstore.common.daemon_frame import Daemon, World
from keelstore.common.errors import ConfigError
from keelstore.common.internal import InternalClient
from keelstore.common.logs import logger_for
from keelstore.common.options import parse
from keelstore.common.paste_config import Configuration, pipeline_of, read_config
from keelstore.common.policy import Policy
from keelstore.common.recon_cache import ReconCache
from keelstore.common.ring.ring import RingFile
from keelstore.common.stats import stats_for

Address = tuple[str, int]


@dataclass(frozen=True)
class Kind:
    """A daemon that there is. ``options`` and ``make`` are looked up when they are needed: module:name."""

    name: str
    role: str
    options: str
    make: Callable[[Setting], Daemon]
    patterns: tuple[str, ...] = ()  # beginnings of option names that belong to it besides those of its class

    def options_class(self) -> type:
        module, _, name = self.options.partition(":")
        found: type = getattr(importlib.import_module(module), name)
        return found


@dataclass(frozen=True)
class Wanted:
    """A daemon that a configuration asks for; its options are checked."""

    kind: Kind
    config: Configuration
    options: Any
    addresses: tuple[Address, ...]  # where the servers of its role listen on this host
    is_node: bool = False  # one of several in a node

    @property
    def name(self) -> str:
        return self.kind.name

    @property
    def conf(self) -> dict[str, str]:
        return {**self.config.defaults, **self.config.sections.get(self.name, {})}


# -- from configuration ------------------------------------------------------------------------------------------------


def wanted(kind: Kind, config: Configuration, addresses: Sequence[Address], is_node: bool = False) -> Wanted:
    """Raises ConfigError: for an option that is wrong, or when there is no section and it is to run by itself."""
    conf = config.merged(kind.name) if not is_node else {**config.defaults, **config.sections.get(kind.name, {})}
    cls = kind.options_class()
    options: Any = parse(cls, conf, section=kind.name, file=config.path)
    own = [name for name in config.sections.get(kind.name, {}) if not name.startswith(kind.patterns or ("\0",))]
    wsgi.warn_of_unknown_in(own, (cls,), config.path, kind.name)
    return Wanted(kind, config, options, tuple(addresses), is_node)


def wanted_of_node(services: Iterable[wsgi.Service], names: Collection[str] | None) -> list[Wanted]:
    """The daemons of a node: of every role that it serves, or those of ``names``. Raises ConfigError."""
    found = []
    for service in services:
        addresses = addresses_of(service.addresses)
        for kind in DAEMONS.values():
            if kind.role == service.kind and (names is None or kind.name in names):
                found.append(wanted(kind, service.config, addresses, is_node=True))
    return found


def addresses_of(listening: Iterable[Address]) -> list[Address]:
    """The addresses under which a ring may know servers that listen there."""
    return [known for address in listening for known in wsgi.reached_as(address)]


def own_addresses(config: Configuration, role: str) -> list[Address]:
    """As ``addresses_of``, of the server whose configuration a daemon shares while that may not run."""
    options = parse(wsgi.ListenOptions, config.defaults, section="DEFAULT", file=config.path)
    port = options.bind_port or {"object": 6200, "container": 6201, "account": 6202}[role]
    ip = config.defaults.get("ring_ip") or options.bind_ip
    if ip:
        return addresses_of([(ip, port)])
    return [(own, port) for own in sorted(wsgi.own_addresses() | {"127.0.0.1"})]


# -- what daemons are made from ----------------------------------------------------------------------------------------


@dataclass
class Parts:
    """What the daemons of one process share. Made after the fork."""

    _rings: dict[str, RingFile] = field(default_factory=dict)
    _backends: dict[float, Backend] = field(default_factory=dict)
    _apps: dict[str, Any] = field(default_factory=dict)

    def make(self, what: Wanted) -> Daemon:
        """Raises ConfigError, RingError."""
        return what.kind.make(Setting(self, what))

    def world(self, what: Wanted) -> World:
        conf = what.conf
        logger = logger_for(conf, what.name)
        directory = what.options.recon_cache_path
        recon = None
        try:
            os.makedirs(directory, exist_ok=True)
            recon = ReconCache(directory, logger)
        except OSError as error:
            logger.warning("%s cannot be made (%s): recon will not know of this daemon", directory, error.strerror)
        return World(logger, recon=recon, stats=stats_for(conf, conf.get("log_name") or what.name))

    def ring(self, cluster: Cluster, name: str) -> RingFile:
        path = cluster.ring_path(name)
        if path not in self._rings:
            if not os.path.exists(path):
                raise ConfigError("the ring file is missing", file=path)
            self._rings[path] = RingFile(path)
        return self._rings[path]

    def backend(self, what: Wanted) -> Backend:
        timeout = float(what.options.conn_timeout)
        if timeout not in self._backends:
            self._backends[timeout] = Backend(conn_timeout_s=timeout)
        return self._backends[timeout]

    def internal_client(self, what: Wanted, tries: int, *also: str, is_plain: bool = False) -> InternalClient:
        """Requests through a pipeline in this process: that of the file that is configured, else of the daemon's own file if
        it has one, else of internal-client.conf unless ``is_plain``, else a built-in one, with the filters ``also`` before
        the proxy. Raises ConfigError.
        """
        path = what.options.internal_client_conf_path
        if not path and _has_own_pipeline(what.config):
            path = what.config.path
        if not path and not is_plain:
            path = os.path.join(what.options.swift_dir, "internal-client.conf")
            path = path if os.path.exists(path) else ""
        key = path or " ".join((what.options.swift_dir, *also))
        if key not in self._apps:
            if not path and also:
                self._apps[key] = _Later(lambda: _built(_internal_configuration(what, also)))
            else:
                self._apps[key] = _built(_internal_configuration(what) if not path else what.config
                                         if path == what.config.path else read_config(path))
        return InternalClient(self._apps[key], f"{what.name} {os.getpid()}", tries, use_replication_network=True)


@dataclass
class Setting:
    """One daemon that is to be made, and what most of them are made from: each part when it is first asked for."""

    parts: Parts
    what: Wanted

    @property
    def options(self) -> Any:
        return self.what.options

    @cached_property
    def cluster(self) -> Cluster:
        return load_cluster(self.options.swift_dir)

    @cached_property
    def world(self) -> World:
        return self.parts.world(self.what)

    @property
    def backend(self) -> Backend:
        return self.parts.backend(self.what)

    @property
    def addresses(self) -> tuple[Address, ...]:
        """Where the servers of its role listen on this host, whether or not they run."""
        return self.what.addresses or tuple(own_addresses(self.what.config, self.what.kind.role))

    @property
    def rings(self) -> RingsOf:
        return RingsOf(self.parts, self.cluster)

    def rings_of_policies(self, *, stores_fragments: bool) -> dict[int, RingFile]:
        """By index, of those that store objects so."""
        return {policy.index: self.rings.object(policy) for policy in self.cluster.policies
                if policy.stores_fragments == stores_fragments}

    def share_of_node(self) -> Callable[[], tuple[int, int]] | None:
        """One share of a queue for each host of the container ring, which all nodes see alike: (which is ours, of how many).
        None for a daemon that runs alone.
        """
        if not self.what.is_node:
            return None
        ring, own = self.rings.container, {ip for ip, _ in self.what.addresses}

        def share() -> tuple[int, int]:
            hosts = sorted({node.replication_ip for node in ring.current().nodes})
            mine = next((index for index, ip in enumerate(hosts) if ip in own), None)
            return (0, 0) if mine is None else (mine, len(hosts))

        return share

    def share_of_processes(self) -> Callable[[], tuple[int, int]] | None:
        """As ``share_of_node``, unless the options ``processes`` and ``process`` say who does what. Raises ConfigError."""
        options = self.options
        if not options.processes:
            return self.share_of_node()
        if options.process >= options.processes:
            raise ConfigError("expected a number below that of processes", file=self.what.config.path, section=self.what.name,
                              option="process", value=str(options.process))
        return None

    def client(self, *also: str, is_plain: bool = False) -> InternalClient:
        return self.parts.internal_client(self.what, self.options.request_tries, *also, is_plain=is_plain)


@dataclass
class RingsOf:
    """The rings of a cluster, each opened when it is first asked for."""

    parts: Parts
    cluster: Cluster

    @property
    def account(self) -> RingFile:
        return self.parts.ring(self.cluster, "account")

    @property
    def container(self) -> RingFile:
        return self.parts.ring(self.cluster, "container")

    def object(self, policy: Policy) -> RingFile:
        return self.parts.ring(self.cluster, policy.ring_name)


def _built(config: Configuration) -> Any:
    """Raises ConfigError."""
    filters, app = pipeline_of(config)
    return wsgi.build(filters, app, config)


@dataclass
class _Later:
    """An application that is built for its first request: most nodes never sync a container."""

    build: Callable[[], Any]
    app: Any = None

    def __call__(self, environ: Any, start_response: Any) -> Any:
        if self.app is None:
            self.app = self.build()
        return self.app(environ, start_response)


def _has_own_pipeline(config: Configuration) -> bool:
    """Whether the file of a daemon has the pipeline that its requests are to go through, as container-reconciler.conf has."""
    if "pipeline:main" not in config.sections:
        return False
    words = config.sections["pipeline:main"].get("pipeline", "").split()
    return bool(words) and config.sections.get(f"app:{words[-1]}", {}).get("use", "").endswith("#proxy")


# Options of filters that do nothing without them.
_SWITCHED_ON = {"versioned_writes": {"allow_versioned_writes": "true", "allow_object_versioning": "true"}}


def _internal_configuration(what: Wanted, also: Sequence[str] = ()) -> Configuration:
    """The pipeline of a daemon that has no file for it: a cache of its own, and the proxy."""
    inherited = {name: value for name, value in what.conf.items() if name.startswith(("log_", "statsd_"))}
    defaults = {**inherited, "swift_dir": what.options.swift_dir, "here": what.options.swift_dir, "log_level": "WARNING",
                "log_name": what.name}
    return Configuration("", defaults, {
        "pipeline:main": {"pipeline": " ".join(("catch_errors", "cache", *also, "proxy-server"))},
        **{f"filter:{name}": {"use": f"egg:keelstore#{name}", **_SWITCHED_ON.get(name, {})} for name in also},
        "filter:catch_errors": {"use": "egg:keelstore#catch_errors"},
        "filter:cache": {"use": "egg:keelstore#memcache", "embedded_cache_slots": "1024"},
        "app:proxy-server": {"use": "egg:keelstore#proxy", "account_autocreate": "true",
                             "allow_account_management": "true", "allow_open_expired": "true"},
    })


# -- each of them ------------------------------------------------------------------------------------------------------


def _object_updater(given: Setting) -> Daemon:
    from keelstore.obj.updater import ObjectUpdater

    return ObjectUpdater(given.options, given.world, given.rings.container, given.cluster.hash_path, given.backend,
                         [policy.index for policy in given.cluster.policies])


def _object_expirer(given: Setting) -> Daemon:
    from keelstore.obj.expirer import ObjectExpirer
    from keelstore.obj.expiry_queue import Delays, Share

    share = given.share_of_processes()
    return ObjectExpirer(given.options, given.world, given.client(), given.rings.container, given.cluster.hash_path,
                         given.backend, Delays.parse(given.what.conf, given.what.name),
                         (lambda: Share(*share())) if share is not None else None)


def _object_replicator(given: Setting) -> Daemon:
    from keelstore.obj.replicator import ObjectReplicator

    return ObjectReplicator(given.options, given.world, given.rings_of_policies(stores_fragments=False), given.cluster,
                            given.backend, given.addresses)


def _object_reconstructor(given: Setting) -> Daemon:
    from keelstore.obj.reconstructor import ObjectReconstructor

    if given.options.write_legacy_ec_crc is not None:
        os.environ["LIBERASURECODE_WRITE_LEGACY_CRC"] = "1" if given.options.write_legacy_ec_crc else "0"
    return ObjectReconstructor(given.options, given.world, given.rings_of_policies(stores_fragments=True), given.cluster,
                               given.backend, given.addresses)


def _object_auditor(given: Setting) -> Daemon:
    from keelstore.obj.auditor import ObjectAuditor
    from keelstore.obj.expiry_queue import Delays
    from keelstore.obj.overdue import Overdue
    from keelstore.obj.updates import ContainerUpdater
    from keelstore.obj.watchers import DarkData, make_watchers

    what, world, options = given.what, given.world, given.options

    waits = {option: value for option, value in what.conf.items() if option == "node_timeout"}

    def section_of(name: str) -> dict[str, str]:
        return {**what.config.defaults, **waits, **what.config.sections.get(f"{what.name}:watcher:{name}", {})}

    watchers = make_watchers(
        given.options.watchers, section_of,
        lambda options: DarkData(options, given.backend, given.rings.container, given.cluster.hash_path,
                                 world.logger, world.clock), world.logger)  # fmt: skip
    updater = ContainerUpdater(
        given.backend, given.cluster.hash_path, world.logger, wait_s=1.0, node_timeout_s=options.node_timeout,
        expirer_divisor=options.expiring_objects_container_divisor, expirer_account=options.expiring_objects_account_name)
    delays = Delays.parse(what.config.sections.get("object-expirer", {}))
    return ObjectAuditor(options, world, given.cluster, watchers,
                         Overdue(updater, options.overdue, delays, world.clock, world.logger))


def _container_updater(given: Setting) -> Daemon:
    from keelstore.container.updater import ContainerUpdater

    return ContainerUpdater(given.options, given.world, given.rings.account, given.cluster.hash_path, given.backend)


def _container_reconciler(given: Setting) -> Daemon:
    from keelstore.container.reconciler import ContainerReconciler

    client = given.client(is_plain=True)  # objects as they are stored
    return ContainerReconciler(given.options, given.world, client, given.rings, given.cluster, given.backend,
                               given.share_of_processes())


def _container_lifecycle(given: Setting) -> Daemon:
    from keelstore.container.lifecycle import ContainerLifecycle

    client = given.client("slo", "versioned_writes", "symlink", is_plain=True)
    return ContainerLifecycle(given.options, given.world, client, given.cluster.hash_path, given.share_of_node())


def _container_sync(given: Setting) -> Daemon:
    from keelstore.common.sync_realms import Realms
    from keelstore.container.sync import ContainerSyncer
    from keelstore.container.sync_remote import Remote

    options, world = given.options, given.world
    realms = Realms(given.cluster.directory, on_error=lambda text: world.logger.error("%s", text))
    remote = Remote(options.conn_timeout, options.sync_proxy, world.random.choice)
    return ContainerSyncer(options, world, given.client("symlink"), given.rings.container, given.cluster.hash_path,
                           given.addresses, realms, remote)


def _account_reaper(given: Setting) -> Daemon:
    from keelstore.account.reaper import AccountReaper

    return AccountReaper(given.options, given.world, given.rings, given.cluster, given.backend, given.addresses)


def _account_replicator(given: Setting) -> Daemon:
    from keelstore.account.replicator import AccountReplicator

    return AccountReplicator(given.options, given.world, given.rings.account, given.cluster, given.backend, given.addresses)


def _container_replicator(given: Setting) -> Daemon:
    from keelstore.container.replicator import ContainerReplicator

    return ContainerReplicator(given.options, given.world, given.rings.container, given.cluster, given.backend,
                               given.addresses)


def _account_auditor(given: Setting) -> Daemon:
    from keelstore.account.auditor import AccountAuditor

    return AccountAuditor(given.options, given.world)


def _container_auditor(given: Setting) -> Daemon:
    from keelstore.container.auditor import ContainerAuditor

    return ContainerAuditor(given.options, given.world)


DAEMONS = {kind.name: kind for kind in (
    Kind("account-replicator", "account", "keelstore.account.options:AccountReplicatorOptions", _account_replicator),
    Kind("account-auditor", "account", "keelstore.account.options:AccountAuditorOptions", _account_auditor),
    Kind("account-reaper", "account", "keelstore.account.options:AccountReaperOptions", _account_reaper),
    Kind("container-replicator", "container", "keelstore.container.options:ContainerReplicatorOptions",
         _container_replicator),
    Kind("container-auditor", "container", "keelstore.container.options:ContainerAuditorOptions", _container_auditor),
    Kind("container-updater", "container", "keelstore.container.options:ContainerUpdaterOptions", _container_updater),
    Kind("container-reconciler", "container", "keelstore.container.options:ContainerReconcilerOptions",
         _container_reconciler),
    Kind("container-lifecycle", "container", "keelstore.container.options:ContainerLifecycleOptions", _container_lifecycle),
    Kind("container-sync", "container", "keelstore.container.options:SyncDaemonOptions", _container_sync),
    Kind("object-replicator", "object", "keelstore.obj.options:ObjectReplicatorOptions", _object_replicator),
    Kind("object-reconstructor", "object", "keelstore.obj.options:ObjectReconstructorOptions", _object_reconstructor),
    Kind("object-auditor", "object", "keelstore.obj.options:ObjectAuditorOptions", _object_auditor),
    Kind("object-updater", "object", "keelstore.obj.options:ObjectUpdaterOptions", _object_updater),
    Kind("object-expirer", "object", "keelstore.obj.options:ObjectExpirerOptions", _object_expirer,
         patterns=("delay_reaping_",)),
)}
