"""What an expirer's DELETE may take along: nothing that this server has not seen."""

from __future__ import annotations

import os

import pytest

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
