from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelstore.common.policy import ErasureCodingPolicy, ReplicationPolicy
from keelstore.common.timestamp import Timestamp
from keelstore.obj import layout
from keelstore.obj.layout import ATTRS, DATA, DURABLE, META, TOMBSTONE, StoredFile, parse_name

T = Timestamp("1402436408.91203")
T1 = Timestamp("1402436408.91203_0000000000000001")

timestamps = st.builds(Timestamp.from_raw, st.integers(0, 10**15 - 1), st.sampled_from([0, 0, 1, 16**16 - 1]))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("1402436408.91203.data", StoredFile("1402436408.91203.data", DATA, T)),
        ("1402436408.91203_0000000000000001.data", StoredFile("1402436408.91203_0000000000000001.data", DATA, T1)),
        ("1402436408.91203.ts", StoredFile("1402436408.91203.ts", TOMBSTONE, T)),
        ("1402436408.91203.meta", StoredFile("1402436408.91203.meta", META, T)),
        ("1402436408.91203-18.meta", StoredFile("1402436408.91203-18.meta", META, T, Timestamp("1402436408.91179"))),
        ("1402436408.91203+0.meta", StoredFile("1402436408.91203+0.meta", META, T, T)),
        (".attrs-1402436408.91203", StoredFile(".attrs-1402436408.91203", ATTRS, T)),
    ],
)
def test_names_of_a_replicated_policy(name, expected):
    assert parse_name(name) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("1402436408.91203#3.data", (DATA, 3, False)),
        ("1402436408.91203#3#d.data", (DATA, 3, True)),
        ("1402436408.91203#3#x.data", (DATA, 3, False)),
        ("1402436408.91203#3#d#more.data", (DATA, 3, True)),
        (".attrs-1402436408.91203#5", (ATTRS, 5, True)),
        ("1402436408.91203.durable", (DURABLE, None, True)),
        ("1402436408.91203.ts", (TOMBSTONE, None, True)),
    ],
)
def test_names_of_an_erasure_coded_policy(name, expected):
    found = parse_name(name, 6)
    assert found and (found.kind, found.fragment, found.is_durable) == expected and found.timestamp == T


@pytest.mark.parametrize(
    "name",
    [
        "", "x", ".lock", "1402436408.91203", "1402436408.91203.txt", "abc.data", "1402436408.91203#1.data", "-1.data", ".data",
        "1402436408.91203_0000000000000001_1.data", "99999999999.00000.data", "1402436408.91203.durable", "1402436408.91203+0.data",
        "1402436408.91203+0+0+0.meta", "hashes.pkl", "nan.data", "inf.ts", "1402436408.91203.attrs", ".attrs-", ".attrs-x",
    ],
)  # fmt: skip
def test_names_that_are_none_of_a_replicated_policy(name):
    assert parse_name(name) is None


@pytest.mark.parametrize(
    "name", ["1402436408.91203.data", "1402436408.91203#6.data", "1402436408.91203#-1.data", "1402436408.91203#.data",
             "1402436408.91203#a.data", "1402436408.91203#\u0663.data", ".attrs-1402436408.91203", ".attrs-x#1"],
)  # fmt: skip
def test_names_that_are_no_fragment(name):
    assert parse_name(name, 6) is None


@given(timestamps, st.integers(0, 5), st.booleans())
def test_what_is_formatted_parses(stamp, index, is_durable):
    assert parse_name(layout.data_name(stamp)) == StoredFile(layout.data_name(stamp), DATA, stamp)
    fragment = parse_name(layout.data_name(stamp, index, is_durable), 6)
    assert fragment and fragment[1:] == (DATA, stamp, None, index, is_durable)
    tombstone, attrs = parse_name(layout.tombstone_name(stamp)), parse_name(layout.attrs_name(stamp, index), 6)
    assert tombstone and tombstone.timestamp == stamp
    assert attrs and (attrs.timestamp, attrs.fragment) == (stamp, index)


@given(timestamps, st.integers(0, 10**15 - 1))
def test_metadata_names_carry_the_time_of_the_content_type(stamp, raw):
    ctype = Timestamp.from_raw(raw)
    found = parse_name(layout.meta_name(stamp, ctype))
    assert found and found.timestamp == stamp
    assert found.ctype_timestamp is not None and found.ctype_timestamp.raw == raw
    plain = parse_name(layout.meta_name(stamp))
    assert plain and plain.ctype_timestamp is None and plain.timestamp == stamp


@given(st.text(max_size=40) | st.text(max_size=40).map(".attrs-".__add__), st.sampled_from([".data", ".meta", ".ts", ".durable", ""]))
def test_any_name_is_parsed_or_refused(stem, ending):
    for fragments in (0, 6):
        parse_name(stem + ending, fragments)


def test_temporary_names_of_rsync():
    assert layout.is_temporary(".1402436408.91203.data.Ab3_x9")
    assert not any(layout.is_temporary(layout.attrs_name(t, i)) for t in (T, T1) for i in (None, 3))
    assert sorted([layout.attrs_name(T), layout.data_name(T)])[0] == layout.attrs_name(T)
    assert not layout.is_temporary("1402436408.91203.data") and not layout.is_temporary(".lock")


def test_paths():
    name_hash = "0123456789abcdef0123456789abcdef"
    assert layout.hash_path("/d/sda", "objects-1", 7, name_hash) == f"/d/sda/objects-1/7/def/{name_hash}"
    assert layout.async_name(name_hash, T) == f"def/{name_hash}-1402436408.91203"
    assert layout.quarantine_dir("/d/sda", "objects") == "/d/sda/quarantined/objects"
    assert (layout.objects_dir(0), layout.async_dir(2), layout.tmp_dir(1)) == ("objects", "async_pending-2", "tmp-1")
    assert layout.is_suffix("0af") and not layout.is_suffix("0AF") and not layout.is_suffix("0af0")
    assert layout.is_hash(name_hash) and not layout.is_hash(name_hash[1:])


def test_fragment_count_of_policies():
    assert layout.fragment_count(ReplicationPolicy(0, "gold")) == 0
    assert layout.fragment_count(ErasureCodingPolicy(1, "ec", ndata=4, nparity=2)) == 6
