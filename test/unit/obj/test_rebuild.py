from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from keelstore.common.disk_calls import pause
from keelstore.common.errors import BackendError
from keelstore.common.http import Response
from keelstore.common.ring.ring import Node
from keelstore.obj import rebuild
from keelstore.obj.rebuild import Source

NODE = Node(0, 1, 1, "127.0.0.1", 6200, "127.0.0.1", 6200, "sda", 1.0)
DATA = bytes(range(256)) * 10


class Region:
    """The body of an answer whose file is in this process."""

    def __init__(self, path: Path, count: int):
        self.fd, self.count, self.is_closed = os.open(path, os.O_RDONLY), count, False

    def __iter__(self) -> Iterator[bytes]:
        return iter([b"not what is in its file"])

    def file_region(self) -> tuple[int, int, int]:
        return self.fd, 0, self.count

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            os.close(self.fd)


@pytest.fixture
def region(tmp_path: Path) -> Iterator[Region]:
    path = tmp_path / "archive"
    path.write_bytes(DATA)
    found = Region(path, len(DATA))
    yield found
    found.close()


def test_what_was_ordered_is_taken_in_turn(region):
    source = Source(NODE, Response(200, app_iter=region))
    assert source.wants_orders()
    source.order([100, 200])
    assert not source.wants_orders()
    assert source.take(100) == DATA[:100]
    assert source.take(200) == DATA[100:300]
    assert source.wants_orders()
    source.order([len(DATA) - 300])
    assert source.take(len(DATA) - 300) == DATA[300:]
    assert source.ordered == 3
    source.close()
    assert region.is_closed


def test_the_next_pieces_are_read_while_the_last_of_those_at_hand_is_worked_on(region):
    source = Source(NODE, Response(200, app_iter=region))
    source.order([100, 100, 100])
    assert source.take(100) == DATA[:100]
    assert not source.wants_orders()  # two are at hand
    assert source.take(100) == DATA[100:200]
    assert source.wants_orders()
    source.order([200, 300])
    assert not source.wants_orders()  # these are on their way
    assert [source.take(size) for size in (100, 200, 300)] == [DATA[200:300], DATA[300:500], DATA[500:800]]
    assert source.ordered == 5
    source.close()


def test_an_archive_that_is_shorter_than_what_is_ordered(region):
    source = Source(NODE, Response(200, app_iter=region))
    source.order([len(DATA), 1])
    with pytest.raises(BackendError, match="early"):
        source.take(len(DATA))
    source.close()


def test_a_file_that_is_shorter_than_was_announced(tmp_path):
    path = tmp_path / "archive"
    path.write_bytes(DATA)
    source = Source(NODE, Response(200, app_iter=Region(path, 2 * len(DATA))))
    source.order([len(DATA), len(DATA)])
    assert source.take(len(DATA)) == DATA
    with pytest.raises(BackendError, match="early"):
        source.take(len(DATA))
    source.close()


def test_a_file_that_cannot_be_read(tmp_path):
    region = Region(tmp_path, 100)  # a directory
    source = Source(NODE, Response(200, app_iter=region))
    source.order([100])
    with pytest.raises(BackendError, match="cannot be read"):
        source.take(100)
    source.close()


def test_a_file_is_not_closed_while_it_is_read(region, monkeypatch):
    seen, read_at = [], rebuild.reads.read_at

    def slowly(*args):
        pause(0.001)
        seen.append(region.is_closed)
        return read_at(*args)

    monkeypatch.setattr(rebuild.reads, "read_at", slowly)
    source = Source(NODE, Response(200, app_iter=region))
    source.order([100] * 20)
    source.close()
    assert region.is_closed and seen == [False] * 20


def test_what_comes_over_a_connection_is_not_ordered():
    source = Source(NODE, Response(200, app_iter=iter([b"abc", b"defg"])))
    assert not source.wants_orders()
    assert [source.take(2), source.take(3)] == [b"ab", b"cde"]
    with pytest.raises(BackendError, match="early"):
        source.take(3)
