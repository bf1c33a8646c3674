"""How a node is, as one value: devices, rings, daemons. For ``/recon/health``, which ``status`` asks, and ``/metrics``.

::

    {"format": 1, "version": "0.1", "role": "object", "time": 1700000000.0, "up_s": 12.5,
     "root": "/srv/node",
     "devices": {"sda": {"usable": true, "problem": null, "size": n, "used": n, "avail": n, "is_full": false,
                         "partitions": {"objects": n, "objects-1": n, "containers": n, "accounts": n},
                         "quarantined": {"objects": n}, "quarantined_at": 1700000000.0 or null}},
     "rings": {"object": {"md5": "...", "changed": 1700000000.0}}, "cluster_file_md5": "...",
     "daemons": {"object-replicator": {"pid": n, "alive": true, "at": t, "running": ..., what it leaves for recon}},
     "cached": {"async_pending": ..., "async_pending_last": ..., "drive_audit_errors": ...,
                "replication_last": ..., "replication_time": ...,
                "object_reconstruction_last": ..., "object_reconstruction_time": ...},
     "relinker": {"0": {"step": "relink", "part_power": n, "next_part_power": n, "parts_done": n, "total_parts": n,
                        "errors": n, "devices": n, "at": t, "running": true}}}

Times are seconds since the epoch by the node's clock. What passes took is in the units of the field's recon files: those over
objects (``replication_time`` of object servers, ``object_reconstruction_time``) in minutes, those over databases in seconds.
Keys may be added; what is there keeps its meaning. Nothing in it is secret, and no name of an account, container or object
is in it.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from keelstore import __version__
from keelstore.common import concurrency
from keelstore.common.devices import is_device_name
from keelstore.common.disk_calls import on_disk_thread
from keelstore.common.errors import WaitTimeout
from keelstore.common.recon_cache import ReconCache
from keelstore.common.room import Reserve

FORMAT: Final = 1
DEVICE_S: Final = 3.0  # a device that does not answer within this is as good as gone
_DATADIR: Final = re.compile(r"(objects(-\d+)?|containers|accounts)")
_READ_ONLY: Final = 1  # ST_RDONLY of statvfs


def health(role: str, recon_cache: str, devices: str, mount_check: bool, reserve: Reserve, rings: Mapping[str, Any],
           cluster_file_md5: str | None, now: float, up_s: float) -> dict[str, Any]:
    """All of it. For a green thread: devices are asked on threads of their own, all at once, for at most DEVICE_S."""
    cache = ReconCache(recon_cache)
    object_cache, drive_cache = cache.read("object"), cache.read("drive")
    own_cache = object_cache if role == "object" else cache.read(role) if role in ("account", "container") else {}
    return {
        "format": FORMAT, "version": __version__, "role": role, "time": now, "up_s": round(up_s, 3),
        "root": devices, "devices": look_at_devices(devices, mount_check, reserve),
        "rings": dict(rings), "cluster_file_md5": cluster_file_md5,
        "daemons": daemons_of(cache.read("daemons").get("daemons")),
        "cached": {
            "async_pending": object_cache.get("async_pending"), "async_pending_last": object_cache.get("async_pending_last"),
            "drive_audit_errors": drive_cache.get("drive_audit_errors"),
            **{name: own_cache.get(name) for name in ("replication_last", "replication_time", "object_reconstruction_last",
                                                      "object_reconstruction_time")},
        },
        "relinker": relinking_of(cache.read("relinker")) if role == "object" else {},
    }  # fmt: skip


# -- devices -----------------------------------------------------------------------------------------------------------


def look_at_devices(root: str, mount_check: bool, reserve: Reserve) -> dict[str, Any]:
    """What each directory below ``root`` says of itself."""
    try:
        names = sorted(name for name in os.listdir(root) if is_device_name(name))
    except OSError:
        return {}
    found = each_device(root, names, lambda path: look_at_device(path, mount_check, reserve))
    return {name: unusable(value.strerror or str(value)) if isinstance(value, OSError) else value
            for name, value in found.items() if value is not None}


def each_device(root: str, names: Sequence[str], ask: Callable[[str], Any]) -> dict[str, Any]:
    """What ``ask(path)``, which may block, gives of each device; the OSError of one that fails or does not answer in time."""
    found: dict[str, Any] = {}

    def one(name: str) -> None:
        try:
            with concurrency.time_limit(DEVICE_S):
                found[name] = on_disk_thread(name, ask, os.path.join(root, name))
        except WaitTimeout:
            found[name] = TimeoutError(errno.ETIMEDOUT, f"does not answer within {DEVICE_S:.0f} s")
        except OSError as error:
            found[name] = error

    for task in [concurrency.spawn(one, name) for name in names]:
        task.wait()
    return {name: found[name] for name in names if name in found}


def unusable(problem: str) -> dict[str, Any]:
    return {"usable": False, "problem": problem, "size": None, "used": None, "avail": None, "is_full": None, "partitions": {},
            "quarantined": {}, "quarantined_at": None}


def look_at_device(path: str, mount_check: bool, reserve: Reserve) -> dict[str, Any] | None:
    """None for what is no directory. Blocks; costs a handful of calls, however much is stored. Raises OSError."""
    if not os.path.isdir(path):
        return None
    if mount_check and not os.path.ismount(path):
        return unusable("is not mounted")
    room = os.statvfs(path)
    problem = None
    if room.f_flag & _READ_ONLY:
        problem = "is read-only"
    elif not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        problem = "may not be written by the server"
    partitions = {}
    for name in os.listdir(path):
        if _DATADIR.fullmatch(name):
            partitions[name] = _directories_in(f"{path}/{name}")
    quarantined, quarantined_at = quarantined_in(path)
    return {
        "usable": problem is None, "problem": problem,
        "size": room.f_blocks * room.f_frsize, "used": (room.f_blocks - room.f_bfree) * room.f_frsize,
        "avail": room.f_bavail * room.f_frsize, "is_full": reserve.left_in(room) < 0, "partitions": partitions,
        "quarantined": quarantined, "quarantined_at": quarantined_at,
    }  # fmt: skip


def _directories_in(path: str) -> int:
    """How many directories are in one: by its link count, which costs nothing; by a walk where the file system keeps none."""
    links = os.stat(path).st_nlink
    if links >= 2:
        return links - 2
    with os.scandir(path) as entries:
        return sum(1 for entry in entries if entry.is_dir(follow_symlinks=False))


def quarantined_in(device_path: str) -> tuple[dict[str, int], float | None]:
    """Entries below each ``quarantined/<kind>``, and when the last one came."""
    base = os.path.join(device_path, "quarantined")
    found, last = {}, None
    try:
        names = os.listdir(base)
    except (FileNotFoundError, NotADirectoryError):
        return {}, None
    for name in sorted(names):
        if _DATADIR.fullmatch(name):
            path = os.path.join(base, name)
            count = _directories_in(path)
            if count:
                found[name] = count
                last = max(last or 0.0, os.stat(path).st_mtime)
    return found, last


# -- daemons -----------------------------------------------------------------------------------------------------------


def daemons_of(left: Any) -> dict[str, Any]:
    """What daemons left for recon, with ``alive``: whether the process that left it is there; on its own host."""
    if not isinstance(left, Mapping):
        return {}
    return {name: {**entry, "alive": is_process(entry.get("pid"))} for name, entry in sorted(left.items())
            if isinstance(entry, Mapping)}


def relinking_of(left: Mapping[str, Any]) -> dict[str, Any]:
    """What relinkers left of each policy (``obj/relink_report``), over the devices of the node that have it."""
    found: dict[str, Any] = {}
    try:
        running = any(is_process(int(pid)) and worker["return_code"] is None
                      for pid, worker in left.get("workers", {}).items())
        for device in left.get("devices", {}).values():
            for index, told in device["policies"].items():
                known = found.setdefault(index, {
                    "step": told["step"], "part_power": told["part_power"], "next_part_power": told["next_part_power"],
                    "parts_done": 0, "total_parts": 0, "errors": 0, "devices": 0, "at": 0.0, "running": running})
                known["parts_done"] += told["parts_done"]
                known["total_parts"] += told["total_parts"]
                known["errors"] += told["stats"]["errors"]
                known["devices"] += 1
                known["at"] = max(known["at"], told["timestamp"])
    except (AttributeError, KeyError, TypeError, ValueError):  # another program's, or a damaged file
        return {}
    return found


def is_process(pid: Any) -> bool:
    return isinstance(pid, int) and pid > 0 and os.path.exists(f"/proc/{pid}")


class Uptime:
    """Seconds since it was made; by the monotonic clock, which forks share."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock, self._start = clock, clock()

    def __call__(self) -> float:
        return self._clock() - self._start
