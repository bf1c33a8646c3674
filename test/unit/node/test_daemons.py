"""Daemons from configuration: their sections, their options, a node's choice, and running one alone."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keelstore.common.errors import ConfigError
from keelstore.common.paste_config import read_config
from keelstore.node.daemons import DAEMONS, Parts, own_addresses, wanted
from keelstore.node.roles import load_node
from test.support.cluster import InProcessCluster
from test.support.processes import ROOT


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[InProcessCluster]:
    cluster = InProcessCluster(tmp_path, nodes=2)
    yield cluster
    cluster.close()


def conf_for(cluster: InProcessCluster, role: str, sections: str, node: int = 0) -> str:
    path = cluster.root / f"{role}.conf"
    path.write_text(f"""[DEFAULT]
bind_ip = {cluster.ip}
bind_port = {cluster.port(role, node)}
swift_dir = {cluster.etc}
devices = {cluster.devices(node)}
mount_check = false
allow_placeholder_secrets = true
recon_cache_path = {cluster.root}/recon
log_file = {cluster.root}/log
user = root

[pipeline:main]
pipeline = {role}-server

[app:{role}-server]
use = egg:keelstore#{role}

{sections}
""")
    return str(path)


@pytest.mark.parametrize("name", sorted(DAEMONS))
def test_each_daemon_is_made_from_its_section(cluster: InProcessCluster, name: str) -> None:
    kind = DAEMONS[name]
    config = read_config(conf_for(cluster, kind.role, f"[{name}]\ninterval = 7\n"))
    what = wanted(kind, config, ())
    daemon = Parts().make(what)
    assert (daemon.name, daemon.interval_s) == (name, 7.0)
    daemon.run_once()
    assert json.loads((cluster.root / "recon" / "daemons.recon").read_text())["daemons"][name]["passes"] == 1


def test_a_daemon_alone_needs_its_section_and_one_of_a_node_does_not(cluster: InProcessCluster) -> None:
    config = read_config(conf_for(cluster, "object", ""))
    with pytest.raises(ConfigError, match="Unable to find object-updater config section"):
        wanted(DAEMONS["object-updater"], config, ())
    assert wanted(DAEMONS["object-updater"], config, (), is_node=True).options.interval == 300


def test_a_bad_value_names_its_place_and_an_unknown_name_is_warned_of(cluster: InProcessCluster, caplog: pytest.LogCaptureFixture) -> None:
    config = read_config(conf_for(cluster, "object", "[object-updater]\ninterval = never\n"))
    with pytest.raises(ConfigError, match=r"object\.conf.*object-updater.*interval"):
        wanted(DAEMONS["object-updater"], config, ())
    logging.getLogger("keelstore").propagate = True
    config = read_config(conf_for(cluster, "object", "[object-expirer]\nintervall = 1\ndelay_reaping_a = 5\n"))
    wanted(DAEMONS["object-expirer"], config, ())
    assert "unknown option intervall (did you mean interval?)" in caplog.text and "delay_reaping" not in caplog.text


def test_a_share_beyond_the_processes_is_refused(cluster: InProcessCluster) -> None:
    config = read_config(conf_for(cluster, "object", "[object-expirer]\nprocesses = 2\nprocess = 2\n"))
    with pytest.raises(ConfigError, match="process"):
        Parts().make(wanted(DAEMONS["object-expirer"], config, ()))


@pytest.mark.parametrize(("watcher", "seconds"), [("", 7.0), ("node_timeout = 3", 3.0)])
def test_watchers_wait_as_long_as_their_auditor_is_told(cluster: InProcessCluster, watcher: str, seconds: float) -> None:
    sections = f"[object-auditor]\nwatchers = dark_data\nnode_timeout = 7\n[object-auditor:watcher:dark_data]\n{watcher}\n"
    daemon: Any = Parts().make(wanted(DAEMONS["object-auditor"], read_config(conf_for(cluster, "object", sections)), ()))
    assert [one.options.node_timeout for one in daemon._watchers] == [seconds]


def test_where_the_servers_of_a_daemon_would_listen(cluster: InProcessCluster) -> None:
    config = read_config(conf_for(cluster, "account", ""))
    assert own_addresses(config, "account") == [(cluster.ip, cluster.port("account", 0))]


@pytest.mark.parametrize(("text", "expected"), [
    ("auto", ["object-replicator", "object-reconstructor", "object-auditor", "object-updater", "object-expirer"]), ("none", None), ("object-updater", ["object-updater"]), ("object-replikator", ConfigError),
])
def test_a_node_chooses_its_daemons(cluster: InProcessCluster, text: str, expected: object) -> None:
    conf_for(cluster, "object", "")
    path = cluster.root / "node.conf"
    path.write_text(f"[node]\nroles = object.conf\nbackground = {text}\nuser = root\nlog_file = {cluster.root}/log\nrun_dir = run\n")
    if expected is ConfigError:
        with pytest.raises(ConfigError, match="background"):
            load_node(str(path))
        return
    background = load_node(str(path)).background
    assert (background and [what.name for what in background.wanted]) == expected


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "keelstore.node.run_daemon", *arguments], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "PYTHONPATH": str(ROOT)}, stdin=subprocess.DEVNULL)


def test_one_pass_alone_and_what_is_wrong_with_a_command_line(cluster: InProcessCluster) -> None:
    conf = conf_for(cluster, "object", "[object-updater]\n")
    done = run("object-updater", conf, "once")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (cluster.root / "recon" / "object.recon").exists()
    assert run("object-updater", conf, "--dry-run").returncode == 0
    for arguments, text in (
        (["object-updater"], "missing config path"), (["object-updater", "/nonexistent"], "unable to locate"), (["nothing"], "expected the name"),
        (["object-updater", conf, "-p", "x"], "expected numbers"), (["account-reaper", conf], "Unable to find account-reaper"),
    ):
        done = run(*arguments)
        assert done.returncode == 1 and text in done.stderr and "Traceback" not in done.stderr, (arguments, done.stderr)
