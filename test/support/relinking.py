"""A device whose objects get places for another part power, without a ring or a command line."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Any

import pytest

from keelstore.common import fs
from keelstore.common.daemon_frame import ALL, Selection
from keelstore.common.errors import ObjectNotFound
from keelstore.common.policy import Policy
from keelstore.common.recon_cache import ReconCache
from keelstore.obj.options import ObjectRelinkerOptions
from keelstore.obj.place import Place
from keelstore.obj.relink_plan import Powers
from keelstore.obj.relink_report import Report
from keelstore.obj.relinker import Change, Relinker
from test.support.faulty_os import Crash, FaultyOs
from test.support.objects import POLICIES, StoreBox, metadata_of, stamp

POWER = 2
PREPARED, INCREASED, CANCELLED = Powers(POWER, POWER + 1, 1), Powers(POWER + 1, POWER + 1, 2), Powers(POWER, POWER, 2)
QUIET = logging.LoggerAdapter(logging.getLogger("keelstore.test.relinker"))


class RelinkBox(StoreBox):
    """Objects of a policy by the numbers of their names."""

    def __init__(self, directory: str, policy: int = 0, **options: Any):
        super().__init__(directory, **options)
        self.policy: Policy = POLICIES.by_index[policy]
        self.recon = ReconCache(f"{directory}-recon")
        os.makedirs(self.recon.directory, exist_ok=True)
        self.waits: list[float] = []

    def at(self, number: int, power: int) -> Place:
        """The place of an object by a ring of that power."""
        return self.place(f"o{number}", "0", self.policy.index).moved(power)

    def fragment(self) -> int | None:
        return 1 if self.policy.stores_fragments else None

    def write(self, number: int, at: float, body: bytes = b"x", power: int = POWER, following: int | None = None,
              extra: dict[str, str] | None = None) -> Place:
        place = self.at(number, power)
        self.store.write(place, stamp(at), body, metadata_of(place, stamp(at), body, extra), next_part_power=following,
                         fragment=self.fragment())
        return place

    def post(self, number: int, at: float, value: str, power: int = POWER, following: int | None = None) -> None:
        place = self.at(number, power)
        self.store.write_meta(place, stamp(at), {"name": place.name, "X-Timestamp": stamp(at).internal, "X-Object-Meta-A": value},
                              next_part_power=following)

    def delete(self, number: int, at: float, power: int = POWER, following: int | None = None) -> None:
        self.store.delete(self.at(number, power), stamp(at), next_part_power=following)

    def relinker(self, step: str, powers: Powers, only: Selection = ALL, **options: Any) -> Relinker:
        report = Report(QUIET, self.recon, 300.0, time.time)
        return Relinker(step, [Change(self.policy, powers)], ObjectRelinkerOptions(
            devices=self.devices, mount_check=False, **options), self.store, report, QUIET, only, self.waits.append)

    def run(self, step: str, powers: Powers, only: Selection = ALL, **options: Any) -> int:
        """Gives the number of errors."""
        return self.relinker(step, powers, only, **options).run(["sda1"])

    def run_faulty(self, step: str, powers: Powers, faults: FaultyOs) -> bool:
        """Whether it came to its end."""
        with pytest.MonkeyPatch.context() as patch:
            faults.install(patch)
            patch.setattr(fs, "sync_device", lambda path: faults.fsync(0))
            try:
                self.run(step, powers)
            except Crash:
                return False
            finally:
                faults.is_on = False
        return True

    def stats(self) -> dict[str, int]:
        """What recon says of the last run."""
        found = self.recon.read("relinker")["devices"]["sda1"]["stats"]
        assert isinstance(found, dict)
        return found

    def read(self, number: int, power: int) -> tuple[bytes, str | None] | None:
        """Body and metadata as a ring of that power finds it; None: there is nothing."""
        try:
            stored = self.store.open(self.at(number, power))
        except ObjectNotFound:
            return None
        try:
            assert stored.found.data
            return Path(stored.place.directory, stored.found.data.name).read_bytes(), stored.metadata.get("X-Object-Meta-A")
        finally:
            stored.close()

    def tree(self) -> dict[str, tuple[str, ...]]:
        """Hash directories below the data directory, and the files in them."""
        root = Path(self.device_path, self.at(0, POWER).datadir)
        found = {}
        for directory in root.glob("*/???/*"):
            found[str(directory.relative_to(root))] = tuple(sorted(path.name for path in directory.iterdir()))
        return found

    def partitions(self) -> set[int]:
        return {int(path.name) for path in Path(self.device_path, self.at(0, POWER).datadir).glob("*")}
