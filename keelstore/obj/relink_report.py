"""How far a relinker is: for its log and for ``relinker.recon`` (``spec: daemons 17``).

::

    {"devices": {"sda": {"parts_done": n, "total_parts": n, "total_time": s, "stats": {...}, "policies": {"0": {
         "step": "relink", "part_power": n, "next_part_power": n, "parts_done": n, "total_parts": n, "start_time": t,
         "timestamp": t, "total_time": s, "stats": {"hash_dirs": n, "files": n, "linked": n, "removed": n, "errors": n}}}}},
     "workers": {"1234": {"devices": ["sda"], "timestamp": t, "return_code": 0 or null}}}
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

from keelstore.common.recon_cache import ReconCache
from keelstore.obj.relink_plan import Powers

RECON_FILE: Final = "relinker"
WRITE_S: Final = 1.0  # so often is the recon file written, at most


@dataclass
class Stats:
    """``files``: those of the old places. ``errors``: failed links and removals, and what cannot be read."""

    hash_dirs: int = 0
    files: int = 0
    linked: int = 0
    removed: int = 0
    errors: int = 0

    def add(self, other: Stats) -> None:
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)


@dataclass
class PolicyProgress:
    policy: str  # its name
    step: str
    powers: Powers
    stats: Stats
    start_time: float
    parts_done: int = 0
    total_parts: int = 0

    def as_recon(self, now: float) -> dict[str, Any]:
        return {"step": self.step, "part_power": self.powers.part_power, "next_part_power": self.powers.next_part_power,
                "parts_done": self.parts_done, "total_parts": self.total_parts, "start_time": self.start_time,
                "timestamp": now, "total_time": now - self.start_time, "stats": asdict(self.stats)}


class Report:
    """What one process tells of its devices."""

    def __init__(self, log: logging.LoggerAdapter[logging.Logger], recon: ReconCache | None, stats_interval_s: float,
                 clock: Callable[[], float]):
        self._log, self._recon, self._interval_s, self.clock = log, recon, stats_interval_s, clock
        self._devices: dict[str, dict[int, PolicyProgress]] = {}
        self._written_at = self._logged_at = clock()

    def begin(self, device: str, policy: int, name: str, step: str, powers: Powers) -> PolicyProgress:
        found = PolicyProgress(name, step, powers, Stats(), self.clock())
        self._devices.setdefault(device, {})[policy] = found
        return found

    def tell(self, device: str, policy: int, is_last: bool = False) -> None:
        """After each partition, and when a device is done with a policy."""
        now, progress = self.clock(), self._devices[device][policy]
        if is_last or now - self._logged_at >= self._interval_s:
            self._logged_at = now
            self._log.info("Device: %s Policy: %s Partitions: %d/%d", device, progress.policy, progress.parts_done,
                           progress.total_parts)
        if is_last or now - self._written_at >= WRITE_S:
            self._written_at = now
            self._write(device, now)

    def _write(self, device: str, now: float) -> None:
        if self._recon is None:
            return
        policies, total = self._devices[device], Stats()
        for progress in policies.values():
            total.add(progress.stats)
        self._recon.update(RECON_FILE, {"devices": {device: {
            "parts_done": sum(progress.parts_done for progress in policies.values()),
            "total_parts": sum(progress.total_parts for progress in policies.values()),
            "total_time": now - min(progress.start_time for progress in policies.values()), "stats": asdict(total),
            "policies": {str(index): progress.as_recon(now) for index, progress in policies.items()},
        }}})  # fmt: skip

    def total(self) -> Stats:
        found = Stats()
        for policies in self._devices.values():
            for progress in policies.values():
                found.add(progress.stats)
        return found

    def summary(self, more_errors: int = 0) -> int:
        """Log what was done in all; gives the number of errors."""
        total = self.total()
        total.errors += more_errors
        self._log.log(logging.WARNING if total.errors else logging.INFO,
                      "%d hash dirs processed (%d files, %d linked, %d removed, %d errors)", total.hash_dirs, total.files,
                      total.linked, total.removed, total.errors)
        return total.errors
