"""Erasure coded objects (4+2) beside Swift, in turns: server CPU of each operation, and MiB/s or operations per second.

    REFERENCE_HOME=DIR shared/bench/reference_swift.sh up main ext4
    python -m test.bench.erasure --swift-pids DIR/run/server-pids [--rounds N] [--only put-large,get-large,put-small,get-small]

A store of our own is made in a temporary directory (``--data``: where) and served as ``keelstore up`` does, daemons running. Large is 64
MiB (``--size``) by one connection and by four, small is 4 KiB by one and by eight. CPU is that of all server processes of each make, the kernel's
own workers not counted. Ratios are medians of those of each round, ours to Swift's: the aims (issue 5, 6) are at most 0.5 of the CPU at
least twice the MiB/s for large objects, 0.33 of the CPU for small ones.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from test.bench.meter import Sample, cpu_s, in_turns, median_cpu_s, median_wall_s
from test.bench.pipeline import Wire, request
from test.support.client import Account, Endpoint
from test.support.store import Store, running

SMALL, SMALL_REQUESTS, NAMES = 4096, 40, 8
OURS, SWIFT = "keelstore", "swift"


@dataclass(frozen=True)
class Side:
    """A store to be measured."""

    account: Account
    pids: list[int]

    @property
    def container(self) -> str:
        return f"{self.account.path}/bench-ec"

    def make_container(self) -> None:
        headers = {"X-Auth-Token": self.account.token, "X-Storage-Policy": "ec42"}
        self.account.endpoint.request("PUT", self.container, headers).expect(201, 202)


def workload(side: Side, method: str, size: int, connections: int, requests: int, body: bytes) -> Callable[[], Sample]:
    """A round: each connection makes so many requests, one after the other."""

    def work(number: int, wire: Wire, failures: list[Exception]) -> None:
        try:
            for turn in range(requests):
                name = f"{size}-{number}-{turn % NAMES}"
                length = wire.ask(request(side.account, method, f"{side.container}/{name}", body), (200, 201))
                if method == "GET" and length != size:
                    raise RuntimeError(f"{length} bytes where {size} were stored")
        except Exception as error:
            failures.append(error)

    def round_() -> Sample:
        failures: list[Exception] = []
        wires = [Wire(side.account.endpoint) for _ in range(connections)]  # anew: an idle one may be closed
        threads = [threading.Thread(target=work, args=(number, wire, failures)) for number, wire in enumerate(wires)]
        before, started = cpu_s(side.pids), time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took = Sample(cpu_s(side.pids) - before, time.perf_counter() - started)
        for wire in wires:
            wire.close()
        if failures:
            raise failures[0]
        return took

    return round_


def measure(sides: dict[str, Side], method: str, size: int, connections: int, requests: int, rounds: int) -> None:
    body = (bytes(range(256)) * (size // 256)) if method == "PUT" else b""
    samples = in_turns({name: workload(side, method, size, connections, requests, body) for name, side in sides.items()}, rounds)
    count, mib = connections * requests, size / (1 << 20)

    def shown(name: str) -> str:
        per_s = count / median_wall_s(samples[name])
        rate = f"{per_s * mib:.0f} MiB/s" if size >= 1 << 20 else f"{per_s:.0f}/s"
        return f"{name} {median_cpu_s(samples[name]) / count * 1e3:.2f} ms CPU, {rate}"

    pairs = list(zip(samples[OURS], samples[SWIFT], strict=True)) if SWIFT in samples else []
    ratios = ""
    if pairs:
        cpu = statistics.median(ours.cpu_s / swift.cpu_s for ours, swift in pairs)
        rate = statistics.median(swift.wall_s / ours.wall_s for ours, swift in pairs)
        ratios = f"; CPU {cpu:.2f} of Swift's, {rate:.2f} times as fast"
    print(f"{method} {size} B, {connections} connections: {'; '.join(shown(name) for name in samples)}{ratios}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--swift", default="127.0.0.1:18080", metavar="HOST:PORT")
    parser.add_argument("--swift-pids", type=Path, help="file with the pids of Swift's servers; without it only ours is measured")
    parser.add_argument("--data", help="directory of our store's temporary one; on the file system that Swift uses")
    parser.add_argument("--size", type=int, default=64 << 20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="put-large,get-large,put-small,get-small")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="keelstore-bench-", dir=given.data) as directory, running(Path(directory) / "data", workers=2) as store:
        sides = {OURS: ours(store)}
        if given.swift_pids:
            host, _, port = given.swift.partition(":")
            sides[SWIFT] = Side(Endpoint(host, int(port)).login(), [int(pid) for pid in given.swift_pids.read_text().split()])
        for side in sides.values():
            side.make_container()
        for name in given.only.split(","):
            method, _, kind = name.partition("-")
            for connections in (1, 4) if kind == "large" else (1, 8):
                size, requests = (given.size, max(1, 2 // connections)) if kind == "large" else (SMALL, SMALL_REQUESTS)
                measure(sides, method.upper(), size, connections, requests, given.rounds)


def ours(store: Store) -> Side:
    return Side(store.login(), store.pids())


if __name__ == "__main__":
    main()
