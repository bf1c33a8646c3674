from __future__ import annotations

import os

import pytest

from keelstore.common import fs
from keelstore.common.errors import DeviceFull
from keelstore.common.room import Reserve, allocate


@pytest.mark.parametrize(
    ("text", "amount", "is_percent"), [("1%", 1, True), ("0", 0, False), (" 1024 ", 1024, False), ("2.5%", 2.5, True)]
)
def test_reserve_is_bytes_or_percent(text, amount, is_percent):
    assert Reserve.parse(text) == Reserve(amount, is_percent)


@pytest.mark.parametrize("text", ["", "%", "x", "-1", "-1%", "101%", "1.5", "nan%"])
def test_reserve_that_is_none_says_what_was_expected(text):
    with pytest.raises(ValueError, match="number of bytes"):
        Reserve.parse(text)


class _Room:
    f_frsize, f_bavail, f_blocks = 1, 50, 1000


@pytest.mark.parametrize(
    ("reserve", "size", "expected"),
    [
        ("50", 0, True), ("51", 0, False), ("50", 1, False), ("49", 1, False), ("48", 1, True), ("5%", 0, True), ("5%", 1, False),
        ("4%", 9, True), ("4%", 10, False), ("0", 100, True), ("0%", 100, True),
    ],
)  # fmt: skip
def test_reserve_compares_as_the_field_does(monkeypatch, reserve, size, expected):
    monkeypatch.setattr(os, "statvfs", lambda target: _Room)
    assert Reserve.parse(reserve).allows("x", size) is expected
    if not expected:
        with pytest.raises(DeviceFull):
            Reserve.parse(reserve).check("x", size)


def test_allocation_takes_room_and_keeps_the_length(tmp_path):
    new = fs.create_file(str(tmp_path))
    allocate(new.fd, 1 << 20)
    found = os.fstat(new.fd)
    assert found.st_size == 0 and found.st_blocks * 512 >= 1 << 20
    with pytest.raises(DeviceFull):
        allocate(new.fd, 1 << 43)
    new.discard()
