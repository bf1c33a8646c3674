"""Turns on a file system whose speed the test decides."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from keelstore.common import disk_calls, disk_turns
from keelstore.common.concurrency import Task, sleep, spawn
from keelstore.common.disk_turns import HOLD_S, PATIENCE_S, WAIT_S, Turn
from keelstore.common.errors import DeviceBusy, DeviceUnavailable
from keelstore.common.pace import CALM_S, HICCUP_S, MORE, SLOW_FOR_S, START, Pace, Volume

MOST = 16


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """Seconds that pass only when a test says so; waits look at it often."""
    now = [1000.0]
    monkeypatch.setattr(disk_calls, "_pace", Pace(lambda: now[0]))
    monkeypatch.setattr(disk_turns, "_LOOK_S", 0.001)
    disk_turns._forget()
    yield now
    disk_turns._forget()


@pytest.fixture
def path(tmp_path) -> str:
    return str(tmp_path)


def volume(path: str) -> Volume:
    return disk_turns._turns_of("d1", path, disk_calls.pace().clock()).volume


def slow(path: str, clock: list[float]) -> Volume:
    found = volume(path)
    found.slow_until = clock[0] + 1000
    return found


def begin(turn: Turn, order: list[Turn]) -> Task:
    def run() -> str:
        try:
            turn.begin()
        except DeviceBusy:
            return "busy"
        order.append(turn)
        return "begun"

    return spawn(run)


def turns(path: str, count: int) -> list[Turn]:
    return [disk_turns.ask(f"d{number % 2}", path, MOST) for number in range(count)]


def test_others_wait_in_order_for_those_at_work(clock, path):
    found, order = turns(path, 8), list[Turn]()
    slow(path, clock)
    tasks = [begin(turn, order) for turn in found]
    sleep(0.01)
    assert order == found[:int(START)]
    for turn in found:
        turn.end()
        sleep(0.01)
    assert order == found and {task.wait() for task in tasks} == {"begun"}
    assert not disk_turns._turns_of("d0", path, clock[0]).at_work


def test_nobody_is_refused_where_nothing_is_slow_and_who_was_patient_is_let_in(clock, path):
    found, order = turns(path, 100), list[Turn]()
    tasks = [begin(turn, order) for turn in found]
    sleep(0.01)
    assert len(order) == START
    clock[0] += PATIENCE_S + 0.1
    assert {task.wait() for task in tasks} == {"begun"}
    assert volume(path).window == 100


def test_slow_file_system_takes_two_rounds_and_refuses_more(clock, path):
    slow(path, clock)
    found = turns(path, 8)
    with pytest.raises(DeviceBusy):
        turns(path, 1)
    found[0].end()
    assert turns(path, 1)
    volume(path).window = 100.0
    assert len(turns(path, 8)) == 8
    with pytest.raises(DeviceBusy):  # no more than the operator allows
        turns(path, 1)


def test_slow_file_system_that_has_recovered_takes_more_if_it_can_end_it_soon(clock, path):
    found = volume(path)
    found.window = 100.0
    found.ended(clock[0] - 2, clock[0], True)
    assert found.is_slow(clock[0]) and found.window == 50.0
    clock[0] += HICCUP_S + 0.1
    found.ended(clock[0] - 2, clock[0], True)
    found.window = 50.0
    turns(path, MOST)
    with pytest.raises(DeviceBusy):
        turns(path, 1)
    clock[0] += CALM_S + 0.1
    found.ended(clock[0] - 0.1, clock[0], True)
    assert found.is_slow(clock[0])
    turns(path, (MORE - 1) * MOST)
    with pytest.raises(DeviceBusy):
        turns(path, 1)
    found.window = 20.0  # what it ends in a second
    for turn in list(disk_turns._turns_of("d0", path, clock[0]).arriving)[39:]:
        turn.end()
    turns(path, 1)
    with pytest.raises(DeviceBusy):
        turns(path, 1)
    found.ended(clock[0] - 2, clock[0], True)
    for turn in list(disk_turns._turns_of("d0", path, clock[0]).arriving)[MOST - 1:]:
        turn.end()
    turns(path, 1)
    with pytest.raises(DeviceBusy):  # it is slow again
        turns(path, 1)


def test_one_slow_moment_refuses_nobody_that_a_few_clients_ask_for(clock, path):
    found = volume(path)
    found.running["first"] = clock[0] - 2
    assert found.is_slow(clock[0]) and len(turns(path, MORE * MOST)) == MORE * MOST  # it has not come back yet
    with pytest.raises(DeviceBusy):
        turns(path, 1)
    found.running.clear()
    found.ended(clock[0] - 2, clock[0], True)
    assert found.window < START
    for turn in list(disk_turns._turns_of("d0", path, clock[0]).arriving)[MOST:]:
        turn.end()
    turns(path, (MORE - 1) * MOST)
    with pytest.raises(DeviceBusy):
        turns(path, 1)
    clock[0] += HICCUP_S + 0.1
    found.ended(clock[0] - 2, clock[0], True)
    clear(path, clock)
    turns(path, int(2 * found.window))
    with pytest.raises(DeviceBusy):  # it was no hiccup
        turns(path, 1)
    clock[0] += SLOW_FOR_S + 0.1
    found.ended(clock[0] - 2, clock[0], True)
    clear(path, clock)
    assert len(turns(path, MORE * MOST)) == MORE * MOST, "a new one, after it was well"


def clear(path, clock):
    for turn in list(disk_turns._turns_of("d0", path, clock[0]).arriving):
        turn.end()


def test_one_that_is_stuck_takes_no_second_round(clock, path):
    found = turns(path, 3)
    for turn in found:
        turn.begin()
    volume(path).running[1] = clock[0] - 5
    with pytest.raises(DeviceBusy):
        turns(path, 1)
    found[0].end()
    assert turns(path, 1)


def test_wait_on_a_slow_file_system_ends(clock, path):
    found, order = turns(path, 6), list[Turn]()
    slow(path, clock)
    tasks = [begin(turn, order) for turn in found]
    sleep(0.01)
    clock[0] += WAIT_S - 0.1
    sleep(0.01)
    assert not any(task.ended for task in tasks[4:])
    clock[0] += 0.2
    assert [task.wait() for task in tasks[4:]] == ["busy"] * 2
    for turn in found:
        turn.end()
    assert turns(path, 8)  # nothing is left of them


def test_clients_that_let_the_disk_wait_lose_their_turn_and_get_it_back_at_once(clock, path):
    found, order = turns(path, 6), list[Turn]()
    slow(path, clock)
    for turn in found[:4]:
        turn.begin()
    for turn in found[1:4]:
        turn.rest()
    tasks = [begin(turn, order) for turn in found[4:]]
    clock[0] += HOLD_S + 0.1
    assert [task.wait() for task in tasks] == ["begun"] * 2
    found[1].begin()
    assert {found[0], found[1]} <= set(disk_turns._turns_of("d0", path, clock[0]).at_work)


def test_bodies_that_come_slowly_keep_nobody_out(clock, path):
    slow(path, clock)
    turns(path, 8)
    clock[0] += HOLD_S + 0.1
    assert len(turns(path, 8)) == 8


def test_waiting_one_that_is_stopped_leaves_nothing(clock, path):
    found, order = turns(path, 5), list[Turn]()
    for turn in found[:4]:
        turn.begin()
    task = begin(found[4], order)
    sleep(0.01)
    task.kill()
    assert not disk_turns._turns_of("d0", path, clock[0]).waiting


def test_no_limit_and_no_device(clock, path):
    for _ in range(100):
        disk_turns.ask("d1", path, 0).begin()
    with pytest.raises(DeviceUnavailable):
        disk_turns.ask("d2", f"{path}/gone", MOST)
