"""A network of one test: its own loopback device, on which packets can be dropped. Needs root, ``ip`` and ``iptables``."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


def why_not() -> str:
    """'' where it works."""
    if os.geteuid() != 0:
        return "a network namespace needs root"
    if not shutil.which("ip") or not _iptables():
        return "no ip or iptables here"
    done = subprocess.run(["unshare", "-n", "sh", "-c", f"ip link set lo up && {_iptables()} -A INPUT -d 127.0.0.9 -j DROP"], capture_output=True, check=False)
    return "" if done.returncode == 0 else done.stderr.decode(errors="replace").strip()


def _iptables() -> str:
    return next((found for found in ("iptables-legacy", "iptables") if shutil.which(found)), "")


@contextmanager
def namespace() -> Iterator[None]:
    """This thread, the threads and the processes that it starts meanwhile are in a network of their own."""
    with open("/proc/thread-self/ns/net", "rb") as before:
        _check(_libc.unshare(_CLONE_NEWNET))
        try:
            subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
            yield
        finally:
            _check(_libc.setns(before.fileno(), _CLONE_NEWNET))


def _check(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


@contextmanager
def dropped(address: str) -> Iterator[None]:
    """Packets to and from an address vanish: nobody refuses, nobody resets."""
    rules = [["INPUT", "-d", address], ["INPUT", "-s", address]]
    for rule in rules:
        subprocess.run([_iptables(), "-A", *rule, "-j", "DROP"], check=True)
    try:
        yield
    finally:
        for rule in rules:
            subprocess.run([_iptables(), "-D", *rule, "-j", "DROP"], check=True)
