"""Bounded waits, disk threads, streams."""

import gc
import os
import socket
import threading
import time

import pytest

from keelstore.common import concurrency
from keelstore.common.concurrency import (
    DiskThreads,
    Event,
    Pool,
    Queue,
    Semaphore,
    Stream,
    run_apart,
    spawn,
    time_limit,
)
from keelstore.common.errors import WaitTimeout


def pair(timeout=5):
    left, right = socket.socketpair()
    return Stream(left, timeout), Stream(right, timeout)


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


def test_time_limit_over_a_stream_is_not_taken_for_the_streams_own():
    left, _right = pair()
    with pytest.raises(WaitTimeout, match="no result within"), time_limit(0.01):
        left.receive()


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


# -- streams


def test_stream_sends_and_receives_all():
    left, right = pair()
    data = os.urandom(3 << 20)
    got = []

    def reader():
        while sum(map(len, got)) < len(data) * 3:
            got.append(right.receive(100000))

    task = spawn(reader)
    left.send(data)
    left.send_parts([data[:10], b"", memoryview(data)[10:]])
    left.send(bytearray(data))
    task.wait()
    assert b"".join(got) == data * 3
    left.shutdown_write()
    assert right.receive() == b""


def test_send_parts_of_nothing():
    left, right = pair()
    left.send_parts([b"", b"x", b""])
    assert right.receive() == b"x"


def test_silent_peer_is_a_wait_timeout():
    left, right = pair(timeout=0.01)
    with pytest.raises(WaitTimeout, match="silent"):
        left.receive()
    with pytest.raises(WaitTimeout):
        left.receive(timeout=0)
    with pytest.raises(WaitTimeout):
        while True:
            left.send(b"x" * 65536)
    assert right.receive(10) == b"x" * 10


def test_stream_wakes_again_and_again():
    """Edge-triggered registration must not lose a wake-up."""
    left, right = pair()

    def echo():
        while data := right.receive(3):
            right.send(data)

    task = spawn(echo)
    for n in range(500):
        data = b"x" * (n % 7 + 1)
        left.send(data)
        got = b""
        while len(got) < len(data):
            got += left.receive(2)
        if n % 5 == 0:
            concurrency.sleep(0)
    left.close()
    task.wait()


def test_one_green_thread_reads_while_another_writes():
    left, right = pair()
    received = spawn(left.receive)
    data = b"y" * (1 << 20)
    sent = spawn(left.send, data)
    concurrency.sleep(0)
    with pytest.raises(RuntimeError):
        left.receive()
    right.send(b"x")
    assert received.wait() == b"x"
    size = 0
    while size < len(data):
        size += len(right.receive())
    sent.wait()


def test_closing_a_stream_wakes_who_waits_for_it():
    left, right = pair()
    task = spawn(left.receive)
    concurrency.sleep(0)
    left.close()
    left.close()
    with pytest.raises(OSError):
        task.wait()
    with pytest.raises(OSError):
        left.receive()
    assert right.receive() == b""


def test_descriptors_that_are_reused_do_not_mix_up_waits():
    for _ in range(50):
        left, right = pair()
        task = spawn(left.receive)
        concurrency.sleep(0)
        right.send(b"x")
        assert task.wait() == b"x"
        task = spawn(right.receive)
        concurrency.sleep(0)
        left.close()
        assert task.wait() == b""
        right.close()


def test_forgotten_stream_closes_and_its_descriptor_can_be_used_again():
    left, right = pair()
    for stream in (left, right):
        with pytest.raises(WaitTimeout):
            stream.receive(timeout=0.001)
    fds = {left.fd, right.fd}
    del left, right, stream
    gc.collect()
    left, right = pair()
    assert fds & {left.fd, right.fd}
    with pytest.raises(WaitTimeout):
        left.receive(timeout=0.001)


def test_shutdown_read_leaves_what_has_arrived():
    left, right = pair()
    right.send(b"abc")
    left.shutdown_read()
    assert left.receive() == b"abc" and left.receive() == b""
    waiting = spawn(right.receive)
    concurrency.sleep(0)
    right.shutdown_read()
    assert waiting.wait() == b""


def test_ready_peer_does_not_hold_up_others():
    left, right = pair()
    turns, stop = [0], Event()

    def others():
        while not stop.is_set:
            turns[0] += 1
            concurrency.sleep(0)

    spawn(others)
    chunk = b"x" * 4096
    for _ in range(1000):  # 4 MB through a pair that is always ready
        left.send(chunk)
        right.receive()
    stop.set()
    assert turns[0] >= 4


def test_is_readable():
    left, right = pair()
    assert not left.is_readable()
    right.close()
    assert left.is_readable()


def test_connect_and_accept():
    sock = concurrency.listen(("127.0.0.1", 0))
    accepted = []

    def take():
        for connection, _ in concurrency.accept(sock):
            accepted.append(Stream(connection, 5))

    task = spawn(take)
    concurrency.sleep(0)
    stream = concurrency.connect(sock.getsockname(), 1, 5)
    stream.send(b"x")
    while not accepted:
        concurrency.sleep(0)
    assert accepted[0].receive() == b"x"
    task.kill()
    sock.close()
    with pytest.raises(OSError):
        concurrency.connect(("127.0.0.1", 1), 1)
    stream.close()


def test_abort_resets():
    sock = concurrency.listen(("127.0.0.1", 0))
    stream = concurrency.connect(sock.getsockname(), 1, 5)
    peer = Stream(sock.accept()[0], 5)
    peer.send(b"half")
    peer.abort()
    with pytest.raises(ConnectionResetError):
        while stream.receive():
            pass
    stream.close()
    sock.close()


def test_wait_is_over_in_time():
    start = time.monotonic()
    left, _right = pair()
    with pytest.raises(WaitTimeout):
        left.receive(timeout=0.05)
    assert 0.04 < time.monotonic() - start < 2


def test_forked_child_has_an_event_loop_of_its_own():
    left, right = pair()
    with pytest.raises(WaitTimeout):
        left.receive(timeout=0.001)
    sock = concurrency.listen(("127.0.0.1", 0))
    pid = os.fork()
    if not pid:
        status = 1
        try:
            stream = Stream(next(concurrency.accept(sock))[0], 5)
            while data := stream.receive():
                stream.send(data)
            status = 0
        finally:
            os._exit(status)
    stream = concurrency.connect(sock.getsockname(), 1, 5)
    for n in range(300):
        stream.send(b"%d" % n)
        assert stream.receive() == b"%d" % n
    stream.close()
    assert os.waitpid(pid, 0)[1] == 0
    right.send(b"still ours")
    assert left.receive() == b"still ours"
    sock.close()
