"""Listings of versions against a model: all versions of all names, in one list, cut into pages in every way."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keelstore.common.errors import BadRequest, PreconditionFailed
from keelstore.common.middleware.versioned_writes.listing import (
    VersionsPage,
    VersionsQuery,
    hidden_account_params,
    with_hidden_bytes,
    with_link_shown,
)
from keelstore.common.middleware.versioned_writes.names import MARKER_TYPE, Version, version_name
from keelstore.common.timestamp import Timestamp

Names = dict[str, tuple[list[int], int | None, bool]]  # versions from oldest to newest, current of them, whether null is


def listed(names: list[dict[str, Any]], params: dict[str, str]) -> list[dict[str, Any]]:
    """A container's listing of rows, as a container server gives it."""
    reverse = params.get("reverse") == "true"
    rows = sorted(names, key=lambda row: row["name"], reverse=reverse)
    marker, end, prefix = params.get("marker", ""), params.get("end_marker", ""), params.get("prefix", "")
    delimiter = params.get("delimiter", "")
    found: list[dict[str, Any]] = []
    for row in rows:
        name = row["name"]
        if not name.startswith(prefix):
            continue
        if marker and (name >= marker if reverse else name <= marker):
            continue
        if end and (name <= end if reverse else name >= end):
            continue
        if delimiter and delimiter in name[len(prefix):]:
            subdir = prefix + name[len(prefix):].partition(delimiter)[0] + delimiter
            if subdir != marker and {"subdir": subdir} not in found:
                found.append({"subdir": subdir})
            continue
        found.append(row)
    return found[:int(params["limit"])]


def containers(names: Names) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The rows of the container itself, and of the hidden one."""
    own, hidden = [], []
    for name, (times, current, has_null) in names.items():
        for time in times:
            is_marker = time % 5 == 0
            hidden.append({"name": version_name(name, Timestamp(time)), "bytes": time, "hash": "h",
                           "content_type": MARKER_TYPE if is_marker else "t", "last_modified": "l"})
        if has_null:
            own.append({"name": name, "bytes": 1, "hash": "n", "content_type": "t", "last_modified": "l"})
        elif current is not None:
            target = Version("c", name, Timestamp(current)).target
            own.append({"name": name, "bytes": 0, "hash": "e", "content_type": "t", "last_modified": "l",
                        "symlink_path": f"/v1/a/{target}", "symlink_etag": "h", "symlink_bytes": current})
    return own, hidden


def page_of(names: Names, params: dict[str, str]) -> list[dict[str, Any]]:
    query = VersionsQuery.of(params, 10000)
    own, hidden = containers(names)
    page = VersionsPage(query, "c")
    page.add_container(listed(own, query.of_container()))
    of_marker = query.of_marker()
    if of_marker is not None:
        page.add_marker(listed(own, of_marker))
    page.add_hidden(listed(hidden, query.of_hidden()))
    return json.loads(json.dumps(page.entries()))


def model(names: Names) -> list[tuple[str, str, bool]]:
    found = []
    for name in sorted(names):
        times, current, has_null = names[name]
        if has_null:
            found.append((name, "null", True))
        for time in sorted(times, reverse=True):
            is_latest = not has_null and (time == current if current is not None else
                                          time == max(times) and time % 5 == 0)
            found.append((name, Timestamp(time).internal, is_latest))
    return found


def keys(entries: list[dict[str, Any]]) -> list[tuple[str, str, bool]]:
    return [(entry["name"], entry["version_id"], entry["is_latest"]) for entry in entries]


@st.composite
def stores(draw: st.DrawFn) -> Names:
    names: Names = {}
    for name in draw(st.lists(st.text("ab/é\U0001f600!", min_size=1, max_size=3), unique=True, max_size=5)):
        times = sorted(draw(st.sets(st.integers(1, 30), max_size=5)))
        has_null = draw(st.booleans())
        data = [time for time in times if time % 5]
        current = draw(st.sampled_from(data)) if data and not has_null and draw(st.booleans()) else None
        names[name] = times, current, has_null
    return names


few = settings(max_examples=50, deadline=None)


@few
@given(stores())
def test_a_whole_listing_is_every_version_once(names: Names) -> None:
    assert keys(page_of(names, {})) == model(names)
    assert keys(page_of(names, {"reverse": "true"})) == model(names)[::-1]


@few
@given(stores(), st.integers(1, 4), st.booleans())
def test_case_C05_pages_of_versions_hold_every_version_exactly_once(names: Names, limit: int, reverse: bool) -> None:
    params = {"limit": str(limit), **({"reverse": "true"} if reverse else {})}
    found: list[tuple[str, str, bool]] = []
    for _ in range(100):
        page = keys(page_of(names, params))
        found += page
        if len(page) < limit:
            break
        params.update(marker=page[-1][0], version_marker=page[-1][1])
    wanted = model(names)[::-1] if reverse else model(names)
    assert [key[:2] for key in found] == [key[:2] for key in wanted]
    if not reverse:
        assert found == wanted


@few
@given(stores(), st.text("ab/", min_size=1, max_size=2))
def test_markers_and_prefixes(names: Names, text: str) -> None:
    everything = model(names)
    assert keys(page_of(names, {"marker": text})) == [key for key in everything if key[0] > text]
    assert keys(page_of(names, {"end_marker": text})) == [key for key in everything if key[0] < text]
    assert keys(page_of(names, {"prefix": text})) == [key for key in everything if key[0].startswith(text)]
    assert keys(page_of(names, {"marker": text, "reverse": "t"})) == [key for key in everything if key[0] < text][::-1]
    assert keys(page_of(names, {"end_marker": text, "reverse": "t"})) == [
        key for key in everything if key[0] > text][::-1]


@few
@given(stores())
def test_delimiters_roll_up_both_containers(names: Names) -> None:
    shown = [entry.get("subdir") or entry["name"] for entry in page_of(names, {"delimiter": "/"})]
    wanted = [name.partition("/")[0] + "/" if "/" in name else name for name, _id, _latest in model(names)]
    assert list(dict.fromkeys(shown)) == list(dict.fromkeys(wanted))
    subdirs = [name for name in shown if name.endswith("/")]
    assert len(subdirs) == len(set(subdirs))


def test_a_version_whose_row_is_late_is_listed_as_its_link_tells() -> None:
    own, _hidden = containers({"a": ([3], 3, False), "b": ([4], 4, False)})
    page = VersionsPage(VersionsQuery.of({}, 10000), "c")
    page.add_container(own)
    page.add_hidden([])
    assert [(entry["name"], entry["version_id"], entry["bytes"], entry["hash"]) for entry in page.entries()] == [
        ("a", "0000000003.00000", 3, "h"), ("b", "0000000004.00000", 4, "h")]
    assert all("symlink_path" not in entry for entry in page.entries())


def test_versions_that_are_lost_with_their_container_are_not_listed() -> None:
    own, _hidden = containers({"a": ([3], 3, False), "b": ([], None, True)})
    page = VersionsPage(VersionsQuery.of({}, 10000), "c")
    page.add_container(own)
    assert keys(page.entries()) == [("b", "null", True)]


def test_a_marker_outside_of_what_is_asked_for_shows_nothing_of_it() -> None:
    names: Names = {"b": ([3], None, True), "c": ([4], None, True)}
    marker = {"marker": "c", "version_marker": "0000000004.00000", "reverse": "true"}
    assert keys(page_of(names, marker)) == [("c", "null", True), *model({"b": names["b"]})[::-1]]
    assert keys(page_of(names, {**marker, "prefix": "b"})) == model({"b": names["b"]})[::-1]
    assert keys(page_of(names, {**marker, "end_marker": "c"})) == []


def test_rows_that_are_none_of_ours_are_left_out() -> None:
    page = VersionsPage(VersionsQuery.of({}, 10000), "c")
    page.add_hidden([{"name": "\x00a\x00nonsense"}, {"name": "plain"}])
    assert page.entries() == []


@pytest.mark.parametrize(("params", "text"), [
    ({"version_marker": "null"}, "version_marker param requires marker"),
    ({"version_marker": "x", "marker": "a"}, "invalid version_marker param"),
    ({"delimiter": "a1"}, "invalid delimiter param"), ({"delimiter": "."}, "invalid delimiter param"),
    ({"prefix": "\x00a"}, '"prefix" parameter not valid UTF-8'), ({"marker": "\udcff"}, '"marker" parameter not valid UTF-8'),
    ({"delimiter": "\x00"}, '"delimiter" parameter not valid UTF-8'),
])  # fmt: skip
def test_bad_parameters_are_refused(params: dict[str, str], text: str) -> None:
    with pytest.raises(BadRequest) as error:
        VersionsQuery.of(params, 10000)
    assert error.value.reason == text


def test_limits() -> None:
    assert VersionsQuery.of({"limit": "7"}, 10).limit == 7
    assert VersionsQuery.of({"limit": "x"}, 10).limit == 10
    with pytest.raises(PreconditionFailed):
        VersionsQuery.of({"limit": "11"}, 10)


def test_links_look_like_their_versions() -> None:
    version = Version("c", "o ö", Timestamp("9.5"))
    row = {"name": "o ö", "bytes": 0, "hash": "e; slo_etag=x", "symlink_path": f"/v1/a/{version.target}",
           "symlink_etag": "h", "symlink_bytes": 7}
    assert with_link_shown(row, "c") == {
        "name": "o ö", "bytes": 7, "hash": "h; slo_etag=x", "version_symlink": True,
        "symlink_path": f"/v1/a/c/{quote('o ö')}?version-id=0000000009.50000"}
    assert with_link_shown(row, "other") is row
    plain = {"name": "s", "symlink_path": "/v1/a/d/e", "symlink_etag": "h", "symlink_bytes": 7}
    assert with_link_shown(plain, "c") is plain


def test_accounts_count_what_versions_hold() -> None:
    entries: list[dict[str, Any]] = [{"name": "a", "count": 1, "bytes": 2}, {"name": "b", "count": 1, "bytes": 3}, {"subdir": "d/"}]
    hidden: list[dict[str, Any]] = [{"name": "\x00versions\x00a", "count": 9, "bytes": 10}, {"name": "\x00versions\x00c", "count": 1, "bytes": 5},
              {"subdir": "\x00versions\x00d/"}]
    assert with_hidden_bytes(entries, hidden, 10, False) == [
        {"name": "a", "count": 1, "bytes": 12}, {"name": "b", "count": 1, "bytes": 3}, {"name": "c", "count": 0, "bytes": 5},
        {"subdir": "d/"}]
    assert [entry.get("name") for entry in with_hidden_bytes(entries, hidden, 2, True)] == [None, "c"]
    assert hidden_account_params({"marker": "m", "prefix": "p", "limit": "3", "path": "x"}) == {
        "format": "json", "prefix": "\x00versions\x00p", "marker": "\x00versions\x00m", "limit": "3"}
