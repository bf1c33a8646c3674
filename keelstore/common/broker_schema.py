"""What account and container databases have in common in their SQL: the sync tables and the ``chexor`` function.

``incoming_sync`` holds how far a remote's rows have been merged here, ``outgoing_sync`` how far ours were pushed to it.
``doc/formats/databases.md`` has all tables.
"""

from __future__ import annotations

import sqlite3
from hashlib import md5

NO_HASH = "0" * 32


def chexor(old: str, name: str, timestamp: str) -> str:
    """Fold one row into the hash of a table; folding it again takes it out. Order does not matter."""
    return fold(old, row_digest(name, timestamp))


def fold(old: str, digest: int) -> str:
    """As :func:`chexor`, of what rows come to together: the XOR of their digests."""
    return f"{int(old, 16) ^ digest:032x}"


def row_digest(name: str, timestamp: str) -> int:
    text = f"{name}-{timestamp}".encode("utf-8", "surrogateescape")
    return int.from_bytes(md5(text, usedforsecurity=False).digest(), "big")


def _sync_table(name: str) -> str:
    return f"""
        CREATE TABLE {name} (remote_id TEXT UNIQUE, sync_point INTEGER, updated_at TEXT DEFAULT 0);
        CREATE TRIGGER {name}_insert AFTER INSERT ON {name} BEGIN
            UPDATE {name} SET updated_at = STRFTIME('%s', 'NOW') WHERE ROWID = new.ROWID;
        END;
        CREATE TRIGGER {name}_update AFTER UPDATE ON {name} BEGIN
            UPDATE {name} SET updated_at = STRFTIME('%s', 'NOW') WHERE ROWID = new.ROWID;
        END;
    """


SYNC_TABLES = _sync_table("outgoing_sync") + _sync_table("incoming_sync")


def columns(connection: sqlite3.Connection, table: str) -> set[str]:
    """The column names of a table or view; empty when there is none."""
    return {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}


def run_script(connection: sqlite3.Connection, script: str) -> None:
    """Several statements inside the transaction that is open (``executescript`` would commit it)."""
    statement = ""
    for line in script.split(";"):
        statement += line + ";"
        if sqlite3.complete_statement(statement):
            if statement.strip(" \n;"):
                connection.execute(statement)
            statement = ""


def drop_triggers(connection: sqlite3.Connection, table: str) -> None:
    names = [row[0] for row in connection.execute(
        "SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = ?", (table,))]  # fmt: skip
    for name in names:
        connection.execute(f'DROP TRIGGER "{name}"')
