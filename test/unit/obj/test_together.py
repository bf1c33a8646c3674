"""A small PUT or DELETE that several devices of one object server make together: as if each were asked in full, and no device
holds up or spoils another.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import logging
import os
from hashlib import md5
from typing import Any

import pytest

from keelstore.common import concurrency, disk_calls, disk_steps, disk_turns, fs
from keelstore.common.concurrency import spawn, time_limit
from keelstore.common.headers import Headers
from keelstore.common.http import Response, call_app
from keelstore.common.pace import Pace
from keelstore.obj import together
from keelstore.obj.together import UNUSUAL, Late
from test.support.faulty_os import Crash, FaultyOs
from test.support.held_syncs import synced_here
from test.support.objects import NOW, OBJECT, ServerBox, stamp

DEVICES = ("sda1", "sdb1", "sdc1")
CONTAINER = ("127.0.0.1", 6201)
DUE = str(int(NOW) + 50)


class Rows:
    """A container server. ``takes``: at once; else it has to be asked in full. ``status``: of that."""

    def __init__(self, takes: bool = True, status: str = "201 Created"):
        self.takes, self.status = takes, status
        self.told: list[tuple[str, str, dict[str, str]]] = []

    def row_taker(self, method: str, path: str, headers: Headers) -> Any:
        if not self.takes:
            return None

        def take(device: str, partition: str) -> bool:
            self.told.append((method, f"/{device}/{partition}{path}", dict(headers)))
            return True

        return take

    def __call__(self, environ: dict[str, Any], start_response: Any) -> list[bytes]:
        self.told.append((environ["REQUEST_METHOD"], environ["PATH_INFO"], {}))
        start_response(self.status, [("Content-Length", "0")])
        return []


class Box(ServerBox):
    def __init__(self, directory: str, **options: Any):
        os.makedirs(directory, exist_ok=True)
        for device in DEVICES:
            os.mkdir(f"{directory}/{device}")
        self.rows = Rows()
        super().__init__(directory, {CONTAINER: self.rows}, **options)

    def wanted(self, method: str, headers: dict[str, str] | None, at: float) -> list[tuple[Any, str, Headers]]:
        found = []
        for number, device in enumerate(DEVICES):
            sent = Headers({
                "X-Timestamp": stamp(at).internal, "X-Container-Partition": "3", "X-Container-Device": f"c{number}",
                "X-Container-Host": f"{CONTAINER[0]}:{CONTAINER[1]}", "X-Trans-Id": "tx1", **(headers or {}),
            })  # fmt: skip
            if method == "PUT":
                sent.setdefault("Content-Type", "text/plain")
            found.append((OBJECT, device, sent))
        return found

    def together(self, method: str, path: str = "/7/a/c/o", headers: dict[str, str] | None = None, body: bytes = b"hello",
                 at: float = 0) -> list[Response | Late | None]:
        body = body if method == "PUT" else b""
        return self.app.together(method, path, self.wanted(method, headers, at), body,
                                 lambda: md5(body, usedforsecurity=False).hexdigest())

    def in_full(self, method: str, path: str = "/7/a/c/o", headers: dict[str, str] | None = None, body: bytes = b"hello",
                at: float = 0, devices: tuple[str, ...] = DEVICES) -> list[Response]:
        body = body if method == "PUT" else b""
        return [self.backend.call(address, method, f"/{device}{path}", sent, body=body,
                                  digest=lambda: md5(body, usedforsecurity=False).hexdigest())
                for address, device, sent in self.wanted(method, headers, at) if device in devices]

    def read(self, device: str, path: str = "/7/a/c/o") -> bytes | None:
        answer = self.call("GET", f"/{device}{path}")
        body = answer.read()
        return body if answer.status == 200 else None

    def below(self, device: str) -> str:
        return f"{self.devices}/{device}/"

    def state(self) -> dict[str, Any]:
        """All files, with content and attributes."""
        found = {}
        for top, directories, files in os.walk(self.devices):
            for name in (*directories, *files):
                path = f"{top}/{name}"
                content = None
                if name in files:
                    with open(path, "rb") as file:
                        content = file.read()
                found[os.path.relpath(path, self.devices)] = content, {key: os.getxattr(path, key) for key in os.listxattr(path)}
        return found

    def is_at_rest(self) -> bool:
        """Nothing is kept of a request: no turn, no call, no wait, no file, no lock. What is removed is closed a moment later."""
        pace = disk_calls.pace()
        if any(pace.volume(device).running or pace.volume(device).used for device in DEVICES) or disk_calls._syncs._waiting:
            return False
        for _ in range(1000):
            if not any(map(self._is_ours, os.listdir("/proc/self/fd"))):
                return True
            concurrency.sleep(0.005)
        return False

    def _is_ours(self, fd: str) -> bool:
        try:
            return os.readlink(f"/proc/self/fd/{fd}").startswith(tuple(map(self.below, DEVICES)))
        except OSError:
            return False


@pytest.fixture(autouse=True)
def pace(monkeypatch):
    """Nothing is slow or late because the machine is busy."""
    monkeypatch.setattr(disk_calls, "_pace", Pace(lambda: 0.0))
    monkeypatch.setattr(disk_steps, "LATE_S", 30.0)
    disk_turns._forget()
    yield
    disk_turns._forget()


@pytest.fixture
def box(tmp_path):
    return Box(str(tmp_path))


def facts(answer):
    """Of a good answer, which has no body, without what says so."""
    assert isinstance(answer, Response)
    if answer.body is None and answer.app_iter is None:  # what its status explains
        answer = call_app(answer, {"REQUEST_METHOD": "GET"})
    headers = dict(answer.headers)
    if answer.is_success:
        assert headers.pop("Content-Length", "0") == "0" and "text/html" in headers.pop("Content-Type", "text/html")
    return answer.status, headers, answer.body or b""


def kinds(outcomes):
    return [outcome.status if isinstance(outcome, Response) else outcome and "late" for outcome in outcomes]


def told(late):
    with time_limit(30):
        return spawn(late.wait, 30).wait()


def answered(outcome):
    return (told(outcome) if isinstance(outcome, Late) else outcome).status


# -- the same as in full

PUT0, DELETE0 = ("PUT", {}, 0), ("DELETE", {}, 0)
EC = {"X-Backend-Storage-Policy-Index": "2"}
CASES = {
    "plain": ([], "PUT", {}, [201] * 3),
    "metadata": ([], "PUT", {"X-Object-Meta-A": "1", "X-Object-Sysmeta-B": "2", "X-Object-Transient-Sysmeta-C": "3",
                             "Content-Encoding": "gzip", "Content-Disposition": "x", "X-Unknown": "no"}, [201] * 3),
    "much metadata": ([], "PUT", {f"X-Object-Meta-{i:02}": "v" * 250 for i in range(16)}, [201] * 3),
    "octets": ([], "PUT", {"X-Object-Meta-A": "\u00c3\u00a9", "Content-Type": "text/\u00ff"}, [201] * 3),
    "content type": ([], "PUT", {"Content-Type": "text/html; charset=UTF-8"}, [201] * 3),
    "another policy": ([], "PUT", {"X-Backend-Storage-Policy-Index": "1"}, [201] * 3),
    "its etag": ([], "PUT", {"Etag": md5(b"hello").hexdigest()}, [201] * 3),
    "its etag, quoted": ([], "PUT", {"Etag": f'"{md5(b"hello").hexdigest().upper()}"'}, [201] * 3),
    "overrides": ([], "PUT", {"X-Backend-Container-Update-Override-Etag": "e", "X-Object-Sysmeta-Container-Update-Override-Size": "9"},
                  [201] * 3),
    "to a shard": ([], "PUT", {"X-Backend-Quoted-Container-Path": ".shards_a/c-1"}, [201] * 3),
    "no container": ([], "PUT", {"X-Container-Partition": ""}, [201] * 3),
    "over an older object": ([("PUT", {"X-Object-Meta-Old": "x"}, -1)], "PUT", {}, [201] * 3),
    "over an older tombstone": ([("DELETE", {}, -1)], "PUT", {}, [201] * 3),
    "over one with newer metadata": ([("PUT", {}, -1), ("POST", {"X-Object-Meta-New": "y"}, 1)], "PUT", {}, [201] * 3),
    "over a newer tombstone": ([("DELETE", {}, 1)], "PUT", {}, [None] * 3),
    "over as old an object": ([PUT0], "PUT", {}, [None] * 3),
    "over a newer object": ([("PUT", {}, 1)], "PUT", {}, [None] * 3),
    "over one that is to expire": ([("PUT", {"X-Delete-At": DUE}, -1)], "PUT", {}, [None] * 3),
    "another etag": ([], "PUT", {"Etag": "0" * 32}, [None] * 3),
    "no content type": ([], "PUT", {"Content-Type": ""}, [None] * 3),
    "no timestamp": ([], "PUT", {"X-Timestamp": "now"}, [None] * 3),
    "long value": ([], "PUT", {"X-Object-Meta-A": "v" * 257}, [None] * 3),
    "no policy": ([], "PUT", {"X-Backend-Storage-Policy-Index": "9"}, [None] * 3),
    "no fragment": ([], "PUT", EC, [None] * 3),
    "delete": ([("PUT", {}, -1)], "DELETE", {}, [204] * 3),
    "delete what is not there": ([], "DELETE", {}, [404] * 3),
    "delete what is deleted": ([("DELETE", {}, -1)], "DELETE", {}, [404] * 3),
    "delete what is deleted later": ([("DELETE", {}, 1)], "DELETE", {}, [404] * 3),
    "delete something newer": ([("PUT", {}, 1)], "DELETE", {}, [409] * 3),
    "delete something as new": ([PUT0], "DELETE", {}, [409] * 3),
    "delete what is to expire": ([("PUT", {"X-Delete-At": DUE}, -1)], "DELETE", {}, [None] * 3),
    "delete with newer metadata": ([("PUT", {}, -1), ("POST", {}, 1)], "DELETE", {}, [204] * 3),
    "delete fragments": ([("PUT", {**EC, "X-Object-Sysmeta-Ec-Frag-Index": "1"}, -1)], "DELETE", EC, [204] * 3),
    "delete fragments that are not there": ([], "DELETE", EC, [404] * 3),
}  # fmt: skip


STRANGE = "/7/\u00e9/c \u65e5/%2F?\u00e9/\U0001f600"


@pytest.mark.parametrize(("case", "path"), [
    *[(case, "/7/a/c/o") for case in CASES],
    *[(case, STRANGE) for case in ("metadata", "over an older object", "over a newer object", "delete", "delete fragments")],
])
def test_it_is_as_if_each_were_asked_in_full(tmp_path, case, path):
    before, method, headers, expected = CASES[case]
    one, other = Box(f"{tmp_path}/one"), Box(f"{tmp_path}/other")
    for box in (one, other):
        for earlier, its_headers, at in before:
            box.in_full(earlier, path, its_headers, b"earlier", at)
        box.rows.told.clear()
    untouched = one.state()
    outcomes = one.together(method, path, headers)
    assert kinds(outcomes) == expected
    answers = other.in_full(method, path, headers)
    if None in outcomes:
        assert one.state() == untouched and not one.rows.told
        outcomes = one.in_full(method, path, headers)
    assert [facts(outcome) for outcome in outcomes] == [facts(answer) for answer in answers]
    assert one.state() == other.state()
    assert one.rows.told == other.rows.told
    assert one.is_at_rest()
    if expected == [201] * 3:
        assert len(one.rows.told) == (0 if case == "no container" else 3)


def test_an_expired_object_is_replaced_and_deleted_as_in_full(tmp_path):
    one, other = Box(f"{tmp_path}/one"), Box(f"{tmp_path}/other")
    for box in (one, other):
        box.in_full("PUT", headers={"X-Delete-At": DUE})
        box.in_full("PUT", "/7/a/c/p", headers={"X-Delete-At": DUE})
        box.clock.now = NOW + 100
        box.rows.told.clear()
    outcomes = [one.together("PUT", at=100), one.together("DELETE", "/7/a/c/p", at=100)]
    assert kinds(outcomes[0]) == [201] * 3 and kinds(outcomes[1]) == [None] * 3
    one.in_full("DELETE", "/7/a/c/p", at=100)
    other.in_full("PUT", at=100)
    other.in_full("DELETE", "/7/a/c/p", at=100)
    state, others = one.state(), other.state()
    assert {name: value for name, value in state.items() if "async" not in name} == {
        name: value for name, value in others.items() if "async" not in name}
    assert one.rows.told == other.rows.told


@pytest.mark.parametrize("name", sorted(UNUSUAL))
@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_what_is_unusual_is_left_alone(box, name, method):
    assert kinds(box.together(method, headers={name: "1"})) == [None] * 3
    assert all(os.listdir(box.below(device)) == [] for device in DEVICES) and not box.rows.told and box.is_at_rest()


@pytest.mark.parametrize("path", ["/7/a/c/\udcff", "/7/a/c/x\0y", "/../a/c/o", "/7/a/c", "/7/a//o"])
def test_a_path_that_is_none_is_left_alone(box, path):
    assert kinds(box.together("PUT", path)) == [None] * 3


def test_where_each_request_is_measured_or_logged_it_is_asked_in_full(tmp_path, monkeypatch):
    assert kinds(Box(f"{tmp_path}/slow", slow=1).together("PUT")) == [None] * 3
    box = Box(f"{tmp_path}/stats")
    monkeypatch.setattr(box.app, "stats", object())
    assert kinds(box.together("PUT")) == [None] * 3
    box = Box(f"{tmp_path}/debug")
    box.logger.setLevel(logging.DEBUG)
    try:
        assert kinds(box.together("PUT")) == [None] * 3
    finally:
        box.logger.setLevel(logging.NOTSET)


def test_a_body_whose_digest_is_not_known_is_left_alone(box):
    assert box.app.together("PUT", "/7/a/c/o", box.wanted("PUT", None, 0), b"x", None) == [None] * 3


# -- one device of three


def test_a_device_that_is_not_there_is_asked_in_full(box):
    os.rmdir(box.below("sdb1"))
    assert kinds(box.together("PUT")) == [201, None, 201]
    assert [answer.status for answer in box.in_full("PUT", devices=("sdb1",))] == [507] and not os.path.exists(box.below("sdb1"))


def test_when_it_is_the_first_all_are_asked_in_full(box):
    os.rmdir(box.below("sda1"))
    assert kinds(box.together("PUT")) == [None] * 3


def test_a_full_device_answers_for_itself(box, monkeypatch):
    from keelstore.common.errors import DeviceFull

    real = box.app.reserve.check

    def check(self, where, size=0):
        if where == f"{box.devices}/sdb1":
            raise DeviceFull("sdb1")
        return real(where, size)

    monkeypatch.setattr(type(box.app.reserve), "check", check)
    outcomes = box.together("PUT")
    assert kinds(outcomes) == [201, 507, 201] and outcomes[1].headers["X-Backend-Keelstore-Reason"] == "room"
    assert [box.read(device) for device in DEVICES] == [b"hello", None, b"hello"]
    assert kinds(box.together("DELETE", at=1)) == [204, 404, 204] and box.is_at_rest()


def test_a_newer_object_on_one_device_is_its_alone(box):
    box.in_full("PUT", body=b"newer", at=5, devices=("sdb1",))
    assert kinds(box.together("PUT")) == [201, None, 201]
    assert [answer.status for answer in box.in_full("PUT", devices=("sdb1",))] == [409]
    assert [box.read(device) for device in DEVICES] == [b"hello", b"newer", b"hello"]


@pytest.mark.parametrize("error", [OSError(errno.EIO, "broken"), ValueError("strange"), RuntimeError("no more threads")])
def test_a_device_that_cannot_be_looked_at_hinders_no_other(box, monkeypatch, error):
    box.in_full("PUT", at=-1)
    look = box.store.look

    def broken(place, **options):
        if place.device == "sdb1":
            raise error
        return look(place, **options)

    monkeypatch.setattr(box.store, "look", broken)
    assert kinds(box.together("PUT")) == [201, None, 201]
    assert [answer.status for answer in box.in_full("PUT", devices=("sdb1",))] == [500] and box.is_at_rest()


@pytest.mark.parametrize("was_there", [False, True])
def test_a_directory_that_a_cleaner_removes_before_it_is_written_into_is_made_again(box, monkeypatch, was_there):
    if was_there:
        box.in_full("PUT", at=-1, devices=("sdb1",))
        for path in glob.glob(f"{box.devices}/sdb1/objects/7/*/*/*"):
            os.unlink(path)
    together = disk_steps.together

    def cleaned(changes):
        (directory,) = glob.glob(f"{box.devices}/sdb1/objects/7/*/*")
        os.rmdir(directory)
        os.rmdir(os.path.dirname(directory))
        together(changes)

    monkeypatch.setattr(disk_steps, "together", cleaned)
    assert kinds(box.together("PUT")) == [201, 201, 201] and box.is_at_rest()
    assert [box.read(device) for device in DEVICES] == [b"hello"] * 3


@pytest.mark.parametrize("error,status", [(errno.EIO, 500), (errno.ENOSPC, 507)])
def test_a_device_on_which_no_directory_can_be_made_hinders_no_other(box, monkeypatch, error, status):
    mkdir = os.mkdir

    def broken(path, *rest):
        if path.startswith(f"{box.devices}/sdb1/"):
            raise OSError(error, os.strerror(error))
        return mkdir(path, *rest)

    monkeypatch.setattr(os, "mkdir", broken)
    assert kinds(box.together("PUT")) == [201, None, 201]
    assert [answer.status for answer in box.in_full("PUT", devices=("sdb1",))] == [status] and box.is_at_rest()
    assert [box.read(device) for device in DEVICES] == [b"hello", None, b"hello"]


def test_moving_away_what_is_damaged_holds_up_no_other(box):
    """Quarantine waits for the lock of the partition, which a replicator may hold for seconds."""
    box.in_full("PUT", at=-1)
    (name,) = [path for path in box.state() if path.startswith("sdb1") and path.endswith(".data")]
    os.truncate(f"{box.devices}/{name}", 1)
    lock = locked(box, "sdb1")
    try:
        with time_limit(5):  # the lock is waited for for 10
            assert kinds(spawn(box.together, "PUT").wait()) == [201, None, 201]
    finally:
        os.close(lock)
    assert [answer.status for answer in box.in_full("PUT", devices=("sdb1",))] == [201]
    assert [box.read(device) for device in DEVICES] == [b"hello"] * 3


def test_an_error_of_the_disk_is_that_devices(box, held):
    box.in_full("PUT", body=b"old", at=-1)
    held.fail(box.below("sdb1")[:-1])
    outcomes = box.together("PUT")
    assert kinds(outcomes) == [201, 500, 201]
    held.fail(box.below("sdb1")[:-1], 0)
    assert [box.read(device) for device in DEVICES] == [b"hello", b"old", b"hello"]
    assert len(box.rows.told) == 5 and box.is_at_rest()


def test_an_error_after_it_is_done_is_that_devices(box, monkeypatch):
    def fail(request):
        if request.path.startswith("/sdb1"):
            raise ValueError("the ring cannot be read")

    monkeypatch.setattr(box.app, "tell_of_handoff", fail)
    assert kinds(box.together("PUT")) == [201, 500, 201] and box.is_at_rest()


def test_a_slow_device_is_left_alone(box):
    disk_calls.pace().volume("sdb1").slow_until = 60.0
    assert kinds(box.together("PUT")) == [201, None, 201] and box.read("sdb1") is None


def test_a_device_without_a_turn_is_left_alone(box, monkeypatch):
    monkeypatch.setattr(box.app, "most_waiting", 10)
    pace = disk_calls.pace()
    found = {box.below(device)[:-1]: disk_turns.Turns(pace.volume(device)) for device in DEVICES}  # each its file system
    monkeypatch.setattr(disk_turns, "_turns_of", lambda device, path, now: found[path])
    turns = [disk_turns.ask("sdb1", box.below("sdb1")[:-1], 10) for _ in range(4)]
    for turn in turns:
        assert turn.begin_at_once()
    try:
        assert not disk_turns.ask("sdb1", box.below("sdb1")[:-1], 10).begin_at_once()
        assert kinds(box.together("PUT")) == [201, None, 201]
    finally:
        for turn in turns:
            turn.end()
    assert kinds(box.together("PUT", at=1)) == [201] * 3 and box.is_at_rest()


# -- late ones


def locked(box, device):
    """The lock of the partition, as another process would hold it."""
    directory = f"{box.below(device)}objects/7"
    os.makedirs(directory, exist_ok=True)
    fd = os.open(f"{directory}/.lock", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    fcntl.flock(fd, fcntl.LOCK_EX)
    return fd


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_one_that_waits_for_a_lock_answers_later(box, method):
    box.in_full("PUT", body=b"old", at=-1)
    box.rows.told.clear()
    lock = locked(box, "sdb1")
    outcomes = box.together(method)
    done = 201 if method == "PUT" else 204
    assert kinds(outcomes) == [done, "late", done]
    concurrency.sleep(0.005)
    assert [path.split("/")[1] for _, path, _ in box.rows.told] == ["c0", "c2"] and box.read("sdb1") == b"old"
    os.close(lock)
    answer = told(outcomes[1])
    assert facts(answer) == facts(outcomes[0]) and box.is_at_rest()
    assert [path.split("/")[1] for _, path, _ in box.rows.told] == ["c0", "c2", "c1"]
    assert [box.read(device) for device in DEVICES] == [b"hello" if method == "PUT" else None] * 3


@pytest.fixture
def soon(monkeypatch):
    """A sync that is held is late soon; others may be, then, when the machine is busy."""
    monkeypatch.setattr(disk_steps, "LATE_S", 0.05)


def test_one_whose_sync_takes_long_answers_when_it_is_safe(box, held, soon):
    held.hold(box.below("sdb1")[:-1])
    outcomes = box.together("PUT")
    assert isinstance(outcomes[1], Late) and [answered(outcomes[number]) for number in (0, 2)] == [201, 201]
    assert len(box.rows.told) == 2
    assert not any(path.startswith("sdb1") and path.endswith(".data") for path in box.state())
    held.let_go()
    assert told(outcomes[1]).status == 201 and box.read("sdb1") == b"hello" and len(box.rows.told) == 3
    assert box.is_at_rest()


def test_a_late_one_that_fails_says_so(box, held, soon):
    held.hold(box.below("sdb1")[:-1])
    outcomes = box.together("PUT")
    assert [answered(outcomes[number]) for number in (0, 2)] == [201, 201]
    held.let_go(errno.ENOSPC)
    answer = told(outcomes[1])
    assert answer.status == 507
    assert box.read("sdb1") is None and len(box.rows.told) == 2 and box.is_at_rest()


def test_a_container_server_that_is_asked_in_full_is_waited_for_beside(box):
    box.rows.takes = False
    outcomes = box.together("PUT")
    assert kinds(outcomes) == ["late"] * 3
    assert [told(outcome).status for outcome in outcomes] == [201] * 3 and len(box.rows.told) == 3
    assert not any("async" in path for path in box.state()) and box.is_at_rest()


def test_one_that_does_not_take_the_row_leaves_it_to_the_updater(tmp_path):
    one, other = Box(f"{tmp_path}/one"), Box(f"{tmp_path}/other")
    for box in (one, other):
        box.rows.takes, box.rows.status = False, "503 Busy"
    outcomes = one.together("PUT")
    assert [told(outcome).status for outcome in outcomes] == [201] * 3
    other.in_full("PUT")
    kept = [{path for path in box.state() if "async" in path} for box in (one, other)]
    assert kept[0] == kept[1] and len([path for path in kept[0] if path.count("/") == 3]) == 3


def test_when_who_asked_is_stopped_nothing_is_left(box, held):
    box.in_full("PUT", body=b"old", at=-1)
    held.hold(box.devices)
    task = spawn(box.together, "PUT")
    concurrency.sleep(0)
    assert len(disk_calls._syncs._waiting) == 3
    task.kill()
    concurrency.sleep(0)
    concurrency.sleep(0)
    assert box.is_at_rest() and len(box.rows.told) == 3  # nobody is told of what is not there
    held.let_go()
    assert [box.read(device) for device in DEVICES] == [b"old"] * 3
    assert kinds(box.together("PUT", at=1)) == [201] * 3


def test_who_asked_is_stopped_when_some_are_done(box, held, monkeypatch):
    """What is done is done, and the container is to hear of that, and of nothing else."""
    box.in_full("PUT", body=b"old", at=-1, devices=("sda1", "sdc1"))
    box.rows.told.clear()
    link = fs._link

    def linked(fd, name, directory_fd):
        link(fd, name, directory_fd)
        if os.readlink(f"/proc/self/fd/{directory_fd}").startswith(box.below("sdb1")):
            held.hold(box.below("sdb1")[:-1])  # the last of its steps, one more than the others have

    monkeypatch.setattr(fs, "_link", linked)
    task = spawn(box.together, "PUT")
    for _ in range(10000):
        concurrency.sleep(0)
        if held.held:
            break
    task.kill()
    for _ in range(3):
        concurrency.sleep(0)
    assert box.is_at_rest() and sorted(path.split("/")[1] for _, path, _ in box.rows.told) == ["c0", "c2"]
    assert [box.read(device) for device in ("sda1", "sdc1")] == [b"hello"] * 2


def test_who_asked_is_stopped_while_a_failure_is_answered(box, held, monkeypatch):
    held.fail(box.below("sda1")[:-1])
    answer = together._Copy._answer

    def stop(self, error):
        if error is not None:
            raise KeyboardInterrupt
        return answer(self, error)

    monkeypatch.setattr(together._Copy, "_answer", stop)
    with pytest.raises(KeyboardInterrupt):
        box.together("PUT")
    for _ in range(3):
        concurrency.sleep(0)
    assert box.is_at_rest() and sorted(path.split("/")[1] for _, path, _ in box.rows.told) == ["c1", "c2"]


def test_what_stops_the_asking_while_answers_are_made_gives_the_others_up(box, monkeypatch):
    lock = locked(box, "sdc1")

    def stop(*_args):
        raise KeyboardInterrupt

    monkeypatch.setattr(together._Copy, "_answer", stop)
    with pytest.raises(KeyboardInterrupt):
        box.together("PUT")
    os.close(lock)
    concurrency.sleep(0)
    concurrency.sleep(0)
    assert box.is_at_rest() and box.read("sdc1") is None
    assert {path.split("/")[1] for _, path, _ in box.rows.told} == {"c0", "c1"}  # what is done is told


# -- what is safe, and when


def test_what_is_acknowledged_is_safe(box, held, monkeypatch):
    link = fs._link

    def linked(fd, name, directory_fd):
        held.asked.append([f"link {os.readlink(f'/proc/self/fd/{directory_fd}')}"])
        link(fd, name, directory_fd)

    monkeypatch.setattr(fs, "_link", linked)
    assert kinds(box.together("PUT")) == [201] * 3
    events = [path for paths in held.asked for path in paths]
    for device in DEVICES:
        own = [path.replace(box.below(device), "") for path in events if f"{box.below(device)[:-1]}" in path]
        at = next(number for number, path in enumerate(own) if path.startswith("link "))
        directory = own[at].removeprefix("link ")
        suffix = os.path.dirname(directory)
        before, after = own[:at], own[at + 1:]
        assert directory in after  # the name
        assert any(path.startswith(directory) and "deleted" in path for path in before)  # the content
        assert "objects/7/hashes.invalid" in before and "objects/7" in before  # the note
        assert {box.below(device)[:-1], "objects", "objects/7", suffix} <= set(before)  # what was made
    assert sum(path.startswith("link ") for path in events) == 3
    del held.asked[:]
    assert kinds(box.together("DELETE", at=1)) == [204] * 3
    assert [len(paths) for paths in held.asked if not paths[0].startswith("link")] == [3, 3]  # files, directories


def simulated(monkeypatch):
    """Syncs pass through ``fs.os``."""

    monkeypatch.setattr(disk_calls, "syncs_here", lambda device: True)
    monkeypatch.setattr(disk_calls, "sync_sets", lambda sets, _seconds: [synced_here(fds) for fds in sets])


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_a_failure_at_any_step_is_that_devices_alone(tmp_path, monkeypatch, method):
    simulated(monkeypatch)
    done, new = (201, b"hello") if method == "PUT" else (204, None)
    step, failed = 0, set()
    while True:
        step += 1
        FaultyOs(syncs=False).install(monkeypatch)
        box = Box(f"{tmp_path}/{step}")
        if step % 2:
            box.in_full("PUT", body=b"old", at=-1)
        faults = FaultyOs(fail_at=step // 2 + 1, error=errno.EIO, syncs=False)
        faults.install(monkeypatch)
        outcomes = box.together(method)
        FaultyOs(syncs=False).install(monkeypatch)
        # None: its directory could not be made, and it is asked in full
        statuses = [500 if outcome is None else outcome.status for outcome in outcomes]
        assert sum(status >= 500 for status in statuses) <= 1, (step, statuses)
        failed.update(status for status in statuses if status >= 500)
        for device, status in zip(DEVICES, statuses, strict=True):
            found = box.read(device)
            assert found == new if status in (done, 404) else found in (b"old", new, None), (step, device, status)
        assert box.is_at_rest() and box.call("PUT", "/sdb1/7/a/c/o", body=b"later", at=9).status == 201
        if len(faults.calls) < faults.fail_at:
            break
    assert step > 30 and failed == {500}


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_a_crash_at_any_step_leaves_old_or_new(tmp_path, monkeypatch, method):
    simulated(monkeypatch)
    new, step = b"hello" if method == "PUT" else None, 0
    while True:
        step += 1
        FaultyOs(syncs=False).install(monkeypatch)
        box = Box(f"{tmp_path}/{step}")
        box.in_full("PUT", body=b"old", at=-1)
        faults = FaultyOs(crash_at=step, syncs=False)
        faults.install(monkeypatch)
        crashed = False
        try:
            box.together(method)
        except Crash:
            crashed = True
        FaultyOs(syncs=False).install(monkeypatch)
        found = [box.read(device) for device in DEVICES]
        assert all(one in (b"old", new) for one in found), (step, faults.calls[-1:])
        assert not any("quarantined" in path for path in box.state())
        if not crashed:
            assert found == [new] * 3
            break
    assert step > 15


