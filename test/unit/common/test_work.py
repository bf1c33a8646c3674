"""The queue of background work, its limits and its progress."""

from __future__ import annotations

import logging
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelstore.common import concurrency
from keelstore.common.work import (
    DeviceProgress,
    Progress,
    RateLimit,
    Risk,
    Throttle,
    Workers,
    WorkQueue,
    back_off_s,
    for_each,
)

LOG = logging.getLogger("test")


def drain(queue: WorkQueue[str], now: float = 0.0) -> list[str]:
    found = []
    while (item := queue.take(now)) is not None:
        found.append(item[1])
    return found


def test_the_least_risk_number_goes_first_then_who_waits_longest() -> None:
    queue: WorkQueue[str] = WorkQueue()
    for key, risk, due in (("move", Risk.MOVE, 1), ("late", Risk.HANDOFF, 3), ("early", Risk.HANDOFF, 2), ("lost", Risk.DURABILITY, 4)):
        queue.put(key, key, risk, due)
    assert drain(queue, 10) == ["lost", "early", "late", "move"]


def test_a_job_is_not_taken_before_it_is_due() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.put("a", "a", due_s=5)
    assert queue.take(4.9) is None and queue.next_due_s() == 5
    assert queue.take(5) == ("a", "a")
    assert queue.next_due_s() is None and len(queue) == 0


def test_a_key_is_there_once_with_the_greater_urgency_of_both() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.put("a", "old", Risk.MOVE, due_s=1)
    queue.put("a", "new", Risk.HANDOFF, due_s=9)
    queue.put("b", "b", Risk.UPDATE)
    assert len(queue) == 2
    assert drain(queue, 1) == ["new", "b"]


def test_rescheduling_moves_a_job_into_the_future() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.put("a", "a")
    queue.reschedule("a", "a", Risk.UPDATE, 7)
    assert queue.take(6) is None and queue.take(7) == ("a", "a")


def test_a_full_queue_drops_what_is_least_urgent() -> None:
    queue: WorkQueue[str] = WorkQueue(size=2)
    queue.put("a", "a", Risk.ROUTINE)
    queue.put("b", "b", Risk.UPDATE)
    assert not queue.put("c", "c", Risk.ROUTINE)
    assert queue.put("d", "d", Risk.DURABILITY)
    assert queue.dropped == 2
    assert drain(queue) == ["d", "b"]


def test_a_busy_lane_is_passed_over() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.put("a", "a", Risk.DURABILITY, lane="sda")
    queue.put("b", "b", Risk.MOVE, lane="sdb")
    assert queue.take(0, lambda lane: lane != "sda") == ("b", "b")
    assert queue.take(0, lambda lane: lane != "sda") is None
    assert queue.take(0) == ("a", "a")


@given(st.lists(st.tuples(st.sampled_from(["put", "take", "discard", "later"]), st.integers(0, 5), st.integers(0, 4), st.integers(0, 9))))
def test_whatever_is_done_a_queue_gives_each_key_that_it_holds_once_in_order(steps: list[tuple[str, int, int, int]]) -> None:
    queue: WorkQueue[int] = WorkQueue(size=100)
    held: dict[int, tuple[int, int]] = {}
    now = 0  # time goes on
    for what, key, risk, due in steps:
        if what == "put":
            queue.put(key, key, risk, due)
            have = held.get(key, (risk, due))
            held[key] = (min(risk, have[0]), min(due, have[1]))
        elif what == "later":
            queue.reschedule(key, key, risk, due)
            held[key] = (risk, due)
        elif what == "discard":
            queue.discard(key)
            held.pop(key, None)
        else:
            now = max(now, due)
            found = queue.take(now)
            ready = {key: value for key, value in held.items() if value[1] <= now}
            assert (found is None) == (not ready)
            if found is not None:
                assert held.pop(found[1]) == min(ready.values())
    assert len(queue) == len(held)
    rest = []
    while (item := queue.take(100)) is not None:
        rest.append(item[1])
    assert sorted(rest) == sorted(held) and [held[key] for key in rest] == sorted(held[key] for key in rest)


def test_back_off_doubles_to_its_bound() -> None:
    assert [back_off_s(n, 1, 10) for n in (0, 1, 2, 3, 4, 5, 1000)] == [1, 1, 2, 4, 8, 10, 10]


def test_a_rate_is_kept_and_a_burst_is_bounded() -> None:
    limit = RateLimit(10, burst_s=1)
    now, taken = 100.0, 0
    while now < 110:
        delay = limit.delay_s(now)
        now += delay
        taken += 1
    assert 100 <= taken <= 112
    assert RateLimit(0).delay_s(0) == 0


def test_a_throttle_halves_when_calls_take_long_and_grows_again() -> None:
    throttle = Throttle(8)
    now = 0.0
    for _ in range(50):
        throttle.note("sda", 0.01, now)
    assert throttle.allowed("sda") == 8
    for _ in range(60):
        now += 0.2
        throttle.note("sda", 0.5, now)
    assert throttle.allowed("sda") == 1
    assert throttle.allowed("sdb") == 8
    for _ in range(200):
        now += 0.2
        throttle.note("sda", 0.01, now)
    assert throttle.allowed("sda") == 8


def test_a_throttle_counts_what_runs() -> None:
    throttle = Throttle(1)
    assert throttle.is_free("a")
    throttle.begin("a")
    assert not throttle.is_free("a") and throttle.is_free("b")
    throttle.end("a", None, 0)
    assert throttle.is_free("a")


def test_progress_tells_when_it_will_end() -> None:
    progress = Progress()
    assert progress.as_dict()["running"] is False
    progress.begin(0.0, total=100)
    for second in range(1, 11):
        progress.step(float(second), count=5)
    assert progress.eta_s() == pytest.approx(10)
    progress.end(10.0)
    found = progress.as_dict()
    assert (found["running"], found["done"], found["last_pass_s"], found["eta_s"]) == (False, 50, 10.0, None)


def test_for_each_calls_every_job_and_tells_what_failed() -> None:
    done: list[int] = []
    for_each(range(10), done.append, 3)
    assert sorted(done) == list(range(10))
    with pytest.raises(ZeroDivisionError):
        for_each([1, 0, 2], lambda n: 1 // n, 2)


def test_workers_carry_out_what_is_put_in_meanwhile() -> None:
    queue: WorkQueue[int] = WorkQueue()
    done: list[int] = []

    def carry_out(key: object, job: int) -> None:
        done.append(job)
        if job < 5:
            queue.put(job + 1, job + 1)
        if job == 3:
            raise ValueError("one that fails does not stop the others")

    workers = Workers(queue, carry_out, 2, LOG, lambda: 0.0)
    queue.put(0, 0)
    workers.run_until_empty()
    assert done == [0, 1, 2, 3, 4, 5]


def test_workers_run_until_stopped() -> None:
    queue: WorkQueue[int] = WorkQueue()
    done = concurrency.Event()
    workers = Workers(queue, lambda key, job: done.set(job), 2, LOG, lambda: 0.0)
    task = concurrency.spawn(workers.run)
    concurrency.sleep(0)
    queue.put("a", 7)
    workers.kick()
    assert done.wait(5) == 7
    task.kill()


def test_a_lane_has_no_more_jobs_at_once_than_its_throttle_allows() -> None:
    queue: WorkQueue[int] = WorkQueue()
    running, most, done = [0], [0], concurrency.Event()

    def carry_out(key: object, job: int) -> None:
        running[0] += 1
        most[0] = max(most[0], running[0])
        concurrency.sleep(0.001)
        running[0] -= 1
        if not len(queue):
            done.set()

    workers = Workers(queue, carry_out, 8, LOG, lambda: 0.0, Throttle(2), lane_of=lambda job: "sda")
    for number in range(10):
        queue.put(number, number, lane="sda")
    task = concurrency.spawn(workers.run)
    done.wait(10)
    task.kill()
    assert most[0] == 2


def test_a_busy_lane_does_not_keep_the_others_waiting() -> None:
    queue: WorkQueue[str] = WorkQueue()
    release, other = concurrency.Event(), concurrency.Event()

    def carry_out(key: object, job: str) -> None:
        if job.startswith("slow"):
            release.wait(10)
        else:
            other.set()

    workers = Workers(queue, carry_out, 8, LOG, time.monotonic, Throttle(1), lane_of=lambda job: job[:4])
    now = time.monotonic()
    for job, due_s in (("slow1", 0.0), ("slow2", 0.0), ("fast", now + 0.05)):
        queue.put(job, job, due_s=due_s, lane=job[:4])
    task = concurrency.spawn(workers.run)
    other.wait(5)
    release.set()
    task.kill()


def test_progress_by_device_has_what_is_left_and_when_it_was_done() -> None:
    progress = DeviceProgress()
    progress.begin(100.0)
    progress.expect(["d1", "d1", "d2"])
    progress.step("d1", 110.0)
    assert progress.as_dict(110.0) == {"d1": {"done": 1, "left": 1, "eta_s": 10.0}, "d2": {"done": 0, "left": 1}}
    progress.step("d1", 120.0)
    progress.step("d2", 130.0)
    progress.end(131.0)
    assert progress.as_dict(140.0) == {device: {"done": done, "left": 0, "pass_at": 131.0} for device, done in (("d1", 2), ("d2", 1))}
    progress.begin(200.0)
    progress.end(201.0)  # nothing to do on either
    assert {entry["pass_at"] for entry in progress.as_dict(202.0).values()} == {201.0}
