"""A whole cluster in this process: rings, account, container and object servers over a directory, and a proxy."""

from __future__ import annotations

import itertools
import os
import shutil
from pathlib import Path
from typing import Any

from keelstore.account.server import app_factory as account_factory
from keelstore.common.backend import serve_locally, stop_serving_locally
from keelstore.common.http import Response
from keelstore.common.ring.builder import RingBuilder
from keelstore.common.ring.devices import RingDevice
from keelstore.common.ring.format import save
from keelstore.container.server import app_factory as container_factory
from keelstore.obj.server import app_factory as object_factory
from keelstore.proxy.app import ProxyApp
from keelstore.proxy.app import app_factory as proxy_factory
from test.support import fakes

FACTORIES = {"account": account_factory, "container": container_factory, "object": object_factory}
POLICY_2 = """[storage-policy:2]
name = ec42
policy_type = erasure_coding
ec_type = isa_l_rs_vand
ec_num_data_fragments = 4
ec_num_parity_fragments = 2
ec_object_segment_size = 65536
ec_duplication_factor = {duplication}
"""
_next_base = itertools.count(1)


class InProcessCluster:
    """``nodes`` nodes of ``devices`` devices each. Nothing listens: nodes are addresses that this process serves itself.

    A node that is stopped refuses connections, as nothing listens at its address either.
    """

    def __init__(self, root: Path, nodes: int = 4, devices: int = 2, duplication: int = 1, **proxy_options: str):
        self.root, self.nodes = root, nodes
        number = next(_next_base)
        self.ip = f"127.77.{number // 250}.{number % 250}"
        self.etc = root / "etc"
        self.etc.mkdir()
        has_fragments = nodes * devices >= 6 * duplication  # else there is no policy 2
        (self.etc / "keelstore.conf").write_text(
            "[swift-hash]\nswift_hash_path_suffix = changeme\n[storage-policy:0]\nname = gold\ndefault = yes\n"
            "[storage-policy:1]\nname = silver\n" + (POLICY_2.format(duplication=duplication) if has_fragments else ""))
        rings = {"account": 3, "container": 3, "object": 3, "object-1": 2, "object-2": 6 * duplication}
        if not has_fragments:
            del rings["object-2"]
        for name, replicas in rings.items():
            self._ring(name, replicas, devices)
        for node in range(nodes):
            for device in range(devices):
                (self.devices(node) / f"d{node}{device}").mkdir(parents=True)
        self.apps: dict[tuple[str, int], Any] = {}
        for node in range(nodes):
            for kind, factory in FACTORIES.items():
                conf = {"swift_dir": str(self.etc), "devices": str(self.devices(node)), "mount_check": "false",
                        "log_level": "ERROR", "fallocate_reserve": "0", "log_address": "/nonexistent"}
                self.apps[self.ip, self.port(kind, node)] = factory({}, **conf)
        for address, app in self.apps.items():
            serve_locally(address, app)
        self.cache = fakes.FakeCache()
        self.proxy: ProxyApp = proxy_factory({}, **{
            "swift_dir": str(self.etc), "account_autocreate": "true", "log_address": "/nonexistent", "log_level": "CRITICAL",
            "allow_account_management": "true", **proxy_options})  # fmt: skip

    def _ring(self, name: str, replicas: int, devices: int) -> None:
        kind = name.partition("-")[0]
        builder = RingBuilder(5, replicas, 0)
        for node in range(self.nodes):
            for device in range(devices):
                builder.add_device(RingDevice(
                    id=node * devices + device, region=1, zone=node + 1, ip=self.ip, port=self.port(kind, node),
                    replication_ip=self.ip, replication_port=self.port(kind, node), device=f"d{node}{device}", weight=1.0,
                    meta=""))
        builder.rebalance(0.0, seed=1)
        save(builder.ring(), str(self.etc / f"{name}.ring.gz"))

    @staticmethod
    def port(kind: str, node: int) -> int:
        return {"object": 6200, "container": 6201, "account": 6202}[kind] + 10 * node

    def devices(self, node: int) -> Path:
        return self.root / f"node{node}"

    # -- requests ------------------------------------------------------------------------------------------------------

    def ask(self, method: str, path: str, headers: dict[str, Any] | None = None, body: Any = b"", query: str = "",
            **extra: Any) -> Response:
        extra.setdefault("swift_owner", True)
        return fakes.ask(self.proxy, method, path, headers, body, query, **{"swift__cache": self.cache, **extra})

    def primaries(self, kind: str, path: str, policy: int = 0) -> list[Any]:
        """The nodes of a name (``/a/c/o``)."""
        names = path[1:].split("/", 2)
        rings = self.proxy.rings
        ring = rings.object(self.proxy.cluster.policies.by_index[policy]) if kind == "object" else getattr(rings, kind)
        ring = ring.current()
        return list(ring.primaries(ring.partition(self.proxy.cluster.hash_path.digest(*names))))

    # -- faults --------------------------------------------------------------------------------------------------------

    def stop(self, address: tuple[str, int]) -> None:
        stop_serving_locally(address)

    def start(self, address: tuple[str, int]) -> None:
        serve_locally(address, self.apps[address])
        self.proxy.health._errors.clear()

    def device_path(self, device: str) -> Path:
        return self.devices(int(device[1])) / device

    def remove_device(self, device: str) -> None:
        shutil.rmtree(self.device_path(device))

    def files(self, ending: str) -> list[str]:
        """The device of every file with this ending."""
        return sorted(os.path.relpath(path, self.root).split("/")[1] for path in map(str, self.root.rglob(f"*{ending}")))

    def close(self) -> None:
        for address in self.apps:
            stop_serving_locally(address)
        self.proxy.backend.close()
