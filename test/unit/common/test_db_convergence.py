"""Whatever three replicas of a database hear, in whatever order and how often: replication makes them the same, and what the
newest say stands.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keelstore.common.timestamp import Timestamp
from test.support.cluster import InProcessCluster
from test.support.daemons import Daemons
from test.support.databases import Replicas

NOW = 1_000  # added to the times of the events; everything is younger than the reclaim age
EXAMPLES = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
_numbers = itertools.count()


@pytest.fixture(scope="module")
def daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemons]:
    cluster = InProcessCluster(tmp_path_factory.mktemp("convergence"), nodes=3, devices=1)
    found = Daemons(cluster)
    yield found
    cluster.close()


# Even times are writes, odd ones deletions: by the hash of names and times that replicas compare, and whose form is given, a write
# and a deletion of the same moment are the same.
rows = st.tuples(st.sampled_from(["a", "b"]), st.integers(2, 9)).map(lambda row: (*row, bool(row[1] % 2)))
events = st.lists(st.tuples(st.sets(st.integers(0, 2)), rows), max_size=8)
states = st.lists(st.tuples(st.sets(st.integers(0, 2)), st.sampled_from(["put", "delete", "set", "unset"]), st.integers(1, 5)), max_size=5)


def stamp(daemons: Daemons, at: int) -> str:
    return Timestamp(int(daemons.clock()) // 100_000 * 100_000 - NOW + at).internal


def replicate(daemons: Daemons, replicas: Replicas, seed: int) -> None:
    """Passes over this one database, in some order of the nodes, until nothing changes any more, or three of them."""
    order = list(replicas.primaries)
    random.Random(seed).shuffle(order)
    for _ in range(3):
        for node in order:
            replicator = daemons.replicator(replicas.kind, replicas.node_of(node), per_diff=3)
            job = replicator.job_now(str(replicas.path(node).parent))
            assert job is not None and replicator._carry_out(job).is_success
        if replicas.agree():
            break


@EXAMPLES
@given(events=events, states=states, policies=st.tuples(*[st.integers(0, 1)] * 3), seed=st.integers(0, 99))
def test_containers(daemons: Daemons, events: Any, states: Any, policies: tuple[int, int, int], seed: int) -> None:
    replicas = Replicas(daemons.cluster, "a", f"c{next(_numbers)}")
    brokers = [replicas.broker(node) for node in replicas.primaries]
    for number, broker in enumerate(brokers):
        broker.initialize(replicas.account, replicas.container, stamp(daemons, 0), policies[number] if not states else 0)
    newest: dict[str, tuple[int, bool]] = {}
    for places, (name, at, is_deleted) in events:
        for place in places:
            newest[name] = max(newest.get(name, (0, False)), (at, is_deleted))
            if is_deleted:
                brokers[place].delete_object(name, stamp(daemons, at), 0)
            else:
                brokers[place].put_object(name, stamp(daemons, at), at, "text/plain", f"etag{at}", 0)
    times = {"put": 0, "delete": -1, "set": 0, "unset": 0}
    for places, what, at in states:
        for place in places:
            times[what] = max(times[what], at)
            brokers[place].write(lambda connection, broker=brokers[place], what=what, at=at: change(daemons, broker, connection, what, at))
    for broker in brokers:
        broker.close()
    replicate(daemons, replicas, seed)
    assert replicas.agree()
    found = replicas.state(replicas.primaries[0])
    live = sorted(name for name, (_, is_deleted) in newest.items() if not is_deleted)
    assert replicas.names(replicas.primaries[0]) == live
    assert all(row[2] == newest[row[0]][0] for row in found["rows"] if not row[5])
    if not states:
        return
    assert found["is_deleted"] == (not live and times["delete"] > times["put"])
    item = found["metadata"].get("X-Container-Meta-A", ("", ""))[0]
    assert item == ("" if max(times["unset"], times["delete"]) >= times["set"] and times["set"] == 0 else item)
    if times["set"] > max(times["unset"], times["delete"]):
        assert item == f"v{times['set']}"


def change(daemons: Daemons, broker: Any, connection: Any, what: str, at: int) -> None:
    when = stamp(daemons, at)
    if what == "put":
        broker.update_put_timestamp(connection, when)
    elif what == "delete":
        broker.mark_deleted(connection, when)
    else:
        broker.update_metadata(connection, {"X-Container-Meta-A": (f"v{at}" if what == "set" else "", when)})


@EXAMPLES
@given(events=events, seed=st.integers(0, 99))
def test_accounts(daemons: Daemons, events: Any, seed: int) -> None:
    replicas = Replicas(daemons.cluster, f"a{next(_numbers)}")
    brokers = [replicas.broker(node) for node in replicas.primaries]
    for broker in brokers:
        broker.initialize(replicas.account, stamp(daemons, 0))
    put: dict[str, int] = {}
    deleted: dict[str, int] = {}
    for places, (name, at, is_deleted) in events:
        for place in places:
            known = deleted if is_deleted else put
            known[name] = max(known.get(name, 0), at)
            if is_deleted:
                brokers[place].put_container(name, "0", stamp(daemons, at), 0, 0, 0)
            else:
                brokers[place].put_container(name, stamp(daemons, at), "0", at, at, 0)
    for broker in brokers:
        broker.close()
    replicate(daemons, replicas, seed)
    assert replicas.agree()
    assert replicas.names(replicas.primaries[0]) == sorted(name for name in put if put[name] > deleted.get(name, 0))
