"""Green threads, bounded waits."""

import gc
import os
import weakref

import pytest

from keelstore.common import concurrency
from keelstore.common.concurrency import Event, Pool, Queue, Semaphore, run_apart, spawn, time_limit
from keelstore.common.errors import WaitTimeout

# -- green threads


def test_task_gives_what_its_function_gives_or_raises():
    assert spawn(lambda a, b: a + b, 1, b=2).wait() == 3
    with pytest.raises(KeyError):
        spawn({}.__getitem__, 1).wait()


def test_killed_task_ends_at_its_wait():
    ended = Event()

    def work():
        try:
            concurrency.sleep(10)
        finally:
            ended.set(1)

    task = spawn(work)
    concurrency.sleep(0)
    task.kill()
    assert ended.wait(1) == 1 and task.ended
    task.kill()


def test_event_is_set_once_for_all():
    event = Event()
    waiters = [spawn(event.wait) for _ in range(3)]
    assert not event.is_set
    event.set(1)
    event.set(2)
    assert [waiter.wait() for waiter in waiters] == [1, 1, 1] and event.wait(0.01) == 1 and event.is_set
    with pytest.raises(WaitTimeout):
        Event().wait(0.01)


def test_queue_is_bounded_both_ways():
    queue = Queue(2)
    with pytest.raises(WaitTimeout):
        queue.get(0.01)
    queue.put(1), queue.put(2)
    with pytest.raises(WaitTimeout):
        queue.put(3, 0.01)
    assert (queue.get(), queue.get(), len(queue)) == (1, 2, 0)


def test_semaphore_and_pool():
    semaphore = Semaphore(1)
    with semaphore:
        assert not semaphore.acquire(0.01)
    assert semaphore.acquire(0.01)
    semaphore.release()
    pool, go = Pool(2), Event()
    pool.start(go.wait), pool.start(go.wait)
    assert (pool.free(), pool.running()) == (0, 2)
    go.set()
    pool.wait_all()
    assert pool.free() == 2


def test_time_limit_bounds_waits_with_an_ordinary_error():
    with pytest.raises(WaitTimeout) as caught, time_limit(0.01):
        concurrency.sleep(5)
    assert isinstance(caught.value, Exception)
    with pytest.raises(KeyError), time_limit(0.01, KeyError()):
        concurrency.sleep(5)
    with time_limit(0.01), time_limit(None):
        pass
    concurrency.sleep(0.02)


def test_time_limits_of_one_length_end_in_any_order():
    ended = []

    def work(number, seconds):
        try:
            with time_limit(0.1):
                concurrency.sleep(seconds)
            ended.append((number, "done"))
        except WaitTimeout:
            ended.append((number, "late"))

    for task in [spawn(work, number, seconds) for number, seconds in enumerate((5, 0, 5, 0.01))]:
        task.wait()
    assert sorted(ended) == [(0, "late"), (1, "done"), (2, "late"), (3, "done")]
    with pytest.raises(WaitTimeout), time_limit(0.1), time_limit(3.0):  # the inner has not ended when the outer is due
        concurrency.sleep(5)


def test_limits_that_ended_are_not_kept_behind_one_that_lasts(monkeypatch):
    monkeypatch.setattr(concurrency, "MOST_ENDED", 8)
    limits = concurrency._crew().limits(61.0)
    with time_limit(61.0):
        others = [limits.begin(object()) for _ in range(4)]
        for _ in range(100):
            with time_limit(61.0):
                pass
        assert len(limits._running) < 25
        for entry in others:
            limits.end(entry)
    for _ in range(20):
        limits.end(limits.begin(object()))
    assert not limits._running and not limits._ended


def test_who_waits_anew_when_a_limit_ends_leaves_one_timer(monkeypatch):
    calls = []
    on_due = concurrency.Limits._on_due
    monkeypatch.setattr(concurrency.Limits, "_on_due", lambda self: (calls.append(self.seconds), on_due(self)))

    def waits():
        for _ in range(20):
            with pytest.raises(WaitTimeout):
                Event().wait(0.1)

    spawn(waits).wait()
    assert 20 <= calls.count(0.1) <= 25


def test_a_wait_that_is_over_keeps_nothing_of_who_waited():
    class Body:
        pass

    def waits():
        body = Body()
        bodies.append(weakref.ref(body))
        with pytest.raises(WaitTimeout):
            concurrency.wait_for(reader, False, 0.01)

    reader, writer = os.pipe()
    bodies = []
    gc.disable()
    try:
        spawn(waits).wait()
        assert bodies[0]() is None
    finally:
        gc.enable()
        os.close(reader)
        os.close(writer)


class Hub:
    """Its timers go off when the test says so; green threads are lists of what was thrown at them."""

    def __init__(self):
        self.now, self.timers = 100.0, []

    def clock(self):
        return self.now

    def schedule_call_global(self, seconds, function):
        self.timers.append((self.now + seconds, function))

    def comes(self, at):
        """To the one timer that there is."""
        ((due, function),), self.timers = self.timers, []
        assert at >= due
        self.now = at
        function()


class Green(list):
    throw = list.append


@pytest.mark.parametrize(("at", "grace_s"), [(110.5, 0.5), (125.0, concurrency.GRACE_S)])
def test_limits_that_the_hub_comes_late_to_last_so_much_longer(at, grace_s):
    hub = Hub()
    limits, greens = concurrency.Limits(hub, 10.0), [Green() for _ in range(3)]
    entries = [limits.begin(green) for green in greens]
    hub.comes(at)
    assert greens == [[], [], []]
    limits.end(entries[1])  # what it waited for has come by then
    hub.comes(at + grace_s)
    assert [len(green) for green in greens] == [1, 0, 1] and not hub.timers


def test_limits_that_the_hub_comes_to_in_time_are_over():
    hub = Hub()
    limits, greens = concurrency.Limits(hub, 10.0), [Green(), Green()]
    limits.begin(greens[0])
    hub.now = 105.0
    limits.begin(greens[1])
    hub.comes(110.1)
    assert [len(green) for green in greens] == [1, 0]
    hub.comes(115.0)
    assert [len(green) for green in greens] == [1, 1]


def test_a_hub_that_is_always_late_ends_limits():
    hub = Hub()
    limits, green = concurrency.Limits(hub, 10.0), Green()
    limits.begin(green)
    hub.comes(120.0)
    hub.comes(130.0)
    assert len(green) == 1 and not hub.timers
    limits.begin(green)
    hub.comes(150.0)  # the next is late for the first time again
    assert len(green) == 1
    hub.comes(151.0)
    assert len(green) == 2


def test_who_no_longer_waits_for_an_event_is_not_woken():
    event, woken = Event(), []

    def work(seconds):
        try:
            event.wait(seconds)
        except WaitTimeout:
            pass
        woken.append("event")
        concurrency.sleep(0.05)
        woken.append("slept")

    killed, late, last = spawn(work, None), spawn(work, 0.01), spawn(work, 5.0)
    concurrency.sleep(0.02)
    killed.kill()
    assert woken == ["event"]
    event.set()
    late.wait(), last.wait()
    assert woken == ["event", "event", "slept", "slept"]


# -- run_apart


def test_run_apart_gives_or_raises():
    assert run_apart(1, lambda a: a + 1, 1) == 2
    with pytest.raises(KeyError):
        run_apart(1, {}.__getitem__, 1)

    def waits():
        concurrency.sleep(0.001)
        return "waited"

    assert run_apart(1, waits) == "waited"
    assert run_apart(None, waits) == "waited"
    assert run_apart(1, run_apart, 1, waits) == "waited"
    assert [task.wait() for task in [spawn(run_apart, 1, waits) for _ in range(20)]] == ["waited"] * 20


def test_run_apart_does_not_interrupt_when_its_time_is_over():
    ended = Event()

    def slow():
        concurrency.sleep(0.03)
        ended.set("to its end")

    with pytest.raises(WaitTimeout):
        run_apart(0.005, slow)
    assert not ended.is_set
    assert ended.wait(1) == "to its end"


def test_run_apart_goes_on_when_its_caller_is_killed():
    ended, begun = Event(), Event()

    def slow():
        begun.set()
        concurrency.sleep(0.01)
        ended.set("to its end")

    task = spawn(run_apart, 5, slow)
    begun.wait(1)
    task.kill()
    assert task.ended and ended.wait(1) == "to its end"
