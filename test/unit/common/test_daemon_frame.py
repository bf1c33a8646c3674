"""What every daemon has: passes, plans, progress, what it leaves; and the walks and peers that daemons use."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keelstore.common import concurrency
from keelstore.common.daemon_frame import ALL, Daemon, Selection, World
from keelstore.common.device_walk import Device, databases, own_nodes, partitions, usable_devices
from keelstore.common.errors import BackendError
from keelstore.common.headers import Headers
from keelstore.common.http import Response
from keelstore.common.peers import Peers
from keelstore.common.recon_cache import ReconCache
from test.support import fakes

LOG = logging.getLogger("test.daemon")


class Counting(Daemon):
    name = "object-counter"
    starts_at_once = True

    def __init__(self, tmp_path: Path, limit: int = 1, interval_s: float = 60):
        super().__init__(World(LOG, recon=ReconCache(str(tmp_path))), interval_s, limit)
        self.done: list[int] = []

    def plan(self, only: Selection) -> Iterator[int]:
        yield from range(5)

    def carry_out(self, job: int) -> bool | None:
        self.done.append(job)
        if job == 1:
            raise ValueError("one that fails")
        return False if job == 2 else None

    def after_pass(self, only: Selection, took_s: float) -> None:
        self.world.leave("object", {"counter": took_s})


@pytest.mark.parametrize("limit", [1, 3])
def test_a_pass_carries_out_the_whole_plan_whatever_fails(tmp_path: Path, limit: int, caplog: pytest.LogCaptureFixture) -> None:
    daemon = Counting(tmp_path, limit)
    daemon.run_once()
    assert sorted(daemon.done) == [0, 1, 2, 3, 4]
    assert (daemon.progress.done, daemon.progress.failed) == (5, 2)
    assert "1 failed" in caplog.text and "one that fails" in caplog.text
    assert "counter" in json.loads((tmp_path / "object.recon").read_text())
    shown = json.loads((tmp_path / "daemons.recon").read_text())["daemons"]["object-counter"]
    assert (shown["passes"], shown["done"], shown["failed"], shown["running"]) == (1, 5, 2, False)


class Asked(Counting):
    """Remembers what each pass was restricted to."""

    def __init__(self, tmp_path: Path, interval_s: float = 60):
        super().__init__(tmp_path, interval_s=interval_s)
        self.passes_over: list[Selection] = []

    def plan(self, only: Selection) -> Iterator[int]:
        self.passes_over.append(only)
        yield 0


def test_what_an_operator_asks_for_comes_before_the_next_whole_pass(tmp_path: Path) -> None:
    daemon = Asked(tmp_path)
    task = concurrency.spawn(daemon.run_forever)
    concurrency.sleep(0.02)
    wishes = [Selection(devices=frozenset({"d1"})), Selection(partitions=frozenset({3}))]
    for wish in (*wishes, wishes[0]):
        daemon.ask(wish)
    concurrency.sleep(0.05)
    assert daemon.passes_over == [ALL, *wishes]
    daemon.wake()  # a whole one
    concurrency.sleep(0.05)
    assert daemon.passes_over == [ALL, *wishes, ALL]
    task.kill()


def test_a_daemon_that_is_asked_all_the_time_still_makes_whole_passes(tmp_path: Path) -> None:
    daemon = Asked(tmp_path, interval_s=0.05)
    task = concurrency.spawn(daemon.run_forever)
    for _ in range(40):
        daemon.ask(Selection(partitions=frozenset({3})))
        concurrency.sleep(0.005)
    assert daemon.passes_over.count(ALL) >= 2
    task.kill()


def test_a_plan_is_printed_and_not_carried_out(tmp_path: Path) -> None:
    daemon = Counting(tmp_path)
    assert list(daemon.dry_run()) == ["0", "1", "2", "3", "4"] and daemon.done == []


def test_passes_follow_each_other_and_can_be_woken(tmp_path: Path) -> None:
    daemon = Counting(tmp_path, interval_s=3600)
    task = concurrency.spawn(daemon.run_forever)
    for passes in (1, 2, 3):
        for _ in range(100):
            concurrency.sleep(0.001)
            if daemon.passes == passes:
                break
        assert daemon.passes == passes
        daemon.wake()
    task.kill()


def test_what_runs_beside_ends_with_the_daemon(tmp_path: Path) -> None:
    daemon, seen = Counting(tmp_path, interval_s=3600), list[str]()

    def watch() -> None:
        try:
            seen.append("begun")
            concurrency.sleep(3600)
        finally:
            seen.append("ended")

    daemon.beside = lambda: (watch, watch)  # type: ignore[method-assign]
    daemon.run_once()
    assert not daemon._is_forever and seen == []
    task = concurrency.spawn(daemon.run_forever)
    while daemon.passes < 2:
        concurrency.sleep(0.001)
    assert daemon._is_forever and seen == ["begun"] * 2
    task.kill()
    while seen != ["begun"] * 2 + ["ended"] * 2:
        concurrency.sleep(0.001)


def test_a_pass_that_fails_is_not_the_last(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    daemon = Counting(tmp_path, interval_s=0.01)

    def broken(only: Selection) -> None:
        raise OSError("no disk")

    daemon.before_pass = broken  # type: ignore[method-assign]
    task = concurrency.spawn(daemon.run_forever)
    while caplog.text.count("a pass failed") < 2:
        concurrency.sleep(0.005)
    task.kill()


def test_a_selection() -> None:
    assert ALL.is_all and ALL.has_device("x") and ALL.has_partition(3) and ALL.has_policy(1)
    some = Selection(frozenset({"sda"}), frozenset({1}), frozenset({0}))
    assert (some.is_all, some.has_device("sdb"), some.has_partition(1), some.has_policy(1)) == (False, False, True, False)


# -- devices -------------------------------------------------------------------------------------------------------------


def test_usable_devices(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("sda", "sdb", "lost+found", "."):
        (tmp_path / name).mkdir(exist_ok=True)
    (tmp_path / "file").write_text("")
    assert [device.name for device in usable_devices(str(tmp_path), False, LOG)] == ["sda", "sdb"]
    assert [device.name for device in usable_devices(str(tmp_path), False, LOG, Selection(devices=frozenset({"sdb"})))] == ["sdb"]
    (tmp_path / "sdb" / ".ismount").write_text("")
    assert [device.name for device in usable_devices(str(tmp_path), True, LOG)] == ["sdb"]
    assert "sda is skipped" in caplog.text
    assert usable_devices(str(tmp_path / "absent"), False, LOG) == []


def test_databases_of_a_device(tmp_path: Path) -> None:
    names = {}
    for number, ending in enumerate((".db", "_0000000001.00000.db", ".db.pending")):
        name = f"{number:029x}abc"
        folder = tmp_path / "containers" / str(number) / "abc" / name
        folder.mkdir(parents=True)
        (folder / f"{name}{ending}").write_text("")
        names[number] = str(folder)
    (tmp_path / "containers" / "tmp").mkdir()
    device = Device("sda", str(tmp_path))
    assert sorted(partitions(device.path, "containers")) == [0, 1, 2]
    assert list(databases(device, "containers")) == [names[0], names[1]]
    assert list(databases(device, "containers", Selection(partitions=frozenset({1})))) == [names[1]]
    assert list(databases(device, "accounts")) == []


def test_own_nodes() -> None:
    nodes = fakes.FakeRings(3, 5).account.current().primaries(0)
    assert own_nodes(nodes, {nodes[1].replication_address}) == [nodes[1]]


# -- peers ---------------------------------------------------------------------------------------------------------------

A = ("127.0.0.1", 6001)


class Line:
    """A backend that is up or down."""

    def __init__(self) -> None:
        self.is_up, self.calls = True, 0

    def call(self, address: Any, method: str, path: str, headers: Headers, query: str = "", body: bytes = b"", timeout_s: float = 0) -> Response:
        self.calls += 1
        if not self.is_up:
            raise BackendError("refused", address)
        return Response(200, body=b"")


def test_a_peer_that_is_down_is_left_alone_until_it_is_back() -> None:
    line, back = Line(), []
    peers = Peers(line, lambda: 5.0, back.append)
    assert peers.call(A, "GET", "/", Headers(), timeout_s=1).status == 200
    line.is_up = False
    for _ in range(3):
        with pytest.raises(BackendError):
            peers.call(A, "GET", "/", Headers(), timeout_s=1)
    assert line.calls == 2 and peers.is_down(A) and peers.down == {A: 5.0}
    peers.probe()
    assert peers.is_down(A) and back == []
    line.is_up = True
    peers.probe()
    assert not peers.is_down(A) and back == [A]
    assert peers.call(A, "GET", "/", Headers(), timeout_s=1).status == 200
