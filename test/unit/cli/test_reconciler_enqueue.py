"""An operator queues an object for the reconciler."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from keelstore.cli import reconciler_enqueue
from keelstore.common.headers import Headers
from test.support.cluster import InProcessCluster

AT = "1700000001.00000"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[InProcessCluster]:
    cluster = InProcessCluster(tmp_path)
    yield cluster
    cluster.close()


@pytest.fixture
def run(cluster: InProcessCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def command(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["keelstore-reconciler-enqueue", *arguments, "--swift-dir", str(cluster.etc)])
        code = reconciler_enqueue.main()
        found = capsys.readouterr()
        return code, found.out, found.err

    return command


def entries(cluster: InProcessCluster) -> list[tuple[str, str, str]]:
    listing = json.loads(cluster.ask("GET", "/v1/.misplaced_objects/1699999200").body or b"[]")
    return [(entry["name"], entry["content_type"], entry["hash"]) for entry in listing]


def test_an_object_is_queued(cluster: InProcessCluster, run: Run) -> None:
    assert run("silver", "/a/c/o/p", AT) == (0, "1699999200\n", "")
    assert run("1", "/a/c/gone", AT, "-X", "DELETE") == (0, "1699999200\n", "")
    assert entries(cluster) == [("1:/a/c/gone", "application/x-delete", AT), ("1:/a/c/o/p", "application/x-put", AT)]


def test_what_was_carried_out_is_queued_again_only_by_force(cluster: InProcessCluster, run: Run) -> None:
    run("silver", "/a/c/o", AT)
    for node in cluster.primaries("container", "/.misplaced_objects/1699999200"):
        part = cluster.proxy.rings.container.current().partition(cluster.proxy.cluster.hash_path.digest(".misplaced_objects", "1699999200"))
        cluster.proxy.backend.call(node.address, "DELETE", f"/{node.device}/{part}/.misplaced_objects/1699999200/1:/a/c/o",
                                   Headers({"X-Timestamp": f"{AT}_0000000000000002"}))
    run("silver", "/a/c/o", AT)
    assert entries(cluster) == []
    run("silver", "/a/c/o", AT, "--force")
    assert [name for name, _, _ in entries(cluster)] == ["1:/a/c/o"]


@pytest.mark.parametrize(("arguments", "text"), [
    ((), "expected POLICY"), (("silver", "/a/c/o"), "expected POLICY"), (("bronze", "/a/c/o", AT), "there is no policy 'bronze'"),
    (("silver", "/a/c", AT), "expected /account/container/object"), (("silver", "/a/c/o", "x"), "'x' is no timestamp"),
    (("silver", "/a/c/o", AT, "-X", "GET"), "GET"), (("silver", "/a/c/o", AT, "more"), "unexpected extra argument"),
])
def test_what_is_wrong_is_said(run: Run, arguments: tuple[str, ...], text: str) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (1, "")
    assert err.startswith("ERROR: ")
    assert text in err


def test_too_few_replicas(cluster: InProcessCluster, run: Run) -> None:
    for node in cluster.primaries("container", "/.misplaced_objects/1699999200")[:2]:
        cluster.stop(node.address)
    code, _, err = run("silver", "/a/c/o", AT)
    assert code == 1
    assert "too few replicas" in err
