"""Services of OpenStack as clients of a store: Glance and Heat from PyPI, each in an environment of its own.

What runs there is a script of ours that imports their classes (in ``shells``): it reads a command a
line, JSON, and answers in a line. ``Shell`` is its other end.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from test.support.environments import environment

GLANCE, GLANCE_STORE, GLANCE_CLIENT = "33.0.0", "5.7.0", "4.13.0"
HEAT = "27.0.1"
TIME_LIMIT_S = 300


def glance_environment() -> Path:
    """Glance, glance_store with its driver for Swift, the client, and what its functional tests import."""
    return environment(f"glance-{GLANCE}", f"glance=={GLANCE}", f"glance_store[swift]=={GLANCE_STORE}", f"python-glanceclient=={GLANCE_CLIENT}",
                       "openstacksdk", "testtools", "waitress")


def heat_environment() -> Path:
    return environment(f"heat-{HEAT}", f"openstack-heat=={HEAT}")


class Refused(Exception):
    """What the service's code raised: the name of its class, and what it says."""

    def __init__(self, kind: str, text: str):
        super().__init__(f"{kind}: {text}")
        self.kind, self.text = kind, text


class Shell:
    """A script that runs under another Python, and is asked one thing after another."""

    def __init__(self, process: subprocess.Popen[str], log: Path):
        self.process, self.log = process, log

    def __call__(self, command: str, **arguments: Any) -> Any:
        """What the command gives; Refused, when it raised."""
        assert self.process.stdin is not None and self.process.stdout is not None
        late = threading.Timer(TIME_LIMIT_S, self.process.kill)
        late.start()
        try:
            self.process.stdin.write(json.dumps({"command": command, **arguments}) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        finally:
            late.cancel()
        assert line, f"{command}: it has ended\n{self.log.read_text(errors='replace')[-4000:]}"
        answer = json.loads(line)
        if "error" in answer:
            raise Refused(answer["error"], answer["text"])
        return answer["value"]


@contextmanager
def shell(python: Path, script: str, home: Path, env: Mapping[str, str] | None = None) -> Iterator[Shell]:
    """Run a script of ``shells``. Its log is in ``home``; of our environment it sees nothing."""
    home.mkdir(parents=True, exist_ok=True)
    log = home / f"{script}.log"
    path = Path(__file__).with_name("shells") / script
    environ = {"PATH": f"{python.parent}:/usr/bin:/bin", "HOME": str(home), "LANG": "C.UTF-8", "NO_PROXY": "*", "PYTHONWARNINGS": "ignore",
               "PYTHONDONTWRITEBYTECODE": "1", **(env or {})}
    with open(log, "wb") as errors:
        process = subprocess.Popen([python, "-I", path], cwd=home, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        yield Shell(process, log)
    finally:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()  # which ends it
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
