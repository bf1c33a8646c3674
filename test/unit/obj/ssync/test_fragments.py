"""Fragments in SSYNC: what is offered, what is wanted, and what goes when it was proven."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelstore.common.timestamp import Timestamp
from keelstore.obj.fileset import FileSet, resolve
from keelstore.obj.hashdir import Rules
from keelstore.obj.layout import parse_name
from keelstore.obj.ssync.listing import remove_fragments
from keelstore.obj.ssync.protocol import Offer, Part, holds_fragment, only_fragment, select

HASH = "0123456789abcdef0123456789abcdef"


def name(text: str) -> str:
    """``5#1#d`` is the durable fragment 1 of time 5."""
    stem, _, rest = text.partition("#")
    if "." in stem:
        number, _, kind = stem.partition(".")
        return f"{Timestamp(int(number)).internal}.{kind}"
    return f"{Timestamp(int(stem)).internal}#{rest}.data"


def files(*texts: str) -> FileSet:
    parsed = [parse_name(name(text), 6) for text in texts]
    assert all(parsed)
    return resolve(parsed, stores_fragments=True)  # type: ignore[arg-type]


def chosen(found: FileSet, part: Part, fragment: int | None) -> str | None:
    result = select(found, part, fragment)
    if result is None:
        return None
    kept = result.data or result.tombstone
    assert kept is not None
    return kept.name


@pytest.mark.parametrize(("held", "part", "fragment", "expected"), [
    (["5#1#d"], Part.FRAGMENTS, 1, "5#1#d"),
    (["5#1#d"], Part.FRAGMENTS, 2, None),
    (["5#1#d", "5#2"], Part.DURABLE, 2, "5#2"),  # one mark is enough for all of its time
    (["5#1"], Part.DURABLE, 1, None),
    (["5#1"], Part.WAITING, 1, "5#1"),
    (["5#1#d", "7#1"], Part.WAITING, 1, "7#1"),
    (["5#1#d", "7#1"], Part.FRAGMENTS, 1, "5#1#d"),
    (["5#1#d", "7#2"], Part.WAITING, 1, None),
    (["5#1", "5.durable"], Part.DURABLE, 1, "5#1"),
    (["5.ts"], Part.FRAGMENTS, 1, "5.ts"),
    (["5.ts"], Part.DURABLE, 1, None),
    (["5.ts"], Part.TOMBSTONES, None, "5.ts"),
    (["5#1#d"], Part.TOMBSTONES, None, None),
    (["5.ts", "7#1"], Part.TOMBSTONES, None, "5.ts"),
    (["5.ts", "7#1"], Part.WAITING, 1, "7#1"),
])
def test_what_is_offered(held: list[str], part: Part, fragment: int | None, expected: str | None) -> None:
    assert chosen(files(*held), part, fragment) == (name(expected) if expected else None)


@given(st.sets(st.sampled_from([f"{time}#{index}{mark}" for time in (1, 2, 3) for index in (0, 1) for mark in ("", "#d")] + ["2.ts"])))
def test_nothing_is_offered_that_is_not_what_it_is_called(held: set[str]) -> None:
    found = files(*sorted(held))
    for index in (0, 1):
        durable, waiting = select(found, Part.DURABLE, index), select(found, Part.WAITING, index)
        if durable is not None:
            assert durable.data and durable.data.fragment == index and durable.data.timestamp == found.durable
        if waiting is not None:
            assert waiting.data and waiting.data.fragment == index and not waiting.data.is_durable
            assert found.durable is None or waiting.data.timestamp > found.durable


def test_what_a_receiver_holds() -> None:
    offer = Offer(HASH, Timestamp(5), Timestamp(5), Timestamp(5))
    assert holds_fragment(offer, files("5#1"), 1) == (True, True)
    assert holds_fragment(offer, files("5#1#d"), 1) == (True, False)
    assert holds_fragment(offer, files("5#1", "5#2#d"), 1) == (True, False)
    assert holds_fragment(offer, files("5#2#d"), 1) == (False, False)
    assert holds_fragment(offer._replace(is_durable=False), files("5#1"), 1) == (True, False)
    assert only_fragment(offer, files("5#1", "5#2"), 1)[0].exclude == {2}


def folder(root: Path, *texts: str) -> Path:
    path = root / "7" / HASH[-3:] / HASH
    path.mkdir(parents=True, exist_ok=True)
    for text in texts:
        (path / name(text)).write_bytes(b"")
    return path


def removed(root: Path, part: Part, fragment: int | None, proven: FileSet, now: float = 0.0, window_s: float = 0.0) -> list[str]:
    chosen_set = select(proven, part, fragment)
    assert chosen_set is not None
    remove_fragments(str(root / "7"), part, {HASH: chosen_set}, Rules(6, commit_window_s=window_s), now or 1e12)
    path = root / "7" / HASH[-3:] / HASH
    return sorted(os.listdir(path)) if path.exists() else []


def test_exactly_what_was_proven_goes(tmp_path: Path) -> None:
    held = ["5#1#d", "5#2#d", "6.meta"]
    folder(tmp_path, *held)
    assert removed(tmp_path, Part.DURABLE, 2, files(*held)) == sorted(map(name, ["5#1#d", "6.meta"]))
    assert removed(tmp_path, Part.DURABLE, 1, files("5#1#d", "6.meta")) == []
    assert not (tmp_path / "7" / HASH[-3:]).exists()


def test_what_changed_meanwhile_stays(tmp_path: Path) -> None:
    folder(tmp_path, "5#1#d", "6.meta")
    assert len(removed(tmp_path, Part.DURABLE, 1, files("5#1#d"))) == 2
    folder(tmp_path, "9#1#d")
    assert name("9#1#d") in removed(tmp_path, Part.DURABLE, 1, files("5#1#d", "6.meta"))


def test_a_fragment_that_became_durable_is_not_the_one_that_waited(tmp_path: Path) -> None:
    folder(tmp_path, "5#1#d")
    assert removed(tmp_path, Part.WAITING, 1, files("5#1")) == [name("5#1#d")]


def test_a_fragment_that_waits_stays_within_its_window(tmp_path: Path) -> None:
    path = folder(tmp_path, "5#1")
    written = (path / name("5#1")).stat().st_mtime
    assert removed(tmp_path, Part.WAITING, 1, files("5#1"), written + 59, 60) == [name("5#1")]
    assert removed(tmp_path, Part.WAITING, 1, files("5#1"), written + 61, 60) == []


def test_a_tombstone_goes_alone(tmp_path: Path) -> None:
    folder(tmp_path, "5.ts", "7#1")
    assert removed(tmp_path, Part.TOMBSTONES, None, files("5.ts", "7#1")) == [name("7#1")]
