"""A store as ``keelstore up`` makes it, run by its own command line, for tests from outside."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from keelstore.cli import generate
from keelstore.cli.layout import Layout, Settings
from test.support.client import Account, Endpoint
from test.support.processes import ROOT, give, given, is_free, port_range
from test.support.waiting import until

BELOW = (0, 1880, 1879, 1878)  # the storage roles listen that far below the proxy
ROLES = {"object": 1880, "container": 1879, "account": 1878}


def free_port(nodes: int = 1) -> int:
    """A proxy port that is free, as are those of the storage roles, on every node's address."""
    low, high = port_range()
    while True:
        port = random.SystemRandom().randrange(low + max(BELOW), high)
        ports = [port - below for below in BELOW]
        if given.isdisjoint(ports) and all(is_free(f"127.0.0.{node}", one) for node in range(1, nodes + 1) for one in ports):
            give(*ports)
            return port


def keelstore(*arguments: str, cwd: Path | None = None, timeout: float = 240) -> subprocess.CompletedProcess[str]:
    """Run the command line of this checkout."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run([sys.executable, "-m", "keelstore.cli.main", *arguments], capture_output=True, text=True, env=env, cwd=cwd,
                          timeout=timeout, stdin=subprocess.DEVNULL)


@dataclass
class Store:
    """A data directory and its nodes."""

    data: Path
    port: int
    nodes: int = 1
    workers: int = 2

    @classmethod
    def new(cls, data: Path, nodes: int = 1, workers: int = 2) -> Store:
        return cls(data, free_port(nodes), nodes, workers)

    # -- its commands --------------------------------------------------------------------------------------------------

    def command(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = keelstore(*arguments, "--data", str(self.data))
        if check:
            assert done.returncode == 0, f"keelstore {arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}\n{self.log_tails()}"
        return done

    def prepare(self) -> None:
        """Write its configuration, so that it can be edited before the first start."""
        self.data.mkdir(parents=True, exist_ok=True)
        generate.prepare(Layout(str(self.data), replace(Settings.fresh(self.host, self.port, self.nodes), workers=self.workers, test_users=True)))

    def up(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        try:
            return self.command("up", "--detach", "--port", str(self.port), "--workers", str(self.workers), "--nodes", str(self.nodes),
                                "--test-users", *arguments, check=check)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            self.command("down", check=False)  # what it has started by then stays
            raise

    def down(self) -> None:
        self.command("down")

    def status(self) -> dict[str, Any]:
        value = json.loads(self.command("status", "--json", check=False).stdout)
        assert isinstance(value, dict)
        return value

    def start_node(self, number: int) -> None:
        self.command("node", "start", str(number))

    def stop_node(self, number: int, kill: bool = False) -> None:
        self.command("node", "stop", str(number), *(["--kill"] if kill else []))

    # -- its parts -----------------------------------------------------------------------------------------------------

    @property
    def host(self) -> str:
        return "127.0.0.1"

    @property
    def endpoint(self) -> Endpoint:
        return self.proxy(1)

    def proxy(self, number: int) -> Endpoint:
        return Endpoint(f"127.0.0.{number}", self.port)

    def server(self, role: str, number: int = 1) -> Endpoint:
        """The storage server of that role of a node."""
        return Endpoint(f"127.0.0.{number}", self.port - ROLES[role])

    def login(self, number: int = 1) -> Account:
        return self.proxy(number).login()

    def etc(self, number: int = 1) -> Path:
        return self.data / f"node{number}" / "etc"

    def devices(self, number: int = 1) -> Path:
        return self.data / f"node{number}" / "devices"

    def log(self, number: int = 1) -> str:
        path = self.data / f"node{number}" / "log" / "node.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def log_tails(self) -> str:
        return "\n".join(f"--- node{number}\n{self.log(number)[-3000:]}" for number in range(1, self.nodes + 1))

    def state(self, number: int = 1) -> dict[str, Any]:
        """What the supervisor of a node says of itself."""
        value = json.loads((self.data / f"node{number}" / "run" / f"node{number}.json").read_text())
        assert isinstance(value, dict)
        return value

    def supervisor(self, number: int = 1) -> int:
        return int(self.state(number)["pid"])

    def worker_pids(self, number: int = 1) -> list[int]:
        return [int(pid) for pid, _ in self.state(number)["workers"]]

    def pids(self, number: int = 1) -> list[int]:
        return [self.supervisor(number), *self.worker_pids(number), *self.background_pids(number)]

    def background_pids(self, number: int = 1) -> list[int]:
        """The process of a node's daemons."""
        return [int(pid) for pid, _ in self.state(number)["background"]]

    def signal(self, pids: Sequence[int], what: signal.Signals) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, what)

    def kill_all(self, number: int = 1) -> None:
        """SIGKILL to every process of a node at once, and wait until they are gone."""
        pids = self.pids(number)
        self.signal(pids, signal.SIGKILL)
        until(lambda: not any(alive(pid) for pid in pids), f"processes {pids} are gone")

    def wait_ready(self, number: int = 1) -> None:
        until(lambda: self.proxy(number).request("GET", "/healthcheck", timeout=2).status == 200, f"node {number} answers")

    def reload(self, number: int = 1) -> None:
        """Let a node take its changed configuration, and wait until all its workers have."""
        before = self.worker_pids(number)
        os.kill(self.supervisor(number), signal.SIGHUP)
        until(lambda: not set(self.worker_pids(number)) & set(before) and self.state(number)["serves"] and not self.state(number)["old_workers"],
              "the reload is done", 60)

    def be_patient(self) -> None:
        """Write into the configuration that a busy machine is waited for, where no server is away: what is written can be read at once.

        A start, or a reload, makes it so.
        """
        for number in range(1, self.nodes + 1):
            self.edit("proxy-server.conf", ("[app:proxy-server]\n", "[app:proxy-server]\nconn_timeout = 5\npost_quorum_timeout = 10\n"), number=number)
            self.edit("container-server.conf", ("[app:container-server]\n", "[app:container-server]\nconn_timeout = 5\nnode_timeout = 10\n"), number=number)
            self.edit("object-server.conf", ("[app:object-server]\n", "[app:object-server]\nconn_timeout = 5\nnode_timeout = 10\n"
                                             "container_update_timeout = 10\n"), number=number)

    @contextmanager
    def frozen(self, number: int) -> Iterator[None]:
        """All processes of a node stopped in their tracks: their sockets accept, and never answer."""
        pids = self.pids(number)
        self.signal(pids, signal.SIGSTOP)
        try:
            yield
        finally:
            self.signal(pids, signal.SIGCONT)

    @contextmanager
    def still(self, number: int = 1) -> Iterator[None]:
        """The daemons of a node stopped in their tracks, where none of them holds a lock that a server would wait for."""
        pids = self.background_pids(number)

        def is_still() -> bool:
            self.signal(pids, signal.SIGSTOP)
            until(lambda: all(is_stopped(pid) for pid in pids), "they have stopped", every_s=0.005)
            if not any(holds_a_lock(pid, self.devices(number)) for pid in pids):
                return True
            self.signal(pids, signal.SIGCONT)
            return False

        try:
            until(is_still, "no daemon holds a lock")
            yield
        finally:
            self.signal(pids, signal.SIGCONT)

    def edit(self, name: str, *changes: tuple[str, str], number: int = 1) -> None:
        """Replace text in a configuration file of a node; each must be there."""
        path = self.etc(number) / name
        text = path.read_text()
        for old, new in changes:
            assert old in text, (name, old)
            text = text.replace(old, new, 1)
        path.write_text(text)


def alive(pid: int) -> bool:
    """Whether a process runs (one that only waits to be reaped does not)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def is_stopped(pid: int) -> bool:
    """Whether all threads of a process are, or it has ended."""
    try:
        return all(path.read_text().rpartition(")")[2].split()[0] in "TtZX" for path in Path(f"/proc/{pid}/task").glob("*/stat"))
    except OSError:  # a thread ends
        return not alive(pid)


def holds_a_lock(pid: int, below: Path) -> bool:
    """Whether a process has locked a file below a directory."""
    for info in Path(f"/proc/{pid}/fdinfo").iterdir():
        with suppress(OSError):
            if "lock:" in info.read_text() and Path(os.readlink(f"/proc/{pid}/fd/{info.name}")).is_relative_to(below):
                return True
    return False


@contextmanager
def running(data: Path, *arguments: str, nodes: int = 1, workers: int = 2, is_patient: bool = False,
            edit: Callable[[Store], object] | None = None) -> Iterator[Store]:
    """A store with the test users, stopped at the end. ``edit`` changes its configuration before it starts."""
    store = Store.new(data, nodes, workers)
    if is_patient or edit:
        store.prepare()
    if is_patient:
        store.be_patient()
    if edit:
        edit(store)
    store.up(*arguments)
    try:
        yield store
    finally:
        store.down()
