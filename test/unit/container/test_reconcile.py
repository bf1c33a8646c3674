"""The queue of misplaced objects, and what is to be done with each: pure."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelstore.common.timestamp import Timestamp
from keelstore.container.reconcile import (
    Entry,
    Found,
    Step,
    entry_name,
    is_settled,
    later,
    next_step,
    parse_entry,
    parse_name,
    queue_of,
    queue_rows,
)

T1, T2, T3 = (Timestamp(f"170000000{n}.00000") for n in (1, 2, 3))
WEEK = 604800.0


def entry(is_delete: bool = False, timestamp: Timestamp = T2) -> Entry:
    return Entry("1699999200", "1:/a/c/o", 1, "a", "c", "o", is_delete, timestamp, timestamp)


def row(**values: Any) -> dict[str, Any]:
    return {"name": "o", "created_at": T1.internal, "size": 4, "content_type": "text/plain", "etag": "e", "deleted": 0,
            "storage_policy_index": 1, **values}


def test_a_row_is_queued_under_the_hour_of_its_metadata() -> None:
    created_at = f"{T1.internal}+0+{3600 * 100000:x}"
    assert queue_rows("a", "c", [row(created_at=created_at)]) == {"1700002800": [{
        "name": "1:/a/c/o", "created_at": created_at, "size": 0, "etag": created_at, "deleted": 0, "storage_policy_index": 0,
        "content_type": "application/x-put"}]}
    assert queue_of(T1) == "1699999200"


def test_case_X16_a_deletion_is_queued_but_not_a_tombstone_that_only_cleaned_up() -> None:
    found = queue_rows("a", "c", [row(deleted=1), row(deleted=1, created_at=later(T1, 1).internal),
                                  row(deleted=1, created_at=later(T1, 4).short), row(created_at=later(T1, 1).internal),
                                  row(deleted=1, created_at=later(T1, 3).internal)])  # fmt: skip
    assert [(item["content_type"], item["created_at"]) for item in found["1699999200"]] == [
        ("application/x-delete", T1.internal), ("application/x-put", later(T1, 1).internal),
        ("application/x-delete", later(T1, 3).internal)]


names = st.text(st.characters(blacklist_categories=["Cs"]), min_size=1).filter(lambda text: "/" not in text)


@given(index=st.integers(0, 99), account=names, container=names, obj=names | st.just("a/b//c"))
def test_a_name_is_read_as_it_was_written(index: int, account: str, container: str, obj: str) -> None:
    assert parse_name(entry_name(index, account, container, obj)) == (index, account, container, obj)


@pytest.mark.parametrize("name", ["", "1", "1:", "1:/a/c", "1:/a/c/", "x:/a/c/o", "1:a/c/o", "1://c/o", "-1:/a/c/o", "\u0661:/a/c/o"])
def test_what_is_no_entry_is_refused(name: str) -> None:
    with pytest.raises(ValueError):
        parse_name(name)


def test_an_entry_is_read_from_a_listing() -> None:
    found = parse_entry("1699999200", {"name": "1:/a/c/o", "hash": "1700000001.00000_3+0+a", "bytes": 0,
                                       "content_type": "application/x-put", "last_modified": "2023-11-14T22:13:21.000100"})
    assert found == Entry("1699999200", "1:/a/c/o", 1, "a", "c", "o", False, later(T1, 3), Timestamp("1700000001.00010"))
    with pytest.raises(ValueError, match="text/plain"):
        parse_entry("1", {"name": "1:/a/c/o", "hash": T1.internal, "content_type": "text/plain",
                          "last_modified": "2023-11-14T22:13:21.000000"})


@pytest.mark.parametrize(("is_delete", "source", "step"), [
    (False, Found(200, T2), Step.COPY),
    (False, Found(200, T3), Step.COPY),
    (False, Found(200, T2, is_expired=True), Step.DELETE),
    (False, Found(200, T1), Step.RETRY),
    (False, Found(404), Step.RETRY),
    (False, Found(503), Step.RETRY),
    (True, Found(404, T2), Step.DELETE),
    (True, Found(404), Step.DELETE),
    (True, Found(200, T1), Step.DELETE),
    (True, Found(200, T3), Step.COPY),
    (True, Found(503), Step.RETRY),
])
def test_what_is_to_be_done(is_delete: bool, source: Found, step: Step) -> None:
    assert next_step(entry(is_delete), source, float(T3), WEEK) is step


def test_what_was_never_found_is_given_up_when_all_that_old_is_reclaimed() -> None:
    now = float(T2) + WEEK + 1
    assert next_step(entry(), Found(404), now, WEEK) is Step.LOST
    assert next_step(entry(), Found(200, T1), now, WEEK) is Step.LOST
    assert next_step(entry(), Found(503), now, WEEK) is Step.RETRY  # nobody said that it is not there
    assert next_step(entry(), Found(200, T2), now, WEEK) is Step.COPY


def test_the_right_policy_is_settled_when_it_knows_as_much() -> None:
    assert is_settled(entry(), Found(200, T2)) and is_settled(entry(), Found(404, T3))
    assert not is_settled(entry(), Found(200, T1)) and not is_settled(entry(), Found(404)) and not is_settled(entry(), Found(503, T3))
