import os
import select

import pytest

from keelstore.common.linux_aio import AsyncSync


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
