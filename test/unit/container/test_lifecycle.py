"""The lifecycle daemon over an in-process cluster: what is due goes, by the rules of the moment, and nothing else."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keelstore.common import concurrency
from keelstore.common.http import Response
from keelstore.common.internal import InternalClient
from keelstore.common.middleware import slo, symlink, versioned_writes
from keelstore.common.middleware.s3api import lifecycle_rules
from keelstore.common.middleware.s3api.lifecycle_rules import DAY_S, Filter, Rule
from keelstore.container import lifecycle as lifecycle_module
from keelstore.container.lifecycle import ContainerLifecycle
from keelstore.container.options import ContainerLifecycleOptions
from test.support.cluster import InProcessCluster
from test.support.daemons import Daemons

ACCOUNT, BUCKET = "AUTH_a", "bucket"
UPLOAD_ID = "A" * 48
IDS = {"a": "A" * 48, "k": "K" * 48}
LOCK = {"X-Object-Sysmeta-S3api-Legal-Hold": "ON"}


class Lifecycle:
    """The daemon, and the bucket that it works on."""

    def __init__(self, cluster: InProcessCluster):
        self.daemons = Daemons(cluster)
        switched_on = {"allow_versioned_writes": "true", "allow_object_versioning": "true"}
        app: Any = symlink.filter_factory({})(cluster.proxy)
        app = versioned_writes.filter_factory({}, **switched_on)(app)
        app = slo.filter_factory({})(app)
        self.client = InternalClient(app, "test", tries=1)
        self.client.create_container(ACCOUNT, BUCKET)
        self.app, self.cluster = app, cluster
        self.daemon = self.another()

    def another(self) -> ContainerLifecycle:
        options = ContainerLifecycleOptions(swift_dir=str(self.cluster.etc))
        client = InternalClient(self.app, "container-lifecycle 1", tries=1)
        return ContainerLifecycle(options, self.daemons.world(0), client, self.cluster.proxy.cluster.hash_path)

    def rules(self, *rules: Rule, noted: bool = True) -> None:
        text = base64.b64encode(lifecycle_rules.write(rules)).decode()
        if noted:
            self.client.create_container(".s3", "lifecycle")
            self.client.put_object(b"", ".s3", "lifecycle", f"{ACCOUNT}/{BUCKET}")
        self.client.set_metadata({"X-Container-Sysmeta-S3api-Lifecycle": f"1:{text}" if rules else ""}, ACCOUNT, BUCKET)

    def versions(self, enabled: bool = True) -> None:
        self.client.set_metadata({"X-Versions-Enabled": str(enabled)}, ACCOUNT, BUCKET)

    def put(self, name: str, data: bytes = b"data", **headers: str) -> None:
        self.client.put_object(data, ACCOUNT, BUCKET, name, headers)

    def names(self, container: str = BUCKET, **query: str) -> list[str]:
        return [entry["name"] for entry in self.client.list_container(ACCOUNT, container, **query)]

    def listed(self) -> list[tuple[str, bool]]:
        """Name, is it a delete marker: of all versions, newest first."""
        found = self.client.request("GET", f"/v1/{ACCOUNT}/{BUCKET}", params={"versions": "", "format": "json"})
        return [(entry["name"], "deleted" in entry["content_type"]) for entry in json.loads(found.read())]

    def ids(self) -> list[tuple[str, bool]]:
        """Of all versions, newest first, and which is the latest."""
        found = self.client.request("GET", f"/v1/{ACCOUNT}/{BUCKET}", params={"versions": "", "format": "json"})
        return [(entry["version_id"], entry["is_latest"]) for entry in json.loads(found.read())]

    def begin_upload(self) -> str:
        """An upload of one part that nobody completes, and the rule that ends it after two days; the container of its parts."""
        segments = f"{BUCKET}+segments"
        self.client.create_container(ACCOUNT, segments)
        for name, kind in ((f"k/{UPLOAD_ID}", "application/directory"), (f"k/{UPLOAD_ID}/1", "text/plain")):
            self.client.put_object(b"part", ACCOUNT, segments, name, {"Content-Type": kind})
        self.rules(rule(abort_days=2))
        return segments

    def after(self, days: float) -> dict[str, int]:
        """What the daemon has done so much later."""
        self.daemons.clock.ahead_s = days * DAY_S
        self.daemon.run_once()
        return {name: count for name, count in self.daemon.counts.items() if count}


@pytest.fixture
def lifecycle(tmp_path: Path) -> Iterator[Lifecycle]:
    cluster = InProcessCluster(tmp_path, nodes=1, devices=3)
    yield Lifecycle(cluster)
    cluster.close()


def rule(prefix: str = "", **fields: Any) -> Rule:
    return Rule("r", True, Filter(prefix, fields.pop("tags", ())), **fields)


def test_objects_end_by_the_rules_of_the_moment(lifecycle: Lifecycle) -> None:
    for name in ("logs/a", "logs/b", "other"):
        lifecycle.put(name)
    lifecycle.rules(rule("logs/", days=3))
    assert lifecycle.after(2.9) == {}
    lifecycle.rules(rule("logs/", days=30))
    assert lifecycle.after(10) == {}
    lifecycle.rules(rule("logs/", days=1))
    assert lifecycle.after(10) == {"expired": 2}
    assert lifecycle.names() == ["other"]
    assert lifecycle.after(11) == {}


def test_tags_are_looked_at(lifecycle: Lifecycle) -> None:
    lifecycle.put("tagged", b"data", **{"X-Object-Transient-Sysmeta-S3api-Tags": "a=1&b=2"})
    lifecycle.put("plain")
    lifecycle.rules(rule(days=1, tags=(("a", "1"),)))
    assert lifecycle.after(3) == {"expired": 1}
    assert lifecycle.names() == ["plain"]


def test_a_bucket_that_is_not_written_down_costs_nothing(lifecycle: Lifecycle) -> None:
    lifecycle.put("a")
    lifecycle.rules(rule(days=1), noted=False)
    assert lifecycle.after(3) == {}
    assert lifecycle.daemon.progress.done == 0


def test_what_has_no_rules_any_more_is_forgotten_after_a_day(lifecycle: Lifecycle) -> None:
    lifecycle.put("a")
    lifecycle.rules()
    assert lifecycle.after(0.5) == {} and len(list(lifecycle.client.list_container(".s3", "lifecycle"))) == 1
    assert lifecycle.after(2) == {} and not list(lifecycle.client.list_container(".s3", "lifecycle"))
    assert lifecycle.names() == ["a"]


def test_versions_markers_and_locks(lifecycle: Lifecycle) -> None:
    lifecycle.versions()
    lifecycle.put("k", b"1")
    lifecycle.put("k", b"2", **LOCK)
    lifecycle.put("k", b"3")
    lifecycle.rules(rule(days=1))
    assert lifecycle.after(3) == {"expired": 1}
    assert lifecycle.listed() == [("k", True), ("k", False), ("k", False), ("k", False)]
    assert lifecycle.after(4) == {}  # the marker has versions behind it
    lifecycle.rules(rule(noncurrent_days=1, newer_noncurrent=2))
    assert lifecycle.after(5) == {"versions": 1}
    lifecycle.rules(rule(noncurrent_days=1, expired_marker=True))
    assert lifecycle.after(6) == {"versions": 1, "locked": 1}
    assert lifecycle.listed() == [("k", True), ("k", False)]


def test_a_delete_marker_with_nothing_behind_it_goes(lifecycle: Lifecycle) -> None:
    lifecycle.versions()
    lifecycle.put("k")
    lifecycle.client.delete_object(ACCOUNT, BUCKET, "k")
    lifecycle.rules(rule(noncurrent_days=1, expired_marker=True))
    assert lifecycle.after(3) == {"versions": 1}
    assert lifecycle.after(3.1) == {"markers": 1}
    assert lifecycle.listed() == []


def test_uploads_that_nobody_completed_are_aborted(lifecycle: Lifecycle) -> None:
    segments = f"{BUCKET}+segments"
    lifecycle.client.create_container(ACCOUNT, segments)
    for name, kind in ((f"k/{UPLOAD_ID}", "application/directory"), (f"k/{UPLOAD_ID}/1", ""), (f"x/{UPLOAD_ID}/1", "")):
        lifecycle.client.put_object(b"", ACCOUNT, segments, name, {"Content-Type": kind or "text/plain"})
    lifecycle.rules(rule(abort_days=2))
    assert lifecycle.after(1) == {}
    assert lifecycle.after(4) == {"uploads": 1}
    assert lifecycle.names(segments) == [f"k/{UPLOAD_ID}/1", f"x/{UPLOAD_ID}/1"], "somebody may be completing it"
    assert lifecycle.after(5) == {}
    assert lifecycle.names(segments) == [f"x/{UPLOAD_ID}/1"]
    assert not list(lifecycle.client.list_container(".s3", "ending"))


def test_parts_of_an_object_are_not_taken_for_an_upload(lifecycle: Lifecycle) -> None:
    """A node died between the manifest and the removal of the marker."""
    segments = f"{BUCKET}+segments"
    lifecycle.client.create_container(ACCOUNT, segments)
    for name, kind in ((f"k/{UPLOAD_ID}", "application/directory"), (f"k/{UPLOAD_ID}/1", "text/plain")):
        lifecycle.client.put_object(b"", ACCOUNT, segments, name, {"Content-Type": kind})
    lifecycle.put("k", b"data", **{"X-Object-Sysmeta-S3api-Upload-Id": UPLOAD_ID})
    lifecycle.rules(rule(abort_days=2))
    assert lifecycle.after(4) == {"uploads": 1}
    assert lifecycle.after(5) == {}
    assert lifecycle.names(segments) == [f"k/{UPLOAD_ID}/1"]
    assert not list(lifecycle.client.list_container(".s3", "ending"))


@pytest.mark.parametrize("status", [403, 503])
def test_while_it_cannot_be_known_whether_an_upload_is_complete_its_parts_stay(lifecycle: Lifecycle, status: int) -> None:
    segments, app = f"{BUCKET}+segments", lifecycle.daemon.client.app
    lifecycle.client.create_container(ACCOUNT, segments)
    for key in ("a", "k"):
        for name, kind in ((f"{key}/{IDS[key]}", "application/directory"), (f"{key}/{IDS[key]}/1", "text/plain")):
            lifecycle.client.put_object(b"", ACCOUNT, segments, name, {"Content-Type": kind})

    def refusing(environ: Any, start_response: Any) -> Any:
        is_it = (environ["REQUEST_METHOD"], environ["PATH_INFO"]) == ("HEAD", f"/v1/{ACCOUNT}/{BUCKET}/a")
        return (Response(status) if is_it else app)(environ, start_response)

    lifecycle.daemon.client = InternalClient(refusing, "container-lifecycle 1", tries=1)
    lifecycle.rules(rule(abort_days=2))
    assert lifecycle.after(4) == {"uploads": 2}
    assert lifecycle.after(5) == {"failures": 1}, "the other one goes all the same"
    assert lifecycle.names(segments) == [f"a/{IDS['a']}/1"]


def test_without_versioned_writes_in_the_pipeline_nothing_goes(lifecycle: Lifecycle) -> None:
    lifecycle.versions()
    lifecycle.put("k")
    lifecycle.rules(rule(days=1))
    daemon = lifecycle.daemon
    daemon.client = InternalClient(lifecycle.daemons.cluster.proxy, "test", tries=1)
    assert lifecycle.after(3) == {"failures": 1}
    assert lifecycle.listed() == [("k", False)]


def test_a_dry_run_says_what_it_would_look_at(lifecycle: Lifecycle) -> None:
    lifecycle.rules(rule(days=1))
    assert list(lifecycle.daemon.dry_run()) == [f"carry out the lifecycle rules of {ACCOUNT}/{BUCKET}"]


# -- who else is at it -------------------------------------------------------------------------------------------------


def both(lifecycle: Lifecycle, days: float) -> dict[str, int]:
    """What two daemons that do not know of each other do at the same time, each as if it were alone."""
    lifecycle.daemons.clock.ahead_s = days * DAY_S
    daemons = [lifecycle.daemon, lifecycle.another()]
    for task in [concurrency.spawn(daemon.run_once) for daemon in daemons]:
        task.wait()
    assert not any(daemon.counts["failures"] for daemon in daemons)
    return {name: sum(daemon.counts[name] for daemon in daemons) for name in lifecycle.daemon.counts}


def test_two_daemons_at_once_make_one_delete_marker(lifecycle: Lifecycle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle_module, "WINDOW_S", 1e9)  # the hour does not end meanwhile
    lifecycle.versions()
    for name in ("a", "b", "c"):
        lifecycle.put(name)
    lifecycle.rules(rule(days=1))
    for _ in range(2):  # which both daemons get to the same key together depends on luck, but not what comes of it
        both(lifecycle, 3)
    assert sorted(lifecycle.listed()) == [(name, is_marker) for name in ("a", "b", "c") for is_marker in (False, True)]
    assert lifecycle.names() == []


def test_a_daemon_that_comes_late_makes_no_second_marker(lifecycle: Lifecycle, monkeypatch: pytest.MonkeyPatch) -> None:
    """It looked before the other one wrote."""
    monkeypatch.setattr(lifecycle_module, "WINDOW_S", 1e9)
    lifecycle.versions()
    lifecycle.put("k")
    lifecycle.rules(rule(days=1))
    mark = ContainerLifecycle._mark

    def slow(self: ContainerLifecycle, *args: Any) -> None:
        mark(self, *args)
        mark(self, *args)

    monkeypatch.setattr(ContainerLifecycle, "_mark", slow)
    lifecycle.after(3)
    assert lifecycle.listed() == [("k", True), ("k", False)]


def test_a_marker_hides_nothing_that_came_after_the_look(lifecycle: Lifecycle, monkeypatch: pytest.MonkeyPatch) -> None:
    lifecycle.versions()
    lifecycle.put("k", b"old")
    lifecycle.rules(rule(days=1))
    mark = ContainerLifecycle._mark

    def overtaken(self: ContainerLifecycle, *args: Any) -> None:
        lifecycle.put("k", b"new")
        mark(self, *args)

    monkeypatch.setattr(ContainerLifecycle, "_mark", overtaken)
    monkeypatch.setattr(lifecycle_module, "WINDOW_S", 1e9)
    lifecycle.after(3)
    assert lifecycle.client.get_object(ACCOUNT, BUCKET, "k").read() == b"new"
    assert lifecycle.listed() == [("k", False), ("k", False)]


def test_what_was_brought_back_ends_again(lifecycle: Lifecycle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its version is older than the time at which it became the current object once more."""
    monkeypatch.setattr(lifecycle_module, "WINDOW_S", 1e9)
    lifecycle.versions()
    lifecycle.put("k", b"old")
    lifecycle.rules(rule(days=1))
    lifecycle.after(3)
    (marker, _), (version, _) = lifecycle.ids()
    lifecycle.client.request("DELETE", f"/v1/{ACCOUNT}/{BUCKET}/k", params={"version-id": marker}).drain()
    lifecycle.client.request("PUT", f"/v1/{ACCOUNT}/{BUCKET}/k", params={"version-id": version}).drain()
    assert lifecycle.client.get_object(ACCOUNT, BUCKET, "k").read() == b"old"
    assert lifecycle.after(4) == {"expired": 1}
    assert lifecycle.client.get_object(ACCOUNT, BUCKET, "k", acceptable=(404,)).status == 404
    assert [is_latest for _, is_latest in lifecycle.ids()] == [True, False]


@pytest.mark.parametrize(("modified", "now", "day", "expected"), [
    (5000.0, 10_000.0, DAY_S, 7200.0), (8000.0, 10_000.0, DAY_S, 8000.00001), (5.0, 10.1, 24.0, 10.0), (9999.0, 10_800.0, DAY_S, 10_800.0),
])
def test_markers_of_an_hour_have_one_time(modified: float, now: float, day: float, expected: float) -> None:
    assert lifecycle_module.marker_s(modified, now, day) == pytest.approx(expected, abs=1e-6)


def test_two_daemons_at_once_end_plain_objects_and_uploads(lifecycle: Lifecycle) -> None:
    segments = f"{BUCKET}+segments"
    lifecycle.client.create_container(ACCOUNT, segments)
    for name in ("a", "b"):
        lifecycle.put(name)
        for part, kind in ((f"{name}/{UPLOAD_ID}", "application/directory"), (f"{name}/{UPLOAD_ID}/1", "text/plain")):
            lifecycle.client.put_object(b"", ACCOUNT, segments, part.replace(UPLOAD_ID, IDS.get(name, "B" * 48)), {"Content-Type": kind})
    lifecycle.rules(rule(days=1, abort_days=1))
    both(lifecycle, 3)
    assert lifecycle.names() == []
    both(lifecycle, 4)
    assert lifecycle.names(segments) == [] and not list(lifecycle.client.list_container(".s3", "ending"))


def test_parts_of_an_upload_that_was_completed_after_all_stay(lifecycle: Lifecycle) -> None:
    """A proxy of another machine had found the marker before the daemon took it away."""
    lifecycle.begin_upload()
    assert lifecycle.after(4) == {"uploads": 1}
    large(lifecycle)
    assert lifecycle.after(5) == {}
    assert lifecycle.client.get_object(ACCOUNT, BUCKET, "k").read() == b"part"


def large(lifecycle: Lifecycle) -> None:
    manifest = json.dumps([{"path": f"/{BUCKET}+segments/k/{UPLOAD_ID}/1"}]).encode()
    lifecycle.client.request("PUT", f"/v1/{ACCOUNT}/{BUCKET}/k", {"X-Object-Sysmeta-S3api-Upload-Id": UPLOAD_ID}, body=manifest,
                             params={"multipart-manifest": "put"}).drain()


def test_the_parts_of_an_upload_wait_from_the_newest_note_on(lifecycle: Lifecycle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another daemon has only now got as far as taking away the marker, and has noted the upload anew."""
    segments = lifecycle.begin_upload()
    assert lifecycle.after(4) == {"uploads": 1}
    planned = lifecycle_module.Ending(ACCOUNT, BUCKET, UPLOAD_ID, 0.0)
    lifecycle.daemons.clock.ahead_s = 0
    assert lifecycle.daemon._end(planned)
    assert lifecycle.names(segments) == [f"k/{UPLOAD_ID}/1"]
    assert lifecycle.after(5) == {} and lifecycle.names(segments) == []


@pytest.mark.parametrize("is_overtaken", [False, True])
def test_an_object_of_parts_ends_only_as_it_was_listed(lifecycle: Lifecycle, monkeypatch: pytest.MonkeyPatch, is_overtaken: bool) -> None:
    segments = f"{BUCKET}+segments"
    lifecycle.client.create_container(ACCOUNT, segments)
    lifecycle.client.put_object(b"part", ACCOUNT, segments, f"k/{UPLOAD_ID}/1")
    large(lifecycle)
    lifecycle.rules(rule(days=1))
    later = ContainerLifecycle._end_later

    def overtaken(self: ContainerLifecycle, *args: Any) -> None:
        if is_overtaken:
            large(lifecycle)  # a copy onto itself, say: newer, and of the same parts
        later(self, *args)

    monkeypatch.setattr(ContainerLifecycle, "_end_later", overtaken)
    lifecycle.after(3)
    lifecycle.rules(rule("other", days=1))
    lifecycle.after(4)
    assert lifecycle.names() == (["k"] if is_overtaken else [])
    assert lifecycle.names(segments) == ([f"k/{UPLOAD_ID}/1"] if is_overtaken else [])
