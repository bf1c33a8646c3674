"""Header names and values; user, system and transient metadata.

Inside the process a header value is a *wire string*: the octets of the wire decoded as latin-1, as WSGI has it. Where a
value becomes text (metadata in a database or in an extended attribute), :func:`wire_to_text` and :func:`text_to_wire`
convert. Names are Title-Cased on hyphens, ASCII letters only, so that one name has one spelling.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

REBUILD_NOW: Final = "X-Keelstore-Rebuild"  # of a REPLICATE: have your daemons look at this partition at once
READER_CHECKS: Final = "X-Keelstore-Reader-Checks"  # of a GET of a fragment: who asks checks what is made of it
REASON: Final = "X-Backend-Keelstore-Reason"  # of a 507: ROOM where the device is sound, but full; of a 503: BUSY
ROOM: Final = "room"
BUSY: Final = "busy"  # sound, with more to do than it should have waiting
CHECK_FIRST: Final = "X-Keelstore-Check-First"  # of a GET of a fragment: read and check all of it before any is sent
TRUE_VALUES: Final = frozenset({"true", "1", "yes", "on", "t", "y"})


def is_true(value: object) -> bool:
    """The field's truth of a header, parameter or option: one of true 1 yes on t y, in any case."""
    return value is True or (isinstance(value, str) and value.lower() in TRUE_VALUES)


@lru_cache(maxsize=8192)
def title(name: str) -> str:
    """``x-object-meta-COLOUR`` to ``X-Object-Meta-Colour``; only ASCII letters change."""
    return "-".join(
        (part[:1].encode("latin-1").upper() + part[1:].encode("latin-1").lower()).decode("latin-1")
        for part in name.split("-")
    )


@lru_cache(maxsize=8192)
def environ_key(name: str) -> str:
    """``X-Auth-Token`` to ``HTTP_X_AUTH_TOKEN``; Content-Type and Content-Length have no prefix.

    ``X-Amz-Meta-A_b`` becomes ``HTTP_X_AMZ_META_A=5FB``: S3 tells names with ``_`` from those with ``-``.
    """
    key = name.encode("latin-1").upper().decode("latin-1")
    if "_" in key and key.startswith("X-AMZ-META-"):
        key = key.replace("_", "=5F")
    key = key.replace("-", "_")
    return key if key in ("CONTENT_TYPE", "CONTENT_LENGTH") else "HTTP_" + key


@lru_cache(maxsize=8192)
def header_of(key: str) -> str | None:
    """The header a WSGI environ key stands for, Title-Cased, or None."""
    if key.startswith("HTTP_"):
        return title(key[5:].replace("_", "-"))
    if key in ("CONTENT_TYPE", "CONTENT_LENGTH"):
        return title(key.replace("_", "-"))
    return None


def wire_to_text(value: str) -> str:
    """Octets-as-latin-1 to text; octets that are not UTF-8 become surrogate escapes."""
    return value if value.isascii() else value.encode("latin-1").decode("utf-8", "surrogateescape")


def text_to_wire(value: str) -> str:
    """The inverse of :func:`wire_to_text`."""
    return value if value.isascii() else value.encode("utf-8", "surrogateescape").decode("latin-1")


class Headers(dict[str, str]):
    """A dict of wire strings whose keys are Title-Cased header names. Setting None deletes; values become str.

    Lookups accept any case. Iteration gives the Title-Cased names in order of insertion.
    """

    __slots__ = ()

    def __init__(self, source: Mapping[str, Any] | Iterable[tuple[str, Any]] = ()):
        super().__init__()
        if type(source) is Headers:
            super().update(source)
        elif source:
            self.update(source)

    def __getitem__(self, name: str) -> str:
        return super().__getitem__(title(name))

    def __setitem__(self, name: str, value: Any) -> None:
        if value is None:
            super().pop(title(name), None)
        else:
            super().__setitem__(title(name), value if type(value) is str else _to_str(value))

    def __delitem__(self, name: str) -> None:
        super().__delitem__(title(name))

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and super().__contains__(title(name))

    def get(self, name: str, default: Any = None) -> Any:
        return super().get(title(name), default)

    def pop(self, name: str, *default: Any) -> Any:
        return super().pop(title(name), *default)

    def setdefault(self, name: str, default: Any = None) -> Any:
        return super().setdefault(title(name), default if type(default) is str else _to_str(default))

    def update(self, source: Any = (), **kwargs: Any) -> None:  # type: ignore[override]
        if isinstance(source, Headers):
            super().update(source)
        else:
            for name, value in source.items() if isinstance(source, Mapping) else source:
                self[name] = value
        for name, value in kwargs.items():
            self[name.replace("_", "-")] = value

    def copy(self) -> Headers:
        return Headers(self)


def _to_str(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


# -- metadata ----------------------------------------------------------------------------------------------------------

LEVELS: Final = ("account", "container", "object")
TRANSIENT_SYSMETA_PREFIX: Final = "x-object-transient-sysmeta-"


@lru_cache(maxsize=8192)
def is_user_meta(level: str, name: str) -> bool:
    """``X-<Level>-Meta-*`` with something after the prefix."""
    prefix = f"x-{level}-meta-"
    return len(name) > len(prefix) and name.lower().startswith(prefix)


@lru_cache(maxsize=8192)
def is_sysmeta(level: str, name: str) -> bool:
    prefix = f"x-{level}-sysmeta-"
    return len(name) > len(prefix) and name.lower().startswith(prefix)


@lru_cache(maxsize=8192)
def is_transient_sysmeta(name: str) -> bool:
    return len(name) > len(TRANSIENT_SYSMETA_PREFIX) and name.lower().startswith(TRANSIENT_SYSMETA_PREFIX)


def is_sys_or_user_meta(level: str, name: str) -> bool:
    return is_user_meta(level, name) or is_sysmeta(level, name)
