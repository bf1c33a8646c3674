"""Rings of many devices: what they cost to build, to load, to keep in each worker, and to look things up in."""

from __future__ import annotations

import gc
import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

from keelstore.common.ring.builder import RingBuilder
from keelstore.common.ring.devices import RingDevice
from keelstore.common.ring.format import save
from keelstore.common.ring.ring import RingFile
from test.bench.scale_device import Point, apart, cpu, memory_kib, watch_memory

RINGS = ((100, 14), (100, 22), (20_000, 22))  # devices, part power
ZONES, SERVER = 5, 50  # zones, devices of a server
LOOKUPS = 200_000
WORKERS = 2


def build(path: str, devices: int, power: int) -> list[Point]:
    before, began = watch_memory(), cpu()
    builder = RingBuilder(power, 3, 1)
    for number in range(devices):
        server = number // (SERVER if devices > 1000 else 10)
        ip = f"10.{server % ZONES}.{server // 250}.{server % 250}"
        builder.add_device(RingDevice(id=number, region=1, zone=server % ZONES + 1, ip=ip, port=6200, replication_ip=ip, replication_port=6200,
                                      device=f"sd{number % SERVER}", weight=4000.0, meta=""))
    done = builder.rebalance(0.0, seed=1)
    built = cpu()
    save(builder.ring(), path)
    return [("build: CPU", devices, built - began, "s"), ("write: CPU", devices, cpu() - built, "s"), ("build: memory", devices, (memory_kib("VmHWM") - before) / 1024, "MiB"),
            ("build: balance", devices, done.balance, "%"), ("file", devices, os.path.getsize(path) / 2**20, "MiB")]


def pss_mib(pid: int, field: str = "Pss") -> float:
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith(f"{field}:"))


def use(path: str, devices: int) -> list[Point]:
    """Load a ring, fork workers that use it as proxies do, and see what each has of its own."""
    gc.collect()
    before, began = watch_memory(), cpu()
    file = RingFile(path)
    found = [("load: CPU", devices, cpu() - began, "s"), ("load: peak", devices, (memory_kib("VmHWM") - before) / 1024, "MiB"),
             ("load: memory", devices, (memory_kib("VmRSS") - before) / 1024, "MiB")]
    gc.collect()
    gc.freeze()
    workers = [Worker(file) for _ in range(WORKERS)]
    try:
        rested = [pss_mib(worker.pid) for worker in workers]
        for lookup in ("primaries", "primaries, known", "primaries and 3 handoffs"):
            took = [worker.ask(lookup) for worker in workers]
            found.append((f"{lookup}: CPU for each", devices, min(took) / LOOKUPS * 1e6, "µs"))
        found += [("worker, before: PSS", devices, sum(rested) / len(rested), "MiB"),
                  ("worker, after look-ups: PSS", devices, sum(pss_mib(worker.pid) for worker in workers) / len(workers), "MiB"),
                  ("worker, after look-ups: own pages", devices, sum(pss_mib(worker.pid, "Private_Dirty") for worker in workers) / len(workers), "MiB")]
    finally:
        for worker in workers:
            worker.end()
    return found


class Worker:
    """A forked process that does look-ups when asked."""

    def __init__(self, file: RingFile):
        asked, self._ask = os.pipe()
        self._answer, answer = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            while kind := os.read(asked, 100).decode():
                os.write(answer, json.dumps(look_up(file, kind)).encode())
            os._exit(0)
        os.close(asked)
        os.close(answer)

    def ask(self, kind: str) -> float:
        os.write(self._ask, kind.encode())
        return float(json.loads(os.read(self._answer, 100)))

    def end(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def look_up(file: RingFile, kind: str) -> float:
    chance = random.Random(1)
    ring = file.current()
    parts = [chance.randrange(min(ring.partition_count, 5000 if "known" in kind else 1 << 30)) for _ in range(LOOKUPS)]
    began = time.process_time()
    if "handoffs" in kind:
        for part in parts[:LOOKUPS // 10]:
            ring.primaries(part)
            for _, _node in zip(range(3), ring.handoffs(part)):
                pass
        return (time.process_time() - began) * 10
    for part in parts:
        ring.primaries(part)
    return time.process_time() - began


def rings(data: Path, say: Callable[[str], None]) -> list[tuple[str, Point]]:
    found: list[tuple[str, Point]] = []
    for devices, power in RINGS:
        path, title = str(data / f"{devices}-{power}.ring.gz"), f"{devices:,} devices, 2^{power} partitions"
        points = [*apart(build, path, devices, power), *apart(use, path, devices)]
        found += [(title, point) for point in points]
        for point in points:
            say(f"{title}: {point}")
    return found
