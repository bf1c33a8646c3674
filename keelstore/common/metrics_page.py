"""The page ``/metrics`` of a role: its requests, and how its node is (``node_health``), as Prometheus reads it.

Daemons are written as they describe themselves: a figure ``handoff_partitions`` of ``object-replicator`` becomes
``keelstore_daemon_handoff_partitions{daemon="object-replicator"}``, one that ends in ``_s`` ends in ``_seconds`` here,
of lists the length is told, of dicts each number by its key, and ``{device: {figure: number}}`` gets the label
``device`` (in it what ends in ``_at`` is a moment, and told as its age). So a new daemon, or a new figure, needs
nothing here. A role's page has the daemons of that role, what devices hold for it, and the devices themselves unless
they hold something for a role that stands before it in ``_ROLES`` and so tells of them: each is told once for a node.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from keelstore.common.metrics import Meter, Page

_NOT_FIGURES: Final = frozenset({"pid", "alive", "at", "begun", "done", "failed", "total", "eta_s", "last_pass_s", "running",
                                 "passes", "interval_s"})
_ROLES: Final = ("object", "container", "account")
_NOT_IN_NAMES: Final = re.compile(r"[^a-zA-Z0-9_]+")
MAX_KEYS: Final = 1000  # of one dict of a daemon: a scrape is not the place for more


def page_of(meter: Meter | None, health: Mapping[str, Any] | None) -> Page:
    page = Page()
    if meter is not None:
        meter.write(page)
    if health is not None:
        write_health(page, health)
    return page


def write_health(page: Page, health: Mapping[str, Any]) -> None:
    role, now = health["role"], health["time"]
    page.gauge("keelstore_info", "What answers here.", [({"role": role, "version": health["version"]}, 1)])
    page.gauge("keelstore_time_seconds", "The clock of the node.", [({}, now)])
    page.gauge("keelstore_uptime_seconds", "Since the role was loaded.", [({}, health["up_s"])])
    _devices(page, role, health["devices"])
    page.gauge("keelstore_ring_info", "The rings of this node by their digest: it must be the same on all nodes.",
               [({"ring": name, "md5": ring["md5"]}, 1) for name, ring in health["rings"].items()])
    page.gauge("keelstore_ring_changed_seconds", "When the ring file was last replaced.",
               [({"ring": name}, ring["changed"]) for name, ring in health["rings"].items()])
    if health["cluster_file_md5"]:
        page.gauge("keelstore_cluster_file_info", "The cluster file by its digest.",
                   [({"md5": health["cluster_file_md5"]}, 1)])
    cached = health["cached"]
    page.gauge("keelstore_drive_audit_errors", "Errors of drives in the kernel's log, by drive-audit.",
               [({}, _plain(cached.get("drive_audit_errors")))])
    if role == "object":
        page.gauge("keelstore_async_pending", "Updates of listings that wait, as recon-cron counted.",
                   [({}, _plain(cached.get("async_pending")))])
    for name, entry in health["daemons"].items():
        if name.partition("-")[0] == role:
            _daemon(page, name, entry, now)


def _devices(page: Page, role: str, devices: Mapping[str, Any]) -> None:
    before = _ROLES[: _ROLES.index(role)] if role in _ROLES else ()
    own = {name: device for name, device in devices.items()
           if not any(_role_of(kind) in before for kind in device["partitions"])}

    def each(figure: str) -> Iterator[tuple[dict[str, object], Any]]:
        for name, device in own.items():
            yield {"device": name}, device[figure]

    def each_kind(figure: str) -> Iterator[tuple[dict[str, object], Any]]:
        for name, device in devices.items():
            for kind, count in device[figure].items():
                if role not in _ROLES or _role_of(kind) == role:
                    yield {"device": name, "kind": kind}, count

    page.gauge("keelstore_device_usable", "Whether the server can use the device.", each("usable"))
    page.gauge("keelstore_device_full", "Whether it refuses writes: its room is within fallocate_reserve.", each("is_full"))
    page.gauge("keelstore_device_size_bytes", "Size of the file system.", each("size"))
    page.gauge("keelstore_device_used_bytes", "Used of it.", each("used"))
    page.gauge("keelstore_device_avail_bytes", "Available to the server.", each("avail"))
    page.gauge("keelstore_device_partitions", "Partitions that have a directory on the device.", each_kind("partitions"))
    page.gauge("keelstore_quarantined", "What was put aside, and waits for someone to look at it.", each_kind("quarantined"))


def _role_of(kind: str) -> str:
    """``objects-1`` is of the role object."""
    return kind.partition("-")[0].removesuffix("s")


def _daemon(page: Page, name: str, entry: Mapping[str, Any], now: float) -> None:
    base = {"daemon": name}

    def gauge(figure: str, about: str, value: Any) -> None:
        page.gauge(f"keelstore_daemon_{figure}", about, [(base, _plain(value))])

    gauge("up", "Whether the daemon's process is there.", bool(entry.get("alive")))
    gauge("running", "Whether a pass is under way.", bool(entry.get("running")))
    gauge("passes", "Passes since it started.", entry.get("passes"))
    gauge("pass_done", "Jobs done in the pass under way, or the last one.", entry.get("done"))
    gauge("pass_failed", "Of these, failed.", entry.get("failed"))
    gauge("pass_total", "Jobs of that pass, where they are known.", entry.get("total"))
    gauge("pass_eta_seconds", "Until the pass under way ends.", entry.get("eta_s"))
    gauge("last_pass_seconds", "What the last pass took.", entry.get("last_pass_s"))
    gauge("pass_age_seconds", "Since the last whole pass ended.", pass_age_s(entry, now))
    gauge("age_seconds", "Since the daemon left these figures.", _age(entry.get("at"), now))
    for figure, value in entry.items():
        if figure not in _NOT_FIGURES:
            _figure(page, base, figure, value, now)


def pass_age_s(entry: Mapping[str, Any], now: float) -> float | None:
    """Seconds since the last pass that came to its end; None when there was none."""
    begun, took = _plain(entry.get("begun")), _plain(entry.get("last_pass_s"))
    if begun is None or took is None:
        return None
    if not entry.get("running"):
        return max(0.0, now - begun - took)
    return max(0.0, now - begun)  # it ended before the one under way began; how long before is not kept


def _figure(page: Page, base: Mapping[str, object], figure: str, value: Any, now: float) -> None:
    name = "keelstore_daemon_" + metric_name(figure)
    if isinstance(value, Mapping):
        for key, inner in list(value.items())[:MAX_KEYS]:
            if isinstance(inner, Mapping):
                for part, number in inner.items():
                    if _plain(number) is not None:
                        shown, told = _moment(part, number, now)
                        labels = {**base, "device": key}
                        page.gauge(f"{name}_{metric_name(shown)}", "As the daemon tells.", [(labels, _plain(told))])
            elif _plain(inner) is not None:
                page.gauge(name, "As the daemon tells.", [({**base, "key": key}, _plain(inner))])
        if figure != "per_device" and not any(isinstance(inner, Mapping) for inner in value.values()):
            page.gauge(name + "_count", "How many the daemon tells of.", [(base, len(value))])
    elif isinstance(value, (list, tuple)):
        page.gauge(name + "_count", "How many the daemon tells of.", [(base, len(value))])
    elif figure == "oldest":
        page.gauge("keelstore_daemon_oldest_seconds", "Age of the oldest that waits.", [(base, _age(value, now) or 0.0)])
    else:
        page.gauge(name, "As the daemon tells.", [(base, _plain(value))])


def _moment(figure: str, value: Any, now: float) -> tuple[str, Any]:
    """A figure that is a moment (``pass_at``) as its age."""
    return (figure.removesuffix("_at") + "_age_s", _age(value, now)) if figure.endswith("_at") else (figure, value)


def metric_name(figure: str) -> str:
    name = _NOT_IN_NAMES.sub("_", figure)
    return name[:-2] + "_seconds" if name.endswith("_s") else name


def _plain(value: Any) -> float | bool | None:
    return value if isinstance(value, (int, float)) else None


def _age(moment: Any, now: float) -> float | None:
    return max(0.0, now - moment) if isinstance(moment, (int, float)) else None
