"""What is on the devices of a node, for daemons: usable devices, own ring devices, database directories.

The walks block; call them on a disk thread of the device. They give what is there when they look: anything may be gone
a moment later.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from keelstore.common import fs
from keelstore.common.concurrency import on_disk_thread
from keelstore.common.daemon_frame import ALL, Selection
from keelstore.common.errors import DeviceUnavailable
from keelstore.common.names import database_file
from keelstore.common.ring.ring import Node

_HASH: Final = re.compile(r"[0-9a-f]{32}")

Address = tuple[str, int]


class Device(NamedTuple):
    name: str
    path: str


def usable_devices(root: str, mount_check: bool, logger: logging.Logger, only: Selection = ALL) -> list[Device]:
    """The directories below ``root`` that a server would serve; others are logged."""
    found = []
    try:
        names = sorted(os.listdir(root))
    except OSError as error:
        logger.error("%s: the devices cannot be listed: %s", root, error.strerror)
        return []
    for name in names:
        if not only.has_device(name) or not fs.is_device_name(name):
            continue
        try:
            found.append(Device(name, fs.check_device(root, name, mount_check)))
        except DeviceUnavailable:
            if os.path.isdir(os.path.join(root, name)):
                logger.warning("device %s is skipped: it is not mounted", name)
    return found


def own_nodes(nodes: Iterable[Node], addresses: Collection[Address]) -> list[Node]:
    """The devices of a ring that belong to a server at one of these addresses."""
    return [node for node in nodes if node.replication_address in addresses or node.address in addresses]


def entries(path: str) -> list[str]:
    """The names in a directory, sorted; none when there is no such directory. Raises other OSErrors."""
    try:
        return sorted(os.listdir(path))
    except (FileNotFoundError, NotADirectoryError):
        return []


def partitions(device_path: str, datadir: str, only: Selection = ALL) -> list[int]:
    """The partition directories of a device."""
    return [int(name) for name in entries(f"{device_path}/{datadir}")
            if name.isascii() and name.isdigit() and only.has_partition(int(name))]


def hash_directories(partition_path: str) -> Iterator[str]:
    """The paths of the hash directories of a partition, whatever is in them."""
    for suffix in entries(partition_path):
        if len(suffix) == 3:
            for name in entries(f"{partition_path}/{suffix}"):
                if name[-3:] == suffix and _HASH.fullmatch(name):
                    yield f"{partition_path}/{suffix}/{name}"


def has_database(hash_path: str) -> bool:
    """Whether a hash directory holds a database file (not only its remains)."""
    if os.path.exists(database_file(hash_path)):
        return True
    name = hash_path.rpartition("/")[2]
    return any(entry.startswith(f"{name}_") and entry.endswith(".db") for entry in entries(hash_path))


def databases(device: Device, datadir: str, only: Selection = ALL) -> Iterator[str]:
    """The hash directories of a device that hold a database, read partition by partition on the device's disk threads.

    For a green thread; others run meanwhile.
    """
    for partition in on_disk_thread(device.name, partitions, device.path, datadir, only):
        yield from on_disk_thread(device.name, _databases_of, f"{device.path}/{datadir}/{partition}")


def _databases_of(partition_path: str) -> Sequence[str]:
    return [path for path in hash_directories(partition_path) if has_database(path)]
