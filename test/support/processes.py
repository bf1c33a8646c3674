"""Starting, watching and ending the processes of a test: each is ours, in a session of its own, and is ended by its id."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from test.support.waiting import until

ROOT = Path(__file__).resolve().parents[2]
given: set[int] = set()  # ports, by this process


def is_free(host: str, port: int) -> bool:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
        except OSError:
            return False
    return True


def port_range() -> tuple[int, int]:
    """From which ports are taken: below those that the kernel gives to outgoing connections. ``bin/run-tests`` gives each run that
    is beside others a range of its own (``KEELSTORE_TEST_PORTS``), since the port of a server that is down for a while looks free.
    """
    low, _, high = os.environ.get("KEELSTORE_TEST_PORTS", "11000-30000").partition("-")
    return int(low), int(high)


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Ports nobody listens on and that none of our servers had."""
    found: list[int] = []
    while len(found) < count:
        port = random.SystemRandom().randrange(*port_range())
        if port not in given and is_free(host, port):
            found.append(port)
            give(port)
    return found


def give(*ports: int) -> None:
    """Remember ports as those of servers, which may be down now and then."""
    given.update(ports)
    low, high = port_range()
    if len(given) > (high - low) // 2:  # the first of them are long ended
        given.clear()
        given.update(ports)


def accepts(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=1):
            return True
    except OSError:
        return False


@dataclass
class Process:
    """A process and those it forks. Its output is in ``log``."""

    command: Sequence[str]
    log: Path
    env: Mapping[str, str] = field(default_factory=dict)
    running: subprocess.Popen[bytes] | None = None

    def start(self) -> Process:
        assert self.running is None
        env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", **self.env}
        with open(self.log, "ab") as log:
            self.running = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, start_new_session=True)
        return self

    @property
    def pid(self) -> int:
        assert self.running is not None
        return self.running.pid

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def is_alive(self) -> bool:
        return self.running is not None and self.running.poll() is None

    def wait_for(self, host: str, port: int) -> Process:
        """Until it accepts connections there."""
        def ready() -> bool:
            assert self.running is not None
            if self.running.poll() is not None:
                raise RuntimeError(f"{self.command} ended with {self.running.returncode}: {self.output[-2000:]}")
            return accepts(host, port)

        until(ready, f"{self.command} listens on {host}:{port}", 180)
        return self

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End it, with all that it forked; kill what does not end by itself."""
        if self.running is None:
            return
        with suppress(ProcessLookupError):
            os.kill(self.running.pid, number)
        try:
            self.running.wait(10)
        except subprocess.TimeoutExpired:
            pass
        with suppress(ProcessLookupError):  # what is left of its session
            os.killpg(self.running.pid, signal.SIGKILL)
        self.running.wait(60)
        self.running = None
