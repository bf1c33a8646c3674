"""The policy of a form that uploads an object: what its fields and its file must be like (``spec: s3-api 1.8``). Pure.

Every field must be spoken of by a condition, and so must the bucket (``security: R06``): what a policy does not name may not
be in the form.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.times import seconds_of

EQ, STARTS_WITH, LENGTH_RANGE = "eq", "starts-with", "content-length-range"
# Fields that need no condition: what signs, the file, and proofs of the file, which change nothing.
_FREE: Final = frozenset((
    "policy", "signature", "x-amz-signature", "awsaccesskeyid", "file", "submit",
))  # fmt: skip
_FREE_PREFIXES: Final = ("x-ignore-", "x-amz-checksum-")
# Of these no beginning is enough.
_EXACT: Final = frozenset(("bucket", "x-amz-algorithm", "x-amz-credential", "x-amz-date"))
MAX_NUMBER: Final = 1 << 62


@dataclass(frozen=True)
class FieldCondition:
    operator: str
    field: str  # lower case
    value: str

    def holds(self, value: str) -> bool:
        return value == self.value if self.operator == EQ else value.startswith(self.value)


@dataclass(frozen=True)
class PostPolicy:
    """``least`` and ``most``: bytes of the file; None: it says nothing."""

    expires_s: float
    conditions: tuple[FieldCondition, ...]
    least: int | None = None
    most: int | None = None

    def check(self, fields: Mapping[str, str], bucket: str, now_s: float) -> None:
        """Raises S3Error for a form that the policy does not allow. ``fields``: by lower-case name."""
        if self.expires_s <= now_s:
            raise _refused("Policy expired.")
        found = {**fields, "bucket": bucket}
        for condition in self.conditions:
            if not condition.holds(found.get(condition.field, "")):
                text = f'["{condition.operator}", "${condition.field}", "{condition.value}"]'
                raise _refused(f"Policy Condition failed: {text}")
        known = {condition.field for condition in self.conditions}
        extra = [name for name in found if name not in known and name not in _FREE and not name.startswith(_FREE_PREFIXES)]
        if extra:
            raise _refused(f"Extra input fields: {extra[0]}")


def _refused(why: str) -> S3Error:
    return S3Error("AccessDenied", f"Invalid according to Policy: {why}")


def _invalid(why: str) -> S3Error:
    return S3Error("InvalidPolicyDocument", f"Invalid Policy: {why}")


def read(encoded: str) -> PostPolicy:
    """Of the field, base64. Raises S3Error for what is no policy."""
    try:
        document = json.loads(base64.b64decode(encoded, validate=True))
    except (ValueError, binascii.Error, RecursionError):
        raise _invalid("Invalid JSON.") from None
    if not isinstance(document, dict):
        raise _invalid("Invalid JSON.")
    expiration, conditions = document.get("expiration"), document.get("conditions")
    if not isinstance(expiration, str):
        raise _invalid("Policy missing expiration.")
    expires_s = seconds_of(expiration) if "T" in expiration else None
    if expires_s is None:
        raise _invalid(f"Invalid 'expiration' value: '{expiration}'")
    if not isinstance(conditions, list):
        raise _invalid("Policy missing conditions.")
    found: list[FieldCondition] = []
    least: int | None = None
    most: int | None = None
    for item in conditions:
        if isinstance(item, dict):
            found += _of_object(item)
        elif isinstance(item, list) and item and isinstance(item[0], str):
            if item[0].lower() == LENGTH_RANGE:
                low, high = _range(item)
                least, most = max(low, least or 0), high if most is None else min(high, most)
            else:
                found.append(_of_list(item))
        else:
            raise _invalid("Invalid condition.")
    return PostPolicy(expires_s, tuple(found), least, most)


def _of_object(item: dict[str, Any]) -> Iterable[FieldCondition]:
    if not item:
        raise _invalid("Invalid Simple-Condition: Simple-Conditions must have exactly one property specified.")
    for name, value in item.items():
        yield FieldCondition(EQ, name.lower(), _text(value))


def _of_list(item: list[Any]) -> FieldCondition:
    if len(item) != 3 or not isinstance(item[1], str) or not item[1].startswith("$"):
        raise _invalid("Invalid condition.")
    operator, field = item[0].lower(), item[1][1:].lower()
    if operator not in (EQ, STARTS_WITH):
        raise _invalid(f"Unknown operation '{item[0]}'.")
    if operator == STARTS_WITH and field in _EXACT:
        raise _invalid(f"The operation starts-with cannot be used with {field}.")
    return FieldCondition(operator, field, _text(item[2]))


def _text(value: Any) -> str:
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise _invalid("Invalid value of a condition.")
    return str(value)


def _range(item: list[Any]) -> tuple[int, int]:
    if len(item) != 3:
        raise _invalid("Invalid number of arguments of content-length-range.")
    numbers = []
    for value in item[1:]:
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19:
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_NUMBER:
            raise _invalid("Invalid argument of content-length-range.")
        numbers.append(value)
    return numbers[0], numbers[1]
