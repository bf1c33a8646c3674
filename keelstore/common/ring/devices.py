"""Devices of a ring as text: what operators write to add, find and change them, and how they are shown. Pure.

========  =====================================================================================================
add       ``[r<region>]z<zone>-<ip>:<port>[R<r_ip>:<r_port>]/<device>[_<meta>]``
search    ``[d<id>][r<region>][z<zone>][-][<ip>][:<port>][R[<r_ip>][:<r_port>]][/<device>][_<meta>]``
change    ``[<ip>][:<port>][R[<r_ip>][:<r_port>]][/<device>][_<meta>]``
display   ``d<id>r<region>z<zone>-<ip>:<port>R<r_ip>:<r_port>/<device>_"<meta>"``
========  =====================================================================================================

An IPv6 address stands in brackets; in an add value they may be left out, since there the port always follows.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_DIGITS = frozenset("0123456789")
_LABEL = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-")

DEFAULT_REGION = 1


@dataclass(frozen=True, slots=True)
class RingDevice:
    """A device of a ring: a disk on a server. ``other`` holds fields of a file that we do not know."""

    region: int
    zone: int
    ip: str
    port: int
    device: str
    weight: float
    replication_ip: str
    replication_port: int
    meta: str = ""
    id: int = -1
    other: Mapping[str, Any] = field(default_factory=dict, hash=False, compare=False)

    @property
    def tier(self) -> tuple[int, int, str, int]:
        return (self.region, self.zone, self.ip, self.id)

    @property
    def place(self) -> tuple[str, int, str]:
        """What no two devices of a ring share."""
        return (self.ip, self.port, self.device)

    def as_dict(self) -> dict[str, Any]:
        """The device as ring and builder files hold it."""
        return {**self.other, "id": self.id, "region": self.region, "zone": self.zone, "ip": self.ip, "port": self.port,
                "replication_ip": self.replication_ip, "replication_port": self.replication_port,
                "device": self.device, "weight": self.weight, "meta": self.meta}

    def __str__(self) -> str:
        return (f"d{self.id}r{self.region}z{self.zone}-{shown_ip(self.ip)}:{self.port}"
                f"R{shown_ip(self.replication_ip)}:{self.replication_port}/{self.device}_\"{self.meta}\"")


_KNOWN = frozenset(("id", "region", "zone", "ip", "port", "device", "weight", "replication_ip", "replication_port", "meta",
                    "parts", "parts_wanted"))


def from_dict(fields: Mapping[str, Any]) -> RingDevice:
    """A device out of a ring or builder file. Raises ValueError when a field is missing or of the wrong kind."""
    missing = [key for key in ("id", "zone", "ip", "port", "device", "weight") if fields.get(key) is None]
    if missing:
        raise ValueError(f"device {fields.get('id', '?')} has no {missing[0]}")
    try:
        return RingDevice(
            region=int(fields.get("region", DEFAULT_REGION)), zone=int(fields["zone"]), ip=str(fields["ip"]),
            port=int(fields["port"]), device=str(fields["device"]), weight=float(fields["weight"]),
            replication_ip=str(fields.get("replication_ip") or fields["ip"]),
            replication_port=int(fields.get("replication_port") or fields["port"]),
            meta=str(fields.get("meta") or ""), id=int(fields["id"]),
            other={key: value for key, value in fields.items() if key not in _KNOWN})
    except TypeError as error:
        raise ValueError(f"device {fields.get('id', '?')} has a bad field: {error}") from None


# -- addresses ---------------------------------------------------------------------------------------------------------


def shown_ip(ip: str) -> str:
    """An address as it stands before a port: IPv6 in brackets."""
    return f"[{ip}]" if ":" in ip else ip


def normal_ip(text: str) -> str:
    """An IP address in its one canonical form. Raises ValueError."""
    try:
        return str(ipaddress.ip_address(_unbracketed(text)))
    except ValueError:
        raise ValueError(f"Invalid ip {text}") from None


def normal_address(text: str) -> str:
    """An IP address or a host name, in lower case. Raises ValueError."""
    bare = _unbracketed(text)
    try:
        return str(ipaddress.ip_address(bare))
    except ValueError:
        name = bare.lower()
    labels = name.removesuffix(".").split(".")
    if len(name) <= 255 and all(0 < len(label) <= 63 and label[0] != "-" and label[-1] != "-" and _LABEL.issuperset(label)
                                for label in labels):
        return name
    raise ValueError(f"Invalid address {text}")


def comparable_ip(text: str) -> str:
    """The canonical form of an IP address; anything else as it is, in lower case."""
    try:
        return str(ipaddress.ip_address(_unbracketed(text)))
    except ValueError:
        return text.lower()


def _unbracketed(text: str) -> str:
    return text[1:-1] if text.startswith("[") and text.endswith("]") else text


# -- reading -----------------------------------------------------------------------------------------------------------


class _Scanner:
    """Takes a value apart from left to right."""

    def __init__(self, text: str):
        self.rest = text

    def number_after(self, mark: str) -> int | None:
        """The digits after ``mark``, when it stands next. Raises ValueError when it does and no digit follows."""
        if not self.rest.startswith(mark):
            return None
        end = len(mark)
        while end < len(self.rest) and self.rest[end] in _DIGITS:
            end += 1
        digits = self.rest[len(mark):end]
        if not digits:
            raise ValueError(f"a number is missing after {mark!r}")
        self.rest = self.rest[end:]
        return int(digits)

    def address(self) -> str | None:
        """An IPv4 address, or an IPv6 address in brackets, when one stands next."""
        if self.rest.startswith("["):
            end = self.rest.find("]") + 1
            if not end:
                raise ValueError(f"a bracket is not closed in {self.rest!r}")
        else:
            end = 0
            while end < len(self.rest) and (self.rest[end] in _DIGITS or self.rest[end] == "."):
                end += 1
        text, self.rest = self.rest[:end], self.rest[end:]
        return normal_ip(text) if text else None

    def skip(self, mark: str) -> bool:
        if not self.rest.startswith(mark):
            return False
        self.rest = self.rest[len(mark):]
        return True

    def place(self) -> dict[str, Any]:
        """What a search and a change value have in common: addresses, device name and meta."""
        found: dict[str, Any] = {"ip": self.address(), "port": self.number_after(":")}
        if self.skip("R"):
            found["replication_ip"] = self.address()
            found["replication_port"] = self.number_after(":")
        if self.skip("/"):
            found["device"], mark, meta = self.rest.partition("_")
            self.rest = mark + meta
        if self.skip("_"):
            found["meta"], self.rest = self.rest, ""
        return {key: value for key, value in found.items() if value is not None}


def parse_add_value(text: str) -> dict[str, Any]:
    """The fields of an add value: all of a RingDevice but id and weight; ``region`` is None when it is not given.

    Raises ValueError.
    """
    scanner = _Scanner(text)
    try:
        region = scanner.number_after("r")
        zone = scanner.number_after("z")
    except ValueError as error:
        raise ValueError(f"Invalid add value: {text} ({error})") from None
    if zone is None or not scanner.skip("-"):
        raise ValueError(f"Invalid add value: {text}")
    where, slash, name = scanner.rest.partition("/")
    if not slash:
        raise ValueError(f"Invalid add value: {text} (no /device)")
    main, mark, other = where.partition("R")
    ip, port = _address_and_port(main)
    replication_ip, replication_port = _address_and_port(other) if mark else (ip, port)
    device, _, meta = name.partition("_")
    return {"region": region, "zone": zone, "ip": ip, "port": port, "replication_ip": replication_ip,
            "replication_port": replication_port, "device": checked_device_name(device), "meta": meta}


def _address_and_port(text: str) -> tuple[str, int]:
    address, colon, port = text.rpartition(":")
    if not colon or not port:
        raise ValueError(f"Invalid port in add value: {text!r}")
    return normal_ip(address), parse_port(port)


def parse_port(text: str) -> int:
    """A port number. Raises ValueError."""
    if not text or not _DIGITS.issuperset(text) or not 0 < int(text) < 65536:
        raise ValueError(f"Invalid port {text}")
    return int(text)


def checked_device_name(name: str) -> str:
    """The name itself. Raises ValueError unless it can be a directory of the device root."""
    if not name or name != name.strip(" ") or "/" in name or name in (".", ".."):
        raise ValueError(f"Invalid device name {name!r}")
    return name


def parse_search_value(text: str) -> dict[str, Any]:
    """The conditions of a search value, by field name. Raises ValueError."""
    scanner = _Scanner(text)
    try:
        found = {"id": scanner.number_after("d"), "region": scanner.number_after("r"), "zone": scanner.number_after("z")}
        scanner.skip("-")
        found.update(scanner.place())
    except ValueError as error:
        raise ValueError(f"Invalid <search-value>: {text!r} ({error})") from None
    if scanner.rest:
        raise ValueError(f"Invalid <search-value>: {text!r}")
    return {key: value for key, value in found.items() if value is not None}


def parse_change_value(text: str) -> dict[str, Any]:
    """The new fields of a change value. Raises ValueError, also when it changes nothing."""
    scanner = _Scanner(text)
    try:
        found = scanner.place()
        if "device" in found:
            checked_device_name(found["device"])
        for key in ("port", "replication_port"):
            if key in found:
                parse_port(str(found[key]))
    except ValueError as error:
        raise ValueError(f"Invalid set info change value: {text!r} ({error})") from None
    if scanner.rest or not found:
        raise ValueError(f"Invalid set info change value: {text!r}")
    return found


def matches(device: RingDevice, conditions: Mapping[str, Any]) -> bool:
    """Whether a device meets all conditions: equality, but ``meta`` need only be contained; None is no condition."""
    for key, wanted in conditions.items():
        if wanted is None:
            continue
        value = getattr(device, key)
        if key in ("ip", "replication_ip"):
            if comparable_ip(value) != comparable_ip(wanted):
                return False
        elif key == "meta":
            if wanted not in value:
                return False
        elif value != wanted:
            return False
    return True


def tier_name(tier: tuple[int | str, ...], devices: Mapping[int, RingDevice]) -> str:
    """``r1``, ``r1z2``, ``r1z2-<ip>``, ``r1z2-<ip>/<device>``; a device that is gone is shown by its id."""
    name = f"r{tier[0]}"
    if len(tier) > 1:
        name += f"z{tier[1]}"
    if len(tier) > 2:
        name += f"-{shown_ip(str(tier[2]))}"
    if len(tier) > 3:
        found = devices.get(int(tier[3]))
        name += f"/{found.device}" if found else f"/IDd{tier[3]}"
    return name
