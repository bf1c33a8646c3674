"""Conditions of policies: their operators, and when one holds (``spec: s3-api 3.14``). Pure.

An operator compares the values that a request has for a key with those of the policy. One of the policy's values is enough;
for an operator that negates, none may fit. A key that the request does not have fits nothing, so what negates holds.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from keelstore.common.middleware.s3api.patterns import fits
from keelstore.common.middleware.s3api.times import seconds_of

Lookup = Callable[[str], tuple[str, ...] | None]  # of a key in lower case; None: the request has no such key
Compare = Callable[[str, str], bool]  # (the policy's value, the request's)
IF_EXISTS: Final = "ifexists"
FOR_ANY, FOR_ALL = "foranyvalue:", "forallvalues:"


class BadCondition(ValueError):
    """A condition that cannot be read."""


def _number(text: str) -> float:
    return float(text) if len(text) < 40 else float("nan")


def _moment(text: str) -> float:
    """Seconds since the epoch of a date, or of such a number."""
    if text.lstrip("-").replace(".", "", 1).isdigit():
        return float(text)
    if len(text) == 10:
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    found = seconds_of(text)
    if found is None:
        raise ValueError(text)
    return found


def _in_network(wanted: str, found: str) -> bool:
    network, address = ipaddress.ip_network(wanted, strict=False), ipaddress.ip_address(found)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.version == network.version and address in network


def _numbers(compare: Callable[[float, float], bool]) -> Compare:
    return lambda wanted, found: compare(_number(found), _number(wanted))


def _moments(compare: Callable[[float, float], bool]) -> Compare:
    return lambda wanted, found: compare(_moment(found), _moment(wanted))


_ORDER: Final[dict[str, Callable[[float, float], bool]]] = {
    "equals": lambda a, b: a == b,
    "lessthan": lambda a, b: a < b,
    "lessthanequals": lambda a, b: a <= b,
    "greaterthan": lambda a, b: a > b,
    "greaterthanequals": lambda a, b: a >= b,
}
_COMPARE: Final[dict[str, Compare]] = {
    "stringequals": lambda wanted, found: wanted == found,
    "stringequalsignorecase": lambda wanted, found: wanted.casefold() == found.casefold(),
    "stringlike": fits,
    "arnequals": fits,
    "arnlike": fits,
    "bool": lambda wanted, found: wanted.lower() == found.lower(),
    "binaryequals": lambda wanted, found: wanted == found,
    "ipaddress": _in_network,
    **{f"numeric{name}": _numbers(compare) for name, compare in _ORDER.items()},
    **{f"date{name}": _moments(compare) for name, compare in _ORDER.items()},
}
_NEGATED: Final = {
    "stringnotequals": "stringequals",
    "stringnotequalsignorecase": "stringequalsignorecase",
    "stringnotlike": "stringlike",
    "arnnotequals": "arnequals",
    "arnnotlike": "arnlike",
    "numericnotequals": "numericequals",
    "datenotequals": "dateequals",
    "notipaddress": "ipaddress",
}


@dataclass(frozen=True)
class Condition:
    """``operator``: the name of what compares; ``key``: in lower case; ``quantifier``: '', FOR_ANY or FOR_ALL."""

    operator: str
    key: str
    values: tuple[str, ...]
    negated: bool = False
    if_exists: bool = False
    quantifier: str = ""

    def holds(self, lookup: Lookup, expand: Callable[[str], str | None]) -> bool:
        """``expand``: replaces the variables of a value; None for one that the request has no value for."""
        found = lookup(self.key)
        if self.operator == "null":
            return (found is None) == (self.values[0].lower() == "true")
        if found is None:
            return self.if_exists or self.negated or self.quantifier == FOR_ALL
        wanted = [value for value in map(expand, self.values) if value is not None]
        if self.quantifier == FOR_ALL:
            return all(self._fits(wanted, value) for value in found)
        return any(self._fits(wanted, value) for value in found)

    def _fits(self, wanted: list[str], found: str) -> bool:
        compare = _COMPARE[self.operator]
        return any(_quiet(compare, value, found) for value in wanted) != self.negated

    @property
    def narrows(self) -> bool:
        """Whether it lets only some values pass that the policy itself fixes."""
        if self.negated or self.if_exists or self.quantifier == FOR_ALL or self.operator == "null":
            return False
        if self.operator == "ipaddress":
            return all(ipaddress.ip_network(value, strict=False).prefixlen > 0 for value in self.values)
        return not any("*" in value or "?" in value or "${" in value for value in self.values)


def _quiet(compare: Compare, wanted: str, found: str) -> bool:
    """A request's value that is no number, date or address fits nothing."""
    try:
        return compare(wanted, found)
    except (ValueError, OverflowError):
        return False


def read(operator: str, key: str, values: object) -> Condition:
    """Raises BadCondition."""
    name, quantifier = operator.lower(), ""
    for prefix in (FOR_ANY, FOR_ALL):
        if name.startswith(prefix):
            name, quantifier = name[len(prefix) :], prefix
    if_exists = name.endswith(IF_EXISTS) and name != IF_EXISTS
    if if_exists:
        name = name[: -len(IF_EXISTS)]
    negated = name in _NEGATED
    name = _NEGATED.get(name, name)
    listed = values if isinstance(values, list) else [values]
    texts = tuple(_text(value) for value in listed)
    if not texts:
        raise BadCondition(f"{operator} {key} has no value")
    if name == "null":
        if if_exists or quantifier or len(texts) > 1 or texts[0].lower() not in ("true", "false"):
            raise BadCondition("Null needs true or false")
    elif name not in _COMPARE:
        raise BadCondition(f"{operator} is no operator")
    else:
        _check(name, texts)
    return Condition(name, key.lower(), texts, negated, if_exists, quantifier)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    if isinstance(value, int | float):
        return str(value)
    raise BadCondition("a value of a condition is no text")


def _check(name: str, texts: tuple[str, ...]) -> None:
    """Raises BadCondition for values that the operator cannot compare with anything."""
    try:
        for text in texts:
            if "${" in text:
                continue
            if name == "ipaddress":
                ipaddress.ip_network(text, strict=False)
            elif name.startswith("numeric"):
                float(text)
            elif name.startswith("date"):
                _moment(text)
            elif name == "bool" and text.lower() not in ("true", "false"):
                raise ValueError(text)
            elif name == "binaryequals":
                base64.b64decode(text, validate=True)
    except (ValueError, OverflowError, binascii.Error):
        raise BadCondition("a value of a condition does not fit its operator") from None


def read_all(block: Mapping[str, object]) -> tuple[Condition, ...]:
    """The conditions of a statement, all of which must hold. Raises BadCondition."""
    found = []
    for operator, keys in block.items():
        if not isinstance(keys, dict) or not keys:
            raise BadCondition(f"{operator} has no keys")
        found += [read(operator, str(key), values) for key, values in keys.items()]
    return tuple(found)
