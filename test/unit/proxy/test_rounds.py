"""Conversations with many nodes at once."""

from __future__ import annotations

import pytest

from keelstore.common import concurrency
from keelstore.common.concurrency import Event
from keelstore.common.errors import BackendError, BackendTimeout, WaitTimeout
from keelstore.proxy.rounds import Round


def until(condition, what):
    for _ in range(10000):
        if condition():
            return
        concurrency.sleep(0.001)
    raise AssertionError(what)


class Upload:
    """Of a node elsewhere."""

    address = ("10.0.0.1", 6200)

    def __init__(self, says):
        self.said, self.says = Event(), says

    def hear(self, seconds):
        try:
            self.said.wait(seconds)
        except WaitTimeout:
            raise BackendTimeout("silent") from None
        if isinstance(self.says, Exception):
            raise self.says
        return self.says


class OwnUpload(Upload):
    def __init__(self, says):
        super().__init__(says)
        self.heard = None

    def when_ready(self, heard):
        self.heard = heard
        if self.said.is_set:
            heard()


class Slot:
    def __init__(self, kind, says):
        self.upload = kind(says)

    def speak(self):
        self.upload.said.set()
        heard = getattr(self.upload, "heard", None)
        if heard is not None:
            heard()


class Rounds:
    def __init__(self):
        self.sent, self.failed, self.logged = [], [], []

    def __call__(self, slots, is_enough=lambda found: False, grace_s=0.0, timeout_s=5.0, send=None, when="when_ready"):
        conversation = Round(timeout_s, send or self.sent.append, lambda slot, seconds: slot.upload.hear(seconds),
                             lambda slot, error: self.failed.append((slot, error)), self.logged.append)
        return conversation.run(slots, when, is_enough, grace_s)


@pytest.fixture
def rounds():
    return Rounds()


def test_nobody(rounds):
    assert rounds([]) == []


@pytest.mark.parametrize("kinds", [(OwnUpload, OwnUpload), (Upload, Upload), (OwnUpload, Upload), (Upload, OwnUpload)])
def test_all_are_sent_theirs_and_heard_in_the_order_they_speak(rounds, kinds):
    slots = [Slot(kind, number) for number, kind in enumerate(kinds, 1)]
    task = concurrency.spawn(rounds, slots)
    until(lambda: len(rounds.sent) == 2, "both have theirs")
    slots[1].speak()
    concurrency.sleep(0)
    concurrency.sleep(0)
    slots[0].speak()
    assert task.wait() == [2, 1] and not rounds.failed


@pytest.mark.parametrize("kind", [OwnUpload, Upload])
def test_what_fails_counts_for_nothing(rounds, kind):
    slots = [Slot(kind, 1), Slot(kind, BackendError("gone")), Slot(kind, KeyError("a fault of ours")), Slot(kind, None)]
    for slot in slots:
        slot.speak()
    assert rounds(slots) == [1]
    assert [slot for slot, _ in rounds.failed] == [slots[1]] and len(rounds.logged) == 1


@pytest.mark.parametrize("kind", [OwnUpload, Upload])
def test_who_cannot_be_sent_anything_is_not_waited_for(rounds, kind):
    slots = [Slot(kind, 1), Slot(kind, 2)]
    slots[1].speak()

    def send(slot):
        if slot is slots[0]:
            raise OSError("broken")

    assert rounds(slots, send=send) == [2] and [slot for slot, _ in rounds.failed] == [slots[0]]


def test_where_sending_may_wait_nobody_waits_for_another(rounds):
    slots, go = [Slot(OwnUpload, 1), Slot(OwnUpload, 2)], Event()

    def send(slot):
        rounds.sent.append(slot)
        if slot is slots[0]:
            go.wait(5)

    task = concurrency.spawn(rounds, slots, send=send, when=None)
    until(lambda: len(rounds.sent) == 2, "both are being sent theirs")
    slots[1].speak(), slots[0].speak()
    concurrency.sleep(0.01)
    go.set()
    assert task.wait() == [2, 1]


@pytest.mark.parametrize("kind", [OwnUpload, Upload])
def test_who_is_silent_is_given_up(rounds, kind):
    slots = [Slot(kind, 1), Slot(kind, 2)]
    slots[0].speak()
    assert rounds(slots, timeout_s=0.1) == [1]
    ((slot, error),) = rounds.failed
    assert slot is slots[1] and isinstance(error, BackendTimeout)
    slots[1].speak()  # too late
    assert len(rounds.failed) == 1


@pytest.mark.parametrize("kind", [OwnUpload, Upload])
@pytest.mark.parametrize("says", [3, BackendError("late, and bad")])
def test_the_late_are_heard_of_nevertheless(rounds, kind, says):
    slots = [Slot(kind, 1), Slot(kind, 2), Slot(kind, says)]
    slots[0].speak(), slots[1].speak()
    assert rounds(slots, is_enough=lambda found: len(found) == 2, grace_s=0.01) == [1, 2]
    assert not rounds.failed
    concurrency.sleep(0)
    slots[2].speak()
    if says != 3:
        until(lambda: rounds.failed, "it is heard of")
    else:
        concurrency.sleep(0.01)
    assert len(rounds.failed) == (says != 3)


def test_the_late_are_given_up_in_the_end(rounds):
    slots = [Slot(OwnUpload, 1), Slot(OwnUpload, 2)]
    slots[0].speak()
    assert rounds(slots, is_enough=bool, timeout_s=0.1) == [1]
    until(lambda: rounds.failed, "it has had its time")


def test_some_who_come_in_the_grace_count(rounds):
    slots = [Slot(OwnUpload, 1), Slot(OwnUpload, 2)]
    slots[0].speak()
    task = concurrency.spawn(rounds, slots, is_enough=bool, grace_s=5.0)
    concurrency.sleep(0)
    slots[1].speak()
    assert task.wait() == [1, 2]
