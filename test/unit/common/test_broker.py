"""The database file: pending updates, locks, creation, damage. Real files, with the container's tables."""

from __future__ import annotations

import json
import logging
import os
import pickle
import sqlite3
import subprocess
import sys
from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelstore.common import concurrency, fs, pending
from keelstore.common.broker import AlreadyExists, DatabaseNotFound
from keelstore.common.broker_cache import BrokerCache
from keelstore.common.broker_steps import merge_metadata
from keelstore.common.errors import BadRequest, DatabaseCorrupt, DeviceFull, LockTimeout
from keelstore.common.limits import Limits
from keelstore.common.listing import ListingQuery
from keelstore.common.locks import lock_directory
from keelstore.container.broker import ContainerBroker

log = logging.getLogger("test")


@pytest.fixture
def broker(tmp_path):
    device = tmp_path / "sda"
    device.mkdir()
    path = device / "containers/7/abc/0123abc/0123abc.db"
    broker = ContainerBroker(str(path), str(device), log)
    broker.initialize("a", "c", "1700000000.00000", 0)
    yield broker
    broker.close()


def put(broker, name, at=1700000001):
    broker.put_object(name, f"{at}.00000", 1, "text/plain", "etag", 0)


def listed(broker):
    return [row[0] for row in broker.read_fresh(lambda connection: broker.list_in(connection, ListingQuery(10**6)))]


# -- creation ----------------------------------------------------------------------------------------------------------


def test_a_new_database_is_whole_and_alone(broker):
    assert sorted(os.listdir(broker.directory)) == [".lock", "0123abc.db"]
    info = broker.info()
    assert (info.account, info.container, info.put_timestamp, info.object_count) == ("a", "c", "1700000000.00000", 0)
    assert info.id.endswith("-sda")


def test_the_second_to_create_is_told(broker):
    with pytest.raises(AlreadyExists):
        broker.initialize("a", "c", "1700000005.00000", 0)
    assert broker.info().put_timestamp == "1700000000.00000"
    assert not [name for name in os.listdir(broker.directory) if name.endswith(".tmp")]


def test_nothing_is_there_before(tmp_path):
    broker = ContainerBroker(str(tmp_path / "containers/0/abc/xabc/xabc.db"), str(tmp_path), log)
    assert not broker.exists and broker.is_deleted()
    for call in (broker.info, lambda: put(broker, "o"), lambda: broker.write(lambda connection: None)):
        with pytest.raises(DatabaseNotFound):
            call()
    assert os.listdir(tmp_path) == []


# -- pending updates ---------------------------------------------------------------------------------------------------


def test_an_update_is_one_append_and_readers_see_it(broker):
    before = os.stat(broker.path).st_mtime_ns
    put(broker, "o")
    assert os.stat(broker.path).st_mtime_ns == before
    assert broker.pending_size() > 0
    assert listed(broker) == ["o"] and broker.pending_size() == 0


def test_the_format_of_a_pending_entry():
    # spec: on-disk 6.1
    entry = pending.encode(("o", "1700000001.00000", 1, "t", "e", 0, 0, None, None))
    assert entry.startswith(b":")
    assert pickle.loads(__import__("base64").b64decode(entry[1:])) == (
        "o", "1700000001.00000", 1, "t", "e", 0, 0, None, None)


def test_entries_of_older_writers_are_read(broker):
    short = ("old", "1700000001.00000", 5, "text/plain", "e", 0)
    texts = [b"U" + bytes([len(text)]) + text for text in ("öld".encode(), b"1700000001.00000", b"text/plain", b"e")]
    python2 = b"\x80\x02(" + texts[0] + texts[1] + b"K\x05" + texts[2] + texts[3] + b"K\x00K\x01t."
    fs.append(broker.pending_path, b":" + b64encode(pickle.dumps(short, protocol=2)) + b":\n" + b64encode(python2) + b"\n")
    broker.merge_pending()
    rows = broker.read(lambda c: c.execute("SELECT name, storage_policy_index FROM object ORDER BY name").fetchall())
    assert rows == [("old", 0), ("öld", 1)]


def test_what_cannot_be_read_is_dropped_and_logged(broker, caplog):
    evil = b"cos\nsystem\n(S'touch /tmp/pwned'\ntR."
    for number, bad in enumerate((b":####", b":" + b64encode(evil), pending.encode(("name",)),
                                  pending.encode(("n", "nonsense", 1, "t", "e", 0)), b":gASV")):
        put(broker, f"good{number}")
        fs.append(broker.pending_path, bad)
    put(broker, "last")
    with caplog.at_level(logging.ERROR):
        assert len(listed(broker)) == 6
    assert caplog.text.count("is dropped") >= 4
    assert not os.path.exists("/tmp/pwned")


def test_beyond_the_cap_all_goes_into_the_database(broker):
    put(broker, "first")
    fs.append(broker.pending_path, b":" * pending.CAP)
    put(broker, "second")
    assert broker.pending_size() == 0
    assert broker.read(lambda c: c.execute("SELECT COUNT(*) FROM object").fetchone()) == (2,)


def test_a_crash_between_commit_and_truncate_changes_nothing(broker):
    put(broker, "o")
    kept = open(broker.pending_path, "rb").read()
    first = broker.info()
    fs.append(broker.pending_path, kept)
    assert broker.info() == first
    assert broker.read(lambda c: broker.max_row(c)) == 1  # not even a new ROWID


def test_a_torn_append_is_taken_back(broker, monkeypatch):
    put(broker, "o")
    size = broker.pending_size()

    def torn(fd, data):
        os.write(fd, data[:10])
        raise DeviceFull("no room")

    monkeypatch.setattr(fs, "write_all", torn)
    with pytest.raises(DeviceFull):
        put(broker, "p")
    assert broker.pending_size() == size


def test_a_failed_step_rolls_back_and_keeps_what_is_pending(broker):
    put(broker, "o")

    def fail(connection):
        connection.execute("UPDATE container_info SET account = 'x'")
        raise ValueError

    with pytest.raises(ValueError):
        broker.write(fail)
    assert broker.pending_size() > 0
    assert broker.info().account == "a" and listed(broker) == ["o"]


# -- locks -------------------------------------------------------------------------------------------------------------


def test_a_read_waits_for_a_short_writer_of_another_process(broker):
    other = sqlite3.connect(broker.path, isolation_level=None)
    other.create_function("chexor", 3, lambda *args: "0" * 32)
    other.execute("BEGIN EXCLUSIVE")

    def end():
        concurrency.sleep(0.02)
        other.execute("COMMIT")

    concurrency.spawn(end)
    assert broker.read(lambda c: c.execute("SELECT 1 FROM object").fetchall()) == []
    other.close()


def test_a_read_gives_up_after_its_time(broker):
    other = sqlite3.connect(broker.path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(LockTimeout):
        broker.read(lambda c: c.execute("SELECT 1 FROM object").fetchall(), timeout_s=0.02)
    other.execute("COMMIT")
    other.close()


def test_stale_reads_go_on_when_the_directory_is_locked(broker, monkeypatch):
    monkeypatch.setattr("keelstore.common.broker.STALE_READ_TIMEOUT_S", 0.02)
    broker.pending_timeout_s = 0.02
    put(broker, "o")
    with lock_directory(broker.directory):
        assert broker.info(may_be_stale=True).object_count == 0
        with pytest.raises(LockTimeout):
            broker.info()
        with pytest.raises(LockTimeout):
            put(broker, "p")
    assert broker.info().object_count == 1


def test_readers_and_writers_of_one_process_take_turns(broker):
    def work(number):
        for i in range(20):
            put(broker, f"{number}-{i}")
            assert f"{number}-{i}" in listed(broker)

    tasks = [concurrency.spawn(work, number) for number in range(5)]
    for task in tasks:
        task.wait()
    assert len(listed(broker)) == 100


WRITER = """
import logging, os, sys
from keelstore.container.broker import ContainerBroker
path, device, number = sys.argv[1:]
broker = ContainerBroker(path, device, logging.getLogger())
sys.stdin.readline()
for i in range(600):
    broker.put_object(f"{number}-{i:04d}", "1700000001.00000", 1, "text/plain", "x" * 400, 0)
"""


def test_two_processes_append_while_a_third_lists(broker):
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, broker.path, broker.device_path, str(number)], cwd=root,
                         stdin=subprocess.PIPE, text=True)
        for number in range(2)
    ]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.close()
    seen = 0
    while any(writer.poll() is None for writer in writers):
        found = listed(broker)
        assert len(found) == len(set(found)) >= seen  # none twice, none lost
        seen = len(found)
    assert [writer.wait() for writer in writers] == [0, 0]
    assert listed(broker) == sorted(f"{number}-{i:04d}" for number in range(2) for i in range(600))
    assert broker.read(lambda c: c.execute("SELECT COUNT(*) FROM object").fetchone()) == (1200,)
    assert broker.info().object_count == 1200


KILLED = """
import logging, sys
from keelstore.container.broker import ContainerBroker
path, device = sys.argv[1:]
broker = ContainerBroker(path, device, logging.getLogger())
for i in range(10000):
    broker.put_object(f"{i:05d}", "1700000001.00000", 1, "text/plain", "x" * 100, 0)
    print(f"{i:05d}", flush=True)
    if i % 20 == 19:
        broker.merge_pending()
"""


@pytest.mark.parametrize("lines", [1, 119, 121, 300])
def test_what_was_acknowledged_survives_a_kill(broker, lines):
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    writer = subprocess.Popen([sys.executable, "-c", KILLED, broker.path, broker.device_path], cwd=root,
                              stdout=subprocess.PIPE, text=True)  # fmt: skip
    assert writer.stdout is not None
    acknowledged = [writer.stdout.readline().strip() for _ in range(lines)]
    writer.kill()
    acknowledged += writer.stdout.read().split("\n")[:-1]  # a last line may be torn
    writer.wait()
    writer.stdout.close()
    found = listed(broker)
    assert found[: len(acknowledged)] == acknowledged and len(found) <= len(acknowledged) + 1
    assert broker.info().object_count == len(found)
    assert broker.read(lambda c: c.execute("PRAGMA integrity_check").fetchone()) == ("ok",)


# -- damage ------------------------------------------------------------------------------------------------------------


def damage_empty(path):
    os.truncate(path, 0)


def damage_short(path):
    os.truncate(path, os.path.getsize(path) // 2)


def damage_garbage(path):
    with open(path, "r+b") as file:
        file.write(b"this is no database" * 300)


def damage_page(path):
    with open(path, "r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 8192)


def damage_stat_row(path):
    connection = sqlite3.connect(path)
    connection.execute("DELETE FROM container_info")
    connection.commit()
    connection.close()


def damage_metadata(path):
    connection = sqlite3.connect(path)
    connection.execute("UPDATE container_info SET metadata = '{'")
    connection.commit()
    connection.close()


@pytest.mark.parametrize("damage", [
    damage_empty, damage_short, damage_garbage, damage_page, damage_stat_row, damage_metadata])
@pytest.mark.parametrize("is_open", [False, True])
def test_what_is_corrupt_goes_to_quarantine(broker, damage, is_open, caplog):
    put(broker, "o")
    assert listed(broker) == ["o"]
    if not is_open:
        broker.close()
    damage(broker.path)
    with caplog.at_level(logging.ERROR), pytest.raises(DatabaseCorrupt):
        for _ in range(3):  # a page that is cached may answer once more
            broker.write(lambda connection: broker.store_metadata(connection, {"X-Container-Meta-A": ("b", "1700000009.00000")}))
            listed(broker)
            broker.close()
    assert "quarantined/containers/0123abc" in caplog.text and "is corrupt" in caplog.text
    assert os.path.exists(f"{broker.device_path}/quarantined/containers/0123abc/0123abc.db")
    with pytest.raises(DatabaseNotFound):
        broker.info()
    broker.initialize("a", "c", "1700000000.00000", 0)
    assert listed(broker) == []


def test_a_second_corrupt_database_of_the_name_gets_a_name_of_its_own(broker):
    for _ in range(2):
        if not broker.exists:
            broker.initialize("a", "c", "1700000000.00000", 0)
        damage_garbage(broker.path)
        broker.close()
        with pytest.raises(DatabaseCorrupt):
            broker.info()
    assert len(os.listdir(f"{broker.device_path}/quarantined/containers")) == 2


def test_a_file_replaced_under_an_open_connection_is_noticed(broker, tmp_path):
    put(broker, "o")
    assert listed(broker) == ["o"]
    other = ContainerBroker(str(tmp_path / "sda/containers/7/abd/x/x.db"), broker.device_path, log)
    other.initialize("a", "other", "1700000000.00000", 0)
    other.close()
    os.rename(other.path, broker.path)
    assert broker.info().container == "other"


def test_a_file_removed_under_an_open_connection_is_noticed(broker):
    assert listed(broker) == []
    os.unlink(broker.path)
    with pytest.raises(DatabaseNotFound):
        broker.info()


# -- metadata, timestamps ----------------------------------------------------------------------------------------------

items = st.dictionaries(st.sampled_from("ABC"), st.tuples(st.sampled_from(["", "x", "y"]), st.sampled_from("123")), max_size=3)


@given(st.lists(items, max_size=4), st.randoms())
def test_metadata_merges_in_any_order(updates, random):
    def merged(order):
        known: dict[str, tuple[str, str]] = {}
        for update in order:
            known = merge_metadata(known, update)
        return known

    shuffled = updates + updates
    random.shuffle(shuffled)
    assert merged(updates) == merged(shuffled)


def test_metadata_from_before_a_deletion_stays_gone_in_any_order(broker):
    """What a replica alone had taken, of a write that failed, must not come back with a container that is made anew."""
    times = ("1700000000.00000", "1700000050.00000", "1700000040.00000")
    old, new = {"X-Container-Meta-A": ("old", "1700000030.00000")}, {"X-Container-Meta-B": ("new", "1700000045.00000")}
    broker.write(lambda c: broker.update_metadata(c, {**old, **new}))
    broker.write(lambda c: broker.merge_timestamps(c, *times))
    assert broker.read(broker.metadata) == {"X-Container-Meta-A": ("", times[2]), **new}
    broker.write(lambda c: (broker.update_metadata(c, {"X-Container-Meta-C": ("late", "1700000039.00000")}),
                            broker.merge_timestamps(c, *times)))  # as a replica's are
    assert broker.read(broker.metadata)["X-Container-Meta-C"] == ("", times[2])


def test_metadata_is_checked_as_a_whole(broker):
    # S13
    limits = Limits(max_meta_count=3)

    def post(key, at):
        update = {f"X-Container-Meta-{key}": ("v", f"{at}.00000")}
        broker.write(lambda connection: broker.update_metadata(connection, update, limits))

    for number in range(3):
        post(f"K{number}", 1700000001 + number)
    with pytest.raises(BadRequest):
        post("K3", 1700000009)
    assert len(broker.read(broker.metadata)) == 3
    post("K2", 1700000010)
    row = broker.read(lambda c: c.execute("SELECT metadata FROM container_info").fetchone()[0])
    assert json.loads(row)["X-Container-Meta-K2"] == ["v", "1700000010.00000"]


def test_delete_blanks_metadata_but_for_what_says_whose_shard_it_is(broker):
    broker.write(lambda c: broker.update_metadata(c, {
        "X-Container-Meta-A": ("b", "1700000001.00000"), "X-Container-Sysmeta-Shard-Quoted-Root": ("a/c", "1700000001.00000")}))
    broker.write(lambda c: broker.mark_deleted(c, "1700000005.00000"))
    assert broker.read(broker.metadata) == {
        "X-Container-Meta-A": ("", "1700000005.00000"), "X-Container-Sysmeta-Shard-Quoted-Root": ("a/c", "1700000001.00000")}
    info = broker.info()
    assert (info.status, info.delete_timestamp, info.is_deleted) == ("DELETED", "1700000005.00000", True)
    broker.write(lambda c: broker.mark_deleted(c, "1700000003.00000"))
    assert broker.info().delete_timestamp == "1700000005.00000"


def test_timestamps_merge_to_the_extremes(broker):
    created = broker.info().created_at
    broker.write(lambda c: broker.merge_timestamps(c, "1600000000.00000", "1700000003.00000", "1700000009.00000"))
    info = broker.info()
    assert (info.created_at, info.put_timestamp, info.delete_timestamp) == (
        "1600000000.00000", "1700000003.00000", "1700000009.00000")
    assert info.status_changed_at > "1700000000.00000" and created > info.created_at  # it counts as deleted now


def test_reclaim_forgets_old_tombstones_only(broker):
    put(broker, "live")
    for number in range(5):
        broker.delete_object(f"old{number}", "1700000001.00000", 0)
    broker.delete_object("new", "1700000900.00000", 0)
    broker.write(lambda c: (
        broker.update_metadata(c, {"X-Container-Meta-A": ("", "1700000001.00000"), "X-Container-Meta-B": ("", "1700000900.00000")}),
        broker.merge_sync_points(c, [("remote", 5)])))
    broker.reclaim("1700000500.00000", "1700000500.00000")
    names = broker.read(lambda c: [row[0] for row in c.execute("SELECT name FROM object ORDER BY name")])
    assert names == ["live", "new"]
    assert list(broker.read(broker.metadata)) == ["X-Container-Meta-B"]
    assert broker.read(lambda c: broker.sync_point(c, "remote")) == 5
    broker.reclaim("9999999999.00000", "9999999999.00000")
    assert broker.read(lambda c: broker.sync_point(c, "remote")) == -1


def test_case_X11_reclaim_lets_others_write_between_its_pages(broker, monkeypatch):
    monkeypatch.setattr("keelstore.common.broker.RECLAIM_ROWS", 10)
    for number in range(45):
        broker.delete_object(f"old{number:02}", "1700000001.00000", 0)
    broker.merge_pending()
    steps, real = [], broker.write

    def write(step, *args, **kwargs):
        """Each transaction is short, and somebody else's comes between two of them."""
        before = broker.read(lambda c: c.execute("SELECT COUNT(*) FROM object WHERE name LIKE 'old%'").fetchone()[0])
        result = real(step, *args, **kwargs)
        after = broker.read(lambda c: c.execute("SELECT COUNT(*) FROM object WHERE name LIKE 'old%'").fetchone()[0])
        steps.append(before - after)
        put(broker, f"meanwhile{len(steps)}")
        return result

    monkeypatch.setattr(broker, "write", write)
    assert broker.reclaim("1700000500.00000", "1700000500.00000") == 45
    assert max(steps) <= 10 and sum(steps) == 45
    names = broker.read(lambda c: [row[0] for row in c.execute("SELECT name FROM object")])
    assert names and all(name.startswith("meanwhile") for name in names)




def test_a_sync_point_never_goes_back(broker):
    for point in (5, 9, 7):
        broker.write(lambda c, point=point: broker.merge_sync_points(c, [("r", point)]))
    assert broker.read(lambda c: broker.sync_points(c)) == [{"remote_id": "r", "sync_point": 9}]
    assert broker.read(lambda c: broker.sync_point(c, "r", False)) == -1


def test_what_was_read_is_remembered_until_the_file_changes(broker):
    calls = []

    def count(connection):
        calls.append(1)
        return connection.execute("SELECT COUNT(*) FROM object").fetchone()[0]

    def settle():
        os.utime(broker.path, (1, 1 + len(calls)))  # long unchanged

    settle()
    assert [broker.read_settled("count", count) for _ in range(3)] == [0, 0, 0] and len(calls) == 1
    put(broker, "o")
    assert broker.read_settled("count", count) == 1
    assert broker.read_settled("count", count) == 1 and len(calls) == 3  # changed a moment ago: asked each time
    settle()
    assert broker.read_settled("count", count) == broker.read_settled("count", count) == 1 and len(calls) == 4


# -- the cache ---------------------------------------------------------------------------------------------------------


def test_the_cache_is_bounded_and_closes_what_it_drops(tmp_path):
    def make(name):
        broker = ContainerBroker(str(tmp_path / f"containers/0/abc/{name}/{name}.db"), str(tmp_path), log)
        if not broker.exists:
            broker.initialize("a", name, "1700000000.00000", 0)
        broker.info()
        return broker

    cache = BrokerCache(make, size=2)
    first = cache.get("x1")
    assert cache.get("x1") is first
    cache.get("x2")
    cache.get("x3")
    assert len(cache) == 2 and first._connection is None
    assert first.info().container == "x1"  # one that was dropped opens again
    cache.close()
    first.close()


def test_a_child_process_does_not_use_its_parents_connections(broker):
    cache = BrokerCache(lambda name: broker)
    assert cache.get("x") is broker
    cache._process = -1  # as a fork leaves it
    made = []

    def make(name):
        made.append(name)
        return broker

    cache._make = make
    cache.get("x")
    assert made == ["x"]
