"""Removing, replacing, copying and reclaiming a database while others use it: nothing is written into a file that is no more."""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from keelstore.common import broker as broker_module
from keelstore.common import concurrency
from keelstore.common.broker import DatabaseNotFound
from keelstore.container.broker import ContainerBroker

LOG = logging.getLogger("test.broker")
HASH = "0a" * 16


def at(number: int) -> str:
    return f"17000{number:05}.00000"


@pytest.fixture
def device(tmp_path: Path) -> Path:
    (tmp_path / "sda").mkdir()
    return tmp_path / "sda"


def open_broker(device: Path) -> ContainerBroker:
    return ContainerBroker(str(device / "containers" / "3" / HASH[-3:] / HASH / f"{HASH}.db"), str(device), LOG)


@pytest.fixture
def broker(device: Path) -> ContainerBroker:
    found = open_broker(device)
    found.initialize("a", "c", at(0), 0)
    found.put_object("o", at(1), 1, "t", "e", 0)
    found.merge_pending()
    return found


def while_locked(broker: ContainerBroker, meanwhile: Callable[[], None]) -> Any:
    """What a write gives that waits for SQLite's lock on the file while something happens to it."""
    other = sqlite3.connect(broker.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    broker.read(broker.info_in)  # its connection is open
    result: list[Any] = []

    def write() -> None:
        try:
            result.append(broker.write(lambda connection: broker.update_metadata(connection, {"X-A": ("1", at(5))})))
        except Exception as error:
            result.append(error)

    task = concurrency.spawn(write)
    concurrency.sleep(0.05)
    meanwhile()
    other.execute("ROLLBACK")
    other.close()
    task.wait()
    return result[0]


def test_a_write_that_waited_while_the_database_was_removed_says_so(broker: ContainerBroker) -> None:
    found = while_locked(broker, lambda: os.rename(broker.directory, f"{broker.directory}x"))
    assert isinstance(found, DatabaseNotFound)


def test_a_write_that_waited_while_the_file_was_replaced_goes_into_the_new_one(broker: ContainerBroker, device: Path) -> None:
    def replace() -> None:
        shutil.copy(broker.path, f"{broker.path}.new")
        os.rename(f"{broker.path}.new", broker.path)

    assert while_locked(broker, replace) == {"X-A": ("1", at(5))}
    assert open_broker(device).info().metadata == {"X-A": ("1", at(5))}


def test_removal(broker: ContainerBroker, device: Path) -> None:
    other = open_broker(device)
    other.info()
    assert broker.remove(lambda connection: False) is False and broker.exists
    other.put_object("p", at(2), 1, "t", "e", 0)
    assert broker.remove(lambda connection: True) is False, "an update waits"
    broker.merge_pending()
    assert broker.remove(lambda connection: broker.max_row(connection) == 2) is True
    assert not broker.exists and os.listdir(device / "tmp") == [] and os.listdir(device / "containers") == []
    for late in (lambda: other.put_object("q", at(3), 1, "t", "e", 0), other.info, lambda: broker.remove(lambda connection: True)):
        with pytest.raises(DatabaseNotFound):
            late()
    other.initialize("a", "c", at(9), 0)
    assert other.info().put_timestamp == at(9)


def test_a_copy_has_everything_and_is_a_database(broker: ContainerBroker, device: Path, tmp_path: Path) -> None:
    broker.put_object("waits", at(2), 1, "t", "e", 0)
    target = tmp_path / "copy"
    broker.snapshot(str(target))
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("copy")] == ["copy"]
    connection = sqlite3.connect(target)
    assert [row[0] for row in connection.execute("SELECT name FROM object ORDER BY name")] == ["o", "waits"]
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


def test_tombstones_are_forgotten_page_by_page(broker: ContainerBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_module, "RECLAIM_ROWS", 3)
    for number in range(20):
        broker.delete_object(f"n{number % 10}", at(10 + number), number // 10)  # two policies, ten names
    broker.put_object("n5", at(90), 1, "t", "e", 0)
    writes: list[int] = []
    write = broker.write

    def counted(function: Any, **options: Any) -> Any:
        before = broker.read(lambda connection: connection.execute("SELECT COUNT(*) FROM object").fetchone()[0])
        found = write(function, **options)
        writes.append(before - broker.read(lambda connection: connection.execute("SELECT COUNT(*) FROM object").fetchone()[0]))
        return found

    monkeypatch.setattr(broker, "write", counted)
    assert broker.reclaim(at(27), at(0)) == 16
    assert max(writes) <= 3
    rows = broker.read(lambda connection: connection.execute("SELECT name, deleted FROM object ORDER BY name").fetchall())
    assert rows == [("n5", 0), ("n7", 1), ("n8", 1), ("n9", 1), ("o", 0)]
    assert broker.reclaim(at(27), at(0)) == 0
