"""Many rows at once: what the triggers would have made of them, and the triggers as before."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from keelstore.common.broker_schema import chexor
from keelstore.container import row_batch, schema

ROWS = [(f"o{number}", f"{number:010d}.00000", number, "text/plain", "e", number % 2, 0) for number in range(200)]


def opened(path: str | Path = ":memory:", is_new: bool = True) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.create_function("chexor", 3, chexor)
    if is_new:
        schema.create(connection)
        connection.execute("INSERT INTO container_info (account) VALUES ('a')")
    return connection


def state(connection: sqlite3.Connection) -> list[Any]:
    """All that rows and triggers make, and the schema."""
    return [connection.execute(sql).fetchall() for sql in (
        "SELECT ROWID, * FROM object ORDER BY ROWID", "SELECT * FROM policy_stat ORDER BY 1", "SELECT hash FROM container_info",
        "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name", "SELECT * FROM sqlite_sequence")]  # fmt: skip


def replace(connection: sqlite3.Connection, removed: Any = (), added: Any = ()) -> None:
    connection.execute("BEGIN IMMEDIATE")
    row_batch.replace(connection, removed, added)
    connection.execute("COMMIT")


def present(connection: sqlite3.Connection) -> list[tuple[int, tuple[Any, ...]]]:
    return [(row[0], row[2:]) for row in connection.execute("SELECT ROWID, * FROM object").fetchall()]


def some_row(chance: random.Random, number: int) -> tuple[Any, ...]:
    name = chance.choice(["o", "é", "a b", "日", "\U0001f600"]) + str(number)
    return (name, f"{chance.randrange(10**10):010d}.{chance.randrange(10**5):05d}", chance.randrange(1 << 40), "text/plain", "e" * 32,
            chance.randrange(2), chance.randrange(3))  # fmt: skip


def test_a_batch_is_what_row_by_row_would_be(monkeypatch: pytest.MonkeyPatch) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance, number = random.Random(seed), 0
    by_row, at_once = opened(), opened()
    for _ in range(25):
        there = present(by_row)
        removed = chance.sample(there, chance.randrange(len(there) + 1))
        added = [some_row(chance, number + i) for i in range(chance.choice([0, 1, 60, 127, 128, 129, 400]))]
        number += len(added)
        monkeypatch.setattr(row_batch, "WORTH_IT", 1 << 60)
        replace(by_row, removed, added)
        monkeypatch.setattr(row_batch, "WORTH_IT", 1)
        replace(at_once, removed, added)
        assert state(at_once) == state(by_row)


def calls_of_chexor(connection: sqlite3.Connection) -> list[str]:
    calls: list[str] = []
    connection.create_function("chexor", 3, lambda *args: (calls.append(args[1]), chexor(*args))[1])
    return calls


def test_few_rows_are_left_to_the_triggers() -> None:
    connection = opened()
    calls = calls_of_chexor(connection)
    replace(connection, added=ROWS[: row_batch.WORTH_IT - 1])
    assert len(calls) == row_batch.WORTH_IT - 1
    replace(connection, added=ROWS[100 : 100 + row_batch.WORTH_IT])
    assert len(calls) == row_batch.WORTH_IT - 1


def test_what_is_given_up_leaves_rows_and_triggers_as_they_were() -> None:
    connection = opened()
    replace(connection, added=ROWS)
    before = state(connection)
    connection.execute("BEGIN IMMEDIATE")
    row_batch.replace(connection, present(connection), ROWS[:60])
    connection.execute("ROLLBACK")
    assert state(connection) == before
    calls = calls_of_chexor(connection)
    connection.execute(row_batch.insert_sql(), ROWS[0])
    assert calls == ["o0"]


def test_triggers_that_are_not_ours_do_their_work() -> None:
    connection = opened()
    connection.executescript("CREATE TABLE seen (name); CREATE TRIGGER another AFTER INSERT ON object BEGIN"
                             " INSERT INTO seen VALUES (new.name); END")  # fmt: skip
    replace(connection, added=ROWS)
    assert connection.execute("SELECT COUNT(*) FROM seen").fetchone() == (200,)
    assert connection.execute("SELECT object_count FROM policy_stat").fetchone() == (100,)


@pytest.mark.parametrize("place, value", [(0, b"bytes"), (1, 5), (2, None), (2, "7"), (2, 1.5), (2, (1 << 63) - 1), (5, None)])
def test_values_of_other_kinds_are_counted_by_sql(place: int, value: Any) -> None:
    """A row that is taken out may be anybody's."""
    odd = (*ROWS[0][:place], value, *ROWS[0][place + 1 :])
    connection, expected = opened(), opened()
    for one in (connection, expected):
        one.execute(row_batch.insert_sql(), odd)
    removed = present(connection)
    outcomes = []
    for one, add in ((connection, lambda one: row_batch.replace(one, removed, ROWS[1:])), (expected, row_by_row(removed))):
        try:
            add(one)
            outcomes.append(state(one))
        except (sqlite3.Error, TypeError) as error:
            outcomes.append([type(error)])
    assert outcomes[0] == outcomes[1]


def row_by_row(removed: Any) -> Any:
    def add(connection: sqlite3.Connection) -> None:
        connection.executemany("DELETE FROM object WHERE ROWID = ?", [(rowid,) for rowid, _ in removed])
        connection.executemany(row_batch.insert_sql(), ROWS[1:])

    return add


def test_sizes_that_sum_up_beyond_what_sql_counts_are_left_to_it() -> None:
    at_once, by_row = opened(), opened()
    huge = [(*row[:2], 1 << 60, *row[3:]) for row in ROWS]
    replace(at_once, added=huge)
    by_row.executemany(row_batch.insert_sql(), huge)
    assert state(at_once) == state(by_row)


def test_others_never_see_the_table_without_its_triggers(tmp_path: Path) -> None:
    writer = opened(tmp_path / "x.db")
    writer.execute("PRAGMA cache_spill = OFF")  # else it locks readers out early where brokers of other tests use up SQLite's memory
    other = opened(tmp_path / "x.db", is_new=False)
    names = "SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'object' ORDER BY name"
    before = other.execute(names).fetchall()
    assert other.execute("SELECT COUNT(*) FROM object WHERE deleted = 0").fetchone() == (0,)
    writer.execute("BEGIN IMMEDIATE")
    row_batch.replace(writer, [], ROWS)
    assert other.execute(names).fetchall() == before
    writer.execute("COMMIT")
    assert other.execute("SELECT COUNT(*) FROM object WHERE deleted = 0").fetchone() == (100,)  # its statement is compiled anew
    assert other.execute(names).fetchall() == before
    other.execute(row_batch.insert_sql(), ("more", "1.0", 1, "", "", 0, 0))
    assert writer.execute("SELECT object_count FROM policy_stat").fetchone() == (101,)
