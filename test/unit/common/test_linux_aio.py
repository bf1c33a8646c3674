import os
import select

import pytest

from keelstore.common import concurrency
from keelstore.common.linux_aio import BATCH, AsyncSync


def wait_for(queue, count):
    found = []
    poll = select.poll()
    poll.register(queue.eventfd, select.POLLIN)
    while len(found) < count:
        assert poll.poll(10000), "a sync did not end"
        found += queue.ended()
    return found


@pytest.fixture
def queue():
    found = AsyncSync.open()
    assert found is not None, "this kernel offers no asynchronous fsync"
    yield found
    found.close()


def test_files_and_directories_are_synced_each_under_its_token(tmp_path, queue):
    (tmp_path / "a").write_bytes(b"x" * 10000)
    fds = [os.open(tmp_path / "a", os.O_RDWR), os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)]
    assert queue.submit([(fds[0], 7, False), (fds[1], 2**64 - 1, False), (fds[0], 8, True)]) == (3, True)
    for fd in fds:
        os.close(fd)  # the kernel holds the files
    assert sorted(wait_for(queue, 3)) == [(7, 0), (8, 0), (2**64 - 1, 0)]
    assert queue.ended() == []


def test_what_cannot_be_synced_this_way_is_said(queue):
    reader, writer = os.pipe()
    assert queue.submit([(writer, 1, False)]) == (0, False)
    os.close(reader)
    os.close(writer)
    with pytest.raises(OSError, match="io_submit"):
        queue.submit([(writer, 1, False)])


def test_more_syncs_than_places_are_told_or_taken_but_none_is_lost(tmp_path, queue):
    (tmp_path / "a").write_bytes(b"x")
    fd = os.open(tmp_path / "a", os.O_RDWR)
    taken = []
    for token in range(0, 2000, 4):
        count, is_later = queue.submit([(fd, number, False) for number in range(token, token + 4)])
        assert is_later
        taken += range(token, token + count)
    assert sorted(token for token, _ in wait_for(queue, len(taken))) == taken
    os.close(fd)


def test_green_threads_run_while_one_syncs(tmp_path):
    (tmp_path / "a").write_bytes(b"x" * 4096)
    fd = os.open(tmp_path / "a", os.O_RDWR)
    order = []

    def sync():
        os.pwrite(fd, b"y" * 4096, 0)
        order.append("begun")
        order.append(concurrency.sync((fd,)))

    task = concurrency.spawn(sync)
    concurrency.sleep(0)
    order.append("meanwhile")
    task.wait()
    assert order == ["begun", "meanwhile", []]
    os.close(fd)


def test_a_waiter_that_was_stopped_disturbs_nobody(tmp_path):
    (tmp_path / "a").write_bytes(b"x" * 4096)
    fd = os.open(tmp_path / "a", os.O_RDWR)
    stopped = concurrency.spawn(concurrency.sync, (fd,))
    concurrency.sleep(0)
    stopped.kill()
    assert concurrency.spawn(concurrency.sync, (fd,)).wait() == []
    os.close(fd)


def test_disk_threads_sync_by_themselves(tmp_path):
    (tmp_path / "a").write_bytes(b"x")
    fd = os.open(tmp_path / "a", os.O_RDWR)
    assert concurrency.on_disk_thread("d", concurrency.sync, (fd,)) == (fd,)
    os.close(fd)


def test_a_slow_device_is_kept_off_the_workers_own_thread():
    pace = concurrency.Pace()
    assert not pace.is_slow("d1", 0.0)
    seen = []
    pace.run("d1", 100.0, lambda: seen.extend(pace.is_slow("d1", 100.0 + t) for t in (0.5, 1.5)))
    assert seen == [False, True]  # while a call hangs, the next ones go elsewhere
    assert not pace.is_slow("d2", 1e9)


def test_a_device_that_was_slow_stays_so_for_a_while(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(concurrency, "_monotonic", lambda: now[0])
    pace = concurrency.Pace()

    def slow():
        now[0] += 2.0

    pace.run("d1", now[0], slow)
    assert pace.is_slow("d1", now[0] + 9.9) and not pace.is_slow("d1", now[0] + 10.1)


@pytest.fixture
def submitted(monkeypatch):
    """How many syncs each call to the kernel had."""
    found, submit = [], AsyncSync.submit
    monkeypatch.setattr(concurrency, "_syncs", concurrency.Syncs())
    monkeypatch.setattr(AsyncSync, "submit", lambda self, syncs: (found.append(len(syncs)), submit(self, syncs))[1])
    yield found
    syncs = concurrency._syncs
    syncs._hub.remove_descriptor(syncs._queue.eventfd)
    syncs._queue.close()


def opened(path, count):
    return [os.open(path / str(number), os.O_RDWR | os.O_CREAT) for number in range(count)]


def test_what_is_asked_for_in_one_turn_is_one_call(tmp_path, submitted):
    fds = opened(tmp_path, 6)
    tasks = [concurrency.spawn(concurrency.sync, fds[at : at + 2]) for at in (0, 2, 4)]
    assert [task.wait() for task in tasks] == [[], [], []]
    assert submitted == [6]
    for fd in fds:
        os.close(fd)


def test_more_than_one_call_takes_are_all_synced(tmp_path, submitted):
    fds = opened(tmp_path, 4)
    tasks = [concurrency.spawn(concurrency.sync, fds * 60) for _ in range(4)]
    assert [task.wait() for task in tasks] == [[]] * 4
    assert sum(min(count, BATCH) for count in submitted) >= 960
    assert not concurrency._syncs._asked and not concurrency._syncs._waiting and not concurrency._syncs._under_way
    for fd in fds:
        os.close(fd)


def test_nothing_to_sync_is_synced_at_once():
    with concurrency.time_limit(30):
        assert not concurrency.spawn(concurrency.sync, ()).wait()


def test_what_the_kernel_refuses_is_given_back_and_hinders_nobody(tmp_path, submitted):
    fds = opened(tmp_path, 2)
    reader, writer = os.pipe()
    tasks = [concurrency.spawn(concurrency.sync, files) for files in ([fds[0]], [writer, fds[1]], [writer], [fds[1]])]
    assert [task.wait() for task in tasks] == [[], [writer], [writer], []]
    for fd in (*fds, reader, writer):
        os.close(fd)


def test_a_wrong_descriptor_is_its_askers_error_alone(tmp_path, submitted):
    fds = opened(tmp_path, 2)
    tasks = [concurrency.spawn(concurrency.sync, files) for files in (fds[:1], [1 << 30, fds[1]], fds[1:])]
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
        return concurrency.sync(fds[1:])

    stopped = concurrency.spawn(concurrency.sync, fds[:1])
    assert concurrency.spawn(stopping).wait() == []
    assert submitted == [1]
    for fd in fds:
        os.close(fd)
