from __future__ import annotations

import pickle
from hashlib import md5

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelstore.common.timestamp import Timestamp
from keelstore.obj import metadata as records
from keelstore.obj.metadata import BadRecord, decode, encode, merge

# what Swift 2.38 on Python 3 wrote for a PUT (its order of keys, too)
SWIFT_PY3 = (
    b"\x80\x02}q\x00(c_codecs\nencode\nq\x01X\x0b\x00\x00\x00X-Timestampq\x02X\x06\x00\x00\x00latin1q\x03\x86q\x04Rq\x05h\x01X"
    b"\x10\x00\x00\x001402436408.91203q\x06h\x03\x86q\x07Rq\x08h\x01X\x0c\x00\x00\x00Content-Typeq\th\x03\x86q\nRq\x0bh\x01X\x15"
    b"\x00\x00\x00text/plain;x=\xc3\x83\xc2\x83\xc3\x82\xc2\xa9q\x0ch\x03\x86q\rRq\x0eh\x01X\x0e\x00\x00\x00Content-Lengthq\x0fh"
    b"\x03\x86q\x10Rq\x11h\x01X\x01\x00\x00\x005q\x12h\x03\x86q\x13Rq\x14h\x01X\x04\x00\x00\x00ETagq\x15h\x03\x86q\x16Rq\x17h\x01X "
    b"\x00\x00\x005d41402abc4b2a76b9719d911017c592q\x18h\x03\x86q\x19Rq\x1ah\x01X\x13\x00\x00\x00X-Object-Meta-Colorq\x1bh\x03\x86q"
    b"\x1cRq\x1dh\x01X\x08\x00\x00\x00\xc3\x83\xc2\x83\xc3\x82\xc2\xa9q\x1eh\x03\x86q\x1fRq h\x01X\x11\x00\x00\x00X-Object-Meta-Bad"
    b"q!h\x03\x86q\"Rq#h\x01X\x04\x00\x00\x00\xc3\x83\xc2\xbfq$h\x03\x86q%Rq&h\x01X\x04\x00\x00\x00nameq'h\x03\x86q(Rq)h\x01X\x06\x00"
    b"\x00\x00/a/c/oq*h\x03\x86q+Rq,u."
)  # fmt: skip
SWIFT_PY3_VALUE = {
    "X-Timestamp": "1402436408.91203", "Content-Type": "text/plain;x=\u00c3\u00a9", "Content-Length": "5",
    "ETag": "5d41402abc4b2a76b9719d911017c592", "X-Object-Meta-Color": "\u00c3\u00a9", "X-Object-Meta-Bad": "\u00ff",
    "name": "/a/c/o",
}  # fmt: skip

texts = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=30)
metadatas = st.dictionaries(texts.filter(bool), texts, max_size=8)


def test_record_of_swift_is_read_and_written_octet_for_octet():
    assert decode(SWIFT_PY3) == SWIFT_PY3_VALUE
    assert encode(SWIFT_PY3_VALUE) == SWIFT_PY3
    assert records.checksum(SWIFT_PY3) == b"c5f8f7b46882cfbf09af58d3d073daa2"


@given(metadatas)
def test_what_is_encoded_is_decoded(value):
    assert decode(encode(value)) == value


def test_octets_that_are_no_text_survive():
    value = {"name": "/a/c/\udcff", "X-Object-Meta-X": "\u00ff\u0080"}
    assert decode(encode(value)) == value


def test_record_of_python_2():
    """Octets as they were on the wire: header values become wire strings, the name text."""
    name, colour = "/a/c/\u00e9".encode(), "\u00e9".encode()
    record = b"\x80\x02}q\x00(" + b"".join(
        b"U" + bytes([len(key)]) + key + b"U" + bytes([len(value)]) + value
        for key, value in ((b"name", name), (b"X-Object-Meta-Color", colour), (b"Content-Length", b"5"))
    ) + b"u."
    assert pickle.loads(record, encoding="bytes")[b"name"] == name
    assert decode(record) == {"name": "/a/c/\u00e9", "X-Object-Meta-Color": "\u00c3\u00a9", "Content-Length": "5"}


def test_text_and_numbers_of_old_writers_become_text():
    assert decode(pickle.dumps({"name": "/a/c/o", "Content-Length": 5}, 2)) == {"name": "/a/c/o", "Content-Length": "5"}


class Bomb:
    def __reduce__(self):
        return (print, ("never",))


@pytest.mark.parametrize(
    "record",
    [
        b"", b"x", b"\x80\x02}q\x00(", pickle.dumps([1], 2), pickle.dumps({b"a": [b"b"]}, 2), pickle.dumps({1: b"b"}, 2),
        pickle.dumps({b"name": Bomb()}, 2), SWIFT_PY3[:-40], b"cos\nsystem\n(S'true'\ntR.",
    ],
)  # fmt: skip
def test_records_that_are_refused(record, capsys):
    with pytest.raises(BadRecord):
        decode(record)
    assert capsys.readouterr().out == ""


@given(st.binary(max_size=200))
def test_any_octets_are_decoded_or_refused(record):
    try:
        assert isinstance(decode(record), dict)
    except BadRecord:
        pass


def test_record_is_cut_into_chunks():
    record = bytes(range(256)) * 600
    chunks = records.chunks(record)
    assert [name for name, _ in chunks] == ["user.swift.metadata", "user.swift.metadata1", "user.swift.metadata2"]
    assert b"".join(chunk for _, chunk in chunks) == record and len(chunks[0][1]) == 65536
    assert records.chunks(b"x.") == [("user.swift.metadata", b"x.")]


# -- a record that does not fit

BIG = {
    "X-Timestamp": "1402436408.91203", "Content-Type": "text/plain", "Content-Length": "5", "ETag": "e" * 32,
    **{f"X-Object-Meta-{i}": "v" * 200 for i in range(20)}, "X-Object-Sysmeta-Acl": "s" * 400, "name": "/a/c/o",
}  # fmt: skip


@pytest.mark.parametrize("room", [3700, 2000, 700])
def test_cut_record_keeps_what_is_needed_most(room):
    part = records.cut(BIG, room, "m" * 32)
    assert part is not None and len(part) <= room
    found = decode(part)
    assert found.pop(records.MARKER) == "m" * 32
    assert found.items() <= BIG.items() and {"X-Timestamp", "Content-Length", "ETag", "Content-Type", "name"} <= set(found)
    assert ("X-Object-Sysmeta-Acl" in found) == (room > 700)
    assert room < 3700 or "X-Object-Meta-0" in found


def test_name_that_is_too_long_is_left_out():
    found = decode(records.cut({**BIG, "name": "/a/c/" + "\U0001f600" * 1024}, 3700, "m") or b"")
    assert "name" not in found and "X-Object-Sysmeta-Acl" in found


def test_room_for_nothing():
    assert records.cut(BIG, 50, "m" * 32) is None


@given(metadatas, st.integers(200, 1000))
def test_cut_record_never_exceeds_its_room(value, room):
    part = records.cut(value, room, "m" * 32)
    assert part is not None and len(part) <= room
    found = decode(part)
    del found[records.MARKER]
    assert found.items() <= value.items()


# -- merging

DATA_TIME = Timestamp("1402436408.00000")
DATA = {
    "name": "/a/c/o", "X-Timestamp": DATA_TIME.internal, "Content-Type": "text/old", "Content-Length": "5", "ETag": "e",
    "X-Object-Meta-Old": "1", "X-Object-Sysmeta-Keep": "2", "X-Static-Large-Object": "True", "Content-Encoding": "gzip",
    "X-Object-Transient-Sysmeta-T": "3", "X-Delete-At": "9999999999",
}  # fmt: skip
META = {"name": "/a/c/o", "X-Timestamp": "1402436409.00000", "X-Object-Meta-New": "4"}


def test_post_replaces_what_is_the_users_and_keeps_what_is_the_datas():
    assert merge(DATA, META, None, DATA_TIME) == {
        "name": "/a/c/o", "X-Timestamp": "1402436409.00000", "Content-Type": "text/old", "Content-Length": "5", "ETag": "e",
        "X-Object-Sysmeta-Keep": "2", "X-Static-Large-Object": "True", "X-Object-Meta-New": "4",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("meta_type", "ctype", "expected"),
    [
        (None, None, ("text/old", None)),
        (("text/new", "1402436409.00000"), None, ("text/new", "1402436409.00000")),
        (("text/new", "1402436407.00000"), None, ("text/old", None)),
        (("text/new", "1402436408.00000"), None, ("text/old", None)),
        (None, ("text/ctype", "1402436408.50000"), ("text/ctype", "1402436408.50000")),
        (("text/new", "1402436408.20000"), ("text/ctype", "1402436408.50000"), ("text/ctype", "1402436408.50000")),
    ],
)
def test_newest_content_type_wins(meta_type, ctype, expected):
    def typed(base: dict[str, str], pair: tuple[str, str] | None) -> dict[str, str]:
        return base if pair is None else {**base, "Content-Type": pair[0], "Content-Type-Timestamp": pair[1]}

    merged = merge(DATA, typed(META, meta_type), typed({}, ctype) if ctype else None, DATA_TIME)
    assert (merged["Content-Type"], merged.get("Content-Type-Timestamp")) == expected


def test_metadata_file_cannot_change_what_the_data_is():
    lying = {**META, "ETag": "x", "Content-Length": "7", "X-Object-Sysmeta-Keep": "x", "X-Object-Sysmeta-Other": "x",
             "X-Static-Large-Object": "x", "name": "/b"}
    merged = merge({k: v for k, v in DATA.items() if k != "X-Static-Large-Object"}, lying, None, DATA_TIME)
    assert (merged["ETag"], merged["Content-Length"], merged["name"]) == ("e", "5", "/a/c/o")
    assert merged["X-Object-Sysmeta-Keep"] == "2" and "X-Object-Sysmeta-Other" not in merged
    assert "X-Static-Large-Object" not in merged


def test_checksum_is_the_md5():
    assert records.checksum(b"abc") == md5(b"abc").hexdigest().encode()
