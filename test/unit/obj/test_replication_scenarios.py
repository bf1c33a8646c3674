"""Metadata that changed on both sides of a partition of the network (``spec: scenarios 82 to 92``), in one process.

Each row is a list of (which half of the servers is up, what is done); ONE is the half of two primaries. Then the replicators run, twice, and every primary must
hold the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keelstore.common.headers import Headers
from keelstore.common.ring.ring import Node
from test.unit.obj.test_replicator import Replicated

ALL, ONE, TWO = "all", "one", "two"
SYS, TRANSIENT, META = "X-Object-Sysmeta-Test", "X-Object-Transient-Sysmeta-Test", "X-Object-Meta-Test"
Step = tuple[str, str, dict[str, str]]

ROWS: dict[int, tuple[list[Step], dict[str, str] | None]] = {
    82: ([(ALL, "PUT", {}), (TWO, "PUT", {}), (ONE, "DELETE", {})], None),
    83: ([(ALL, "PUT", {"Content-Type": "older"}), (ONE, "PUT", {"Content-Type": "newer"}), (ALL, "POST", {META: "posted"})],
         {"Content-Type": "newer", META: "posted"}),
    84: ([(ONE, "PUT", {SYS: "older"}), (TWO, "PUT", {SYS: "newer"}), (TWO, "POST", {META: "posted"})], {SYS: "newer", META: "posted"}),
    85: ([(ALL, "PUT", {}), (TWO, "PUT", {SYS: "new"}), (ONE, "POST", {META: "posted", TRANSIENT: "too"})],
         {SYS: "new", META: "posted", TRANSIENT: "too"}),
    86: ([(ALL, "PUT", {}), (ONE, "POST", {META: "posted", TRANSIENT: "too"}), (TWO, "PUT", {SYS: "new"})],
         {SYS: "new", META: "", TRANSIENT: ""}),
    87: ([(ONE, "PUT", {"Content-Type": "foo"}), (TWO, "PUT", {"Content-Type": "bar"}), (ONE, "POST", {"Content-Type": "baz"})],
         {"Content-Type": "baz"}),
    88: ([(ONE, "PUT", {"Content-Type": "foo"}), (TWO, "PUT", {"Content-Type": "bar"}), (ONE, "POST", {META: "posted"})],
         {"Content-Type": "bar", META: "posted"}),
    89: ([(ONE, "PUT", {"Content-Type": "foo", SYS: "older"}), (TWO, "PUT", {"Content-Type": "bar", SYS: "newer"}),
          (ONE, "POST", {"Content-Type": "bif"}), (TWO, "POST", {"Content-Type": "baz", META: "red"}), (ALL, "POST", {META: "blue"})],
         {"Content-Type": "baz", SYS: "newer", META: "blue"}),
    90: ([(ALL, "PUT", {"Content-Type": "foo", SYS: "older"}), (TWO, "PUT", {"Content-Type": "bar", SYS: "newer"}),
          (ONE, "POST", {META: "red"}), (TWO, "POST", {META: "blue"})], {"Content-Type": "bar", SYS: "newer", META: "blue"}),
    91: ([(ALL, "PUT", {"Content-Type": "oldest", SYS: "oldest"}), (ONE, "POST", {"Content-Type": "newer"}),
          (TWO, "PUT", {"Content-Type": "newest", SYS: "newest"}), (ONE, "POST", {META: "newest"})],
         {"Content-Type": "newest", SYS: "newest", META: "newest"}),
    92: ([(ALL, "PUT", {}), (TWO, "DELETE", {}), (ONE, "POST", {META: "newest"})], None),
}  # fmt: skip


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Replicated]:
    found = Replicated(tmp_path)
    yield found
    found.cluster.close()


class Halves:
    """The servers in two halves: that whose nodes are both primaries of an object, and the rest."""

    def __init__(self, cluster: Replicated, name: str):
        self.cluster, ip = cluster.cluster, cluster.cluster.ip
        primaries, _ = cluster.nodes(name)
        numbers = {cluster.number(node) for node in primaries}
        one = {0, 1} if {0, 1} <= numbers else {2, 3}
        self.nodes = {ALL: {0, 1, 2, 3}, ONE: one, TWO: {0, 1, 2, 3} - one}
        self.addresses = {number: [(ip, self.cluster.port(kind, number)) for kind in ("object", "container")] for number in range(4)}

    def up(self, which: str) -> None:
        for number, addresses in self.addresses.items():
            for address in addresses:
                if number in self.nodes[which]:
                    self.cluster.start(address)
                else:
                    self.cluster.stop(address)


def shown(cluster: Replicated, node: Node, name: str) -> tuple[int, dict[str, str]]:
    """What an object server itself says of an object."""
    path = f"/{node.device}/{cluster.part(name)}/a/c/{name}"
    answer = cluster.cluster.proxy.backend.call(node.address, "HEAD", path, Headers())
    skipped = ("Date", "X-Trans-Id")
    return answer.status, {key: value for key, value in answer.headers.items() if key not in skipped}


@pytest.mark.parametrize("row", sorted(ROWS))
def test_all_primaries_end_with_the_newest_of_everything(cluster: Replicated, row: int) -> None:
    steps, expected = ROWS[row]
    halves = Halves(cluster, "o")
    for which, method, headers in steps:
        halves.up(which)
        body = b"body" if method == "PUT" else b""
        sent: dict[str, Any] = {"Content-Type": "a/b", **headers} if method == "PUT" else headers
        assert cluster.cluster.ask(method, "/v1/a/c/o", sent, body).status in (200, 201, 202, 204, 404), (which, method)
    halves.up(ALL)
    cluster.run_all(2)
    primaries, _ = cluster.nodes("o")
    states = {cluster.state(node, "o") for node in primaries}
    assert len(states) == 1
    assert cluster.holders("o") == {node.device for node in primaries}
    answers = [shown(cluster, node, "o") for node in primaries]
    assert answers[0] == answers[1] == answers[2]
    hashes = [cluster.store.hashes(node.device, str(cluster.cluster.device_path(node.device)), cluster.policies.default,
                                   str(cluster.part("o")), (), True) for node in primaries]  # fmt: skip
    assert hashes[0] == hashes[1] == hashes[2]
    status, found = answers[0]
    if expected is None:
        assert status == 404
        halves.up(ONE)
        assert cluster.cluster.ask("PUT", "/v1/a/c/o", {"Content-Type": "a/b"}, b"again").status == 201
        halves.up(ALL)
        cluster.run_all()
        assert [shown(cluster, node, "o")[0] for node in primaries] == [200] * 3
        return
    assert status == 200
    for name, value in expected.items():
        assert found.get(name, "") == value, (name, found)
