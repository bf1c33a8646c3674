"""A guard of speed: the CPU that an operation costs a running store must not double unseen.

Seconds say nothing on a machine that others use too. So each request is followed by one to a yardstick (``bare.py answer``): a bare Python
server, one process as ours is, which takes a request apart with the standard library and, beside PUT and DELETE, writes three
synced copies. Whatever else goes on slows both. What is compared with a bound is the ratio of their CPU (user and system time of the
process, to the nanosecond), the median over batches of requests in turns.

Measured when the bounds were set: least, median and most of 29 runs on two cores at loads from 9 to 22 (28 to 60 s each there)

    PUT 2.25, 3.20, 3.93    GET 3.59, 3.88, 4.60    HEAD 3.26, 3.52, 3.84    listing 4.99, 5.83, 6.42    DELETE 1.89, 2.81, 3.11

A bound is 1.9 times the median: what has doubled is beyond it, and what another machine makes of the ratio should be within it.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from test.bench import bare
from test.bench.meter import cpu_s
from test.bench.pipeline import BODY, Wire, request
from test.support.client import Account, Endpoint
from test.support.store import running

pytestmark = pytest.mark.alone
# operation: its bound, how many batches of how many requests
BOUNDS = {"PUT": (6.1, 6, 8), "GET": (7.4, 12, 12), "HEAD": (6.7, 12, 12), "listing": (11.1, 12, 8), "DELETE": (5.3, 6, 8)}
STATUSES = {"PUT": 201, "DELETE": 204}
OBJECTS = 56  # no fewer than the PUTs of a measurement, the first batch included
WRITERS = 8
ATTEMPTS = 3  # a machine may have a bad moment; what has become twice as dear is so each time


class Measured:
    """A store with one worker, the yardstick, and a connection to each."""

    def __init__(self, account: Account, workers: list[int], yardstick: int, port: int):
        self._account, self._workers, self._yardstick = account, workers, yardstick
        self._wire, self._plain = Wire(account.endpoint), Wire(Endpoint("127.0.0.1", port))
        self._container = f"{account.path}/guard"
        self._wire.ask(self._request("PUT", self._container), (201,))
        self.write("0")

    def _request(self, method: str, target: str) -> bytes:
        return request(self._account, method, target, BODY if method == "PUT" else b"")

    def write(self, prefix: str) -> None:
        """Objects, by several connections at once, whose syncs then share the disk's time."""
        def some(first: int) -> None:
            wire = Wire(self._account.endpoint)
            for number in range(first, OBJECTS, WRITERS):
                wire.ask(self._request("PUT", f"{self._container}/{prefix}-{number}"), (201,))
            wire.close()

        with ThreadPoolExecutor(WRITERS) as pool:
            list(pool.map(some, range(WRITERS)))

    def ratio(self, operation: str, attempt: int) -> float:
        """Of our CPU for each request to the yardstick's; the median of the batches but the first."""
        method = "GET" if operation == "listing" else operation
        prefix = f"{attempt}" if operation in ("PUT", "DELETE") else "0"
        if operation == "DELETE":
            self.write(prefix)
        plain = request(self._account, "PUT" if operation in ("PUT", "DELETE") else "GET", "/")
        _, batches, size = BOUNDS[operation]
        found = []
        for batch in range(batches + 1):
            names = [f"/{prefix}-{(batch * size + number) % OBJECTS}" if operation != "listing" else "?format=json" for number in range(size)]
            asked = [self._request(method, self._container + name) for name in names]
            ours, bare_s = cpu_s(self._workers), cpu_s([self._yardstick])
            for one in asked:
                self._wire.ask(one, (STATUSES.get(method, 200),), has_body=method != "HEAD")
                self._plain.ask(plain, (200,))
            found.append((cpu_s(self._workers) - ours) / (cpu_s([self._yardstick]) - bare_s))
        return statistics.median(found[1:])


@contextmanager
def yardstick(directory: Path) -> Iterator[tuple[int, int]]:
    """Its pid and port."""
    with subprocess.Popen([sys.executable, "-S", bare.__file__, "answer", str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            yield process.pid, int(process.stdout.readline())
        finally:
            process.kill()


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    directory = tmp_path_factory.mktemp("guard")
    with running(directory / "data", workers=1) as store, yardstick(directory) as (pid, port):
        yield Measured(store.login(), store.worker_pids(), pid, port)


@pytest.mark.parametrize("operation", BOUNDS)
def test_the_cpu_of_an_operation_has_not_doubled(measured: Measured, operation: str) -> None:
    bound, seen = BOUNDS[operation][0], []
    for attempt in range(1, ATTEMPTS + 1):
        seen.append(measured.ratio(operation, attempt))
        if seen[-1] < bound:
            break
    assert min(seen) < bound, f"{operation} costs {', '.join(f'{one:.2f}' for one in seen)} times the yardstick's CPU, the bound is {bound}"
