"""How many uploads a worker takes on, by how late its green threads wake up."""

import logging

import pytest

from keelstore.common.admission import ANY, FEW, Admission

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


def test_two_thirds_of_those_at_work_once_it_is_late(admission):
    assert begin(admission, 300) == 300
    admission.note(LATE)
    assert begin(admission, 10) == 0
    for _ in range(100):
        admission.ended()
    assert begin(admission, 10) == 0
    admission.ended()
    assert begin(admission, 10) == 1


def test_few_are_never_too_many(admission):
    for _ in range(20):
        admission.note(LATE)
    assert begin(admission, 1000) == FEW


def test_a_few_more_each_time_that_it_is_not_and_in_the_end_as_many_as_come(admission):
    begin(admission, 300)
    admission.note(LATE)
    most, calm = admission._most, 0
    calm = admission.note(IN_TIME, calm)
    assert most < admission._most < 2 * most
    while admission._most != ANY:
        calm = admission.note(IN_TIME, calm)
    assert calm < 1000


def test_no_bound_where_none_is_wanted():
    admission = Admission(0.0, logging.getLogger("test"))
    assert begin(admission, 1000) == 1000 and not admission._is_measuring
