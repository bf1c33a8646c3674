"""MD5s of several streams at once are those of hashlib, whatever the streams are given and in what pieces."""

from __future__ import annotations

import threading
from hashlib import md5

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelstore.common import digests as module
from keelstore.common.digests import HashlibDigests, LaneDigests, digests, has_lanes, take_together

KINDS = [HashlibDigests, pytest.param(LaneDigests, marks=pytest.mark.skipif(not has_lanes(), reason="md5lanes was not built"))]
BYTES = bytes(range(251)) * 22
SIZES = st.sampled_from([0, 1, 3, 55, 56, 57, 63, 64, 65, 119, 120, 127, 128, 129, 1000, 4096, 5000])


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_digests_are_those_of_hashlib(kind, data):
    count = data.draw(st.integers(1, 19))
    found, wanted = kind(count), [md5() for _ in range(count)]
    for _ in range(data.draw(st.integers(0, 5))):
        seed = data.draw(st.integers(0, 255))
        pieces = [BYTES[seed + stream :][:size]
                  for stream, size in enumerate(data.draw(st.lists(SIZES, min_size=count, max_size=count)))]
        found.update(pieces)
        for hasher, piece in zip(wanted, pieces, strict=True):
            hasher.update(piece)
    assert [found.hexdigest(stream) for stream in range(count)] == [hasher.hexdigest() for hasher in wanted]


@pytest.mark.parametrize("kind", KINDS)
def test_calls_may_run_side_by_side_and_a_digest_may_be_asked_for_in_between(kind):
    pieces = [bytes([stream]) * (100_000 + stream) for stream in range(7)]
    found = kind(7)
    for turn in range(1, 4):
        threads = [threading.Thread(target=call) for call in found.calls(pieces)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for stream, piece in enumerate(pieces):
            assert found.hexdigest(stream) == md5(piece * turn).hexdigest()


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_without_bytes_has_the_digest_of_nothing(kind):
    assert kind(2).hexdigest(1) == md5().hexdigest()


@pytest.mark.skipif(not has_lanes(), reason="md5lanes was not built")
def test_pieces_for_another_number_of_streams_are_refused():
    with pytest.raises(ValueError):
        LaneDigests(3).update([b"a", b"b"])


def test_without_the_library_hashlib_does_it(monkeypatch):
    monkeypatch.setattr(module, "_LIBRARY", "keelstore.common._not_built")
    module._library.cache_clear()
    try:
        assert isinstance(digests(2), HashlibDigests)
    finally:
        monkeypatch.undo()
        module._library.cache_clear()


def test_a_library_that_computes_something_else_is_not_used(monkeypatch):
    monkeypatch.setattr(module, "_is_right", lambda _library: False)
    module._library.cache_clear()
    try:
        assert not has_lanes()
    finally:
        monkeypatch.undo()
        module._library.cache_clear()


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_streams_of_several_instances_are_taken_together(kind, data):
    found = [kind(2) for _ in range(data.draw(st.integers(1, 6)))]
    wanted = [[md5(), md5()] for _ in found]
    for _ in range(data.draw(st.integers(0, 4))):
        feeds = []
        for number in data.draw(st.lists(st.sampled_from(range(len(found))), unique=True)):
            for stream in data.draw(st.sets(st.sampled_from([0, 1]))):
                starts = data.draw(st.lists(st.tuples(st.integers(0, 255), SIZES), max_size=3))
                pieces = [memoryview(BYTES)[at : at + size] if at % 2 else BYTES[at : at + size] for at, size in starts]
                feeds.append((found[number], stream, pieces))
                for piece in pieces:
                    wanted[number][stream].update(piece)
        take_together(feeds)
    assert [[each.hexdigest(0), each.hexdigest(1)] for each in found] == [[one.hexdigest(), other.hexdigest()] for one, other in wanted]
