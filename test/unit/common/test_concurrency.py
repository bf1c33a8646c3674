"""Green threads, bounded waits."""

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
