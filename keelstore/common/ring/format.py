"""The ring file, all versions.

A ring file is one gzip stream. Inside, uncompressed:

v1    ``R1NG``, ``!H`` 1, ``!I`` length, JSON (devices, part_shift, replica_count, byteorder, ...), then one row of 2-byte
      device ids for each replica, in the byte order that the JSON names.
v2    ``R1NG``, ``!H`` 2, then sections, each ``!Q`` length and data: ``swift/ring/metadata``, ``swift/ring/devices``,
      ``swift/ring/assignments`` (big-endian ids, 2 or 4 bytes), perhaps sections of others, the index (JSON: name to
      ``[compressed start, start, compressed end, end, checksum method, checksum]``), ``!Q`` where the index starts, and
      ``!Q`` where it starts in the compressed file. Every section begins at a full flush of the compressor, so that a
      reader can start there.

v0, a bare pickle, is no longer read. ``doc/formats/rings.md`` has the tables. Equal rings give equal bytes: the gzip
header holds a fixed time, and JSON is written with sorted keys.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import struct
import sys
import zlib
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from keelstore.common import fs
from keelstore.common.errors import StorageError
from keelstore.common.ring.errors import RingFileError

MAGIC = b"R1NG"
VERSIONS = (1, 2)
DEFAULT_VERSION = 1

METADATA, DEVICES, ASSIGNMENTS = "swift/ring/metadata", "swift/ring/devices", "swift/ring/assignments"

_GZIP_TIME = 1300507380  # what every writer of ring files uses, so that equal rings are equal files
_TYPECODES = {2: "H", 4: "I"}
_CHECKSUMS = frozenset({"md5", "sha1", "sha256", "sha512"})
_LARGE = 1 << 20  # bytes of table
_BUILDER_ONLY = frozenset({"parts", "parts_wanted"})

Device = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class RingData:
    """What a ring file says.

    ``devices`` is indexed by device id, with None for ids that are gone. ``rows`` has one array of device ids for each
    replica, indexed by partition; the last may be shorter than the others (fractional replicas).
    """

    devices: tuple[Device | None, ...]
    rows: tuple[array[int], ...]
    part_shift: int
    version: int | None = None
    next_part_power: int | None = None
    format_version: int = DEFAULT_VERSION

    @property
    def part_power(self) -> int:
        return 32 - self.part_shift

    @property
    def partition_count(self) -> int:
        return len(self.rows[0]) if self.rows else 0

    @property
    def replica_count(self) -> float:
        """Rows, the last one counted by its length; an int's worth of float where all are full."""
        if not self.rows:
            return 0.0
        return len(self.rows) - 1 + len(self.rows[-1]) / len(self.rows[0])

    @property
    def dev_id_bytes(self) -> int:
        return self.rows[0].itemsize if self.rows else 2

    @cached_property
    def assigned_ids(self) -> frozenset[int]:
        """Ids of the devices that have at least one partition."""
        return frozenset().union(*self.rows)


def no_device(id_bytes: int) -> int:
    """The id that means "none" in a table with ids of this width: all ones."""
    return (1 << (8 * id_bytes)) - 1


def id_bytes_for(max_id: int) -> int:
    """The smallest width, 2 or 4, that can hold the id and still tell it from "none"."""
    for width in (2, 4):
        if max_id < no_device(width):
            return width
    raise ValueError(f"device id {max_id} is too large")


# -- reading -----------------------------------------------------------------------------------------------------------


def load(path: str) -> RingData:
    """Read a ring file. Raises RingFileError, or FileNotFoundError when there is no such file."""
    try:
        with open(path, "rb") as file:
            return decode(file.read(), path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise RingFileError(path, f"cannot be read: {error.strerror}") from error


def decode(data: bytes, path: str = "ring") -> RingData:
    """The ring in the bytes of a ring file; ``path`` is for the text of a RingFileError."""
    if not data:
        raise RingFileError(path, "is empty")
    try:
        raw = gzip.decompress(data)
    except EOFError:
        raise RingFileError(path, "is truncated") from None
    except (OSError, zlib.error) as error:
        raise RingFileError(path, f"is not a gzip file ({error})") from None
    if len(raw) < 6 or not raw.startswith(MAGIC):
        old = " (a pickled ring of before 2012?)" if raw[:1] == b"\x80" else ""
        raise RingFileError(path, f"Bad ring magic: {raw[:4]!r}{old}")
    (version,) = struct.unpack_from("!H", raw, 4)
    if version not in VERSIONS:
        raise RingFileError(path, f"Unsupported ring version: {version}")
    try:
        ring = (_decode_v1 if version == 1 else _decode_v2)(raw)
        _check(ring)
    except _Malformed as error:
        raise RingFileError(path, str(error)) from None
    return ring


class _Malformed(Exception):
    """What is wrong with the content, without the file's name."""


def _decode_v1(raw: bytes) -> RingData:
    if len(raw) < 10:
        raise _Malformed("is truncated in its header")
    (length,) = struct.unpack_from("!I", raw, 6)
    if len(raw) < 10 + length:
        raise _Malformed("is truncated in its JSON")
    head = _json_object(raw[10:10 + length], "its JSON")
    part_shift, row_count = _integer(head, "part_shift", 0, 32), _integer(head, "replica_count", 0, 1 << 16)
    order = head.get("byteorder", sys.byteorder)
    if order not in ("little", "big"):
        raise _Malformed(f"has an unknown byteorder {order!r}")
    rows = _cut(memoryview(raw)[10 + length:], 2, 32 - part_shift, order)
    if len(rows) != row_count:
        what = "is truncated in its table" if len(rows) < row_count else "has more table than its replica_count"
        raise _Malformed(f"{what}: {len(rows)} rows of {row_count}")
    return RingData(_devices(head.get("devs")), rows, part_shift, _optional_integer(head, "version"),
                    _optional_integer(head, "next_part_power"), 1)


def _decode_v2(raw: bytes) -> RingData:
    sections = _sections(raw)
    missing = [name for name in (METADATA, DEVICES, ASSIGNMENTS) if name not in sections]
    if missing:
        raise _Malformed(f"lacks the section {missing[0]}")
    head = _json_object(bytes(sections[METADATA]), METADATA)
    part_shift, width = _integer(head, "part_shift", 0, 32), _integer(head, "dev_id_bytes", 1, 8)
    if width not in _TYPECODES:
        raise _Malformed(f"has device ids of {width} bytes; 2 and 4 are known")
    rows = _cut(sections[ASSIGNMENTS], width, 32 - part_shift, "big")
    ring = RingData(_devices(_json(bytes(sections[DEVICES]), DEVICES)), rows, part_shift,
                    _optional_integer(head, "version"), _optional_integer(head, "next_part_power"), 2)
    replicas = head.get("replica_count")
    if not isinstance(replicas, int | float) or abs(replicas * ring.partition_count - sum(map(len, rows))) > 1:
        raise _Malformed(f"has a table of {ring.replica_count:g} replicas where {replicas!r} are announced")
    return ring


def _sections(raw: bytes) -> dict[str, memoryview]:
    """The named sections of a v2 file, their checksums compared."""
    if len(raw) < 6 + 8 + 16:
        raise _Malformed("is truncated")
    (start,) = struct.unpack_from("!Q", raw, len(raw) - 16)
    index = _json_object(bytes(_blob(raw, start, len(raw) - 16, "its index")), "its index")
    view = memoryview(raw)
    found: dict[str, memoryview] = {}
    for name, entry in index.items():
        if not (isinstance(entry, list) and len(entry) == 6 and isinstance(entry[1], int)):
            raise _Malformed(f"has a bad index entry for {name}")
        _, begin, _, end, method, digest = entry
        blob = _blob(raw, begin, len(raw), name)
        if isinstance(end, int) and end - begin != 8 + len(blob):
            raise _Malformed(f"Inconsistent section size: {name}")
        if digest:
            if method not in _CHECKSUMS:
                raise _Malformed(f"Unsupported checksum {method!r} of {name}")
            if hashlib.new(method, view[begin:begin + 8 + len(blob)], usedforsecurity=False).hexdigest() != digest:
                raise _Malformed(f"has a bad checksum: {name}")
        found[name] = blob
    return found


def _blob(raw: bytes, start: int, limit: int, what: str) -> memoryview:
    if not 0 < start <= limit - 8:
        raise _Malformed(f"is truncated, or its index is wrong: {what}")
    (length,) = struct.unpack_from("!Q", raw, start)
    if start + 8 + length > limit:
        raise _Malformed(f"is truncated: {what}")
    return memoryview(raw)[start + 8:start + 8 + length]


def _cut(table: memoryview, width: int, part_power: int, order: str) -> tuple[array[int], ...]:
    if len(table) % width:
        raise _Malformed("has a table that ends within a device id")
    rows = []
    step = width << part_power
    for start in range(0, len(table), step):
        row = array(_TYPECODES[width])
        row.frombytes(table[start:start + step])
        if order != sys.byteorder:
            row.byteswap()
        rows.append(row)
    return tuple(rows)


def _json(data: bytes, what: str) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _Malformed(f"holds bad JSON in {what} ({error})") from None


def _json_object(data: bytes, what: str) -> dict[str, Any]:
    value = _json(data, what)
    if not isinstance(value, dict):
        raise _Malformed(f"holds no JSON object in {what}")
    return value


def _integer(head: dict[str, Any], key: str, low: int, high: int) -> int:
    value = head.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise _Malformed(f"has a bad {key}: {value!r}")
    return value


def _optional_integer(head: dict[str, Any], key: str) -> int | None:
    return None if head.get(key) is None else _integer(head, key, 0, 1 << 62)


_DEVICE_TYPES: dict[str, type | tuple[type, ...]] = {
    "id": int, "zone": int, "ip": str, "port": int, "device": str, "weight": (int, float),
}


def _devices(value: Any) -> tuple[Device | None, ...]:
    if not isinstance(value, list):
        raise _Malformed("has no list of devices")
    devices: list[Device | None] = []
    for position, item in enumerate(value):
        if item is None:
            devices.append(None)
            continue
        if not isinstance(item, dict):
            raise _Malformed(f"has a bad device {position}")
        device = {"region": 1, "meta": "", **item}
        device.setdefault("replication_ip", device.get("ip"))
        device.setdefault("replication_port", device.get("port"))
        for key, kind in _DEVICE_TYPES.items():
            if not isinstance(device.get(key), kind):
                raise _Malformed(f"has a device {position} with a bad {key}: {device.get(key)!r}")
        if device["id"] != position:
            raise _Malformed(f"has device {device['id']} in the place of {position}")
        devices.append(device)
    return tuple(devices)


def _check(ring: RingData) -> None:
    if ring.rows and len(ring.rows[0]) != 1 << ring.part_power:
        raise _Malformed(f"is truncated in its table: {len(ring.rows[0])} partitions of {1 << ring.part_power}")
    for device_id in ring.assigned_ids:
        if device_id >= len(ring.devices) or ring.devices[device_id] is None:
            raise _Malformed(f"has partitions on device {device_id}, which is not in it")


# -- writing -----------------------------------------------------------------------------------------------------------


def encode(ring: RingData, version: int = DEFAULT_VERSION, name: str = "") -> bytes:
    """The bytes of a ring file; ``name`` goes in the gzip header. Raises ValueError for what a version cannot hold."""
    if version not in VERSIONS:
        raise ValueError(f"Unsupported ring version: {version}")
    return (_encode_v1 if version == 1 else _encode_v2)(ring, name)


def save(ring: RingData, path: str, version: int = DEFAULT_VERSION) -> None:
    """Write a ring file whole or not at all. Raises RingFileError."""
    try:
        data = encode(ring, version, os.path.basename(path).removesuffix(".gz"))
        fs.replace_file(os.path.abspath(path), data)
        os.chmod(path, 0o644)  # whatever the umask of the operator: servers of another user read it
    except (OSError, StorageError, ValueError) as error:
        raise RingFileError(path, f"cannot be written: {error}") from error


def plain_devices(devices: tuple[Device | None, ...]) -> list[dict[str, Any] | None]:
    """The devices as a ring holds them: without what only a builder needs."""
    return [None if dev is None else {key: value for key, value in dev.items() if key not in _BUILDER_ONLY}
            for dev in devices]


def _encode_v1(ring: RingData, name: str) -> bytes:
    if len(ring.devices) and len(ring.devices) - 1 >= no_device(2):
        raise ValueError("Ring v1 only supports 2-byte dev IDs")
    head: dict[str, Any] = {"byteorder": sys.byteorder, "devs": plain_devices(ring.devices),
                            "part_shift": ring.part_shift, "replica_count": len(ring.rows)}
    if ring.version is not None:
        head["version"] = ring.version
    if ring.next_part_power is not None:
        head["next_part_power"] = ring.next_part_power
    text = _dump(head)
    out = _GzipWriter(name, 1)
    out.write(struct.pack("!I", len(text)) + text)
    if _is_noise(ring):
        out.sync()
        out.compress(1, zlib.Z_HUFFMAN_ONLY)
    for row in ring.rows:
        out.write((row if row.itemsize == 2 else array("H", row)).tobytes())
    return out.finish()


def _encode_v2(ring: RingData, name: str) -> bytes:
    width = max(ring.dev_id_bytes, id_bytes_for(max(len(ring.devices) - 1, 0)))
    head: dict[str, Any] = {"part_shift": ring.part_shift, "dev_id_bytes": width,
                            "replica_count": ring.replica_count, "version": ring.version}
    if ring.next_part_power is not None:
        head["next_part_power"] = ring.next_part_power
    out = _GzipWriter(name, 2)
    index: dict[str, list[Any]] = {}

    def section(name: str, size: int, chunks: Iterator[bytes]) -> None:
        packed_start, start = out.packed, out.plain
        prefix = struct.pack("!Q", size)
        digest = hashlib.sha256(prefix)
        out.write(prefix)
        for chunk in chunks:
            digest.update(chunk)
            out.write(chunk)
        out.sync()
        index[name] = [packed_start, start, out.packed, out.plain, "sha256", digest.hexdigest()]

    for part, text in ((METADATA, _dump(head)), (DEVICES, _dump(plain_devices(ring.devices)))):
        section(part, len(text), iter((text,)))
    if _is_noise(ring):
        out.compress(1, zlib.Z_HUFFMAN_ONLY)
    section(ASSIGNMENTS, width * sum(map(len, ring.rows)), (_big_endian(row, width) for row in ring.rows))
    out.compress(9)

    packed_start, start = out.packed, out.plain
    text = _dump(index)
    out.write(struct.pack("!Q", len(text)) + text)
    out.sync()
    out.compress(0)
    for offset in (start, packed_start):  # stored, so that both stand at a fixed distance from the end
        out.write(struct.pack("!Q", offset))
        out.sync()
    return out.finish()


def _big_endian(row: array[int], width: int) -> bytes:
    wire = array(_TYPECODES[width], row) if row.itemsize != width else array(row.typecode, row)
    if sys.byteorder == "little":
        wire.byteswap()
    return wire.tobytes()


def _dump(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, ensure_ascii=True).encode("ascii")


def _is_noise(ring: RingData) -> bool:
    """Whether to spare the search for repetitions: ids of a large table are noise (4.79 MB in 0.05 s, not 4.77 in 0.50)."""
    return sum(map(len, ring.rows)) * ring.dev_id_bytes > _LARGE


class _GzipWriter:
    """A gzip stream in memory that can be flushed where a section starts."""

    def __init__(self, name: str, version: int):
        self._crc, self.plain = 0, 0
        self._out: list[bytes] = []
        self.packed = 0
        label = name.encode("latin-1", "replace")
        self._emit(b"\x1f\x8b\x08" + (b"\x08" if label else b"\x00") + struct.pack("<I", _GZIP_TIME) + b"\x02\xff")
        if label:
            self._emit(label + b"\x00")
        # The magic is stored, not packed, so that file(1) finds it at a fixed place.
        self.compress(0)
        self.write(MAGIC + struct.pack("!H", version))
        self.sync()
        self.compress(9)

    def _emit(self, data: bytes) -> None:
        self._out.append(data)
        self.packed += len(data)

    def write(self, data: bytes) -> None:
        self._crc = zlib.crc32(data, self._crc)
        self.plain += len(data)
        self._emit(self._deflate.compress(data))

    def sync(self) -> None:
        """End the block; what follows can be read without what came before."""
        self._emit(self._deflate.flush(zlib.Z_FULL_FLUSH))

    def compress(self, level: int, strategy: int = zlib.Z_DEFAULT_STRATEGY) -> None:
        """Go on with another compression; only right after ``sync``."""
        self._deflate = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS, zlib.DEF_MEM_LEVEL, strategy)

    def finish(self) -> bytes:
        self._emit(self._deflate.flush(zlib.Z_FINISH))
        self._emit(struct.pack("<II", self._crc, self.plain & 0xFFFFFFFF))
        return b"".join(self._out)


