"""What relinkers left, as a node tells it."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from keelstore.common.node_health import health, look_at_device, relinking_of
from keelstore.common.recon_cache import ReconCache
from keelstore.common.room import PLENTY, Reserve


def left(*done: int, pid: int = 0, code: int | None = 0) -> dict[str, Any]:
    return {"workers": {str(pid): {"devices": ["d"], "timestamp": 1.0, "return_code": code}}, "devices": {
        f"d{number}": {"policies": {"1": {"step": "relink", "part_power": 3, "next_part_power": 4, "parts_done": count, "total_parts": 5,
                                          "timestamp": 10.0 + number, "stats": {"errors": number}}}}
        for number, count in enumerate(done)}}


def test_devices_are_added_up() -> None:
    told = {"step": "relink", "part_power": 3, "next_part_power": 4, "parts_done": 7, "total_parts": 10, "errors": 1, "devices": 2,
            "at": 11.0, "running": False}
    assert relinking_of(left(5, 2)) == {"1": told}
    assert relinking_of(left(5, 2, pid=os.getpid(), code=None)) == {"1": {**told, "running": True}}
    assert relinking_of(left(5, 2, pid=1 << 30, code=None)) == {"1": told}, "it was killed"
    assert relinking_of({}) == {}


@pytest.mark.parametrize("value", [
    {"devices": 1}, {"devices": {"d": 1}}, {"devices": {"d": {}}}, {"devices": {"d": {"policies": {"0": {}}}}}, {"workers": {"x": {}}},
    {"workers": []}])
def test_a_file_of_another_kind_is_as_good_as_none(value: dict[str, Any]) -> None:
    assert relinking_of(value) == {}


def test_object_servers_tell_it(tmp_path: Path) -> None:
    ReconCache(str(tmp_path)).update("relinker", left(5))

    def told(role: str) -> Any:
        return health(role, str(tmp_path), str(tmp_path), False, Reserve.parse("0"), {}, None, 1.0, 1.0)["relinker"]

    assert told("object")["1"]["parts_done"] == 5
    assert told("container") == {}


def test_a_device_is_full_as_soon_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room = SimpleNamespace(f_frsize=1, f_bavail=4 * PLENTY, f_bfree=4 * PLENTY, f_blocks=5 * PLENTY, f_flag=0)
    monkeypatch.setattr(os, "statvfs", lambda target: room)
    reserve = Reserve.parse("1%")
    assert reserve.allows(str(tmp_path)), "and a write that comes now would not look again"
    room.f_bavail = room.f_bfree = 0
    found = look_at_device(str(tmp_path), False, reserve)
    assert found and found["is_full"]
