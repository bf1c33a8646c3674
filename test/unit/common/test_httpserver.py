"""The server over real sockets: framing, refusal, timeouts, endings."""

import itertools
import logging
import os
import ssl
import subprocess

import pytest

from keelstore.common import admission, concurrency, httpinput, send_ahead, sockets
from keelstore.common.errors import BadRequest, ClientDisconnect, ClientTimeout, WaitTimeout
from keelstore.common.http import Request, Response
from keelstore.common.httpserver import BATCH, ServerOptions, server_options
from keelstore.common.limits import Limits
from keelstore.common.metrics import Meter
from keelstore.common.middleware.s3api.chunks import open_stream
from test.support.smuggling import CHUNKED_HEAD, DOUBTFUL, REFUSED
from test.support.wire import dial, read_all, read_until, serve, talk

CANARY = b"DELETE /canary HTTP/1.1\r\nHost: x\r\n\r\n"


class Echo:
    """Answers with the body of the request; remembers what it was asked."""

    def __init__(self, read=True):
        self.seen, self.environs, self.read, self.error = [], [], read, None

    def __call__(self, environ, start_response):
        self.seen.append(f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}")
        self.environs.append(dict(environ))
        body = b""
        if self.read:
            try:
                body = environ["wsgi.input"].read()
            except Exception as error:
                self.error = error
                raise
        return Response(200, body=body, content_type="text/plain")(environ, start_response)


def closing(request):
    """The request with Connection: close, so that ``talk`` ends."""
    return request.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)


def test_simple_request_is_answered():
    with serve(Echo()) as served:
        answer = talk(served.address, closing(b"GET /a%20b?x=1 HTTP/1.1\r\nHost: h\r\nX-Some-Thing: 1\r\n\r\n"))
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"\r\nContent-Length: 0" in head and b"\r\nDate: " in head and b"\r\nConnection: close" in head
        assert body == b""


def test_environ_is_wsgi():
    app = Echo()
    with serve(app) as served:
        talk(served.address, closing(b"PUT /v1/a%20b/%E2%82%AC?x=%31 HTTP/1.1\r\nHost: h:1\r\nContent-Length: 3\r\n"
                                     b"X-Object-Meta-\xe2\x82\xac: \xe2\x82\xac\r\nx-twice: 1\r\nX-TWICE: 2\r\n\r\nabc"))
    environ = app.environs[0]
    assert environ["REQUEST_METHOD"] == "PUT"
    assert environ["PATH_INFO"] == "/v1/a b/\xe2\x82\xac"
    assert environ["RAW_PATH_INFO"] == "/v1/a%20b/%E2%82%AC"
    assert environ["QUERY_STRING"] == "x=%31"
    assert environ["HTTP_X_OBJECT_META_\xe2\x82\xac"] == "\xe2\x82\xac"
    assert environ["HTTP_X_TWICE"] == "1,2"
    assert environ["CONTENT_LENGTH"] == "3" and "CONTENT_TYPE" not in environ
    assert environ["REMOTE_ADDR"] == "127.0.0.1" and int(environ["REMOTE_PORT"])
    assert environ["SERVER_PORT"] == str(served.address[1]) and environ["wsgi.url_scheme"] == "http"
    assert environ["SERVER_PROTOCOL"] == "HTTP/1.1" and environ["wsgi.version"] == (1, 0) and environ["SCRIPT_NAME"] == ""


def test_who_always_has_the_next_request_there_does_not_hold_up_the_others():
    order = []

    def app(environ, start_response):
        order.append(environ["PATH_INFO"])
        return Response(200)(environ, start_response)

    with serve(app) as served:
        streams = [dial(served.address) for _ in range(4)]
        for stream in streams:
            stream.send(b"GET /first HTTP/1.1\r\n\r\n")
            stream.receive()
        order.clear()
        for number, stream in enumerate(streams):  # all are there before the server looks
            stream.send(b"GET /%d HTTP/1.1\r\n\r\n" % number * 39 + closing(b"GET /%d HTTP/1.1\r\n\r\n" % number))
        for stream in streams:
            read_all(stream, 1 << 20)
            stream.close()
    assert len(order) == 160
    runs = [len(list(group)) for _, group in itertools.groupby(order)]
    assert max(runs[:4]) <= 8, runs


def test_a_request_that_is_there_as_the_server_stops_is_answered(monkeypatch):
    app = Echo()
    with serve(app) as served:
        def stop(self):  # between two requests of a connection that was told to stay
            if len(app.seen) == 1:
                stream.send(b"GET /second HTTP/1.1\r\n\r\n")
                served.server.is_stopping = True

        monkeypatch.setattr(sockets.Stream, "end_request", stop)
        stream = dial(served.address)
        stream.send(b"GET /first HTTP/1.1\r\n\r\n")
        answers = read_all(stream, 1 << 20)
        stream.close()
    assert app.seen == ["GET /first", "GET /second"]
    assert answers.count(b"HTTP/1.1 200 OK") == 2 and answers.count(b"Connection: close") == 1


def test_pipelined_requests_are_served_in_order():
    app = Echo()
    with serve(app) as served:
        data = b"".join(b"PUT /%d HTTP/1.1\r\nContent-Length: 1\r\n\r\n%d" % (n, n) for n in range(9))
        answer = talk(served.address, data + closing(b"GET /end HTTP/1.1\r\n\r\n"))
    assert app.seen == [f"PUT /{n}" for n in range(9)] + ["GET /end"]
    assert [part[:1] for part in answer.split(b"\r\n\r\n")[1:]] == [b"%d" % n for n in range(9)] + [b""]


def test_chunked_request_with_trailers_is_read():
    app = Echo()
    with serve(app) as served:
        answer = talk(served.address, b"PUT /o HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
                      b"3;ext=1\r\nabc\r\n00A\r\n0123456789\r\n0\r\nX-Trailer: v\r\nX-Auth-Token: t\r\n\r\n"
                      + closing(b"GET /next HTTP/1.1\r\n\r\n"))
    assert b"\r\n\r\nabc0123456789HTTP/1.1 200" in answer
    assert app.seen == ["PUT /o", "GET /next"]
    assert "HTTP_X_TRAILER" not in app.environs[1] and "HTTP_X_AUTH_TOKEN" not in app.environs[1]


@pytest.mark.parametrize("name", REFUSED)
def test_malformed_request_is_refused_and_what_follows_is_not_executed(name):
    request, status = REFUSED[name]
    app = Echo()
    with serve(app) as served:
        answer = talk(served.address, request + CANARY)
    assert answer.startswith(b"HTTP/1.1 %d " % status), answer
    assert app.seen == []
    head = answer.partition(b"\r\n\r\n")[0]
    assert b"\r\nConnection: close" in head
    assert b"\r\nX-Trans-Id: tx" in head and b"\r\nX-Openstack-Request-Id: tx" in head
    assert answer.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize("name", DOUBTFUL)
def test_doubtful_framing_ends_the_connection(name, reads):
    app = Echo(read=reads)
    with serve(app) as served:
        talk(served.address, DOUBTFUL[name] + CANARY)
    assert app.seen == ["PUT /o"]
    if reads and name != "coding with HTTP/1.0":
        assert isinstance(app.error, ClientDisconnect)


def test_short_header_lines_up_to_the_limits_pass():
    app = Echo()
    with serve(app) as served:
        head = b"GET /" + b"a" * 8170 + b" HTTP/1.1\r\nX-A: " + b"b" * 8187 + b"\r\n" + b"X-C: d\r\n" * 199
        assert talk(served.address, head + b"Connection: close\r\n\r\n").startswith(b"HTTP/1.1 200")
    assert len(app.environs[0]["HTTP_X_A"]) == 8187


def test_head_in_single_bytes_is_read():
    app = Echo()
    with serve(app) as served:
        stream = dial(served.address)
        for byte in b"\r\nPUT /o HTTP/1.1\r\nContent-Length: 2\r\nConnection: close\r\n\r\nab":
            stream.send(bytes([byte]))
            concurrency.sleep(0)
        assert read_all(stream).endswith(b"\r\n\r\nab")
        stream.close()


def test_http_0_9_get_is_answered_and_closed():
    app = Echo()
    with serve(app) as served:
        assert talk(served.address, b"GET /o\r\n" + CANARY).startswith(b"HTTP/1.1 200")
    assert app.seen == ["GET /o"]


def test_http_1_0_closes_unless_asked_to_keep():
    app = Echo()
    with serve(app) as served:
        answer = talk(served.address, b"GET /o HTTP/1.0\r\n\r\n" + CANARY)
        assert b"Connection: close" in answer and app.seen == ["GET /o"]
        answer = talk(served.address, b"GET /p HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\nGET /q HTTP/1.0\r\n\r\n")
        assert b"Connection: keep-alive" in answer and app.seen[1:] == ["GET /p", "GET /q"]


@pytest.mark.parametrize(("target", "path"), [
    (b"http://host/v1/a?b=c", "/v1/a"), (b"HTTP://host:80", "/"), (b"https://host?x", "/"), (b"/a//b/../c", "/a//b/../c"),
    (b"/%zz%", "/%zz%"), (b"/%00", "/\0"), (b"/\xe2\x82\xac", "/\xe2\x82\xac"), (b"noslash", "noslash"),
])
def test_targets(target, path):
    app = Echo()
    with serve(app) as served:
        talk(served.address, closing(b"GET " + target + b" HTTP/1.1\r\n\r\n"))
    assert app.seen == ["GET " + path]


# -- 100 Continue


def test_continue_is_sent_when_the_body_is_first_read():
    app = Echo()
    with serve(app) as served:
        stream = dial(served.address)
        stream.send(b"PUT /o HTTP/1.1\r\nExpect: 100-Continue\r\nContent-Length: 3\r\n\r\n")
        assert stream.receive() == b"HTTP/1.1 100 Continue\r\n\r\n"
        stream.send(b"abc" + closing(b"GET /p HTTP/1.1\r\n\r\n"))
        assert b"\r\n\r\nabcHTTP/1.1 200 OK" in read_all(stream)
        stream.close()
    assert app.seen == ["PUT /o", "GET /p"]


@pytest.mark.parametrize("framing", [b"Content-Length: 3", b"Transfer-Encoding: chunked"])
def test_early_answer_to_an_expectation_closes(framing):
    """S54: the client may or may not send the body now; nothing after it can be told apart from it."""
    app = Echo(read=False)
    with serve(app) as served:
        answer = talk(served.address, b"PUT /o HTTP/1.1\r\nExpect: 100-continue\r\n" + framing + b"\r\n\r\n" + CANARY)
    assert b"100 Continue" not in answer and b"Connection: close" in answer
    assert app.seen == ["PUT /o"]


def test_two_phase_put():
    def app(environ, start_response):
        body = environ["wsgi.input"]
        environ["keelstore.continue_headers"] = [("X-Obj-Multiphase-Commit", "yes")]
        first = body.read()
        body.set_continue_headers([("X-Second", "2")])
        body.send_continue()
        second = body.read()
        return Response(201, body=first + b"|" + second)(environ, start_response)

    with serve(app) as served:
        stream = dial(served.address)
        stream.send(b"PUT /o HTTP/1.1\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert stream.receive() == b"HTTP/1.1 100 Continue\r\nX-Obj-Multiphase-Commit: yes\r\n\r\n"
        stream.send(b"3\r\nabc\r\n0\r\n\r\n")
        assert stream.receive() == b"HTTP/1.1 100 Continue\r\nX-Second: 2\r\n\r\n"
        stream.send(b"2\r\nde\r\n0\r\n\r\n" + closing(b"PUT /o HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n"))
        assert read_until(stream, b"abc|de").startswith(b"HTTP/1.1 201 Created")
        stream.close()


def test_second_phase_left_unread_closes():
    def app(environ, start_response):
        environ["wsgi.input"].read()
        environ["wsgi.input"].send_continue()
        return Response(500)(environ, start_response)

    with serve(app) as served:
        answer = talk(served.address, b"PUT /o HTTP/1.1\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n"
                      b"0\r\n\r\n" + CANARY)
    assert answer.count(b"HTTP/1.1 ") == 3 and b"500 Internal Error" in answer and b"Connection: close" in answer


# -- bodies left unread


def test_short_unread_body_is_read_away():
    app = Echo(read=False)
    with serve(app) as served:
        answer = talk(served.address, b"PUT /o HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (len(CANARY), CANARY)
                      + closing(b"GET /p HTTP/1.1\r\n\r\n"))
    assert app.seen == ["PUT /o", "GET /p"] and answer.count(b"200 OK") == 2


def test_long_unread_body_closes():
    app = Echo(read=False)
    with serve(app) as served:
        stream = dial(served.address)
        stream.send(b"PUT /o HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n")
        assert b"Connection: close" in read_until(stream, b"\r\n\r\n")
        stream.send(b"x" * 1000000 + CANARY)
        assert read_all(stream) == b""
        stream.close()
    assert app.seen == ["PUT /o"]


def test_unread_chunked_body_closes_unless_its_end_is_here():
    app = Echo(read=False)
    with serve(app) as served:
        answer = talk(served.address, CHUNKED_HEAD + b"5\r\nhello\r\n0\r\n\r\n" + CANARY)
        assert b"Connection: close" in answer and app.seen == ["PUT /o"]
        answer = talk(served.address, CHUNKED_HEAD + b"0\r\n\r\n" + closing(b"GET /p HTTP/1.1\r\n\r\n"))
        assert answer.count(b"200 OK") == 2 and app.seen[1:] == ["PUT /o", "GET /p"]


@pytest.mark.parametrize("rest", [CANARY, CANARY * 3000], ids=["short", "long"])
@pytest.mark.parametrize("is_chunked", [False, True], ids=["length", "chunked"])
def test_what_comes_behind_the_frames_of_s3_is_no_request(rest, is_chunked):
    """The framing ``aws-chunked`` is not read beyond its last line (``s3api/chunks``)."""
    seen = []

    def app(environ, start_response):
        seen.append(environ["PATH_INFO"])
        data = b""
        if environ["REQUEST_METHOD"] == "PUT":
            data = open_stream(environ["wsgi.input"], "STREAMING-UNSIGNED-PAYLOAD-TRAILER", "5", None, None, {}).read(100)
        return Response(200, body=data)(environ, start_response)

    body = b"5\r\nhello\r\n0\r\n\r\n" + rest
    framed = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    request = CHUNKED_HEAD + framed if is_chunked else b"PUT /o HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    with serve(app) as served:
        answer = talk(served.address, request + closing(b"GET /p HTTP/1.1\r\n\r\n"))
    is_kept = len(rest) < 65536
    assert b"\r\n\r\nhello" in answer and seen == (["/o", "/p"] if is_kept else ["/o"])
    assert answer.count(b"HTTP/1.1 ") == len(seen) and answer.count(b"Connection: close") == 1


# -- clients that stop


def test_client_that_goes_away_in_its_body():
    app = Echo()
    with serve(app) as served:
        stream = dial(served.address)
        stream.send(b"PUT /o HTTP/1.1\r\nContent-Length: 10\r\n\r\nabc")
        stream.shutdown_write()
        assert read_all(stream).startswith(b"HTTP/1.1 499 Client Disconnect")
        stream.close()
    assert isinstance(app.error, ClientDisconnect)


def test_silent_client_is_timed_out_in_its_body():
    app = Echo()
    with serve(app, ServerOptions(client_timeout_s=0.05)) as served:
        answer = talk(served.address, b"PUT /o HTTP/1.1\r\nContent-Length: 10\r\n\r\nabc")
    assert answer.startswith(b"HTTP/1.1 408 ") and b"Connection: close" in answer
    assert isinstance(app.error, ClientTimeout)


def test_slow_head_is_timed_out():
    app = Echo()
    with serve(app, ServerOptions(client_timeout_s=0.2)) as served:
        stream = dial(served.address)

        def drip():
            for byte in b"GET /" + b"a" * 1000:
                stream.send(bytes([byte]))
                concurrency.sleep(0.01)

        task = concurrency.spawn(drip)
        answer = read_all(stream)
        task.kill()
        stream.close()
    assert answer.startswith(b"HTTP/1.1 408") and app.seen == []


def test_idle_connection_is_closed():
    with serve(Echo(), ServerOptions(client_timeout_s=5, keepalive_timeout_s=0.05)) as served:
        answer = talk(served.address, b"GET /o HTTP/1.1\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200") and b"Connection" not in answer
        answer = talk(served.address, b"GET /o HTTP/1.1\r\nConnection: Keep-Alive\r\n\r\n")
        assert b"Connection: keep-alive" in answer
    with serve(Echo(), ServerOptions(client_timeout_s=5, keepalive_timeout_s=0)) as served:
        assert b"Connection: close" in talk(served.address, b"GET /o HTTP/1.1\r\n\r\n")


def test_silent_connection_is_closed():
    with serve(Echo(), ServerOptions(client_timeout_s=0.05)) as served:
        assert talk(served.address, b"") == b""


class Large:
    """A body of known length; remembers whether it was closed."""

    def __init__(self, size):
        self.size, self.closed = size, concurrency.Event()

    def __iter__(self):
        return iter([b"x" * 65536] * (self.size // 65536))

    def close(self):
        self.closed.set(True)


def serve_large(body, options, **kwargs):
    def app(environ, start_response):
        return Response(200, {"Content-Length": str(body.size)}, app_iter=body)(environ, start_response)

    return serve(app, options, **kwargs)


def test_what_quick_readers_were_granted_comes_back(monkeypatch):
    monkeypatch.setattr(send_ahead, "QUICK_S", 60.0)
    body = Large(32 << 20)
    with serve_large(body, ServerOptions(client_timeout_s=0.3)) as served:
        stream = dial(served.address)
        stream.send(closing(b"GET /o HTTP/1.1\r\n\r\n"))
        whole = read_all(stream, body.size * 2)
        stream.close()
        assert len(whole.partition(b"\r\n\r\n")[2]) == body.size and send_ahead.granted() == 0
        stream, got, body.closed = dial(served.address), 0, concurrency.Event()
        stream.send(b"GET /o HTTP/1.1\r\n\r\n")
        while got < 4 << 20:
            got += len(stream.receive(1 << 20))
        assert send_ahead.granted() > 0
        assert body.closed.wait(20), "who stops is dropped in client_timeout"
        stream.close()
        assert send_ahead.granted() == 0


def test_client_that_takes_no_answer_is_dropped_and_the_answer_closed():
    closed = concurrency.Event()

    class Endless:
        def __iter__(self):
            return self

        def __next__(self):
            return b"x" * 65536

        def close(self):
            closed.set(True)

    with serve(lambda environ, start: Response(200, app_iter=Endless())(environ, start),
               ServerOptions(client_timeout_s=0.1)) as served:
        stream = dial(served.address)
        stream.send(b"GET /o HTTP/1.1\r\n\r\n")
        assert closed.wait(5)
        stream.close()


# -- answers


def answered(app, request=b"GET /o HTTP/1.1\r\n\r\n", **kwargs):
    with serve(app, **kwargs) as served:
        return talk(served.address, closing(request))


def raw_app(status, headers, parts):
    def app(environ, start_response):
        start_response(status, headers)
        return parts() if callable(parts) else parts

    return app


def test_answer_in_parts_is_chunked():
    def parts():
        yield b""
        yield b"ab"
        yield b""
        yield b"c" * 100000

    answer = answered(raw_app("200 OK", [], parts))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"Transfer-Encoding: chunked" in head
    assert body == b"2\r\nab\r\n186a0\r\n" + b"c" * 100000 + b"\r\n0\r\n\r\n"
    answer = answered(raw_app("200 OK", [], parts), b"GET /o HTTP/1.0\r\n\r\n")
    assert b"chunked" not in answer and answer.endswith(b"\r\n\r\nab" + b"c" * 100000)


def test_empty_answer_in_parts():
    assert answered(raw_app("200 OK", [], lambda: iter(()))).endswith(b"\r\n\r\n0\r\n\r\n")
    assert answered(raw_app("200 OK", [("Content-Length", "0")], lambda: iter((b"",)))).endswith(b"close\r\n\r\n")


@pytest.mark.parametrize("status", ["204 No Content", "304 Not Modified"])
def test_no_body_where_none_may_be(status):
    for parts in ([b"body"], lambda: iter([b"body"])):
        assert answered(raw_app(status, [], parts)).endswith(b"\r\n\r\n")


def test_head_has_no_body():
    for parts in ([b"body"], lambda: iter([b"body"]), []):
        answer = answered(raw_app("200 OK", [("Content-Length", "4")], parts), b"HEAD /o HTTP/1.1\r\n\r\n")
        assert b"Content-Length: 4" in answer and answer.endswith(b"\r\n\r\n")


def test_head_has_no_body_when_the_application_changes_the_method():
    def app(environ, start_response):
        environ["REQUEST_METHOD"] = "GET"
        return Response(200, body=b"body")(environ, start_response)

    answer = answered(app, b"HEAD /o HTTP/1.1\r\n\r\n")
    assert b"Content-Length: 4" in answer and answer.endswith(b"\r\n\r\n")


def test_parts_that_are_not_bytes_become_500(caplog):
    for parts in (["text"], lambda: iter(["text"]), None):
        assert answered(raw_app("200 OK", [], parts)).startswith(b"HTTP/1.1 500 ")
    assert answered(raw_app("200 OK", [("Content-Length", 4)], [b"body"])).startswith(b"HTTP/1.1 500 ")


@pytest.mark.parametrize("headers", [
    [("X-A", "b\r\nSet-Cookie: c")], [("X-A", "b\nc")], [("X-A", "b\0")], [("X\r\nY", "b")], [("X-A", "\u20ac")],
    [("Content-Length", "4, 4")], [("Content-Length", "-1")], [("Content-Length", "5")],
])
@pytest.mark.parametrize("parts", [[b"body"], lambda: iter([b"body"])])
def test_answer_that_cannot_be_sent_becomes_500(headers, parts, caplog):
    if headers == [("Content-Length", "5")] and callable(parts):
        return  # known only when it is under way: see below
    answer = answered(raw_app("200 OK", headers, parts))
    assert answer.startswith(b"HTTP/1.1 500 Internal Error\r\n") and b"Set-Cookie" not in answer and b"X-Trans-Id" in answer
    assert caplog.records


@pytest.mark.parametrize("size", [3, 5])
def test_answer_of_wrong_length_is_cut(size):
    answer = answered(raw_app("200 OK", [("Content-Length", "4")], lambda: iter([b"x" * size])))
    assert len(answer.partition(b"\r\n\r\n")[2]) < 4


def test_answer_that_breaks_off_is_reset():
    def parts():
        yield b"abc"
        raise BadRequest("no more")

    for request in (b"GET /o HTTP/1.1\r\n\r\n", b"GET /o HTTP/1.0\r\n\r\n"):
        with serve(raw_app("200 OK", [], parts)) as served:
            stream = dial(served.address)
            stream.send(request)
            with pytest.raises(ConnectionResetError):
                while stream.receive():
                    pass
            stream.close()


def test_error_before_the_first_part_is_an_answer():
    def parts():
        raise BadRequest("no good")
        yield b""

    assert b"400 Bad Request" in answered(raw_app("200 OK", [], parts))

    def failing():
        raise ValueError("secret")
        yield b""

    answer = answered(raw_app("200 OK", [], failing))
    assert b"500 Internal Error" in answer and b"secret" not in answer


def test_application_that_raises_gives_500(caplog):
    def app(environ, start_response):
        raise ValueError("secret")

    answer = answered(app)
    assert answer.startswith(b"HTTP/1.1 500 ") and b"secret" not in answer and b"X-Openstack-Request-Id: tx" in answer
    assert "ValueError" in caplog.text


def test_late_start_response_is_served():
    def app(environ, start_response):
        start_response("200 OK", [("Content-Length", "2")])
        yield b"ok"

    assert answered(app).endswith(b"\r\n\r\nok")

    def never(environ, start_response):
        return [b"x"]

    assert b" 500 " in answered(never)


def test_close_of_the_answer_is_called_once():
    class Body:
        closed = 0

        def __iter__(self):
            return iter([b"abc"])

        def close(self):
            self.closed += 1

    for request in (b"GET /o HTTP/1.1\r\n\r\n", b"HEAD /o HTTP/1.1\r\n\r\n"):
        body = Body()
        answered(raw_app("200 OK", [("Content-Length", "3")], lambda body=body: body), request)
        assert body.closed == 1


def test_large_body_at_hand():
    body = os.urandom(3000000)
    assert answered(raw_app("200 OK", [], [body])).partition(b"\r\n\r\n")[2] == body


def test_part_of_a_file_is_sent(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(os.urandom(3000000))

    class Region:
        def __init__(self, fd):
            self.fd = fd

        def __iter__(self):
            raise AssertionError

        def file_region(self):
            return self.fd, 100, 2500000

    with open(path, "rb") as file:
        app = raw_app("200 OK", [("Content-Length", "2500000")], lambda: Region(file.fileno()))
        assert answered(app).partition(b"\r\n\r\n")[2] == path.read_bytes()[100:2500100]
        os.truncate(path, 1000)
        assert len(answered(app)) < 2500000


class Pieces:
    """A body that may be sent as pieces; iterating over it instead gives capitals."""

    def __init__(self, *pieces, error=None):
        self.pieces, self.error, self.closed = pieces, error, False

    def __iter__(self):
        yield b"ITERATED"

    def file_pieces(self):
        yield from self.pieces
        if self.error is not None:
            raise self.error

    def close(self):
        self.closed = True


def test_pieces_of_files_and_bytes_are_sent_in_order(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(os.urandom(300000))
    with open(path, "rb") as file:
        region = (file.fileno(), 100, 200000)
        for pieces in ([b"ab", region, b"cd", region], [region, b"x" * 100000], [b"", region]):
            expected = b"".join(path.read_bytes()[100:200100] if type(piece) is tuple else piece for piece in pieces)
            body = Pieces(*pieces)
            app = raw_app("200 OK", [("content-length", str(len(expected)))], lambda body=body: body)
            assert answered(app).partition(b"\r\n\r\n")[2] == expected
            assert body.closed


def test_pieces_are_not_asked_for_without_a_length():
    assert b"ITERATED" in answered(raw_app("200 OK", [], lambda: Pieces(b"x")))


def test_pieces_that_break_off_or_go_on_too_long_break_the_connection(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"x" * 1000)
    with open(path, "rb") as file:
        region = (file.fileno(), 0, 1000)
        for body in (Pieces(region, error=KeyError("x")), Pieces(region), Pieces(region, region), Pieces((region[0], 0, 1500))):
            app = raw_app("200 OK", [("Content-Length", "1500")], lambda body=body: body)
            assert len(answered(app).partition(b"\r\n\r\n")[2]) < 1500
            assert body.closed


# -- input as a file


def test_input_reads_as_a_file():
    found = []

    def app(environ, start_response):
        body = environ["wsgi.input"]
        found[:] = [body.readline(), body.read(3), body.readline(2), body.readline(), body.read1(2), list(body), body.read(5)]
        return Response(200)(environ, start_response)

    text = b"one\ntwothree\nfour\nfive"
    for framing in (b"Content-Length: %d\r\n\r\n%s" % (len(text), text),
                    b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(b"1\r\n%c\r\n" % c for c in text) + b"0\r\n\r\n"):
        answered(app, b"PUT /o HTTP/1.1\r\n" + framing)
        assert found[:4] == [b"one\n", b"two", b"th", b"ree\n"]
        assert found[4] + b"".join(found[5]) == b"four\nfive" and found[6] == b""


def test_large_upload_arrives_whole():
    body = os.urandom(3000000)
    with serve(Echo()) as served:
        stream = dial(served.address)
        received = concurrency.spawn(read_all, stream)
        stream.send(closing(b"PUT /o HTTP/1.1\r\nContent-Length: 3000000\r\n\r\n") + body)
        assert received.wait().partition(b"\r\n\r\n")[2] == body
        stream.close()


# -- the end of a server


def test_drain_closes_idle_connections_and_finishes_requests():
    go = concurrency.Event()

    def app(environ, start_response):
        if environ["PATH_INFO"] == "/slow":
            go.wait(5)
        return Response(200, body=b"done")(environ, start_response)

    with serve(app) as served:
        idle, busy = dial(served.address), dial(served.address)
        idle.send(b"GET /quick HTTP/1.1\r\n\r\n")
        assert read_until(idle, b"done")
        busy.send(b"GET /slow HTTP/1.1\r\n\r\n")
        while len(served.server.idle) != 1:
            concurrency.sleep(0)
        drained = concurrency.spawn(served.server.drain, 5)
        assert read_all(idle) == b""
        go.set()
        answer = read_all(busy)
        assert answer.endswith(b"done") and b"Connection: close" in answer
        assert drained.wait() is True
        assert served.server.connections == 0
        idle.close(), busy.close()


def test_who_has_just_come_is_heard_when_the_server_stops():
    """Found by a reload under load: a connection that had been accepted, and whose request was on its way, was reset."""
    with serve(Echo()) as served:
        fresh, halfway, silent = (dial(served.address, 30) for _ in range(3))
        halfway.send(b"GET /o HTTP/1.1\r\nX-A: ")
        until(lambda: len(served.server.idle) == 2 and served.server.half_heard, "they have been accepted")
        drained = concurrency.spawn(served.server.drain, 30)
        concurrency.sleep(0.05)
        fresh.send(b"GET /o HTTP/1.1\r\n\r\n")
        halfway.send(b"b\r\n\r\n")
        for stream in (fresh, halfway):
            answer = read_all(stream)
            assert answer.startswith(b"HTTP/1.1 200") and b"Connection: close" in answer
        assert read_all(silent) == b"" and drained.wait() is True
        for stream in (fresh, halfway, silent):
            stream.close()


def test_who_waits_for_a_place_when_the_server_stops_is_told():
    app = Held()
    with serve(app, ServerOptions(client_timeout_s=30, max_clients=1, overload_wait_s=30)) as served:
        (first,) = occupy(served, app, 1)
        second = dial(served.address, 30)
        second.send(b"GET /o HTTP/1.1\r\n\r\n")
        until(lambda: served.server._freed is not None, "it has been accepted, and waits")
        served.server.stop_accepting()
        assert read_all(second).startswith(b"HTTP/1.1 503")
        app.go.set()
        assert read_all(first).endswith(b"done")
        first.close(), second.close()


def test_drain_gives_up_after_its_time():
    with serve(lambda environ, start: concurrency.sleep(5)) as served:
        stream = dial(served.address)
        stream.send(b"GET /o HTTP/1.1\r\n\r\n")
        while served.server.connections != 1 or served.server.idle:
            concurrency.sleep(0)
        assert served.server.drain(0.05) is False
        stream.close()


def test_serve_forever_ends_and_can_precede_stop():
    with serve(Echo()) as served:
        task = concurrency.spawn(served.server.serve_forever)
        served.server.stop_accepting()
        task.wait()
        served.server.serve_forever()


def test_idle_connection_gives_way_when_all_places_are_taken():
    with serve(Echo(), ServerOptions(client_timeout_s=5, max_clients=2)) as served:
        first, second = dial(served.address), dial(served.address)
        for stream in (first, second):
            stream.send(b"GET /o HTTP/1.1\r\n\r\n")
            assert read_until(stream, b"\r\n\r\n")
        assert talk(served.address, closing(b"GET /o HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200")
        assert read_all(first) == b""
        first.close(), second.close()


class Held:
    """An application whose answers wait until they are let go."""

    def __init__(self):
        self.at_work, self.go = 0, concurrency.Event()

    def __call__(self, environ, start_response):
        self.at_work += 1
        self.go.wait(30)
        return Response(200, body=b"done")(environ, start_response)


def occupy(served, app, count):
    """So many connections with a request at work."""
    streams = [dial(served.address, 30) for _ in range(count)]
    for stream in streams:
        stream.send(b"GET /o HTTP/1.1\r\n\r\n")
    until(lambda: concurrency.sleep(0.01) or app.at_work == count, "all are at work")
    return streams


def until(condition, what):
    """As ``waiting.until``, for a server in this very thread."""
    with concurrency.time_limit(30, AssertionError(what)):
        while not condition():
            concurrency.sleep(0.01)


def test_connections_beyond_all_places_are_refused_until_one_is_free():
    app = Held()
    options = ServerOptions(client_timeout_s=30, max_clients=2, overload_wait_s=0)
    with serve(app, options) as served:
        streams = occupy(served, app, 2)
        for request in (b"", b"GET /o HTTP/1.1\r\n\r\n", b"PUT /o HTTP/1.1\r\nContent-Length: 100000\r\nExpect: 100-continue\r\n\r\n"):
            answer = talk(served.address, request, 30)
            assert answer.startswith(b"HTTP/1.1 503 ") and b"\r\nRetry-After: 1\r\n" in answer and b"\r\nX-Trans-Id: " in answer
            assert b"X-Backend-Keelstore-Reason" not in answer
        app.go.set()
        for stream in streams:
            assert b"done" in read_until(stream, b"done")
        assert b"done" in talk(served.address, closing(b"GET /o HTTP/1.1\r\n\r\n"), 30)
        for stream in streams:
            stream.close()
    assert app.at_work == 3  # nothing of what was refused came through


def test_who_is_refused_does_not_hold_up_those_at_work(monkeypatch):
    with serve(Echo(), ServerOptions(max_clients=1)) as served:
        server, others, refused = served.server, [], []
        until(lambda: server._acceptor is not None, "it accepts")
        server._acceptor.kill()
        server._is_full = True
        monkeypatch.setattr(server, "_make_room", lambda: False)
        monkeypatch.setattr(server, "_refuse", lambda *args: refused.append(len(others)))
        monkeypatch.setattr(type(server._pool), "free", lambda _self: 0)
        monkeypatch.setattr("keelstore.common.sockets.accept", lambda sock: ((None, None) for _ in range(10 * BATCH)))

        def working():
            while len(refused) < 10 * BATCH:
                others.append(1)
                concurrency.sleep(0)

        task = concurrency.spawn(working)
        concurrency.sleep(0)
        server._accept()
        task.wait()
        assert len(refused) == 10 * BATCH and refused[-1] >= 9


def test_new_connection_waits_a_moment_for_a_place():
    app = Held()
    with serve(app, ServerOptions(client_timeout_s=30, max_clients=1, overload_wait_s=30)) as served:
        (first,) = occupy(served, app, 1)
        second = dial(served.address, 30)
        second.send(closing(b"GET /o HTTP/1.1\r\n\r\n"))
        concurrency.sleep(0.05)
        app.go.set()
        assert b"done" in read_all(second)  # the first is idle now, and gives way
        assert b"done" in read_all(first)
        first.close(), second.close()


def test_storage_server_says_that_its_devices_are_not_at_fault():
    app = Held()
    with serve(app, ServerOptions(client_timeout_s=30, max_clients=1, overload_wait_s=0), is_backend=True) as served:
        (first,) = occupy(served, app, 1)
        assert b"\r\nX-Backend-Keelstore-Reason: busy\r\n" in talk(served.address, b"GET /o HTTP/1.1\r\n\r\n", 30)
        app.go.set()
        first.close()


def test_heads_that_do_not_end_give_way_oldest_first():
    with serve(Echo(), ServerOptions(client_timeout_s=30, max_clients=2, overload_wait_s=0)) as served:
        first, second = dial(served.address, 30), dial(served.address, 30)
        for number, stream in enumerate((first, second)):
            stream.send(b"GET /o HTTP/1.1\r\nX-A: ")
            until(lambda number=number: len(served.server.half_heard) > number, "its head has begun")
        assert talk(served.address, closing(b"GET /o HTTP/1.1\r\n\r\n"), 30).startswith(b"HTTP/1.1 200")
        assert read_all(first) == b""
        second.send(b"b\r\n\r\n")
        assert read_until(second, b"\r\n\r\n").startswith(b"HTTP/1.1 200")
        first.close(), second.close()


def test_another_worker_is_left_what_it_has_places_for():
    app, others = Held(), [True]
    with serve(app, ServerOptions(client_timeout_s=30, max_clients=1, overload_wait_s=0)) as served:
        served.server._others_have_room = lambda limit: others[0]
        (first,) = occupy(served, app, 1)
        second = dial(served.address, 30)
        second.send(b"GET /o HTTP/1.1\r\n\r\n")
        with pytest.raises(WaitTimeout):
            second.receive(timeout=0.2)
        others[0] = False
        assert read_all(second).startswith(b"HTTP/1.1 503 ")
        app.go.set()
        first.close(), second.close()


def test_body_that_trickles_is_timed_out_though_it_never_rests(monkeypatch):
    app = Echo()
    with serve(app, ServerOptions(client_timeout_s=1)) as served:
        stream = dial(served.address, 30)
        stream.send(b"PUT /o HTTP/1.1\r\nContent-Length: 1000\r\n\r\n")
        sent = 0
        with pytest.raises((OSError, StopIteration)):
            while sent < 999:  # would take ten times as long
                stream.send(b"x")
                sent += 1
                if app.error is not None:
                    raise StopIteration
                concurrency.sleep(0.01)
        assert isinstance(app.error, ClientTimeout)
        assert read_all(stream).startswith(b"HTTP/1.1 408 ")
        stream.close()


def test_body_in_small_pieces_that_keeps_pace_is_read(monkeypatch):
    monkeypatch.setattr(httpinput, "PACE", 10)
    app = Echo()
    with serve(app, ServerOptions(client_timeout_s=5)) as served:
        stream = dial(served.address, 30)
        stream.send(closing(b"PUT /o HTTP/1.1\r\nContent-Length: 100\r\n\r\n"))
        for _ in range(20):
            stream.send(b"12345")
            concurrency.sleep(0.005)
        assert read_all(stream).endswith(b"12345" * 20)
        stream.close()


def test_what_a_server_sends_to_a_storage_server_may_trickle():
    with serve(Echo(), ServerOptions(client_timeout_s=1), is_backend=True) as served:
        assert served.server.pace_s == 0 and served.server.admission is None


def test_uploads_beyond_what_a_late_worker_can_do_are_refused_before_their_bodies(monkeypatch):
    monkeypatch.setattr(admission, "FEW", 2)
    monkeypatch.setattr(admission, "START", 0)
    monkeypatch.setattr(admission.Admission, "_measure", lambda self: None)
    app = Held()
    with serve(app, ServerOptions(client_timeout_s=30), meter=Meter("proxy")) as served:
        served.server.admission.note(10.0)  # late
        put = b"PUT /o HTTP/1.1\r\nContent-Length: 100000\r\nExpect: 100-continue\r\n\r\n"
        streams = [dial(served.address, 30) for _ in range(2)]
        for stream in streams:
            stream.send(put)
        until(lambda: app.at_work == 2, "as many as are never too many")
        answer = talk(served.address, put, 30)
        assert answer.startswith(b"HTTP/1.1 503 ") and b"\r\nRetry-After: 1\r\n" in answer and b"100 Continue" not in answer
        reader = dial(served.address, 30)
        reader.send(closing(b"GET /o HTTP/1.1\r\n\r\n"))
        until(lambda: app.at_work == 3, "what is no upload is served")
        app.go.set()
        assert b"done" in read_all(reader)
        for stream in (*streams, reader):
            stream.close()


# -- TLS, PROXY, options


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tls")
    cert, key = str(directory / "cert.pem"), str(directory / "key.pem")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert, "-days", "2",
                    "-subj", "/CN=localhost"], check=True, capture_output=True)
    return cert, key


def test_tls(certificate):
    app = Echo()
    with serve(app, ssl_context=sockets.tls_context(*certificate)) as served:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        raw = dial(served.address)
        tls = context.wrap_bio(incoming := ssl.MemoryBIO(), outgoing := ssl.MemoryBIO())

        def run(step, *args):
            while True:
                try:
                    return step(*args)
                except ssl.SSLWantReadError:
                    raw.send(outgoing.read())
                    incoming.write(raw.receive())
                finally:
                    if outgoing.pending:
                        raw.send(outgoing.read())

        run(tls.do_handshake)
        body = os.urandom(200000)
        run(tls.write, b"PUT /o HTTP/1.1\r\nContent-Length: 200000\r\n\r\n" + body)
        answer = b""
        while len(answer.partition(b"\r\n\r\n")[2]) < len(body):
            answer += run(tls.read, 65536)
        assert answer.endswith(body)
        assert app.environs[0]["wsgi.url_scheme"] == "https" and app.environs[0]["HTTPS"] == "on"
        raw.close()
        assert talk(served.address, b"GET / HTTP/1.1\r\n\r\n")[:5] != b"HTTP/"


def test_a_large_body_by_tls_for_a_quick_reader(certificate, monkeypatch):
    monkeypatch.setattr(send_ahead, "QUICK_S", 60.0)
    body, most = Large(32 << 20), 0
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with serve_large(body, ServerOptions(client_timeout_s=5), ssl_context=sockets.tls_context(*certificate)) as served:
        plain = dial(served.address)
        stream = sockets.Stream(context.wrap_socket(plain.sock, do_handshake_on_connect=False), 5)
        stream.handshake()
        stream.send(closing(b"GET /o HTTP/1.1\r\n\r\n"))
        got = 0
        while data := stream.receive(1 << 20):
            got += len(data)
            most = max(most, send_ahead.granted())
        stream.close()
    assert got > body.size and most > 0 and send_ahead.granted() == 0


def test_proxy_protocol():
    app = Echo()
    options = ServerOptions(client_timeout_s=5, require_proxy_protocol=True)
    request = closing(b"GET /o HTTP/1.1\r\n\r\n")
    with serve(app, options) as served:
        assert b"200 OK" in talk(served.address, b"PROXY TCP4 192.0.2.1 192.0.2.2 5000 443\r\n" + request)
        assert b"200 OK" in talk(served.address, b"PROXY TCP6 2001:db8::1 2001:db8::2 5000 80\r\n" + request)
        assert b"200 OK" in talk(served.address, b"PROXY UNKNOWN\r\n" + request)
        for line in (b"GET / HTTP/1.1\r\n", b"PROXY TCP4 1.2.3.4 1.2.3.4 1\r\n", b"PROXY TCP4 1.2.3.4 1.2.3 1 2\r\n",
                     b"PROXY TCP6 1.2.3.4 1.2.3.4 1 2\r\n", b"PROXY TCP4 1.2.3.4 1.2.3.4 1 99999\r\n", b"PROXY TCP4 1.2.3.4\n",
                     b"x" * 200, b"PROXY\r\n", b"PROXY TCP4 1.2.3.4 1.2.3.4 -1 2\r\n"):
            assert talk(served.address, line + request).startswith(b"HTTP/1.1 400")
    assert [(e["REMOTE_ADDR"], e["REMOTE_PORT"], e["wsgi.url_scheme"]) for e in app.environs[:2]] == [
        ("192.0.2.1", "5000", "https"), ("2001:db8::1", "5000", "http")]
    assert app.environs[2]["REMOTE_ADDR"] == "127.0.0.1" and len(app.environs) == 3


def test_options_come_from_conf_and_limits():
    options = server_options({"client_timeout": "7", "keepalive_timeout": "0", "max_clients": "5",
                              "require_proxy_protocol": "yes"}, Limits(max_header_size=100, max_request_line=200))
    assert options == ServerOptions(7.0, 0.0, 5, require_proxy_protocol=True, max_request_line=200, max_header_size=100, max_headers=201)
    assert server_options({}, Limits()) == ServerOptions()


def test_request_view_works_on_our_environ():
    def app(environ, start_response):
        request = Request(environ)
        assert request.params == {"a": "\u20ac"} and request.path == "/\u20ac" and request.read_body(10) == b"abc"
        return Response(202)(environ, start_response)

    assert b" 202 " in answered(app, b"PUT /%E2%82%AC?a=%E2%82%AC HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc")


logging.getLogger("test.server").setLevel(logging.DEBUG)
