"""The processes of a data directory's nodes: start, ask, stop. Pids are verified before anything is sent to them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

from keelstore.cli.client import Client, ClientError
from keelstore.cli.layout import CommandError, Layout, NodePaths
from keelstore.common import daemon
from keelstore.node.command import own_command

START_S = 60.0
STOP_S = 15.0  # beyond what a drain takes


@dataclass(frozen=True)
class NodeState:
    """What is running of a node. ``pid`` None: no supervisor; ``workers`` may live on without it for a moment."""

    node: NodePaths
    address: str
    pid: int | None
    workers: tuple[int, ...]
    wanted_workers: int
    answers: bool
    background: tuple[int, ...] = ()  # the process of its daemons

    @property
    def alive(self) -> bool:
        return self.pid is not None

    @property
    def healthy(self) -> bool:
        return self.alive and self.answers and len(self.workers) >= self.wanted_workers

    @property
    def pids(self) -> list[int]:
        return [*([self.pid] if self.pid else []), *self.workers, *self.background]


def processes_of(node: NodePaths) -> tuple[int | None, dict[int, int | None]]:
    """The supervisor's pid, if it runs, and the living processes of the node ``{pid: start time}``, itself included.

    The supervisor is known by the lock that it holds, the workers by what it wrote of them, as far as pid and start time
    are still those of one process.
    """
    pid = daemon.holder_of(node.pid_file)
    found: dict[int, int | None] = {} if pid is None else {pid: daemon.start_time(pid)}
    state = daemon.read_state(node.state_file)
    for worker, started in [*state.get("workers", ()), *state.get("old_workers", ()), *state.get("background", ())]:
        if started is not None and daemon.start_time(worker) == started:
            found[worker] = started
    return pid, found


def state_of(layout: Layout, node: NodePaths) -> NodeState:
    pid, found = processes_of(node)
    written = daemon.read_state(node.state_file)
    current = {worker for worker, _ in written.get("workers", ())}
    endpoint = layout.settings.endpoint(node.number)
    answers = pid is not None and _serves(layout, node.number) is None
    return NodeState(node, urlsplit(endpoint).netloc, pid, tuple(sorted(worker for worker in found if worker in current)),
                     written.get("wanted_workers", 0) if pid is not None else 0, answers,
                     tuple(sorted(set(found) & {worker for worker, _ in written.get("background", ())})))


# -- start -------------------------------------------------------------------------------------------------------------


def check_ports(layout: Layout, node: NodePaths) -> None:
    """Raises CommandError, naming it, when a port of the node is taken."""
    settings = layout.settings
    wanted = [(settings.proxy_ip(node.number), settings.port)]
    wanted += [(settings.storage_ip(node.number), settings.storage_port(kind)) for kind in ("account", "container", "object")]
    for ip, port in wanted:
        try:
            family, _, _, _, target = socket.getaddrinfo(ip, port, 0, socket.SOCK_STREAM)[0]
        except OSError:
            raise CommandError(f"{ip} is not an address or a name that is known here") from None
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind(target)
                sock.listen(1)
            except OSError as error:
                if isinstance(error, PermissionError):
                    raise CommandError(f"port {port} on {ip} is only for root: give another one with --port") from None
                if error.errno == 98:
                    hint = f"give another one with --port (this store uses it as port {settings.port})" \
                        if port != settings.port else "give another one with --port"
                    raise CommandError(f"port {port} on {ip} is in use: {hint}") from None
                raise CommandError(f"cannot listen on {ip}:{port}: {error.strerror}") from None


def launch(node: NodePaths) -> subprocess.Popen[bytes]:
    """Start a node in a process group of its own."""
    with open(node.log_file, "ab") as log:
        return subprocess.Popen(own_command("keelstore.node", [node.conf]), stdin=subprocess.DEVNULL, stdout=log,
                                stderr=log, start_new_session=True, cwd="/")


def wait_until_answering(layout: Layout, started: dict[int, tuple[subprocess.Popen[bytes], int]]) -> None:
    """Until every node of ``{number: (process, size of its log before)}`` serves a real request: token and account.

    Raises CommandError with what the log says when a process ends first.
    """
    deadline = time.monotonic() + START_S
    for probe in (_serves, _stores):  # first all, then what needs the others too
        for number, (process, log_start) in started.items():
            while True:
                problem = probe(layout, number)
                if not problem:
                    break
                if process.poll() is not None:
                    raise CommandError(f"node {number} did not start: {_last_error(layout.node(number), log_start)}")
                if time.monotonic() > deadline:
                    raise CommandError(f"node {number} did not come up within {START_S:.0f} s ({problem}); "
                                       f"see {layout.node(number).log_file}")
                time.sleep(0.05)


def _serves(layout: Layout, number: int) -> str | None:
    """None when the proxy of a node answers, else what is wrong."""
    try:
        answer = Client(layout.settings.endpoint(number), timeout_s=5).request("GET", "/healthcheck")
    except ClientError as error:
        return str(error)
    return None if answer.status == 200 else f"the health check answers {answer.status}"


def _stores(layout: Layout, number: int) -> str | None:
    """None when the user's account is answered for, else what is wrong."""
    settings = layout.settings
    client = Client(settings.endpoint(number), timeout_s=10)
    try:
        token, url = client.authenticate(settings.user, settings.key)
        status = client.request("HEAD", urlsplit(url).path, {"X-Auth-Token": token}).status
    except ClientError as error:
        return str(error)
    return None if status in (200, 204) else f"the account answers {status}"


def _last_error(node: NodePaths, start: int) -> str:
    try:
        with open(node.log_file, "rb") as file:
            file.seek(start)
            lines = file.read().decode("utf-8", "replace").strip().splitlines()
    except OSError:
        lines = []
    for line in reversed(lines):
        if line.startswith("Error: "):
            return line.removeprefix("Error: ")
    return f"{lines[-1]} (see {node.log_file})" if lines else f"see {node.log_file}"


def start_nodes(layout: Layout, nodes: list[NodePaths]) -> dict[int, subprocess.Popen[bytes]]:
    """Start nodes and wait until they answer; when one does not, those started here are stopped again."""
    for node in nodes:
        check_ports(layout, node)
    started: dict[int, tuple[subprocess.Popen[bytes], int]] = {}
    try:
        for node in nodes:
            size = os.path.getsize(node.log_file) if os.path.exists(node.log_file) else 0
            started[node.number] = (launch(node), size)
        wait_until_answering(layout, started)
    except BaseException:
        for number, (process, _) in started.items():
            if process.poll() is None:
                stop_node(layout.node(number))
                process.wait()
        raise
    return {number: process for number, (process, _) in started.items()}


# -- stop --------------------------------------------------------------------------------------------------------------


def stop_node(node: NodePaths, at_once: bool = False) -> bool:
    """End all processes of a node and wait until they are gone; whether there were any. ``at_once``: SIGKILL.

    Raises CommandError when something survives.
    """
    pid, found = processes_of(node)
    if not found:
        return False
    if at_once:
        _send(found, signal.SIGKILL)
    elif pid is not None:
        daemon.signal_process(pid, found[pid], signal.SIGTERM)
    else:
        _send(found, signal.SIGTERM)
    left = daemon.wait_gone(found, STOP_S)
    if left:
        _send({pid: found[pid] for pid in left}, signal.SIGKILL)
    _, late = processes_of(node)  # a worker that was replaced while we were at it
    _send(late, signal.SIGKILL)
    left = daemon.wait_gone({**found, **late}, STOP_S)
    if left:
        raise CommandError(f"{node.name}: still there: process {', '.join(map(str, left))}")
    return True


def _send(processes: dict[int, int | None], number: int) -> None:
    for pid, started in processes.items():
        daemon.signal_process(pid, started, number)
