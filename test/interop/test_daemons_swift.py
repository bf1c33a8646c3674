"""Our daemons over Swift's servers and disks, and Swift's daemons over ours (issue 4, point 6)."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from test.support.client import Account, unique
from test.support.daemon_runs import configuration, run_once
from test.support.peers import OURS, SWIFT, Peers
from test.support.preloaded import Preloaded
from test.support.waiting import until

RUNNER = '''
"""Run a daemon of Swift once with its cluster file elsewhere: PROGRAM CLUSTER_FILE MODULE CLASS CONF."""
import sys

from swift.common import utils

utils.SWIFT_CONF_FILE = sys.argv[1]

import importlib

from swift.common import constraints, storage_policy
from swift.common.daemon import run_daemon

constraints.reload_constraints()
storage_policy.reload_storage_policies()
run_daemon(getattr(importlib.import_module(sys.argv[2]), sys.argv[3]), sys.argv[4], once=True)
'''
CLASSES = {"object-updater": "swift.obj.updater ObjectUpdater", "container-updater": "swift.container.updater ContainerUpdater",
           "object-expirer": "swift.obj.expirer ObjectExpirer", "account-reaper": "swift.account.reaper AccountReaper"}
INTERNAL = """\
[DEFAULT]
swift_dir = {swift_dir}
[pipeline:main]
pipeline = catch_errors proxy-server
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
[filter:catch_errors]
use = egg:swift#catch_errors
"""


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory, swift_python: str, preloaded: Preloaded) -> Iterator[Peers]:
    peers = Peers(tmp_path_factory.mktemp("daemons"), swift_python, preloaded=preloaded, sites=4, devices_per_site=1)
    (peers.home / "run-daemon.py").write_text(RUNNER)
    try:
        peers.start_proxies(OURS)
        yield peers
    finally:
        peers.stop_all()


@pytest.fixture(scope="module", params=[(SWIFT, OURS), (OURS, SWIFT), (SWIFT, SWIFT)], ids=lambda makes: f"servers-{makes[0]}-daemons-{makes[1]}")
def makes(peers: Peers, request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """The makes of servers and daemons; Swift with itself shows what is to be expected."""
    servers, daemons = request.param
    with peers.storage(*[servers] * 4):
        yield servers, daemons


@pytest.fixture
def own(peers: Peers, makes: tuple[str, str]) -> Account:
    endpoint = peers.proxy(OURS)
    return Account(endpoint, f"/v1/AUTH_{unique('a')}", endpoint.login("admin:admin", "admin").token)


def run(peers: Peers, make: str, name: str, *sites: int, **options: object) -> None:
    """One pass of a daemon of a make at these sites."""
    if make == OURS:
        run_once(peers, name, *sites, **options)
        return
    if name == "object-expirer":
        internal = peers.home / "internal-client.conf"
        internal.write_text(INTERNAL.format(swift_dir=peers.swift_dir))
        options = {"internal_client_conf_path": internal, "dequeue_from_legacy": "true", **options}
    for site in sites or range(4):
        conf = configuration(peers, name, site, **options)
        done = subprocess.run([peers.swift_python, str(peers.home / "run-daemon.py"), str(peers.swift_dir / "swift.conf"), *CLASSES[name].split(),
                               str(conf)], capture_output=True, text=True, timeout=240, env={**os.environ, "PYTHONPATH": ""}, stdin=subprocess.DEVNULL)
        assert done.returncode == 0, done.stderr[-2000:]


def pending(peers: Peers) -> list[Path]:
    return [path for path in peers.devices.glob("*/async_pending*/*/*") if path.is_file()]


def listings(peers: Peers, own: Account, container: str) -> list[list[str]]:
    part, nodes, _ = peers.places("container", own.name, container)
    found = []
    for node in nodes:
        endpoint, path = peers.direct(node, part, own.name, container)
        found.append([entry["name"] for entry in json.loads(endpoint.request("GET", f"{path}?format=json").body or b"[]")])
    return found


def test_updates_that_one_make_could_not_deliver_the_other_delivers(peers: Peers, own: Account, makes: tuple[str, str]) -> None:
    servers, daemons = makes
    own.put("c").expect(201)
    part, nodes, _ = peers.places("container", own.name, "c")
    site = peers.site_of(nodes[0])
    peers.stop(site, kinds=("container",))
    names = ["plain", "n\u00e9\u65e5\u672c", "a//b/../c", *(f"o{number}" for number in range(8))]
    for name in names:
        own.put("c", name, body=b"x", headers={"Content-Type": "text/pl\u00e4in"}).expect(201)
    own.delete("c", "o0").expect(204)
    own.post("c", "o1", headers={"Content-Type": "text/new"}).expect(202)
    peers.start(site, make=servers, kinds=("container",))
    until(lambda: pending(peers), "updates wait")
    run(peers, daemons, "object-updater", 0)
    expected = sorted(name for name in names if name != "o0")
    assert [sorted(listing) for listing in listings(peers, own, "c")] == [expected] * 3
    assert pending(peers) == []
    rows = []
    for node in nodes:
        endpoint, path = peers.direct(node, part, own.name, "c")
        rows.append([{**entry, "content_type": entry["content_type"]} for entry in endpoint.request("GET", f"{path}?format=json").json()])
    assert rows[0] == rows[1] == rows[2]


def test_counts_of_one_make_are_told_by_the_other(peers: Peers, own: Account, makes: tuple[str, str]) -> None:
    own.put("c").expect(201)
    own.put("c", "o", body=b"12345").expect(201)
    run(peers, makes[1], "container-updater", 0)
    head = own.head()
    assert (head.headers["X-Account-Object-Count"], head.headers["X-Account-Bytes-Used"]) == ("1", "5")


def test_what_is_due_goes(peers: Peers, own: Account, makes: tuple[str, str]) -> None:
    own.put("c").expect(201)
    due = int(time.time()) + 8
    own.put("c", "soon", body=b"x", headers={"X-Delete-At": due}).expect(201)
    own.put("c", "later", body=b"x", headers={"X-Delete-At": due + 3600}).expect(201)
    run(peers, makes[1], "object-updater", 0)
    run(peers, makes[1], "container-updater", 0)
    until(lambda: time.time() > due + 1, "it is due")
    run(peers, makes[1], "object-expirer", 0)
    assert set(map(tuple, listings(peers, own, "c"))) == {("later",)}
    part, nodes, _ = peers.places("object", own.name, "c", "soon")
    for node in nodes:
        endpoint, path = peers.direct(node, part, own.name, "c", "soon")
        answer = endpoint.request("HEAD", path, {"X-Backend-Open-Expired": "true"})
        assert answer.status == 404
        at, _, offset = answer.headers["X-Backend-Timestamp"].partition("_")
        if makes[0] == "swift":
            assert (float(at), offset) == (due, "")
        else:  # just newer than the object, so that it wins over nothing that this server has missed
            assert float(at) < due and int(offset, 16) == 1


def test_a_deleted_account_is_reaped(peers: Peers, own: Account, makes: tuple[str, str]) -> None:
    own.put("c").expect(201)
    own.put("c", "o", body=b"x").expect(201)
    run(peers, makes[1], "container-updater", 0)
    own.delete().expect(204)
    run(peers, makes[1], "account-reaper")
    part, nodes, _ = peers.places("object", own.name, "c", "o")
    answers = []
    for node in nodes:
        endpoint, path = peers.direct(node, part, own.name, "c", "o")
        answers.append(endpoint.request("HEAD", path))
    assert {answer.status for answer in answers} == {404}
    assert len({answer.headers["X-Backend-Timestamp"] for answer in answers}) == 1
