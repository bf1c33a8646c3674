"""The fixed seeds of CI, and that they would find deliberate faults. Each run is a process of its own, which makes time virtual;
two run at a time.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROCESSES = min(2, os.cpu_count() or 1)
LIMIT_S = 900.0
SEEDS = ("1-20", "21-40", "41-60", "61-80", "81-100")
pytestmark = pytest.mark.timeout(LIMIT_S)
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
LAW = re.compile(r"^seed \d+: \([a-g]\) ", re.MULTILINE)
REPLAYED = ("5", "7")  # of copies, and of fragments
Done = subprocess.CompletedProcess[str]


def _arguments(run: str) -> list[str]:
    """What the run of a test's id is told."""
    if run in FAULTS:
        return ["--seeds", FAULTS[run], "--policy", "copies", "--fault", run, "--stop-at", "1"]
    return ["--seeds", run.partition(" ")[0], *(["--story"] if " " in run else [])]


def _simulate(run: str) -> Done:
    return subprocess.run([sys.executable, "-m", "test.simulation", *_arguments(run)], cwd=ROOT, capture_output=True, text=True,
                          timeout=LIMIT_S)


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[Done]]]:
    """Of all tests of this module that were chosen, begun in their order."""
    wanted: list[str] = []
    for item in request.session.items:
        if item.path == Path(__file__):
            wanted += item.callspec.params["run"].split("|")  # type: ignore[attr-defined]
    pool = ThreadPoolExecutor(PROCESSES)
    yield {run: pool.submit(_simulate, run) for run in wanted}
    pool.shutdown(cancel_futures=True)


@pytest.fixture
def result(runs: dict[str, Future[Done]]) -> Callable[[str], Done]:
    return lambda run: runs[run].result()


@pytest.mark.parametrize("run", SEEDS)
def test_the_laws_hold_under_fixed_seeds(run: str, result: Callable[[str], Done]) -> None:
    done = result(run)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-4000:]


@pytest.mark.parametrize("run", sorted(FAULTS))
def test_a_deliberate_fault_is_found(run: str, result: Callable[[str], Done]) -> None:
    done = result(run)
    assert done.returncode == 1 and ", 1 failed: " in done.stdout, done.stdout[-2000:] + done.stderr[-4000:]
    # by a law that is broken, not because the harness is
    assert LAW.search(done.stdout) and "the simulation failed" not in done.stdout, done.stdout[-6000:]


@pytest.mark.parametrize("run", [f"{seed} once|{seed} again" for seed in REPLAYED])
def test_a_seed_replays_exactly(run: str, result: Callable[[str], Done]) -> None:
    first, second = (result(one).stdout.rpartition("\nseed ")[0] for one in run.split("|"))
    assert first == second
    assert len(first.splitlines()) > 100
