from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelstore.container.rows import DELETED_ETAG, DELETED_TYPE, ObjectRow, item_of, merge, meta_time


def row(created_at="1700000001.00000", size=1, content_type="text/plain", etag="e", deleted=0, **more):
    return ObjectRow.from_item({"name": "o", "created_at": created_at, "size": size, "content_type": content_type,
                                "etag": etag, "deleted": deleted, **more})  # fmt: skip


def gone(created_at):
    return row(created_at, 0, DELETED_TYPE, DELETED_ETAG, 1)


def test_the_newer_data_wins():
    old, new = row("1700000001.00000", etag="old"), row("1700000002.00000", etag="new")
    assert merge(old, new) == merge(new, old) == new


def test_a_late_put_does_not_bring_back_what_was_deleted():
    assert merge(gone("1700000002.00000"), row("1700000001.00000")).deleted == 1
    assert merge(row("1700000001.00000"), gone("1700000002.00000")).deleted == 1
    assert merge(gone("1700000001.00000"), row("1700000002.00000")).deleted == 0


def test_at_equal_times_deleted_wins():
    for one, other in itertools.permutations([row(), gone("1700000001.00000")]):
        assert merge(one, other).deleted == 1


def test_content_type_and_meta_time_have_their_own_order():
    data = row("1700000005.00000", size=9, etag="data")
    post = row("1700000001.00000", content_type="image/png", ctype_timestamp="1700000007.00000",
               meta_timestamp="1700000009.00000")  # fmt: skip
    merged = merge(data, post)
    assert (merged.size, merged.etag, merged.content_type) == (9, "data", "image/png")
    assert merged.created_at == "1700000005.00000+30d40+30d40"
    assert merged == merge(post, data)
    assert merge(merged, merged) is merged


def test_swift_bytes_goes_with_the_data():
    data = row("1700000005.00000", content_type="text/plain;swift_bytes=7")
    post = row("1700000001.00000", content_type="image/png;swift_bytes=1", ctype_timestamp="1700000009.00000")
    assert merge(data, post).full_content_type == "image/png;swift_bytes=7"


def test_an_offset_orders_rewrites_above_the_users_write():
    assert merge(gone("1700000001.00000_0000000000000001"), row("1700000001.00000_0000000000000003")).deleted == 0
    assert merge(gone("1700000001.00000_1"), row("1700000001.00000")).deleted == 1
    assert row("1700000001.00000_0000000000000003").created_at == "1700000001.00000_3"


def test_a_rewrite_keeps_the_live_content_type():
    merged = merge(gone("1700000001.00000_1"), row("1700000001.00000_3"))
    assert merged.content_type == "text/plain"


@pytest.mark.parametrize("change", [
    {"created_at": "x"}, {"created_at": "1700000001.00000+zz"}, {"size": "x"}, {"name": ""}, {"name": None}, {"ctype_timestamp": "x"},
])
def test_nonsense_is_no_row(change):
    with pytest.raises((ValueError, TypeError)):
        row(**{"created_at": "1700000001.00000", **change})


def test_records_of_all_lengths():
    assert item_of(("o", "1", 1, "t", "e", 0))["storage_policy_index"] == 0
    assert item_of(("o", "1", 1, "t", "e", 0, 3))["meta_timestamp"] is None
    assert item_of(("o", "1", 1, "t", "e", 0, 3, "5", "6"))["meta_timestamp"] == "6"


def test_the_time_that_a_listing_shows():
    assert meta_time("1700000001.00000") == "1700000001.00000"
    assert meta_time("1700000001.00000+1+2") == "1700000001.00003"
    assert meta_time("1700000001.00000_1") == "1700000001.00000_0000000000000001"


seconds = st.integers(1, 4).map(lambda n: f"170000000{n}.00000")
offsets = st.sampled_from(["", "", "_1", "_3"])
items = st.fixed_dictionaries({
    "name": st.just("o"), "created_at": st.builds(str.__add__, seconds, offsets), "size": st.integers(0, 2),
    "content_type": st.sampled_from(["text/plain", "image/png", "text/plain;swift_bytes=5", DELETED_TYPE]),
    "etag": st.sampled_from(["e1", "e2"]), "deleted": st.integers(0, 1), "ctype_timestamp": st.none() | seconds,
    "meta_timestamp": st.none() | seconds,
})  # fmt: skip


def folded(rows):
    """The row of a group, written to a database and read back after each step."""
    state = None
    for one in rows:
        merged = one if state is None else merge(state, one)
        state = ObjectRow.from_item({
            "name": merged.name, "created_at": merged.created_at, "size": merged.size, "etag": merged.etag,
            "content_type": merged.full_content_type, "deleted": merged.deleted})  # fmt: skip
    return state


@given(st.lists(items, min_size=1, max_size=4), st.randoms(), st.data())
def test_any_order_repetition_and_grouping_gives_the_same_row(known, random, data):
    rows = [ObjectRow.from_item(item) for item in known]
    shuffled = rows + random.choices(rows, k=3)
    random.shuffle(shuffled)
    cut = data.draw(st.integers(0, len(shuffled)))
    groups = [folded(part) for part in (shuffled[:cut], shuffled[cut:]) if part]
    random.shuffle(groups)
    assert folded(groups) == folded(rows)


TIMES = st.sampled_from(["1700000001.00000", "1700000002.00000_1", "1700000001.00000+2+0", "1700000001.0000x", "", None])
RECORDS = st.tuples(
    st.sampled_from(["o", "", None, 1]), TIMES, st.sampled_from([3, "3", True, None, "x"]),
    st.sampled_from(["text/plain", "text/plain;swift_bytes=9", "", None, 1]), st.sampled_from(["e", "", 7]),
    st.sampled_from([0, 1, 2, True, False, "1"]), st.sampled_from([0, 2, "2", None]), TIMES, TIMES)  # fmt: skip


@given(RECORDS | RECORDS.map(lambda record: (*record[:7], None, None)), st.sampled_from([9, 9, 9, 7, 6, 4]))
def test_a_record_is_the_row_of_its_item(record, length):
    """However short the way is that a usual record takes."""

    def outcome(make):
        try:
            return make()
        except (ValueError, TypeError, IndexError, KeyError):  # what a broker drops
            return None

    record = record[:length]
    assert outcome(lambda: ObjectRow.from_record(record)) == outcome(lambda: ObjectRow.from_item(item_of(record)))


@given(RECORDS.map(lambda record: (*record[:1], "1700000001.00000", *record[2:7], None, None)))
def test_one_time_for_everything_is_stored_as_it_came(record):
    try:
        row = ObjectRow.from_record(record)
    except (ValueError, TypeError):
        return
    assert row.created_at == "1700000001.00000"
