"""Programs of others, run unmodified against a store, as a user at a terminal runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

TIME_LIMIT_S = 600  # against a hang; a busy machine may be slow


def run(arguments: Sequence[str | Path], home: Path, env: Mapping[str, str] | None = None, cwd: Path | None = None,
        body: bytes = b"", status: int = 0) -> str:
    """What a program says, when it ends with ``status``. Its home is ``home``, and of our environment it sees nothing else.

    ``body`` is what it reads. Both of its outputs are given, so that a test can look for what it complains about.
    """
    environment = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(home), "LANG": "C.UTF-8", "NO_PROXY": "*", **(env or {})}
    done = subprocess.run(arguments, input=body, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, cwd=cwd or home,
                          timeout=TIME_LIMIT_S, check=False)
    output = done.stdout.decode("utf-8", "surrogateescape")
    assert done.returncode == status, f"{arguments}: {done.returncode}, expected {status}\n{output[-3000:]}"
    return output


def swift(auth_url: str, home: Path, *arguments: str | Path, cwd: Path | None = None, body: bytes = b"", status: int = 0) -> str:
    """Run the ``swift`` command of python-swiftclient as test:tester."""
    user = ["-A", auth_url, "-U", "test:tester", "-K", "testing"]
    return run([sys.executable, "-m", "swiftclient.shell", *user, *arguments], home, cwd=cwd, body=body, status=status)
