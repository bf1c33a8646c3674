"""Timestamps: the order of everything that happens in the cluster.

A timestamp counts 10 microsecond units (``raw``) since the epoch, plus an ``offset`` that orders rewrites made inside the
cluster after the user's own write yet before the next 10 microseconds. Wire forms (``spec: on-disk 2``):

========  ==========================================  =============================================
normal    ``%016.05f``                                ``1402436408.91203``
internal  normal, ``_%016x`` of the offset if not 0   ``1402436408.91203_0000000000000001``
short     normal, ``_%x`` of the offset if not 0      ``1402436408.91203_1``
========  ==========================================  =============================================

Order is that of the internal form.
"""

from __future__ import annotations

import math
import re
import time
from functools import lru_cache, total_ordering

UNIT = 1e-5
MAX_OFFSET = 16**16 - 1
MAX_RAW = 10**15  # exclusive: 10 digits of seconds, 5 of fraction

_FAST = re.compile(r"\A([0-9]{10})\.([0-9]{5})\Z")
_SPLIT = re.compile(r"\A([^_]*)(?:_([0-9a-fA-F]{1,16}))?\Z")


@total_ordering
class Timestamp:
    """An instant with an offset; immutable, hashable, ordered as the internal form is.

    Accepts another Timestamp, seconds as int or float, or any of the wire forms. Raises ValueError for anything else and
    for instants outside ``0 <= t < 10**10`` s.
    """

    __slots__ = ("_normal", "offset", "raw")
    raw: int
    offset: int
    _normal: str  # once it was asked for

    def __init__(self, value: Timestamp | float | str, offset: int = 0, delta: int = 0):
        if isinstance(value, Timestamp):
            raw, own = value.raw, value.offset
        elif isinstance(value, str):
            raw, own = _parse(value)
        else:
            raw, own = _raw_of(float(value)), 0
        own += offset
        raw += delta
        if not 0 <= own <= MAX_OFFSET:
            raise ValueError(f"timestamp offset out of range: {own}")
        if not 0 <= raw < MAX_RAW:
            raise ValueError(f"timestamp out of range: {value!r}")
        object.__setattr__(self, "raw", raw)
        object.__setattr__(self, "offset", own)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("Timestamp is immutable")

    @classmethod
    def from_raw(cls, raw: int, offset: int = 0) -> Timestamp:
        """The timestamp of ``raw`` 10 microsecond units."""
        self = cls.__new__(cls)
        if not 0 <= raw < MAX_RAW:
            raise ValueError(f"timestamp out of range: {raw}")
        object.__setattr__(self, "raw", raw)
        object.__setattr__(self, "offset", offset)
        return self

    @classmethod
    def now(cls, clock: float | None = None) -> Timestamp:
        return cls(time.time() if clock is None else clock)

    @property
    def normal(self) -> str:
        try:
            return self._normal
        except AttributeError:
            digits = f"{self.raw:015d}"
            text = f"{digits[:10]}.{digits[10:]}"
            object.__setattr__(self, "_normal", text)
            return text

    @property
    def internal(self) -> str:
        return f"{self.normal}_{self.offset:016x}" if self.offset else self.normal

    @property
    def short(self) -> str:
        return f"{self.normal}_{self.offset:x}" if self.offset else self.normal

    @property
    def isoformat(self) -> str:
        """UTC as ``YYYY-MM-DDTHH:MM:SS.ffffff``, always six decimals."""
        seconds, fraction = divmod(self.raw, 100000)
        t = time.gmtime(seconds)
        return (
            f"{t.tm_year:04d}-{t.tm_mon:02d}-{t.tm_mday:02d}T{t.tm_hour:02d}:{t.tm_min:02d}:{t.tm_sec:02d}"
            f".{fraction * 10:06d}"
        )

    def ceil(self) -> int:
        """Whole seconds, rounded up: what Last-Modified shows."""
        return -(-self.raw // 100000)

    def invert(self) -> Timestamp:
        """The timestamp that sorts in the opposite place."""
        if self.offset:
            return Timestamp.from_raw(MAX_RAW - 1 - self.raw - 1, 16**16 - self.offset)
        return Timestamp.from_raw(MAX_RAW - 1 - self.raw)

    __invert__ = invert

    def __str__(self) -> str:
        return self.internal

    def __repr__(self) -> str:
        return f"Timestamp({self.internal!r})"

    def __float__(self) -> float:
        return self.raw / 100000

    def __int__(self) -> int:
        return self.raw // 100000

    def __bool__(self) -> bool:
        return bool(self.raw or self.offset)

    def __hash__(self) -> int:
        return hash((self.raw, self.offset))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Timestamp):
            return self.raw == other.raw and self.offset == other.offset
        if isinstance(other, (str, int, float)):
            try:
                return self == Timestamp(other)
            except ValueError:
                return False
        return NotImplemented

    def __lt__(self, other: object) -> bool:
        if isinstance(other, Timestamp):
            return (self.raw, self.offset) < (other.raw, other.offset)
        if isinstance(other, (int, float)):
            if other < 0:
                return False
            if other >= 10**10:
                return True
            return self < Timestamp(other)
        if isinstance(other, str):
            return self < Timestamp(other)
        return NotImplemented


def _raw_of(seconds: float) -> int:
    if not math.isfinite(seconds):
        raise ValueError(f"not a timestamp: {seconds!r}")
    return int(round(seconds / UNIT))


@lru_cache(maxsize=4096)
def _parse(text: str) -> tuple[int, int]:
    """The (raw, offset) of any wire form, or of a decimal number of seconds. Each is read several times within a request."""
    fast = _FAST.match(text)
    if fast:
        return int(fast[1]) * 100000 + int(fast[2]), 0
    parts = _SPLIT.match(text)
    if not parts or not text.isascii():
        raise ValueError(f"not a timestamp: {text[:64]!r}")
    try:
        seconds = float(parts[1])
    except ValueError:
        raise ValueError(f"not a timestamp: {text[:64]!r}") from None
    fast = _FAST.match(parts[1])
    raw = int(fast[1]) * 100000 + int(fast[2]) if fast else _raw_of(seconds)
    return raw, int(parts[2], 16) if parts[2] else 0


def encode_timestamps(
    first: Timestamp, second: Timestamp | None = None, third: Timestamp | None = None, explicit: bool = False
) -> str:
    """Up to three timestamps as one string: the short form of the first, then signed hex deltas in raw units.

    Deltas that are all zero are left out unless ``explicit``. In container rows the three are data, content-type and
    metadata time.
    """
    if second is None:
        return first.short
    deltas = [second.raw - first.raw]
    if third is not None:
        deltas.append(third.raw - second.raw)
    if not explicit and not any(deltas):
        return first.short
    return first.short + "".join(f"{delta:+x}" for delta in deltas)


_DELTA = re.compile(r"([+-][0-9a-fA-F]+)")


def decode_timestamps(
    text: str, explicit: bool = False
) -> tuple[Timestamp, Timestamp | None, Timestamp | None]:
    """The inverse of :func:`encode_timestamps`. A missing part equals its predecessor, or is None when ``explicit``.

    A zero delta gives its predecessor whole, offset included; any other drops the offset.
    """
    parts = _DELTA.split(text)
    first = Timestamp(parts[0])
    deltas = parts[1::2]
    if any(parts[2::2]) or len(deltas) > 2:
        raise ValueError(f"not an encoded timestamp: {text[:80]!r}")
    found: list[Timestamp | None] = [first]
    previous = first
    for index in range(2):
        if index < len(deltas):
            delta = int(deltas[index], 16)
            if delta:
                previous = Timestamp.from_raw(previous.raw + delta)
            found.append(previous)
        else:
            found.append(None if explicit else previous)
    return first, found[1], found[2]


def normalize_delete_at(value: float | str, high_precision: bool = False) -> str:
    """A delete-at time as ten digits, clamped to ``0 .. 9999999999`` s."""
    seconds = min(max(0.0, float(value)), 9999999999.99999 if high_precision else 9999999999)
    return f"{seconds:016.5f}" if high_precision else f"{int(seconds):010d}"


ZERO = Timestamp(0)
