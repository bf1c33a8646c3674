import json
from typing import Any

import pytest

from keelstore.common.ring.analyzer import ScenarioError, parse, play
from keelstore.common.ring.builder import RingBuilder
from keelstore.common.ring.errors import BuilderError

SCENARIO: dict[str, Any] = {"part_power": 8, "replicas": 3, "overload": 0.1, "random_seed": 1, "rounds": [
    [["add", f"r1z{zone}-10.0.0.{zone}:6200/a", 100] for zone in (1, 2, 3)],
    [["add", "z4-10.0.0.4:6200/a", 100], ["set_weight", 0, 50]],
    [["remove", 1]]]}


def lines_of(scenario):
    lines: list[str] = []
    play(parse(json.dumps(scenario)), lines.append)
    return lines


def test_rounds_are_played_until_nothing_moves():
    lines = lines_of(SCENARIO)
    assert lines[:3] == ["Round 1", "\tRebalance 1: moved 768 parts, balance is 0.000000, 0 removed devs",
                         "\tRebalance 2: moved 0 parts, balance is 0.000000, 0 removed devs"]
    assert "Round 3" in lines and ", 1 removed devs" in lines[lines.index("Round 3") + 1]
    assert lines == lines_of(SCENARIO)


def test_save_writes_a_builder(tmp_path):
    path = str(tmp_path / "x.builder")
    lines_of({**SCENARIO, "rounds": [SCENARIO["rounds"][0], [["save", path]]]})
    assert RingBuilder.load(path).parts_of(0) == 256


@pytest.mark.parametrize(("change", "text"), [
    ({"part_power": 0}, "part_power must be between 1 and 32"), ({"part_power": "x"}, "part_power is not a number"),
    ({"replicas": 0.5}, "replicas must be at least 1"), ({"overload": -1}, "overload must be non-negative"),
    ({"random_seed": None}, "random_seed is not a number"), ({"rounds": 5}, "rounds must be a list"),
    ({"rounds": [5]}, "round 1 is not a list"), ({"rounds": [[5]]}, "Invalid command"),
    ({"rounds": [[["bogus", 9]]]}, "Unknown command .round 1, command 0.: 'bogus'"),
    ({"rounds": [[["remove"]]]}, "Invalid number of arguments"), ({"rounds": [[["remove", "x"]]]}, "Invalid argument"),
    ({"rounds": [[["add", "zz", 1]]]}, "Invalid add value"), ({"rounds": [[["set_weight", 1, "x"]]]}, "Invalid argument")])
def test_bad_scenarios_are_refused(change, text):
    with pytest.raises(ScenarioError, match=text):
        parse(json.dumps({**SCENARIO, **change}))


def test_missing_fields_and_bad_json():
    for key in SCENARIO:
        with pytest.raises(ScenarioError, match=f"{key} missing"):
            parse(json.dumps({name: value for name, value in SCENARIO.items() if name != key}))
    for text in ("", "{", "[]", "[" * 100000):
        with pytest.raises(ScenarioError):
            parse(text)


def test_a_device_that_is_not_there():
    with pytest.raises(BuilderError, match="There is no device with id 9"):
        lines_of({**SCENARIO, "rounds": [SCENARIO["rounds"][0], [["remove", 9]]]})
