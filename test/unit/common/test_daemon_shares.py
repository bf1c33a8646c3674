"""What several processes of one daemon leave for recon together."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelstore.common import daemon_shares
from keelstore.common.daemon_shares import combined
from keelstore.common.recon_cache import ReconCache

FIRST = {"running": True, "done": 3, "total": 9, "eta_s": None, "begun": 10.0, "passes": 2, "partitions_below_full": 4, "queued": 1,
         "peers_down": ["a:1"], "per_device": {"d1": {"done": 3}}, "pid": 7}
SECOND = {"running": False, "done": 5, "total": 5, "eta_s": 2.5, "begun": 12.0, "passes": 3, "partitions_below_full": 6, "queued": 2,
          "peers_down": ["a:1", "b:1"], "per_device": {"d2": {"done": 5}}, "pid": 7}


def test_what_two_come_to() -> None:
    assert combined([FIRST, {**SECOND, "pid": None}]) == {
        "running": True, "done": 8, "total": 14, "eta_s": 2.5, "begun": 10.0, "passes": 2, "partitions_below_full": 6, "queued": 3,
        "peers_down": ["a:1", "b:1"], "per_device": {"d1": {"done": 3}, "d2": {"done": 5}}, "pid": 7}
    assert combined([FIRST, {**SECOND, "total": None}])["total"] is None


@given(st.permutations([FIRST, SECOND, {**FIRST, "done": 1, "peers_down": []}]))
def test_the_order_does_not_matter(states: list[dict[str, Any]]) -> None:
    states = [{**state, "pid": None} for state in states]
    assert combined(states) == combined(states[::-1])


def test_each_process_changes_its_own_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recon = ReconCache(str(tmp_path))

    def entry() -> dict[str, Any]:
        found = recon.read("daemons")["daemons"]["x"]
        assert isinstance(found, dict)
        return found

    recon.update("daemons", {"daemons": {"y": {"done": 1}}, "workers": {"xy d1": {"parent": os.getppid()}}})
    daemon_shares.leave(recon, "x", frozenset({"d1", "d3"}), {"done": 1})
    daemon_shares.leave(recon, "x", frozenset({"d2"}), {"done": 2})
    assert entry() == {"done": 3, "pid": os.getppid()}
    daemon_shares.leave(recon, "x", frozenset({"d1", "d3"}), {"done": 10})
    assert entry()["done"] == 12
    daemon_shares.leave(recon, "x", frozenset({"d0", "d2"}), {"done": 5})  # dealt out anew
    assert entry()["done"] == 15 and sorted(recon.read("daemons")["workers"]) == ["x d0", "x d1", "xy d1"]
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: 1 << 30)
        daemon_shares.leave(recon, "x", frozenset({"d4"}), {"done": 100})
        daemon_shares.leave(recon, "x", frozenset({"d5"}), {"done": 1000}, may_end=True)
    assert entry()["done"] == 1115
    daemon_shares.leave(recon, "x", frozenset({"d5"}), {"done": 0}, may_end=True)
    daemon_shares.leave(recon, "x", frozenset({"d0", "d2"}), {"done": 5})  # d4 is removed, and its process ends
    assert entry()["done"] == 15
    monkeypatch.setattr(os, "getppid", lambda: 1)  # started anew
    daemon_shares.leave(recon, "x", frozenset({"d2"}), {"done": 7})
    assert entry() == {"done": 7, "pid": 1} and recon.read("daemons")["daemons"]["y"] == {"done": 1}
