import hashlib
import io
import logging
import os
import socket
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelstore.common.errors import ConfigError
from keelstore.common.http import Response
from keelstore.common.middleware.access_line import (
    DEFAULT_TEMPLATE,
    SECRET_HEADERS,
    SENSITIVE_HEADERS,
    Hit,
    LineOptions,
    compile_template,
)
from keelstore.common.middleware.bodies import WrongLength
from keelstore.common.middleware.catch_errors import CatchErrors, CatchErrorsOptions
from keelstore.common.middleware.proxy_logging import ProxyLogging, ProxyLoggingOptions, filter_factory
from keelstore.common.stats import NO_STATS
from test.unit.common.middleware.helpers import Got, Inner, call, make_environ

FIELDS = ["client_ip", "remote_addr", "end_time.datetime", "method", "path", "protocol", "status_int", "referer", "user_agent", "auth_token", "bytes_recvd", "bytes_sent", "client_etag", "transaction_id", "headers", "request_time", "source", "log_info", "start_time", "end_time", "policy_index", "access_user_id"]
TOKEN = "AUTH_tk0123456789abcdef0123456789abcdef"


class Lines(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


class Clock:
    def __init__(self, *times):
        self.times = list(times)

    def __call__(self):
        return self.times.pop(0) if len(self.times) > 1 else self.times[0]


class Stats:
    has_labels = False

    def __init__(self):
        self.got = []

    def timing(self, metric, value, rate=None):
        self.got.append((metric, round(value), "ms"))

    def update(self, metric, value, rate=None):
        self.got.append((metric, value, "c"))

    def labelled(self, metric, kind, value, labels):
        self.got.append((metric, value, kind, dict(labels)))


@pytest.fixture
def lines():
    return Lines()


def logged(app, handler, stats=NO_STATS, clock=None, **options):
    logger = logging.Logger("access", logging.INFO)
    logger.addHandler(handler)
    return ProxyLogging(app, ProxyLoggingOptions(**options), logger, stats, clock or Clock(1000.0, 1000.25))


def fields(line):
    parts = line.split(" ")
    assert len(parts) == len(FIELDS)
    return dict(zip(FIELDS, map(unquote, parts)))


def test_the_default_line(lines):
    inner = Inner(status=201, headers={"X-Backend-Storage-Policy-Index": "1"}, body=b"answer")

    def app(environ, start_response):
        environ["wsgi.input"].read()
        environ["swift.log_info"] = ["a", "b"]
        environ["swift.source"] = "TU"
        environ["swift.access_logging"] = {"user_id": "u"}
        environ["REQUEST_METHOD"], environ["PATH_INFO"] = "X", "/changed"
        return inner(environ, start_response)
    call(logged(app, lines), "PUT", "/v1/AUTH_a/c/sp ace", query="a=b c", body=b"12345", headers={
        "User-Agent": "curl/8 (x)", "Referer": "http://r/", "X-Auth-Token": TOKEN, "Etag": '"e"',
        "X-Forwarded-For": "1.2.3.4, 5.6.7.8", "X-Trans-Id-Extra": "x"}, **{"swift.trans_id": "tx1"})
    assert lines.lines == [
        "1.2.3.4 10.1.2.3 01/Jan/1970/00/16/40 PUT /v1/AUTH_a/c/sp%2520ace%3Fa%3Db%20c HTTP/1.1 201 http://r/ "
        "curl/8%20%28x%29 AUTH_tk012345678... 5 6 %22e%22 tx1 - 0.2500 TU a%2Cb 1000.000000000 1000.250000000 1 u"]


def test_what_is_empty_or_zero_is_a_dash(lines):
    call(logged(Inner(status=204), lines))
    found = lines.lines[0].split(" ")
    for name in ("referer", "user_agent", "auth_token", "bytes_recvd", "bytes_sent", "client_etag", "headers", "source",
                 "log_info", "policy_index", "access_user_id", "transaction_id"):
        assert found[FIELDS.index(name)] == "-"


@pytest.mark.parametrize(("headers", "ip"), [
    ({"X-Cluster-Client-Ip": "9.9.9.9", "X-Forwarded-For": "1.2.3.4"}, "9.9.9.9"),
    ({"X-Forwarded-For": "1.2.3.4,5.6.7.8"}, "1.2.3.4"), ({}, "10.1.2.3"),
])
def test_client_ip(lines, headers, ip):
    call(logged(Inner(), lines), headers=headers)
    assert fields(lines.lines[0])["client_ip"] == ip


def test_a_line_cannot_be_forged(lines):
    call(logged(Inner(), lines), path="/v1/a\r\nfake line", headers={"User-Agent": "x\r\n1.1.1.1 - - GET\x00é"})
    assert "\n" not in lines.lines[0] and "\r" not in lines.lines[0] and "\x00" not in lines.lines[0]
    assert len(lines.lines[0].split(" ")) == len(FIELDS)


def test_two_in_a_pipeline_log_once_but_subrequests_are_logged_by_the_second(lines):
    inner = Inner(body=b"x")
    right = logged(inner, lines)
    call(logged(right, lines))
    assert len(lines.lines) == 1

    def middle(environ, start_response):
        call(right, "HEAD", "/v1/AUTH_a", **{"swift.source": "TA"})
        return right(environ, start_response)
    call(logged(middle, lines))
    assert [fields(line)["source"] for line in lines.lines[1:]] == ["TA", "-"]


def test_a_list_without_length_gets_one(lines):
    def app(environ, start_response):
        start_response("200 OK", [])
        return [b"ab", b"c"]
    got = call(logged(app, lines))
    assert got.headers["Content-Length"] == "3" and got.body == b"abc"


def test_small_bodies_pass_unwrapped(lines):
    body = [b"abc"]

    def app(environ, start_response):
        start_response("200 OK", [("Content-Length", "3")])
        return body
    assert Got(logged(app, lines), make_environ()).raw is body


def test_a_streamed_body_is_logged_when_it_ends(lines):
    app = logged(Inner(Response(200, {"Content-Length": "4"}, app_iter=iter([b"ab", b"", b"cd"]))), lines)
    got = Got(app, make_environ(), iterate=False)
    assert not lines.lines
    assert b"".join(got.raw) == b"abcd"
    got.raw.close()
    assert len(lines.lines) == 1
    assert (fields(lines.lines[0])["status_int"], fields(lines.lines[0])["bytes_sent"]) == ("200", "4")


def test_a_client_that_leaves_is_a_499(lines):
    app = logged(Inner(Response(200, {"Content-Length": "4"}, app_iter=iter([b"ab", b"cd"]))), lines)
    got = Got(app, make_environ(), iterate=False)
    next(iter(got.raw))
    got.raw.close()
    assert (fields(lines.lines[0])["status_int"], fields(lines.lines[0])["bytes_sent"]) == ("499", "2")


def test_a_server_that_stops_at_the_length_is_no_disconnect(lines):
    app = logged(Inner(Response(200, {"Content-Length": "4"}, app_iter=iter([b"ab", b"cd"]))), lines)
    got = Got(app, make_environ(), iterate=False)
    parts = iter(got.raw)
    assert next(parts) + next(parts) == b"abcd"
    got.raw.close()
    assert fields(lines.lines[0])["status_int"] == "200"


def test_a_body_never_iterated_is_closed_and_logged(lines):
    class Body:
        closed = False

        def __iter__(self):
            return iter([b"x"])

        def close(self):
            Body.closed = True
    got = Got(logged(Inner(Response(200, {"Content-Length": "1"}, app_iter=Body())), lines), make_environ(), iterate=False)
    got.raw.close()
    assert Body.closed and fields(lines.lines[0])["status_int"] == "499"


def test_a_broken_upload_is_a_499(lines):
    class Gone:
        def read(self, *args):
            raise OSError("reset")

    def app(environ, start_response):
        try:
            environ["wsgi.input"].read(10)
        except OSError:
            return Response(499)(environ, start_response)
        raise AssertionError
    call(logged(app, lines), "PUT", headers={"Content-Length": "10"}, **{"wsgi.input": Gone()})
    assert fields(lines.lines[0])["status_int"] == "499"


def test_an_exception_is_a_500_and_passes_on(lines):
    def app(environ, start_response):
        raise RuntimeError
    with pytest.raises(RuntimeError):
        call(logged(app, lines))
    assert fields(lines.lines[0])["status_int"] == "500"


@pytest.mark.parametrize("parts", [[b"abc"], [b"abcdef"]])
def test_lengths_are_enforced(lines, parts):
    with pytest.raises(WrongLength):
        call(logged(Inner(Response(200, {"Content-Length": "4"}, app_iter=iter(parts))), lines))
    assert fields(lines.lines[0])["status_int"] == "500"

    def app(environ, start_response):
        start_response("200 OK", [("Content-Length", "4")])
        return parts
    with pytest.raises(WrongLength):
        call(logged(app, lines))
    assert fields(lines.lines[1])["status_int"] == "500"


def test_head_has_no_body(lines):
    def app(environ, start_response):
        start_response("200 OK", [("Content-Length", "4")])
        return [b"abcd"]
    got = call(logged(app, lines), "HEAD")
    assert (got.body, got.headers["Content-Length"], fields(lines.lines[0])["bytes_sent"]) == (b"", "4", "-")


def test_status_and_method_can_be_overridden(lines):
    def app(environ, start_response):
        environ["swift.proxy_logging_status"] = 418
        environ["swift.orig_req_method"] = "COPY"
        return Response(200)(environ, start_response)
    call(logged(app, lines), "PUT")
    found = fields(lines.lines[0])
    assert (found["status_int"], found["method"]) == ("418", "COPY")


def test_input_attributes_stay_reachable(lines):
    class Input(io.BytesIO):
        is_special = True
    seen = []

    def app(environ, start_response):
        seen.append((environ["wsgi.input"].is_special, environ["wsgi.input"].readline(), list(environ["wsgi.input"])))
        return Response(200)(environ, start_response)
    call(logged(app, lines), "PUT", body=b"a\nbc\nd", **{"wsgi.input": Input(b"a\nbc\nd")})
    assert seen == [(True, b"a\n", [b"bc\n", b"d"])]
    assert fields(lines.lines[0])["bytes_recvd"] == "6"


# -- secrets (S09) -----------------------------------------------------------------------------------------------------

QUERY_SECRETS = {
    "temp_url_sig": "da39a3ee5e6b4b0d3255bfef95601890afd80709", "signature": "5d41402abc4b2a76b9719d911017c592aa",
    "X-Amz-Signature": "b2a76b97aa19d911017c592aa5d41402abc4", "X-Amz-Security-Token": "FwoGZXIvYXdzEOr//////////wEaD",
    "Signature": "vjbyPxybdZaNmGa+yT272YEAiv4", "swiftinfo_sig": "7fb5ca53cc66406d58582a1ef4422d4a58905f38",
    "temp%5Furl%5Fsig": "0a39a3ee5e6b4b0d3255bfef95601890afd80709", "%53ignature": "9a39a3ee5e6b4b0d3255bfef9560",
    "TEMP_URL_SIG": "1a39a3ee5e6b4b0d3255bfef95601890afd80709", "X-Auth-Token": "AUTH_tk01234567890abcdef0123456789abcdef",
}


def test_security_S09_no_secret_reaches_a_line(lines):
    secrets = {name: f"secret-of-{name.lower()}-0123456789abcdef" for name in SENSITIVE_HEADERS | SECRET_HEADERS}
    query = "&".join(f"{name}={value}" for name, value in QUERY_SECRETS.items()) + "&prefix=shown"
    call(logged(Inner(), lines, access_log_headers=True), query=query, headers={**secrets, "X-Shown": "shown"})
    line = unquote(unquote(lines.lines[0]))
    for secret in [*secrets.values(), *QUERY_SECRETS.values()]:
        assert secret not in line and secret[:24] not in line
    for name in SECRET_HEADERS:
        assert f"{name}: ...\n" in line + "\n"
    assert "X-Shown: shown" in line and "prefix=shown" in line


def test_no_secret_is_shown_whole_however_short(lines):
    call(logged(Inner(), lines, access_log_headers=True), query="temp_url_sig=short", headers={"X-Auth-Token": "tiny"})
    line = unquote(unquote(lines.lines[0]))
    assert "tiny" not in line and "sig=short" not in line


def test_reveal_zero_shows_nothing(lines):
    call(logged(Inner(), lines, reveal_sensitive_prefix=0), query="temp_url_sig=abcdef", headers={"X-Auth-Token": TOKEN})
    assert "AUTH_tk" not in lines.lines[0] and "sig%3Da" not in lines.lines[0]


def test_only_named_headers(lines):
    call(logged(Inner(), lines, access_log_headers=True, access_log_headers_only=("x-one", "X-Two")),
         headers={"X-One": "1", "X-Two": "2", "X-Three": "3"})
    assert set(fields(lines.lines[0])["headers"].split("\n")) == {"X-One: 1", "X-Two: 2"}


# -- templates ---------------------------------------------------------------------------------------------------------


def render(template, lines, path="/v1/AUTH_a/c/o/p", **options):
    call(logged(Inner(body=b"x"), lines, log_msg_template=template, clock=Clock(1.5, 3.25), **options), path=path)
    return lines.lines[-1]


@pytest.mark.parametrize(("template", "line"), [
    ("{account}|{container}|{object}", "AUTH_a|c|o/p"), ("{domain} {wire_status_int}", "store:8080 200"),
    ("{start_time.s} {start_time.ms} {end_time.us} {end_time.ns}", "1 1500 3250000 3250000000"),
    ("{end_time.iso8601} {start_time.Y}-{start_time.m}", "1970-01-01T00:00:03 1970-01"),
    ("{end_time.asctime}", "Thu%20Jan%20%201%2000:00:03%201970"),
    ("100% {method} {{literal}}", "100% GET {literal}"), ("{method:>6}|{bytes_sent:<3}|", "   GET|1  |"),
    ("{request_time} {ttfb}", "1.7500 -"),
])
def test_fields_and_forms(template, line, lines):
    assert render(template, lines) == line


def test_anonymized(lines):
    digest = hashlib.md5(b"10.1.2.3").hexdigest()
    assert unquote(render("{client_ip.anonymized}", lines)) == "{MD5}" + digest
    salted = hashlib.sha256(b"salt/v1/AUTH_a/c/o/p").hexdigest()
    assert unquote(render("{path.anonymized}", lines, log_anonymization_method="sha256", log_anonymization_salt="salt")) == (
        "{SSHA256}" + salted)
    assert render("{referer.anonymized}", lines) == "-"


@pytest.mark.parametrize("template", ["{nothing}", "{method.anonymized}", "{start_time.zz}", "{method", "{method!r}", "{}",
                                      "{method:zz}", "{0}", "{client_ip.datetime}"])
def test_a_bad_template_stops_the_start(template):
    with pytest.raises(ConfigError):
        compile_template(template, LineOptions())


def test_an_unknown_hash_stops_the_start():
    with pytest.raises(ConfigError):
        compile_template("{path}", LineOptions(anonymization_method="rot13"))


# -- metrics -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "path", "base"), [
    ("GET", "/v1/a", "account.GET.200"), ("PUT", "/v1/a/c", "container.PUT.200"), ("HEAD", "/v1/a/c/", "container.HEAD.200"),
    ("DELETE", "/v1/a/c/o/p", "object.DELETE.200"), ("FOO", "/v1/a/c/o", "object.BAD_METHOD.200"),
    ("GET", "/info", "UNKNOWN.GET.200"), ("GET", "/v2/a", "UNKNOWN.GET.200"), ("GET", "/", "UNKNOWN.GET.200"),
])
def test_metric_names(lines, method, path, base):
    stats = Stats()
    call(logged(Inner(), lines, stats), method, path)
    assert (f"{base}.timing", 250, "ms") in stats.got and (f"{base}.xfer", 0, "c") in stats.got


def test_policy_metrics_and_first_byte(lines):
    stats = Stats()
    inner = Inner(Response(200, {"Content-Length": "3", "X-Backend-Storage-Policy-Index": "2"}, app_iter=iter([b"abc"])))
    call(logged(inner, lines, stats, Clock(1.0, 1.1, 1.2)))
    assert stats.got == [
        ("object.GET.200.timing", 200, "ms"), ("object.GET.200.first-byte.timing", 100, "ms"),
        ("object.GET.200.xfer", 3, "c"), ("object.policy.2.GET.200.timing", 200, "ms"),
        ("object.policy.2.GET.200.first-byte.timing", 100, "ms"), ("object.policy.2.GET.200.xfer", 3, "c")]


def test_labelled_metrics(lines):
    stats = Stats()
    stats.has_labels = True
    call(logged(Inner(body=b"abc"), lines, stats), path="/v1/a/c")
    found = {metric: (value, labels) for metric, value, kind, labels in (got for got in stats.got if len(got) == 4)}
    assert found["swift_proxy_server_response_body_bytes"] == (3, {
        "resource": "container", "method": "GET", "policy": None, "account": "a", "container": "c", "api": "swift",
        "status": 200})


def test_streaming_metrics(lines):
    stats = Stats()
    stats.has_labels = True
    inner = Inner(Response(200, {"Content-Length": "4"}, app_iter=iter([b"ab", b"cd"])))
    call(logged(inner, lines, stats, emit_every_s=0.0))
    found = [got[1] for got in stats.got if got[0] == "swift_proxy_server_response_body_streaming_bytes"]
    assert found == [2, 2]


def test_a_silent_logger_costs_nothing(lines):
    app = logged(Inner(body=b"x"), lines)
    app.log.setLevel(logging.WARNING)
    inner = app.app
    environ = make_environ(body=b"abc")
    source = environ["wsgi.input"]
    Got(app, environ)
    assert not lines.lines and inner.asked[0]["wsgi.input"] is source


def test_factory_prefers_access_options(tmp_path):
    log = tmp_path / "access.log"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("127.0.0.1", 0))
        receiver.settimeout(5)
        app = filter_factory({"log_name": "proxy"}, access_log_file=str(log), access_log_name="acc",
                             access_log_statsd_host="127.0.0.1", access_log_statsd_metric_prefix="h1",
                             access_log_statsd_port=str(receiver.getsockname()[1]), log_msg_template="{method} {path}")(Inner())
        call(app)
        assert receiver.recv(1000).startswith(b"h1.proxy-server.object.GET.200.timing:")
    assert log.read_text().endswith("acc: GET /v1/AUTH_a/c/o\n")


def test_factory_refuses_a_bad_template():
    with pytest.raises(ConfigError):
        filter_factory({}, log_msg_template="{nope}", log_file="-")(Inner())


class FileBody:
    told = closed = 0

    def __init__(self, count=4):
        self.region = (7, 0, count)

    def file_region(self):
        return self.region

    def file_region_sent(self):
        self.told += 1

    def close(self):
        self.closed += 1

    def __iter__(self):
        return iter([b"abcd"])


@pytest.mark.parametrize("is_sent", [True, False])
def test_a_file_goes_through_unread(lines, is_sent):
    body = FileBody()
    app = CatchErrors(logged(Inner(Response(200, {"Content-Length": "4"}, app_iter=body)), lines), CatchErrorsOptions(),
                      logging.getLogger("test"))
    got = Got(app, make_environ(), iterate=False)
    assert got.raw.file_region() == (7, 0, 4)
    if is_sent:
        got.raw.file_region_sent()
    got.raw.close()
    found = fields(lines.lines[0])
    assert (found["status_int"], found["bytes_sent"]) == (("200", "4") if is_sent else ("499", "-"))
    assert (body.told, body.closed) == (int(is_sent), 1)


def test_a_file_of_another_length_is_not_offered_whole(lines):
    app = CatchErrors(logged(Inner(Response(200, {"Content-Length": "4"}, app_iter=FileBody(5))), lines),
                      CatchErrorsOptions(), logging.getLogger("test"))
    got = Got(app, make_environ(), iterate=False)
    assert got.raw.file_region() is None
    assert b"".join(got.raw) == b"abcd"


class PiecesBody(FileBody):
    def __init__(self, *pieces):
        self.pieces = pieces

    def file_region(self):
        return None

    def file_pieces(self):
        yield from self.pieces


def in_pieces(lines, body, length="6"):
    app = CatchErrors(logged(Inner(Response(200, {"Content-Length": length}, app_iter=body)), lines), CatchErrorsOptions(),
                      logging.getLogger("test"))
    return Got(app, make_environ(), iterate=False)


def test_pieces_go_through_and_are_counted(lines):
    body = PiecesBody(b"ab", (7, 100, 4))
    got = in_pieces(lines, body)
    assert list(got.raw.file_pieces()) == [b"ab", (7, 100, 4)]
    got.raw.close()
    found = fields(lines.lines[0])
    assert (found["status_int"], found["bytes_sent"]) == ("200", "6") and body.closed == 1


def test_a_client_that_leaves_between_pieces_is_logged_so(lines):
    got = in_pieces(lines, PiecesBody(b"ab", (7, 100, 4)))
    pieces = got.raw.file_pieces()
    assert [next(pieces), next(pieces)] == [b"ab", (7, 100, 4)]
    got.raw.close()
    found = fields(lines.lines[0])
    assert (found["status_int"], found["bytes_sent"]) == ("499", "2")


@pytest.mark.parametrize("length,sent", [("5", [b"ab"]), ("7", [b"ab", (7, 100, 4)])])
def test_pieces_of_another_length_break_the_connection(lines, length, sent):
    got, seen = in_pieces(lines, PiecesBody(b"ab", (7, 100, 4)), length), []
    with pytest.raises(WrongLength):
        for piece in got.raw.file_pieces():
            seen.append(piece)
    got.raw.close()
    assert seen == sent and fields(lines.lines[0])["status_int"] == "500"


def test_a_body_without_pieces_offers_none(lines):
    assert in_pieces(lines, FileBody(6)).raw.file_pieces() is None


def test_read1_is_counted(lines):
    def app(environ, start_response):
        environ["wsgi.input"].read1(2)
        return Response(200)(environ, start_response)
    call(logged(app, lines), "PUT", body=b"abc")
    assert fields(lines.lines[0])["bytes_recvd"] == "2"


texts = st.text(st.characters(max_codepoint=255), max_size=12) | st.sampled_from(["", "-", " ", "a b", "x", "AUTH_tk0123456789abcdef", "a%20b"])


@given(st.dictionaries(st.sampled_from(["HTTP_X_AUTH_TOKEN", "REMOTE_ADDR", "HTTP_REFERER", "HTTP_USER_AGENT", "HTTP_ETAG", "swift.trans_id",
                                        "swift.source", "HTTP_X_FORWARDED_FOR", "swift.orig_req_method", "SERVER_PROTOCOL"]), texts),
       texts, texts, st.integers(0, 10**6), st.sampled_from([None, "0", "1"]))
def test_the_quick_way_to_the_default_line_gives_the_same(environ, path, query, size, policy_index):
    hit = Hit({"REQUEST_METHOD": "GET", "PATH_INFO": path, "QUERY_STRING": query, **environ}, 1000.125)
    hit.status, hit.sent, hit.end, hit.policy_index = 200, size, 1000.25, policy_index
    slow = compile_template(DEFAULT_TEMPLATE + "{pid}", LineOptions())
    assert compile_template(DEFAULT_TEMPLATE, LineOptions())(hit) + str(os.getpid()) == slow(hit)
