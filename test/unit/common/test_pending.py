"""Updates that wait beside a database while others are on their way into it. Real files, with a container's tables."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from keelstore.account.broker import AccountBroker
from keelstore.common import concurrency, fs, pending
from keelstore.common.errors import DeviceFull, LockTimeout
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


def test_who_waits_for_it_gets_what_is_left(path):
    with merge(path) as taken:
        later = concurrency.spawn(_take_all, path)
        concurrency.sleep(0)
        add(path, THREE)
        taken.done()
    assert later.wait() == ["three"] and waiting(path) == []


def test_what_another_has_taken_meanwhile_is_not_taken_twice(path):
    with merge(path) as taken:
        with lock_directory(os.path.dirname(path)):  # as daemons of the field do, which know no other lock
            fs.truncate(path)
        add(path, THREE)
        taken.done()
        assert waiting(path) == ["three"]


@pytest.mark.parametrize("alone", [False, True])
def test_what_waits_in_a_directory_that_was_made_anew_is_left(path, alone):
    directory = os.path.dirname(path)
    with Merge(path, directory, 0.01, alone) as taken:
        os.rename(directory, f"{directory}-quarantined")
        os.mkdir(directory)
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


@pytest.mark.parametrize("step", ["write_all", "rename"])
def test_a_crash_while_it_is_taken_out_leaves_all(path, monkeypatch, step):
    class Crash(Exception):
        pass

    def crash(*_args: object) -> None:
        raise Crash

    with merge(path) as taken:
        add(path, THREE)
        monkeypatch.setattr(fs if step == "write_all" else os, step, crash)
        with pytest.raises(Crash):
            taken.done()
    assert waiting(path) == ["one", "two", "three"]
    monkeypatch.undo()
    with merge(path) as taken:
        taken.done()
    assert waiting(path) == [] and sorted(os.listdir(os.path.dirname(path))) == [".lock", "x.db.pending"]


def test_where_order_counts_nobody_comes_between(path):
    with Merge(path, os.path.dirname(path), 0.01, alone=True) as taken:
        assert not pending.append_at_once(path, os.path.dirname(path), THREE)
        assert names(taken.records(pytest.fail)) == ["one", "two"]
        taken.done()
    assert waiting(path) == []
    add(path, THREE)
    assert waiting(path) == ["three"]


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


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), DeviceFull("No space left on device")])
def test_what_cannot_be_taken_out_is_merged_again(broker, monkeypatch, caplog, error):
    put(broker, "o")

    def truncate(path: str) -> None:
        raise error

    monkeypatch.setattr(fs, "truncate", truncate)
    assert listed(broker) == ["o"] and broker.pending_size() and str(error) in caplog.text
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


def test_what_an_account_is_told_goes_in_alone(tmp_path, monkeypatch):
    """Of two equal rows the later counts, so no daemon of the field may bring in what has come meanwhile."""
    directory = tmp_path / "sda/accounts/7/abc/0123abc"
    (tmp_path / "sda").mkdir()
    broker = AccountBroker(str(directory / "0123abc.db"), str(tmp_path / "sda"), logging.getLogger("test"))
    broker.initialize("a", "1700000000.00000")
    broker.put_record(("c", "1700000001.00000", "0", 5, 50, 0, 0))
    taken: list[bool] = []
    merge_rows = broker.merge_rows

    def merging(connection, rows, source=None):
        taken.append(lock_directory(broker.directory).take())
        merge_rows(connection, rows, source)

    monkeypatch.setattr(broker, "merge_rows", merging)
    assert broker.info().object_count == 5 and taken == [False] and not broker.pending_size()
    broker.close()
