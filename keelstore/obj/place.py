"""Where one object lives on one device."""

from __future__ import annotations

from keelstore.common.names import partition_of
from keelstore.obj import layout


class Place:
    """The hash directory of one object, and what leads to it. Nothing of it need exist. ``quarantines``: whether what is
    found damaged there is put aside at once.
    """

    __slots__ = (
        "datadir", "device", "device_path", "digest", "directory", "fragments", "name", "name_hash", "partition",
        "policy_index", "quarantines",
    )  # fmt: skip

    def __init__(self, device: str, device_path: str, policy_index: int, fragments: int, partition: str,
                 name: str, digest: bytes):
        self.device, self.device_path = device, device_path
        self.policy_index, self.fragments = policy_index, fragments
        self.datadir = layout.objects_dir(policy_index)
        self.partition, self.name, self.digest = partition, name, digest
        self.name_hash = digest.hex()
        self.quarantines = True
        self.directory = layout.hash_path(device_path, self.datadir, partition, self.name_hash)

    @property
    def partition_path(self) -> str:
        return f"{self.device_path}/{self.datadir}/{self.partition}"

    @property
    def suffix(self) -> str:
        return self.name_hash[-3:]

    @property
    def tmp_path(self) -> str:
        return f"{self.device_path}/{layout.tmp_dir(self.policy_index)}"

    def on(self, device: str, device_path: str) -> Place:
        """The same object's place on another device."""
        return Place(device, device_path, self.policy_index, self.fragments, self.partition, self.name, self.digest)

    def moved(self, part_power: int) -> Place:
        """The same object's place in a ring of another part power; maybe an equal one."""
        partition = str(partition_of(self.digest, 32 - part_power))
        return Place(self.device, self.device_path, self.policy_index, self.fragments, partition, self.name,
                     self.digest)
