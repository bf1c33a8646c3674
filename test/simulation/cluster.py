"""The nodes of a simulated cluster: their devices, servers and daemons, all real, over virtual time, network and disks."""

from __future__ import annotations

import dataclasses
import importlib
import json
import logging
import os
import random
import time
from dataclasses import dataclass, field
from typing import Any

from keelstore.account.server import app_factory as account_factory
from keelstore.common import concurrency
from keelstore.common.backend import Backend
from keelstore.common.daemon_frame import Daemon, World
from keelstore.common.errors import KeelstoreError
from keelstore.common.http import Response
from keelstore.common.internal import InternalClient
from keelstore.common.options import parse
from keelstore.common.paste_config import Configuration
from keelstore.common.ring.builder import RingBuilder
from keelstore.common.ring.devices import RingDevice
from keelstore.common.ring.format import save
from keelstore.container.server import app_factory as container_factory
from keelstore.node.daemons import DAEMONS, Parts, Wanted
from keelstore.obj.server import app_factory as object_factory
from keelstore.proxy import app as proxy_app
from keelstore.proxy.app import app_factory as proxy_factory
from test.simulation import disks, lives, network
from test.simulation.network import Network, Served, Weather
from test.support import fakes

FACTORIES: dict[str, Any] = {"account": account_factory, "container": container_factory, "object": object_factory}
PORTS = {"object": 6200, "container": 6201, "account": 6202}
PART_POWER = 2
LOSES_QUEUES = False  # a crash takes rows that wait beside a database, too: see doc/design/simulation, "What it leaves out"
PASS_S = 900.0  # virtual seconds that a pass of a daemon may take
POLICIES = {
    "copies": "[storage-policy:0]\nname = gold\ndefault = yes\n",
    "fragments": "[storage-policy:0]\nname = ec42\ndefault = yes\npolicy_type = erasure_coding\nec_type = isa_l_rs_vand\n"
                 "ec_num_data_fragments = 4\nec_num_parity_fragments = 2\nec_object_segment_size = 4096\n",
}
DAEMON_OPTIONS = {  # nothing is to wait for the sake of a real disk
    "objects_per_second": "0", "containers_per_second": "0", "files_per_second": "0", "bytes_per_second": "0",
    "zero_byte_files_per_second": "0", "tasks_per_second": "0", "accounts_per_second": "0",
    "databases_per_second": "0", "concurrency": "2", "node_timeout": "10", "request_tries": "2", "delay_reaping": "0",
    "overdue": "60",
}


class NoEnd(BaseException):
    """The patience of the harness has ended. A BaseException: what is waited for must not take it for its own."""


@dataclass(frozen=True)
class Shape:
    """What a cluster is like."""

    nodes: int = 4
    devices: int = 1
    policy: str = "copies"

    @property
    def replicas(self) -> int:
        return 6 if self.policy == "fragments" else 3


def make_rings(shape: Shape) -> dict[str, list[bytes]]:
    """Versions of each ring, oldest first: the second has other weights, so that partitions move."""
    found: dict[str, list[bytes]] = {}
    for number, (name, replicas) in enumerate({"account": 3, "container": 3, "object": shape.replicas}.items()):
        builder = RingBuilder(PART_POWER, replicas, 0)
        for node in range(shape.nodes):
            ip, port = address_of(node, name)
            for device in range(shape.devices):
                builder.add_device(RingDevice(
                    id=node * shape.devices + device, region=1, zone=node + 1, ip=ip, port=port, replication_ip=ip,
                    replication_port=port, device=f"d{node}{device}", weight=1.0, meta=""))
        builder.rebalance(0.0, seed=1)
        versions = [_encoded(builder)]
        builder.set_weight(number % shape.nodes, 0.2)
        builder.rebalance(0.0, seed=2)
        versions.append(_encoded(builder))
        found[name] = versions
    return found


def _encoded(builder: RingBuilder) -> bytes:
    path = f"/dev/shm/keelstore-ring-{disks.real.getpid()}"
    save(builder.ring(), path)
    with open(path, "rb") as file:
        data = file.read()
    os.unlink(path)
    return data


def address_of(node: int, role: str) -> tuple[str, int]:
    return f"10.0.0.{node + 1}", PORTS[role]


def warm_up() -> None:
    """Load, before processes are forked for seeds, what each would load."""
    for kind in DAEMONS.values():
        kind.options_class()
    for name in ("obj.replicator", "obj.reconstructor", "obj.updater", "obj.expirer", "obj.auditor", "obj.watchers",
                 "container.updater", "container.replicator", "container.auditor", "container.reconciler",
                 "account.replicator", "account.auditor", "account.reaper"):
        importlib.import_module(f"keelstore.{name}")
    types = proxy_app.content_types("/nonexistent")
    types.of("a.txt")
    proxy_app.content_types = lambda _directory: types  # type: ignore[assignment]


class SimCache:
    """A node's own cache: what it remembers may be old."""

    def __init__(self) -> None:
        self._values: dict[str, tuple[float, bytes]] = {}

    def get_raw(self, key: str, raise_on_error: bool = False) -> bytes | None:
        known = self._values.get(key)
        return known[1] if known is not None and time.monotonic() < known[0] else None

    def get(self, key: str, raise_on_error: bool = False) -> Any:
        value = self.get_raw(key)
        return None if value is None else json.loads(value)

    def set(self, key: str, value: Any, ttl_s: float = 0, **_kwargs: Any) -> None:
        self._values[key] = time.monotonic() + (ttl_s or 1e9), json.dumps(value).encode()

    def delete(self, key: str) -> None:
        self._values.pop(key, None)

    def incr(self, key: str, delta: int = 1, ttl_s: float = 0, **_kwargs: Any) -> int:
        value = max((self.get(key) or 0) + delta, 0)
        self.set(key, value, ttl_s)
        return value

    def decr(self, key: str, delta: int = 1, ttl_s: float = 0, **_kwargs: Any) -> int:
        return self.incr(key, -delta, ttl_s)


class SimParts(Parts):
    """What the daemons of a node are made from."""

    def __init__(self, node: Node):
        super().__init__()
        self._node = node

    def world(self, what: Wanted) -> World:
        logger = logging.getLogger(f"simulation.node{self._node.index}.{what.name}")
        return World(logger, time.time, random.Random(self._node.chance.random()), None)

    def backend(self, what: Wanted) -> Backend:
        return Backend()

    def internal_client(self, what: Wanted, tries: int, *also: str, is_plain: bool = False) -> InternalClient:
        return InternalClient(self._node.client_app, f"{what.name} 1", tries, use_replication_network=True)


@dataclass
class Node:
    """One machine. ``start`` and ``crash`` as often as the story wants."""

    cluster: SimCluster
    index: int
    chance: random.Random
    skew_s: float = 0.0
    life: lives.Life = field(init=False)
    apps: dict[str, Any] = field(default_factory=dict)
    daemons: dict[str, Daemon] = field(default_factory=dict)
    disk: disks.Disk = field(init=False)

    def __post_init__(self) -> None:
        self.life = lives.Life(self.index, self.skew_s)
        self.life.is_dead = True
        self.disk = disks.Disk(self.index, random.Random(self.chance.random()), f"{self.cluster.root}/graves{self.index}",
                               self.cluster.crash)
        disks.disks[str(self.index)] = self.disk
        os.mkdir(self.etc)
        for name, versions in self.cluster.rings.items():
            self.write_ring(name, versions[0])
        with open(f"{self.etc}/keelstore.conf", "w") as file:
            file.write("[swift-hash]\nswift_hash_path_suffix = simulation\n" + POLICIES[self.cluster.shape.policy])
        disks.real.mkdir(self.devices)
        for name in self.device_names:
            disks.real.mkdir(f"{self.devices}/{name}")

    @property
    def etc(self) -> str:
        return f"{self.cluster.root}/etc{self.index}"

    @property
    def devices(self) -> str:
        return f"{self.cluster.root}/n{self.index}"

    @property
    def device_names(self) -> list[str]:
        return [f"d{self.index}{device}" for device in range(self.cluster.shape.devices)]

    def write_ring(self, name: str, data: bytes) -> None:
        path = f"{self.etc}/{name}.ring.gz"
        with open(f"{path}.new", "wb") as file:
            file.write(data)
        os.rename(f"{path}.new", path)

    @property
    def is_up(self) -> bool:
        return not self.life.is_dead

    # -- its life ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.life = lives.Life(self.index, self.skew_s)
        lives.run_as(self.life, self._start)

    def _start(self) -> None:
        self.daemons = {}
        conf = {"swift_dir": self.etc, "devices": self.devices, "mount_check": "false"}
        for role, factory in FACTORIES.items():
            self.apps[role] = factory({}, **conf)
            self.cluster.network.served[address_of(self.index, role)] = Served(self.life, self.apps[role])
        self.apps["proxy"] = proxy_factory({}, swift_dir=self.etc, account_autocreate="true", allow_account_management="true", allow_open_expired="true")
        self.cache = SimCache()

    def die(self, keeps_queue: bool) -> None:
        """At once, with what was not synced."""
        self.life.is_dead = True
        self.disk.lose_power(keeps_queue)
        for role in ("account", "container"):
            lives.run_as(None, self.apps[role].brokers.close)

    def stop(self) -> None:
        """Its processes end; its disks have everything."""
        self.life.is_dead = True
        for role in ("account", "container"):
            self.apps[role].brokers.close()

    # -- what it does --------------------------------------------------------------------------------------------------

    def client_app(self, environ: Any, start_response: Any) -> Any:
        environ["swift.cache"] = self.cache
        return self.apps["proxy"](environ, start_response)

    def ask(self, method: str, path: str, headers: dict[str, Any] | None = None, body: Any = b"", query: str = "") -> Response:
        """A client's request to the proxy of this node, under its life."""
        return fakes.ask(self.client_app, method, path, headers, body, query, swift_owner=True)

    def daemon(self, name: str) -> Daemon:
        found = self.daemons.get(name)
        if found is None:
            found = self.daemons[name] = self._make(name)
        return found

    def _make(self, name: str) -> Daemon:
        kind = DAEMONS[name]
        cls = kind.options_class()
        known = {one.name for one in dataclasses.fields(cls)}
        conf = {"mount_check": "false", "swift_dir": self.etc, "devices": self.devices, "recon_cache_path": f"{self.cluster.root}/recon",
                **{key: value for key, value in DAEMON_OPTIONS.items() if key in known}}
        config = Configuration("", dict(conf), {name: {}})
        options = parse(cls, conf, section=name)
        return SimParts(self).make(Wanted(kind, config, options, (address_of(self.index, kind.role),)))

    def run_daemon(self, name: str) -> bool:
        """One pass. False: it came to no end, or the node died."""
        if not self.is_up:
            return False
        life = self.life

        def run() -> bool:
            try:
                with concurrency.time_limit(PASS_S, NoEnd()):
                    self.daemon(name).run_once()
                return True
            except NoEnd:
                self.cluster.note(f"node {self.index}: {name} came to no end")
                return False
            except Exception as error:
                self.cluster.note(f"node {self.index}: {name} failed: {type(error).__name__}: {error}")
                logging.getLogger("simulation").debug("%s", name, exc_info=True)
                if not isinstance(error, KeelstoreError | OSError):
                    self.cluster.problems.append(f"(f) {name} failed: {type(error).__name__}: {error}")
                return False

        return bool(concurrency.spawn(lives.run_as, life, run).wait())


class SimCluster:
    def __init__(self, root: str, shape: Shape, rings: dict[str, list[bytes]], chance: random.Random, note: Any):
        self.root, self.shape, self.rings, self.note = root, shape, rings, note
        self.problems: list[str] = []
        self.weather = Weather(random.Random(chance.random()))
        self.network = network.the = Network(self.weather)
        disks.root, disks.disks = f"{root}/n", {}
        skews = [chance.choice((0.0, 0.0, chance.uniform(-2, 2))) for _ in range(shape.nodes)]
        self.nodes = [Node(self, index, random.Random(chance.random()), skews[index]) for index in range(shape.nodes)]

    def start(self) -> None:
        for node in self.nodes:
            node.start()

    def crash(self, index: int) -> None:
        self.note(f"node {index} crashes")
        self.nodes[index].die(not LOSES_QUEUES)

    @property
    def up(self) -> list[Node]:
        return [node for node in self.nodes if node.is_up]
