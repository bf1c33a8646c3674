"""One lost device of a 4+2 policy, rebuilt by our reconstructor over our servers and by Swift's over Swift's, in turns:

    KEELSTORE_SWIFT_PYTHON=... python -m test.bench.rebuild [--size BYTES] [--objects N] [--rounds N] [--makes LIST]

Servers over HTTP on loopback, eight device directories in two sites, written by our proxy; each reconstructor once at each site, one after the other.
``node`` is ours as a node runs it: servers and reconstructor of all sites in one process (``rebuild_node.py``).
Figures: MiB of new fragments, wall time, and CPU of daemons and servers; what a pass takes that finds nothing to do is taken off.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

from test.bench.meter import Sample, cpu_s
from test.interop.test_daemons_swift import RUNNER
from test.support.daemon_runs import configuration
from test.support.peers import OURS, SWIFT, Peers
from test.support.processes import ROOT

LOST = "d3"
NODE = "node"


def daemon(peers: Peers, make: str, options: dict[str, object]) -> None:
    files = [configuration(peers, "object-reconstructor", site, **options) for site in range(peers.sites)]
    if make == NODE:
        done = subprocess.run([sys.executable, "-m", "test.bench.rebuild_node", *map(str, files)], capture_output=True, text=True, cwd=ROOT, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        return
    for conf in files:
        if make == OURS:
            command, path = [sys.executable, "-m", "keelstore.node.run_daemon", "object-reconstructor", str(conf), "once"], str(ROOT)
        else:
            command, path = [peers.swift_python, str(peers.home / "run-daemon.py"), str(peers.swift_dir / "swift.conf"), "swift.obj.reconstructor",
                             "ObjectReconstructor", str(conf)], ""
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}, stdin=subprocess.DEVNULL, check=False)
        assert done.returncode == 0, done.stderr[-2000:]


def family(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(found for child in children for found in family(int(child)))]


def measured(peers: Peers, make: str, options: dict[str, object]) -> Sample:
    servers = [pid for (kind, _), process in peers.running.items() if kind == "object" for pid in family(process.pid)]

    def used() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime + cpu_s(servers)

    before, of_servers, began = used(), cpu_s(servers), time.monotonic()
    daemon(peers, make, options)
    print(f"  of the servers: {cpu_s(servers) - of_servers:.2f} s CPU", flush=True)
    return Sample(used() - before, time.monotonic() - began)


def stored(path: Path) -> int:
    return sum(file.stat().st_size for file in path.glob("*/*/*/*.data"))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=int, default=8 << 20)
    parser.add_argument("--objects", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--part-power", type=int, default=3, help="few partitions, as a device that holds much has many objects in each")
    parser.add_argument("--concurrency", type=int, default=0, help="of both; 0: each its own default")
    parser.add_argument("--makes", default=f"{SWIFT},{NODE},{OURS}", help="those to be measured")
    given = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="rebuild-"))
    peers = Peers(home, os.environ["KEELSTORE_SWIFT_PYTHON"], devices_per_site=4, part_power=given.part_power, has_fragments=True)
    (peers.home / "run-daemon.py").write_text(RUNNER)
    options: dict[str, object] = {"concurrency": given.concurrency} if given.concurrency else {}
    try:
        peers.start_proxies(OURS)
        folder = peers.devices / LOST / "objects-2"
        with peers.storage(OURS, OURS):
            account = peers.proxy(OURS).login()
            account.put("c", headers={"X-Storage-Policy": "ec42"}).expect(201)
            for number in range(given.objects):
                account.put("c", f"o{number}", body=random.Random(number).randbytes(given.size)).expect(201)
            wanted = stored(folder)
        makes = given.makes.split(",")
        found: dict[str, list[Sample]] = {make: [] for make in makes}
        for number in range(given.rounds):
            for make in reversed(makes) if number % 2 else makes:
                with peers.storage(make, make) if make != NODE else nullcontext():
                    daemon(peers, make, options)  # the servers have started by the end of this
                    idle = measured(peers, make, options)
                    shutil.rmtree(folder)
                    whole = measured(peers, make, options)
                    assert stored(folder) == wanted, (make, stored(folder), wanted)
                found[make].append(Sample(whole.cpu_s - idle.cpu_s, whole.wall_s - idle.wall_s))
                print(f"{make}: idle pass {idle.wall_s:.2f} s, {idle.cpu_s:.2f} s CPU; rebuild {whole.wall_s:.2f} s, {whole.cpu_s:.2f} s CPU", flush=True)
        size = wanted / (1 << 20)
        for make, samples in found.items():
            wall, cpu = statistics.median(one.wall_s for one in samples), statistics.median(one.cpu_s for one in samples)
            print(f"{make}: {size:.1f} MiB of fragments, {size / wall:.1f} MiB/s, {1000 * cpu / size:.1f} ms CPU per MiB")
    finally:
        peers.stop_all()
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
