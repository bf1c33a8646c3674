import pytest

from keelstore.common.pace import IDLE_S, LEAST, LOOK_S, SLOW_FOR_S, START, Pace, Volume


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
    volume, now = Volume(), 0.0
    for _ in range(400):
        count = volume.used = int(volume.window)
        began, now = now, now + count / rate
        for _ in range(count):
            volume.ended(began, now, True)
    assert min(max(LEAST, rate / 4), 1000) <= volume.window <= max(LEAST + 1, rate * 1.5)


def test_one_slow_round_shrinks_the_window_once_and_to_a_quarter_at_most():
    volume = Volume()
    volume.window, volume.used = 64.0, 64
    for _ in range(64):
        volume.ended(100.0, 130.0, True)
    assert volume.window == 16.0


def test_the_window_grows_by_what_is_safe_and_where_it_is_used_and_not_beside_a_slow_call():
    volume = Volume()
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
    volume = Volume()
    volume.window = 500.0
    volume.ended(100.0, 100.01, True)
    volume.wakes(100.0 + IDLE_S)
    assert volume.window == 500.0
    volume.wakes(101.0 + IDLE_S)
    assert volume.window == START


def test_stuck_is_a_file_system_on_which_a_short_call_does_not_come_back():
    volume = Volume()
    assert not volume.is_stuck(1e9)
    volume.looks[1] = 100.0
    assert not volume.is_stuck(100.0 + LOOK_S) and volume.is_stuck(100.1 + LOOK_S)


def test_slow_ends():
    volume = Volume()
    volume.ended(100.0, 102.0, True)
    assert volume.is_slow(102.0 + SLOW_FOR_S - 0.1) and not volume.is_slow(102.1 + SLOW_FOR_S)
