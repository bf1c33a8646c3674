"""Fault scenarios of metadata that halves of a cluster took apart (``spec: scenarios-fault`` 12; the numbers are its rows)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

from test.support.client import Answer
from test.support.stage import Spot, Stage, object_beside
from test.support.waiting import until

SERVERS = ("object", "container")
FINAL = ("object", "container")


class Halves:
    """An object and its container; object and container servers of half the sites may be away at once. Half 1 has two primaries."""

    def __init__(self, stage: Stage):
        self.stage, self.account = stage, stage.internal(stage.own())
        self.account.put("c").expect(201, 202)
        self.container = Spot(stage, self.account.name, "c")
        self.object = object_beside(stage, self.container)
        self.name = self.object.names[2]
        one = self.container.half
        self.half = {1: one, 2: (2, 3) if one == (0, 1) else (0, 1)}

    def on(self, half: int) -> AbstractContextManager[None]:
        """Only this half is there."""
        return self.stage.without(*self.half[3 - half], kinds=SERVERS)

    def put(self, **headers: str) -> None:
        until(lambda: self.account.put("c", self.name, body=b"stuff", headers=spelt(headers)).expect(201), "the PUT is accepted", every_s=0.02)

    def post(self, **headers: str) -> None:
        until(lambda: self.account.post("c", self.name, headers=spelt(headers)).expect(202), "the POST is accepted", every_s=0.02)

    def delete(self) -> None:
        until(lambda: self.account.delete("c", self.name).expect(204), "the DELETE is accepted", every_s=0.02)

    def head(self) -> Answer:
        return self.account.head("c", self.name, headers={"X-Newest": "true"})

    def settle(self) -> None:
        self.stage.final_state(*FINAL)

    def shows(self, **expected: str | None) -> None:
        """Each half alone shows this of the object; None: nothing."""
        for half in (1, 2):
            with self.on(half):
                headers = until(lambda: self.head().expect(200), "it is read", every_s=0.02).headers
                for name, value in spelt(expected).items():
                    assert headers.get(name) == value, (half, name)

    def is_gone(self) -> None:
        for half in (1, 2):
            with self.on(half):
                until(lambda: self.head().expect(404), "it is gone", every_s=0.02)

    def is_consistent(self) -> None:
        headers = self.object.headers()
        assert headers[0] == headers[1] == headers[2]
        assert len({self.object.suffix_hash(node) for node in self.object.primaries}) == 1
        assert len({self.container.database_hash(node) for node in self.container.primaries}) == 1
        for node in self.container.primaries:
            rows = self.container.rows(node)
            if headers[0]["status"] == "404":
                assert rows == []
            else:
                assert [(row["name"], row["content_type"], row["hash"], row["bytes"]) for row in rows] == [
                    (self.name, headers[0]["Content-Type"], headers[0]["Etag"].strip('"'), int(headers[0]["Content-Length"]))]


def spelt(values: dict[str, Any]) -> dict[str, Any]:
    """Short names to headers: ``type``, ``meta``, ``sys`` and ``transient``."""
    full = {"type": "Content-Type", "meta": "X-Object-Meta-Test", "sys": "X-Object-Sysmeta-Test", "transient": "X-Object-Transient-Sysmeta-Test"}
    return {full[name]: value for name, value in values.items()}


@pytest.fixture
def halves(stage: Stage) -> Iterator[Halves]:
    yield Halves(stage)


def test_scenario_82_a_deletion_between_two_writes_of_the_other_half(halves: Halves) -> None:
    halves.put(type="foo")
    with halves.on(2):
        halves.put(type="bar")
    with halves.on(1):
        halves.delete()
    halves.settle()
    halves.is_gone()
    halves.is_consistent()
    with halves.on(1):
        halves.put(type="baz")
    halves.settle()
    halves.shows(type="baz")


def test_scenario_83_a_post_over_two_writes(halves: Halves) -> None:
    halves.put(type="older")
    with halves.on(1):
        halves.put(type="newer")
    halves.post(meta="posted")
    halves.settle()
    halves.shows(type="newer", meta="posted")
    halves.is_consistent()


def test_scenario_84_sysmeta_of_the_newer_write_stays(halves: Halves) -> None:
    with halves.on(1):
        halves.put(sys="older")
    with halves.on(2):
        halves.put(sys="newer")
        halves.post(meta="posted")
    halves.settle()
    halves.shows(sys="newer", meta="posted")
    halves.is_consistent()


def test_scenario_85_a_post_where_the_sysmeta_is_not(halves: Halves) -> None:
    halves.put()
    with halves.on(2):
        halves.put(sys="newer")
    with halves.on(1):
        halves.post(meta="posted", transient="posted")
    halves.settle()
    halves.shows(sys="newer", meta="posted", transient="posted")
    halves.is_consistent()


def test_scenario_86_a_write_after_a_post_leaves_nothing_of_it(halves: Halves) -> None:
    halves.put()
    with halves.on(1):
        halves.post(meta="posted", transient="posted")
    with halves.on(2):
        halves.put(sys="newer")
    halves.settle()
    halves.shows(sys="newer", meta=None, transient=None)
    halves.is_consistent()


def test_scenario_87_a_content_type_that_was_posted(halves: Halves) -> None:
    with halves.on(1):
        halves.put(type="foo")
    with halves.on(2):
        halves.put(type="bar")
    with halves.on(1):
        halves.post(type="baz")
    halves.settle()
    halves.shows(type="baz")
    halves.is_consistent()


def test_scenario_88_a_post_without_one(halves: Halves) -> None:
    with halves.on(1):
        halves.put(type="foo")
    with halves.on(2):
        halves.put(type="bar")
    with halves.on(1):
        halves.post(meta="posted")
    halves.settle()
    halves.shows(type="bar", meta="posted")
    halves.is_consistent()


def test_scenario_89_posts_on_both_and_one_on_all(halves: Halves) -> None:
    with halves.on(1):
        halves.put(type="foo", sys="older")
    with halves.on(2):
        halves.put(type="bar", sys="newer")
    with halves.on(1):
        halves.post(type="bif")
    with halves.on(2):
        halves.post(type="baz", meta="Red")
    halves.post(meta="Blue")
    halves.settle()
    halves.shows(type="baz", meta="Blue", sys="newer")
    halves.is_consistent()


def test_scenario_90_posts_on_both(halves: Halves) -> None:
    halves.put(type="foo", sys="older")
    with halves.on(2):
        halves.put(type="bar", sys="newer")
    with halves.on(1):
        halves.post(meta="Red")
    with halves.on(2):
        halves.post(meta="Blue")
    halves.settle()
    halves.shows(type="bar", meta="Blue", sys="newer")
    halves.is_consistent()


def test_scenario_91_a_post_over_a_post_over_an_older_write(halves: Halves) -> None:
    for half in (1, 2):
        with halves.on(half):
            halves.put(type="oldest", sys="oldest", meta="oldest")
    with halves.on(2):
        halves.post(type="newer", meta="newer")
    with halves.on(1):
        halves.put(type="newest", sys="newest", meta="newer than the POST")
    with halves.on(2):
        halves.post(meta="newest")
        assert halves.head().headers["Content-Type"] == "newer"
    halves.settle()
    halves.shows(type="newest", sys="newest", meta="newest")
    halves.is_consistent()


def test_scenario_92_a_post_after_a_deletion_brings_nothing_back(halves: Halves) -> None:
    for half in (1, 2):
        with halves.on(half):
            halves.put(type="oldest")
    with halves.on(1):
        halves.delete()
    with halves.on(2):
        halves.post(type="newest", meta="newest")
    halves.settle()
    halves.is_gone()
    halves.is_consistent()
