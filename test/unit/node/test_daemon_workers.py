"""A daemon as several processes, each with its share of the devices."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelstore.node.daemon_workers import shares
from test.support.cluster import InProcessCluster
from test.unit.node.test_daemons import conf_for, run


@given(st.sets(st.text("abc", min_size=1), max_size=12), st.integers(1, 20))
def test_every_device_is_somebodys_and_nobody_has_none(devices: set[str], count: int) -> None:
    found = shares(devices, count)
    assert sorted(name for share in found for name in share) == sorted(devices)
    assert len(found) == min(count, len(devices)) and all(found)
    assert max(map(len, found), default=0) - min(map(len, found), default=0) <= 1


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[InProcessCluster]:
    cluster = InProcessCluster(tmp_path)
    yield cluster
    cluster.close()


def test_two_processes_share_the_devices(cluster: InProcessCluster) -> None:
    conf = conf_for(cluster, "object", "[object-reconstructor]\nreconstructor_workers = 2\n")
    done = run("object-reconstructor", conf, "once")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    found = next(json.loads(path.read_text()) for path in cluster.root.rglob("object.recon"))
    each = found["object_reconstruction_per_disk"]
    assert sorted(each) == ["d00", "d01"] and len({entry["pid"] for entry in each.values()}) == 2
    state = next(json.loads(path.read_text()) for path in cluster.root.rglob("daemons.recon"))
    assert len(state["workers"]) == 2 and state["daemons"]["object-reconstructor"]["passes"] == 1
    assert found["object_reconstruction_last"] == min(entry["object_reconstruction_last"] for entry in each.values())
