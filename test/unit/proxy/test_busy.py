"""Devices that are slow and refuse more: others take their place, clients are told early, and nothing is held against them."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from keelstore.common import disk_turns
from keelstore.common.errors import BackendTimeout, DeviceBusy
from keelstore.proxy import health
from test.support import fakes
from test.support.cluster import InProcessCluster

LARGE = b"x" * 200_000
BODIES = [b"small", LARGE]


class Busy(set[str]):
    """Names of the devices that are."""

    asked = 0

    def ask(self, device: str, _path: str, _most: int) -> disk_turns.Turn:
        self.asked += 1
        if device in self:
            raise DeviceBusy(device)
        return disk_turns.NO_TURN


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[InProcessCluster]:
    found = InProcessCluster(tmp_path)
    assert found.ask("PUT", "/v1/a/c").status in (201, 202)
    yield found
    found.close()


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> Busy:
    found = Busy()
    monkeypatch.setattr(disk_turns, "ask", found.ask)
    return found


def everything(cluster: InProcessCluster) -> set[str]:
    return {node.device for node in cluster.proxy.rings.object(cluster.proxy.cluster.policies.default).current().nodes}


@pytest.mark.parametrize("body", BODIES, ids=["small", "streamed"])
def test_another_device_takes_what_a_busy_one_refuses(cluster: InProcessCluster, busy: Busy, body: bytes) -> None:
    refused = cluster.primaries("object", "/a/c/o")[0]
    busy.add(refused.device)
    for _ in range(20):  # more than the errors that a device is forgiven
        assert cluster.ask("PUT", "/v1/a/c/o", body=body).status == 201
    holders = set(cluster.files(".data"))
    assert len(holders) == 3 and refused.device not in holders
    assert cluster.proxy.health.limited() == [] and not cluster.proxy.health.has_suspects
    busy.clear()
    cluster.proxy.health._busy.clear()
    assert cluster.ask("PUT", "/v1/a/c/o", body=body).status == 201
    assert refused.device in cluster.files(".data")


def test_own_device_is_passed_by_for_moments_and_anothers_as_long_as_clients_wait(cluster: InProcessCluster) -> None:
    found, node = cluster.proxy.health, cluster.primaries("object", "/a/c/o")[0]
    now = found.clock()
    found.clock = lambda: now
    for is_own, least, most in ((True, 0.05, 0.2), (False, 0.9, 1.1)):
        found.is_own = lambda address, is_own=is_own: is_own
        found.busy(node)
        assert found.is_busy(node)
        found.clock = lambda least=least: now + least
        assert found.is_busy(node)
        found.clock = lambda most=most: now + most
        assert not found.is_busy(node)
        found.clock = lambda: now


@pytest.mark.parametrize("policy", ["gold", "ec42"])
@pytest.mark.parametrize("body", BODIES, ids=["small", "streamed"])
def test_busy_everywhere_is_503_and_then_not_even_the_body_is_read(
    cluster: InProcessCluster, busy: Busy, monkeypatch: pytest.MonkeyPatch, body: bytes, policy: str,
) -> None:
    assert cluster.ask("PUT", "/v1/a/p", {"X-Storage-Policy": policy}).status in (201, 202)
    monkeypatch.setattr(health, "BUSY_S", 3600.0)
    busy.update(everything(cluster))
    for _ in range(3):  # each asks some that none has asked
        answer = cluster.ask("PUT", "/v1/a/p/o", body=body)
        assert (answer.status, answer.headers.get("Retry-After")) == (503, "1")
    asked, rest = busy.asked, io.BytesIO(body)
    answer = cluster.ask("PUT", "/v1/a/p/o", {"Content-Length": str(len(body))}, **{"wsgi.input": rest})
    assert (answer.status, answer.headers.get("Retry-After")) == (503, "1")
    assert busy.asked == asked and rest.tell() == 0
    assert cluster.files(".data") == [] and cluster.proxy.health.limited() == []
    assert cluster.ask("GET", "/v1/a/p/o").status == 404  # reads ask them as ever
    busy.clear()
    cluster.proxy.health._busy = dict.fromkeys(cluster.proxy.health._busy, 0.0)  # as after that time
    assert cluster.ask("PUT", "/v1/a/p/o", body=body).status == 201


def test_object_server_says_why(cluster: InProcessCluster, busy: Busy) -> None:
    node = cluster.primaries("object", "/a/c/o")[0]
    busy.add(node.device)
    path = f"/{node.device}/0/a/c/o"
    rest = io.BytesIO(b"x" * 10)
    answer = fakes.ask(cluster.apps[node.address], "PUT", path, {"X-Timestamp": "1", "Content-Type": "x/y", "Content-Length": "10"}, **{"wsgi.input": rest})
    assert (answer.status, answer.headers["X-Backend-Keelstore-Reason"], answer.headers["Retry-After"]) == (503, "busy", "1")
    assert rest.tell() == 0


def test_put_that_a_device_of_this_process_lets_time_out_is_no_fault_of_its_node(cluster: InProcessCluster) -> None:
    found, node = cluster.proxy.health, cluster.primaries("object", "/a/c/o")[0]
    for _ in range(20):
        found.failed(node, "PUT /a/c/o", BackendTimeout("no answer", node=node.address))
    assert found.limited() == [] and not found.has_suspects and found.is_busy(node)
    found.failed(node, "GET /a/c/o", BackendTimeout("no answer", node=node.address))
    assert not found.has_suspects
