"""Recon files: merging, locking, and that nothing wrong with them stops a daemon."""

from __future__ import annotations

import fcntl
import logging
from pathlib import Path

import pytest

from keelstore.common import recon_cache
from keelstore.common.recon_cache import ReconCache, merged


@pytest.mark.parametrize(("known", "new", "expected"), [
    ({}, {"a": 1}, {"a": 1}),
    ({"a": 1, "b": 2}, {"a": 3}, {"a": 3, "b": 2}),
    ({"a": {"x": 1}}, {"a": {"y": 2}}, {"a": {"x": 1, "y": 2}}),
    ({"a": {"x": 1, "y": 2}}, {"a": {"x": {}}}, {"a": {"y": 2}}),
    ({"a": {"x": 1}}, {"a": {"x": {}}}, {}),
    ({"a": {"x": 1}, "b": 1}, {"a": {}}, {"b": 1}),
    ({"a": 1}, {"a": {"x": 1}}, {"a": {"x": 1}}),
    ({"a": {"x": {"deep": 1}}}, {"a": {"x": {"other": 2}}}, {"a": {"x": {"other": 2}}}),
])  # fmt: skip
def test_merging_is_one_level_deep(known: dict, new: dict, expected: dict) -> None:
    assert merged(known, new) == expected


def test_a_file_is_one_line_with_sorted_keys(tmp_path: Path) -> None:
    cache = ReconCache(str(tmp_path))
    cache.update("object", {"b": 1, "a": {"y": 1, "x": 2}})
    cache.update("object", {"c": None})
    assert (tmp_path / "object.recon").read_text() == '{"a": {"x": 2, "y": 1}, "b": 1, "c": null}\n'
    assert cache.read("object")["b"] == 1
    assert cache.read("account") == {}


def test_what_is_not_a_recon_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "object.recon").write_text("[[[")
    ReconCache(str(tmp_path)).update("object", {"a": 1})
    assert ReconCache(str(tmp_path)).read("object") == {"a": 1}


def test_failure_is_logged_and_forgotten(tmp_path: Path, caplog: pytest.LogCaptureFixture,
                                         monkeypatch: pytest.MonkeyPatch) -> None:
    logger = logging.getLogger("test.recon")
    ReconCache(str(tmp_path / "absent"), logger).update("object", {"a": 1})
    monkeypatch.setattr(recon_cache, "LOCK_WAIT_S", 0.02)
    with open(tmp_path / "object.recon", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        ReconCache(str(tmp_path), logger).update("object", {"a": 1})
    ours = [record.levelname for record in caplog.records if record.name == "test.recon"]  # servers of earlier tests may still speak
    assert ours == ["ERROR", "ERROR"]
    assert "lock" in caplog.text
