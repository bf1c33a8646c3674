"""The fixed seeds of CI, and that they would find deliberate faults. Each in a process of its own, which makes time virtual."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Each deliberate fault, and seeds of which one at least finds it: python -m test.simulation --seeds 1-20 --fault NAME --stop-at 1
FAULTS = {
    "skip-directory-sync": "1-4",
    "skip-file-sync": "1-4",
    "ignore-a-tombstone": "1-4",
    "delete-a-handoff-after-one-confirmation": "4,1-8",
    "accept-an-older-row": "1-4",
    "drop-an-async-pending": "1-6",
    "expire-without-the-check": "1-6",
    "accept-older-metadata": "1-6",
    "do-not-note-changes": "1-8",
    "empty-the-queue-first": "1-8",
}


def simulate(*arguments: str, limit_s: float = 900) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "test.simulation", *arguments], cwd=ROOT, capture_output=True, text=True,
                          timeout=limit_s)


@pytest.mark.parametrize("seeds", ["1-25", "26-50", "51-75", "76-100"])
def test_the_laws_hold_under_fixed_seeds(seeds: str) -> None:
    done = simulate("--seeds", seeds)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-4000:]


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_a_deliberate_fault_is_found(fault: str) -> None:
    done = simulate("--seeds", FAULTS[fault], "--policy", "copies", "--fault", fault, "--stop-at", "1")
    assert done.returncode == 1 and ", 0 failed" not in done.stdout, done.stdout[-2000:] + done.stderr[-4000:]


def test_a_seed_replays_exactly() -> None:
    stories = [simulate("--seeds", "5", "--story").stdout.split("\nseed 5 (")[0] for _ in range(2)]
    assert stories[0] == stories[1]
    assert len(stories[0].splitlines()) > 100
