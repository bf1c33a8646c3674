"""The database of one account: rows of its containers, totals, counts of each policy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from keelstore.account import rows, schema
from keelstore.account.rows import ContainerRow
from keelstore.common.broker import Broker, DatabaseNotFound
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
from keelstore.common.limits import Limits
from keelstore.common.listing import ListingQuery, Row, Span, Subdir, page
from keelstore.common.timestamp import Timestamp


@dataclass(frozen=True, slots=True)
class AccountInfo:
    """The stat row of an account. Timestamps are internal forms."""

    account: str
    created_at: str
    put_timestamp: str
    delete_timestamp: str
    status: str
    status_changed_at: str
    container_count: int
    object_count: int
    bytes_used: int
    hash: str
    id: str
    metadata_text: str

    @property
    def is_deleted(self) -> bool:
        """Deleted by its owner, or left empty after a delete."""
        return self.status == "DELETED" or (
            not int(self.container_count or 0)
            and timestamp_of(self.delete_timestamp) > timestamp_of(self.put_timestamp)
        )

    @property
    def is_status_deleted(self) -> bool:
        return self.status == "DELETED" or self.delete_timestamp > self.put_timestamp

    @property
    def metadata(self) -> Metadata:
        return parse_metadata(self.metadata_text)


@dataclass(frozen=True, slots=True)
class PolicyStat:
    """Counts of one policy's containers."""

    policy_index: int
    container_count: int
    object_count: int
    bytes_used: int


class AccountBroker(Broker):
    kind: ClassVar[str] = "account"
    stat_table: ClassVar[str] = "account_stat"
    table: ClassVar[str] = "container"
    tombstone_time: ClassVar[str] = "delete_timestamp"
    keeps_order: ClassVar[bool] = True

    def create_tables(self, connection: Connection) -> None:
        schema.create(connection)

    def is_ours(self, connection: Connection) -> bool:
        return schema.is_ours(connection)

    def is_current(self, connection: Connection) -> bool:
        return schema.is_current(connection)

    def migrate(self, connection: Connection) -> None:
        schema.migrate(connection)

    def initialize(self, account: str, put_timestamp: str) -> None:
        """Create the database. Raises AlreadyExists."""

        def fill(connection: Connection) -> None:
            connection.execute(
                "INSERT INTO account_stat (account, created_at, id, put_timestamp, status_changed_at, container_count)"
                " VALUES (?, ?, ?, ?, ?, 0)",
                (account, Timestamp.now().internal, self.new_id(), put_timestamp, put_timestamp),
            )

        self.create(fill)

    # -- what it says --------------------------------------------------------------------------------------------------

    def info_in(self, connection: Connection) -> AccountInfo:
        return AccountInfo(*one_row(connection, (
            "SELECT account, created_at, put_timestamp, delete_timestamp, status, status_changed_at, container_count,"
            " object_count, bytes_used, hash, id, metadata FROM account_stat")))  # fmt: skip

    def info(self, may_be_stale: bool = False) -> AccountInfo:
        return self.read_fresh(self.info_in, may_be_stale)

    def policy_stats_in(self, connection: Connection) -> list[PolicyStat]:
        return [PolicyStat(*row) for row in connection.execute(
            "SELECT storage_policy_index, container_count, object_count, bytes_used FROM policy_stat"
            " ORDER BY storage_policy_index")]  # fmt: skip

    def is_deleted_in(self, connection: Connection) -> bool:
        return self.info_in(connection).is_deleted

    def takes_rows(self) -> bool:
        """Whether the account is there for its containers. What is pending is looked at only where it can matter."""
        try:
            info = self.read(self.info_in)
            return (not info.is_status_deleted) or not self.is_deleted()
        except DatabaseNotFound:
            return False

    def list_in(self, connection: Connection, query: ListingQuery) -> list[Row | Subdir]:
        """A page of (name, object count, bytes used, put timestamp, policy index), and Subdirs."""
        order = "DESC" if query.is_reverse else "ASC"

        def seek(span: Span, limit: int | None) -> Iterable[Row]:
            where, arguments = conditions(span)
            cursor = connection.execute(
                "SELECT name, object_count, bytes_used, put_timestamp, storage_policy_index FROM container"
                f" WHERE deleted = 0{where} ORDER BY name {order}" + ("" if limit is None else f" LIMIT {limit}"),
                arguments,
            )
            return cursor if limit is None else cursor.fetchall()

        with one_view(connection):
            return page(query, seek)

    # -- rows ----------------------------------------------------------------------------------------------------------

    def put_container(
        self, name: str, put_timestamp: str, delete_timestamp: str, object_count: int, bytes_used: int,
        policy_index: int, timeout_s: float | None = None,
    ) -> None:  # fmt: skip
        """One update of a container's row, through the pending file. Times as ``rows.time_text`` gives them."""
        gone = int(not object_count and delete_timestamp > put_timestamp)
        self.put_record((name, put_timestamp, delete_timestamp, object_count, bytes_used, gone, policy_index),
                        timeout_s)  # fmt: skip

    def row_of(self, record: Sequence[Any]) -> dict[str, Any]:
        item = rows.item_of(record)
        ContainerRow.from_item(item)
        return item

    def merge_rows(self, connection: Connection, items: Iterable[Mapping[str, Any]], source: str | None = None) -> None:
        """Raises ValueError, KeyError, TypeError for an item that is no row; then nothing is merged."""
        last_row = -1
        new: dict[str, list[ContainerRow]] = {}
        for item in items:
            new.setdefault(item["name"], []).append(ContainerRow.from_item(item))
            last_row = max(last_row, int(item.get("ROWID") or -1))
        known: dict[str, tuple[int, tuple[Any, ...], ContainerRow]] = {}
        names = list(new)
        for start in range(0, len(names), NAMES_AT_ONCE):
            some = names[start : start + NAMES_AT_ONCE]
            for row in connection.execute(
                "SELECT ROWID, name, put_timestamp, delete_timestamp, object_count, bytes_used, deleted,"
                " storage_policy_index FROM container WHERE deleted IN (0, 1)"
                f" AND name IN ({','.join('?' * len(some))})", some,
            ):  # fmt: skip
                known[row[1]] = row[0], row[1:], ContainerRow(row[1], row[2], row[3], row[4], row[5], row[7])
        removed, added = [], []
        for name, arrived in new.items():
            have = known.get(name)
            merged = have[2] if have is not None else arrived.pop(0)
            for row in arrived:
                merged = rows.merge(merged, row)
            values = merged.values()
            if have is not None:
                if have[1] == values:
                    continue
                removed.append((have[0],))
            added.append(values)
        connection.executemany("DELETE FROM container WHERE ROWID = ?", removed)
        connection.executemany(
            "INSERT INTO container (name, put_timestamp, delete_timestamp, object_count, bytes_used, deleted,"
            " storage_policy_index) VALUES (?, ?, ?, ?, ?, ?, ?)", added,
        )  # fmt: skip
        if source is not None and last_row >= 0:
            self.merge_sync_points(connection, [(source, last_row)])

    # -- the verbs' transactions ---------------------------------------------------------------------------------------

    def put_account(
        self, connection: Connection, timestamp: str, updates: Mapping[str, tuple[str, str]], limits: Limits
    ) -> tuple[bool, bool]:
        """Put again what exists: (it was deleted before, it still is). Nothing is stored in one that still is."""
        was_deleted = self.is_deleted_in(connection)
        self.update_put_timestamp(connection, timestamp)
        if self.is_deleted_in(connection):
            return was_deleted, True
        self.update_metadata(connection, updates, limits)
        return was_deleted, False
