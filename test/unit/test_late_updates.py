"""Late updates never undelete: three replicas that get the same updates, each in its own order and some of them twice, end
in the same state, and the newest update says which (the bug behind it: a deleted instance that an older update brought back).
"""

from __future__ import annotations

import itertools
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keelstore.account.broker import AccountBroker
from keelstore.common.errors import ObjectDeleted, ObjectNotFound
from keelstore.container.broker import ContainerBroker
from test.support import db_servers, objects

LOG = logging.getLogger("test")
REPLICAS = 3
several = settings(max_examples=60, deadline=None,
                   suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
_names = itertools.count(1)


@st.composite
def deliveries(draw: st.DrawFn, kinds: tuple[str, ...]) -> tuple[list[tuple[str, int]], list[list[int]]]:
    """Updates (kind, seconds), each at a time of its own, and for each replica the order in which it gets them."""
    stamps = draw(st.lists(st.integers(1, 9), min_size=1, max_size=5, unique=True))
    updates = [(draw(st.sampled_from(kinds)), stamp) for stamp in stamps]
    everything = list(range(len(updates)))
    orders = []
    for _ in range(REPLICAS):
        again = draw(st.lists(st.sampled_from(everything), max_size=3))
        orders.append(list(draw(st.permutations([*everything, *again]))))
    return updates, orders


def newest(updates: list[tuple[str, int]], *kinds: str) -> int:
    return max((stamp for kind, stamp in updates if kind in kinds), default=0)


# -- objects: files of a hash directory, as requests, ssync and rsync bring them ------------------------------------------


@several
@given(given_=deliveries(("put", "delete", "post")))
def test_files_of_an_object(tmp_path: Path, given_: Any) -> None:
    updates, orders = given_
    name = f"o{next(_names)}"
    states = []
    for replica, order in enumerate(orders):
        box = objects.StoreBox(str(tmp_path / str(replica)))
        place = box.place(name)
        for index in order:
            kind, at = updates[index]
            when = objects.stamp(at)
            if kind == "put":
                box.put(name, b"%d" % at, at, {"X-Object-Meta-Of": f"put {at}"})
            elif kind == "delete":
                box.store.delete(place, when)
            else:
                box.store.write_meta(place, when, {"X-Timestamp": when.internal, "name": place.name,
                                                   "X-Object-Meta-Of": f"post {at}"})
        try:
            stored = box.store.open(place)
            states.append((stored.timestamp.internal, stored.metadata["X-Object-Meta-Of"]))
            stored.close()
        except (ObjectDeleted, ObjectNotFound) as error:
            states.append((type(error).__name__, ""))
    assert len(set(states)) == 1
    put, delete, post = newest(updates, "put"), newest(updates, "delete"), newest(updates, "post")
    if put <= delete:
        assert states[0][0] in ("ObjectDeleted", "ObjectNotFound")
    else:
        assert states[0][1] == (f"post {post}" if post > put else f"put {put}")


# -- rows of listings ---------------------------------------------------------------------------------------------------


def at(seconds: int) -> str:
    return f"{1_700_000_000 + seconds}.00000"


@pytest.fixture
def containers(tmp_path: Path) -> list[db_servers.Server]:
    found = []
    for replica in range(REPLICAS):
        root = tmp_path / f"c{replica}"
        root.mkdir()
        server = db_servers.container_server(root)
        server("PUT", "/a/rows", {"X-Backend-Storage-Policy-Index": "0"}, at=at(0))
        found.append(server)
    return found


@several
@given(given_=deliveries(("put", "delete")))
def test_rows_of_a_listing(containers: list[db_servers.Server], given_: Any) -> None:
    updates, orders = given_
    name = f"o{next(_names):06}"
    rows = []
    for server, order in zip(containers, orders, strict=True):
        for index in order:
            kind, seconds = updates[index]
            headers = {"X-Backend-Storage-Policy-Index": "0"}
            if kind == "put":
                headers |= {"X-Size": str(seconds), "X-Etag": f"e{seconds}", "X-Content-Type": "text/plain"}
            assert server(kind.upper(), f"/a/rows/{name}", headers, at=at(seconds)).is_success
        listing = json.loads(server("GET", "/a/rows", query=f"format=json&prefix={name}").body or "[]")
        rows.append([(row["name"], row["bytes"], row["hash"]) for row in listing])
    assert rows[0] == rows[1] == rows[2]
    put, delete = newest(updates, "put"), newest(updates, "delete")
    assert rows[0] == ([(name, put, f"e{put}")] if put > delete else [])


@several
@given(given_=deliveries(("put", "delete", "counts")))
def test_rows_of_an_account(tmp_path_factory: pytest.TempPathFactory, given_: Any) -> None:
    """What containers tell: put, deleted, or with objects in it. Counts have no time of their own but that of their put."""
    updates, orders = given_
    rows = []
    for order in orders:
        root = tmp_path_factory.mktemp("account")
        broker = AccountBroker(str(root / "accounts/0/abc/x/x.db"), str(root), LOG)
        broker.initialize("a", at(0))
        for index in order:
            kind, seconds = updates[index]
            put, delete = (at(0), at(seconds)) if kind == "delete" else (at(seconds), at(0))
            broker.put_container("c", put, delete, seconds if kind == "counts" else 0, 0, 0)
        rows.append(broker.read_fresh(lambda connection: connection.execute(
            "SELECT name, put_timestamp, delete_timestamp, object_count, deleted FROM container").fetchall()))
        broker.close()
    assert rows[0] == rows[1] == rows[2]
    put, delete = newest(updates, "put", "counts"), newest(updates, "delete")
    assert rows[0][0][4] == (delete > put)


# -- containers, accounts and their metadata ----------------------------------------------------------------------------


def exchange(servers: list[db_servers.Server], make: Any, names: tuple[str, ...]) -> list[tuple[Any, ...]]:
    """Each tells each other what it has, as replicators do; what each has then: times, and metadata."""
    hexdigest = servers[0].app.cluster.hash_path.hexdigest(*names)
    for _ in range(2):
        for source in servers:
            broker = make(str(source.db(*names)), str(source.device), LOG)
            if not broker.exists:
                continue
            info = broker.read_fresh(broker.info_dict)
            broker.close()
            call = ["sync", -1, info["hash"], "id", info["created_at"], info["put_timestamp"], info["delete_timestamp"],
                    info["metadata"]]
            for target in servers:
                if target is not source:
                    target("REPLICATE", f"/{hexdigest}", body=json.dumps(call).encode())
    found = []
    for server in servers:
        broker = make(str(server.db(*names)), str(server.device), LOG)
        if broker.exists:
            info = broker.read_fresh(broker.info_dict)
            found.append((info["put_timestamp"], info["delete_timestamp"], sorted(json.loads(info["metadata"] or "{}").items())))
        broker.close()
    return found


@several
@given(given_=deliveries(("put", "delete", "post")))
def test_containers_and_their_metadata(containers: list[db_servers.Server], given_: Any) -> None:
    updates, orders = given_
    name = f"c{next(_names)}"
    was_deleted = 0
    for server, order in zip(containers, orders, strict=True):
        for index in order:
            kind, seconds = updates[index]
            headers = {} if kind == "delete" else {"X-Container-Meta-Of": str(seconds), "X-Backend-Storage-Policy-Index": "0"}
            answer = server(kind.upper(), f"/a/{name}", headers, at=at(seconds))
            if kind == "delete" and answer.status == 204:
                was_deleted = max(was_deleted, seconds)
    found = exchange(containers, ContainerBroker, ("a", name))
    assert all(state == found[0] for state in found)
    if found and was_deleted == newest(updates, "put", "delete", "post"):
        assert {server("HEAD", f"/a/{name}").status for server in containers} == {404}
        assert all(value == "" for _, (value, _) in found[0][2])


@several
@given(given_=deliveries(("put", "delete", "post")))
def test_accounts_and_their_metadata(tmp_path_factory: pytest.TempPathFactory, given_: Any) -> None:
    updates, orders = given_
    servers = [db_servers.account_server(tmp_path_factory.mktemp("account")) for _ in range(REPLICAS)]
    was_deleted = 0
    for server, order in zip(servers, orders, strict=True):
        for index in order:
            kind, seconds = updates[index]
            headers = {} if kind == "delete" else {"X-Account-Meta-Of": str(seconds)}
            answer = server(kind.upper(), "/a", headers, at=at(seconds))
            if kind == "delete" and answer.status == 204:
                was_deleted = max(was_deleted, seconds)
    found = exchange(servers, AccountBroker, ("a",))
    assert all(state == found[0] for state in found)
    if found and was_deleted == newest(updates, "put", "delete", "post"):
        assert {server("HEAD", "/a").status for server in servers if server.db("a").exists()} == {404}
    for server in servers:
        server.app.brokers.close()
