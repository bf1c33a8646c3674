"""Objects under the wrong policy: entries that one make has queued, the reconciler of the other understands."""

from __future__ import annotations

import getpass
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from keelstore.common.timestamp import Timestamp
from keelstore.container import reconcile
from test.support.client import Account, unique
from test.support.peers import OURS, SWIFT, Peers
from test.support.preloaded import Preloaded
from test.support.processes import ROOT

RUNNER = '''
"""Run what is asked of Swift, with its cluster file elsewhere: PROGRAM CLUSTER_FILE (reconcile CONF | enqueue RING_DIR A C O POLICY TIME OP)."""
import sys

from swift.common import utils

utils.SWIFT_CONF_FILE = sys.argv[1]

from swift.common import constraints, storage_policy

constraints.reload_constraints()
storage_policy.reload_storage_policies()
from swift.container import reconciler

if sys.argv[2] == "reconcile":
    from swift.common.daemon import run_daemon

    run_daemon(reconciler.ContainerReconciler, sys.argv[3], once=True)
else:
    from swift.common.ring import Ring

    ring_dir, account, container, obj, policy, timestamp, op = sys.argv[3:]
    print(reconciler.add_to_reconciler_queue(Ring(ring_dir, ring_name="container"), account, container, obj, int(policy), timestamp, op))
'''
CONF = """\
[DEFAULT]
swift_dir = {swift_dir}
user = {user}
recon_cache_path = {home}
{log}

[container-reconciler]
reclaim_age = 604800

[pipeline:main]
pipeline = catch_errors proxy-logging cache proxy-server

[app:proxy-server]
use = egg:swift#proxy
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:proxy-logging]
use = egg:swift#proxy_logging
[filter:cache]
use = egg:swift#memcache
memcache_servers = 127.0.0.1:{memcached}
"""


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory, swift_python: str, preloaded: Preloaded) -> Iterator[Peers]:
    peers = Peers(tmp_path_factory.mktemp("reconcile"), swift_python, preloaded=preloaded, sites=3, devices_per_site=1)
    (peers.home / "run-reconciler.py").write_text(RUNNER)
    try:
        peers.start_proxies(OURS)
        yield peers
    finally:
        peers.stop_all()


@pytest.fixture(scope="module", params=[(SWIFT, OURS), (OURS, SWIFT)], ids=lambda makes: f"servers-{makes[0]}-reconciler-{makes[1]}")
def makes(peers: Peers, request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    servers, daemons = request.param
    with peers.storage(*[servers] * 3):
        yield servers, daemons


@pytest.fixture
def own(peers: Peers, makes: tuple[str, str]) -> Account:
    endpoint = peers.proxy(OURS)
    return Account(endpoint, f"/v1/AUTH_{unique('a')}", endpoint.login("admin:admin", "admin").token)


def swift(peers: Peers, *arguments: str) -> str:
    done = subprocess.run([peers.swift_python, str(peers.home / "run-reconciler.py"), str(peers.swift_dir / "swift.conf"), *arguments],
                          capture_output=True, text=True, timeout=240, env={**os.environ, "PYTHONPATH": ""}, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def run_reconciler(peers: Peers, make: str) -> None:
    conf = peers.home / f"container-reconciler-{make}.conf"
    log = f"log_file = {peers.home / 'reconciler.log'}" if make == OURS else ""
    conf.write_text(CONF.format(swift_dir=peers.swift_dir, user=getpass.getuser(), home=peers.home, memcached=peers.memcached, log=log))
    if make == SWIFT:
        swift(peers, "reconcile", str(conf))
        return
    done = subprocess.run([sys.executable, "-m", "keelstore.node.run_daemon", "container-reconciler", str(conf), "once"], capture_output=True,
                          text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdin=subprocess.DEVNULL, timeout=240)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), done


def write(peers: Peers, own: Account, method: str, container: str, obj: str, at: str, body: bytes = b"") -> None:
    """Under policy 1, with rows of that policy in all replicas of a container of policy 0."""
    container_part, containers, _ = peers.places("container", own.name, container)
    part, nodes, _ = peers.places("object", own.name, container, obj, policy=1)
    for node in nodes:
        endpoint, path = peers.direct(node, part, own.name, container, obj)
        status = endpoint.request(method, path, {
            "X-Timestamp": at, "X-Backend-Storage-Policy-Index": "1", "Content-Type": "text/x", "X-Object-Meta-Color": "red",
            "X-Container-Partition": str(container_part), "X-Container-Host": ",".join(f"{one.ip}:{one.port}" for one in containers),
            "X-Container-Device": ",".join(one.device for one in containers)}, body).status
        assert status in (201, 204, 404)


def enqueue(peers: Peers, make: str, own: Account, container: str, obj: str, at: str, op: str) -> None:
    if make == SWIFT:
        queue = swift(peers, "enqueue", str(peers.swift_dir), own.name, container, obj, "1", at, op).strip()
        assert queue == reconcile.queue_of(Timestamp(at))
        return
    rows = reconcile.queue_rows(own.name, container, [{"name": obj, "created_at": at, "deleted": int(op == "DELETE"), "storage_policy_index": 1}])
    [(queue, [row])] = rows.items()
    part, nodes, _ = peers.places("container", reconcile.ACCOUNT, queue)
    for node in nodes:
        endpoint, path = peers.direct(node, part, reconcile.ACCOUNT, queue, row["name"])
        assert endpoint.request("PUT", path, {"X-Timestamp": row["created_at"], "X-Size": "0", "X-Content-Type": row["content_type"],
                                              "X-Etag": row["etag"], "X-Backend-Storage-Policy-Index": "0"}).status == 201


def queued(peers: Peers, at: str) -> list[str]:
    queue = reconcile.queue_of(Timestamp(at))
    part, nodes, _ = peers.places("container", reconcile.ACCOUNT, queue)
    found: list[str] = []
    for node in nodes:
        endpoint, path = peers.direct(node, part, reconcile.ACCOUNT, queue)
        answer = endpoint.request("GET", f"{path}?format=json")
        found += [entry["name"] for entry in json.loads(answer.body or b"[]")] if answer.status == 200 else []
    return found


def heads(peers: Peers, own: Account, container: str, obj: str, policy: int) -> set[tuple[int, str]]:
    part, nodes, _ = peers.places("object", own.name, container, obj, policy=policy)
    found = set()
    for node in nodes:
        endpoint, path = peers.direct(node, part, own.name, container, obj)
        answer = endpoint.request("HEAD", path, {"X-Backend-Storage-Policy-Index": str(policy)})
        found.add((answer.status, answer.headers.get("X-Backend-Timestamp", "")))
    return found


def test_an_entry_of_either_make_is_carried_out_by_the_other(peers: Peers, own: Account, makes: tuple[str, str]) -> None:
    queue_of, daemons = makes
    own.put("c", headers={"X-Storage-Policy": "gold"}).expect(201)
    own.put("c", "deleted", body=b"old").expect(201)
    at = Timestamp(time.time())
    write(peers, own, "PUT", "c", "moved", at.internal, b"body")
    write(peers, own, "DELETE", "c", "deleted", at.internal)
    enqueue(peers, queue_of, own, "c", "moved", at.internal, "PUT")
    enqueue(peers, queue_of, own, "c", "deleted", at.internal, "DELETE")
    assert len(queued(peers, at.internal)) == 6
    run_reconciler(peers, daemons)
    answer = own.get("c", "moved")
    assert (answer.status, answer.body, answer.headers.get("X-Object-Meta-Color")) == (200, b"body", "red")
    assert heads(peers, own, "c", "moved", 0) == {(200, Timestamp(at, offset=3).internal)}
    assert heads(peers, own, "c", "moved", 1) == {(404, Timestamp(at, offset=1).internal)}
    assert heads(peers, own, "c", "deleted", 0) == {(404, Timestamp(at, offset=3).internal)}
    assert [entry["name"] for entry in own.listing("c")] == ["moved"]
    assert queued(peers, at.internal) == []
    enqueue(peers, queue_of, own, "c", "moved", at.internal, "PUT")  # late, and again
    assert own.get("c", "moved").status == 200
    assert queued(peers, at.internal) == []
