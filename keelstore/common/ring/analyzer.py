"""What a plan of changes would do to a ring, round after round, without one. Pure, but for its ``save`` command.

A scenario is JSON: ``part_power``, ``replicas``, ``overload``, ``random_seed``, and ``rounds``, a list of lists of commands:
``["add", "<add value>", weight]``, ``["remove", id]``, ``["set_weight", id, weight]``, ``["save", "<builder file>"]``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from keelstore.common.ring.builder import MAX_BALANCE, RingBuilder
from keelstore.common.ring.devices import DEFAULT_REGION, RingDevice, parse_add_value
from keelstore.common.ring.errors import RingError

Command = Callable[[RingBuilder], None]
MAX_REBALANCES = 1000  # in one round; each brings the balance nearer, so this is never met


class ScenarioError(RingError):
    """A scenario that cannot be played."""


@dataclass(frozen=True)
class Scenario:
    part_power: int
    replicas: float
    overload: float
    random_seed: int
    rounds: tuple[tuple[Command, ...], ...]


def parse(text: str | bytes) -> Scenario:
    """The scenario of a file's text. Raises ScenarioError."""
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ScenarioError(f"Invalid JSON in scenario file: {error}") from None
    if not isinstance(raw, dict):
        raise ScenarioError("scenario is not a JSON object")
    part_power = int(_number(raw, "part_power", int))
    replicas, overload = _number(raw, "replicas", float), _number(raw, "overload", float)
    seed = int(_number(raw, "random_seed", int))
    if not 1 <= part_power <= 32:
        raise ScenarioError(f"part_power must be between 1 and 32, but is {part_power}")
    if not replicas >= 1:
        raise ScenarioError(f"replicas must be at least 1, but is {replicas:f}")
    if not overload >= 0:
        raise ScenarioError(f"overload must be non-negative, but is {overload:f}")
    if not isinstance(raw.get("rounds"), list):
        raise ScenarioError("rounds must be a list" if "rounds" in raw else "rounds missing")
    rounds = []
    for number, commands in enumerate(raw["rounds"], 1):
        if not isinstance(commands, list):
            raise ScenarioError(f"round {number} is not a list of commands")
        rounds.append(tuple(_command(item, f"round {number}, command {place}") for place, item in enumerate(commands)))
    return Scenario(part_power, replicas, overload, seed, tuple(rounds))


def _number(raw: dict[str, Any], key: str, kind: type) -> float:
    if key not in raw:
        raise ScenarioError(f"{key} missing")
    try:
        return float(kind(raw[key]))
    except (TypeError, ValueError, OverflowError):
        raise ScenarioError(f"{key} is not a number: {raw[key]!r}") from None


def _command(item: Any, where: str) -> Command:
    if not isinstance(item, list) or not item:
        raise ScenarioError(f"Invalid command ({where}): {item!r}")
    name, *args = item
    makers: dict[str, tuple[int, Callable[..., Command]]] = {
        "add": (2, _add), "remove": (1, _remove), "set_weight": (2, _set_weight), "save": (1, _save)}
    if not isinstance(name, str) or name not in makers:
        raise ScenarioError(f"Unknown command ({where}): {name!r} should be one of {', '.join(makers)}")
    count, make = makers[name]
    if len(args) != count:
        raise ScenarioError(f"Invalid number of arguments ({where}): {name} takes {count}, not {len(args)}")
    try:
        return make(*args)
    except (TypeError, ValueError) as error:
        raise ScenarioError(f"Invalid argument ({where}): {error}") from None


def _add(value: str, weight: float) -> Command:
    fields = parse_add_value(str(value))
    if fields["region"] is None:
        fields["region"] = DEFAULT_REGION
    device = RingDevice(**fields, weight=float(weight))

    def run(builder: RingBuilder) -> None:
        builder.add_device(device)
    return run


def _remove(device_id: int) -> Command:
    number = int(device_id)
    return lambda builder: builder.remove(number)


def _set_weight(device_id: int, weight: float) -> Command:
    number, new = int(device_id), float(weight)
    return lambda builder: builder.set_weight(number, new)


def _save(path: str) -> Command:
    return lambda builder: builder.save(str(path))


def play(scenario: Scenario, say: Callable[[str], None]) -> None:
    """Carry a scenario out and say, line by line, what each rebalance did. Raises RingError."""
    builder = RingBuilder(scenario.part_power, scenario.replicas, 1)
    builder.set_overload(scenario.overload)
    now = 0.0
    for number, commands in enumerate(scenario.rounds, 1):
        say(f"Round {number}")
        for command in commands:
            command(builder)
        balance: float | None = None
        for attempt in range(1, MAX_REBALANCES + 1):
            now += 3600
            done = builder.rebalance(now, scenario.random_seed)
            builder.pretend_min_part_hours_passed()
            say(f"\tRebalance {attempt}: moved {done.changed} parts, balance is {done.balance:.6f}, "
                f"{done.removed} removed devs")
            if not done.changed and not done.removed:
                break
            if balance is not None and abs(done.balance - balance) < 1 and not balance == done.balance == MAX_BALANCE:
                break
            balance = done.balance
