"""A small PUT or DELETE of devices that one process has: a quorum waits for no slow one, and what fails has a handoff."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import time
from collections.abc import Callable

import pytest

from keelstore.common import concurrency, disk_calls, disk_steps
from keelstore.common.concurrency import spawn, time_limit
from keelstore.common.headers import Headers
from keelstore.common.pace import Pace
from keelstore.common.quorum import have_quorum
from keelstore.common.timestamp import Timestamp
from keelstore.obj import together
from keelstore.proxy.fanout import Gathering
from test.support.cluster import InProcessCluster

OBJ = "/v1/a/c/o"


def settled(condition: Callable[[], object], what: str) -> None:
    """Green threads run meanwhile."""
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, what
        concurrency.sleep(0.005)


@pytest.fixture(autouse=True)
def pace(monkeypatch):
    """Nothing is slow because the machine is busy."""
    monkeypatch.setattr(disk_calls, "_pace", Pace(lambda: 0.0))


@pytest.fixture
def make(tmp_path):
    """Clusters, with a container. All devices of a node answer together."""
    made = []

    def make(nodes=1, devices=8, **options):
        root = tmp_path / str(len(made))
        root.mkdir()
        cluster = InProcessCluster(root, nodes, devices, **{"post_quorum_timeout": "0.01", **options})
        made.append(cluster)
        assert cluster.ask("PUT", "/v1/a/c").status == 201
        return cluster

    yield make
    for cluster in made:
        cluster.close()


@pytest.fixture
def together_calls(monkeypatch):
    """How many devices each change was of."""
    found, real = [], together.change
    monkeypatch.setattr(together, "change", lambda server, method, path, copies, *rest: (
        found.append(len(copies)), real(server, method, path, copies, *rest))[1])
    return found


def devices_of(cluster):
    return [node.device for node in cluster.primaries("object", "/a/c/o")]


def object_files(cluster, ending=".data"):
    return cluster.files(ending)


def listed(cluster):
    return cluster.ask("GET", "/v1/a/c", query="format=json").body


def on_device(cluster, method, device, at=0.0, **headers):
    """A request to the object server of one device."""
    node = next(node for node in cluster.proxy.rings.object(cluster.proxy.cluster.policies.default).current().nodes
                if node.device == device)
    ring = cluster.proxy.rings.object(cluster.proxy.cluster.policies.default).current()
    part = ring.partition(cluster.proxy.cluster.hash_path.digest("a", "c", "o"))
    sent = Headers({"X-Timestamp": Timestamp(time.time() + at).internal, "Content-Type": "text/plain", **headers})
    return cluster.proxy.backend.call(node.address, method, f"/{device}/{part}/a/c/o", sent, body=b"other" if method == "PUT" else b"")


@pytest.mark.parametrize(("nodes", "devices", "each"), [(1, 8, 3), (4, 2, 1), (2, 3, 2)])
def test_the_devices_of_one_node_answer_together(make, together_calls, nodes, devices, each):
    cluster = make(nodes, devices)
    assert cluster.ask("PUT", OBJ, body=b"hello").status == 201
    settled(lambda: object_files(cluster) == sorted(devices_of(cluster)), "all have it")
    assert together_calls == [each]
    answer = cluster.ask("GET", OBJ)
    assert (answer.status, answer.body) == (200, b"hello")
    settled(lambda: b'"name": "o"' in listed(cluster), "it is listed")
    assert cluster.ask("DELETE", OBJ).status == 204 and together_calls == [each, each]
    settled(lambda: object_files(cluster, ".ts") == sorted(devices_of(cluster)) and not object_files(cluster), "all have deleted it")
    assert cluster.ask("DELETE", OBJ).status == 404
    settled(lambda: listed(cluster) == b"[]", "it is listed no more")


def test_the_client_gets_what_it_gets_without_it(make):
    one, other = make(), make()
    other.proxy.backend.together = lambda address: None
    asked = [
        ("DELETE", {}, b""), ("PUT", {}, b"hello"), ("PUT", {"X-Object-Meta-A": "1", "Content-Type": "x/y"}, b""),
        ("PUT", {"Etag": "0" * 32}, b"hello"), ("PUT", {"If-None-Match": "*"}, b"hello"), ("POST", {"X-Object-Meta-B": "2"}, b""),
        ("PUT", {"X-Object-Meta-C": "v" * 257}, b"hello"), ("PUT", {"X-Delete-After": "100"}, b"x"), ("PUT", {}, b"y"),
        ("DELETE", {}, b""), ("DELETE", {}, b""),
    ]  # fmt: skip

    def facts(cluster, method, headers, body):
        answer = cluster.ask(method, OBJ, headers, body)
        varies = ("Date", "Last-Modified", "X-Trans-Id", "X-Openstack-Request-Id", "X-Timestamp", "X-Backend-Timestamp")
        return answer.status, {name: value for name, value in answer.headers.items() if name not in varies}, answer.body

    found = [[facts(cluster, *request) for cluster in (one, other)] for request in asked]
    assert [pair[0] for pair in found] == [pair[1] for pair in found]
    assert [pair[0][0] for pair in found] == [404, 201, 201, 422, 412, 202, 400, 201, 201, 204, 404]


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
@pytest.mark.parametrize("nodes", [1, 4])
def test_a_quorum_answers_while_one_is_late(make, held, method, nodes):
    cluster = make(nodes, 8 // nodes)
    assert cluster.ask("PUT", OBJ, body=b"old").status == 201
    settled(lambda: len(object_files(cluster)) == 3, "all have it")
    slow = devices_of(cluster)[1]
    held.hold(str(cluster.device_path(slow)))
    assert cluster.ask(method, OBJ, body=b"hello" if method == "PUT" else b"").status == (201 if method == "PUT" else 204)
    with open(next(cluster.device_path(slow).rglob("*.data")), "rb") as file:
        assert file.read() == b"old"  # not there yet
    held.let_go()

    def is_there():
        if method == "DELETE":
            return slow in object_files(cluster, ".ts")
        return any(path.read_bytes() == b"hello" for path in cluster.device_path(slow).rglob("*.data"))

    settled(is_there, "the late one has it, too")
    settled(lambda: len(object_files(cluster, ".data" if method == "PUT" else ".ts")) == 3, "the older ones are gone")


def test_one_that_waits_for_a_lock_is_late(make):
    cluster = make()
    assert cluster.ask("PUT", OBJ, body=b"old").status == 201
    slow = devices_of(cluster)[0]
    (data,) = cluster.device_path(slow).rglob("*.data")
    fd = os.open(data.parents[2] / ".lock", os.O_WRONLY | os.O_CREAT, 0o644)
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        assert cluster.ask("PUT", OBJ, body=b"hello").status == 201
        assert data.read_bytes() == b"old"
    finally:
        os.close(fd)
    settled(lambda: any(path.read_bytes() == b"hello" for path in data.parent.glob("*.data")), "it has it")
    settled(lambda: len(object_files(cluster)) == 3, "the older ones are gone")
    assert not cluster.proxy.health.limited()


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_a_late_one_that_fails_is_replaced(make, held, method):
    cluster = make()
    slow = devices_of(cluster)[1]
    ending, body = (".data", b"hello") if method == "PUT" else (".ts", b"")
    held.hold(str(cluster.device_path(slow)))
    assert cluster.ask(method, OBJ, body=body).status == (201 if method == "PUT" else 404)
    assert len(object_files(cluster, ending)) == 2
    held.let_go(errno.EIO)
    settled(lambda: len(object_files(cluster, ending)) == 3, "a handoff has it")
    assert slow not in object_files(cluster, ending) and cluster.proxy.health._errors


def test_one_that_is_later_than_a_node_may_be_is_replaced(make, held):
    cluster = make(node_timeout="0.3")
    slow = devices_of(cluster)[1]
    held.hold(str(cluster.device_path(slow)))
    assert cluster.ask("PUT", OBJ, body=b"hello").status == 201
    settled(lambda: len(object_files(cluster)) == 3, "a handoff has it")
    assert slow not in object_files(cluster)
    held.let_go()
    settled(lambda: len(object_files(cluster)) == 4, "and the late one in the end")


def test_no_quorum_is_waited_for(make, held):
    cluster = make()
    late = devices_of(cluster)[:2]
    held.hold(*(str(cluster.device_path(device)) for device in late))
    task = spawn(cluster.ask, "PUT", OBJ, None, b"hello")
    settled(lambda: len(object_files(cluster)) == 1, "the first has it")
    settled(lambda: len(held.held) >= 2, "two are late")
    held.let_go()
    with time_limit(30):
        assert task.wait().status == 201
    settled(lambda: object_files(cluster) == sorted(devices_of(cluster)), "all have it")


@pytest.mark.parametrize("what", ["gone", "error"])
@pytest.mark.parametrize("which", [0, 2])
def test_one_that_fails_at_once_is_replaced(make, held, what, which):
    cluster = make()
    bad = devices_of(cluster)[which]
    if what == "gone":
        shutil.rmtree(cluster.device_path(bad))
    else:
        held.fail(str(cluster.device_path(bad)))
    assert cluster.ask("PUT", OBJ, body=b"hello").status == 201
    settled(lambda: len(object_files(cluster)) == 3, "a handoff has it")
    assert bad not in object_files(cluster)


def test_too_few_are_503(make, held):
    cluster = make(devices=3)
    for device in devices_of(cluster)[:2]:
        held.fail(str(cluster.device_path(device)))
    assert cluster.ask("PUT", OBJ, body=b"hello").status == 503
    assert object_files(cluster) == devices_of(cluster)[2:]


@pytest.mark.parametrize("which", [0, 1])
def test_something_newer_on_one_is_accepted(make, which):
    cluster = make()
    newer = devices_of(cluster)[which]
    assert on_device(cluster, "PUT", newer, 1000.0).status == 201
    assert cluster.ask("PUT", OBJ, body=b"hello").status == 202
    settled(lambda: object_files(cluster) == sorted(devices_of(cluster)), "the others have it")


def test_a_node_that_is_down_has_its_share_taken_by_others(make):
    cluster = make(4, 2)
    down = cluster.primaries("object", "/a/c/o")[0]
    cluster.stop(down.address)
    assert cluster.ask("PUT", OBJ, body=b"hello").status == 201
    settled(lambda: len(object_files(cluster)) == 3, "a handoff has it")
    assert down.device not in object_files(cluster)


def test_when_who_asks_is_stopped_nothing_runs_on(make, held, monkeypatch):
    monkeypatch.setattr(disk_steps, "LATE_S", 30.0)
    cluster = make()
    assert cluster.ask("PUT", "/v1/a/c/other", body=b"x").status == 201
    held.hold(str(cluster.root))
    task = spawn(cluster.ask, "PUT", OBJ, None, b"hello")
    settled(lambda: held.held, "it has begun")
    task.kill()
    pace = disk_calls.pace()
    assert not any(pace.volume(device).running for device in devices_of(cluster)) and not disk_calls._syncs._waiting
    held.let_go()
    assert cluster.ask("GET", OBJ).status == 404 and cluster.ask("PUT", OBJ, body=b"hello").status == 201


# -- gathering


def two(found):
    return len(found) >= 2


def test_what_is_given_before_is_not_waited_for():
    gathering = Gathering(3, two)
    for number in range(3):
        gathering.give(number)
    assert gathering.wait(30.0) == [0, 1, 2]


def test_enough_before_waits_only_for_the_grace():
    gathering = Gathering(3, two)
    gathering.give("a")
    gathering.give("b")
    assert gathering.wait(0.0) == ["a", "b"] and gathering.wait(0.001) == ["a", "b"]
    gathering.give("c")  # late, and unheard
    assert gathering.wait(30.0) == ["a", "b", "c"]


def test_what_comes_within_the_grace_counts():
    gathering = Gathering(3, two)
    gathering.give("a")
    gathering.give("b")
    task = spawn(gathering.wait, 30.0)
    concurrency.sleep(0)
    gathering.give("c")
    with time_limit(30):
        assert task.wait() == ["a", "b", "c"]


def test_nothing_does_not_count_and_all_that_end_are_enough():
    gathering = Gathering(3, two)
    task = spawn(gathering.wait, 30.0)
    concurrency.sleep(0)
    for result in (None, "b", None):
        gathering.give(result)
    with time_limit(30):
        assert task.wait() == ["b"]


def test_a_quorum_is_enough_while_another_runs():
    gathering, go_on, told = Gathering(3, lambda found: have_quorum(found, 3)), concurrency.Event(), []

    def slow():
        go_on.wait(30)
        return 201

    gathering.start([slow, lambda: 503, lambda: 201], told.append)
    task = spawn(gathering.wait, 0.0)
    concurrency.sleep(0.005)
    gathering.start([], told.append)
    assert not go_on.is_set
    go_on.set()
    with time_limit(30):
        assert sorted(task.wait()) == [201, 201, 503]
    assert not told


def test_a_job_that_raises_gives_nothing_and_is_told_of():
    gathering, told = Gathering(3, two), []

    def fail():
        raise ValueError("no")

    gathering.start([fail, lambda: 1], told.append)
    gathering.give(2)
    with time_limit(30):
        assert sorted(spawn(gathering.wait, 30.0).wait()) == [1, 2]
    assert [type(error) for error in told] == [ValueError]
