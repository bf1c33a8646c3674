"""Errors of ring and builder files and of changes to a ring."""

from __future__ import annotations

from keelstore.common.errors import RingError


class RingFileError(RingError):
    """A ring or builder file that cannot be read or written. ``str()`` names the file and what is wrong with it."""

    def __init__(self, path: str, reason: str):
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class BuilderFileMissing(RingFileError):
    """There is no builder file of that name."""


class BuilderError(RingError):
    """A change, or a rebalance, that a builder refuses."""


class DuplicateDevice(BuilderError):
    """A device id, or an ip, port and device name, that the builder already has."""


class ValidationError(BuilderError):
    """An assignment of partitions that breaks a promise of the ring."""
