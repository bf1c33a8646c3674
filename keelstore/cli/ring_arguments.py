"""The arguments of the ring tools: values as positionals, or the same as options. Pure.

Which form is meant is told by whether any option that names a field is given; the two may not be mixed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from keelstore.common.ring.devices import (
    DEFAULT_REGION,
    RingDevice,
    checked_device_name,
    normal_address,
    parse_add_value,
    parse_change_value,
    parse_port,
    parse_search_value,
)


class UsageError(Exception):
    """Arguments that do not fit the command; its usage is to be shown."""


_FIELDS: tuple[tuple[str, str, str, Callable[[str], Any]], ...] = (
    ("-u", "--id", "id", int), ("-r", "--region", "region", int), ("-z", "--zone", "zone", int),
    ("-i", "--ip", "ip", normal_address), ("-p", "--port", "port", parse_port),
    ("-j", "--replication-ip", "replication_ip", normal_address),
    ("-q", "--replication-port", "replication_port", parse_port), ("-d", "--device", "device", str),
    ("-w", "--weight", "weight", float), ("-m", "--meta", "meta", str),
)
_CHANGES: tuple[tuple[str, str, str, Callable[[str], Any]], ...] = (
    ("-I", "--change-ip", "ip", normal_address), ("-P", "--change-port", "port", parse_port),
    ("-J", "--change-replication-ip", "replication_ip", normal_address),
    ("-Q", "--change-replication-port", "replication_port", parse_port),
    ("-D", "--change-device", "device", checked_device_name), ("-M", "--change-meta", "meta", str),
)


class Parser(argparse.ArgumentParser):
    """An argument parser that raises in place of leaving the process."""

    def __init__(self) -> None:
        super().__init__(add_help=False, allow_abbrev=True, exit_on_error=False)

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)

    def read(self, args: Sequence[str]) -> argparse.Namespace:
        """The options, and all else as ``values``, in any order. Raises UsageError."""
        self.add_argument("values", nargs="*")
        try:
            return self.parse_intermixed_args(list(args))
        except argparse.ArgumentError as error:
            raise UsageError(str(error)) from None


@dataclass(frozen=True)
class DeviceArguments:
    """``fields`` and ``changes`` given as options, or ``values`` as positionals."""

    values: tuple[str, ...]
    fields: Mapping[str, Any]
    changes: Mapping[str, Any]
    is_sure: bool

    @property
    def is_option_form(self) -> bool:
        return bool(self.fields or self.changes)


def device_arguments(args: Sequence[str], *, with_changes: bool = False) -> DeviceArguments:
    """Read the arguments of a command about devices. Raises UsageError, ValueError."""
    parser = Parser()
    parser.add_argument("-y", "--yes", action="store_true")
    for short, long, name, _ in _FIELDS:
        parser.add_argument(short, long, dest=f"field_{name}")
    for short, long, name, _ in _CHANGES if with_changes else ():
        parser.add_argument(short, long, dest=f"change_{name}")
    found = parser.read(args)
    fields = _converted(_FIELDS, {name: getattr(found, f"field_{name}") for *_, name, _ in _FIELDS})
    changes = _converted(_CHANGES, {name: getattr(found, f"change_{name}") for *_, name, _ in _CHANGES}) \
        if with_changes else {}
    return DeviceArguments(tuple(found.values), fields, changes, found.yes)


def _converted(table: Iterable[tuple[str, str, str, Callable[[str], Any]]],
               given: Mapping[str, str | None]) -> dict[str, Any]:
    result = {}
    for _, long, name, kind in table:
        text = given[name]
        if text is not None:
            try:
                result[name] = kind(text)
            except ValueError as error:
                raise ValueError(f"Invalid value for {long}: {error}") from None
    return result


def searches(arguments: DeviceArguments) -> list[dict[str, Any]]:
    """The conditions of each search. Raises UsageError when there are none, or both forms; ValueError."""
    if arguments.is_option_form:
        if arguments.values:
            raise UsageError("values and options may not be mixed")
        return [dict(arguments.fields)]
    if not arguments.values:
        raise UsageError("nothing to search for")
    return [_search(value) for value in arguments.values]


def _search(value: str) -> dict[str, Any]:
    conditions = parse_search_value(value)
    if not conditions:
        raise ValueError(f"Invalid <search-value>: {value!r} (it names nothing)")
    return conditions


def searches_with_value(arguments: DeviceArguments) -> list[tuple[dict[str, Any], str]]:
    """Pairs of search and new value; in option form one value for all. Raises UsageError, ValueError."""
    if arguments.is_option_form:
        if len(arguments.values) != 1:
            raise UsageError("one new value is needed")
        return [(dict(arguments.fields), arguments.values[0])]
    return [(_search(search), value) for search, value in _pairs(arguments.values)]


def searches_with_changes(arguments: DeviceArguments) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Pairs of search and changed fields. Raises UsageError, ValueError."""
    if arguments.is_option_form:
        if arguments.values or not arguments.fields or not arguments.changes:
            raise UsageError("a search and a change are needed, both as options")
        return [(dict(arguments.fields), dict(arguments.changes))]
    return [(_search(search), parse_change_value(value)) for search, value in _pairs(arguments.values)]


def new_devices(arguments: DeviceArguments, warn: Callable[[str], None]) -> list[RingDevice]:
    """The devices to add. Raises UsageError, ValueError."""
    if arguments.is_option_form:
        if arguments.values:
            raise UsageError("values and options may not be mixed")
        return [_device_of_options(arguments.fields)]
    devices = []
    for value, weight in _pairs(arguments.values):
        fields = parse_add_value(value)
        if fields["region"] is None:
            warn(f"WARNING: No region specified for {value}. Defaulting to region 1.")
            fields["region"] = DEFAULT_REGION
        devices.append(RingDevice(**fields, weight=parse_weight(weight)))
    return devices


def _device_of_options(fields: Mapping[str, Any]) -> RingDevice:
    for short, long, name, _ in _FIELDS:
        if name in ("region", "zone", "ip", "port", "device", "weight") and name not in fields:
            raise ValueError(f"Required argument {short}/{long} not specified.")
    checked_device_name(fields["device"])
    return RingDevice(**{"replication_ip": fields["ip"], "replication_port": fields["port"], **fields,
                         "weight": parse_weight(str(fields["weight"]))})


def parse_weight(text: str) -> float:
    """A weight. Raises ValueError."""
    try:
        weight = float(text)
    except ValueError:
        raise ValueError(f"Invalid weight value: {text}") from None
    if not 0 <= weight < float("inf"):
        raise ValueError(f"Invalid weight value: {text}")
    return weight


def parse_whole(text: str, what: str) -> int:
    """A whole number, not negative. Raises ValueError."""
    if not text.isascii() or not text.isdigit():
        raise ValueError(f"Invalid {what}: {text!r} is not a whole number")
    return int(text)


def _pairs(values: Sequence[str]) -> list[tuple[str, str]]:
    if not values or len(values) % 2:
        raise UsageError("values come in pairs")
    return list(zip(values[::2], values[1::2], strict=True))
