"""Many rows in one database, used through the API: objects of a container, containers of an account.

The rows are put into the file of one replica by the broker, in random order, as uploads come; the other replicas get the whole file, as
from a replicator. One worker serves, no daemon runs; blocks of requests go to the databases of all sizes in turns.
"""

from __future__ import annotations

import logging
import os
import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from keelstore.account.broker import AccountBroker
from keelstore.common.broker import Broker
from keelstore.common.cluster import load_cluster
from keelstore.common.names import storage_path
from keelstore.common.ring.ring import RingFile
from keelstore.common.timestamp import Timestamp
from keelstore.container.broker import ContainerBroker
from test.bench.meter import cpu_s
from test.bench.pipeline import Wire, request
from test.support.client import Account
from test.support.store import Store

LOG = logging.getLogger("test.bench")
PAGE, SUBDIRS, BATCH = 500, 1000, 20_000
ROUNDS, BLOCK, PAGES, CONTAINERS = 5, 200, 10, 20
BUILD_CACHE_KIB = 512 << 10

Point = tuple[str, int, float, str]  # measure, size, value, unit


@contextmanager
def store_without_daemons(data: Path) -> Iterator[Store]:
    store = Store.new(data, workers=1)
    store.prepare()
    store.edit("node.conf", ("[node]\n", "[node]\nbackground = none\n"))
    store.up()
    try:
        yield store
    finally:
        store.down()


def replicas(store: Store, kind: type[Broker], *names: str) -> list[Any]:
    """The brokers of an account's or a container's primaries."""
    cluster = load_cluster(str(store.etc()))
    ring = RingFile(cluster.ring_path(kind.kind)).current()
    digest = cluster.hash_path.digest(*names)
    part = ring.partition(digest)
    found = []
    for node in ring.primaries(part):
        device = str(store.devices() / node.device)
        found.append(kind(f"{device}/{storage_path(kind.kind + 's', part, digest.hex())}/{digest.hex()}.db", device, LOG))
    return found


def fill(brokers: Sequence[Any], rows: Sequence[Mapping[str, Any]]) -> None:
    first, *others = brokers

    def settings(connection: Any) -> None:
        connection.execute("PRAGMA soft_heap_limit = 0")
        connection.execute(f"PRAGMA cache_size = -{BUILD_CACHE_KIB}")

    first.read_fresh(settings)
    for start in range(0, len(rows), BATCH):
        some = rows[start:start + BATCH]
        first.write(lambda connection: first.merge_rows(connection, some))  # noqa: B023 - it runs now
    known_as = first.info().id
    for other in others:
        other.merge_pending()
        whole = f"{other.directory}/whole.tmp"
        first.snapshot(whole)
        os.replace(whole, other.path)
        other.write(lambda connection: other.replace_id(connection, known_as))  # noqa: B023
    for broker in brokers:
        broker.close()


def spread_names(count: int, mark: str) -> list[str]:
    """Names in ``SUBDIRS`` subdirectories, whatever the count."""
    return [f"{number % SUBDIRS:03}{mark}{number // SUBDIRS:06}" for number in range(count)]


def pages_of(names: Sequence[str], mark: str) -> dict[str, str]:
    """The listings that are asked for, as query strings. Each has as many entries at any size."""
    half, end = len(names) // 2, quote(names[-PAGE - 1])
    low, high = quote(names[half - 1]), quote(names[half])
    return {
        "first page": f"limit={PAGE}", "middle page (marker)": f"limit={PAGE}&marker={low}", "last page": f"limit={PAGE}&marker={end}",
        "reverse": f"limit={PAGE}&reverse=true", "reverse, middle": f"limit={PAGE}&reverse=true&marker={high}",
        "prefix (100 names)": "limit=100&prefix=5", "delimiter (500 subdirs)": f"limit={PAGE}&delimiter={mark}",
        "delimiter, middle": f"limit={PAGE}&delimiter={mark}&marker=499{mark}", "delimiter, reverse": f"limit={PAGE}&delimiter={mark}&reverse=true",
    }  # fmt: skip


class Meter:
    """What requests cost the worker, in blocks; the median of the blocks counts."""

    def __init__(self, store: Store, account: Account):
        self.pids, self.account, self.wire = store.worker_pids(), account, Wire(account.endpoint)
        self.found: dict[tuple[str, int], list[float]] = {}

    def block(self, measure: str, size: int, requests: Sequence[bytes], statuses: tuple[int, ...], *last: bytes, has_body: bool = True) -> None:
        """``last``: a HEAD that brings in what waits, counted too."""
        before = cpu_s(self.pids)
        for one in requests:
            self.wire.ask(one, statuses, has_body)
        for one in last:
            self.wire.ask(one, (200, 204), False)
        self.found.setdefault((measure, size), []).append((cpu_s(self.pids) - before) / len(requests))

    def points(self) -> list[Point]:
        return [(measure, size, statistics.median(values[1:]) * 1e6, "µs") for (measure, size), values in self.found.items()]


def in_rounds(sizes: Sequence[int], block: Callable[[int, int], None], rounds: int = ROUNDS + 1) -> None:
    """The first round is not counted."""
    for number in range(rounds):
        for size in sizes if number % 2 else reversed(sizes):
            block(size, number)


def listings(meter: Meter, targets: Mapping[int, tuple[Account, str]], names: Mapping[int, Sequence[str]], mark: str) -> None:
    sizes = sorted(targets)
    for measure in pages_of(names[sizes[0]], mark):
        def block(size: int, _number: int, measure: str = measure) -> None:
            account, target = targets[size]
            asked = request(account, "GET", f"{target}?format=json&{pages_of(names[size], mark)[measure]}")
            meter.block(measure, size, [asked] * PAGES, (200,))

        in_rounds(sizes, block)
    in_rounds(sizes, lambda size, _number: meter.block("HEAD", size, [request(targets[size][0], "HEAD", targets[size][1])] * 50, (204, 200), has_body=False))


def objects(data: Path, sizes: Sequence[int], say: Callable[[str], None]) -> Iterator[list[Point]]:
    """Objects of one container."""
    with store_without_daemons(data) as store:
        account = store.login()
        names: dict[int, list[str]] = {}
        now, chance = Timestamp.now().internal, random.Random(1)
        for size in sizes:
            account.put(f"c{size}").expect(201)
            names[size] = spread_names(size, "/")
            rows = [{"name": name, "created_at": now, "size": 100, "content_type": "application/octet-stream", "etag": "d41d8cd98f00b204e9800998ecf8427e",
                     "deleted": 0, "storage_policy_index": 0} for name in names[size]]
            chance.shuffle(rows)
            fill(replicas(store, ContainerBroker, account.name, f"c{size}"), rows)
            names[size].sort()
            assert int(account.head(f"c{size}").headers["X-Container-Object-Count"]) == size
            say(f"container of {size:,} objects")
        yield []
        meter = Meter(store, account)
        targets = {size: (account, account.target(f"c{size}")) for size in sizes}

        def block(method: str) -> Callable[[int, int], None]:
            def one(size: int, number: int) -> None:
                # Names that are new, all over the container.
                new = [f"{(number * BLOCK + index) * 7919 % SUBDIRS:03}/n{number}-{index}" for index in range(BLOCK)]
                asked = [request(account, method, f"{targets[size][1]}/{name}", b"x" * 100 if method == "PUT" else b"") for name in new]
                meter.block(method, size, asked, (201,) if method == "PUT" else (204,), request(account, "HEAD", targets[size][1]))

            return one

        in_rounds(sizes, block("PUT"))
        in_rounds(sizes, block("DELETE"))
        listings(meter, targets, names, "/")
        yield meter.points()


def containers(data: Path, sizes: Sequence[int], say: Callable[[str], None]) -> Iterator[list[Point]]:
    """Containers of one account."""
    with store_without_daemons(data) as store:
        admin = store.endpoint.login("admin:admin", "admin")
        accounts = {size: Account(admin.endpoint, f"/v1/AUTH_scale{size}", admin.token) for size in sizes}
        names: dict[int, list[str]] = {}
        now, chance = Timestamp.now().internal, random.Random(1)
        for size, account in accounts.items():
            account.put("zzz").expect(201)
            names[size] = spread_names(size, "-")
            rows = [{"name": name, "put_timestamp": now, "delete_timestamp": "0", "object_count": 10, "bytes_used": 1000, "deleted": 0,
                     "storage_policy_index": 0} for name in names[size]]
            chance.shuffle(rows)
            fill(replicas(store, AccountBroker, account.name), rows)
            names[size].sort()
            count = int(account.head().headers["X-Account-Container-Count"])
            assert count in (size, size + 1), (count, size)  # a busy account server may not have heard of zzz
            say(f"account of {size:,} containers")
        yield []
        meter = Meter(store, admin)

        def block(method: str) -> Callable[[int, int], None]:
            def one(size: int, number: int) -> None:
                new = [f"{(number * CONTAINERS + index) * 7919 % SUBDIRS:03}-n{number}-{index}" for index in range(CONTAINERS)]
                asked = [request(accounts[size], method, accounts[size].target(name)) for name in new]
                meter.block(method, size, asked, (201,) if method == "PUT" else (204,), request(accounts[size], "HEAD", accounts[size].path))

            return one

        in_rounds(sizes, block("PUT"))
        in_rounds(sizes, block("DELETE"))
        listings(meter, {size: (account, account.path) for size, account in accounts.items()}, names, "-")
        yield meter.points()
