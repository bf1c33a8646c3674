"""The command line against stores that cannot start, and one that does: one clear line and status 1, or what was asked for."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from keelstore.cli import up
from keelstore.cli.layout import CommandError
from keelstore.common import daemon
from test.support.store import Store, free_port, keelstore
from test.support.waiting import until


def refused(*arguments: str, cwd: Path | None = None) -> str:
    """The one line that a command fails with."""
    done = keelstore(*arguments, cwd=cwd)
    assert done.returncode == 1, done
    lines = done.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("Error: "), done.stderr
    return lines[0].removeprefix("Error: ")


def test_a_directory_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    assert "is not empty and not a keelstore data directory" in refused("up", "--data", str(tmp_path))
    assert os.listdir(tmp_path) == ["thesis.tex"]
    for command in (["status"], ["down"], ["node", "list"], ["node", "start", "1"]):
        assert "is not a keelstore data directory" in refused(*command, "--data", str(tmp_path))


@pytest.mark.parametrize("below", [0, 1880, 1879, 1878])
def test_a_port_in_use_leaves_nothing_behind(tmp_path: Path, below: int) -> None:
    port = free_port()
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", port - below))
        sock.listen()
        text = refused("up", "--data", str(tmp_path / "store"), "--port", str(port), "--detach")
    assert text.startswith(f"port {port - below} on 127.0.0.1 is in use")
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_test_users_only_where_nobody_else_reaches_them(tmp_path: Path, host: str) -> None:
    text = refused("up", "--data", str(tmp_path / "store"), "--host", host, "--port", str(free_port()), "--test-users", "--detach")
    assert text.startswith("--test-users is refused")
    assert not (tmp_path / "store").exists()


def test_an_address_that_is_not_ours(tmp_path: Path) -> None:
    text = refused("up", "--data", str(tmp_path / "store"), "--host", "192.0.2.1", "--port", str(free_port()))
    assert "192.0.2.1" in text


def test_several_nodes_have_their_own_addresses(tmp_path: Path) -> None:
    assert "leave out --host" in refused("up", "--data", str(tmp_path / "s"), "--nodes", "3", "--host", "127.0.0.9")


def test_too_little_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=100 << 20))
    with pytest.raises(CommandError, match=r"too little space for .*: 100 MiB are free, 256 MiB are needed"):
        up._check_space(str(tmp_path / "a" / "b"))


def test_a_wrong_command_line_is_told_too() -> None:
    for arguments in (["up", "--nodes", "0"], ["up", "--port", "80"], ["fly"], ["node", "stop", "x"]):
        done = keelstore(*arguments)
        assert done.returncode == 2 and "Traceback" not in done.stderr


# -- a store that runs -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    store = Store.new(tmp_path_factory.mktemp("commands") / "data", workers=2)
    store.up()
    yield store
    store.down()


def test_status_tells_what_the_contract_asks_for(store: Store) -> None:
    status = store.status()
    base = f"http://127.0.0.1:{store.port}"
    assert status["state"] == "running"
    assert status["swift_auth_url"] == f"{base}/auth/v1.0" and status["storage_url"] == f"{base}/v1/AUTH_keel"
    assert status["s3_endpoint"] == base and status["s3_region"] == "us-east-1"
    assert status["user"] == "keel:admin" and len(status["key"]) >= 16
    assert [policy["name"] for policy in status["policies"]] == ["gold", "silver", "ec42"]
    (node,) = status["nodes"]
    assert node["alive"] and node["address"] == f"127.0.0.1:{store.port}" and len(node["workers"]) == 2
    assert sorted(status["pids"]) == sorted([node["pid"], *node["workers"], *node["background"]])
    assert all(daemon.start_time(pid) for pid in status["pids"])
    assert store.command("status").returncode == 0


def test_a_running_store_is_not_started_again(store: Store) -> None:
    text = refused("up", "--data", str(store.data), "--detach")
    assert text.startswith(f"it is already running (process {store.supervisor()})")


@pytest.mark.parametrize("option,value", [("--port", "8080"), ("--nodes", "4"), ("--host", "127.0.0.2")])
def test_what_rings_hold_cannot_be_changed_by_an_option(store: Store, option: str, value: str) -> None:
    assert f"was made with {option}" in refused("up", "--data", str(store.data), option, value)


def test_nodes_can_be_listed_and_only_existing_ones_started(store: Store) -> None:
    listed = store.command("node", "list").stdout.split("\t")
    assert listed[:3] == ["1", f"127.0.0.1:{store.port}", "running"]
    assert refused("node", "start", "1", "--data", str(store.data)).startswith("node 1 is already running")
    assert refused("node", "stop", "2", "--data", str(store.data)) == "there is no node 2: this store has 1"


def test_a_lost_worker_is_replaced_and_status_says_well(store: Store) -> None:
    victim = store.worker_pids()[0]
    os.kill(victim, signal.SIGKILL)
    until(lambda: victim not in store.worker_pids() and len(store.worker_pids()) == 2, "another worker")
    assert store.status()["state"] == "running"


def test_users_keys_and_data_survive_down_up_and_sudden_death(tmp_path: Path) -> None:
    store = Store.new(tmp_path / "data", workers=1)
    store.up()
    try:
        key = store.status()["key"]
        account = store.login()
        account.put("c").expect(201)
        account.put("c/o", body=b"kept").expect(201)
        pids = store.pids()
        store.down()
        assert not [pid for pid in pids if daemon.start_time(pid)]
        stopped = json.loads(store.command("status", "--json", check=False).stdout)
        assert stopped["state"] == "stopped" and stopped["pids"] == [] and store.command("status", check=False).returncode == 1
        assert store.command("down").stdout == "it was not running\n"
        store.up()
        assert store.status()["key"] == key and account.get("c/o").body == b"kept"  # the token is good as well
        store.kill_all()
        store.up()
        assert account.get("c/o").body == b"kept"
        store.stop_node(1, kill=True)
        assert store.status()["state"] == "stopped"
        store.start_node(1)
        assert store.status()["state"] == "running"
    finally:
        store.down()


def test_a_node_that_does_not_start_says_why(tmp_path: Path) -> None:
    store = Store.new(tmp_path / "data", workers=1)
    store.up()
    store.down()
    conf = store.etc() / "object-server.conf"
    conf.write_text(conf.read_text().replace("[app:object-server]", "[app:object-server]\nnode_timeout = soon"))
    done = keelstore("up", "--data", str(store.data), "--detach")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("Error: node 1 did not start: ")
    assert "node_timeout = 'soon': expected a number" in done.stderr
    ring = store.etc() / "object.ring.gz"
    conf.write_text(conf.read_text().replace("\nnode_timeout = soon", ""))
    ring.write_bytes(ring.read_bytes()[:200])
    done = keelstore("up", "--data", str(store.data), "--detach")
    assert done.returncode == 1 and "object.ring.gz" in done.stderr.splitlines()[-1], done.stderr
    assert "Traceback" not in done.stderr
