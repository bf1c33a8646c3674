"""Fault scenarios of a growing part power (``spec: scenarios-fault`` 14; the numbers are its rows), over a store as ``up`` makes it, with
the operator's own commands: copies and fragments at once.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from keelstore.cli import ring_builder
from keelstore.common.cluster import load_cluster
from keelstore.common.ring.ring import RingFile
from test.support.client import unique
from test.support.processes import ROOT
from test.support.store import Store, running

NODES = (1, 2)
RINGS = {"object": "gold", "object-2": "ec42"}
NAMES = [f"o{number}" for number in range(9)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with running(tmp_path_factory.mktemp("power") / "data", nodes=2, workers=1) as store:
        yield store


def relinker(*arguments: object) -> int:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run([sys.executable, "-m", "keelstore.cli.object_relinker", *map(str, arguments)], env=env, timeout=120,
                          stdin=subprocess.DEVNULL, check=False).returncode


class Growth:
    """The rings of two policies, their objects, and what an operator does to them."""

    def __init__(self, store: Store):
        self.store, self.account = store, store.login()
        self.containers = {policy: unique(policy) for policy in RINGS.values()}
        for policy, container in self.containers.items():
            self.account.put(container, headers={"X-Storage-Policy": policy}).expect(201)
        self.expected: dict[tuple[str, str], bytes | None] = {}

    # -- objects -------------------------------------------------------------------------------------------------------

    def write(self, names: list[str], text: str) -> None:
        """Under both policies."""
        def one(place: tuple[str, str]) -> None:
            self.expected[place] = f"{text} {place[1]}".encode() * 100
            self.account.put(*place, body=self.expected[place]).expect(201)

        self._all(one, [(container, name) for container in self.containers.values() for name in names])

    def delete(self, name: str) -> None:
        for container in self.containers.values():
            self.account.delete(container, name).expect(204)
            self.expected[container, name] = None

    def post(self, name: str, value: str) -> None:
        for container in self.containers.values():
            self.account.post(container, name, headers={"X-Object-Meta-A": value}).expect(202)

    def check(self) -> None:
        """Everything is as it was written last, through every node's proxy."""
        def one(place: tuple[str, str]) -> None:
            body = self.expected[place]
            for number in NODES:
                answer = self.account.at(self.store.proxy(number)).get(*place).expect(200 if body is not None else 404)
                assert body is None or answer.body == body, place

        self._all(one, list(self.expected))

    def _all(self, what: Any, things: Iterable[Any]) -> list[Any]:
        with ThreadPoolExecutor(4) as pool:
            return list(pool.map(what, things))

    # -- the operator --------------------------------------------------------------------------------------------------

    def rings(self, step: str) -> None:
        """A step of the ring builder, and the ring to every node, whose processes take it."""
        for ring in RINGS:
            builder = self.store.data / "rings" / f"{ring}.builder"
            for words in (step, "write_ring"):
                assert ring_builder.main(["keelstore-ring-builder", str(builder), words]) == 0
            for number in NODES:
                target = self.store.etc(number) / f"{ring}.ring.gz"
                new = target.with_suffix(".new")
                new.write_bytes(builder.with_suffix(".ring.gz").read_bytes())
                new.rename(target)
        self._all(self.store.reload, NODES)

    def relinker(self, step: str, *more: str) -> list[int]:
        """On every node; gives the exit statuses."""
        return self._all(lambda number: relinker(step, self.store.etc(number) / "object-server.conf", *more), NODES)

    def told(self) -> list[str]:
        return [problem["what"] for problem in self.store.status()["problems"] if problem["code"] == "part-power"]

    # -- devices -------------------------------------------------------------------------------------------------------

    def misplaced(self) -> list[Path]:
        """Hash directories of these policies in partitions where no ring of now would look."""
        found = []
        for ring in RINGS:
            current = RingFile(load_cluster(str(self.store.etc(1))).ring_path(ring)).current()
            for path in self.store.data.glob(f"node*/devices/*/{ring.replace('object', 'objects')}/*/???/*"):
                if current.partition(bytes.fromhex(path.name)) != int(path.parts[-3]):
                    found.append(path)
        return found

    def power(self) -> int:
        return RingFile(load_cluster(str(self.store.etc(1))).ring_path("object")).current().part_power


def test_scenario_104_an_increase_that_is_cancelled(store: Store) -> None:
    growth = Growth(store)
    growth.write(NAMES, "before")
    growth.rings("prepare_increase_partition_power")
    assert growth.relinker("relink") == [0, 0]
    growth.write(NAMES[:3], "meanwhile")
    assert growth.misplaced()
    growth.rings("cancel_increase_partition_power")
    growth.check()
    growth.write(NAMES[2:5], "cancelled")
    growth.delete(NAMES[5])
    assert growth.relinker("cleanup") == [0, 0]
    growth.check()
    assert growth.misplaced() == []
    growth.rings("finish_increase_partition_power")
    assert growth.power() == 10


def test_scenarios_102_and_103_the_part_power_grows_under_clients(store: Store) -> None:
    growth = Growth(store)
    growth.write(NAMES, "before")
    growth.post(NAMES[0], "posted")
    growth.delete(NAMES[1])
    assert growth.relinker("relink") == [2, 2], "no ring asks for it"

    growth.rings("prepare_increase_partition_power")  # row 102
    growth.check()
    growth.write([NAMES[2], "prepared"], "prepared")
    assert growth.relinker("cleanup") == [2, 2], "not yet"
    assert growth.relinker("relink", "--policy", "2", "--workers", "3") == [0, 0]
    what = growth.told()
    assert "from 10 to 11" in what[0] and "0 of 2 nodes ready" in what[0] and "2 of 2 nodes ready" in what[1]
    assert growth.relinker("relink") == [0, 0]
    growth.write([NAMES[3], "relinked"], "relinked")
    growth.delete(NAMES[4])
    growth.post(NAMES[5], "relinked")
    growth.check()
    assert ["2 of 2 nodes ready" in what for what in growth.told()] == [True, True]

    growth.rings("increase_partition_power")  # row 103
    assert growth.power() == 11
    growth.check()
    growth.write([NAMES[6], NAMES[1], "increased"], "increased")
    growth.delete(NAMES[7])
    growth.post(NAMES[8], "increased")
    growth.check()
    assert growth.misplaced()
    assert growth.relinker("cleanup") == [0, 0]
    growth.check()
    assert growth.misplaced() == []
    for container in growth.containers.values():
        for name, value in ((NAMES[0], "posted"), (NAMES[5], "relinked"), (NAMES[8], "increased")):
            assert growth.account.head(container, name).expect(200).headers["X-Object-Meta-A"] == value

    growth.rings("finish_increase_partition_power")
    growth.check()
    assert growth.told() == []
    for number in NODES:
        assert "Traceback" not in store.log(number)
    assert list(store.data.glob("node*/devices/*/quarantined/*/*")) == []
