import os

import pytest

from keelstore.common import concurrency, disk_calls, locks
from keelstore.common.errors import LockTimeout
from keelstore.common.locks import lock_directory


def test_lock_excludes_and_times_out(tmp_path):
    path = str(tmp_path)
    with lock_directory(path):
        assert os.path.exists(f"{path}/.lock")
        with pytest.raises(LockTimeout), lock_directory(path, 0.02):
            pass
        with lock_directory(path, 0.02, name="replication"):
            assert os.path.exists(f"{path}/.lock-replication")
    with lock_directory(path, 0):
        pass


def test_lock_with_a_limit_has_that_many_holders(tmp_path):
    path = str(tmp_path)
    with lock_directory(path, limit=2), lock_directory(path, limit=2):
        assert sorted(os.listdir(path)) == [".lock", ".lock-1"]
        with pytest.raises(LockTimeout), lock_directory(path, 0.01, limit=2):
            pass


def test_lock_of_a_missing_directory_says_so(tmp_path):
    with pytest.raises(FileNotFoundError), lock_directory(f"{tmp_path}/absent"):
        pass


def test_waiting_for_a_lock_lets_others_run(tmp_path):
    order = []
    lock = lock_directory(str(tmp_path))
    lock.__enter__()

    def wait():
        with lock_directory(str(tmp_path), 5):
            order.append("had")

    def release():
        order.append("release")
        lock.__exit__()

    tasks = [concurrency.spawn(wait), concurrency.spawn(release)]
    for task in tasks:
        task.wait()
    assert order == ["release", "had"]


def test_lock_is_had_by_one_disk_thread_at_a_time(tmp_path):
    held, most = [], []

    def work():
        for _ in range(20):
            with lock_directory(str(tmp_path), 10):
                held.append(1)
                most.append(len(held))
                held.pop()

    tasks = [concurrency.spawn(disk_calls.on_disk_thread, "lock-test", work) for _ in range(3)]
    for task in tasks:
        task.wait()
    assert max(most) == 1 and len(most) == 60


def test_lock_file_that_was_removed_is_not_trusted(tmp_path, monkeypatch):
    directory = tmp_path / "part"
    directory.mkdir()
    real, done = locks.fcntl.flock, list[int]()

    def flock(fd, how):
        if not done:
            done.append(1)
            os.unlink(directory / ".lock")  # another process cleaned the directory between our open and flock
        real(fd, how)

    monkeypatch.setattr(locks.fcntl, "flock", flock)
    with lock_directory(str(directory), 1), pytest.raises(LockTimeout), lock_directory(str(directory), 0):
        pass
