"""The SQL that both kinds of databases share: metadata, timestamps, deletion, replication points.

Methods of (connection, ...) are *steps*: they run inside ``Broker.read`` or ``Broker.write``, and several of them may be one
transaction. Nothing here opens a file or waits.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

from keelstore.common.limits import Limits, check_merged_metadata
from keelstore.common.listing import Span
from keelstore.common.timestamp import ZERO, Timestamp

NAMES_AT_ONCE = 900  # parameters of one query, below SQLite's limit in every build

Connection = sqlite3.Connection
Metadata = dict[str, tuple[str, str]]  # key (Title-Case) to (value, internal timestamp); '' is a removed item


class Steps:
    """What a database of either kind can do on an open connection. Broker adds the file."""

    kind: ClassVar[str] = ""  # "account" or "container"
    stat_table: ClassVar[str] = ""
    table: ClassVar[str] = ""  # of the rows
    tombstone_time: ClassVar[str] = ""  # the column that dates a deleted row
    kept_metadata: ClassVar[frozenset[str]] = frozenset()  # lower-case keys that outlive a delete

    def new_id(self) -> str:
        """An id that no other database file has or had."""
        raise NotImplementedError

    def is_deleted_in(self, connection: Connection) -> bool:
        raise NotImplementedError

    # -- metadata ------------------------------------------------------------------------------------------------------

    def metadata(self, connection: Connection) -> Metadata:
        """All items, removed ones (value '') too."""
        return parse_metadata(one_row(connection, f"SELECT metadata FROM {self.stat_table}")[0])

    def update_metadata(
        self, connection: Connection, updates: Mapping[str, tuple[str, str]], limits: Limits | None = None
    ) -> Metadata:
        """Take each item that is newer than what is known of its key. Gives the whole.

        With ``limits`` the whole, not just the updates, must be within them (else BadRequest): many small updates add up.
        """
        if not updates:
            return self.metadata(connection)
        known = self.metadata(connection)
        merged = merge_metadata(known, updates)
        if merged is known:
            return known
        if limits is not None:
            check_merged_metadata(limits, self.kind, {key: value for key, (value, _) in merged.items()})
        connection.execute(f"UPDATE {self.stat_table} SET metadata = ?", (json.dumps(merged),))
        return merged

    def _since_deletion(self, items: Mapping[str, tuple[str, str]], deleted: str) -> dict[str, tuple[str, str]]:
        # With the deletion's time, as who deletes gives it: so it wins everywhere, also where Swift's replicators merge.
        return {key: item if item[1] > deleted or key.lower() in self.kept_metadata else ("", deleted)
                for key, item in items.items()}  # fmt: skip

    # -- timestamps and deletion ---------------------------------------------------------------------------------------

    def update_put_timestamp(self, connection: Connection, timestamp: str) -> None:
        connection.execute(f"UPDATE {self.stat_table} SET put_timestamp = ? WHERE put_timestamp < ?",
                           (timestamp, timestamp))  # fmt: skip

    def update_status_changed_at(self, connection: Connection, timestamp: str) -> None:
        connection.execute(f"UPDATE {self.stat_table} SET status_changed_at = ? WHERE status_changed_at < ?",
                           (timestamp, timestamp))  # fmt: skip

    def delete_timestamp(self, connection: Connection) -> str:
        return str(one_row(connection, f"SELECT delete_timestamp FROM {self.stat_table}")[0] or "0")

    def merge_timestamps(
        self, connection: Connection, created_at: str, put_timestamp: str, delete_timestamp: str
    ) -> None:
        was_deleted = self.is_deleted_in(connection)
        connection.execute(
            f"UPDATE {self.stat_table} SET created_at = MIN(?, created_at), put_timestamp = MAX(?, put_timestamp),"
            " delete_timestamp = MAX(?, delete_timestamp)", (created_at, put_timestamp, delete_timestamp),
        )  # fmt: skip
        # What a replica alone had taken before a deletion that it hears of only now must not outlive it.
        deleted = self.delete_timestamp(connection)
        if deleted > ZERO.internal:
            known = self.metadata(connection)
            kept = self._since_deletion(known, deleted)
            if kept != known:
                connection.execute(f"UPDATE {self.stat_table} SET metadata = ?", (json.dumps(kept),))
        if self.is_deleted_in(connection) != was_deleted:
            self.update_status_changed_at(connection, Timestamp.now().internal)

    def mark_deleted(self, connection: Connection, timestamp: str) -> None:
        """Blank the metadata and set the delete time, where ``timestamp`` is newer."""
        known = self.metadata(connection)
        self.update_metadata(connection, {
            key: ("", timestamp) for key in known if key.lower() not in self.kept_metadata})  # fmt: skip
        connection.execute(
            f"UPDATE {self.stat_table} SET delete_timestamp = ?, status = 'DELETED', status_changed_at = ?"
            " WHERE delete_timestamp < ?", (timestamp, timestamp, timestamp),
        )  # fmt: skip

    # -- rows and replication points -----------------------------------------------------------------------------------

    def max_row(self, connection: Connection, table: str = "") -> int:
        """The highest ROWID ever given, -1 when none was."""
        row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = ?", (table or self.table,)).fetchone()
        return row[0] if row else -1

    def rows_since(self, connection: Connection, start: int, count: int) -> list[dict[str, Any]]:
        """At most ``count`` rows with a ROWID above ``start``, as dicts of all columns, in order of ROWID."""
        cursor = connection.execute(f"SELECT * FROM {self.table} WHERE ROWID > ? ORDER BY ROWID ASC LIMIT ?",
                                    (start, count))  # fmt: skip
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row)) for row in cursor]

    def sync_point(self, connection: Connection, remote_id: str, is_incoming: bool = True) -> int:
        """How far a remote's rows were merged here (or ours pushed there); -1 when never."""
        table = "incoming_sync" if is_incoming else "outgoing_sync"
        row = connection.execute(f"SELECT sync_point FROM {table} WHERE remote_id = ?", (remote_id,)).fetchone()
        return row[0] if row else -1

    def sync_points(self, connection: Connection, is_incoming: bool = True) -> list[dict[str, Any]]:
        table = "incoming_sync" if is_incoming else "outgoing_sync"
        rows = connection.execute(f"SELECT remote_id, sync_point FROM {table}")
        return [{"remote_id": remote_id, "sync_point": point} for remote_id, point in rows]

    def merge_sync_points(
        self, connection: Connection, points: Iterable[tuple[str, int]], is_incoming: bool = True
    ) -> None:
        """Advance; a point never goes back."""
        table = "incoming_sync" if is_incoming else "outgoing_sync"
        connection.executemany(
            f"INSERT INTO {table} (remote_id, sync_point) VALUES (?, ?)"
            " ON CONFLICT (remote_id) DO UPDATE SET sync_point = MAX(sync_point, excluded.sync_point)",
            list(points),
        )

    def replace_id(self, connection: Connection, remote_id: str) -> None:
        """Make a copied file a database of its own: a new id, and all of the remote's rows are known."""
        last = connection.execute(f"SELECT MAX(ROWID) FROM {self.table}").fetchone()[0]
        connection.execute(f"UPDATE {self.stat_table} SET id = ?", (self.new_id(),))
        self.merge_sync_points(connection, [(remote_id, -1 if last is None else last)])

    def info_dict(self, connection: Connection) -> dict[str, Any]:
        """All columns of the stat row, by name; ``metadata`` is the raw text."""
        names = [column[0] for column in connection.execute(f"SELECT * FROM {self.stat_table} LIMIT 0").description]
        return dict(zip(names, one_row(connection, f"SELECT * FROM {self.stat_table}")))

    def reclaim_rest(self, connection: Connection, age: str, sync_age: str) -> None:
        """What of ``reclaim`` is not rows."""
        known = self.metadata(connection)
        kept = {key: item for key, item in known.items() if item[0] != "" or item[1] >= age}
        if len(kept) != len(known):
            connection.execute(f"UPDATE {self.stat_table} SET metadata = ?", (json.dumps(kept),))
        for table in ("outgoing_sync", "incoming_sync"):
            # Times of the sync tables are whole seconds.
            connection.execute(f"DELETE FROM {table} WHERE CAST(updated_at AS INTEGER) < ?", (int(Timestamp(sync_age)),))


@contextmanager
def one_view(connection: Connection) -> Iterator[None]:
    """All that is read inside is of one moment, and SQLite locks the file and looks for changes once, not for each query."""
    if connection.in_transaction:
        yield
        return
    connection.execute("BEGIN")
    try:
        yield
    finally:
        if connection.in_transaction:  # some errors end it by themselves
            connection.execute("ROLLBACK")


def conditions(span: Span) -> tuple[str, list[str]]:
    """A span of names as SQL, to follow another condition."""
    where, arguments = "", []
    if span.lower:
        where += " AND name >= ?" if span.is_lower_included else " AND name > ?"
        arguments.append(span.lower)
    if span.upper:
        where += " AND name <= ?" if span.is_upper_included else " AND name < ?"
        arguments.append(span.upper)
    return where, arguments


def one_row(connection: Connection, sql: str) -> tuple[Any, ...]:
    """The row of a table that always has one. Raises sqlite3.DatabaseError, as for any file that is not as written."""
    row: tuple[Any, ...] | None = connection.execute(sql).fetchone()
    if row is None:
        raise sqlite3.DatabaseError("file is not a database of ours: its stat row is missing")
    return row


def timestamp_of(text: str | None) -> Timestamp:
    """A timestamp column; zero for what is none."""
    try:
        return Timestamp(text or "0")
    except ValueError:
        return ZERO


def parse_metadata(text: str | None) -> Metadata:
    """The metadata column. Raises sqlite3.DatabaseError, as SQLite does for a page that is not as written."""
    if not text:
        return {}
    try:
        return {key: (value, when) for key, (value, when) in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError):
        raise sqlite3.DatabaseError(f"file is not a database of ours: metadata {text[:80]!r}") from None


def merge_metadata(known: Metadata, updates: Mapping[str, tuple[str, str]]) -> Metadata:
    """Of each key the newer item; at equal times the greater value, so that order does not matter.

    Gives ``known`` itself when nothing is new.
    """
    merged: Metadata | None = None
    for key, item in updates.items():
        have = known.get(key)
        if have is None or (item[1], item[0]) > (have[1], have[0]):
            if merged is None:
                merged = dict(known)
            merged[key] = (item[0], item[1])
    return known if merged is None else merged
