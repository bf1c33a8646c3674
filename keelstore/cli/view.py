"""What is known of a cluster at one moment: its rings, and what each of its servers says of itself.

``look`` asks; everything else here are values, for ``diagnosis`` to judge and ``status_screen`` to show.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import md5
from typing import Any

from keelstore.cli.ask import Address, Reply, ask_all
from keelstore.common.cluster import load_cluster
from keelstore.common.errors import ConfigError, RingError
from keelstore.common.ring.ring import Ring, RingFile

ROLES = ("object", "container", "account")
TIMEOUT_S = 5.0
TEXTS = ("version", "root", "cluster_file_md5")
RELINKING = frozenset({"part_power", "next_part_power", "parts_done", "total_parts", "errors", "devices"})
PROGRESS = frozenset({"done", "failed", "total", "eta_s", "begun", "last_pass_s", "interval_s", "passes", "at"})


@dataclass(frozen=True)
class RingFacts:
    """One ring, as the machine that asks has it."""

    name: str  # object, object-1, container, account
    role: str
    md5: str
    devices: tuple[tuple[Address, str, float], ...]  # address of the server, device, weight
    replicas: float
    stores_fragments: bool = False
    part_power: int = 0
    next_part_power: int | None = None  # while the part power is being changed


@dataclass(frozen=True)
class Server:
    """A storage server that the rings name, and its answer."""

    node: str  # what its machine is called: node 2, or its address
    role: str
    address: Address
    error: str = ""  # why nothing is known of it
    answers: bool = False  # whether it answered at all
    health: Mapping[str, Any] = field(default_factory=dict)
    clock_offset_s: float | None = (
        None  # how much its clock is ahead of ours, as far as the time of the call allows to tell
    )

    @property
    def place(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"

    @property
    def devices(self) -> Mapping[str, Any]:
        return self.health.get("devices", {})

    @property
    def own_daemons(self) -> Mapping[str, Any]:
        """Those of this role."""
        return {
            name: entry for name, entry in self.health.get("daemons", {}).items() if name.partition("-")[0] == self.role
        }


@dataclass(frozen=True)
class Process:
    """A node on this machine, by its processes."""

    node: str
    number: int
    is_running: bool
    answers: bool
    workers: int
    wanted_workers: int
    has_background: bool
    log: str


@dataclass(frozen=True)
class View:
    at: float
    rings: Mapping[str, RingFacts]
    servers: Sequence[Server]
    processes: Sequence[Process] = ()
    data: str = ""  # the data directory of 'keelstore up'; '' for any other cluster
    swift_dir: str = ""
    problems: Sequence[str] = ()  # why it is not whole: rings that cannot be read
    command: str = "keelstore"  # how it was called, for advice

    def servers_of(self, role: str) -> list[Server]:
        return [server for server in self.servers if server.role == role]


def look(
    swift_dir: str,
    names: Mapping[str, str] | None = None,
    processes: Sequence[Process] = (),
    data: str = "",
    timeout_s: float = TIMEOUT_S,
    command: str = "keelstore",
) -> View:
    """Ask every server of the rings in ``swift_dir``. ``names``: what machines are called, by IP address. Raises ConfigError
    when there is no cluster file."""
    rings, problems = read_rings(swift_dir)
    places: dict[tuple[str, Address], None] = {}
    for ring in rings.values():
        for address, _, _ in ring.devices:
            places[ring.role, address] = None
    replies = ask_all([address for _, address in places], "/recon/health", timeout_s=timeout_s)
    servers = [
        server_of(role, reply, (names or {}).get(address[0], address[0]))
        for (role, address), reply in zip(places, replies)
    ]
    servers.sort(key=lambda server: (server.node, server.address, ROLES.index(server.role)))
    return View(time.time(), rings, servers, processes, data, swift_dir, problems, command=command)


def read_rings(swift_dir: str) -> tuple[dict[str, RingFacts], list[str]]:
    """The rings of a configuration directory, and what is wrong with them. Raises ConfigError."""
    cluster = load_cluster(swift_dir)
    found, problems = {}, []
    of_fragments = {policy.ring_name for policy in cluster.policies if policy.stores_fragments}
    for name in ("account", "container", *(policy.ring_name for policy in cluster.policies)):
        path = cluster.ring_path(name)
        if not os.path.exists(path):
            problems.append(f"the ring {path} is missing")
            continue
        try:
            with open(path, "rb") as file:
                digest = md5(file.read(), usedforsecurity=False).hexdigest()
            found[name] = facts_of(name, digest, RingFile(path).current(), name in of_fragments)
        except (RingError, OSError) as error:
            problems.append(str(error))
    if not found:
        raise ConfigError("; ".join(problems) or "no rings", file=swift_dir)
    return found, problems


def facts_of(name: str, digest: str, ring: Ring, stores_fragments: bool = False) -> RingFacts:
    devices = tuple(((node.ip, node.port), node.device, node.weight) for node in ring.nodes)
    return RingFacts(name, name.partition("-")[0], digest, devices, ring.replica_count, stores_fragments, ring.part_power,
                     ring.next_part_power)


def server_of(role: str, reply: Reply, node: str) -> Server:
    if reply.status == 0:
        return Server(node, role, reply.address, reply.error)
    if reply.status != 200 or not isinstance(reply.value, dict) or "devices" not in reply.value:
        return Server(node, role, reply.address, "answers, but does not tell of its health", answers=True)
    health = checked(reply.value)
    return Server(
        node,
        role,
        reply.address,
        answers=True,
        health=health,
        clock_offset_s=clock_offset_s(health["time"], reply.began, reply.ended) if health["time"] else None,
    )


def checked(value: Mapping[str, Any]) -> dict[str, Any]:
    """A server's health (``common/node_health``) with everything in its place; what is no such thing is left out."""
    devices = {name: _device(entry) for name, entry in _dict(value.get("devices")).items() if isinstance(entry, dict)}
    return {
        **value, "time": _number(value.get("time")), "up_s": _number(value.get("up_s")), "devices": devices,
        "rings": {name: entry for name, entry in _dict(value.get("rings")).items()
                  if isinstance(entry, dict) and isinstance(entry.get("md5"), str)},
        "daemons": {name: checked_daemon(entry) for name, entry in _dict(value.get("daemons")).items()
                    if isinstance(entry, dict)},
        "cached": _dict(value.get("cached")),
        "relinker": {name: entry for name, entry in _dict(value.get("relinker")).items()
                     if isinstance(entry, dict) and all(is_number(entry.get(key)) for key in RELINKING)},
        **{name: value[name] if isinstance(value.get(name), str) else None for name in TEXTS},
    }  # fmt: skip


def _device(entry: Mapping[str, Any]) -> dict[str, Any]:
    room = {name: _number(entry.get(name)) for name in ("size", "used", "avail")}
    counts = {
        name: {kind: count for kind, count in _dict(entry.get(name)).items() if isinstance(count, int)}
        for name in ("partitions", "quarantined")
    }
    usable = bool(entry.get("usable"))
    return {
        "usable": usable,
        "problem": str(entry.get("problem") or ("" if usable else "cannot be used")),
        "is_full": bool(entry.get("is_full")),
        "quarantined_at": _number(entry.get("quarantined_at")),
        **room,
        **counts,
    }


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: Any) -> float:
    return value if is_number(value) else 0.0


def is_number(value: Any) -> bool:
    """Whether it is a number to reckon with: JSON knows others."""
    return isinstance(value, (int, float)) and -1e18 < value < 1e18


def checked_daemon(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Without numbers that are none, and with numbers where a daemon's progress has them."""
    return {name: value for name, value in entry.items()
            if is_number(value) or not (name in PROGRESS or isinstance(value, (int, float)))}


def clock_offset_s(told: float, began: float, ended: float) -> float:
    """How far a clock is off at the least: 0 when it told a moment between question and answer."""
    if told < began:
        return told - began
    return max(0.0, told - ended)


def ordered(names: Iterable[str]) -> list[str]:
    """Names in the order of people: node 2 before node 10."""
    return sorted(
        names,
        key=lambda name: [
            (0, int(word), "") if word.isdigit() else (1, 0, word) for word in name.replace(".", " ").split()
        ],
    )
