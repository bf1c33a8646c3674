"""bin/run-tests: what goes wrong in the script itself fails the run."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest

from test.support.store import alive
from test.support.waiting import until

PATH = Path(__file__).resolve().parents[2] / "bin/run-tests"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    spec = spec_from_loader("run_tests", SourceFileLoader("run_tests", str(PATH)))
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def fail(*arguments: Any) -> Any:
    raise RuntimeError("no such thing")


def test_a_kind_that_cannot_be_run_has_failed_and_is_not_run_again(script: Any, monkeypatch: pytest.MonkeyPatch,
                                                                 capsys: pytest.CaptureFixture[str]) -> None:
    ran: list[str] = []

    def pytest_of(python: str, arguments: list[str], *others: Any) -> tuple[bool, dict[str, int]]:
        ran.append(" ".join(arguments))
        return fail() if "test/unit" in arguments else (True, {"passed": 1})

    for name, value in (("pytest", pytest_of), ("lint", lambda *_: (True, {})), ("conformance", lambda *_: (True, {})),
                        ("install_programs", lambda: None)):
        monkeypatch.setattr(script, name, value)
    monkeypatch.setattr(sys, "argv", ["run-tests"])
    for name in ("PATH", "PYTHONPATH"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("KEELSTORE_PYTHON", sys.executable)
    assert script.main() == 1
    parts = [" ".join(arguments) for kind in script.PARTS.values() for arguments in kind.values()]
    assert sorted(ran) == sorted(["test/unit", "test/simulation", "test/interop", *parts])
    out = capsys.readouterr().out
    assert "unit             FAILED 1 errors" in out and "unit: RuntimeError('no such thing')" in out and "simulation       ok" in out
    assert "fault 1          ok     1 passed" in out


def test_each_test_is_in_one_part(script: Any) -> None:
    assert all((PATH.parents[1] / f"test/fault/test_{name}.py").exists() for name in script.HALF)
    first, second, alone = (script.PARTS["fault"][part] for part in ("fault 1", "fault 2", "fault alone"))
    assert [word.partition("=")[2] for word in second if word.startswith("--ignore")] == [word for word in first if word.endswith(".py")]
    assert first[-1] == second[-1] == "not alone" and (second[0], *alone) == ("test/fault", "test/fault", "-m", "alone")
    assert script.PARTS["functional"] == {"functional": ["test/functional", "-m", "not alone"], "functional alone": ["test/functional", "-m", "alone"]}


def test_arguments_of_pytest_go_to_one_run_of_each_kind(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []

    def pytest_of(python: str, arguments: list[str], shown: Any) -> tuple[bool, dict[str, int]]:
        ran.append(arguments)
        return True, {"passed": 1}

    monkeypatch.setattr(script, "pytest", pytest_of)
    monkeypatch.setattr(script, "install_programs", lambda: None)
    monkeypatch.setattr(sys, "argv", ["run-tests", "functional", "fault", "--", "-k", "x"])
    monkeypatch.setenv("KEELSTORE_PYTHON", sys.executable)
    for name in ("PATH", "PYTHONPATH"):
        monkeypatch.setenv(name, "")
    assert script.main() == 0
    assert ran == [["test/functional", "-k", "x"], ["test/fault", "-k", "x"]]


def test_runs_beside_each_other_have_ports_of_their_own(script: Any) -> None:
    ranges = [tuple(map(int, ports.split("-"))) for ports in script.PORTS]
    assert len(ranges) >= 4 and all(low < high <= 30_000 for low, high in ranges)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(ranges))
    shown = script.Shown(True)
    said = "import os; print(os.environ['KEELSTORE_TEST_PORTS'])"
    assert script.execute([sys.executable, "-c", said], shown)[0] and "".join(shown.parts).strip() == "{}-{}".format(*ranges[0])
    assert sorted(script.PORTS) == sorted("{}-{}".format(*one) for one in ranges)


def test_a_store_that_cannot_be_made_fails_conformance(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "conform", fail)
    ok: list[bool] = []
    total: dict[str, int] = {}
    script.conform_one("python", (1, "--nodes 4", "x"), ok, total, threading.Lock(), script.Shown(True))
    assert ok == [False] and total == {"errors": 1} and script.FAILED == ["conformance 1: RuntimeError('no such thing')"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_stops_it_stops_what_runs_and_begins_nothing_more(script: Any, tmp_path: Path, number: signal.Signals) -> None:
    python, begun = tmp_path / "python", tmp_path / "begun"
    python.write_text(f"#!/bin/sh\necho $$ >> {begun}\nexec sleep 60\n")
    python.chmod(0o755)
    for program in script.PROGRAMS:
        (tmp_path / program).symlink_to("/bin/true")
    env = {**os.environ, "KEELSTORE_PYTHON": str(python), "SHARED": str(tmp_path / "none")}
    run = subprocess.Popen(["sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, str(PATH), "lint", "functional"], env=env,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        until(lambda: begun.read_text().endswith("\n"), "the first command runs")
        run.send_signal(number)
        out, _ = run.communicate(timeout=20)
    finally:
        run.kill()
        pids = [int(line) for line in begun.read_text().split()]
        for pid in filter(alive, pids):
            os.kill(pid, signal.SIGKILL)
    assert run.returncode == 130 and len(pids) == 1, out


def test_results_of_an_earlier_run_are_not_told(script: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(script.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(script, "execute", lambda *_: (False, {}))
    old = tmp_path / "keelstore-conformance-results" / "7" / "failed.txt"
    old.parent.mkdir(parents=True)
    old.write_text("test_of_yesterday\n")
    assert script.conform("python", 7, "--nodes 4", ["x"], script.Shown(True)) == (False, {})
    assert script.FAILED == []
