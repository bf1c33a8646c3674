"""Object lock: what is kept, and who may change what."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelstore.common.headers import Headers
from keelstore.common.middleware.s3api import locks, xml
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.locks import COMPLIANCE, GOVERNANCE, Configuration, Default, Retention
from keelstore.common.middleware.s3api.times import seconds_of

NOW = 1_700_000_000.0
DAY = 86400


@pytest.mark.parametrize(
    "found",
    [Configuration(), Configuration(Default(GOVERNANCE, days=3)), Configuration(Default(COMPLIANCE, years=2))],
)
def test_configuration_is_kept_and_shown(found: Configuration) -> None:
    assert locks.configuration(found.encode()) == found
    assert locks.configuration_of_document(xml.parse(found.to_xml())) == found


@pytest.mark.parametrize("text", [None, "", "Disabled", "nonsense"])
def test_no_configuration(text: str | None) -> None:
    assert locks.configuration(text) is None


def _document(rule: str, enabled: str = "Enabled") -> xml.Element:
    return xml.parse(
        f"<ObjectLockConfiguration><ObjectLockEnabled>{enabled}</ObjectLockEnabled>{rule}</ObjectLockConfiguration>".encode()
    )


def _rule(inside: str) -> str:
    return f"<Rule><DefaultRetention>{inside}</DefaultRetention></Rule>"


@pytest.mark.parametrize(
    ("document", "code"),
    [
        (_document("", "Disabled"), "MalformedXML"),
        (_document("<Rule/>"), "MalformedXML"),
        (_document(_rule("<Mode>GOVERNANCE</Mode><Days>1</Days><Years>1</Years>")), "MalformedXML"),
        (_document(_rule("<Mode>GOVERNANCE</Mode>")), "MalformedXML"),
        (_document(_rule("<Mode>governance</Mode><Days>1</Days>")), "MalformedXML"),
        (_document(_rule("<Mode>GOVERNANCE</Mode><Days>one</Days>")), "MalformedXML"),
        (_document(_rule("<Mode>GOVERNANCE</Mode><Days>0</Days>")), "InvalidRetentionPeriod"),
        (_document(_rule("<Mode>GOVERNANCE</Mode><Years>-1</Years>")), "InvalidRetentionPeriod"),
        (_document(_rule("<Mode>GOVERNANCE</Mode><Years>101</Years>")), "InvalidRetentionPeriod"),
    ],
)
def test_configuration_is_refused(document: xml.Element, code: str) -> None:
    with pytest.raises(S3Error) as refused:
        locks.configuration_of_document(document)
    assert refused.value.code == code


def test_default_of_years_is_of_the_calendar() -> None:
    leap_day = seconds_of("2024-02-29T12:00:00Z")
    assert leap_day is not None
    assert Default(COMPLIANCE, years=1).from_now(leap_day).until == "2025-03-01T12:00:00.000Z"
    assert Default(COMPLIANCE, years=4).from_now(leap_day).until == "2028-02-29T12:00:00.000Z"
    assert Default(COMPLIANCE, days=2).from_now(leap_day).until == "2024-03-02T12:00:00.000Z"


def test_retention_must_be_in_the_future() -> None:
    with pytest.raises(S3Error) as refused:
        locks.retention(GOVERNANCE, "2000-01-01T00:00:00Z", NOW)
    assert refused.value.code == "InvalidArgument"


@pytest.mark.parametrize(("mode", "until"), [("NONE", "2030-01-01T00:00:00Z"), (GOVERNANCE, "tomorrow"), (None, None)])
def test_retention_is_refused(mode: str | None, until: str | None) -> None:
    with pytest.raises(S3Error) as refused:
        locks.retention(mode, until, NOW)
    assert refused.value.code == "MalformedXML"


MODES = st.sampled_from((GOVERNANCE, COMPLIANCE))
RETENTIONS = st.builds(Retention, MODES, st.integers(-10 * DAY, 10 * DAY).map(lambda offset: NOW + offset))


@given(RETENTIONS)
def test_what_is_kept_is_what_was_asked(found: Retention) -> None:
    assert locks.retention_of(Headers({locks.RETENTION: found.encode()})) == found


@given(RETENTIONS, st.none() | RETENTIONS, st.booleans())
def test_compliance_never_ends_sooner(old: Retention, new: Retention | None, bypasses: bool) -> None:
    if old.mode == COMPLIANCE and not old.is_over(NOW) and locks.may_change(old, new, NOW, bypasses):
        assert new is not None
        assert new.mode == COMPLIANCE
        assert new.until_s >= old.until_s


@given(RETENTIONS, st.none() | RETENTIONS)
def test_governance_is_shortened_by_its_bypass_only(old: Retention, new: Retention | None) -> None:
    if old.mode == GOVERNANCE and not old.is_over(NOW):
        assert locks.may_change(old, new, NOW, bypasses=True)
        extends = new is not None and new.mode == GOVERNANCE and new.until_s >= old.until_s
        assert locks.may_change(old, new, NOW, bypasses=False) == extends


@pytest.mark.parametrize(
    ("kept", "bypasses", "is_locked"),
    [
        ({}, False, False),
        ({locks.RETENTION: f"GOVERNANCE;{NOW + 1}"}, False, True),
        ({locks.RETENTION: f"GOVERNANCE;{NOW + 1}"}, True, False),
        ({locks.RETENTION: f"GOVERNANCE;{NOW}"}, False, False),
        ({locks.RETENTION: f"COMPLIANCE;{NOW + 1}"}, True, True),
        ({locks.RETENTION: "COMPLIANCE;soon"}, True, False),
        ({locks.LEGAL_HOLD: "ON"}, True, True),
        ({locks.LEGAL_HOLD: "ON", locks.CHANGED_LEGAL_HOLD: "OFF"}, False, False),
        ({locks.CHANGED_LEGAL_HOLD: "ON"}, True, True),
        ({locks.RETENTION: f"COMPLIANCE;{NOW - 1}", locks.CHANGED_RETENTION: f"COMPLIANCE;{NOW + 1}"}, True, True),
        ({locks.RETENTION: f"GOVERNANCE;{NOW + 1}", locks.CHANGED_RETENTION: "none"}, False, False),
    ],
)
def test_lock_of_a_version(kept: dict[str, str], bypasses: bool, is_locked: bool) -> None:
    assert locks.is_locked(Headers(kept), NOW, bypasses) == is_locked
