"""Our reconstructor over Swift's object servers, Swift's over ours, and each over a cluster of both: the same bytes come back."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from test.interop.test_daemons_swift import RUNNER
from test.support.client import unique
from test.support.daemon_runs import configuration, run_once
from test.support.fragments import metadata
from test.support.peers import OURS, SWIFT, Peers
from test.support.preloaded import Preloaded

SEGMENT = 1 << 20
SIZES = [0, 1, 4096, SEGMENT, 2 * SEGMENT + 12345]
RECONSTRUCTOR = "object-reconstructor"
Stored = dict[str, dict[str, tuple[str, tuple[tuple[str, str], ...]]]]


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory, swift_python: str, preloaded: Preloaded) -> Iterator[Peers]:
    peers = Peers(tmp_path_factory.mktemp("rebuild"), swift_python, preloaded=preloaded, devices_per_site=4, has_fragments=True)
    (peers.home / "run-daemon.py").write_text(RUNNER)
    try:
        peers.start_proxies(OURS)
        yield peers
    finally:
        peers.stop_all()


@pytest.fixture(scope="module", params=[(SWIFT, SWIFT), (OURS, OURS), (OURS, SWIFT)],
                ids=["swift-servers", "our-servers", "servers-of-both"])
def servers(peers: Peers, request: pytest.FixtureRequest) -> tuple[str, ...]:
    return tuple(request.param)


@pytest.fixture(scope="module")
def storage(peers: Peers, servers: tuple[str, ...]) -> Iterator[Peers]:
    with peers.storage(*servers):
        yield peers
    for log in peers.home.glob("keelstore-*.log"):
        assert "Traceback" not in log.read_text(errors="replace")


@pytest.fixture(params=[OURS, SWIFT], ids=["our-daemon", "swift-daemon"])
def make(servers: tuple[str, ...], request: pytest.FixtureRequest) -> str:
    if set(servers) == {request.param}:
        pytest.skip("one make alone")
    return str(request.param)


def run(peers: Peers, make: str, times: int = 1) -> None:
    """Passes of a make's reconstructor at all sites."""
    for _ in range(times):
        if make == OURS:
            run_once(peers, RECONSTRUCTOR)
            continue
        for site in range(peers.sites):
            conf = configuration(peers, RECONSTRUCTOR, site)
            done = subprocess.run([peers.swift_python, str(peers.home / "run-daemon.py"), str(peers.swift_dir / "swift.conf"),
                                   "swift.obj.reconstructor", "ObjectReconstructor", str(conf)], capture_output=True, text=True,
                                  timeout=240, env={**os.environ, "PYTHONPATH": ""}, stdin=subprocess.DEVNULL)
            assert done.returncode == 0, done.stderr[-2000:]


class Objects:
    """Objects of all sizes in a container of their own."""

    def __init__(self, peers: Peers):
        self.peers, self.account, self.container = peers, peers.proxy(OURS).login(), unique("rb")
        self.account.put(self.container, headers={"X-Storage-Policy": "ec42"}).expect(201)

    def put(self, *sizes: int) -> None:
        for size in sizes:
            self.account.put(self.container, f"o{size}", body=random.Random(size).randbytes(size),
                             headers={"X-Object-Meta-A": "caf\u00e9", "Content-Type": "text/x"}).expect(201)

    def names(self, size: int) -> tuple[str, str, str]:
        return self.account.path.rpartition("/")[2], self.container, f"o{size}"

    def folder(self, device: str, size: int) -> Path:
        part, nodes, handoffs = self.peers.places("object", *self.names(size), policy=2)
        node = next(node for node in (*nodes, *handoffs) if node.device == device)
        return self.peers.on_disk(node, part, *self.names(size), folder="objects-2")

    def stored(self, *sizes: int) -> dict[int, Stored]:
        """Everything on the disks: file names, MD5s and metadata, by size and device."""
        found: dict[int, Stored] = {}
        for size in sizes:
            found[size] = {}
            for device in self.peers.device_names:
                folder = self.folder(device, size)
                if folder.is_dir() and (names := sorted(os.listdir(folder))):
                    found[size][device] = {
                        name: (hashlib.md5((folder / name).read_bytes()).hexdigest(), tuple(sorted(metadata(folder / name).items())))
                        for name in names
                    }
        return found

    def primaries(self, size: int) -> list[str]:
        return [node.device for node in self.peers.places("object", *self.names(size), policy=2)[1]]

    def check(self, *sizes: int) -> None:
        for size in sizes:
            assert self.account.get(self.container, f"o{size}").expect(200).body == random.Random(size).randbytes(size)


@pytest.fixture
def objects(storage: Peers) -> Objects:
    return Objects(storage)


def wipe(peers: Peers, *devices: str) -> None:
    for device in devices:
        shutil.rmtree(peers.devices / device / "objects-2", ignore_errors=True)


def test_two_wiped_devices_get_back_the_very_same_bytes(storage: Peers, make: str, objects: Objects) -> None:
    objects.put(*SIZES)
    objects.account.post(objects.container, "o4096", headers={"X-Object-Meta-B": "posted"}).expect(202)
    before = objects.stored(*SIZES)
    assert all(len(stored) == 6 for stored in before.values())
    wipe(storage, "d1", "d4")
    run(storage, make, 2)
    assert objects.stored(*SIZES) == before
    objects.check(*SIZES)


def test_handoffs_go_home_and_tombstones_too(storage: Peers, make: str, objects: Objects) -> None:
    sizes = [4096, 70_000]
    objects.put(*sizes)
    away = objects.primaries(sizes[0])[:2]
    for device in away:
        (storage.devices / device).rename(storage.devices / f"{device}X")
    objects.put(*sizes)
    objects.account.delete(objects.container, "o70000").expect(204)
    for device in away:
        (storage.devices / f"{device}X").rename(storage.devices / device)
    run(storage, make, 2)
    stored = objects.stored(*sizes)
    assert set(stored[4096]) == set(objects.primaries(4096))
    assert [[name.split("#", 1)[1] for name in stored[4096][device]] for device in objects.primaries(4096)] \
        == [[f"{index}#d.data"] for index in range(6)]
    assert {name.rpartition(".")[2] for names in stored[70_000].values() for name in names} == {"ts"}
    assert set(stored[70_000]) >= set(objects.primaries(70_000))
    objects.check(4096)


def test_fragments_that_wait_become_durable(storage: Peers, make: str, objects: Objects) -> None:
    objects.put(4096)
    before = objects.stored(4096)
    for device in objects.primaries(4096)[:2]:
        folder = objects.folder(device, 4096)
        for path in list(folder.iterdir()):
            path.rename(folder / path.name.replace("#d", ""))
        (folder.parent.parent / "hashes.pkl").unlink(missing_ok=True)
    run(storage, make)
    assert objects.stored(4096) == before


def test_both_makes_hash_suffixes_alike(storage: Peers, objects: Objects) -> None:
    """After a pass of each, a pass of the other finds nothing to do."""
    objects.put(4096)
    run(storage, SWIFT)
    left = run_once(storage, RECONSTRUCTOR)
    assert [(figures["objects_sent"], figures["failures"]) for figures in left] == [(0, 0)] * storage.sites
