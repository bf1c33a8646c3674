"""Fault scenarios of container sync (``spec: scenarios-fault`` 5; the numbers are its rows), over processes."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest

from test.support.client import Account, Answer, unique
from test.support.stage import Spot, Stage
from test.support.waiting import until

KEY = {"X-Container-Sync-Key": "secret"}


@dataclass
class Synced:
    """Two accounts, and in each a container: what is written to the source is to come to the copy."""

    stage: Stage
    ours: Account
    theirs: Account
    source: str
    copy: str

    @classmethod
    def make(cls, stage: Stage, source_key: bool = True, copy_key: bool = True, **headers: str) -> Synced:
        made = cls(stage, stage.own(), stage.own(), unique("source"), unique("copy"))
        made.theirs.put(made.copy, headers={"X-Storage-Policy": "silver", **(KEY if copy_key else {}), **headers}).expect(201)
        made.ours.put(made.source, headers={**made.to(), **(KEY if source_key else {})}).expect(201)
        return made

    def to(self) -> dict[str, str]:
        return {"X-Container-Sync-To": f"//realm/here/{self.theirs.name}/{self.copy}"}

    def put(self, name: str, body: bytes = b"body", **options: Any) -> None:
        until(lambda: self.ours.put(self.source, name, body=body, **options).expect(201), "it is taken")

    def sync(self) -> None:
        """One pass at each site: so each row has been the turn of one of them."""
        self.stage.passes([("container-sync", site) for site in range(self.stage.sites)])

    def there(self, name: str, **options: Any) -> Answer:
        return self.theirs.get(self.copy, name, **options)


@pytest.fixture
def synced(stage: Stage) -> Synced:
    return Synced.make(stage)


def test_scenario_28_29_30_35_36_what_is_done_to_the_source_is_done_to_the_copy(synced: Synced) -> None:
    synced.put("o", headers={"X-Object-Meta-Color": "red", "Content-Type": "text/one"})
    synced.put("gone")
    synced.ours.delete(synced.source, "gone").expect(204)
    synced.put("after")
    synced.put("newer", b"older")
    synced.theirs.put(synced.copy, "newer", body=b"newer").expect(201)
    synced.sync()
    answer = synced.there("o").expect(200)
    assert (answer.body, answer.headers["X-Object-Meta-Color"], answer.headers["Content-Type"]) == (b"body", "red", "text/one")
    assert synced.there("after").expect(200).body == b"body"  # the deletion of what was never there did not stop it
    synced.there("gone").expect(404)
    assert synced.there("newer").expect(200).body == b"newer"
    synced.ours.post(synced.source, "o", headers={"X-Object-Meta-Color": "blue", "Content-Type": "text/two"}).expect(202)
    synced.sync()
    answer = synced.there("o").expect(200)
    assert (answer.body, answer.headers["X-Object-Meta-Color"], answer.headers["Content-Type"]) == (b"body", "blue", "text/two")
    synced.ours.delete(synced.source, "o").expect(204)
    synced.sync()
    synced.there("o").expect(404)


def test_scenario_31_a_large_object_waits_for_its_segments(synced: Synced) -> None:
    segments = unique("segments")
    synced.ours.put(segments, headers={"X-Container-Sync-To": f"//realm/here/{synced.theirs.name}/{segments}", **KEY}).expect(201)
    synced.theirs.put(segments).expect(201)  # it has no key
    for number in range(3):
        synced.ours.put(segments, f"s{number}", body=b"%d" % number * 10).expect(201)
    manifest = json.dumps([{"path": f"/{segments}/s{number}"} for number in range(3)]).encode()
    synced.ours.put(synced.source, "large", query="multipart-manifest=put", body=manifest).expect(201)
    synced.sync()
    known = synced.ours.get(synced.source, "large", query="multipart-manifest=get").expect(200)
    assert synced.there("large", query="multipart-manifest=get").expect(200).json() == known.json()
    synced.there("large").expect(409)
    synced.theirs.post(segments, headers=KEY).expect(204)
    synced.sync()
    assert synced.there("large").expect(200).body == b"".join(b"%d" % number * 10 for number in range(3))


@pytest.mark.parametrize("row", [32, 33])
def test_scenario_32_33_a_key_that_comes_later(stage: Stage, row: int) -> None:
    synced = Synced.make(stage, source_key=row != 32, copy_key=row != 33)
    synced.put("o")
    synced.sync()
    synced.there("o").expect(404)
    if row == 32:
        synced.ours.post(synced.source, headers=KEY).expect(204)
    else:
        synced.theirs.post(synced.copy, headers=KEY).expect(204)
    synced.sync()
    assert synced.there("o").expect(200).body == b"body"


def test_scenario_34_a_listing_that_is_behind_sends_the_newest(stage: Stage, synced: Synced) -> None:
    synced.put("o", b"old", headers={"Content-Type": "text/old"})
    with stage.without(0, 1, 2, 3, kinds=("container",)):
        synced.put("o", b"newest body", headers={"Content-Type": "text/new"})
    until(lambda: synced.ours.listing(synced.source), "the servers are asked again")
    assert synced.ours.listing(synced.source)[0]["content_type"] == "text/old"
    synced.sync()
    ours, theirs = synced.ours.get(synced.source, "o").expect(200), synced.there("o").expect(200)
    assert ours.body == theirs.body == b"newest body"
    for name in ("Etag", "Content-Length", "Content-Type", "X-Timestamp", "Last-Modified"):
        assert ours.headers[name] == theirs.headers[name]


def link(target: str, **headers: str) -> dict[str, Any]:
    return {"headers": {"X-Symlink-Target": target, "Content-Type": "application/symlink", **headers}, "body": b""}


def test_scenario_37_38_symlinks_to_what_comes_later_and_to_another_account(stage: Stage, synced: Synced) -> None:
    targets, elsewhere = unique("targets"), stage.own()
    synced.ours.put(targets, headers={"X-Container-Sync-To": f"//realm/here/{synced.theirs.name}/{targets}", **KEY}).expect(201)
    synced.theirs.put(targets).expect(201)
    synced.ours.put(targets, "t", body=b"target").expect(201)
    elsewhere.put("c", headers={"X-Container-Read": ".r:*"}).expect(201)
    elsewhere.put("c", "t", body=b"of another").expect(201)
    synced.put("link", **link(f"{targets}/t"))
    synced.put("far", **link("c/t", **{"X-Symlink-Target-Account": elsewhere.name}))
    synced.sync()
    synced.there("link").expect(404)
    assert synced.there("link", query="symlink=get").expect(200).headers["X-Symlink-Target"] == f"{targets}/t"
    headers = synced.there("far", query="symlink=get").expect(200).headers
    assert (headers["X-Symlink-Target"], headers["X-Symlink-Target-Account"]) == ("c/t", elsewhere.name)
    assert synced.there("far").expect(200).body == b"of another"
    synced.theirs.post(targets, headers=KEY).expect(204)
    synced.sync()
    assert synced.there("link").expect(200).body == b"target"


@pytest.mark.parametrize("row", [39, 40])
def test_scenario_39_40_static_symlinks_to_a_third_container(stage: Stage, synced: Synced, row: int) -> None:
    third = stage.own()
    third.put("c", headers={"X-Container-Read": ".r:*"}).expect(201)
    etag = third.put("c", "t", body=b"target").expect(201).headers["Etag"]
    synced.put("link", **link("c/t", **{"X-Symlink-Target-Account": third.name, "X-Symlink-Target-Etag": etag}))
    synced.put("plain")
    if row == 40:
        third.put("c", "t", body=b"changed").expect(201)
    synced.sync()
    assert synced.there("plain").expect(200).body == b"body"
    answer = synced.there("link").expect(200 if row == 39 else 409)
    assert answer.headers["Content-Location"] == f"{third.path}/c/t"
    assert row == 40 or answer.body == b"target"


def test_scenario_41_a_static_symlink_and_its_target_in_one_container(stage: Stage) -> None:
    synced = Synced.make(stage)
    synced.put("t", b"target")
    etag = synced.ours.head(synced.source, "t").headers["Etag"]
    synced.put("link", **link(f"{synced.source}/t", **{"X-Symlink-Target-Etag": etag}))
    synced.sync()
    assert synced.there("t").expect(200).body == b"target"
    # Its target is named by container: it is read where a container of that name has it.
    synced.theirs.put(synced.source).expect(201)
    synced.theirs.put(synced.source, "t", body=b"target").expect(201)
    assert synced.there("link").expect(200).body == b"target"


def test_scenario_42_43_versions_of_a_copy_and_none_of_a_source(stage: Stage) -> None:
    synced = Synced.make(stage)
    assert b"sync" in synced.ours.post(synced.source, headers={"X-Versions-Enabled": "true"}).expect(400).body.lower()
    synced.theirs.post(synced.copy, headers={"X-Versions-Enabled": "true"}).expect(204)
    for body in (b"one", b"two"):
        synced.put("o", body)
        synced.sync()
    found = synced.theirs.listing(synced.copy, query="versions")
    assert len(found) == 2
    assert [synced.there("o", query=f"version-id={row['version_id']}").body for row in found] == [b"two", b"one"]
    versioned = unique("versioned")
    synced.ours.put(versioned, headers={"X-Versions-Enabled": "true"}).expect(201)
    synced.ours.post(versioned, headers=synced.to()).expect(400)
    synced.ours.post(versioned, headers=KEY).expect(204)


def test_scenario_44_a_versioned_source_is_left_alone(stage: Stage) -> None:
    synced = Synced.make(stage)
    spot = Spot(stage, synced.ours.name, synced.source)
    synced.put("o")
    for node in spot.primaries:  # what no proxy lets through
        with closing(sqlite3.connect(spot.database(node))) as connection:
            (text,) = connection.execute("SELECT metadata FROM container_stat").fetchone()
            metadata = json.loads(text)
            stamp = next(iter(metadata.values()))[1]
            metadata["X-Container-Sysmeta-Versions-Enabled"] = ["True", stamp]
            metadata["X-Container-Sysmeta-Versions-Container"] = ["%00versions%00x", stamp]
            connection.execute("UPDATE container_stat SET metadata = ?", (json.dumps(metadata),))
            connection.commit()
    synced.sync()
    synced.there("o").expect(404)


@pytest.fixture(autouse=True)
def nothing_else_is_synced(stage: Stage) -> Iterator[None]:
    """Links of the containers of earlier tests would be looked at in each pass."""
    yield
    for path in stage.devices.glob("*/sync_containers/*/*/*/*"):
        path.unlink()
