"""Fault scenarios of containers (``spec: scenarios-fault`` 1, 3) and of a container that two halves of a cluster made under different
policies (4); the numbers are its rows.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager

import pytest

from test.support.client import Account, Answer, unique
from test.support.stage import Spot, Stage
from test.support.waiting import until

POLICIES = ("gold", "silver")
EVERYTHING = ("object", "container")


@pytest.fixture
def own(stage: Stage) -> Iterator[Account]:
    yield stage.own()


def shown(answer: Answer) -> tuple[int, ...]:
    return tuple(int(answer.headers[f"X-Account-{what}"]) for what in ("Container-Count", "Object-Count", "Bytes-Used"))


# -- accounts and containers ---------------------------------------------------------------------------------------------


def test_scenario_06_a_server_that_missed_it_all_shows_the_same_in_the_end(stage: Stage, own: Account) -> None:
    for name in ("container1", "container2"):
        own.put(name).expect(201)
    own.put("container2", "o", body=b"1234").expect(201)
    stage.final_state()
    account = Spot(stage, own.name)
    away = account.primaries[0]
    with stage.without(account.sites[0], *account.others, kinds=("account",)):
        own.delete("container1").expect(204)
        own.put("container2", "second", body=b"12345").expect(201)
        stage.passes([("container-updater", 0)])
        assert shown(own.head()) == (1, 2, 9)
    assert account.listed(away) == ["container1", "container2"] and shown(account.ask(away, "HEAD")) == (2, 1, 4)
    stage.final_state()
    assert account.listed(away) == ["container2"] and shown(account.ask(away, "HEAD")) == (1, 2, 9)


def test_scenario_07_an_account_that_is_empty_looks_like_one_that_is_not_there(stage: Stage) -> None:
    there, absent = stage.own(), stage.own()
    there.put("c").expect(201)
    there.delete("c").expect(204)
    for kind in ("text/plain", "application/json", "text/xml"):
        empty, none = there.get(headers={"Accept": kind}), absent.get(headers={"Accept": kind})
        assert (empty.status, empty.headers.get("Content-Type")) == (none.status, none.headers.get("Content-Type"))
        assert empty.body.replace(there.name.encode(), b"NAME") == none.body.replace(absent.name.encode(), b"NAME")
    assert Spot(stage, absent.name).statuses() == [404] * 3


def test_scenario_12_a_row_newer_than_the_deletion_makes_the_container_anew(stage: Stage, own: Account) -> None:
    own.put("c").expect(201)
    container = Spot(stage, own.name, "c")
    away = container.sites[0]
    with stage.without(*container.others, kinds=("container",)):
        with stage.without(away, kinds=("container",)):
            own.delete("c").expect(204)
        until(lambda: own.put("c", "o", body=b"123").status in (201, 404), "the servers are asked again")
        if own.put("c", "o", body=b"123").status == 404:  # the proxy believes the two that know of the deletion: so another one took it
            obj = Spot(stage, own.name, "c", "o")
            for node, target in zip(obj.primaries, container.primaries, strict=True):
                obj.ask(node, "PUT", {"X-Timestamp": f"{time.time():.5f}", "Content-Type": "text/plain", "X-Container-Partition": container.part,
                                      "X-Container-Host": f"{target.ip}:{target.port}", "X-Container-Device": target.device}, body=b"123").expect(201)
    stage.final_state()
    assert [container.listed(node) for node in container.primaries] == [["o"]] * 3
    assert shown(own.head()) == (1, 1, 3)


def test_scenario_13_14_what_a_post_does_to_the_time_of_a_container(stage: Stage, own: Account) -> None:
    own.put("c").expect(201)
    container = Spot(stage, own.name, "c")
    stage.final_state("container")
    before = container.headers()[1]
    stamp = {"X-Timestamp": f"{time.time():.5f}", "X-Container-Meta-Fruit": "apple"}
    container.ask(container.primaries[1], "POST", {**stamp, "X-Backend-No-Timestamp-Update": "true"}).expect(204)
    assert container.headers()[1] == {**before, "X-Container-Meta-Fruit": "apple"}
    stage.final_state("container")
    first = container.headers()
    assert first[0] == first[1] == first[2] == {**before, "X-Container-Meta-Fruit": "apple"}
    time_of = ("X-Backend-Put-Timestamp", "X-Put-Timestamp", "Last-Modified")
    until(lambda: time.time() > float(first[1]["X-Put-Timestamp"]) + 1.1, "a second has gone by")
    container.ask(container.primaries[1], "POST", {"X-Timestamp": f"{time.time():.5f}", "X-Container-Meta-Fruit": "apple"}).expect(204)
    second = container.headers()[1]
    assert all(second[name] != first[1][name] for name in time_of)
    assert float(second["X-Put-Timestamp"]) > float(first[1]["X-Put-Timestamp"])
    assert {name: value for name, value in second.items() if name not in time_of} == {
        name: value for name, value in first[1].items() if name not in time_of}
    stage.final_state("container")
    assert container.headers()[0] == container.headers()[1] == container.headers()[2] == second


def test_scenario_15_one_server_that_took_a_deletion_tells_all(stage: Stage, own: Account) -> None:
    own.put("c").expect(201)
    container = Spot(stage, own.name, "c")
    account = Spot(stage, own.name)
    with stage.without(*container.others, *container.sites[:2], kinds=("container",)):
        told = account.primaries[0]
        container.ask(container.primaries[2], "DELETE", {
            "X-Timestamp": f"{time.time():.5f}", "X-Account-Host": f"{told.ip}:{told.port}", "X-Account-Partition": account.part,
            "X-Account-Device": told.device}).expect(204)
    stage.final_state()
    assert container.statuses() == [404] * 3
    assert shown(own.head()) == (0, 0, 0)


# -- split brain ---------------------------------------------------------------------------------------------------------


class Split:
    """A container that each half of its servers made under a policy of its own, while the other half was away."""

    def __init__(self, stage: Stage, reserved: bool):
        mark = "\x00" if reserved else ""
        self.stage, self.account = stage, stage.internal(stage.own())
        self.account.put("first").expect(201)  # an account that is new takes a container only when all know of it
        self.container, self.obj = f"{mark}{unique('c')}", f"{mark}o"
        self.spot = Spot(stage, self.account.name, self.container)
        one = self.spot.half
        self.half = {1: one, 2: (2, 3) if one == (0, 1) else (0, 1)}
        self.headers = {"X-Backend-Allow-Reserved-Names": "true"}

    def on(self, half: int) -> AbstractContextManager[None]:
        return self.stage.without(*self.half[3 - half], kinds=("container",))

    def make(self, policy: int, **headers: str) -> None:
        self.account.put(self.container, headers={"X-Storage-Policy": POLICIES[policy], **self.headers, **headers}).expect(201, 202)

    def put(self, body: bytes = b"body", obj: str = "", **headers: str) -> None:
        until(lambda: self.account.put(self.container, obj or self.obj, body=body, headers={**self.headers, **headers}).expect(201), "it is taken")

    def put_directly(self, obj: str, body: bytes, **headers: str) -> None:
        """Under the wrong policy, on the servers themselves."""
        spot = Spot(self.stage, self.account.name, self.container, obj, policy=1)
        for node in spot.primaries:
            spot.ask(node, "PUT", {
                "X-Timestamp": f"{time.time():.5f}", "Content-Type": "x/y", "X-Container-Partition": self.spot.part,
                "X-Container-Host": ",".join(f"{one.ip}:{one.port}" for one in self.spot.primaries),
                "X-Container-Device": ",".join(one.device for one in self.spot.primaries), **headers}, body=body).expect(201)

    def delete(self) -> None:
        until(lambda: self.account.delete(self.container, self.obj, headers=self.headers).expect(204, 404), "it is taken")

    def forget(self) -> None:
        """Proxies forget what they knew of the container."""
        until(lambda: self.account.post(self.container, headers=self.headers).expect(204), "the POST is taken")

    def policies(self) -> list[int]:
        found = []
        for node in self.spot.primaries:
            answer = self.spot.ask(node, "HEAD")
            found.append(int(answer.headers["X-Backend-Storage-Policy-Index"]))
        return found

    def at(self, policy: int, obj: str = "") -> list[int]:
        """What all devices answer for the object under a policy."""
        spot = Spot(self.stage, self.account.name, self.container, obj or self.obj, policy=policy)
        return [spot.ask(node, "HEAD").status for node in (*spot.primaries, *spot.handoffs)]

    def reconcile(self) -> None:
        self.stage.final_state(*EVERYTHING)
        self.reconcile_once()

    def reconcile_once(self) -> None:
        self.stage.passes([("container-reconciler", 0)])

    def queue(self) -> set[str]:
        """Names of the entries that wait for the reconciler and are about our container."""
        found = set()
        queue = Account(self.stage.internal_endpoint, "/v1/.misplaced_objects", "internal")
        for entry in queue.listing():
            found |= {row["name"] for row in queue.listing(entry["name"]) if f"/{self.account.name}/{self.container}/" in row["name"]}
        return found

    def get(self, **headers: str) -> Answer:
        return self.account.get(self.container, self.obj, headers={**self.headers, **headers})


@pytest.fixture(params=[False, True], ids=["plain", "scenario_25"])
def split(stage: Stage, request: pytest.FixtureRequest) -> Split:
    return Split(stage, request.param)


def test_scenario_19_25_an_object_comes_under_the_policy_of_its_container(split: Split) -> None:
    with split.on(2):
        split.make(0)
    with split.on(1):
        split.make(1)
        split.put(b"body", **{"X-Object-Meta-Test": "meta"})
    assert len(set(split.policies())) == 2
    split.reconcile()
    assert split.policies() == [0, 0, 0]
    assert set(split.at(1)) == {404}
    split.forget()
    answer = split.get().expect(200)
    assert (answer.body, answer.headers["X-Object-Meta-Test"]) == (b"body", "meta")


def test_scenario_20_25_a_deletion_under_the_other_policy(split: Split) -> None:
    with split.on(2):
        split.make(0)
        split.put()
    with split.on(1):
        split.make(1)
        split.delete()
    assert len(set(split.policies())) == 2
    split.reconcile()
    assert split.policies() == [0, 0, 0]
    split.forget()
    assert 200 not in split.at(0) and 200 not in split.at(1)
    split.get().expect(404)


def test_scenario_21_a_large_object_whose_segments_were_apart(stage: Stage) -> None:
    split = Split(stage, False)
    part = b"x" * 10
    with split.on(2):
        split.make(0)
        for number in range(10):
            split.put(part, f"part{number:02}")
    with split.on(1):
        split.make(1)
        for number in range(10, 20):
            split.put(part, f"part{number:02}")
    manifest = json.dumps([{"path": f"/{split.container}/part{number:02}"} for number in range(20)]).encode()
    split.account.put(split.container, "manifest", query="multipart-manifest=put", body=manifest).expect(400)
    rows = [{"name": f"/{split.container}/part{number:02}", "bytes": 10, "hash": hashlib.md5(part).hexdigest(), "content_type": "x/y",
             "last_modified": "2026-01-01T00:00:00.000000"} for number in range(20)]
    split.put_directly("placed", json.dumps(rows).encode(), **{"X-Static-Large-Object": "True"})
    split.reconcile()
    split.forget()
    split.account.put(split.container, "manifest", query="multipart-manifest=put", body=manifest).expect(201)
    for name in ("placed", "manifest"):
        assert split.account.get(split.container, name).expect(200).body == part * 20
    assert set(split.at(1, "part15")) == {404} and split.at(0, "part15").count(200) == 3


def test_scenario_22_25_a_symlink_comes_to_its_target(split: Split) -> None:
    target = "\x00target" if split.obj.startswith("\x00") else "target"
    with split.on(2):
        split.make(0)
        split.put(b"target", target)
    with split.on(1):
        split.make(1)
        split.put(b"", "", **{"X-Symlink-Target": f"{split.container}/{target}".replace("\x00", "%00"), "Content-Type": "application/symlink"})
        split.get().expect(404)
        assert "X-Symlink-Target" in split.account.get(split.container, split.obj, query="symlink=get", headers=split.headers).expect(200).headers
    split.reconcile()
    split.forget()
    assert split.get().expect(200).body == b"target"
    spot = Spot(split.stage, split.account.name, split.container, split.obj)
    assert all("X-Object-Sysmeta-Symlink-Target" in spot.ask(node, "HEAD").expect(200).headers for node in spot.primaries)


def test_scenario_23_24_25_a_container_made_anew_under_another_policy(split: Split) -> None:
    stage = split.stage
    split.make(0)
    with split.on(2):  # it has one primary and the handoff
        split.make(0)
        until(lambda: split.account.delete(split.container, headers=split.headers).expect(204), "it goes")
        until(lambda: split.account.put(split.container, headers={"X-Storage-Policy": POLICIES[1], **split.headers}).expect(201), "it is made anew")
        split.put(b"body", **{"X-Object-Meta-Test": "meta"})
    assert sorted(split.policies()) == [0, 0, 1]
    old = list(split.half[1])
    stage.passes([*(("container-replicator", site) for site in old), ("container-updater", 0)])
    if split.queue():  # the replicas of the old policy saw the object first
        split.reconcile_once()
    stage.final_state(*EVERYTHING)
    split.reconcile_once()
    stage.final_state(*EVERYTHING)
    split.reconcile_once()
    assert split.queue() == set()
    assert split.policies() == [1, 1, 1]
    assert split.at(1).count(200) >= 2 and 200 not in split.at(0)
    split.forget()
    answer = split.get().expect(200)
    assert (answer.body, answer.headers["X-Object-Meta-Test"]) == (b"body", "meta")


def versions(split: Split) -> list[dict[str, object]]:
    found: list[dict[str, object]] = split.account.listing(split.container, query="versions")
    return found


def test_scenario_26_versions_after_a_merge(stage: Stage) -> None:
    split = Split(stage, False)
    with split.on(2):
        split.make(0)
    with split.on(1):
        split.make(1)
        split.put(b"one")
    split.reconcile()
    until(lambda: split.account.post(split.container, headers={"X-Versions-Enabled": "true"}).expect(204), "versions are kept")
    split.put(b"two")
    found = versions(split)
    assert len(found) == 2
    bodies = {split.account.get(split.container, split.obj, query=f"version-id={row['version_id']}").expect(200).body for row in found}
    assert bodies == {b"one", b"two"}


def test_scenario_27_versions_kept_since_both_halves_were_made(stage: Stage) -> None:
    split = Split(stage, False)
    with split.on(2):
        split.make(0, **{"X-Versions-Enabled": "true"})
    with split.on(1):
        split.make(1, **{"X-Versions-Enabled": "true"})
        split.put(b"one")
    for _ in range(2):
        split.reconcile()
    split.forget()
    split.account.post(f"\x00versions\x00{split.container}", headers=split.headers).expect(204)
    split.put(b"two")
    found = versions(split)
    assert len(found) == 2
    bodies = [split.account.get(split.container, split.obj, query=f"version-id={row['version_id']}").expect(200).body for row in found]
    assert sorted(bodies) == [b"one", b"two"]
