import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelstore.common.timestamp import (
    MAX_OFFSET,
    MAX_RAW,
    Timestamp,
    decode_timestamps,
    encode_timestamps,
    normalize_delete_at,
)

raws = st.integers(0, MAX_RAW - 1)
offsets = st.one_of(st.just(0), st.integers(0, MAX_OFFSET))
timestamps = st.builds(Timestamp.from_raw, raws, offsets)


@pytest.mark.parametrize(
    ("value", "internal"),
    [
        ("1402436408.91203", "1402436408.91203"),
        ("1402436408.91203_0000000000000001", "1402436408.91203_0000000000000001"),
        ("1402436408.91203_f", "1402436408.91203_000000000000000f"),
        ("1402436408.91203_0", "1402436408.91203"),
        (1402436408, "1402436408.00000"),
        (0, "0000000000.00000"),
        ("1.5", "0000000001.50000"),
    ],
)
def test_wire_forms_are_read(value, internal):
    assert Timestamp(value).internal == internal


@pytest.mark.parametrize(
    "value",
    ["", "x", "-1", -1, 10**10, "1e400", "nan", "1_2_3", "1402436408.91203_g", "1_00000000000000001", "1402436408.91203_",
     "१२३"],
)
def test_what_is_no_timestamp_is_refused(value):
    with pytest.raises(ValueError):
        Timestamp(value)


@given(timestamps)
def test_internal_and_short_forms_round_trip(t):
    assert Timestamp(t.internal) == t
    assert Timestamp(t.short) == t


@given(timestamps, timestamps)
def test_order_is_that_of_the_internal_form(a, b):
    assert (a < b) == (a.internal < b.internal)
    assert (a == b) == (a.internal == b.internal)


@given(timestamps.filter(lambda t: 0 < t.raw < MAX_RAW - 2), timestamps.filter(lambda t: 0 < t.raw < MAX_RAW - 2))
def test_inversion_turns_the_order_round(a, b):
    if a < b:
        assert ~b < ~a


def test_inverse_as_the_field_computes_it():
    assert (~Timestamp("1700000000.12345")).internal == "8299999999.87654"
    assert (~Timestamp("1700000000.12345_0000000000000001")).internal == "8299999999.87653_ffffffffffffffff"


def test_last_modified_is_rounded_up():
    assert Timestamp("1700000000.00000").ceil() == 1700000000
    assert Timestamp("1700000000.00001").ceil() == 1700000001


def test_isoformat_has_six_decimals():
    assert Timestamp("1700000000.12345").isoformat == "2023-11-14T22:13:20.123450"


def test_a_timestamp_cannot_be_changed():
    with pytest.raises(AttributeError):
        Timestamp(1).raw = 2


@given(raws, st.one_of(st.none(), raws), st.one_of(st.none(), raws), st.booleans())
def test_encoded_timestamps_round_trip(first, second, third, explicit):
    parts = [Timestamp.from_raw(first)]
    if second is not None:
        parts.append(Timestamp.from_raw(second))
        if third is not None:
            parts.append(Timestamp.from_raw(third))
    found = decode_timestamps(encode_timestamps(*parts, explicit=explicit))
    while len(parts) < 3:
        parts.append(parts[-1])
    assert list(found) == parts


def test_encoded_timestamps_as_the_field_writes_them():
    t = Timestamp("1402436408.91203")
    assert encode_timestamps(t, t, t) == "1402436408.91203"
    assert encode_timestamps(t, t, Timestamp("1402436408.91239")) == "1402436408.91203+0+24"
    assert encode_timestamps(t, t, explicit=True) == "1402436408.91203+0"
    assert decode_timestamps("1402436408.91203", explicit=True) == (t, None, None)
    assert decode_timestamps("1402436408.91203-24")[1] == Timestamp("1402436408.91167")


@pytest.mark.parametrize("text", ["", "x+1", "1+1+1+1", "1402436408.91203+zz", "0000000000.00000-1"])
def test_broken_encodings_are_refused(text):
    with pytest.raises(ValueError):
        decode_timestamps(text)


@pytest.mark.parametrize(("value", "text"), [(5, "0000000005"), (-3, "0000000000"), (10**12, "9999999999"), ("7.9", "0000000007")])
def test_delete_at_is_ten_digits(value, text):
    assert normalize_delete_at(value) == text
