from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelstore.common.ranges import (
    LISTING_STATES,
    STATS_STATES,
    UPDATING_STATES,
    ShardRange,
    State,
    filler,
    merge,
    parse_states,
    select,
)
from keelstore.common.timestamp import Timestamp


def T(seconds):
    return Timestamp(float(seconds))


def merged_of(new, existing) -> ShardRange:
    found = merge(new, existing)
    assert found is not None
    return found


def filled(*args) -> ShardRange:
    found = filler(*args)
    assert found is not None
    return found


def shard(name="a/c", lower="", upper="", at=1, **more):
    return ShardRange.create(name, T(at), lower, upper, **more)


def test_the_state_sets():
    assert {State.ACTIVE, State.SHARDING, State.SHRINKING} == STATS_STATES
    assert STATS_STATES | {State.CLEAVED} == LISTING_STATES
    assert {State.CREATED, State.CLEAVED, State.ACTIVE, State.SHARDING} == UPDATING_STATES
    assert parse_states("listing,created,80") == LISTING_STATES | {State.CREATED, State.SHRUNK}
    for bad in ("", "nonsense", "41", "listing,,"):
        with pytest.raises(ValueError, match="Bad state"):
            parse_states(bad)


def test_bounds_are_exclusive_below_and_inclusive_above():
    one = shard(lower="b", upper="d")
    assert [one.holds(name) for name in ("b", "ba", "d", "d\x00")] == [False, True, True, False]
    assert shard().holds("anything")
    assert one.end_marker == "d\x00" and shard().end_marker == ""


def test_dict_form_and_back():
    one = shard(".shards_a/c-1", "b", "d", 5, object_count=3, bytes_used=9, state=State.CLEAVED, epoch=T(4), tombstones=2)
    data = one.to_dict()
    assert list(data) == ["name", "timestamp", "lower", "upper", "object_count", "bytes_used", "meta_timestamp",
                          "deleted", "state", "state_timestamp", "epoch", "reported", "tombstones"]
    assert (data["state"], data["deleted"], data["reported"], data["epoch"]) == (30, 0, 0, "0000000004.00000")
    assert ShardRange.from_dict(data) == one


@pytest.mark.parametrize("change", [
    {"name": "noslash"}, {"name": 5}, {"timestamp": None}, {"timestamp": "x"}, {"timestamp": "1.00000_1"}, {"lower": "z"},
    {"object_count": -1}, {"bytes_used": "x"}, {"state": 41}, {"deleted": 2}, {"upper": "\ud800"}, {"tombstones": -2},
])
def test_nonsense_is_refused(change):
    with pytest.raises(ValueError):
        ShardRange.from_dict({**shard(lower="b", upper="d").to_dict(), **change})


def test_merge_rules():
    old = shard(at=1, object_count=1, is_reported=True)
    assert merge(old, None) == old
    assert merged_of(shard(at=2, is_reported=True), old).is_reported is False
    assert merge(shard(at=0.5), old) is None
    assert merge(old, old) is None
    counts = shard(at=1, meta_timestamp=T(3), object_count=7, lower="other")
    merged = merged_of(counts, old)
    assert (merged.object_count, merged.lower, merged.is_reported) == (7, "", False)
    further = shard(at=1, state=State.CREATED)
    assert merged_of(further, old).state is State.CREATED  # at equal times the further state
    assert merge(shard(at=1), shard(at=1, state=State.CREATED)) is None
    assert merged_of(shard(at=1, object_count=1, is_reported=True), shard(at=1, object_count=1)).is_reported is True


stamps = st.integers(1, 3).map(T)
ranges = st.builds(
    ShardRange, st.just("a/c"), st.just("b"), st.just("d"), st.just(T(1)), meta_timestamp=stamps, state=st.sampled_from(State),
    state_timestamp=stamps,
).map(lambda r: r.from_dict({**r.to_dict(), "object_count": r.meta_timestamp.raw, "tombstones": r.meta_timestamp.raw}))


@given(st.lists(ranges, min_size=1, max_size=4))
def test_merging_forgets_order(known):
    results = set()
    for order in itertools.permutations(known):
        state: ShardRange | None = None
        for one in (*order, *order):
            state = merge(one, state) or state
        results.add(state)
    assert len(results) == 1


def test_select_and_filler():
    all_of = [shard(f"s/{i}", lower, upper, state=State.ACTIVE) for i, (lower, upper) in
              enumerate([("", "d"), ("d", "k"), ("k", "r")])]
    assert [r.name for r in select(all_of)] == ["s/0", "s/1", "s/2"]
    assert [r.name for r in select(all_of, marker="d", end_marker="l")] == ["s/1", "s/2"]
    assert [r.name for r in select(all_of, marker="l", end_marker="d", is_reverse=True)] == ["s/2", "s/1"]
    assert [r.name for r in select(all_of, includes="d")] == ["s/0"]
    assert select(all_of, states=frozenset({State.FOUND})) == []
    own = shard("a/c", state=State.SHARDING)
    gap = filled(all_of, own, "", "")
    assert (gap.name, gap.lower, gap.upper) == ("a/c", "r", "")
    assert filled(all_of, own, "", "z").upper == "z"
    assert filler(all_of, own, "", "p") is None
    assert filler([shard("s/x")], own, "", "") is None
    assert filled([], own, "m", "").lower == "m"
