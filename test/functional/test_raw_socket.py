"""Octets on a socket: what no HTTP library would send, and what must come of it (S14, S33, S40, S44, S54)."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from test.support.client import Account, Endpoint, unique
from test.support.smuggling import CHUNKED_HEAD, DOUBTFUL, REFUSED, aimed
from test.support.waiting import slowness

STATUS = {"coding gzip": 400, "coding gzip, chunked": 501, "coding in capitals": 411, "coding xchunked": 400}


class Raw:
    """A connection without manners."""

    def __init__(self, endpoint: Endpoint):
        self.sock = socket.create_connection((endpoint.host, endpoint.port), timeout=60)
        self.held = b""

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def rest(self) -> bytes:
        """All until the server closes."""
        parts = [self.held]
        try:
            while data := self.sock.recv(65536):
                parts.append(data)
        except ConnectionResetError:
            pass
        return b"".join(parts)

    def answer(self) -> tuple[int, dict[str, str], bytes]:
        """One answer with a Content-Length: status, headers by lower-case name, body."""
        while b"\r\n\r\n" not in self.held:
            self.more()
        head, _, self.held = self.held.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
        size = int(headers.get("content-length", 0))
        while len(self.held) < size:
            self.more()
        body, self.held = self.held[:size], self.held[size:]
        return int(lines[0].split(" ")[1]), headers, body

    def more(self) -> None:
        data = self.sock.recv(65536)
        assert data, f"closed within an answer: {self.held[:500]!r}"
        self.held += data

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@pytest.fixture(scope="module")
def kept(account: Account) -> Iterator[str]:
    """A container with the object ``canary``, which a smuggled request would delete."""
    name = unique("raw")
    account.put(name).expect(201)
    account.put(name, "canary", body=b"alive").expect(201)
    yield name
    account.empty(name)


def canary(account: Account, container: str) -> bytes:
    target = account.target(container, "canary").encode()
    return (b"DELETE %s HTTP/1.1\r\nHost: x\r\nX-Auth-Token: %s\r\nContent-Length: 0\r\n\r\n" % (target, account.token.encode()))


def token(account: Account) -> bytes:
    return b"X-Auth-Token: %s\r\n" % account.token.encode()


@pytest.mark.parametrize("name", REFUSED)
def test_security_S40_no_request_is_refused_and_nothing_behind_it_runs(account: Account, kept: str, name: str) -> None:
    request, status = REFUSED[name]
    with Raw(account.endpoint) as raw:
        raw.send(aimed(request, account.target(kept, "o").encode(), token(account)) + canary(account, kept))
        answer = raw.rest()
    assert answer.startswith(b"HTTP/1.1 %d " % status), answer
    assert answer.count(b"HTTP/1.1 ") == 1 and b"X-Trans-Id: tx" in answer and b"X-Openstack-Request-Id: tx" in answer
    assert account.get(kept, "canary").expect(200).body == b"alive"
    account.get(kept, "o").expect(404)


@pytest.mark.parametrize("name", [name for name in DOUBTFUL if name != "coding with HTTP/1.0"])
def test_security_S40_unclear_length_ends_the_connection(account: Account, kept: str, name: str) -> None:
    with Raw(account.endpoint) as raw:
        raw.send(aimed(DOUBTFUL[name], account.target(kept, "o").encode(), token(account)) + canary(account, kept))
        answer = raw.rest()
    assert answer.startswith((b"HTTP/1.1 4", b"HTTP/1.1 501")), answer
    if name in STATUS:
        assert int(answer[9:12]) == STATUS[name]
    assert answer.count(b"HTTP/1.1 ") == 1
    assert account.get(kept, "canary").expect(200).body == b"alive"
    account.get(kept, "o").expect(404)


def test_security_S33_trailers_add_no_headers(account: Account, kept: str) -> None:
    with Raw(account.endpoint) as raw:
        raw.send(aimed(CHUNKED_HEAD, account.target(kept, "trailed").encode(), token(account))
                 + b"5\r\nhello\r\n0\r\nX-Object-Meta-Late: yes\r\nX-Delete-After: 1\r\n\r\n")
        assert raw.answer()[0] == 201
    answer = account.get(kept, "trailed").expect(200)
    assert answer.body == b"hello" and "X-Object-Meta-Late" not in answer.headers and "X-Delete-At" not in answer.headers


EARLY = {
    "no container": ("/v1/{account}/no-such-container/o", "", 404),
    "no token": ("/v1/{account}/{container}/o", "X-Auth-Token: wrong\r\n", 401),
    "bad metadata": ("/v1/{account}/{container}/o", "X-Object-Meta-A: {long}\r\n", 400),
    "bad utf-8": ("/v1/{account}/{container}/%ff", "", 412),
    "bad delete-at": ("/v1/{account}/{container}/o", "X-Delete-At: x\r\n", 400),
    "method": ("/v1/{account}/{container}/o", "", 405),
}


@pytest.mark.parametrize("expect", [False, True], ids=["", "100-continue"])
@pytest.mark.parametrize("name", EARLY)
def test_security_S54_early_error_leaves_the_connection_sane(account: Account, kept: str, name: str, expect: bool) -> None:
    """The body is read away, or the connection closed; the canary in it never runs, what follows is answered rightly."""
    path, header, status = EARLY[name]
    path = path.format(account=account.name, container=kept)
    header = header.format(long="x" * 300) or f"X-Auth-Token: {account.token}\r\n"
    if "Token" not in header:
        header += f"X-Auth-Token: {account.token}\r\n"
    method = "PATCH" if name == "method" else "PUT"
    body = canary(account, kept)
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\n{header}Content-Length: {len(body)}\r\n"
    if expect:
        head += "Expect: 100-continue\r\n"
    with Raw(account.endpoint) as raw:
        raw.send(head.encode() + b"\r\n" + body + b"GET /healthcheck HTTP/1.1\r\nHost: x\r\n\r\n")
        code, headers, _ = raw.answer()
        assert code == status
        if headers.get("connection", "").lower() == "close":
            assert raw.rest() == b""
        else:
            assert not expect
            assert raw.answer()[::2] == (200, b"OK")
    assert account.get(kept, "canary").expect(200).body == b"alive"


def test_wrong_etag_leaves_the_connection_open(account: Account, kept: str) -> None:
    with Raw(account.endpoint) as raw:
        target = account.target(kept, "o").encode()
        for _ in range(2):
            raw.send(b"PUT %s HTTP/1.1\r\n%sEtag: %032d\r\nContent-Length: 3\r\n\r\nabc" % (target, token(account), 0))
            assert raw.answer()[0] == 422
        raw.send(b"GET /healthcheck HTTP/1.1\r\n\r\n")
        assert raw.answer()[0] == 200


@pytest.mark.parametrize("framing", [b"Content-Length: 10\r\n\r\nabc", b"Transfer-Encoding: chunked\r\n\r\n5\r\nab",
                                     b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"])
def test_body_cut_short_leaves_nothing(account: Account, kept: str, framing: bytes) -> None:
    with Raw(account.endpoint) as raw:
        raw.send(b"PUT %s HTTP/1.1\r\n%s%s" % (account.target(kept, "cut").encode(), token(account), framing))
        raw.sock.shutdown(socket.SHUT_WR)
        assert raw.rest().startswith(b"HTTP/1.1 499")
    account.get(kept, "cut").expect(404)


def test_pipelined_requests_are_answered_in_order(account: Account, kept: str) -> None:
    base = account.target(kept).encode()
    with Raw(account.endpoint) as raw:
        raw.send(b"".join(b"PUT %s/p%d HTTP/1.1\r\n%sContent-Length: 1\r\n\r\n%d" % (base, n, token(account), n) for n in range(5))
                 + b"".join(b"GET %s/p%d HTTP/1.1\r\n%s\r\n" % (base, n, token(account)) for n in range(5)))
        assert [raw.answer()[0] for _ in range(5)] == [201] * 5
        assert [raw.answer()[2] for _ in range(5)] == [b"%d" % n for n in range(5)]


def test_old_versions_of_http(account: Account, kept: str) -> None:
    with Raw(account.endpoint) as raw:
        raw.send(b"GET /healthcheck HTTP/1.0\r\n\r\nGET /healthcheck HTTP/1.0\r\n\r\n")
        answer = raw.rest()
        assert answer.count(b"200 OK") == 1 and b"Transfer-Encoding" not in answer
    with Raw(account.endpoint) as raw:
        raw.send(b"GET /healthcheck\r\n\r\n")
        assert raw.rest().endswith(b"OK")


def test_absolute_target(account: Account) -> None:
    with Raw(account.endpoint) as raw:
        raw.send(b"GET http://elsewhere.example:99/healthcheck HTTP/1.1\r\nHost: x\r\n\r\n")
        assert raw.answer()[::2] == (200, b"OK")


def test_security_S14_answers_hold_no_header_that_the_path_wrote(account: Account) -> None:
    for path in ("/v1/AUTH_x%0d%0aSet-Cookie:%20a=b%22%3cscript%3e", "/v1/AUTH_x%0aX-Evil:1/c/o", "/v1/%22%0d/c"):
        with Raw(account.endpoint) as raw:
            raw.send(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            code, headers, _ = raw.answer()
            assert 400 <= code < 500
            assert "set-cookie" not in headers and "x-evil" not in headers
            assert '"' not in headers.get("www-authenticate", "").removeprefix('Swift realm="').removesuffix('"')


def test_security_S04_hostile_accept_header_costs_nothing(account: Account) -> None:
    for value in ('a;b="' + "\\" * 40, "," * 4000, "a/" * 4000, ";q=" * 2000):
        start = time.monotonic()
        account.get(headers={"Accept": value})
        assert time.monotonic() - start < 2 * slowness()


@pytest.mark.parametrize("ranges", [",".join(f"{n * 2}-{n * 2}" for n in range(51)), "0-9,1-9,2-9", "9-9,8-8,7-7,6-6,5-5,4-4,3-3,2-2"])
def test_security_S44_ranges_that_cost_too_much(account: Account, kept: str, ranges: str) -> None:
    account.put(kept, "long", body=b"x" * 1000).expect(201)
    account.get(kept, "long", headers={"Range": f"bytes={ranges}"}).expect(416)


def test_utf8_in_header_names_and_values(account: Account, kept: str) -> None:
    with Raw(account.endpoint) as raw:
        raw.send(b"PUT %s HTTP/1.1\r\n%sX-Object-Meta-\xe2\x82\xac: \xf0\x9f\x90\x9f\r\nContent-Length: 0\r\n\r\n"
                 % (account.target(kept, "utf8").encode(), token(account)))
        assert raw.answer()[0] == 201
        raw.send(b"HEAD %s HTTP/1.1\r\n%sConnection: close\r\n\r\n" % (account.target(kept, "utf8").encode(), token(account)))
        assert b"\r\nx-object-meta-\xe2\x82\xac: \xf0\x9f\x90\x9f\r\n" in raw.rest().replace(b"X-Object-Meta-", b"x-object-meta-")
