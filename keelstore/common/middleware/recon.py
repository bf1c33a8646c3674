"""recon: what a node tells of itself under ``/recon/<check>[/<type>]``, as JSON (``spec: backend-protocol 7``).

Numbers of daemons come from the ``*.recon`` files that they leave in ``recon_cache_path``; the rest is read from
``/proc``, the device directories and the configuration directory when asked. Devices are asked on threads of their own, so
one that hangs never stops a worker.

Beyond the field's checks there is ``/recon/health``, all of a node as one value (``node_health.py``), and, on storage
servers, ``/metrics`` for Prometheus (``metrics_page.py``). A proxy has the filter ``metrics`` for that.

Stands in the pipelines of the storage servers, and may in a proxy's, where it is open to all: it holds no secret, but much
that outsiders need not know. Needs nothing.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from keelstore import __version__
from keelstore.common import node_health
from keelstore.common.cluster import FILE_NAMES
from keelstore.common.disk_calls import on_disk_thread
from keelstore.common.http import Environ, Response, StartResponse, WSGIApp
from keelstore.common.logs import logger_for
from keelstore.common.metrics import TEXT_TYPE, Meter
from keelstore.common.metrics_page import page_of
from keelstore.common.options import option, parse
from keelstore.common.room import Reserve, reserve_problem

AFTER: Final = ("catch_errors",)
BEFORE: Final[tuple[str, ...]] = ()

MAX_FILE: Final = 16 << 20  # bytes of a recon file; more is no recon file
_SERVICES: Final = ("account", "container", "object")


@dataclass(frozen=True)
class ReconOptions:
    """Options of ``[filter:recon]``."""

    recon_cache_path: str = option("/var/cache/swift", "Directory of the daemons' *.recon files.")
    devices: str = option("/srv/node", "Directory that holds the device mount points.")
    swift_dir: str = option("/etc/swift", "Directory of the cluster file and the rings.")
    mount_check: bool = option(True, "In health and metrics a device that is no mount point is unusable.")
    fallocate_reserve: str = option("1%", "In health and metrics a device with less room than this is full.",
                                    check=reserve_problem)


class Recon:
    leaves_nodes_alone = True  # what a node asks of itself (``wsgi.build``)
    meter: Meter | None = None  # of the role; set when the pipeline is built
    def __init__(self, app: WSGIApp, options: ReconOptions, logger: logging.Logger, proc: str = "/proc",
                 now: Callable[[], float] = time.time):
        self.app, self.options, self.log, self._proc, self._now = app, options, logger, proc, now
        self._reserve = Reserve.parse(options.fallocate_reserve)
        self._up_s = node_health.Uptime()
        self._digests: dict[str, tuple[tuple[int, int, int], str]] = {}
        self._checks: dict[str, Callable[[str | None], Any]] = {
            "version": lambda kind: {"version": __version__},
            "time": lambda kind: self._now(),
            "load": lambda kind: self._load(),
            "mem": lambda kind: self._memory(),
            "sockstat": lambda kind: self._sockets(),
            "mounted": lambda kind: self._mounted(),
            "unmounted": lambda kind: self._unmounted(),
            "diskusage": lambda kind: self._disk_usage(),
            "devices": lambda kind: {options.devices: self._entries()},
            "quarantined": lambda kind: self._quarantined(),
            "ringmd5": lambda kind: self._rings(),
            "swiftconfmd5": lambda kind: self._cluster_file(),
            "driveaudit": lambda kind: self._cached("drive", "drive_audit_errors"),
            "relinker": lambda kind: self._cached("relinker", "devices", "workers"),
            "sharding": lambda kind: self._cached("container", "sharding_stats", "sharding_time", "sharding_last"),
            "async": lambda kind: self._cached("object", "async_pending", "async_pending_last"),
            "health": lambda kind: self.health() if kind is None else _UNKNOWN,
            "replication": self._replication,
            "updater": self._updater,
            "auditor": self._auditor,
            "expirer": lambda kind: (self._cached("object", "object_expiration_pass", "expired_last_pass")
                                     if kind == "object" else _UNKNOWN),
            "reconstruction": lambda kind: (
                self._cached("object", "object_reconstruction_last", "object_reconstruction_time")
                if kind == "object" else _UNKNOWN),
        }

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path.startswith("/recon/"):
            return self._answer(path)(environ, start_response)
        if path == "/metrics" and self._role != "proxy":
            page = page_of(self.meter, self.health())
            return Response(200, body=page.text(), content_type=TEXT_TYPE)(environ, start_response)
        return self.app(environ, start_response)

    @property
    def _role(self) -> str:
        return self.meter.role if self.meter is not None else ""

    def health(self) -> dict[str, Any]:
        """As ``node_health`` describes it."""
        options = self.options
        rings = {os.path.basename(path).removesuffix(".ring.gz"): {"md5": digest, "changed": _changed(path)}
                 for path, digest in self._rings().items()}
        (cluster_digest,) = self._cluster_file().values()
        return node_health.health(self._role, options.recon_cache_path, options.devices, options.mount_check, self._reserve,
                                  rings, cluster_digest, self._now(), self._up_s())

    def _answer(self, path: str) -> Response:
        parts = path.split("/")[2:]
        check = self._checks.get(parts[0]) if len(parts) <= 2 else None
        try:
            content = check(parts[1] if len(parts) > 1 else None) if check else _UNKNOWN
        except (OSError, ValueError) as error:
            self.log.error("recon: %s: %s", parts[0], error)
            content = None
        if content is _UNKNOWN:
            return Response(404, body=f"Invalid path: {path}".encode("latin-1"), content_type="text/plain")
        if content is None:
            return Response(500, body=b"Internal server error.", content_type="text/plain")
        return Response(200, body=json.dumps(content), content_type="application/json")

    # -- what daemons left -------------------------------------------------------------------------------------------

    def _cached(self, name: str, *keys: str) -> dict[str, Any]:
        """Values of a recon file; None for a key, or all of them when there is no such file yet."""
        try:
            with open(os.path.join(self.options.recon_cache_path, f"{name}.recon"), "rb") as file:
                found = json.loads(file.read(MAX_FILE) or b"{}")
        except FileNotFoundError:
            found = {}
        except (OSError, ValueError, RecursionError) as error:
            self.log.error("recon: %s.recon cannot be read: %s", name, error)
            found = {}
        if not isinstance(found, Mapping):
            found = {}
        return {key: found.get(key) for key in keys}

    def _replication(self, kind: str | None) -> Any:
        keys: tuple[str, ...] = ("replication_time", "replication_stats", "replication_last")
        if kind in ("account", "container"):
            return self._cached(kind, *keys)
        if kind in (None, "object"):
            return self._cached("object", *keys, "object_replication_time", "object_replication_last")
        return _UNKNOWN

    def _updater(self, kind: str | None) -> Any:
        if kind == "container":
            return self._cached("container", "container_updater_sweep")
        if kind == "object":
            return self._cached("object", "object_updater_sweep", "object_updater_stats", "object_updater_last")
        return _UNKNOWN

    def _auditor(self, kind: str | None) -> Any:
        if kind in ("account", "container"):
            return self._cached(kind, *(f"{kind}_{name}" for name in (
                "audits_passed", "auditor_pass_completed", "audits_since", "audits_failed")))
        if kind == "object":
            return self._cached("object", "object_auditor_stats_ALL", "object_auditor_stats_ZBF")
        return _UNKNOWN

    # -- the machine -------------------------------------------------------------------------------------------------

    def _read_proc(self, name: str) -> list[str]:
        with open(os.path.join(self._proc, name), encoding="utf-8", errors="replace") as file:
            return file.read().splitlines()

    def _load(self) -> dict[str, Any]:
        one, five, fifteen, tasks, processes = self._read_proc("loadavg")[0].split()[:5]
        return {"1m": float(one), "5m": float(five), "15m": float(fifteen), "tasks": tasks, "processes": int(processes)}

    def _memory(self) -> dict[str, str]:
        pairs = (line.partition(":") for line in self._read_proc("meminfo"))
        return {name.strip(): value.strip() for name, _, value in pairs if value}

    def _sockets(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for line in self._read_proc("net/sockstat"):
            words = line.split()
            if words[:1] == ["TCP:"]:
                numbers = dict(zip(words[1::2], words[2::2]))
                found = {
                    "tcp_in_use": int(numbers["inuse"]), "orphan": int(numbers["orphan"]),
                    "time_wait": int(numbers["tw"]),
                    "tcp_mem_allocated_bytes": int(numbers["mem"]) * os.sysconf("SC_PAGESIZE"),
                }  # fmt: skip
        try:
            for line in self._read_proc("net/sockstat6"):
                words = line.split()
                if words[:2] == ["TCP6:", "inuse"]:
                    found["tcp6_in_use"] = int(words[2])
        except FileNotFoundError:  # no IPv6 here
            pass
        return found

    # -- devices -----------------------------------------------------------------------------------------------------

    def _mounted(self) -> list[dict[str, str]]:
        found = []
        for line in self._read_proc("mounts"):
            words = line.split()
            if len(words) > 1:
                found.append({"device": words[0], "path": words[1]})
        return found

    def _entries(self) -> list[str] | None:
        try:
            return sorted(os.listdir(self.options.devices))
        except OSError as error:
            self.log.error("recon: devices: %s", error)
            return None

    def _each_device(self, ask: Callable[[str], Any]) -> list[tuple[str, Any]]:
        """What ``ask(path)`` gives of each device directory; text for one that fails."""
        found = node_health.each_device(self.options.devices, self._entries() or (), ask)
        return [(name, (answer.strerror or str(answer)) if isinstance(answer, OSError) else answer)
                for name, answer in found.items() if not isinstance(answer, NotADirectoryError)]

    def _unmounted(self) -> list[dict[str, Any]]:
        return [{"device": name, "mounted": answer} for name, answer in self._each_device(_is_mounted) if answer is not True]

    def _disk_usage(self) -> list[dict[str, Any]]:
        nothing = {"size": "", "used": "", "avail": ""}
        return [{"device": name, "mounted": True, **answer} if isinstance(answer, dict)
                else {"device": name, "mounted": answer, **nothing} for name, answer in self._each_device(_usage)]

    def _quarantined(self) -> dict[str, Any]:
        """Entries below each ``quarantined/<kind>``, told by the link count of the directory."""
        total: dict[str, Any] = {"objects": 0, "containers": 0, "accounts": 0, "policies": {}}
        for _, counts in self._each_device(_quarantined_in):
            if not isinstance(counts, dict):
                continue
            for kind, count in counts.items():
                if kind in ("containers", "accounts"):
                    total[kind] += count
                    continue
                policy = kind.partition("-")[2] or "0"
                total["objects"] += count
                place = total["policies"].setdefault(policy, {"objects": 0})
                place["objects"] += count
        return total

    # -- configuration -----------------------------------------------------------------------------------------------

    def _rings(self) -> dict[str, str | None]:
        try:
            names = os.listdir(self.options.swift_dir)
        except OSError as error:
            self.log.error("recon: rings: %s", error)
            return {}
        found = {}
        for name in sorted(names):
            base, dot, rest = name.partition(".ring.gz")
            kind, dash, index = base.partition("-")
            if dot and not rest and kind in _SERVICES and (not dash or (kind == "object" and index.isdigit())):
                path = os.path.join(self.options.swift_dir, name)
                found[path] = self._digest(path)
        return found

    def _cluster_file(self) -> dict[str, str | None]:
        for name in FILE_NAMES:
            path = os.path.join(self.options.swift_dir, name)
            if os.path.exists(path):
                return {path: self._digest(path)}
        return {os.path.join(self.options.swift_dir, FILE_NAMES[-1]): None}

    def _digest(self, path: str) -> str | None:
        """The hex MD5 of a file, remembered while the file stays the same."""
        try:
            stat = os.stat(path)
            mark = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            known = self._digests.get(path)
            if known is None or known[0] != mark:
                known = self._digests[path] = (mark, on_disk_thread("recon", _md5_of, path))
            return known[1]
        except OSError as error:
            self.log.error("recon: %s: %s", path, error)
            return None


class _Unknown:
    """There is no such check."""


_UNKNOWN: Final = _Unknown()


def _changed(path: str) -> float | None:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return None


def _md5_of(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _is_mounted(path: str) -> bool:
    if not os.path.isdir(path):
        raise NotADirectoryError(path)
    return os.path.ismount(path)


def _usage(path: str) -> dict[str, int] | bool:
    if not _is_mounted(path):
        return False
    disk = os.statvfs(path)
    return {
        "size": disk.f_blocks * disk.f_frsize,
        "used": (disk.f_blocks - disk.f_bfree) * disk.f_frsize,
        "avail": disk.f_bavail * disk.f_frsize,
    }  # fmt: skip


def _quarantined_in(path: str) -> dict[str, int]:
    base = os.path.join(path, "quarantined")
    found = {}
    try:
        names = os.listdir(base)
    except FileNotFoundError:
        return {}
    for name in names:
        kind, dash, index = name.partition("-")
        if kind in ("objects", "containers", "accounts") and (not dash or (kind == "objects" and index.isdigit())):
            found[name] = max(os.stat(os.path.join(base, name)).st_nlink - 2, 0)
    return found


def filter_factory(global_conf: dict[str, str], **local_conf: str) -> Callable[[WSGIApp], Recon]:
    conf = {**global_conf, **local_conf}
    options = parse(ReconOptions, conf, section="filter:recon", local=local_conf,
                    known=("use", "set *", "log_*", "recon_lock_path"))
    logger = logger_for(conf, "recon")
    return lambda app: Recon(app, options, logger)
