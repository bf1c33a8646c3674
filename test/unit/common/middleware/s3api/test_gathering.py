"""Bodies that are had whole before they are written."""

from __future__ import annotations

import io

import pytest

from keelstore.common.middleware.s3api import gathering
from keelstore.common.middleware.s3api.body import ProvenBody
from keelstore.common.middleware.s3api.checksums import ALGORITHMS
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.gathering import LARGE, ROOM, SMALL, gathered
from keelstore.common.middleware.s3api.stored_checksum import keep_checksum
from keelstore.common.middleware.s3api.upload import CHECKSUM


def body_of(data: bytes, length: int | None = -1) -> ProvenBody:
    return ProvenBody(io.BytesIO(data), len(data) if length == -1 else length)


def test_small_body_is_gathered_and_a_long_one_is_not() -> None:
    for data, at_most, is_gathered in ((b"", LARGE, True), (b"x" * SMALL, SMALL, True), (b"x" * (SMALL + 1), SMALL, False)):
        body = body_of(data)
        with gathered(body, at_most) as found:
            assert (found == data) if is_gathered else (found is body)


def test_body_of_unknown_length_is_passed_on() -> None:
    body = body_of(b"x", None)
    with gathered(body) as found:
        assert found is body


def test_there_is_room_for_so_many_larger_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "_held", ROOM - SMALL - 1)
    one, two = body_of(b"1" * (SMALL + 1)), body_of(b"2" * (SMALL + 1))
    with gathered(one) as first, gathered(two) as second:
        assert first == b"1" * (SMALL + 1)
        assert second is two
    assert gathering._held == ROOM - SMALL - 1


def test_body_that_ends_early_is_refused_before_anything_is_written() -> None:
    with pytest.raises(S3Error) as refused, gathered(body_of(b"12", 3)):
        raise AssertionError("must not be reached")
    assert refused.value.code == "IncompleteBody"
    assert gathering._held == 0


def test_end_is_told_once_and_may_refuse() -> None:
    body, told = body_of(b"12"), []
    body.at_end = lambda: told.append(1)
    with gathered(body) as found:
        assert found == b"12"
    assert told == [1]

    def refuse() -> None:
        raise S3Error("PreconditionFailed")

    for data in (b"12", b""):
        body = body_of(data)
        body.at_end = refuse
        with pytest.raises(S3Error) as refused, gathered(body):
            pass
        assert refused.value.code == "PreconditionFailed"


def test_checksum_of_a_gathered_body_needs_no_footer() -> None:
    crc32 = ALGORITHMS["CRC32"]
    body = ProvenBody(io.BytesIO(b"123456789"), 9, None, {crc32: None})
    headers: dict[str, str] = {}
    assert keep_checksum(body, headers) is not None  # not read yet: it must come later
    with gathered(body):
        assert keep_checksum(body, headers) is None
    assert headers == {CHECKSUM: "CRC32=y/Q5Jg==;type=FULL_OBJECT"}
