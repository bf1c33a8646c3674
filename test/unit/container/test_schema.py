"""The tables as the specification has them, and databases of older versions."""

from __future__ import annotations

import logging
import sqlite3

import pytest

from keelstore.common.broker_schema import chexor, columns
from keelstore.common.listing import ListingQuery
from keelstore.container import schema
from keelstore.container.broker import ContainerBroker

TABLES = {
    "object": {"ROWID", "name", "created_at", "size", "content_type", "etag", "deleted", "storage_policy_index"},
    "policy_stat": {"storage_policy_index", "object_count", "bytes_used"},
    "container_stat": {*schema.INFO_COLUMNS, "object_count", "bytes_used"},
    "shard_range": {"ROWID", "name", "timestamp", "lower", "upper", "object_count", "bytes_used", "meta_timestamp",
                    "deleted", "state", "state_timestamp", "epoch", "reported", "tombstones"},
    "incoming_sync": {"remote_id", "sync_point", "updated_at"},
    "outgoing_sync": {"remote_id", "sync_point", "updated_at"},
}  # fmt: skip

# A container database from before storage policies and sync points, as old clusters still have them.
OLDEST = """
CREATE TABLE object (ROWID INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT, created_at TEXT, size INTEGER,
    content_type TEXT, etag TEXT, deleted INTEGER DEFAULT 0);
CREATE INDEX ix_object_deleted_name ON object (deleted, name);
CREATE TRIGGER object_insert AFTER INSERT ON object BEGIN
    UPDATE container_stat SET object_count = object_count + (1 - new.deleted), bytes_used = bytes_used + new.size,
        hash = chexor(hash, new.name, new.created_at);
END;
CREATE TRIGGER object_update BEFORE UPDATE ON object BEGIN SELECT RAISE(FAIL, 'no'); END;
CREATE TRIGGER object_delete AFTER DELETE ON object BEGIN
    UPDATE container_stat SET object_count = object_count - (1 - old.deleted), bytes_used = bytes_used - old.size,
        hash = chexor(hash, old.name, old.created_at);
END;
CREATE TABLE container_stat (account TEXT, container TEXT, created_at TEXT, put_timestamp TEXT DEFAULT '0',
    delete_timestamp TEXT DEFAULT '0', object_count INTEGER, bytes_used INTEGER,
    reported_put_timestamp TEXT DEFAULT '0', reported_delete_timestamp TEXT DEFAULT '0',
    reported_object_count INTEGER DEFAULT 0, reported_bytes_used INTEGER DEFAULT 0,
    hash TEXT DEFAULT '00000000000000000000000000000000', id TEXT, status TEXT DEFAULT '',
    status_changed_at TEXT DEFAULT '0', metadata TEXT DEFAULT '');
CREATE TABLE outgoing_sync (remote_id TEXT UNIQUE, sync_point INTEGER, updated_at TEXT DEFAULT 0);
CREATE TABLE incoming_sync (remote_id TEXT UNIQUE, sync_point INTEGER, updated_at TEXT DEFAULT 0);
INSERT INTO container_stat (account, container, created_at, put_timestamp, id, object_count, bytes_used, metadata)
    VALUES ('a', 'c', '1400000000.00000', '1400000000.00000', 'x-sda', 0, 0, '{"X-Container-Meta-A": ["b", "1400000000.00000"]}');
INSERT INTO object (name, created_at, size, content_type, etag) VALUES ('o1', '1400000001.00000', 5, 't', 'e');
INSERT INTO object (name, created_at, size, content_type, etag) VALUES ('o2', '1400000001.00000', 7, 't', 'e');
"""

OLD_SHARD_RANGE = """
DROP TABLE shard_range;
CREATE TABLE shard_range (ROWID INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT, timestamp TEXT, lower TEXT, upper TEXT,
    object_count INTEGER DEFAULT 0, bytes_used INTEGER DEFAULT 0, meta_timestamp TEXT, deleted INTEGER DEFAULT 0,
    state INTEGER, state_timestamp TEXT, epoch TEXT);
"""


@pytest.fixture
def broker(tmp_path):
    broker = ContainerBroker(str(tmp_path / "containers/0/abc/x/x.db"), str(tmp_path), logging.getLogger("test"))
    yield broker
    broker.close()


def test_tables_and_columns(broker):
    broker.initialize("a", "c", "1700000000.00000", 0)
    for table, expected in TABLES.items():
        assert broker.read(lambda c, table=table: columns(c, table)) == expected
    indexes = broker.read(lambda c: c.execute("SELECT name FROM sqlite_master WHERE type = 'index'").fetchall())
    assert ("ix_object_deleted_name",) in indexes
    pragmas = broker.read(lambda c: [c.execute(f"PRAGMA {name}").fetchone()[0] for name in (
        "journal_mode", "synchronous", "temp_store")])  # fmt: skip
    assert pragmas == ["delete", 1, 2]


def test_rows_may_not_be_updated(broker):
    broker.initialize("a", "c", "1700000000.00000", 0)
    broker.put_object("o", "1700000001.00000", 1, "t", "e", 0)
    with pytest.raises(sqlite3.IntegrityError, match="DELETE and INSERT"):
        broker.write(lambda c: c.execute("UPDATE object SET size = 5"))


def test_counts_and_hash_follow_the_rows(broker):
    broker.initialize("a", "c", "1700000000.00000", 0)
    broker.put_object("o", "1700000001.00000", 5, "t", "e", 0)
    broker.put_object("p", "1700000001.00000", 7, "t", "e", 1)
    info = broker.info()
    assert (info.object_count, info.bytes_used) == (1, 5)
    assert info.hash == chexor(chexor("0", "o", "1700000001.00000"), "p", "1700000001.00000")
    broker.delete_object("o", "1700000002.00000", 0)
    info = broker.info()
    assert (info.object_count, info.bytes_used) == (0, 0)
    assert info.hash == chexor(chexor("0", "o", "1700000002.00000"), "p", "1700000001.00000")


def write_old(broker, script):
    import os

    os.makedirs(broker.directory)
    connection = sqlite3.connect(broker.base + ".db")
    connection.create_function("chexor", 3, chexor)
    connection.executescript(script)
    connection.close()


def test_the_oldest_database_becomes_current_when_it_is_read(broker):
    write_old(broker, OLDEST)
    info = broker.info()
    assert (info.object_count, info.bytes_used, info.storage_policy_index, info.id) == (2, 12, 0, "x-sda")
    assert info.metadata == {"X-Container-Meta-A": ("b", "1400000000.00000")}
    assert info.hash == chexor(chexor("0", "o1", "1400000001.00000"), "o2", "1400000001.00000")
    for table, expected in TABLES.items():
        assert broker.read(lambda c, table=table: columns(c, table)) == expected
    broker.put_object("o3", "1700000001.00000", 1, "t", "e", 0)
    broker.delete_object("o1", "1700000001.00000", 0)
    assert [row[0] for row in broker.read_fresh(lambda c: broker.list_in(c, ListingQuery(10)))] == ["o2", "o3"]
    assert broker.info().object_count == 2


def test_a_shard_range_table_without_its_later_columns_gets_them(broker):
    broker.initialize("a", "c", "1700000000.00000", 0)
    connection = sqlite3.connect(broker.path)
    connection.executescript(OLD_SHARD_RANGE)
    connection.close()
    assert broker.info().object_count == 0
    assert broker.read(lambda c: columns(c, "shard_range")) == TABLES["shard_range"]
