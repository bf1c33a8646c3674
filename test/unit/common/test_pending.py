"""Updates that wait beside a database while others are on their way into it. Real files, with a container's tables."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from keelstore.common import concurrency, fs, pending
from keelstore.common.errors import LockTimeout
from keelstore.common.listing import ListingQuery
from keelstore.common.locks import lock_directory, take_file
from keelstore.common.pending import Merge
from keelstore.container.broker import ContainerBroker

ONE, TWO, THREE = (pending.encode((name, 1)) for name in ("one", "two", "three"))


@pytest.fixture
def path(tmp_path: Path) -> str:
    found = f"{tmp_path}/x.db.pending"
    add(found, ONE, TWO)
    return found


@pytest.fixture
def broker(tmp_path: Path):
    directory = tmp_path / "sda/containers/7/abc/0123abc"
    (tmp_path / "sda").mkdir()
    found = ContainerBroker(str(directory / "0123abc.db"), str(tmp_path / "sda"), logging.getLogger("test"))
    found.initialize("a", "c", "1700000000.00000", 0)
    yield found
    found.close()


def add(path: str, *entries: bytes) -> None:
    for entry in entries:
        assert pending.append_at_once(path, os.path.dirname(path), entry)


def merge(path: str, timeout_s: float = 0.01) -> Merge:
    return Merge(path, os.path.dirname(path), timeout_s)


def names(entries: list[tuple[str, int]]) -> list[str]:
    return [name for name, _ in entries]


def waiting(path: str) -> list[str]:
    return names(pending.decode(Path(path).read_bytes(), pytest.fail))


def put(broker: ContainerBroker, name: str) -> None:
    broker.put_object(name, "1700000001.00000", 1, "text/plain", "etag", 0)


def listed(broker: ContainerBroker) -> list[str]:
    return [row[0] for row in broker.read_fresh(lambda connection: broker.list_in(connection, ListingQuery(10**6)))]


def test_what_is_added_meanwhile_is_left(path):
    with merge(path) as taken:
        add(path, THREE)
        assert names(taken.records(pytest.fail)) == ["one", "two"]
        assert waiting(path) == ["one", "two", "three"]
        taken.done()
    assert waiting(path) == ["three"]
    with merge(path) as taken:
        taken.done()
    assert Path(path).read_bytes() == b""


def test_what_did_not_get_into_the_database_stays(path):
    with pytest.raises(RuntimeError), merge(path):
        raise RuntimeError
    assert waiting(path) == ["one", "two"]


def test_more_than_was_taken_is_not_written_over_it(path):
    with merge(path) as taken:
        add(path, THREE, ONE, TWO, THREE)
        taken.done()
    assert waiting(path) == ["one", "two", "three", "one", "two", "three"]


def test_what_another_has_taken_meanwhile_is_not_taken_twice(path):
    with merge(path) as taken:
        with lock_directory(os.path.dirname(path)):  # as daemons of the field do, which know no other lock
            fs.truncate(path)
        add(path, THREE)
        taken.done()
        assert waiting(path) == ["three"]


def test_where_nothing_waits_nothing_is_made(tmp_path):
    path = f"{tmp_path}/x.db.pending"
    with merge(path) as taken:
        assert taken.records(pytest.fail) == []
        add(path, ONE)
        taken.done()
    assert waiting(path) == ["one"]


def test_one_takes_it_at_a_time(path):
    with merge(path):
        with pytest.raises(LockTimeout, match=r"x\.db\.pending"), merge(path):
            pytest.fail("two at once")
        later = concurrency.spawn(_take_all, path)
    assert later.wait() == ["one", "two"] and waiting(path) == []


def _take_all(path: str) -> list[str]:
    with merge(path, 10) as taken:
        taken.done()
        return names(taken.records(pytest.fail))


def test_the_lock_of_the_directory_is_waited_for(path):
    with lock_directory(os.path.dirname(path)), pytest.raises(LockTimeout), merge(path):
        pytest.fail("it is held")
    with merge(path) as taken, lock_directory(os.path.dirname(path)), pytest.raises(LockTimeout):
        taken.done()
    assert waiting(path) == ["one", "two"]
    with open(path, "rb") as file:
        assert take_file(file.fileno())  # nobody has it any more


def test_beyond_the_cap_the_next_is_for_the_database_unless_that_is_under_way(path, monkeypatch):
    monkeypatch.setattr(pending, "CAP", 10)
    monkeypatch.setattr(pending, "MERGING_CAP", len(ONE + TWO) + 1)
    assert not pending.append_at_once(path, os.path.dirname(path), THREE)
    with merge(path):
        add(path, THREE)
        assert not pending.append_at_once(path, os.path.dirname(path), ONE), "too much, though"
    assert waiting(path) == ["one", "two", "three"]


@pytest.mark.parametrize("written", [0, 1, 30, 100])
def test_a_crash_while_the_rest_is_moved_loses_none_of_it(path, monkeypatch, written):
    rest = [pending.encode((f"later {number}", 1)) for number in range(4)]
    add(path, *(pending.encode((f"before {number}", 1)) for number in range(6)))

    class Crash(Exception):
        pass

    def pwrite(fd: int, data: bytes, at: int) -> int:
        os.lseek(fd, at, os.SEEK_SET)
        os.write(fd, data[:written])
        raise Crash

    with merge(path) as taken:
        add(path, *rest)
        monkeypatch.setattr(os, "pwrite", pwrite)
        with pytest.raises(Crash):
            taken.done()
    found = names(pending.decode(Path(path).read_bytes(), lambda error: None))
    assert {f"later {number}" for number in range(4)} <= set(found)


# -- in a database


def test_rows_are_taken_while_others_go_into_the_database(broker, monkeypatch):
    put(broker, "first")
    until_here: list[bool] = []
    merge_rows = broker.merge_rows

    def merging(connection, rows, source=None):
        until_here.append(pending.append_at_once(broker.pending_path, broker.directory,
                                                 pending.encode(("second", "1700000001.00000", 1, "t", "e", 0, 0))))
        merge_rows(connection, rows, source)

    monkeypatch.setattr(broker, "merge_rows", merging)
    assert listed(broker) == ["first"] and until_here == [True]
    monkeypatch.undo()
    assert broker.pending_size() and listed(broker) == ["first", "second"] and not broker.pending_size()


def test_a_write_that_fails_leaves_what_waits(broker):
    put(broker, "o")

    def fail(connection):
        raise RuntimeError

    with pytest.raises(RuntimeError):
        broker.write(fail)
    assert broker.pending_size() and listed(broker) == ["o"]


def test_what_cannot_be_taken_out_is_merged_again(broker, monkeypatch, caplog):
    put(broker, "o")

    def shorten(fd: int, rest: bytes) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(fs, "shorten", shorten)
    assert listed(broker) == ["o"] and broker.pending_size() and "Input/output error" in caplog.text
    rows = broker.read(lambda connection: broker.max_row(connection))
    monkeypatch.undo()
    assert listed(broker) == ["o"] and not broker.pending_size()
    assert broker.read(lambda connection: broker.max_row(connection)) == rows


def test_those_who_come_beyond_the_cap_make_one_transaction(broker, monkeypatch):
    put(broker, "first")
    monkeypatch.setattr(pending, "CAP", 10)
    count: list[int] = []
    transaction = broker._transaction
    monkeypatch.setattr(broker, "_transaction", lambda *args: (count.append(1), transaction(*args))[1])
    tasks = [concurrency.spawn(put, broker, f"o{number}") for number in range(5)]
    for task in tasks:
        task.wait()
    assert len(count) < 5
    assert listed(broker) == ["first", *(f"o{number}" for number in range(5))]
