"""Object lock: how long an object may not be deleted, and who may shorten that (``spec: s3-api 3.15``). Pure.

Kept in system metadata: of a bucket ``Object-Lock`` = ``Enabled[;<MODE>;<days>d|<years>y]``; of an object ``Retention`` =
``<MODE>;<seconds since the epoch>`` and ``Legal-Hold`` = ``ON``, as it was written, and the same names as *transient* system
metadata with what was changed since, which goes first. (A POST through the Swift API drops what is transient: what an
object was written with stays.)
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from keelstore.common.headers import Headers
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.times import exact_time_of, seconds_of
from keelstore.common.middleware.s3api.xml import Element, Writer

GOVERNANCE: Final = "GOVERNANCE"
COMPLIANCE: Final = "COMPLIANCE"
ENABLED: Final = "Enabled"
RETENTION: Final = "X-Object-Sysmeta-S3api-Retention"
LEGAL_HOLD: Final = "X-Object-Sysmeta-S3api-Legal-Hold"
CHANGED_RETENTION: Final = "X-Object-Transient-Sysmeta-S3api-Retention"
CHANGED_LEGAL_HOLD: Final = "X-Object-Transient-Sysmeta-S3api-Legal-Hold"
_MAX_DAYS: Final = 36500
_MAX_YEARS: Final = 100


@dataclass(frozen=True)
class Retention:
    mode: str
    until_s: float

    @property
    def until(self) -> str:
        return exact_time_of(self.until_s)

    def encode(self) -> str:
        return f"{self.mode};{self.until_s:.3f}"

    def is_over(self, now_s: float) -> bool:
        return self.until_s <= now_s


@dataclass(frozen=True)
class Default:
    """What new objects of a bucket get."""

    mode: str
    days: int = 0
    years: int = 0

    def from_now(self, now_s: float) -> Retention:
        if not self.years:
            return Retention(self.mode, now_s + self.days * 86400)
        now = datetime.fromtimestamp(now_s, UTC)
        try:
            until = now.replace(year=now.year + self.years)
        except ValueError:  # of 29 February
            until = now.replace(year=now.year + self.years, month=3, day=1)
        return Retention(self.mode, until.timestamp())


@dataclass(frozen=True)
class Configuration:
    """Of a bucket whose objects can be locked."""

    default: Default | None = None

    def encode(self) -> str:
        if self.default is None:
            return ENABLED
        period = f"{self.default.years}y" if self.default.years else f"{self.default.days}d"
        return f"{ENABLED};{self.default.mode};{period}"

    def to_xml(self) -> bytes:
        writer = Writer("ObjectLockConfiguration").leaf("ObjectLockEnabled", ENABLED)
        if self.default is not None:
            writer.open("Rule").open("DefaultRetention").leaf("Mode", self.default.mode)
            writer.leaf("Days", self.default.days or None).leaf("Years", self.default.years or None)
        return writer.to_bytes()


def configuration(text: str | None) -> Configuration | None:
    """Of a bucket's system metadata; None when it has no lock."""
    if not text or not text.startswith(ENABLED):
        return None
    _, _, rule = text.partition(";")
    mode, _, period = rule.partition(";")
    number = int(period[:-1]) if period[:-1].isdigit() else 0
    if mode not in (GOVERNANCE, COMPLIANCE) or not number:
        return Configuration()
    return Configuration(Default(mode, years=number) if period[-1] == "y" else Default(mode, days=number))


def configuration_of_document(document: Element) -> Configuration:
    """Raises S3Error."""
    rule = document.find("Rule")
    if document.value("ObjectLockEnabled") != ENABLED:
        raise S3Error("MalformedXML")
    if rule is None:
        return Configuration()
    default = rule.find("DefaultRetention")
    if default is None:
        raise S3Error("MalformedXML")
    mode, days, years = default.value("Mode"), default.value("Days"), default.value("Years")
    if mode not in (GOVERNANCE, COMPLIANCE) or (days is None) == (years is None):
        raise S3Error("MalformedXML")
    if years is not None:
        return Configuration(Default(mode, years=_period(years, _MAX_YEARS)))
    return Configuration(Default(mode, days=_period(days or "", _MAX_DAYS)))


def _period(text: str, most: int) -> int:
    try:
        number = int(text)
    except ValueError:
        raise S3Error("MalformedXML") from None
    if number <= 0:
        raise S3Error("InvalidRetentionPeriod", "The retention period must be a positive integer value.")
    if number > most:
        raise S3Error("InvalidRetentionPeriod", "The retention period is too large.")
    return number


def retention(mode: str | None, until: str | None, now_s: float, code: str = "MalformedXML") -> Retention:
    """Of a client's two texts. Raises S3Error, ``code`` for what cannot be read."""
    seconds = seconds_of(until or "")
    if mode not in (GOVERNANCE, COMPLIANCE) or seconds is None:
        raise S3Error(code)
    if seconds <= now_s:
        raise S3Error("InvalidArgument", "The retain until date must be in the future!", ArgumentName="RetainUntilDate")
    return Retention(mode, seconds)


def retention_of(headers: Headers) -> Retention | None:
    """Of an object's headers; over or not."""
    text = headers.get(CHANGED_RETENTION) or headers.get(RETENTION)
    mode, _, until = (text or "").partition(";")
    try:
        return Retention(mode, float(until)) if mode in (GOVERNANCE, COMPLIANCE) else None
    except ValueError:
        return None


def legal_hold_of(headers: Headers) -> str:
    """``ON``, ``OFF``, or '' when nobody ever said."""
    return headers.get(CHANGED_LEGAL_HOLD) or headers.get(LEGAL_HOLD) or ""


def is_locked(headers: Headers, now_s: float, bypasses: bool = False) -> bool:
    """Whether a version must not be deleted now. ``bypasses``: with the right to bypass governance, and by its wish."""
    if legal_hold_of(headers) == "ON":
        return True
    kept = retention_of(headers)
    return kept is not None and not kept.is_over(now_s) and not (bypasses and kept.mode == GOVERNANCE)


def may_change(old: Retention | None, new: Retention | None, now_s: float, bypasses: bool) -> bool:
    """Whether a version's retention may become ``new`` (None: none at all)."""
    if old is None or old.is_over(now_s):
        return True
    extends = new is not None and new.mode == old.mode and new.until_s >= old.until_s
    if old.mode == GOVERNANCE:
        return extends or bypasses
    return extends
