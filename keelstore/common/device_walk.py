"""What is on the devices of a node, for daemons: usable devices, own ring devices, database directories.

What does not say otherwise blocks; call it on a disk thread of the device. Walks give what is there when they look:
anything may be gone a moment later.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final, NamedTuple, TypeVar

from keelstore.common.daemon_frame import ALL, Selection
from keelstore.common.devices import check_device, is_device_name
from keelstore.common.disk_calls import on_disk_thread
from keelstore.common.errors import DeviceUnavailable
from keelstore.common.names import database_file
from keelstore.common.ring.ring import Node

_HASH: Final = re.compile(r"[0-9a-f]{32}")

Address = tuple[str, int]
T = TypeVar("T")


class Device(NamedTuple):
    name: str
    path: str


def usable_device(root: str, name: str, mount_check: bool) -> Device:
    """A device that a server would serve. Raises DeviceUnavailable. For a green thread; others run meanwhile: a disk that is
    sick may take its time to say whether it is there.
    """
    return Device(name, on_disk_thread(name, check_device, root, name, mount_check))


def usable_devices(root: str, mount_check: bool, logger: logging.Logger, only: Selection = ALL) -> list[Device]:
    """The directories below ``root`` that a server would serve; others are logged. For a green thread, as above."""
    found = []
    try:
        names = sorted(os.listdir(root))
    except OSError as error:
        logger.error("%s: the devices cannot be listed: %s", root, error.strerror)
        return []
    for name in names:
        if not only.has_device(name) or not is_device_name(name):
            continue
        try:
            found.append(usable_device(root, name, mount_check))
        except DeviceUnavailable:
            if on_disk_thread(name, os.path.isdir, os.path.join(root, name)):
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
    for path, _ in databases_with(device, datadir, _nothing, only):
        yield path


def databases_with(device: Device, datadir: str, fact: Callable[[str], T], only: Selection = ALL) -> Iterator[tuple[str, T]]:
    """As ``databases``, each with ``fact(hash directory)``, which is asked for on the disk thread, too."""
    for partition in on_disk_thread(device.name, partitions, device.path, datadir, only):
        yield from on_disk_thread(device.name, _databases_of, f"{device.path}/{datadir}/{partition}", fact)


def _databases_of(partition_path: str, fact: Callable[[str], T]) -> list[tuple[str, T]]:
    return [(path, fact(path)) for path in hash_directories(partition_path) if has_database(path)]


def _nothing(_path: str) -> None:
    pass
