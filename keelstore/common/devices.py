"""Directories of devices: their names, and whether a disk is mounted there."""

from __future__ import annotations

import os
import re
import stat
from functools import lru_cache

from keelstore.common.errors import DeviceUnavailable

_DEVICE_NAME = re.compile(r"[A-Za-z0-9_.~-]{1,255}")


@lru_cache(maxsize=1024)
def is_device_name(name: str) -> bool:
    """Whether ``name`` may name a device: one path component that URL quoting leaves as it is, and not ``.`` or
    ``..``.
    """
    return _DEVICE_NAME.fullmatch(name) is not None and name not in (".", "..")


def is_mounted(path: str) -> bool:
    """Whether a device directory is a mount point, or stands for one by a regular file ``.ismount`` in it."""
    try:
        own = os.lstat(path)
        if not stat.S_ISLNK(own.st_mode):
            parent = os.lstat(os.path.dirname(path))
            if own.st_dev != parent.st_dev or own.st_ino == parent.st_ino:
                return True
        return stat.S_ISREG(os.lstat(f"{path}/.ismount").st_mode)
    except OSError:
        return False


def device_path(devices: str, name: str) -> str:
    """The directory of a device, whether it is there or not. Raises DeviceUnavailable: bad name."""
    if is_device_name(name):
        return f"{devices}/{name}"
    raise DeviceUnavailable(name)


def check_device(devices: str, name: str, mount_check: bool) -> str:
    """The directory of a usable device. Raises DeviceUnavailable: bad name, not mounted, or not a directory."""
    path = device_path(devices, name)
    if is_mounted(path) if mount_check else os.path.isdir(path):
        return path
    raise DeviceUnavailable(name)
