"""The command line that starts a program of this package again. Imports nothing, so that any process can use it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence


def own_command(module: str, arguments: Sequence[str]) -> list[str]:
    """``module`` of this very package, from any directory; sets PYTHONPATH of this process for its children."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    return [sys.executable, "-P", "-m", module, *arguments]  # -P: nothing is imported from the current directory
