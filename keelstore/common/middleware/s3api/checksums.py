"""The additional checksums of S3: computed as a body passes, and put together for uploads in parts (``spec: s3-api 3.9``).

CRC32C and CRC64NVME come from ``awscrt``, loaded when the first of them is asked for.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Protocol

FULL_OBJECT: Final = "FULL_OBJECT"
COMPOSITE: Final = "COMPOSITE"


class Running(Protocol):
    def update(self, data: bytes) -> None: ...
    def digest(self) -> bytes: ...


class _Crc:
    """A running CRC of ``size`` bytes, given a function ``step(data, previous)``."""

    __slots__ = ("_size", "_step", "_value")

    def __init__(self, step: Callable[[bytes, int], int], size: int):
        self._step, self._size, self._value = step, size, 0

    def update(self, data: bytes) -> None:
        self._value = self._step(data, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(self._size, "big")


def _crt(name: str) -> Any:
    from awscrt import checksums  # a megabyte that most workers never need

    return getattr(checksums, name)


def _combined_by(name: str) -> Callable[[int, int, int], int]:
    return lambda first, second, length: int(_crt(name)(first, second, length))


@dataclass(frozen=True)
class Algorithm:
    """``name`` as S3 spells it in XML and in ``x-amz-checksum-algorithm``; ``types`` of an upload in parts, default first."""

    name: str
    size: int
    types: tuple[str, ...]
    start: Callable[[], Running]
    combine: Callable[[int, int, int], int] | None = None  # of two neighbours: (first, second, length of the second)

    @property
    def header(self) -> str:
        return f"x-amz-checksum-{self.name.lower()}"

    @property
    def element(self) -> str:
        return f"Checksum{self.name}"

    def decode(self, text: str) -> bytes:
        """Raises ValueError for anything but the base64 of ``size`` octets, as it is made of them."""
        data = base64.b64decode(text, validate=True)
        if len(data) != self.size or encode(data) != text:
            raise ValueError(f"not {self.size} octets")
        return data

    def composite(self, parts: Iterable[bytes]) -> str:
        """Of an upload whose parts have these checksums."""
        running, count = self.start(), 0
        for part in parts:
            running.update(part)
            count += 1
        return f"{encode(running.digest())}-{count}"

    def full(self, parts: Iterable[tuple[bytes, int]]) -> str:
        """Of the whole, from each part's checksum and length in bytes. For CRCs only."""
        if self.combine is None:
            raise ValueError(f"{self.name} of a whole does not follow from its parts")
        value = None
        for data, length in parts:
            part = int.from_bytes(data, "big")
            value = part if value is None else self.combine(value, part, length)
        return encode((value or 0).to_bytes(self.size, "big"))


def encode(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).decode()


ALGORITHMS: Final[dict[str, Algorithm]] = {algorithm.name: algorithm for algorithm in (
    Algorithm("CRC32", 4, (COMPOSITE, FULL_OBJECT), lambda: _Crc(zlib.crc32, 4), _combined_by("combine_crc32")),
    Algorithm("CRC32C", 4, (COMPOSITE, FULL_OBJECT), lambda: _Crc(_crt("crc32c"), 4), _combined_by("combine_crc32c")),
    Algorithm("CRC64NVME", 8, (FULL_OBJECT,), lambda: _Crc(_crt("crc64nvme"), 8), _combined_by("combine_crc64nvme")),
    Algorithm("SHA1", 20, (COMPOSITE,), lambda: hashlib.sha1(usedforsecurity=False)),
    Algorithm("SHA256", 32, (COMPOSITE,), hashlib.sha256),
)}  # fmt: skip
BY_HEADER: Final = {algorithm.header: algorithm for algorithm in ALGORITHMS.values()}


def named(name: str) -> Algorithm | None:
    """By any spelling: clients write ``crc32``, ``CRC32`` and ``CRC-32``."""
    return ALGORITHMS.get(name.upper().replace("-", ""))
