"""Reading a tar archive as it comes in: its regular files, each with what it says of its type and metadata.

An archive comes from anybody. Only headers of a sane size are taken into memory, links, devices and sparse files are left
out, and names are names: ``..`` in one leads nowhere (``security: R18``).
"""

from __future__ import annotations

import bz2  # noqa: F401 - tarfile needs it for tar.bz2; better missed at the start than when a client asks
import re
import tarfile
import zlib
from collections.abc import Iterator
from typing import Any, Final

from keelstore.common.errors import ClientDisconnect, KeelstoreError
from keelstore.common.headers import text_to_wire
from keelstore.common.httpinput import FileLike

_MODES: Final = {"tar": "r|", "tar.gz": "r|gz", "tar.bz2": "r|bz2"}
_EXTENDED: Final = frozenset({tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME,
                              tarfile.GNUTYPE_LONGLINK})
MAX_EXTENDED: Final = 1 << 20  # bytes of an extended header
_ATTRIBUTE: Final = re.compile(r"(?:SCHILY|LIBARCHIVE)\.xattr\.user\.(?:(mime_type)|meta\.([A-Za-z0-9_.-]{1,256}))\Z")
_UNPRINTABLE: Final = re.compile(r"[\x00-\x1f\x7f]")


class BadArchive(KeelstoreError):
    """What was sent is no archive, or breaks off."""


def mode_of(value: str) -> str | None:
    """tarfile's mode for the value of ``extract-archive``; None for a format that is not taken."""
    return _MODES.get(value.lower().strip("."))


class _Header(tarfile.TarInfo):
    """A header that is not followed into an extended one of any size."""

    def _proc_member(self, tar: tarfile.TarFile) -> Any:
        if self.type in _EXTENDED and self.size > MAX_EXTENDED:
            raise tarfile.ReadError("an extended header is too long")
        return super()._proc_member(tar)  # type: ignore[misc]


class Entry:
    """A file of an archive. ``name`` is text without leading ``./`` and ``/``; ``input`` its content, to be read at once."""

    def __init__(self, archive: tarfile.TarFile, member: tarfile.TarInfo):
        name = member.name
        while name.startswith("./"):
            name = name[2:].lstrip("/")
        self.name = name.lstrip("/")
        self.size = member.size
        self.headers = _headers(member.pax_headers)
        self.input = MemberInput(archive.extractfile(member), member.size)

    @property
    def wire_name(self) -> str:
        return self.name.encode("utf-8", "surrogateescape").decode("latin-1")

    @property
    def is_valid(self) -> bool:
        """Whether the name is UTF-8 without NUL."""
        try:
            self.name.encode("utf-8")
        except UnicodeEncodeError:
            return False
        return "\x00" not in self.name

    @property
    def is_broken(self) -> bool:
        """Whether the archive ended within this file while it was being stored."""
        return self.input.is_broken


class MemberInput(FileLike):
    """The content of a file as the body of a request."""

    __slots__ = ("_left", "_source", "is_broken")

    def __init__(self, source: Any, size: int):
        super().__init__()
        self._source, self._left = source, size
        self.is_broken = False

    def _more(self, size: int) -> bytes:
        if not self._left:
            return b""
        try:
            data: bytes = self._source.read(min(size, self._left))
        except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
            self.is_broken = True
            raise ClientDisconnect("the archive broke off") from error
        if not data:
            self.is_broken = True
            raise ClientDisconnect("the archive ended early")
        self._left -= len(data)
        return data


def _headers(attributes: Any) -> dict[str, str]:
    """The headers that a file's extended attributes ask for."""
    found = {}
    for name, value in attributes.items():
        match = _ATTRIBUTE.match(name)
        if match is None or _UNPRINTABLE.search(value):
            continue
        found["Content-Type" if match[1] else f"X-Object-Meta-{match[2]}"] = text_to_wire(value)
    return found


def entries(body: Any, mode: str) -> Iterator[Entry]:
    """The regular files of the archive in ``body``, one after the other. Raises BadArchive, and what reading raises."""
    source = _Source(body)
    try:
        with tarfile.open(fileobj=source, mode=mode, tarinfo=_Header, encoding="utf-8",  # type: ignore[call-overload]
                          errors="surrogateescape") as archive:
            while True:
                member = archive.next()
                if member is None:
                    return
                archive.members = []  # else it would remember every file of a long archive
                if member.isreg() and not member.issparse():
                    yield Entry(archive, member)
    except (tarfile.TarError, EOFError, zlib.error, OverflowError, ValueError, TypeError) as error:  # ord(b"") of a cut head
        if source.failure is not None:
            raise source.failure from None
        raise BadArchive(" ".join(str(error).split())[:200]) from None
    except OSError as error:  # how bz2 says that the data is none
        if source.failure is not None:
            raise source.failure from None
        raise BadArchive(str(error)[:200]) from None


class _Source:
    """The client's body for tarfile, which takes errors of its own making for the end of an archive."""

    def __init__(self, body: Any):
        self._body = body
        self.failure: Exception | None = None

    def read(self, size: int) -> bytes:
        try:
            data: bytes = self._body.read(size)
            return data
        except Exception as error:
            self.failure = error
            raise


