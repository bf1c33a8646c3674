"""Lifecycle rules: read, written, and when they end what."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelstore.common.middleware.s3api import lifecycle_rules, xml
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.lifecycle_rules import DAY_S, Filter, Rule, days_after, expiration_header

TEXT = st.text("abcxyz/ &<é", max_size=8)
FILTERS = st.one_of(
    st.builds(Filter, prefix=TEXT, form=st.just("Prefix")),
    st.builds(
        Filter,
        prefix=TEXT,
        tags=st.lists(st.tuples(TEXT, TEXT), max_size=3).map(tuple),
        larger_than=st.none() | st.integers(0, 1 << 40),
        smaller_than=st.none() | st.integers(0, 1 << 40),
    ),
)
COUNTS = st.integers(1, 10000)
RULES = st.builds(
    Rule,
    rule_id=st.text("abcXYZ0-9", min_size=1, max_size=10),
    enabled=st.booleans(),
    filter=FILTERS,
    days=COUNTS,
    noncurrent_days=COUNTS,
    newer_noncurrent=st.none() | COUNTS,
    abort_days=st.none() | COUNTS,
) | st.builds(Rule, st.just("dated"), st.booleans(), FILTERS, date=st.integers(0, 40000).map(lambda days: days * DAY_S))


def read(*rules: str) -> tuple[Rule, ...]:
    return lifecycle_rules.read(xml.parse(f"<LifecycleConfiguration>{''.join(rules)}</LifecycleConfiguration>".encode()))


def rule(inner: str, where: str = "<Filter><Prefix>a</Prefix></Filter>", status: str = "Enabled", name: str = "") -> str:
    return f"<Rule>{name and f'<ID>{name}</ID>'}{where}<Status>{status}</Status>{inner}</Rule>"


DAYS = "<Expiration><Days>3</Days></Expiration>"


@given(st.lists(RULES, min_size=1, max_size=4, unique_by=lambda found: found.rule_id))
def test_what_is_written_is_read_again(rules: list[Rule]) -> None:
    assert lifecycle_rules.read(xml.parse(lifecycle_rules.write(rules))) == tuple(rules)


def test_a_rule_without_id_gets_one() -> None:
    first, second = read(rule(DAYS), rule(DAYS))
    assert first.rule_id and first.rule_id != second.rule_id


@pytest.mark.parametrize(
    ("document", "code"),
    [
        ("", "MalformedXML"),
        (rule(""), "InvalidRequest"),
        (rule(DAYS, status="enabled"), "MalformedXML"),
        (rule(DAYS, where=""), "MalformedXML"),
        (rule(DAYS, where="<Prefix>a</Prefix><Filter/>"), "MalformedXML"),
        (rule(DAYS, name="x" * 256), "InvalidArgument"),
        (rule(DAYS, name="x") + rule(DAYS, name="x"), "InvalidArgument"),
        (rule("<Expiration><Days>0</Days></Expiration>"), "InvalidArgument"),
        (rule("<Expiration><Days>-1</Days></Expiration>"), "InvalidArgument"),
        (rule("<Expiration><Days>x</Days></Expiration>"), "MalformedXML"),
        (rule("<Expiration/>"), "MalformedXML"),
        (rule("<Expiration><Days>1</Days><Date>2030-01-01</Date></Expiration>"), "MalformedXML"),
        (rule("<Expiration><Date>2030-01-01T12:00:00Z</Date></Expiration>"), "InvalidArgument"),
        (rule("<Expiration><Date>20200101</Date></Expiration>"), "InvalidArgument"),
        (rule("<Expiration><Date>2030-13-01</Date></Expiration>"), "InvalidArgument"),
        (rule("<NoncurrentVersionExpiration/>"), "MalformedXML"),
        (rule("<AbortIncompleteMultipartUpload/>"), "MalformedXML"),
        (rule("<Transition><Days>1</Days><StorageClass>GLACIER</StorageClass></Transition>"), "InvalidStorageClass"),
    ],
)
def test_what_is_no_configuration(document: str, code: str) -> None:
    with pytest.raises(S3Error) as caught:
        read(document)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("where", "key", "size", "tags", "expected"),
    [
        ("<Prefix/>", "k", 0, {}, True),
        ("<Prefix>a</Prefix>", "ab", 0, {}, True),
        ("<Prefix>a</Prefix>", "b", 0, {}, False),
        ("<Filter/>", "k", 0, {}, True),
        ("<Filter><Tag><Key>x</Key><Value>1</Value></Tag></Filter>", "k", 0, {"x": "1", "y": "2"}, True),
        ("<Filter><Tag><Key>x</Key><Value>1</Value></Tag></Filter>", "k", 0, {"x": "2"}, False),
        ("<Filter><ObjectSizeGreaterThan>5</ObjectSizeGreaterThan></Filter>", "k", 5, {}, False),
        ("<Filter><ObjectSizeGreaterThan>5</ObjectSizeGreaterThan></Filter>", "k", 6, {}, True),
        ("<Filter><ObjectSizeLessThan>5</ObjectSizeLessThan></Filter>", "k", 5, {}, False),
        ("<Filter><And><Prefix>k</Prefix><Tag><Key>x</Key><Value>1</Value></Tag></And></Filter>", "k", 0, {"x": "1"}, True),
        ("<Filter><And><Prefix>k</Prefix><Tag><Key>x</Key><Value>1</Value></Tag></And></Filter>", "k", 0, {}, False),
    ],
)
def test_filters(where: str, key: str, size: int, tags: dict[str, str], expected: bool) -> None:
    assert read(rule(DAYS, where))[0].filter.fits(key, size, tags) is expected


def test_tags_are_found_only_when_all_else_fits() -> None:
    wanted = Filter("a", (("x", "1"),))
    assert not wanted.fits("b", 0, lambda: pytest.fail("asked"))
    assert wanted.fits("a", 0, lambda: {"x": "1"})


@given(st.integers(0, 1 << 33), st.integers(1, 4000))
def test_days_end_at_midnight_not_before_they_are_over(created: int, days: int) -> None:
    ends = days_after(created, days)
    assert ends % DAY_S == 0
    assert 0 <= ends - (created + days * DAY_S) < DAY_S


def test_the_header_tells_the_first_end() -> None:
    rules = read(rule(DAYS, name="three"), rule("<Expiration><Days>1</Days></Expiration>", name="one day"))
    assert expiration_header(rules, 12345, "a", 0, {}) == 'expiry-date="Sat, 03 Jan 1970 00:00:00 GMT", rule-id="one%20day"'
    assert expiration_header(rules, 12345, "b", 0, {}) is None
    assert expiration_header(read(rule(DAYS, status="Disabled")), 12345, "a", 0, {}) is None


def _any(**fields: Any) -> Rule:
    return Rule("r", True, **fields)


def test_only_rules_that_are_enabled_and_about_objects_end_them() -> None:
    assert _any(days=1).expires and _any(date=0).expires
    assert not _any(noncurrent_days=1).expires and not _any(expired_marker=True).expires
    assert not Rule("r", False, days=1).expires
