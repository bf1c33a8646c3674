"""Daemons as processes of their own, beside the servers of :class:`~test.support.peers.Peers`."""

from __future__ import annotations

import getpass
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from test.support.peers import STORAGE_CONF, Peers
from test.support.processes import ROOT, Process

ROLES = {"object-replicator": "object", "object-reconstructor": "object", "object-auditor": "object", "object-updater": "object", "object-expirer": "object", "container-updater": "container", "account-reaper": "account",
         "container-replicator": "container", "container-reconciler": "container", "container-sync": "container", "account-replicator": "account", "container-auditor": "container", "account-auditor": "account"}
QUICK = {"object-updater": "objects_per_second = 0\n", "container-updater": "containers_per_second = 0\naccount_suppression_time = 0.5\n",
         "object-replicator": "", "object-reconstructor": "", "object-auditor": "files_per_second = 0\nzero_byte_files_per_second = 0\n",
         "object-expirer": "tasks_per_second = 0\nconcurrency = 8\n", "account-reaper": "",
         "container-replicator": "databases_per_second = 500\n", "account-replicator": "databases_per_second = 500\n",
         "container-reconciler": "", "container-sync": "",
         "container-auditor": "containers_per_second = 0\n", "account-auditor": "accounts_per_second = 0\n"}


def configuration(peers: Peers, name: str, site: int, **options: Any) -> Path:
    """The configuration of a site's daemon, whose recon files go into a directory of that site."""
    role = ROLES[name]
    port = peers.ports[site][role]
    recon = recon_of(peers, site)
    recon.mkdir(exist_ok=True)
    text = STORAGE_CONF.format(kind=role, port=port, home=recon, devices=peers.devices, swift_dir=peers.swift_dir, user=getpass.getuser(),
                               log=f"log_file = {peers.home / f'{name}-{site}.log'}")
    lines = "".join(f"{option} = {value}\n" for option, value in options.items())
    path = peers.home / f"{name}-{site}.conf"
    path.write_text(f"{text}\n[{name}]\n{QUICK[name]}{lines}")
    return path


def recon_of(peers: Peers, site: int) -> Path:
    return peers.home / f"recon{site}"


def run_once(peers: Peers, name: str, *sites: int, **options: Any) -> list[dict[str, Any]]:
    """One pass of a daemon at each of these sites (default: all); gives what each left in recon of itself."""
    found = []
    for site in sites or range(peers.sites):
        conf = configuration(peers, name, site, **options)
        said = len(log_of(peers, name, site))
        if peers.preloaded is not None:
            peers.preloaded.run([("keelstore.node.run_daemon", [name, str(conf), "once"])], peers.home / "passes.out")
            check_log(peers, name, site, said)
            found.append(json.loads((recon_of(peers, site) / "daemons.recon").read_text())["daemons"][name])
            continue
        done = subprocess.run([sys.executable, "-m", "keelstore.node.run_daemon", name, str(conf), "once"], capture_output=True, text=True,
                              env={**os.environ, "PYTHONPATH": str(ROOT)}, stdin=subprocess.DEVNULL, timeout=240)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), (done, log_of(peers, name, site)[said:][-5000:])
        check_log(peers, name, site, said)
        found.append(json.loads((recon_of(peers, site) / "daemons.recon").read_text())["daemons"][name])
    return found


def log_of(peers: Peers, name: str, site: int) -> str:
    path = peers.home / f"{name}-{site}.log"
    return path.read_text(errors="replace") if path.exists() else ""


def check_log(peers: Peers, name: str, site: int, said: int) -> None:
    """What a daemon has logged since its log was ``said`` long tells of nothing unforeseen."""
    new = log_of(peers, name, site)[said:]
    assert "Traceback" not in new, new[-5000:]


@contextmanager
def running(peers: Peers, name: str, *sites: int, **options: Any) -> Iterator[None]:
    """A daemon at each of these sites, pass after pass."""
    processes = []
    try:
        for site in sites:
            conf = configuration(peers, name, site, **options)
            processes.append(Process([sys.executable, "-m", "keelstore.node.run_daemon", name, str(conf)], peers.home / f"{name}-{site}.out").start())
        yield
    finally:
        for process in processes:
            process.stop()
