"""What any process of a node has seen of late, and what of it stays in the page cache."""

from __future__ import annotations

import os

import pytest

from keelstore.obj import seen
from keelstore.obj.seen import Rereads, Seen, key_of
from test.support.objects import ServerBox, StoreBox

SIZE = 1 << 20


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    found = [1_000_000_000_000]
    monkeypatch.setattr(seen.time, "monotonic_ns", lambda: found[0])
    return found


def test_what_was_noted_is_known_for_a_time(now: list[int]) -> None:
    table = Seen(8, 60.0)
    key, other = key_of((1, 2, 3), 0), key_of((1, 2, 3), 1)
    assert not table.knows(key)
    table.note(key)
    assert table.knows(key) and not table.knows(other)
    now[0] += 60_000_000_000 - 1
    assert table.knows(key)
    now[0] += 1
    assert not table.knows(key)


def test_what_shares_a_slot_replaces_what_was_there() -> None:
    table = Seen(1, 60.0)
    table.note(5)
    table.note(6)
    assert table.knows(6) and not table.knows(5)


def test_what_one_process_notes_another_knows() -> None:
    table = Seen(64, 60.0)
    pid = os.fork()
    if not pid:
        table.note(key_of(7))
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert table.knows(key_of(7))


def test_the_same_part_of_an_unchanged_file_is_read_again(tmp_path: object, now: list[int]) -> None:
    box = StoreBox(str(tmp_path))
    place, rereads = box.put(), Rereads(60.0)
    stored = box.store.open(place)
    assert [rereads.begins(stored, start) for start in (0, 3, 0, 3, 4)] == [False, False, True, True, False]
    now[0] += 61_000_000_000
    assert not rereads.begins(stored, 0) and rereads.begins(stored, 0)
    os.utime(f"{place.directory}/{os.listdir(place.directory)[0]}")
    assert not rereads.begins(box.store.open(place), 0)
    never = Rereads(0)
    assert not never.begins(stored, 0) and not never.begins(stored, 0)
    stored.close()


@pytest.fixture
def dropped(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    monkeypatch.setattr("keelstore.obj.reader.reads.drop_cache", lambda fd, offset, length: found.append((offset, length)))
    return found


def read(box: ServerBox, times: int, **headers: str) -> None:
    for _ in range(times):
        answer = box.call("GET", headers={name.replace("_", "-"): value for name, value in headers.items()})
        assert answer.status in (200, 206) and answer.read()


def test_a_large_object_stays_in_the_page_cache_when_it_is_read_again(tmp_path: object, dropped: list[tuple[int, int]]) -> None:
    box = ServerBox(str(tmp_path), keep_cache_size=SIZE - 1)
    assert box.call("PUT", body=bytes(SIZE), at=0.0).status == 201
    read(box, 1)
    assert dropped == [(0, SIZE)]
    read(box, 2, X_Auth_Token="AUTH_tk1")
    assert dropped == [(0, SIZE)]
    for start in (0, 1000, 2000):  # one pass in pieces: each is read for the first time, but for what begins as the whole
        read(box, 1, Range=f"bytes={start}-{start + 999}")
    assert dropped[1:] == [(1000, 1000), (2000, 1000)]


@pytest.mark.parametrize(("options", "headers", "expected"), [
    ({"keep_cache_interval": 0.0, "keep_cache_size": SIZE - 1}, {}, 3),
    ({"keep_cache_interval": 0.0}, {"X_Auth_Token": "AUTH_tk1"}, 3),
    ({"keep_cache_interval": 0.0, "keep_cache_private": True}, {"X_Auth_Token": "AUTH_tk1"}, 0),
    ({}, {"X_Auth_Token": "AUTH_tk1"}, 1),
    ({}, {}, 0),
])
def test_which_options_decide(tmp_path: object, dropped: list[tuple[int, int]], options: dict[str, float],
                              headers: dict[str, str], expected: int) -> None:
    box = ServerBox(str(tmp_path), **options)
    assert box.call("PUT", body=bytes(SIZE), at=0.0).status == 201
    read(box, 3, **headers)
    assert dropped == [(0, SIZE)] * expected
