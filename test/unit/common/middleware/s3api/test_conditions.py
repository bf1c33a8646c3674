"""Conditions of writes and deletes."""

from __future__ import annotations

import pytest

from keelstore.common.headers import Headers
from keelstore.common.middleware.s3api.conditions import DeleteConditions, WriteConditions
from keelstore.common.middleware.s3api.errors import S3Error

THERE = Headers({"Etag": "abc", "Content-Length": "3", "Last-Modified": "Sun, 29 Nov 2026 18:10:53 GMT"})
IN_PARTS = Headers({"Etag": "manifest", "X-Object-Sysmeta-S3api-Etag": "abc-2", "X-Static-Large-Object": "True"})


@pytest.mark.parametrize(
    ("match", "none_match", "current", "code"),
    [
        ("", "*", None, ""),
        ("", "*", THERE, "PreconditionFailed"),
        ("", '"abc"', THERE, "PreconditionFailed"),
        ("", "abc", THERE, "PreconditionFailed"),
        ("", '"other"', THERE, ""),
        ("", '"abc"', None, ""),
        ('"abc"', "", THERE, ""),
        ("abc", "", THERE, ""),
        ("*", "", THERE, ""),
        ('"x", "abc"', "", THERE, ""),
        ('"other"', "", THERE, "PreconditionFailed"),
        ('"abc"', "", None, "NoSuchKey"),
        ("*", "", None, "NoSuchKey"),
        ('"abc-2"', "", IN_PARTS, ""),
        ('"manifest"', "", IN_PARTS, "PreconditionFailed"),
    ],
)
def test_condition_of_a_write(match: str, none_match: str, current: Headers | None, code: str) -> None:
    conditions = WriteConditions(match, none_match)
    if not code:
        conditions.check("k", current)
        return
    with pytest.raises(S3Error) as refused:
        conditions.check("k", current)
    assert refused.value.code == code


@pytest.mark.parametrize(
    ("match", "size", "modified", "current", "is_marker", "holds"),
    [
        ('"abc"', None, None, THERE, False, True),
        ("*", None, None, THERE, False, True),
        ("bad", None, None, THERE, False, False),
        ("bad", None, None, None, False, True),  # nothing to delete
        (None, "3", None, THERE, False, True),
        (None, "4", None, THERE, False, False),
        (None, None, "Sun, 29 Nov 2026 18:10:53 GMT", THERE, False, True),
        (None, None, "2026-11-29T18:10:53Z", THERE, False, True),
        (None, None, "2026-11-29T18:10:54Z", THERE, False, False),
        (None, None, "whenever", THERE, False, False),
        ("*", None, None, Headers(), True, True),
        ("bad", None, None, Headers(), True, False),
        (None, "0", None, Headers(), True, True),
        (None, "9", None, Headers(), True, False),
    ],
)
def test_condition_of_a_delete(
    match: str | None, size: str | None, modified: str | None, current: Headers | None, is_marker: bool, holds: bool
) -> None:
    conditions = DeleteConditions.made(match, size, modified)
    assert conditions is not None
    if holds:
        conditions.check(current, is_marker)
        return
    with pytest.raises(S3Error) as refused:
        conditions.check(current, is_marker)
    assert refused.value.code == "PreconditionFailed"


def test_no_condition() -> None:
    assert DeleteConditions.made(None, "", None) is None
