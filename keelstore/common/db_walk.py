"""What replicators of databases find on devices, and tidy up there. All of it blocks: for the disk threads of a device."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Iterator
from typing import Final

from keelstore.common import fs
from keelstore.common.broker import REMOVED, Broker
from keelstore.common.daemon_frame import Selection
from keelstore.common.db_transfer import SENT
from keelstore.common.device_walk import Device, entries, has_database, hash_directories, partitions

SENT_S: Final = 3600.0  # a copy that was made to be sent is left over
EMPTY_S: Final = 60.0  # an empty directory stays so long


def gone(paths: Iterable[str]) -> set[str]:
    """Those that are not there."""
    return {path for path in paths if not os.path.exists(path)}


def is_hash(name: str) -> bool:
    return len(name) == 32 and not name.strip("0123456789abcdef")


def prepare(device: Device, datadir: str, now: float, reclaim_age_s: float, only: Selection) -> list[int]:
    """The partitions of a device; what is old in its ``tmp`` goes."""
    tmp = f"{device.path}/tmp"
    for name in entries(tmp):
        path = f"{tmp}/{name}"
        try:
            if name.startswith(REMOVED):
                shutil.rmtree(path, ignore_errors=True)
            elif os.path.isfile(path):
                age = now - os.stat(path).st_mtime
                if age > reclaim_age_s or (name.startswith(SENT) and age > SENT_S):  # whoever still reads it has it open
                    fs.remove_file(path)
        except OSError:
            pass  # gone meanwhile
    return partitions(device.path, datadir, only)


def databases_of(partition_path: str) -> list[str]:
    """The hash directories with a database; directories with nothing in them go, unless they are being filled."""
    found = []
    for path in hash_directories(partition_path):
        if has_database(path):
            found.append(path)
        elif _is_old(path) and all(_is_rubbish(path, name) for name in entries(path)):
            for name in entries(path):
                fs.remove_file(f"{path}/{name}")
            fs.remove_directory(path)
    if not found and _is_old(partition_path):
        for suffix in entries(partition_path):
            if _is_old(f"{partition_path}/{suffix}"):
                fs.remove_directory(f"{partition_path}/{suffix}")
        fs.remove_directory(partition_path)
    return found


def _is_old(path: str) -> bool:
    """Whether a directory has not changed for a while: nobody is just creating something in it."""
    try:
        return os.path.isdir(path) and time.time() - os.stat(path).st_mtime > EMPTY_S
    except OSError:
        return False


def _is_rubbish(path: str, name: str) -> bool:
    """What may stay behind where there was a database."""
    return name == ".lock" or (name.endswith(".pending") and not os.path.getsize(f"{path}/{name}"))


def remove_temporary(hash_path: str, before: float) -> None:
    """Files of creations that were broken off before that time."""
    for path in _temporary(hash_path):
        try:
            if os.stat(path).st_mtime < before:
                fs.remove_file(path)
        except OSError:
            pass


def _temporary(hash_path: str) -> Iterator[str]:
    return (f"{hash_path}/{name}" for name in entries(hash_path) if name.endswith(".tmp"))


def changed_at(broker: Broker) -> float:
    """When a database, or what waits for it, was last changed; 0 when it is not there."""
    latest = 0.0
    for path in (broker.path, broker.pending_path):
        try:
            latest = max(latest, os.stat(path).st_mtime)
        except OSError:
            pass
    return latest
