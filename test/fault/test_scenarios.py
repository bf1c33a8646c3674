"""Fault scenarios of a replicated cluster that need no daemons (``spec: scenarios-fault``; the numbers are its rows)."""

from __future__ import annotations

import hashlib
import os
import pickle
import signal
import socket
import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import xattr

from keelstore.common.ring.ring import Node
from test.fault.conftest import MAKE, remove
from test.support.client import Account, Answer, unique
from test.support.peers import Peers
from test.support.waiting import slowness, until

OBJECT, CONTAINER, ACCOUNT = ("object",), ("container",), ("account",)


class Thing:
    """An account, container or object of a test and where it lives."""

    def __init__(self, peers: Peers, kind: str, *names: str):
        self.peers, self.kind, self.names = peers, kind, names
        self.part, self.primaries, self.handoffs = peers.places(kind, *names)
        self.sites = [peers.site_of(node) for node in self.primaries]
        self.other = next(site for site in range(4) if site not in self.sites)

    def ask(self, node: Node, method: str = "GET", headers: dict[str, Any] | None = None, query: str = "") -> Answer:
        endpoint, path = self.peers.direct(node, self.part, *self.names)
        return endpoint.request(method, path + query, headers)

    def listed(self, node: Node) -> list[str]:
        """The names that a container or account server itself lists."""
        return [entry["name"] for entry in self.ask(node, query="?format=json").expect(200).json()]

    def lists(self, node: Node, names: list[str]) -> bool:
        return self.listed(node) == names

    def folder(self, node: Node) -> Path:
        return self.peers.on_disk(node, self.part, *self.names)

    def start(self, *sites: int) -> None:
        self.peers.start(*sites, make=MAKE, kinds=(self.kind,))

    def stop(self, *sites: int) -> None:
        self.peers.stop(*sites, kinds=(self.kind,))

    @property
    def halves(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """The half of the sites whose two are both primaries, and the one with the non-primary."""
        return ((2, 3), (0, 1)) if self.other < 2 else ((0, 1), (2, 3))

    def node_at(self, site: int) -> Node:
        return next(node for node in (*self.primaries, *self.handoffs) if self.peers.site_of(node) == site)


@pytest.fixture
def made(account: Account) -> Iterator[str]:
    name = unique("made")
    account.put(name).expect(201)
    yield name


def an_object(peers: Peers, account: Account, container: str) -> Thing:
    return Thing(peers, "object", account.name, container, unique("o"))


# -- accounts and containers ---------------------------------------------------------------------------------------------


def test_scenario_01_counts_of_an_account_wait_for_the_updater(site: Peers, account: Account) -> None:
    own = Account(account.endpoint, f"/v1/AUTH_{unique('a')}", account.endpoint.login("admin:admin", "admin").token)
    for name in ("container1", "container2"):
        own.put(name).expect(201)
    own.put("container2", "o", body=b"1234").expect(201)
    answer = own.get(query="format=json").expect(200)
    assert [(row["name"], row["count"], row["bytes"]) for row in answer.json()] == [("container1", 0, 0), ("container2", 0, 0)]
    assert [answer.headers[f"X-Account-{what}"] for what in ("Container-Count", "Object-Count", "Bytes-Used")] == ["2", "0", "0"]


def test_scenario_05_an_account_server_that_missed_a_delete_shows_it_still(site: Peers, account: Account) -> None:
    own = Account(account.endpoint, f"/v1/AUTH_{unique('a')}", account.endpoint.login("admin:admin", "admin").token)
    for name in ("container1", "container2"):
        own.put(name).expect(201)
    thing = Thing(site, "account", own.name)
    thing.stop(thing.other, thing.sites[0])
    own.delete("container1").expect(204)
    own.put("container2", "second", body=b"12345").expect(201)
    assert [row["name"] for row in own.listing()] == ["container2"]
    thing.start(thing.other, thing.sites[0])
    assert thing.listed(thing.primaries[0]) == ["container1", "container2"]
    assert thing.listed(thing.primaries[1]) == ["container2"]


def test_scenario_16_17_all_primaries_of_a_container_down(site: Peers, account: Account, made: str) -> None:
    account.put(made, "before", body=b"x").expect(201)
    thing = Thing(site, "container", account.name, made)
    account.head(made).expect(204)
    thing.stop(*thing.sites)
    account.get(made).expect(503)
    account.put(made, "once", body=b"x").expect(201)
    account.post(made, headers={"X-Container-Meta-A": "1"}).expect(503)
    account.put(made, "again", body=b"x").expect(503)
    thing.start(*thing.sites)
    until(lambda: account.get(made).status == 200, "the container is back")  # what was not known is not remembered as absent
    account.put(made, "again", body=b"x").expect(201)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        yield
        connection.execute("ROLLBACK")


def test_scenario_18_locked_databases_do_not_hang_a_delete(site: Peers, account: Account) -> None:
    def delete(count: int) -> tuple[int, float]:
        name = unique("locked")
        account.put(name).expect(201)
        part, primaries, _ = site.places("container", account.name, name)
        files = [next(site.on_disk(node, part, account.name, name, folder="containers").glob("*.db")) for node in primaries[:count]]
        start = time.monotonic()
        with contextmanagers([locked(path) for path in files]):
            status = account.delete(name).status
        return status, time.monotonic() - start

    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(delete, (1, 2, 3)))
    assert [status for status, _ in results] == [204, 503, 503]
    assert max(took for _, took in results) < (site.node_timeout + 5) * slowness()


@contextmanager
def contextmanagers(managers: list[Any]) -> Iterator[None]:
    if not managers:
        yield
        return
    with managers[0], contextmanagers(managers[1:]):
        yield


# -- object handoffs -----------------------------------------------------------------------------------------------------


def test_scenario_50_51_52_a_handoff_takes_over(site: Peers, account: Account, made: str) -> None:
    thing = an_object(site, account, made)
    failed, others = thing.primaries[0], thing.primaries[1:]
    objects = site.devices / failed.device / "objects"
    thing.stop(thing.sites[0])
    remove(objects)
    account.put(*thing.names[1:], body=b"VERIFY").expect(201)
    assert account.get(*thing.names[1:]).expect(200).body == b"VERIFY"
    thing.stop(*thing.sites[1:])
    until(lambda: account.get(*thing.names[1:]).expect(200).body == b"VERIFY", "the handoff serves it alone")
    thing.start(*thing.sites[1:])
    assert not objects.exists()
    assert thing.ask(thing.handoffs[0]).expect(200).body == b"VERIFY"
    container = Thing(site, "container", *thing.names[:2])
    for node in container.primaries:
        until(partial(container.lists, node, [thing.names[2]]), "every container replica knows the object")
    thing.start(thing.sites[0])
    assert thing.ask(failed).status == 404
    assert not objects.exists()
    for node in others:
        assert thing.ask(node).expect(200).body == b"VERIFY"


def test_scenario_55_a_delete_with_one_primary_down(site: Peers, account: Account, made: str) -> None:
    thing = an_object(site, account, made)
    account.put(*thing.names[1:], body=b"VERIFY").expect(201)
    thing.stop(thing.sites[0])
    account.delete(*thing.names[1:]).expect(204)
    account.head(*thing.names[1:]).expect(404)
    container = Thing(site, "container", *thing.names[:2])
    for node in container.primaries:
        until(partial(container.lists, node, []), "no container replica lists it")
    thing.start(thing.sites[0])
    assert thing.ask(thing.primaries[0]).expect(200).body == b"VERIFY"


def test_scenario_56_the_newest_tombstone_wins_over_a_handoff(site: Peers, account: Account, made: str) -> None:
    thing = an_object(site, account, made)
    thing.stop(thing.sites[0])
    account.put(*thing.names[1:], body=b"VERIFY").expect(201)
    assert thing.ask(thing.handoffs[0]).expect(200).body == b"VERIFY"
    thing.start(thing.sites[0])
    until(lambda: account.delete(*thing.names[1:]).expect(204, 404), "the delete is accepted")
    for node in thing.primaries:
        answer = thing.ask(node)
        assert (answer.status, "X-Backend-Timestamp" in answer.headers) == (404, True)
    assert thing.ask(thing.handoffs[0]).expect(200).body == b"VERIFY"
    for headers in ({}, {"X-Newest": "true"}):
        account.get(*thing.names[1:], headers=headers).expect(404)


def test_scenario_57_a_tombstone_on_handoffs_is_knowledge(site: Peers, account: Account, made: str) -> None:
    thing = an_object(site, account, made)
    thing.stop(*thing.sites)
    account.get(*thing.names[1:]).expect(503)
    thing.start(thing.sites[0])
    until(lambda: account.delete(*thing.names[1:]).expect(204, 404), "the delete is accepted")
    assert "X-Backend-Timestamp" in thing.ask(thing.handoffs[0]).expect(404).headers
    thing.stop(thing.sites[0])
    account.get(*thing.names[1:]).expect(404)


def test_scenario_58_post_though_a_primary_lacks_the_object(site: Peers, account: Account, made: str) -> None:
    thing = an_object(site, account, made)
    thing.stop(thing.sites[0])
    account.put(*thing.names[1:], body=b"VERIFY", headers={"X-Object-Meta-Version": "1"}).expect(201)
    thing.start(thing.sites[0])
    assert thing.ask(thing.primaries[0]).status == 404
    until(lambda: account.post(*thing.names[1:], headers={"X-Object-Meta-Version": "2"}).expect(202), "the POST is accepted")
    assert account.head(*thing.names[1:]).headers["X-Object-Meta-Version"] == "2"


def test_scenario_59_post_though_half_the_primaries_lack_the_object(site: Peers, account: Account, made: str) -> None:
    thing = an_object(site, account, made)
    primary_half, _ = thing.halves
    thing.stop(*primary_half)
    account.put(*thing.names[1:], body=b"VERIFY", headers={"X-Object-Meta-Version": "1"}).expect(201)
    thing.start(*primary_half)
    until(lambda: account.post(*thing.names[1:], headers={"X-Object-Meta-Version": "2"}).expect(202), "the POST is accepted")
    assert account.head(*thing.names[1:]).headers["X-Object-Meta-Version"] == "2"


def test_scenario_60_post_with_mixed_answers_is_503(site: Peers, account: Account, made: str) -> None:
    thing = an_object(site, account, made)
    account.put(*thing.names[1:], body=b"VERIFY").expect(201)
    thing.stop(thing.sites[0])
    account.delete(*thing.names[1:]).expect(204)
    thing.start(thing.sites[0])
    until(lambda: thing.ask(thing.primaries[0]).status == 200, "the primary serves the old data")
    statuses = {account.post(*thing.names[1:], headers={"X-Object-Meta-A": "1"}).status for _ in range(3)}
    assert statuses == {503}  # never 404 on doubt: one of them has it


def test_case_C08_a_post_at_once_after_a_primary_is_back_never_says_404(site: Peers, account: Account, made: str) -> None:
    thing = an_object(site, account, made)
    for number in range(3):
        away = thing.sites[number]
        thing.stop(away)
        name = f"{thing.names[2]}-{number}"
        account.put(made, name, body=b"VERIFY").expect(201)
        thing.start(away)
        for turn in range(3):  # at once, while nothing has repaired it yet
            assert account.post(made, name, headers={"X-Object-Meta-Turn": str(turn)}).status in (202, 503)
        until(lambda: account.post(made, name, headers={"X-Object-Meta-Turn": "last"}).expect(202), "the POST is accepted")  # noqa: B023 - it runs now
        assert account.head(made, name, headers={"X-Newest": "true"}).headers["X-Object-Meta-Turn"] == "last"


@contextmanager
def silent(site: Peers, *sites: int, kind: str = "object") -> Iterator[None]:
    """Servers that accept connections and then say nothing."""
    pids = [site.running[kind, site.ports[number][kind]].pid for number in sites]
    for pid in pids:
        os.killpg(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.killpg(pid, signal.SIGCONT)


@pytest.mark.parametrize("how", ["down", "silent"])
def test_case_C26_what_only_primaries_that_do_not_answer_have_is_not_said_to_be_gone(site: Peers, account: Account, made: str, how: str) -> None:
    """All primaries fail, the handoff answers 404: 503, and nobody remembers an absence."""
    thing = an_object(site, account, made)
    account.put(*thing.names[1:], body=b"VERIFY").expect(201)
    if how == "down":
        thing.stop(*thing.sites)
        away: Any = nullcontext()
    else:
        away = silent(site, *thing.sites)
    with away:
        assert thing.ask(thing.handoffs[0]).status == 404
        account.get(*thing.names[1:]).expect(503)
    thing.start(*thing.sites)
    until(lambda: account.get(*thing.names[1:]).expect(200).body == b"VERIFY", "it is read as soon as they answer", 5 * slowness())


@contextmanager
def black_hole(host: str, port: int) -> Iterator[None]:
    """A port whose packets are dropped: nobody accepts, and the queue is full, so that the kernel does not answer a SYN any more."""
    with socket.socket() as listener, ExitStack() as stack:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(0)
        for _ in range(8):
            sock = stack.enter_context(socket.socket())
            sock.setblocking(False)
            sock.connect_ex((host, port))
        with pytest.raises(TimeoutError), socket.create_connection((host, port), timeout=0.5):
            pass
        yield


def test_case_X19_a_server_whose_packets_are_dropped_hangs_nothing(site: Peers, account: Account, made: str) -> None:
    """A machine without power answers no SYN and sends no RST: each attempt costs a bounded wait, then it is left alone."""
    thing = an_object(site, account, made)
    account.put(*thing.names[1:], body=b"VERIFY").expect(201)
    away = thing.sites[0]
    thing.stop(away)
    with black_hole("127.0.0.1", site.ports[away]["object"]):
        for number in range(3):
            start = time.monotonic()
            assert account.get(*thing.names[1:]).expect(200).body == b"VERIFY"
            account.put(made, f"{thing.names[2]}-{number}", body=b"x" * number * 100_000).expect(201)
            account.post(*thing.names[1:], headers={"X-Object-Meta-A": str(number)}).expect(202)
            account.delete(made, f"{thing.names[2]}-{number}").expect(204)
            assert time.monotonic() - start < 10 * slowness()
    thing.start(away)
    assert account.get(*thing.names[1:]).expect(200).body == b"VERIFY"


@pytest.mark.parametrize("body", [b"new", b""])
@pytest.mark.parametrize("chunked", [False, True])
def test_scenario_61_put_if_none_match_sees_the_handoffs_copy(site: Peers, account: Account, made: str, body: bytes, chunked: bool) -> None:
    thing = an_object(site, account, made)
    primary_half, _ = thing.halves
    thing.stop(*primary_half)
    account.put(*thing.names[1:], body=b"VERIFY").expect(201)
    thing.start(*primary_half)
    headers = {"If-None-Match": "*"} | ({"Transfer-Encoding": "chunked"} if chunked else {})
    until(lambda: account.put(*thing.names[1:], body=iter([body] if body else []) if chunked else body, headers=headers).expect(412), "412")
    assert account.get(*thing.names[1:], headers={"X-Newest": "true"}).expect(200).body == b"VERIFY"


# -- corruption ----------------------------------------------------------------------------------------------------------


def data_file(thing: Thing, node: Node) -> Path:
    return next(thing.folder(node).glob("*.data"))


def damage_etag(thing: Thing, node: Node) -> None:
    """Make the stored ETag wrong, with a checksum that is right."""
    path = str(data_file(thing, node))
    metadata = pickle.loads(xattr.getxattr(path, "user.swift.metadata"))
    key = b"ETag" if b"ETag" in metadata else "ETag"
    metadata[key] = b"0" * 32 if isinstance(key, bytes) else "0" * 32
    value = pickle.dumps(metadata, 2)
    xattr.setxattr(path, "user.swift.metadata", value)
    xattr.setxattr(path, "user.swift.metadata_checksum", hashlib.md5(value).hexdigest().encode())


def quarantined(peers: Peers, node: Node) -> list[str]:
    folder = peers.devices / node.device / "quarantined" / "objects"
    return [path.name for path in folder.iterdir()] if folder.exists() else []


def test_scenario_70_a_wrong_etag_is_found_by_a_full_read(site: Peers, account: Account, made: str) -> None:
    thing = an_object(site, account, made)
    account.put(*thing.names[1:], body=b"VERIFY").expect(201)
    node = thing.primaries[0]
    damage_etag(thing, node)
    assert thing.ask(node).body == b"VERIFY"
    until(lambda: thing.ask(node).status == 404, "the object is quarantined")
    assert thing.folder(node).name in quarantined(site, node)
    assert account.get(*thing.names[1:]).expect(200).body == b"VERIFY"


def test_scenario_71_partial_reads_do_not_judge_but_full_ones_do(site: Peers, account: Account, made: str) -> None:
    thing = an_object(site, account, made)
    account.put(*thing.names[1:], body=b"RANGE").expect(201)
    node = thing.primaries[0]
    damage_etag(thing, node)
    for span, expected in (("0-2", b"RAN"), ("1-11", b"ANGE"), ("0-11", b"RANGE")):
        assert thing.ask(node, headers={"Range": f"bytes={span}"}).expect(206).body == expected
    until(lambda: thing.ask(node).status == 404, "the object is quarantined")


@pytest.mark.parametrize(("row", "method"), [(72, "GET"), (73, "HEAD"), (74, "POST")], ids=lambda value: str(value))
def test_scenario_72_73_74_a_truncated_file_is_quarantined(site: Peers, account: Account, made: str, row: int, method: str) -> None:
    thing = an_object(site, account, made)
    account.put(*thing.names[1:], body=b"DATA").expect(201)
    node = thing.primaries[0]
    path = data_file(thing, node)
    attributes = {name: xattr.getxattr(str(path), name) for name in xattr.listxattr(str(path))}
    path.write_bytes(b"")
    for name, value in attributes.items():
        xattr.setxattr(str(path), name, value)
    headers = {"X-Timestamp": f"{time.time():.5f}"} if method == "POST" else {}
    assert thing.ask(node, method, headers).status == 404
    assert thing.folder(node).name in quarantined(site, node)


# -- updates -------------------------------------------------------------------------------------------------------------


def waiting(peers: Peers) -> int:
    """How many container updates wait on the devices."""
    return len(list(peers.devices.glob("*/async_pending/*/*")))


def test_scenario_75_a_row_that_cannot_be_delivered_waits_on_the_objects_device(site: Peers, account: Account, made: str) -> None:
    container = Thing(site, "container", account.name, made)
    container.stop(container.sites[0], container.other)
    before = waiting(site)
    name = unique("o")
    account.put(made, name, body=b"x").expect(201)
    container.start(container.sites[0], container.other)
    assert container.listed(container.primaries[0]) == []
    assert container.listed(container.primaries[1]) == [name]
    until(lambda: waiting(site) > before, "the update waits")


def test_scenario_76_a_container_that_lives_on_a_handoff(site: Peers, account: Account) -> None:
    container = Thing(site, "container", account.name, unique("handoff"))
    container.stop(*container.sites)
    account.put(container.names[1]).expect(201, 503)
    container.start(*container.sites)
    assert {container.ask(node).status for node in container.primaries} == {404}
    assert container.ask(container.handoffs[0]).status in (200, 204)
    before = waiting(site)
    until(lambda: account.put(container.names[1], "o", body=b"x").expect(201), "the object is accepted")
    assert {container.ask(node).status for node in container.primaries} == {404}
    until(lambda: waiting(site) >= before + 1, "the update waits")


def test_scenario_77_what_a_listing_shows_can_be_overridden(site: Peers, account: Account, made: str) -> None:
    thing = an_object(site, account, made)
    container = Thing(site, "container", *thing.names[:2])
    headers = {
        "X-Timestamp": f"{time.time():.5f}", "Content-Type": "text/real", "X-Backend-Storage-Policy-Index": "0",
        "X-Object-Sysmeta-Container-Update-Override-Etag": "override-etag", "X-Object-Sysmeta-Container-Update-Override-Content-Type": "text/override",
        "X-Object-Sysmeta-Container-Update-Override-Size": "3"}
    for node, target in zip(thing.primaries, container.primaries):
        endpoint, path = site.direct(node, thing.part, *thing.names)
        where = {"X-Container-Partition": container.part, "X-Container-Host": f"{target.ip}:{target.port}", "X-Container-Device": target.device}
        endpoint.request("PUT", path, {**headers, **where}, b"real data").expect(201)
    head = account.head(*thing.names[1:]).expect(200).headers
    assert (head["Etag"], head["Content-Length"], head["Content-Type"]) == (hashlib.md5(b"real data").hexdigest(), "9", "text/real")
    entry = until(lambda: account.listing(made), "the object is listed")[0]
    assert (entry["hash"], entry["bytes"], entry["content_type"]) == ("override-etag", 3, "text/override")
