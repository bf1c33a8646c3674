"""SSYNC as a sender sees the object server: over the backend call, and over raw sockets."""

from __future__ import annotations

import errno
import os
from hashlib import md5
from pathlib import Path
from typing import Any

import pytest

from keelstore.common import concurrency, sockets
from keelstore.common.backend import Backend
from keelstore.common.duplex import Duplex
from keelstore.common.headers import Headers
from keelstore.common.httpserver import Server, ServerOptions
from keelstore.common.locks import lock_directory
from test.support.objects import HASH_PATH, OBJECT, ServerBox, stamp

T1, T2, T3, T9 = (stamp(seconds) for seconds in (1, 2, 3, 9))


def hash_of(name: str) -> str:
    return HASH_PATH.hexdigest("a", "c", name)


@pytest.fixture(params=["in process", "http"])
def box(request: Any, tmp_path: Path) -> Any:
    box = ServerBox(str(tmp_path))
    if request.param == "in process":
        box.address = OBJECT  # type: ignore[attr-defined]
        yield box
        return
    sock = sockets.listen(("127.0.0.1", 0))
    server = Server(sock, box.app, ServerOptions(client_timeout_s=5))
    task = concurrency.spawn(server.serve_forever)
    box.address = sock.getsockname()  # type: ignore[attr-defined]
    box.backend = Backend(1.0, local={})
    yield box
    server.stop_accepting()
    task.wait()
    sock.close()


class Session:
    """A sender that says what it is told to."""

    def __init__(self, box: ServerBox, headers: dict[str, str] | None = None, path: str = "/sda1/7"):
        self.duplex: Duplex = box.backend.duplex(box.address, "SSYNC", path, Headers(headers or {}), 5)  # type: ignore[attr-defined]

    def say(self, *lines: str | bytes) -> None:
        self.duplex.send(*(line.encode() + b"\r\n" if isinstance(line, str) else line for line in lines))

    def hear(self, count: int = 1) -> list[str]:
        """Lines that are not blank."""
        found: list[str] = []
        while len(found) < count:
            line = self.duplex.readline(65536, 5)
            if not line:
                return [*found, "EOF"]
            if line.strip():
                found.append(line.decode().rstrip("\r\n"))
        return found

    def check(self, *offers: str) -> list[str]:
        self.say(":MISSING_CHECK: START", *offers, ":MISSING_CHECK: END")
        assert self.hear() == [":MISSING_CHECK: START"]
        wants: list[str] = []
        while (line := self.hear()[0]) != ":MISSING_CHECK: END":
            assert line != "EOF" and not line.startswith(":ERROR"), line
            wants.append(line)
        return wants

    def end(self) -> list[str]:
        self.say(":UPDATES: END")
        found = self.hear(2)
        self.duplex.end()
        self.duplex.close()
        return found

    def rest(self) -> list[str]:
        found = self.hear(100)
        self.duplex.close()
        return found


def put(name: str, body: bytes, at: Any, *extra: str, length: int | None = None) -> list[str | bytes]:
    return [f"PUT /a/c/{name}", f"Content-Length: {len(body) if length is None else length}", "Content-Type: text/plain",
            f"ETag: {md5(body).hexdigest()}", f"X-Timestamp: {at.internal}", *extra, "", body]  # fmt: skip


DONE = [":UPDATES: START", ":UPDATES: END"]


def test_objects_that_are_missing_are_taken_in(box: ServerBox) -> None:
    session = Session(box)
    assert session.duplex.status == 200
    assert session.duplex.headers["X-Backend-Accept-No-Commit"] == "True"
    assert session.check(f"{hash_of('one')} {T1.internal}", f"{hash_of('big')} {T2.internal}") == [
        f"{hash_of('one')} dm", f"{hash_of('big')} dm"]  # fmt: skip
    big = os.urandom(300_000)
    session.say(":UPDATES: START", *put("one", b"hello", T1, "X-Object-Meta-Colour: red", "X-Strange: kept"), *put("big", big, T2))
    assert session.end() == DONE
    answer = box.call("GET", "/sda1/7/a/c/one") if box.address == OBJECT else None  # type: ignore[attr-defined]
    stored = box.store.open(box.place("one"))
    assert stored.metadata["X-Object-Meta-Colour"] == "red" and stored.metadata["X-Strange"] == "kept"
    assert "Etag" not in stored.metadata and stored.metadata["ETag"] == md5(b"hello").hexdigest()
    assert stored.metadata["X-Timestamp"] == T1.internal
    stored.close()
    assert answer is None or answer.read() == b"hello"
    assert box.files(box.place("big")) == ["2.data"]


def test_only_what_is_newer_is_wanted(box: ServerBox) -> None:
    box.put("o", b"x", 2)
    box.store.write_meta(box.place("o"), T3, {"X-Timestamp": T3.internal, "name": "/a/c/o"})
    box.store.delete(box.place("gone"), T3)
    session = Session(box)
    o, gone = hash_of("o"), hash_of("gone")
    offers = [f"{o} {T2.internal}", f"{o} {T2.internal} m:{(T3.raw - T2.raw):x}", f"{o} {T1.internal}"]
    assert session.check(*offers) == []
    session.say(":UPDATES: START")
    assert session.end() == DONE
    session = Session(box)
    assert session.check(f"{o} {T2.internal} m:{(T9.raw - T2.raw):x}", f"{gone} {T2.internal} m:{(T9.raw - T2.raw):x}",
                         f"{gone} {T9.internal}") == [f"{o} m", f"{gone} dm"]  # fmt: skip
    session.say(":UPDATES: START", "POST /a/c/o", f"X-Timestamp: {T9.internal}", "X-Object-Meta-New: yes", "",
                "DELETE /a/c/gone", f"X-Timestamp: {T9.internal}", "")  # fmt: skip
    assert session.end() == DONE
    assert box.files(box.place("o")) == ["2.data", "9.meta"]
    assert box.files(box.place("gone")) == ["9.ts"]


def test_an_object_is_read_while_the_one_before_is_synced(box: ServerBox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each commit waits until the last of all bodies has begun to be stored: one after the other they would never end."""
    names = ["one", "two", "three"]
    begun, last = [], concurrency.Event()
    commit, upload = box.store.commit, box.store.upload

    def watched(*args: Any, **options: Any) -> Any:
        begun.append(args[0].name)
        if len(begun) == len(names):
            last.set()
        return upload(*args, **options)

    def patient(*args: Any, **options: Any) -> Any:
        last.wait(60)
        return commit(*args, **options)

    monkeypatch.setattr(box.store, "upload", watched)
    monkeypatch.setattr(box.store, "commit", patient)
    session = Session(box)
    assert len(session.check(*(f"{hash_of(name)} {T1.internal}" for name in names))) == len(names)
    session.say(":UPDATES: START", *(line for name in names for line in put(name, name.encode() * 50_000, T1)))
    assert session.end() == DONE
    assert begun == [f"/a/c/{name}" for name in names]
    for name in names:
        assert box.files(box.place(name)) == ["1.data"]


def test_metadata_waits_for_data_that_is_still_synced(box: ServerBox) -> None:
    session = Session(box)
    assert session.check(f"{hash_of('o')} {T1.internal} m:{(T2.raw - T1.raw):x}")
    session.say(":UPDATES: START", *put("o", b"abc" * 50_000, T1), "POST /a/c/o", f"X-Timestamp: {T2.internal}", "X-Object-Meta-A: b", "")
    assert session.end() == DONE
    assert box.files(box.place("o")) == ["1.data", "2.meta"]


def test_a_body_that_cannot_be_stored_fails_alone(box: ServerBox, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = box.store.commit

    def failing(upload: Any, place: Any, *args: Any, **options: Any) -> Any:
        if place.name == "/a/c/bad":
            raise OSError(errno.EIO, "the disk is broken")
        return commit(upload, place, *args, **options)

    monkeypatch.setattr(box.store, "commit", failing)
    session = Session(box)
    assert session.check(f"{hash_of('bad')} {T1.internal}", f"{hash_of('good')} {T1.internal}")
    session.say(":UPDATES: START", *put("bad", b"abc" * 50_000, T1), *put("good", b"def" * 50_000, T1), ":UPDATES: END")
    assert session.hear() == [":ERROR: 500 b'ERROR: With :UPDATES: 1 failures to 1 successes'"]
    session.rest()
    assert box.files(box.place("good")) == ["1.data"] and box.files(box.place("bad")) == []


def test_metadata_follows_its_data_in_one_session(box: ServerBox) -> None:
    session = Session(box)
    assert session.check(f"{hash_of('o')} {T1.internal} m:{(T2.raw - T1.raw):x}")
    session.say(":UPDATES: START", *put("o", b"abc", T1), "POST /a/c/o", f"X-Timestamp: {T2.internal}", "X-Object-Meta-A: b", "")
    assert session.end() == DONE
    assert box.files(box.place("o")) == ["1.data", "2.meta"]


def test_what_is_held_but_corrupt_is_wanted(box: ServerBox) -> None:
    place = box.put("o", b"x", 2)
    Path(place.directory, f"{T2.internal}.data").write_bytes(b"")
    session = Session(box)
    assert session.check(f"{hash_of('o')} {T2.internal}") == [f"{hash_of('o')} dm"]
    session.say(":UPDATES: START", *put("o", b"x", T2))
    assert session.end() == DONE
    assert box.files(place) == ["2.data"]


def test_failures_are_told_at_the_end(box: ServerBox) -> None:
    session = Session(box)
    session.check(f"{hash_of('o')} {T1.internal}", f"{hash_of('p')} {T1.internal}")
    session.say(":UPDATES: START", "PUT /a/c/o", "Content-Length: 1", "Content-Type: a/b", "Etag: wrong",
                f"X-Timestamp: {T1.internal}", "", b"x", *put("p", b"", T1), ":UPDATES: END")  # fmt: skip
    assert session.hear() == [":ERROR: 500 b'ERROR: With :UPDATES: 1 failures to 1 successes'"]
    assert session.rest() == ["EOF"]
    assert box.files(box.place("p")) == ["1.data"] and box.files(box.place("o")) == []


@pytest.mark.parametrize("size", [5, 300_000])
def test_bytes_that_were_hashed_are_not_hashed_again_but_only_within_one_process(box: ServerBox, size: int) -> None:
    is_local = box.address == OBJECT  # type: ignore[attr-defined]
    session = Session(box, {"X-Keelstore-Hashed": "true"})
    session.check(f"{hash_of('o')} {T1.internal}")
    said, body = md5(b"another").hexdigest(), os.urandom(size)
    session.say(":UPDATES: START", "PUT /a/c/o", f"Content-Length: {size}", "Content-Type: a/b", f"ETag: {said}",
                f"X-Timestamp: {T1.internal}", "", body, ":UPDATES: END")  # fmt: skip
    if not is_local:
        assert session.hear() == [":ERROR: 500 b'ERROR: With :UPDATES: 1 failures to 0 successes'"]
        assert session.rest() == ["EOF"]
        assert box.files(box.place("o")) == []
        return
    assert session.hear(2) == DONE
    session.duplex.end()
    session.duplex.close()
    stored = box.store.open(box.place("o"))
    assert stored.metadata["ETag"] == said
    stored.close()


def test_many_failures_end_the_session(tmp_path: Path) -> None:
    box = ServerBox(str(tmp_path), replication_failure_threshold=2)
    box.address = OBJECT  # type: ignore[attr-defined]
    session = Session(box)
    session.check(*(f"{hash_of(str(number))} {T1.internal}" for number in range(5)))
    for number in range(5):
        session.say(*([":UPDATES: START"] if not number else []), f"PUT /a/c/{number}", "Content-Length: 70000", "Content-Type: a/b",
                    "Etag: wrong", f"X-Timestamp: {T1.internal}", "", b"x" * 70000)  # fmt: skip
        if session.duplex.has_spoken():
            break
    else:
        session.say(":UPDATES: END")
    [said] = session.hear()  # those that are being stored when the second fails are read, and fail, as well
    assert said in [f":ERROR: 0 'Too many {failures} failures to 0 successes'" for failures in (2, 3, 4, 5)]


@pytest.mark.parametrize("lines, error", [
    (["hello"], "expected :MISSING_CHECK: START, got b'hello"),
    ([":MISSING_CHECK: START", "nonsense"], "not an offer: b'nonsense'"),
    ([":MISSING_CHECK: START", "x" * 70000], "a line is too long, or has no end"),
])  # fmt: skip
def test_what_is_no_check_is_refused(box: ServerBox, lines: list[str], error: str) -> None:
    session = Session(box)
    session.say(*lines)
    found = session.rest()
    while found and found[0].startswith(":MISSING"):
        del found[0]
    assert found[0].startswith(":ERROR: 0 ") and error in found[0] and found[-1] == "EOF"


@pytest.mark.parametrize("lines, error", [
    (["GET /a/c/o", ""], "Invalid subrequest method GET"),
    (["PUT /a/c/o", "Content-Type: a/b", ""], "No content-length sent for PUT"),
    (["DELETE /a/c/o", "Content-Length: 3", "", "abc"], "DELETE subrequest with content-length 3"),
    (["PUT /a/c/o", "Content-Length: -1", ""], "Content-Length -1"),
    (["PUT /a/c/o", "no colon", ""], "not a header"),
    (["PUT /a//o", "Content-Length: 0", ""], "invalid path"),
    (["DELETE /a/c/other", f"X-Timestamp: {T9.internal}", ""], "DELETE of an object that was not asked for"),
    (["POST /a/c/p", f"X-Timestamp: {T9.internal}", ""], "POST of an object that was not asked for"),
    (["PUT /a/c/o", *(f"h{number}: x" for number in range(600)), ""], "too many headers"),
])  # fmt: skip
def test_what_is_no_update_is_refused(box: ServerBox, lines: list[str], error: str) -> None:
    box.put("other", b"x", 1)
    box.put("p", b"x", 2)
    session = Session(box)
    session.check(f"{hash_of('o')} {T1.internal}")
    session.say(":UPDATES: START", *lines)
    found = session.rest()
    assert found[0].startswith(":ERROR: 0 ") and error in found[0] and found[-1] == "EOF"
    assert box.files(box.place("other")) == ["1.data"]


def test_security_S42_a_body_that_breaks_off_is_not_read_on_as_requests(box: ServerBox) -> None:
    """S42: what follows in a body that failed is never a sub-request."""
    box.put("victim", b"precious", 1)
    session = Session(box)
    assert session.check(f"{hash_of('o')} {T1.internal}", f"{hash_of('victim')} {T9.internal}")
    fake = f"DELETE /a/c/victim\r\nX-Timestamp: {T9.internal}\r\n\r\n".encode()
    session.say(":UPDATES: START", *put("o", fake, T1, length=200_000))
    session.duplex.close()
    concurrency.sleep(0)
    assert box.files(box.place("victim")) == ["1.data"]
    assert box.files(box.place("o")) == []


@pytest.mark.parametrize("size", [100, 100_000])
def test_a_refused_body_is_skipped_whole(box: ServerBox, size: int) -> None:
    """The server answers 4xx or 5xx without reading: its body must not be taken for the next sub-request."""
    box.put("victim", b"precious", 1)
    session = Session(box)
    assert session.check(f"{hash_of('o')} {T1.internal}", f"{hash_of('victim')} {T9.internal}")
    fake = f"DELETE /a/c/victim\r\nX-Timestamp: {T9.internal}\r\n\r\n".encode().ljust(size)
    session.say(":UPDATES: START", "PUT /a/c/o", f"Content-Length: {len(fake)}", "X-Timestamp: bad", "", fake, ":UPDATES: END")
    assert session.hear() == [":ERROR: 500 b'ERROR: With :UPDATES: 1 failures to 0 successes'"]
    session.rest()
    assert box.files(box.place("victim")) == ["1.data"]


def test_silence_within_a_body_ends_the_session(tmp_path: Path) -> None:
    box = ServerBox(str(tmp_path))
    sock = sockets.listen(("127.0.0.1", 0))
    server = Server(sock, box.app, ServerOptions(client_timeout_s=0.2))
    concurrency.spawn(server.serve_forever)
    box.address, box.backend = sock.getsockname(), Backend(1.0, local={})  # type: ignore[attr-defined]
    box.put("victim", b"precious", 1)
    try:
        for size in (1000, 200_000):
            session = Session(box)
            assert session.check(f"{hash_of('o')} {T1.internal}", f"{hash_of('victim')} {T9.internal}")
            fake = f"DELETE /a/c/victim\r\nX-Timestamp: {T9.internal}\r\n\r\n".encode()
            session.say(":UPDATES: START", *put("o", fake, T1, length=size))
            assert session.hear() == [":ERROR: 408 'the sender was silent too long'"]
            session.say(fake, fake)
            session.duplex.close()
            assert box.files(box.place("victim")) == ["1.data"]
            assert box.files(box.place("o")) == []
    finally:
        server.stop_accepting()
        sock.close()


def test_one_session_for_a_partition(tmp_path: Path) -> None:
    box = ServerBox(str(tmp_path), replication_lock_timeout=0.05)
    box.address = OBJECT  # type: ignore[attr-defined]
    box.put("o", b"x", 1)
    with lock_directory(f"{box.device_path}/objects/7", name="replication"):
        session = Session(box)
        assert session.hear()[0].startswith(":ERROR: 0 ")
    with lock_directory(box.device_path):
        assert Session(box).hear()[0].startswith(":ERROR: 0 ")
    assert Session(box).check() == []


def test_too_many_sessions_are_turned_away(tmp_path: Path) -> None:
    box = ServerBox(str(tmp_path), replication_concurrency=1, replication_concurrency_per_device=0)
    box.address = OBJECT  # type: ignore[attr-defined]
    first = Session(box)
    first.say(":MISSING_CHECK: START")
    concurrency.sleep(0)
    assert Session(box, path="/sda1/8").hear()[0].startswith(":ERROR: 503 ")
    first.duplex.close()
    concurrency.sleep(0)
    assert Session(box, path="/sda1/8").check() == []


@pytest.mark.parametrize("path, headers, status", [
    ("/sda1/x", {}, 400), ("/sda1", {}, 400), ("/missing/7", {}, 507), ("/sda1/7", {"X-Backend-Storage-Policy-Index": "9"}, 503),
    ("/sda1/7", {"X-Backend-Storage-Policy-Index": "2", "X-Backend-Ssync-Frag-Index": "6"}, 400),
    ("/sda1/7", {"X-Backend-Storage-Policy-Index": "2", "X-Backend-Ssync-Frag-Index": "-1"}, 400),
    ("/sda1/7", {"X-Backend-Ssync-Frag-Index": "junk"}, 200),
])  # fmt: skip
def test_the_request_itself(box: ServerBox, path: str, headers: dict[str, str], status: int) -> None:
    session = Session(box, headers, path)
    assert session.duplex.status == status
    session.duplex.close()


def test_security_S55_replication_server_false_refuses(tmp_path: Path) -> None:
    box = ServerBox(str(tmp_path), replication_server=False)
    assert box.call("SSYNC", "/sda1/7").status == 405
