"""Objects that are read at the same time are hashed together, each to its own MD5; nobody waits for long for company."""

from __future__ import annotations

from hashlib import md5

import pytest

from keelstore.common import concurrency
from keelstore.common.digests import digests
from keelstore.obj import shared_digests as module
from keelstore.obj.shared_digests import LANES, SharedDigests


class Counted(SharedDigests):
    """Notes how many were hashed at once."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[int] = []

    def _hash(self, batch) -> None:
        self.batches.append(len(batch))
        SharedDigests._hash(batch)


def make(shared: SharedDigests, content: bytes, size: int = 1000) -> str:
    """As a rebuild does: the next piece is at hand before the last is hashed."""
    found, event = digests(2), None
    shared.makers += 1
    try:
        for start in range(0, len(content), size):
            piece = content[start : start + size]
            if event is not None:
                assert event.wait() is None
            event = shared.take([(found, 0, [piece[:300], memoryview(piece)[300:]]), (found, 1, [piece[::-1]])])
        if event is not None:
            assert event.wait() is None
    finally:
        shared.leave()
    assert found.hexdigest(1) == md5(b"".join(content[at : at + size][::-1] for at in range(0, len(content), size))).hexdigest()
    return found.hexdigest(0)


def test_each_has_its_own_digest_and_they_are_computed_side_by_side():
    shared = Counted()
    contents = [bytes([number]) * (10_000 + 700 * number) for number in range(LANES + 3)]
    tasks = [concurrency.spawn(make, shared, content) for content in contents]
    assert [task.wait() for task in tasks] == [md5(content).hexdigest() for content in contents]
    assert max(shared.batches) == LANES
    assert shared.makers == 0


def test_one_alone_waits_for_nobody(monkeypatch):
    monkeypatch.setattr(module, "GATHER_S", 3600.0)
    assert concurrency.spawn(make, SharedDigests(), b"abc" * 5000).wait() == md5(b"abc" * 5000).hexdigest()


def test_a_maker_that_leaves_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(module, "GATHER_S", 3600.0)
    shared = SharedDigests()
    shared.makers += 1  # one that has nothing to hash yet
    task = concurrency.spawn(make, shared, b"x" * 500)
    concurrency.sleep()
    concurrency.sleep()
    assert not task.ended
    shared.leave()
    assert task.wait() == md5(b"x" * 500).hexdigest()


def test_a_maker_that_is_slow_is_waited_for_only_so_long():
    shared = SharedDigests()
    shared.makers += 1
    assert concurrency.spawn(make, shared, b"x" * 5000).wait() == md5(b"x" * 5000).hexdigest()


def test_what_goes_wrong_is_told_to_all_that_wait(monkeypatch):
    def fail(feeds):
        raise MemoryError("no room")

    monkeypatch.setattr(module, "take_together", fail)
    event = SharedDigests().take([(digests(1), 0, [b"a"])])
    with pytest.raises(MemoryError):
        raise event.wait()
