"""What clients send as the manifest of a static large object."""

import base64
import json

import pytest

from keelstore.common.errors import BadRequest, EntityTooLarge
from keelstore.common.middleware.slo_manifest import Found, Wish, parse, resolve
from keelstore.common.segments import DataSegment, ObjectSegment

S = {"path": "/c/s"}


def parsed(*entries, most=10):
    return parse(json.dumps(entries).encode(), "/c/own", most)


def problems(*entries):
    with pytest.raises(BadRequest) as caught:
        parsed(*entries)
    return caught.value.reason


def test_all_that_may_be_said():
    assert parsed({"path": "c/é", "etag": "abc", "size_bytes": "5", "range": "1-3"}, {"data": "eHl6"},
                  {"path": "//c//o", "etag": None, "size_bytes": None, "range": None}, {"path": "/c/s", "range": "-5"}) == [
        Wish("/c/é", "abc", 5, (1, 3), "c/é"), DataSegment(b"xyz"), Wish("/c//o", given="//c//o"),
        Wish("/c/s", range=(None, 5), given="/c/s")]


def test_an_empty_manifest_is_one():
    assert parsed() == []


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b'"x', b"[" * 100000])
def test_no_json(body):
    with pytest.raises(BadRequest, match="Manifest must be valid JSON"):
        parse(body, "/c/own", 10)


@pytest.mark.parametrize("body", [b"{}", b'"x"', b"3", b"null"])
def test_no_list(body):
    with pytest.raises(BadRequest, match="Manifest must be a list"):
        parse(body, "/c/own", 10)


@pytest.mark.parametrize("entry,problem", [
    (1, "not a JSON object"), ([], "not a JSON object"), (None, "not a JSON object"),
    ({}, 'one of "path" and "data" is required'),
    ({**S, "foo": 1, "bar": 2}, 'extraneous keys "bar", "foo"'),
    ({"path": 7}, '"path" must be a string'), ({"path": None}, '"path" must be a string'),
    *(({"path": path}, "path does not refer to an object. Path must be of the form /container/object.")
      for path in ("", "/", "c", "/c", "//c", "/c/")),
    ({"path": "/c/\ud800"}, '"path" must be valid Unicode'),
    ({"path": "c/own"}, "manifest must not include itself as a segment"),
    ({**S, "size_bytes": "x"}, "invalid size_bytes"), ({**S, "size_bytes": 1.5}, "invalid size_bytes"),
    ({**S, "size_bytes": True}, "invalid size_bytes"), ({**S, "size_bytes": [1]}, "invalid size_bytes"),
    ({**S, "size_bytes": "9" * 5000}, "invalid size_bytes"),
    ({**S, "size_bytes": -1}, "too small; each segment must be at least 1 byte."),
    ({**S, "etag": 1}, '"etag" must be a string or null (if provided)'),
    *(({**S, "range": value}, "invalid range") for value in ("x", "-", "3-1", 5, "bytes=1-2", ["1-2"])),
    ({**S, "range": "1-2,3-4"}, "multiple ranges (only one allowed)"),
    *(({"data": value}, "data must be valid base64") for value in ("!!", "eA", 7, None, [])),
    ({"data": ""}, "too small; each segment must be at least 1 byte."),
    ({"data": "eA==", "path": "/c/s"}, 'extraneous keys "path"'),
])
def test_a_bad_entry_is_told_by_its_index(entry, problem):
    assert problems(S, entry) == f"Index 1: {problem}\n"


def test_every_bad_entry_is_told():
    assert problems(1, S, {"path": "x"}).count("\n") == 2


def test_only_the_last_entry_may_be_empty():
    assert parsed(S, {**S, "size_bytes": 0}) == [Wish("/c/s", given="/c/s"), Wish("/c/s", size=0, given="/c/s")]
    assert "too small" in problems({**S, "size_bytes": 0}, S)


def test_data_alone_is_no_large_object():
    assert problems({"data": "eHl6"}) == "Inline data segments require at least one object-backed segment.\n"


def test_only_objects_count_towards_the_limit():
    assert len(parsed(*[S] * 10, {"data": base64.b64encode(b"x").decode()})) == 11
    with pytest.raises(EntityTooLarge, match="Number of object-backed segments must be <= 10"):
        parsed(*[S] * 11)


# -- against what is there ---------------------------------------------------------------------------------------------

FOUND = {"/c/s": Found(5, "e5", "a/b", "now"), "/c/m": Found(9, "e9", is_manifest=True), "/c/empty": Found(0, "e0"),
         "/c/not é": Found(problem="404 Not Found")}


def resolved(*wishes):
    return resolve(list(wishes), FOUND)


def test_segments_are_what_was_found():
    segments, told = resolved(Wish("/c/s"), DataSegment(b"x"), Wish("/c/m", "e9", 9, (2, 4)), Wish("/c/s", '"e5"'))
    assert told == []
    assert segments == [
        ObjectSegment("/c/s", 5, "e5", 0, 5, False, "a/b", "now"), DataSegment(b"x"),
        ObjectSegment("/c/m", 9, "e9", 2, 5, True), ObjectSegment("/c/s", 5, "e5", 0, 5, False, "a/b", "now")]


@pytest.mark.parametrize("pair,span", [((1, 3), (1, 4)), ((2, None), (2, 5)), ((None, 2), (3, 5)), ((0, 99), (0, 5)),
                                       ((None, 99), (0, 5))])
def test_ranges(pair, span):
    segments, told = resolved(Wish("/c/s", range=pair))
    assert told == [] and (segments[0].start, segments[0].stop) == span


def test_everything_wrong_is_told_once():
    _, told = resolved(Wish("/c/s", "x", 9, (7, 9), "c/s"), Wish("/c/not é"), Wish("/c/not é", "x", 9), Wish("/c/empty"),
                       Wish("/c/s"))
    assert told == [("c/s", "Size Mismatch"), ("c/s", "Etag Mismatch"), ("c/s", "Unsatisfiable Range"),
                    ("/c/not%20%C3%A9", "404 Not Found"),
                    ("/c/empty", "Too small; each segment must be at least 1 byte.")]


def test_the_last_segment_may_be_empty():
    assert resolved(Wish("/c/s"), Wish("/c/empty"))[1] == []
