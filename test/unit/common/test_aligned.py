from __future__ import annotations

import ctypes
import io
import mmap
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelstore.common import aligned
from keelstore.common.aligned import PIECE, Buffers, pieces


class Source:
    """A body of which ``steps`` bytes come at a time, the last of them again and again."""

    def __init__(self, body: bytes, *steps: int):
        self.body, self.steps, self.at = io.BytesIO(body), steps or (PIECE,), 0

    def _step(self) -> int:
        step = self.steps[min(self.at, len(self.steps) - 1)]
        self.at += 1
        return step

    def read(self, size: int = -1) -> bytes:
        return self.body.read(min(size, self._step()))


class Filling(Source):
    def readinto(self, view: memoryview) -> int:
        return self.body.readinto(view[: self._step()])


def address(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


BODY = bytes(range(256)) * 12_500  # three pieces and something


def test_buffers_begin_at_a_page():
    view = Buffers().take()
    assert view is not None and len(view) == PIECE and address(view) % mmap.PAGESIZE == 0


def test_memory_is_used_again_when_the_last_view_of_it_has_gone():
    buffers = Buffers(limit=2, kept=1)
    first, second = buffers.take(), buffers.take()
    assert first is not None and second is not None and buffers.take() is None
    part, was = first[100:200], address(first)
    del first
    assert buffers.take() is None  # a part of it is still looked at
    part[0] = 1
    del part
    again = buffers.take()
    assert again is not None and address(again) == was


def test_no_more_memory_is_kept_than_said():
    buffers = Buffers(limit=5, kept=2)
    held = [buffers.take() for _ in range(5)]
    held.clear()
    assert len(buffers._kept) == 2 and len(buffers._permits) == 5


@pytest.mark.parametrize("kind", [Source, Filling])
def test_a_body_comes_in_whole_pieces(kind):
    found = [(type(piece), len(piece), bytes(piece)) for piece in pieces(kind(BODY, 70_001), len(BODY), Buffers(limit=2))]
    assert [size for _, size, _ in found] == [PIECE, PIECE, PIECE, len(BODY) - 3 * PIECE]
    assert {cls for cls, _, _ in found} == {memoryview} and b"".join(data for _, _, data in found) == BODY


def test_who_holds_the_last_piece_needs_two_buffers():
    held: Any = None
    for held in pieces(Filling(BODY), len(BODY), Buffers(limit=2)):  # noqa: B007 - as its users do, while the next is filled
        assert isinstance(held, memoryview)


def test_without_a_buffer_a_body_comes_as_it_is_read():
    found = list(pieces(Filling(BODY), len(BODY), Buffers(limit=2)))  # who keeps them all
    assert [type(piece) for piece in found[:2]] == [memoryview, memoryview] and {type(piece) for piece in found[2:]} == {bytes}
    assert b"".join(found) == BODY and max(map(len, found[2:])) <= aligned.STEP


@pytest.mark.parametrize("kind", [Source, Filling])
def test_the_rest_of_a_slow_body_comes_as_it_is_read(kind, monkeypatch):
    clock = iter(range(0, 100_000, 3))
    monkeypatch.setattr(aligned.time, "monotonic", lambda: next(clock))
    found = list(pieces(kind(BODY, PIECE, PIECE, PIECE, 1000), len(BODY), Buffers()))
    assert b"".join(found) == BODY
    assert len(found[-1]) <= aligned.STEP and isinstance(found[-1], bytes)


@pytest.mark.parametrize("kind", [Source, Filling])
@pytest.mark.parametrize("size", [0, 5, PIECE, PIECE + 5])
def test_a_body_that_ends_early_ends(kind, size):
    assert b"".join(pieces(kind(BODY[:size]), 2 * PIECE, Buffers())) == BODY[:size]


def test_an_error_of_the_source_is_the_readers():
    class Broken:
        def readinto(self, view: memoryview) -> int:
            raise ConnectionResetError

    buffers = Buffers(limit=1)
    with pytest.raises(ConnectionResetError):
        list(pieces(Broken(), PIECE, buffers))


def test_an_input_that_passes_on_what_it_lacks_is_not_read_past():
    class Wrapper:
        def __init__(self, source: Any):
            self.source, self.count = source, 0

        def read(self, size: int) -> bytes:
            data: bytes = self.source.read(size)
            self.count += len(data)
            return data

        def __getattr__(self, name: str) -> Callable[..., Any]:
            found: Callable[..., Any] = getattr(self.source, name)
            return found

    wrapper = Wrapper(Filling(BODY))
    assert b"".join(pieces(wrapper, len(BODY), Buffers())) == BODY and wrapper.count == len(BODY)


@given(st.binary(max_size=100), st.integers(0, 3 * PIECE), st.lists(st.integers(1, 2 * PIECE), min_size=1, max_size=5),
       st.booleans(), st.integers(1, 4))
def test_no_byte_is_lost_however_they_come(start, size, steps, fills, limit):
    body = start + BODY[:size]
    steps.append(PIECE // 3)
    source = (Filling if fills else Source)(body, *steps)
    assert b"".join(pieces(source, len(body), Buffers(limit=limit))) == body
