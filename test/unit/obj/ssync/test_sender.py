"""A sender and a receiver of ours, in process and over HTTP, with real files."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keelstore.common import concurrency, fs, sockets
from keelstore.common.backend import Backend
from keelstore.common.http import Response
from keelstore.common.httpserver import Server, ServerOptions
from keelstore.common.locks import lock_directory
from keelstore.common.ring.ring import Node
from keelstore.obj import hashes
from keelstore.obj.ssync import listing
from keelstore.obj.ssync.listing import remove_objects, remove_partition, state_of
from keelstore.obj.ssync.sender import READ_ALL, Outcome, Sender, Source, _Session
from test.support.objects import HASH_PATH, POLICIES, ServerBox, StoreBox, stamp

LOG = logging.getLogger("test.ssync")


class Pair:
    """Two devices: what ``ours`` has is sent to ``theirs``."""

    def __init__(self, root: str, address: tuple[str, int] = ("127.0.0.1", 6200), **options: Any):
        self.ours, self.theirs = StoreBox(f"{root}/ours"), ServerBox(f"{root}/theirs", **options)
        self.backend = Backend(1.0, local={address: self.theirs.app})
        self.node = Node(1, 1, 1, *address, *address, "sda1", 1.0, index=0)
        self.sender = Sender(self.ours.store.scanner(), self.backend, LOG, node_timeout_s=2, http_timeout_s=5, clock=self.ours.clock)
        self.source = Source("sda1", self.ours.device_path, POLICIES.by_index[0], 7)

    def sync(self, **options: Any) -> Outcome:
        return self.sender.sync(self.source, self.node, **options)

    def same(self, name: str) -> bool:
        ours, theirs = (box.store.look(box.place(name)) for box in (self.ours, self.theirs))
        return state_of(ours) == state_of(theirs)


@pytest.fixture(params=["in process", "http"])
def pair(request: Any, tmp_path: Path) -> Any:
    if request.param == "in process":
        yield Pair(str(tmp_path))
        return
    sock = sockets.listen(("127.0.0.1", 0))
    pair = Pair(str(tmp_path), sock.getsockname())
    pair.backend._local.clear()
    server = Server(sock, pair.theirs.app, ServerOptions(client_timeout_s=5))
    task = concurrency.spawn(server.serve_forever)
    yield pair
    server.stop_accepting()
    task.wait()
    sock.close()


def hash_of(name: str) -> str:
    return HASH_PATH.hexdigest("a", "c", name)


def test_everything_arrives(pair: Pair) -> None:
    bodies = {f"o{number}": os.urandom(number * 7000) for number in range(20)}
    bodies["\u00fcn\u00ef \u2603%20\n?"] = b"x"
    for name, body in bodies.items():
        pair.ours.put(name, body, 1, {"X-Object-Meta-Name": "caf\u00c3\u00a9", "X-Object-Sysmeta-A": "b", "X-Odd": "1"})
    pair.ours.put("posted", b"abc", 1)
    meta = {"X-Timestamp": stamp(3).internal, "X-Object-Meta-New": "yes", "Content-Type": "a/b",
            "Content-Type-Timestamp": stamp(2).internal, "name": "/a/c/posted"}  # fmt: skip
    pair.ours.store.write_meta(pair.ours.place("posted"), stamp(3), meta)
    pair.ours.store.delete(pair.ours.place("deleted"), stamp(5))
    outcome = pair.sync()
    assert outcome.is_success, outcome
    assert (outcome.offered, outcome.sent) == (23, 23) and outcome.sent_bytes == sum(map(len, bodies.values())) + 3
    assert set(outcome.held) == {hash_of(name) for name in (*bodies, "posted", "deleted")}
    for name, body in bodies.items():
        stored = pair.theirs.store.open(pair.theirs.place(name))
        assert b"".join(stored.part(0, stored.size, 65536)) == body
        ours = pair.ours.store.open(pair.ours.place(name))
        assert stored.metadata == ours.metadata
        stored.close()
        ours.close()
    assert all(pair.same(name) for name in (*bodies, "posted", "deleted"))
    again = pair.sync()
    assert again.is_success and again.sent == 0 and set(again.held) == set(outcome.held)
    assert again.is_proof  # it has no ring, as Swift's object servers have none; see test_replicator


def test_only_some_suffixes_only_some_objects(pair: Pair) -> None:
    for name in "abcdef":
        pair.ours.put(name, b"x", 1)
    assert pair.sync(suffixes=[hash_of("a")[-3:], "fff"]).sent == 1
    assert pair.sync(only=frozenset({hash_of("a"), hash_of("b")})).sent == 1
    checked = pair.sync(check_only=True)
    assert checked.is_success and checked.sent == 0 and set(checked.held) == {hash_of("a"), hash_of("b")}
    truncated = pair.sync(max_objects=3)
    assert truncated.is_truncated and truncated.offered == 3
    assert pair.sync().offered == 6


def test_what_is_newer_there_is_left(pair: Pair) -> None:
    pair.ours.put("o", b"old", 1)
    pair.theirs.put("o", b"new", 2)
    pair.ours.put("p", b"old", 1)
    pair.theirs.store.delete(pair.theirs.place("p"), stamp(2))
    outcome = pair.sync()
    assert outcome.is_success and outcome.sent == 0 and len(outcome.held) == 2
    assert pair.theirs.files(pair.theirs.place("o")) == ["2.data"] and pair.theirs.files(pair.theirs.place("p")) == ["2.ts"]


def test_more_metadata_than_attributes_hold_arrives_whole(pair: Pair) -> None:
    """Our extension (doc/formats/objects.md 3): here it lies beside the data, there as that device needs it."""
    many = {f"X-Object-Meta-{number:03d}": "v" * 200 for number in range(80)}  # beyond the limits of an API client, too
    place = pair.ours.put("o", b"body", 1, many)
    if not any(name.endswith(".attrs") for name in pair.ours.files(place)):
        pytest.skip("this file system takes it all")
    assert pair.sync().is_success
    stored = pair.theirs.store.open(pair.theirs.place("o"))
    assert \
        {name: value for name, value in stored.metadata.items() if name in many} == many
    stored.close()


def test_a_corrupt_object_is_not_sent_on(pair: Pair) -> None:
    place = pair.ours.put("bad", b"body", 1)
    pair.ours.put("good", b"body", 1)
    path = Path(place.directory, f"{stamp(1).internal}.data")
    path.write_bytes(b"BODY")
    outcome = pair.sync()
    assert not outcome.is_success and outcome.status == 500 and outcome.held == {}
    assert pair.ours.files(place) == [] and pair.theirs.files(pair.theirs.place("bad")) == []  # quarantined
    assert pair.sync().is_success and pair.same("good")


def test_an_object_that_ends_early_breaks_the_session(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    place = pair.ours.put("o", b"x" * 200_000, 1)
    path = f"{place.directory}/{stamp(1).internal}.data"
    opened = Sender._connect

    def connect(*args: Any) -> Any:
        duplex = opened(*args)
        first = duplex.send

        def send(*pieces: bytes) -> None:
            if pieces[0].startswith(b"PUT"):
                os.truncate(path, 100_000)
            first(*pieces)
        duplex.send = send  # type: ignore[method-assign]
        return duplex
    monkeypatch.setattr(Sender, "_connect", connect)
    outcome = pair.sync()
    assert not outcome.is_success
    concurrency.sleep(0.01)
    assert pair.theirs.files(pair.theirs.place("o")) == []


def test_a_header_that_would_end_its_line_is_not_sent(pair: Pair) -> None:
    pair.ours.put("o", b"x", 1, {"X-Object-Meta-A": "b\r\n\r\nDELETE /a/c/o"})
    outcome = pair.sync()
    assert not outcome.is_success and "cannot be sent" in outcome.reason
    assert pair.theirs.files(pair.theirs.place("o")) == []


@pytest.mark.parametrize("wrong", [b"hello\r\n", b":ERROR: 503 'busy'\n", b":MISSING_CHECK: START\r\nnonsense \xff\r\n", b"",
                                   b":MISSING_CHECK: START\r\n:MISSING_CHECK: END\r\n:UPDATES: START\r\nhm\r\n", b"x" * 70000])  # fmt: skip
def test_a_peer_that_talks_nonsense_is_a_failure(tmp_path: Path, wrong: bytes) -> None:
    pair = Pair(str(tmp_path))
    pair.ours.put("o", b"x", 1)

    def app(environ: Any, start_response: Any) -> Any:
        return Response(200, app_iter=iter([b"\r\n", wrong]))(environ, start_response)
    pair.backend._local[pair.node.address] = app
    outcome = pair.sync()
    assert not outcome.is_success and outcome.held == {} and outcome.reason
    assert outcome.status == (503 if b"503" in wrong else 0)


def test_peers_that_are_not_there(tmp_path: Path) -> None:
    pair = Pair(str(tmp_path))
    pair.backend._local.clear()
    assert pair.sync().reason
    sock = sockets.listen(("127.0.0.1", 0))  # accepts, and never says a word
    silent = Node(1, 1, 1, "127.0.0.1", sock.getsockname()[1], "127.0.0.1", sock.getsockname()[1], "sda1", 1.0)
    pair.sender._node_timeout_s = 0.2
    outcome = pair.sender.sync(pair.source, silent)
    assert not outcome.is_success and outcome.took_s < 2
    sock.close()


def test_an_unmounted_device(tmp_path: Path) -> None:
    pair = Pair(str(tmp_path))
    os.rmdir(pair.theirs.device_path)
    assert pair.sync().status == 507


# -- afterwards --------------------------------------------------------------------------------------------------------


def test_what_was_proven_is_removed_and_nothing_else(pair: Pair) -> None:
    for name in "abc":
        pair.ours.put(name, b"x", 1)
    pair.ours.put("posted", b"x", 1)
    outcome = pair.sync()
    pair.ours.put("b", b"newer", 9)
    pair.ours.put("d", b"came later", 9)
    place = pair.ours.place("posted")
    pair.ours.store.write_meta(place, stamp(9), {"X-Timestamp": stamp(9).internal, "name": "/a/c/posted"})
    Path(pair.ours.place("a").directory, ".1.data.x7Zq_k").touch()  # an interrupted rsync
    rules = pair.ours.store.rules(0)
    assert remove_objects(pair.source.partition_path, outcome.held, rules) == 2
    assert [pair.ours.files(pair.ours.place(name)) for name in ("a", "b", "c", "d", "posted")] == [
        [], ["9.data"], [], ["9.data"], ["1.data", "9.meta"]]  # fmt: skip
    assert not remove_partition(pair.source.partition_path)
    outcome = pair.sync()
    assert remove_objects(pair.source.partition_path, outcome.held, rules) == 3
    assert remove_partition(pair.source.partition_path) and not os.path.exists(pair.source.partition_path)
    assert all(pair.theirs.files(pair.theirs.place(name)) for name in ("a", "b", "c", "d", "posted"))


@pytest.mark.parametrize("failing", [OSError(errno.EIO, "broken"), KeyboardInterrupt()])
def test_what_a_stopped_removal_took_is_not_claimed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: BaseException) -> None:
    pair = Pair(str(tmp_path))
    for name in "abc":
        pair.ours.put(name, b"x", 1)
    proven, rules, path = pair.sync().held, pair.ours.store.rules(0), pair.source.partition_path
    known = hashes.get_hashes(path, rules, 10.0, lambda directory: None)[1]
    real, seen = fs.remove_file, []

    def remove(name: str) -> bool:
        seen.append(name)
        if len(seen) == 2:
            raise failing
        return real(name)

    with monkeypatch.context() as patch:
        patch.setattr(fs, "remove_file", remove)
        with pytest.raises(type(failing)):
            remove_objects(path, proven, rules)
    told = hashes.get_hashes(path, rules, 10.0, lambda directory: None)[1]
    assert len(told) == 2 and told.items() < known.items()


def test_a_lock_that_is_held_keeps_what_was_proven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(str(tmp_path))
    for name in "abc":
        pair.ours.put(name, b"x", 1)
    proven, path = pair.sync().held, pair.source.partition_path
    with lock_directory(path), monkeypatch.context() as patch:
        patch.setattr(listing, "lock_directory", lambda path, timeout_s: lock_directory(path, 0.01))
        assert remove_objects(path, proven, pair.ours.store.rules(0)) == 0
    assert remove_objects(path, proven, pair.ours.store.rules(0)) == 3


# -- the promise -------------------------------------------------------------------------------------------------------

events = st.lists(st.tuples(st.sampled_from(["ours", "theirs"]), st.sampled_from(["put", "post", "type", "delete"]),
                            st.integers(0, 2)), max_size=8)  # fmt: skip


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(events)
def test_two_devices_that_sync_hold_the_same(tmp_path_factory: pytest.TempPathFactory, events: list[tuple[str, str, int]]) -> None:
    root = str(tmp_path_factory.mktemp("pair"))
    there, back = Pair(f"{root}/1"), Pair(f"{root}/2")
    ours = ServerBox(f"{root}/ours")
    # one pair in each direction over the same two directories
    there.ours, there.theirs = ours, ServerBox(f"{root}/theirs")
    back.ours, back.theirs = there.theirs, ours
    for pair in (there, back):
        pair.backend._local[pair.node.address] = pair.theirs.app
        pair.sender._store = pair.ours.store.scanner()
        pair.source = Source("sda1", pair.ours.device_path, POLICIES.by_index[0], 7)
    for number, (side, verb, name) in enumerate(events, 1):
        box = ours if side == "ours" else there.theirs
        headers = {"X-Object-Meta-Number": str(number)}
        if verb in ("put", "type"):
            headers["Content-Type"] = f"type/{number}"
        box.call({"put": "PUT", "delete": "DELETE"}.get(verb, "POST"), f"/sda1/7/a/c/{name}", headers,
                 b"%d" % number if verb == "put" else b"", at=number)  # fmt: skip
    for pair in (there, back, there):
        outcome = pair.sync()
        assert outcome.is_success, outcome
    for key in map(str, range(3)):
        found = [box.store.look(box.place(key)) for box in (ours, there.theirs)]
        assert state_of(found[0]) == state_of(found[1]), events
        if found[0].data:
            opened = [box.store.open(box.place(key)) for box in (ours, there.theirs)]
            assert opened[0].metadata == opened[1].metadata
            for item in opened:
                item.close()
    hashes = [box.store.hashes("sda1", box.device_path, POLICIES.by_index[0], "7", (), True) for box in (ours, there.theirs)]
    assert hashes[0] == hashes[1]


class MadeOnce:
    def __init__(self, opened: Any):
        self.body, self.size, self.headers = b"".join(opened.body(0, opened.size, READ_ALL, 65536)), opened.size, {}

    def __iter__(self) -> Any:
        return iter([self.body])

    def close(self) -> None:
        pass


def test_bodies_that_are_made_begin_as_many_at_a_time_as_are_hashed_together(pair, monkeypatch):
    """So that these keep step; and no more than as many again wait to be sent."""
    for number in range(20):
        pair.ours.put(f"o{number}", b"x" * (number + 1), 1)
    begun, sent, seen = [0], [0], set()
    spawn, put = concurrency.spawn, _Session._put

    def counted(function, *args):
        begun[0] += getattr(function, "__name__", "") == "_made_ahead"
        return spawn(function, *args)

    def noted(*args):
        seen.add((sent[0], begun[0]))
        sent[0] += 1
        put(*args)

    monkeypatch.setattr("keelstore.obj.ssync.sender.concurrency.spawn", counted)
    monkeypatch.setattr(_Session, "_put", noted)
    outcome = pair.sync(build=MadeOnce)
    assert (outcome.is_success, outcome.sent) == (True, 20)
    assert dict(seen) == {number: 8 if not number else 16 if number < 9 else 20 for number in range(20)}
