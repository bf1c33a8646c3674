from __future__ import annotations

import os
import time
from types import SimpleNamespace

import pytest

from keelstore.common import fs
from keelstore.common.errors import DeviceFull
from keelstore.common.room import PLENTY, PLENTY_S, Reserve, allocate


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


@pytest.fixture
def rooms(monkeypatch):
    """The free bytes that are found, to be changed, and how often they were looked at."""
    room = {"free": 4 * PLENTY, "looks": 0, "now": 100.0}

    def statvfs(target):
        room["looks"] += 1
        return SimpleNamespace(f_frsize=1, f_bavail=room["free"], f_blocks=100 * PLENTY)

    monkeypatch.setattr(os, "statvfs", statvfs)
    monkeypatch.setattr(time, "monotonic", lambda: room["now"])
    return room


def test_a_device_with_plenty_is_not_looked_at_each_time(rooms):
    reserve = Reserve.parse("1%")
    assert reserve.allows("/srv/d1") and reserve.allows("/srv/d1", 4096) and rooms["looks"] == 1
    assert reserve.allows("/srv/d2") and rooms["looks"] == 2
    assert Reserve.parse("1%").allows("/srv/d1") and rooms["looks"] == 3
    rooms["free"] = 0
    assert reserve.allows("/srv/d1", 4096)
    assert not reserve.allows("/srv/d1", PLENTY)
    rooms["now"] += PLENTY_S
    assert not reserve.allows("/srv/d1", 4096) and not reserve.allows("/srv/d1")


def test_a_device_that_may_soon_be_full_is_looked_at_each_time(rooms):
    reserve = Reserve.parse(str(PLENTY))
    rooms["free"] = 3 * PLENTY
    assert reserve.allows("/srv/d1", 4096) and reserve.allows("/srv/d1") and rooms["looks"] == 2
    assert reserve.allows(7) and reserve.allows(7) and rooms["looks"] == 4
