import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelstore.common.headers import Headers
from keelstore.common.policy import ErasureCodingPolicy
from keelstore.common.timestamp import Timestamp
from keelstore.proxy.fragments import Choice, Facts, archive_range, assign_fragments, facts_of

POLICY = ErasureCodingPolicy(2, "ec42", ndata=4, nparity=2)
T1, T2, T3 = (Timestamp(1700000000 + n) for n in range(3))


def good(fragment, time=T1, durable=True, etag="e", held=(), status=200):
    found = {time: frozenset(held) | {fragment}} if held else {}
    return Facts(status, object(), time, time, time if durable is True else durable or None, fragment, etag, found)


def bad(status, time=None):
    return Facts(status, object(), None, time)


def choice(*facts):
    found = Choice(POLICY)
    for each in facts:
        found.add(each)
    return found


# -- writing -----------------------------------------------------------------------------------------------------------


def test_handoffs_take_what_is_missing():
    assert assign_fragments([0, None, 2, None, 4, 5], 6) == [0, 1, 2, 3, 4, 5]


def test_handoffs_take_what_is_least_held():
    assert assign_fragments([0, 6, 1, None, None, 2], 3) == [0, 0, 1, 1, 2, 2]


@given(st.integers(1, 8), st.integers(1, 3), st.data())
def test_every_fragment_is_stored_as_often_as_any_other(fragments, duplication, data):
    primaries = list(range(fragments * duplication))
    lost = data.draw(st.sets(st.sampled_from(primaries)))
    places = data.draw(st.permutations([None if index in lost else index for index in primaries]))
    found = assign_fragments(places, fragments)
    assert {found.count(fragment) for fragment in range(fragments)} == {duplication}


# -- ranges ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("first", "last", "wanted"), [
    (0, 0, "bytes=0-29"), (99, 100, "bytes=0-59"), (100, None, "bytes=30-"), (250, 399, "bytes=60-119"),
    (None, 1, "bytes=-60"), (None, 100, "bytes=-60"), (None, 101, "bytes=-90"),
])  # fmt: skip
def test_range_of_the_archive(first, last, wanted):
    assert archive_range(first, last, 100, 30) == wanted


@given(st.integers(1, 50), st.integers(1, 20), st.integers(0, 1000), st.integers(1, 1200))
def test_a_suffix_range_covers_all_it_must(segment_size, fragment_size, length, wanted):
    whole, rest = divmod(length, segment_size)
    archive = whole * fragment_size + (-(-rest * fragment_size // segment_size))
    asked = int(archive_range(None, wanted, segment_size, fragment_size).rpartition("-")[2])
    start = -(-max(archive - asked, 0) // fragment_size)  # the first segment that is whole in that
    assert start * segment_size <= max(length - wanted, 0)


# -- choosing ----------------------------------------------------------------------------------------------------------


def test_four_of_a_durable_object_suffice():
    found = choice(*(good(index) for index in (5, 2, 0, 3)))
    assert found.can_serve is found.best
    assert [facts.fragment for facts in found.best.chosen()] == [0, 2, 3, 5]


def test_one_that_says_durable_is_enough():
    found = choice(good(0), *(good(index, durable=False) for index in (1, 2, 3)))
    assert found.can_serve is not None


def test_durable_may_be_told_by_a_node_that_gave_another_fragment():
    found = choice(good(0, T1, durable=T2), *(good(index, T2, durable=False) for index in range(4)))
    assert found.can_serve.timestamp == T2


def test_fragments_that_nobody_calls_durable_are_not_served():
    found = choice(*(good(index, durable=False) for index in range(5)))
    assert found.can_serve is None and found.shortfall >= 1


def test_the_same_fragment_twice_is_one():
    found = choice(*(good(0) for _ in range(4)))
    assert found.can_serve is None and found.shortfall == 3


def test_other_nodes_fragments_count_as_within_reach():
    found = choice(good(0, held=(0, 1)), good(2, held=(2, 3)))
    assert found.best.shortfall == 2 and found.best.shortfall_with_told == 0


def test_durable_old_object_is_served_while_the_new_one_is_not_durable():
    found = choice(*(good(index, T1) for index in range(4)), *(good(index, T2, durable=False) for index in range(2)))
    assert found.can_serve.timestamp == T1


def test_newer_of_two_durable_objects():
    found = choice(*(good(index, T2) for index in range(4)), *(good(index, T1) for index in range(4)))
    assert found.can_serve.timestamp == T2


def test_a_newer_tombstone_hides_the_object():
    assert choice(*(good(index) for index in range(4)), bad(404, T2)).can_serve is None


def test_an_older_tombstone_does_not():
    assert choice(*(good(index, T2) for index in range(4)), bad(404, T1)).can_serve is not None


def test_another_object_of_the_same_time_is_dropped():
    found = choice(good(0), good(1), good(2))
    assert not found.add(good(3, etag="other"))
    assert found.can_serve is None


def test_a_fragment_that_the_policy_has_not_is_dropped():
    assert not choice(good(0)).add(good(6))


def test_what_is_not_modified_is_settled_by_as_many():
    found = choice(*(bad(304, T1) for _ in range(4)))
    assert found.shortfall == 0
    assert len(found.answers_that_count(1)) == 4


def test_answers_older_than_the_durable_object_do_not_count():
    found = choice(good(0, T2), bad(304, T1), bad(404), bad(404), bad(503))
    assert [facts.status for facts in found.answers_that_count(1)] == [404, 503]


def test_preferences_name_the_best_first():
    found = choice(good(3, T1), good(1, T1), good(0, T2, durable=False))
    assert json.loads(found.preferences()) == [
        {"timestamp": T1.internal, "exclude": [1, 3]}, {"timestamp": T2.internal, "exclude": [0]}]
    assert choice().preferences() == "[]"


answers = st.builds(good, st.integers(0, 5), st.sampled_from([T1, T2, T3]), st.booleans()) | st.builds(
    bad, st.sampled_from([304, 404, 503]), st.sampled_from([None, T1, T2]))


@given(st.lists(answers, max_size=12), st.randoms())
def test_the_order_of_answers_does_not_matter(facts, random):
    one = choice(*facts)
    random.shuffle(facts)
    other = choice(*facts)
    assert [(b.timestamp, b.is_durable, set(b.answers)) for b in one.ranked()] == [
        (b.timestamp, b.is_durable, set(b.answers)) for b in other.ranked()]
    assert one.shortfall == other.shortfall
    assert (one.can_serve is None) == (other.can_serve is None)


@given(st.lists(answers, max_size=12))
def test_what_is_served_is_durable_whole_and_not_deleted(facts):
    served = choice(*facts).can_serve
    if served is not None:
        assert len({f.fragment for f in served.chosen()}) == 4
        assert {f.data_time for f in served.chosen()} == {served.timestamp}
        assert any(f.durable == served.timestamp for f in facts)
        assert not any(f.status == 404 and f.time is not None and f.time > served.timestamp for f in facts)  # equal: expired there


# -- what nodes say ----------------------------------------------------------------------------------------------------


def test_facts_of_an_answer():
    found = facts_of(200, Headers({
        "X-Backend-Data-Timestamp": T1.internal, "X-Backend-Timestamp": T2.internal, "X-Backend-Durable-Timestamp": T1.internal,
        "X-Object-Sysmeta-Ec-Frag-Index": "3", "X-Object-Sysmeta-Ec-Etag": "abc",
        "X-Backend-Fragments": json.dumps({T1.internal: [3, 4]})}))
    assert (found.data_time, found.time, found.durable, found.fragment, found.etag) == (T1, T2, T1, 3, "abc")
    assert found.held == {T1: {3, 4}} and found.is_good


def test_old_servers_know_only_durable_fragments():
    found = facts_of(200, Headers({"X-Timestamp": T1.internal, "X-Object-Sysmeta-Ec-Frag-Index": "3"}))
    assert found.data_time == found.durable == T1


@pytest.mark.parametrize("headers", [
    {}, {"X-Object-Sysmeta-Ec-Frag-Index": "x"}, {"X-Backend-Data-Timestamp": "x"}, {"X-Backend-Fragments": "[1]"},
    {"X-Backend-Fragments": '{"x": [1]}'}, {"X-Backend-Fragments": "{" * 9}, {"X-Backend-Fragments": '{"1": 5}'},
])  # fmt: skip
def test_nonsense_counts_as_not_said(headers):
    found = facts_of(200, Headers(headers))
    assert not found.is_good or found.held == {}
