"""Fault scenarios that the replicators and auditors of databases mend (``spec: scenarios-fault``; numbers are its rows), over processes."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from test.fault.test_scenarios import Thing
from test.support.client import Account, unique
from test.support.daemon_runs import run_once, running
from test.support.peers import Peers
from test.support.waiting import until
from test.support.wiping import wipe

REPLICATOR, AUDITOR = "container-replicator", "container-auditor"


@pytest.fixture
def own(site: Peers, account: Account) -> Iterator[Account]:
    """An account of its own, so that each database has the rows of one test."""
    yield Account(account.endpoint, f"/v1/AUTH_{unique('a')}", account.endpoint.login("admin:admin", "admin").token)


def file_of(thing: Thing, device: str) -> Path:
    digest = thing.peers.hash_path.digest(*thing.names).hex()
    return thing.peers.devices / device / f"{thing.kind}s" / str(thing.part) / digest[-3:] / digest / f"{digest}.db"


def holders(thing: Thing) -> list[str]:
    return [node.device for node in (*thing.primaries, *thing.handoffs) if file_of(thing, node.device).exists()]


def headers_of(thing: Thing) -> list[dict[str, str]]:
    """What each primary says of a container, but for the date of the answer."""
    found = []
    for node in thing.primaries:
        headers = thing.ask(node, "HEAD").headers
        found.append({name.title(): value for name, value in headers.items() if name.title() not in ("Date", "X-Openstack-Request-Id")})
    return found


def test_scenario_13_metadata_without_a_time_of_its_own_comes_to_all(site: Peers, own: Account) -> None:
    own.put("c").expect(201)
    thing = Thing(site, "container", own.name, "c")
    before = headers_of(thing)
    endpoint, path = site.direct(thing.primaries[1], thing.part, *thing.names)
    endpoint.request("POST", path, {"X-Timestamp": f"{time.time():.5f}", "X-Backend-No-Timestamp-Update": "true",
                                    "X-Container-Meta-Fruit": "apple"}).expect(204)
    run_once(site, REPLICATOR)
    after = headers_of(thing)
    assert after[0] == after[1] == after[2] and after[0]["X-Container-Meta-Fruit"] == "apple"
    for name in ("X-Put-Timestamp", "Last-Modified"):
        assert after[0][name] == before[0][name]


@pytest.mark.parametrize("per_diff", [1000, 2], ids=["scenario_47", "scenario_48"])
def test_scenario_47_48_metadata_and_rows_that_replicas_missed(site: Peers, own: Account, per_diff: int) -> None:
    meta = "X-Container-Meta-"
    own.put("c", headers={f"{meta}{name}": "1" for name in "ABC"}).expect(201)
    thing = Thing(site, "container", own.name, "c")
    one, two, three = thing.sites
    thing.stop(one, two)
    own.post("c", headers={f"{meta}{name}": "2" for name in "ABD"}).expect(204, 503)
    for number in range(1 if per_diff == 1000 else 7):
        own.put("c", f"o{number}", body=b"x").expect(201)
    thing.start(one, two)
    thing.stop(three)
    own.post("c", headers={f"{meta}{name}": "3" for name in "BE"}).expect(204)
    thing.start(three)
    run_once(site, REPLICATOR, three, per_diff=per_diff)
    expected = {"A": "2", "B": "3", "C": "1", "D": "2", "E": "3"}
    for headers in headers_of(thing):
        assert {name: headers.get(f"{meta}{name}") for name in "ABCDE"} == expected
        assert int(headers["X-Container-Object-Count"]) > 0


def test_a_torn_database_is_put_aside_and_comes_back_from_the_others(site: Peers, own: Account) -> None:
    own.put("c").expect(201)
    for number in range(20):
        own.put("c", f"o{number:02}", body=b"x").expect(201)
    thing = Thing(site, "container", own.name, "c")
    assert all(len(thing.listed(node)) == 20 for node in thing.primaries)
    path, where = file_of(thing, thing.primaries[0].device), thing.sites[0]
    thing.stop(where)
    data = bytearray(path.read_bytes())
    data[4096:] = os.urandom(len(data) - 4096)
    path.write_bytes(bytes(data[: len(data) * 2 // 3]))
    thing.start(where)
    figures = run_once(site, AUDITOR, where)[0]
    assert figures["quarantined"] == 1 and not path.exists()
    assert (site.devices / thing.primaries[0].device / "quarantined" / "containers" / path.parent.name / path.name).exists()
    run_once(site, REPLICATOR, thing.sites[1])
    assert len(thing.listed(thing.primaries[0])) == 20


def test_a_deleted_container_is_not_brought_back_by_a_replica_that_was_away(site: Peers, own: Account) -> None:
    own.put("c", headers={"X-Container-Meta-A": "1"}).expect(201)
    own.put("c", "o", body=b"x").expect(201)
    own.put("stays").expect(201)
    thing, account = Thing(site, "container", own.name, "c"), Thing(site, "account", own.name)
    away = thing.sites[0]
    site.stop(away, kinds=("container", "account"))
    own.delete("c", "o").expect(204)
    until(lambda: own.delete("c").expect(204), "the container goes")
    own.post(headers={"X-Account-Meta-New": "1"}).expect(204)
    site.start(away, kinds=("container", "account"))
    assert thing.ask(thing.primaries[0], "HEAD").status == 204
    for name in (REPLICATOR, "account-replicator"):
        run_once(site, name, away)  # the one that knows less comes first
        run_once(site, name)
    assert [thing.ask(node, "HEAD").status for node in thing.primaries] == [404] * 3
    own.head("c").expect(404)
    assert [account.listed(node) for node in account.primaries] == [["stays"]] * 3
    assert {account.ask(node, "HEAD").headers.get("X-Account-Meta-New") for node in account.primaries} == {"1"}


def test_databases_of_an_emptied_device_come_back_and_handoffs_go_while_replicators_run(site: Peers, own: Account) -> None:
    for number in range(6):
        own.put(f"c{number}", headers={"X-Container-Meta-Number": str(number)}).expect(201)
    things = [Thing(site, "container", own.name, f"c{number}") for number in range(6)]
    lost = things[0].primaries[0].device
    late = Thing(site, "container", own.name, "late")
    late.stop(late.sites[0])
    own.put("late").expect(201)
    assert late.handoffs[0].device in holders(late)
    late.start(late.sites[0])
    with running(site, REPLICATOR, 0, 1, 2, 3, interval=1):
        wipe(site.devices / lost / "containers")
        until(lambda: all(holders(thing) == [node.device for node in thing.primaries] for thing in (*things, late)), "all are where they belong", 60)
    for number, thing in enumerate(things):
        assert {headers["X-Container-Meta-Number"] for headers in headers_of(thing)} == {str(number)}


def test_no_row_is_lost_that_a_handoff_takes_while_it_goes_home_again_and_again(site: Peers, own: Account) -> None:
    own.put("c").expect(201)
    thing = Thing(site, "container", own.name, "c")
    where, stamp = thing.handoffs[0], f"{time.time():.5f}"
    endpoint, path = site.direct(where, thing.part, *thing.names)
    headers = {"X-Backend-Storage-Policy-Index": "0", "X-Timestamp": stamp}
    row = {**headers, "X-Size": "1", "X-Content-Type": "text/plain", "X-Etag": "e"}
    taken: list[str] = []
    times_gone, chance = 0, random.Random(1)
    with running(site, REPLICATOR, thing.other, interval=0.05), endpoint.connect() as connection:
        end = time.monotonic() + 150
        while (times_gone < 5 or len(taken) < 60) and time.monotonic() < end:
            pause = time.monotonic() + chance.random() * 0.3  # a handoff that is written to all the time has to stay
            until(lambda pause=pause: time.monotonic() > pause, "the next row is due", every_s=0.01)
            name = f"o{len(taken):05}"
            if connection.request("PUT", f"{path}/{name}", row).status == 201:
                taken.append(name)
                continue
            times_gone += 1
            connection.request("PUT", path, headers).expect(201, 202)
    assert times_gone >= 5, "it never went home"
    for _ in range(2):
        run_once(site, REPLICATOR, thing.other)
    assert where.device not in holders(thing)
    for node in thing.primaries:
        assert thing.listed(node) == taken
