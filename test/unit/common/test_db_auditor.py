"""Auditors of databases: what is torn is put aside, what does not add up is reported, and what is busy is left alone."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keelstore.common.broker import Broker
from test.support.cluster import InProcessCluster
from test.support.daemons import Daemons
from test.support.databases import Replicas


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[InProcessCluster]:
    cluster = InProcessCluster(tmp_path, nodes=3, devices=1)
    cluster.ask("PUT", "/v1/a/c")
    cluster.ask("PUT", "/v1/a/c/o", body=b"1234")
    yield cluster
    cluster.close()


@pytest.fixture
def daemons(cluster: InProcessCluster) -> Daemons:
    return Daemons(cluster)


@pytest.fixture(params=["container", "account"])
def replicas(request: pytest.FixtureRequest, cluster: InProcessCluster) -> Replicas:
    return Replicas(cluster, "a", "c" if request.param == "container" else "")


def audit(daemons: Daemons, replicas: Replicas, **options: Any) -> tuple[int, int, int]:
    auditor = daemons.auditor(replicas.kind, replicas.node_of(replicas.primaries[0]), **options)
    auditor.run_once()
    return auditor.passed, auditor.failed, auditor.quarantined


def test_what_is_well_passes_and_is_counted(daemons: Daemons, replicas: Replicas) -> None:
    assert audit(daemons, replicas) == (1, 0, 0)
    left = json.loads((daemons.recon(replicas.node_of(replicas.primaries[0])) / f"{replicas.kind}.recon").read_text())
    assert (left[f"{replicas.kind}_audits_passed"], left[f"{replicas.kind}_audits_failed"]) == (1, 0)
    assert left[f"{replicas.kind}_auditor_pass_completed"] >= 0 and left[f"{replicas.kind}_audits_since"] > 1_700_000_000


@pytest.mark.parametrize("damage", ["empty", "noise", "torn page", "no stat row"])
def test_what_is_torn_is_put_aside(daemons: Daemons, replicas: Replicas, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    path = replicas.path(replicas.primaries[0])
    replicas.state(replicas.primaries[0])  # nothing waits in the pending file
    if damage == "empty":
        path.write_bytes(b"")
    elif damage == "noise":
        path.write_bytes(b"\x00nothing" * 2000)
    elif damage == "torn page":
        data = bytearray(path.read_bytes())
        for page in range(2, len(data) // 4096):
            data[page * 4096 : page * 4096 + 200] = b"\xff" * 200
        path.write_bytes(bytes(data))
    else:
        with sqlite3.connect(path) as connection:
            connection.execute(f"DELETE FROM {'container_info' if replicas.container else 'account_stat'}")
        connection.close()
    assert audit(daemons, replicas) == (0, 1, 1)
    assert not path.exists()
    assert list((daemons.cluster.device_path(replicas.primaries[0].device) / "quarantined" / f"{replicas.kind}s").iterdir())
    assert "corrupt" in caplog.text
    assert audit(daemons, replicas) == (0, 0, 0)


def test_counts_that_do_not_add_up_are_reported_and_nothing_is_moved(
    daemons: Daemons, replicas: Replicas, caplog: pytest.LogCaptureFixture,
) -> None:
    node = replicas.primaries[0]
    replicas.state(node)
    with sqlite3.connect(replicas.path(node)) as connection:
        connection.execute("UPDATE policy_stat SET object_count = object_count + 5")
    connection.close()
    assert audit(daemons, replicas) == (0, 1, 0)
    assert "Audit failed" in caplog.text and replicas.path(node).exists()
    if replicas.container:  # finding it takes a look at all rows
        assert audit(daemons, replicas, check_time=0) == (1, 0, 0)


def test_a_check_that_would_take_too_long_is_not_finished(daemons: Daemons, replicas: Replicas, monkeypatch: pytest.MonkeyPatch) -> None:
    from keelstore.common import db_auditor

    monkeypatch.setattr(db_auditor, "STEPS", 1)
    assert audit(daemons, replicas, check_time=1e-9) == (1, 0, 0)


def test_what_is_locked_is_left_for_the_next_pass(
    daemons: Daemons, replicas: Replicas, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:
    def is_locked(broker: Broker) -> Any:
        raise sqlite3.OperationalError("database is locked")

    monkeypatch.setattr(Broker, "open_apart", is_locked)
    assert audit(daemons, replicas, check_time=1) == (1, 0, 0)
    assert "locked" not in caplog.text and replicas.path(replicas.primaries[0]).exists()


def test_a_plan(daemons: Daemons, replicas: Replicas) -> None:
    node = replicas.primaries[0]
    assert list(daemons.auditor(replicas.kind, replicas.node_of(node)).dry_run()) == [f"check {replicas.path(node).parent}"]
