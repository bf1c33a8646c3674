import errno
import os

import pytest

from keelstore.common import disk_calls
from keelstore.common.concurrency import sleep, spawn, time_limit
from keelstore.common.errors import WaitTimeout
from keelstore.common.linux_aio import BATCH, AsyncSync
from keelstore.common.syncs import Syncs


def test_green_threads_run_while_one_syncs(tmp_path):
    (tmp_path / "a").write_bytes(b"x" * 4096)
    fd = os.open(tmp_path / "a", os.O_RDWR)
    order = []

    def sync():
        os.pwrite(fd, b"y" * 4096, 0)
        order.append("begun")
        order.append(disk_calls.sync((fd,)))

    task = spawn(sync)
    sleep(0)
    order.append("meanwhile")
    task.wait()
    assert order == ["begun", "meanwhile", []]
    os.close(fd)


def test_a_waiter_that_was_stopped_disturbs_nobody(tmp_path):
    (tmp_path / "a").write_bytes(b"x" * 4096)
    fd = os.open(tmp_path / "a", os.O_RDWR)
    stopped = spawn(disk_calls.sync, (fd,))
    sleep(0)
    stopped.kill()
    assert spawn(disk_calls.sync, (fd,)).wait() == []
    os.close(fd)


def test_disk_threads_sync_by_themselves(tmp_path):
    (tmp_path / "a").write_bytes(b"x")
    fd = os.open(tmp_path / "a", os.O_RDWR)
    assert disk_calls.on_disk_thread("d", disk_calls.sync, (fd,)) == (fd,)
    os.close(fd)


@pytest.fixture
def submitted(monkeypatch):
    """How many syncs each call to the kernel had."""
    found, submit = [], AsyncSync.submit
    monkeypatch.setattr(disk_calls, "_syncs", Syncs())
    monkeypatch.setattr(AsyncSync, "submit", lambda self, syncs: (found.append(len(syncs)), submit(self, syncs))[1])
    yield found
    syncs = disk_calls._syncs
    syncs._hub.remove_descriptor(syncs._queue.eventfd)
    syncs._queue.close()


def opened(path, count):
    return [os.open(path / str(number), os.O_RDWR | os.O_CREAT) for number in range(count)]


def test_what_is_asked_for_in_one_turn_is_one_call(tmp_path, submitted):
    fds = opened(tmp_path, 6)
    tasks = [spawn(disk_calls.sync, fds[at : at + 2]) for at in (0, 2, 4)]
    assert [task.wait() for task in tasks] == [[], [], []]
    assert submitted == [6]
    for fd in fds:
        os.close(fd)


def test_more_than_one_call_takes_are_all_synced(tmp_path, submitted):
    fds = opened(tmp_path, 4)
    tasks = [spawn(disk_calls.sync, fds * 60) for _ in range(4)]
    assert [task.wait() for task in tasks] == [[]] * 4
    assert sum(min(count, BATCH) for count in submitted) >= 960
    assert not disk_calls._syncs._asked and not disk_calls._syncs._waiting and not disk_calls._syncs._under_way
    for fd in fds:
        os.close(fd)


def test_nothing_to_sync_is_synced_at_once():
    with time_limit(30):
        assert not spawn(disk_calls.sync, ()).wait()


def test_what_the_kernel_refuses_is_given_back_and_hinders_nobody(tmp_path, submitted):
    fds = opened(tmp_path, 2)
    reader, writer = os.pipe()
    tasks = [spawn(disk_calls.sync, files) for files in ([fds[0]], [writer, fds[1]], [writer], [fds[1]])]
    assert [task.wait() for task in tasks] == [[], [writer], [writer], []]
    for fd in (*fds, reader, writer):
        os.close(fd)


def test_a_wrong_descriptor_is_its_askers_error_alone(tmp_path, submitted):
    fds = opened(tmp_path, 2)
    tasks = [spawn(disk_calls.sync, files) for files in (fds[:1], [1 << 30, fds[1]], fds[1:])]
    assert tasks[0].wait() == []
    with pytest.raises(OSError, match="Bad file descriptor"):
        tasks[1].wait()
    assert tasks[2].wait() == []
    for fd in fds:
        os.close(fd)


def test_what_was_not_submitted_before_its_waiter_was_stopped_never_is(tmp_path, submitted):
    fds = opened(tmp_path, 2)

    def stopping():
        stopped.kill()
        return disk_calls.sync(fds[1:])

    stopped = spawn(disk_calls.sync, fds[:1])
    assert spawn(stopping).wait() == []
    assert submitted == [1]
    for fd in fds:
        os.close(fd)


# -- several sets at once


def asked(sets, seconds=30.0):
    def ask():
        assert disk_calls._syncs.opens()
        return disk_calls.sync_sets(sets, seconds)

    with time_limit(60):
        return spawn(ask).wait()


def outcomes(found):
    return [(one.left, one.code, len(one.refused)) for one in found]


def test_several_sets_are_one_call(tmp_path, submitted):
    fds = opened(tmp_path, 5)
    assert outcomes(asked([fds[:2], fds[2:3], (), fds[3:]])) == [(0, 0, 0)] * 4
    assert submitted == [5] and not disk_calls._syncs._waiting
    for fd in fds:
        os.close(fd)


def test_no_sets_are_synced_at_once():
    assert asked([]) == [] and outcomes(asked([()])) == [(0, 0, 0)]


def test_errors_and_refusals_are_each_sets_own(tmp_path, submitted):
    fds = opened(tmp_path, 3)
    reader, writer = os.pipe()
    found = asked([[fds[0]], [1 << 30, fds[1]], [writer, fds[2]], [writer, 1 << 30]])
    assert outcomes(found) == [(0, 0, 0), (0, errno.EBADF, 0), (0, 0, 1), (0, errno.EBADF, 1)]
    assert found[2].refused == [writer] and found[0].error is None and found[1].error.errno == errno.EBADF
    for fd in (*fds, reader, writer):
        os.close(fd)


def test_a_late_set_is_finished_later(tmp_path, held):
    held.hold(f"{tmp_path}/0")
    fds = opened(tmp_path, 3)
    found = asked([fds[:2], fds[2:]], 0.01)
    assert outcomes(found) == [(1, 0, 0), (0, 0, 0)] and list(disk_calls._syncs._waiting.values()) == found[:1]
    task = spawn(disk_calls.finish_sync, found[0])
    sleep(0)
    assert found[0].left
    held.let_go(errno.EIO)
    with time_limit(30):
        task.wait()
    assert outcomes(found[:1]) == [(0, errno.EIO, 0)] and not disk_calls._syncs._waiting
    with time_limit(30):
        spawn(disk_calls.finish_sync, found[0]).wait()  # at once
    for fd in fds:
        os.close(fd)


def test_late_sets_whose_waiters_are_gone_disturb_nobody(tmp_path, held):
    held.hold(f"{tmp_path}/0", f"{tmp_path}/1")
    fds = opened(tmp_path, 4)
    late = asked([fds[:1], fds[1:2], fds[2:3]], 0.01)
    stopped = spawn(disk_calls.finish_sync, late[0])
    sleep(0)
    stopped.kill()
    disk_calls.forget_sync(late[1])
    assert not disk_calls._syncs._waiting
    held.let_go()
    assert outcomes(asked([fds[3:]])) == [(0, 0, 0)]
    for fd in fds:
        os.close(fd)


def test_sets_whose_waiter_is_stopped_are_forgotten(tmp_path, held):
    held.hold(str(tmp_path))
    fds = opened(tmp_path, 2)
    assert disk_calls._syncs.is_possible and spawn(disk_calls._syncs.opens).wait()
    task = spawn(disk_calls.sync_sets, [fds[:1], fds[1:]], 30.0)
    sleep(0)
    assert len(disk_calls._syncs._waiting) == 2
    task.kill()
    assert not disk_calls._syncs._waiting
    held.let_go()
    assert outcomes(asked([fds[:1]])) == [(0, 0, 0)] and not disk_calls._syncs._waiting
    for fd in fds:
        os.close(fd)


def test_a_limit_around_is_no_lateness(tmp_path, held):
    held.hold(str(tmp_path))
    fds = opened(tmp_path, 1)

    def limited():
        assert disk_calls._syncs.opens()
        with time_limit(0.01):
            disk_calls.sync_sets([fds], 30.0)

    with pytest.raises(WaitTimeout):
        spawn(limited).wait()
    assert not disk_calls._syncs._waiting
    os.close(fds[0])
