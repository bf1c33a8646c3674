"""Where a container's copy is, how requests to it are signed, and that they arrive over real connections."""

from __future__ import annotations

import io
import socketserver
import threading
from collections.abc import Iterator

import pytest

from keelstore.common import concurrency
from keelstore.common.headers import Headers
from keelstore.common.internal import SourceEnded
from keelstore.common.sync_realms import Realm
from keelstore.container import sync_remote
from keelstore.container.sync_remote import Remote, RemoteDown, target_of

REALMS = {"US": Realm("US", "realmkey", "", {"DFW1": "http://h:8080/v1/", "BAD": "nonsense"}), "BARE": Realm("BARE", "", "", {"X": "http://x/v1/"})}
TIME = "1700000000.00000"


def test_a_copy_in_a_cluster_of_a_realm() -> None:
    target = target_of("//us/dfw1/AUTH_a/c", "userkey", [], REALMS)
    assert target.url_of("o x") == "http://h:8080/v1/AUTH_a/c/o%20x"
    headers = target.headers("PUT", "o x", TIME, nonce=lambda: "nonce1")
    assert dict(headers) == {"X-Timestamp": TIME,
                             "X-Container-Sync-Auth": "US nonce1 7dd5ff10343e7b77acd5917011a1103a4723249a"}
    assert "realmkey" not in repr(target)
    assert "userkey" not in repr(target)


def test_a_copy_at_a_url() -> None:
    target = target_of("http://127.0.0.1:8080/v1/AUTH_a/c/", "userkey", ["127.0.0.1"], {})
    assert target.url_of("a/b") == "http://127.0.0.1:8080/v1/AUTH_a/c/a/b"
    assert dict(target.headers("PUT", "o", TIME)) == {"X-Timestamp": TIME, "X-Container-Sync-Key": "userkey"}


@pytest.mark.parametrize("value", ["//us/other/a/c", "//eu/dfw1/a/c", "//bare/x/a/c", "//us/bad/a/c", "http://10.0.0.1/v1/a/c", "x"])
def test_what_is_not_allowed(value: str) -> None:
    with pytest.raises(ValueError):
        target_of(value, "k", ["127.0.0.1"], REALMS)


class Server(socketserver.ThreadingTCPServer):
    """Answers what it is told to, once it has read a request; ``seen`` are the requests."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.connections = 0
        self.answer = b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\nX-Timestamp: 1\r\n\r\nok"
        self.closes = False
        super().__init__(("127.0.0.1", 0), Handler)


class Handler(socketserver.StreamRequestHandler):
    server: Server

    def handle(self) -> None:
        self.server.connections += 1
        while True:
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                line = self.rfile.readline()
                if not line:
                    return
                head += line
            length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0)
            body = self.rfile.read(length)
            if len(body) < length:
                return
            self.server.seen.append(head + body)
            if not (head.startswith(b"HEAD") and b"404" not in self.server.answer):
                self.wfile.write(self.server.answer)
            else:
                self.wfile.write(self.server.answer.partition(b"\r\n\r\n")[0] + b"\r\n\r\n")
            if self.server.closes:
                return


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield server
        server.shutdown()


def url(server: Server) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}/v1/a/c/o"


def test_requests_share_a_connection(server: Server) -> None:
    remote = Remote(1.0)
    answer = remote.request("PUT", url(server), Headers({"Content-Length": "4", "X-Object-Meta-A": "b"}), io.BytesIO(b"body"))
    assert (answer.status, answer.headers["X-Timestamp"]) == (201, "1")
    assert server.seen[0].startswith(b"PUT /v1/a/c/o HTTP/1.1\r\n")
    assert server.seen[0].endswith(b"\r\n\r\nbody")
    assert b"X-Object-Meta-A: b\r\n" in server.seen[0].title().replace(b"B\r\n", b"b\r\n")
    assert remote.request("HEAD", url(server), Headers()).status == 201
    assert server.connections == 1
    remote.close()


def test_a_connection_that_was_closed_at_rest_is_replaced(server: Server) -> None:
    server.closes = True
    remote = Remote(1.0)
    assert [remote.request("HEAD", url(server), Headers()).status for _ in range(3)] == [201] * 3
    remote.close()


def test_who_does_not_listen_is_down() -> None:
    with Server() as server:
        where = url(server)
    with pytest.raises(RemoteDown, match="cannot be reached"):
        Remote(1.0).request("HEAD", where, Headers())


def test_nonsense_is_no_answer(server: Server) -> None:
    server.answer, server.closes = b"nonsense\r\n\r\n", True
    with pytest.raises(RemoteDown, match="gave no answer"):
        Remote(1.0).request("HEAD", url(server), Headers())


def test_a_source_that_breaks_off_is_not_the_other_clusters_fault(server: Server) -> None:
    class Broken:
        def read(self, size: int = -1) -> bytes:
            raise SourceEnded("early")

    with pytest.raises(SourceEnded):
        Remote(1.0).request("PUT", url(server), Headers({"Content-Length": "4"}), Broken())
    assert server.seen == []


def test_an_answer_that_never_comes_to_its_end_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless:
        closed = False

        def request(self, *args: object, **kwargs: object) -> None:
            pass

        def getresponse(self) -> None:
            while True:  # interim answers, each soon after the other
                concurrency.sleep(0.01)

        def close(self) -> None:
            self.closed = True

    connection = Endless()
    monkeypatch.setattr(sync_remote, "ANSWER_S", 0.05)
    monkeypatch.setattr(Remote, "_connect", lambda *args: connection)
    with pytest.raises(RemoteDown, match="no whole answer"):
        Remote(1.0).request("HEAD", "http://127.0.0.1/v1/a/c/o", Headers())
    assert connection.closed


def test_plain_http_goes_through_a_proxy(server: Server) -> None:
    at = f"127.0.0.1:{server.server_address[1]}"
    assert Remote(1.0, [f"http://{at}"]).request("HEAD", "http://far.example/v1/a/c/o", Headers()).status == 201
    assert server.seen[0].startswith(b"HEAD http://far.example/v1/a/c/o HTTP/1.1\r\n")
    assert b"Host: far.example\r\n" in server.seen[0]
