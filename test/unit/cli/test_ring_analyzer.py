import json
from typing import Any

import pytest

from keelstore.cli import ring_analyzer

SCENARIO: dict[str, Any] = {"part_power": 6, "replicas": 3, "overload": 0, "random_seed": 1, "rounds": [
    [["add", f"r1z{zone}-10.0.0.{zone}:6200/a", 100] for zone in (1, 2, 3)], [["remove", 7]]]}


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def call(*args):
        code = ring_analyzer.main(["keelstore-ring-builder-analyzer", *args])
        out, err = capsys.readouterr()
        return code, out, err
    return call


def test_a_scenario_is_played(run, tmp_path):
    (tmp_path / "s.json").write_text(json.dumps({**SCENARIO, "rounds": SCENARIO["rounds"][:1]}))
    assert run("s.json") == (0, "Round 1\n\tRebalance 1: moved 192 parts, balance is 0.000000, 0 removed devs\n"
                                "\tRebalance 2: moved 0 parts, balance is 0.000000, 0 removed devs\n", "")
    assert run("--check", "s.json") == (0, "", "")


def test_errors_are_clear(run, tmp_path):
    assert run("no.json") == (1, "", "Error opening scenario no.json: No such file or directory\n")
    (tmp_path / "bad.json").write_text('{"a": 1}')
    assert run("bad.json") == (1, "", "Invalid scenario bad.json: part_power missing\n")
    (tmp_path / "s.json").write_text(json.dumps(SCENARIO))
    code, _, err = run("s.json")
    assert (code, err) == (1, "Scenario s.json failed: There is no device with id 7\n")
    assert run()[0] == 2
