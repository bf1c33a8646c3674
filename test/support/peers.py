"""Storage and proxy servers of either make, ours or Swift's, over one set of configuration files, rings and devices.

The files are the same for both, as an operator of Swift would have written them. Swift itself comes from a virtual environment
of its own, is only ever run, and finds its cluster file through a small program (:data:`SWIFT_RUNNER`), since it looks for it
in /etc otherwise.
"""

from __future__ import annotations

import getpass
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from keelstore.common.ring import format as ring_format
from keelstore.common.ring.builder import RingBuilder
from keelstore.common.ring.devices import RingDevice
from test.support.processes import Process, free_ports

KINDS = ("object", "container", "account")
OURS, SWIFT = "keelstore", "swift"
DEVICES = ("d1", "d2", "d3", "d4")
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

STORAGE_CONF = """\
[DEFAULT]
devices = {devices}
mount_check = false
disable_fallocate = true
bind_ip = 127.0.0.1
bind_port = {port}
workers = 1
user = {user}
swift_dir = {swift_dir}
recon_cache_path = {home}
fallocate_reserve = 0
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
error_suppression_interval = 1

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
[filter:tempauth]
use = egg:swift#tempauth
reseller_prefix = AUTH
user_admin_admin = admin .admin .reseller_admin
user_test_tester = testing .admin
user_test2_tester2 = testing2 .admin
"""


@dataclass
class Peers:
    """A cluster directory below ``home`` whose servers may be started as either make.

    ``halves`` are two sets of storage servers: devices d1 and d2 of the rings live on the ports of the first, d3 and d4 on
    those of the second.
    """

    home: Path
    swift_python: str
    running: dict[tuple[str, int], Process] = field(default_factory=dict)
    halves: tuple[dict[str, int], dict[str, int]] = field(init=False)
    proxies: dict[str, int] = field(init=False)
    memcached: int = field(init=False)

    def __post_init__(self) -> None:
        ports = free_ports(9)
        self.halves = dict(zip(KINDS, ports[0:3])), dict(zip(KINDS, ports[3:6]))
        self.proxies = {OURS: ports[6], SWIFT: ports[7]}
        self.memcached = ports[8]
        for device in DEVICES:
            (self.devices / device).mkdir(parents=True)
        self.swift_dir.mkdir()
        (self.swift_dir / "swift.conf").write_text(CLUSTER_FILE)
        self.runner.write_text(SWIFT_RUNNER)
        for name, kind, replicas in (("account", "account", 3), ("container", "container", 3), ("object", "object", 3), ("object-1", "object", 2)):
            builder = RingBuilder(6, replicas, 1)
            for number, device in enumerate(DEVICES):
                port = self.halves[number // 2][kind]
                builder.add_device(RingDevice(1, number + 1, "127.0.0.1", port, device, 100.0, "127.0.0.1", port))
            builder.rebalance(0.0, seed=name)
            ring_format.save(builder.ring(), str(self.swift_dir / f"{name}.ring.gz"))

    @property
    def devices(self) -> Path:
        return self.home / "devices"

    @property
    def swift_dir(self) -> Path:
        return self.home / "etc"

    @property
    def runner(self) -> Path:
        return self.home / "run-swift.py"

    def command(self, make: str, kind: str, conf: Path) -> list[str]:
        if make == OURS:
            return [sys.executable, "-m", "keelstore.node", "--role", kind, str(conf)]
        return [self.swift_python, str(self.runner), str(self.swift_dir / "swift.conf"), f"{kind}-server", str(conf)]

    def _start(self, make: str, kind: str, port: int, text: str, **values: object) -> None:
        name = f"{make}-{kind}-{port}"
        log = f"log_file = {self.home / name}.log" if make == OURS else f"log_name = {name}"
        conf = self.home / f"{name}.conf"
        conf.write_text(text.format(kind=kind, port=port, home=self.home, devices=self.devices, swift_dir=self.swift_dir, log=log,
                                    user=getpass.getuser(), **values))
        process = Process(self.command(make, kind, conf), self.home / f"{name}.out", {"PYTHONPATH": ""} if make == SWIFT else {})
        self.running[kind, port] = process.start()

    def start_half(self, half: int, make: str, kinds: tuple[str, ...] = KINDS) -> None:
        for kind in kinds:
            self._start(make, kind, self.halves[half][kind], STORAGE_CONF)
        for kind in kinds:
            self.running[kind, self.halves[half][kind]].wait_for("127.0.0.1", self.halves[half][kind])

    def start_proxies(self) -> None:
        memcached = Process(["memcached", "-l", "127.0.0.1", "-p", str(self.memcached), "-u", getpass.getuser(), "-m", "32"], self.home / "memcached.out")
        self.running["memcached", self.memcached] = memcached.start().wait_for("127.0.0.1", self.memcached)
        for make, port in self.proxies.items():
            self._start(make, "proxy", port, PROXY_CONF, memcached=self.memcached)
        for port in self.proxies.values():
            self.running["proxy", port].wait_for("127.0.0.1", port)

    def stop(self, *keys: tuple[str, int]) -> None:
        """Stop servers, all of them when none is named."""
        for key in keys or list(self.running):
            self.running.pop(key).stop()

    def stop_storage(self) -> None:
        self.stop(*(key for key in list(self.running) if key[0] in KINDS))

    @contextmanager
    def storage(self, first: str, second: str) -> Iterator[None]:
        """All storage servers, of the makes given for the two halves."""
        self.start_half(0, first)
        self.start_half(1, second)
        try:
            yield
        finally:
            self.stop_storage()
