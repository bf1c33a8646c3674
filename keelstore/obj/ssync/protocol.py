"""Pure: the lines of SSYNC, and which of what is offered a receiver wants (``doc/formats/ssync.md``).

Lines end with CRLF, but for error lines, which end with LF. An *offer* says what the sender holds of one object::

    <hash> <ts_data>[ m:<hex>[__<hexoff>][,t:<hex>[__<hexoff>]][,durable:False]]

``m`` and ``t`` are the times of metadata and content type, as signed hex differences to the data's time (its offset left
out) in units of 10 microseconds, with an offset of their own. The answer to it is ``<hash> <d|m|dm>`` where the receiver
wants data, metadata or both; without flags it means d.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from keelstore.common.errors import KeelstoreError
from keelstore.common.timestamp import Timestamp
from keelstore.obj.fileset import FileSet, Preference
from keelstore.obj.layout import is_hash

MISSING_CHECK: Final = b":MISSING_CHECK:"
UPDATES: Final = b":UPDATES:"
START: Final = b" START"
END: Final = b" END"
ERROR: Final = b":ERROR:"
CRLF: Final = b"\r\n"

# of a sender in the receiver's own process, whose ETags are those of the very bytes that it hands over: they have been hashed
HASHED: Final = "X-Keelstore-Hashed"

MAX_LINE: Final = 65536  # of a peer whose network_chunk_size we do not know
MAX_HEADERS: Final = 512  # lines of one sub-request
METHODS: Final = ("PUT", "POST", "DELETE")
_DELTA = re.compile(r"([+-]?[0-9a-fA-F]{1,16})(?:__([0-9a-fA-F]{1,16}))?")
_NOT_REPLICATED = frozenset({"etag", "x-backend-no-commit"})


class SsyncError(KeelstoreError):
    """What the peer said is not SSYNC, or is a refusal. ``status``: that of the error line, 0 when there is none."""

    def __init__(self, text: str, status: int = 0):
        super().__init__(text)
        self.status = status


# -- offers ------------------------------------------------------------------------------------------------------------


class Offer(NamedTuple):
    """What a sender holds of one object. ``data`` is the time of its data or its tombstone."""

    name_hash: str
    data: Timestamp
    meta: Timestamp
    ctype: Timestamp
    is_durable: bool = True


def offer_of(name_hash: str, found: FileSet) -> Offer | None:
    """The offer for what a hash directory holds; None when that is nothing that can be sent."""
    stamp = found.timestamp
    if stamp is None:
        return None
    if found.data is None:
        return Offer(name_hash, stamp, stamp, stamp)
    meta = found.meta.timestamp if found.meta else stamp
    ctype = found.ctype.ctype_timestamp if found.ctype else None
    return Offer(name_hash, stamp, meta, ctype or stamp, found.durable == stamp)


def encode_offer(offer: Offer) -> bytes:
    """Without its line end."""
    line = f"{offer.name_hash} {offer.data.internal}"
    extras = []
    if offer.meta != offer.data:
        extras.append(f"m:{_encode_delta(offer.meta, offer.data)}")
        if offer.ctype != offer.data:
            extras.append(f"t:{_encode_delta(offer.ctype, offer.data)}")
    if not offer.is_durable:
        extras.append("durable:False")
    return f"{line} {','.join(extras)}".encode("ascii") if extras else line.encode("ascii")


def _encode_delta(stamp: Timestamp, base: Timestamp) -> str:
    offset = f"__{stamp.offset:x}" if stamp.offset else ""
    return f"{stamp.raw - base.raw:x}{offset}"


def decode_offer(line: bytes) -> Offer:
    """Raises SsyncError. Parts that are not known are left alone, as later versions may add some."""
    try:
        parts = line.decode("ascii").split()
        name_hash, data = unquote(parts[0]), Timestamp(unquote(parts[1]))
        if not is_hash(name_hash):
            raise ValueError
        meta, ctype, is_durable = data, None, True
        for part in parts[2].split(",") if len(parts) > 2 else ():
            key, _, value = part.partition(":")
            if key == "m":
                meta = _decode_delta(value, data)
            elif key == "t":
                ctype = _decode_delta(value, data)
            elif key == "durable":
                is_durable = value.lower() not in ("false", "no", "off", "0", "f", "n")
    except (ValueError, IndexError, UnicodeDecodeError):
        raise SsyncError(f"not an offer: {line[:120]!r}") from None
    return Offer(name_hash, data, meta, data if ctype is None else ctype, is_durable)


def _decode_delta(text: str, base: Timestamp) -> Timestamp:
    parts = _DELTA.fullmatch(text)
    if parts is None:
        raise ValueError
    return Timestamp.from_raw(base.raw + int(parts[1], 16), int(parts[2], 16) if parts[2] else 0)


class Part(Enum):
    """What of a partition is offered in one session."""

    OBJECTS = "objects"  # whole, with tombstones
    FRAGMENTS = "fragments"  # one fragment of each durable object, with tombstones
    DURABLE = "durable fragments"  # one fragment of each durable object
    WAITING = "waiting fragments"  # one fragment of each object that is not known to be durable
    TOMBSTONES = "tombstones"


def select(found: FileSet, part: Part, fragment: int | None = None) -> FileSet | None:
    """The part of a hash directory that is offered, as a file set of its own; None when there is none of it.

    Never a fragment of an object other than the durable one, but for those that wait, of which it is the newest.
    """
    if part is Part.OBJECTS:
        return found if found.timestamp is not None else None
    if found.tombstone is not None and found.data is None and part in (Part.FRAGMENTS, Part.TOMBSTONES):
        return found
    if part is Part.WAITING:
        for stamp, members in found.fragments.items():
            mine = [file for file in members if file.fragment == fragment]
            if mine and stamp != found.durable:
                return FileSet(data=mine[-1], fragments=found.fragments, durable=found.durable)
        return None
    if part is Part.TOMBSTONES or found.durable is None:
        return None
    mine = [file for file in found.fragments.get(found.durable, ()) if file.fragment == fragment]
    return found._replace(data=mine[-1], tombstone=None) if mine else None


# -- wants -------------------------------------------------------------------------------------------------------------


class Want(NamedTuple):
    data: bool = False
    meta: bool = False

    def __bool__(self) -> bool:
        return self.data or self.meta


NOTHING: Final = Want()
ALL: Final = Want(True, True)


def encode_want(name_hash: str, want: Want) -> bytes:
    """Without its line end."""
    return f"{name_hash} {'d' * want.data}{'m' * want.meta}".encode("ascii")


def decode_want(line: bytes) -> tuple[str, Want]:
    """Raises SsyncError."""
    try:
        parts = line.decode("ascii").split()
        name_hash = unquote(parts[0])
    except (IndexError, UnicodeDecodeError):
        raise SsyncError(f"not a wish: {line[:120]!r}") from None
    flags = parts[1] if len(parts) > 1 else "d"
    want = Want("d" in flags, "m" in flags)
    return name_hash, want or Want(True)


def wanted(offer: Offer, held: FileSet) -> Want:
    """What a receiver that holds ``held`` wants of an offer; whole objects.

    Data that is newer than its own data and tombstone (and then metadata with it, if newer than its own); metadata, or a
    content type, that is newer than what belongs to its data. Metadata for what it knows to be deleted it does not want:
    there would be nothing to put it on. Nothing as old as what it has: both would ask for ever, each for the other's.
    """
    own = held.timestamp
    if own is None:
        return ALL
    data = offer.data > own
    if held.data is None:
        return Want(data, data and offer.meta > own)
    meta = held.meta.timestamp if held.meta else own
    ctype = held.ctype.ctype_timestamp if held.ctype else None
    newer_type = offer.ctype > (ctype or own) and offer.ctype > offer.data
    return Want(data, offer.meta > meta or newer_type)


def holds_fragment(offer: Offer, held: FileSet, index: int | None) -> tuple[bool, bool]:
    """Whether ``held`` has the fragment of ``index`` of the offered time, and whether the offer tells that it is durable,
    which is not known here yet: of this fragment, for others of the same time may have been told before.
    """
    mine = [file for file in held.fragments.get(offer.data, ()) if file.fragment == index]
    if not mine:
        return False, False
    return True, offer.is_durable and held.durable != offer.data


def only_fragment(offer: Offer, held: FileSet, index: int) -> list[Preference]:
    """The wish by which a look finds this fragment of the offered time, durable or not."""
    others = frozenset(file.fragment for file in held.fragments.get(offer.data, ()) if file.fragment is not None)
    return [Preference(offer.data, others - {index})]


# -- sub-requests ------------------------------------------------------------------------------------------------------


def encode_head(method: str, path: str, headers: Mapping[str, str]) -> bytes:
    """The head of a sub-request, blank line included. ``path`` is text, ``headers`` wire strings.

    Raises ValueError for a header that would end its line: what was stored by other means than HTTP could.
    """
    lines = [f"{method} {quote(path.encode('utf-8', 'surrogateescape'))}"]
    for name in sorted(headers):
        line = f"{name}: {headers[name]}"
        if "\r" in line or "\n" in line or ":" in name:
            raise ValueError(f"header {name[:40]!r} cannot be sent")
        lines.append(line)
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def decode_request(line: bytes) -> tuple[str, str]:
    """Method and path (text) of the first line of a sub-request. Raises SsyncError."""
    method, blank, path = line.rstrip(b"\r\n").decode("latin-1").partition(" ")
    if not blank or method not in METHODS:
        raise SsyncError(f"Invalid subrequest method {method[:40]}")
    if not path.startswith("/") or path.count("/") < 3 or not path.isascii():
        raise SsyncError(f"invalid path of a sub-request: {path[:120]!r}")
    return method, unquote(path, "utf-8", "surrogateescape")


def decode_header(line: bytes) -> tuple[str, str]:
    """Name and wire string. Raises SsyncError."""
    octets, colon, value = line.rstrip(b"\r\n").partition(b":")
    name = octets.strip().lower()  # of octets: only ASCII letters have a case, and only ASCII is blank
    if not colon or not name:
        raise SsyncError(f"not a header: {line[:120]!r}")
    return name.decode("latin-1"), value.strip(b" \t").decode("latin-1")


def replicated_headers(names: Iterable[str]) -> str:
    """X-Backend-Replication-Headers of a sub-request: what the object is to keep, whatever the server's own list."""
    return " ".join(name for name in names if name.lower() not in _NOT_REPLICATED)


# -- errors ------------------------------------------------------------------------------------------------------------


def encode_error(status: int, text: str | bytes) -> bytes:
    """An error line, its end included."""
    return f":ERROR: {status} {text!r}\n".encode("utf-8", "backslashreplace")


def decode_error(line: bytes) -> SsyncError:
    text = line[len(ERROR) :].strip().decode("utf-8", "replace")
    status, _, text = text.partition(" ")
    return SsyncError(f"the peer says {status} {text[:300]}", int(status) if status.isdecimal() and len(status) < 5 else 0)


def too_many(failures: int, successes: int, threshold: int, ratio: float) -> bool:
    """Whether so many sub-requests failed that going on is of no use."""
    return failures >= threshold and (not successes or failures / successes > ratio)
