"""Which versions are ``null``."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelstore.common.info import ContainerInfo
from keelstore.common.middleware.s3api import versions
from keelstore.common.middleware.s3api.errors import S3Error


def _info(enabled: str | None, spans: str = "") -> ContainerInfo:
    sysmeta = {}
    if enabled is not None:
        sysmeta["versions-enabled"] = enabled
    if spans:
        sysmeta["s3api-null-versions"] = spans
    return ContainerInfo(status=204, sysmeta=sysmeta)


def _id(seconds: float) -> str:
    return f"{seconds:016.5f}"


@pytest.mark.parametrize("text", ["", "1", "nul", "1795976185.8567", "1795976185.85677x", "../etc"])
def test_what_is_no_version_id_is_refused(text: str) -> None:
    with pytest.raises(S3Error) as refused:
        versions.version_id_of(text)
    assert refused.value.code == "InvalidArgument"


@pytest.mark.parametrize("text", [None, "null", "1795976185.85677", "1795976185.85677_00000000000000a1"])
def test_version_id_is_taken(text: str | None) -> None:
    assert versions.version_id_of(text) == text


def test_status() -> None:
    assert [versions.status_of(_info(found)) for found in (None, "true", "false")] == ["", "Enabled", "Suspended"]


def test_what_was_there_before_versioning_is_null() -> None:
    spans = versions.spans_after(_info(None), True, 1000.0)
    info = _info("true", spans)
    assert versions.is_null(_id(999.9), info)
    assert not versions.is_null(_id(1000.0), info)
    assert versions.is_null("null", info)


def test_made_while_suspended_is_null() -> None:
    info = _info("true", versions.spans_after(_info(None), True, 1000.0))
    info = _info("false", versions.spans_after(info, False, 2000.0))
    assert [versions.is_null(_id(at), info) for at in (500, 1500, 2500)] == [True, False, True]
    info = _info("true", versions.spans_after(info, True, 3000.0))
    assert [versions.is_null(_id(at), info) for at in (500, 1500, 2500, 3500)] == [True, False, True, False]


def test_versioning_that_was_always_there_has_no_null() -> None:
    info = _info("true")
    assert not versions.has_nulls(info)
    assert not versions.is_null(_id(5), info)


@given(st.lists(st.booleans(), max_size=30), st.integers(0, 400))
def test_a_moment_is_null_when_nothing_was_versioned(changes: list[bool], moment: int) -> None:
    state: bool | None = None  # None: never
    info, expected = _info(None), True
    for number, enables in enumerate(changes):
        at = 10 * number + 5
        spans = versions.spans_after(info, enables, float(at))
        state = enables
        if at <= moment:
            expected = not enables
        info = _info("true" if state else "false", spans)
    if state is not None:
        assert versions.is_null(_id(moment), info) == expected


def test_spans_have_a_bound() -> None:
    info = _info("true", versions.spans_after(_info(None), True, 1.0))
    for number in range(1000):
        enables = bool(number % 2)
        info = _info("true" if enables else "false", versions.spans_after(info, enables, number + 2.0))
    assert len(info.sysmeta["s3api-null-versions"]) < 4000
