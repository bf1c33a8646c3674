"""Composite rings: several builders, one ring.

Each component has regions of its own, and its replicas in them; the ring has the replicas of all. The composite file, JSON,
remembers of what it was made, so that it is made of the same again:

``components`` (version, replicas, id of each builder, in order), ``component_builder_files`` (id to path), ``version`` (one
more with each composition), ``saved_path``, ``serialization_version`` 1.
"""

from __future__ import annotations

import json
import os
import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from keelstore.common import fs
from keelstore.common.errors import StorageError
from keelstore.common.ring.builder import Rebalanced, RingBuilder
from keelstore.common.ring.errors import BuilderError, RingFileError
from keelstore.common.ring.format import Device, RingData

SERIALIZATION_VERSION = 1


@dataclass(frozen=True)
class Component:
    """What a composite remembers of a builder."""

    id: str
    replicas: float
    version: int


@dataclass(frozen=True)
class Composite:
    """A composite file. ``version`` 0 has never been composed."""

    components: tuple[Component, ...] = ()
    files: tuple[tuple[str, str], ...] = ()  # id and path, in order
    version: int = 0

    def as_dict(self) -> dict[str, Any]:
        """What ``show`` prints."""
        return {"components": [{"version": part.version, "replicas": part.replicas, "id": part.id}
                               for part in self.components],
                "component_builder_files": dict(self.files), "version": self.version}


# -- the file ----------------------------------------------------------------------------------------------------------


def decode(text: str | bytes, path: str = "composite") -> Composite:
    """The composite that a file's text says. Raises RingFileError."""
    try:
        value = json.loads(text)
        if value["serialization_version"] != SERIALIZATION_VERSION:
            raise ValueError(f"serialization version {value['serialization_version']!r} is not known")
        parts = tuple(Component(str(part["id"]), float(part["replicas"]), int(part["version"]))
                      for part in value["components"])
        files = value["component_builder_files"]
        return Composite(parts, tuple((part.id, str(files[part.id])) for part in parts), int(value["version"]))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        what = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise RingFileError(path, f"is no composite builder file: {what}") from None


def load(path: str) -> Composite:
    """Read a composite file. Raises RingFileError; its cause tells a missing file."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise RingFileError(path, f"cannot be read: {error.strerror}") from error
    return decode(data, path)


def save(composite: Composite, path: str) -> None:
    """Write a composite file whole or not at all. Raises RingFileError."""
    full = os.path.abspath(path)
    text = json.dumps({**composite.as_dict(), "saved_path": full, "serialization_version": SERIALIZATION_VERSION})
    try:
        fs.replace_file(full, text.encode())
    except (OSError, StorageError) as error:
        raise RingFileError(path, f"cannot be written: {error}") from error


# -- composing ---------------------------------------------------------------------------------------------------------


def compose(composite: Composite, builders: Sequence[RingBuilder], paths: Sequence[str], *, force: bool = False,
            require_modified: bool = False) -> tuple[Composite, RingData]:
    """One ring of several builders, and what is to be remembered of it. Raises BuilderError.

    ``force`` leaves out the checks against the last composition. Partitions of a shorter last row are not possible.
    """
    check_components(builders)
    parts = tuple(Component(builder.id or "", builder.replicas, builder.version) for builder in builders)
    if composite.version and not force:
        _check_same(composite.components, parts, require_modified)
    files = tuple((part.id, os.path.abspath(path)) for part, path in zip(parts, paths, strict=True))
    return Composite(parts, files, composite.version + 1), ring_of(builders)


def ring_of(builders: Sequence[RingBuilder]) -> RingData:
    """The rows of all components, their device ids moved behind those of the components before."""
    devices: list[Device | None] = []
    rows: list[array[int]] = []
    total = sum(len(builder.devices) for builder in builders)
    code = "H" if total < 0xFFFF else "I"
    for builder in builders:
        offset = len(devices)
        ring = builder.ring()
        devices.extend(None if dev is None else {**dev, "id": dev["id"] + offset} for dev in ring.devices)
        rows.extend(array(code, [device_id + offset for device_id in row]) for row in ring.rows)
    return RingData(tuple(devices), tuple(rows), 32 - builders[0].part_power)


def check_components(builders: Sequence[RingBuilder]) -> None:
    """Raises BuilderError, naming all that is wrong, unless the builders can be one ring."""
    if len(builders) < 2:
        raise BuilderError("Two or more component builders are required.")
    wrong: list[str] = []
    for index, builder in enumerate(builders):
        if builder.id is None:
            wrong.append(f"Builder at index {index} has no id: it was never saved")
        if builder.part_power != builders[0].part_power:
            wrong.append(f"Builder at index {index} has part power {builder.part_power}, not {builders[0].part_power}")
        if builder.replicas != int(builder.replicas):
            wrong.append(f"Builder at index {index} has {builder.replicas} replicas, not a whole number")
        if builder.devices_changed or builder.table is None:
            wrong.append(f"Builder needs rebalance to apply changes at index {index}")
    if wrong:
        raise BuilderError("\n".join(["Problem with builders.", *wrong]))
    where: dict[str, list[int]] = {}
    for index, builder in enumerate(builders):
        where.setdefault(builder.id or "", []).append(index)
    wrong = [f"Builder id {builder_id!r} used at indexes {', '.join(map(str, indexes))}"
             for builder_id, indexes in where.items() if len(indexes) > 1]
    if wrong:
        raise BuilderError("\n".join(wrong))
    regions: dict[int, list[int]] = {}
    places: dict[tuple[str, int, str], list[int]] = {}
    for index, builder in enumerate(builders):
        for region in sorted({dev.region for dev in builder}):
            regions.setdefault(region, []).append(index)
        for dev in builder:
            places.setdefault(dev.place, []).append(index)
    wrong = [f"Region {region} found in builders at indexes {', '.join(map(str, indexes))}"
             for region, indexes in regions.items() if len(indexes) > 1]
    wrong += [f"Duplicate ip/port/device combination {ip}:{port}/{device} in builders at indexes "
              f"{', '.join(map(str, indexes))}"
              for (ip, port, device), indexes in places.items() if len(indexes) > 1]
    if wrong:
        raise BuilderError("\n".join(wrong))


def _check_same(old: Sequence[Component], new: Sequence[Component], require_modified: bool) -> None:
    if len(old) != len(new):
        raise BuilderError(f"A different number of builders: {len(old)} != {len(new)}")
    wrong = []
    for index, (before, now) in enumerate(zip(old, new, strict=True)):
        for name in ("id", "replicas"):
            if getattr(before, name) != getattr(now, name):
                wrong.append(f"Invalid builder change at index {index}: Attribute mismatch for {name}: "
                             f"{getattr(before, name)!r} != {getattr(now, name)!r}")
        if before.id == now.id and now.version < before.version:
            wrong.append(f"Invalid builder change at index {index}: Older builder version: "
                         f"{now.version} < {before.version}")
    if wrong:
        raise BuilderError("\n".join(wrong))
    if require_modified and all(now.version == before.version for before, now in zip(old, new, strict=True)):
        raise BuilderError("None of the component builders has been modified since the existing composite ring was built.")


def rebalance(builders: Sequence[RingBuilder], now: float, seed: str | int | None = None) -> list[Rebalanced]:
    """Rebalance the components together: of a partition only one component moves a replica, and only if all allow it.

    In a random order, so that none is always first. Raises BuilderError; the builders are then not to be saved.
    """
    order = list(range(len(builders)))
    random.Random(None if seed is None else str(seed)).shuffle(order)
    results: dict[int, Rebalanced] = {}
    for index in order:
        may_move = builders[index].movable(now)
        for other in builders:
            may_move = may_move & other.movable(now)
        results[index] = builders[index].rebalance(now, seed, may_move=may_move)
    for builder in builders:
        builder.validate()
    return [results[index] for index in range(len(builders))]
