"""Times as S3 clients write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelstore.common.middleware.s3api.times import exact_time_of, s3_time, seconds_of


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T00:00:00.5Z", 0.5),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1969-12-31T23:30:00-0030", 0),
        (" 2026-11-29T18:10:53Z ", 1795975853),
        ("2026-02-30T00:00:00Z", None),
        ("2026-11-29", None),
        ("2026-11-29T18:10:53", None),
        ("", None),
    ],
)
def test_iso_time(text: str, seconds: float | None) -> None:
    assert seconds_of(text) == seconds


@given(st.integers(0, 4_000_000_000_000))
def test_exact_time_is_read_back(thousandths: int) -> None:
    found = seconds_of(exact_time_of(thousandths / 1000))
    assert found is not None
    assert round(found * 1000) == thousandths


def test_listed_time_is_rounded_up() -> None:
    assert s3_time("2026-11-29T18:10:53.000010") == "2026-11-29T18:10:54.000Z"
    assert s3_time("2026-11-29T18:10:53.000000") == "2026-11-29T18:10:53.000Z"
