import os

import pytest

from keelstore.common import disk_calls
from keelstore.common.concurrency import sleep, spawn, time_limit
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
