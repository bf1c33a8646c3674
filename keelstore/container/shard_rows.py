"""Shard ranges in a container database: the SQL of the ``shard_range`` table.

The row named as the container itself is its *own* range: what its root thinks of it, or, in the root, how far it is sharded.
All functions are steps for ``Broker.read`` and ``Broker.write``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote

from keelstore.common import ranges
from keelstore.common.broker_steps import Connection, parse_metadata, timestamp_of
from keelstore.common.ranges import CLEAVED_AWAY_STATES, STATS_STATES, ShardRange, State
from keelstore.common.timestamp import Timestamp

_COLUMNS = (
    "name, timestamp, lower, upper, object_count, bytes_used, meta_timestamp, deleted, state, state_timestamp, epoch,"
    " reported, tombstones"
)
QUOTED_ROOT, ROOT = "X-Container-Sysmeta-Shard-Quoted-Root", "X-Container-Sysmeta-Shard-Root"


def _range_of(row: tuple[Any, ...]) -> ShardRange:
    timestamp = timestamp_of(row[1])
    return ShardRange(
        row[0], row[2] or "", row[3] or "", timestamp, row[4] or 0, row[5] or 0,
        timestamp_of(row[6]) if row[6] else timestamp, bool(row[7]), State(row[8] if row[8] is not None else 10),
        timestamp_of(row[9]) if row[9] else timestamp, timestamp_of(row[10]) if row[10] else None,
        bool(row[11]), -1 if row[12] is None else row[12],
    )  # fmt: skip


def own_name(connection: Connection) -> str:
    account, container = connection.execute("SELECT account, container FROM container_info").fetchone()
    return f"{account}/{container}"


def has_any_range(connection: Connection) -> bool:
    return connection.execute("SELECT 1 FROM shard_range LIMIT 1").fetchone() is not None


def has_other_ranges(connection: Connection) -> bool:
    """Whether undeleted ranges besides the own one exist."""
    return connection.execute("SELECT 1 FROM shard_range WHERE deleted = 0 AND name <> ? LIMIT 1",
                              (own_name(connection),)).fetchone() is not None  # fmt: skip


def all_ranges(connection: Connection) -> list[ShardRange]:
    """Every row, deleted ones and the own one too, sorted."""
    found = [_range_of(row) for row in connection.execute(f"SELECT {_COLUMNS} FROM shard_range")]
    found.sort(key=lambda shard: shard.sort_key)
    return found


def stored_own_range(connection: Connection) -> ShardRange | None:
    row = connection.execute(f"SELECT {_COLUMNS} FROM shard_range WHERE name = ?", (own_name(connection),)).fetchone()
    return _range_of(row) if row else None


def own_range(connection: Connection) -> ShardRange:
    """The own range, deleted or not; an active one over all names when none is stored."""
    found = stored_own_range(connection)
    if found is None:
        found = ShardRange.create(own_name(connection), Timestamp(Timestamp.now().normal), state=State.ACTIVE)
    return found


def find(connection: Connection, name: str, states: frozenset[State]) -> ShardRange | None:
    """The first undeleted range, not the own one, in one of ``states`` that holds ``name``."""
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM shard_range WHERE deleted = 0 AND name <> ? AND lower < ?"
        f" AND (upper = '' OR upper >= ?) AND state IN ({','.join(str(int(state)) for state in sorted(states))})",
        (own_name(connection), name, name),
    )
    return min((_range_of(row) for row in rows), key=lambda shard: shard.sort_key, default=None)


def is_root(connection: Connection) -> bool:
    """Whether this is no shard of another container."""
    metadata = parse_metadata(connection.execute("SELECT metadata FROM container_info").fetchone()[0])
    own = own_name(connection)
    quoted, plain = metadata.get(QUOTED_ROOT, ("", ""))[0], metadata.get(ROOT, ("", ""))[0]
    if quoted:
        return unquote(quoted) == own
    if plain:
        return plain == own
    stored = stored_own_range(connection)
    return stored is None or not stored.is_deleted


def is_sharding_initiated(connection: Connection) -> bool:
    return own_range(connection).state in CLEAVED_AWAY_STATES and has_other_ranges(connection)


def usage(connection: Connection) -> tuple[int, int]:
    """Objects and bytes in the shards, as last reported."""
    states = ",".join(str(int(state)) for state in sorted(STATS_STATES))
    row = connection.execute(
        "SELECT COALESCE(SUM(object_count), 0), COALESCE(SUM(bytes_used), 0) FROM shard_range"
        f" WHERE deleted = 0 AND name <> ? AND state IN ({states})", (own_name(connection),),
    ).fetchone()  # fmt: skip
    return row[0], row[1]


def merge_ranges(connection: Connection, new: Iterable[ShardRange]) -> None:
    """Merge field by field with what is known; see :func:`keelstore.common.ranges.merge`."""
    for shard in new:
        row = connection.execute(f"SELECT {_COLUMNS} FROM shard_range WHERE name = ?", (shard.name,)).fetchone()
        merged = ranges.merge(shard, _range_of(row) if row else None)
        if merged is None:
            continue
        connection.execute("DELETE FROM shard_range WHERE name = ?", (shard.name,))
        values: Mapping[str, Any] = merged.to_dict()
        connection.execute(
            f"INSERT INTO shard_range ({', '.join(values)}) VALUES ({', '.join('?' * len(values))})",
            tuple(values.values()),
        )


def reclaim(connection: Connection, age: str) -> None:
    """Forget deleted ranges older than ``age``, not the own one."""
    connection.execute("DELETE FROM shard_range WHERE deleted = 1 AND name <> ? AND timestamp < ?",
                       (own_name(connection), age))  # fmt: skip
