"""A device that is slow in earnest: a loop-mounted ext4 image whose writes the kernel's block throttling holds back. Needs root.

With version 1 of control groups the limit is set for the root group, which the journal's and the cache's writes are counted to;
with version 2, which has none there, for a group that the caller joins and its children inherit.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

V1 = Path("/sys/fs/cgroup/blkio")
V2 = Path("/sys/fs/cgroup")


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


class SlowDevice:
    """``mount(at)``, then ``limit(bytes, operations)`` a second; ``close`` unmounts and removes all."""

    def __init__(self, image: Path, mib: int = 2048):
        self._image = image
        with image.open("wb") as file:
            file.truncate(mib << 20)
        self._loop = run("losetup", "-f", "--show", str(image))
        run("mkfs.ext4", "-q", self._loop)
        self._number = "{}:{}".format(*(getattr(os, part)(os.stat(self._loop).st_rdev) for part in ("major", "minor")))
        self._at: Path | None = None
        self._group = V2 / "keelstore-overload"

    def mount(self, at: Path) -> None:
        at.mkdir(parents=True, exist_ok=True)
        run("mount", self._loop, str(at))
        self._at = at

    def limit(self, byte_rate: int, operations: int) -> str:
        """0 and 0: none. Gives how it was done."""
        if V1.is_dir():
            (V1 / "blkio.throttle.write_bps_device").write_text(f"{self._number} {byte_rate}")
            (V1 / "blkio.throttle.write_iops_device").write_text(f"{self._number} {operations}")
            return "blkio.throttle of cgroup v1"
        (V2 / "cgroup.subtree_control").write_text("+io")
        self._group.mkdir(exist_ok=True)
        (self._group / "cgroup.procs").write_text(str(os.getpid()))
        (self._group / "io.max").write_text(f"{self._number} wbps={byte_rate or 'max'} wiops={operations or 'max'}")
        return "io.max of cgroup v2"

    def close(self) -> None:
        self.limit(0, 0)
        if self._at is not None:
            run("umount", str(self._at))
        run("losetup", "-d", self._loop)
        self._image.unlink()
