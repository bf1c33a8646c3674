"""Taking files away from servers and daemons that run."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from test.support.waiting import until


def wipe(path: Path) -> None:
    """Take a directory of a device away at once, with all that is in it; whoever writes there meanwhile has to make it anew."""
    devices = next(parent for parent in path.parents if parent.name == "devices")
    aside = Path(tempfile.mkdtemp(prefix="wiped-", dir=devices.parent))
    path.rename(aside / path.name)

    def is_gone() -> bool:
        shutil.rmtree(aside, ignore_errors=True)  # what is still written into it makes this take a second look
        return not aside.exists()

    until(is_gone, f"{aside} is empty")
