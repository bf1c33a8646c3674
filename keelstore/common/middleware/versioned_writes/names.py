"""Names of versions (``spec: on-disk 8, middleware 21, 22``). Pure.

Object versioning keeps every version of the objects of a container ``c`` in a hidden one::

    container  \\0versions\\0c
    object     \\0<object>\\0<inverted timestamp>      the newest sorts first
    version id <timestamp>                            internal form, as given to clients

The older modes copy what is replaced into a container of the user's choice::

    object     <length of the name, bytes, three hex digits><object>/<timestamp>

Names are text; targets (``container/object``) as they stand in headers are percent-encoded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote_to_bytes

from keelstore.common.names import quoted, reserved_name, split_reserved
from keelstore.common.timestamp import Timestamp

MARKER_TYPE: Final = "application/x-deleted;swift_versions_deleted=1"
NULL: Final = "null"  # the version id of what was written without versioning
HIDDEN: Final = "%00versions%00"  # how the target of a link to a version begins
_PREFIX: Final = reserved_name("versions", "")


def hidden_container(container: str) -> str:
    """The container of the versions of ``container``'s objects."""
    return reserved_name("versions", container)


def hidden_prefix(prefix: str = "") -> str:
    """What the names of hidden containers begin with, of containers whose names begin with ``prefix``."""
    return _PREFIX + prefix


def shown_container(hidden: str) -> str | None:
    """The container that a hidden one belongs to; None for any other name."""
    return hidden[len(_PREFIX):] if hidden.startswith(_PREFIX) and "\x00" not in hidden[len(_PREFIX):] else None


def version_name(obj: str, timestamp: Timestamp) -> str:
    return reserved_name(obj, timestamp.invert().internal)


def split_version_name(name: str) -> tuple[str, Timestamp]:
    """Object and timestamp of a version's name. Raises ValueError."""
    obj, inverted = split_reserved(name, 2)
    return obj, Timestamp(inverted).invert()


@dataclass(frozen=True, slots=True)
class Version:
    """One version of one object."""

    container: str
    obj: str
    timestamp: Timestamp

    @property
    def id(self) -> str:
        return self.timestamp.internal

    @property
    def target(self) -> str:
        """Where it is stored, as a link's target has it."""
        return quoted(f"{hidden_container(self.container)}/{version_name(self.obj, self.timestamp)}")

    @property
    def shown(self) -> str:
        """What a client may ask for instead, percent-encoded."""
        return f"{quoted(f'{self.container}/{self.obj}')}?version-id={self.id}"

    @classmethod
    def of(cls, target: str | None) -> Version | None:
        """What a percent-encoded ``container/object`` names; None when that is no version."""
        if not target or not target.startswith(HIDDEN):
            return None
        hidden, _, name = decoded(target).partition("/")
        container = shown_container(hidden)
        if container is None:
            return None
        try:
            return cls(container, *split_version_name(name))
        except ValueError:
            return None


def decoded(wire: str) -> str:
    """The text of a percent-encoded header value; octets that are not UTF-8 become surrogate escapes."""
    return unquote_to_bytes(wire.encode("latin-1")).decode("utf-8", "surrogateescape")


def parse_version_id(text: str) -> Timestamp | None:
    """The timestamp of a version id; None for ``null``. Raises ValueError for what is neither."""
    return None if text == NULL else Timestamp(text)


# -- the older modes ---------------------------------------------------------------------------------------------------


def archive_prefix(obj: str) -> str:
    """What the names of the archived versions of an object begin with; no other object's begin so."""
    return f"{len(obj.encode('utf-8', 'surrogateescape')):03x}{obj}/"


def archive_name(obj: str, timestamp: Timestamp) -> str:
    return archive_prefix(obj) + timestamp.internal


def is_archive_name(name: str, obj: str) -> bool:
    """Whether ``name`` is that of an archived version of ``obj``."""
    prefix = archive_prefix(obj)
    if not name.startswith(prefix):
        return False
    try:
        Timestamp(name[len(prefix):])
    except ValueError:
        return False
    return True
