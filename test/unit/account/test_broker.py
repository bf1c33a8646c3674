from __future__ import annotations

import logging
import os
import sqlite3

import pytest

from keelstore.account.broker import AccountBroker, PolicyStat
from keelstore.common.broker_schema import chexor, columns
from keelstore.common.listing import ListingQuery

log = logging.getLogger("test")

TABLES = {
    "container": {"ROWID", "name", "put_timestamp", "delete_timestamp", "object_count", "bytes_used", "deleted",
                  "storage_policy_index"},
    "account_stat": {"account", "created_at", "put_timestamp", "delete_timestamp", "container_count", "object_count",
                     "bytes_used", "hash", "id", "status", "status_changed_at", "metadata"},
    "policy_stat": {"storage_policy_index", "container_count", "object_count", "bytes_used"},
}  # fmt: skip

# An account database from before storage policies.
OLDEST = """
CREATE TABLE container (ROWID INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT, put_timestamp TEXT, delete_timestamp TEXT,
    object_count INTEGER, bytes_used INTEGER, deleted INTEGER DEFAULT 0);
CREATE INDEX ix_container_deleted_name ON container (deleted, name);
CREATE TRIGGER container_insert AFTER INSERT ON container BEGIN
    UPDATE account_stat SET container_count = container_count + (1 - new.deleted),
        object_count = object_count + new.object_count, bytes_used = bytes_used + new.bytes_used;
END;
CREATE TABLE account_stat (account TEXT, created_at TEXT, put_timestamp TEXT DEFAULT '0', delete_timestamp TEXT DEFAULT '0',
    container_count INTEGER, object_count INTEGER DEFAULT 0, bytes_used INTEGER DEFAULT 0,
    hash TEXT DEFAULT '00000000000000000000000000000000', id TEXT, status TEXT DEFAULT '',
    status_changed_at TEXT DEFAULT '0', metadata TEXT DEFAULT '');
CREATE TABLE outgoing_sync (remote_id TEXT UNIQUE, sync_point INTEGER, updated_at TEXT DEFAULT 0);
CREATE TABLE incoming_sync (remote_id TEXT UNIQUE, sync_point INTEGER, updated_at TEXT DEFAULT 0);
INSERT INTO account_stat (account, created_at, put_timestamp, id, container_count)
    VALUES ('a', '1400000000.00000', '1400000000.00000', 'x-sda', 0);
INSERT INTO container (name, put_timestamp, delete_timestamp, object_count, bytes_used)
    VALUES ('c', '1400000000.00000', '0', 3, 30);
"""


@pytest.fixture
def broker(tmp_path):
    broker = AccountBroker(str(tmp_path / "accounts/0/abc/x/x.db"), str(tmp_path), log)
    broker.initialize("a", "1700000000.00000")
    yield broker
    broker.close()


def put(broker, name="c", put_at=1, delete_at=0, count=0, size=0, policy=0):
    broker.put_container(name, f"170000000{put_at}.00000", f"170000000{delete_at}.00000" if delete_at else "0000000000.00000",
                         count, size, policy)  # fmt: skip


def test_tables_and_columns(broker):
    assert broker.read(lambda c: {table: columns(c, table) for table in TABLES}) == TABLES


def test_totals_policies_and_hash(broker):
    put(broker, "c", count=2, size=20)
    put(broker, "d", count=3, size=30, policy=1)
    info = broker.info()
    assert (info.container_count, info.object_count, info.bytes_used) == (2, 5, 50)
    assert broker.read(broker.policy_stats_in) == [PolicyStat(0, 1, 2, 20), PolicyStat(1, 1, 3, 30)]
    expected = chexor("0", "c", "1700000001.00000-0000000000.00000-2-20")
    assert info.hash == chexor(expected, "d", "1700000001.00000-0000000000.00000-3-30")
    put(broker, "c", put_at=1, delete_at=2)
    info = broker.info()
    assert (info.container_count, info.object_count, info.bytes_used) == (1, 3, 30)
    assert [row[0] for row in broker.read(lambda c: broker.list_in(c, ListingQuery(10)))] == ["d"]


def test_an_update_that_tells_nothing_new_gets_no_new_rowid(broker):
    put(broker, count=2)
    broker.merge_pending()
    put(broker, count=2)
    broker.merge_pending()
    assert broker.read(broker.max_row) == 1


def test_deleted_states(broker):
    assert not broker.info().is_deleted and broker.takes_rows()
    put(broker)
    broker.write(lambda c: broker.mark_deleted(c, "1700000005.00000"))
    assert broker.info().is_deleted and broker.info().is_status_deleted and not broker.takes_rows()
    assert broker.is_deleted()


def test_reclaim(broker):
    put(broker, "old", put_at=1, delete_at=2)
    put(broker, "new", put_at=1, delete_at=8)
    put(broker, "live")
    broker.reclaim("1700000005.00000", "1700000005.00000")
    assert broker.read(lambda c: c.execute("SELECT name FROM container ORDER BY name").fetchall()) == [("live",), ("new",)]


def test_the_oldest_database_becomes_current(tmp_path):
    broker = AccountBroker(str(tmp_path / "accounts/0/abc/y/y.db"), str(tmp_path), log)
    os.makedirs(broker.directory)
    connection = sqlite3.connect(broker.path)
    connection.executescript(OLDEST)
    connection.close()
    info = broker.info()
    assert (info.container_count, info.object_count, info.bytes_used) == (1, 3, 30)
    assert broker.read(lambda c: {table: columns(c, table) for table in TABLES}) == TABLES
    put(broker, "d", count=1, size=5, policy=1)
    broker.merge_pending()
    assert broker.read(broker.policy_stats_in) == [PolicyStat(0, 1, 3, 30), PolicyStat(1, 1, 1, 5)]
    broker.close()
