from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelstore.common.middleware.versioned_writes.names import (
    Version,
    archive_name,
    archive_prefix,
    hidden_container,
    is_archive_name,
    parse_version_id,
    shown_container,
    split_version_name,
    version_name,
)
from keelstore.common.timestamp import Timestamp

TIMES = st.builds(Timestamp.from_raw, st.integers(0, 10**15 - 2), st.sampled_from([0, 0, 1, 7]))
NAMES = st.text(st.characters(exclude_characters="\x00", codec="utf-8"), min_size=1, max_size=30)


def test_names_of_the_specification() -> None:
    timestamp = Timestamp("1700000000.12345")
    assert version_name("obj", timestamp) == "\x00obj\x008299999999.87654"
    assert version_name("obj", Timestamp("1700000000.12345_0000000000000001")) == (
        "\x00obj\x008299999999.87653_ffffffffffffffff")
    assert archive_name("obj", timestamp) == "003obj/1700000000.12345"
    assert hidden_container("c") == "\x00versions\x00c"


@given(NAMES, NAMES, TIMES)
def test_a_target_names_its_version(container: str, obj: str, timestamp: Timestamp) -> None:
    version = Version(container.replace("/", "_"), obj, timestamp)
    assert Version.of(version.target) == version
    assert version.target.isascii()


@given(NAMES, TIMES, TIMES)
def test_the_newest_version_sorts_first(obj: str, one: Timestamp, other: Timestamp) -> None:
    names = sorted([version_name(obj, one), version_name(obj, other)])
    assert split_version_name(names[0]) == (obj, max(one, other))


@given(NAMES, NAMES, TIMES, TIMES)
def test_versions_sort_as_their_objects_do(one: str, other: str, first: Timestamp, second: Timestamp) -> None:
    if one < other:
        assert version_name(one, first) < version_name(other, second)


@given(NAMES, NAMES, TIMES)
def test_archived_versions_of_one_object_are_no_others(obj: str, other: str, timestamp: Timestamp) -> None:
    name = archive_name(obj, timestamp)
    assert is_archive_name(name, obj)
    assert obj == other or not name.startswith(archive_prefix(other))


@pytest.mark.parametrize("target", ["", "c/o", "%00versions%00c", "%00versions%00c/o", "%00versions%00c/%00o%00x",
                                    "%00versions%00c%00d/%00o%001", "%00other%00c/%00o%001"])
def test_other_targets_are_no_versions(target: str) -> None:
    assert Version.of(target) is None


def test_what_a_client_may_ask_for_instead() -> None:
    version = Version("c d", "o?/ü", Timestamp("1.5"))
    assert version.shown == "c%20d/o%3F/%C3%BC?version-id=0000000001.50000"


def test_version_ids() -> None:
    assert parse_version_id("null") is None
    assert parse_version_id("1700000000.12345") == Timestamp("1700000000.12345")
    for text in ("", "abc", "nan", "-1", "1_zz"):
        with pytest.raises(ValueError):
            parse_version_id(text)


def test_containers_of_versions() -> None:
    assert shown_container("\x00versions\x00c") == "c"
    assert shown_container("c") is shown_container("\x00versions\x00c\x00d") is shown_container("\x00x\x00c") is None
