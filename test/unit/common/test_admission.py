"""How many uploads a worker takes on, by how late its green threads wake up."""

import logging

import pytest

from keelstore.common.admission import ANY, FEW, LEAST, START, Admission

LATE, IN_TIME = 10.0, 0.0


@pytest.fixture
def admission():
    found = Admission(0.25, logging.getLogger("test"))
    found._is_measuring = True  # by the test
    return found


def begin(admission, count):
    return sum(admission.admits() for _ in range(count))


def test_as_many_as_come_are_taken_while_nothing_is_late(admission):
    assert begin(admission, 1000) == 1000
    assert admission.note(IN_TIME) == 1 and admission.admits()


def test_some_at_a_time_once_it_is_late_and_fewer_when_it_is_again(admission):
    begin(admission, 300)
    admission.note(LATE)
    assert begin(admission, 100) == START
    admission.note(LATE)
    assert LEAST <= begin(admission, 100) < START
    for _ in range(20):
        admission.note(LATE)
    assert begin(admission, 100) == LEAST  # however many are at work: they may be slow, and none of these is kept out by them


def test_few_are_never_too_many(admission):
    begin(admission, FEW)
    for _ in range(20):
        admission.note(LATE)
    begin(admission, LEAST)
    assert not admission.admits()
    for _ in range(LEAST + 1):
        admission.ended()
    assert admission.admits() and not admission.admits()


def test_more_each_time_that_it_is_not_late_and_in_the_end_as_many_as_come(admission):
    begin(admission, 300)
    admission.note(LATE)
    calm = admission.note(IN_TIME, 0)
    assert START < begin(admission, 1000) < 2 * START
    while admission._each != ANY:
        calm = admission.note(IN_TIME, calm)
    assert calm < 1000 and begin(admission, 1000) == 1000


def test_no_bound_where_none_is_wanted():
    admission = Admission(0.0, logging.getLogger("test"))
    assert begin(admission, 1000) == 1000 and not admission._is_measuring
