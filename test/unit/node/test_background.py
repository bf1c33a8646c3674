"""The process of a node's daemons: started, restarted and stopped by the supervisor, and reached by hints."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator

import pytest

from test.support.client import Account, unique
from test.support.store import Store, alive
from test.support.waiting import until


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    store = Store.new(tmp_path_factory.mktemp("background") / "data", workers=1)
    store.up()
    # hints alone are to bring about what is tested here
    for name, interval in (("object-server.conf", "interval = 5"), ("container-server.conf", "interval = 10")):
        store.edit(name, (interval, "interval = 3600"))
    store.down()
    store.up()
    yield store
    store.down()


@pytest.fixture
def account(store: Store) -> Account:
    return store.login()


def daemons(store: Store) -> dict[str, dict]:
    return json.loads((store.data / "node1" / "cache" / "daemons.recon").read_text())["daemons"]


def test_there_is_one_and_it_runs_every_daemon(store: Store) -> None:
    (pid,) = store.background_pids()
    assert alive(pid) and pid not in store.worker_pids()
    line = until(lambda: next((line for line in store.log().splitlines() if f"[{pid}]" in line and "daemons:" in line), ""), "it says so")
    assert {"account-reaper", "container-updater", "object-updater", "object-expirer"} <= set(line.rpartition("daemons: ")[2].split(", "))
    assert os.getpriority(os.PRIO_PROCESS, pid) == min(19, os.getpriority(os.PRIO_PROCESS, 0) + 5)


def test_counts_are_right_within_seconds_by_hints_alone(store: Store, account: Account) -> None:
    container = unique("hinted")
    before = int(account.head().headers["X-Account-Bytes-Used"])
    account.put(container).expect(201)
    account.put(container, "o", body=b"12345").expect(201)
    until(lambda: int(account.head().headers["X-Account-Bytes-Used"]) == before + 5, "the account knows it")
    account.delete(container, "o").expect(204)
    until(lambda: int(account.head().headers["X-Account-Bytes-Used"]) == before, "the account knows that it is gone")


def test_it_is_replaced_when_it_dies(store: Store) -> None:
    (old,) = store.background_pids()
    os.kill(old, signal.SIGKILL)
    (new,) = until(lambda: [pid for pid in store.background_pids() if pid != old and alive(pid)], "there is another")
    assert store.status()["nodes"][0]["background"] == [new]
    assert store.log().count("the daemons' process") >= 1


def test_a_reload_brings_a_new_one(store: Store) -> None:
    (old,) = store.background_pids()
    os.kill(store.supervisor(), signal.SIGHUP)
    until(lambda: [pid for pid in store.background_pids() if pid != old] and not alive(old), "another in its place")
    until(lambda: alive(store.background_pids()[0]), "it runs")


def test_it_ends_with_the_node(store: Store) -> None:
    pids = store.pids()
    store.down()
    assert not any(alive(pid) for pid in pids)
    store.up()
    pids = store.pids()
    os.kill(store.supervisor(), signal.SIGKILL)
    until(lambda: not any(alive(pid) for pid in pids), "nothing outlives the supervisor")
    store.up()


def test_it_can_be_left_out(store: Store) -> None:
    store.down()
    store.edit("node.conf", ("run_dir", "background = none\nrun_dir"))
    store.up()
    assert store.background_pids() == []
    assert store.status()["state"] == "running"
