"""Account and container databases: our replicators with Swift's servers, Swift's with ours, and both at once (issue 4, point 6)."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from keelstore.common.ring.ring import Node
from test.interop.test_daemons_swift import RUNNER
from test.support.client import unique
from test.support.daemon_runs import check_log, configuration, log_of
from test.support.peers import OURS, SWIFT, Peers
from test.support.preloaded import Preloaded
from test.support.processes import ROOT
from test.support.rsyncd import rsync_daemon

CLASSES = {"container-replicator": "swift.container.replicator ContainerReplicator",
           "account-replicator": "swift.account.replicator AccountReplicator"}
KINDS = ("container", "account")
NAMES = [f"n{number:03d}" for number in range(40)]
pytestmark = pytest.mark.skipif(shutil.which("rsync") is None, reason="there is no rsync here")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, swift_python: str, preloaded: Preloaded) -> Iterator[tuple[Peers, str]]:
    """Four sites of one device each, and the address of an rsync daemon over them all."""
    peers = Peers(tmp_path_factory.mktemp("databases"), swift_python, preloaded=preloaded, sites=4, devices_per_site=1)
    (peers.home / "run-daemon.py").write_text(RUNNER)
    try:
        with rsync_daemon(peers.home, dict.fromkeys(KINDS, peers.devices)) as rsync:
            yield peers, rsync
    finally:
        peers.stop_all()


@dataclass(frozen=True)
class Makes:
    servers: tuple[str, ...]
    replicators: tuple[str, ...]  # of each site


MAKES = {"ours-over-swift": Makes((SWIFT,) * 4, (OURS,) * 4), "swift-over-ours": Makes((OURS,) * 4, (SWIFT,) * 4)}
if os.environ.get("KEELSTORE_TESTS_MIXED"):  # every site with servers and replicators of one make: for when there is time
    MAKES["mixed"] = Makes((OURS, SWIFT, OURS, SWIFT), (OURS, SWIFT, OURS, SWIFT))


@pytest.fixture(scope="module", params=list(MAKES))
def makes(cluster: tuple[Peers, str], request: pytest.FixtureRequest) -> Iterator[Makes]:
    peers, _ = cluster
    found = MAKES[request.param]
    for site, make in enumerate(found.servers):
        peers.start(site, make=make, kinds=KINDS)
    yield found
    peers.stop(0, 1, 2, 3, kinds=KINDS)


def run(peers: Peers, rsync: str, makes: Makes, kind: str, times: int = 1, **options: Any) -> None:
    """Passes of the replicators of all sites, those of one pass at the same time."""
    name = f"{kind}-replicator"
    for _ in range(times):
        running = []
        said = [len(log_of(peers, name, site)) for site in range(peers.sites)]
        for site, make in enumerate(makes.replicators):
            conf = str(configuration(peers, name, site, rsync_module=f"{rsync}/{kind}", per_diff=7, **options))
            if make == OURS:
                command = [sys.executable, "-m", "keelstore.node.run_daemon", name, conf, "once"]
            else:
                command = [peers.swift_python, str(peers.home / "run-daemon.py"), str(peers.swift_dir / "swift.conf"), *CLASSES[name].split(), conf]
            running.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                            env={**os.environ, "PYTHONPATH": str(ROOT) if make == OURS else ""}))
        for process in running:
            _, errors = process.communicate(timeout=240)
            assert process.returncode == 0, errors[-2000:]
        for site, make in enumerate(makes.replicators):
            if make == OURS:
                check_log(peers, name, site, said[site])


@dataclass
class Thing:
    """An account, or a container of one, on servers of any make."""

    peers: Peers
    kind: str
    names: tuple[str, ...]
    clock: float

    def __post_init__(self) -> None:
        self.part, self.primaries, self.handoffs = self.peers.places(self.kind, *self.names)

    def tick(self) -> str:
        self.clock += 1
        return f"{self.clock:016.5f}"

    def ask(self, node: Node, method: str, *more: str, **headers: str) -> Any:
        endpoint, path = self.peers.direct(node, self.part, *self.names, *more)
        return endpoint.request(method, path, {name.replace("_", "-"): value for name, value in headers.items()})

    def create(self, *nodes: Node) -> None:
        stamp = self.tick()
        for node in nodes or self.primaries:
            self.ask(node, "PUT", X_Timestamp=stamp, X_Backend_Storage_Policy_Index="0").expect(201)

    def add(self, name: str, *nodes: Node, deleted: bool = False, count: int = 3) -> None:
        stamp = self.tick()
        count = 0 if deleted else count
        for node in nodes or self.primaries:
            if self.kind == "account":
                times = {"X_Put_Timestamp": "0" if deleted else stamp, "X_Delete_Timestamp": stamp if deleted else "0"}
                self.ask(node, "PUT", name, **times, X_Object_Count=str(count), X_Bytes_Used=str(count), X_Timestamp=stamp,
                         X_Backend_Storage_Policy_Index="0").expect(201, 204)
            elif deleted:
                self.ask(node, "DELETE", name, X_Timestamp=stamp, X_Backend_Storage_Policy_Index="0").expect(204)
            else:
                self.ask(node, "PUT", name, X_Timestamp=stamp, X_Size="3", X_Content_Type="text/plain", X_Etag="e",
                         X_Backend_Storage_Policy_Index="0").expect(201)

    def post(self, node: Node, **headers: str) -> None:
        self.ask(node, "POST", X_Timestamp=self.tick(), **headers).expect(204)

    def file(self, node: Node) -> Path:
        folder = self.peers.on_disk(node, self.part, *self.names, folder=f"{self.kind}s")
        return folder / f"{folder.name}.db"

    def state(self, node: Node) -> dict[str, Any]:
        """What replicas must agree on, as the file has it; a HEAD brings in what waits."""
        self.ask(node, "HEAD")
        path = self.file(node)
        pending = path.with_name(path.name + ".pending")
        assert not pending.exists() or not pending.stat().st_size
        table, stat = ("object", "container_info") if self.kind == "container" else ("container", "account_stat")
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        try:
            columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})") if row[1] != "ROWID"]
            rows = sorted(connection.execute(f"SELECT {', '.join(columns)} FROM {table}"))
            info = connection.execute(f"SELECT created_at, put_timestamp, delete_timestamp, hash, metadata FROM {stat}").fetchone()
            policies = sorted(connection.execute("SELECT * FROM policy_stat"))
        finally:
            connection.close()
        metadata = {key: tuple(item) for key, item in json.loads(info[4] or "{}").items()}
        return {"rows": rows, "times": [float(text) for text in info[:3]], "hash": info[3], "metadata": metadata, "policies": policies}

    def check_equal(self) -> dict[str, Any]:
        states = [self.state(node) for node in self.primaries]
        assert states[0] == states[1] == states[2]
        return states[0]

    def is_settled(self) -> bool:
        if any(self.file(node).exists() for node in self.handoffs) or not all(self.file(node).exists() for node in self.primaries):
            return False
        states = [self.state(node) for node in self.primaries]
        return states[0] == states[1] == states[2]

    def live(self) -> list[str]:
        return [row[0] for row in self.check_equal()["rows"] if not row[5]]


Things = dict[tuple[str, str], Thing]


def put_in(peers: Peers, kind: str) -> dict[str, Thing]:
    """Everything that replicators are to bring together, by name."""
    def new() -> Thing:
        return Thing(peers, kind, (unique("a"), "c") if kind == "container" else (unique("a"),), int(time.time()) - 3600)

    found = {name: new() for name in ("rows", "many", "handoff", "lost", "deleted")}
    meta = {"container": "X-Container-Meta-A", "account": "X-Account-Meta-A"}[kind]

    rows = found["rows"]
    one, two, three = rows.primaries
    for node in rows.primaries:
        rows.create(node)
    rows.add("everywhere")
    rows.add("o\u00e9\u65e5", one)
    rows.add("p", two)
    rows.add("gone", count=0)  # Swift's accounts bring back what comes late with a count
    rows.add("gone", three, deleted=True)
    rows.post(one, **{meta: "old", f"{meta}b": "1"})
    rows.post(two, **{meta: "new"})

    many = found["many"]
    one, two, three = many.primaries
    many.create()
    for name in NAMES:
        many.add(name, one, count=0)
    many.add("own", two)
    many.add("n030", two, deleted=True)
    for name in NAMES[:25]:
        many.add(name, three, count=0)

    handoff = found["handoff"]
    where = handoff.handoffs[0]
    handoff.create(*handoff.primaries[1:], where)
    for name in ("a", "b"):
        handoff.add(name, *handoff.primaries[1:])
    handoff.add("late", where)

    found["lost"].create()
    found["lost"].add("x")

    deleted = found["deleted"]
    deleted.create()
    if kind == "container":
        deleted.post(deleted.primaries[0], **{meta: "1"})
    stamp = deleted.tick()
    for node in deleted.primaries[1:]:
        deleted.ask(node, "DELETE", X_Timestamp=stamp).expect(204)
    return found


@pytest.fixture(scope="module")
def things(cluster: tuple[Peers, str], makes: Makes) -> Things:
    """What was put in, after two passes everywhere, and some more where a busy machine made one fail."""
    peers, rsync = cluster
    found = {}
    for kind in KINDS:
        found.update({(kind, name): thing for name, thing in put_in(peers, kind).items()})
    for kind in KINDS:
        run(peers, rsync, makes, kind, 2)
        for _ in range(4):
            if all(thing.is_settled() for (of, _), thing in found.items() if of == kind):
                break
            run(peers, rsync, makes, kind)
    return found


kinds = pytest.mark.parametrize("kind", KINDS)


@kinds
def test_rows_metadata_and_times_become_the_same(things: Things, kind: str) -> None:
    thing = things[kind, "rows"]
    assert thing.live() == sorted(["everywhere", "o\u00e9\u65e5", "p"])
    meta = f"X-{kind.title()}-Meta-A"
    metadata = thing.check_equal()["metadata"]
    assert {key.title(): value[0] for key, value in metadata.items()} == {meta: "new", f"{meta}b".title(): "1"}


@kinds
def test_many_rows_go_in_batches_and_as_whole_files(things: Things, kind: str) -> None:
    thing = things[kind, "many"]
    assert thing.live() == sorted([*(name for name in NAMES if name != "n030"), "own"])
    if thing.peers.swift_python in thing.peers.running[kind, thing.peers.ports[0][kind]].command:
        assert f"rsync to {kind}/" in (thing.peers.home / "rsyncd.log").read_text()


@kinds
def test_a_handoff_goes_home(things: Things, kind: str) -> None:
    thing = things[kind, "handoff"]
    assert thing.live() == ["a", "b", "late"]
    assert not thing.file(thing.handoffs[0]).exists()


@kinds
def test_what_was_deleted_stays_deleted(things: Things, kind: str) -> None:
    thing = things[kind, "deleted"]
    assert [thing.ask(node, "HEAD").status for node in thing.primaries] == [404] * 3
    thing.check_equal()


@kinds
def test_a_lost_database_comes_back(cluster: tuple[Peers, str], makes: Makes, things: Things, kind: str) -> None:
    thing = things[kind, "lost"]
    shutil.rmtree(thing.file(thing.primaries[2]).parent)
    run(*cluster, makes, kind)
    assert thing.live() == ["x"]


def test_deleted_accounts_go_when_they_are_old(cluster: tuple[Peers, str], makes: Makes, things: Things) -> None:
    run(*cluster, makes, "account", 2, reclaim_age=10)
    thing = things["account", "deleted"]
    assert not any(thing.file(node).exists() for node in thing.primaries)
    assert things["account", "lost"].live() == ["x"]
