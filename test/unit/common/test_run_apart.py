"""Green threads that are kept for calls, and the time limits of calls."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import greenlet
import pytest

from keelstore.common import concurrency
from keelstore.common.concurrency import Event, run_apart, spawn
from keelstore.common.errors import WaitTimeout


def kept_at_work():
    """One of the green threads that are kept: the hub makes them when a call finds none. None that others need is in use."""
    run_apart(1, greenlet.getcurrent)
    concurrency.sleep(0)
    return run_apart(1, greenlet.getcurrent)


def test_run_apart_keeps_its_green_threads():
    first = kept_at_work()
    assert all(run_apart(1, greenlet.getcurrent) is first for _ in range(5))
    assert not first.dead
    with pytest.raises(KeyError):
        run_apart(1, {}.__getitem__, 1)
    assert run_apart(1, greenlet.getcurrent) is first


def test_kept_green_threads_are_free_again_after_calls_that_nobody_waited_for():
    first = kept_at_work()
    go, ended = Event(), Event()

    def slow():
        go.wait(5)
        ended.set(greenlet.getcurrent())
        raise KeyError("unheard")

    with pytest.raises(WaitTimeout):
        run_apart(0.0125, slow)
    assert run_apart(1, greenlet.getcurrent) is not first
    go.set()
    assert ended.wait(1) is first
    concurrency.sleep(0)
    assert run_apart(1, greenlet.getcurrent) is first


def test_time_limits_of_one_length_end_in_their_order():
    ended = []

    def limited(number, seconds):
        try:
            run_apart(0.1, concurrency.sleep, seconds)
        except WaitTimeout:
            ended.append(number)

    tasks = [spawn(limited, number, 0 if number % 2 else 60) for number in range(8)]
    for task in tasks:
        task.wait()
    assert ended == [0, 2, 4, 6]
    assert run_apart(0.1, lambda: "in time") == "in time"
    concurrency.sleep(0.15)  # nothing that has ended falls due


def test_a_caller_that_dies_of_its_limit_leaves_the_others_theirs():
    tasks = [spawn(run_apart, 0.1, concurrency.sleep, 60) for _ in range(3)]
    for task in tasks:
        with concurrency.time_limit(10, AssertionError("its limit never came")), pytest.raises(WaitTimeout):
            task.wait()


def test_start_all_begins_each_in_order_and_loses_what_they_raise():
    begun, go, ended = [], Event(), Event()

    def work(number):
        begun.append(number)
        if number == 1:
            raise KeyError("unheard")
        go.wait(5)
        begun.append(-number)
        if len(begun) == 5:
            ended.set()

    concurrency.start_all([partial(work, number) for number in (1, 2, 3)])
    assert not begun
    concurrency.sleep(0.001)
    assert begun == [1, 2, 3]
    go.set()
    ended.wait(5)
    assert sorted(begun[3:]) == [-3, -2]


def test_run_apart_on_other_native_threads():
    def work():
        return [run_apart(1, lambda: concurrency.sleep(0) or "waited") for _ in range(3)]

    with ThreadPoolExecutor(2) as threads:
        assert [future.result() for future in [threads.submit(work) for _ in range(4)]] == [["waited"] * 3] * 4
