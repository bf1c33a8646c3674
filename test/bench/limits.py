"""How far a store is from the least that an operation can cost: a small durable PUT beside bare programs that write, sync and name
three files, and GET of 64 MiB beside a ten-line server that calls ``sendfile`` (and nginx, where it is installed).

    python -m test.bench.limits [--shared DIR] [--data DIR] [--rounds N]

CPU is that of the processes. Our syncs are carried out by workers of the kernel, whose CPU is not in ours while it is in that of the bare
program; so what the whole machine used, less the client, stands beside it. It means something only where nothing else runs.

Connections to ours and to the ten-line server are not paced, which matters where the system's congestion control is ``bbr``; nginx leaves
that to the system.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from test.bench.loads import COPIES, LARGE, SMALL, Load, Row, Target, generator
from test.bench.meter import Sample, cpu_s
from test.bench.report import shown, table
from test.bench.sides import descendants
from test.support.processes import accepts, free_ports
from test.support.store import running
from test.support.waiting import until

BARE = Path(__file__).with_name("bare.py")
PUTS, GETS = 100, 6
PUT_AIM, GET_AIM = 2.0, 1.3


@dataclass
class Cost:
    """What one operation took in each round: of its processes, of the whole machine less the client, and of wall time."""

    cpu_ms: list[float] = field(default_factory=list)
    machine_ms: list[float] = field(default_factory=list)
    wall_ms: list[float] = field(default_factory=list)

    def add(self, cpu_ms: float, machine_ms: float, wall_ms: float) -> None:
        self.cpu_ms.append(cpu_ms)
        self.machine_ms.append(machine_ms)
        self.wall_ms.append(wall_ms)


@dataclass(frozen=True)
class Limit:
    """An operation of ours beside a bare one. The aim is for the ratio of CPU."""

    title: str
    ours: Cost
    bare: Cost
    aim: float | None = None


def bare_put(bench: ModuleType, mode: str, directory: Path, cost: Cost) -> None:
    before = bench.machine_cpu()[0]
    done = subprocess.run([sys.executable, "-S", str(BARE), mode, str(directory), str(PUTS), str(SMALL)], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    machine = bench.machine_cpu()[0] - before
    cost.add(found["cpu_s"] / PUTS * 1e3, machine / PUTS * 1e3, found["wall_s"] / PUTS * 1e3)


def our_put(load: Load, row: Row, cost: Cost) -> None:
    line = load.measure(row)
    machine = line["machine_cpu_s"] / line["ops"] * 1e3 - line["client_cpu_ms_op"]
    cost.add(line["server_cpu_ms_op"], machine, line["seconds"] / line["ops"] * row.connections * 1e3)


def puts(bench: ModuleType, target: Target, pids: list[int], directory: Path, rounds: int) -> list[Limit]:
    load = Load(bench, target, COPIES, pids, 1.5)
    ours = {connections: Cost() for connections in (1, 8)}
    bare = {mode: Cost() for mode in ("put", "put-dirs", "put-layout")}
    for number in range(rounds + 1):
        for mode, cost in bare.items():
            bare_put(bench, mode, directory, cost if number else Cost())
        for connections, cost in ours.items():
            our_put(load, Row(COPIES, "put", SMALL, connections), cost if number else Cost())
    names = {"put": "", "put-dirs": ", each copy in a new directory", "put-layout": ", each in new suffix and hash directories, as ours"}
    return [Limit(f"small PUT, {connections} connection{'s' * (connections > 1)}; bare program{names[mode]}", cost, bare[mode], PUT_AIM)
            for connections, cost in ours.items() for mode in bare]


class Plain:
    """What the load generator's engine needs of a target."""

    def __init__(self, bench: ModuleType, endpoint: str):
        self.connect = bench.Target(endpoint, "", "").connect


def get_round(bench: ModuleType, endpoint: str, request: bytes, connections: int, pids: Callable[[], list[int]]) -> tuple[Sample, float]:
    """GETs of the large object; what they took, and what the whole machine but for us did."""
    engine = bench.Engine(Plain(bench, endpoint), connections)
    engine.open()
    found = pids()
    machine, own = bench.machine_cpu()[0], bench.self_cpu()
    before = cpu_s(found)
    took = engine.run(bench.Op(request, want=LARGE, kind="get") for _ in range(GETS * connections))
    sample = Sample(cpu_s(found) - before, took)
    others = bench.machine_cpu()[0] - machine - (bench.self_cpu() - own)
    engine.shut()
    if engine.errors:
        raise RuntimeError(f"GET of 64 MiB from {endpoint}: {engine.statuses}")
    return sample, others


@contextmanager
def sendfile_server(path: Path) -> Iterator[tuple[str, list[int]]]:
    with subprocess.Popen([sys.executable, "-S", str(BARE), "serve", str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}", [process.pid]
        finally:
            process.kill()


@contextmanager
def nginx(path: Path) -> Iterator[tuple[str, list[int]]]:
    home, (port,) = path.parent, free_ports(1)
    folders = " ".join(f"{name}_temp_path {home}/nginx-{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    conf = home / "nginx.conf"
    conf.write_text(f"daemon off; master_process off; pid {home}/nginx.pid; error_log stderr; events {{}}\nhttp {{ access_log off; sendfile on; {folders}\n"
                    f"server {{ listen 127.0.0.1:{port}; root {home}; }} }}\n")
    with open(home / "nginx.log", "wb") as log, subprocess.Popen([str(nginx_program()), "-c", str(conf)], stdin=subprocess.DEVNULL, stdout=log, stderr=log) as process:
        try:
            endpoint = f"http://127.0.0.1:{port}"
            until(lambda: accepts("127.0.0.1", port), "nginx accepts", 20)
            yield endpoint, [process.pid]
        finally:
            process.kill()


def nginx_program() -> str | None:
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")


def gets(bench: ModuleType, target: Target, pids: Callable[[], list[int]], directory: Path, rounds: int) -> tuple[list[Limit], list[str]]:
    path = directory / "large"
    body = bench.Bodies(LARGE).pool
    path.write_bytes(body)
    swift = bench.Swift(target.endpoint, target.user, target.key)
    swift.make_container("limits", "gold")
    headers = {"X-Auth-Token": swift.token}
    status = swift.once("PUT", f"{swift.base}/limits/large", headers, body)[0]
    if status != 201:
        raise RuntimeError(f"PUT of 64 MiB: {status}")
    plain = b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n"
    notes = []
    with ExitStack() as stack:
        sides: dict[str, tuple[str, bytes, Callable[[], list[int]]]] = {"ours": (target.endpoint, swift.get(b"limits", b"large"), pids)}
        endpoint, found = stack.enter_context(sendfile_server(path))
        sides["sendfile in ten lines of Python"] = (endpoint, plain, lambda found=found: found)  # type: ignore[misc]
        if nginx_program():
            endpoint, found = stack.enter_context(nginx(path))
            sides["nginx, one process"] = (endpoint, plain, lambda found=found: found)  # type: ignore[misc]
        else:
            notes.append("nginx is not installed and left out.")
        costs = {(name, connections): Cost() for name in sides for connections in (1, 4)}
        for number in range(rounds + 2):  # every server of ours checks the MD5 of what it gives once
            for (name, connections), cost in costs.items():
                endpoint, request, whose = sides[name]
                sample, others = get_round(bench, endpoint, request, connections, whose)
                count = GETS * connections
                if number >= 2:
                    cost.add(sample.cpu_s / count * 1e3, others / count * 1e3, sample.wall_s / GETS * 1e3)
    return [Limit(f"GET 64 MiB, {connections} connection{'s' * (connections > 1)}; {name}", costs["ours", connections], costs[name, connections], GET_AIM)
            for connections in (1, 4) for name in sides if name != "ours"], notes


def measure(bench: ModuleType, target: Target, pids: Callable[[], list[int]], base: Path, rounds: int) -> tuple[list[Limit], list[str]]:
    """All of it, beside a store that runs. ``base`` lies on its file system."""
    directory = Path(tempfile.mkdtemp(prefix="limits-", dir=base))
    try:
        large, notes = gets(bench, target, pids, directory, rounds)
        return puts(bench, target, pids(), directory, rounds) + large, notes
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def shown_limits(limits: Sequence[Limit], notes: Sequence[str]) -> str:
    def pair(ours: list[float], bare: list[float]) -> tuple[str, str]:
        ratio = statistics.median(one / other for one, other in zip(ours, bare, strict=True) if other > 0)
        return f"{shown(statistics.median(ours))}, {shown(statistics.median(bare))}", shown(ratio)

    lines = []
    for limit in limits:
        cpu, cpu_ratio = pair(limit.ours.cpu_ms, limit.bare.cpu_ms)
        machine, machine_ratio = pair(limit.ours.machine_ms, limit.bare.machine_ms)
        wall, wall_ratio = pair(limit.ours.wall_ms, limit.bare.wall_ms)
        aim = "" if limit.aim is None else f"{limit.aim:g} {'met' if float(cpu_ratio) <= limit.aim else '**not met**'}"
        lines.append((limit.title, cpu, cpu_ratio, aim, machine, machine_ratio, wall, wall_ratio))
    text = table(("ours, bare; ms for each operation", "CPU of the processes", "ratio", "aim", "CPU of the machine", "ratio", "wall", "ratio"), lines)
    return "\n\n".join([text, *notes])


def main() -> None:
    parser = argparse.ArgumentParser(description="How far a store is from the least that an operation can cost.")
    parser.add_argument("--shared", type=Path, default=Path(__file__).resolve().parents[3] / "shared")
    parser.add_argument("--data", help="directory of the temporary one; on the file system to be measured")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    bench = generator(given.shared)
    with tempfile.TemporaryDirectory(prefix="keelstore-bench-", dir=given.data) as directory, running(Path(directory) / "data", workers=2) as store:
        target = Target("keelstore", f"http://{store.host}:{store.port}")
        print(shown_limits(*measure(bench, target, lambda: descendants(store.pids()), Path(directory), given.rounds)))


if __name__ == "__main__":
    main()
