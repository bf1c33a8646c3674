"""The stores that are compared: started fresh, twice each, measured while they start and idle, and always stopped.

``ours`` is what ``keelstore up`` makes; ``swift`` is started by ``reference_swift.sh`` of the shared directory (``rgw`` has a module of its
own). All lie in temporary directories of one file system and sync as they always do. A side is a context manager: whatever ends the comparison,
Ctrl-C too, its processes are ended by their ids and its data is removed.
"""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from test.bench.loads import Target
from test.support.processes import is_free
from test.support.store import Store

IDLE_S = 4.0  # after a start, before memory is looked at
START_LIMIT_S = 300.0


class Unusable(Exception):
    """Why a side cannot be measured here."""


@dataclass
class Side:
    """A store that serves, and what was seen while it started."""

    target: Target
    pids: Callable[[], list[int]]
    title: str
    notes: list[str] = field(default_factory=list)
    first_start_s: float | None = None
    second_start_s: float | None = None
    idle_mib: float | None = None

    def pss_mib(self) -> float:
        return pss_mib(self.pids())


def descendants(roots: Iterable[int]) -> list[int]:
    """These processes and all below them that are alive."""
    found: list[int] = []
    waiting = list(roots)
    while waiting:
        pid = waiting.pop()
        if pid in found or not os.path.exists(f"/proc/{pid}"):
            continue
        found.append(pid)
        with suppress(OSError):
            for task in os.listdir(f"/proc/{pid}/task"):
                waiting.extend(int(word) for word in Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    return found


def pss_mib(pids: Iterable[int]) -> float:
    """The memory that these processes take, what they share counted once."""
    total = 0
    for pid in pids:
        with suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1])
    return total / 1024


def answers(target: Target) -> bool:
    """Whether the account of the test user can be asked for."""
    host, _, port = target.endpoint.removeprefix("http://").partition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=5)
    try:
        connection.request("GET", "/auth/v1.0", headers={"X-Auth-User": target.user, "X-Auth-Key": target.key})
        login = connection.getresponse()
        login.read()
        if login.status // 100 != 2:
            return False
        path = "/" + login.headers["X-Storage-Url"].split("/", 3)[3]
        connection.request("HEAD", path, headers={"X-Auth-Token": login.headers["X-Auth-Token"]})
        return connection.getresponse().status // 100 == 2
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def timed_start(start: Callable[[], object], target: Target) -> float:
    """Call ``start``; the seconds from then to the first good answer."""
    first: list[float] = []
    is_over = threading.Event()
    began = time.perf_counter()

    def watch() -> None:
        while not is_over.wait(0.02):
            if answers(target):
                first.append(time.perf_counter() - began)
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        start()
        watcher.join(START_LIMIT_S)
    finally:
        is_over.set()
    if not first:
        raise Unusable(f"{target.label} does not answer at {target.endpoint}")
    return first[0]


@contextmanager
def ours(base: Path, workers: int) -> Iterator[Side]:
    """keelstore, as its own ``up`` starts it, daemons and all."""
    store = Store.new(base / "keelstore", workers=workers)
    target = Target("keelstore", f"http://{store.host}:{store.port}")
    try:
        first = timed_start(store.up, target)
        idle = idle_memory(store.pids)
        store.down()
        side = Side(target, store.pids, "keelstore", [f"{workers} workers, all daemons running"], first, idle_mib=idle)
        side.second_start_s = timed_start(store.up, target)
        yield side
    finally:
        store.command("down", check=False)


def idle_memory(pids: Callable[[], list[int]]) -> float:
    time.sleep(IDLE_S)
    return pss_mib(pids())


@contextmanager
def swift(base: Path, shared: Path, home: Path) -> Iterator[Side]:
    """Swift, all in one: once with all its daemons, for memory and start, then its four servers alone, which are measured."""
    script = shared / "bench" / "reference_swift.sh"
    if not script.is_file():
        raise Unusable(f"there is no {script}")
    if not is_free("127.0.0.1", 18080):
        raise Unusable("port 18080, where the reference listens, is in use")
    if (home / "run" / "pids").exists() and (home / "run" / "pids").stat().st_size:
        raise Unusable(f"{home}/run/pids says that the reference runs; '{script} down' stops it")
    data = Path(tempfile.mkdtemp(prefix="bench-", dir=existing(home / "data")))
    for number in range(1, 9):
        (data / f"d{number}").mkdir()
    reference = Reference(script, home, base / "reference.log")
    target = Target("swift", "http://127.0.0.1:18080")
    try:
        if not (home / "etc" / "proxy-func.conf").exists():  # its very first start installs it
            reference.run("up", "main", data.name)
            reference.run("down")
        first = timed_start(lambda: reference.run("up", "all", data.name), target)
        idle = idle_memory(reference.pids)
        count = len(reference.pids())
        reference.run("down")
        second = timed_start(lambda: reference.run("up", "main", data.name), target)
        notes = [f"idle memory and first start with all daemons ({count} processes), all else with its four servers alone",
                 f"its four servers alone take {idle_memory(reference.pids):.0f} MiB when idle; memcached and rsyslog are not counted"]
        yield Side(target, reference.pids, f"Swift {reference.version()}", notes, first, second, idle)
    finally:
        reference.stop()
        shutil.rmtree(data, ignore_errors=True)
        if os.path.realpath(home / "data" / "current") == str(data):
            (home / "data" / "current").unlink()


@dataclass
class Reference:
    """The script that starts and stops Swift."""

    script: Path
    home: Path
    log: Path
    running: subprocess.Popen[bytes] | None = None

    def run(self, *arguments: str) -> None:
        env = {**os.environ, "REFERENCE_HOME": str(self.home)}
        with open(self.log, "ab") as log:  # a file: what it starts must not hold a pipe of ours open
            self.running = subprocess.Popen(["bash", str(self.script), *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env,
                                            start_new_session=True)  # Ctrl-C is ours to answer
        if self.running.wait(START_LIMIT_S * 3):
            raise Unusable(f"{self.script.name} {' '.join(arguments)} failed:\n{self.log.read_text(errors='replace')[-2000:]}")
        self.running = None

    def stop(self) -> None:
        if self.running is not None and self.running.poll() is None:  # it must not start more while what it has started is stopped
            os.killpg(self.running.pid, signal.SIGKILL)  # its own session: what it is running goes, too
            self.running.wait()
        with suppress(Unusable, subprocess.SubprocessError):
            self.run("down")

    def pids(self) -> list[int]:
        names = [line.split() for line in (self.home / "run" / "pids").read_text().splitlines()]
        return descendants(int(pid) for pid, name in names if name not in ("rsyslogd", "memcached", "rsyncd"))

    def version(self) -> str:
        code = "import importlib.metadata; print(importlib.metadata.version('swift'))"
        return subprocess.run([self.home / "venv" / "bin" / "python", "-c", code], capture_output=True, text=True).stdout.strip() or "(version unknown)"


def existing(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    return path
