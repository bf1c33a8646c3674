"""The builder file: what a ring builder knows between two commands.

A pickle, protocol 2, of one dict of plain values:

==========================  ==========================================================================================
part_power, parts           int 0..32; 2 ** part_power
next_part_power             int while the partition power is being increased, else None
replicas                    float, at least 1
min_part_hours              int: hours for which a partition that was moved stays where it is
devs                        list of device dicts (with ``parts`` and ``parts_wanted``), None where an id is free
devs_changed                bool: changed since the last rebalance
dev_id_bytes                int, for information
version                     int, counts changes
overload                    float
dispersion                  float or None
_replica2part2dev           None, or a list of ``array('H')`` or ``array('I')``: device ids by partition for each replica
_last_part_moves            ``array('B')``: hours since each partition was moved, as of the epoch
_last_part_moves_epoch      int seconds
_last_part_gather_start     int, of no use to us
_dispersion_graph           dict of tier to list: partitions by number of replicas in the tier
_remove_devs                list of the device dicts that go with the next rebalance
id                          str, given with the first save
==========================  ==========================================================================================

Pickle is what the format demands. It is read with ``plainpickle``, which makes nothing but plain values, and arrays here.
"""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from keelstore.common import fs, plainpickle
from keelstore.common.errors import StorageError
from keelstore.common.ring.devices import RingDevice, from_dict
from keelstore.common.ring.errors import BuilderFileMissing, RingFileError
from keelstore.common.ring.format import id_bytes_for, no_device
from keelstore.common.ring.plan import Tier

_CHUNK = 1 << 16  # entries counted in one go: they stay in the processor's cache
NONE = -1  # in a table in memory: nobody has the slot


@dataclass(frozen=True)
class BuilderState:
    """All that a builder file holds. ``table`` is rows by partitions; the last row has only the first ``short``."""

    part_power: int
    replicas: float
    min_part_hours: int
    next_part_power: int | None = None
    devices: tuple[RingDevice | None, ...] = ()
    parts_wanted: Mapping[int, int] = field(default_factory=dict)
    removing: tuple[int, ...] = ()
    devices_changed: bool = False
    version: int = 0
    overload: float = 0.0
    table: NDArray[np.int32] | None = None
    short: int = 0
    last_moves: NDArray[np.uint8] | None = None
    last_moves_epoch: int = 0
    graph: Mapping[Tier, list[int]] = field(default_factory=dict)
    dispersion: float | None = 0.0
    id: str | None = None


# -- writing -----------------------------------------------------------------------------------------------------------


def encode(state: BuilderState) -> bytes:
    """The bytes of a builder file."""
    width = id_bytes_for(max(len(state.devices) - 1, 0))
    held = parts_held(state.table, len(state.devices))
    devs = [None if dev is None else {**dev.as_dict(), "parts": held[dev.id],
                                      "parts_wanted": state.parts_wanted.get(dev.id, 0)} for dev in state.devices]
    parts = 1 << state.part_power
    moves = array("B", bytes(parts) if state.last_moves is None else state.last_moves.astype(np.uint8).tobytes())
    fields = {
        "part_power": state.part_power, "next_part_power": state.next_part_power, "replicas": state.replicas,
        "min_part_hours": state.min_part_hours, "parts": parts, "devs": devs, "devs_changed": state.devices_changed,
        "dev_id_bytes": width, "version": state.version, "overload": state.overload, "_replica2part2dev": None,
        "_last_part_moves_epoch": state.last_moves_epoch, "_last_part_gather_start": 0,
        "_dispersion_graph": {tier: list(row) for tier, row in state.graph.items()}, "dispersion": state.dispersion,
        "_remove_devs": [devs[device_id] for device_id in state.removing], "id": state.id,
    }
    # The arrays, which pickle would write item by item out of lists of Python's integers, are added to the dict on top of
    # the unpickler's stack. 1,000 devices, 2**20 partitions, three replicas: 0.03 s in place of 0.23 s, and 100 MiB less.
    out = [plainpickle.dumps(fields)[:-1], _key("_last_part_moves"), _pickled(moves), _SETITEM]
    if state.table is not None:
        rows = to_arrays(state.table, state.short, width)
        out += [_key("_replica2part2dev"), b"](", *map(_pickled, rows), b"e", _SETITEM]
    return b"".join([*out, b"."])


_SETITEM = b"s"


def _key(text: str) -> bytes:
    return b"X" + struct.pack("<I", len(text)) + text.encode()


def _pickled(values: array[int]) -> bytes:
    """The pickle of an array, protocol 2 and without its end: ``array.array(typecode, [item, ...])``."""
    if values.itemsize == 4:
        return plainpickle.dumps(values)[2:-1]  # rare: more than 65,534 devices
    code, kind = (b"K", "u1") if values.itemsize == 1 else (b"M", "<u2")
    items = np.empty(len(values), dtype=[("code", "S1"), ("value", kind)])
    items["code"], items["value"] = code, np.frombuffer(values, dtype=f"u{values.itemsize}")
    return b"carray\narray\n" + _key(values.typecode) + b"](" + items.tobytes() + b"e\x86R"


def save(state: BuilderState, path: str) -> None:
    """Write a builder file whole or not at all. Raises RingFileError."""
    try:
        fs.replace_file(os.path.abspath(path), encode(state))
    except (OSError, StorageError) as error:
        raise RingFileError(path, f"cannot be written: {error}") from error


def parts_held(table: NDArray[np.int32] | None, devices: int) -> list[int]:
    """How many slots each device has, by id."""
    if table is None or not table.size:
        return [0] * devices
    counts = np.zeros(devices + 1, dtype=np.int64)
    for row in table:
        for begin in range(0, len(row), _CHUNK):
            counts += np.bincount(row[begin:begin + _CHUNK] + 1, minlength=devices + 1)[:devices + 1]
    return [int(count) for count in counts[1:]]


def to_arrays(table: NDArray[np.int32], short: int, width: int) -> list[array[int]]:
    """A table as files hold it: one array for each row, all ones where nobody has the slot."""
    code, kind = ("H", np.uint16) if width == 2 else ("I", np.uint32)
    rows: list[array[int]] = []
    for number, row in enumerate(table):
        part = row[:short] if number == len(table) - 1 else row
        out = array(code)
        out.frombytes(part.astype(kind).tobytes())  # -1 becomes all ones
        rows.append(out)
    return rows


def from_arrays(rows: Iterable[Iterable[int]], parts: int) -> tuple[NDArray[np.int32], int]:
    """A table out of a file's rows, and the length of the last. Raises ValueError when rows have a wrong length."""
    found = []
    for row in rows:
        ids = np.asarray(row)
        if ids.dtype.kind not in "ui" or ids.ndim != 1:
            raise ValueError("a row of the table does not hold device ids")
        none = no_device(ids.dtype.itemsize) if ids.dtype.itemsize in (2, 4) else no_device(2)
        found.append(np.where(ids == none, NONE, ids).astype(np.int32))
    if not found:
        return np.empty((0, parts), dtype=np.int32), 0
    if any(len(row) != parts for row in found[:-1]) or not 0 < len(found[-1]) <= parts:
        raise ValueError(f"the table has rows of {[len(row) for row in found]} partitions, not of {parts}")
    table = np.full((len(found), parts), NONE, dtype=np.int32)
    for number, ids in enumerate(found):
        table[number, :len(ids)] = ids
    return table, len(found[-1])


# -- reading -----------------------------------------------------------------------------------------------------------


def load(path: str) -> BuilderState:
    """Read a builder file. Raises BuilderFileMissing or RingFileError."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        raise BuilderFileMissing(path, "Ring Builder file does not exist") from None
    except OSError as error:
        raise RingFileError(path, f"Ring Builder file cannot be accessed: {error.strerror}") from error
    return decode(data, path)


def decode(data: bytes, path: str = "builder") -> BuilderState:
    """What the bytes of a builder file say. Raises RingFileError."""
    try:
        return _state(_fields(data))
    except (KeyError, TypeError, ValueError, OverflowError, IndexError, AttributeError) as error:
        text = f"has no {error}" if isinstance(error, KeyError) else str(error)
        raise RingFileError(path, f"Ring Builder file is invalid: {text}") from None


def _fields(data: bytes) -> Mapping[str, Any]:
    value = plainpickle.loads(data, extra=_makers(), max_size=len(data))
    if not isinstance(value, Mapping):
        value = getattr(value, "__dict__", None)  # very old files hold an object in place of a dict
    if not isinstance(value, Mapping) or "devs" not in value:
        raise ValueError("it is no builder")
    return value


def _makers() -> dict[tuple[str, str], Callable[..., Any]]:
    """What a builder's pickle may name besides plain values: arrays, and the class of very old files."""
    # The stand-in for the class is made anew each time, so that nothing that a pickle does to it lasts.
    stand_in: Callable[..., Any] = type("OldBuilder", (), {})

    def old_builder(kind: object, base: object, state: object) -> object:
        if kind is not stand_in or base is not object or state is not None:
            raise ValueError("not an old builder")
        return stand_in()

    return {("array", "array"): array, ("array", "_array_reconstructor"): _array_of,
            ("swift.common.ring.builder", "RingBuilder"): stand_in,
            ("copyreg", "_reconstructor"): old_builder, ("copy_reg", "_reconstructor"): old_builder,
            ("builtins", "object"): object, ("__builtin__", "object"): object}


_MACHINE_FORMATS = {0: "<u1", 2: "<u2", 3: ">u2", 6: "<u4", 7: ">u4", 10: "<u8", 11: ">u8"}


def _array_of(kind: object, typecode: str, machine_format: int, data: bytes) -> array[int]:
    """Arrays as newer pickle protocols write them; the machine formats are those of the array module's documentation."""
    if kind is not array or typecode not in ("B", "H", "I", "L") or machine_format not in _MACHINE_FORMATS:
        raise ValueError("not an array of whole numbers")
    return array(typecode, np.frombuffer(data, dtype=_MACHINE_FORMATS[machine_format]).tolist())


def _state(fields: Mapping[str, Any]) -> BuilderState:
    part_power, replicas = int(fields["part_power"]), float(fields["replicas"])
    if not 0 <= part_power <= 32 or not replicas >= 1:
        raise ValueError(f"part power {part_power}, {replicas} replicas")
    parts = 1 << part_power
    devices: list[RingDevice | None] = []
    wanted: dict[int, int] = {}
    for position, item in enumerate(fields["devs"]):
        if item is None:
            devices.append(None)
            continue
        device = from_dict(item)
        if device.id != position:
            raise ValueError(f"device {device.id} stands in the place of {position}")
        devices.append(device)
        wanted[position] = int(item.get("parts_wanted") or 0)
    table, short = None, 0
    rows = fields.get("_replica2part2dev")
    if rows:
        table, short = from_arrays(rows, parts)
        if int(table.max(initial=NONE)) >= len(devices):
            raise ValueError(f"partitions are on device {int(table.max())}, which it has not")
    moves = fields.get("_last_part_moves")
    last_moves = None if moves is None or len(moves) != parts else np.array(moves, dtype=np.uint8)
    removing = tuple(dict.fromkeys(int(item["id"]) for item in fields.get("_remove_devs") or ()))
    for device_id in removing:
        if not 0 <= device_id < len(devices) or devices[device_id] is None:
            raise ValueError(f"device {device_id} is to be removed but not there")
    graph = {tuple(tier): [int(count) for count in row] for tier, row in (fields.get("_dispersion_graph") or {}).items()}
    next_power, dispersion = fields.get("next_part_power"), fields.get("dispersion")
    return BuilderState(
        part_power=part_power, replicas=replicas, min_part_hours=int(fields["min_part_hours"]),
        next_part_power=None if next_power is None else int(next_power), devices=tuple(devices), parts_wanted=wanted,
        removing=removing, devices_changed=bool(fields.get("devs_changed")), version=int(fields.get("version") or 0),
        overload=float(fields.get("overload") or 0.0), table=table, short=short, last_moves=last_moves,
        last_moves_epoch=int(fields.get("_last_part_moves_epoch") or 0), graph=graph,
        dispersion=None if dispersion is None else float(dispersion), id=fields.get("id"))
