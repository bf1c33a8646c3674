"""Segments sent from the files that hold them: the same bytes as are decoded, or none where something must be looked at."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from hashlib import md5
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelstore.common.codec import HEADER_SIZE, codec_for
from keelstore.common.errors import BackendError
from keelstore.common.headers import Headers
from keelstore.common.http import Response
from keelstore.proxy.erasure_body import FragmentBody, Fragments, Stream
from test.unit.proxy.test_erasure_body import CODECS, archives_of


class FileBody:
    """An archive of a server in this process."""

    def __init__(self, data: bytes):
        self.file = tempfile.TemporaryFile()
        self.file.write(data)
        self.file.flush()
        self.size = len(data)

    def file_region(self) -> tuple[int, int, int]:
        return self.file.fileno(), 0, self.size

    def __iter__(self) -> Iterator[bytes]:
        return iter(())  # it is read as a file

    def close(self) -> None:
        self.file.close()


class NoOthers:
    path = "/a/c/o"

    def others(self, is_needed: bool = True) -> Any:
        return None

    def failed(self, node: Any, error: object) -> None:
        pass

    def open(self, *_args: Any) -> Stream | None:
        return None


class Device:
    device, key = "d1", "n1"


def of_files(scheme: tuple[str, int, int], segment_size: int, body: bytes, chosen: list[int], archives: dict[int, bytes] | None = None) -> Fragments:
    codec = codec_for(*scheme)
    archives = archives or archives_of(codec, segment_size, body)
    streams = [Stream.of(Device(), Response(200, Headers({"Content-Length": str(len(archives[index]))}), app_iter=FileBody(archives[index])), index)
               for index in chosen]
    return Fragments(codec, segment_size, len(body), streams, NoOthers())


def sent(pieces: Any) -> tuple[bytes, int]:
    """What a connection sends of them, and how many came from files."""
    found, regions = [], 0
    for piece in pieces:
        if isinstance(piece, tuple):
            fd, offset, count = piece
            piece = os.pread(fd, count, offset)
            assert len(piece) == count > 0
            regions += 1
        found.append(piece)
    return b"".join(found), regions


@given(data=st.data())
def test_what_files_give_are_slices_of_the_object(data: Any) -> None:
    scheme = data.draw(st.sampled_from(CODECS))
    segment_size = data.draw(st.integers(1, 64))
    body = data.draw(st.binary(min_size=1, max_size=5 * segment_size))
    start = data.draw(st.integers(0, min(len(body), 3 * segment_size) - 1))  # further ahead a stream is opened anew
    stop = data.draw(st.integers(start + 1, len(body)))
    fragments = of_files(scheme, segment_size, body, data.draw(st.permutations(range(scheme[1]))))
    whole = FragmentBody(fragments, start, stop)
    got, regions = sent(whole.file_pieces())
    whole.close()
    assert got == body[start:stop]
    assert regions


def test_parity_is_not_sent_from_files() -> None:
    body = FragmentBody(of_files(CODECS[0], 64, b"x" * 100, [0, 1, 2, 4]), 0, 100)
    assert body.file_pieces() is None
    assert b"".join(body) == b"x" * 100
    body.close()


def test_what_must_be_hashed_is_not_sent_from_files() -> None:
    content = b"x" * 100
    body = FragmentBody(of_files(CODECS[0], 64, content, [0, 1, 2, 3]), 0, 100, md5(content).hexdigest())
    assert body.file_pieces() is None
    body.close()


@pytest.mark.parametrize("at", range(HEADER_SIZE))
def test_a_damaged_header_is_never_passed_over(at: int) -> None:
    content = bytes(range(200))
    archives = archives_of(codec_for(*CODECS[0]), 64, content)
    size = codec_for(*CODECS[0]).fragment_size(64)
    damaged = bytearray(archives[1])
    damaged[2 * size + at] ^= 0xFF
    archives[1] = bytes(damaged)
    body = FragmentBody(of_files(CODECS[0], 64, content, [0, 1, 2, 3], archives), 0, 200)
    got = []
    try:
        for piece in body.file_pieces() or ():
            got.append(sent([piece])[0])
    except BackendError:  # found, and no other node has a fragment
        assert b"".join(got) == content[:128]
    else:
        assert b"".join(got) == content  # padding behind the header
        assert at >= 59
    body.close()


def test_a_file_of_another_fragment_is_not_sent() -> None:
    content = bytes(range(200))
    archives = archives_of(codec_for(*CODECS[0]), 64, content)
    archives[1] = archives[2]
    body = FragmentBody(of_files(CODECS[0], 64, content, [0, 1, 2, 3], archives), 0, 200)
    with pytest.raises(BackendError):
        sent(body.file_pieces())
    body.close()
