"""Devices that are full, missing or damaged under a running store (issue 2, point 7; S46)."""

from __future__ import annotations

import os
import shutil
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
from test.support.client import Account, Answer, Endpoint, unique
from test.support.store import Store, running
from test.support.waiting import until

SERVERS = ("object", "container", "account")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """One node whose proxy takes a device again at once after it has failed."""
    with running(tmp_path_factory.mktemp("disks") / "data", workers=1, is_patient=True, edit=lambda store: store.edit(
            "proxy-server.conf", ("account_autocreate = true", "account_autocreate = true\nerror_suppression_interval = 0.01"))) as store:
        yield store


@pytest.fixture(autouse=True)
def nothing_unforeseen(store: Store) -> Iterator[None]:
    said = len(store.log())
    yield
    assert "Traceback" not in store.log()[said:]


@pytest.fixture
def account(store: Store) -> Account:
    return store.login()


@pytest.fixture
def container(account: Account) -> str:
    name = unique("disks")
    # the proxy may still leave devices alone that the test before had taken away
    until(lambda: account.put(name).status in (201, 202), "a container can be made")
    return name


class Thing:
    """Where something lives, and its servers asked directly."""

    def __init__(self, store: Store, kind: str, *names: str):
        etc = str(store.etc())
        digest = load_cluster(etc).hash_path.digest(*names)
        ring = RingFile(f"{etc}/{kind}.ring.gz").current()
        self.store, self.kind, self.names, self.digest = store, kind, names, digest.hex()
        self.part = ring.partition(digest)
        self.primaries: tuple[Node, ...] = ring.primaries(self.part)
        self.nodes = ring.nodes

    def device(self, node: Node) -> Path:
        return self.store.devices() / node.device

    def folder(self, node: Node) -> Path:
        return self.device(node) / f"{self.kind}s" / str(self.part) / self.digest[-3:] / self.digest

    def database(self, node: Node) -> Path:
        return self.folder(node) / f"{self.digest}.db"

    def ask(self, node: Node, method: str, headers: dict[str, Any] | None = None, body: Any = None) -> Answer:
        sent = {"X-Timestamp": f"{time.time():.5f}"} if method in ("PUT", "POST", "DELETE") else {}
        return Endpoint(*node.address).request(method, f"/{node.device}/{self.part}/{'/'.join(self.names)}", {**sent, **(headers or {})}, body)


@contextmanager
def changed(store: Store, old: str, new: str, servers: tuple[str, ...] = SERVERS) -> Iterator[None]:
    """Storage servers with another option, taken by a reload."""
    for kind in servers:
        store.edit(f"{kind}-server.conf", (old, new))
    store.reload()
    try:
        yield
    finally:
        for kind in servers:
            store.edit(f"{kind}-server.conf", (new, old))
        store.reload()


def test_case_C14_security_S46_full_devices_take_nothing_but_deletes(store: Store, account: Account, container: str) -> None:
    for name in ("o", "p"):
        account.put(container, name, body=b"data").expect(201)
    thing = Thing(store, "object", account.name, container, "o")
    node = thing.primaries[0]
    with changed(store, "mount_check = false", "mount_check = false\nfallocate_reserve = 100%"):
        plain = {"Content-Type": "x/y"}
        answer = thing.ask(node, "PUT", plain, b"x" * 100)
        assert (answer.status, answer.headers["X-Backend-Keelstore-Reason"]) == (507, "room")
        assert thing.ask(node, "PUT", plain, b"").status == 507
        assert thing.ask(node, "PUT", {**plain, "Transfer-Encoding": "chunked"}, iter([b"x" * 100])).status == 507
        assert thing.ask(node, "POST", {"X-Object-Meta-A": "1"}).status == 507
        held = Thing(store, "container", account.name, container)
        assert held.ask(held.primaries[0], "POST", {"X-Container-Meta-A": "1"}).status == 507
        for chunked in (False, True):
            headers = {"Transfer-Encoding": "chunked"} if chunked else {}
            body = iter([b"x" * 100_000]) if chunked else b"x" * 100_000
            with account.endpoint.connect() as connection:
                account.put(container, "new", body=body, headers=headers, connection=connection).expect(503)
        account.post(container, "o", headers={"X-Object-Meta-A": "1"}).expect(503)
        account.put(unique("full")).expect(503)
        until(lambda: account.get(container, "o").expect(200).body == b"data", "what is there is served")
        until(lambda: account.delete(container, "o").expect(204), "deletes are taken")
        account.get(container, "o").expect(404)
    until(lambda: account.put(container, "new", body=b"x").expect(201), "with room again writes are taken")
    assert account.get(container, "p").expect(200).body == b"data"
    until(lambda: [entry["name"] for entry in account.listing(container)] == ["new", "p"], "the listing agrees")


@contextmanager
def gone(store: Store, *paths: Path) -> Iterator[None]:
    """Device directories that are away for a while, in which no daemon is in the middle of a copy to one of them."""
    with store.still():
        for path in paths:
            path.rename(path.with_name(path.name + ".away"))
        try:
            yield
        finally:
            for path in paths:
                if path.exists():  # a test has failed, the next need not
                    shutil.rmtree(path)
                path.with_name(path.name + ".away").rename(path)


def test_one_device_missing(store: Store, account: Account, container: str) -> None:
    for number in range(10):
        account.put(container, f"o{number}", body=b"data").expect(201)
    for node in Thing(store, "object", "x").nodes:
        with gone(store, store.devices() / node.device):
            for number in range(10):
                assert account.get(container, f"o{number}").expect(200).body == b"data"
            account.put(container, "new", body=b"new").expect(201)
            assert account.get(container, "new").expect(200).body == b"new"
            account.post(container, "new", headers={"X-Object-Meta-A": node.device}).expect(202)
            assert "o5" in account.get(container).lines
            name = unique("missing")
            account.put(name).expect(201)
            account.delete(name).expect(204)
            assert not (store.devices() / node.device).exists(), "a missing device is not made again"
    line = next(line for line in store.log().splitlines() if "507" in line or "not mounted" in line or "unavailable" in line.lower())
    assert line


def test_all_devices_missing(store: Store, account: Account, container: str) -> None:
    account.put(container, "o", body=b"data").expect(201)
    with gone(store, *(store.devices() / f"d{number}" for number in range(1, 9))):
        for answer in (account.get(container, "o"), account.put(container, "o", body=b"x"), account.delete(container, "o"), account.post(container, "o"),
                       account.put(unique("none")), account.get(container)):
            answer.expect(503)
        store.endpoint.request("GET", "/healthcheck").expect(200)
        assert list(store.devices().glob("d?")) == []
    until(lambda: account.get(container, "o").expect(200).body == b"data", "all is there again")
    until(lambda: account.put(container, "o", body=b"new").expect(201), "all is there again")


def test_devices_that_are_not_mounted(store: Store, account: Account, container: str) -> None:
    account.put(container, "o", body=b"data").expect(201)
    thing = Thing(store, "object", account.name, container, "o")
    with changed(store, "mount_check = false", "mount_check = true"):
        for method in ("GET", "HEAD", "POST", "DELETE"):
            assert thing.ask(thing.primaries[0], method).status == 507
        account.get(container, "o").expect(503)
        account.put(container, "o", body=b"x").expect(503)
        (store.devices() / ".ismount").touch()
        for device in store.devices().iterdir():
            if device.is_dir():
                (device / ".ismount").touch()
        until(lambda: account.get(container, "o").expect(200).body == b"data", "a marker stands for a mount")
    (store.devices() / ".ismount").unlink()
    until(lambda: account.get(container, "o").expect(200), "all is there again")


DAMAGE = {
    "truncated": lambda path: os.truncate(path, path.stat().st_size // 2),
    "page": lambda path: os.truncate(path, 100),
    "empty": lambda path: os.truncate(path, 0),
    "garbage": lambda path: path.write_bytes(b"this is no database" * 1000),
    "middle": lambda path: overwrite(path, 4096, b"\xff" * 8192),
}


def overwrite(path: Path, at: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(data)


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("how_many", [1, 3])
def test_damaged_container_databases(store: Store, account: Account, damage: str, how_many: int) -> None:
    container = unique("damaged")
    account.put(container, headers={"X-Container-Meta-A": "1"}).expect(201)
    names = [f"o{number:03}" for number in range(60)]
    known = [names, ["new", *names]]
    for name in names:
        account.put(container, name, body=b"x").expect(201)
    assert account.get(container).lines == names  # what waits in pending files is in the databases now
    thing = Thing(store, "container", account.name, container)
    for node in thing.primaries[:how_many]:
        DAMAGE[damage](thing.database(node))
    statuses = set()
    for _ in range(6):
        answer = account.get(container)
        statuses.add(answer.status)
        if how_many == 1:
            assert answer.expect(200).lines in known
        answer = account.put(container, "new", body=b"x")
        statuses.add(answer.status)
    if how_many == 1:
        assert statuses == {200, 201}
        assert account.get(container, query="prefix=new").expect(200, 204).status == 200
    else:
        assert statuses <= {200, 201, 204, 404, 503}, statuses
    assert account.get(container, "o007").status in ((200,) if how_many == 1 else (200, 404, 503))
    for node in thing.primaries[:how_many]:
        kept = list((thing.device(node) / "quarantined" / "containers").glob(f"{thing.digest}*"))
        assert kept or thing.database(node).exists(), "nothing is thrown away"


@pytest.mark.parametrize("damage", ["truncated", "garbage"])
def test_a_damaged_account_database(store: Store, account: Account, damage: str) -> None:
    own = Account(store.endpoint, f"/v1/AUTH_{unique('damaged')}", store.endpoint.login("admin:admin", "admin").token)
    for number in range(5):
        own.put(f"c{number}").expect(201)
    assert len(own.listing()) == 5
    thing = Thing(store, "account", own.name)
    DAMAGE[damage](thing.database(thing.primaries[0]))
    for _ in range(6):
        assert len(own.listing()) == 5
        own.put("c5").expect(201, 202)
        own.delete("c5").expect(204)


def test_a_garbled_pending_file_loses_only_what_is_garbled(store: Store, account: Account, container: str) -> None:
    account.put(container, "before", body=b"x").expect(201)
    thing = Thing(store, "container", account.name, container)
    for node in thing.primaries:
        with open(f"{thing.database(node)}.pending", "ab") as file:
            file.write(b":not base64!:AAAA:gAJLAS4=")
    account.put(container, "later", body=b"x").expect(201)
    assert account.get(container).lines == ["before", "later"]


def test_a_new_ring_is_taken_while_serving(store: Store, account: Account, container: str) -> None:
    """An operator drains a device and distributes the ring: no restart, no failed request, nothing more is written there."""
    builder = RingBuilder.load(str(store.data / "rings" / "object.builder"))
    drained = next(node for node in Thing(store, "object", "x").nodes if node.device == "d1")
    builder.set_weight(drained.id, 0.0)
    builder.rebalance(time.time() + 7200, seed="drained")
    account.put(container, "before", body=b"data").expect(201)
    path = store.etc() / "object.ring.gz"
    before = path.read_bytes()
    ring_format.save(builder.ring(), str(path))
    try:
        def leaves_it_alone() -> bool:
            files = set((store.devices() / "d1").glob("objects/*/*/*/*.data"))
            for number in range(20):
                account.put(container, f"o{number}", body=b"data").expect(201)
                assert account.get(container, f"o{number}").expect(200).body == b"data"
            return set((store.devices() / "d1").glob("objects/*/*/*/*.data")) <= files

        until(leaves_it_alone, "the new ring is used", 120, every_s=0.5)
        assert account.get(container, "before").expect(200).body == b"data"
    finally:
        path.write_bytes(before)
        store.reload()
