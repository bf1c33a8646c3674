"""Changes of several disks that one green thread makes together: who waits for whom, and what is left of a failure."""

from __future__ import annotations

import errno
import fcntl
import os
import threading

import pytest

from keelstore.common import concurrency, disk_calls, disk_steps, fs
from keelstore.common.concurrency import spawn, time_limit
from keelstore.common.disk_steps import Change
from keelstore.common.errors import DeviceFull, LockTimeout, WaitTimeout
from keelstore.common.pace import Pace
from keelstore.common.syncs import Syncing
from keelstore.obj.hashes import changing
from test.support.waiting import until

DEVICES = ("d1", "d2", "d3")


@pytest.fixture
def pace(monkeypatch):
    """Nothing is slow or late because the machine is busy."""
    found = Pace(lambda: 0.0)
    monkeypatch.setattr(disk_calls, "_pace", found)
    monkeypatch.setattr(disk_steps, "LATE_S", 30.0)
    yield found
    assert not any(found.volume(device).running for device in DEVICES)


@pytest.fixture
def syncs(pace, monkeypatch):
    """How many sets each wait had."""
    found, real = [], disk_calls.sync_sets
    monkeypatch.setattr(disk_calls, "sync_sets", lambda sets, seconds: (found.append(len(sets)), real(sets, seconds))[1])
    return found


@pytest.fixture
def held(pace, held):
    return held


class Box:
    """Devices, and what the changes of each have done."""

    def __init__(self, root):
        self.root = str(root)
        self.log: dict[str, list[object]] = {device: [] for device in DEVICES}
        for device in DEVICES:
            os.mkdir(f"{root}/{device}")

    def steps(self, device, count=2, between=lambda: None, at_end=lambda: None):
        log = self.log[device]
        fd = os.open(f"{self.root}/{device}/f", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        try:
            for number in range(count):
                log.append(number)
                yield (fd,)
                between()
            log.append("done")
        except BaseException as error:
            log.append(type(error))
            raise
        finally:
            os.close(fd)
            log.append("closed")
            at_end()

    def changes(self, **each):
        return [Change(device, each.get(device) or self.steps(device)) for device in DEVICES]

    def is_open(self, device):
        below = f"{self.root}/{device}/"
        return any(_path_of(fd).startswith(below) for fd in os.listdir("/proc/self/fd"))


def _path_of(fd):
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""


@pytest.fixture
def box(tmp_path):
    made = Box(tmp_path)
    yield made
    assert not any(made.is_open(device) for device in DEVICES)


def together(changes):
    assert disk_calls.syncs_here(changes[0].device)
    disk_steps.together(changes)


def made(changes):
    with time_limit(30):
        spawn(together, changes).wait()


def finished(*changes):
    with time_limit(30):
        for task in [spawn(change.finish) for change in changes]:
            task.wait()


@pytest.fixture
def soon(monkeypatch):
    """A sync that is held is late soon; others may be, then, when the machine is busy."""
    monkeypatch.setattr(disk_steps, "LATE_S", 0.05)


def others_end(changes):
    """All but the first, while that does not."""
    finished(*[change for change in changes[1:] if not change.has_ended])
    assert [change.has_ended for change in changes] == [False, True, True]
    assert not any(change.error for change in changes)


DONE = [0, 1, "done", "closed"]


def test_changes_share_their_waits(box, syncs):
    changes = box.changes(d3=box.steps("d3", 3))
    made(changes)
    assert syncs == [3, 3, 1]
    assert all(change.has_ended and change.error is None for change in changes)
    assert box.log["d1"] == box.log["d2"] == DONE


def test_one_that_waits_for_nothing_ends_at_once(box, syncs):
    changes = box.changes(d1=box.steps("d1", 0))
    made(changes)
    assert syncs == [2, 2] and box.log["d1"] == ["done", "closed"] and changes[0].has_ended


def test_what_a_sync_raises_is_that_changes_alone(box, held):
    held.fail(f"{box.root}/d2")
    changes = box.changes()
    made(changes)
    assert [type(change.error) for change in changes] == [type(None), OSError, type(None)]
    assert changes[1].error.errno == errno.EIO and box.log["d2"] == [0, OSError, "closed"]
    assert box.log["d1"] == box.log["d3"] == DONE


def test_an_error_that_a_change_handles_is_none(box, held):
    held.fail(f"{box.root}/d2")

    def steps():
        try:
            yield from box.steps("d2")
        except OSError:
            held.fail(f"{box.root}/d2", 0)
            yield from box.steps("d2")

    changes = box.changes(d2=steps())
    made(changes)
    assert all(change.has_ended and change.error is None for change in changes) and box.log["d2"][-4:] == DONE


def test_an_error_in_a_step_is_that_changes_alone(box, syncs):
    def full():
        raise DeviceFull("d1")

    changes = box.changes(d1=box.steps("d1", between=full))
    made(changes)
    assert [type(change.error) for change in changes] == [DeviceFull, type(None), type(None)] and syncs == [3, 2]


def test_a_late_one_leaves_and_is_finished_with_the_others_done(box, held, pace, soon):
    held.hold(f"{box.root}/d1")
    changes = box.changes()
    made(changes)
    others_end(changes)
    assert list(pace.volume("d1").running) == [changes[0]] and not pace.volume("d2").running
    task = spawn(changes[0].finish)
    concurrency.sleep(0)
    assert not changes[0].has_ended and box.log["d1"] == [0]  # it goes on when what it waits for is safe
    held.let_go()
    with time_limit(30):
        task.wait()
    assert changes[0].has_ended and changes[0].error is None and box.log["d1"] == DONE
    assert not disk_calls._syncs._waiting


def test_a_late_one_that_ended_before_it_is_finished(box, held, soon):
    held.hold(f"{box.root}/d1")
    changes = box.changes()
    made(changes)
    others_end(changes)
    held.let_go()
    concurrency.sleep(0.01)
    finished(changes[0])
    assert box.log["d1"] == DONE and not disk_calls._syncs._waiting


def test_the_error_of_a_late_one_is_thrown_into_it(box, held, soon):
    held.hold(f"{box.root}/d1")
    changes = box.changes()
    made(changes)
    others_end(changes)
    held.let_go(errno.EIO)
    finished(changes[0])
    assert changes[0].error.errno == errno.EIO and box.log["d1"] == [0, OSError, "closed"]
    assert changes[1].error is None


def test_all_may_be_late(box, held, soon):
    held.hold(box.root)
    changes = box.changes()
    made(changes)
    assert not any(change.has_ended for change in changes)
    held.let_go()
    finished(*changes)
    assert all(log == DONE for log in box.log.values())


def test_what_the_kernel_does_not_sync_is_synced_in_full(box, pace, monkeypatch):
    synced = []

    def refusing(sets, _seconds):
        found = [Syncing(0, 0) for _ in sets]
        found[0].refused = list(sets[0])
        return found

    monkeypatch.setattr(disk_calls, "sync_sets", refusing)
    monkeypatch.setattr(fs, "sync_files", lambda fds: synced.append(len(fds)))
    changes = box.changes()
    made(changes[:1])
    assert not changes[0].has_ended and not synced
    finished(changes[0])
    assert changes[0].has_ended and synced == [1, 1] and box.log["d1"] == DONE
    for change in changes[1:]:
        change.give_up()


def test_a_refused_set_with_an_error_is_an_error(box, pace, monkeypatch):
    def refusing(sets, _seconds):
        found = [Syncing(0, 0) for _ in sets]
        found[0].refused, found[0].code = list(sets[0]), errno.EIO
        return found

    monkeypatch.setattr(disk_calls, "sync_sets", refusing)
    change = Change("d1", box.steps("d1"))
    made([change])
    finished(change)
    assert change.error.errno == errno.EIO


def test_one_that_the_kernel_cannot_sync_leaves(box, pace):
    reader, writer = os.pipe()

    def steps():
        yield (writer,)

    changes = box.changes(d2=steps())
    made(changes)
    assert [change.has_ended for change in changes] == [True, False, True]
    finished(changes[1])
    assert changes[1].error.errno == errno.EINVAL  # fsync does not take it, either
    os.close(reader)
    os.close(writer)


def free(box, device):
    """No lock is held."""
    with changing(f"{box.root}/{device}", "abc", 0):
        pass


def locking(box, device, timeout_s=10.0):
    lock = changing(f"{box.root}/{device}", "abc", timeout_s)
    yield from lock.entering()
    try:
        yield from box.steps(device, 1)
    finally:
        lock.__exit__()


@pytest.mark.parametrize("who", ["another process", "another thread", "another change"])
def test_one_that_waits_for_a_lock_leaves(box, syncs, pace, who):
    path = f"{box.root}/d2/.lock"
    other = None
    if who == "another change":
        other = changing(f"{box.root}/d2", "abc")
        other.__enter__()
    else:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        if who == "another thread":
            thread = threading.Thread(target=fcntl.flock, args=(fd, fcntl.LOCK_EX))
            thread.start()
            thread.join()
        else:
            fcntl.flock(fd, fcntl.LOCK_EX)  # of another open file; as good as one of another process
    changes = box.changes(d2=locking(box, "d2"))
    made(changes)
    assert [change.has_ended for change in changes] == [True, False, True] and box.log["d2"] == []
    task = spawn(changes[1].finish)
    concurrency.sleep(0.002)
    assert not changes[1].has_ended and not pace.volume("d2").running  # who has the lock may be stopped
    if other is not None:
        other.__exit__()
    else:
        os.close(fd)
    with time_limit(30):
        task.wait()
    assert changes[1].has_ended and changes[1].error is None and box.log["d2"] == [0, "done", "closed"]
    free(box, "d2")


def test_wait_for_a_lock_makes_no_device_slow_and_what_follows_does(box, held, pace, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(pace, "clock", lambda: now[0])
    lock = changing(f"{box.root}/d2", "abc")
    lock.__enter__()
    changes = [Change("d2", locking(box, "d2"))]
    made(changes)
    task = spawn(changes[0].finish)
    concurrency.sleep(0)
    now[0] = 60.0
    held.hold(f"{box.root}/d2/f")
    lock.__exit__()
    until(lambda: concurrency.sleep(0.001) or pace.volume("d2").running, "it goes on")
    assert not pace.volume("d2").is_slow(60.5) and pace.volume("d2").is_slow(62.0)
    until(lambda: concurrency.sleep(0.001) or held.held, "it syncs")
    now[0] = 60.5
    held.let_go()
    with time_limit(30):
        task.wait()
    assert changes[0].error is None and not pace.volume("d2").is_slow(61.0)


def test_a_lock_that_is_not_to_be_had_is_that_changes_error(box, syncs):
    with changing(f"{box.root}/d2", "abc"):
        changes = box.changes(d2=locking(box, "d2", 0.01))
        made(changes)
        finished(changes[1])
    assert isinstance(changes[1].error, LockTimeout) and changes[0].error is None


@pytest.mark.parametrize("how", ["killed", "limit"])
def test_when_the_maker_is_stopped_all_are_given_up(box, held, how):
    held.hold(f"{box.root}/d2")
    changes = box.changes(d1=locking(box, "d1"))

    def limited():
        with time_limit(0.01):
            together(changes)

    task = spawn(together, changes) if how == "killed" else spawn(limited)
    if how == "killed":
        concurrency.sleep(0)
        assert held.held or not changes[1].has_ended
        task.kill()
    with pytest.raises(BaseException) as raised, time_limit(30):
        task.wait()
    assert how == "killed" or isinstance(raised.value, WaitTimeout)
    assert all(change.has_ended and change.error is not None for change in changes)  # none can be taken for made
    assert box.log["d2"][-2:] == [GeneratorExit, "closed"]
    free(box, "d1")
    assert not disk_calls._syncs._waiting and not disk_calls._syncs._asked


def test_a_limit_around_it_is_not_taken_for_lateness_when_both_are_due(box, held, monkeypatch):
    """The hub may have been held up until both are."""
    held.hold(box.root)
    monkeypatch.setattr(disk_steps, "LATE_S", 0.0625)  # a length with a timer of its own
    changes, hub = box.changes(), concurrency.get_hub()
    clock = hub.clock

    def limited():
        with time_limit(0.05):
            together(changes)

    task = spawn(limited)
    concurrency.sleep(0)
    monkeypatch.setattr(hub, "clock", lambda: clock() + 3600)
    with pytest.raises(WaitTimeout):
        task.wait()
    assert all(change.has_ended for change in changes)


@pytest.mark.parametrize("at", ["the beginning", "a later step"])
def test_what_is_no_mere_error_stops_all(box, syncs, at):
    def leave():
        raise KeyboardInterrupt

    if at == "the beginning":
        def first():
            leave()
            yield ()
        changes = box.changes(d2=first())
    else:
        changes = box.changes(d2=box.steps("d2", between=leave))
    with pytest.raises(KeyboardInterrupt):
        together(changes)
    assert not any(change.has_ended and change.error is None for change in changes)
    assert box.log["d1"][-1] == "closed" and box.log["d3"] in ([], [0, GeneratorExit, "closed"])


def test_one_that_fails_while_it_is_given_up_keeps_nothing_of_the_others(box, held):
    held.hold(box.root)

    def fail():
        raise OSError(errno.EIO, "cannot be removed")

    changes = box.changes(d1=box.steps("d1", at_end=fail), d2=locking(box, "d2"))
    task = spawn(together, changes)
    concurrency.sleep(0)
    task.kill()
    assert all(change.has_ended for change in changes) and box.log["d3"][-1] == "closed"
    free(box, "d2")


def test_a_late_one_that_is_given_up_is_forgotten(box, held, soon):
    held.hold(f"{box.root}/d1")

    def leave():
        raise KeyboardInterrupt

    def late():
        while not changes[0]._syncing:
            yield from box.steps("d2", 1)
        leave()

    changes = box.changes(d2=late())
    with pytest.raises(KeyboardInterrupt), time_limit(30):
        together(changes)
    assert all(change.has_ended for change in changes) and not disk_calls._syncs._waiting
    assert box.log["d1"] == [0, GeneratorExit, "closed"]


def test_when_one_was_late_nobody_waits_together_any_more(box, held, soon, monkeypatch):
    """Else there may be one more at each step."""
    now = [0.0]
    monkeypatch.setattr(disk_calls._pace, "clock", lambda: now[0])
    held.hold(f"{box.root}/d1")
    real = disk_calls.sync_sets
    monkeypatch.setattr(disk_calls, "sync_sets", lambda *args: (real(*args), now.__setitem__(0, 0.3))[0])
    changes = box.changes()
    made(changes)
    assert not any(change.has_ended for change in changes)
    others_end(changes)
    held.let_go()
    finished(changes[0])
    assert all(log == DONE for log in box.log.values())


def test_a_finisher_that_is_stopped_gives_up(box, held, soon):
    held.hold(f"{box.root}/d1")
    changes = box.changes()
    made(changes)
    others_end(changes)
    task = spawn(changes[0].finish)
    concurrency.sleep(0)
    task.kill()
    assert changes[0].has_ended and box.log["d1"] == [0, GeneratorExit, "closed"] and not disk_calls._syncs._waiting


def test_a_slow_device_is_not_one_of_several(pace):
    assert disk_calls.syncs_here("d1")
    with time_limit(30):
        assert spawn(disk_calls.syncs_here, "d1").wait()
    pace.volume("d1").slow_until = 60.0
    assert not disk_calls.syncs_here("d1") and disk_calls.syncs_here("d2")
    assert not disk_calls.on_disk_thread("d2", disk_calls.syncs_here, "d2")
