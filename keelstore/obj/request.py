"""What the verbs of the object server take from a request: checks, and header values to ours. No disk, no clock."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache

from keelstore.common.errors import BadRequest
from keelstore.common.headers import (
    Headers,
    environ_key,
    header_of,
    is_sysmeta,
    is_transient_sysmeta,
    is_user_meta,
    title,
)
from keelstore.common.http import Environ, Request
from keelstore.common.timestamp import Timestamp, normalize_delete_at
from keelstore.obj.fileset import Preference
from keelstore.obj.metadata import MARKER

_NEVER_ALLOWED = frozenset({"content-length", "deleted", "etag", "name", "x-timestamp", "content-type", MARKER.lower()})
OVERRIDE_PREFIXES = ("X-Backend-Container-Update-Override-", "X-Object-Sysmeta-Container-Update-Override-")
_OVERRIDES = "_CONTAINER_UPDATE_OVERRIDE_"  # of the keys of both
MAX_PREFERENCES = 16384  # characters of X-Backend-Fragment-Preferences


class AllowedHeaders:
    """The headers that are kept with an object beside its metadata: the option, and what a replicator names."""

    def __init__(self, names: Iterable[str]):
        self.names = frozenset(title(name.strip()) for name in names) - {title(name) for name in _NEVER_ALLOWED}
        self._keys = tuple((environ_key(name), name) for name in sorted(self.names))

    def of(self, environ: Environ) -> dict[str, str]:
        """Those that the request carries."""
        found = {name: environ[key] for key, name in self._keys if key in environ}
        listed = environ.get("HTTP_X_BACKEND_REPLICATION_HEADERS")
        if listed:
            for name in listed.split():
                key = environ_key(name)
                if key in environ and name.lower() not in _NEVER_ALLOWED:
                    found[title(name)] = environ[key]
        return found


@lru_cache(maxsize=8192)
def _kept_by_put(key: str) -> str | None:
    """The header that an environ key stands for, if a PUT keeps it in any case."""
    name = header_of(key)
    if name and (is_user_meta("object", name) or is_sysmeta("object", name) or is_transient_sysmeta(name)):
        return name
    return None


@lru_cache(maxsize=8192)
def _kept_by_post(key: str) -> str | None:
    name = header_of(key)
    return name if name and (is_user_meta("object", name) or is_transient_sysmeta(name)) else None


def put_metadata(environ: Environ) -> dict[str, str]:
    """User, system and transient metadata of a PUT."""
    return {
        name: value for key, value in environ.items() if key.startswith("HTTP_X_OBJECT_") and (name := _kept_by_put(key))
    }


def post_metadata(environ: Environ) -> dict[str, str]:
    """User and transient metadata of a POST."""
    return {
        name: value for key, value in environ.items() if key.startswith("HTTP_X_OBJECT_") and (name := _kept_by_post(key))
    }


def footer_metadata(footer: Headers) -> dict[str, str]:
    """What a footer adds to the metadata of a PUT."""
    return {
        name: value for name, value in footer.items()
        if is_user_meta("object", name) or is_sysmeta("object", name) or is_transient_sysmeta(name)
    }  # fmt: skip


def update_overrides(environ: Environ, footer: Headers | None) -> dict[str, str]:
    """What the container update is to say in place of the object's own values, as its header names.

    System metadata wins over the X-Backend form; in each, the footer wins over the request's headers.
    """
    found: dict[str, str] = {}
    keys = [key for key in environ if _OVERRIDES in key]
    if not keys and not footer:
        return found
    for prefix in OVERRIDE_PREFIXES:
        start = environ_key(prefix)
        for key in keys:
            if key.startswith(start) and len(key) > len(start):
                found[title("X-" + key[len(start) :].replace("_", "-"))] = environ[key]
        for name, value in footer.items() if footer else ():
            if name.startswith(prefix) and len(name) > len(prefix):
                found[title("X-" + name[len(prefix) :])] = value
    return found


def stored_overrides(metadata: Mapping[str, str]) -> dict[str, str]:
    """As :func:`update_overrides`, from the system metadata of a stored object."""
    prefix = OVERRIDE_PREFIXES[1]
    return {title("X-" + name[len(prefix) :]): value for name, value in metadata.items() if name.startswith(prefix)}


def check_delete_at(request: Request, timestamp: Timestamp) -> None:
    """Turn X-Delete-After into X-Delete-At, and that into its stored form. Raises BadRequest.

    For a PUT or POST; a time that is not after the request's is refused, but not from a replicator.
    """
    environ = request.environ
    after, delete_at = environ.get("HTTP_X_DELETE_AFTER"), environ.get("HTTP_X_DELETE_AT")
    if after is None and delete_at is None:
        return
    if after is not None:
        value = _whole_number(after, "X-Delete-After") + int(timestamp)
        header = "X-Delete-After"
    else:
        assert delete_at is not None
        value = _whole_number(delete_at, "X-Delete-At")
        header = "X-Delete-At"
    if value <= float(timestamp) and not request.is_true_header("X-Backend-Replication"):
        raise BadRequest(f"{header} in past")
    environ["HTTP_X_DELETE_AT"] = normalize_delete_at(value)


def _whole_number(text: str, header: str) -> int:
    digits = text.strip()
    if not (digits.isascii() and digits.removeprefix("-").removeprefix("+").isdigit()) or len(digits) > 40:
        raise BadRequest(f"Non-integer {header}")
    return int(digits)


def content_type_timestamp(environ: Environ, timestamp: Timestamp) -> Timestamp | None:
    """When the request's Content-Type was set; None when it has none. Raises BadRequest."""
    if not environ.get("CONTENT_TYPE"):
        return None
    text = environ.get("HTTP_CONTENT_TYPE_TIMESTAMP")
    if text is None:
        return timestamp
    try:
        return Timestamp(text)
    except ValueError:
        raise BadRequest("Invalid Content-Type-Timestamp header") from None


def next_part_power(environ: Environ) -> int | None:
    """X-Backend-Next-Part-Power; None when absent. Raises BadRequest."""
    text = environ.get("HTTP_X_BACKEND_NEXT_PART_POWER")
    if not text:
        return None
    if not (text.isascii() and text.isdigit()) or not 0 < int(text[:4]) <= 32:
        raise BadRequest("Invalid X-Backend-Next-Part-Power header")
    return int(text)


def preferences(environ: Environ) -> list[Preference] | None:
    """X-Backend-Fragment-Preferences. Raises BadRequest."""
    text = environ.get("HTTP_X_BACKEND_FRAGMENT_PREFERENCES")
    if not text:
        return None
    try:
        if len(text) > MAX_PREFERENCES:
            raise ValueError
        return [
            Preference(Timestamp(str(wish["timestamp"])), frozenset(int(index) for index in wish.get("exclude", ())))
            for wish in json.loads(text)
        ]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise BadRequest("Invalid X-Backend-Fragment-Preferences header") from None


def swift_bytes_of(content_type: str) -> tuple[str, str | None]:
    """A content type without its ``swift_bytes`` parameter, and that parameter's value."""
    if "swift_bytes" not in content_type:
        return content_type, None
    kept, value = [], None
    for part in content_type.split(";"):
        name, equals, text = part.strip().partition("=")
        if equals and name.strip().lower() == "swift_bytes":
            value = text.strip()
        else:
            kept.append(part)
    return ";".join(kept), value


def check_partition(partition: str) -> None:
    """Raises BadRequest for what is no partition number."""
    if not (partition.isascii() and partition.isdigit()) or len(partition) > 10:
        raise BadRequest(f"Invalid partition: {partition[:40].encode('unicode_escape').decode()}")
