"""Patterns of policies."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelstore.common.middleware.s3api.patterns import fits
from test.support.waiting import quick


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("", "", True),
        ("a", "a", True),
        ("a", "b", False),
        ("*", "", True),
        ("*", "a/b", True),
        ("a*", "a", True),
        ("a*a", "a", False),
        ("a*a", "aa", True),
        ("public/*", "public/foo", True),
        ("public/*", "private/foo", False),
        ("?", "", False),
        ("a?c", "abc", True),
        ("a?c", "ac", False),
        ("*.jp?g", "x.jpeg", True),
        ("*?", "", False),
        ("a*b?d*e", "aXXbcdYYe", True),
        ("[a-z]", "b", False),
        ("a\nb*", "a\nbc", True),
    ],
)
def test_patterns(pattern: str, text: str, expected: bool) -> None:
    assert fits(pattern, text) is expected


@given(st.text("ab?*\n", max_size=8), st.text("ab\n", max_size=8))
def test_a_pattern_fits_what_the_regular_expression_does(pattern: str, text: str) -> None:
    expression = "".join(".*" if char == "*" else "." if char == "?" else re.escape(char) for char in pattern)
    assert fits(pattern, text) is (re.fullmatch(expression, text, re.DOTALL) is not None)


def test_many_stars_take_no_time() -> None:
    def try_both() -> None:
        assert not fits("*a" * 5000 + "b", "a" * 20000)
        assert not fits("*a?" * 300 + "b", "a" * 1024)

    quick(try_both, 1)
