"""What is measured: the rows of the comparison, and the shared load generator that makes them.

The generator is ``bench.py`` of the shared directory, loaded from its file: one ``Bench`` for each side and kind of store, kept
over all rounds, so that what is read is written once.
"""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Iterator
from contextlib import redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

MIB = 1 << 20
SMALL, LARGE = 4096, 64 * MIB
SMALL_OBJECTS, LARGE_OBJECTS = 300, 4


@dataclass(frozen=True)
class Kind:
    """A way to store: the API that is spoken and the policy of the containers."""

    name: str
    api: str
    policy: str | None
    title: str


COPIES = Kind("copies", "swift", "gold", "three copies")
EC = Kind("ec", "swift", "ec42", "EC 4+2")
S3 = Kind("s3", "s3", None, "S3 on three copies")
KINDS = (COPIES, EC, S3)


@dataclass(frozen=True)
class Row:
    """One line of the table. The aims are design section 11's, as factors by which we are to be ahead of Swift."""

    kind: Kind
    workload: str
    size: int
    connections: int
    cpu_aim: float | None = None
    rate_aim: float | None = None
    entries: int = 0

    @property
    def key(self) -> str:
        """``copies-put-4k-32``: what ``--rows`` selects by, and what a JSON line carries."""
        size = f"{self.entries}" if self.entries else "64m" if self.size >= MIB else "4k"
        return f"{self.kind.name}-{self.workload}-{size}-{self.connections}"

    @property
    def title(self) -> str:
        if self.entries:
            return f"listing of {self.entries:,} names"
        return f"{self.workload.upper()} {'64 MiB' if self.size >= MIB else '4 KiB'}"

    @property
    def is_large(self) -> bool:
        return self.size >= MIB


def small(kind: Kind, aims: dict[str, float], connections: tuple[int, ...], workloads: tuple[str, ...]) -> Iterator[Row]:
    for workload in workloads:
        for count in connections:
            yield Row(kind, workload, SMALL, count, aims[workload], 8.0 if count == 32 else None)


def large(kind: Kind, connections: tuple[int, ...]) -> Iterator[Row]:
    for workload in ("put", "get"):
        for count in connections:
            yield Row(kind, workload, LARGE, count, 2.0, 2.0)


AIMS = {"put": 8.0, "get": 10.0, "head": 8.0, "delete": 8.0}
EC_AIMS, S3_AIMS = dict.fromkeys(AIMS, 6.0), dict.fromkeys(AIMS, 8.0)
ALL = ("put", "get", "head", "delete")


def rows(is_quick: bool) -> list[Row]:
    """The standard set, or one that takes a quarter of its time."""
    if is_quick:
        return [*small(COPIES, AIMS, (1, 32), ALL), *large(COPIES, (4,)), Row(COPIES, "list", 0, 1, 5.0, 3.0, 1000),
                *small(EC, EC_AIMS, (8,), ("put", "get")), *small(S3, S3_AIMS, (8,), ("put", "get"))]
    return [*small(COPIES, AIMS, (1, 8, 32), ALL), *large(COPIES, (1, 4)), Row(COPIES, "list", 0, 1, 5.0, 3.0, 10_000),
            *small(EC, EC_AIMS, (8,), ALL), *large(EC, (4,)), *small(S3, S3_AIMS, (8, 32), ALL), *large(S3, (4,))]


def generator(shared: Path) -> ModuleType:
    """``bench.py`` of the shared directory."""
    path = shared / "bench" / "bench.py"
    spec = importlib.util.spec_from_file_location("shared_bench", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise SystemExit(f"Error: there is no {path}; --shared names the directory that holds it")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True)
class Target:
    """Where a side is reached, and as whom."""

    label: str
    endpoint: str
    user: str = "test:tester"
    key: str = "testing"
    s3_user: str = "test:tester"
    s3_key: str = "testing"
    policies: bool = True  # whether containers may be given a policy; where not, its default has three copies

    def has(self, kind: Kind) -> bool:
        return self.policies or kind.policy != EC.policy


class Load:
    """The workloads of one kind of store against one side."""

    def __init__(self, bench: ModuleType, target: Target, kind: Kind, pids: list[int], seconds: float):
        is_s3 = kind.api == "s3"
        self._seconds = seconds
        self._bench = bench
        self._options = SimpleNamespace(
            endpoint=target.endpoint, api=kind.api, user=target.s3_user if is_s3 else target.user,
            key=target.s3_key if is_s3 else target.key, auth_path="/auth/v1.0", region="us-east-1",
            policy=kind.policy if target.policies else None, container=f"bench-{kind.name}", seconds=seconds, count=None, warmup=0.3,
            objects=SMALL_OBJECTS, deletes=300, list_objects=10_000, cycle=LARGE_OBJECTS, presign=4000, procs=1, settle=0.3, pids=pids,
            label=target.label)
        self._load = bench.Bench(self._options)

    def measure(self, row: Row) -> dict[str, Any]:
        """A JSON line of the load generator. RuntimeError when it could not measure."""
        self._options.list_objects = row.entries
        self._options.seconds = self._seconds * (1.5 if row.is_large else 1.0)
        said = io.StringIO()
        try:
            with redirect_stderr(said):
                found: dict[str, Any] = self._load.measure(row.workload, row.connections, row.size)
        except SystemExit as stop:
            raise RuntimeError(f"{self._options.label}: {row.key}: {stop}") from stop
        if said.getvalue():
            raise RuntimeError(f"{self._options.label}: {row.key}: {said.getvalue().strip()}")
        if row.is_large and row.workload == "put":
            self._drop_last()
        if row.workload != "delete" and found["seconds"] < self._options.seconds / 3:  # the first answers came after the time was over
            raise RuntimeError(f"{self._options.label}: {row.key}: answered for {found['seconds']} s of {self._options.seconds}")
        return found

    def fill(self, row: Row) -> None:
        """Write what the row reads, so that it is written but once and outside of the first round; and something, to be warm."""
        container = self._load.container("put").encode()
        for number in range(20):
            self._load.t.once("PUT", self._load.t.put(container, self._bench.obj_name(b"warm", number), SMALL).split()[1].decode(),
                              {"X-Auth-Token": getattr(self._load.t, "token", "")}, bytes(SMALL))
        if row.workload in ("get", "head"):
            self._load._ready(row.size)
        elif row.workload == "list":
            self._options.list_objects = row.entries
            self._load.w_list(1, 0)

    def _drop_last(self) -> None:
        """Delete what the last large PUTs have written: a disk is not filled for nothing."""
        container = f"{self._options.container}-put"
        prefix, low, high = self._load.made[container].pop()
        engine, target = self._bench.Engine(self._load.t, 4), self._load.t
        engine.open()
        engine.run(self._bench.Op(target.delete(container.encode(), self._bench.obj_name(prefix, number)), kind="delete")
                   for number in range(low, high))
        engine.shut()
