"""Fault scenarios of the daemons that deliver and delete (``spec: scenarios-fault``; the numbers are its rows)."""

from __future__ import annotations

import json
import shutil
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from keelstore.common.ring.ring import Node
from test.fault.conftest import MAKE
from test.fault.test_scenarios import Thing
from test.support.client import Account, Answer, unique
from test.support.daemon_runs import recon_of, run_once, running
from test.support.peers import Peers
from test.support.waiting import until

ANY = 0  # the sites of these clusters share one directory of devices: a scan at one of them sees all
RESERVED = {"X-Backend-Allow-Reserved-Names": "true"}


@pytest.fixture
def own(account: Account) -> Account:
    """An account of this test alone."""
    return Account(account.endpoint, f"/v1/AUTH_{unique('a')}", account.endpoint.login("admin:admin", "admin").token)


def shown(answer: Answer) -> tuple[int, int, int]:
    return tuple(int(answer.headers[f"X-Account-{what}"]) for what in ("Container-Count", "Object-Count", "Bytes-Used"))  # type: ignore[return-value]


def pending(peers: Peers) -> list[Path]:
    return [path for path in peers.devices.glob("*/async_pending*/*/*") if path.is_file()]


def folder(peers: Peers, container: Thing, node: Node) -> Path:
    return peers.on_disk(node, container.part, *container.names, folder="containers")


@pytest.fixture(autouse=True)
def nothing_waits(site: Peers) -> None:
    for path in pending(site):
        path.unlink()


# -- accounts ------------------------------------------------------------------------------------------------------------


def test_scenario_02_03_04_05_06_counts_follow_and_a_server_that_was_away_learns_them(site: Peers, own: Account) -> None:
    for name in ("container1", "container2"):
        own.put(name).expect(201)
    own.put("container2", "o", body=b"1234").expect(201)
    run_once(site, "container-updater", ANY)
    assert shown(own.head()) == (2, 1, 4)
    assert {row["name"]: (row["count"], row["bytes"]) for row in own.listing()} == {"container1": (0, 0), "container2": (1, 4)}
    thing = Thing(site, "account", own.name)
    away = thing.primaries[0]
    thing.stop(thing.other, thing.sites[0])
    own.delete("container1").expect(204)
    own.put("container2", "second", body=b"12345").expect(201)
    assert shown(own.head()) == (1, 1, 4)
    run_once(site, "container-updater", ANY)
    assert shown(own.head()) == (1, 2, 9)
    thing.start(thing.other, thing.sites[0])
    assert thing.listed(away) == ["container1", "container2"] and shown(thing.ask(away, "HEAD")) == (2, 1, 4)
    own.put("container2", "third", body=b"").expect(201)
    run_once(site, "container-updater", ANY)
    assert shown(thing.ask(away, "HEAD"))[1:] == (3, 9)


def test_scenario_49_an_account_that_is_gone_leaves_no_container_waiting_for_ever(site: Peers, own: Account) -> None:
    own.put("before").expect(201)
    account = Thing(site, "account", own.name)
    account.stop(account.sites[0], account.other)
    own.put("made").expect(201)
    account.start(account.sites[0], account.other)
    for path in site.devices.glob(f"*/accounts/{account.part}/*/{account.folder(account.primaries[0]).name}"):
        shutil.rmtree(path)
    container = Thing(site, "container", own.name, "made")
    digest = site.hash_path.digest(own.name, "made").hex()

    def own_files() -> list[Path]:
        return list(site.devices.glob(f"*/containers/{container.part}/*/{digest}/{digest}.db"))

    assert len(own_files()) == 3
    run_once(site, "container-updater", ANY)
    for path in own_files():
        with closing(sqlite3.connect(path)) as connection:
            put, told = connection.execute("SELECT put_timestamp, reported_put_timestamp FROM container_info").fetchone()
        assert put <= told
    assert len(own_files()) + len(list(site.devices.glob(f"*/quarantined/containers/{digest}*"))) == 3


# -- reaper --------------------------------------------------------------------------------------------------------------


class Doomed:
    """An account with a plain and a reserved container of each policy, an object in each."""

    def __init__(self, site: Peers, own: Account):
        self.site, self.own = site, own
        self.account = Thing(site, "account", own.name)
        self.places: list[tuple[int, str, str]] = []
        own.put("first").expect(201)
        for index, policy in enumerate(("gold", "silver")):
            self.make(index, policy, policy, f"o-{policy}")
            self.make(index, policy, f"\x00{policy}", f"\x00o-{policy}")
        run_once(site, "container-updater", ANY)

    def make(self, index: int, policy: str, container: str, obj: str) -> None:
        """As an internal client does: on the servers themselves, since no outsider can spell reserved names."""
        stamp = f"{time.time():.5f}"
        part, nodes, _ = self.site.places("container", self.own.name, container)
        account_part, account_nodes, _ = self.site.places("account", self.own.name)
        for node, told in zip(nodes, account_nodes):
            endpoint, path = self.site.direct(node, part, self.own.name, container)
            endpoint.request("PUT", path, {"X-Timestamp": stamp, "X-Backend-Storage-Policy-Index": index, "X-Account-Host": f"{told.ip}:{told.port}",
                                           "X-Account-Partition": account_part, "X-Account-Device": told.device}).expect(201)
        object_part, object_nodes, _ = self.site.places("object", self.own.name, container, obj, policy=index)
        for number, node in enumerate(object_nodes):
            told = nodes[number]
            endpoint, path = self.site.direct(node, object_part, self.own.name, container, obj)
            endpoint.request("PUT", path, {
                "X-Timestamp": stamp, "Content-Type": "text/plain", "X-Backend-Storage-Policy-Index": index, "X-Container-Partition": part,
                "X-Container-Host": ",".join(f"{one.ip}:{one.port}" for one in nodes[number::len(object_nodes)] or [told]),
                "X-Container-Device": ",".join(one.device for one in nodes[number::len(object_nodes)] or [told])}, b"data").expect(201)
        self.places.append((index, container, obj))

    def delete(self) -> None:
        for node in self.account.primaries:
            endpoint, path = self.site.direct(node, self.account.part, self.own.name)
            endpoint.request("DELETE", path, {"X-Timestamp": f"{time.time():.5f}"}).expect(204)

    def objects(self, index: int, container: str, obj: str) -> list[Answer]:
        part, nodes, _ = self.site.places("object", self.own.name, container, obj, policy=index)
        found = []
        for node in nodes:
            endpoint, path = self.site.direct(node, part, self.own.name, container, obj)
            found.append(endpoint.request("HEAD", path, {"X-Backend-Storage-Policy-Index": index}))
        return found

    def containers(self, container: str) -> list[Answer]:
        part, nodes, _ = self.site.places("container", self.own.name, container)
        return [endpoint.request("HEAD", path, RESERVED) for endpoint, path in
                (self.site.direct(node, part, self.own.name, container) for node in nodes)]

    def check_gone(self) -> None:
        for index, container, obj in self.places:
            answers = self.objects(index, container, obj)
            assert {answer.status for answer in answers} == {404}
            assert len({answer.headers["X-Backend-Timestamp"] for answer in answers}) == 1
            gone = [answer for answer in self.containers(container) if answer.status == 404]
            assert gone and len({answer.headers["X-Backend-DELETE-Timestamp"] for answer in gone}) == 1

    def check_there(self) -> None:
        for index, container, obj in self.places:
            assert {answer.status for answer in self.objects(index, container, obj)} == {200}
            assert {answer.status for answer in self.containers(container)} == {204}


def test_scenario_08_09_a_deleted_account_is_reaped(site: Peers, own: Account) -> None:
    doomed = Doomed(site, own)
    doomed.check_there()
    doomed.delete()
    run_once(site, "account-reaper")
    doomed.check_gone()
    run_once(site, "object-updater", ANY)
    run_once(site, "container-updater", ANY)
    run_once(site, "account-reaper")
    doomed.check_gone()
    for _, container, _ in doomed.places:
        answers = doomed.containers(container)
        assert {answer.status for answer in answers} == {404}
        assert len({answer.headers["X-Backend-DELETE-Timestamp"] for answer in answers}) == 1


def test_scenario_10_11_a_delay_before_reaping_is_kept(site: Peers, own: Account) -> None:
    doomed = Doomed(site, own)
    doomed.delete()
    deleted_at = time.time()
    run_once(site, "account-reaper", doomed.account.sites[0], delay_reaping=120)
    doomed.check_there()
    until(lambda: time.time() - deleted_at > 3, "the delay is over")
    run_once(site, "account-reaper", delay_reaping=3)
    doomed.check_gone()


# -- late updates --------------------------------------------------------------------------------------------------------


def test_scenario_75_a_row_that_a_server_missed_is_delivered(site: Peers, own: Account) -> None:
    own.put("c").expect(201)
    container = Thing(site, "container", own.name, "c")
    container.stop(container.sites[0], container.other)
    own.put("c", "o", body=b"x").expect(201)
    container.start(container.sites[0], container.other)
    assert container.listed(container.primaries[0]) == []
    until(lambda: pending(site), "the update waits")
    run_once(site, "object-updater", ANY)
    assert container.listed(container.primaries[0]) == ["o"]
    assert pending(site) == []


def test_scenario_76_an_update_for_a_container_that_lives_on_a_handoff_waits_for_it(site: Peers, own: Account) -> None:
    own.put("first").expect(201)
    container = Thing(site, "container", own.name, "c")
    container.stop(*container.sites)
    own.put("c").expect(201, 503)
    container.start(*container.sites)
    until(lambda: own.put("c", "o", body=b"x").expect(201), "the object is accepted")
    until(lambda: pending(site), "the update waits")
    count = len(pending(site))
    run_once(site, "object-updater", ANY)
    assert len(pending(site)) == count and {container.ask(node).status for node in container.primaries} == {404}
    run_once(site, "container-replicator")
    assert not folder(site, container, container.handoffs[0]).exists()
    until(lambda: own.delete("c").expect(204), "the container is deleted")
    assert {container.ask(node).status for node in container.primaries} == {404}
    run_once(site, "object-updater", ANY)
    for node in container.primaries:  # a row newer than nothing: the container lives again
        assert container.listed(node) == ["o"]
    assert pending(site) == []


def test_scenario_77_overrides_arrive_late_too(site: Peers, own: Account) -> None:
    own.put("c").expect(201)
    container = Thing(site, "container", own.name, "c")
    thing = Thing(site, "object", own.name, "c", unique("o"))
    container.stop(*container.sites)
    headers = {
        "X-Timestamp": f"{time.time():.5f}", "Content-Type": "text/real", "X-Backend-Storage-Policy-Index": "0",
        "X-Object-Sysmeta-Container-Update-Override-Etag": "override-etag", "X-Object-Sysmeta-Container-Update-Override-Content-Type": "text/override",
        "X-Object-Sysmeta-Container-Update-Override-Size": "3"}
    for node, target in zip(thing.primaries, container.primaries):
        endpoint, path = site.direct(node, thing.part, *thing.names)
        where = {"X-Container-Partition": container.part, "X-Container-Host": f"{target.ip}:{target.port}", "X-Container-Device": target.device}
        endpoint.request("PUT", path, {**headers, **where}, b"real data").expect(201)
    container.start(*container.sites)
    run_once(site, "object-updater", ANY)
    entry = until(lambda: own.listing("c"), "the object is listed")[0]
    assert (entry["hash"], entry["bytes"], entry["content_type"]) == ("override-etag", 3, "text/override")


@pytest.mark.parametrize("forever", [False, True])
def test_scenario_81_recon_names_what_waits_longest(site: Peers, account: Account, forever: bool) -> None:
    token = account.endpoint.login("admin:admin", "admin").token
    accounts = [Account(account.endpoint, f"/v1/AUTH_{unique('async')}", token) for _ in range(3)]
    pairs = [(own, f"c{number}") for own in accounts for number in range(4)]
    for own, name in pairs:
        own.put(name).expect(201)
        own.head(name).expect(204)
    site.stop(2, 3, kinds=("container",))
    for own, name in pairs:
        for number in range(10):
            until(lambda own=own, name=name, number=number: own.put(name, f"o{number}", body=b"x").expect(201), "it is accepted")
    if forever:
        with running(site, "object-updater", ANY, interval=1):
            until(lambda: _stats(site)["failures_account_container_count"] >= len(pairs) // 2, "a pass has ended")
            until(lambda: _recon(site)["object_updater_last"] > 0, "it says when")
    else:
        run_once(site, "object-updater", ANY)
    stats = _stats(site)
    assert len(pairs) // 2 <= stats["failures_account_container_count"] <= len(pairs)
    shown = stats["failures_oldest_timestamp_account_containers"]
    entries = [(entry["account"], entry["container"]) for entry in shown["oldest_entries"]]
    waiting = {(own.name, name) for own, name in pairs}
    assert shown["oldest_count"] == 5 and len(set(entries)) == 5 and set(entries) <= waiting
    assert not set(entries) & {(own.name, name) for own, name in pairs[-3:]}
    assert [entry["timestamp"] for entry in shown["oldest_entries"]] == sorted(entry["timestamp"] for entry in shown["oldest_entries"])
    assert stats["failures_oldest_timestamp"] == pytest.approx(float(shown["oldest_entries"][0]["timestamp"]))
    site.start(2, 3, make=MAKE, kinds=("container",))
    run_once(site, "object-updater", ANY)
    assert pending(site) == []
    assert _stats(site)["failures_account_container_count"] == 0


def _recon(site: Peers) -> dict[str, Any]:
    value = json.loads((recon_of(site, ANY) / "object.recon").read_text())
    assert isinstance(value, dict)
    return value


def _stats(site: Peers) -> dict[str, Any]:
    value = _recon(site)["object_updater_stats"]
    assert isinstance(value, dict)
    return value
