"""Which links and removals an object needs when its part power changes, and what a device remembers of it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelstore.obj.fileset import resolve
from keelstore.obj.layout import parse_name
from keelstore.obj.relink_plan import (
    CLEANUP,
    RELINK,
    Powers,
    State,
    applies,
    decode,
    encode,
    new_partition,
    plan_hash_dir,
)

T = [f"170000000{n}.00000" for n in range(10)]
NAMES = [f"{T[n]}{kind}" for n in range(1, 4) for kind in (".data", ".meta", ".ts")] + [f".attrs-{T[1]}", "odd", f".{T[1]}.data.Ab12cd"]
FRAGMENTS = [f"{T[n]}{kind}" for n in range(1, 4) for kind in ("#1.data", "#1#d.data", "#4.data", ".meta", ".ts", ".durable")]


@pytest.mark.parametrize("step,power,following,is_wanted", [
    (RELINK, 10, 11, True), (RELINK, 11, 11, False), (RELINK, 10, None, False),
    (CLEANUP, 10, 11, False), (CLEANUP, 11, 11, True), (CLEANUP, 11, None, False),
])  # fmt: skip
def test_each_step_has_its_rings(step, power, following, is_wanted):
    assert applies(step, power, following) == is_wanted


@given(st.binary(min_size=16, max_size=16), st.integers(0, 31))
def test_a_new_partition_is_one_of_two(digest, power):
    old = new_partition(digest.hex(), power)
    assert new_partition(digest.hex(), power + 1) in (2 * old, 2 * old + 1)


def plan(old, new, step=RELINK, fragments=0):
    return plan_hash_dir(old, new, fragments, step)


def test_links_come_in_an_order_that_no_reader_or_cleaner_minds():
    names = [f"{T[2]}.meta", f"{T[1]}.data", f".attrs-{T[1]}"]
    assert plan(names, []).links == (f".attrs-{T[1]}", f"{T[1]}.data", f"{T[2]}.meta")


def test_what_the_new_place_makes_obsolete_is_not_linked_and_goes_first():
    found = plan([f"{T[1]}.data", f"{T[3]}.meta"], [f"{T[2]}.data"], CLEANUP)
    assert found.links == (f"{T[3]}.meta",)
    assert found.removals == (f"{T[1]}.data", f"{T[3]}.meta")
    assert found.is_untidy


def test_a_tombstone_is_linked_beside_older_data():
    assert plan([f"{T[2]}.ts"], [f"{T[1]}.data"]).links == (f"{T[2]}.ts",)


def test_unknown_names_move_when_the_old_place_goes():
    assert plan(["odd", f"{T[1]}.data"], []).links == (f"{T[1]}.data",)
    assert plan(["odd", f"{T[1]}.data"], [], CLEANUP).links == (f"{T[1]}.data", "odd")


def test_a_commit_that_reached_only_one_place_reaches_the_other():
    found = plan([f"{T[1]}#1#d.data"], [f"{T[1]}#1.data"], RELINK, 6)
    assert (found.links, found.twins) == ((f"{T[1]}#1#d.data",), (f"{T[1]}#1.data",))
    found = plan([f"{T[1]}#1.data"], [f"{T[1]}#1#d.data"], CLEANUP, 6)
    assert (found.links, found.twins, found.removals) == ((), (), (f"{T[1]}#1.data",))


@given(st.sets(st.sampled_from(NAMES)), st.sets(st.sampled_from(NAMES)), st.sampled_from((RELINK, CLEANUP)))
def test_after_the_links_the_new_place_is_what_both_were(old, new, step):
    found = plan(old, new, step)
    assert set(found.links) <= old and sorted(found.removals) == sorted(old)
    assert state_of(new | set(found.links), 0) == state_of(old | new, 0)
    assert step == RELINK or old - {file for file in old if is_obsolete(file, old | new, 0)} <= new | set(found.links)


@given(st.sets(st.sampled_from(FRAGMENTS)), st.sets(st.sampled_from(FRAGMENTS)), st.sampled_from((RELINK, CLEANUP)))
def test_fragments_too(old, new, step):
    found = plan(old, new, step, 6)
    after = (new | set(found.links)) - set(found.twins)
    ours, both = resolve(files(after, 6), stores_fragments=True), resolve(files(old | new, 6), stores_fragments=True)
    assert ours.durable == both.durable
    assert {key: {file.fragment for file in members} for key, members in ours.fragments.items()} == {
        key: {file.fragment for file in members} for key, members in both.fragments.items()}
    assert (ours.meta, ours.ctype, ours.tombstone) == (both.meta, both.ctype, both.tombstone)


@given(st.sets(st.sampled_from(NAMES), min_size=1))
def test_while_the_old_place_goes_a_reader_sees_the_newest_or_nothing(old):
    left, whole = set(old), state_of(old, 0)
    for name in plan(old, [], CLEANUP).removals:
        left.discard(name)
        found = state_of(left, 0)
        assert found[0] in (whole[0], None)
        assert found[1] in (whole[1], None)
        assert found[0] is None or found[2:] == whole[2:]  # data is never there without what was posted to it


def files(names, fragments):
    return [file for name in names if (file := parse_name(name, fragments)) is not None]


def state_of(names, fragments):
    found = resolve(files(names, fragments), stores_fragments=fragments > 0)
    return found.data, found.tombstone, found.meta, found.ctype, found.attrs


def is_obsolete(name, names, fragments):
    found = resolve(files(names, fragments), stores_fragments=fragments > 0)
    return name in {file.name for file in found.obsolete}


# -- what is remembered ------------------------------------------------------------------------------------------------

PREPARED, INCREASED, CANCELLED = Powers(3, 4, 7), Powers(4, 4, 8), Powers(3, 3, 8)


def test_partitions_are_done_from_the_highest_and_only_old_ones():
    state = State(PREPARED)
    state.adopt([0, 1, 3, 7, 8, 15], RELINK)
    assert state.to_do() == [7, 3, 1, 0]
    state = State(CANCELLED)
    state.adopt([0, 15], CLEANUP)
    assert state.to_do() == [15, 0]


def test_partitions_that_come_later_are_done_for_relink_and_not_for_cleanup():
    state = State(PREPARED, {1: True, 2: False})
    state.adopt([1, 2, 5], RELINK)
    assert (state.to_do(), state.count_done) == ([2], 2)
    state = State(INCREASED, {1: True, 2: False}, 3)
    state.adopt([1, 2, 5, 9], CLEANUP)
    assert (state.to_do(), state.count_done) == ([5, 2], 1)


def test_a_state_is_read_as_it_was_written():
    state = State(INCREASED, {0: True, 5: False}, 3)
    assert decode(encode(state), INCREASED) == state
    assert json.loads(encode(state)) == {"part_power": 4, "next_part_power": 4, "prev_part_power": 3, "ring_version": 8,
                                         "state": {"0": True, "5": False}}


def test_the_state_of_a_relink_limits_the_cleanup():
    relinked = encode(State(PREPARED, {0: True, 5: True}))
    state = decode(relinked, INCREASED)
    assert state == State(INCREASED, {}, 3)
    state.adopt([0, 5, 8, 11], CLEANUP)
    assert state.to_do() == [5, 0]


def test_a_state_of_another_increase_counts_for_nothing():
    relinked = encode(State(PREPARED, {0: True, 5: True}))
    assert decode(relinked, CANCELLED) is None
    assert decode(relinked, Powers(4, 5, 9)) is None
    assert decode(relinked, Powers(3, 4, 10)) == State(Powers(3, 4, 10)), "cancelled, and prepared anew"
    of_swift = b'{"part_power": 3, "next_part_power": 4, "state": {"0": true}}'
    assert decode(of_swift, PREPARED) == State(PREPARED, {0: True})


@pytest.mark.parametrize("text", [
    b"", b"{", b"[]", b"null", b'{"part_power": 3, "next_part_power": 4}', b'{"part_power": 3, "next_part_power": 4, "state": []}',
    b'{"part_power": 3, "next_part_power": 4, "state": {"x": true}}', b'{"part_power": 3, "next_part_power": 4, "state": {"1": 1}}',
    b'{"part_power": 3, "next_part_power": 4, "state": {"-1": true}}', b'{"part_power": "3", "next_part_power": 4, "state": {}}',
    b'{"part_power": 3, "next_part_power": 4, "state": {}, "prev_part_power": 99}', b"\xff", b"[" * 100000,
])  # fmt: skip
def test_a_file_that_makes_no_sense_is_none(text):
    assert decode(text, PREPARED) is None
