"""bin/run-tests: what goes wrong in the script itself fails the run."""

from __future__ import annotations

import sys
import threading
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    spec = spec_from_loader("run_tests", SourceFileLoader("run_tests", str(Path(__file__).resolve().parents[2] / "bin/run-tests")))
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def fail(*arguments: Any) -> Any:
    raise RuntimeError("no such thing")


def test_a_kind_that_cannot_be_run_has_failed_and_is_not_run_again(script: Any, monkeypatch: pytest.MonkeyPatch,
                                                                 capsys: pytest.CaptureFixture[str]) -> None:
    ran: list[str] = []

    def pytest_of(python: str, kind: str, *others: Any) -> tuple[bool, dict[str, int]]:
        ran.append(kind)
        return fail() if kind == "unit" else (True, {"passed": 1})

    for name, value in (("pytest", pytest_of), ("lint", lambda *_: (True, {})), ("conformance", lambda *_: (True, {})),
                        ("install_programs", lambda: None)):
        monkeypatch.setattr(script, name, value)
    monkeypatch.setattr(sys, "argv", ["run-tests"])
    for name in ("PATH", "PYTHONPATH"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("KEELSTORE_PYTHON", sys.executable)
    assert script.main() == 1
    assert sorted(ran) == sorted({"unit", "simulation", "interop", "functional", "fault"})
    out = capsys.readouterr().out
    assert "unit         FAILED 1 errors" in out and "unit: RuntimeError('no such thing')" in out and "simulation   ok" in out


def test_a_store_that_cannot_be_made_fails_conformance(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "conform", fail)
    ok: list[bool] = []
    total: dict[str, int] = {}
    script.conform_one("python", (1, "--nodes 4", "x"), ok, total, threading.Lock(), script.Shown(True))
    assert ok == [False] and total == {"errors": 1} and script.FAILED == ["conformance 1: RuntimeError('no such thing')"]
