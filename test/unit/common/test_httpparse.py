"""The parsers alone; what the server makes of them is in test_httpserver.py."""

import contextlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from keelstore.common import httpparse
from keelstore.common.httpparse import (
    CHUNKED,
    UNKNOWN,
    Head,
    ProtocolError,
    check_trailer,
    parse_chunk_line,
    parse_request,
    parse_response,
)
from keelstore.common.proxyprotocol import parse_proxy_line
from test.support.waiting import quick


def parse(text):
    environ = {}
    return parse_request(text, environ), environ


def test_head_and_environ():
    head, environ = parse(b"PUT /a?b HTTP/1.1\r\nContent-Length: 5\r\ncontent-TYPE:  a/b \t\r\nX-Object-Meta-F_oo: \xe2\x82\xac")
    assert head == Head(11, True, 5, False)
    assert environ == {
        "REQUEST_METHOD": "PUT", "RAW_PATH_INFO": "/a", "PATH_INFO": "/a", "QUERY_STRING": "b",
        "SERVER_PROTOCOL": "HTTP/1.1", "CONTENT_LENGTH": "5", "CONTENT_TYPE": "a/b",
        "HTTP_X_OBJECT_META_F_OO": "\xe2\x82\xac",
    }


@pytest.mark.parametrize(("lines", "head"), [
    (b"GET / HTTP/1.1", Head(11, True, 0, False)), (b"GET / HTTP/1.9", Head(11, True, 0, False)),
    (b"GET / HTTP/1.0", Head(10, False, 0, False)), (b"GET /", Head(9, False, 0, False)),
    (b"GET / HTTP/1.1\r\nConnection: foo, CLOSE", Head(11, False, 0, False)),
    (b"GET / HTTP/1.0\r\nConnection: Keep-Alive", Head(10, True, 0, False)),
    (b"GET / HTTP/1.0\r\nConnection: keep-alive, close", Head(10, False, 0, False)),
    (b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked", Head(11, True, CHUNKED, False)),
    (b"PUT / HTTP/1.1\r\nTransfer-Encoding: Chunked", Head(11, False, UNKNOWN, False)),
    (b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked, chunked", Head(11, False, UNKNOWN, False)),
    (b"PUT / HTTP/1.0\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked", Head(10, False, CHUNKED, False)),
    (b"PUT / HTTP/1.1\r\nExpect: 100-Continue\r\nContent-Length: 1", Head(11, True, 1, True)),
    (b"PUT / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 0", Head(11, True, 0, False)),
    (b"PUT / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 1", Head(10, False, 1, False)),
    (b"PUT / HTTP/1.1\r\nExpect: wonder\r\nContent-Length: 1", Head(11, True, 1, False)),
    (b"PUT / HTTP/1.1\r\nExpect:\r\nContent-Length: 1", Head(11, True, 1, False)),
])
def test_framing(lines, head):
    assert parse(lines)[0] == head


def test_non_ascii_names_keep_their_octets():
    environ = parse(b"GET / HTTP/1.1\r\nX-Object-Meta-\xc3\xa9A: 1\r\nX-Object-Meta-\xc3\x89A: 2")[1]
    assert environ["HTTP_X_OBJECT_META_\xc3\xa9A"] == "1" and environ["HTTP_X_OBJECT_META_\xc3\x89A"] == "2"


heads = st.one_of(
    st.binary(max_size=300),
    st.lists(
        st.one_of(
            st.sampled_from([
                b"GET / HTTP/1.1", b"\r\n", b"\r\n", b"Content-Length: ", b"Transfer-Encoding: ", b"chunked", b": ", b"X-A", b"1",
                b"\n", b"\r", b" ", b"\t", b"\0", b"Host: a", b"Expect: 100-continue", b"Connection: close", b"\xff", b",",
            ]),
            st.binary(max_size=4),
        ),
        max_size=30,
    ).map(b"".join),
)


@given(heads)
@example(b"GET / HTTP/1.1\r\nContent-Length: \xb9")
def test_any_head_is_parsed_or_refused(head):
    environ = {}
    try:
        parsed = parse_request(head, environ)
    except ProtocolError as error:
        assert error.status in (400, 414, 431, 505)
        assert not any(ord(c) < 32 for c in error.reason)
        error.reason.encode("latin-1")
        return
    assert head.count(b"\n") == head.count(b"\r") == head.count(b"\r\n") and b"\0" not in head
    for key, value in environ.items():
        assert not set("\r\n\0") & set(key + value) or key == "PATH_INFO"
    if parsed.version != 9:
        assert not ("CONTENT_LENGTH" in environ and "HTTP_TRANSFER_ENCODING" in environ)
        if "CONTENT_LENGTH" in environ:
            assert head.lower().count(b"content-length:") >= 1 and parsed.length == int(environ["CONTENT_LENGTH"]) >= 0


@given(heads, st.sampled_from(["GET", "HEAD"]))
def test_any_answer_is_parsed_or_refused(head, method):
    for data in (head, b"HTTP/1.1 200 OK\r\n" + head):
        try:
            parsed = parse_response(data, method)
        except ProtocolError:
            continue
        assert 100 <= parsed.status <= 999 and (parsed.length is None or parsed.length >= CHUNKED)


@given(st.binary(max_size=40))
def test_any_chunk_line_trailer_and_proxy_line_is_parsed_or_refused(line):
    for parser in (parse_chunk_line, check_trailer, parse_proxy_line):
        try:
            found = parser(line)
        except ProtocolError:
            continue
        if parser is parse_chunk_line:
            assert 0 <= found < 16**15 and line.partition(b";")[0].isalnum()


@given(st.integers(0, 16**15 - 1))
def test_chunk_sizes(size):
    assert parse_chunk_line(b"%x" % size) == parse_chunk_line(b"%X;a=b" % size) == size


@pytest.mark.parametrize("line", [b"", b"0x1", b"+1", b"-1", b" 1", b"1 ", b"1_0", b"g", b"1" * 16, b"\xb2", b"1;a\nb", b"1;\0", b";"])
def test_chunk_lines_that_are_refused(line):
    with pytest.raises(ProtocolError):
        parse_chunk_line(line)


@pytest.mark.parametrize("unit", [b"X-A: b\r\n", b"\r\n", b":", b" ", b"a", b"%", b"X-%d: b\r\n", b"Content-Length: 1,", b"\\\"", b"\n"])
def test_time_is_linear(unit):
    data = b"GET /%s HTTP/1.1\r\nA: b" if unit == b"%" else b"GET / HTTP/1.1\r\n%s"

    def parse() -> None:
        for _ in range(3):
            with contextlib.suppress(ProtocolError):
                parse_request(data % (unit * (60000 // len(unit))), {}, 1 << 20, 1 << 20, 1 << 20)

    quick(parse, 0.5)


def test_caches_of_names_are_bounded():
    for n in range(3 * httpparse._CACHED_NAMES):
        parse(b"GET / HTTP/1.1\r\nX-%d: 1\r\nY-%s: 1" % (n, b"a" * 100))
        parse_response(b"HTTP/1.1 200 OK\r\nX-%d: 1" % n, "GET")
    assert len(httpparse._keys) <= httpparse._CACHED_NAMES and len(httpparse._titles) <= httpparse._CACHED_NAMES


def test_answers():
    head = parse_response(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nx-a: b\r\nX-A: c", "GET")
    assert (head.status, head.length, head.keep_alive, head.headers["X-A"]) == (200, 5, True, "b, c")
    assert parse_response(b"HTTP/1.1 200 OK\r\nContent-Length: 5", "HEAD").length == 0
    assert parse_response(b"HTTP/1.1 204 \r\nContent-Length: 5", "GET").length == 0
    assert parse_response(b"HTTP/1.0 200", "GET")[2:] == (False, None)
    assert parse_response(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\nConnection: close", "GET")[2:] == (False, CHUNKED)
