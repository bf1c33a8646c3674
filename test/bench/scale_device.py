"""Many objects on one device: what a PUT, a GET, hashing, a replication pass and an audit cost, and the memory they take.

The files lie in an image of XFS (ext4 where there is no mkfs.xfs) that is mounted by a loop device, so that an unmount makes everything cold; they are
made with the layout and metadata code, without syncs. The ring has three devices, all of them the same directory: so the peers of a pass
that finds nothing to do hold what the device holds. Servers and daemon are called in process, each step in a process of its own.
"""

from __future__ import annotations

import json
import logging
import os
import random
import resource
import shutil
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import md5
from pathlib import Path
from typing import Any

from keelstore.common.backend import Backend, serve_locally
from keelstore.common.cluster import load_cluster
from keelstore.common.daemon_frame import Selection, World
from keelstore.common.headers import Headers
from keelstore.common.ring.builder import RingBuilder
from keelstore.common.ring.devices import RingDevice
from keelstore.common.ring.format import save
from keelstore.common.ring.ring import RingFile
from keelstore.common.room import Reserve
from keelstore.common.timestamp import Timestamp
from keelstore.obj import attributes, hashes, layout
from keelstore.obj.auditor import ObjectAuditor
from keelstore.obj.options import ObjectAuditorOptions, ObjectReplicatorOptions
from keelstore.obj.replicator import ObjectReplicator
from keelstore.obj.server import app_factory
from keelstore.obj.store import ObjectStore

LOG = logging.getLogger("test.bench")
PART_POWER, ADDRESS = 10, ("127.0.0.1", 6200)
DEVICES = ("d0", "d1", "d2")
BODY = 64
PUTS, GETS, AUDITED = 500, 2000, 20_000  # AUDITED: an audit of more objects is broken off
NOW = 1_700_000_000.0

Point = tuple[str, int, float, str]


# -- the device --------------------------------------------------------------------------------------------------------


class Disk:
    """An image with a file system in it, mounted."""

    def __init__(self, data: Path, gib: int = 24):
        self.image, self.top = data / "device.img", data / "device"
        self.top.mkdir()
        with open(self.image, "wb") as file:
            file.truncate(gib << 30)
        command = ["mkfs.xfs", "-q"] if shutil.which("mkfs.xfs") else ["mkfs.ext4", "-q", "-N", "4000000"]
        subprocess.run([*command, str(self.image)], check=True)
        self.mount()

    def mount(self) -> None:
        subprocess.run(["mount", "-o", "loop,noatime", str(self.image), str(self.top)], check=True)

    def unmount(self) -> None:
        subprocess.run(["umount", str(self.top)], check=True)

    def make_cold(self) -> None:
        self.unmount()
        fd = os.open(self.image, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)
        self.mount()


@contextmanager
def disk(data: Path) -> Iterator[Disk]:
    found = Disk(data)
    try:
        yield found
    finally:
        found.unmount()
        found.image.unlink()


def configure(data: Path) -> None:
    """Rings, the cluster file, and the devices, which are all one."""
    (data / "etc").mkdir()
    (data / "etc" / "keelstore.conf").write_text("[swift-hash]\nswift_hash_path_suffix = scale\n[storage-policy:0]\nname = gold\ndefault = yes\n")
    builder = RingBuilder(PART_POWER, 3, 0)
    for number, name in enumerate(DEVICES):
        builder.add_device(RingDevice(id=number, region=1, zone=number + 1, ip=ADDRESS[0], port=ADDRESS[1], replication_ip=ADDRESS[0],
                                      replication_port=ADDRESS[1], device=name, weight=1.0, meta=""))
    builder.rebalance(0.0, seed=1)
    save(builder.ring(), str(data / "etc" / "object.ring.gz"))
    (data / "devices").mkdir()
    for name in DEVICES:
        (data / "devices" / name).symlink_to(data / "device", target_is_directory=True)


def name_of(number: int) -> str:
    return f"o{number:07}"


def fill(data: Path, start: int, stop: int) -> None:
    cluster = load_cluster(str(data / "etc"))
    store = ObjectStore(cluster.hash_path, reserve=Reserve.parse("0"), remembers=0)
    policy, path = cluster.policies.default, str(data / "device")
    when = Timestamp(NOW)
    file_name, made = layout.data_name(when), set(os.listdir(path))
    for number in range(start, stop):
        digest = cluster.hash_path.digest("a", "c", name_of(number))
        part = int.from_bytes(digest[:4], "big") >> (32 - PART_POWER)
        place = store.place_of_hash("d0", path, policy, str(part), digest.hex())
        if place.partition not in made:
            os.makedirs(place.partition_path, exist_ok=True)
            made.add(place.partition)
        try:
            os.mkdir(place.directory)
        except FileNotFoundError:
            os.mkdir(os.path.dirname(place.directory))
            os.mkdir(place.directory)
        body = b"%0*d" % (BODY, number)
        fd = os.open(f"{place.directory}/{file_name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        os.write(fd, body)
        attributes.write(fd, {"X-Timestamp": when.internal, "Content-Type": "application/octet-stream", "Content-Length": str(BODY),
                              "ETag": md5(body).hexdigest(), "name": f"/a/c/{name_of(number)}"})
        os.close(fd)
    forget_hashes(data)


def forget_hashes(data: Path) -> None:
    for part in partitions(data):
        for name in (layout.HASHES_FILE, layout.INVALIDATIONS_FILE):
            Path(part, name).unlink(missing_ok=True)


def partitions(data: Path) -> list[str]:
    top = data / "device" / layout.objects_dir(0)
    return sorted(str(path) for path in top.iterdir() if path.name.isdecimal())


# -- steps, each in a process of its own -------------------------------------------------------------------------------


def apart(function: Callable[..., list[Point]], *args: Any) -> list[Point]:
    """What a function gives in a forked process, whose memory and caches are its own."""
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.close(read_fd)
            os.write(write_fd, json.dumps(function(*args)).encode())
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.close(write_fd)
    with open(read_fd, "rb") as file:
        said = file.read()
    if os.waitpid(pid, 0)[1]:
        raise RuntimeError(f"{function.__name__} failed")
    return [(measure, size, value, unit) for measure, size, value, unit in json.loads(said)]


def memory_kib(field: str) -> int:
    """Of this process: VmRSS, or VmHWM, the most that it was since ``watch_memory``."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(field))


def watch_memory() -> int:
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")
    return memory_kib("VmRSS")


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Step:
    """Times a step. ``points(measure, count)``: CPU for each of so many, and the wall time of the whole."""

    def __init__(self) -> None:
        self.memory = watch_memory()
        self.began, self.cpu = time.perf_counter(), cpu()

    def points(self, measure: str, size: int, count: int, of: str = "object") -> list[Point]:
        used, took = cpu() - self.cpu, time.perf_counter() - self.began
        return [(f"{measure}: CPU for each {of}", size, used / count * 1e6, "µs"), (f"{measure}: time", size, took, "s"),
                (f"{measure}: memory", size, (memory_kib("VmHWM") - self.memory) / 1024, "MiB")]  # fmt: skip


def prepared(data: Path) -> tuple[Any, Any, Backend]:
    """Cluster, ring, and a backend that reaches the object server in process."""
    cluster = load_cluster(str(data / "etc"))
    app = app_factory({}, swift_dir=str(data / "etc"), devices=str(data / "devices"), mount_check="false", log_level="ERROR",
                      log_address="/nonexistent", fallocate_reserve="0")
    serve_locally(ADDRESS, app)
    return cluster, RingFile(cluster.ring_path("object")), Backend(conn_timeout_s=0.5)


def hashing(data: Path, size: int, how: str) -> list[Point]:
    cluster = load_cluster(str(data / "etc"))
    rules = ObjectStore(cluster.hash_path, reserve=Reserve.parse("0")).rules(0)
    step, total = Step(), 0
    for part in partitions(data):
        total += hashes.get_hashes(part, rules, NOW, print)[0]
    return [*step.points(f"hashing, {how}", size, size), ("suffixes", size, total, "")]


def replication(data: Path, size: int) -> list[Point]:
    cluster, ring, backend = prepared(data)
    count = len(partitions(data))
    options = ObjectReplicatorOptions(devices=str(data / "devices"), mount_check=False)
    daemon = ObjectReplicator(options, World(LOG, random=random.Random(1)), {0: ring}, cluster, backend, [ADDRESS])
    only = Selection(devices=frozenset({"d0"}))
    daemon.run_once(only)  # what is loaded, and made, once
    step = Step()
    daemon.run_once(only)
    found = step.points("replication pass", size, size)
    assert daemon.stats["hashmatch"] == 2 * count and not daemon.stats["failure"], daemon.stats
    return [*found, ("replication pass: CPU for each partition", size, found[0][2] * size / count, "µs")]


class _Auditor(ObjectAuditor):
    def note(self, kind: str) -> None:
        super().note(kind)
        if self.totals[kind].passes >= AUDITED:
            raise KeyboardInterrupt


def audit(data: Path, size: int) -> list[Point]:
    options = ObjectAuditorOptions(devices=str(data / "devices"), mount_check=False, files_per_second=0, zero_byte_files_per_second=0, bytes_per_second=0)
    daemon = _Auditor(options, World(LOG, random=random.Random(1)), load_cluster(str(data / "etc")))
    step = Step()
    try:
        daemon.run_once(Selection(devices=frozenset({"d0"})))
    except KeyboardInterrupt:
        pass
    totals = daemon.totals["ALL"]
    assert not totals.quarantined and not totals.errors, totals
    return step.points("audit, every byte", size, totals.passes)


def requests(data: Path, size: int) -> list[Point]:
    cluster, ring, backend = prepared(data)

    def ask(method: str, name: str, status: int, headers: dict[str, str], body: bytes = b"") -> None:
        part = ring.current().partition(cluster.hash_path.digest("a", "c", name))
        answer = backend.call(ADDRESS, method, f"/d0/{part}/a/c/{name}", Headers({"X-Backend-Storage-Policy-Index": "0", **headers}), body=body)
        answer.read(1 << 20)
        answer.close()
        assert answer.status == status, (method, name, answer.status)

    def puts(first: int, count: int) -> None:
        for number in range(first, first + count):
            ask("PUT", f"new{size}-{number}", 201, {"X-Timestamp": Timestamp(NOW + 1).internal, "Content-Type": "text/plain"}, b"x" * BODY)

    def gets(count: int, seed: int = 2) -> None:
        chance = random.Random(seed)
        for _ in range(count):
            ask("GET", name_of(chance.randrange(size)), 200, {})

    gets(50, seed=3)
    puts(0, 50)
    found: list[Point] = []
    for measure, work, count in (("GET, never read before", gets, GETS), ("GET", gets, GETS), ("PUT", lambda n: puts(1000, n), PUTS)):
        step = Step()
        work(count)
        found += step.points(f"{measure}, one copy", size, count)[:1]
    for number in [*range(50), *range(1000, 1000 + PUTS)]:
        ask("DELETE", f"new{size}-{number}", 204, {"X-Timestamp": Timestamp(NOW + 2).internal})
    return found


def objects(data: Path, sizes: Sequence[int], say: Callable[[str], None], measuring: Callable[[], Any]) -> list[Point]:
    """All steps at each size, on the same device that grows."""
    found: list[Point] = []
    with disk(data) as device:
        configure(data)
        (data / "device" / "tmp").mkdir()
        have = 0
        for size in sizes:
            apart(lambda: fill(data, have, size) or [])  # type: ignore[func-returns-value]  # noqa: B023 - it runs now
            have = size
            device.make_cold()
            say(f"{size:,} objects in {len(partitions(data)):,} partitions; {shutil.disk_usage(data / 'device').used >> 20:,} MiB")
            with measuring():
                found += apart(hashing, data, size, "cold")
                forget_hashes(data)
                found += apart(hashing, data, size, "warm")
                found += apart(replication, data, size)
                found += apart(audit, data, size)
                found += apart(requests, data, size)
            for point in found[-20:]:
                say(str(point))
    return found
