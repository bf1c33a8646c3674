"""What parity promises: any two of six fragments may be lost (``spec: scenarios-fault 16, 17``; the numbers are its rows).

Most of it runs over a cluster in this process, where every pair of devices can be tried; the rest over the processes of
``keelstore up --nodes 4``.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from keelstore.common.cluster import load_cluster
from keelstore.common.codec import HEADER_SIZE, codec_for
from keelstore.common.daemon_frame import World
from keelstore.common.headers import Headers
from keelstore.common.ring.ring import RingFile
from keelstore.common.timestamp import Timestamp
from keelstore.obj.auditor import ObjectAuditor
from keelstore.obj.options import ObjectAuditorOptions
from test.support.client import unique
from test.support.fragments import LOG, Fragmented
from test.support.processes import ROOT
from test.support.store import Store, running
from test.support.waiting import until
from test.support.wiping import wipe

SEGMENT = 65536
SIZES = (1, 5000, 3 * SEGMENT + 7, 70 * SEGMENT + 7)  # the last: no server checks its fragments for a range
DEVICES = [f"d{node}{device}" for node in range(4) for device in range(2)]
PAIRS = list(itertools.combinations(DEVICES, 2))


def body_of(size: int) -> bytes:
    return random.Random(size).randbytes(size)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Fragmented]:
    found = Fragmented(tmp_path)
    yield found
    found.cluster.close()


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fragmented]:
    found = Fragmented(tmp_path_factory.mktemp("pairs"))
    for size in SIZES:
        assert found.put(f"o{size}", body_of(size), **{"X-Object-Meta-V": "1"}) == 201
    assert found.cluster.ask("POST", "/v1/a/c/o5000", {"X-Object-Meta-V": "2"}).status == 202
    yield found
    found.cluster.close()


def check_reads(cluster: Fragmented) -> None:
    for size in SIZES:
        body = body_of(size)
        for first, last in ((0, 0), (size // 2, size // 2 + 9), (SEGMENT - 2, SEGMENT + 2), (size - 1, size)):
            if 0 <= first < size:
                assert cluster.get(f"o{size}", Range=f"bytes={first}-{last}") == (206, body[first : last + 1])
        assert cluster.get(f"o{size}") == (200, body)


def indexes(cluster: Fragmented, name: str) -> list[int]:
    """Of the durable fragments of an object."""
    return sorted(int(file.split("#")[1]) for files in cluster.files(name).values() for file in files if file.endswith("#d.data"))


def all_of(cluster: Fragmented) -> dict[str, object]:
    return {f"o{size}": cluster.fragments(f"o{size}") for size in SIZES}


def spoil(cluster: Fragmented, device: str) -> None:
    """One octet of every fragment on a device, somewhere in header or payload."""
    for number, path in enumerate(cluster.cluster.device_path(device).glob("objects-2/*/*/*/*.data")):
        data = bytearray(path.read_bytes())
        if data:
            data[(HEADER_SIZE, 8, len(data) - 1)[number % 3]] ^= 1
            path.write_bytes(data)


def audit(cluster: Fragmented, *nodes: int) -> int:
    """How many objects the auditors of these nodes (default: all) put aside."""
    found = 0
    for node in nodes or range(4):
        options = ObjectAuditorOptions(devices=str(cluster.cluster.devices(node)), mount_check=False, files_per_second=0,
                                       bytes_per_second=0, zero_byte_files_per_second=0)
        auditor = ObjectAuditor(options, World(LOG, cluster.clock), cluster.cluster.proxy.cluster)
        auditor.run_once()
        found += auditor.figures()["quarantined"]
        assert not auditor.figures()["errors"]
    return found


# -- any two devices ---------------------------------------------------------------------------------------------------


def test_any_two_devices_may_be_wiped(filled: Fragmented) -> None:
    before = all_of(filled)
    for pair in PAIRS:
        for device in pair:
            filled.wipe(device)
        check_reads(filled)
        filled.run()
        assert all_of(filled) == before, pair
    assert audit(filled) == 0


def test_any_two_devices_may_rot(filled: Fragmented) -> None:
    before = all_of(filled)
    for pair in PAIRS:
        for device in pair:
            spoil(filled, device)
        check_reads(filled)
        audit(filled, *{int(device[1]) for device in pair})
        filled.run()
        assert all_of(filled) == before, pair
    assert audit(filled) == 0


def test_any_two_devices_may_be_gone(filled: Fragmented) -> None:
    before = all_of(filled)
    for pair in PAIRS:
        for device in pair:
            filled.lose_device(device)
        check_reads(filled)
        filled.run()
        for size in SIZES:
            assert indexes(filled, f"o{size}") == list(range(6)), pair
        for device in pair:
            filled.replace_device(device)
        filled.run(times=2)
        assert all_of(filled) == before, pair
    assert audit(filled) == 0


def test_with_three_gone_nothing_is_said_that_is_not_so(cluster: Fragmented) -> None:
    assert cluster.put("o", body_of(5000)) == 201
    before = cluster.fragments("o")
    lost = [node.device for node in cluster.primaries("o")[:3]]
    for device in lost:
        cluster.lose_device(device)
    left = cluster.fragments("o")
    for headers in ({}, {"Range": "bytes=5-10"}, {"X-Newest": "true"}):
        assert cluster.get("o", **headers) == (503, b"")
    cluster.run(times=2, quarantine_age=0)
    assert cluster.fragments("o") == left
    for device in lost:
        cluster.revive_device(device)
    assert cluster.get("o") == (200, body_of(5000))
    cluster.run()
    assert cluster.fragments("o") == before


# -- rows of the fault scenarios ---------------------------------------------------------------------------------------


LOSSES = [((0,), (), 1), ((0, 5), (), 1), ((0, 4), (), 1), ((), (0,), 1), ((), (0, 5), 1), ((), (0, 4), 1), ((0, 2), (4,), 3), ((0, 4), (2,), 3),
          ((0, 1), (2,), 2), ((0, 2), (1,), 2), ((0, 2), (1, 3, 5), 3), ((0,), (1, 2, 4, 5), 3)]  # failed, waiting, cycles


@pytest.mark.parametrize(("name", "losses"), [*(("plain", losses) for losses in LOSSES), *(("n\u00e9\u65e5\u672c", losses) for losses in LOSSES[6:10])],
                         ids=str)
def test_scenario_111_to_115(cluster: Fragmented, name: str, losses: tuple[Sequence[int], Sequence[int], int]) -> None:
    failed, waiting, cycles = losses
    assert cluster.put(name, body_of(70_000), **{"X-Object-Meta-U": "n\u00c3\u00a9"}) == 201
    assert cluster.cluster.ask("POST", f"/v1/a/c/{name}", {"X-Object-Meta-New": "\u00c3\u00a9"}).status == 202
    before = cluster.fragments(name)
    cluster.drop(name, *failed)
    cluster.undo_durable(name, *waiting)
    cluster.run(times=cycles)
    assert cluster.fragments(name) == before
    assert cluster.get(name) == (200, body_of(70_000))


def test_scenario_117_an_expired_object_is_rebuilt(cluster: Fragmented) -> None:
    assert cluster.put("e", body_of(5000), **{"X-Delete-After": "3"}) == 201
    before = cluster.fragments("e")
    cluster.drop("e", 3)
    until(lambda: cluster.get("e")[0] == 404, "it has expired")
    cluster.run()
    assert cluster.fragments("e") == before


def test_scenario_121_what_is_durable_counts(cluster: Fragmented) -> None:
    assert cluster.put("o", body_of(5000)) == 201
    first = cluster.fragments("o")
    saved = {}
    for node in cluster.primaries("o"):
        folder = cluster.folder(node.device, "o")
        saved[node.device] = cluster.root / f"kept-{node.device}"
        (folder).rename(saved[node.device])
        cluster.forget_hashes(folder)
    assert cluster.put("o", body_of(7000)) == 201
    cluster.undo_durable("o", *range(6))
    for node in cluster.primaries("o"):
        for path in saved[node.device].iterdir():
            path.rename(cluster.folder(node.device, "o") / path.name)
    cluster.drop("o", 0)
    lost = cluster.primaries("o")[0].device
    cluster.run()
    assert {item for item in cluster.fragments("o") if item[0] == lost and "#d" in item[1]} == {item for item in first if item[0] == lost}
    assert cluster.get("o") == (200, body_of(5000))




def test_scenario_118_a_post_that_a_node_missed(cluster: Fragmented) -> None:
    assert cluster.put("x", body_of(5000), **{"X-Delete-At": str(int(time.time()) + 3600)}) == 201
    away = cluster.primaries("x")[2].device
    cluster.lose_device(away)
    assert cluster.cluster.ask("POST", "/v1/a/c/x", {"X-Object-Meta-A": "b"}).status == 202
    cluster.revive_device(away)
    cluster.run()
    stored = cluster.files("x")
    assert {tuple(name for name in names if name.endswith(".meta")) for device, names in stored.items()
            if device in {node.device for node in cluster.primaries("x")}} == {(next(name for name in stored[away] if name.endswith(".meta")),)}
    for node in cluster.primaries("x"):
        answer = cluster.cluster.proxy.backend.call(node.address, "HEAD", f"/{node.device}/{cluster.part('x')}/a/c/x",
                                                    Headers({"X-Backend-Storage-Policy-Index": "2"}), timeout_s=5)
        assert (answer.status, answer.headers.get("X-Delete-At"), answer.headers["X-Object-Meta-A"]) == (200, None, "b")


def put_at(cluster: Fragmented, name: str, body: bytes, stamp: Timestamp, is_durable: bool = True) -> None:
    """Fragments on all primaries, as the reconciler would write them."""
    codec, etag = codec_for("isa_l_rs_vand", 4, 2), hashlib.md5(body).hexdigest()
    parts = [codec.encode(body[at : at + SEGMENT]) for at in range(0, len(body), SEGMENT)]
    for node in cluster.primaries(name):
        headers = Headers({
            "X-Timestamp": stamp.internal, "Content-Type": "a/b", "X-Backend-Storage-Policy-Index": "2", "X-Backend-No-Commit": str(not is_durable),
            "X-Object-Sysmeta-Ec-Frag-Index": str(node.index), "X-Object-Sysmeta-Ec-Etag": etag, "X-Object-Sysmeta-Ec-Scheme": codec.description,
            "X-Object-Sysmeta-Ec-Content-Length": str(len(body)), "X-Object-Sysmeta-Ec-Segment-Size": str(SEGMENT)})  # fmt: skip
        archive = b"".join(part[node.index or 0] for part in parts)
        headers["Content-Length"] = str(len(archive))
        answer = cluster.cluster.proxy.backend.call(node.address, "PUT", f"/{node.device}/{cluster.part(name)}/a/c/{name}", headers,
                                                    body=archive, timeout_s=5)
        assert answer.status == 201, answer.body


def test_scenario_122_a_time_with_an_offset(cluster: Fragmented) -> None:
    first = Timestamp(time.time() - 10, offset=3)
    put_at(cluster, "o", body_of(70_000), first)
    before = cluster.fragments("o")
    put_at(cluster, "o", body_of(5000), Timestamp(time.time() - 5), is_durable=False)
    cluster.drop("o", 0)
    lost = cluster.primaries("o")[0].device
    cluster.run()
    assert {item for item in cluster.fragments("o") if item[0] == lost and "#d" in item[1]} == {item for item in before if item[0] == lost}
    assert f"{first.internal}#0#d.data" in cluster.files("o")[lost]
    assert cluster.get("o") == (200, body_of(70_000))


def test_scenario_129_to_131_two_versions_on_a_handoff(cluster: Fragmented) -> None:
    home = cluster.primaries("o")[0].device
    cluster.lose_device(home)
    assert cluster.put("o", body_of(5000)) == 201
    assert cluster.cluster.ask("POST", "/v1/a/c/o", {"Content-Type": "x/y"}).status == 202
    handoff = next(device for device in cluster.files("o") if device not in {node.device for node in cluster.primaries("o")}
                   and any("#0" in name for name in cluster.files("o")[device]))
    kept = cluster.root / "kept"
    cluster.folder(handoff, "o").rename(kept)
    assert cluster.put("o", body_of(7000)) == 201
    folder = cluster.folder(handoff, "o")
    if not folder.exists():  # the proxy chose the other handoff: let this be the one
        other = next(node.device for node in cluster.handoffs("o") if node.device != handoff)
        cluster.folder(other, "o").rename(folder)
    for path in list(folder.iterdir()):
        path.rename(folder / path.name.replace("#d", ""))
    for path in kept.iterdir():
        path.rename(folder / path.name)
    cluster.forget_hashes(folder)
    cluster.revive_device(home)
    cluster.run(int(handoff[1]), commit_window=0)
    names = cluster.files("o")[home]
    assert sorted(name.partition("#")[2] for name in names if name.endswith(".data")) in (["0#d.data", "0.data"], ["0#d.data"])
    assert handoff not in cluster.files("o")
    cluster.run()
    assert cluster.get("o") == (200, body_of(7000))
    assert [name.partition("#")[2] for name in cluster.files("o")[home] if name.endswith(".data")] == ["0#d.data"]


# -- over the processes of a store -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with running(tmp_path_factory.mktemp("rebuild") / "data", nodes=4, workers=1, is_patient=True) as store:
        yield store


class Live:
    """Objects of a container of the policy ec42 in a running store."""

    def __init__(self, store: Store):
        self.store, self.account, self.container = store, store.login(), unique("live")
        self.account.put(self.container, headers={"X-Storage-Policy": "ec42"}).expect(201)
        self.hash_path = load_cluster(str(store.etc())).hash_path
        self.ring = RingFile(str(store.etc() / "object-2.ring.gz")).current()

    def put(self, name: str, size: int) -> bytes:
        body = random.Random(name).randbytes(size)
        self.account.put(self.container, name, body=body).expect(201)
        return body

    def digest(self, name: str) -> bytes:
        return self.hash_path.digest(self.account.path.rpartition("/")[2], self.container, name)

    def fragments(self, name: str) -> dict[str, str]:
        """The MD5 of each durable fragment, by node, device and index."""
        folder = self.digest(name).hex()
        return {
            f"{path.relative_to(self.store.data).parts[0]}/{path.relative_to(self.store.data).parts[2]}#{path.name.split('#')[1]}":
            hashlib.md5(path.read_bytes()).hexdigest()
            for path in self.store.data.glob(f"node*/devices/*/objects-2/*/{folder[-3:]}/{folder}/*#d.data")
        }  # fmt: skip

    def home(self, name: str) -> set[str]:
        """Where its fragments belong."""
        primaries = self.ring.primaries(self.ring.partition(self.digest(name)))
        return {f"node{node.ip.rpartition('.')[2]}/{node.device}#{node.index}" for node in primaries}

    def lose(self, name: str, *places: int) -> None:
        for index in places:
            folder = self.digest(name).hex()
            for path in self.store.data.glob(f"node*/devices/*/objects-2/*/{folder[-3:]}/{folder}/*#{index}#d.data"):
                shutil.rmtree(path.parent)


def test_what_a_read_misses_is_back_within_seconds(store: Store) -> None:
    live = Live(store)
    bodies = {name: live.put(name, size) for name, size in (("small", 4096), ("large", 3 << 20))}
    before = {name: live.fragments(name) for name in bodies}
    assert all(set(found) == live.home(name) for name, found in before.items())
    for name in bodies:
        live.lose(name, 0, 3)

    def is_back() -> bool:
        for name, body in bodies.items():
            assert live.account.get(live.container, name).expect(200).body == body
            assert live.account.get(live.container, name, headers={"Range": "bytes=100-2000"}).expect(206).body == body[100:2001]
        return {name: live.fragments(name) for name in bodies} == before

    until(is_back, "all fragments are back", 120)


def everywhere(store: Store, daemon: str) -> None:
    """One pass of a daemon on every node at once, beside those that the nodes make by themselves."""
    runs = [subprocess.Popen([sys.executable, "-m", "keelstore.node.run_daemon", daemon, str(store.etc(number) / "object-server.conf"), "once"], stdin=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(ROOT)}) for number in range(1, 5)]
    assert [run.wait(240) for run in runs] == [0] * len(runs)


@pytest.mark.parametrize("fate", ["gone", "wiped", "rotten"])
def test_two_devices_of_a_store(store: Store, fate: str) -> None:
    """Every pair is tried above; here one pair is that of a store that runs. What no read comes upon (parity) is found by
    the auditor and a scan.
    """
    live = Live(store)
    bodies = {name: live.put(name, size) for name, size in (("tiny", 10), ("middling", 70_000), ("large", 6 << 20))}
    before = {name: live.fragments(name) for name in bodies}
    first, second = sorted(live.home("large"), key=lambda place: place.partition("#")[2])[1:3]
    devices = [store.data / node / "devices" / device for node, device in
               (place.partition("#")[0].split("/") for place in (first, second))]

    def check() -> bool:
        for number, (name, body) in enumerate(bodies.items()):
            reader = live.account.at(store.proxy(1 + number))
            at = len(body) // 2
            assert reader.get(live.container, name, headers={"Range": f"bytes={at}-{at + 9}"}).expect(206).body == body[at : at + 10]
            assert reader.get(live.container, name).expect(200).body == body
        return True

    def is_whole() -> bool:
        return check() and {name: live.fragments(name) for name in bodies} == before

    for bit, device in enumerate(devices):
        if fate == "gone":
            device.rename(device.with_name(f"{device.name}X"))
        elif fate == "wiped":
            wipe(device / "objects-2")
        else:
            for path in device.glob("objects-2/*/*/*/*.data"):
                data = bytearray(path.read_bytes())
                data[len(data) // 2] ^= 1 << bit  # what is equally wrong in two needs both others to be seen
                path.write_bytes(data)
    try:
        check()
    finally:
        if fate == "gone":
            for device in devices:
                device.with_name(f"{device.name}X").rename(device)
    if fate == "rotten":
        everywhere(store, "object-auditor")
    if fate != "gone":
        everywhere(store, "object-reconstructor")
    until(is_whole, "all fragments are back", 120, every_s=0.2)


def test_a_node_that_was_away_gets_its_fragments(store: Store) -> None:
    live = Live(store)
    store.stop_node(3, kill=True)
    try:
        bodies = {f"o{number}": live.put(f"o{number}", 70_000) for number in range(3)}
    finally:
        store.start_node(3)
    until(lambda: all(set(live.fragments(name)) == live.home(name) for name in bodies), "everything is at home", 120)
    for name, body in bodies.items():
        assert live.account.get(live.container, name).expect(200).body == body


def test_two_nodes_away_are_too_many_and_nothing_false_is_said(store: Store) -> None:
    live = Live(store)
    bodies = {f"o{number}": live.put(f"o{number}", 5000) for number in range(4)}
    before = {name: live.fragments(name) for name in bodies}
    for number in (3, 4):
        store.stop_node(number)
    try:
        for name, body in bodies.items():
            left = [place for place in before[name] if place.startswith(("node1", "node2"))]
            answer = live.account.get(live.container, name)
            assert (answer.status, answer.body if answer.status == 200 else b"") in (
                [(200, body)] if len(left) >= 4 else [(503, b"")]), (name, left)
    finally:
        for number in (3, 4):
            store.start_node(number)
    until(lambda: all(live.account.get(live.container, name).body == body for name, body in bodies.items()), "all is read again", 60)
    assert {name: live.fragments(name) for name in bodies} == before
