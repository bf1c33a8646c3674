"""Manifests and plans of large objects."""

import base64
import json
from hashlib import md5

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelstore.common.segments import (
    DataSegment,
    Fetch,
    ManifestError,
    ObjectSegment,
    Segment,
    as_request,
    decode,
    encode,
    etag_of,
    length_of,
    plan,
    span_of,
    whole,
)

HELLO = "5d41402abc4b2a76b9719d911017c592"


def part(path, size, start, stop, **more):
    return ObjectSegment(path, size, more.pop("etag", HELLO), start, stop, **more)


# -- ETags (spec: client-api 22) ---------------------------------------------------------------------------------------


def test_etag_of_two_whole_segments():
    assert etag_of([whole("/c/a", 5, HELLO), whole("/c/b", 5, HELLO)]) == "e0b153045b08d59d4e18a98ab823ac42"


def test_etag_of_a_ranged_segment():
    assert etag_of([part("/c/a", 5, 1, 3), whole("/c/b", 5, HELLO)]) == "d663ae7dc63b7f5b94cd7220c5753861"


def test_etag_of_inline_data_counts_its_md5():
    expected = md5((HELLO + md5(b"x").hexdigest()).encode()).hexdigest()
    assert etag_of([whole("/c/a", 5, HELLO), DataSegment(b"x")]) == expected


# -- the stored form ---------------------------------------------------------------------------------------------------


def test_encode_as_stored():
    segments = [
        ObjectSegment("/c/é", 9, "e1", 0, 9, False, "a/b", "2020-01-02T03:04:05.000000"), part("/c/o", 9, 2, 6, etag="e2"),
        ObjectSegment("/c/m", 4, "e3", 0, 4, True), DataSegment(b"xyz")]
    assert json.loads(encode(segments)) == [
        {"name": "/c/é", "bytes": 9, "hash": "e1", "content_type": "a/b", "last_modified": "2020-01-02T03:04:05.000000"},
        {"name": "/c/o", "bytes": 9, "hash": "e2", "content_type": "", "last_modified": "", "range": "2-5"},
        {"name": "/c/m", "bytes": 4, "hash": "e3", "content_type": "", "last_modified": "", "sub_slo": True},
        {"data": "eHl6"}]
    assert decode(encode(segments)) == segments


def test_decode_takes_what_old_versions_wrote():
    assert decode(b'[{"name": "c/o", "bytes": "5", "hash": "e"}]') == [whole("/c/o", 5, "e")]


@pytest.mark.parametrize("text", [
    b"", b"{", b"{}", b"[1]", b'[{"name": "/c/o"}]', b'[{"name": 3, "bytes": 1, "hash": "e"}]',
    b'[{"name": "/c/o", "bytes": -1, "hash": "e"}]', b'[{"name": "/c/o", "bytes": 5, "hash": "e", "range": "3-9"}]',
    b'[{"name": "/c/o", "bytes": 5, "hash": "e", "range": "x"}]', b'[{"data": "!"}]', b"\xff", b"[" * 100000,
])
def test_decode_refuses_what_is_no_manifest(text):
    with pytest.raises(ManifestError):
        decode(text)


def test_as_request():
    assert as_request([part("/c/o", 9, 2, 6), whole("/c/p", 5, HELLO), DataSegment(b"xyz")]) == (
        b'[{"etag": "%b", "path": "/c/o", "range": "2-5", "size_bytes": 9}, {"etag": "%b", "path": "/c/p", "size_bytes": 5}, '
        b'{"data": "eHl6"}]' % (HELLO.encode(), HELLO.encode()))


# -- plans -------------------------------------------------------------------------------------------------------------


def test_plan_of_the_whole():
    a, b = whole("/c/a", 5, "ea"), whole("/c/b", 7, "eb")
    assert list(plan([a, DataSegment(b"xy"), b])) == [Fetch(a, 0, 5), b"xy", Fetch(b, 0, 7)]
    assert Fetch(a, 0, 5).is_whole and not Fetch(a, 0, 4).is_whole


def test_plan_of_a_span():
    a, b = whole("/c/a", 5, "ea"), part("/c/b", 20, 10, 17)
    segments = [a, DataSegment(b"xyz"), b]
    assert list(plan(segments, 3, 6)) == [Fetch(a, 3, 5), b"x"]
    assert list(plan(segments, 6, 7)) == [b"y"]
    assert list(plan(segments, 10, 12)) == [Fetch(b, 12, 14)]
    assert list(plan(segments, 15, 99)) == []


def test_neighbours_within_one_object_are_one_fetch():
    one, two, three = part("/c/a", 30, 0, 10), part("/c/a", 30, 10, 20), part("/c/a", 30, 25, 30)
    assert list(plan([one, two, three])) == [Fetch(one, 0, 20), Fetch(three, 25, 30)]
    other = part("/c/a", 30, 10, 20, etag="other")
    assert list(plan([one, other])) == [Fetch(one, 0, 10), Fetch(other, 10, 20)]


def test_empty_segments_are_left_out():
    assert list(plan([whole("/c/e", 0, "e"), whole("/c/a", 1, "a"), whole("/c/e", 0, "e")])) == [
        Fetch(whole("/c/a", 1, "a"), 0, 1)]


def test_span_of_a_part():
    segments: list[Segment] = [whole("/c/a", 5, "ea"), DataSegment(b"xy")]
    assert [span_of(segments, number) for number in (0, 1, 2, 3)] == [None, (0, 5), (5, 7), None]


CONTENT = {f"/c/{name}": bytes(range(start, start + 40)) for name, start in (("a", 0), ("b", 60), ("d", 120))}


@st.composite
def manifests(draw):
    found: list[Segment] = []
    for _ in range(draw(st.integers(0, 8))):
        if draw(st.booleans()):
            found.append(DataSegment(draw(st.binary(min_size=1, max_size=5))))
        else:
            path = draw(st.sampled_from(sorted(CONTENT)))
            start = draw(st.integers(0, 39))
            found.append(ObjectSegment(path, 40, "e" + path, start, draw(st.integers(start + 1, 40))))
    return found


def bytes_of(pieces):
    return b"".join(p if isinstance(p, bytes) else CONTENT[p.segment.path][p.start:p.stop] for p in pieces)


@given(manifests(), st.integers(0, 300), st.integers(0, 300))
def test_a_planned_span_is_that_span_of_the_whole(segments, start, size):
    everything = bytes_of(plan(segments))
    assert len(everything) == length_of(segments)
    assert everything == b"".join(s.data if isinstance(s, DataSegment) else CONTENT[s.path][s.start:s.stop] for s in segments)
    assert bytes_of(plan(segments, start, start + size)) == everything[start:start + size]
    assert all(p if isinstance(p, bytes) else p.length for p in plan(segments, start, start + size))


@given(manifests())
def test_what_was_stored_is_read(segments):
    assert decode(encode(segments)) == segments
    assert json.loads(as_request(segments)) == [
        {"data": base64.b64encode(s.data).decode()} if isinstance(s, DataSegment)
        else {"path": s.path, "etag": s.etag, "size_bytes": 40, **({"range": s.range} if s.range else {})} for s in segments]
