"""What the filters cost, and how fast a large object of segments streams.

    python -m test.bench.pipeline [filters] [segments[=MIB]]

``filters``: the server CPU of small requests (4 KiB) through the pipeline of ``keelstore up`` against the same through
``catch_errors cache tempauth proxy-server`` and nothing else, and against that with what else every store of the field has
(gatekeeper, healthcheck, proxy-logging, listing_formats). One process serves all, each on its port, one connection: what is
compared is the whole cost of a request, the HTTP server's and the backend's part included.

``segments``: GET of a static large object of 100 segments of 1 MiB (or as many as are given) against GET of a plain object of the
same bytes, on one node and on four, where two thirds of the parts and more travel over HTTP between nodes. Rates mean something
only on a machine that does nothing else; on others, compare CPU.

The aims (issue 3, 7): a ratio of at most 1.25 for small requests, and a rate of at least 0.9 for segments.
"""

from __future__ import annotations

import hashlib
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from test.bench.meter import Sample, cpu_s, in_turns, median_cpu_s, median_wall_s
from test.support.client import Account, Endpoint
from test.support.store import Store, free_port, running
from test.support.waiting import until

BARE = "catch_errors,memcache,tempauth"
COMMON = BARE + ",gatekeeper,healthcheck,proxy_logging,listing_formats"
ROUNDS, REQUESTS = 40, 50
SEGMENTS = 100
BODY = bytes(range(256)) * 16


class Wire:
    """One kept connection to a server, and as little work in the client as possible."""

    def __init__(self, endpoint: Endpoint):
        self._sock = socket.create_connection((endpoint.host, endpoint.port), timeout=60)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._room = bytearray(1 << 20)

    def ask(self, request: bytes, statuses: tuple[int, ...], has_body: bool = True) -> int:
        """Send a request and read its answer; the bytes of the body."""
        self._sock.sendall(request)
        head = b""
        while b"\r\n\r\n" not in head:
            part = self._sock.recv(65536)
            if not part:
                raise RuntimeError(f"the server closed the connection after {head!r}")
            head += part
        head, _, rest = head.partition(b"\r\n\r\n")
        if int(head.split(None, 2)[1]) not in statuses:
            raise RuntimeError(f"expected {statuses}: {head.decode('latin-1')}")
        length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line[:15] == b"content-length:"), 0)
        left = length - len(rest) if has_body else 0
        while left:
            count = self._sock.recv_into(self._room, min(left, len(self._room)))
            if not count:
                raise RuntimeError(f"the body ended {left} bytes short")
            left -= count
        return length

    def close(self) -> None:
        self._sock.close()


def request(account: Account, method: str, target: str, body: bytes = b"") -> bytes:
    lines = [f"{method} {target} HTTP/1.1", f"Host: {account.endpoint.host}:{account.endpoint.port}", "User-Agent: bench", "Accept: */*",
             f"X-Auth-Token: {account.token}"]
    if method == "PUT":
        lines += [f"Content-Length: {len(body)}", "Content-Type: application/octet-stream"]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


# -- filters -----------------------------------------------------------------------------------------------------------


@contextmanager
def served(store: Store, pipelines: Iterable[str]) -> Iterator[tuple[int, list[Endpoint]]]:
    """A store that is down, served by one process through its own and these pipelines; its pid and where each is."""
    ports = [free_port() for _ in pipelines]
    conf = store.etc() / "node.conf"
    others = [f"{port}={names}" for port, names in zip(ports, pipelines)]
    with subprocess.Popen([sys.executable, "-m", "test.bench.serving", str(conf), *others], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"ready\n"
            yield process.pid, [store.endpoint, *(Endpoint(store.host, port) for port in ports)]
        finally:
            process.terminate()


def small_requests(pid: int, account: Account, method: str, target: str) -> Callable[[], Sample]:
    """A round of small requests over one connection."""
    wire, number = Wire(account.endpoint), 0
    body = BODY if method == "PUT" else b""

    def round_() -> Sample:
        nonlocal number
        requests = []
        for _ in range(REQUESTS):
            number += 1
            requests.append(request(account, method, f"{target}/{number % 100}", body))
        before, started = cpu_s([pid]), time.perf_counter()
        for one in requests:
            wire.ask(one, (200, 201), has_body=method != "HEAD")
        return Sample(cpu_s([pid]) - before, time.perf_counter() - started)

    return round_


def measure_filters(data: Path) -> None:
    store = Store.new(data, workers=1)
    store.up()
    store.down()
    names = ("full", "bare", "common")
    with served(store, (BARE, COMMON)) as (pid, endpoints):
        accounts = {name: endpoint.login() for name, endpoint in zip(names, endpoints)}
        target = f"{accounts['full'].path}/bench"
        accounts["full"].endpoint.request("PUT", target, {"X-Auth-Token": accounts["full"].token}).expect(201)
        in_turns({"": small_requests(pid, accounts["full"], "PUT", target)}, 2)  # what is read below
        for method, rounds in (("GET", ROUNDS), ("HEAD", ROUNDS), ("PUT", ROUNDS // 4)):
            samples = in_turns({name: small_requests(pid, account, method, target) for name, account in accounts.items()}, rounds)
            cost = {name: min(sample.cpu_s for sample in found) / REQUESTS * 1e6 for name, found in samples.items()}
            ratios = {name: statistics.median(full.cpu_s / other.cpu_s for full, other in zip(samples["full"], samples[name]))
                      for name in ("bare", "common")}
            print(f"{method:4} least us CPU: full {cost['full']:.0f}, common {cost['common']:.0f}, bare {cost['bare']:.0f}; full / bare "
                  f"{cost['full'] / cost['bare']:.3f}, full / common {cost['full'] / cost['common']:.3f}; medians of the rounds' "
                  f"ratios {ratios['bare']:.3f}, {ratios['common']:.3f}", flush=True)


# -- segments ----------------------------------------------------------------------------------------------------------


def upload(account: Account, size: int) -> tuple[str, str]:
    """A large object of segments and a plain one of the same bytes; their targets."""
    wire, base = Wire(account.endpoint), account.path
    for container in ("segments", "large"):
        wire.ask(request(account, "PUT", f"{base}/{container}"), (201, 202))
    body = BODY * (size // len(BODY))
    etag, manifest = hashlib.md5(body).hexdigest(), []
    for number in range(SEGMENTS):
        wire.ask(request(account, "PUT", f"{base}/segments/{number:03}", body), (201,))
        manifest.append({"path": f"/segments/{number:03}", "etag": etag, "size_bytes": size})
    wire.ask(request(account, "PUT", f"{base}/large/slo?multipart-manifest=put", json.dumps(manifest).encode()), (201,))
    wire.ask(request(account, "PUT", f"{base}/large/plain", body * SEGMENTS), (201,))
    return f"{base}/large/slo", f"{base}/large/plain"


def one_get(pids: list[int], account: Account, target: str, size: int) -> Callable[[], Sample]:
    wire, asked = Wire(account.endpoint), request(account, "GET", target)

    def round_() -> Sample:
        before, started = cpu_s(pids), time.perf_counter()
        length = wire.ask(asked, (200,))
        took = Sample(cpu_s(pids) - before, time.perf_counter() - started)
        assert length == size, length
        return took

    return round_


def measure_segments(data: Path, nodes: int, size: int) -> None:
    with running(data, nodes=nodes, workers=1) as store:
        account = store.login()
        slo, plain = upload(account, size)
        pids = [pid for number in range(1, nodes + 1) for pid in store.worker_pids(number)]
        until(lambda: account.endpoint.request("GET", "/healthcheck").status == 200, "the node answers")
        total = SEGMENTS * size
        sides = {"slo": one_get(pids, account, slo, total), "plain": one_get(pids, account, plain, total)}
        in_turns(sides, 2 * nodes + 4)  # until every server has checked the MD5 of what it gives
        samples = in_turns(sides, ROUNDS // 2)
        mib = total / (1 << 20)
        rate = {name: mib / median_wall_s(found) for name, found in samples.items()}
        cost = {name: median_cpu_s(found) * 1e3 for name, found in samples.items()}
        pairs = list(zip(samples["slo"], samples["plain"]))
        print(f"{nodes} node{'s' * (nodes > 1)}: slo {rate['slo']:.0f} MiB/s, {cost['slo']:.0f} ms CPU; plain {rate['plain']:.0f} MiB/s, "
              f"{cost['plain']:.0f} ms CPU; rate {statistics.median(b.wall_s / a.wall_s for a, b in pairs):.2f}, "
              f"CPU {statistics.median(a.cpu_s / b.cpu_s for a, b in pairs):.2f}", flush=True)


def main(*parts: str) -> None:
    with tempfile.TemporaryDirectory(prefix="keelstore-bench-") as directory:
        if not parts or "filters" in parts:
            measure_filters(Path(directory) / "filters")
        for part in parts or ("segments",):
            name, _, mib = part.partition("=")
            for nodes in (1, 4) if name == "segments" else ():
                measure_segments(Path(directory) / f"{part}-{nodes}", nodes, int(mib or 1) << 20)


if __name__ == "__main__":
    main(*sys.argv[1:])
