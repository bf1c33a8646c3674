"""The watcher that finds objects which no container knows (``spec: scenarios 45, 46``), over an in-process cluster."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keelstore.common.backend import serve_locally
from keelstore.common.daemon_frame import World
from keelstore.common.headers import Headers
from keelstore.common.http import Response
from keelstore.obj.auditor import FULL, ObjectAuditor
from keelstore.obj.options import ObjectAuditorOptions
from keelstore.obj.watchers import DarkData, DarkDataOptions
from test.support.cluster import InProcessCluster

LOG = logging.getLogger("test.dark")


class Dark:
    def __init__(self, root: Path):
        self.cluster = InProcessCluster(root, nodes=4, devices=2)
        self.cluster.ask("PUT", "/v1/a")
        assert self.cluster.ask("PUT", "/v1/a/c").status == 201

    def put(self, name: str) -> None:
        assert self.cluster.ask("PUT", f"/v1/a/c/{name}", {"Content-Type": "a/b"}, b"body").status == 201

    def unlist(self, name: str) -> None:
        """Rows go as if they had never been; the objects stay."""
        for node in self.cluster.primaries("container", "/a/c"):
            part = self.cluster.proxy.rings.container.current().get_part(self.cluster.proxy.cluster.hash_path, "a", "c")
            headers = {"X-Timestamp": f"{time.time() + 1:.5f}"}
            answer = self.cluster.proxy.backend.call(node.address, "DELETE", f"/{node.device}/{part}/a/c/{name}", Headers(headers))
            assert answer.is_success

    def audit(self, **options: Any) -> list[DarkData]:
        watchers = []
        for number in range(4):
            proxy = self.cluster.proxy
            watcher = DarkData(DarkDataOptions(**options), proxy.backend, proxy.rings.container, proxy.cluster.hash_path, LOG, time.time)
            values = {"devices": str(self.cluster.devices(number)), "mount_check": False, "files_per_second": 0.0}
            auditor = ObjectAuditor(ObjectAuditorOptions(**values), World(LOG, random=random.Random(1)), proxy.cluster, [watcher])  # type: ignore[arg-type]
            auditor.kinds = (FULL,)
            auditor.run_once()
            watchers.append(watcher)
        return watchers

    def data_files(self) -> int:
        return len(self.cluster.files(".data"))


@pytest.fixture
def dark(tmp_path: Path) -> Iterator[Dark]:
    found = Dark(tmp_path)
    found.put("listed")
    found.put("d\u00e4rk &?")
    found.unlist("d\u00e4rk &?")
    yield found
    found.cluster.close()


def counts(watchers: list[DarkData]) -> tuple[int, int, int]:
    return sum(w.ok for w in watchers), sum(w.dark for w in watchers), sum(w.unknown for w in watchers)


def test_dark_objects_are_found_and_left(dark: Dark) -> None:
    assert counts(dark.audit(grace_age=0.0)) == (3, 3, 0)
    assert dark.data_files() == 6


def test_young_ones_are_not_asked_for(dark: Dark) -> None:
    assert counts(dark.audit()) == (0, 0, 0)


def test_delete(dark: Dark) -> None:
    dark.audit(grace_age=0.0, action="delete")
    assert dark.data_files() == 3 and not list(dark.cluster.root.rglob("quarantined"))
    assert counts(dark.audit(grace_age=0.0, action="delete")) == (3, 0, 0)
    assert dark.cluster.ask("GET", "/v1/a/c/listed").status == 200


def test_quarantine(dark: Dark) -> None:
    dark.audit(grace_age=0.0, action="quarantine")
    found = [path for path in dark.cluster.root.rglob("*.data") if "quarantined" in path.parts]
    assert len(found) == 3 and dark.data_files() == 6


@pytest.mark.parametrize("answer", [None, Response(503), Response(200, body=b"[1]"), Response(200, body=b"{nonsense")])
def test_all_must_answer(dark: Dark, answer: Response | None) -> None:
    node = dark.cluster.primaries("container", "/a/c")[1]
    if answer is None:
        dark.cluster.stop(node.address)
    else:
        serve_locally(node.address, lambda environ, start: answer(environ, start))
    ok, found, unknown = counts(dark.audit(grace_age=0.0, action="delete"))
    assert found == 0 and unknown >= 3 and ok + unknown == 6
    assert dark.data_files() == 6


def test_one_row_is_enough(dark: Dark) -> None:
    """A row that only one replica has yet."""
    dark.put("late")
    node = dark.cluster.primaries("container", "/a/c")[0]
    dark.cluster.remove_device(node.device)
    dark.cluster.device_path(node.device).mkdir()
    ok, _, unknown = counts(dark.audit(grace_age=0.0))
    assert unknown == 0 and ok >= 4


def test_shards_are_asked(dark: Dark) -> None:
    asked: list[str] = []
    real = dict(dark.cluster.apps)

    def root(environ: dict[str, Any], start: Any) -> Any:
        path = environ["PATH_INFO"]
        asked.append(path)
        if path.endswith("/a/c"):
            body = b'[{"name": ".shards_a/c-1", "lower": "", "upper": ""}]'
            return Response(200, {"X-Backend-Record-Type": "shard"}, body)(environ, start)
        rows = b'[{"name": "listed"}]' if "prefix=listed" in environ["QUERY_STRING"] else b""
        return Response(200 if rows else 204, {"X-Backend-Record-Type": "object"}, rows)(environ, start)

    for address in real:
        if (address[1] - 6201) % 10 == 0:
            serve_locally(address, root)
    assert counts(dark.audit(grace_age=0.0)) == (3, 3, 0)
    assert any(path.endswith("/.shards_a/c-1") for path in asked)
