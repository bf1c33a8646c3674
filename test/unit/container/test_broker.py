from __future__ import annotations

import logging
import os
import sqlite3

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keelstore.common.broker_schema import chexor
from keelstore.common.listing import ListingQuery
from keelstore.common.ranges import ShardRange, State
from keelstore.common.timestamp import Timestamp
from keelstore.container import schema, shard_rows
from keelstore.container.broker import COLLAPSED, SHARDED, SHARDING, UNSHARDED, ContainerBroker

log = logging.getLogger("test")
EPOCH = "1700000100.00000"


def make(tmp_path, name="x"):
    broker = ContainerBroker(str(tmp_path / f"containers/0/abc/{name}/{name}.db"), str(tmp_path), log)
    broker.initialize("a", "c", "1700000000.00000", 0)
    return broker


@pytest.fixture
def broker(tmp_path):
    broker = make(tmp_path)
    yield broker
    broker.close()


seconds = st.integers(1, 3).map(lambda n: f"170000000{n}.00000")
items = st.fixed_dictionaries({
    "name": st.sampled_from(["o", "p"]), "created_at": seconds, "size": st.integers(0, 2),
    "content_type": st.sampled_from(["text/plain", "text/plain;swift_bytes=5"]), "etag": st.sampled_from(["e1", "e2"]),
    "deleted": st.integers(0, 1), "storage_policy_index": st.integers(0, 1), "ctype_timestamp": st.none() | seconds,
    "meta_timestamp": st.none() | seconds,
})  # fmt: skip


def memory():
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.create_function("chexor", 3, chexor)
    schema.create(connection)
    connection.execute("INSERT INTO container_info (account, container) VALUES ('a', 'c')")
    return connection


def content(connection):
    rows = connection.execute("SELECT name, created_at, size, content_type, etag, deleted, storage_policy_index FROM object"
                              " ORDER BY name, storage_policy_index").fetchall()
    stats = connection.execute("SELECT * FROM policy_stat WHERE object_count OR bytes_used ORDER BY 1").fetchall()
    return rows, stats, connection.execute("SELECT hash FROM container_info").fetchone()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(known=st.lists(items, max_size=6), random=st.randoms())
def test_rows_merge_in_any_order_repetition_and_grouping(known, random):
    broker = ContainerBroker("/nowhere/x.db", "/nowhere", log)
    first, second = memory(), memory()
    broker.merge_rows(first, known)
    left = known + known[:2]
    random.shuffle(left)
    while left:
        size = random.randint(1, 3)
        broker.merge_rows(second, left[:size])
        left = left[size:]
    assert content(first) == content(second)
    rows, stats, _ = content(first)
    for policy, count, size in stats:
        live = [row for row in rows if row[6] == policy]
        assert (count, size) == (sum(1 - row[5] for row in live), sum(row[2] for row in live))


def test_a_merge_from_a_peer_moves_its_sync_point(broker):
    rows = [{"name": f"o{n}", "created_at": "1700000001.00000", "size": 1, "content_type": "t", "etag": "e", "deleted": 0,
             "storage_policy_index": 0, "ROWID": n} for n in (3, 9, 7)]
    broker.write(lambda c: broker.merge_rows(c, rows, "peer"))
    assert broker.read(lambda c: broker.sync_point(c, "peer")) == 9


def test_rows_that_change_nothing_get_no_new_rowid(broker):
    broker.put_object("o", "1700000001.00000", 1, "t", "e", 0)
    broker.merge_pending()
    before = broker.read(broker.max_row)
    broker.put_object("o", "1700000001.00000", 1, "t", "e", 0)
    broker.put_object("o", "1700000000.00000", 2, "t", "e2", 0)
    broker.merge_pending()
    assert broker.read(broker.max_row) == before


def test_thousands_of_names_in_one_merge(broker):
    rows = [{"name": f"o{n:05d}", "created_at": "1700000001.00000", "size": 1, "content_type": "t", "etag": "e", "deleted": 0}
            for n in range(2500)]
    broker.write(lambda c: broker.merge_rows(c, rows))
    broker.write(lambda c: broker.merge_rows(c, [{**row, "created_at": "1700000002.00000", "deleted": 1, "size": 0} for row in rows]))
    info = broker.info()
    assert (info.object_count, info.bytes_used) == (0, 0)
    assert broker.read(lambda c: c.execute("SELECT COUNT(*) FROM object").fetchone()) == (2500,)


def test_listing_asks_the_index_not_the_table(broker):
    plan = broker.read(lambda c: c.execute(
        "EXPLAIN QUERY PLAN SELECT name FROM object WHERE deleted = 0 AND name > 'x' AND storage_policy_index = 0"
        " ORDER BY name ASC").fetchall())
    assert "ix_object_deleted_name" in plan[0][3] and len(plan) == 1


def test_rows_of_another_policy_do_not_count_or_show(broker):
    broker.put_object("right", "1700000001.00000", 1, "t", "e", 0)
    broker.put_object("wrong", "1700000001.00000", 5, "t", "e", 1)
    assert broker.info().object_count == 1
    listed = broker.read(lambda c: broker.list_in(c, ListingQuery(10)))
    assert [row[0] for row in listed] == ["right"]
    assert [row[0] for row in broker.read(lambda c: broker.list_in(c, ListingQuery(10), 1))] == ["wrong"]
    assert not broker.read(broker.is_empty_in)
    broker.write(lambda c: broker.set_policy_index(c, 1, "1700000009.00000"))
    info = broker.info()
    assert (info.object_count, info.bytes_used, info.storage_policy_index, info.status_changed_at) == (
        1, 5, 1, "1700000009.00000")


# -- sharding ----------------------------------------------------------------------------------------------------------


def shard(name, lower, upper, state=State.ACTIVE, at=1700000050, **more):
    return ShardRange.create(name, Timestamp(at), lower, upper, state=state, **more)


def merge(broker, *ranges):
    broker.write(lambda c: shard_rows.merge_ranges(c, ranges))


def make_fresh(broker):
    """The second file that sharding begins with."""
    source = sqlite3.connect(broker.path)
    target_path = f"{broker.base}_{EPOCH}.db"
    target = sqlite3.connect(target_path)
    source.backup(target)
    target.create_function("chexor", 3, chexor)
    target.execute("DELETE FROM object")
    target.commit()
    source.close()
    target.close()
    return target_path


def test_states(broker):
    assert broker.info().db_state == UNSHARDED
    broker.put_object("o", "1700000001.00000", 9, "t", "e", 0)
    broker.merge_pending()
    merge(broker, shard("a/c", "", "", State.SHARDING, epoch=Timestamp(EPOCH)),
          shard(".shards_a/c-1", "", "m", object_count=3, bytes_used=30),
          shard(".shards_a/c-2", "m", "", object_count=4, bytes_used=40))
    assert broker.info().db_state == UNSHARDED
    make_fresh(broker)
    info = broker.info()
    assert (info.db_state, info.object_count, info.bytes_used) == (SHARDING, 1, 9)
    assert [row[0] for row in broker.read(lambda c: broker.list_in(c, ListingQuery(10)))] == ["o"]
    assert not broker.read(broker.is_empty_in)
    broker.put_object("new", "1700000002.00000", 1, "t", "e", 0)  # goes to the fresh file
    assert broker.pending_size() and os.path.exists(f"{broker.base}.db.pending"), "the same for both files"
    os.unlink(broker.base + ".db")
    info = broker.info()
    assert (info.db_state, info.object_count, info.bytes_used) == (SHARDED, 7, 70)
    merge(broker, *(shard(f".shards_a/c-{n}", "", "", at=1700000060, is_deleted=True) for n in (1, 2)))
    assert broker.info().db_state == COLLAPSED


def test_redirects(broker):
    assert broker.redirect_for("apple") is None
    merge(broker, shard("a/c", "", "", State.SHARDING), shard(".shards_a/c-1", "", "m", State.CREATED),
          shard(".shards_a/c-2", "m", "t", State.FOUND), shard(".shards_a/c-3", "t", "", State.SHARDED))
    assert broker.redirect_for("apple").name == ".shards_a/c-1"
    assert broker.redirect_for("m").name == ".shards_a/c-1"
    assert broker.redirect_for("n") is None and broker.redirect_for("z") is None


def test_no_database_is_opened_for_a_redirect_that_cannot_be(broker):
    os.utime(broker.path, (1, 1))  # long unchanged
    assert broker.redirect_for("o") is None
    broker.close()
    assert broker.redirect_for("o") is None
    assert broker._connection is None


def test_a_root_knows_itself(broker):
    assert broker.read(shard_rows.is_root)
    broker.write(lambda c: broker.update_metadata(c, {shard_rows.QUOTED_ROOT: ("a/root%20x", "1700000001.00000")}))
    assert not broker.read(shard_rows.is_root)
    broker.write(lambda c: broker.update_metadata(c, {shard_rows.QUOTED_ROOT: ("a/c", "1700000002.00000")}))
    assert broker.read(shard_rows.is_root)


def test_old_deleted_ranges_are_reclaimed_but_not_the_own(broker):
    merge(broker, shard("a/c", "", "", is_deleted=True), shard("s/1", "", "", is_deleted=True), shard("s/2", "", ""))
    broker.reclaim("1700000060.00000", "1700000060.00000")
    assert [one.name for one in broker.read(shard_rows.all_ranges)] == ["a/c", "s/2"]
