"""Fault scenarios of the expirer (``spec: scenarios-fault`` 13; the numbers are its rows), and the source's scenario 6 (issue 4, point 8)."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing
from typing import Any

import pytest

from test.support.client import Account, Answer
from test.support.stage import Spot, Stage, object_beside
from test.support.waiting import until

QUEUE = ".expiring_objects"
SERVERS = ("object", "container")
OPEN = {"X-Open-Expired": "true"}


@pytest.fixture
def own(stage: Stage) -> Iterator[Account]:
    yield stage.own()


@pytest.fixture(autouse=True)
def queue_is_empty(stage: Stage) -> None:
    queue = Account(stage.internal_endpoint, f"/v1/{QUEUE}", "internal")
    if queue.get().status == 200:
        for entry in queue.listing():
            answer = queue.get(entry["name"], query="format=json").expect(200, 404)  # its account may not know yet that it is gone
            for row in answer.json() if answer.status == 200 else ():
                queue.delete(entry["name"], row["name"]).expect(204, 404)


def expire(stage: Stage, **options: Any) -> dict[str, Any]:
    """The expirer once. What it counts, and what is late after it."""
    stage.passes([("container-updater", 0)])  # the account of the queue learns of its containers
    found: dict[str, Any] = stage.run("object-expirer", 0, **options)[0]
    return found


def now_is(moment: float) -> None:
    until(lambda: time.time() >= moment, "it is due")


def entries(stage: Stage, target: str) -> list[str]:
    """Of the queue, that are about this object (account/container/object)."""
    stage.passes([("container-updater", 0)])
    queue = Account(stage.internal_endpoint, f"/v1/{QUEUE}", "internal")
    return [row["name"] for entry in queue.listing() for row in queue.listing(entry["name"]) if row["name"].endswith(f"-{target}")]


def in_how_many(stage: Stage, spot: Spot, method: str = "HEAD", **headers: str) -> list[Answer]:
    return [spot.ask(node, method, headers) for node in spot.primaries]


class Halves:
    """A container and an object; object and container servers of a half of the sites may be away. Half 1 has two primaries."""

    def __init__(self, stage: Stage, container: str = "c"):
        self.stage, self.account = stage, stage.internal(stage.own())
        self.account.put("first").expect(201, 202)
        self.container = Spot(stage, self.account.name, container)
        self.object = object_beside(stage, self.container)
        self.name = self.object.names[2]
        one = self.container.half
        self.half = {1: one, 2: (2, 3) if one == (0, 1) else (0, 1)}

    def on(self, half: int) -> AbstractContextManager[None]:
        return self.stage.without(*self.half[3 - half], kinds=SERVERS)

    def put(self, body: bytes = b"body", due_in: int = 0, **headers: Any) -> int:
        """When it is due, in so many seconds (0: never)."""
        def attempt() -> int:
            due = int(time.time()) + due_in
            sent = {name.replace("_", "-"): value for name, value in headers.items()} | ({"X-Delete-At": str(due)} if due_in else {})
            self.account.put("c", self.name, body=body, headers=sent).expect(201)
            return due

        return until(attempt, "the PUT is accepted", every_s=0.02)

    def status(self) -> int:
        return self.account.get("c", self.name, headers={"X-Newest": "true"}).status


def test_scenario_93_what_expires_under_the_wrong_policy(stage: Stage) -> None:
    halves = Halves(stage)
    with halves.on(2):
        halves.account.put("c", headers={"X-Storage-Policy": "gold"}).expect(201, 202)
        due = halves.put(due_in=8)
        created = halves.account.head("c", halves.name).expect(200).headers["X-Timestamp"]
    with halves.on(1):
        halves.account.put("c", headers={"X-Storage-Policy": "silver"}).expect(201, 202)
        stage.passes([("object-updater", 0), ("container-updater", 0)])
        now_is(due + 1)
        expire(stage)
    stage.final_state(*SERVERS)
    there = [answer for answer in in_how_many(stage, halves.object, **{"X-Backend-Open-Expired": "true"}) if answer.status == 200]
    assert there and all(answer.headers["X-Backend-Timestamp"] == created for answer in there)
    assert all(answer.status == 404 for answer in in_how_many(stage, halves.object))
    assert [row["name"] for row in halves.account.listing("c")] == [halves.name]
    until(lambda: halves.account.post("c").expect(204), "the POST is accepted")
    expire(stage)
    until(lambda: halves.account.listing("c") == [], "the row is gone")
    stamps = {policy: {answer.headers.get("X-Backend-Timestamp") for answer in in_how_many(stage, Spot(stage, *halves.object.names, policy=policy))
                       if answer.status == 404} - {None} for policy in (0, 1)}
    found = {policy: values for policy, values in stamps.items() if values}
    assert len(found) == 1 and all(value > created for values in found.values() for value in values if value)


def test_scenario_94_no_updates_are_left_over(stage: Stage, own: Account) -> None:
    for policy in ("gold", "silver"):
        own.put(policy, headers={"X-Storage-Policy": policy}).expect(201)
    due = int(time.time()) + 5
    for policy in ("gold", "silver"):
        own.put(policy, "o", body=b"x", headers={"X-Delete-At": str(due)}).expect(201)
    now_is(due + 1)
    expire(stage)
    for policy in ("gold", "silver"):
        own.get(policy, "o").expect(404)
        assert own.listing(policy) == []
    assert [path for path in stage.devices.glob("*/async_pending*/*/*") if path.is_file()] == []


def test_scenario_95_an_object_that_was_written_anew_is_kept(stage: Stage) -> None:
    halves = Halves(stage)
    halves.account.put("c").expect(201, 202)
    due = halves.put(due_in=4, X_Object_Meta_Test="old")
    now_is(due + 1)
    with halves.on(2):
        halves.put(b"anew", X_Object_Meta_Test="new")
    with halves.on(1):
        expire(stage)
        until(lambda: halves.status() == 404, "it is gone on this half")
    stage.final_state(*SERVERS)
    answer = halves.account.get("c", halves.name).expect(200)
    assert (answer.body, answer.headers["X-Object-Meta-Test"]) == (b"anew", "new")
    assert [row["name"] for row in halves.account.listing("c")] == [halves.name]


def test_scenario_96_98_expired_objects_are_shown_to_those_who_ask(stage: Stage, own: Account) -> None:
    lenient = stage.internal(own)
    own.put("c").expect(201)
    due = int(time.time()) + 5
    for name in ("o", "p"):
        own.put("c", name, body=b"body", headers={"X-Delete-At": str(due), "X-Object-Meta-Test": "meta"}).expect(201)
    now_is(due + 1)
    own.get("c", "o").expect(404)
    for method in ("HEAD", "GET", "POST"):
        own.request(method, "c", "o", headers=OPEN).expect(404)
    answer = lenient.get("c", "o", headers=OPEN).expect(200)
    assert (answer.body, answer.headers["X-Object-Meta-Test"]) == (b"body", "meta")
    lenient.head("c", "o", headers=OPEN).expect(200)
    spot = Spot(stage, own.name, "c", "p")
    assert [answer.status for answer in in_how_many(stage, spot, **{"X-Backend-Open-Expired": "true"})] == [200] * 3
    lenient.post("c", "o", headers={**OPEN, "X-Delete-At": str(int(time.time()) + 3600)}).expect(202)
    expire(stage)
    own.get("c", "o").expect(200)
    lenient.get("c", "p", headers=OPEN).expect(404)
    due = int(time.time()) + 5
    own.post("c", "o", headers={"X-Delete-At": str(due)}).expect(202)
    now_is(due + 1)
    expire(stage)
    lenient.get("c", "o", headers=OPEN).expect(404)
    assert own.listing("c") == []


def test_scenario_97_parts_of_an_expired_large_object(stage: Stage, own: Account) -> None:
    lenient = stage.internal(own)
    own.put("c").expect(201)
    due = int(time.time()) + 8
    for number in range(2):
        own.put("c", f"s{number}", body=b"x" * 1000, headers={"X-Delete-At": str(due)}).expect(201)
    manifest = json.dumps([{"path": f"/c/s{number}"} for number in range(2)]).encode()
    own.put("c", "large", query="multipart-manifest=put", body=manifest, headers={"X-Delete-At": str(due)}).expect(201)
    now_is(due + 1)
    own.head("c", "large").expect(404)
    headers = lenient.head("c", "large", query="part-number=1", headers=OPEN).expect(206).headers
    assert (headers["Content-Range"], headers["Content-Length"], headers["X-Parts-Count"], headers["X-Static-Large-Object"]) == (
        "bytes 0-999/2000", "1000", "2", "True")
    for number in range(2):
        own.head("c", f"s{number}").expect(404)
    expire(stage)
    for name in ("large", "s0", "s1"):
        lenient.head("c", name, headers=OPEN).expect(404)


def sizes_in_queue(stage: Stage, target: str) -> list[str]:
    """What each replica of the queue's container says of the size of an object."""
    found = []
    for entry in Account(stage.internal_endpoint, f"/v1/{QUEUE}", "internal").listing():
        spot = Spot(stage, QUEUE, entry["name"])
        for node in spot.primaries:
            spot.ask(node)
            with closing(sqlite3.connect(spot.database(node))) as connection:
                found += [kind.rpartition("swift_expirer_bytes=")[2] for name, kind in connection.execute(
                    "SELECT name, content_type FROM object WHERE deleted = 0") if name.endswith(f"-{target}")]
    return sorted(found)


def test_scenario_99_sizes_in_the_queue_agree_in_the_end(stage: Stage) -> None:
    halves = Halves(stage)
    halves.account.put("c").expect(201, 202)
    with halves.on(1):
        halves.put(b"x" * 24)
    with halves.on(2):
        halves.put(b"x" * 32)
    until(lambda: halves.account.post("c", halves.name, headers={"X-Delete-After": "3600"}).expect(202), "the POST is accepted")
    target = "/".join(halves.object.names)
    stage.passes([("container-updater", 0)])
    until(lambda: sizes_in_queue(stage, target) == ["24", "24", "32"], "each object server has told what it has")
    stage.final_state("container")
    assert sizes_in_queue(stage, target) == ["32"] * 3


@pytest.mark.parametrize("older", [False, True], ids=["none", "an older version"])
def test_scenario_100_the_entry_waits_for_the_object(stage: Stage, older: bool) -> None:
    halves = Halves(stage)
    halves.account.put("c").expect(201, 202)
    if older:
        halves.put(b"older")
    with halves.on(2):
        due = halves.put(due_in=4)
    stage.passes([("object-updater", 0), *(("container-replicator", site) for site in range(stage.sites))])  # each half knows the entry
    target = "/".join(halves.object.names)
    now_is(due + 1)
    with halves.on(1):
        expire(stage)
        assert len(entries(stage, target)) == 1
        assert [row["name"] for row in halves.account.listing("c")] == [halves.name]
    stage.final_state(*SERVERS)
    assert halves.status() == 404
    expire(stage)
    until(lambda: halves.account.listing("c") == [], "the row is gone")
    assert entries(stage, target) == []
    assert all(answer.headers.get("X-Backend-Timestamp") for answer in in_how_many(stage, halves.object))


def test_scenario_101_segments_go_after_their_manifest(stage: Stage, own: Account) -> None:
    own.put("c").expect(201)
    own.put("segments").expect(201)
    for number in range(3):
        own.put("segments", f"s{number}", body=b"x" * 10).expect(201)
    manifest = json.dumps([{"path": f"/segments/s{number}"} for number in range(3)]).encode()
    own.put("c", "large", query="multipart-manifest=put", body=manifest).expect(201)
    own.delete("c", "large", query="multipart-manifest=delete&async=true").expect(204)
    own.get("c", "large").expect(404)
    assert own.listing("c") == []
    assert len(own.listing("segments")) == 3
    assert own.get("segments", "s1").expect(200).body == b"x" * 10
    stage.passes([("object-updater", 0), ("container-updater", 0)])
    expire(stage)
    own.get("segments", "s1").expect(404)
    until(lambda: own.listing("segments") == [], "they are gone")


# -- scenario 6 of the source --------------------------------------------------------------------------------------------


def test_an_object_expires_once_and_one_rewritten_with_another_time_does_not(stage: Stage, own: Account) -> None:
    """Put with X-Delete-After; a row in the queue; 404 as soon as it is due; then tombstone, row and entry go; 412 keeps the other."""
    own.put("c").expect(201)
    own.put("c", "goes", body=b"x", headers={"X-Delete-After": "8"}).expect(201)
    due = int(own.head("c", "goes").headers["X-Delete-At"])
    own.put("c", "stays", body=b"x", headers={"X-Delete-At": str(due)}).expect(201)
    own.put("c", "stays", body=b"anew", headers={"X-Delete-At": str(due + 3600)}).expect(201)
    targets = [f"{own.name}/c/{name}" for name in ("goes", "stays")]
    until(lambda: [len(entries(stage, target)) for target in targets] == [1, 2], "the queue has all", every_s=0.5)
    assert [row["name"] for row in own.listing("c")] == ["goes", "stays"]
    now_is(due + 0.1)
    own.get("c", "goes").expect(404)
    assert [row["name"] for row in own.listing("c")] == ["goes", "stays"]  # until the expirer has been there
    late = expire(stage, reclaim_age=604800)
    assert late["lag_s"] == 0
    until(lambda: [row["name"] for row in own.listing("c")] == ["stays"], "the row is gone")
    spot = Spot(stage, own.name, "c", "goes")
    assert {answer.status for answer in in_how_many(stage, spot)} == {404} and all(spot.folder(node).glob("*.ts") for node in spot.primaries)
    assert own.get("c", "stays").expect(200).body == b"anew"
    assert entries(stage, targets[0]) == []
    assert sorted(entries(stage, targets[1])) == [f"{moment:010}-{targets[1]}" for moment in (due, due + 3600)]  # 412: it may yet come
    expire(stage, reclaim_age=0.001)
    assert entries(stage, targets[1]) == [f"{due + 3600:010}-{targets[1]}"]  # given up once it is that old
    assert own.get("c", "stays").expect(200).body == b"anew"
