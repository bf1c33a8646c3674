import os

import pytest

from keelstore.common import disk_calls
from keelstore.common.concurrency import sleep, spawn
from keelstore.common.last_closes import LastCloses
from test.support.waiting import until


@pytest.fixture
def closes():
    found = LastCloses()
    yield found
    found.end()


def opened(path, count):
    fds = [os.open(path / str(number), os.O_RDWR | os.O_CREAT) for number in range(count)]
    for number in range(count):
        os.unlink(path / str(number))
    return fds


def is_open(fd):
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


@pytest.mark.parametrize("count", [1, 3, 450])
def test_descriptors_are_closed_at_the_next_turn_and_the_files_beside_it(tmp_path, closes, count):
    """A pipe shows when its other end is closed for good."""
    reader, writer = os.pipe()
    fds = [*opened(tmp_path, count - 1), writer]
    for fd in fds:
        closes.let_go(fd)
    assert all(map(is_open, fds))
    sleep(0)
    assert not any(map(is_open, fds))
    assert os.read(reader, 1) == b""  # waits for the thread
    os.close(reader)


def test_what_cannot_be_sent_is_closed_at_once(tmp_path, closes):
    reader, writer = os.pipe()
    closes.let_go(os.dup(writer))
    sleep(0)
    closes._ours.close()
    closes._ours = type("Full", (), {"sendmsg": lambda *_args: (_ for _ in ()).throw(BlockingIOError()), "close": lambda _self: None})()
    closes.let_go(writer)
    sleep(0)
    assert not is_open(writer) and os.read(reader, 1) == b""
    os.close(reader)


def test_only_where_syncs_are_asynchronous_and_never_on_a_disk_thread(tmp_path):
    assert not disk_calls.on_disk_thread("d", disk_calls.lets_go)
    fd = os.open(tmp_path / "a", os.O_RDWR | os.O_CREAT)

    def discard():
        disk_calls.sync([fd])
        assert disk_calls.lets_go()
        disk_calls.let_go(fd)

    spawn(discard).wait()
    until(lambda: sleep(0) or not is_open(fd), "it is closed")
