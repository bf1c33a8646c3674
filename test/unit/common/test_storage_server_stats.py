"""What storage servers count: the field's statsd names, and the requests of /metrics, also of calls without a socket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from keelstore.common.metrics import Meter
from keelstore.common.stats import NoStats
from test.support.cluster import InProcessCluster


class Kept(NoStats):
    """Keeps the names of what was sent."""

    has_labels = True

    def __init__(self) -> None:
        self.names: list[str] = []

    def __bool__(self) -> bool:
        return True

    def increment(self, metric: str, sample_rate: float | None = None) -> None:
        self.names.append(metric)

    def timing_since(self, metric: str, start_s: float, sample_rate: float | None = None) -> None:
        self.names.append(metric)

    def transfer_rate(self, metric: str, seconds: float, count: int, sample_rate: float | None = None) -> None:
        self.names.append(metric)

    def labelled(self, metric: str, kind: str, value: float, labels: object) -> None:
        self.names.append(metric)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[InProcessCluster]:
    cluster = InProcessCluster(tmp_path, nodes=3, devices=1)
    yield cluster
    cluster.close()


def test_names_of_metrics(cluster: InProcessCluster) -> None:
    kept, meters = Kept(), {kind: Meter(kind) for kind in ("object", "container", "account")}
    for app in cluster.apps.values():
        app.measure_by(kept)
        app.meter = meters[app.service]
    assert cluster.ask("PUT", "/v1/a/c").status == 201
    assert cluster.ask("PUT", "/v1/a/c/o", {"Content-Type": "text/plain"}, b"x" * 200_000).status == 201
    assert {"PUT.timing", "swift_object_server_request_timing", "swift_container_server_request_timing"} <= set(kept.names)
    assert any(name.startswith("PUT.d") and name.endswith(".timing") for name in kept.names)
    assert meters["object"].requests()["PUT", 201] == 3 and meters["container"].requests()["PUT", 201] >= 3
    for node in cluster.primaries("container", "/a/c"):
        cluster.stop(node.address)
    kept.names.clear()
    cluster.ask("PUT", "/v1/a/c/o2", {"Content-Type": "text/plain"}, b"y")
    for path in cluster.root.rglob("*.data"):
        path.unlink()
        path.write_bytes(b"rotten")
    cluster.ask("GET", "/v1/a/c/o")
    assert "async_pendings" in kept.names and "quarantines" in kept.names
