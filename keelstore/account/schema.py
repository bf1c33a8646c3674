"""Tables of an account database, and how older ones become current. The only SQL that creates or alters them.

``container`` holds the rows; triggers keep ``account_stat`` (totals and hash) and ``policy_stat`` (counts of each policy)
true and forbid UPDATE, because a changed row must get a new ROWID to be replicated. ``doc/formats/databases.md`` has all
columns.
"""

from __future__ import annotations

import sqlite3

from keelstore.common.broker_schema import NO_HASH, SYNC_TABLES, columns, drop_triggers, run_script

CONTAINER_TABLE = """
    CREATE TABLE container (
        ROWID INTEGER PRIMARY KEY AUTOINCREMENT,
        name TEXT,
        put_timestamp TEXT,
        delete_timestamp TEXT,
        object_count INTEGER,
        bytes_used INTEGER,
        deleted INTEGER DEFAULT 0,
        storage_policy_index INTEGER DEFAULT 0
    );
    CREATE INDEX ix_container_deleted_name ON container (deleted, name);
"""

POLICY_STAT_TABLE = """
    CREATE TABLE policy_stat (
        storage_policy_index INTEGER PRIMARY KEY,
        container_count INTEGER DEFAULT 0,
        object_count INTEGER DEFAULT 0,
        bytes_used INTEGER DEFAULT 0
    );
"""

_ROW = (
    "{0}.name, {0}.put_timestamp || '-' || {0}.delete_timestamp || '-' || {0}.object_count || '-' || {0}.bytes_used"
)

TRIGGERS = f"""
    CREATE TRIGGER container_insert AFTER INSERT ON container BEGIN
        UPDATE account_stat SET
            container_count = container_count + (1 - new.deleted),
            object_count = object_count + new.object_count,
            bytes_used = bytes_used + new.bytes_used,
            hash = chexor(hash, {_ROW.format("new")});
    END;
    CREATE TRIGGER container_delete AFTER DELETE ON container BEGIN
        UPDATE account_stat SET
            container_count = container_count - (1 - old.deleted),
            object_count = object_count - old.object_count,
            bytes_used = bytes_used - old.bytes_used,
            hash = chexor(hash, {_ROW.format("old")});
    END;
    CREATE TRIGGER container_update BEFORE UPDATE ON container BEGIN
        SELECT RAISE(FAIL, 'UPDATE not allowed; DELETE and INSERT');
    END;
    CREATE TRIGGER container_insert_ps AFTER INSERT ON container BEGIN
        INSERT INTO policy_stat (storage_policy_index) SELECT new.storage_policy_index
            WHERE NOT EXISTS (SELECT 1 FROM policy_stat WHERE storage_policy_index = new.storage_policy_index);
        UPDATE policy_stat SET
            container_count = container_count + (1 - new.deleted),
            object_count = object_count + new.object_count,
            bytes_used = bytes_used + new.bytes_used
            WHERE storage_policy_index = new.storage_policy_index;
    END;
    CREATE TRIGGER container_delete_ps AFTER DELETE ON container BEGIN
        UPDATE policy_stat SET
            container_count = container_count - (1 - old.deleted),
            object_count = object_count - old.object_count,
            bytes_used = bytes_used - old.bytes_used
            WHERE storage_policy_index = old.storage_policy_index;
    END;
"""

STAT_TABLE = f"""
    CREATE TABLE account_stat (
        account TEXT,
        created_at TEXT,
        put_timestamp TEXT DEFAULT '0',
        delete_timestamp TEXT DEFAULT '0',
        container_count INTEGER,
        object_count INTEGER DEFAULT 0,
        bytes_used INTEGER DEFAULT 0,
        hash TEXT DEFAULT '{NO_HASH}',
        id TEXT,
        status TEXT DEFAULT '',
        status_changed_at TEXT DEFAULT '0',
        metadata TEXT DEFAULT ''
    );
"""

ALL = CONTAINER_TABLE + POLICY_STAT_TABLE + STAT_TABLE + TRIGGERS + SYNC_TABLES


def create(connection: sqlite3.Connection) -> None:
    connection.executescript(ALL)


def is_ours(connection: sqlite3.Connection) -> bool:
    """Whether this is an account database of any age."""
    return bool(columns(connection, "container")) and bool(columns(connection, "account_stat"))


def is_current(connection: sqlite3.Connection) -> bool:
    return "storage_policy_index" in columns(connection, "container") and "container_count" in columns(
        connection, "policy_stat"
    )


def migrate(connection: sqlite3.Connection) -> None:
    """Bring a database of any age up to date, inside the transaction that is open. Rows keep their ROWIDs."""
    if "storage_policy_index" not in columns(connection, "container"):
        connection.execute("ALTER TABLE container ADD COLUMN storage_policy_index INTEGER DEFAULT 0")
    if columns(connection, "policy_stat"):
        connection.execute("DROP TABLE policy_stat")
    drop_triggers(connection, "container")
    run_script(connection, POLICY_STAT_TABLE)
    connection.execute(
        "INSERT INTO policy_stat (storage_policy_index, container_count, object_count, bytes_used)"
        " SELECT storage_policy_index, SUM(1 - deleted), SUM(object_count), SUM(bytes_used)"
        " FROM container GROUP BY storage_policy_index"
    )
    run_script(connection, TRIGGERS)
