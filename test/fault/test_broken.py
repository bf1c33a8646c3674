"""A running store of four nodes in which something breaks (issue 4, point 5): nothing acknowledged is lost, nothing hangs longer than
its bound, and ``keelstore status`` names the fault.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from keelstore.common.cluster import load_cluster
from keelstore.common.ring import format as ring_format
from keelstore.common.ring.builder import RingBuilder
from keelstore.common.ring.ring import Node, RingFile
from test.support import network
from test.support.client import Endpoint, unique
from test.support.processes import ROOT
from test.support.store import Store, running
from test.support.waiting import slowness, until

pytestmark = pytest.mark.skipif(bool(network.why_not()), reason=network.why_not() or "-")

NODES = (1, 2, 3, 4)
BOUND_S = 15.0  # for a request: conn_timeout and node_timeout (10 s) for one silent server, and a busy machine
STATUS_S = 25.0


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with network.namespace(), running(tmp_path_factory.mktemp("broken") / "data", nodes=4, workers=1) as store:
        yield store


class Written:
    """Objects that were acknowledged, through all proxies in turns, and what they are."""

    def __init__(self, store: Store, through: tuple[int, ...] = NODES):
        self.store, self.through, self.known = store, through, dict[str, bytes]()
        self.overwritten = set[str]()  # a device that took nothing may still show what it had: these are read where they are newest
        self.account, self.container = store.login(through[0]), unique("broken")
        self.account.put(self.container).expect(201)
        self.slowest_s = 0.0

    def timed(self, method: str, name: str, number: int, **options: Any) -> int:
        began = time.monotonic()
        status = self.account.at(self.store.proxy(self.through[number % len(self.through)])).request(method, self.container, name, **options).status
        self.slowest_s = max(self.slowest_s, time.monotonic() - began)
        return status

    def write(self, count: int = 12, mark: str = "o", all_succeed: bool = True) -> None:
        for number in range(count):
            name, body = f"{mark}{number}", f"{mark} {number}".encode() * 50
            status = self.timed("PUT", name, number, body=body)
            if status == 201:
                self.known[name] = body
            assert status == 201 or not all_succeed, status
        assert self.slowest_s < BOUND_S * slowness()

    def read(self, through: tuple[int, ...] = ()) -> None:
        """Everything is what was acknowledged, and listed."""
        for number, (name, body) in enumerate(self.known.items()):
            account = self.account.at(self.store.proxy((through or self.through)[number % len(through or self.through)]))
            began = time.monotonic()
            newest = {"X-Newest": "true"} if name in self.overwritten else {}
            assert account.get(self.container, name, headers=newest).expect(200).body == body
            assert time.monotonic() - began < BOUND_S * slowness()
        account = self.account.at(self.store.proxy((through or self.through)[0]))
        until(lambda: {row["name"] for row in account.listing(self.container)} >= set(self.known), "all are listed", 60)

    def places(self, name: str) -> list[tuple[Node, Path]]:
        """The primaries of an object and its directory there."""
        etc = str(self.store.etc(1))
        ring, digest = RingFile(f"{etc}/object.ring.gz").current(), load_cluster(etc).hash_path.digest(self.account.name, self.container, name)
        part = ring.partition(digest)
        return [(node, self.store.devices(number_of(node)) / node.device / "objects" / str(part) / digest.hex()[-3:] / digest.hex())
                for node in ring.primaries(part)]

    def missing(self) -> int:
        """Copies that are not where they belong."""
        return sum(not list(path.glob("*.data")) for name in self.known for _, path in self.places(name))


def number_of(node: Node) -> int:
    return int(node.ip.rpartition(".")[2])


def problems(store: Store) -> dict[str, dict[str, Any]]:
    began = time.monotonic()
    found = {problem["code"]: problem for problem in store.status()["problems"]}
    assert time.monotonic() - began < STATUS_S * slowness()
    return found


def repair(store: Store) -> None:
    store.command("node", "repair")


def test_two_nodes_with_another_ring(store: Store) -> None:
    written = Written(store)
    written.write(8, "before")
    builder = RingBuilder.load(str(store.data / "rings" / "object.builder"))
    for node in RingFile(str(store.etc(1) / "object.ring.gz")).current().nodes:
        if node.device in ("d1", "d2", "d3"):
            builder.set_weight(node.id, 0.0)
    builder.rebalance(time.time() + 7200, seed="other")
    paths = [store.etc(number) / "object.ring.gz" for number in (3, 4)]
    good = paths[0].read_bytes()
    for path in paths:
        ring_format.save(builder.ring(), str(path))
        store.reload(number_of_path(store, path))
    written.write(24, "while")
    written.read()
    for number in range(0, 24, 3):
        assert written.timed("POST", f"while{number}", number, headers={"X-Object-Meta-A": "1"}) == 202
    assert problems(store)["ring-differs"]["severity"] in ("warning", "danger")
    for number in range(4):
        assert written.timed("DELETE", f"before{number}", number) == 204
        del written.known[f"before{number}"]
    for path in paths:
        path.write_bytes(good)
        store.reload(number_of_path(store, path))
    repair(store)
    until(lambda: written.missing() == 0, "all copies are where they belong", 60, every_s=0.5)
    written.read()
    for number in range(4):
        assert written.account.get(written.container, f"before{number}").status == 404
    until(lambda: "ring-differs" not in problems(store), "the rings are the same")


def number_of_path(store: Store, path: Path) -> int:
    return next(number for number in NODES if path.is_relative_to(store.etc(number)))


def test_a_node_whose_packets_are_dropped(store: Store) -> None:
    written = Written(store, (1, 2, 4))
    written.write(6, "before")
    with network.dropped("127.0.0.3"):
        written.write(12, "while")
        written.read()
        for number in range(3):
            assert written.timed("DELETE", f"before{number}", number) == 204
            del written.known[f"before{number}"]
        assert written.slowest_s < BOUND_S * slowness()
        found = problems(store)
        assert {"node-hangs", "node-down"} & set(found)
        assert next(found[code] for code in ("node-hangs", "node-down") if code in found)["node"] == "node 3"
    until(lambda: written.missing() == 0, "all copies are where they belong", 60, every_s=0.5)
    written.read(NODES)
    for number in range(3):
        written.account.at(store.proxy(3)).get(written.container, f"before{number}").expect(404)


@contextmanager
def mounted(device: Path, *commands: list[str]) -> Iterator[None]:
    mounts = 0
    try:
        for command in commands:
            subprocess.run(["mount", *command], check=True)
            mounts += 1
        yield
    finally:
        if mounts:
            subprocess.run(["umount", "-l", str(device)], check=True)


@pytest.mark.parametrize("fault", ["full", "read-only"])
def test_a_disk_that_takes_nothing(store: Store, fault: str) -> None:
    written = Written(store)
    written.write(8, "before")
    node, _ = written.places("before0")[0]
    device = store.devices(number_of(node)) / node.device
    on_it = [name for name in written.known if any(path.is_relative_to(device) for _, path in written.places(name))]
    commands = [["-t", "tmpfs", "-o", "size=1m", "tmpfs", str(device)]] if fault == "full" else [
        ["--bind", str(device), str(device)], ["-o", "remount,ro,bind", str(device)]]
    with mounted(device, *commands):
        if fault == "full":
            (device / "filler").write_bytes(b"x" * 1_040_000)
        written.write(16, "while")
        for name in on_it[:1]:  # what is on it as well
            body = b"written anew"
            assert written.timed("PUT", name, 0, body=body) == 201
            written.known[name] = body
            written.overwritten.add(name)
        written.read()
        code = {"full": "device-full", "read-only": "device-unusable"}[fault]
        found = until(lambda: problems(store)[code], "status names it")
        assert (found["node"], found["device"]) == (f"node {number_of(node)}", node.device)
        assert fault != "read-only" or "read-only" in found["what"]
        assert "Traceback" not in store.log(number_of(node))
    repair(store)
    until(lambda: written.missing() == 0, "all copies are where they belong", 60, every_s=0.5)
    written.read()


def test_a_device_that_was_replaced_by_an_empty_one(store: Store) -> None:
    """All that it had is read meanwhile; it is named; it is filled."""
    written = Written(store)
    written.write(60, "before")
    node, _ = written.places("before0")[0]
    device = store.devices(number_of(node)) / node.device
    device.rename(device.with_name("taken-out"))
    device.mkdir()
    written.write(6, "while")
    written.read()
    shutil.rmtree(device)
    device.mkdir()
    found = problems(store).get("device-empty")  # only where others hold enough to tell; test_status has a store of that size
    assert found is None or (found["node"], found["device"]) == (f"node {number_of(node)}", node.device)
    store.command("node", "repair", "--device", node.device)
    until(lambda: written.missing() == 0, "all copies are where they belong", 60, every_s=0.5)
    shutil.rmtree(device.with_name("taken-out"))
    written.read()


@pytest.mark.parametrize("damage", ["emptied", "torn"])
def test_a_database_that_is_damaged(store: Store, damage: str) -> None:
    written = Written(store)
    written.write(12)
    etc = str(store.etc(1))
    ring, digest = RingFile(f"{etc}/container.ring.gz").current(), load_cluster(etc).hash_path.digest(written.account.name, written.container)
    node = ring.primaries(ring.partition(digest))[0]
    path = (store.devices(number_of(node)) / node.device / "containers" / str(ring.partition(digest)) / digest.hex()[-3:] / digest.hex()
            / f"{digest.hex()}.db")
    until(lambda: len(written.account.listing(written.container)) == 12, "all are listed")
    if damage == "emptied":
        os.truncate(path, 0)
    else:
        data = bytearray(path.read_bytes())
        data[4096:] = os.urandom(len(data) - 4096)
        path.write_bytes(bytes(data[: len(data) * 2 // 3]))
    for number in NODES:
        until(lambda number=number: len(written.account.at(store.proxy(number)).listing(written.container)) == 12,  # type: ignore[misc]
              f"all are listed by node {number}")
    written.write(6, "while")
    written.read()
    target = f"/{node.device}/{ring.partition(digest)}/{written.account.name}/{written.container}"
    until(lambda: Endpoint(*node.address).request("GET", target).status in (404, 200) and
          (device_quarantine(path) or path.stat().st_size > 0), "its server has met it")
    if device_quarantine(path):
        found = problems(store)["quarantined"]
        assert found["node"] == f"node {number_of(node)}" and "container" in found["what"] + found["why"]
    store.command("node", "repair", f"/{written.account.name}/{written.container}")
    until(lambda: Endpoint(*node.address).request("GET", f"{target}?format=json").json().__len__() == 18, "the replica is whole", 60)
    for found_path in device_quarantine(path):
        shutil.rmtree(found_path)


def device_quarantine(path: Path) -> list[Path]:
    return list((path.parents[4] / "quarantined" / "containers").glob(f"{path.stem}*"))


WRONG_CLOCK = """import time
_right = time.time
time.time = lambda: _right() + {ahead}
"""


@pytest.mark.parametrize("ahead", ["+2.0"])  # then all others are two seconds behind it
def test_a_clock_that_is_two_seconds_off(store: Store, ahead: str, tmp_path: Path) -> None:
    """What is acknowledged is kept, and of two writes the one that was said to be stored is read, or the later one."""
    written = Written(store)
    store.stop_node(4)
    (tmp_path / "sitecustomize.py").write_text(WRONG_CLOCK.format(ahead=ahead))
    done = subprocess.run([sys.executable, "-m", "keelstore.cli.main", "node", "start", "4", "--data", str(store.data)], capture_output=True, text=True,
                          timeout=240, stdin=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"})
    assert done.returncode == 0, done.stderr
    try:
        written.write(12)
        written.read()
        found = until(lambda: problems(store)["clock"], "status names it")
        assert found["node"] == "node 4" and ("ahead" if ahead == "+2.0" else "behind") in found["what"]
        for first, second in ((4, 1), (1, 4)):
            name, last = unique("raced"), b""
            for number, body in ((first, b"first"), (second, b"second")):
                status = written.account.at(store.proxy(number)).put(written.container, name, body=body).status
                assert status in (201, 202, 409)
                last = body if status == 201 else last
            answer = written.account.get(written.container, name, headers={"X-Newest": "true"}).expect(200)
            assert answer.body == last, (first, second)
            written.known[name] = last
        gone = unique("gone")
        written.account.at(store.proxy(1)).put(written.container, gone, body=b"x").expect(201)
        status = written.account.at(store.proxy(4)).delete(written.container, gone).status
        assert status in (204, 409)
        written.account.get(written.container, gone, headers={"X-Newest": "true"}).expect(404 if status == 204 else 200)
    finally:
        store.stop_node(4)
        store.start_node(4)
    written.read()
    until(lambda: "clock" not in problems(store), "its clock is right again")


def test_nothing_was_worth_a_traceback(store: Store) -> None:
    for number in NODES:
        assert "Traceback" not in store.log(number)
