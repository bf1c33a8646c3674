"""Backend calls: one contract for both ways, then what only a wire can do to us."""

import contextlib
import hashlib
import os
import signal
import time
from typing import Any

import pytest

from keelstore.common import backend as backend_module
from keelstore.common import concurrency, sockets
from keelstore.common.backend import Backend, serve_locally, stop_serving_locally
from keelstore.common.errors import BackendError, BackendTimeout, ClientDisconnect
from keelstore.common.headers import Headers
from keelstore.common.http import Request, Response
from keelstore.common.httpserver import ServerOptions
from keelstore.common.two_phase import Archive, Commit
from test.support.waiting import slowness
from test.support.wire import dial, peer, read_until, serve


class Node:
    """A storage node of a test: an application, and how it is reached."""

    def __init__(self, way):
        self.way, self.stack = way, contextlib.ExitStack()

    def __call__(self, app, **options):
        if self.way == "http":
            served = self.stack.enter_context(serve(app, ServerOptions(client_timeout_s=5, **options)))
            return Backend(local={}), served.address
        return Backend(local={("10.0.0.1", 6200): app}), ("10.0.0.1", 6200)


@pytest.fixture(params=["local", "http"])
def node(request):
    maker = Node(request.param)
    with maker.stack:
        yield maker


def echo(environ, start_response):
    request = Request(environ)
    body = request.body_file.read()
    headers = {f"Was-{name}": value for name, value in request.headers().items()}
    headers["Was-Method"], headers["Was-Query"] = request.method, environ["QUERY_STRING"]
    headers["Was-Path"] = environ["PATH_INFO"]
    return Response(200, headers, body=body, content_type="text/x")(environ, start_response)


# -- the contract of both ways


def test_call(node):
    backend, address = node(echo)
    response = backend.call(address, "PUT", "/sda1/7/a/c/o \u20ac?", Headers({"X-Timestamp": "1", "X-Meta": "\xe2\x82\xac"}),
                            query="a=b%20c", body=b"abc")
    assert response.status == 200 and response.read() == b"abc"
    got = response.headers
    assert got["Was-Method"] == "PUT" and got["Was-Path"] == "/sda1/7/a/c/o \xe2\x82\xac?" and got["Was-Query"] == "a=b%20c"
    assert got["Was-X-Timestamp"] == "1" and got["Was-X-Meta"] == "\xe2\x82\xac" and got["Was-Content-Length"] == "3"
    assert "Was-Expect" not in got and "Was-Content-Type" not in got and "Was-Transfer-Encoding" not in got
    assert got["Content-Type"] == "text/x" and got["Content-Length"] == "3"


def test_framing_headers_of_the_caller_do_not_count(node):
    backend, address = node(echo)
    headers = Headers({"Content-Length": "99", "Transfer-Encoding": "chunked", "Expect": "100-continue", "Host": "evil"})
    response = backend.call(address, "POST", "/d", headers, body=b"xy")
    assert response.read() == b"xy" and "evil" not in response.headers["Was-Host"]
    assert "Was-Content-Length" not in backend.call(address, "GET", "/d", headers).headers
    assert backend.call(address, "PUT", "/d", headers).headers["Was-Content-Length"] == "0"
    assert headers == {"Content-Length": "99", "Transfer-Encoding": "chunked", "Expect": "100-continue", "Host": "evil"}


def test_statuses_and_head(node):
    def app(environ, start_response):
        status = int(environ["QUERY_STRING"])
        return Response(status, {"Content-Length": "5"} if status == 200 else {}, body=b"12345" if status == 200 else None)(
            environ, start_response)

    backend, address = node(app)
    for status in (200, 204, 304, 404, 409, 507):
        for method in ("HEAD", "GET", "DELETE"):
            response = backend.call(address, method, "/d", Headers(), query=str(status))
            assert response.status == status
            body = response.read()
            if method == "HEAD" or status in (204, 304):
                assert body == b""
            elif status == 200:
                assert body == b"12345"
            else:
                assert body
    assert backend.call(address, "HEAD", "/d", Headers(), query="200").headers["Content-Length"] == "5"


@pytest.mark.parametrize("length", [True, False])
def test_streamed_answer(node, length):
    data = os.urandom(300000)

    def app(environ, start_response):
        parts = (data[at : at + 50000] for at in range(0, len(data), 50000))
        return Response(200, {"Content-Length": str(len(data))} if length else {}, app_iter=parts)(environ, start_response)

    backend, address = node(app)
    for _ in range(3):
        assert b"".join(backend.call(address, "GET", "/d", Headers()).app_iter) == data


def test_closing_an_answer_early_closes_the_application(node):
    closed = concurrency.Event()

    def parts():
        try:
            while True:
                yield b"x" * 65536
        finally:
            closed.set(True)

    backend, address = node(lambda environ, start: Response(200, app_iter=parts())(environ, start))
    response = backend.call(address, "GET", "/d", Headers())
    assert len(next(iter(response.app_iter))) > 0
    response.close()
    assert closed.wait(5)
    response.close()


def test_answer_that_breaks_off_is_an_error(node):
    def parts():
        yield b"abc"
        raise ValueError("disk gone")

    for headers in ({}, {"Content-Length": "10"}):
        backend, address = node(lambda environ, start, h=headers: Response(200, h, app_iter=parts())(environ, start))
        response = backend.call(address, "GET", "/d", Headers())
        with pytest.raises(BackendError) as caught:
            response.read()
        assert caught.value.node == address


@pytest.mark.parametrize("size", [4, 6])
def test_answer_of_wrong_length_is_an_error(node, size):
    def app(environ, start_response):
        return Response(200, {"Content-Length": "5"}, app_iter=iter([b"x" * size]))(environ, start_response)

    backend, address = node(app)
    with pytest.raises(BackendError):
        backend.call(address, "GET", "/d", Headers()).read()


def test_call_that_takes_too_long(node):
    go, ended = concurrency.Event(), concurrency.Event()

    def app(environ, start_response):
        go.wait(5)
        ended.set(True)
        return Response(201)(environ, start_response)

    backend, address = node(app)
    started = time.monotonic()
    with pytest.raises(BackendTimeout) as caught:
        backend.call(address, "PUT", "/d", Headers(), body=b"x", timeout_s=0.05)
    assert caught.value.node == address and time.monotonic() - started < 2 * slowness()
    go.set()
    assert ended.wait(5)  # what was begun is ended: the caller's patience is not the node's business


def test_body_that_stalls(node):
    def parts():
        yield b"abc"
        concurrency.sleep(5)

    backend, address = node(lambda environ, start: Response(200, app_iter=parts())(environ, start))
    response = backend.call(address, "GET", "/d", Headers(), timeout_s=0.05)
    with pytest.raises(BackendTimeout):
        response.read()


# -- uploads, both ways


def hashing(environ, start_response):
    """Answers with length and MD5 of what it read."""
    digest, size = hashlib.md5(), 0
    for part in iter(lambda: environ["wsgi.input"].read(65536), b""):
        digest.update(part)
        size += len(part)
    framing = environ.get("CONTENT_LENGTH") or environ["HTTP_TRANSFER_ENCODING"]
    return Response(201, {"Etag": digest.hexdigest(), "Size": size, "Framing": framing})(environ, start_response)


@pytest.mark.parametrize("known", [True, False])
def test_upload(node, known):
    backend, address = node(hashing)
    data = os.urandom(1000003)
    for _ in range(2):
        upload = backend.upload(address, "/d", Headers({"X-Timestamp": "1"}), length=len(data) if known else None)
        assert upload.ready(5) is None
        for at in range(0, len(data), 65536):
            upload.send(data[at : at + 65536])
        response = upload.finish(5)
        assert response.status == 201 and response.headers["Etag"] == hashlib.md5(data).hexdigest()
        assert response.headers["Framing"] == (str(len(data)) if known else "chunked")
        upload.abort()


def test_upload_of_views(node):
    """Who reads as ever gets bytes, also where what was sent is another's memory."""
    kinds = set()

    def app(environ, start_response):
        source = environ["wsgi.input"]
        parts = [source.read(7), source.read1(100_000), source.read(300_000), source.readline(), source.read()]
        kinds.update(map(type, parts))
        return Response(201, {"Etag": hashlib.md5(b"".join(parts)).hexdigest()})(environ, start_response)

    backend, address = node(app)
    data = os.urandom(1000003)
    upload = backend.upload(address, "/d", Headers({"X-Timestamp": "1"}), length=len(data))
    assert upload.ready(5) is None
    for at in range(0, len(data), 400_000):
        upload.send(memoryview(data)[at : at + 400_000])
    assert upload.finish(5).headers["Etag"] == hashlib.md5(data).hexdigest() and kinds == {bytes}


def test_views_are_taken_as_they_were_sent_in_process():
    memory = bytearray(os.urandom(300_000))
    found = []

    def app(environ, start_response):
        source = environ["wsgi.input"]
        source.readline(5)
        while part := source.take(100_000):
            found.append(part)
        return Response(201)(environ, start_response)

    upload = Backend(local={("10.0.0.1", 6200): app}).upload(("10.0.0.1", 6200), "/d", Headers(), length=300_004)
    assert upload.ready(5) is None
    upload.send(b"abc\n")
    upload.send(memoryview(memory))
    assert upload.finish(5).status == 201
    assert [type(part) for part in found] == [memoryview] * 3 and all(part.obj is memory for part in found)
    assert b"".join(found) == memory


@pytest.mark.parametrize("known", [True, False])
def test_a_body_is_read_into_memory_of_the_reader(node, known):
    def app(environ, start_response):
        source, memory = environ["wsgi.input"], bytearray(300_000)
        got, view = bytearray(source.readline()), memoryview(memory)
        while count := source.readinto(view):
            got += view[:count]
        return Response(201, {"Etag": hashlib.md5(got).hexdigest()})(environ, start_response)

    backend, address = node(app)
    if address in backend._local:
        return  # ``take`` is its way
    data = b"a line\n" + os.urandom(1000003)
    upload = backend.upload(address, "/d", Headers(), length=len(data) if known else None)
    assert upload.ready(5) is None
    for at in range(0, len(data), 90_000):
        upload.send(data[at : at + 90_000])
    assert upload.finish(5).headers["Etag"] == hashlib.md5(data).hexdigest()


def test_empty_upload(node):
    backend, address = node(hashing)
    upload = backend.upload(address, "/d", Headers())
    assert upload.ready() is None
    upload.send(b"")
    assert upload.finish().headers["Size"] == "0"


def test_early_answer_to_an_upload(node):
    backend, address = node(lambda environ, start: Response(507)(environ, start))
    for _ in range(2):
        response = backend.upload(address, "/d", Headers()).ready(5)
        assert response is not None and response.status == 507
        response.read()


def test_aborted_upload_is_a_disconnect(node):
    errors = concurrency.Queue(5)

    def app(environ, start_response):
        try:
            environ["wsgi.input"].read()
        except Exception as error:
            errors.put(error)
            raise
        return Response(201)(environ, start_response)

    backend, address = node(app)
    for length in (None, 100):
        upload = backend.upload(address, "/d", Headers(), length=length)
        assert upload.ready() is None
        upload.send(b"abc")
        upload.abort()
        assert isinstance(errors.get(5), ClientDisconnect)


def test_upload_of_wrong_length(node):
    backend, address = node(hashing)
    upload = backend.upload(address, "/d", Headers(), length=3)
    upload.ready()
    with pytest.raises(ValueError):
        upload.send(b"abcd")
    upload.send(b"ab")
    with pytest.raises(ValueError):
        upload.finish()


def test_two_phase_upload(node):
    def app(environ, start_response):
        body = environ["wsgi.input"]
        body.set_continue_headers([("X-Obj-Multiphase-Commit", "yes")])
        first = body.read()
        body.set_continue_headers([("X-Second", "2")])
        body.send_continue()
        return Response(201, {"Got": f"{len(first)} {body.read().decode()}"})(environ, start_response)

    backend, address = node(app)
    for _ in range(2):
        upload = backend.upload(address, "/d", Headers())
        assert upload.ready() is None and upload.continue_headers["X-Obj-Multiphase-Commit"] == "yes"
        for _ in range(20):
            upload.send(b"x" * 50000)
        upload.end_body()
        assert upload.ready() is None and upload.continue_headers["X-Second"] == "2"
        upload.send(b"commit")
        assert upload.finish().headers["Got"] == "1000000 commit"


def test_bodies_that_are_sent_whole_are_what_a_reader_reads(node):
    def app(environ, start_response):
        body = environ["wsgi.input"]
        first = body.read()
        body.send_continue()
        return Response(201, body=first + b"|" + body.read())(environ, start_response)

    backend, address = node(app)
    for _ in range(2):
        upload = backend.upload(address, "/d", Headers())
        assert upload.ready() is None
        upload.send_whole(Archive("B", b"data", Headers({"Etag": "1"})))
        upload.end_body()
        assert upload.ready() is None
        upload.send_whole(Commit("B"))
        assert upload.finish().read() == (
            b'--B\r\nX-Document: object body\r\n\r\ndata\r\n--B\r\nX-Document: object metadata\r\nContent-MD5: '
            b'c7c1d8bff0e5d3b7a3a8b4eb9e0c3f42\r\n\r\n{"Etag": "1"}\r\n--B\r\n'.replace(
                b"c7c1d8bff0e5d3b7a3a8b4eb9e0c3f42", hashlib.md5(b'{"Etag": "1"}').hexdigest().encode())
            + b"|X-Document: put commit\r\n\r\nput_commit_confirmation\r\n--B--")


def test_whole_bodies_in_process_are_handed_over():
    taken, heard = [], []

    def app(environ, start_response):
        body = environ["wsgi.input"]
        taken.append(body.take_whole())
        body.send_continue()
        taken.append(body.take_whole())
        assert body.read() == b""
        return Response(201)(environ, start_response)

    address = ("10.0.0.1", 6200)
    upload = Backend(local={address: app}).upload(address, "/d", Headers())
    upload.when_ready(lambda: heard.append("wants"))
    assert upload.ready() is None and heard == ["wants"]
    archive, commit = Archive("B", b"data", Headers()), Commit("B")
    upload.send_whole(archive)
    upload.end_body()
    upload.when_ready(lambda: heard.append("wants more"))
    assert upload.ready() is None and heard == ["wants", "wants more"]
    upload.when_ready(lambda: heard.append("at once"))
    assert heard.pop() == "at once"
    upload.send_whole(commit)
    upload.when_done(lambda: heard.append("done"))
    assert upload.finish().status == 201 and heard == ["wants", "wants more", "done"] and taken == [archive, commit]
    upload.when_done(lambda: heard.append("at once"))
    assert heard.pop() == "at once"


def test_who_waits_for_a_whole_body_hears_that_its_sender_gave_up():
    raised = []

    def app(environ, start_response):
        try:
            environ["wsgi.input"].take_whole()
        except ClientDisconnect as error:
            raised.append(error)
        return Response(499)(environ, start_response)

    address = ("10.0.0.1", 6200)
    upload = Backend(local={address: app}).upload(address, "/d", Headers())
    assert upload.ready() is None
    upload.abort()
    concurrency.sleep(0.01)
    assert raised


def test_two_phase_upload_refused_between_the_phases(node):
    def app(environ, start_response):
        environ["wsgi.input"].read()
        return Response(422)(environ, start_response)

    backend, address = node(app)
    upload = backend.upload(address, "/d", Headers())
    assert upload.ready() is None
    upload.send(b"x")
    upload.end_body()
    response = upload.ready()
    assert response is not None and response.status == 422


def test_upload_whose_node_does_not_want_it_in_time(node):
    go = concurrency.Event()

    def app(environ, start_response):
        go.wait(5)
        return Response(201)(environ, start_response)

    backend, address = node(app)
    upload = backend.upload(address, "/d", Headers())
    with pytest.raises(BackendTimeout):
        upload.ready(0.05)
    upload.abort()
    go.set()


def test_upload_that_is_not_taken(node):
    def app(environ, start_response):
        environ["wsgi.input"].read(1)
        concurrency.sleep(5)
        return Response(201)(environ, start_response)

    backend, address = node(app)
    upload = backend.upload(address, "/d", Headers(), timeout_s=0.1)
    assert upload.ready() is None
    with pytest.raises(BackendTimeout):
        for _ in range(400):
            upload.send(b"x" * 65536)
    upload.abort()


def test_upload_answered_without_reading_to_the_end(node):
    def app(environ, start_response):
        environ["wsgi.input"].read(1)
        return Response(507)(environ, start_response)

    backend, address = node(app)
    upload = backend.upload(address, "/d", Headers())
    assert upload.ready() is None
    for _ in range(1000):
        upload.send(b"x" * 65536)
    assert upload.finish().status == 507
    upload.abort()


# -- in process only


def test_local_registry():
    address = ("10.9.9.9", 6200)
    serve_locally(address, echo)
    try:
        assert Backend().call(address, "GET", "/d", Headers()).status == 200
        assert Backend().is_local(address) and not Backend(local={}).is_local(address)
    finally:
        stop_serving_locally(address)
    assert not backend_module._local


def test_local_call_passes_digest_and_body_uncopied():
    seen = {}

    def app(environ, start_response):
        seen.update(environ)
        seen["read"] = environ["wsgi.input"].read(65536)
        return Response(201)(environ, start_response)

    body = b"x" * 1000
    backend = Backend(local={("a", 1): app})
    response = backend.call(("a", 1), "PUT", "/d", Headers(), body=body, digest=lambda: "d1")
    assert seen["read"] is body and seen["keelstore.digest"]() == "d1" and seen["keelstore.in_process"] is True
    assert response.body == b"" and response.app_iter is None


def test_local_upload_passes_parts_uncopied_and_bounded():
    parts = []

    def app(environ, start_response):
        parts.extend(iter(lambda: environ["wsgi.input"].read(65536), b""))
        return Response(201, {"Digest": environ["keelstore.digest"]()})(environ, start_response)

    backend = Backend(local={("a", 1): app})
    upload = backend.upload(("a", 1), "/d", Headers(), digest=lambda: "d2")
    upload.ready()
    sent = [os.urandom(65536) for _ in range(20)]
    for part in sent:
        upload.send(part)
        assert upload._pipe._queued <= 5 * 65536
    assert upload.finish().headers["Digest"] == "d2"
    assert all(a is b for a, b in zip(parts, sent))


def test_local_application_that_raises_is_a_backend_error():
    def app(environ, start_response):
        raise ValueError("oops")

    backend = Backend(local={("a", 1): app})
    for action in (lambda: backend.call(("a", 1), "GET", "/d", Headers()),
                   lambda: backend.upload(("a", 1), "/d", Headers()).ready(),
                   lambda: backend.upload(("a", 1), "/d", Headers()).finish()):
        with pytest.raises(BackendError) as caught:
            action()
        assert caught.value.node == ("a", 1)


def test_local_answer_keeps_its_file_region():
    class Region:
        def __iter__(self):
            return iter([b"abc"])

        def file_region(self):
            return 1, 2, 3

    def app(environ, start_response):
        return Response(200, {"Content-Length": "3"}, app_iter=Region())(environ, start_response)

    backend = Backend(local={("a", 1): app})
    response = backend.call(("a", 1), "GET", "/d", Headers())
    assert response.app_iter.file_region() == (1, 2, 3)
    assert response.read() == b"abc"


# -- over the wire only


def test_connection_is_reused():
    ports = []

    def app(environ, start_response):
        ports.append(environ["REMOTE_PORT"])
        return hashing(environ, start_response)

    with serve(app) as served:
        backend = Backend(local={})
        for _ in range(3):
            backend.call(served.address, "PUT", "/d", Headers(), body=b"x").read()
            upload = backend.upload(served.address, "/d", Headers())
            upload.ready()
            upload.send(b"x")
            upload.finish().read()
        assert len(ports) == 6 and len(set(ports)) == 1
        backend.close()


def test_short_answer_left_unread_keeps_the_connection_and_a_long_one_does_not():
    ports = []

    def app(environ, start_response):
        ports.append(environ["REMOTE_PORT"])
        size = int(environ["QUERY_STRING"])
        return Response(200, {"Content-Length": size}, app_iter=iter([b"x" * 10, b"x" * (size - 10)]))(environ, start_response)

    with serve(app) as served:
        backend = Backend(local={})
        for size in (60000, 60000, 10000000, 100):
            backend.call(served.address, "GET", "/d", Headers(), query=str(size)).close()
        assert ports[0] == ports[1] == ports[2] != ports[3]


def test_connection_closed_at_rest_is_noticed():
    ports = []

    def app(environ, start_response):
        ports.append(environ["REMOTE_PORT"])
        return Response(201)(environ, start_response)

    with serve(app, ServerOptions(client_timeout_s=5, keepalive_timeout_s=0.02)) as served:
        backend = Backend(local={})
        backend.call(served.address, "PUT", "/d", Headers(), body=b"x")
        while served.server.connections:
            concurrency.sleep(0.005)
        assert backend.call(served.address, "PUT", "/d", Headers(), body=b"x").status == 201
        assert len(set(ports)) == 2


def test_get_is_repeated_when_a_reused_connection_breaks_and_put_is_not():
    seen = []

    def handler(stream):
        """Answers the first request, resets at the second."""
        seen.append(read_until(stream, b"\r\n\r\n")[:3])
        stream.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        if (again := read_until(stream, b"\r\n\r\n")):
            seen.append(again[:3])
            stream.abort()

    with peer(handler) as address:
        backend = Backend(local={})
        for _ in range(2):
            assert backend.call(address, "GET", "/d", Headers()).status == 200
        assert seen == [b"GET"] * 3
        with pytest.raises(BackendError):
            backend.call(address, "PUT", "/d", Headers(), body=b"x")
        assert seen[3:] == [b"PUT"]


NONSENSE = {
    "closed at once": b"",
    "no HTTP": b"220 smtp ready\r\n\r\n",
    "half a head": b"HTTP/1.1 200 OK\r\nContent-Le",
    "bare lf": b"HTTP/1.1 200 OK\nContent-Length: 0\n\n",
    "no status": b"HTTP/1.1 OK\r\n\r\n",
    "status of four digits": b"HTTP/1.1 2000 OK\r\n\r\n",
    "other version": b"HTTP/2.0 200 OK\r\n\r\n",
    "bad length": b"HTTP/1.1 200 OK\r\nContent-Length: -3\r\n\r\nabc",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    "length and coding": b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "coding gzip": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
    "nul": b"HTTP/1.1 200 OK\r\nX: \0\r\n\r\n",
    "folded": b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 0\r\n\r\n",
    "short body": b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc",
    "short chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc",
    "no last chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
    "bad chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n0\r\n\r\n",
    "head without end": b"HTTP/1.1 200 OK\r\n" + b"X: " + b"a" * 200000,
    "interim for ever": b"HTTP/1.1 102 Wait\r\n\r\n" * 100,
}


@pytest.mark.parametrize("name", NONSENSE)
def test_nonsense_is_an_error(name):
    def handler(stream):
        read_until(stream, b"\r\n\r\n")
        stream.send(NONSENSE[name])

    with peer(handler) as address:
        backend = Backend(local={})
        with pytest.raises(BackendError) as caught:
            backend.call(address, "GET", "/d", Headers(), timeout_s=2).read()
        assert caught.value.node == address and not isinstance(caught.value, BackendTimeout)
        with pytest.raises(BackendError):
            upload = backend.upload(address, "/d", Headers(), timeout_s=2)
            (upload.ready() or upload.finish()).read()


def test_answer_that_ends_with_its_connection():
    def handler(stream):
        read_until(stream, b"\r\n\r\n")
        stream.send(b"HTTP/1.0 200 OK\r\n\r\nabc")

    with peer(handler) as address:
        assert Backend(local={}).call(address, "GET", "/d", Headers()).read() == b"abc"


def test_reset_within_a_body_is_an_error():
    def handler(stream):
        read_until(stream, b"\r\n\r\n")
        stream.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + b"x" * 50000)
        stream.abort()

    with peer(handler) as address, pytest.raises(BackendError):
        Backend(local={}).call(address, "GET", "/d", Headers()).read()


def relaying(backend, address, taken=None):
    """A proxy that sends on what a node answers, in pieces."""

    def app(environ, start_response):
        response = backend.call(address, "GET", "/d", Headers(), timeout_s=5)
        if taken is not None:
            response.app_iter = Recording(response.app_iter, taken)
        return response(environ, start_response)

    return app


class Recording:
    def __init__(self, body, taken):
        self.body, self.taken = body, taken

    def file_pieces(self):
        for piece in self.body.file_pieces():
            self.taken.append(piece if isinstance(piece, bytes) else type(piece).__name__)
            yield piece

    def close(self):
        self.body.close()


def test_a_body_is_sent_on_without_passing_through_python_and_the_connection_kept():
    data, ports = os.urandom(3_000_000), []
    taken: list[Any] = []

    def app(environ, start_response):
        ports.append(environ["REMOTE_PORT"])
        return Response(200, {"Content-Length": str(len(data))}, app_iter=iter([data]))(environ, start_response)

    with serve(app) as served:
        backend = Backend(local={})
        with serve(relaying(backend, served.address, taken)) as proxy:
            client = Backend(local={})
            for _ in range(3):
                assert client.call(proxy.address, "GET", "/", Headers(), timeout_s=5).read() == data
            client.close()
        assert "Arrived" in taken and sum(len(piece) for piece in taken if piece != "Arrived") < len(data) / 2
        assert len(set(ports)) == 1
        backend.close()


def test_a_node_that_breaks_off_breaks_what_is_sent_on():
    def handler(stream):
        read_until(stream, b"\r\n\r\n")
        stream.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 500000)
        stream.close()

    with peer(handler) as address, serve(relaying(Backend(local={}), address)) as proxy, pytest.raises(BackendError):
        Backend(local={}).call(proxy.address, "GET", "/", Headers(), timeout_s=5).read()


def test_a_client_that_leaves_spoils_the_connection_to_the_node_but_no_other_answer():
    data, ports = b"x" * 20_000_000, []

    def app(environ, start_response):
        ports.append(environ["REMOTE_PORT"])
        size = len(data) if len(ports) == 1 else 3
        return Response(200, {"Content-Length": str(size)}, app_iter=iter([data[:size]]))(environ, start_response)

    with serve(app) as served:
        backend = Backend(local={})
        with serve(relaying(backend, served.address)) as proxy:
            stream = dial(proxy.address)
            stream.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert stream.receive().startswith(b"HTTP/1.1 200")
            stream.abort()
            assert Backend(local={}).call(proxy.address, "GET", "/", Headers(), timeout_s=5).read() == b"xxx"
        backend.close()
    assert len(set(ports)) == 2


def test_words_after_an_answer_spoil_the_connection():
    opened = []

    def handler(stream):
        opened.append(stream)
        while read_until(stream, b"\r\n\r\n"):
            stream.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nxHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\ny")

    with peer(handler) as address:
        backend = Backend(local={})
        for _ in range(3):
            assert backend.call(address, "GET", "/d", Headers()).read() == b"x"
        assert len(opened) == 3


def test_refused_connection():
    sock = sockets.listen(("127.0.0.1", 0))
    address = sock.getsockname()[:2]
    sock.close()
    backend = Backend(local={})
    with pytest.raises(BackendError) as caught:
        backend.call(address, "GET", "/d", Headers())
    assert caught.value.node == address
    with pytest.raises(BackendError):
        backend.upload(address, "/d", Headers())


def test_black_hole_is_bounded():
    """A listener whose backlog is full drops the SYN: what a firewall or a dead machine does."""
    sock = sockets.listen(("127.0.0.1", 0), backlog=0)
    address = sock.getsockname()[:2]
    held = []
    try:
        with contextlib.suppress(Exception):
            for _ in range(8):
                held.append(sockets.connect(address, 0.05))
        started = time.monotonic()
        with pytest.raises(BackendTimeout):
            Backend(conn_timeout_s=0.1, local={}).call(address, "GET", "/d", Headers())
        assert time.monotonic() - started < 1 * slowness()
    finally:
        for stream in held:
            stream.close()
        sock.close()


def test_drip_in_the_head_is_bounded():
    def handler(stream):
        read_until(stream, b"\r\n\r\n")
        for byte in b"HTTP/1.1 200 OK\r\nX: " + b"a" * 1000:
            stream.send(bytes([byte]))
            concurrency.sleep(0.01)

    with peer(handler) as address:
        started = time.monotonic()
        with pytest.raises(BackendTimeout):
            Backend(local={}).call(address, "GET", "/d", Headers(), timeout_s=0.1)
        assert time.monotonic() - started < 1 * slowness()


def test_drip_in_a_body_that_nobody_wants_is_bounded():
    def handler(stream):
        read_until(stream, b"\r\n\r\n")
        stream.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        for _ in range(100):
            stream.send(b"a")
            concurrency.sleep(0.02)

    with peer(handler) as address:
        for give_up in (Response.close, Response.drain):
            response = Backend(local={}).call(address, "GET", "/d", Headers(), timeout_s=5)
            started = time.monotonic()
            give_up(response)
            assert time.monotonic() - started < 1 * slowness()


@pytest.mark.parametrize("pause", [0, 0.04])
def test_interim_answers_without_end_are_bounded(pause):
    def handler(stream):
        read_until(stream, b"\r\n\r\n")
        for _ in range(100):
            stream.send(b"HTTP/1.1 102 Processing\r\n\r\n")
            concurrency.sleep(pause)

    with peer(handler) as address:
        backend = Backend(local={})
        for ask in (lambda: backend.call(address, "GET", "/d", Headers(), timeout_s=0.1),
                    lambda: backend.upload(address, "/d", Headers(), timeout_s=0.1).ready(),
                    lambda: backend.duplex(address, "SSYNC", "/d", Headers(), timeout_s=0.1)):
            started = time.monotonic()
            with pytest.raises(BackendTimeout if pause else BackendError):
                ask()
            assert time.monotonic() - started < 0.2 * slowness()


def child_server(behave):
    """A process that accepts on a port and then does ``behave(connection)`` with blocking sockets."""
    import socket

    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    sock.listen(5)
    pid = os.fork()
    if not pid:
        try:
            while True:
                behave(sock.accept()[0])
        finally:
            os._exit(0)
    address = sock.getsockname()
    sock.close()
    return pid, address


def test_stopped_and_killed_peers_are_survived():
    def behave(connection):
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nabc")
        connection.recv(65536)

    pid, address = child_server(behave)
    try:
        backend = Backend(local={})
        response = backend.call(address, "GET", "/d", Headers(), timeout_s=0.2)
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(BackendTimeout):
            response.read()
        with pytest.raises(BackendTimeout):
            backend.call(address, "GET", "/d", Headers(), timeout_s=0.1)
        upload = backend.upload(address, "/d", Headers(), timeout_s=0.1)
        with pytest.raises(BackendTimeout):
            upload.ready()
        os.kill(pid, signal.SIGCONT)
        response = backend.call(address, "GET", "/d", Headers(), timeout_s=5)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(BackendError):
            response.read()
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_header_that_cannot_be_sent_is_an_error_and_not_sent():
    seen = []

    def app(environ, start_response):
        seen.append(environ)
        return Response(200)(environ, start_response)

    with serve(app) as served:
        for value in ("a\r\nX-Evil: b", "a\nb", "\0", "\u20ac"):
            with pytest.raises(BackendError):
                Backend(local={}).call(served.address, "GET", "/d", Headers({"X-A": value}))
    assert seen == []
