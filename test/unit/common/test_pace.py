from keelstore.common.pace import Pace


def test_a_slow_device_is_kept_off_the_workers_own_thread():
    pace = Pace()
    assert not pace.is_slow("d1", 0.0)
    seen = []
    pace.run("d1", 100.0, lambda: seen.extend(pace.is_slow("d1", 100.0 + t) for t in (0.5, 1.5)))
    assert seen == [False, True]  # while a call hangs, the next ones go elsewhere
    assert not pace.is_slow("d2", 1e9)


def test_a_device_that_was_slow_stays_so_for_a_while():
    now = [1000.0]
    pace = Pace(lambda: now[0])

    def slow():
        now[0] += 2.0

    pace.run("d1", now[0], slow)
    assert pace.is_slow("d1", now[0] + 9.9) and not pace.is_slow("d1", now[0] + 10.1)
