"""How soon a cluster is whole again, ours and Swift's, and what repair costs readers:

    KEELSTORE_SWIFT_PYTHON=... python -m test.bench.repair missed [--objects 1000]     a node returns that missed writes
    KEELSTORE_SWIFT_PYTHON=... python -m test.bench.repair emptied [--objects 10000] [--rounds 2]    a device is emptied
    python -m test.bench.repair reads [--objects 10000] [--seconds 20]                  small GETs at concurrency 8 beside a full repair
    python -m test.bench.repair expiry [--objects 10000]                                objects that are due in one hour
    python -m test.bench.repair idle [--seconds 120]                                    what the daemons of an idle node take

Four nodes on loopback. Ours in ``missed``, ``reads`` and ``expiry``: ``up --nodes 4``, scans of the object replicator an hour apart in ``missed``.
Swift: its servers and proxy, a replicator for each site, SSYNC, its default interval of 30 s. ``emptied`` has both over the same disks, filled
by ours, one pass of each site's replicator, all sites at once. CPU is that of servers and daemons.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from test.bench.meter import cpu_s
from test.bench.rebuild import family
from test.fault.test_objects_live import Objects, fill
from test.interop.test_daemons_swift import RUNNER
from test.support.client import Account
from test.support.daemon_runs import configuration
from test.support.load import run_clients
from test.support.peers import OURS, SWIFT, Peers
from test.support.processes import ROOT, Process
from test.support.store import Store, alive
from test.support.waiting import until

NODES = (1, 2, 3, 4)
VICTIM = 3


def say(text: str) -> None:
    print(f"{text} (load {os.getloadavg()[0]:.1f})", flush=True)


def pss_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


@contextmanager
def store_of(nodes: int, hourly: bool = False, workers: int = 1) -> Iterator[Store]:
    home = Path(tempfile.mkdtemp(prefix="repair-"))
    store = Store.new(home / "data", nodes=nodes, workers=workers)
    store.up()
    try:
        if hourly:
            for number in NODES:
                store.edit("object-server.conf", ("[object-replicator]\ninterval = 60", "[object-replicator]\ninterval = 3600"), number=number)
            store.down()
            store.up()
        yield store
    finally:
        store.down()
        shutil.rmtree(home, ignore_errors=True)


# -- a node that missed writes -------------------------------------------------------------------------------------------


def missed(objects: int) -> None:
    with store_of(4, hourly=True) as store:
        account, names = store.login(), [f"o{number:05}" for number in range(objects)]
        account.put("c").expect(201)
        store.stop_node(VICTIM, kill=True)
        fill(store, account, "c", names, [1, 2, 4])
        known = Objects(store, account, "c", names)
        count = known.counts()[0]
        began = time.monotonic()
        store.start_node(VICTIM)
        answered = time.monotonic()
        pids = [pid for number in NODES for pid in store.pids(number)]
        used = cpu_s(pids)
        until(lambda: known.counts() == (0, 0), "every copy is home", 600, every_s=0.2)
        say(f"keelstore: {count} copies home {time.monotonic() - answered:.1f} s after the node answered ({time.monotonic() - began:.1f} s after its start "
            f"was asked for), {cpu_s(pids) - used:.1f} s CPU")
    python = os.environ.get("KEELSTORE_SWIFT_PYTHON")
    if python:
        missed_by_swift(python, objects)


def missed_by_swift(python: str, objects: int) -> None:
    home = Path(tempfile.mkdtemp(prefix="repair-swift-"))
    peers = Peers(home, python, sites=4, devices_per_site=2)
    (home / "run-daemon.py").write_text(RUNNER.replace("once=True", "once=False"))
    daemons: list[Process] = []
    try:
        peers.start(0, 1, 2, 3, make=SWIFT)
        peers.start_proxies(SWIFT)
        for site in range(4):
            daemons.append(swift_replicator(peers, site))
        account = peers.proxy(SWIFT).login()
        account.put("c").expect(201)
        peers.stop(VICTIM - 1)
        names = [f"o{number:05}" for number in range(objects)]

        def work(client: int) -> None:
            with account.endpoint.connect() as connection:
                for name in names[client::8]:
                    account.put("c", name, body=b"four", connection=connection).expect(201)

        assert run_clients(8, work) == []

        def wrong() -> int:
            count = 0
            for name in names:
                part, nodes, handoffs = peers.places("object", account.name, "c", name)
                count += sum(not list(peers.on_disk(node, part, account.name, "c", name).glob("*.data")) for node in nodes)
                count += sum(bool(list(peers.on_disk(node, part, account.name, "c", name).glob("*.data"))) for node in handoffs)
            return count

        count = wrong() // 2
        peers.start(VICTIM - 1, make=SWIFT)
        began = time.monotonic()
        pids = [pid for process in (*peers.running.values(), *daemons) for pid in family(process.pid)]
        used = cpu_s(pids)
        until(lambda: wrong() == 0, "every copy is home", 1800, every_s=0.5)
        say(f"swift: {count} copies home {time.monotonic() - began:.1f} s after the node answered, {cpu_s([pid for pid in pids if alive(pid)]) - used:.1f} s CPU")
    finally:
        for process in daemons:
            process.stop()
        peers.stop_all()
        shutil.rmtree(home, ignore_errors=True)


def swift_replicator(peers: Peers, site: int) -> Process:
    conf = configuration(peers, "object-replicator", site, sync_method="ssync")
    return Process([peers.swift_python, str(peers.home / "run-daemon.py"), str(peers.swift_dir / "swift.conf"), "swift.obj.replicator", "ObjectReplicator",
                    str(conf)], peers.home / f"swift-replicator-{site}.out", {"PYTHONPATH": ""}).start()


# -- a device that was emptied -------------------------------------------------------------------------------------------


def emptied(objects: int, rounds: int) -> None:
    home = Path(tempfile.mkdtemp(prefix="repair-"))
    python = os.environ.get("KEELSTORE_SWIFT_PYTHON", "")
    peers = Peers(home, python, sites=4, devices_per_site=2)
    (home / "run-daemon.py").write_text(RUNNER)
    makes = (OURS, SWIFT) if python else (OURS,)
    folder = peers.devices / "d3" / "objects"
    try:
        peers.start_proxies(OURS)
        with peers.storage(*[OURS] * 4):
            account = peers.proxy(OURS).login()
            account.put("c").expect(201)

            def work(client: int) -> None:
                with account.endpoint.connect() as connection:
                    for number in range(client, objects, 8):
                        account.put("c", f"o{number}", body=b"four", connection=connection).expect(201)

            assert run_clients(8, work) == []
        wanted = len(list(folder.glob("*/*/*/*.data")))
        for number in range(rounds):
            for make in makes if number % 2 else reversed(makes):
                with peers.storage(*[make] * 4):
                    idle = replicate(peers, make)
                    shutil.rmtree(folder)
                    wall, cpu = replicate(peers, make)
                found = len(list(folder.glob("*/*/*/*.data")))
                assert found == wanted, (make, found, wanted)
                say(f"{make}: {wanted} objects restored in {wall - idle[0]:.1f} s, {wanted / max(0.1, wall - idle[0]):.0f} a second, "
                    f"{1000 * (cpu - idle[1]) / wanted:.1f} ms CPU each (a pass that finds nothing to do: {idle[0]:.1f} s, {idle[1]:.1f} s CPU)")
    finally:
        peers.stop_all()
        shutil.rmtree(home, ignore_errors=True)


def replicate(peers: Peers, make: str) -> tuple[float, float]:
    """One pass at all sites at once: seconds, and CPU of servers and daemons."""
    servers = [pid for (kind, _), process in peers.running.items() if kind == "object" for pid in family(process.pid)]
    before, began = cpu_s(servers) + of_children(), time.monotonic()
    runs = []
    for site in range(4):
        conf = configuration(peers, "object-replicator", site, **({"sync_method": "ssync"} if make == SWIFT else {}))
        command, path = ([sys.executable, "-m", "keelstore.node.run_daemon", "object-replicator", str(conf), "once"], str(ROOT)) if make == OURS else (
            [peers.swift_python, str(peers.home / "run-daemon.py"), str(peers.swift_dir / "swift.conf"), "swift.obj.replicator", "ObjectReplicator",
             str(conf)], "")
        runs.append(subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                     stderr=subprocess.DEVNULL))
    assert [run.wait(3600) for run in runs] == [0] * 4
    return time.monotonic() - began, cpu_s(servers) + of_children() - before


def of_children() -> float:
    times = os.times()
    return times.children_user + times.children_system


# -- readers beside a repair ---------------------------------------------------------------------------------------------


def reads(objects: int, seconds: float) -> None:
    """p50 and p99 of small GETs at concurrency 8 in peace and while a device is filled again, in turns."""
    with store_of(1, workers=2) as store:
        account, names = store.login(), [f"o{number:05}" for number in range(objects)]
        account.put("c").expect(201)
        fill(store, account, "c", names, [1])
        device = store.devices(1) / "d3" / "objects"
        wanted = len(list(device.glob("*/*/*/*.data")))
        found: dict[str, list[float]] = {"peace": [], "repair": []}
        for _ in range(3):
            found["peace"] += timed_gets(account, names, lambda: False, seconds)
            shutil.rmtree(device)
            store.command("node", "repair", "--device", "d3")
            began, used = time.monotonic(), cpu_s(store.background_pids(1))
            took = timed_gets(account, names, lambda: len(list(device.glob("*/*/*/*.data"))) >= wanted, 600)
            found["repair"] += took
            wall = time.monotonic() - began
            say(f"{wanted} objects filled in beside {len(took)} GETs in {wall:.1f} s, {wanted / wall:.0f} a second; "
                f"daemons {cpu_s(store.background_pids(1)) - used:.1f} s CPU")
        p99 = {}
        for name, times in found.items():
            times.sort()
            p99[name] = times[int(len(times) * 0.99)]
            say(f"{name}: {len(times)} GETs, p50 {1000 * statistics.median(times):.2f} ms, p99 {1000 * p99[name]:.2f} ms")
        say(f"p99 beside a repair: {p99['repair'] / p99['peace']:.2f} times that in peace")


def timed_gets(account: Account, names: list[str], is_over: Callable[[], bool], seconds: float) -> list[float]:
    """Seconds that each GET took, of 8 clients, until ``seconds`` are over or something is."""
    times: list[float] = []
    end, over = time.monotonic() + seconds, threading.Event()

    def work(client: int) -> None:
        chance = random.Random(client)
        with account.endpoint.connect() as connection:
            while not over.is_set() and time.monotonic() < end:
                began = time.monotonic()
                account.get("c", chance.choice(names), connection=connection).expect(200)
                times.append(time.monotonic() - began)

    threads = [threading.Thread(target=work, args=(client,)) for client in range(8)]
    for thread in threads:
        thread.start()
    while time.monotonic() < end and not is_over():
        over.wait(0.5)
    over.set()
    for thread in threads:
        thread.join()
    return times


# -- expiry, and peace ---------------------------------------------------------------------------------------------------


def expiry(objects: int) -> None:
    with store_of(4) as store:
        account = store.login()
        account.put("c").expect(201)
        account.put("pace").expect(201)

        def put(container: str, count: int, due: int) -> None:
            def work(client: int) -> None:
                mine = account.at(store.proxy(NODES[client % 4]))
                with mine.endpoint.connect() as connection:
                    for number in range(client, count, 8):
                        mine.put(container, f"o{number:05}", body=b"x", headers={"X-Delete-At": due}, connection=connection).expect(201)

            assert run_clients(8, work) == []

        began = time.monotonic()
        put("pace", 400, int(time.time()) + 100_000)
        due = int(time.time() + 20 + 1.5 * objects / 400 * (time.monotonic() - began))
        put("c", objects, due)
        spare = due - time.time()
        assert spare > 0, "this machine is too slow for so many"
        until(lambda: time.time() > due, "they are due", spare + 60, every_s=0.5)
        began, pids = time.monotonic(), [pid for number in NODES for pid in store.pids(number)]
        used = cpu_s(pids)
        until(lambda: account.listing("c", query="limit=1") == [], "they are gone", 3600, every_s=0.5)
        took, cpu = time.monotonic() - began, cpu_s(pids) - used
        until(lambda: all(lag_s == 0 for lag_s in lags(store)), "the lag is gone", 120, every_s=1)
        say(f"{objects} objects, all due at one moment: gone after {took:.1f} s, {objects / took:.0f} a second, {1000 * cpu / objects:.1f} ms CPU each; "
            f"the lag was zero {time.monotonic() - began:.1f} s after they were due")


def lags(store: Store) -> list[float]:
    """What the expirers say of the oldest entry that should be gone."""
    return [json.loads((store.data / f"node{number}" / "cache" / "daemons.recon").read_text())["daemons"]["object-expirer"]["lag_s"] for number in NODES]


def idle(seconds: float) -> None:
    with store_of(1, workers=2) as store:
        account = store.login()
        account.put("c").expect(201)
        fill(store, account, "c", [f"o{number}" for number in range(200)], [1])
        pids = store.background_pids(1)
        for _ in range(2):  # the first has first passes in it
            used, began = cpu_s(pids), time.monotonic()
            until(lambda began=began: time.monotonic() - began >= seconds, "the time is over", seconds + 5, every_s=1)  # type: ignore[misc]
            say(f"daemons of an idle node: {100 * (cpu_s(pids) - used) / (time.monotonic() - began):.2f} % of a core, "
                f"{sum(pss_mib(pid) for pid in pids):.0f} MiB PSS; the whole node {sum(pss_mib(pid) for pid in store.pids(1)):.0f} MiB")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("missed", "emptied", "reads", "expiry", "idle"))
    parser.add_argument("--objects", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0)
    given = parser.parse_args()
    if given.what == "missed":
        missed(given.objects or 1000)
    elif given.what == "emptied":
        emptied(given.objects or 10_000, given.rounds)
    elif given.what == "reads":
        reads(given.objects or 10_000, given.seconds or 20)
    elif given.what == "expiry":
        expiry(given.objects or 10_000)
    else:
        idle(given.seconds or 120)


if __name__ == "__main__":
    main()
