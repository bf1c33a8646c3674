"""Configuration as frozen dataclasses: each option is read, checked and documented in one place.

    @dataclass(frozen=True)
    class ObjectServerOptions:
        '''Options of ``[app:object-server]``.'''
        devices: str = option("/srv/node", "Directory that holds the device mount points.")
        node_timeout: float = option(3.0, "Seconds to wait for another node.", check=positive)

    options = parse(ObjectServerOptions, {**global_conf, **local_conf})

Types that a field may have: str, int, float, bool, ``tuple[str, ...]`` (comma separated), and ``T | None`` of these
(empty, ``auto`` or ``none`` mean None). A bad value raises ConfigError; an unknown option of the section is a warning with
the nearest known name, and so is one that has no effect here (``unused``).
"""

from __future__ import annotations

import dataclasses
import difflib
import logging
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from keelstore.common.errors import ConfigError
from keelstore.common.headers import TRUE_VALUES

log = logging.getLogger("keelstore.config")
T = TypeVar("T")
Check = Callable[[Any], str | None]  # what was expected, or None if the value is fine

FALSE_VALUES = frozenset({"false", "0", "no", "off", "f", "n", ""})


def option(
    default: Any, help: str, *, check: Check | None = None, names: tuple[str, ...] = (), separator: str = ","
) -> Any:
    """A field that is an option. ``names``: the option's name in the file when it is no identifier, and aliases."""
    return dataclasses.field(
        default=default, metadata={"help": help, "check": check, "names": names, "separator": separator}
    )


def unused(default: Any, why: str, *, check: Check | None = None) -> Any:
    """An option that the field has and nothing of ours needs: a bad value stops the start as ever, one that is not the
    default is told of. ``why``: what is so instead.
    """
    found: dataclasses.Field[Any] = option(default, f"Accepted, without effect: {why}", check=check)
    return dataclasses.field(default=default, metadata={**found.metadata, "unused": why})


# -- checks ------------------------------------------------------------------------------------------------------------


def positive(value: Any) -> str | None:
    return None if value > 0 else "a number above 0"


def not_negative(value: Any) -> str | None:
    return None if value >= 0 else "a number of 0 or more"


def port_number(value: Any) -> str | None:
    return None if 1 <= value <= 65535 else "a port, 1 to 65535"


def percent(value: Any) -> str | None:
    return None if 0 <= value <= 100 else "a percentage, 0 to 100"


_COUNT = re.compile(r"\A\s*([0-9]+)\s*(?:\*\s*replicas\s*)?\Z")


def count_of_nodes(text: str) -> str | None:
    found = _COUNT.match(text)
    return None if found and int(found[1]) > 0 else "a number, or such as 2 * replicas"


def node_count(text: str, replicas: int) -> int:
    """What ``3`` or ``2 * replicas`` means for a ring of so many replicas."""
    found = _COUNT.match(text)
    assert found, text  # checked when parsed
    return int(found[1]) * (replicas if "*" in text else 1)


def one_of(*allowed: str) -> Check:
    def check(value: Any) -> str | None:
        return None if value in allowed else "one of " + ", ".join(allowed)

    return check


# -- parsing -----------------------------------------------------------------------------------------------------------


def parse_bool(text: str) -> bool:
    """As the field has it: true 1 yes on t y in any case are true, all else is false."""
    return text.strip().lower() in TRUE_VALUES


def _one(kind: Any, text: str, separator: str) -> Any:
    if kind is bool:
        lowered = text.strip().lower()
        if lowered in TRUE_VALUES or lowered in FALSE_VALUES:
            return lowered in TRUE_VALUES
        raise ValueError("true or false")
    if kind is int:
        try:
            return int(text)
        except ValueError:
            raise ValueError("a whole number") from None
    if kind is float:
        try:
            return float(text)
        except ValueError:
            raise ValueError("a number") from None
    if typing.get_origin(kind) is tuple:
        parts = text.split(separator) if separator.strip() else text.split()
        return tuple(part.strip() for part in parts if part.strip())
    return text


@cache
def _fields(cls: type) -> dict[str, tuple[dataclasses.Field[Any], Any, bool]]:
    """Option name in the file to (field, type, may be None)."""
    hints = typing.get_type_hints(cls)
    found: dict[str, tuple[dataclasses.Field[Any], Any, bool]] = {}
    for field in dataclasses.fields(cls):
        kind, optional = hints[field.name], False
        if typing.get_origin(kind) in (typing.Union, types.UnionType):
            members = [member for member in typing.get_args(kind) if member is not type(None)]
            kind, optional = members[0], True
        for name in field.metadata.get("names") or (field.name,):
            found[name] = (field, kind, optional)
    return found


def parse(
    cls: type[T],
    conf: Mapping[str, str],
    *,
    section: str = "",
    file: str = "",
    known: Iterable[str] = (),
    local: Iterable[str] | None = None,
) -> T:
    """The options of ``conf`` as a ``cls``. Raises ConfigError naming file, section, option, value and expectation.

    ``local``: the names that the section itself sets; those that neither ``cls`` nor ``known`` (a trailing ``*`` stands
    for any ending) has are warned of. Without it nothing is warned of: DEFAULT options belong to many readers.
    """
    file = file or str(conf.get("__file__", ""))
    fields = _fields(typing.cast(typing.Hashable, cls))
    values: dict[str, Any] = {}
    local = None if local is None else tuple(local)
    for name, (field, kind, optional) in fields.items():
        if name not in conf or field.name in values:
            continue
        text = str(conf[name]).strip()
        if optional and text.lower() in ("", "auto", "none"):
            values[field.name] = None
            continue
        try:
            value = _one(kind, text, field.metadata.get("separator", ","))
        except ValueError as error:
            raise ConfigError(f"expected {error}", file=file, section=section, option=name, value=text) from None
        check = field.metadata.get("check")
        expected = check(value) if check else None
        if expected:
            raise ConfigError(f"expected {expected}", file=file, section=section, option=name, value=text)
        values[field.name] = value
        if "unused" in field.metadata and value != field.default and (local is None or name in local):
            _tell_unused(file, section, name, field.metadata["unused"])
    if local is not None:
        allowed = tuple(known)
        for name in local:
            if name in fields or name.startswith("__") or name == "here":
                continue
            if any(name == k or (k.endswith("*") and name.startswith(k[:-1])) for k in allowed):
                continue
            close = difflib.get_close_matches(name, [*fields, *allowed], n=1)
            log.warning("%s [%s]: unknown option %s%s", file or "configuration", section, name,
                        f" (did you mean {close[0]}?)" if close else "")
    return cls(**values)


@cache
def _tell_unused(file: str, section: str, name: str, why: str) -> None:
    """Once in a process, however often a file is parsed."""
    log.warning("%s [%s]: option %s has no effect: %s", file or "configuration", section, name, why)


# -- documentation -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OptionDoc:
    """What a sample file says of one option. ``default`` is the text that the file would hold."""

    name: str
    default: str
    help: str


def document(cls: type) -> list[OptionDoc]:
    """The options of ``cls`` in order, for samples and the option reference."""
    docs = []
    for field in dataclasses.fields(cls):
        if "help" not in field.metadata:
            continue
        default = field.default
        if default is None:
            text = "auto" if "auto" in field.metadata["help"] else ""
        elif isinstance(default, bool):
            text = "true" if default else "false"
        elif isinstance(default, tuple):
            text = (", " if field.metadata.get("separator", ",").strip() else " ").join(default)
        else:
            text = f"{default:.12g}" if isinstance(default, float) else str(default)
        docs.append(OptionDoc((field.metadata["names"] or (field.name,))[0], text, field.metadata["help"]))
    return docs
