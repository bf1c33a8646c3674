"""Container sync between two containers of an in-process cluster, over the middlewares that the other side has."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from keelstore.common.daemon_frame import ALL
from keelstore.common.headers import Headers
from keelstore.common.http import Response
from keelstore.common.internal import InternalClient
from keelstore.common.middleware import container_sync, gatekeeper, slo, symlink
from keelstore.common.sync_realms import Realms
from keelstore.common.timestamp import Timestamp
from keelstore.container.options import SyncDaemonOptions
from keelstore.container.sync import ContainerSyncer
from keelstore.container.sync_remote import Answer, RemoteDown
from test.support.cluster import InProcessCluster
from test.support.daemons import Daemons
from test.support.fakes import ask

TO = {"X-Container-Sync-To": "//us/here/b/copy", "X-Container-Sync-Key": "secret"}
KEY = {"X-Container-Sync-Key": "secret"}
REALMS = "[us]\nkey = realmkey\ncluster_here = http://other:1/v1/\n"


class Other:
    """The other cluster: requests go into the pipeline of its proxy."""

    def __init__(self, app: Any):
        self.app = app
        self.seen: list[tuple[str, str, int]] = []
        self.refuses: Callable[[str, str], Any] = lambda method, name: None

    def request(self, method: str, url: str, headers: Headers, body: Any = None) -> Answer:
        parts = urlsplit(url)
        path = unquote(parts.path)
        refused = self.refuses(method, path.rpartition("/")[2])
        if isinstance(refused, Exception):
            raise refused
        found = {**headers, "Content-Length": headers.get("Content-Length", "0")}
        data = body.read(int(found["Content-Length"])) if body is not None else b""
        response = ask(self.app, method, path, found, data, parts.query) if refused is None else Response(refused)
        self.seen.append((method, path, response.status))
        return Answer(response.status, response.headers)


class Setup:
    def __init__(self, tmp_path: Path):
        self.cluster = InProcessCluster(tmp_path)
        (self.cluster.etc / "container-sync-realms.conf").write_text(REALMS)
        self.daemons = Daemons(self.cluster)
        conf = {"swift_dir": str(self.cluster.etc), "log_address": "/nonexistent"}
        self.inner = symlink.filter_factory({})(self.cluster.proxy)
        self.app = gatekeeper.filter_factory({})(container_sync.filter_factory(conf)(slo.filter_factory(conf)(self.inner)))
        self.other = Other(self.app)
        self.ask("PUT", "/v1/a/c", TO)
        self.ask("PUT", "/v1/b/copy", KEY)
        self.times = itertools.count(1)

    def ask(self, method: str, path: str, headers: dict[str, Any] | None = None, body: bytes = b"", query: str = "") -> Response:
        return ask(self.inner, method, path, headers, body, query, swift__cache=self.cluster.cache, swift_owner=True)

    def write(self, method: str, name: str = "o", body: bytes = b"", **headers: str) -> str:
        at = Timestamp(self.daemons.clock() - 100 + next(self.times) / 1000).internal
        status = self.ask(method, f"/v1/a/c/{name}", {"X-Timestamp": at, **{key.replace("_", "-"): value for key, value in headers.items()}},
                          body).status
        assert status < 300, status
        return at

    def syncer(self, node: int = 0, **options: Any) -> ContainerSyncer:
        cluster = self.cluster
        return ContainerSyncer(
            SyncDaemonOptions(devices=str(cluster.devices(node)), mount_check=False, swift_dir=str(cluster.etc), **options),
            self.daemons.world(node), InternalClient(self.inner, "container-sync", 1), cluster.proxy.rings.container,
            cluster.proxy.cluster.hash_path, [(cluster.ip, cluster.port("container", node))], Realms(str(cluster.etc)), self.other)

    def run(self, times: int = 1, **options: Any) -> dict[str, int]:
        total: dict[str, int] = {}
        for _ in range(times):
            for node in self.daemons.nodes:
                syncer = self.syncer(node, **options)
                syncer.run_once()
                for name, count in syncer.counts.items():
                    total[name] = total.get(name, 0) + count
        return total

    def copy(self, name: str = "o", query: str = "") -> tuple[int, bytes]:
        answer = self.ask("GET", f"/v1/b/copy/{name}", query=query)
        return answer.status, (answer.body or b"") if answer.status == 200 else b""

    def names(self) -> list[str]:
        return [entry["name"] for entry in json.loads(self.ask("GET", "/v1/b/copy", query="format=json").body or b"[]")]


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[Setup]:
    setup = Setup(tmp_path)
    yield setup
    setup.cluster.close()


def test_what_is_written_changed_and_deleted_comes_to_the_copy(setup: Setup) -> None:
    at = setup.write("PUT", body=b"one", Content_Type="text/x", X_Object_Meta_Color="red")
    counts = setup.run()
    assert (counts["syncs"], counts["puts"], counts["failures"]) == (3, 1, 0)
    answer = setup.ask("GET", "/v1/b/copy/o")
    assert (answer.body, answer.headers["Content-Type"], answer.headers["X-Object-Meta-Color"], answer.headers["X-Timestamp"]) == (
        b"one", "text/x", "red", at)
    setup.write("POST", X_Object_Meta_Color="blue", Content_Type="text/y")
    setup.run()
    answer = setup.ask("GET", "/v1/b/copy/o")
    assert (answer.body, answer.headers["X-Object-Meta-Color"], answer.headers["Content-Type"]) == (b"one", "blue", "text/y")
    setup.write("DELETE")
    counts = setup.run()
    assert counts["deletes"] >= 1
    assert setup.copy()[0] == 404
    assert setup.names() == []


def test_nothing_is_sent_twice_for_long(setup: Setup) -> None:
    for number in range(6):
        setup.write("PUT", f"o{number}", b"x")
    setup.run(2)
    setup.other.seen.clear()
    setup.run()
    assert setup.other.seen == []
    assert setup.names() == [f"o{number}" for number in range(6)]
    for broker_points in points(setup):
        assert broker_points[0] == broker_points[1] >= 6


def points(setup: Setup) -> list[tuple[int, int]]:
    found = []
    for node in setup.daemons.nodes:
        syncer = setup.syncer(node)
        for job in syncer.plan(only=ALL):
            broker = syncer._broker(job)
            info = broker.info()
            found.append((info.x_container_sync_point1, info.x_container_sync_point2))
            broker.close()
    return found




def test_a_row_that_does_not_arrive_is_sent_again_by_all(setup: Setup) -> None:
    for name in ("good", "bad"):
        setup.write("PUT", name, b"x")
    setup.other.refuses = lambda method, name: 503 if name == "bad" else None
    setup.run(2)
    assert setup.names() == ["good"]
    assert all(point1 > point2 for point1, point2 in points(setup))
    setup.other.refuses = lambda method, name: None
    assert setup.run()["failures"] == 0
    assert setup.names() == ["bad", "good"]
    assert all(point1 == point2 for point1, point2 in points(setup))


def test_rows_behind_one_that_never_arrives_are_not_asked_for_with_every_change(setup: Setup) -> None:
    for name in ("bad", "good"):
        setup.write("PUT", name, b"x")
    setup.other.refuses = lambda method, name: 503 if name == "bad" else None
    setup.run(2)
    syncer = setup.syncer(0)
    syncer._is_forever = True
    jobs = list(syncer.plan(ALL)) or list((syncer := setup.syncer(1)).plan(ALL))
    syncer._is_forever = True
    for expected in (2, 0, 0):
        setup.other.seen.clear()
        asked = []
        setup.other.refuses = lambda method, name, asked=asked: (asked.append(name), 503 if name == "bad" else None)[1]  # type: ignore[misc]
        for job in jobs[:1]:
            syncer.carry_out(job)
        assert len(asked) == expected
    setup.daemons.clock.ahead_s = 6
    setup.other.refuses = lambda method, name: None
    for job in jobs[:1]:
        assert syncer.carry_out(job)
    assert setup.names() == ["bad", "good"]


def test_a_cluster_that_is_down_is_asked_once_for_a_container(setup: Setup) -> None:
    for number in range(6):
        setup.write("PUT", f"o{number}", b"x")
    setup.other.refuses = lambda method, name: RemoteDown("no answer")
    counts = setup.run(sync_row_concurrency=1)
    assert counts["failures"] <= 3
    setup.other.refuses = lambda method, name: None
    setup.run(2)
    assert len(setup.names()) == 6


def test_a_newer_copy_stays(setup: Setup) -> None:
    setup.write("PUT", body=b"old")
    setup.ask("PUT", "/v1/b/copy/o", body=b"newer")
    setup.run()
    assert setup.copy() == (200, b"newer")
    setup.write("DELETE")
    setup.run()
    assert setup.copy() == (200, b"newer")


def test_case_X12_what_was_deleted_before_it_was_ever_synced_holds_nothing_up(setup: Setup) -> None:
    setup.write("PUT", "gone", b"x")
    setup.write("DELETE", "gone")
    setup.write("PUT", "other", b"x")
    assert setup.run(2)["failures"] == 0
    assert setup.names() == ["other"]


def test_a_late_row_does_not_bring_back_what_was_deleted_there(setup: Setup) -> None:
    setup.write("PUT", body=b"x")
    setup.run()
    setup.ask("DELETE", "/v1/b/copy/o")
    for node in setup.daemons.nodes:  # all is sent anew
        for job in setup.syncer(node).plan(ALL):
            broker = setup.syncer(node)._broker(job)
            broker.write(lambda connection, broker=broker: broker.set_sync_points(connection, -1, -1))  # type: ignore[misc]
            broker.close()
    setup.run(2)
    assert setup.copy()[0] == 404


@pytest.mark.parametrize("path", ["/v1/a/c", "/v1/b/copy"])
def test_without_a_key_on_either_side_nothing_arrives_until_there_is_one(setup: Setup, path: str) -> None:
    setup.ask("POST", path, {"X-Container-Sync-Key": ""})
    setup.cluster.cache.__init__()  # type: ignore[misc]
    setup.write("PUT", body=b"x")
    setup.run()
    assert setup.copy()[0] == 404
    setup.ask("POST", path, KEY)
    setup.cluster.cache.__init__()  # type: ignore[misc]
    setup.run(2)
    assert setup.copy() == (200, b"x")


def test_the_source_may_be_under_any_policy_and_rows_under_another_are_passed_over(setup: Setup) -> None:
    setup.ask("PUT", "/v1/a/silver", {**TO, "X-Storage-Policy": "silver"})
    setup.ask("PUT", "/v1/a/silver/o", body=b"right")
    setup.ask("PUT", "/v1/a/silver/wrong", {"X-Backend-Storage-Policy-Index": "0"}, b"wrong")
    setup.ask("DELETE", "/v1/a/silver/o", {"X-Backend-Storage-Policy-Index": "0"})
    assert setup.run(2)["failures"] == 0
    assert setup.copy() == (200, b"right")
    assert setup.names() == ["o"]


def test_a_large_object_arrives_as_its_manifest(setup: Setup) -> None:
    setup.ask("PUT", "/v1/a/c/seg", body=b"segment")
    manifest = json.dumps([{"path": "/c/seg", "size_bytes": 7}]).encode()
    app = slo.filter_factory({"swift_dir": str(setup.cluster.etc), "log_address": "/nonexistent"})(setup.inner)
    answer = ask(app, "PUT", "/v1/a/c/large", {}, manifest, "multipart-manifest=put", swift__cache=setup.cluster.cache)
    assert answer.status == 201, answer.body
    assert setup.run(2)["failures"] == 0
    ours, theirs = (setup.ask("GET", path) for path in ("/v1/a/c/large", "/v1/b/copy/large"))
    assert theirs.headers["X-Static-Large-Object"] == "True"
    assert json.loads(theirs.body or b"") == json.loads(ours.body or b"x")


def test_a_symlink_arrives_as_one(setup: Setup) -> None:
    setup.ask("PUT", "/v1/a/target")
    setup.ask("PUT", "/v1/a/target/t", body=b"pointed at")
    setup.ask("PUT", "/v1/a/c/link", {"X-Symlink-Target": "target/t"})
    assert setup.run(2)["failures"] == 0
    answer = setup.ask("HEAD", "/v1/b/copy/link", query="symlink=get")
    assert answer.headers["X-Symlink-Target"] == "target/t"
    assert setup.run()["puts"] == 0


def test_a_container_that_keeps_versions_is_passed_over(setup: Setup, caplog: pytest.LogCaptureFixture) -> None:
    setup.ask("POST", "/v1/a/c", {"X-Container-Sysmeta-Versions-Enabled": "True"})
    setup.write("PUT", body=b"x")
    assert setup.run()["skips"] == 3
    assert "keeps versions" in caplog.text
    assert setup.copy()[0] == 404


def test_a_new_target_begins_with_the_first_row(setup: Setup) -> None:
    setup.write("PUT", body=b"x")
    setup.run()
    setup.ask("PUT", "/v1/b/second", KEY)
    setup.ask("POST", "/v1/a/c", {"X-Container-Sync-To": "//us/here/b/second"})
    setup.run()
    assert setup.ask("GET", "/v1/b/second/o").body == b"x"


def test_a_dry_run_tells_and_sends_nothing(setup: Setup) -> None:
    setup.write("PUT", body=b"x")
    lines = [line for node in setup.daemons.nodes for line in setup.syncer(node).dry_run()]
    assert lines == ["sync /a/c to http://other:1/v1/b/copy: 1 rows that are new, 0 again"] * 3
    assert setup.other.seen == []


def test_ciphertext_is_not_sent(setup: Setup, caplog: pytest.LogCaptureFixture) -> None:
    """Of an object that is encrypted, read through a pipeline that does not decrypt."""
    setup.write("PUT", body=b"ciphertext", X_Object_Sysmeta_Crypto_Body_Meta="x")
    assert setup.run()["failures"] >= 1
    assert "does not decrypt" in caplog.text
    assert setup.copy()[0] == 404
