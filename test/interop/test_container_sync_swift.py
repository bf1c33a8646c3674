"""Container sync between makes: the daemon of one, over servers of its own make, and the proxy of the other."""

from __future__ import annotations

import getpass
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from test.support.client import Account, unique
from test.support.peers import OURS, PROXY_CONF, STORAGE_CONF, SWIFT, Peers
from test.support.preloaded import Preloaded
from test.support.processes import ROOT

RUNNER = '''
"""Run container sync of Swift once, with its cluster file elsewhere: PROGRAM CLUSTER_FILE CONF."""
import sys

from swift.common import utils

utils.SWIFT_CONF_FILE = sys.argv[1]

from swift.common import constraints, storage_policy
from swift.common.daemon import run_daemon

constraints.reload_constraints()
storage_policy.reload_storage_policies()
from swift.container.sync import ContainerSync

run_daemon(ContainerSync, sys.argv[2], once=True)
'''
PROXIES = PROXY_CONF.replace("listing_formats tempauth", "listing_formats container_sync tempauth") + """
[filter:container_sync]
use = egg:swift#container_sync
"""

INTERNAL = """\
[DEFAULT]
swift_dir = {swift_dir}
[pipeline:main]
pipeline = catch_errors symlink proxy-server
[app:proxy-server]
use = egg:swift#proxy
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:symlink]
use = egg:swift#symlink
"""


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory, swift_python: str, preloaded: Preloaded) -> Iterator[Peers]:
    peers = Peers(tmp_path_factory.mktemp("sync"), swift_python, preloaded=preloaded, sites=1, devices_per_site=3, proxy_conf=PROXIES)
    (peers.home / "run-sync.py").write_text(RUNNER)
    clusters = "".join(f"cluster_{make} = http://127.0.0.1:{peers.proxies[make]}/v1/\n" for make in (OURS, SWIFT))
    (peers.swift_dir / "container-sync-realms.conf").write_text(f"[us]\nkey = the realm's secret\n{clusters}")
    try:
        peers.start_proxies(OURS, SWIFT)
        yield peers
    finally:
        peers.stop_all()


def run_sync(peers: Peers, make: str) -> None:
    conf, internal = peers.home / f"sync-{make}.conf", peers.home / "internal-client.conf"
    internal.write_text(INTERNAL.format(swift_dir=peers.swift_dir))
    log = f"log_file = {peers.home / 'sync.log'}" if make == OURS else ""
    conf.write_text(STORAGE_CONF.format(kind="container", port=peers.ports[0]["container"], home=peers.home, devices=peers.devices,
                                        swift_dir=peers.swift_dir, user=getpass.getuser(), log=log)
                    + f"\n[container-sync]\ninternal_client_conf_path = {internal}\n")
    command = [sys.executable, "-m", "keelstore.node.run_daemon", "container-sync", str(conf), "once"] if make == OURS else [
        peers.swift_python, str(peers.home / "run-sync.py"), str(peers.swift_dir / "swift.conf"), str(conf)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT) if make == OURS else ""},
                          stdin=subprocess.DEVNULL, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize(("make", "other"), [(OURS, SWIFT), (SWIFT, OURS)])
def test_the_proxy_of_the_other_make_takes_what_a_daemon_sends(peers: Peers, make: str, other: str) -> None:
    with peers.storage(make):
        endpoint = peers.proxy(make)
        token = endpoint.login("admin:admin", "admin").token
        own, copies = Account(endpoint, f"/v1/AUTH_{unique('a')}", token), Account(endpoint, f"/v1/AUTH_{unique('b')}", token)
        copy, encoded = ("c\u00f6p y", "c%C3%B6p%20y") if make == OURS else ("cop y", "cop%20y")  # Swift's daemon fails at others
        copies.put(copy, headers={"X-Container-Sync-Key": "secret"}).expect(201)
        own.put("c", headers={"X-Container-Sync-To": f"//us/{other}/{copies.name}/{encoded}", "X-Container-Sync-Key": "secret"}).expect(201)
        names = ["plain", "n\u00e9\u65e5 \u672c", "a//b", "q?x=1&y", "pl+us%20"]
        for name in names:
            own.put("c", name, body=name.encode(), headers={"X-Object-Meta-Color": "r\u00e9d", "Content-Type": "text/x"}).expect(201)
        own.put("c", "gone", body=b"x").expect(201)
        run_sync(peers, make)
        if make == SWIFT:  # of replicas on one node it gives all the share of the first; the rest comes with the second look
            run_sync(peers, make)
        for name in names:
            ours, theirs = own.get("c", name), copies.get(copy, name)
            assert (theirs.status, theirs.body) == (200, name.encode()), name
            assert [theirs.headers.get(key) for key in ("Etag", "X-Timestamp", "Content-Type", "X-Object-Meta-Color")] == [
                ours.headers.get(key) for key in ("Etag", "X-Timestamp", "Content-Type", "X-Object-Meta-Color")]
        own.delete("c", "gone").expect(204)
        run_sync(peers, make)
        if make == SWIFT:
            run_sync(peers, make)
        assert copies.head(copy, "gone").status == 404
        assert sorted(entry["name"] for entry in copies.listing(copy)) == sorted(names)
