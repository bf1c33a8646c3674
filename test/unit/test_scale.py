"""What must not grow with the number of rows, objects or devices: steps of SQLite for a page or an update, the memory of walks and rings.

Steps of SQLite's virtual machine are counted, and plans are looked at, so nothing here depends on time. ``python -m test.bench.scale`` measures
what it costs in earnest (``doc/design/scale.md``).
"""

from __future__ import annotations

import logging
import os
import random
import sqlite3
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from keelstore.account.broker import AccountBroker
from keelstore.common.broker_steps import Connection
from keelstore.common.device_walk import Device, databases, hash_directories, partitions
from keelstore.common.listing import ListingQuery
from keelstore.common.ring import ring as ring_module
from keelstore.common.ring.builder import RingBuilder
from keelstore.common.ring.devices import RingDevice
from keelstore.common.ring.format import save
from keelstore.common.ring.ring import RingFile
from keelstore.common.timestamp import Timestamp
from keelstore.container.broker import ContainerBroker

LOG = logging.getLogger("test.scale")
FEW, MANY = 2_000, 20_000  # rows
PAGE = 50
T = Timestamp(1_700_000_000.0).internal
LATER = Timestamp(1_700_000_001.0).internal


def names(count: int) -> list[str]:
    """In 100 subdirectories, whatever the count, and in the order of an upload by many."""
    found = [f"{number % 100:02}/{number // 100:05}" for number in range(count)]
    random.Random(1).shuffle(found)
    return found


def object_row(name: str, when: str = T, deleted: int = 0) -> dict[str, Any]:
    return {"name": name, "created_at": when, "size": 1, "content_type": "a/b", "etag": "e", "deleted": deleted, "storage_policy_index": 0}


def container_row(name: str, when: str = T, deleted: int = 0) -> dict[str, Any]:
    return {"name": name, "put_timestamp": when, "delete_timestamp": LATER if deleted else "0", "object_count": 0 if deleted else 1, "bytes_used": 1,
            "deleted": deleted, "storage_policy_index": 0}


def container_of(directory: Path, count: int) -> ContainerBroker:
    name = f"{count:032x}"
    broker = ContainerBroker(str(directory / "d" / "containers" / "1" / name[-3:] / name / f"{name}.db"), str(directory / "d"), LOG)
    broker.initialize("a", "c", T, 0)
    broker.write(lambda connection: broker.merge_rows(connection, [object_row(name) for name in names(count)]))
    broker.write(lambda connection: broker.merge_rows(connection, [object_row(f"gone/{name}", deleted=1) for name in names(count)]))
    return broker


def account_of(directory: Path, count: int) -> AccountBroker:
    name = f"{count:032x}"
    broker = AccountBroker(str(directory / "d" / "accounts" / "1" / name[-3:] / name / f"{name}.db"), str(directory / "d"), LOG)
    broker.initialize("a", T)
    broker.write(lambda connection: broker.merge_rows(connection, [container_row(name) for name in names(count)]))
    broker.write(lambda connection: broker.merge_rows(connection, [container_row(f"gone/{name}", deleted=1) for name in names(count)]))
    return broker


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[Any, Any]]]:
    """A database of few rows and one of many, of each kind."""
    directory = tmp_path_factory.mktemp("scale")
    (directory / "d").mkdir()
    found: dict[str, tuple[Any, Any]] = {"container": (container_of(directory, FEW), container_of(directory, MANY)),
                                         "account": (account_of(directory, FEW), account_of(directory, MANY))}
    yield found
    for pair in found.values():
        for broker in pair:
            broker.close()


def steps_of(broker: Any, step: Callable[[Connection], Any]) -> int:
    """Steps of SQLite that ``step`` takes, in a transaction that is then taken back."""
    count = 0

    def stepped() -> int:
        nonlocal count
        count += 1
        return 0

    def counted(connection: Connection) -> None:
        connection.execute("BEGIN")
        connection.set_progress_handler(stepped, 1)
        try:
            step(connection)
        finally:
            connection.set_progress_handler(None, 0)
            connection.execute("ROLLBACK")

    broker.read(counted)
    return count


def plans_of(broker: Any, step: Callable[[Connection], Any]) -> list[str]:
    """How SQLite looks for what the statements of ``step`` ask for."""
    statements: list[str] = []

    def traced(connection: Connection) -> None:
        connection.execute("BEGIN")
        connection.set_trace_callback(statements.append)
        try:
            step(connection)
        finally:
            connection.set_trace_callback(None)
            connection.execute("ROLLBACK")

    broker.read(traced)
    found = []
    with closing(sqlite3.connect(broker.path)) as connection:
        connection.create_function("chexor", 3, lambda *_: "", deterministic=True)
        for statement in statements:
            if statement.partition(" ")[0] in ("SELECT", "DELETE", "INSERT", "UPDATE"):
                found += [f"{row[3]}: {statement[:200]}" for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}")]
    return found


LISTINGS = {
    "first": {}, "middle": {"marker": "50/00005"}, "last": {"marker": "99/00002"}, "end": {"marker": "20/", "end_marker": "21/"}, "prefix": {"prefix": "42/"},
    "prefix and marker": {"prefix": "4", "marker": "44/00001"}, "reverse": {"is_reverse": True}, "reverse, middle": {"is_reverse": True, "marker": "50/00005"},
    "delimiter": {"delimiter": "/"}, "delimiter, middle": {"delimiter": "/", "marker": "49/"}, "delimiter, reverse": {"delimiter": "/", "is_reverse": True},
    "delimiter in a subdirectory": {"delimiter": "/", "prefix": "42/"}, "nothing": {"prefix": "nothing"}, "past the end": {"marker": "zzz"},
}  # fmt: skip


@pytest.mark.parametrize("kind", ["container", "account"])
@pytest.mark.parametrize("which", LISTINGS)
def test_what_a_page_costs_follows_the_page(brokers: dict[str, tuple[Any, Any]], kind: str, which: str) -> None:
    # In a subdirectory of few there are twenty names, of many 200: a page of five.
    query = ListingQuery(limit=5 if which in ("end", "prefix", "last", "delimiter in a subdirectory") else PAGE, **LISTINGS[which])
    few, many = brokers[kind]
    assert steps_of(many, lambda connection: many.list_in(connection, query)) <= 1.5 * steps_of(few, lambda connection: few.list_in(connection, query)) + 50
    plans = plans_of(many, lambda connection: many.list_in(connection, query))
    assert plans
    for plan in plans:
        assert f"SEARCH {many.table} USING INDEX" in plan or "FROM container_info" in plan, plan
        assert "TEMP B-TREE" not in plan, plan


@pytest.mark.parametrize("kind", ["container", "account"])
def test_what_rows_cost_to_merge_follows_the_rows(brokers: dict[str, tuple[Any, Any]], kind: str) -> None:
    row = object_row if kind == "container" else container_row
    new = [row(f"{number:02}/new", LATER) for number in range(50)]
    changed = [row(f"{number:02}/00001", LATER, number % 2) for number in range(50)]
    few, many = brokers[kind]
    for rows in (new, changed):
        cost = steps_of(few, lambda connection: few.merge_rows(connection, rows))  # noqa: B023 - it runs now
        assert steps_of(many, lambda connection: many.merge_rows(connection, rows)) <= 1.2 * cost  # noqa: B023
        plans = [plan for plan in plans_of(many, lambda connection: many.merge_rows(connection, rows)) if many.table in plan.partition(":")[0]]  # noqa: B023
        assert plans and not [plan for plan in plans if plan.startswith("SCAN")]


def info(broker: Any, connection: Connection) -> None:
    broker.info_in(connection)
    broker.info_dict(connection)
    broker.is_deleted_in(connection)
    broker.metadata(connection)
    broker.max_row(connection)
    broker.rows_since(connection, 500, 20)
    broker.merge_sync_points(connection, [("other", 10)])
    broker.update_put_timestamp(connection, LATER)
    broker.update_metadata(connection, {"X-Container-Meta-A": ("b", LATER)})
    broker.replace_id(connection, "other")


@pytest.mark.parametrize("kind", ["container", "account"])
def test_what_a_head_and_replication_ask_does_not_grow(brokers: dict[str, tuple[Any, Any]], kind: str) -> None:
    few, many = brokers[kind]
    assert steps_of(many, lambda connection: info(many, connection)) <= steps_of(few, lambda connection: info(few, connection)) + 50
    assert not [plan for plan in plans_of(many, lambda connection: info(many, connection)) if plan.startswith(f"SCAN {many.table}:")]


@pytest.mark.parametrize("kind", ["container", "account"])
def test_reclaiming_reads_tombstones_by_the_index_and_in_pages(brokers: dict[str, tuple[Any, Any]], kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, many = brokers[kind]
    asked: list[tuple[str, int]] = []
    read = many.read

    def watched(function: Callable[[Connection], Any], *args: Any) -> Any:
        def step(connection: Connection) -> Any:
            connection.set_trace_callback(lambda statement: asked.append((statement, 0)))
            try:
                return function(connection)
            finally:
                connection.set_trace_callback(None)

        found = read(step, *args)
        if asked and isinstance(found, list):
            asked[-1] = asked[-1][0], len(found)
        return found

    monkeypatch.setattr(many, "read", watched)
    assert many.reclaim(T, T) == 0  # none is old enough
    pages = [(statement, count) for statement, count in asked if f"FROM {many.table} " in statement]
    assert len(pages) >= MANY // 1000
    assert max(count for _, count in pages) <= 1000 and sum(count for _, count in pages) <= MANY + len(pages)
    monkeypatch.undo()
    plans = [plan for statement, _ in pages for plan in many.read(lambda connection: [
        row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}")])]  # noqa: B023 - it runs now
    assert set(plans) == {f"SEARCH {many.table} USING INDEX ix_{many.table}_deleted_name (deleted=? AND name>?)"}


# -- walks -------------------------------------------------------------------------------------------------------------


@contextmanager
def peak_kib() -> Iterator[list[float]]:
    found: list[float] = []
    tracemalloc.start()
    try:
        yield found
        found.append(tracemalloc.get_traced_memory()[1] / 1024)
    finally:
        tracemalloc.stop()


def hash_directories_in(top: Path, partition_count: int, each: int, ending: str = "") -> Device:
    for number in range(partition_count * each):
        name = f"{number % partition_count:08x}{random.Random(number).getrandbits(96):024x}"
        directory = top / "d" / "objects" / str(number % partition_count) / name[-3:] / name
        directory.mkdir(parents=True)
        if ending:
            (directory / f"{name}{ending}").touch()
    return Device("d", str(top / "d"))


def test_a_walk_holds_one_partition(tmp_path: Path) -> None:
    """Four times as many partitions are walked in the same memory, but for their numbers."""
    few, many = hash_directories_in(tmp_path / "few", 5, 100), hash_directories_in(tmp_path / "many", 20, 100)

    def walk(device: Device) -> int:
        return sum(1 for number in partitions(device.path, "objects") for _ in hash_directories(f"{device.path}/objects/{number}"))

    peaks = {}
    for device in (few, few, many):  # the first warms up
        with peak_kib() as peak:
            count = walk(device)
        peaks[device.path] = peak[0]
    assert count == 2000
    assert peaks[many.path] < peaks[few.path] * 1.5 + 16


def test_databases_are_found_partition_by_partition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = hash_directories_in(tmp_path, 10, 10, ".db")
    listed: list[str] = []
    listdir = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: listed.append(str(path)) or listdir(path))
    walk = databases(device, "objects")
    next(walk)
    assert len({path.split("/objects/")[1].split("/")[0] for path in listed if "/objects/" in path}) == 1
    assert sum(1 for _ in walk) == 99


# -- rings -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def ring_path(tmp_path: Path) -> str:
    builder = RingBuilder(12, 3, 0)
    for number in range(200):
        ip = f"10.0.0.{number // 10 + 1}"
        builder.add_device(RingDevice(id=number, region=1, zone=number % 5 + 1, ip=ip, port=6200, replication_ip=ip, replication_port=6200,
                                      device=f"d{number}", weight=1.0, meta=""))
    builder.rebalance(0.0, seed=1)
    save(builder.ring(), str(tmp_path / "object.ring.gz"))
    return str(tmp_path / "object.ring.gz")


def test_what_a_ring_remembers_is_bounded(ring_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring_module, "_CACHED_NODES", 500)
    monkeypatch.setattr(ring_module, "_CACHED_PARTITIONS", 100)
    ring = RingFile(ring_path).current()
    for part in range(0, ring.partition_count, 8):
        primaries = ring.primaries(part)
        handoffs = [node for node, _ in zip(ring.handoffs(part), range(40))]
        assert [node.index for node in primaries] == [0, 1, 2] and [node.handoff_index for node in handoffs] == list(range(40))
        assert len({node.id for node in (*primaries, *handoffs)}) == 43
        assert len(ring._made) <= 500 and len(ring._primaries) <= 100


def test_who_has_the_same_file_has_the_same_ring(ring_path: str) -> None:
    first, second = RingFile(ring_path), RingFile(ring_path)
    assert first.current() is second.current()
    builder = RingBuilder.from_ring(ring_module.load(ring_path), 0)
    builder.set_weight(3, 0.0)
    builder.rebalance(0.0, seed=1)
    save(builder.ring(), ring_path)
    new = second.reload()
    assert new is not first.current() and new is first.reload()
    assert all(node.id != 3 for node in new.primaries(7))
