"""Storage and proxy servers of either make, ours or Swift's, over one set of configuration files, rings and devices.

The files are the same for both, as an operator of Swift would have written them. Swift itself comes from a virtual environment
of its own, is only ever run, and finds its cluster file through a small program (:data:`SWIFT_RUNNER`), since it looks for it
in /etc otherwise.

A *site* is one account, one container and one object server with some devices; the rings see each device as a zone of its own.
"""

from __future__ import annotations

import getpass
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from keelstore.common.cluster import load_cluster
from keelstore.common.names import HashPath
from keelstore.common.ring import format as ring_format
from keelstore.common.ring.builder import RingBuilder
from keelstore.common.ring.devices import RingDevice
from keelstore.common.ring.ring import Node, Ring, RingFile
from test.support.client import Endpoint
from test.support.preloaded import Preloaded
from test.support.processes import Process, free_ports

KINDS = ("object", "container", "account")
OURS, SWIFT = "keelstore", "swift"
PREFIX, SUFFIX = "interop-prefix", "interop-suffix"

SWIFT_RUNNER = '''
"""Start a server of Swift with its cluster file elsewhere: PROGRAM CLUSTER_FILE KIND CONF."""
import sys

from swift.common import utils

utils.SWIFT_CONF_FILE = sys.argv[1]

from swift.common import constraints, storage_policy
from swift.common.wsgi import run_wsgi

constraints.reload_constraints()
storage_policy.reload_storage_policies()
sys.exit(run_wsgi(sys.argv[3], sys.argv[2]))
'''

CLUSTER_FILE = f"""\
[swift-hash]
swift_hash_path_prefix = {PREFIX}
swift_hash_path_suffix = {SUFFIX}

[storage-policy:0]
name = gold
policy_type = replication
default = yes

[storage-policy:1]
name = silver
policy_type = replication
"""

EC_POLICY = """
[storage-policy:2]
name = ec42
policy_type = erasure_coding
ec_type = isa_l_rs_vand
ec_num_data_fragments = 4
ec_num_parity_fragments = 2
"""

STORAGE_CONF = """\
[DEFAULT]
devices = {devices}
mount_check = false
disable_fallocate = true
bind_ip = 127.0.0.1
bind_port = {port}
workers = 0
user = {user}
swift_dir = {swift_dir}
recon_cache_path = {home}
fallocate_reserve = 0
# a machine that is busy for a while must not look like a server that is away
conn_timeout = 5
node_timeout = 10
container_update_timeout = 10
{log}

[pipeline:main]
pipeline = healthcheck {kind}-server

[app:{kind}-server]
use = egg:swift#{kind}

[filter:healthcheck]
use = egg:swift#healthcheck
"""

PROXY_CONF = """\
[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
workers = 1
user = {user}
swift_dir = {swift_dir}
{log}

[pipeline:main]
pipeline = catch_errors gatekeeper healthcheck proxy-logging cache listing_formats tempauth copy proxy-logging proxy-server

[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
allow_account_management = true
conn_timeout = {conn_timeout}
node_timeout = {node_timeout}
post_quorum_timeout = 5
error_suppression_interval = {suppression}

[filter:catch_errors]
use = egg:swift#catch_errors
[filter:gatekeeper]
use = egg:swift#gatekeeper
[filter:healthcheck]
use = egg:swift#healthcheck
[filter:proxy-logging]
use = egg:swift#proxy_logging
[filter:listing_formats]
use = egg:swift#listing_formats
[filter:copy]
use = egg:swift#copy
[filter:cache]
use = egg:swift#memcache
memcache_servers = 127.0.0.1:{memcached}
connect_timeout = 5
pool_timeout = 10
io_timeout = 10
error_suppression_interval = 0.5
[filter:tempauth]
use = egg:swift#tempauth
reseller_prefix = AUTH, SERVICE
SERVICE_require_group = service
user_admin_admin = admin .admin .reseller_admin
user_test_tester = testing .admin
user_test_tester2 = testing2 .admin
user_test_tester3 = testing3
user_test2_tester2 = testing2 .admin
user_test5_tester5 = testing5 service
"""


@dataclass
class Peers:
    """A cluster directory below ``home`` whose servers may be started as either make."""

    home: Path
    swift_python: str = ""
    sites: int = 2
    devices_per_site: int = 2
    part_power: int = 6
    conn_timeout: float = 5  # of proxies
    node_timeout: float = 10
    proxy_conf: str = PROXY_CONF
    has_fragments: bool = False  # a third policy, erasure coded 4+2
    suppression: float = 0.1  # short, so that a test need not wait for a server that is back to be used again
    running: dict[tuple[str, int], Process] = field(default_factory=dict)
    preloaded: Preloaded | None = None  # what our servers and daemons are forked from, where many come and go
    ports: list[dict[str, int]] = field(init=False)
    proxies: dict[str, int] = field(init=False)
    memcached: int = field(init=False)

    def __post_init__(self) -> None:
        free = free_ports(3 * self.sites + 3)
        self.ports = [dict(zip(KINDS, free[3 * site:3 * site + 3])) for site in range(self.sites)]
        self.proxies = {OURS: free[-3], SWIFT: free[-2]}
        self.memcached = free[-1]
        for device in self.device_names:
            (self.devices / device).mkdir(parents=True)
        self.swift_dir.mkdir()
        (self.swift_dir / "swift.conf").write_text(CLUSTER_FILE + (EC_POLICY if self.has_fragments else ""))
        self.runner.write_text(SWIFT_RUNNER)
        rings = [("account", "account", 3), ("container", "container", 3), ("object", "object", 3), ("object-1", "object", 2)]
        if self.has_fragments:
            rings.append(("object-2", "object", 6))
        for name, kind, replicas in rings:
            builder = RingBuilder(self.part_power, replicas, 1)
            for number, device in enumerate(self.device_names):
                port = self.ports[number // self.devices_per_site][kind]
                builder.add_device(RingDevice(1, number + 1, "127.0.0.1", port, device, 100.0, "127.0.0.1", port))
            builder.rebalance(0.0, seed=name)
            ring_format.save(builder.ring(), str(self.swift_dir / f"{name}.ring.gz"))

    # -- places --------------------------------------------------------------------------------------------------------

    @property
    def device_names(self) -> list[str]:
        return [f"d{number + 1}" for number in range(self.sites * self.devices_per_site)]

    @property
    def devices(self) -> Path:
        return self.home / "devices"

    @property
    def swift_dir(self) -> Path:
        return self.home / "etc"

    @property
    def runner(self) -> Path:
        return self.home / "run-swift.py"

    def ring(self, name: str) -> Ring:
        return RingFile(str(self.swift_dir / f"{name}.ring.gz")).current()

    @property
    def hash_path(self) -> HashPath:
        return load_cluster(str(self.swift_dir)).hash_path

    def places(self, kind: str, *names: str, policy: int = 0) -> tuple[int, tuple[Node, ...], list[Node]]:
        """Partition, primaries and handoffs of an account, a container or an object."""
        ring = self.ring(f"object-{policy}" if kind == "object" and policy else kind)
        part = ring.partition(self.hash_path.digest(*names))
        return part, ring.primaries(part), list(ring.handoffs(part))

    def site_of(self, node: Node) -> int:
        return next(site for site, ports in enumerate(self.ports) if node.port in ports.values())

    def on_disk(self, node: Node, part: int, *names: str, folder: str = "objects") -> Path:
        """The hash directory of something on a device."""
        digest = self.hash_path.digest(*names).hex()
        return self.devices / node.device / folder / str(part) / digest[-3:] / digest

    @staticmethod
    def direct(node: Node, part: int, *names: str) -> tuple[Endpoint, str]:
        """Where to ask a storage server itself, and for what."""
        path = "/".join(quote(name, safe="/" if number == 2 else "") for number, name in enumerate(names))
        return Endpoint(node.ip, node.port), f"/{node.device}/{part}/{path}"

    # -- processes -----------------------------------------------------------------------------------------------------

    def command(self, make: str, kind: str, conf: Path) -> list[str]:
        if make == OURS:
            return [sys.executable, "-m", "keelstore.node", "--role", kind, str(conf)]
        return [self.swift_python, str(self.runner), str(self.swift_dir / "swift.conf"), f"{kind}-server", str(conf)]

    def log_of(self, make: str, kind: str, port: int) -> Path:
        return self.home / f"{make}-{kind}-{port}.log"

    def _start(self, make: str, kind: str, port: int, text: str, **values: object) -> None:
        name = f"{make}-{kind}-{port}"
        log = f"log_file = {self.log_of(make, kind, port)}" if make == OURS else f"log_name = {name}"
        conf = self.home / f"{name}.conf"
        conf.write_text(text.format(kind=kind, port=port, home=self.home, devices=self.devices, swift_dir=self.swift_dir, log=log,
                                    user=getpass.getuser(), conn_timeout=self.conn_timeout, **values))
        self.running[kind, port] = self._launch(make, kind, conf, self.home / f"{name}.out")

    def _launch(self, make: str, kind: str, conf: Path, out: Path) -> Process:
        if make == OURS and self.preloaded is not None:
            return self.preloaded.fork("keelstore.node", ["--role", kind, str(conf)], out)
        return Process(self.command(make, kind, conf), out, {"PYTHONPATH": ""} if make == SWIFT else {}).start()

    def start(self, *sites: int, make: str = OURS, kinds: Sequence[str] = KINDS) -> None:
        """Start the storage servers of sites that do not run yet."""
        wanted = [(kind, self.ports[site][kind]) for site in sites for kind in kinds]
        fresh = [key for key in wanted if key not in self.running]
        for kind, port in fresh:
            self._start(make, kind, port, STORAGE_CONF)
        for key in fresh:
            self.running[key].wait_for("127.0.0.1", key[1])

    def start_proxies(self, *makes: str) -> None:
        memcached = Process(["memcached", "-l", "127.0.0.1", "-p", str(self.memcached), "-u", getpass.getuser(), "-m", "32"], self.home / "memcached.out")
        self.running["memcached", self.memcached] = memcached.start().wait_for("127.0.0.1", self.memcached)
        for make in makes:
            self._start(make, "proxy", self.proxies[make], self.proxy_conf, memcached=self.memcached, node_timeout=self.node_timeout, suppression=self.suppression)
        for make in makes:
            self.running["proxy", self.proxies[make]].wait_for("127.0.0.1", self.proxies[make])

    def proxy(self, make: str) -> Endpoint:
        return Endpoint("127.0.0.1", self.proxies[make])

    def stop(self, *sites: int, kinds: Sequence[str] = KINDS) -> None:
        """Stop the storage servers of sites that run."""
        for site in sites:
            for kind in kinds:
                process = self.running.pop((kind, self.ports[site][kind]), None)
                if process:
                    process.stop()

    def stop_all(self) -> None:
        for key in list(self.running):
            self.running.pop(key).stop()

    @contextmanager
    def storage(self, *makes: str) -> Iterator[None]:
        """The storage servers of all sites, of the make given for each."""
        for site, make in enumerate(makes):
            self.start(site, make=make)
        try:
            yield
        finally:
            self.stop(*range(self.sites))
