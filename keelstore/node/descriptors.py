"""How many connections the limit of open files allows. Pure.

A connection at work holds its socket and what it reads from or writes to. A storage server's has a file and now and then a
directory; a proxy's has as many files, or connections to other nodes, as an object has copies or fragments. So
``max_clients = auto`` is such that all may be at work at once. A number that somebody has chosen counts as long as each
connection can have its socket and one file: what is missing then is missing to few of them, and only at worst.
"""

from __future__ import annotations

from dataclasses import replace

from keelstore.common.errors import ConfigError
from keelstore.common.httpserver import MAX_CLIENTS
from keelstore.common.wsgi import STORAGE_KINDS, Service
from keelstore.node.roles import Program

BASE = 768  # of a worker: logs, rings, databases, connections at rest to other nodes, refusals
STORAGE, PROXY = 3, 8  # that a connection at work holds at most, as a rule
LEAST = 2  # a socket and one more
FEWEST = 16  # clients below which a server is of no use


def wanted(program: Program) -> int:
    """Open files that a worker may need with everything as configured, or as it would be without a limit."""
    return BASE + sum(len(service.addresses) * _clients(service) * _each(service) for service in program.services)


def fit(program: Program, limit: int) -> Program:
    """``program`` with ``max_clients`` decided everywhere. Raises ConfigError when ``limit`` open files are too few."""
    chosen = [service for service in program.services if service.connections.max_clients is not None]
    automatic = [service for service in program.services if service.connections.max_clients is None]
    left = limit - BASE - sum(len(service.addresses) * _clients(service) * LEAST for service in chosen)
    weight = sum(len(service.addresses) * _each(service) for service in automatic)
    most = min(MAX_CLIENTS, left // weight) if weight else MAX_CLIENTS
    if left < 0 or most < FEWEST:
        needed = limit - left + FEWEST * weight
        at = max(chosen, key=_clients, default=program.services[0])
        raise ConfigError(
            f"the limit of open files is {limit}, and {needed} are needed: raise it (ulimit -n, systemd's LimitNOFILE)"
            + (", or choose fewer" if chosen else ""), file=at.config.path, section="DEFAULT", option="max_clients",
            value=str(at.connections.max_clients) if chosen else "auto")
    return replace(program, services=tuple(
        replace(service, connections=replace(service.connections, max_clients=service.connections.max_clients or most))
        for service in program.services))


def _clients(service: Service) -> int:
    return service.connections.max_clients or MAX_CLIENTS


def _each(service: Service) -> int:
    return STORAGE if service.kind in STORAGE_KINDS else PROXY
