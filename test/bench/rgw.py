"""Ceph's object gateway (RGW), from Debian's packages, as a side: a monitor, three OSDs on bluestore in files, and one radosgw, on loopback.

Needs ``ceph-mon ceph-osd ceph-common radosgw``. Three copies, and each write is on three OSDs before it is acknowledged, as Ceph always has
it. Authentication between its daemons is off, which costs it nothing. Its Swift and its S3 API listen on one port.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from test.bench.loads import Target
from test.bench.sides import Side, Unusable, answers, descendants, idle_memory, timed_start
from test.support.processes import free_ports
from test.support.waiting import until

PROGRAMS = ("ceph-mon", "ceph-osd", "ceph", "monmaptool", "radosgw", "radosgw-admin")
OSDS = 3
BLOCK_GIB = 12
ACCESS, SECRET = "testaccess", "testsecret"
CONF = """[global]
fsid = {fsid}
mon host = v2:127.0.0.1:{mon}/0
auth cluster required = none
auth service required = none
auth client required = none
auth allow insecure global id reclaim = false
ms mon client mode = crc
public network = 127.0.0.0/8
osd pool default size = 3
osd pool default min size = 2
osd pool default pg autoscale mode = off
osd pool default pg num = 16
osd pool default pgp num = 16
osd crush chooseleaf type = 0
mon max pg per osd = 2000
mon allow pool delete = true
mon osd full ratio = .97
run dir = {base}
admin socket = {base}/$name.asok
log file = {base}/$name.log
mon cluster log file = {base}/cluster.log
mon data = {base}/mon
osd data = {base}/osd.$id
osd objectstore = bluestore
bluestore block size = {block}
[client.rgw]
rgw frontends = beast endpoint=127.0.0.1:{rgw} tcp_nodelay=1
rgw data = {base}
rgw swift url = http://127.0.0.1:{rgw}
rgw enable usage log = false
"""


def missing() -> list[str]:
    """Which of its programs are not installed."""
    return [name for name in PROGRAMS if shutil.which(name) is None]


def version() -> str:
    words = subprocess.run(["radosgw", "--version"], capture_output=True, text=True).stdout.split()
    return words[2] if len(words) > 2 else "(version unknown)"


class Cluster:
    """Its processes, each ended by its id."""

    def __init__(self, base: Path):
        self._base, (self.port, mon) = base, free_ports(2)
        self._conf = base / "ceph.conf"
        self._fsid = str(uuid.uuid4())
        self._conf.write_text(CONF.format(fsid=self._fsid, mon=mon, rgw=self.port, base=base, block=BLOCK_GIB << 30))
        self._mon = mon
        self._running: list[subprocess.Popen[bytes]] = []

    def command(self, *words: str, timeout: float = 120) -> str:
        done = subprocess.run([words[0], "-c", str(self._conf), *words[1:]], capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL)
        if done.returncode:
            raise Unusable(f"RGW: {' '.join(words)}: {done.stderr.strip()[-600:]}")
        return done.stdout

    def spawn(self, *words: str) -> None:
        with open(self._base / f"{words[0]}.out", "ab") as out:
            self._running.append(subprocess.Popen([words[0], "-c", str(self._conf), *words[1:]], stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                                  start_new_session=True))

    def make(self) -> None:
        """The monitor and the OSDs, empty, and the user."""
        monmap = str(self._base / "monmap")
        self.command("monmaptool", "--create", "--fsid", self._fsid, "--addv", "a", f"[v2:127.0.0.1:{self._mon}]", monmap)
        self.command("ceph-mon", "--mkfs", "-i", "a", "--monmap", monmap)
        self.spawn("ceph-mon", "-f", "-i", "a")
        for number in range(OSDS):
            (self._base / f"osd.{number}").mkdir()
            one = str(uuid.uuid4())
            found = self.command("ceph", "osd", "new", one).strip()
            self.command("ceph-osd", "-i", found, "--mkfs", "--osd-uuid", one)
        self._start_rest(lambda: self.command("ceph", "osd", "crush", "rule", "ls"))
        self.command("radosgw-admin", "-n", "client.rgw", "user", "create", "--uid=test", "--display-name=test", f"--access-key={ACCESS}", f"--secret-key={SECRET}")
        self.command("radosgw-admin", "-n", "client.rgw", "subuser", "create", "--uid=test", "--subuser=test:tester", "--access=full")
        self.command("radosgw-admin", "-n", "client.rgw", "key", "create", "--subuser=test:tester", "--key-type=swift", "--secret-key=testing")

    def start(self) -> None:
        self.spawn("ceph-mon", "-f", "-i", "a")
        self._start_rest(lambda: "")

    def _start_rest(self, first: Callable[[], str]) -> None:
        first()
        for number in range(OSDS):
            self.spawn("ceph-osd", "-f", "-i", str(number))
        until(lambda: f"{OSDS} up" in self.command("ceph", "osd", "stat"), "all OSDs are up", 120, 0.2)
        self.spawn("radosgw", "-f", "-n", "client.rgw")

    def stop(self) -> None:
        for how in (signal.SIGTERM, signal.SIGKILL):
            for process in reversed(self._running):
                if process.poll() is None:
                    process.send_signal(how)
            end = time.monotonic() + 20
            for process in self._running:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.1, end - time.monotonic()))
        self._running.clear()

    def pids(self) -> list[int]:
        return descendants(process.pid for process in self._running)


@contextmanager
def rgw(base: Path) -> Iterator[Side]:
    """The gateway and what is behind it, started twice."""
    if missing():
        raise Unusable(f"not installed: {' '.join(missing())}")
    home = base / "ceph"
    home.mkdir()
    os.chmod(home, 0o755)
    cluster = Cluster(home)
    target = Target("rgw", f"http://127.0.0.1:{cluster.port}", s3_user=ACCESS, s3_key=SECRET, policies=False)
    try:
        cluster.make()
        until(lambda: answers(target), "RGW answers", 120, 0.2)
        idle = idle_memory(cluster.pids)
        cluster.stop()
        second = timed_start(cluster.start, target)
        notes = ["a monitor, three OSDs on bluestore, one radosgw; no manager daemon; three copies"]
        yield Side(target, cluster.pids, f"RGW {version()}", notes, None, second, idle)
    except (AssertionError, subprocess.SubprocessError) as error:
        raise Unusable(f"RGW: {error}") from error
    finally:
        cluster.stop()
