"""Tables of a container database, and how older ones become current. The only SQL that creates or alters them.

``object`` holds the rows; triggers keep ``policy_stat`` (counts of each policy) and ``container_info.hash`` true, and forbid
UPDATE, because a changed row must get a new ROWID to be replicated. ``container_stat`` is a view that adds the counts of the
container's own policy to ``container_info``. ``doc/formats/databases.md`` has all columns.
"""

from __future__ import annotations

import sqlite3

from keelstore.common.broker_schema import NO_HASH, SYNC_TABLES, columns, drop_triggers, run_script

OBJECT_TABLE = """
    CREATE TABLE object (
        ROWID INTEGER PRIMARY KEY AUTOINCREMENT,
        name TEXT,
        created_at TEXT,
        size INTEGER,
        content_type TEXT,
        etag TEXT,
        deleted INTEGER DEFAULT 0,
        storage_policy_index INTEGER DEFAULT 0
    );
    CREATE INDEX ix_object_deleted_name ON object (deleted, name);
"""

POLICY_STAT_TABLE = """
    CREATE TABLE policy_stat (
        storage_policy_index INTEGER PRIMARY KEY,
        object_count INTEGER DEFAULT 0,
        bytes_used INTEGER DEFAULT 0
    );
"""

OBJECT_TRIGGERS = """
    CREATE TRIGGER object_insert_policy_stat AFTER INSERT ON object BEGIN
        INSERT INTO policy_stat (storage_policy_index) SELECT new.storage_policy_index
            WHERE NOT EXISTS (SELECT 1 FROM policy_stat WHERE storage_policy_index = new.storage_policy_index);
        UPDATE policy_stat
            SET object_count = object_count + (1 - new.deleted), bytes_used = bytes_used + new.size
            WHERE storage_policy_index = new.storage_policy_index;
        UPDATE container_info SET hash = chexor(hash, new.name, new.created_at);
    END;
    CREATE TRIGGER object_delete_policy_stat AFTER DELETE ON object BEGIN
        UPDATE policy_stat
            SET object_count = object_count - (1 - old.deleted), bytes_used = bytes_used - old.size
            WHERE storage_policy_index = old.storage_policy_index;
        UPDATE container_info SET hash = chexor(hash, old.name, old.created_at);
    END;
    CREATE TRIGGER object_update BEFORE UPDATE ON object BEGIN
        SELECT RAISE(FAIL, 'UPDATE not allowed; DELETE and INSERT');
    END;
"""

_TRIGGERS = {"object_insert_policy_stat", "object_delete_policy_stat", "object_update"}

INFO_COLUMNS = (
    "account", "container", "created_at", "put_timestamp", "delete_timestamp", "reported_put_timestamp",
    "reported_delete_timestamp", "reported_object_count", "reported_bytes_used", "hash", "id", "status",
    "status_changed_at", "metadata", "x_container_sync_point1", "x_container_sync_point2", "storage_policy_index",
    "reconciler_sync_point",
)  # fmt: skip

INFO_TABLE = f"""
    CREATE TABLE container_info (
        account TEXT,
        container TEXT,
        created_at TEXT,
        put_timestamp TEXT DEFAULT '0',
        delete_timestamp TEXT DEFAULT '0',
        reported_put_timestamp TEXT DEFAULT '0',
        reported_delete_timestamp TEXT DEFAULT '0',
        reported_object_count INTEGER DEFAULT 0,
        reported_bytes_used INTEGER DEFAULT 0,
        hash TEXT DEFAULT '{NO_HASH}',
        id TEXT,
        status TEXT DEFAULT '',
        status_changed_at TEXT DEFAULT '0',
        metadata TEXT DEFAULT '',
        x_container_sync_point1 INTEGER DEFAULT -1,
        x_container_sync_point2 INTEGER DEFAULT -1,
        storage_policy_index INTEGER DEFAULT 0,
        reconciler_sync_point INTEGER DEFAULT -1
    );
"""

STAT_VIEW = f"""
    CREATE VIEW container_stat AS
        SELECT {", ".join(f"info.{name}" for name in INFO_COLUMNS)},
            COALESCE(stat.object_count, 0) AS object_count,
            COALESCE(stat.bytes_used, 0) AS bytes_used
        FROM container_info AS info
        LEFT JOIN policy_stat AS stat ON info.storage_policy_index = stat.storage_policy_index;
    CREATE TRIGGER container_stat_update INSTEAD OF UPDATE ON container_stat BEGIN
        UPDATE container_info SET {", ".join(f"{name} = NEW.{name}" for name in INFO_COLUMNS)};
    END;
"""

SHARD_RANGE_TABLE = """
    CREATE TABLE shard_range (
        ROWID INTEGER PRIMARY KEY AUTOINCREMENT,
        name TEXT,
        timestamp TEXT,
        lower TEXT,
        upper TEXT,
        object_count INTEGER DEFAULT 0,
        bytes_used INTEGER DEFAULT 0,
        meta_timestamp TEXT,
        deleted INTEGER DEFAULT 0,
        state INTEGER,
        state_timestamp TEXT,
        epoch TEXT,
        reported INTEGER DEFAULT 0,
        tombstones INTEGER DEFAULT -1
    );
    CREATE TRIGGER shard_range_update BEFORE UPDATE ON shard_range BEGIN
        SELECT RAISE(FAIL, 'UPDATE not allowed; DELETE and INSERT');
    END;
"""

ALL = OBJECT_TABLE + POLICY_STAT_TABLE + INFO_TABLE + OBJECT_TRIGGERS + STAT_VIEW + SHARD_RANGE_TABLE + SYNC_TABLES


def create(connection: sqlite3.Connection) -> None:
    connection.executescript(ALL)


def is_ours(connection: sqlite3.Connection) -> bool:
    """Whether this is a container database of any age."""
    return bool(columns(connection, "object")) and bool(columns(connection, "container_stat"))


def is_current(connection: sqlite3.Connection) -> bool:
    found = {row[0] for row in connection.execute(
        "SELECT name FROM sqlite_master WHERE name IN ('container_info', 'policy_stat', 'shard_range')")}  # fmt: skip
    if len(found) != 3:
        return False
    return (
        columns(connection, "container_info").issuperset(INFO_COLUMNS)
        and "storage_policy_index" in columns(connection, "object")
        and columns(connection, "shard_range").issuperset({"reported", "tombstones"})
    )


def row_triggers(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    """Name and SQL of the triggers that keep counts and hash; none unless ``object`` has just those of this schema."""
    found = connection.execute(
        "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'object'").fetchall()  # fmt: skip
    if {name for name, _ in found} != _TRIGGERS:
        return []
    return [(name, sql) for name, sql in found if name != "object_update"]


def migrate(connection: sqlite3.Connection) -> None:
    """Bring a database of any age up to date, inside the transaction that is open. Rows keep their ROWIDs."""
    if "storage_policy_index" not in columns(connection, "object"):
        connection.execute("ALTER TABLE object ADD COLUMN storage_policy_index INTEGER DEFAULT 0")
    if not columns(connection, "container_info"):
        _split_stat_table(connection)
    known = columns(connection, "shard_range")
    if not known:
        run_script(connection, SHARD_RANGE_TABLE)
    else:
        for name, default in (("reported", 0), ("tombstones", -1)):
            if name not in known:
                connection.execute(f"ALTER TABLE shard_range ADD COLUMN {name} INTEGER DEFAULT {default}")


def _split_stat_table(connection: sqlite3.Connection) -> None:
    """Before storage policies ``container_stat`` was a table that held the counts itself, kept by triggers on ``object``."""
    old = columns(connection, "container_stat")
    common = ", ".join(name for name in INFO_COLUMNS if name in old)
    drop_triggers(connection, "object")
    run_script(connection, INFO_TABLE + POLICY_STAT_TABLE)
    connection.execute(f"INSERT INTO container_info ({common}) SELECT {common} FROM container_stat")
    connection.execute(
        "INSERT INTO policy_stat (storage_policy_index, object_count, bytes_used)"
        " SELECT 0, COALESCE(object_count, 0), COALESCE(bytes_used, 0) FROM container_stat"
    )
    connection.execute("DROP TABLE container_stat")
    run_script(connection, OBJECT_TRIGGERS + STAT_VIEW)
