import pytest

from keelstore.common.pace import CALM_S, IDLE_S, LEAST, LOOK_S, QUICK_S, SLOW_FOR_S, START, Pace, Volume


def new_volume() -> Volume:
    return Pace(lambda: 0.0).volume("d1")


def test_a_slow_device_is_kept_off_the_workers_own_thread():
    pace = Pace(lambda: 0.0)
    assert not pace.volume("d1").is_slow(0.0)
    seen = []
    pace.run("d1", 100.0, lambda: seen.extend(pace.volume("d1").is_slow(100.0 + t) for t in (0.5, 1.5)))
    assert seen == [False, True]  # while a call hangs, the next ones go elsewhere
    assert not pace.volume("d2").is_slow(1e9)


def test_a_device_that_was_slow_stays_so_for_a_while():
    now = [1000.0]
    pace = Pace(lambda: now[0])

    def slow():
        now[0] += 2.0

    pace.run("d1", now[0], slow)
    assert pace.volume("d1").is_slow(now[0] + 9.9) and not pace.volume("d1").is_slow(now[0] + 10.1)


def test_beside_a_call_that_is_late_the_next_leave_the_workers_own_thread():
    pace = Pace(lambda: 1000.0)
    seen = []
    pace.run("d1", 1000.0, lambda: seen.extend(pace.keeps_off("d1", 1000.0 + t) for t in (0.05, 0.2)))
    assert seen == [False, True] and not pace.keeps_off("d1", 1000.2)


def test_devices_that_share_a_file_system_share_what_is_known_of_it():
    now = [1000.0]
    pace = Pace(lambda: now[0])
    assert pace.share("a", 7) is pace.share("b", 7) is not pace.share("c", 8)

    def slow():
        now[0] += 2.0

    pace.run_apart("a", now[0], True, slow)
    assert [pace.volume(device).is_slow(now[0]) for device in "abc"] == [True, True, False]
    assert pace.share("b", 9) is not pace.share("a", 7)  # mounted elsewhere since
    assert not pace.volume("b").is_slow(now[0])


@pytest.mark.parametrize("rate", [1.0, 8.0, 100.0, 5000.0])
def test_the_window_becomes_what_the_disk_ends_in_about_a_second(rate: float) -> None:
    """A disk that ends ``rate`` uploads a second, and takes them together: each round takes as long as all of it need."""
    volume, now = new_volume(), 0.0
    for _ in range(400):
        count = volume.used = int(volume.window)
        began, now = now, now + count / rate
        for _ in range(count):
            volume.ended(began, now, True)
    assert min(max(LEAST, rate / 4), 1000) <= volume.window <= max(LEAST + 1, rate * 1.5)


def test_one_slow_round_shrinks_the_window_once_and_to_a_quarter_at_most():
    volume = new_volume()
    volume.window, volume.used = 64.0, 64
    for _ in range(64):
        volume.ended(100.0, 130.0, True)
    assert volume.window == 16.0


def test_the_window_grows_by_what_is_safe_and_where_it_is_used_and_not_beside_a_slow_call():
    volume = new_volume()
    volume.used = 1
    volume.ended(100.0, 100.01, True)  # it is not used
    volume.used = 4
    volume.ended(100.0, 100.01, False)  # in the page cache
    volume.running[1] = 98.0
    volume.ended(100.0, 100.01, True)
    assert volume.window == START
    volume.running.clear()
    volume.ended(100.0, 100.01, True)
    assert volume.window == START + 1


def test_what_was_known_of_a_disk_before_it_was_idle_is_forgotten():
    volume = new_volume()
    volume.window = 500.0
    volume.ended(100.0, 100.01, True)
    volume.wakes(100.0 + IDLE_S)
    assert volume.window == 500.0
    volume.wakes(101.0 + IDLE_S)
    assert volume.window == START


def test_stuck_is_a_file_system_on_which_a_short_call_does_not_come_back():
    volume = new_volume()
    assert not volume.is_stuck(1e9)
    volume.looks[1] = 100.0
    assert not volume.is_stuck(100.0 + LOOK_S) and volume.is_stuck(100.1 + LOOK_S)


def test_slow_ends():
    volume = new_volume()
    volume.ended(100.0, 102.0, True)
    assert volume.is_slow(102.0 + SLOW_FOR_S - 0.1) and not volume.is_slow(102.1 + SLOW_FOR_S)


def test_recovered_is_what_has_ended_a_call_since_and_is_late_with_none():
    volume = new_volume()
    volume.ended(100.0, 102.0, True)
    assert not volume.has_recovered(110.0)  # it has shown nothing since
    volume.ended(102.0, 102.1, True)
    assert not volume.has_recovered(102.0 + CALM_S) and volume.has_recovered(102.1 + CALM_S)
    volume.running["call"] = 110.0
    assert volume.has_recovered(110.0 + QUICK_S) and not volume.has_recovered(110.1 + QUICK_S)
    volume.ended(110.0, 112.0, True)
    volume.running.clear()
    assert not volume.has_recovered(113.0)


# -- pauses of the process


class Paused:
    """A pace, and its process, watched from 1000.0 on; ``stop`` holds up all that runs, also the thread that watches."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.started = 0
        self.pace = Pace(lambda: self.now, self.start)
        self.volume = self.pace.share("d1", 7)
        self.pace._pauses.watch(self.now)

    def start(self, _function):
        self.started += 1

    def runs(self, seconds):
        """Nothing holds up the thread: its next beat is always to come."""
        self.now += seconds
        self.pace._pauses._due = self.now

    def stops(self, seconds):
        self.now += seconds


def test_what_took_long_since_the_process_was_stopped_is_not_slow():
    paused = Paused()
    assert paused.started == 1 and paused.pace._pauses.are_watched
    paused.volume.window, paused.volume.used = 64.0, 64
    seen = []

    def call():
        paused.stops(5.0)
        seen.append((paused.volume.longest_s(paused.now), paused.pace.keeps_off("d1", paused.now)))

    paused.pace.run("d1", paused.now, call)
    paused.pace.run_apart("d1", paused.now - 5.0, True, lambda: None)
    assert seen[0][0] <= 0.25
    assert not paused.volume.is_slow(paused.now) and not paused.pace.keeps_off("d1", paused.now)
    assert paused.volume.window >= 64.0 and not paused.pace.may_be_slow("d1")


def test_pauses_are_watched_from_the_first_call_on():
    started = []
    pace = Pace(lambda: 5.0, started.append)
    assert not pace._pauses.are_watched
    pace.run("d1", 5.0, lambda: pace.run_apart("d2", 5.0, True, lambda: None))
    assert len(started) == 1 and pace._pauses.are_watched


def test_what_was_slow_besides_is_slow():
    paused = Paused()
    paused.volume.window, paused.volume.used = 64.0, 64

    def call():
        paused.runs(2.0)
        paused.stops(5.0)

    paused.pace.run("d1", paused.now, call)
    assert paused.volume.is_slow(paused.now) and paused.volume.window == pytest.approx(32.0)


def test_a_call_that_holds_up_all_but_the_thread_that_watches_is_slow():
    paused = Paused()
    paused.pace.run("d1", paused.now, lambda: paused.runs(2.0))
    assert paused.volume.is_slow(paused.now) and paused.pace.keeps_off("d2", paused.now)


def test_a_call_and_a_look_that_hang_are_slow_and_stuck_whatever_was_before():
    paused = Paused()
    paused.volume.running["call"] = paused.volume.looks["look"] = paused.now
    paused.stops(5.0)
    assert not paused.volume.is_slow(paused.now) and not paused.volume.is_stuck(paused.now)
    paused.pace._pauses._past.append((1000.25, paused.now))
    paused.runs(LOOK_S)
    assert paused.volume.is_slow(paused.now) and paused.volume.is_stuck(paused.now)


def test_pauses_are_watched_as_long_as_a_file_system_is_used():
    paused = Paused()
    assert not paused.pace._is_used(1000.0)
    paused.pace.run("d1", 1000.0, lambda: paused.runs(0.01))
    assert paused.pace._is_used(1009.0) and not paused.pace._is_used(1011.0)
    paused.volume.running["call"] = 1000.0
    assert paused.pace._is_used(2000.0)
