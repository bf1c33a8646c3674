"""What an operator gets wrong: one clear line and exit status 1, never a traceback; what runs goes on running (issue 2, point 7)."""

from __future__ import annotations

import gzip
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from test.support.processes import ROOT, accepts, free_ports
from test.support.store import Store, alive, free_port, keelstore
from test.support.waiting import until


def refused(done: subprocess.CompletedProcess[str], *words: str) -> str:
    """The one line that a command ends with: exit status 1, no traceback, all ``words`` in it."""
    assert done.returncode == 1, (done.returncode, done.stdout, done.stderr)
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    assert len(lines) == 1, done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    for word in words:
        assert word in lines[0], (word, lines[0])
    return lines[0]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store that has run once and is down; each test finds its files as they were made."""
    store = Store.new(tmp_path_factory.mktemp("operator") / "data", workers=1)
    store.up()
    account = store.login()
    account.put("kept").expect(201)
    account.put("kept", "o", body=b"data").expect(201)
    store.down()
    yield store
    store.down()


@pytest.fixture
def pristine(store: Store) -> Iterator[Store]:
    files = {path: path.read_bytes() for path in store.etc().iterdir()}
    yield store
    store.down()
    for path in store.etc().iterdir():
        if path not in files:
            path.unlink()
    for path, content in files.items():
        path.write_bytes(content)


def still_there(store: Store) -> None:
    """With its files repaired it starts, and nothing was lost."""
    store.up()
    assert store.login().get("kept", "o").expect(200).body == b"data"
    store.down()


RINGS = {
    "garbage": b"this is no ring at all" * 100,
    "empty": b"",
    "cut": None,
    "no-gzip": b"\x1f\x8b\x08\x00broken",
    "version": gzip.compress(b"R1NG" + (9).to_bytes(2, "big") + b"\x00" * 1000),
    "magic": gzip.compress(b"RING" + b"\x00" * 1000),
    "header": gzip.compress(b"R1NG" + (1).to_bytes(2, "big") + (10).to_bytes(4, "big") + b'{"devs": 5'),
    "nonsense": gzip.compress(b"R1NG" + (1).to_bytes(2, "big") + (33).to_bytes(4, "big") + b'{"devs": [1], "part_shift": "x"}\n'),
}


@pytest.mark.parametrize("kind", RINGS)
def test_a_corrupt_ring_stops_the_start(pristine: Store, kind: str) -> None:
    path = pristine.etc() / "container.ring.gz"
    whole = path.read_bytes()
    content = RINGS[kind]
    path.write_bytes(whole[: len(whole) // 2] if content is None else content)
    refused(pristine.up(check=False), "container.ring.gz")
    assert pristine.status()["pids"] == []
    path.write_bytes(whole)
    still_there(pristine)


@pytest.mark.parametrize("kind", ["garbage", "version", "empty"])
def test_a_corrupt_ring_under_a_running_node_changes_nothing(pristine: Store, kind: str) -> None:
    pristine.up()
    account = pristine.login()
    workers = pristine.worker_pids()
    content = RINGS[kind]
    assert content is not None
    (pristine.etc() / "object.ring.gz").write_bytes(content)
    os.kill(pristine.supervisor(), signal.SIGHUP)
    until(lambda: "reload refused" in pristine.log(), "the reload is refused")
    line = [line for line in pristine.log().splitlines() if "reload refused" in line][-1]
    assert "object.ring.gz" in line
    assert pristine.worker_pids() == workers
    assert account.get("kept", "o").expect(200).body == b"data"
    account.put("kept", "new", body=b"x").expect(201)
    assert "Traceback" not in pristine.log()


def test_a_missing_ring_of_a_policy_stops_the_start(pristine: Store) -> None:
    """``up`` would make a missing ring again from its builder; a node as such needs it."""
    (pristine.etc() / "object-1.ring.gz").unlink()
    refused(run("keelstore.node", str(pristine.etc() / "node.conf"), "-t"), "object-1.ring.gz")


def run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run([sys.executable, "-m", module, *arguments], capture_output=True, text=True, env=env, timeout=240, stdin=subprocess.DEVNULL)


BAD_OPTIONS = [  # file, what is changed, into what, words of the line
    ("proxy-server.conf", "account_autocreate = true", "account_autocreate = perhaps", ("proxy-server.conf", "account_autocreate", "perhaps")),
    ("proxy-server.conf", "account_autocreate = true", "node_timeout = fast", ("proxy-server.conf", "app:proxy-server", "node_timeout", "fast")),
    ("proxy-server.conf", "account_autocreate = true", "node_timeout = -5", ("node_timeout", "-5")),
    ("proxy-server.conf", "account_autocreate = true", "sorting_method = random", ("sorting_method", "random")),
    ("proxy-server.conf", "account_autocreate = true", "read_affinity = everywhere", ("read_affinity", "everywhere")),
    ("proxy-server.conf", "use = egg:keelstore#copy", "use = egg:keelstore#cpoy", ("filter:copy", "cpoy")),
    ("proxy-server.conf", "use = egg:keelstore#copy", "", ("filter:copy",)),
    ("proxy-server.conf", " copy ", " unheard-of copy ", ("unheard-of",)),
    ("proxy-server.conf", " tempauth ", " copy tempauth ", ("copy", "tempauth")),
    ("proxy-server.conf", "[pipeline:main]", "[pipeline:other]", ("proxy-server.conf", "pipeline")),
    ("proxy-server.conf", "[app:proxy-server]", "[app:proxy-server", ("proxy-server.conf",)),
    ("object-server.conf", "mount_check = false", "mount_check = maybe", ("object-server.conf", "mount_check", "maybe")),
    ("object-server.conf", "mount_check = false", "fallocate_reserve = lots", ("fallocate_reserve", "lots")),
    ("object-server.conf", "mount_check = false", "fallocate_reserve = 101%", ("fallocate_reserve", "101%")),
    ("container-server.conf", "bind_port = ", "bind_port = 1", ("bind_port",)),
    ("container-server.conf", "bind_port", "bind_prot", ("bind_port",)),
    ("node.conf", "workers = 1", "workers = some", ("node.conf", "workers", "some")),
    ("node.conf", "object-server.conf", "objekt-server.conf", ("objekt-server.conf",)),
    ("keelstore.conf", "policy_type = replication", "policy_type = magic", ("keelstore.conf", "policy_type", "magic")),
    ("keelstore.conf", "[storage-policy:1]", "[storage-policy:one]", ("keelstore.conf", "storage-policy:one")),
    ("keelstore.conf", "name = silver", "name = gold", ("keelstore.conf", "gold")),
    ("keelstore.conf", "swift_hash_path_prefix = ", "unused_prefix = ", None),
    ("keelstore.conf", "default = yes", "default = yes\n[swift-constraints]\nmax_meta_count = many", ("keelstore.conf", "max_meta_count", "many")),
]


@pytest.mark.parametrize(("file", "old", "new", "words"), BAD_OPTIONS)
def test_bad_options_stop_the_start(pristine: Store, file: str, old: str, new: str, words: tuple[str, ...] | None) -> None:
    pristine.edit(file, (old, new))
    done = run("keelstore.node", str(pristine.etc() / "node.conf"), "-t")
    if words is None:  # one of the two secrets is enough, as the field has it
        assert done.returncode == 0, done.stderr
        return
    refused(done, *words)


def test_up_tells_what_is_wrong_with_a_changed_file(pristine: Store) -> None:
    pristine.edit("proxy-server.conf", ("account_autocreate = true", "node_timeout = fast"))
    done = pristine.up(check=False)
    lines = done.stderr.splitlines()
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert all(word in lines[-1] for word in ("proxy-server.conf", "node_timeout", "fast"))
    assert "changed by hand" in lines[0]


def test_unknown_options_are_warned_of_with_the_nearest_name(pristine: Store) -> None:
    pristine.edit("proxy-server.conf", ("account_autocreate = true", "account_autocreate = true\nnode_timeuot = 5"))
    pristine.edit("object-server.conf", ("mount_check = false", "mount_check = false\nfallocate_reserv = 5"))
    pristine.up()
    log = pristine.log()
    for given, meant in (("node_timeuot", "node_timeout"), ("fallocate_reserv", "fallocate_reserve")):
        line = next(line for line in log.splitlines() if given in line)
        assert meant in line.replace(given, "", 1) and "WARN" in line


@pytest.mark.parametrize("role", ["proxy", "object", "container", "account"])
def test_a_port_in_use(pristine: Store, role: str) -> None:
    below = {"proxy": 0, "object": 1880, "container": 1879, "account": 1878}[role]
    with socket.create_server(("127.0.0.1", pristine.port - below)):
        refused(pristine.up(check=False), str(pristine.port - below), "127.0.0.1")
        assert pristine.status()["pids"] == []
    still_there(pristine)


def test_a_port_in_use_for_a_server_alone(pristine: Store) -> None:
    pristine.edit("object-server.conf", ("bind_timeout = 5", "bind_timeout = 1"))
    with socket.create_server(("127.0.0.1", pristine.port - 1880)):
        done = run("keelstore.node", "--role", "object", str(pristine.etc() / "object-server.conf"))
        refused(done, str(pristine.port - 1880))


def test_servers_alone_refuse_what_is_not_theirs(pristine: Store, tmp_path: Path) -> None:
    refused(run("keelstore.node", "--role", "object", str(pristine.etc() / "proxy-server.conf")), "proxy-server.conf", "object")
    done = run("keelstore.node", "--role", "object", str(tmp_path / "none.conf"))
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert "none.conf" in done.stderr
    done = run("keelstore.node", "--role", "object")
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)


# -- data directories ----------------------------------------------------------------------------------------------------


def up(data: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return keelstore("up", "--detach", "--data", str(data), *arguments)


def test_a_data_directory_of_something_else(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "precious.txt").write_text("mine")
    refused(up(other), str(other))
    assert [path.name for path in other.iterdir()] == ["precious.txt"]
    for command in ("status", "down"):
        refused(keelstore(command, "--data", str(other)), str(other))
    file = tmp_path / "file"
    file.write_text("x")
    refused(up(file), str(file))
    refused(keelstore("status", "--data", str(tmp_path / "none")), str(tmp_path / "none"))
    refused(up(Path("/proc/keelstore")), "/proc")


@pytest.mark.parametrize("marker", ["", "{}", "[]", "not json", '{"version": 99}', '{"version": 1}', '{"version": "x", "host": 5}', "\x00\x01"])
def test_a_damaged_marker(tmp_path: Path, marker: str) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "keelstore.json").write_text(marker)
    for done in (up(data), keelstore("status", "--data", str(data)), keelstore("down", "--data", str(data))):
        refused(done, str(data))
    assert (data / "keelstore.json").read_text() == marker


def test_a_second_start_and_other_shapes(pristine: Store) -> None:
    pristine.up()
    before = pristine.pids()
    refused(pristine.up(check=False), "already running", str(before[0]))
    refused(pristine.command("node", "start", "1", check=False), "already running")
    refused(pristine.command("node", "stop", "2", check=False), "2")
    assert pristine.pids() == before
    pristine.down()
    refused(up(pristine.data, "--port", str(free_port())), str(pristine.port))
    refused(up(pristine.data, "--nodes", "3"), "--nodes")
    pristine.down()  # a second time is well
    still_there(pristine)


def test_test_users_are_refused_where_others_reach(tmp_path: Path) -> None:
    done = up(tmp_path / "data", "--host", "0.0.0.0", "--port", str(free_port()), "--test-users")
    refused(done, "test-users", "0.0.0.0")
    assert not list((tmp_path / "data").glob("node1/run/*.pid"))


def test_status_and_keys_are_for_the_owner(store: Store) -> None:
    assert (store.data / "keelstore.json").stat().st_mode & 0o077 == 0
    for name in ("keelstore.conf", "proxy-server.conf"):
        assert (store.etc() / name).stat().st_mode & 0o077 == 0
    value = json.loads((store.data / "keelstore.json").read_text())
    assert len(value["key"]) >= 20


def test_a_server_alone_runs_and_stops(tmp_path: Path, pristine: Store) -> None:
    """``keelstore-object-server CONF`` in the foreground, as an init system starts it."""
    port = free_ports(1)[0]
    pristine.edit("object-server.conf", (f"bind_port = {pristine.port - 1880}", f"bind_port = {port}"))
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "keelstore.node", "--role", "object", str(pristine.etc() / "object-server.conf")]
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL) as process:
        try:
            until(lambda: accepts("127.0.0.1", port), "it listens")
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            if process.poll() is None:
                process.kill()
    assert not alive(process.pid)
