"""What a store does when more is asked of it than it can do:

    python -m test.bench.overload connections|slow-readers|slow-writers|slow-disk [--crowd N] [--seconds 8] [--all]

Starts a store (``keelstore up``, two workers), measures a well-behaved client alone (small GETs and PUTs, a new connection every 20 requests), beside the
crowd, and after it has gone. ``connections``, ``slow-readers``, ``slow-writers``: 2,000 of them. ``slow-disk``: 1,000 uploads of 256 KiB at once while
one device of eight (``--all``: every one) is held to 2 MiB and 100 writes a second; the well-behaved client's objects lie on others (needs root).
Prints memory (PSS of all processes, peak of each), what the crowd was answered, and how soon the client has what it had alone.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path

from test.bench.crowds import KINDS, READ_SIZE, Crowd, Where
from test.bench.meter import cpu_s
from test.bench.repair import pss_mib
from test.bench.slow_device import SlowDevice
from test.fault.test_disks import Thing
from test.support.client import Account
from test.support.store import Store

BODY = bytes(range(256)) * 16
SLOW = (2 << 20, 100)  # bytes and operations a second
RECOVERED = 2.0  # times what a request took alone


@dataclass
class Pace:
    """What one kind of request of the well-behaved client met."""

    took_s: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)

    def text(self, seconds: float) -> str:
        times = sorted(self.took_s) or [0.0]
        wrong = {status: count for status, count in self.statuses.items() if status // 100 != 2}
        return (f"{len(self.took_s) / seconds:7.1f} a second, p50 {statistics.median(times) * 1000:.1f} ms, p99 {times[int(len(times) * 0.99)] * 1000:.1f} ms, "
                f"longest {times[-1] * 1000:.0f} ms{f', not served: {wrong}' if wrong else ''}")


class Good:
    """The well-behaved client: a green field for each kind of request, one after the other."""

    def __init__(self, account: Account, names: list[tuple[str, str]]):
        self.account, self.names = account, names
        for container, name in names:
            account.put(container, name, body=BODY).expect(201)

    def measure(self, seconds: float, kinds: tuple[str, ...] = ("GET", "PUT")) -> dict[str, Pace]:
        found = {kind: Pace() for kind in kinds}
        end, number = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            with self.account.endpoint.connect(timeout=30) as connection:
                for _ in range(20):
                    kind = kinds[number % len(kinds)]
                    container, name = self.names[number // len(kinds) % len(self.names)]
                    number += 1
                    began = time.monotonic()
                    try:
                        if kind == "GET":
                            status = self.account.get(container, name, connection=connection).status
                        else:
                            status = self.account.put(container, name, body=BODY, connection=connection).status
                    except (OSError, HTTPException):
                        status = 0
                    found[kind].statuses[status] += 1
                    if status // 100 == 2:
                        found[kind].took_s.append(time.monotonic() - began)
                    if status // 100 != 2 or time.monotonic() > end:
                        break
        return found


class Memory:
    """PSS of all processes and the kernel's memory for TCP, looked at twice a second; the most of each."""

    def __init__(self, pids: list[int]):
        self.pids, self.most_mib, self.most_tcp_mib, self.most_fds = pids, 0.0, 0.0, 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._ended.wait(0.5):
            self.most_mib = max(self.most_mib, sum(pss_mib(pid) for pid in self.pids))
            found = re.search(r"TCP:.* mem (\d+)", Path("/proc/net/sockstat").read_text())
            assert found
            self.most_tcp_mib = max(self.most_tcp_mib, int(found[1]) * 4096 / 2**20)
            self.most_fds = max(self.most_fds, *(len(os.listdir(f"/proc/{pid}/fd")) for pid in self.pids))

    def text(self) -> str:
        self._ended.set()
        self._thread.join()
        peaks = ", ".join(f"{peak_mib(pid):.0f}" for pid in self.pids)
        return (f"memory of all processes at most {self.most_mib:.0f} MiB (PSS); peak of each {peaks} MiB (RSS); TCP in the kernel, both ends, at most "
                f"{self.most_tcp_mib:.0f} MiB; open files of a process at most {self.most_fds}")


def peak_mib(pid: int) -> float:
    found = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) / 1024


def settle(store: Store, account: Account, slow: str | None) -> tuple[list[tuple[str, str]], str]:
    """Names for the well-behaved client, none on the slow device; and a container for the crowd."""
    names: list[tuple[str, str]] = []
    number = 0
    while len(names) < 20:
        container, number = f"good-{number}", number + 1
        if slow is not None and any(node.device == slow for node in Thing(store, "container", account.name, container).primaries):
            continue
        account.put(container).expect(201, 202)
        for index in range(200):
            name = f"o{index}"
            if slow is None or all(node.device != slow for node in Thing(store, "object", account.name, container, name).primaries):
                names.append((container, name))
            if len(names) >= 20:
                break
    account.put("crowd").expect(201, 202)
    account.put("crowd", "large", body=bytes(READ_SIZE)).expect(201)
    return names, "crowd"


def show(title: str, paces: dict[str, Pace], seconds: float) -> None:
    for kind, pace in paces.items():
        print(f"  {title:12} {kind:4} {pace.text(seconds)}", flush=True)


def recovery_s(good: Good, alone: dict[str, Pace]) -> float:
    """Until ten requests of each kind in a row take no longer than RECOVERED times the p99 they took alone."""
    began = time.monotonic()
    limits = {kind: max(0.05, RECOVERED * sorted(pace.took_s)[int(len(pace.took_s) * 0.99)]) for kind, pace in alone.items()}
    while True:
        start = time.monotonic()
        found = good.measure(0.3)
        if all(pace.took_s and max(pace.took_s) <= limits[kind] and set(pace.statuses) <= {200, 201} for kind, pace in found.items()):
            return start - began
        if start - began > 120:
            return float("inf")


def overload(kind: str, clients: int, seconds: float, is_all: bool) -> None:
    with ExitStack() as stack:
        home = Path(tempfile.mkdtemp(prefix="overload-", dir="/var/tmp"))
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        store = Store.new(home / "data", workers=2)
        store.prepare()
        slow, device = None, None
        if kind == "slow-disk":
            device = SlowDevice(home / "image")
            stack.callback(device.close)
            slow = None if is_all else "d1"
            device.mount(store.devices() if slow is None else store.devices() / slow)
        store.up()
        stack.callback(store.down)
        account = store.login()
        names, container = settle(store, account, slow)
        good, pids = Good(account, names), store.pids()
        print(f"{kind}: {clients} clients, {len(store.worker_pids())} workers, load of the machine before {os.getloadavg()[0]:.1f}", flush=True)
        print(f"  memory before: {sum(map(pss_mib, pids)):.0f} MiB (PSS)")
        alone = good.measure(seconds)
        show("alone", alone, seconds)
        if device is not None:
            print(f"  {slow or 'all devices'} held to {SLOW[0] >> 20} MiB and {SLOW[1]} writes a second ({device.limit(*SLOW)})")
        memory, used = Memory(pids), cpu_s(pids)
        targets = tuple(account.target(container, f"up-{number}") for number in range(clients)) if "read" not in kind and kind != "connections" else \
            (account.target(container, "large"),)
        began = time.monotonic()
        crowd = Crowd(kind, Where(store.endpoint.host, store.endpoint.port, account.token, targets, clients))
        beside = good.measure(seconds)
        show("beside", beside, seconds)
        told = crowd.go()
        gone = time.monotonic()
        print(f"  crowd: {told.text()}; {told.open} connections open at its end; server CPU {cpu_s(pids) - used:.1f} s of {gone - began:.1f} s")
        if device is not None and is_all:
            device.limit(0, 0)
        print(f"  recovered {recovery_s(good, alone):.1f} s after the crowd had gone")
        show("after", good.measure(min(seconds, 4)), min(seconds, 4))
        print(f"  {memory.text()}")
        print(f"  memory after: {sum(map(pss_mib, pids)):.0f} MiB (PSS); workers as before: {store.pids() == pids}", flush=True)
        if device is not None:
            device.limit(0, 0)
        log = store.log()
        print(f"  in the log: {log.count('Traceback')} tracebacks, {log.count('is not asked for')} devices left alone", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="+", choices=sorted(KINDS))
    parser.add_argument("--crowd", type=int, help="how many; default 2,000, and 1,000 for slow-disk")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--all", action="store_true", help="slow-disk: all devices, not one of eight")
    options = parser.parse_args()
    for kind in options.kinds:
        overload(kind, options.crowd or (1000 if kind == "slow-disk" else 2000), options.seconds, options.all)


if __name__ == "__main__":
    main()
