"""What an expirer's DELETE may take along: nothing that this server has not seen."""

from __future__ import annotations

import os

import pytest

from keelstore.common import fs
from keelstore.common.timestamp import Timestamp
from test.support.objects import NOW, ServerBox, stamp

DUE = str(int(NOW) + 50)


@pytest.fixture
def box(tmp_path):
    return ServerBox(str(tmp_path))


def put(box, at, **headers):
    assert box.call("PUT", headers={"Content-Type": "text/plain", "Content-Length": "1", **headers}, body=b"x", at=at).status == 201


def names(box):
    return sorted(name for _, _, files in os.walk(box.devices) for name in files if name[-5:] in (".data", ".meta") or name.endswith(".ts"))


def test_an_expired_object_is_deleted_at_its_own_time_not_at_that_of_the_request(box):
    put(box, 10, **{"X-Delete-At": DUE})
    box.clock.now = NOW + 100
    assert box.call("DELETE", headers={"X-If-Delete-At": DUE}, at=50).status == 204
    assert names(box) == [f"{Timestamp(stamp(10), offset=1).internal}.ts"]


def test_a_newer_object_that_this_server_missed_survives(box):
    """Found by the simulation, seed 16: the expirer's tombstone of the stale replica won over an acknowledged PUT."""
    put(box, 10, **{"X-Delete-At": DUE})
    box.clock.now = NOW + 100
    assert box.call("DELETE", headers={"X-If-Delete-At": DUE}, at=50).status == 204
    put(box, 20)  # as a replicator brings it
    assert box.call("GET").status == 200
    assert names(box) == [f"{stamp(20).internal}.data"]


def listed(monkeypatch):
    """Of which hash directories the names were read."""
    found, listdir = [], os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: (found.append(path), listdir(path))[1])
    return found


def test_the_only_file_goes_without_another_look(box, monkeypatch):
    put(box, 10)
    looks = listed(monkeypatch)
    assert box.call("DELETE", at=20).status == 204
    assert len(looks) == 1 and names(box) == [f"{stamp(20).internal}.ts"]


def test_what_is_not_alone_is_looked_for(box, monkeypatch):
    put(box, 10)
    assert box.call("POST", headers={"X-Object-Meta-A": "1"}, at=15).status == 202
    looks = listed(monkeypatch)
    assert box.call("DELETE", at=20).status == 204
    assert len(looks) == 2 and names(box) == [f"{stamp(20).internal}.ts"]


@pytest.mark.parametrize("at", [15, 30])
def test_what_came_since_the_look_is_left_to_the_next(box, monkeypatch, at):
    put(box, 10)
    create = fs.create_file

    def slipping_in(*args):
        monkeypatch.setattr(fs, "create_file", create)
        put(box, at)
        return create(*args)

    monkeypatch.setattr(fs, "create_file", slipping_in)
    assert box.call("DELETE", at=20).status == 204
    tombstone = f"{stamp(20).internal}.ts"
    assert names(box) == sorted([tombstone, f"{stamp(at).internal}.data"])
    assert box.call("GET").status == (404 if at < 20 else 200)
    assert box.call("REPLICATE", "/sda1/7").status == 200  # who asks for hashes cleans up
    assert names(box) == [tombstone if at < 20 else f"{stamp(at).internal}.data"]
