"""What is measured: the rows of the comparison, and the shared load generator that makes them.

The generator is ``bench.py`` of the shared directory, loaded from its file: one ``Bench`` for each side and kind of store, kept
over all rounds, so that what is read is written once.
"""

from __future__ import annotations

import importlib.util
import io
from contextlib import redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from test.bench.multipart import GET as MULTIPART_GET
from test.bench.multipart import PARTS, Multipart
from test.bench.multipart import PUT as MULTIPART_PUT

MIB = 1 << 20
SMALL, LARGE = 4096, 64 * MIB
SMALL_OBJECTS, LARGE_OBJECTS = 300, 4
WARM_READS = 32  # of the large objects, before any is measured


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
    """One line of the table."""

    kind: Kind
    workload: str
    size: int
    connections: int
    entries: int = 0

    def aims(self, other: str) -> tuple[float | None, float | None]:
        """Design section 11's, for CPU and rate, as factors by which we are to be ahead of that side."""
        kind = "large" if self.is_large else "list" if self.entries else self.kind.name
        cpu, rate = AIMS[other][kind].get(self.workload, (None, None))
        return cpu, rate if self.is_large or self.entries or self.connections == 32 else None

    @property
    def key(self) -> str:
        """``copies-put-4k-32``: what ``--rows`` selects by, and what a JSON line carries."""
        size = f"{self.entries}" if self.entries else "64m" if self.size >= MIB else "4k"
        return f"{self.kind.name}-{self.workload}-{size}-{self.connections}"

    @property
    def title(self) -> str:
        if self.entries:
            return f"listing of {self.entries:,} names"
        if self.is_multipart:
            return f"64 MiB in {PARTS} {'parts, upload' if self.workload == MULTIPART_PUT else 'ranges, download'}"
        return f"{self.workload.upper()} {'64 MiB' if self.size >= MIB else '4 KiB'}"

    @property
    def is_large(self) -> bool:
        return self.size >= MIB

    @property
    def is_multipart(self) -> bool:
        return self.workload in (MULTIPART_PUT, MULTIPART_GET)


Aims = dict[str, tuple[float, float]]
_LARGE = ("put", "get", MULTIPART_PUT, MULTIPART_GET)
_EC: Aims = dict.fromkeys(("put", "get", "head", "delete"), (6, 8))
AIMS: dict[str, dict[str, Aims]] = {
    "swift": {"copies": {"put": (8, 8), "get": (10, 8), "head": (8, 8), "delete": (8, 8)}, "ec": _EC,
              "s3": dict.fromkeys(_EC, (8, 8)), "large": dict.fromkeys(_LARGE, (2, 2)), "list": {"list": (5, 3)}},
    "rgw": {"copies": {"put": (2, 1), "get": (1, 1), "head": (1, 1), "delete": (2, 1)}, "ec": {},
            "s3": {"put": (2, 1), "get": (1, 1), "head": (1, 1), "delete": (2, 1)},
            "large": {**dict.fromkeys(_LARGE, (1, 1)), "get": (4, 1)},
            "list": {"list": (1, 1)}}}
ALL = ("put", "get", "head", "delete")


def several(kind: Kind, size: int, connections: tuple[int, ...], workloads: tuple[str, ...]) -> list[Row]:
    return [Row(kind, workload, size, count) for workload in workloads for count in connections]


def rows(is_quick: bool) -> list[Row]:
    """The standard set, or one that takes a quarter of its time."""
    if is_quick:
        return [*several(COPIES, SMALL, (1, 32), ALL), *several(COPIES, LARGE, (4,), ("put", "get")), Row(COPIES, "list", 0, 1, 1000),
                *several(EC, SMALL, (8,), ("put", "get")), *several(S3, SMALL, (8,), ("put", "get")),
                *several(S3, LARGE, (PARTS,), (MULTIPART_PUT, MULTIPART_GET))]
    return [*several(COPIES, SMALL, (1, 8, 32), ALL), *several(COPIES, LARGE, (1, 4), ("put", "get")), Row(COPIES, "list", 0, 1, 10_000),
            *several(EC, SMALL, (8,), ALL), *several(EC, LARGE, (4,), ("put", "get")),
            *several(S3, SMALL, (32,), ALL), *several(S3, LARGE, (4,), ("put", "get")),
            *several(S3, LARGE, (PARTS,), (MULTIPART_PUT, MULTIPART_GET))]


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
        self._bench = bench
        self._options = SimpleNamespace(
            endpoint=target.endpoint, api=kind.api, user=target.s3_user if is_s3 else target.user,
            key=target.s3_key if is_s3 else target.key, auth_path="/auth/v1.0", region="us-east-1",
            policy=kind.policy if target.policies else None, container=f"bench-{kind.name}", seconds=seconds, count=None, warmup=0.3,
            objects=SMALL_OBJECTS, deletes=300, list_objects=10_000, cycle=LARGE_OBJECTS, presign=4000, procs=1, settle=0.3, pids=pids,
            label=target.label)
        self._load = bench.Bench(self._options)
        self._multipart = Multipart(bench, self._load, self._options)

    def measure(self, row: Row) -> dict[str, Any]:
        """A JSON line of the load generator. RuntimeError when it could not measure."""
        self._options.list_objects = row.entries
        if row.is_multipart:
            return self._multipart.measure(row.workload, row.connections)
        # of the few large ones all count, from the first byte: a window of time would cut them anywhere
        self._options.count = row.connections * (2 if row.connections > 1 else 4) if row.is_large else None
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
        if not row.is_large and row.workload != "delete" and found["seconds"] < self._options.seconds / 3:  # the first answers came after the time was over
            raise RuntimeError(f"{self._options.label}: {row.key}: answered for {found['seconds']} s of {self._options.seconds}")
        return found

    def fill(self, row: Row) -> None:
        """Write what the row reads, so that it is written but once and outside of the first round; and something, to be warm."""
        container = self._load.container("put").encode()
        for number in range(20):
            target = self._load.t.put(container, self._bench.obj_name(b"warm", number), SMALL).split()[1].decode()
            self._load.t.once("PUT", target, {"X-Auth-Token": getattr(self._load.t, "token", "")}, bytes(SMALL))
        if row.workload == MULTIPART_GET:
            self._multipart.fill()
        elif row.workload == "get" and row.is_large:  # and read: who reads it first may check it, and each of our processes does so once
            self._options.count = WARM_READS
            self._load.measure("get", 4, row.size)
        elif row.workload in ("get", "head"):
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
