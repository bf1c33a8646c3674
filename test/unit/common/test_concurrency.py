"""Bounded waits, disk threads."""

import os
import threading

import pytest

from keelstore.common import concurrency
from keelstore.common.concurrency import (
    DiskThreads,
    Event,
    Pool,
    Queue,
    Semaphore,
    run_apart,
    spawn,
    time_limit,
)
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


def test_run_apart_with_disk_threads():
    threads = DiskThreads()
    assert run_apart(5, threads.run, "d", sum, (1, 2)) == 3
    assert [t.wait() for t in [spawn(run_apart, 5, threads.run, "d", sum, (1, n)) for n in range(9)]] == list(range(1, 10))


# -- disk threads


def test_disk_threads_give_raise_and_leave_the_hub_free():
    threads, go, turns = DiskThreads(), threading.Event(), []
    task = spawn(threads.run, "d", go.wait, 5)
    for turn in range(3):
        concurrency.sleep(0)
        turns.append(turn)
    go.set()
    assert task.wait() is True and turns == [0, 1, 2]
    with pytest.raises(ZeroDivisionError):
        threads.run("d", divmod, 1, 0)


def test_disk_threads_of_a_device_are_bounded_and_devices_do_not_wait_for_each_other():
    threads, go, most, now = DiskThreads(per_device=2), threading.Event(), [0], [0]
    lock = threading.Lock()

    def work():
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        go.wait(5)
        with lock:
            now[0] -= 1

    tasks = [spawn(threads.run, "slow", work) for _ in range(6)]
    concurrency.sleep(0)
    assert threads.run("other", sum, (1, 2)) == 3
    go.set()
    for task in tasks:
        task.wait()
    assert most[0] <= 2


def test_disk_call_whose_waiter_gave_up_is_unheard():
    threads, go, done = DiskThreads(), threading.Event(), []
    with pytest.raises(WaitTimeout), time_limit(0.01):
        threads.run("d", lambda: (go.wait(5), done.append(1)))
    go.set()
    assert threads.run("d", sum, (1, 1)) == 2  # and nothing of the first disturbs the next
    while not done:
        concurrency.sleep(0.001)


def test_on_disk_thread_in_a_forked_child():
    assert concurrency.on_disk_thread("d", sum, (1, 2)) == 3
    pid = os.fork()
    if not pid:
        try:
            os._exit(0 if concurrency._disk_threads._fd < 0 else 1)
        finally:
            os._exit(2)
    assert os.waitpid(pid, 0)[1] == 0


# -- slow devices


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass only when a test says so, and a memory of slow devices of its own."""
    now = [1000.0]
    monkeypatch.setattr(concurrency, "_monotonic", lambda: now[0])
    monkeypatch.setattr(concurrency, "_pace", concurrency.Pace())
    return now


def taking(clock, seconds, then=None):
    def call():
        clock[0] += seconds
        return then() if then else threading.get_ident()

    return call


def test_slow_device_is_kept_off_this_thread_for_a_while_and_others_with_it(clock):
    here = threading.get_ident()
    assert concurrency.off_slow_disk("a", taking(clock, 0)) == here
    concurrency.on_disk("a", taking(clock, 2.0))
    for device in ("a", "b"):  # they may share a file system
        assert concurrency.off_slow_disk(device, taking(clock, 0)) != here
        assert concurrency.on_disk(device, taking(clock, 0)) != here
    clock[0] += concurrency.SLOW_FOR_S + 1
    for device in ("a", "b"):
        assert concurrency.off_slow_disk(device, taking(clock, 0)) == here


def test_device_that_stays_slow_on_its_threads_is_kept_off_and_no_other(clock):
    here = threading.get_ident()
    concurrency.on_disk("a", taking(clock, 2.0))
    for _ in range(5):
        clock[0] += concurrency.SLOW_FOR_S - 1
        assert concurrency.on_disk("a", taking(clock, 2.0)) != here
    assert concurrency.off_slow_disk("b", taking(clock, 0)) == here
    concurrency.write_on_disk_thread("b", taking(clock, 2.0))
    assert concurrency.off_slow_disk("b", taking(clock, 0)) != here


def nested(clock, device, depth, look, seconds=0.0):
    """What ``look`` gives with so many calls running on the device."""
    if not depth:
        return look()
    return concurrency._pace.run_apart(device, clock[0], taking(clock, seconds, lambda: nested(clock, device, depth - 1, look, seconds)))


def test_swamped_is_a_slow_device_for_which_many_calls_wait(clock):
    def look():
        return concurrency.is_swamped("a", 16)

    assert not nested(clock, "a", 100, look)  # many, and fast
    assert not nested(clock, "a", 10, look, seconds=0.3)  # slow, and few
    assert nested(clock, "a", 16, look, seconds=0.1)  # many, and slow
    clock[0] += 100
    assert nested(clock, "a", 10, look, seconds=0.5)  # few, the first of them for long
    clock[0] += 100
    assert not nested(clock, "a", 3, look, seconds=60)
    assert not concurrency.is_swamped("a", 16) and not nested(clock, "a", 100, lambda: concurrency.is_swamped("b", 16), seconds=1)
