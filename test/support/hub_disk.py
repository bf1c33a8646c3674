"""Which disk calls below a directory are made on the native thread that runs the green ones."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

CALLS = ("stat", "lstat", "listdir", "scandir", "open", "statvfs", "readlink", "unlink", "rmdir", "mkdir", "rename", "link", "symlink")


def watched(monkeypatch: pytest.MonkeyPatch, root: Path) -> list[tuple[str, str]]:
    """(call, path) of every one from now on, as they come."""
    found: list[tuple[str, str]] = []
    here, below = threading.get_ident(), f"{root}/"

    def watch(name: str) -> None:
        real = getattr(os, name)

        def call(path: Any, *args: Any, **options: Any) -> Any:
            if threading.get_ident() == here and isinstance(path, str) and path.startswith(below):
                found.append((name, path))
            return real(path, *args, **options)

        monkeypatch.setattr(os, name, call)

    for name in CALLS:
        watch(name)
    return found
