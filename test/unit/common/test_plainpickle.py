import os
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelstore.common import plainpickle

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.binary(), inner) | st.tuples(inner, inner),
    max_leaves=10,
)


class Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


@given(plain, st.sampled_from([0, 1, 2, 3, 4, 5]))
def test_plain_data_is_read_at_every_protocol(value, protocol):
    assert plainpickle.loads(pickle.dumps(value, protocol)) == value


@pytest.mark.parametrize("protocol", range(6))
def test_security_S07_a_pickle_never_runs_anything(tmp_path, protocol):
    target = tmp_path / "ran"
    with pytest.raises(ValueError, match="not allowed"):
        plainpickle.loads(pickle.dumps({"a": Bomb(target)}, protocol))
    assert not target.exists()


@pytest.mark.parametrize(
    "data",
    [
        b"", b"garbage", b"\x80\x02", b"\x80\x02c_codecs\nencode\n(X\x01\x00\x00\x00aX\x03\x00\x00\x00zipt\x85R.",
        b"cbuiltins\neval\n(S'1'\ntR.", b"cos\nsystem\n.", b"\x80\x02X\xff\xff\xff\x7fa.", b"Pid\n.",
        b"ccopy_reg\n_reconstructor\n(cbuiltins\nbytes\ncbuiltins\nbytes\nNtR.",
    ],
)
def test_security_S07_what_is_not_plain_is_refused(data):
    with pytest.raises(ValueError):
        plainpickle.loads(data)


@given(st.binary(max_size=200))
def test_security_S07_any_octets_give_a_value_or_a_value_error(data):
    try:
        plainpickle.loads(data)
    except ValueError:
        pass


def test_bytes_are_written_with_the_marker_that_readers_of_the_field_look_for():
    assert b"_codecs\nencode" in plainpickle.dumps({b"name": b"/a/c/o"})[:32]


def test_python_2_strings_are_read():
    assert plainpickle.loads(b"\x80\x02}q\x00U\x04nameq\x01U\x02\xc3\xa9q\x02s.", encoding="bytes") == {b"name": b"\xc3\xa9"}
    assert plainpickle.loads(b"\x80\x02}q\x00U\x04nameq\x01U\x02\xc3\xa9q\x02s.") == {"name": "é"}
