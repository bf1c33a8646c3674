from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelstore.common.byteranges import Multipart, Span, parse
from test.support.waiting import quick


@pytest.mark.parametrize(("header", "spans"), [
    (None, None), ("", None),
    ("bytes=0-0", [(0, 1)]), ("bytes=0-9", [(0, 10)]), ("bytes=0-99", [(0, 10)]), ("bytes=3-", [(3, 10)]),
    ("bytes=-3", [(7, 10)]), ("bytes=-99", [(0, 10)]), ("BYTES = 2 - 3", [(2, 4)]), ("bytes=00-01", [(0, 2)]),
    ("bytes=0-1,5-6", [(0, 2), (5, 7)]), ("bytes=5-6,0-1", [(5, 7), (0, 2)]), ("bytes=5-6,20-30,-0", [(5, 7)]),
    ("bytes=" + "9" * 40 + "-", []), ("bytes=0-" + "9" * 5000, [(0, 10)]), ("bytes=-" + "9" * 40, [(0, 10)]),
    ("bytes=" + "0" * 40 + "1-", [(1, 10)]),
    # nothing of it can be given
    ("bytes=10-", []), ("bytes=10-20", []), ("bytes=-0", []), ("bytes=10-,-0", []),
    # not understood: ignored
    ("bytes", None), ("bytes=", None), ("bytes=,", None), ("bytes=0-1,", None), ("bytes=-", None), ("bytes=1", None),
    ("bytes=--1", None), ("bytes=0--1", None), ("bytes=2-1", None), ("bytes=a-b", None), ("bytes=0-1-2", None),
    ("items=0-1", None), ("=0-1", None), ("bytes==0-1", None), ("bytes=+0-1", None), ("bytes=1_0-20", None),
    ("bytes=\t0-1", None), ("bytes=\xb2-3", None), ("bytes=0-1;q", None), ("bytes=0.0-1", None),
])
def test_table(header, spans):
    assert parse(header, 10) == spans


def test_empty_body():
    assert parse("bytes=-5", 0) is None
    assert parse("bytes=0-", 0) == parse("bytes=-0", 0) == []


def ask(*pairs):
    return "bytes=" + ",".join(f"{a}-{b}" for a, b in pairs)


@pytest.mark.parametrize(("pairs", "granted"), [
    ([(n * 2, n * 2) for n in range(50)], True),
    ([(n * 2, n * 2) for n in range(51)], False),
    ([(0, 5), (5, 9)], True), ([(0, 5), (5, 9), (9, 12)], True), ([(0, 5), (5, 9), (9, 12), (12, 13)], False),
    ([(0, 9), (1, 1), (2, 2)], True), ([(0, 9), (1, 1), (2, 2), (3, 3)], False),
    ([(0, 9), (0, 9)], True), ([(0, 9)] * 3, False),
    ([(n, n) for n in (2, 1, 3, 4, 5, 6, 7)], True), ([(n, n) for n in (2, 1, 3, 4, 5, 6, 7, 8)], False),
    ([(n, n) for n in range(8)], True),
])
def test_egregious_sets_are_unsatisfiable(pairs, granted):
    spans = parse(ask(*pairs), 1000)
    assert spans == ([Span(a, b + 1) for a, b in pairs] if granted else [])


@given(st.text(max_size=60), st.integers(0, 100))
def test_any_text_is_ignored_or_gives_spans_within(text, length):
    for header in (text, "bytes=" + text):
        spans = parse(header, length)
        assert spans is None or all(0 <= span.start < span.stop <= length for span in spans)


@given(st.lists(st.tuples(st.integers(0, 120), st.integers(0, 9)), min_size=1, max_size=60), st.integers(1, 100))
def test_granted_spans_are_those_asked_for(pairs, length):
    spans = parse(ask(*((a, a + n) for a, n in pairs)), length)
    wanted = [Span(a, min(a + n + 1, length)) for a, n in pairs if a < length]
    assert spans == wanted or spans == []


def test_time_is_linear():
    for item in ("0-1", "-", "9" * 50 + "-", " "):
        header = "bytes=" + ",".join([item] * 30000)
        quick(partial(parse, header, 10), 0.5)


def test_multipart_is_exact():
    data = bytes(range(256))
    spans = parse("bytes=0-9,250-,-3", 256)
    closed = []

    def read_range(start, stop):
        try:
            yield data[start : start + 2]
            yield data[start + 2 : stop]
        finally:
            closed.append(start)

    parts = Multipart(spans, 256, "image/png", "B")
    body = b"".join(parts.body(read_range))
    assert body == b"".join(
        b"--B\r\nContent-Type: image/png\r\nContent-Range: bytes %d-%d/256\r\n\r\n%s\r\n" % (a, b - 1, data[a:b])
        for a, b in spans
    ) + b"--B--"
    assert parts.content_length == len(body)
    assert parts.content_type == "multipart/byteranges;boundary=B"
    assert closed == [0, 250, 253]
    assert len(Multipart(spans, 256, "a/b").boundary) == 32
    early = parts.body(read_range)
    next(early), next(early)
    early.close()
    assert closed[3:] == [0]
