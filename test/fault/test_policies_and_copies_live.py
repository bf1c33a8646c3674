"""Running stores whose daemons are left to themselves: objects under the wrong policy come where they belong (scenarios of
``scenarios-fault`` 4), containers are kept in step with their copies in the same and in another store (5), and what an operator
points at is repaired at once.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from keelstore.common.cluster import load_cluster
from keelstore.common.ring.ring import Node, RingFile
from test.support.client import Account, Endpoint, unique
from test.support.store import Store
from test.support.waiting import slowness, until
from test.support.wiping import wipe

SOON_S = 120.0
REALMS = "[us]\nkey = the realm's secret\ncluster_first = http://127.0.0.1:{first}/v1/\ncluster_second = http://127.0.0.1:{second}/v1/\n"
_times = itertools.count(1)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Store, Store]]:
    made = [Store.new(tmp_path_factory.mktemp(name) / "data", workers=1) for name in ("first", "second")]
    try:
        for store, options in zip(made, (["--encrypt"], []), strict=True):  # encrypted in one, in the clear in the other
            store.prepare()
            (store.etc() / "container-sync-realms.conf").write_text(REALMS.format(first=made[0].port, second=made[1].port))
            store.edit("container-server.conf", ("[container-replicator]\ninterval = 30", "[container-replicator]\ninterval = 2"),
                       ("[container-sync]\ninterval = 30", "[container-reconciler]\ninterval = 2\n\n[container-sync]\ninterval = 5"))
            store.up(*options)
        yield made[0], made[1]
    finally:
        for store in made:
            store.down()


@pytest.fixture
def store(stores: tuple[Store, Store]) -> Store:
    return stores[0]


@pytest.fixture
def account(store: Store) -> Account:
    return store.login()


class Cluster:
    """The storage servers of a store, as a proxy sees them that has its own mind about policies."""

    def __init__(self, store: Store, account: str):
        etc = str(store.etc())
        self.hash_path = load_cluster(etc).hash_path
        self.rings = {name: RingFile(f"{etc}/{name}.ring.gz").current() for name in ("account", "container", "object", "object-1")}
        self.account = account

    def places(self, ring: str, *names: str) -> tuple[int, list[Node]]:
        part = self.rings[ring].partition(self.hash_path.digest(*names))
        return part, list(self.rings[ring].primaries(part))

    @staticmethod
    def time() -> str:
        return f"{time.time() + next(_times) / 1000:.5f}"

    def ask(self, node: Node, part: int, method: str, names: tuple[str, ...], headers: dict[str, str], body: bytes = b"") -> int:
        path = f"/{node.device}/{part}/{'/'.join(names)}"
        return Endpoint(*node.address).request(method, path, headers, body).status

    def make_container(self, container: str, policies: tuple[int, int, int]) -> None:
        """Each replica created with its own idea of the policy, the first one first."""
        part, nodes = self.places("container", self.account, container)
        account_part, account_nodes = self.places("account", self.account)
        for node, policy, account_node in zip(nodes, policies, account_nodes, strict=True):
            status = self.ask(node, part, "PUT", (self.account, container), {
                "X-Timestamp": self.time(), "X-Backend-Storage-Policy-Index": str(policy), "X-Account-Partition": str(account_part),
                "X-Account-Host": f"{account_node.ip}:{account_node.port}", "X-Account-Device": account_node.device})
            assert status in (201, 202)

    def write(self, method: str, container: str, obj: str, policy: int, body: bytes = b"") -> str:
        """An object under a policy, as told to all replicas of its container."""
        container_part, container_nodes = self.places("container", self.account, container)
        part, nodes = self.places("object-1" if policy else "object", self.account, container, obj)
        at = self.time()
        for node in nodes:
            status = self.ask(node, part, method, (self.account, container, obj), {
                "X-Timestamp": at, "X-Backend-Storage-Policy-Index": str(policy), "Content-Type": "text/x", "X-Object-Meta-Color": "red",
                "Content-Length": str(len(body)), "X-Container-Partition": str(container_part),
                "X-Container-Host": ",".join(f"{one.ip}:{one.port}" for one in container_nodes),
                "X-Container-Device": ",".join(one.device for one in container_nodes)}, body)
            assert status in (201, 204, 404), status
        return at

    def is_nowhere(self, container: str, obj: str, policy: int) -> bool:
        part, nodes = self.places("object-1" if policy else "object", self.account, container, obj)
        return all(self.ask(node, part, "HEAD", (self.account, container, obj), {"X-Backend-Storage-Policy-Index": str(policy)}) == 404
                   for node in nodes)


def queue_is_empty(store: Store) -> bool:
    """No entry in any container of the queue, as its replicas list them."""
    cluster = Cluster(store, ".misplaced_objects")
    now = int(time.time()) // 3600 * 3600
    for queue in (str(now), str(now - 3600)):
        part, nodes = cluster.places("container", ".misplaced_objects", queue)
        for node in nodes:
            answer = Endpoint(*node.address).request("GET", f"/{node.device}/{part}/.misplaced_objects/{queue}")
            if answer.status == 200 and answer.body.strip():
                return False
    return True


def test_objects_under_the_wrong_policy_come_where_they_belong(store: Store, account: Account) -> None:
    cluster, container = Cluster(store, account.name), unique()
    account.put(unique())  # makes the account
    cluster.make_container(container, (1, 0, 0))  # the first one wins
    cluster.write("PUT", container, "moved", 0, b"under the wrong policy")
    cluster.write("PUT", container, "deleted", 1, b"to be deleted")
    cluster.write("DELETE", container, "deleted", 0)
    cluster.write("PUT", container, "kept", 0, b"old")
    cluster.write("PUT", container, "kept", 1, b"new")
    until(lambda: all(cluster.is_nowhere(container, name, 0) for name in ("moved", "deleted", "kept")), "nothing is where it was", SOON_S)
    account.post(container).expect(204)  # proxies forget what they knew of it
    answer = account.get(container, "moved")
    assert (answer.body, answer.headers["X-Object-Meta-Color"], answer.headers["Content-Type"]) == (b"under the wrong policy", "red", "text/x")
    assert account.head(container).headers["X-Storage-Policy"] == "silver"
    until(lambda: cluster.is_nowhere(container, "deleted", 1), "the deletion is carried over", SOON_S)
    assert account.get(container, "kept").body == b"new"
    until(lambda: [entry["name"] for entry in account.listing(container)] == ["kept", "moved"], "the listing is right", SOON_S)
    until(lambda: queue_is_empty(store), "the queue is empty", SOON_S)


@pytest.mark.parametrize("which", [0, 1], ids=["the same store", "another store"])
def test_a_container_and_its_copy_stay_in_step(stores: tuple[Store, Store], account: Account, which: int) -> None:
    other = stores[which].login(1) if which else stores[0].endpoint.login("test2:tester2", "testing2")
    source, copy = unique("source"), unique("copy")
    cluster = ("first", "second")[which]
    other.put(copy, headers={"X-Container-Sync-Key": "secret", "X-Storage-Policy": "silver"}).expect(201)
    account.put(source, headers={"X-Container-Sync-To": f"//us/{cluster}/{other.name}/{copy}", "X-Container-Sync-Key": "secret"}).expect(201)
    for number in range(10):
        account.put(source, f"o{number}", body=b"%d" % number, headers={"X-Object-Meta-Number": str(number)}).expect(201)
    account.put(source, "large", body=b"x" * 3_000_000).expect(201)
    until(lambda: len(other.listing(copy)) == 11, "all objects are in the copy", SOON_S)
    assert other.get(copy, "large").body == b"x" * 3_000_000
    ours, theirs = account.head(source, "o7").headers, other.head(copy, "o7").headers
    assert [theirs[name] for name in ("Etag", "X-Timestamp", "X-Object-Meta-Number")] == [
        ours[name] for name in ("Etag", "X-Timestamp", "X-Object-Meta-Number")]
    account.post(source, "o1", headers={"X-Object-Meta-Number": "changed"}).expect(202)
    other.put(copy, "o3", body=b"newer").expect(201)
    for name in ("o2", "o3", "large"):
        account.delete(source, name).expect(204)
    until(lambda: other.head(copy, "o1").headers.get("X-Object-Meta-Number") == "changed", "a change of metadata arrives", SOON_S)
    # That of o3 is later than what was written there.
    until(lambda: {other.get(copy, name).status for name in ("o2", "o3", "large")} == {404}, "deletions arrive", SOON_S)
    other.put(copy, "o4", body=b"newer").expect(201)
    account.put(source, "last", body=b"x").expect(201)
    until(lambda: other.get(copy, "last").status == 200, "what comes last arrives", SOON_S)
    assert other.get(copy, "o4").body == b"newer"
    expected = ["last", *(f"o{number}" for number in (0, 1, 4, 5, 6, 7, 8, 9))]
    for side, name in ((other, copy), (account, source)):
        until(lambda side=side, name=name: [entry["name"] for entry in side.listing(name)] == expected, "listings are right", SOON_S)  # type: ignore[misc]


def copies(store: Store, cluster: Cluster, container: str, obj: str) -> list[Path]:
    digest = cluster.hash_path.hexdigest(cluster.account, container, obj)
    return sorted(store.devices().glob(f"*/objects/*/{digest[-3:]}/{digest}/*.data"))


def test_what_an_operator_points_at_is_repaired_at_once(store: Store, account: Account) -> None:
    cluster, container = Cluster(store, account.name), unique()
    account.put(container).expect(201)
    for name in ("o", "p"):
        account.put(container, name, body=b"body").expect(201)
    lost = copies(store, cluster, container, "o")[0]
    wipe(lost.parent)
    done = store.command("node", "repair", f"/{account.name}/{container}/o")
    assert "node 1: object-replicator looks at" in done.stdout
    until(lost.exists, "the copy is there again", 15 * slowness())
    lost = copies(store, cluster, container, "p")[0]
    device = lost.relative_to(store.devices()).parts[0]
    wipe(store.devices() / device / "objects")
    done = store.command("node", "repair", "--device", device, "--policy", "0")
    assert f"node 1: object-replicator, object-reconstructor, object-updater look at device {device}, policy 0 now" in done.stdout
    until(lost.exists, "the device has its copy again", 15 * slowness())


def test_a_container_is_repaired_when_it_is_named(store: Store, account: Account) -> None:
    container = unique()
    account.put(container, headers={"X-Container-Meta-Color": "red"}).expect(201)
    cluster = Cluster(store, account.name)
    digest = cluster.hash_path.hexdigest(account.name, container)
    (lost, *_) = sorted(store.devices().glob(f"*/containers/*/{digest[-3:]}/{digest}/*.db"))
    wipe(lost.parent)
    done = store.command("node", "repair", f"/{account.name}/{container}")
    assert "container-replicator, container-updater look at" in done.stdout
    until(lost.exists, "the database is there again", 15 * slowness())


def test_what_cannot_be_asked_for_is_said(store: Store) -> None:
    for arguments, text in ((("a/c",), "expected /account"), (("--node", "7"), "there is no node 7"), (("--daemon", "x"), "Invalid value"),
                            (("--partition", "-1"), "Invalid value")):
        done = store.command("node", "repair", *arguments, check=False)
        assert done.returncode != 0
        assert text in done.stderr
        assert "Traceback" not in done.stderr
    conf = store.etc() / "node.conf"
    assert store.command("node", "repair", "--conf", str(conf), "--daemon", "object-updater").stdout == "node1: object-updater looks at everything now\n"
