"""Recon files: what daemons leave for ``recon`` to show (``spec: on-disk 10``).

``<recon_cache_path>/<name>.recon``, names ``account``, ``container``, ``object``, ``drive``, ``relinker`` as the field has
them, and ``daemons`` of our own (state and progress of each daemon by its name). A file is one line: a JSON object, keys
sorted. An update changes only the keys that it names, under a lock on the file, and replaces the file in one step.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import time
from collections.abc import Mapping
from typing import Any

from keelstore.common import fs

LOCK_WAIT_S = 2.0
MAX_SIZE = 16 << 20  # bytes; more is no recon file

log = logging.getLogger("keelstore.recon")


def merged(known: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """``known`` with ``new``: dicts merge one level deep; a sub-key with ``{}`` goes, an empty dict removes the key."""
    found = dict(known)
    for key, value in new.items():
        if not isinstance(value, Mapping):
            found[key] = value
            continue
        have = found.get(key)
        inner = dict(have) if isinstance(have, Mapping) and value else {}
        for name, item in value.items():
            if item == {}:
                inner.pop(name, None)
            else:
                inner[name] = item
        if inner:
            found[key] = inner
        else:
            found.pop(key, None)
    return found


class ReconCache:
    """The recon files of one directory. What goes wrong is logged: figures are no reason to stop."""

    def __init__(self, directory: str, logger: logging.Logger | None = None):
        self.directory, self._log = directory, logger or log

    def path(self, name: str) -> str:
        return os.path.join(self.directory, f"{name}.recon")

    def update(self, name: str, values: Mapping[str, Any]) -> None:
        """Merge ``values`` into a file. Blocks for moments: it is small and its lock is held for less."""
        path = self.path(name)
        try:
            fd = _locked(path)
            try:
                text = json.dumps(merged(_read(path), values), sort_keys=True)
                fs.replace_file(path, text.encode() + b"\n", is_durable=False)
            finally:
                os.close(fd)
        except Exception as error:  # a full disk, a missing directory, a lock that is not let go
            self._log.error("%s: cannot be updated: %s", path, error)

    def read(self, name: str) -> dict[str, Any]:
        """What a file holds; {} when there is none that can be read."""
        return _read(self.path(name))


def _read(path: str) -> dict[str, Any]:
    try:
        found = json.loads(fs.read_file(path, MAX_SIZE) or b"{}")
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _locked(path: str) -> int:
    """The open file, locked; another process may have replaced it meanwhile, then the new one is. Raises OSError."""
    from keelstore.common.disk_calls import pause  # not above: operators' tools use this without green threads

    deadline = time.monotonic() + LOCK_WAIT_S
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            have, named = os.fstat(fd), os.stat(path)
            if (have.st_dev, have.st_ino) == (named.st_dev, named.st_ino):
                return fd
        except (BlockingIOError, FileNotFoundError):
            pass
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
        if time.monotonic() > deadline:
            raise TimeoutError(f"its lock was not had within {LOCK_WAIT_S} s")
        pause(0.01)
