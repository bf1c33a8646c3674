"""A write that some copy of came to no device has the primaries look at its partition."""

from __future__ import annotations

import os
from collections.abc import Iterator
from hashlib import md5
from pathlib import Path

import pytest

from keelstore.common import concurrency, events
from keelstore.proxy import repair
from test.support.cluster import InProcessCluster
from test.support.fakes import DOWN, Breaking
from test.unit.proxy.conftest import Proxy

OBJ = "/v1/AUTH_a/c/o"


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repair, "DELAY_S", 0)


def asked(proxy: Proxy) -> list[tuple[str, str]]:
    """(device, path below it) of what was asked for."""
    for _ in range(20):
        concurrency.sleep(0)
    return sorted((call.device, call.path.split("/", 2)[2]) for call in proxy.backend.calls if call.method == "REPLICATE")


def suffix(proxy: Proxy) -> str:
    return str(proxy.app.cluster.hash_path.hexdigest("AUTH_a", "c", "o")[-3:])


@pytest.mark.parametrize("size", [4, 100_000])
@pytest.mark.parametrize("fails", [True, False])
def test_a_put_that_missed_a_device_has_the_others_look(size: int, fails: bool) -> None:
    proxy = Proxy(handoffs=0)
    body = b"x" * size
    created = (201, {"Etag": md5(body).hexdigest()})
    proxy.backend.rules.append(lambda call: DOWN if fails and call.device == "ob1" and call.method == "PUT" else None)
    proxy.backend.rules.append(lambda call: created if call.method == "PUT" else 200 if call.method == "REPLICATE" else None)
    assert proxy.ask("PUT", OBJ, body=body).status == 201
    if not fails:
        assert asked(proxy) == []
        return
    found = asked(proxy)
    assert [device for device, _ in found] == ["ob0", "ob1", "ob2"]
    assert {path.partition("/")[2] for _, path in found} == {suffix(proxy)}
    call = next(call for call in proxy.backend.calls if call.method == "REPLICATE")
    assert (call.headers["X-Keelstore-Rebuild"], call.headers["X-Backend-Storage-Policy-Index"]) == ("true", "0")
    proxy.ask("PUT", OBJ, body=body)  # once is enough for a while
    assert len(asked(proxy)) == 3


def test_a_device_that_fails_in_the_middle_of_a_body_counts() -> None:
    proxy = Proxy(handoffs=0)
    proxy.backend.rules.append(lambda call: 503 if call.device == "ob2" and call.method == "PUT" else None)
    proxy.backend.rules.append(lambda call: 201 if call.method == "PUT" else 200 if call.method == "REPLICATE" else None)
    proxy.script("object", "EXPECT", None, None, None)
    proxy.ask("PUT", OBJ, body=b"x" * 100_000)
    assert len(asked(proxy)) == 3


def test_a_handoff_in_its_place_is_reason_enough_for_the_handoff_alone() -> None:
    proxy = Proxy()
    proxy.backend.rules.append(lambda call: DOWN if call.device == "ob1" else None)
    proxy.backend.rules.append(lambda call: 201 if call.method == "PUT" else None)
    assert proxy.ask("PUT", OBJ, body=b"data").status == 201
    assert asked(proxy) == []


def test_a_delete_that_missed_a_device_counts_as_well_and_a_container_does_not() -> None:
    proxy = Proxy(handoffs=0)
    proxy.backend.rules.append(lambda call: DOWN if call.device in ("ob1", "co1") else None)
    proxy.backend.rules.append(lambda call: 204 if call.method == "DELETE" else 200 if call.method == "REPLICATE" else None)
    proxy.ask("DELETE", "/v1/AUTH_a/c")
    assert asked(proxy) == []
    assert proxy.ask("DELETE", OBJ).status == 204
    assert len(asked(proxy)) == 3


def test_a_client_that_breaks_off_is_no_reason() -> None:
    proxy = Proxy(handoffs=0)
    proxy.ask("PUT", OBJ, {"Content-Length": "100000"}, Breaking([b"x"]))
    assert asked(proxy) == []


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[InProcessCluster]:
    cluster = InProcessCluster(tmp_path, request_node_count="3")
    yield cluster
    cluster.close()


def test_the_daemons_of_those_that_have_it_are_told(cluster: InProcessCluster) -> None:
    cluster.ask("PUT", "/v1/a/c")
    primaries = cluster.primaries("object", "/a/c/o")
    cluster.stop(primaries[0].address)
    channel = events.Channel()
    channel.attach()
    try:
        assert cluster.ask("PUT", "/v1/a/c/o", body=b"body").status == 201
        channel.receiver.setblocking(False)
        told = set()
        for _ in range(200):
            concurrency.sleep(0.005)
            try:
                kind, fields = events.parse(channel.receiver.recv(8192))
            except BlockingIOError:
                continue
            if kind == events.PARTITION:
                told.add((os.path.basename(fields[0]), fields[1]))
            if len(told) == 2:
                break
        assert told == {(node.device, "0") for node in primaries[1:]}
    finally:
        channel.close()
        cluster.start(primaries[0].address)
