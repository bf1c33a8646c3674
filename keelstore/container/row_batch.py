"""Many rows of ``object`` taken out and put in at once.

The triggers of the table keep counts and hash of the container for each row. Their ``chexor`` is a Python function, so
each row of a batch passes the interpreter to and fro between the disk thread and the requests; at hundreds of rows that
costs more than the rows themselves (doc/design/performance). A batch takes the triggers away, does once what they would
have done, and puts them back as they were: all in the transaction of the batch, so nobody ever sees the table without
them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

from keelstore.common.broker_schema import fold, row_digest
from keelstore.common.broker_steps import NAMES_AT_ONCE, one_row
from keelstore.container import schema

T = TypeVar("T")

WORTH_IT: Final = 50  # rows; for fewer the triggers cost less than taking them away
_COLUMNS: Final = ("name", "created_at", "size", "content_type", "etag", "deleted", "storage_policy_index")
_ROWS_AT_ONCE: Final = NAMES_AT_ONCE // len(_COLUMNS)

_HUGE: Final = 1 << 48  # bytes; of sizes below it no batch comes to more than SQL's integers hold

Values = tuple[Any, ...]  # of _COLUMNS


def insert_sql(rows: int = 1) -> str:
    return f"INSERT INTO object ({', '.join(_COLUMNS)}) VALUES {', '.join(['(?, ?, ?, ?, ?, ?, ?)'] * rows)}"


def replace(connection: sqlite3.Connection, removed: Sequence[tuple[int, Values]], added: Sequence[Values]) -> None:
    """Take rows out, given with their ROWIDs, and put others in. Inside the transaction that is open."""
    if len(removed) + len(added) >= WORTH_IT:
        triggers = schema.row_triggers(connection)
        if triggers and all(map(_is_plain, added)) and all(_is_plain(row) for _, row in removed):
            _replace_at_once(connection, removed, added, triggers)
            return
    connection.executemany("DELETE FROM object WHERE ROWID = ?", [(rowid,) for rowid, _ in removed])
    connection.executemany(insert_sql(), added)


def _is_plain(row: Values) -> bool:
    """Whether counting it here is what SQL would do: other programs can have written anything into a column."""
    name, created_at, size, _, _, deleted, policy_index = row
    return (type(name) is str and type(created_at) is str and type(size) is int and abs(size) < _HUGE
            and type(deleted) is int and type(policy_index) is int)  # fmt: skip


def _replace_at_once(connection: sqlite3.Connection, removed: Sequence[tuple[int, Values]], added: Sequence[Values],
                     triggers: Sequence[tuple[str, str]]) -> None:  # fmt: skip
    for name, _ in triggers:
        connection.execute(f'DROP TRIGGER "{name}"')
    for some in _parts(removed, NAMES_AT_ONCE):
        connection.execute(f"DELETE FROM object WHERE ROWID IN ({', '.join('?' * len(some))})", [rowid for rowid, _ in some])
    for rows in _parts(added, _ROWS_AT_ONCE):
        connection.execute(insert_sql(len(rows)), [value for row in rows for value in row])
    counts: dict[int, tuple[int, int]] = {}
    folded = _count(counts, added, 1) ^ _count(counts, [row for _, row in removed], -1)
    connection.executemany(
        "INSERT INTO policy_stat (storage_policy_index, object_count, bytes_used) VALUES (?, ?, ?)"
        " ON CONFLICT (storage_policy_index) DO UPDATE SET object_count = object_count + excluded.object_count,"
        " bytes_used = bytes_used + excluded.bytes_used",
        [(policy_index, *change) for policy_index, change in counts.items()],
    )
    old = one_row(connection, "SELECT hash FROM container_info")[0]
    connection.execute("UPDATE container_info SET hash = ?", (fold(old, folded),))
    for _, sql in triggers:
        connection.execute(sql)


def _count(counts: dict[int, tuple[int, int]], rows: Iterable[Values], sign: int) -> int:
    """Add up objects and bytes of each policy, and give what the rows come to in the container's hash."""
    folded = 0
    for name, created_at, size, _, _, deleted, policy_index in rows:
        objects, used = counts.get(policy_index, (0, 0))
        counts[policy_index] = objects + sign * (1 - deleted), used + sign * size
        folded ^= row_digest(name, created_at)
    return folded


def _parts(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
