"""Swift's relinker and ours, over the same devices: the same files in the same places, and each goes on where the other was.

Swift's is run and asked; what its exit status and its trees are is compared.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from keelstore.common.ring import format as ring_format
from keelstore.common.ring.builder import RingBuilder
from keelstore.common.ring.devices import RingDevice
from keelstore.obj.relink_plan import CLEANUP, RELINK
from test.support.objects import HASH_PATH, NOW, StoreBox, metadata_of, stamp
from test.support.peers import EC_POLICY
from test.support.processes import ROOT

POWER = 3
RUNNER = """
import sys

from swift.common import utils

utils.SWIFT_CONF_FILE = sys.argv[1]
from swift.common import storage_policy

storage_policy.reload_storage_policies()
from swift.cli.relinker import main

sys.exit(main(sys.argv[2:]))
"""
CLUSTER = f"""
[swift-hash]
swift_hash_path_prefix = {HASH_PATH.prefix.decode()}
swift_hash_path_suffix = {HASH_PATH.suffix.decode()}
[storage-policy:0]
name = gold
default = yes
""" + EC_POLICY


class Stage:
    """Two sets of the same devices: ``ours`` and ``swift``."""

    def __init__(self, home: Path, swift_python: str):
        self.home, self._python = home, swift_python
        (home / "run.py").write_text(RUNNER)
        (home / "swift.conf").write_text(CLUSTER)
        self.builders = {name: RingBuilder(POWER, replicas, 1) for name, replicas in (("object", 1), ("object-2", 6))}
        for builder in self.builders.values():
            for number in range(1, 7):
                builder.add_device(RingDevice(1, 1, "127.0.0.1", 6200, f"sda{number}", 1.0, "127.0.0.1", 6200))
            builder.rebalance(0.0, seed="x")
        for who in ("ours", "swift"):
            (home / who).mkdir()
            (home / f"{who}-server.conf").write_text(f"[DEFAULT]\ndevices = {home / who}\nmount_check = false\nswift_dir = {home}\n"
                                              f"recon_cache_path = {home / 'recon'}\nuser = root\n[object-relinker]\nlog_file = -\n")
        (home / "recon").mkdir()
        self.box = StoreBox(str(home / "ours"))
        self.shift = int(time.time() - NOW) - 1000  # so that no tombstone is too old
        self.box.clock.now += self.shift

    def fill(self, power: int, following: int | None, start: int) -> None:
        store = self.box.store
        for policy in (0, 2):
            for number in range(16):
                place = self.box.place(f"o{number}", "0", policy).moved(power)
                fragment = 1 if policy else None
                body = f"{number} {start}".encode()
                at = start + number + self.shift
                if number % 4 != 3 or start == 0:
                    store.write(place, stamp(at), body, metadata_of(place, stamp(at), body), next_part_power=following, fragment=fragment,
                                is_durable=not (policy and number == 13))
                if number % 4 == 1:
                    store.write_meta(place, stamp(at + 20), {"name": place.name, "X-Timestamp": stamp(at + 20).internal}, next_part_power=following)
                if number % 4 == 2:
                    store.delete(place, stamp(at + 20), next_part_power=following)

    def copy(self) -> None:
        shutil.rmtree(self.home / "swift")
        subprocess.run(["cp", "-a", str(self.home / "ours"), str(self.home / "swift")], check=True)  # with its links

    def rings(self, step: str = "") -> None:
        for name, builder in self.builders.items():
            assert not step or getattr(builder, step)()
            ring_format.save(builder.ring(), str(self.home / f"{name}.ring.gz"))

    def run_ours(self, step: str, who: str = "ours") -> int:
        return self._run([sys.executable, "-m", "keelstore.cli.object_relinker", step, str(self.home / f"{who}-server.conf")])

    def run_swift(self, step: str, who: str = "swift") -> int:
        return self._run([self._python, str(self.home / "run.py"), str(self.home / "swift.conf"), step,
                          "--swift-dir", str(self.home), "--devices", str(self.home / who), "--skip-mount-check"])

    def _run(self, command: list[str]) -> int:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL, check=False,
                              env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"} if command[0] == sys.executable else None)
        print(command, done.returncode, done.stdout, done.stderr)
        return done.returncode

    def tree(self, who: str) -> dict[str, int]:
        """Files of objects to the number of their names, and partitions."""
        root = self.home / who / "sda1"
        return {str(path.relative_to(root)): path.stat().st_nlink if path.is_file() else 0
                for pattern in ("objects*/*", "objects*/*/???/*/*") for path in root.glob(pattern)}

    def state(self, who: str, datadir: str = "objects") -> dict[str, object]:
        found = json.loads((self.home / who / "sda1" / f"relink.{datadir}.json").read_text())
        assert isinstance(found, dict)
        found.pop("ring_version", None)
        return found


@pytest.fixture
def stage(tmp_path: Path, swift_python: str) -> Stage:
    return Stage(tmp_path, swift_python)


def test_both_make_the_same_of_the_same_devices(stage: Stage) -> None:
    stage.fill(POWER, None, 0)
    stage.rings("prepare_increase_partition_power")
    stage.fill(POWER, POWER + 1, 100)
    stage.copy()
    assert (stage.run_ours(CLEANUP), stage.run_swift(CLEANUP)) == (2, 2)
    assert (stage.run_ours(RELINK), stage.run_swift(RELINK)) == (0, 0)
    assert stage.tree("ours") == stage.tree("swift")
    assert [stage.state("ours", name) for name in ("objects", "objects-2")] == [stage.state("swift", name) for name in ("objects", "objects-2")]
    stage.rings("increase_partition_power")
    assert (stage.run_ours(CLEANUP), stage.run_swift(CLEANUP)) == (0, 0)
    assert stage.tree("ours") == stage.tree("swift")
    assert [stage.state("ours", name) for name in ("objects", "objects-2")] == [stage.state("swift", name) for name in ("objects", "objects-2")]
    stage.rings("finish_increase_partition_power")
    assert (stage.run_ours(CLEANUP), stage.run_swift(CLEANUP)) == (2, 2)


def test_each_cleans_up_after_the_other(stage: Stage) -> None:
    stage.fill(POWER, None, 0)
    stage.rings("prepare_increase_partition_power")
    stage.copy()
    assert (stage.run_swift(RELINK, "ours"), stage.run_ours(RELINK, "swift")) == (0, 0)
    assert (stage.run_ours(RELINK), stage.run_swift(RELINK)) == (0, 0)
    stage.rings("increase_partition_power")
    assert (stage.run_ours(CLEANUP), stage.run_swift(CLEANUP)) == (0, 0)
    assert stage.tree("ours") == stage.tree("swift")


def test_a_cancelled_increase(stage: Stage) -> None:
    stage.fill(POWER, None, 0)
    stage.copy()
    before = stage.tree("ours")
    stage.rings("prepare_increase_partition_power")
    assert (stage.run_ours(RELINK), stage.run_swift(RELINK)) == (0, 0)
    stage.rings("cancel_increase_partition_power")
    assert (stage.run_ours(CLEANUP), stage.run_swift(CLEANUP)) == (0, 0)
    assert stage.tree("ours") == stage.tree("swift")
    assert set(stage.tree("ours")) == set(before)
