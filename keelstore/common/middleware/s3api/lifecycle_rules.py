"""Lifecycle rules of a bucket: read, written, and what they say of an object (``spec: s3-api 3.13``). Pure.

Days are counted from the creation of an object (or from when it became noncurrent) and end at midnight UTC.
"""

from __future__ import annotations

import calendar
import re
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote

from keelstore.common.http import http_date
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.xml import Element, Writer

MAX_RULES: Final = 1000
MAX_ID: Final = 255
DAY_S: Final = 86400
_DATE = re.compile(r"(\d{4})-(\d\d)-(\d\d)(T00:00:00(\.0+)?Z?)?\Z")


@dataclass(frozen=True)
class Filter:
    """What objects a rule is about. Sizes in bytes, both exclusive."""

    prefix: str = ""
    tags: tuple[tuple[str, str], ...] = ()
    larger_than: int | None = None
    smaller_than: int | None = None
    form: str = "Filter"  # or Prefix: where the prefix stood

    def fits(self, key: str, size: int, tags: Mapping[str, str] | Callable[[], Mapping[str, str]]) -> bool:
        """``tags``: or what finds them, called when all else fits and tags are asked for."""
        if not (
            key.startswith(self.prefix)
            and (self.larger_than is None or size > self.larger_than)
            and (self.smaller_than is None or size < self.smaller_than)
        ):
            return False
        if not self.tags:
            return True
        found = tags() if callable(tags) else tags
        return all(found.get(name) == value for name, value in self.tags)


@dataclass(frozen=True)
class Rule:
    """Times in whole days, ``date`` in seconds since the epoch; None: no such action."""

    rule_id: str
    enabled: bool
    filter: Filter = field(default_factory=Filter)
    days: int | None = None
    date: int | None = None
    expired_marker: bool = False
    noncurrent_days: int | None = None
    newer_noncurrent: int | None = None
    abort_days: int | None = None

    def expires_at(self, created_s: float, day_s: float = DAY_S) -> float | None:
        """When the rule lets a current object that it is about end, in seconds since the epoch; None when it does not."""
        if self.date is not None:
            return self.date
        return None if self.days is None else days_after(created_s, self.days, day_s)

    @property
    def expires(self) -> bool:
        """Whether it lets current objects end."""
        return self.enabled and (self.days is not None or self.date is not None)


def days_after(moment_s: float, days: int, day_s: float = DAY_S) -> float:
    """The midnight UTC that ends the last of ``days``. ``day_s``: the length of a day; only a whole one ends at midnight."""
    if day_s != DAY_S:
        return moment_s + days * day_s
    return float(-int(-(moment_s + days * DAY_S) // DAY_S) * DAY_S)


def expiration_header(
    rules: Iterable[Rule],
    created_s: float,
    key: str,
    size: int,
    tags: Mapping[str, str] | Callable[[], Mapping[str, str]],
) -> str | None:
    """``x-amz-expiration`` of an object: its first end, and the rule that brings it."""
    ends = [
        (moment, rule.rule_id)
        for rule in rules
        if rule.expires and (moment := rule.expires_at(created_s)) is not None and rule.filter.fits(key, size, tags)
    ]
    if not ends:
        return None
    moment, rule_id = min(ends)
    return f'expiry-date="{http_date(int(moment))}", rule-id="{quote(rule_id, safe="")}"'


# -- reading -----------------------------------------------------------------------------------------------------------


def read(document: Element) -> tuple[Rule, ...]:
    """Raises S3Error for a document that is not a lifecycle configuration."""
    rules = tuple(_rule(element) for element in document.children("Rule"))
    if not 1 <= len(rules) <= MAX_RULES:
        raise S3Error("MalformedXML")
    if len({rule.rule_id for rule in rules}) < len(rules):
        raise S3Error("InvalidArgument", "Rule ID must be unique. Found same ID for more than one rule")
    return rules


def _rule(element: Element) -> Rule:
    rule_id = element.value("ID") or uuid.uuid4().hex
    if len(rule_id) > MAX_ID or not rule_id.isprintable():
        raise S3Error("InvalidArgument", f"ID length should not exceed allowed limit of {MAX_ID}")
    status = element.value("Status")
    if status not in ("Enabled", "Disabled"):
        raise S3Error("MalformedXML")
    actions = {child.name for child in element.children()} - {"ID", "Status", "Filter", "Prefix"}
    if actions & {"Transition", "NoncurrentVersionTransition"}:
        raise S3Error("InvalidStorageClass", "There is no storage class that objects could be moved to.")
    days, date, expired_marker = _expiration(element.find("Expiration"))
    noncurrent, newer = _noncurrent(element.find("NoncurrentVersionExpiration"))
    abort = element.find("AbortIncompleteMultipartUpload")
    abort_days = _count(abort.value("DaysAfterInitiation")) if abort is not None else None
    if not actions:
        raise S3Error("InvalidRequest", "At least one action needs to be specified in a rule.")
    return Rule(
        rule_id, status == "Enabled", _filter(element), days, date, expired_marker, noncurrent, newer, abort_days
    )


def _filter(element: Element) -> Filter:
    found, prefix = element.find("Filter"), element.value("Prefix")
    if (found is None) == (prefix is None):
        raise S3Error("MalformedXML")
    if found is None:
        return Filter(prefix or "", form="Prefix")
    parts = list(found.children())
    for both in found.children("And"):  # beside what stands alone, too: all of it has to fit
        parts += both.children()
    prefixes = {part.text for part in parts if part.name == "Prefix"}
    longest = max(prefixes, key=len, default="")
    if not all(longest.startswith(text) for text in prefixes):
        raise S3Error("MalformedXML")
    return Filter(
        longest,
        tuple((part.value("Key") or "", part.value("Value") or "") for part in parts if part.name == "Tag"),
        max((_count(part.text, 0) for part in parts if part.name == "ObjectSizeGreaterThan"), default=None),
        min((_count(part.text, 0) for part in parts if part.name == "ObjectSizeLessThan"), default=None),
    )


def _expiration(element: Element | None) -> tuple[int | None, int | None, bool]:
    if element is None:
        return None, None, False
    days, date, marker = element.value("Days"), element.value("Date"), element.value("ExpiredObjectDeleteMarker")
    if sum(value is not None for value in (days, date, marker)) != 1:
        raise S3Error("MalformedXML")
    if date is not None:
        found = _DATE.match(date)
        try:
            return (
                None,
                calendar.timegm(time.strptime("-".join(found.groups()[:3]), "%Y-%m-%d")) if found else _bad_date(),
                False,
            )
        except ValueError:
            _bad_date()
    return None if days is None else _count(days), None, (marker or "").lower() == "true"


def _bad_date() -> int:
    raise S3Error("InvalidArgument", "'Date' must be at midnight GMT")


def _noncurrent(element: Element | None) -> tuple[int | None, int | None]:
    if element is None:
        return None, None
    days, newer = element.value("NoncurrentDays"), element.value("NewerNoncurrentVersions")
    if days is None:
        raise S3Error("MalformedXML")
    return _count(days), None if newer is None else _count(newer)


def _count(text: str | None, least: int = 1) -> int:
    digits = (text or "").strip()
    if not (digits.isascii() and digits.isdigit() and len(digits) < 19):
        raise S3Error("MalformedXML" if not digits.startswith("-") else "InvalidArgument")
    if int(digits) < least:
        raise S3Error("InvalidArgument", "A number of days must be a positive integer.")
    return int(digits)


# -- writing -----------------------------------------------------------------------------------------------------------


def write(rules: Iterable[Rule]) -> bytes:
    """The document that ``read`` gives these rules from; each has its id."""
    writer = Writer("LifecycleConfiguration")
    for rule in rules:
        writer.open("Rule").leaf("ID", rule.rule_id)
        _write_filter(writer, rule.filter)
        writer.leaf("Status", "Enabled" if rule.enabled else "Disabled")
        if rule.days is not None or rule.date is not None or rule.expired_marker:
            writer.open("Expiration").leaf("Days", rule.days)
            if rule.date is not None:
                writer.leaf("Date", time.strftime("%Y-%m-%dT00:00:00.000Z", time.gmtime(rule.date)))
            writer.leaf("ExpiredObjectDeleteMarker", rule.expired_marker or None).close()
        if rule.noncurrent_days is not None:
            writer.open("NoncurrentVersionExpiration").leaf("NoncurrentDays", rule.noncurrent_days)
            writer.leaf("NewerNoncurrentVersions", rule.newer_noncurrent).close()
        if rule.abort_days is not None:
            writer.open("AbortIncompleteMultipartUpload").leaf("DaysAfterInitiation", rule.abort_days).close()
        writer.close()
    return writer.to_bytes()


def _write_filter(writer: Writer, found: Filter) -> None:
    if found.form == "Prefix":
        writer.leaf("Prefix", found.prefix)
        return
    writer.open("Filter")
    parts = bool(found.prefix) + len(found.tags) + (found.larger_than is not None) + (found.smaller_than is not None)
    if parts > 1:
        writer.open("And")
    if found.prefix or parts == 0:
        writer.leaf("Prefix", found.prefix)
    for name, value in found.tags:
        writer.open("Tag").leaf("Key", name).leaf("Value", value).close()
    writer.leaf("ObjectSizeGreaterThan", found.larger_than).leaf("ObjectSizeLessThan", found.smaller_than)
    if parts > 1:
        writer.close()
    writer.close()
