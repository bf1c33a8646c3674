"""Four nodes of which one is stopped, killed or frozen (issue 2, point 3)."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from keelstore.common.cluster import load_cluster
from keelstore.common.ring.ring import RingFile
from test.support.client import Account, Endpoint, unique
from test.support.load import Uploads, run_clients
from test.support.store import Store, alive, running
from test.support.waiting import until

NODES = (1, 2, 3, 4)
TIMEOUT_S, LIMIT, INTERVAL_S = 2.5, 2, 3.0  # the timeout must be well above container_update_timeout (1 s)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Proxies that give up on a node soon, and limit it after three errors."""
    with running(tmp_path_factory.mktemp("nodes") / "data", nodes=4, workers=1, edit=impatient) as store:
        try:
            yield store
        finally:
            for number in NODES:
                with suppress(OSError):
                    store.signal(store.pids(number), signal.SIGCONT)


def impatient(store: Store) -> None:
    for number in NODES:
        store.edit("proxy-server.conf", ("account_autocreate = true", "account_autocreate = true\n"
                   f"node_timeout = {TIMEOUT_S}\nerror_suppression_limit = {LIMIT}\nerror_suppression_interval = {INTERVAL_S}"), number=number)


@pytest.fixture(autouse=True)
def all_up(store: Store) -> Iterator[None]:
    """After each test; and no node has logged a traceback."""
    yield
    for node in store.status()["nodes"]:
        if not node["alive"]:
            store.start_node(node["number"])
    for number in NODES:
        assert "Traceback" not in store.log(number)


@pytest.fixture
def account(store: Store) -> Account:
    return store.login()


@pytest.fixture
def container(account: Account) -> str:
    name = unique("nodes")
    account.put(name).expect(201)
    return name


def primaries(store: Store, kind: str, *names: str) -> list[int]:
    """The numbers of the nodes that hold something."""
    etc = str(store.etc(1))
    ring = RingFile(os.path.join(etc, f"{kind}.ring.gz")).current()
    nodes = ring.primaries(ring.partition(load_cluster(etc).hash_path.digest(*names)))
    return [int(node.ip.rpartition(".")[2]) for node in nodes]


def replica_listing(store: Store, number: int, *names: str) -> set[str]:
    """What the container server of a node itself lists; nothing when it holds no replica."""
    etc = str(store.etc(1))
    ring = RingFile(os.path.join(etc, "container.ring.gz")).current()
    part = ring.partition(load_cluster(etc).hash_path.digest(*names))
    for node in ring.primaries(part):
        if node.ip == f"127.0.0.{number}":
            answer = Endpoint(*node.address).request("GET", f"/{node.device}/{part}/{'/'.join(names)}?format=json")
            return {entry["name"] for entry in answer.expect(200).json()}
    return set()


def every_verb(account: Account, old: str, tag: str) -> None:
    """One of each read and write; all must succeed. ``old`` is a container with objects ``old-0`` to ``old-19`` from before."""
    for number in range(20):
        assert account.get(old, f"old-{number}").expect(200).body == b"old" * number
        account.head(old, f"old-{number}").expect(200)
    account.get(old).expect(200)
    account.head(old).expect(204)
    account.get().expect(200)
    for turn in range(2):
        new = unique(tag)
        account.put(new, headers={"X-Container-Meta-A": "1"}).expect(201)
        account.post(new, headers={"X-Container-Meta-B": "2"}).expect(204)
        assert account.head(new).headers["X-Container-Meta-B"] == "2"
        for number in range(5):
            body = f"{turn}/{number}".encode() * 1000
            account.put(new, f"o{number}", body=body).expect(201)
            account.post(new, f"o{number}", headers={"X-Object-Meta-A": "1"}).expect(202)
            got = account.get(new, f"o{number}", headers={"X-Newest": "true"}).expect(200)
            assert (got.body, got.headers["X-Object-Meta-A"]) == (body, "1")
        account.put(new, "big", body=iter([b"x" * 65536] * 20), headers={"Transfer-Encoding": "chunked"}).expect(201)
        account.request("COPY", new, "big", headers={"Destination": f"{new}/copy"}).expect(201)
        assert account.get(new).lines == ["big", "copy", *(f"o{number}" for number in range(5))]
        for name in account.get(new).lines:
            account.delete(new, name).expect(204)
            account.get(new, name).expect(404)
        account.delete(new).expect(204)
        account.head(new).expect(404)


@pytest.mark.parametrize("victim", NODES)
@pytest.mark.parametrize("how", ["stop", "kill"])
def test_with_any_one_node_down_everything_succeeds(store: Store, account: Account, container: str, victim: int, how: str) -> None:
    for number in range(20):
        account.put(container, f"old-{number}", body=b"old" * number).expect(201)
    through = [store.proxy(number) for number in NODES if number != victim]
    store.stop_node(victim, kill=how == "kill")
    assert store.status()["state"] == "degraded"
    for endpoint in through[:1] if how == "kill" else through:
        every_verb(account.at(endpoint), container, f"without-{victim}")
    store.start_node(victim)
    assert store.status()["state"] == "running"
    every_verb(account.at(store.proxy(victim)), container, f"back-{victim}")


def test_a_node_killed_in_the_middle_of_uploads(store: Store, account: Account, container: str) -> None:
    """A node dies under load: clients of the others lose nothing, and nothing acknowledged is lost."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    victim = random.Random(seed).choice(NODES)
    through = [store.proxy(number) for number in NODES if number != victim]
    uploads = Uploads(account, container, seed, clients=100, endpoints=through).start()
    uploads.wait_for_acknowledged(30)
    store.kill_all(victim)
    uploads.join()
    assert not uploads.open, f"uploads through other nodes failed (seed {seed}): {sorted(uploads.open)[:5]}"
    print(uploads.check(account.at(through[0])))
    # a row that was on its way through the victim is in the other replicas, or waits for its container server: no name is lost
    living = [number for number in NODES if number != victim]
    until(lambda: set(uploads.acknowledged) == set().union(
        *(replica_listing(store, number, account.name, container) for number in living)), "every acknowledged object is listed", 60)
    store.start_node(victim)
    print(uploads.check(account.at(store.proxy(victim))))


def timed(endpoint: Endpoint, account: Account, container: str, name: str) -> float:
    start = time.monotonic()
    assert account.at(endpoint).get(container, name).expect(200).body == b"data"
    return time.monotonic() - start


@pytest.mark.alone
def test_a_frozen_node_costs_a_bounded_delay_then_is_limited(store: Store, account: Account, container: str) -> None:
    """SIGSTOP: its kernel accepts connections and its processes never answer."""
    account.put(container, "o", body=b"data").expect(201)
    holders = primaries(store, "object", account.name, container, "o")
    victim = holders[0]
    endpoint = store.proxy(next(number for number in NODES if number != victim))
    account.at(endpoint).head(container).expect(204)  # so that account and container are known
    with store.frozen(victim):
        with pytest.raises(TimeoutError):  # it is there, and does not answer
            store.proxy(victim).request("GET", "/healthcheck", timeout=1.0)
        times = [timed(endpoint, account, container, "o") for _ in range(40)]
        print("reads:", [round(took, 2) for took in times])
        slow = [took for took in times if took > TIMEOUT_S / 2]
        assert max(times) < 2 * TIMEOUT_S + 1
        assert len(slow) <= LIMIT + 1, slow
        # writes go on, to a handoff in its place
        start = time.monotonic()
        account.at(endpoint).put(container, "o", body=b"data").expect(201)
        account.at(endpoint).put(container, "p", body=b"data").expect(201)
        account.at(endpoint).delete(container, "p").expect(204)
        took = time.monotonic() - start
        print("writes:", round(took, 2))
        assert took < 30
    pids = store.pids(victim)
    assert all(alive(pid) for pid in pids)
    until(lambda: store.proxy(victim).request("GET", "/healthcheck", timeout=2).status == 200, "it answers again")
    through_it = account.at(store.proxy(victim))
    until(lambda: through_it.get(container, "o").expect(200).body == b"data", "it serves again")
    line = "error" in store.log(int(endpoint.host.rpartition(".")[2])).lower()
    assert line, "nothing was logged about the node that did not answer"


@pytest.mark.alone
def test_a_frozen_node_and_many_clients(store: Store, account: Account, container: str) -> None:
    """All kinds of requests while a node is frozen: each succeeds, none takes longer than a few timeouts."""
    victim = 4
    longest: list[float] = []
    through = [store.proxy(number) for number in (1, 2, 3)]
    for number in range(10):
        account.put(container, f"o{number}", body=b"data").expect(201)

    def work(client: int) -> None:
        mine = account.at(through[client % 3])
        for turn in range(6):
            start = time.monotonic()
            mine.put(container, f"new-{client}-{turn}", body=b"x" * 1000).expect(201)
            longest.append(time.monotonic() - start)
            start = time.monotonic()
            mine.get(container, f"o{(client + turn) % 10}").expect(200)
            longest.append(time.monotonic() - start)

    with store.frozen(victim):
        errors = run_clients(12, work)
    print("longest:", [round(took, 1) for took in sorted(longest)[-5:]])
    assert errors == []
    assert max(longest) < 10 * TIMEOUT_S
    until(lambda: account.at(store.proxy(victim)).get(container, "o0").expect(200).body == b"data", "it serves again")
