"""SSYNC between the makes: our sender with Swift's object server, Swift's replicator with ours, and the lines of both."""

from __future__ import annotations

import getpass
import json
import logging
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from keelstore.common.backend import Backend
from keelstore.common.errors import BackendError
from keelstore.common.headers import Headers
from keelstore.common.policy import ReplicationPolicy
from keelstore.common.ring.ring import Node
from keelstore.common.room import Reserve
from keelstore.common.timestamp import Timestamp
from keelstore.obj.place import Place
from keelstore.obj.ssync import protocol
from keelstore.obj.ssync.listing import state_of
from keelstore.obj.ssync.sender import Sender, Source
from keelstore.obj.store import ObjectStore
from test.support.daemon_runs import run_once
from test.support.objects import metadata_of
from test.support.peers import OURS, SWIFT, Peers
from test.support.preloaded import Preloaded

GOLD = ReplicationPolicy(0, "gold", is_default=True)
NAMES = ["plain", "n\u00e9\u65e5\u672c \U0001f600", "per%20cent?", "new\nline", "b//c", "x" * 200]
BASE = int(time.time()) - 1000  # tombstones must not be old

DAEMON_RUNNER = '''
"""Run a daemon of Swift once: PROGRAM CLUSTER_FILE MODULE CLASS SECTION CONF."""
import sys

from swift.common import utils

utils.SWIFT_CONF_FILE = sys.argv[1]

from swift.common import constraints, storage_policy
from swift.common.daemon import run_daemon

constraints.reload_constraints()
storage_policy.reload_storage_policies()
run_daemon(getattr(__import__(sys.argv[2], fromlist=["x"]), sys.argv[3]), sys.argv[5], section_name=sys.argv[4], once=True)
'''

REPLICATOR_CONF = """\
[DEFAULT]
devices = {devices}
mount_check = false
bind_ip = 127.0.0.1
bind_port = {port}
user = {user}
swift_dir = {swift_dir}
recon_cache_path = {home}

[object-replicator]
sync_method = ssync
log_address = {home}/none
"""


def at(seconds: float) -> Timestamp:
    return Timestamp(BASE + seconds)


class Device:
    """One device below the common directory, used by a store of ours while no server need run."""

    def __init__(self, peers: Peers, name: str):
        self.name, self.path = name, str(peers.devices / name)
        self.store = ObjectStore(peers.hash_path, reserve=Reserve.parse("0"), reclaim_age_s=10**9).scanner()

    def place(self, name: str, partition: int) -> Place:
        return self.store.place(self.name, self.path, GOLD, str(partition), "a", "c", name)

    def put(self, name: str, partition: int, body: bytes, seconds: float, more: dict[str, str] | None = None) -> None:
        place = self.place(name, partition)
        self.store.write(place, at(seconds), body, metadata_of(place, at(seconds), body, more))

    def post(self, name: str, partition: int, seconds: float, more: dict[str, str]) -> None:
        place = self.place(name, partition)
        self.store.write_meta(place, at(seconds), {"X-Timestamp": at(seconds).internal, "name": place.name, **more})

    def delete(self, name: str, partition: int, seconds: float) -> None:
        self.store.delete(self.place(name, partition), at(seconds))

    def read(self, name: str, partition: int) -> tuple[bytes, dict[str, str]]:
        opened = self.store.open(self.place(name, partition))
        try:
            return b"".join(opened.part(0, opened.size, 65536)), dict(opened.metadata)
        finally:
            opened.close()

    def state(self, name: str, partition: int) -> object:
        return state_of(self.store.look(self.place(name, partition)))

    def hashes(self, partition: int) -> object:
        return self.store.hashes(self.name, self.path, GOLD, str(partition), (), True)


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory, swift_python: str, preloaded: Preloaded) -> Iterator[Peers]:
    peers = Peers(tmp_path_factory.mktemp("ssync"), swift_python, preloaded=preloaded)
    (peers.home / "run-daemon.py").write_text(DAEMON_RUNNER)
    try:
        yield peers
    finally:
        peers.stop_all()


def node_of(peers: Peers, name: str) -> Node:
    return next(node for node in peers.ring("object").nodes if node.device == name)


def sender_of(device: Device) -> Sender:
    return Sender(device.store, Backend(1.0), logging.getLogger("test.ssync"), node_timeout_s=5, http_timeout_s=10)


def source_of(device: Device, partition: int) -> Source:
    return Source(device.name, device.path, GOLD, partition)


def fill(device: Device, partition: int) -> None:
    for number, name in enumerate(NAMES):
        device.put(name, partition, os.urandom(number * 40_000), 1, {"X-Object-Meta-V": "caf\u00c3\u00a9", "X-Object-Sysmeta-S": "1",
                                                                       "X-Delete-At": "9999999999", "Content-Disposition": "inline"})  # fmt: skip
    device.put("posted", partition, b"abc", 1)
    device.post("posted", partition, 3, {"X-Object-Meta-New": "yes", "Content-Type": "a/b", "Content-Type-Timestamp": at(2).internal})
    device.delete("deleted", partition, 5)
    device.delete("deleted-here", partition, 5)


EVERYTHING = [*NAMES, "posted", "deleted", "deleted-here"]


def test_our_sender_and_swifts_receiver(peers: Peers) -> None:
    ours, theirs = Device(peers, "d1"), Device(peers, "d3")
    part = 7
    fill(ours, part)
    theirs.put("deleted-here", part, b"x", 1)
    theirs.put("newer-there", part, b"new", 9)
    ours.put("newer-there", part, b"old", 1)
    peers.start(1, make=SWIFT, kinds=("object",))
    try:
        outcome = sender_of(ours).sync(source_of(ours, part), node_of(peers, "d3"))
        assert outcome.is_success, outcome.reason
        assert outcome.is_proof and outcome.sent == len(EVERYTHING) and len(outcome.held) == len(EVERYTHING) + 1
        for name in EVERYTHING:
            assert ours.state(name, part) == theirs.state(name, part), name
        for name in [*NAMES, "posted"]:
            assert ours.read(name, part) == theirs.read(name, part)
        assert theirs.read("newer-there", part)[0] == b"new"
        again = sender_of(ours).sync(source_of(ours, part), node_of(peers, "d3"))
        assert again.is_success and again.sent == 0 and len(again.held) == len(outcome.held)
        ours.put("plain", part, b"overwritten", 20)
        ours.post("posted", part, 21, {"X-Object-Meta-Newer": "yes"})
        ours.delete("per%20cent?", part, 22)
        assert sender_of(ours).sync(source_of(ours, part), node_of(peers, "d3")).sent == 3
        for name in EVERYTHING:
            assert ours.state(name, part) == theirs.state(name, part), name
        theirs_corrupt = Path(theirs.place("plain", part).directory, f"{at(20).internal}.data")
        theirs_corrupt.write_bytes(b"")
        assert sender_of(ours).sync(source_of(ours, part), node_of(peers, "d3")).sent == 1
        assert theirs.read("plain", part)[0] == b"overwritten"
    finally:
        peers.stop(1, kinds=("object",))


def replicate(peers: Peers, site: int) -> subprocess.CompletedProcess[str]:
    """One pass of Swift's replicator over the devices of a site."""
    port = peers.ports[site]["object"]
    conf = peers.home / f"replicator-{port}.conf"
    conf.write_text(REPLICATOR_CONF.format(devices=peers.devices, port=port, user=getpass.getuser(), swift_dir=peers.swift_dir, home=peers.home))
    return subprocess.run(
        [peers.swift_python, str(peers.home / "run-daemon.py"), str(peers.swift_dir / "swift.conf"), "swift.obj.replicator",
         "ObjectReplicator", "object-replicator", str(conf)],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ""}, timeout=60, check=False)  # fmt: skip


def test_swifts_replicator_and_our_receiver(peers: Peers) -> None:
    """All copies on one handoff or primary of site 0; Swift's replicator brings them to our server of site 1, and, after a full
    sync, removes what it had as a handoff.
    """
    ring = peers.ring("object")
    names = [f"{name}-{number}" for number, name in enumerate(NAMES * 3)]
    peers.start(0, 1, make=OURS, kinds=("object",))
    try:
        held: list[tuple[str, int, Device]] = []
        for number, name in enumerate(names):
            part = ring.partition(peers.hash_path.digest("a", "c", name))
            device = Device(peers, ["d1", "d2"][number % 2])
            device.put(name, part, os.urandom(number * 9000), 1, {"X-Object-Meta-V": "caf\u00c3\u00a9"})
            if not number % 3:
                device.post(name, part, 2, {"X-Object-Meta-Posted": "yes"})
            if not number % 5:
                device.delete(name, part, 3)
            held.append((name, part, device))
        before = {name: device.state(name, part) for name, part, device in held}
        for _ in range(2):
            done = replicate(peers, 0)
            assert done.returncode == 0, done.stderr
        for name, part, device in held:
            primaries = [node.device for node in ring.primaries(part)]
            for node in primaries:
                assert Device(peers, node).state(name, part) == before[name], (name, node, done.stderr[-2000:])
            if device.name not in primaries:
                assert device.state(name, part) == (None, None, None, None)
    finally:
        peers.stop(0, 1, kinds=("object",))


def probe(peers: Peers, code: str) -> object:
    """What Swift says to a question put in Python."""
    done = subprocess.run([peers.swift_python, "-c", code], capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": ""})
    return json.loads(done.stdout)


def test_offers_are_spelt_alike(peers: Peers) -> None:
    stamps = [(5.0, 0), (5.0, 7), (6.5, 0), (4.0, 2), (5.00001, 0)]
    cases = [(data, meta, ctype) for data in stamps for meta in stamps for ctype in stamps]
    lines = probe(peers, f"""
import json
from swift.common.utils import Timestamp as T
from swift.obj.ssync_sender import encode_missing
cases = {cases!r}
print(json.dumps([encode_missing('0' * 32, *(T(1700000000 + s, offset=o) for s, o in case)).decode() for case in cases]))
""")
    ours = []
    for case in cases:
        data, meta, ctype = (Timestamp(1700000000 + seconds, offset) for seconds, offset in case)
        ours.append(protocol.encode_offer(protocol.Offer("0" * 32, data, meta, data if meta == data else ctype)).decode())
    assert isinstance(lines, list)
    for line, own, case in zip(lines, ours, cases, strict=True):
        assert protocol.decode_offer(line.encode()) == protocol.decode_offer(own.encode())
        if case[0] != case[1]:
            assert line == own


def session(peers: Peers, script: list[bytes], path: str = "/d3/9", headers: dict[str, str] | None = None) -> tuple[int, list[bytes]]:
    """What a receiver of either make answers to a sender that says this."""
    node = node_of(peers, "d3")
    duplex = Backend(1.0).duplex(node.address, "SSYNC", path, Headers(headers or {}), 5)
    try:
        if duplex.status != 200:
            return duplex.status, []
        duplex.send(*script)
        lines = []
        with suppress(BackendError):  # Swift cuts the connection after an error line
            while line := duplex.readline(65536, 5):
                if line.strip():
                    lines.append(line)
        return duplex.status, without_reason(lines)
    finally:
        duplex.close()


def test_the_two_receivers_answer_alike(peers: Peers) -> None:
    hash_of = peers.hash_path.hexdigest("a", "c", "o").encode()
    start, end = b":MISSING_CHECK: START\r\n", b":MISSING_CHECK: END\r\n"
    check = [start, hash_of + b" " + at(1).internal.encode() + b"\r\n", end]
    put = b"PUT /a/c/o\r\nContent-Length: 1\r\nContent-Type: a/b\r\nX-Timestamp: " + at(1).internal.encode() + b"\r\n"
    scripts: dict[str, list[bytes]] = {
        "nothing": [start, end, b":UPDATES: START\r\n", b":UPDATES: END\r\n"],
        "no start": [b"hello\r\n"],
        "wrong etag": [*check, b":UPDATES: START\r\n", put + b"ETag: wrong\r\n\r\n", b"x", b":UPDATES: END\r\n"],
        "bad method": [*check, b":UPDATES: START\r\n", b"GET /a/c/o\r\n\r\n"],
        "no length": [*check, b":UPDATES: START\r\n", b"PUT /a/c/o\r\nContent-Type: a/b\r\n\r\n"],
        "delete with length": [*check, b":UPDATES: START\r\n", b"DELETE /a/c/o\r\nContent-Length: 3\r\n\r\n", b"abc"],
        "404 is well": [*check, b":UPDATES: START\r\n", b"POST /a/c/o\r\nX-Timestamp: " + at(2).internal.encode() + b"\r\n\r\n", b":UPDATES: END\r\n"],
        "put": [*check, b":UPDATES: START\r\n", put + b"\r\n", b"x", b":UPDATES: END\r\n"],
        "put again": check + [b":UPDATES: START\r\n", b":UPDATES: END\r\n"],
    }  # fmt: skip
    answers: dict[str, list[tuple[int, list[bytes]]]] = {}
    for make in (SWIFT, OURS):
        peers.start(1, make=make, kinds=("object",))
        try:
            for name, script in scripts.items():
                answers.setdefault(name, []).append(session(peers, script))
            answers.setdefault("unmounted", []).append(session(peers, [], "/nodevice/9"))
            answers.setdefault("policy", []).append(session(peers, [], headers={"X-Backend-Storage-Policy-Index": "9"}))
            answers.setdefault("partition", []).append(session(peers, [], "/d3"))
        finally:
            peers.stop(1, kinds=("object",))
            Device(peers, "d3").store.quarantine_directory(Device(peers, "d3").place("o", 9).directory, str(peers.devices / "d3"), "objects", "test")
    for name, (swift, own) in answers.items():
        assert own == swift, name


def without_reason(lines: list[bytes]) -> list[bytes]:
    """Error lines up to their status: what they say beyond that is for people."""
    return [b" ".join(line.split()[:2]) if line.startswith(b":ERROR: 0") else line for line in lines]


def test_our_replicator_and_swifts_servers(peers: Peers) -> None:
    """Hashes and SSYNC of a whole pass: a site of ours brings a site of Swift's what it lacks, and sends handoffs home to it."""
    ring = peers.ring("object")
    names = [f"{name}-ours-{number}" for number, name in enumerate(NAMES * 2)]
    held: list[tuple[str, int, Device]] = []
    for number, name in enumerate(names):
        part = ring.partition(peers.hash_path.digest("a", "c", name))
        device = Device(peers, ["d1", "d2"][number % 2])
        device.put(name, part, os.urandom(number * 9000), 1, {"X-Object-Meta-V": "caf\u00c3\u00a9"})
        if not number % 3:
            device.post(name, part, 2, {"X-Object-Meta-Posted": "yes"})
        if not number % 5:
            device.delete(name, part, 3)
        held.append((name, part, device))
    before = {name: device.state(name, part) for name, part, device in held}
    peers.start(0, make=OURS, kinds=("object",))
    peers.start(1, make=SWIFT, kinds=("object",))
    try:
        for _ in range(2):
            run_once(peers, "object-replicator", 0)
        for name, part, device in held:
            primaries = [node.device for node in ring.primaries(part)]
            assert {Device(peers, node).state(name, part) for node in primaries} == {before[name]}, name
            if device.name not in primaries:
                assert device.state(name, part) == (None, None, None, None)
        assert replicate(peers, 1).returncode == 0  # and Swift's own has nothing to add
        for name, part, _ in held:
            assert {Device(peers, node.device).state(name, part) for node in ring.primaries(part)} == {before[name]}
    finally:
        peers.stop(0, 1, kinds=("object",))
