"""A page of a listing, against the plainest way to say what it should be."""

from __future__ import annotations

import bisect
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelstore.common import listing
from keelstore.common.listing import STEPS_BEFORE_SEEK, ListingQuery, Span, Subdir, after_prefix, page


class Names:
    """A sorted table of names that counts the rows it was asked for."""

    def __init__(self, names, is_reverse=False):
        self.names, self.is_reverse, self.taken, self.seeks = sorted(set(names)), is_reverse, 0, 0

    def seek(self, span: Span, limit):
        self.seeks += 1
        first = bisect.bisect_left(self.names, span.lower)
        last = bisect.bisect_right(self.names, span.upper) if span.upper else len(self.names)
        found = [
            name for name in self.names[first:last]
            if (name > span.lower or (span.is_lower_included and name == span.lower))
            and (not span.upper or name < span.upper or (span.is_upper_included and name == span.upper))
        ]
        if self.is_reverse:
            found.reverse()
        for name in found[:limit]:
            self.taken += 1
            yield (name, "row")


def names_of(entries):
    return [entry.name if isinstance(entry, Subdir) else entry[0] for entry in entries]


def plainly(names, query: ListingQuery):
    """Every entry in order, by the words of the specification."""
    path = query.path
    prefix, delimiter = query.prefix, query.delimiter
    if path is not None:
        prefix, delimiter = (path.rstrip("/") + "/" if path else ""), "/"
    ordered = sorted(set(names), reverse=query.is_reverse)
    low, high = (query.end_marker, query.marker) if query.is_reverse else (query.marker, query.end_marker)
    entries = []
    for name in ordered:
        if not name.startswith(prefix) or name <= low or (high and name >= high):
            continue
        if not query.shows_reserved and name.startswith("\x00"):
            continue
        end = name.find(delimiter, len(prefix)) if delimiter else -1
        if path is not None:
            if name != prefix and (end < 0 or end + 1 == len(name)):
                entries.append(name)
        elif end < 0:
            entries.append(name)
        else:
            subdir = name[: end + len(delimiter)]
            if subdir != low and (not entries or entries[-1] != subdir):
                entries.append(subdir)
    return entries[: query.limit]


EXAMPLES = ["a", "b/1", "b/2", "c"]


@pytest.mark.parametrize("query, expected", [
    ({"delimiter": "/"}, ["a", "b/", "c"]),
    ({"delimiter": "/", "marker": "b/"}, ["c"]),
    ({"delimiter": "/", "marker": "b/1"}, ["b/", "c"]),
    ({"delimiter": "/", "prefix": "b/"}, ["b/1", "b/2"]),
    ({"delimiter": "/", "prefix": "b"}, ["b/"]),
    ({"path": ""}, ["a", "c"]),
    ({"path": "b"}, ["b/1", "b/2"]),
    ({"path": "b/"}, ["b/1", "b/2"]),
    ({"is_reverse": True, "delimiter": "/"}, ["c", "b/", "a"]),
    ({"is_reverse": True, "marker": "b/2"}, ["b/1", "a"]),
    ({"marker": "a", "end_marker": "c"}, ["b/1", "b/2"]),
    ({"limit": 0}, []),
    ({"limit": 2}, ["a", "b/1"]),
    ({"marker": "x", "end_marker": "b"}, []),
])
def test_the_examples_of_the_specification(query, expected):
    wanted = ListingQuery(**{"limit": 10000, **query})
    assert names_of(page(wanted, Names(EXAMPLES, wanted.is_reverse).seek)) == expected


def test_a_path_listing_gives_what_the_field_loses():
    # client-api 21, oddity 25: b0 follows b/ in order and must not go with it
    assert names_of(page(ListingQuery(10, path=""), Names(["b/x", "b0", "c"]).seek)) == ["b0", "c"]


def test_a_path_listing_has_the_child_that_ends_with_a_slash_in_both_directions():
    names = ["d/", "d/s/", "d/s/1", "d/t"]
    assert names_of(page(ListingQuery(10, path="d"), Names(names).seek)) == ["d/s/", "d/t"]
    assert names_of(page(ListingQuery(10, path="d", is_reverse=True), Names(names, True).seek)) == ["d/t", "d/s/"]


def test_reserved_names_are_shown_on_request_only():
    names = ["\x00v\x00a", "a"]
    assert names_of(page(ListingQuery(10), Names(names).seek)) == ["a"]
    assert names_of(page(ListingQuery(10, shows_reserved=True), Names(names).seek)) == names


letters = st.text(st.sampled_from("ab/.\x01é\ud7ff\U0010ffff"), max_size=6)
queries = st.builds(
    ListingQuery, limit=st.integers(1, 8), marker=letters, end_marker=letters, prefix=letters,
    delimiter=st.sampled_from(["", "/", "//", "a", "é"]), path=st.one_of(st.none(), st.sampled_from(["", "a", "b/", "/"])),
    is_reverse=st.booleans(),
)


@given(st.lists(letters.filter(bool), max_size=40), queries)
def test_a_page_is_what_the_plain_rule_gives(names, query):
    assert names_of(page(query, Names(names, query.is_reverse).seek)) == plainly(names, query)


@given(st.lists(letters.filter(bool), max_size=40), queries)
def test_a_page_is_the_same_however_soon_it_seeks(names, query):
    with patch.object(listing, "STEPS_BEFORE_SEEK", 1), patch.object(listing, "PROBE_EVERY", 2):
        assert names_of(page(query, Names(names, query.is_reverse).seek)) == plainly(names, query)


trees = st.dictionaries(
    st.sampled_from("abcdefghij"), st.tuples(st.booleans(), st.booleans(), st.integers(0, 2 * listing.STEPS_BEFORE_SEEK)), min_size=1)


@given(trees, st.sampled_from([{"path": ""}, {"delimiter": "/"}]), st.booleans(), st.sampled_from([3, 100]))
def test_directories_that_hold_much_and_little_in_turns(tree, how, is_reverse, limit):
    names = [name for folder, (has_child, has_plain, count) in tree.items()
             for name in ([f"{folder}/"] * has_child + [folder] * has_plain + [f"{folder}/{number:02}" for number in range(count)])]
    query = ListingQuery(limit, is_reverse=is_reverse, **how)
    assert names_of(page(query, Names(names, is_reverse).seek)) == plainly(names, query)


@given(st.lists(letters.filter(bool), max_size=40), st.integers(1, 3), st.sampled_from(["", "/", "//"]), st.booleans())
def test_pages_together_are_the_whole_and_each_is_full(names, limit, delimiter, is_reverse):
    whole = plainly(names, ListingQuery(10000, delimiter=delimiter, is_reverse=is_reverse))
    found, marker = [], ""
    while True:
        query = ListingQuery(limit, marker=marker, delimiter=delimiter, is_reverse=is_reverse)
        part = names_of(page(query, Names(names, is_reverse).seek))
        found += part
        if len(part) < limit:
            break
        marker = part[-1]
    assert found == whole


def test_cost_follows_the_page_not_the_container():
    names = [f"{directory:03d}/{name:04d}" for directory in range(20) for name in range(1000)]
    for is_reverse in (False, True):
        table = Names(names, is_reverse)
        found = page(ListingQuery(15, delimiter="/", is_reverse=is_reverse), table.seek)
        assert len(found) == 15
        assert table.taken <= 15 * (STEPS_BEFORE_SEEK + 3)


def test_large_directories_are_not_stepped_into_and_small_ones_are():
    large = [f"{directory:03d}/{name:02d}" for directory in range(300) for name in range(50)]
    table = Names(large)
    assert len(page(ListingQuery(300, delimiter="/"), table.seek)) == 300
    assert table.taken <= 2 * 300 and table.seeks <= 301
    small = [f"{directory:03d}/{name:02d}" for directory in range(300) for name in range(2)]
    table = Names(small)
    assert len(page(ListingQuery(300, delimiter="/"), table.seek)) == 300
    assert table.seeks == 1
    table = Names([f"a{name}" for name in large[:100 * 50]] + small)  # "0.." before "a"
    assert len(page(ListingQuery(400, delimiter="/", is_reverse=True), table.seek)) == 400 and table.seeks < 230


@given(letters, letters)
def test_after_prefix_is_above_all_names_with_the_prefix(prefix, rest):
    end = after_prefix(prefix)
    assert end == "" or end > prefix + rest
    end.encode("utf-8")


def test_after_prefix_steps_over_what_is_no_character():
    assert after_prefix("a\ud7ff") == "a\ue000"
    assert after_prefix("a\U0010ffff") == "b"
    assert after_prefix("\U0010ffff") == ""
