"""A process group from outside: start, death of workers, stop, reload, death of the supervisor."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from keelstore.common import daemon
from test.support.processes import ROOT, free_ports
from test.support.waiting import until

NODE = "[node]\nroles = app.conf\nworkers = {workers}\nrun_dir = run\nuser = root\nlog_file = node.log\ndrain_timeout = 1\n"
APP = """
[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
bind_timeout = {bind_timeout}
swift_dir = %(here)s
user = root
log_file = -
[pipeline:main]
pipeline = app
[app:app]
paste.app_factory = test.support.sample_app:app_factory
text = {text}
"""


class Group:
    """A node that serves the sample app."""

    def __init__(self, root: Path, workers: int = 2):
        self.root, self.workers, self.port = root, workers, free_ports(1)[0]
        (root / "keelstore.conf").write_text("[swift-hash]\nswift_hash_path_suffix = s3cret\n")
        self.write()

    def write(self, text: str = "one", port: int | None = None, bind_timeout: float = 0) -> None:
        log = self.root / "node.log"
        (self.root / "node.conf").write_text(NODE.format(workers=self.workers).replace("node.log", str(log)))
        (self.root / "app.conf").write_text(APP.format(port=port or self.port, text=text, bind_timeout=bind_timeout))

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "keelstore.node", str(self.root / "node.conf"), *arguments]

    def start(self) -> Group:
        with open(self.root / "output", "ab") as output:
            self.process = subprocess.Popen(self.command(), stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
                                            env={**os.environ, "PYTHONPATH": str(ROOT)})
        until(lambda: self.process.poll() is not None or (self.state()["pid"] == self.process.pid and self.state()["serves"]),
              "the node serves")
        return self

    def state(self) -> dict[str, object]:
        return json.loads((self.root / "run" / "node.json").read_text())

    @property
    def worker_pids(self) -> list[int]:
        return [pid for pid, _ in self.state()["workers"]]  # type: ignore[attr-defined]

    def get(self, path: str = "/") -> tuple[str, int]:
        """What the app says, and the pid that said it."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("GET", path)
            text, pid = connection.getresponse().read().decode().split()
            return text, int(pid)
        finally:
            connection.close()

    @property
    def log(self) -> str:
        return (self.root / "node.log").read_text() if (self.root / "node.log").exists() else ""

    @property
    def output(self) -> str:
        return (self.root / "output").read_text()

    def clean(self) -> None:
        known = {self.process.pid, *self.worker_pids} if (self.root / "run" / "node.json").exists() else {self.process.pid}
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        until(lambda: not [pid for pid in known if daemon.start_time(pid)], "all processes are gone")


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    group = Group(tmp_path).start()
    assert group.process.poll() is None, group.output
    yield group
    group.clean()


def test_connections_are_shared_out_evenly(group: Group) -> None:
    open_ones = []
    counts: Counter[bytes] = Counter()
    try:
        for _ in range(10):
            connection = http.client.HTTPConnection("127.0.0.1", group.port, timeout=30)
            connection.connect()
            open_ones.append(connection)
        for connection in open_ones:
            connection.request("GET", "/")
            counts[connection.getresponse().read()] += 1
    finally:
        for connection in open_ones:
            connection.close()
    assert sorted(counts.values()) in ([5, 5], [4, 6])


def test_a_dead_worker_is_replaced(group: Group) -> None:
    before = set(group.worker_pids)
    victim = group.get()[1]
    os.kill(victim, signal.SIGKILL)
    until(lambda: len(set(group.worker_pids) - before) == 1 and victim not in group.worker_pids, "another worker")
    assert "(signal 9), starting another" in group.log
    assert group.get()[0] == "one"


def test_a_stop_lets_requests_end_and_refuses_new_ones(group: Group, tmp_path: Path) -> None:
    answers: list[tuple[str, int]] = []
    flag = tmp_path / "go"
    thread = threading.Thread(target=lambda: answers.append(group.get(f"/until{flag}")))
    thread.start()
    until((tmp_path / "go.here").exists, "the request is there")
    group.process.terminate()
    until(lambda: not listens(group.port), "nothing listens any more")
    flag.touch()
    thread.join(10)
    assert answers and answers[0][0] == "one"
    assert group.process.wait(10) == 0


def test_a_stop_is_bounded(group: Group, tmp_path: Path) -> None:
    def ask() -> None:
        with pytest.raises((OSError, http.client.HTTPException)):
            group.get(f"/until{tmp_path / 'go'}")

    thread = threading.Thread(target=ask)
    thread.start()
    until((tmp_path / "go.here").exists, "the request is there")
    group.process.terminate()
    assert group.process.wait(10) == 0
    thread.join(10)


def test_a_reload_brings_new_configuration_and_refuses_no_connection(group: Group, tmp_path: Path) -> None:
    stop, problems, seen = threading.Event(), [], Counter()  # type: ignore[var-annotated]

    def ask() -> None:
        while not stop.is_set():
            try:
                seen[group.get()[0]] += 1
            except (OSError, http.client.HTTPException, ValueError) as error:
                problems.append(repr(error))

    slow: list[tuple[str, int]] = []
    flag = tmp_path / "go"
    old_request = threading.Thread(target=lambda: slow.append(group.get(f"/until{flag}")))
    old_request.start()
    until((tmp_path / "go.here").exists, "the request is there")
    askers = [threading.Thread(target=ask) for _ in range(3)]
    for thread in askers:
        thread.start()
    old = set(group.worker_pids)
    group.write(text="two")
    os.kill(group.process.pid, signal.SIGHUP)
    until(lambda: group.state()["serves"] and not old & set(group.worker_pids), "new workers")
    until(lambda: group.get()[0] == "two", "the new configuration is served")
    old_pids = [pid for pid, _ in group.state()["old_workers"]]  # type: ignore[attr-defined]
    assert old_pids, "the worker with the slow request still runs"
    flag.touch()
    old_request.join(10)
    until(lambda: group.state()["old_workers"] == [], "old workers are gone")
    stop.set()
    for thread in askers:
        thread.join()
    assert problems == []
    assert slow[0][0] == "one" and slow[0][1] in old
    assert seen["one"] and seen["two"]
    assert daemon.holder_of(str(group.root / "run" / "node.pid")) == group.process.pid


def test_a_reload_of_what_does_not_load_changes_nothing(group: Group) -> None:
    before = group.worker_pids
    (group.root / "app.conf").write_text("[pipeline:main]\npipeline = nothing\n")
    os.kill(group.process.pid, signal.SIGUSR1)
    until(lambda: "reload refused" in group.log, "it is told")
    assert "no [app:nothing] section" in group.log
    assert group.get()[0] == "one" and group.worker_pids == before


def test_a_reload_may_move_to_another_port(group: Group) -> None:
    old_port, new_port = group.port, free_ports(1)[0]
    group.write(text="two", port=new_port)
    os.kill(group.process.pid, signal.SIGHUP)
    group.port = new_port
    until(lambda: group.get()[0] == "two", "the new port is served")
    until(lambda: not listens(old_port), "the old one is closed")


def test_when_the_supervisor_is_killed_its_workers_end_and_it_can_start_again(group: Group) -> None:
    pids = group.worker_pids
    group.process.kill()
    group.process.wait()
    until(lambda: not [pid for pid in pids if daemon.start_time(pid)], "the workers are gone")
    assert group.start().get()[0] == "one"


def test_a_second_one_for_the_same_run_directory_is_refused(group: Group) -> None:
    done = subprocess.run(group.command(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stderr.splitlines()[-1] == f"Error: already running as process {group.process.pid}"


def test_a_port_in_use_is_one_clear_line(group: Group, tmp_path: Path) -> None:
    second = tmp_path / "second"
    second.mkdir()
    other = Group(second)
    other.write(port=group.port)
    done = subprocess.run(other.command(), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (1, f"Error: cannot listen on 127.0.0.1:{group.port}: it is in use\n")


def test_without_workers_everything_runs_in_one_process(tmp_path: Path) -> None:
    group = Group(tmp_path, workers=0)
    with open(tmp_path / "output", "ab") as output:
        group.process = subprocess.Popen(group.command(), stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        until(lambda: group.get() == ("one", group.process.pid), "it serves")
        group.process.terminate()
        assert group.process.wait(10) == 0
    finally:
        group.clean()


def test_workers_that_never_come_up_end_the_start(tmp_path: Path) -> None:
    group = Group(tmp_path)
    group.write(text="dies")
    done = subprocess.run(group.command("--test-config"), capture_output=True, text=True, timeout=60)
    assert done.returncode == 3


def test_a_configuration_can_be_tested_without_serving(tmp_path: Path) -> None:
    group = Group(tmp_path)
    done = subprocess.run(group.command("-t"), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "the configuration loads" in done.stdout and not listens(group.port)


@pytest.mark.parametrize("arguments,says", [
    ([], "Error: missing config path argument"),
    (["/nonexistent.conf"], "Error: unable to locate /nonexistent.conf"),
])
def test_usage(arguments: list[str], says: str) -> None:
    done = subprocess.run([sys.executable, "-m", "keelstore.node", *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stderr.splitlines()[-1] == says and done.stderr.startswith("usage:")


def test_a_role_wants_its_own_configuration(tmp_path: Path) -> None:
    Group(tmp_path)
    done = subprocess.run([sys.executable, "-m", "keelstore.node", "--role", "object", str(tmp_path / "app.conf")], capture_output=True,
                          text=True, timeout=60)
    assert done.returncode == 1 and "not 'object'" in done.stderr


def listens(port: int) -> bool:
    return any(local == port and state == 10 for local, state in sockets())


def sockets() -> Iterator[tuple[int, int]]:
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        yield int(fields[1].rpartition(":")[2], 16), int(fields[3], 16)
