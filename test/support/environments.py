"""Virtual environments with programs of others that tests run beside ours: made once, kept in the cache directory."""

from __future__ import annotations

import fcntl
import os
import subprocess
import venv
from collections.abc import Callable
from pathlib import Path

import pytest


def made_once(name: str, make: Callable[[Path], None]) -> Path:
    """The directory ``keelstore-NAME`` of the cache directory, which ``make`` has filled, now or earlier; one process at a time."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or "/var/tmp") / f"keelstore-{name}"
    ready = home / "ready"
    if not ready.exists():
        home.parent.mkdir(parents=True, exist_ok=True)
        with open(f"{home}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not ready.exists():
                make(home)
                ready.touch()
    return home


def environment(name: str, *requirements: str) -> Path:
    """The directory of an environment that has ``requirements``; the test is skipped where no package index can be reached."""

    def make(home: Path) -> None:
        venv.create(home, clear=True, with_pip=True)
        made = pip(home, "install", *requirements)
        if made.returncode:
            why = f"{' '.join(requirements)} cannot be installed here: {made.stderr.strip()[-300:]}"
            if pip(home, "download", "--no-deps", "--dest", str(home), "pip").returncode:
                pytest.skip(why)
            pytest.fail(why)  # the index has other packages

    return made_once(name, make)


def pip(home: Path, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([home / "bin" / "python", "-m", "pip", command, "-q", "--disable-pip-version-check", *arguments], check=False,
                          capture_output=True, text=True)
