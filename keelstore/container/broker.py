"""The database of one container: rows of its objects, counts of each policy, shard ranges.

A container lives in one file, ``<hash>.db`` or ``<hash>_<epoch>.db``; in two while it is being sharded: the older, *retiring*
file then still has the rows, the newer, *fresh* one takes what arrives. ``container/shard_rows.py`` has what concerns shard
ranges.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

from keelstore.common import pending
from keelstore.common.broker import RACY_NS, Broker, DatabaseNotFound
from keelstore.common.broker_steps import (
    NAMES_AT_ONCE,
    Connection,
    Metadata,
    conditions,
    one_row,
    one_view,
    parse_metadata,
    timestamp_of,
)
from keelstore.common.disk_calls import is_off_limits
from keelstore.common.errors import RequestError
from keelstore.common.limits import Limits
from keelstore.common.listing import ListingQuery, Row, Span, Subdir, page
from keelstore.common.ranges import UPDATING_STATES, ShardRange
from keelstore.common.timestamp import Timestamp
from keelstore.container import row_batch, rows, schema, shard_rows
from keelstore.container.policy_rule import PolicyClaim, remote_wins
from keelstore.container.rows import ObjectRow

T = TypeVar("T")

GRACE_S = 0.25  # longer than a merge of rows takes, and than RACY_NS
NOT_FOUND, UNSHARDED, SHARDING, SHARDED, COLLAPSED = "not_found", "unsharded", "sharding", "sharded", "collapsed"


@dataclass(frozen=True, slots=True)
class ContainerInfo:
    """The stat row of a container, with the counts that hold in its state. Timestamps are internal forms."""

    account: str
    container: str
    created_at: str
    put_timestamp: str
    delete_timestamp: str
    status: str
    status_changed_at: str
    object_count: int
    bytes_used: int
    reported_put_timestamp: str
    reported_delete_timestamp: str
    reported_object_count: int
    reported_bytes_used: int
    hash: str
    id: str
    x_container_sync_point1: int
    x_container_sync_point2: int
    storage_policy_index: int
    metadata_text: str
    db_state: str = UNSHARDED

    @property
    def is_deleted(self) -> bool:
        return not int(self.object_count or 0) and timestamp_of(self.delete_timestamp) > timestamp_of(
            self.put_timestamp
        )

    @property
    def metadata(self) -> Metadata:
        return parse_metadata(self.metadata_text)


_INFO_SQL = (
    "SELECT account, container, created_at, put_timestamp, delete_timestamp, status, status_changed_at, object_count,"
    " bytes_used, reported_put_timestamp, reported_delete_timestamp, reported_object_count, reported_bytes_used, hash,"
    " id, x_container_sync_point1, x_container_sync_point2, storage_policy_index, metadata FROM container_stat"
)


@dataclass(frozen=True, slots=True)
class PutOutcome:
    """``is_created``: it was deleted before. ``is_conflict``: it lives, with another policy than the one asked for."""

    is_created: bool
    policy_index: int
    is_conflict: bool = False


class ContainerBroker(Broker):
    """``path`` is the name without epoch; where files with an epoch exist, the newest is used."""

    kind: ClassVar[str] = "container"
    stat_table: ClassVar[str] = "container_stat"
    table: ClassVar[str] = "object"
    tombstone_time: ClassVar[str] = "created_at"
    kept_metadata: ClassVar[frozenset[str]] = frozenset(
        {"x-container-sysmeta-shard-quoted-root", "x-container-sysmeta-shard-root", "x-container-sysmeta-sharding"}
    )

    def __init__(self, path: str, device_path: str, logger: logging.Logger, is_fixed: bool = False):
        super().__init__(path, device_path, logger)
        self.base = path[: -len(".db")]
        self.is_fixed = is_fixed  # this very file, though a newer one may exist; what waits is not for it
        self._pending_path = f"{self.directory}/{os.path.basename(self.base).partition('_')[0]}.db.pending"
        self._files: tuple[str, ...] = (path,) if is_fixed else ()
        self._files_at = 0  # modification time of the directory that _files was read from; 0: read it again
        self._rangeless: tuple[int, int, int] | None = None  # state of a file that has no shard range
        self._rangeless_at = 0.0  # when it last was in that state
        self._retiring: ContainerBroker | None = None

    # -- files ---------------------------------------------------------------------------------------------------------

    def files(self) -> tuple[str, ...]:
        """The database files, oldest first; one ``stat`` of the directory while that does not change."""
        if self.is_fixed:
            return self._files
        try:
            changed_at = os.stat(self.directory).st_mtime_ns
        except (FileNotFoundError, NotADirectoryError):
            self._files, self._files_at = (), 0
            return ()
        if changed_at != self._files_at:
            name = os.path.basename(self.base)
            try:
                found = sorted(
                    entry for entry in os.listdir(self.directory)
                    if entry.endswith(".db") and entry.startswith(name) and entry[len(name)] in "._"
                )  # fmt: skip
            except (FileNotFoundError, NotADirectoryError):
                found = []
            self._files = tuple(f"{self.directory}/{entry}" for entry in found)
            self._files_at = changed_at if time.time_ns() - changed_at > RACY_NS else 0
            if self._files:
                self.path = self._files[-1]
        return self._files

    @property
    def pending_path(self) -> str:
        """The same for all files of the container, as the field has it."""
        return self._pending_path

    def pending_size(self) -> int:
        return 0 if self.is_fixed else super().pending_size()

    def locate(self) -> str:
        if not self.files():
            raise DatabaseNotFound(self.path)
        return self.path

    @property
    def epoch(self) -> Timestamp | None:
        """The epoch in the file's name."""
        _, underscore, text = os.path.basename(self.path)[: -len(".db")].partition("_")
        return timestamp_of(text) if underscore else None

    def retiring(self) -> ContainerBroker | None:
        """The broker of the older file, while there are two."""
        files = self.files()
        if len(files) < 2 or self.is_fixed:
            return None
        if self._retiring is None or self._retiring.path != files[-2]:
            self._retiring = ContainerBroker(files[-2], self.device_path, self.logger, is_fixed=True)
        return self._retiring

    def close(self) -> None:
        super().close()
        if self._retiring is not None:
            self._retiring.close()

    # -- tables --------------------------------------------------------------------------------------------------------

    def create_tables(self, connection: Connection) -> None:
        schema.create(connection)

    def is_ours(self, connection: Connection) -> bool:
        return schema.is_ours(connection)

    def is_current(self, connection: Connection) -> bool:
        return schema.is_current(connection)

    def migrate(self, connection: Connection) -> None:
        schema.migrate(connection)

    def initialize(self, account: str, container: str, put_timestamp: str, policy_index: int) -> None:
        """Create the database. Raises AlreadyExists."""

        def fill(connection: Connection) -> None:
            connection.execute(
                "INSERT INTO container_info (account, container, created_at, id, put_timestamp, status_changed_at,"
                " storage_policy_index) VALUES (?, ?, ?, ?, ?, ?, ?)",
                (account, container, Timestamp.now().internal, self.new_id(), put_timestamp, put_timestamp,
                 policy_index),
            )  # fmt: skip
            connection.execute("INSERT INTO policy_stat (storage_policy_index) VALUES (?)", (policy_index,))

        self._files_at = 0
        self.create(fill)

    # -- what it says --------------------------------------------------------------------------------------------------

    def state_in(self, connection: Connection) -> str:
        """unsharded, sharding, sharded or collapsed; see ``spec: on-disk 7.4``."""
        if len(self._files) > 1 and not self.is_fixed:
            return SHARDING
        epoch = self.epoch
        if epoch is None:
            return UNSHARDED
        own = shard_rows.own_range(connection)
        if own.epoch != epoch:
            return UNSHARDED
        return SHARDED if shard_rows.has_other_ranges(connection) else COLLAPSED

    def info_in(self, connection: Connection) -> ContainerInfo:
        info = ContainerInfo(*one_row(connection, _INFO_SQL))
        state = self.state_in(connection)
        if state in (UNSHARDED, COLLAPSED):
            return info if state == UNSHARDED else replace(info, db_state=state)
        count, size = info.object_count, info.bytes_used
        if state == SHARDING:
            retiring = self.retiring()
            if retiring is not None:
                old = retiring.read_now(retiring.info_in)
                count, size = old.object_count, old.bytes_used
        elif shard_rows.is_root(connection):
            count, size = shard_rows.usage(connection)
        return replace(info, db_state=state, object_count=count, bytes_used=size)

    def read_now(self, function: Callable[[Connection], Any]) -> Any:
        """As ``read``, from any thread and without a switch: for a second file, while the first is in use."""
        with self._lock:
            return function(self._open(migrates=True))

    def info(self, may_be_stale: bool = False) -> ContainerInfo:
        if len(self.files()) == 1:
            return self.read_settled("info", self.info_in, may_be_stale)
        return self.read_fresh(self.info_in, may_be_stale)

    def is_deleted_in(self, connection: Connection) -> bool:
        return self.info_in(connection).is_deleted

    def is_empty_in(self, connection: Connection) -> bool:
        """No object of any policy in any file, and nothing in the shards of a root."""
        if connection.execute("SELECT 1 FROM policy_stat WHERE object_count > 0 LIMIT 1").fetchone():
            return False
        retiring = self.retiring()
        if retiring is not None and not retiring.read_now(retiring.is_empty_in):
            return False
        if shard_rows.is_root(connection) and shard_rows.is_sharding_initiated(connection):
            return shard_rows.usage(connection)[0] <= 0
        return True

    def list_in(
        self, connection: Connection, query: ListingQuery, policy_index: int | None = None
    ) -> list[Row | Subdir]:
        """A page of (name, created_at, size, content type, etag), and Subdirs; from the retiring file while there is one."""
        retiring = self.retiring()
        if retiring is not None:
            return retiring.read_now(lambda old: retiring.list_in(old, query, policy_index))
        if policy_index is None:
            policy_index = connection.execute("SELECT storage_policy_index FROM container_info").fetchone()[0]
        order = "DESC" if query.is_reverse else "ASC"

        def seek(span: Span, limit: int | None) -> Iterable[Row]:
            where, arguments = conditions(span)
            cursor = connection.execute(
                "SELECT name, created_at, size, content_type, etag FROM object"
                f" WHERE deleted = 0{where} AND storage_policy_index = {policy_index} ORDER BY name {order}"
                + ("" if limit is None else f" LIMIT {limit}"),
                arguments,
            )
            return cursor if limit is None else cursor.fetchall()

        with one_view(connection):
            return page(query, seek)

    # -- rows ----------------------------------------------------------------------------------------------------------

    def put_object(
        self, name: str, timestamp: str, size: int, content_type: str, etag: str, policy_index: int,
        content_type_timestamp: str | None = None, meta_timestamp: str | None = None,
    ) -> None:  # fmt: skip
        """One update of an object's row, through the pending file."""
        self.put_record((name, timestamp, size, content_type, etag, 0, policy_index, content_type_timestamp,
                         meta_timestamp))  # fmt: skip

    def delete_object(self, name: str, timestamp: str, policy_index: int) -> None:
        self.put_record(rows.deletion(name, timestamp, policy_index))

    def put_record_at_once(self, record: tuple[Any, ...]) -> bool:
        """As ``put_record``, if that waits for nothing, there is a database, and its rows are known to belong to no shard.
        False: nothing was done. Raises DeviceFull, OSError.
        """
        if self._rangeless is None or is_off_limits(self.device):
            return False
        files = self.files()
        if len(files) != 1:
            return False
        path = files[0]
        try:
            if not self._is_rangeless(os.stat(path)):
                return False
            return pending.append_at_once(self._pending_path, self.directory, pending.encode(record))
        except FileNotFoundError:
            return False

    def _is_rangeless(self, status: os.stat_result) -> bool:
        """Whether a file that had no shard range still has none; looks, where that waits for nothing. Of what others write
        into it a row takes no notice for GRACE_S at most; a sharder moves it later, as any that is in the wrong place.
        """
        state, known, now = self._state_of(status), self._rangeless, time.monotonic()
        if state is not None and state != known:
            has_ranges = self.read_at_once(shard_rows.has_any_range)
            if has_ranges is not None:
                self._rangeless = known = None if has_ranges else state
        if known is not None and state == known:
            self._rangeless_at = now
            return True
        return known is not None and known[0] == status.st_ino and now - self._rangeless_at < GRACE_S

    def row_of(self, record: Sequence[Any]) -> ObjectRow:
        return ObjectRow.from_record(record)

    def check_item(self, item: Mapping[str, Any]) -> None:
        """Raises ValueError, KeyError, TypeError, AttributeError for what is no row."""
        ObjectRow.from_item(item)

    def merge_rows(
        self, connection: Connection, items: Iterable[ObjectRow | Mapping[str, Any]], source: str | None = None
    ) -> None:
        """Raises ValueError, KeyError, TypeError for an item that is no row; then nothing is merged."""
        last_row = -1
        new: dict[tuple[str, int], ObjectRow] = {}
        for item in items:
            if isinstance(item, ObjectRow):
                row = item
            else:
                row = ObjectRow.from_item(item)
                last_row = max(last_row, int(item.get("ROWID") or -1))
            key = row.key
            have = new.get(key)
            new[key] = row if have is None else rows.merge(have, row)
        known: dict[tuple[str, int], list[tuple[ObjectRow, tuple[int, row_batch.Values]]]] = {}
        names = list({name for name, _ in new})
        for start in range(0, len(names), NAMES_AT_ONCE):
            some = names[start : start + NAMES_AT_ONCE]
            for rowid, *values in connection.execute(
                "SELECT ROWID, name, created_at, size, content_type, etag, deleted, storage_policy_index FROM object"
                f" WHERE deleted IN (0, 1) AND name IN ({','.join('?' * len(some))})", some,
            ):  # fmt: skip
                if (values[0], values[-1]) in new:
                    row = ObjectRow.from_record((*values, None, None))
                    known.setdefault(row.key, []).append((row, (rowid, tuple(values))))
        removed: list[tuple[int, row_batch.Values]] = []
        added: list[row_batch.Values] = []
        for key, row in new.items():
            present = known.get(key)
            if present is not None:
                merged = present[0][0]
                for other, _ in present[1:]:
                    merged = rows.merge(merged, other)
                merged = rows.merge(merged, row)
                if merged is present[0][0] and len(present) == 1:
                    continue
                removed.extend(stored for _, stored in present)
                row = merged
            added.append((row.name, row.created_at, row.size, row.full_content_type, row.etag, row.deleted,
                          row.policy_index))  # fmt: skip
        row_batch.replace(connection, removed, added)
        if source is not None and last_row >= 0:
            self.merge_sync_points(connection, [(source, last_row)])

    # -- shard ranges --------------------------------------------------------------------------------------------------

    def redirect_for(self, name: str) -> ShardRange | None:
        """The shard that takes updates of ``name``, or None; one ``stat`` while the database is known to have no ranges."""
        state = self.settled_state()
        if state is not None and state == self._rangeless:
            return None
        found, has_ranges = self.read(
            lambda connection: (
                shard_rows.find(connection, name, UPDATING_STATES), shard_rows.has_any_range(connection)
            )
        )  # fmt: skip
        self._rangeless, self._rangeless_at = None if has_ranges else state, time.monotonic()
        return found

    def write(
        self, function: Callable[[Connection], T], *, takes_pending: bool = True, timeout_s: float | None = None
    ) -> T:
        try:
            return super().write(function, takes_pending=takes_pending, timeout_s=timeout_s)
        finally:
            self._rangeless_at = 0.0  # it may have written ranges

    # -- the verbs' transactions ---------------------------------------------------------------------------------------

    def put_container(
        self, connection: Connection, timestamp: str, policy_index: int | None, default_policy_index: int,
        updates: Mapping[str, tuple[str, str]], limits: Limits,
    ) -> PutOutcome:  # fmt: skip
        """Put again what exists. ``policy_index`` None: no wish. Raises RequestError 409: it stays deleted; BadRequest."""
        info = self.info_in(connection)
        was_deleted, actual = info.is_deleted, info.storage_policy_index
        if was_deleted:
            wanted = default_policy_index if policy_index is None else policy_index
            if wanted != actual:
                self.set_policy_index(connection, wanted, timestamp)
                actual = wanted
        elif policy_index is not None and policy_index != actual:
            return PutOutcome(False, actual, is_conflict=True)
        self.update_put_timestamp(connection, timestamp)
        if was_deleted:
            if self.is_deleted_in(connection):
                raise RequestError(status=409)
            self.update_status_changed_at(connection, timestamp)
        self.store_metadata(connection, updates, limits)
        return PutOutcome(was_deleted, actual)

    def store_metadata(
        self, connection: Connection, updates: Mapping[str, tuple[str, str]], limits: Limits | None = None
    ) -> None:
        """As ``update_metadata``; another sync target starts its copying from the first row."""
        if not updates:
            return
        before = self.metadata(connection)
        after = self.update_metadata(connection, updates, limits)
        target = "X-Container-Sync-To"
        if target in updates and after.get(target, ("", ""))[0] != before.get(target, ("", ""))[0]:
            self.set_sync_points(connection, -1, -1)

    def set_sync_points(self, connection: Connection, point1: int, point2: int) -> None:
        connection.execute("UPDATE container_info SET x_container_sync_point1 = ?, x_container_sync_point2 = ?",
                           (point1, point2))  # fmt: skip

    def set_policy_index(self, connection: Connection, policy_index: int, timestamp: str) -> None:
        """Rows of another policy stay, for the reconciler to move, and no longer count; which they are is looked at anew."""
        connection.execute(
            "INSERT INTO policy_stat (storage_policy_index) SELECT ?1"
            " WHERE NOT EXISTS (SELECT 1 FROM policy_stat WHERE storage_policy_index = ?1)", (policy_index,),
        )  # fmt: skip
        connection.execute(
            "UPDATE container_info SET storage_policy_index = ?, status_changed_at = MAX(?, status_changed_at),"
            " reconciler_sync_point = -1 WHERE storage_policy_index <> ?", (policy_index, timestamp, policy_index),
        )  # fmt: skip

    def settle_policy(self, connection: Connection, remote: PolicyClaim) -> None:
        """Take a remote's policy if it is the right one. Before its times are merged: ours are compared with them."""
        info = self.info_in(connection)
        if remote.policy_index == info.storage_policy_index:
            return
        local = PolicyClaim(info.storage_policy_index, timestamp_of(info.put_timestamp), timestamp_of(info.delete_timestamp),
                            timestamp_of(info.status_changed_at), int(info.object_count or 0))  # fmt: skip
        if remote_wins(local, remote):
            self.set_policy_index(connection, remote.policy_index, remote.status_changed_at.internal)

    def set_reported(
        self, connection: Connection, put_timestamp: str, delete_timestamp: str, object_count: int, bytes_used: int
    ) -> None:
        """What the account has been told."""
        connection.execute(
            "UPDATE container_info SET reported_put_timestamp = ?, reported_delete_timestamp = ?,"
            " reported_object_count = ?, reported_bytes_used = ?",
            (put_timestamp, delete_timestamp, object_count, bytes_used),
        )

    def delete_container(self, connection: Connection, timestamp: str) -> bool | None:
        """Whether it was there before; None when it stays, because it was put later. Raises RequestError 409: not empty.

        The delete time is kept even when the container stays: a node that saw the two in the other order has it too.
        """
        info = self.info_in(connection)
        if not self.is_empty_in(connection):
            raise RequestError(status=409)
        was_there = bool(timestamp_of(info.put_timestamp)) and not info.is_deleted
        self.mark_deleted(connection, timestamp)
        return was_there if self.is_deleted_in(connection) else None

    def replace_id(self, connection: Connection, remote_id: str) -> None:
        super().replace_id(connection, remote_id)
        self.set_reported(connection, "0", "0", 0, 0)

    def reclaim_rest(self, connection: Connection, age: str, sync_age: str) -> None:
        super().reclaim_rest(connection, age, sync_age)
        shard_rows.reclaim(connection, sync_age)
