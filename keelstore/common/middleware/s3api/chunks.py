"""Bodies in the framing ``aws-chunked``: plain chunks, signed chunks, and trailers (``spec: s3-api 1.5``).

    signed   : <hex size>;chunk-signature=<64 hex>\\r\\n <data>\\r\\n ... 0;chunk-signature=<64 hex>\\r\\n [trailers] \\r\\n
    unsigned : <hex size>\\r\\n <data>\\r\\n ... 0\\r\\n [name:value\\r\\n]... \\r\\n

Every line has a bound, and a body that ends within one, within a chunk or before what it announced is an error, at once
(``security: S06``). A signature is checked before the last octets of its chunk are handed on. The empty line at the end may
be missing, and what comes behind it is not looked at: so it is with Swift, and with AWS.
"""

from __future__ import annotations

import binascii
import hashlib
import re
from typing import Any, Final, overload

from keelstore.common.middleware.s3api import checksums
from keelstore.common.middleware.s3api import signature as sign
from keelstore.common.middleware.s3api.authentication import Signed
from keelstore.common.middleware.s3api.body import ProvenBody, wrong_length
from keelstore.common.middleware.s3api.errors import S3Error

MIN_CHUNK: Final = 8192  # of every chunk but the last
MAX_LINE: Final = 1024
MAX_TRAILERS: Final = 16
SIGNED: Final = frozenset(("STREAMING-AWS4-HMAC-SHA256-PAYLOAD", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"))
_SIZE = re.compile(rb"[0-9a-fA-F]{1,16}\Z")
_SIGNATURE = re.compile(rb"\s*chunk-signature\s*=\s*([^;]*?)\s*\Z")


class ChunkSigner:
    """The chain of signatures of a body: each one signs the one before."""

    __slots__ = ("_key", "_previous", "_scope", "_signed", "_timestamp")

    def __init__(self, signed: Signed):
        assert signed.scope is not None and signed.signing_key is not None
        self._signed = signed
        self._key, self._timestamp, self._scope, self._previous = (
            signed.signing_key,
            signed.timestamp,
            signed.scope,
            signed.signature,
        )

    def check(self, kind: str, claimed: str, digests: str) -> None:
        """``kind``: PAYLOAD or TRAILER; ``digests``: the lines that are signed. Raises S3Error."""
        text = f"{sign.ALGORITHM}-{kind}\n{self._timestamp}\n{self._scope}\n{self._previous}\n{digests}"
        expected = sign.signature(self._key, text.encode("latin-1"))
        if not sign.same(expected, claimed):
            raise self._signed.mismatch(text, claimed)
        self._previous = expected


class ChunkedSource:
    """Takes the framing off. ``read(size)`` gives data of one chunk at most, b'' at the end."""

    def __init__(self, stream: Any, decoded_length: int, signer: ChunkSigner | None, trailers: tuple[str, ...]):
        self._stream, self._signer = stream, signer
        self._announced = trailers
        self._expected, self._received = decoded_length, 0
        self._left, self._number, self._is_first, self._ended = 0, 0, True, False
        self._size = 0
        self._claimed, self._digest = "", hashlib.sha256()
        self.trailers: dict[str, str] = {}

    def read(self, size: int = 65536) -> bytes:
        if self._ended:
            return b""
        if not self._left:
            self._begin()
            if not self._left:
                self._finish()
                return b""
        data: bytes = self._stream.read(min(size if size > 0 else 65536, self._left))
        if not data:
            raise S3Error("IncompleteBody")
        self._left -= len(data)
        self._received += len(data)
        if self._signer is not None:
            self._digest.update(data)
        if not self._left:
            self._end_of_chunk()
        return data

    def _begin(self) -> None:
        line = self._line()
        size, _, rest = line.partition(b";")
        if not _SIZE.match(size.strip()):
            raise S3Error("IncompleteBody")
        if self._signer is not None:
            self._claimed = _claimed(rest)
        previous, self._size = self._size, int(size, 16)
        if self._size and not self._is_first and previous < MIN_CHUNK:
            raise S3Error("InvalidChunkSizeError", Chunk=self._number + 1, BadChunkSize=previous)
        self._is_first = False
        self._number += 1
        self._left = self._size
        self._digest = hashlib.sha256()
        if self._received + self._size > self._expected:
            raise wrong_length(self._expected, self._received + self._size)

    def _end_of_chunk(self) -> None:
        if self._stream.read(2) != b"\r\n":
            raise S3Error("IncompleteBody")
        self._check_chunk()

    def _check_chunk(self) -> None:
        if self._signer is not None:
            self._signer.check("PAYLOAD", self._claimed, f"{sign.EMPTY_SHA256}\n{self._digest.hexdigest()}")

    def _finish(self) -> None:
        """After the chunk of size 0: its signature, the trailers, theirs, and the end."""
        self._check_chunk()
        if self._received != self._expected:
            raise wrong_length(self._expected, self._received)
        signature = ""
        for _ in range(MAX_TRAILERS):
            line = self._line(may_be_missing=True)
            if not line:
                break
            name, colon, value = line.partition(b":")
            key = name.decode("latin-1").strip().lower()
            if not colon or not key:
                raise S3Error("MalformedTrailerError")
            if key == "x-amz-trailer-signature":
                signature = value.decode("latin-1").strip()
            elif key not in self._announced:
                raise S3Error("MalformedTrailerError")
            else:
                self.trailers[key] = value.decode("latin-1").strip()
        else:
            raise S3Error("MalformedTrailerError")
        if set(self._announced) != set(self.trailers):
            raise S3Error("IncompleteBody" if line is None else "MalformedTrailerError")
        if self._signer is not None:
            if bool(self._announced) != bool(signature):
                raise S3Error("IncompleteBody")
            if signature:
                lines = "".join(f"{name}:{self.trailers[name]}\n" for name in sorted(self.trailers))
                self._signer.check("TRAILER", signature, hashlib.sha256(lines.encode("latin-1")).hexdigest())
        self._ended = True

    @overload
    def _line(self) -> bytes: ...

    @overload
    def _line(self, may_be_missing: bool) -> bytes | None: ...

    def _line(self, may_be_missing: bool = False) -> bytes | None:
        """The next line, without its end; None where the body ends before it. Raises S3Error."""
        line: bytes = self._stream.readline(MAX_LINE)
        if not line and may_be_missing:
            return None
        if not line.endswith(b"\r\n"):
            raise S3Error("IncompleteBody")
        return line[:-2]


def _claimed(parameters: bytes) -> str:
    """The signature that a chunk's line has behind its size. Raises S3Error where it has none, or something behind it."""
    found = _SIGNATURE.match(parameters)
    if found is None and b"=" in parameters and not parameters.lstrip().startswith(b"chunk-signature"):
        return parameters.decode("latin-1")  # of another parameter: no signature is like it
    if found is None or not found[1]:
        raise S3Error("IncompleteBody")
    return found[1].decode("latin-1")


class ChunkedBody(ProvenBody):
    """The data of a body in chunks; a checksum that comes as a trailer is proven like one in a header."""

    __slots__ = ("_chunked",)

    def __init__(
        self,
        source: ChunkedSource,
        length: int,
        expected: dict[checksums.Algorithm, str | None],
        trailing: tuple[checksums.Algorithm, ...],
    ):
        super().__init__(source, None, None, {**dict.fromkeys(trailing), **expected})
        self.length = length
        self._chunked = source

    def _more(self, size: int) -> bytes:
        """As the base, but the end of the framing is read before the last of the data is handed on."""
        data = super()._more(size)
        if data and self.received == self.length:
            super()._more(1)
        return data

    def _prove(self) -> None:
        for name, value in self._chunked.trailers.items():
            algorithm = checksums.BY_HEADER[name]
            try:
                algorithm.decode(value)
            except (ValueError, binascii.Error):
                self.refuse(S3Error("InvalidRequest", f"Value for {name} trailing header is invalid."))
            self.expected[algorithm] = value
        super()._prove()


def length_of(decoded_length: str | None) -> int:
    """The value of ``x-amz-decoded-content-length``. Raises S3Error."""
    if decoded_length is None or not (decoded_length.isascii() and decoded_length.lstrip("-").isdigit()):
        raise S3Error("MissingContentLength")
    if int(decoded_length) < 0:
        raise S3Error("InvalidArgument", ArgumentName="x-amz-decoded-content-length", ArgumentValue=decoded_length)
    return int(decoded_length)


def names_of(trailer: str | None) -> list[str]:
    """The names in ``x-amz-trailer``, lower case; commas at its end are tolerated, empty ones elsewhere are not left out."""
    text = (trailer or "").strip().rstrip(",")
    return [name.strip().lower() for name in text.split(",")] if text else []


def open_stream(
    stream: Any,
    payload_hash: str,
    decoded_length: str | None,
    trailer: str | None,
    signed: Signed | None,
    expected: dict[checksums.Algorithm, str | None],
) -> ChunkedBody:
    """The body behind ``stream``, framed as ``payload_hash`` says. ``trailer``: ``x-amz-trailer``. Raises S3Error."""
    length = length_of(decoded_length)
    names = tuple(dict.fromkeys(names_of(trailer)))
    if names and not payload_hash.endswith("-TRAILER"):
        raise S3Error("MalformedTrailerError")
    if any(name not in checksums.BY_HEADER for name in names):
        raise S3Error("InvalidRequest", "The value specified in the x-amz-trailer header is not supported")
    signer = None
    if payload_hash in SIGNED:
        if signed is None or signed.scope is None or signed.signing_key is None:
            raise S3Error(
                "NotImplemented", "Signed chunks need a signature of version 4, and a key that is known here."
            )
        signer = ChunkSigner(signed)
    source = ChunkedSource(stream, length, signer, names)
    return ChunkedBody(source, length, expected, tuple(checksums.BY_HEADER[name] for name in names))
