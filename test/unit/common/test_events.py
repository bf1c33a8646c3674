"""Hints to daemons: they arrive whole, never wait, and cost nothing where nobody listens."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from keelstore.common import events


@pytest.fixture
def channel() -> Iterator[events.Channel]:
    channel = events.Channel()
    channel.receiver.setblocking(False)
    channel.attach()
    yield channel
    channel.close()


def test_a_hint_arrives_whole(channel: events.Channel) -> None:
    events.hint("async-pending", "/srv/d1", "0", "a\udcffb")
    assert events.parse(channel.receiver.recv(65536)) == ("async-pending", ("/srv/d1", "0", "a\udcffb"))


def test_without_a_channel_a_hint_is_dropped() -> None:
    events.detach()
    events.hint("x", "y")
    events.hint_change("x", "y")


def test_a_full_channel_drops_and_never_waits(channel: events.Channel) -> None:
    for _ in range(20_000):
        events.hint("x", "y" * 200)
    count = 0
    with pytest.raises(BlockingIOError):
        while True:
            channel.receiver.recv(65536)
            count += 1
    assert 100 < count < 20_000


def test_a_hint_that_is_too_long_is_not_sent(channel: events.Channel) -> None:
    events.hint("x", "y" * events.MAX_HINT)
    with pytest.raises(BlockingIOError):
        channel.receiver.recv(65536)


def test_changes_of_the_same_thing_are_told_once_in_a_while(channel: events.Channel) -> None:
    for name in ("a", "a", "b", "a"):
        events.hint_change("container", name)
    found = [events.parse(channel.receiver.recv(65536))[1] for _ in range(2)]
    assert found == [("a",), ("b",)]
    with pytest.raises(BlockingIOError):
        channel.receiver.recv(65536)
