"""The body of an S3 request, proven as it is read: length, SHA-256, checksums (``spec: s3-api 1.3, 3.9``; S41).

What does not hold is raised before the last octets are handed on, so nothing that was refused is ever stored. The
error that travels through the servers to the right is a RequestError; ``failure`` is the one the client is told.
``at_end`` is for what has to be decided as late as can be: a write that depends on what is there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, Final, Protocol

from keelstore.common.errors import RequestError
from keelstore.common.httpinput import FileLike
from keelstore.common.middleware.s3api.checksums import Algorithm, Running, encode
from keelstore.common.middleware.s3api.errors import S3Error

CHUNK: Final = 65536


class BodyRefused(RequestError):
    """The body is not what its headers say."""

    status = 422


class Source(Protocol):
    def read(self, size: int = -1) -> bytes: ...


class ProvenBody(FileLike):
    """``length`` bytes of ``source`` (None: all there is). Every check that was asked for runs when the last has come.

    ``sha256``: hex, of the whole. ``checksums``: algorithm to the value a client sent, or None to compute it only. Who
    learns a checksum from a trailer puts it into ``expected`` before the body ends.
    """

    __slots__ = (
        "_left",
        "_running",
        "_sha256",
        "_source",
        "_wanted_sha256",
        "at_end",
        "expected",
        "failure",
        "length",
        "received",
    )

    def __init__(
        self,
        source: Source,
        length: int | None,
        sha256: str | None = None,
        checksums: dict[Algorithm, str | None] | None = None,
    ):
        super().__init__()
        self._source, self._left, self.length = source, length, length
        self._wanted_sha256 = sha256
        self._sha256 = hashlib.sha256() if sha256 else None
        self.expected: dict[Algorithm, str | None] = dict(checksums or {})
        self._running: dict[Algorithm, Running] = {algorithm: algorithm.start() for algorithm in self.expected}
        self.received = 0
        self.failure: S3Error | None = None
        self.at_end: Callable[[], None] | None = None  # called once, when all is proven; may raise S3Error
        if length == 0:
            self._left = None  # one read that finds the end, and proves

    def _more(self, size: int) -> bytes:
        data = self._take(size)
        if data:
            self.received += len(data)
            if self._sha256 is not None:
                self._sha256.update(data)
            for running in self._running.values():
                running.update(data)
        if self._left is not None:
            self._left -= len(data)
            if not data and self._left:
                self.refuse(wrong_length(self.length, self.received))
        if not data or self._left == 0:
            self._prove()
        return data

    def _take(self, size: int) -> bytes:
        try:
            if self._left is not None:
                return self._source.read(min(size, self._left)) if self._left else b""
            return self._source.read(size)
        except S3Error as error:  # of a framing below us
            self.refuse(error)
            raise AssertionError from None

    def _prove(self) -> None:
        if self._sha256 is not None:
            found, self._sha256 = self._sha256.hexdigest(), None
            wanted = str(self._wanted_sha256)
            if found != wanted.lower():
                self.refuse(
                    S3Error(
                        "XAmzContentSHA256Mismatch", ClientComputedContentSHA256=wanted, S3ComputedContentSHA256=found
                    )
                )
        for algorithm, wanted_value in self.expected.items():
            if wanted_value is not None and algorithm in self._running and self.value(algorithm) != wanted_value:
                self.refuse(
                    S3Error("BadDigest", f"The {algorithm.name} you specified did not match the calculated checksum.")
                )
        at_end, self.at_end = self.at_end, None
        if at_end is not None:
            try:
                at_end()
            except S3Error as error:
                self.refuse(error)

    def value(self, algorithm: Algorithm) -> str:
        """The checksum of what was read."""
        return encode(self._running[algorithm].digest())

    def refuse(self, error: S3Error) -> Any:
        self.failure = error
        raise BodyRefused(error.message)


def wrong_length(expected: int | None, provided: int | None) -> S3Error:
    return S3Error(
        "IncompleteBody",
        "You did not provide the number of bytes specified by the Content-Length HTTP header",
        NumberBytesExpected=expected,
        NumberBytesProvided=provided,
    )
