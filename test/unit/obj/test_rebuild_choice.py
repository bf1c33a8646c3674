"""Which answers make a fragment, on values."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from keelstore.common.headers import Headers
from keelstore.common.timestamp import Timestamp
from keelstore.obj.rebuild_choice import Answer, Gathering, answer_of, in_order, number, wish
from test.unit.obj.test_fragment_jobs import Ring, node

T1, T2 = Timestamp(1000), Timestamp(2000)


def gathering(fragment: int = 0) -> Gathering:
    return Gathering(4, 6, T1, "etag", fragment)


def good(index: int, time: Timestamp = T1, etag: str = "etag") -> Answer:
    return Answer(200, index, time, time, etag)


def test_what_a_node_says() -> None:
    headers = Headers({"X-Object-Sysmeta-Ec-Frag-Index": "3", "X-Backend-Data-Timestamp": T1.internal, "X-Object-Sysmeta-Ec-Etag": "e",
                       "X-Backend-Fragments": json.dumps({T1.internal: [3, 5], T2.internal: [1]})})
    answer = answer_of(200, headers, T1)
    assert (answer.fragment, answer.data_time, answer.etag, answer.told) == (3, T1, "e", {3, 5})
    nonsense = Headers({"X-Object-Sysmeta-Ec-Frag-Index": "-3", "X-Backend-Data-Timestamp": "x", "X-Backend-Fragments": "[1"})
    assert answer_of(200, nonsense, T1) == Answer(200)


def test_only_fragments_of_the_very_object_count() -> None:
    found = gathering()
    assert [found.add(answer) for answer in (good(1), good(1), good(0), good(2, T2), good(3, etag="other"), good(9), good(4))] \
        == [True, False, False, False, False, False, True]
    assert found.shortfall == 2 and found.describe() == "(2/4 from 7 ok responses)"


@given(st.lists(st.tuples(st.integers(0, 7), st.sampled_from([T1, T2]), st.sampled_from(["etag", "other"]))), st.randoms())
def test_no_order_of_answers_mixes_objects(answers: list[tuple[int, Timestamp, str]], chance: object) -> None:
    found = gathering()
    for index, time, etag in answers:
        found.add(good(index, time, etag))
    expected = {index for index, time, etag in answers if time == T1 and etag == "etag" and 0 < index < 6}
    assert set(found.good) == expected
    assert all(answer.data_time == T1 and answer.etag == "etag" for answer in found.good.values())


def test_the_remains_of_a_deletion() -> None:
    def solitary(*answers: Answer, age_s: float = 10.0, threshold: int = 1) -> bool:
        found = gathering()
        for answer in answers:
            found.add(answer)
        return found.is_solitary(3, age_s, 5.0, threshold)

    gone = Answer(404)
    assert solitary(good(3), gone, gone)
    assert not solitary(good(3), gone, gone, age_s=4.0)
    assert not solitary(good(3), gone, gone, threshold=0)
    assert not solitary(good(3), gone, Answer(507))
    assert not solitary(good(3), gone, Answer(0))
    assert not solitary(good(3), good(4), gone, threshold=1)
    assert solitary(good(3), good(4), gone, threshold=2)
    assert not solitary(good(4), gone)  # what is here was not among what was found
    assert not solitary(good(3), good(4, T2), gone, threshold=2)  # somebody knows another of its name
    assert not solitary(good(3), gone, Answer(404, time=T2))  # a tombstone: it is deleted in order
    assert not solitary(good(3))


def test_a_tombstone_that_is_newer_ends_it() -> None:
    found = gathering()
    found.add(Answer(404, time=Timestamp(999)))
    assert found.deleted is None
    found.add(Answer(404, time=T2))
    assert found.deleted == T2


def test_what_is_said_of_too_few() -> None:
    found = gathering()
    for answer in (good(3), Answer(404), Answer(404), Answer(0), Answer(404, is_handoff=True)):
        found.add(answer)
    assert found.describe() == "(1/4 from 1 ok responses) (1 x no answer, 2 x 404 error responses)"
    assert found.describe(True) == "(1/4 from 1 ok responses) (1 x no answer, 3 x 404 error responses)"


def test_data_fragments_first_each_index_once_and_not_whoever_lacks_it() -> None:
    nodes = Ring(12).nodes
    assert [found.id for found in in_order(nodes, node(5), 4, 6, 2)] == [0, 1, 3, 5, 4, 6, 7, 9, 10, 11]


def test_small_things() -> None:
    assert json.loads(wish(T1, {3, 1})) == [{"timestamp": T1.internal, "exclude": [1, 3]}]
    assert (number({"a": "12"}, "a"), number({"a": "-1"}, "a", 7), number({}, "a")) == (12, 7, 0)
