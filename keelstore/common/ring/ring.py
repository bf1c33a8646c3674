"""Ring: from a name's hash to the devices that hold it.

A ``Ring`` is immutable: whoever has one may go on with it, whatever happens to the file. A ``RingFile`` gives the newest.
Nodes are shared, and nobody copies them: a ring makes those that are asked for, and keeps a bounded number. All RingFiles of
a process that have the same file have the same Ring, so that what was loaded before a fork is not loaded again after it.
"""

from __future__ import annotations

import logging
import os
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import md5
from weakref import WeakValueDictionary

from keelstore.common.names import HashPath
from keelstore.common.ring.errors import RingFileError
from keelstore.common.ring.format import Device, RingData, load

RELOAD_S = 15.0
_CACHED_PARTITIONS = 1 << 14  # of which the primaries are remembered
_CACHED_NODES = 1 << 16       # nodes in their places that are remembered: some 250 bytes each


@dataclass(frozen=True, slots=True)
class Node:
    """A device as one to ask: ``index`` is its place among a partition's primaries, ``handoff_index`` among its handoffs.

    ``key`` ("ip:port/device") names the device in logs and tables, ``address`` is where its server listens.
    """

    id: int
    region: int
    zone: int
    ip: str
    port: int
    replication_ip: str
    replication_port: int
    device: str
    weight: float
    meta: str = ""
    index: int | None = None
    handoff_index: int | None = None
    key: str = field(init=False)
    address: tuple[str, int] = field(init=False)
    replication_address: tuple[str, int] = field(init=False)

    def __post_init__(self) -> None:
        shown = f"[{self.ip}]" if ":" in self.ip else self.ip
        object.__setattr__(self, "key", f"{shown}:{self.port}/{self.device}")
        object.__setattr__(self, "address", (self.ip, self.port))
        object.__setattr__(self, "replication_address", (self.replication_ip, self.replication_port))

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def is_handoff(self) -> bool:
        return self.handoff_index is not None


def _node(device: Device) -> Node:
    return Node(device["id"], device["region"], device["zone"], device["ip"], device["port"], device["replication_ip"],
                device["replication_port"], device["device"], device["weight"], device["meta"])


_SHARED = tuple((slot.__get__, slot.__set__) for slot in (
    Node.__dict__[name] for name in Node.__slots__ if name not in ("index", "handoff_index")))
_set_index, _set_handoff_index = Node.__dict__["index"].__set__, Node.__dict__["handoff_index"].__set__


def _in_place(node: Node, index: int | None, handoff_index: int | None) -> Node:
    """The node as the one in that place. Its values are shared: a third of the time and of the memory of one made anew."""
    found = object.__new__(Node)
    for get, put in _SHARED:
        put(found, get(node))
    _set_index(found, index)
    _set_handoff_index(found, handoff_index)
    return found


class Ring:
    """The devices of a cluster, and which of them hold a partition. Safe for threads and green threads."""

    def __init__(self, data: RingData):
        self.part_shift, self.version, self.next_part_power = data.part_shift, data.version, data.next_part_power
        self.part_power = data.part_power
        self.partition_count = data.partition_count
        replicas = data.replica_count
        self.replica_count: float = int(replicas) if replicas == int(replicas) else replicas
        self.dev_id_bytes, self.format_version = data.dev_id_bytes, data.format_version
        self.rows: tuple[array[int], ...] = data.rows
        self._by_id = [None if dev is None else _node(dev) for dev in data.devices]
        self.nodes: tuple[Node, ...] = tuple(node for node in self._by_id if node is not None)
        self.device_count = len(self.nodes)
        self.weighted_device_count = sum(node.weight > 0 for node in self.nodes)
        assigned = data.assigned_ids
        self.assigned_device_count = len(assigned)
        # Tiers by device id, and how many of each hold anything: what the search for handoffs has to find.
        self._regions, self._zones, self._servers = [], [], []
        known: dict[tuple[object, ...], tuple[object, ...]] = {}  # each tier once
        for dev in data.devices:
            region, zone, ip = (dev["region"], dev["zone"], dev["ip"]) if dev is not None else (None, None, None)
            self._regions.append(region)
            self._zones.append(known.setdefault((region, zone), (region, zone)))
            self._servers.append(known.setdefault((region, zone, ip), (region, zone, ip)))
        self._region_count = len({self._regions[device_id] for device_id in assigned})
        self._zone_count = len({self._zones[device_id] for device_id in assigned})
        self._server_count = len({self._servers[device_id] for device_id in assigned})
        self._primaries: dict[int, tuple[Node, ...]] = {}
        self._made: dict[int, Node] = {}  # by device id and, above its 32 bits, index; of handoffs ~handoff_index

    def partition(self, digest: bytes) -> int:
        """The partition of a name hash (``HashPath.digest``)."""
        return int.from_bytes(digest[:4], "big") >> self.part_shift

    def get_part(self, hash_path: HashPath, account: str, container: str | None = None, obj: str | None = None) -> int:
        """The partition of a name."""
        return int.from_bytes(hash_path.digest(account, container, obj)[:4], "big") >> self.part_shift

    def primaries(self, part: int) -> tuple[Node, ...]:
        """The devices that should hold a partition, in the order of its replicas, each once.

        Empty for a number that is no partition: directories of another partition power are met on disks.
        """
        found = self._primaries.get(part)
        if found is None:
            if not 0 <= part < self.partition_count:
                return ()
            ids = dict.fromkeys(row[part] for row in self.rows if part < len(row))
            made = self._made
            found = tuple(made.get(index << 32 | device_id) or self._make(device_id, index, None)
                          for index, device_id in enumerate(ids))
            if len(self._primaries) >= _CACHED_PARTITIONS:
                self._primaries.clear()
            self._primaries[part] = found
        return found

    def handoffs(self, part: int) -> Iterator[Node]:
        """The other devices, in the order in which they stand in for a primary. All nodes of a cluster agree on it.

        Found as they are asked for: first devices of regions that hold none of the partition, then of zones, then of
        servers, then all others; devices without partitions never.
        """
        for handoff_index, device_id in enumerate(self._handoff_ids(part)):
            node = self._made.get(~handoff_index << 32 | device_id)
            if node is None:
                node = self._make(device_id, None, handoff_index)
            yield node

    def _handoff_ids(self, part: int) -> Iterator[int]:
        """doc/formats/rings.md, "Handoffs": the order is part of the format."""
        rows, parts = self.rows, self.partition_count
        used = {node.id for node in self.primaries(part)}
        servers = {self._servers[device_id] for device_id in used}
        zones = {self._zones[device_id] for device_id in used}
        regions = {self._regions[device_id] for device_id in used}
        start = int.from_bytes(md5(b"%d" % part, usedforsecurity=False).digest()[:4], "big") >> self.part_shift
        step = parts // 65536 or 1
        wrapped = step - (parts - start) % step
        stages: tuple[tuple[set[object], list[object], int], ...] = (
            (regions, self._regions, self._region_count),  # type: ignore[assignment]
            (zones, self._zones, self._zone_count),
            (servers, self._servers, self._server_count),
        )
        for seen, tier_of, total in stages:
            if len(seen) >= total:
                continue
            for device_id in _scan(rows, start, parts, wrapped, step):
                if device_id in used or tier_of[device_id] in seen:
                    continue
                used.add(device_id)
                regions.add(self._regions[device_id])
                zones.add(self._zones[device_id])
                servers.add(self._servers[device_id])
                yield device_id
                if len(seen) >= total:
                    break
        if len(used) >= self.assigned_device_count:
            return
        for device_id in _scan(rows, start, parts, wrapped, step):
            if device_id not in used:
                used.add(device_id)
                yield device_id
                if len(used) >= self.assigned_device_count:
                    return

    def _make(self, device_id: int, index: int | None, handoff_index: int | None) -> Node:
        """A node in its place, remembered. All places of all devices would be many where there are many devices."""
        node = self._by_id[device_id]
        assert node is not None  # format.load has checked it
        if len(self._made) >= _CACHED_NODES:
            self._made.clear()
        place = index if index is not None else ~(handoff_index or 0)
        made = self._made[place << 32 | device_id] = _in_place(node, index, handoff_index)
        return made


def _scan(rows: tuple[array[int], ...], start: int, parts: int, wrapped: int, step: int) -> Iterator[int]:
    for places in (range(start, parts, step), range(wrapped, start, step)):
        for place in places:
            for row in rows:
                if place < len(row):
                    yield row[place]


_loaded: WeakValueDictionary[tuple[str, tuple[int, int, int] | None], Ring] = WeakValueDictionary()


class RingFile:
    """The ring of a file, looked at anew every ``reload_s`` seconds.

    ``check`` may refuse a ring with a RingError. The first load raises what is wrong; later a ring that cannot be used is
    logged once and the old one stays in use.
    """

    def __init__(self, path: str, reload_s: float = RELOAD_S, check: Callable[[Ring], None] | None = None, *,
                 clock: Callable[[], float] = time.monotonic, logger: logging.Logger | None = None):
        self.path = path
        self._reload_s, self._check, self._clock = reload_s, check, clock
        self._logger = logger or logging.getLogger(__name__)
        try:
            self._stamp = _stamp(path)
            self._ring = self._load()
        except OSError as error:
            raise RingFileError(path, f"cannot be read: {error.strerror}") from error
        self._next_look = clock() + reload_s

    def current(self) -> Ring:
        """The newest ring. Cheap: the file is looked at only when it is time."""
        if self._clock() >= self._next_look:
            self._look()
        return self._ring

    def reload(self) -> Ring:
        """Look at the file now."""
        self._look()
        return self._ring

    def _look(self) -> None:
        self._next_look = self._clock() + self._reload_s
        try:
            stamp = _stamp(self.path)
            if stamp == self._stamp:
                return
            self._stamp = stamp  # first, so that a bad file is read, and complained of, once
            self._ring = self._load()
        except Exception as error:  # whatever is wrong with the file: serving goes on with the ring we have
            if isinstance(error, OSError):
                if self._stamp is None:
                    return
                self._stamp = None
            self._logger.error("ring file %s cannot be used, staying with the one loaded before: %s", self.path, error)

    def _load(self) -> Ring:
        key = os.path.abspath(self.path), self._stamp
        ring = _loaded.get(key)
        if ring is None:
            ring = _loaded[key] = Ring(load(self.path))
        if self._check is not None:
            self._check(ring)
        return ring


def _stamp(path: str) -> tuple[int, int, int] | None:
    """What changes whenever a ring file is replaced."""
    status = os.stat(path)
    return status.st_mtime_ns, status.st_size, status.st_ino
