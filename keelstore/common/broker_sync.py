"""Bringing the replicas of a database together: the side that answers REPLICATE (``spec: backend-protocol 6``).

A peer first sends ``sync`` with what its database is; the answer tells it how far its rows are known here. It then sends what
is missing as ``merge_items``, or, when too much is, its whole file (``complete_rsync``, ``rsync_then_merge``). Every step may
come late, twice or not at all.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

from keelstore.common import fs
from keelstore.common.broker import Broker, DatabaseNotFound, prepare
from keelstore.common.broker_steps import Connection, merge_metadata, parse_metadata
from keelstore.common.db_transfer import arrived_path
from keelstore.common.disk_calls import on_disk_thread
from keelstore.common.errors import BadRequest
from keelstore.common.http import Response
from keelstore.common.locks import lock_directory
from keelstore.common.names import database_file
from keelstore.common.timestamp import Timestamp

ROWS_AT_ONCE = 1000  # copied from the old file into one that arrived


class Receiver:
    """Answers the operations of one REPLICATE call for one broker. A subclass adds what its databases have besides rows."""

    def __init__(self, broker: Broker):
        self.broker = broker
        self.has_more = False  # than the peer that asked: found by ``sync``

    def operations(self) -> dict[str, Callable[..., Response]]:
        return {
            "sync": self.sync, "merge_items": self.merge_items, "merge_syncs": self.merge_syncs,
            "complete_rsync": self.complete_rsync, "rsync_then_merge": self.rsync_then_merge,
        }  # fmt: skip

    def answer(self, operation: object, arguments: list[Any]) -> Response:
        """Raises BadRequest for an unknown operation or bad arguments, DatabaseNotFound (404), other StorageErrors."""
        handler = self.operations().get(operation) if isinstance(operation, str) else None
        if handler is None:
            raise BadRequest(f"Unknown operation {str(operation)[:40]!r}")
        try:
            return handler(*arguments)
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise BadRequest(f"Bad arguments of {operation}: {error}") from None
        except sqlite3.Error as error:
            if "no such table" in str(error):
                self.broker.quarantine(str(error))
                return Response(404)
            raise

    # -- what a subclass may add ---------------------------------------------------------------------------------------

    def info_in(self, connection: Connection) -> dict[str, Any]:
        """Replication info: the stat row, ``count``, ``max_row``."""
        info = self.broker.info_dict(connection)
        info["max_row"] = self.broker.max_row(connection)
        return info

    def merge_more(self, connection: Connection, more: list[Any]) -> None:
        """The arguments of ``sync`` beyond the metadata."""

    def more_of(self, connection: Connection) -> Any:
        """What besides rows, sync points and metadata goes from our file into one that arrived."""
        return None

    def add_more(self, connection: Connection, more: Any) -> None:
        """Merge what ``more_of`` gave."""

    def may_replace(self, connection: Connection) -> bool:
        """Whether the file may be replaced by one that arrived."""
        return True

    # -- operations ----------------------------------------------------------------------------------------------------

    def sync(
        self, max_row: int, remote_hash: str, remote_id: str, created_at: str, put_timestamp: str,
        delete_timestamp: str, metadata: str, *more: Any,
    ) -> Response:  # fmt: skip
        times = [Timestamp(text).internal for text in (created_at, put_timestamp, delete_timestamp)]
        items = _metadata_of(metadata)
        max_row = int(max_row)

        def step(connection: Connection) -> dict[str, Any]:
            broker = self.broker
            broker.update_metadata(connection, items)
            self.merge_more(connection, list(more))  # it compares our times with the remote's: before they are merged
            broker.merge_timestamps(connection, *times)
            info = self.info_in(connection)
            point = broker.sync_point(connection, remote_id)
            if info["hash"] == remote_hash and point < max_row:
                broker.merge_sync_points(connection, [(remote_id, max_row)])
                point = max_row
            info["point"] = point
            self.has_more = info["hash"] != remote_hash and (
                broker.sync_point(connection, remote_id, is_incoming=False) < info["max_row"])
            return info

        info = self.broker.write(step)
        return Response(200, body=json.dumps(info).encode("ascii"), content_type="application/json")

    def merge_items(self, rows: list[dict[str, Any]], source: str | None = None) -> Response:
        self.broker.write(lambda connection: self.broker.merge_rows(connection, rows, source))
        return Response(202)

    def merge_syncs(self, points: list[dict[str, Any]]) -> Response:
        pairs = [(str(point["remote_id"]), int(point["sync_point"])) for point in points]
        self.broker.write(lambda connection: self.broker.merge_sync_points(connection, pairs))
        return Response(202)

    def complete_rsync(self, local_id: str, name: str | None = None) -> Response:
        """Take a file that arrived whole as ours, where there was none."""
        arrived = self._arrived(local_id)
        target = self._target(name)
        if not os.path.exists(arrived) or os.path.exists(target):
            raise DatabaseNotFound(target)
        on_disk_thread(self.broker.device, self._install, arrived, target, local_id, False)
        return Response(204)

    def rsync_then_merge(self, local_id: str, name: str | None = None) -> Response:
        """Bring what we have into a file that arrived, then let it take our file's place."""
        arrived = self._arrived(local_id)
        if not os.path.exists(arrived):
            raise DatabaseNotFound(arrived)
        target = self.broker.locate()
        self.broker.merge_pending()
        # Without what is pending: were our file changed by this transaction, a crash would leave its journal to the new one.
        self.broker.write(lambda connection: self._merge_into(connection, arrived, target, local_id),
                          takes_pending=False)  # fmt: skip
        return Response(204)

    # -- files that arrive ---------------------------------------------------------------------------------------------

    def _arrived(self, local_id: str) -> str:
        return arrived_path(self.broker.device_path, local_id)

    def _target(self, name: str | None) -> str:
        """Where an arrived file goes: its own base name, which may hold an epoch, when it is one of this hash."""
        name_hash = os.path.basename(self.broker.directory)
        if name is None:
            return database_file(self.broker.directory)
        base = os.path.basename(str(name))
        if not base.endswith(".db") or not (base == f"{name_hash}.db" or base.startswith(f"{name_hash}_")):
            raise ValueError("expected the name of a database file of this hash")
        return f"{self.broker.directory}/{base}"

    def _install(self, arrived: str, target: str, local_id: str, is_replacement: bool) -> None:
        """Give an arrived file a new id, sync it, and rename it to its place."""
        broker = self.broker
        with _arrived_file(arrived) as connection:
            if not broker.is_ours(connection):
                raise ValueError("what arrived is no database of this kind")
            connection.execute("BEGIN IMMEDIATE")
            broker.replace_id(connection, local_id)
            connection.execute("COMMIT")
        made = fs.make_directories(broker.directory, broker.device_path)
        fd = os.open(arrived, os.O_RDWR | os.O_CLOEXEC)
        try:
            fs.sync_file(fd)
        finally:
            os.close(fd)
        if is_replacement:  # our caller's transaction keeps others from the old file
            fs.rename_durably(arrived, target)
        else:
            with lock_directory(broker.directory, broker.pending_timeout_s):
                if os.path.exists(target):
                    raise DatabaseNotFound(target)
                fs.rename_durably(arrived, target)
        fs.sync_above(broker.directory, made)

    def _merge_into(self, connection: Connection, arrived: str, target: str, local_id: str) -> None:
        """Runs inside the transaction on our file, so that nothing is added to it before it is replaced."""
        if not self.may_replace(connection):
            raise DatabaseNotFound(target)
        broker = self.broker
        with _arrived_file(arrived) as new:
            if not broker.is_ours(new):
                raise ValueError("what arrived is no database of this kind")
            new.execute("BEGIN IMMEDIATE")
            if not broker.is_current(new):
                broker.migrate(new)
        info, metadata = broker.info_dict(connection), broker.metadata(connection)
        points = {is_incoming: [(point["remote_id"], point["sync_point"])
                                for point in broker.sync_points(connection, is_incoming)]
                  for is_incoming in (True, False)}  # fmt: skip
        more = self.more_of(connection)
        with _arrived_file(arrived) as new:
            new.execute("BEGIN IMMEDIATE")
            for rows in self._rows_in_batches(connection):
                broker.merge_rows(new, rows)
            for is_incoming, pairs in points.items():
                broker.merge_sync_points(new, pairs, is_incoming)
            merged = merge_metadata(broker.metadata(new), metadata)
            new.execute(f"UPDATE {broker.stat_table} SET metadata = ?", (json.dumps(merged),))
            broker.merge_timestamps(new, info["created_at"], info["put_timestamp"], info["delete_timestamp"])
            self.add_more(new, more)
            new.execute("COMMIT")
        self._install(arrived, target, local_id, True)

    def _rows_in_batches(self, connection: Connection) -> Iterator[list[dict[str, Any]]]:
        point = -1
        while True:
            try:
                rows = self.broker.rows_since(connection, point, ROWS_AT_ONCE)
            except sqlite3.Error as error:
                raise _OursDamaged(error) from error
            if not rows:
                return
            point = rows[-1]["ROWID"]
            yield [{**row, "ROWID": -1} for row in rows]


class _OursDamaged(Exception):
    """Our own file gave an error while another was written; ``args[0]`` is it."""


@contextlib.contextmanager
def _arrived_file(path: str) -> Iterator[Connection]:
    """A connection to a file that a peer sent. What is wrong with it is the peer's: ValueError, and never a reason to
    quarantine our own."""
    try:
        connection = sqlite3.connect(f"file:{quote(path)}?mode=rw", uri=True, isolation_level=None,
                                     check_same_thread=False)  # fmt: skip
        try:
            prepare(connection)
            yield connection
            if connection.in_transaction:
                connection.execute("COMMIT")
        finally:
            connection.close()
    except _OursDamaged as error:
        raise error.args[0] from None
    except sqlite3.Error as error:
        raise ValueError(f"what arrived cannot be used: {error}") from None


def _metadata_of(text: str) -> dict[str, tuple[str, str]]:
    try:
        return parse_metadata(text)
    except sqlite3.Error as error:
        raise ValueError(str(error)) from None
