"""An in-process cluster with objects of a 4+2 policy, and a reconstructor for each of its nodes."""

from __future__ import annotations

import hashlib
import logging
import os
import random
import shutil
from pathlib import Path
from typing import Any

from keelstore.common.daemon_frame import World
from keelstore.common.recon_cache import ReconCache
from keelstore.common.ring.ring import Node
from keelstore.obj import attributes
from keelstore.obj.options import ObjectReconstructorOptions
from keelstore.obj.reconstructor import ObjectReconstructor
from test.support.cluster import InProcessCluster
from test.support.daemons import Clock

LOG = logging.getLogger("test.reconstructor")
Fragment = tuple[str, str, str, tuple[tuple[str, str], ...]]  # device, file name, MD5, metadata


class Fragmented:
    def __init__(self, root: Path, **options: Any):
        self.root = root
        self.cluster = InProcessCluster(root, nodes=4, devices=2, duplication=options.pop("duplication", 1))
        self.options, self.clock = options, Clock()
        proxy = self.cluster.proxy
        self.hash_path, self.policy = proxy.cluster.hash_path, proxy.cluster.policies.by_index[2]
        self.cluster.ask("PUT", "/v1/a")
        assert self.cluster.ask("PUT", "/v1/a/c", {"X-Storage-Policy": "ec42"}).status == 201

    # -- objects -------------------------------------------------------------------------------------------------------

    def put(self, name: str, body: bytes = b"body", **headers: str) -> int:
        return self.cluster.ask("PUT", f"/v1/a/c/{name}", {"Content-Type": "a/b", **headers}, body).status

    def get(self, name: str, **headers: str) -> tuple[int, bytes]:
        answer = self.cluster.ask("GET", f"/v1/a/c/{name}", headers)
        return answer.status, b"" if answer.status >= 300 else answer.read(1 << 30)

    @property
    def ring(self) -> Any:
        return self.cluster.proxy.rings.object(self.policy).current()

    def part(self, name: str) -> int:
        return self.ring.get_part(self.hash_path, "a", "c", name)

    def primaries(self, name: str) -> list[Node]:
        return list(self.ring.primaries(self.part(name)))

    def handoffs(self, name: str) -> list[Node]:
        return list(self.ring.handoffs(self.part(name)))

    def folder(self, device: str, name: str) -> Path:
        digest = self.hash_path.digest("a", "c", name).hex()
        return self.cluster.device_path(device) / "objects-2" / str(self.part(name)) / digest[-3:] / digest

    def files(self, name: str) -> dict[str, list[str]]:
        """The files of an object, by device."""
        found = {}
        for node in (*self.primaries(name), *self.handoffs(name)):
            folder = self.folder(node.device, name)
            if folder.is_dir() and (names := sorted(os.listdir(folder))):
                found[node.device] = names
        return found

    def fragments(self, name: str) -> set[Fragment]:
        """All that is stored of an object, byte for byte."""
        found = set()
        for device, names in self.files(name).items():
            for file in names:
                path = self.folder(device, name) / file
                found.add((device, file, hashlib.md5(path.read_bytes()).hexdigest(), tuple(sorted(metadata(path).items()))))
        return found

    # -- faults --------------------------------------------------------------------------------------------------------

    def wipe(self, device: str) -> None:
        path = self.cluster.device_path(device)
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()

    def drop(self, name: str, *places: int) -> None:
        """Lose the partition on these primaries, with its hashes."""
        for place in places:
            shutil.rmtree(self.folder(self.primaries(name)[place].device, name).parent.parent)

    def undo_durable(self, name: str, *places: int) -> None:
        """As if the commit had not come to these primaries."""
        for place in places:
            folder = self.folder(self.primaries(name)[place].device, name)
            for path in list(folder.glob("*#d.data")):
                path.rename(folder / path.name.replace("#d.data", ".data"))
            self.forget_hashes(folder)

    @staticmethod
    def forget_hashes(folder: Path) -> None:
        (folder.parent.parent / "hashes.pkl").unlink(missing_ok=True)

    def stop(self, node: Node) -> None:
        self.cluster.stop(node.address)

    def start(self, node: Node) -> None:
        self.cluster.start(node.address)

    def lose_device(self, device: str) -> None:
        """Unmounted: what was on it waits aside."""
        path = self.cluster.device_path(device)
        path.rename(path.with_name(f"{device}X"))

    def revive_device(self, device: str) -> None:
        path = self.cluster.device_path(device)
        path.with_name(f"{device}X").rename(path)
        self.cluster.proxy.health._errors.clear()

    def replace_device(self, device: str) -> None:
        """An empty one in place of one that was lost."""
        path = self.cluster.device_path(device)
        shutil.rmtree(path.with_name(f"{device}X"))
        path.mkdir()
        self.cluster.proxy.health._errors.clear()

    # -- daemons -------------------------------------------------------------------------------------------------------

    def reconstructor(self, number: int, **options: Any) -> ObjectReconstructor:
        recon = self.root / f"recon{number}"
        recon.mkdir(exist_ok=True)
        values = {"devices": str(self.cluster.devices(number)), "mount_check": False, **self.options, **options}
        return ObjectReconstructor(
            ObjectReconstructorOptions(**values), World(LOG, self.clock, random.Random(number), ReconCache(str(recon))),
            {2: self.cluster.proxy.rings.object(self.policy)}, self.cluster.proxy.cluster, self.cluster.proxy.backend,
            [(self.cluster.ip, self.cluster.port("object", number))])  # fmt: skip

    def run(self, *nodes: int, times: int = 1, **options: Any) -> list[ObjectReconstructor]:
        found = []
        for _ in range(times):
            for number in nodes or range(4):
                found.append(self.reconstructor(number, **options))
                found[-1].run_once()
        return found


def metadata(path: Path) -> dict[str, str]:
    fd = os.open(path, os.O_RDONLY)
    try:
        return attributes.read(fd, lambda: None)
    finally:
        os.close(fd)
