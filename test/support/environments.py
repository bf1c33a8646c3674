"""Virtual environments with programs of others that tests run beside ours: made once, kept in the cache directory."""

from __future__ import annotations

import fcntl
import os
import subprocess
import venv
from pathlib import Path

import pytest


def environment(name: str, *requirements: str) -> Path:
    """The directory of an environment that has ``requirements``; the test is skipped where it cannot be made."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or "/var/tmp") / f"keelstore-{name}"
    ready = home / "ready"
    if not ready.exists():
        home.parent.mkdir(parents=True, exist_ok=True)
        with open(f"{home}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not ready.exists():
                venv.create(home, clear=True, with_pip=True)
                made = subprocess.run([home / "bin" / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check", *requirements],
                                      check=False, capture_output=True, text=True)
                if made.returncode:
                    pytest.skip(f"{' '.join(requirements)} cannot be installed here: {made.stderr.strip()[-300:]}")
                ready.touch()
    return home
