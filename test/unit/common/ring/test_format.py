import gzip
import hashlib
import json
import os
import struct
import zlib
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keelstore.common.ring import format as ring_format
from keelstore.common.ring.errors import RingFileError
from keelstore.common.ring.format import RingData, decode, encode, load, save
from test.unit.common.ring.support import small_ring

# Digests of what every writer of the format makes of ``small_ring``: never to be changed.
GOLDEN = {1: "f320aa4fb7992a7e", 2: "43fc80c0f2528945"}


def same(one: RingData, other: RingData) -> bool:
    return (one.devices == other.devices and one.rows == other.rows and one.part_shift == other.part_shift
            and one.version == other.version and one.next_part_power == other.next_part_power)


@pytest.mark.parametrize("version", [1, 2])
def test_a_written_ring_reads_back(version):
    ring = small_ring()
    again = decode(encode(ring, version, "x.ring"))
    assert same(again, ring)
    assert (again.format_version, again.replica_count, again.partition_count) == (version, 2.5, 4)


def test_equal_rings_are_equal_bytes():
    assert encode(small_ring(), 1, "a.ring") == encode(small_ring(), 1, "a.ring")


@pytest.mark.parametrize("version", [1, 2])
def test_the_bytes_of_a_ring_do_not_change(version):
    raw = gzip.decompress(encode(small_ring(), version, "a.ring"))
    plain = raw if version == 1 else raw[:-16]  # the compressed offsets depend on the library's version
    if version == 2:
        start = struct.unpack("!Q", raw[-16:-8])[0]
        plain = raw[:start]
    assert hashlib.sha256(plain).hexdigest()[:16] == GOLDEN[version]


def test_the_header_of_v1_is_what_the_format_says():
    raw = gzip.decompress(encode(small_ring(), 1, "a.ring"))
    assert raw[:6] == b"R1NG\x00\x01"
    length = struct.unpack("!I", raw[6:10])[0]
    head = json.loads(raw[10:10 + length])
    assert list(head) == sorted(head)
    assert (head["replica_count"], head["part_shift"], head["version"]) == (3, 30, 7)
    assert head["devs"][2] is None


def test_magic_stands_at_a_fixed_place_in_the_file():
    data = encode(small_ring(), 1, "a.ring")
    assert data.index(b"R1NG\x00\x01") == 10 + len("a.ring") + 1 + 5


def test_v2_ends_with_its_index_offsets_at_a_fixed_distance():
    data = encode(small_ring(), 2, "a.ring")
    packed = zlib.decompressobj(-15).decompress(data[-31:-13])
    start = struct.unpack("!Q", packed)[0]
    blob = zlib.decompressobj(-15).decompress(data[start:])
    index = json.loads(blob[8:8 + struct.unpack("!Q", blob[:8])[0]])
    assert set(index) >= {"swift/ring/metadata", "swift/ring/devices", "swift/ring/assignments"}
    for begin, _, _, _, method, _ in (index[name] for name in index if name.startswith("swift/")):
        assert method == "sha256"
        assert zlib.decompressobj(-15).decompress(data[begin:], 8)  # every section can be read on its own


def test_big_rings_read_back_too():
    rows = tuple(array("H", os.urandom(2 << 18)) for _ in range(3))
    used = set().union(*rows)
    devs = tuple({"id": i, "region": 1, "zone": 1, "ip": "::1", "port": 1, "replication_ip": "::1", "replication_port": 1,
                  "device": "d", "weight": 1.0, "meta": "é"} if i in used else None for i in range(65535))
    rows = tuple(array("H", [min(i, 65534) if min(i, 65534) in used else next(iter(used - {65535})) for i in row])
                 for row in rows)
    ring = RingData(devs, rows, 14, 1)
    assert same(decode(encode(ring, 2)), ring)
    assert same(decode(encode(ring, 1)), ring)


def test_wide_ids_need_v2():
    devs = tuple({"id": i, "region": 1, "zone": 1, "ip": "::1", "port": 1, "replication_ip": "::1", "replication_port": 1,
                  "device": "d", "weight": 1.0, "meta": ""} for i in range(65600))
    ring = RingData(devs, (array("I", [65599, 1]),), 31, None)
    again = decode(encode(ring, 2))
    assert again.dev_id_bytes == 4 and again.rows == ring.rows
    with pytest.raises(ValueError, match="Ring v1 only supports 2-byte dev IDs"):
        encode(ring, 1)


def test_builder_fields_do_not_get_into_a_ring():
    ring = small_ring()
    devices = tuple(None if dev is None else {**dev, "parts": 3, "parts_wanted": 1} for dev in ring.devices)
    again = decode(encode(RingData(devices, ring.rows, ring.part_shift)))
    assert all(dev is None or not {"parts", "parts_wanted"} & set(dev) for dev in again.devices)


def test_the_other_byte_order_is_read():
    raw = gzip.decompress(encode(small_ring(), 1))
    length = struct.unpack("!I", raw[6:10])[0]
    head = json.loads(raw[10:10 + length])
    head["byteorder"] = "big"
    text = json.dumps(head).encode()
    table = array("H")
    table.frombytes(raw[10 + length:])
    table.byteswap()
    data = gzip.compress(raw[:6] + struct.pack("!I", len(text)) + text + table.tobytes())
    assert decode(data).rows == small_ring().rows


def test_missing_replication_address_is_the_address():
    ring = small_ring()
    devices = tuple(None if dev is None else {k: v for k, v in dev.items() if not k.startswith("replication")}
                    for dev in ring.devices)
    again = decode(encode(RingData(devices, ring.rows, ring.part_shift)))
    dev = again.devices[1]
    assert dev is not None and (dev["replication_ip"], dev["replication_port"]) == ("10.0.0.1", 6200)


def test_empty_ring():
    for version in (1, 2):
        assert decode(encode(RingData(small_ring().devices, (), 24, 3), version)).replica_count == 0


@pytest.mark.parametrize(("data", "reason"), [
    (b"", "is empty"),
    (b"hello, this is no ring", "is not a gzip file"),
    (gzip.compress(b"\x80\x02}q\x00."), "Bad ring magic"),
    (gzip.compress(b"R1N"), "Bad ring magic"),
    (gzip.compress(b"R1NG\x00\x03" + b"x" * 100), "Unsupported ring version: 3"),
    (gzip.compress(b"R1NG\x00\x00"), "Unsupported ring version: 0"),
    (gzip.compress(b"R1NG\x00\x01"), "truncated"),
    (gzip.compress(b"R1NG\x00\x01\xff\xff\xff\xff{}"), "truncated in its JSON"),
    (gzip.compress(b"R1NG\x00\x01\x00\x00\x00\x02{]"), "bad JSON"),
    (gzip.compress(b"R1NG\x00\x01\x00\x00\x00\x02[]"), "no JSON object"),
    (gzip.compress(b"R1NG\x00\x01\x00\x00\x00\x02{}"), "bad part_shift"),
    (gzip.compress(b"R1NG\x00\x02" + b"\x00" * 40), "index"),
])
def test_what_is_no_ring_is_refused_with_a_reason(tmp_path, data, reason):
    path = tmp_path / "object.ring.gz"
    path.write_bytes(data)
    with pytest.raises(RingFileError, match=reason) as caught:
        load(str(path))
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize("version", [1, 2])
def test_a_damaged_ring_is_refused_wherever_it_is_cut_or_changed(version):
    data = encode(small_ring(), version)
    for end in range(len(data)):
        with pytest.raises(RingFileError):
            decode(data[:end])
    raw = gzip.decompress(data)
    for end in range(6, len(raw), 3):
        with pytest.raises(RingFileError):
            decode(gzip.compress(raw[:end]))


def test_v2_finds_a_changed_byte_by_its_checksum():
    raw = bytearray(gzip.decompress(encode(small_ring(), 2)))
    place = raw.index(b"10.0.0.1")
    raw[place] ^= 2
    with pytest.raises(RingFileError, match="bad checksum: swift/ring/devices"):
        decode(gzip.compress(bytes(raw)))


def edited(change):
    """A v1 ring with its JSON changed."""
    raw = gzip.decompress(encode(small_ring(), 1))
    length = struct.unpack("!I", raw[6:10])[0]
    head = json.loads(raw[10:10 + length])
    change(head)
    text = json.dumps(head).encode()
    return gzip.compress(raw[:6] + struct.pack("!I", len(text)) + text + raw[10 + length:])


@pytest.mark.parametrize(("change", "reason"), [
    (lambda h: h.update(replica_count=2), "more table"),
    (lambda h: h.update(replica_count=4), "truncated in its table"),
    (lambda h: h.update(part_shift=29), "truncated"),
    (lambda h: h.update(part_shift="x"), "bad part_shift"),
    (lambda h: h.update(part_shift=99), "bad part_shift"),
    (lambda h: h.update(byteorder="middle"), "byteorder"),
    (lambda h: h.update(devs={}), "no list of devices"),
    (lambda h: h["devs"].__setitem__(1, None), "partitions on device 1"),
    (lambda h: h["devs"].pop(), "partitions on device 3"),
    (lambda h: h["devs"][1].update(id=0), "device 0 in the place of 1"),
    (lambda h: h["devs"][1].update(port="x"), "bad port"),
    (lambda h: h["devs"][1].pop("ip"), "bad ip"),
    (lambda h: h["devs"].__setitem__(1, 7), "bad device 1"),
])
def test_a_ring_that_contradicts_itself_is_refused(change, reason):
    with pytest.raises(RingFileError, match=reason):
        decode(edited(change))


@given(st.binary(max_size=300))
@settings(derandomize=True, max_examples=200)
def test_any_bytes_give_a_ring_or_a_clear_error(data):
    for content in (data, gzip.compress(data), gzip.compress(b"R1NG\x00\x01" + data), gzip.compress(b"R1NG\x00\x02" + data)):
        with pytest.raises(RingFileError):
            decode(content)


def test_save_leaves_no_temporary_file_and_is_readable_by_all(tmp_path):
    path = str(tmp_path / "x.ring.gz")
    old = os.umask(0o077)
    try:
        save(small_ring(), path)
    finally:
        os.umask(old)
    assert os.listdir(tmp_path) == ["x.ring.gz"]
    assert os.stat(path).st_mode & 0o777 == 0o644
    assert same(load(path), small_ring())


def test_save_in_the_current_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save(small_ring(), "x.ring.gz")
    assert same(load("x.ring.gz"), small_ring())


def test_a_failed_save_says_where(tmp_path):
    with pytest.raises(RingFileError, match="cannot be written"):
        save(small_ring(), str(tmp_path / "nowhere" / "x.ring.gz"))


def test_id_widths():
    assert [ring_format.id_bytes_for(i) for i in (0, 0xFFFE, 0xFFFF, 0xFFFFFFFE)] == [2, 2, 4, 4]
    with pytest.raises(ValueError):
        ring_format.id_bytes_for(0xFFFFFFFF)
