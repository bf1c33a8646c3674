"""Disk threads; which calls leave the worker's own."""

import os
import threading

import pytest

from keelstore.common import disk_calls
from keelstore.common.concurrency import run_apart, sleep, spawn, time_limit
from keelstore.common.disk_calls import DiskThreads
from keelstore.common.errors import DeviceBusy, WaitTimeout
from keelstore.common.pace import SLOW_FOR_S, Pace
from test.support.waiting import until


def test_disk_threads_give_raise_and_leave_the_hub_free():
    threads, go, turns = DiskThreads(), threading.Event(), []
    task = spawn(threads.run, "d", go.wait, 5)
    for turn in range(3):
        sleep(0)
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
    sleep(0)
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
        sleep(0.001)


def test_on_disk_thread_in_a_forked_child():
    assert disk_calls.on_disk_thread("d", sum, (1, 2)) == 3
    pid = os.fork()
    if not pid:
        try:
            os._exit(0 if disk_calls._disk_threads._fd < 0 else 1)
        finally:
            os._exit(2)
    assert os.waitpid(pid, 0)[1] == 0


def test_run_apart_with_disk_threads():
    threads = DiskThreads()
    assert run_apart(5, threads.run, "d", sum, (1, 2)) == 3
    assert [t.wait() for t in [spawn(run_apart, 5, threads.run, "d", sum, (1, n)) for n in range(9)]] == list(range(1, 10))


# -- slow devices


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass only when a test says so, and a memory of slow devices of its own."""
    now = [1000.0]
    monkeypatch.setattr(disk_calls, "_pace", Pace(lambda: now[0]))
    return now


def taking(clock, seconds, then=None):
    def call():
        clock[0] += seconds
        return then() if then else threading.get_ident()

    return call


def test_slow_device_is_kept_off_this_thread_for_a_while_and_others_with_it(clock):
    here = threading.get_ident()
    assert disk_calls.off_slow_disk("a", taking(clock, 0)) == here
    disk_calls.on_disk("a", taking(clock, 2.0))
    for device in ("a", "b"):  # they may share a file system
        assert disk_calls.off_slow_disk(device, taking(clock, 0)) != here
        assert disk_calls.on_disk(device, taking(clock, 0)) != here
    clock[0] += SLOW_FOR_S + 1
    for device in ("a", "b"):
        assert disk_calls.off_slow_disk(device, taking(clock, 0)) == here


def test_device_that_stays_slow_on_its_threads_is_kept_off_and_no_other(clock):
    here = threading.get_ident()
    disk_calls.on_disk("a", taking(clock, 2.0))
    for _ in range(5):
        clock[0] += SLOW_FOR_S - 1
        assert disk_calls.on_disk("a", taking(clock, 2.0)) != here
    assert disk_calls.off_slow_disk("b", taking(clock, 0)) == here
    disk_calls.write_on_disk_thread("b", taking(clock, 2.0))
    assert disk_calls.off_slow_disk("b", taking(clock, 0)) != here


def test_looks_at_a_slow_device_are_bounded_and_then_refused_at_once(clock, monkeypatch, tmp_path):
    monkeypatch.setattr(disk_calls, "LOOK_S", 0.05)
    (tmp_path / "file").write_bytes(b"data")
    assert disk_calls.look("a", os.getpid) == os.getpid()
    disk_calls.on_disk("a", taking(clock, 2.0))
    here, may_go_on, begun = threading.get_ident(), threading.Event(), threading.Event()
    assert disk_calls.look("a", threading.get_ident) != here
    fd = disk_calls.open_to_read("a", str(tmp_path / "file"))
    assert os.read(fd, 10) == b"data"
    os.close(fd)
    with pytest.raises(FileNotFoundError):
        disk_calls.open_to_read("a", str(tmp_path / "none"))

    def hangs():
        begun.set()
        may_go_on.wait(60)

    with pytest.raises(DeviceBusy):
        disk_calls.look("a", hangs)
    until(begun.is_set, "it has begun")
    clock[0] += 2.1
    with pytest.raises(DeviceBusy):  # not even begun
        disk_calls.look("a", pytest.fail)
    assert disk_calls.look("b", os.getpid) == os.getpid()
    may_go_on.set()
    until(lambda: not disk_calls.pace().volume("a").looks, "it has come back")
    assert disk_calls.look("a", os.getpid) == os.getpid()


def test_file_that_is_opened_too_late_is_closed(clock, monkeypatch, tmp_path):
    monkeypatch.setattr(disk_calls, "LOOK_S", 0.05)
    (tmp_path / "file").write_bytes(b"data")
    disk_calls.on_disk("a", taking(clock, 2.0))
    may_go_on, real, fds = threading.Event(), os.open, list[int]()

    def late(path, *args):
        if not path.startswith(str(tmp_path)):
            return real(path, *args)
        may_go_on.wait(60)
        fds.append(real(path, *args))
        return fds[0]

    monkeypatch.setattr(disk_calls.os, "open", late)
    with pytest.raises(DeviceBusy):
        disk_calls.open_to_read("a", str(tmp_path / "file"))
    may_go_on.set()
    until(lambda: sleep(0.001) or (fds and not os.path.exists(f"/proc/self/fd/{fds[0]}")), "it is closed")
