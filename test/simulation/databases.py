"""Crashes around SQLite's commits, databases on full devices, and the times of database files.

What SQLite has committed is on disk, what it has not is gone: that is its promise, and not what the simulation tests. So a
commit is one step: a crash comes before it or after it. Journals are kept in memory, for speed.
"""

from __future__ import annotations

import sqlite3
from typing import Any

from test.simulation import disks, lives, worldtime

_connect = sqlite3.connect
SETTINGS = tuple(f"PRAGMA {name} = " for name in (
    "busy_timeout", "temp_store", "cache_size", "soft_heap_limit", "journal_mode", "synchronous"))


class Connection(sqlite3.Connection):
    path = ""

    def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
        if sql == "COMMIT":
            return self._commit()
        if sql.startswith("BEGIN"):
            lives.check()
        elif sql.startswith(SETTINGS):
            return self.cursor()
        return super().execute(sql, *args)

    def _commit(self) -> sqlite3.Cursor:
        disk = disks.disk_of(self.path)
        if disk is None:
            return super().execute("COMMIT")
        disk.step()
        if disk.full.get(disks.device_of(self.path)) == "hard":
            raise sqlite3.OperationalError("database or disk is full")
        cursor = super().execute("COMMIT")
        try:
            now = worldtime.stamp_ns()
            disks.real.utime(self.path, ns=(now, now))
        except FileNotFoundError:
            pass
        disk.step()
        return cursor


def _make(database: str, *args: Any, **kwargs: Any) -> Connection:
    found: Connection = _connect(database, *args, factory=Connection, **kwargs)
    path = database
    if path.startswith("file:"):
        path = path[5:].partition("?")[0]
    sqlite3.Connection.execute(found, "PRAGMA journal_mode = MEMORY")
    sqlite3.Connection.execute(found, "PRAGMA synchronous = OFF")
    found.path = path  # of ours none has a character that is quoted
    return found


def install() -> None:
    sqlite3.connect = _make  # type: ignore[assignment]
