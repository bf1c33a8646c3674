"""What lifecycle rules want done to one key."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelstore.common.middleware.s3api.lifecycle_plan import Due, Version, common_prefix, due, ends_upload
from keelstore.common.middleware.s3api.lifecycle_rules import DAY_S, Filter, Rule

NOW = 1000 * DAY_S


def rule(**fields: Any) -> Rule:
    return Rule("r", fields.pop("enabled", True), **fields)


def version(age_days: float, version_id: str = "", **fields: Any) -> Version:
    return Version("k", fields.pop("size", 10), NOW - age_days * DAY_S, version_id, **fields)


def history(*ages: float, marker: bool = False) -> list[Version]:
    """Versions of these ages in days, newest first; ``marker``: the newest is a delete marker."""
    return [
        version(age, f"v{place}", is_latest=place == 0, is_marker=marker and place == 0) for place, age in enumerate(ages)
    ]


def gone(rules: list[Rule], versions: list[Version], tags: dict[str, str] | None = None) -> list[tuple[str, bool]]:
    return [(found.version.version_id, found.whole) for found in due(rules, versions, lambda _: tags or {}, NOW)]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (rule(days=2), True),
        (rule(days=4), False),
        (rule(date=NOW), True),
        (rule(date=NOW + DAY_S), False),
        (rule(days=2, enabled=False), False),
        (rule(days=2, filter=Filter("other")), False),
        (rule(days=2, filter=Filter(larger_than=10)), False),
        (rule(days=2, filter=Filter(tags=(("x", "1"),))), False),
        (rule(noncurrent_days=1), False),
        (rule(expired_marker=True), False),
    ],
)
def test_a_current_object_ends_when_its_days_are_over(wanted: Rule, expected: bool) -> None:
    assert due([wanted], [version(3)], lambda _: {}, NOW) == ([Due(version(3), whole=True)] if expected else [])


def test_noncurrent_versions_end_so_long_after_a_newer_one_came() -> None:
    versions = history(1, 5, 9, 20)
    assert gone([rule(noncurrent_days=4)], versions) == [("v2", False), ("v3", False)]
    assert gone([rule(noncurrent_days=6)], versions) == [("v3", False)]


def test_the_newest_noncurrent_versions_are_kept() -> None:
    versions = history(*range(10, 20))
    assert gone([rule(noncurrent_days=1, newer_noncurrent=5)], versions) == [(f"v{n}", False) for n in range(6, 10)]


def test_a_delete_marker_ends_when_nothing_is_behind_it() -> None:
    alone, behind = history(3, marker=True), history(3, 5, marker=True)
    for wanted in (rule(expired_marker=True), rule(days=2)):
        assert gone([wanted], alone) == [("v0", False)]
        assert gone([wanted], behind) == []
    assert gone([rule(days=5)], alone) == []
    assert gone([rule(days=2, filter=Filter(tags=(("x", "1"),)))], alone, {"x": "1"}) == []


def test_what_is_current_again_is_not_taken_for_noncurrent() -> None:
    assert gone([rule(noncurrent_days=1)], [version(9, "v0", is_latest=True)]) == []


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=6).map(sorted),
    st.booleans(),
    st.integers(1, 20),
    st.none() | st.integers(1, 4),
)
def test_no_version_goes_for_good_but_by_a_rule_of_noncurrent_ones(
    ages: list[int], marker: bool, days: int, newer: int | None
) -> None:
    versions = history(*ages, marker=marker)
    for found in due([rule(days=days)], versions, lambda _: {}, NOW):
        assert found.whole or (found.version.is_marker and len(versions) == 1)
    removed = due([rule(noncurrent_days=days, newer_noncurrent=newer)], versions, lambda _: {}, NOW)
    assert versions[0] not in [found.version for found in removed]
    assert len(removed) <= max(len(versions) - 1 - (newer or 0), 0)


def test_uploads_end() -> None:
    begun = NOW - 3 * DAY_S
    assert ends_upload([rule(abort_days=2)], "k", begun, NOW)
    assert not ends_upload([rule(abort_days=4)], "k", begun, NOW)
    assert not ends_upload([rule(abort_days=2, filter=Filter("x"))], "k", begun, NOW)
    assert not ends_upload([rule(days=2)], "k", begun, NOW)
    assert not ends_upload([rule(abort_days=2, enabled=False)], "k", begun, NOW)


def test_what_all_rules_share_is_looked_through() -> None:
    assert common_prefix([rule(filter=Filter("logs/a")), rule(filter=Filter("logs/b")), rule(enabled=False)]) == "logs/"
    assert common_prefix([rule(filter=Filter("a")), rule()]) == ""
    assert common_prefix([rule(filter=Filter("a"))]) == "a"
    assert common_prefix([]) == ""


@given(st.lists(st.text("ab", max_size=4), min_size=1, max_size=4), st.text("ab", max_size=6))
def test_no_key_that_a_rule_is_about_is_left_out(prefixes: list[str], key: str) -> None:
    shared = common_prefix([rule(filter=Filter(prefix)) for prefix in prefixes])
    assert key.startswith(shared) or not any(key.startswith(prefix) for prefix in prefixes)
