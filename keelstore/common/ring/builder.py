"""RingBuilder: devices and weights in, a new ring out.

A builder is what an operator works on: devices come and go, weights change, and ``rebalance`` turns the changes into a new
assignment of partitions that moves no more than it must and of each partition at most one replica. The arithmetic is in
``plan``, ``assign`` and ``dispersion``; the file in ``builder_file``. Time and randomness are handed in.
"""

from __future__ import annotations

import hashlib
import math
import secrets
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from keelstore.common.ring import assign, builder_file, dispersion, plan, topology
from keelstore.common.ring.builder_file import NONE, BuilderState
from keelstore.common.ring.devices import RingDevice, from_dict, matches
from keelstore.common.ring.errors import BuilderError, DuplicateDevice, ValidationError
from keelstore.common.ring.format import Device, RingData
from keelstore.common.ring.plan import Tier

MAX_BALANCE = 999.99  # said of a device without weight that still has partitions
_MAX_AGE = 255        # hours; a move longer ago than this is not told from one this long ago


@dataclass(frozen=True)
class Rebalanced:
    """What a rebalance did: slots with a new device, the balance in percent, devices that are gone."""

    changed: int
    balance: float
    removed: int


class RingBuilder:
    """The devices of a ring and the assignment of its partitions. Not safe for threads.

    Every change that the field counts (``doc/formats/rings.md``) adds one to ``version``. Refusals are BuilderError.
    """

    def __init__(self, part_power: int, replicas: float, min_part_hours: int):
        if part_power > 32:
            raise BuilderError(f"part_power must be at most 32 (was {part_power})")
        if part_power < 0:
            raise BuilderError(f"part_power must be at least 0 (was {part_power})")
        _check_replicas(replicas)
        _check_hours(min_part_hours)
        self._take(BuilderState(part_power, float(replicas), min_part_hours))

    # -- files ---------------------------------------------------------------------------------------------------------

    @classmethod
    def from_state(cls, state: BuilderState) -> RingBuilder:
        builder = cls.__new__(cls)
        builder._take(state)
        return builder

    @classmethod
    def load(cls, path: str) -> RingBuilder:
        """The builder of a file. Raises BuilderFileMissing or RingFileError."""
        return cls.from_state(builder_file.load(path))

    @classmethod
    def from_ring(cls, ring: RingData, min_part_hours: int) -> RingBuilder:
        """A builder out of a ring file. What only the lost builder knew, when partitions last moved among it, is gone."""
        devices = tuple(None if dev is None else from_dict(dev) for dev in ring.devices)
        builder = cls(ring.part_power, max(ring.replica_count, 1.0), min_part_hours)
        table, short = builder_file.from_arrays(ring.rows, builder.parts) if ring.rows else (None, 0)
        builder._take(replace(builder.state(), devices=devices, table=table, short=short, version=ring.version or 0,
                              next_part_power=ring.next_part_power))
        return builder

    def save(self, path: str) -> None:
        """Write the builder file. The first save gives the builder its id, unless it fails. Raises RingFileError."""
        state = self.state()
        if state.id is None:
            state = replace(state, id=uuid.uuid4().hex)
        builder_file.save(state, path)
        self.id = state.id

    def _take(self, state: BuilderState) -> None:
        self.part_power, self.replicas, self.min_part_hours = state.part_power, state.replicas, state.min_part_hours
        self.next_part_power = state.next_part_power
        self.devices: list[RingDevice | None] = list(state.devices)
        self.parts_wanted = dict(state.parts_wanted)
        self.removing: list[int] = list(state.removing)
        self.devices_changed, self.version, self.overload = state.devices_changed, state.version, state.overload
        self._table, self._short = state.table, state.short
        self._last_moves = (np.zeros(self.parts, dtype=np.uint8) if state.last_moves is None else state.last_moves.copy())
        self.last_moves_epoch = state.last_moves_epoch
        self.graph: dict[Tier, list[int]] = {tier: list(row) for tier, row in state.graph.items()}
        self.dispersion, self.id = state.dispersion, state.id
        self._held: list[int] | None = None

    def state(self) -> BuilderState:
        return BuilderState(
            part_power=self.part_power, replicas=self.replicas, min_part_hours=self.min_part_hours,
            next_part_power=self.next_part_power, devices=tuple(self.devices), parts_wanted=dict(self.parts_wanted),
            removing=tuple(self.removing), devices_changed=self.devices_changed, version=self.version,
            overload=self.overload, table=self._table, short=self._short, last_moves=self._last_moves,
            last_moves_epoch=self.last_moves_epoch, graph=self.graph, dispersion=self.dispersion, id=self.id)

    def ring(self, id_bytes: int = 2) -> RingData:
        """The ring as it is to be written, with ids of at least ``id_bytes``."""
        devices: tuple[Device | None, ...] = tuple(None if dev is None else dev.as_dict() for dev in self.devices)
        width = max(id_bytes, self.id_bytes())
        rows = () if self._table is None else tuple(builder_file.to_arrays(self._table, self._short, width))
        return RingData(devices, rows, 32 - self.part_power, self.version, self.next_part_power)

    # -- what there is -------------------------------------------------------------------------------------------------

    @property
    def parts(self) -> int:
        return 1 << self.part_power

    @property
    def table(self) -> NDArray[np.int32] | None:
        """Device ids, rows by partitions, -1 for none; None before the first rebalance. Not to be changed."""
        return self._table

    @property
    def last_row_length(self) -> int:
        return self._short

    def __iter__(self) -> Iterator[RingDevice]:
        return (dev for dev in self.devices if dev is not None)

    def device(self, device_id: int) -> RingDevice:
        """The device of an id. Raises BuilderError."""
        found = self.devices[device_id] if 0 <= device_id < len(self.devices) else None
        if found is None:
            raise BuilderError(f"There is no device with id {device_id}")
        return found

    def search(self, conditions: Mapping[str, Any]) -> list[RingDevice]:
        """The devices that meet all conditions (``devices.matches``), by id."""
        return [dev for dev in self if matches(dev, conditions)]

    def find_same_place(self, device: RingDevice) -> RingDevice | None:
        """Another device with the same ip, port and device name."""
        return next((dev for dev in self if dev.place == device.place and dev.id != device.id), None)

    def parts_of(self, device_id: int) -> int:
        """How many slots a device has."""
        return self._counts()[device_id]

    def partitions_on(self, device_ids: set[int]) -> list[tuple[int, int]]:
        """Partitions with replicas on any of the devices, and how many; the most first, then by number."""
        if self._table is None:
            return []
        times = np.isin(self._table, sorted(device_ids)).sum(axis=0)
        found = np.flatnonzero(times)
        return [(int(part), int(times[part])) for part in found[np.argsort(-times[found], kind="stable")]]

    def device_balances(self) -> dict[int, float]:
        """By device id, the percent by which it has more (less) partitions than its weight asks for."""
        held, per_weight = self._counts(), self.weight_of_one_part()
        return {dev.id: 100.0 * held[dev.id] / (dev.weight * per_weight) - 100.0 if dev.weight
                else MAX_BALANCE if held[dev.id] else 0.0 for dev in self}

    def balance(self) -> float:
        """The worst balance of all devices, without sign."""
        return max(map(abs, self.device_balances().values()), default=0.0)

    def weight_of_one_part(self) -> float:
        """Partitions, or slots, for each unit of weight."""
        total = sum(dev.weight for dev in self)
        return self.parts * self.replicas / total if total else 0.0

    def required_overload(self) -> float:
        """The least overload with which replicas can be kept apart as well as the tiers allow."""
        devices = self._planned()
        if sum(dev.weight > 0 for dev in devices) < self.replicas:
            return 0.0
        return plan.required_overload(plan.weighted(devices, self.replicas), plan.dispersed(devices, self.replicas))

    def min_part_seconds_left(self, now: float) -> int:
        """Seconds until partitions may be moved again."""
        return max(self.min_part_hours * 3600 - int(now - self.last_moves_epoch), 0)

    def id_bytes(self) -> int:
        """Width of the device ids in files."""
        return builder_file.id_bytes_for(max(len(self.devices) - 1, 0))

    # -- changes -------------------------------------------------------------------------------------------------------

    def add_device(self, device: RingDevice) -> int:
        """Add a device; its id if it has one, else the first free one. Returns the id."""
        _check_weight(device.weight)
        device_id = device.id
        if device_id < 0:
            device_id = self.devices.index(None) if None in self.devices else len(self.devices)
        elif device_id < len(self.devices) and self.devices[device_id] is not None:
            raise DuplicateDevice(f"Duplicate device id: {device_id}")
        if device_id >= 1 << 31:
            raise BuilderError(f"Device id {device_id} is too large")
        self.devices.extend([None] * (device_id + 1 - len(self.devices)))
        self.devices[device_id] = replace(device, id=device_id, weight=float(device.weight))
        self.parts_wanted[device_id] = 0
        self._changed()
        return device_id

    def set_weight(self, device_id: int, weight: float) -> None:
        _check_weight(weight)
        self._alter("weight", device_id, lambda device: replace(device, weight=float(weight)))

    def set_region(self, device_id: int, region: int) -> None:
        self._alter("region", device_id, lambda device: replace(device, region=region))

    def set_zone(self, device_id: int, zone: int) -> None:
        self._alter("zone", device_id, lambda device: replace(device, zone=zone))

    def set_info(self, device_id: int, changes: Mapping[str, Any]) -> RingDevice:
        """Change addresses, name or meta, which say nothing about partitions. Returns the device as it is now."""
        changed = replace(self.device(device_id), **changes)
        same = self.find_same_place(changed)
        if same:
            raise DuplicateDevice(f"Device {same.id} already uses {changed.ip}:{changed.port}/{changed.device}.")
        self.devices[device_id] = changed
        return changed

    def remove(self, device_id: int) -> None:
        """Take a device out with the next rebalance, whatever the time since the last."""
        self.devices[device_id] = replace(self.device(device_id), weight=0.0)
        if device_id not in self.removing:
            self.removing.append(device_id)
        self._changed()

    def set_replicas(self, replicas: float) -> None:
        _check_replicas(replicas)
        if int(self.parts * self.replicas) != int(self.parts * replicas):
            self.devices_changed = True
        self.replicas = float(replicas)

    def set_overload(self, overload: float) -> None:
        if not overload >= 0 or math.isinf(overload):
            raise BuilderError("Overload must be non-negative.")
        self.overload = float(overload)

    def set_min_part_hours(self, hours: int) -> None:
        _check_hours(hours)
        self.min_part_hours = hours

    def pretend_min_part_hours_passed(self) -> None:
        """Allow every partition to be moved at once."""
        self.last_moves_epoch = 0
        self._last_moves[:] = _MAX_AGE

    def _alter(self, what: str, device_id: int, change: Callable[[RingDevice], RingDevice]) -> None:
        if device_id in self.removing:
            raise BuilderError(f"Can not set {what} of dev_id {device_id} because it is marked for removal")
        self.devices[device_id] = change(self.device(device_id))
        self._changed()

    def _changed(self) -> None:
        self.devices_changed = True
        self.version += 1
        self._held = None

    # -- the partition power -------------------------------------------------------------------------------------------

    def prepare_increase_partition_power(self) -> bool:
        """Announce twice as many partitions. False if it has been done already."""
        if self.next_part_power is not None or self.part_power >= 32:
            return False
        self.next_part_power = self.part_power + 1
        self.version += 1
        return True

    def increase_partition_power(self) -> bool:
        """Divide each partition in two, both on the devices of the one. False if it was not announced."""
        if self.next_part_power != self.part_power + 1:
            return False
        if self._table is not None:
            self._table = np.repeat(self._table, 2, axis=1)
            self._short *= 2
        self._last_moves = np.repeat(self._last_moves, 2)
        self.part_power = self.next_part_power
        self.version += 1
        self._held = None
        return True

    def cancel_increase_partition_power(self) -> bool:
        """Take the announcement back; links made for it are then cleaned up. False if there is none to take back."""
        if self.next_part_power != self.part_power + 1:
            return False
        self.next_part_power = self.part_power
        self.version += 1
        return True

    def finish_increase_partition_power(self) -> bool:
        """All is done and cleaned up. False if there was nothing under way."""
        if self.next_part_power is None or self.next_part_power != self.part_power:
            return False
        self.next_part_power = None
        self.version += 1
        return True

    # -- rebalance -----------------------------------------------------------------------------------------------------

    def age_moves(self, now: float) -> None:
        """Add the whole hours since the epoch to the age of every partition's last move."""
        hours = int(now - self.last_moves_epoch) // 3600
        if hours > 0:
            self._last_moves = np.minimum(self._last_moves.astype(np.uint16) + min(hours, _MAX_AGE),
                                          _MAX_AGE).astype(np.uint8)
            self.last_moves_epoch = int(now)

    def movable(self, now: float) -> NDArray[np.bool_]:
        """The partitions that were not moved within min_part_hours."""
        self.age_moves(now)
        moves: NDArray[np.bool_] = self._last_moves >= self.min_part_hours
        return moves

    def rebalance(self, now: float, seed: str | int | None = None, progress: assign.Progress | None = None,
                  may_move: NDArray[np.bool_] | None = None) -> Rebalanced:
        """Bring the assignment in line with devices, weights and replicas, as far as partitions may move.

        ``may_move`` names the partitions that others allow to move. The same builder and seed give the same result. Raises
        BuilderError when it cannot be done.
        """
        left = [dev for dev in self if dev.id not in self.removing]
        if not left:
            raise BuilderError("There are no devices in this ring, or all devices have been deleted")
        able = sum(dev.weight > 0 for dev in left)
        if able < self.replicas:
            raise BuilderError(f"Replica count of {self.replicas} requires more than {able} devices")
        rng = np.random.default_rng(_seed_number(seed))
        movable = self.movable(now)
        if may_move is not None:
            movable &= may_move
        before, short = self._resized()
        removed = self._drop_removed()
        layout = topology.build([None if dev is None else dev.tier for dev in self.devices])
        start = np.where((before >= 0) & (before < layout.size), before, layout.none)
        if removed or len(self.devices) < layout.size:
            gone = np.append(layout.of[0] < 0, True)[:layout.size + 1]
            start = np.where(gone[start], layout.none, start)
        devices = self._planned()
        target, even = plan.target(devices, self.replicas, self.overload), plan.dispersed(devices, self.replicas)
        slots = before.shape[1] * (len(before) - 1) + short if len(before) else 0
        held = assign.count_held(layout, start)
        quotas = topology.quotas_of(layout, target, even, slots, held)
        limits = topology.limits_of(layout, target)
        most = plan.most_when_even((dev.tier for dev in devices if dev.weight > 0), self.replicas)
        problem = assign.Problem(layout, limits, topology.crowded_tiers(layout, limits, most), quotas,
                                 start.astype(np.int32), short, movable)
        table = assign.assign(problem, rng, progress)
        exists = np.ones(table.shape, dtype=bool)
        exists[-1, short:] = False
        changed = (table != before) & exists
        self._last_moves[changed.any(axis=0)] = 0
        table[~exists] = NONE
        self._table, self._short, self._held = table, short, None
        counts = self._counts()
        self.parts_wanted = {dev.id: int(quotas[dev.id]) - counts[dev.id] for dev in self}
        self.measure_dispersion()
        self.devices_changed = False
        return Rebalanced(int(changed.sum()), self.balance(), removed)

    def measure_dispersion(self) -> float:
        """Count anew how the replicas of partitions lie, and return the dispersion. Counts as a change."""
        self.version += 1
        if self._table is None:
            self.graph, self.dispersion = {}, 0.0
            return 0.0
        layout = topology.build([None if dev is None else dev.tier for dev in self.devices])
        table = np.where(self._table < 0, layout.none, self._table)
        able = [dev.tier for dev in self if dev.weight > 0]
        self.graph, self.dispersion = dispersion.measure(layout, able, table, self.replicas, self._short)
        return self.dispersion

    def validate(self) -> None:
        """Check every promise of the assignment. Raises ValidationError."""
        if self._table is None:
            raise ValidationError("_replica2part2dev empty; did you forget to rebalance?")
        rows, parts = self._table.shape
        slots = parts * (rows - 1) + self._short
        known = np.array([dev is not None for dev in self.devices] + [False])
        for row, line in enumerate(self._table):
            ids = line[:self._short] if row == rows - 1 else line
            bad = np.flatnonzero((ids < 0) | ~known[ids])
            if len(bad):
                raise ValidationError(f"Partition {bad[0]}, replica {row} was not allocated to a device.")
            for other in range(row):
                same = np.flatnonzero(self._table[other][:len(ids)] == ids)
                if len(same):
                    twice = self._table[:, same[0]].tolist()
                    raise ValidationError(f"The partition {same[0]} has been assigned to duplicate devices {twice!r}")
        held = sum(self._counts()[dev.id] for dev in self)
        if held != slots:
            raise ValidationError(f"All partitions are not double accounted for: {held} != {slots}")
        for dev in self:
            if not 0 < dev.port < 65536:
                raise ValidationError(f"Device {dev.id} has port {dev.port}, which is not a port")

    def _planned(self) -> list[plan.PlannedDevice]:
        return [plan.PlannedDevice(dev.id, dev.region, dev.zone, dev.ip, dev.weight) for dev in self
                if dev.id not in self.removing]

    def _resized(self) -> tuple[NDArray[np.int32], int]:
        """The table with the rows that the replicas ask for, and the length of the last. New slots hold none."""
        whole = int(self.replicas)
        extra = int(self.parts * (self.replicas - whole))
        rows, short = (whole + 1, extra) if extra else (whole, self.parts)
        table = np.full((rows, self.parts), NONE, dtype=np.int32)
        if self._table is not None:
            common = min(rows, len(self._table))
            table[:common] = self._table[:common]
        table[-1, short:] = NONE
        return table, short

    def _drop_removed(self) -> int:
        removed = len(self.removing)
        for device_id in self.removing:
            self.devices[device_id] = None
        self.removing = []
        while self.devices and self.devices[-1] is None:
            self.devices.pop()
        return removed

    def _counts(self) -> list[int]:
        if self._held is None or len(self._held) != len(self.devices):
            self._held = builder_file.parts_held(self._table, len(self.devices))
        return self._held


def _check_replicas(replicas: float) -> None:
    if not replicas >= 1 or math.isinf(replicas):
        raise BuilderError(f"replicas must be at least 1 (was {replicas:.6f})")


def _check_hours(hours: int) -> None:
    if hours < 0:
        raise BuilderError(f"min_part_hours must be non-negative (was {hours})")


def _check_weight(weight: float) -> None:
    if not weight >= 0 or math.isinf(weight):
        raise BuilderError(f"Invalid weight value: {weight}")


def _seed_number(seed: str | int | None) -> int:
    if seed is None:
        return secrets.randbits(128)
    return int.from_bytes(hashlib.sha256(str(seed).encode()).digest()[:16], "big")
