"""From configuration files to what a process group is to run: one role, or all roles of a node."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, replace

from keelstore.common.daemon import ProcessOptions, between
from keelstore.common.errors import ConfigError
from keelstore.common.logs import LogOptions, logger_for
from keelstore.common.options import not_negative, option, parse
from keelstore.common.paste_config import Configuration, read_config
from keelstore.common.wsgi import Service, cpu_count, load, warn_of_unknown_in
from keelstore.node.background import Background
from keelstore.node.daemons import DAEMONS, wanted_of_node


@dataclass(frozen=True)
class NodeOptions:
    """Options of ``[node]`` in ``node.conf``: a node is a process group that serves several roles."""

    name: str = option("node", "Name of the node, in its logs and in the names of its files in run_dir.")
    roles: tuple[str, ...] = option((), "Configuration files of the roles, relative to this file.")
    workers: int | None = option(None, "Worker processes, each serving every role; auto: one for each CPU.",
                                 check=not_negative)
    background: tuple[str, ...] = option(("auto",), "Daemons that run in one process beside the workers: auto (all those of "
                                                    "this node's roles), none, or names such as object-updater.")
    background_nice: int = option(5, "How much less urgent that process is than the workers, 0 to 19.", check=between(0, 19))
    run_dir: str = option("/var/run/keelstore", "Directory of the lock and state files.")
    drain_timeout: float = option(5.0, "Seconds that requests may take to end when the node is stopped.",
                                  check=not_negative)
    stale_worker_timeout: float = option(86400.0, "Seconds that a worker may finish its requests after a reload.",
                                         check=not_negative)


@dataclass(frozen=True)
class Program:
    """What a supervisor runs. ``workers`` 0: everything in one process."""

    name: str
    services: tuple[Service, ...]
    workers: int
    process: ProcessOptions
    logger: logging.Logger
    drain_timeout_s: float
    stale_worker_timeout_s: float
    run_dir: str | None = None
    background: Background | None = None

    @property
    def pid_file(self) -> str | None:
        return os.path.join(self.run_dir, f"{self.name}.pid") if self.run_dir else None


def load_role(path: str, kind: str) -> Program:
    """One role from its own configuration, as ``keelstore-object-server CONF`` runs it. Raises ConfigError."""
    service = load(path)
    if service.kind != kind:
        raise ConfigError(f"this is the configuration of a server of kind {service.kind!r}, not {kind!r}", file=path)
    return Program(service.name, (service,), service.workers, service.process, service.logger,
                   drain_timeout_s=5.0, stale_worker_timeout_s=service.options.stale_worker_timeout)


def load_node(path: str) -> Program:
    """All roles that ``[node]`` of the file lists. Raises ConfigError."""
    config = read_config(path)
    conf = config.merged("node")
    options = parse(NodeOptions, conf, section="node", file=config.path)
    warn_of_unknown_in(config.sections["node"], (NodeOptions, ProcessOptions, LogOptions), config.path, "node")
    if not options.roles:
        raise ConfigError("expected the configuration files of this node's roles", file=config.path, section="node",
                          option="roles", value="")
    services = tuple(_named(load(os.path.join(config.here, role)), options.name) for role in options.roles)
    _check_distinct(services, config)
    logger = logger_for(conf, options.name)
    return Program(
        options.name, services, cpu_count() if options.workers is None else options.workers,
        parse(ProcessOptions, conf, section="node", file=config.path), logger,
        options.drain_timeout, options.stale_worker_timeout, os.path.join(config.here, options.run_dir),
        _background(options, services, logger, config))


def _background(options: NodeOptions, services: tuple[Service, ...], logger: logging.Logger,
                config: Configuration) -> Background | None:
    """The daemons of a node; None when it is to have none. Raises ConfigError."""
    names = set(options.background)
    if not names or names <= {"none", "no", "off", "false"}:
        return None
    unknown = sorted(names - set(DAEMONS) - {"auto"})
    if unknown:
        raise ConfigError(f"expected auto, none, or names of daemons: {', '.join(DAEMONS)}", file=config.path,
                          section="node", option="background", value=unknown[0])
    wanted = wanted_of_node(services, None if "auto" in names else names)
    path = socket_of(os.path.join(config.here, options.run_dir), options.name)
    return Background(wanted, services, logger, options.background_nice, path) if wanted else None


def socket_of(run_dir: str, name: str) -> str:
    """Where the daemons of a node are asked for something."""
    return os.path.join(run_dir, f"{name}.daemons")


def _named(service: Service, node: str) -> Service:
    return replace(service, name=f"{node} {service.name}")


def _check_distinct(services: tuple[Service, ...], config: Configuration) -> None:
    seen: dict[tuple[str, int], Service] = {}
    for service in services:
        for address in service.addresses:
            if address in seen:
                raise ConfigError(f"{service.config.path} and {seen[address].config.path} both want to listen on "
                                  f"{address[0]}:{address[1]}", file=config.path, section="node", option="roles")
            seen[address] = service
