from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelstore.account.rows import ContainerRow, item_of, merge


def row(put=1, delete=0, count=0, size=0, policy=0):
    return ContainerRow.from_item({"name": "c", "put_timestamp": f"{put:016.5f}",
                                   "delete_timestamp": f"{delete:016.5f}" if delete else "0",
                                   "object_count": count, "bytes_used": size, "storage_policy_index": policy})  # fmt: skip


def folded(rows):
    state = rows[0]
    for one in rows[1:]:
        state = merge(state, one)
    return state


def test_put_and_delete_take_the_newest():
    merged = folded([row(put=5), row(put=3, delete=4)])
    assert merged.values()[1:3] == ("0000000005.00000", "0000000004.00000")
    assert merged.deleted == 0


def test_a_late_update_does_not_bring_a_deleted_container_back():
    assert folded([row(put=1, count=5), row(put=1, delete=9)]).deleted == 1
    assert folded([row(put=1, delete=9), row(put=1, count=5)]).deleted == 1


def test_at_equal_times_the_later_arrival_counts():
    assert folded([row(count=5), row(count=3)]).object_count == 3
    assert folded([row(count=3), row(count=5)]).object_count == 5


def test_what_is_not_told_is_kept():
    untold = ContainerRow("c", None, None, None, None, None)
    assert merge(row(put=5, count=3, policy=2), untold) == row(put=5, count=3, policy=2)
    assert merge(untold, row(put=5, count=3, policy=2)).values() == row(put=5, count=3, policy=2).values()


def test_zero_stays_as_it_is_written():
    # a row's hash is made of the text, and Swift keeps what it is sent
    assert row(put=5).values()[1:3] == ("0000000005.00000", "0")


def test_items_and_records():
    assert item_of(("c", "1", "0", 1, 2, 0))["storage_policy_index"] == 0
    assert item_of(("c", "1", "0", 1, 2, 0, 4))["storage_policy_index"] == 4
    for change in ({"name": ""}, {"put_timestamp": "x"}, {"object_count": "x"}):
        with pytest.raises(ValueError):
            ContainerRow.from_item({"name": "c", "put_timestamp": "1", "delete_timestamp": "0", "object_count": 1,
                                    "bytes_used": 1, **change})  # fmt: skip


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9), st.integers(0, 3)), min_size=1, max_size=6,
                unique_by=lambda t: max(t[0], t[1])), st.randoms())  # fmt: skip
def test_rows_of_different_times_merge_in_any_order_and_repetition(known, random):
    rows = [row(put, delete, count, count * 10, count) for put, delete, count in known]
    shuffled = rows + random.choices(rows, k=3)
    random.shuffle(shuffled)
    assert folded(shuffled).values() == folded(rows).values()


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3), st.integers(0, 1)), min_size=1, max_size=6), st.randoms())
def test_times_merge_in_any_order(known, random):
    rows = [row(*one) for one in known]
    shuffled = rows + rows
    random.shuffle(shuffled)
    assert folded(shuffled).values()[:3] == folded(rows).values()[:3]
