"""The reference implementation, to be run beside ours.

``KEELSTORE_SWIFT_PYTHON`` names the Python of an environment that has swift 2.38.3; without it one is made, once, in the
cache directory. Nothing of it is copied: it is run and asked.
"""

from __future__ import annotations

import os
import subprocess
import venv
from pathlib import Path

import pytest

SWIFT = "2.38.3"


@pytest.fixture(scope="session")
def swift_python() -> str:
    """The path of a Python interpreter that can import swift."""
    given = os.environ.get("KEELSTORE_SWIFT_PYTHON")
    if given:
        return given
    home = Path(os.environ.get("XDG_CACHE_HOME") or "/var/tmp") / f"keelstore-swift-{SWIFT}"
    python, ready = home / "bin" / "python", home / "ready"
    if not ready.exists():
        venv.create(home, clear=True, with_pip=True)
        made = subprocess.run([python, "-m", "pip", "install", "-q", f"swift=={SWIFT}", "setuptools<81"], check=False,
                              capture_output=True, text=True)
        if made.returncode:
            pytest.skip(f"swift {SWIFT} cannot be installed here: {made.stderr.strip()[-300:]}")
        ready.touch()
    return str(python)
