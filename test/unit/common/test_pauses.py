"""How long the process did not run, by a thread whose beats the test gives."""

from __future__ import annotations

import pytest

from keelstore.common.pauses import BEAT_S, LATE_S, Pauses, start_native
from test.support.waiting import until


class Thread:
    """The one that beats. ``comes(at)``: each time it wakes up; before, the process may have been away."""

    def __init__(self) -> None:
        self.now, self.wakes, self.started, self.is_wanted = 100.0, list[float](), 0, True
        self.pauses = Pauses(lambda: self.now, lambda _now: self.is_wanted, self.start, self.sleep)

    def start(self, function):
        self.started += 1
        self.beat = function

    def sleep(self, _seconds):
        self.now = self.wakes.pop(0)
        if not self.wakes:
            self.is_wanted = False

    def comes(self, *at: float) -> Pauses:
        """Pauses that were watched from 100.0 on, to the last of these times."""
        self.pauses.watch(100.0)
        self.wakes = list(at)
        self.beat()
        return self.pauses


def test_what_a_beat_is_late_by_is_a_pause():
    pauses = Thread().comes(100.25, 103.0, 103.25)
    assert pauses.away_s(100.0, 103.25) == pytest.approx(103.0 - 100.5)


@pytest.mark.parametrize(("began", "now", "away_s"), [
    (90.0, 95.0, 0.0), (104.0, 110.0, 0.0), (101.0, 102.0, 1.0), (100.0, 101.5, 1.0), (102.5, 110.0, 0.5), (100.5, 103.0, 2.5)])
def test_only_as_far_as_it_lay_between_the_times(began: float, now: float, away_s: float) -> None:
    assert Thread().comes(100.25, 103.0, 103.25).away_s(began, now) == pytest.approx(away_s)


def test_several_pauses_add_up():
    assert Thread().comes(102.0, 102.25, 105.0, 105.1).away_s(100.0, 106.0) == pytest.approx(1.75 + 2.5)


def test_beats_that_are_a_little_late_are_none():
    late = BEAT_S + LATE_S - 0.01
    assert Thread().comes(*(100.0 + late * number for number in range(1, 9))).away_s(100.0, 110.0) == 0.0


def test_pause_counts_before_the_thread_has_come_back_and_once():
    thread = Thread()
    thread.pauses.watch(100.0)
    assert thread.pauses.away_s(100.0, 100.3) == 0.0
    assert thread.pauses.away_s(100.0, 103.0) == pytest.approx(103.0 - 100.25)
    assert thread.pauses.away_s(102.0, 103.0) == 1.0
    thread.pauses._past.append((100.25, 103.0))  # it is about to say when it comes next
    assert thread.pauses.away_s(100.0, 103.0) == pytest.approx(103.0 - 100.25)


def test_nothing_is_watched_while_nothing_is_to_be_judged_and_again_later():
    thread = Thread()
    assert not thread.pauses.are_watched
    thread.comes(100.25)
    assert not thread.pauses.are_watched and thread.pauses.away_s(100.0, 200.0) == 0.0
    thread.pauses.watch(200.0)
    assert thread.pauses.are_watched and thread.started == 2 and thread.pauses.away_s(190.0, 202.0) == pytest.approx(1.75)


def test_without_a_thread_there_are_none():
    pauses = Pauses(lambda: 0.0, lambda _now: True)
    assert pauses.are_watched and pauses.away_s(0.0, 1e9) == 0.0

    def none(_function):
        raise RuntimeError("can't start new thread")

    pauses = Pauses(lambda: 0.0, lambda _now: True, none)
    pauses.watch(1.0)
    assert not pauses.are_watched and pauses.away_s(0.0, 1e9) == 0.0


def test_only_so_many_are_remembered():
    pauses = Thread().comes(*(100.0 + number for number in range(1, 1000)))
    assert len(pauses._past) == 64 and pauses.away_s(1090.0, 1099.0) == pytest.approx(9 * 0.75)


def test_a_native_thread_beats_until_it_is_not_wanted():
    wanted = [True]
    sleeps = list[float]()
    pauses = Pauses(lambda: 0.0, lambda _now: wanted[0], start_native, sleeps.append)
    pauses.watch(0.0)
    until(lambda: len(sleeps) > 3, "it beats")
    wanted[0] = False
    until(lambda: not pauses.are_watched, "it has ended")
