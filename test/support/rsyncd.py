"""A real rsync daemon over the devices of a test."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from test.support.processes import Process, free_ports


@contextmanager
def rsync_daemon(home: Path, modules: Mapping[str, Path]) -> Iterator[str]:
    """Serves directories by module name; gives the beginning of its addresses, ``rsync://127.0.0.1:PORT``."""
    port = free_ports(1)[0]
    owner = "uid = root\ngid = root\n" if os.geteuid() == 0 else ""
    sections = "".join(f"[{name}]\npath = {path}\nread only = no\n" for name, path in modules.items())
    conf = home / "rsyncd.conf"
    conf.write_text(f"use chroot = no\n{owner}log file = {home}/rsyncd.log\npid file = {home}/rsyncd.pid\n{sections}")
    daemon = Process(["rsync", "--daemon", "--no-detach", f"--port={port}", "--address=127.0.0.1", f"--config={conf}"], home / "rsyncd.out")
    daemon.start().wait_for("127.0.0.1", port)
    try:
        yield f"rsync://127.0.0.1:{port}"
    finally:
        daemon.stop()
