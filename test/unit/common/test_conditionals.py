import pytest

from keelstore.common.conditionals import evaluate
from keelstore.common.http import http_date
from test.support.waiting import quick

T = 784111777
EARLY, SAME, LATE = http_date(T - 1), http_date(T), http_date(T + 1)


@pytest.mark.parametrize(("headers", "expected"), [
    ({}, None),
    ({"If-None-Match": "abc"}, 304), ({"If-None-Match": '"abc"'}, 304), ({"If-None-Match": "*"}, 304),
    ({"If-None-Match": 'x, "abc"'}, 304), ({"If-None-Match": "x"}, None), ({"If-None-Match": 'W/"abc"'}, None),
    ({"If-None-Match": ""}, None), ({"If-None-Match": '""abc""'}, None), ({"If-None-Match": '"'}, None),
    ({"If-Match": "abc"}, None), ({"If-Match": "x"}, 412), ({"If-Match": "*"}, None), ({"If-Match": ""}, 412),
    ({"If-Match": 'W/"abc"'}, 412), ({"If-Match": "x,abc"}, None),
    ({"If-Modified-Since": EARLY}, None), ({"If-Modified-Since": SAME}, 304), ({"If-Modified-Since": LATE}, 304),
    ({"If-Modified-Since": "junk"}, None), ({"If-Unmodified-Since": EARLY}, 412), ({"If-Unmodified-Since": SAME}, None),
    ({"If-Unmodified-Since": LATE}, None), ({"If-Unmodified-Since": "junk"}, None),
    ({"If-None-Match": "x", "If-Modified-Since": LATE}, 304), ({"If-Match": "abc", "If-Unmodified-Since": EARLY}, 412),
    ({"If-None-Match": "abc", "If-Match": "x"}, 304), ({"If-Match": "x", "If-Modified-Since": LATE}, 412),
    ({"If-Modified-Since": LATE, "If-Unmodified-Since": EARLY}, 304),
])
def test_table(headers, expected):
    for etag in ("abc", '"abc"'):
        for method in ("GET", "HEAD"):
            assert evaluate(method, headers.get, etag, T) == expected
    assert evaluate("PUT", headers.get, "abc", T) is None


def test_absent_object():
    assert evaluate("GET", {"If-Match": "*"}.get, None, None, exists=False) == 412
    for headers in ({"If-Match": "abc"}, {"If-None-Match": "*"}, {"If-Modified-Since": LATE}, {"If-Unmodified-Since": EARLY}):
        assert evaluate("GET", headers.get, "abc", T, exists=False) is None


def test_nothing_to_compare_with():
    for headers in ({"If-Match": "x"}, {"If-None-Match": "*"}, {"If-Modified-Since": LATE}):
        assert evaluate("GET", headers.get, None, None) is None


@pytest.mark.parametrize("text", ['"' * 30000, "," * 30000, "a," * 15000, " " * 30000, 'a;b="' + "\\" * 30000, "W/" * 15000])
def test_time_is_linear(text):
    quick(lambda: evaluate("GET", dict.fromkeys(("If-Match", "If-Modified-Since", "If-None-Match"), text).get, "abc", T), 0.1)
