import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keelstore.common.ring import devices
from keelstore.common.ring.devices import RingDevice, matches, parse_add_value, parse_change_value, parse_search_value

ONE = RingDevice(1, 2, "1.2.3.4", 6200, "sda", 100.0, "5.6.7.8", 6201, "slow shelf", 3)


@pytest.mark.parametrize(("text", "expected"), [
    ("r1z1-1.2.3.4:5678/sdb_1_meta", (1, 1, "1.2.3.4", 5678, "1.2.3.4", 5678, "sdb", "1_meta")),
    ("z1-1.2.3.4:5678/sdb", (None, 1, "1.2.3.4", 5678, "1.2.3.4", 5678, "sdb", "")),
    ("r1z2-[::1]:80R[fe80::2]:90/d1_x", (1, 2, "::1", 80, "fe80::2", 90, "d1", "x")),
    ("r1z2-::1:80/d1", (1, 2, "::1", 80, "::1", 80, "d1", "")),
    ("r1z2-FE80:0::1:80R1.1.1.1:9/d", (1, 2, "fe80::1", 80, "1.1.1.1", 9, "d", "")),
    ("r1z2-1.2.3.4:80/d_", (1, 2, "1.2.3.4", 80, "1.2.3.4", 80, "d", "")),
])
def test_add_values(text, expected):
    keys = ("region", "zone", "ip", "port", "replication_ip", "replication_port", "device", "meta")
    assert parse_add_value(text) == dict(zip(keys, expected, strict=True))


@pytest.mark.parametrize("text", [
    "", "x", "r1", "r1z1", "r1z1:80/d", "rz1-1.2.3.4:80/d", "r1z-1.2.3.4:80/d", "r1z1-host:80/d", "r1z1-1.2.3.4/d",
    "r1z1-1.2.3.4:80", "r1z1-1.2.3.4:80/", "r1z1-1.2.3.4:80/ d", "r1z1-1.2.3.4:80/d ", "r1z1-1.2.3.4:8x0/d",
    "r1z1-1.2.3.4:80R/d", "r1z1-1.2.3.4:80R1.1.1.1/d", "r1z1-1.2.3.4:0/d", "r1z1-1.2.3.4:70000/d",
    "r1z1-1.2.3.4:80/a/b", "r1z1-1.2.3.4:80/..", "r1z1-999.2.3.4:80/d", "r1z1-[::1:80/d",
])
def test_bad_add_values_are_refused(text):
    with pytest.raises(ValueError):
        parse_add_value(text)


@pytest.mark.parametrize(("text", "expected"), [
    ("d74", {"id": 74}), ("r4", {"region": 4}), ("z1", {"zone": 1}), ("z1-1.2.3.4", {"zone": 1, "ip": "1.2.3.4"}),
    ("1.2.3.4", {"ip": "1.2.3.4"}), ("-1.2.3.4", {"ip": "1.2.3.4"}), ("z1:5678", {"zone": 1, "port": 5678}),
    (":5678", {"port": 5678}), ("R5.6.7.8", {"replication_ip": "5.6.7.8"}), ("R:5678", {"replication_port": 5678}),
    ("1.2.3.4R5.6.7.8", {"ip": "1.2.3.4", "replication_ip": "5.6.7.8"}), ("/sdb1", {"device": "sdb1"}),
    ("_shiny", {"meta": "shiny"}), ('_"a: 5"', {"meta": '"a: 5"'}), ("[::1]", {"ip": "::1"}),
    ("z1-[0::1]:5678", {"zone": 1, "ip": "::1", "port": 5678}), ("/sdb_", {"device": "sdb", "meta": ""}),
    ("R[::1]:8/x_y_z", {"replication_ip": "::1", "replication_port": 8, "device": "x", "meta": "y_z"}),
    ("d7r4z1-1.2.3.4:56R1.1.1.1:9/sdb1_m", {"id": 7, "region": 4, "zone": 1, "ip": "1.2.3.4", "port": 56,
                                            "replication_ip": "1.1.1.1", "replication_port": 9, "device": "sdb1",
                                            "meta": "m"}),
    ("", {}), ("-", {}), ("R", {}),
])
def test_search_values(text, expected):
    assert parse_search_value(text) == expected


@pytest.mark.parametrize("text", ["d", "r", ":", "1.2.3.4:", "::1", "z1r1", "[::1", "[zz]", "d1 ", "1.2.3.4x", "1..2", "xx"])
def test_bad_search_values_are_refused(text):
    with pytest.raises(ValueError, match="Invalid <search-value>"):
        parse_search_value(text)


def test_change_values():
    assert parse_change_value("5.6.7.8:90R9.9.9.9:99/dd_mm") == {
        "ip": "5.6.7.8", "port": 90, "replication_ip": "9.9.9.9", "replication_port": 99, "device": "dd", "meta": "mm"}
    assert parse_change_value("_") == {"meta": ""}
    for text in ("", "zz", "-5.6.7.8", "/", "/a/b", ":0", "d1"):
        with pytest.raises(ValueError, match="Invalid set info change value"):
            parse_change_value(text)


@pytest.mark.parametrize(("conditions", "found"), [
    ({}, True), ({"id": 3}, True), ({"id": 0}, False), ({"region": 1, "zone": 2}, True), ({"zone": 1}, False),
    ({"ip": "1.2.3.4"}, True), ({"ip": None, "port": 6200}, True), ({"weight": 100.0}, True), ({"weight": 1.0}, False),
    ({"meta": "shelf"}, True), ({"meta": "fast"}, False), ({"device": "sd"}, False), ({"replication_port": 6201}, True),
])
def test_matching(conditions, found):
    assert matches(ONE, conditions) is found


def test_addresses_match_in_any_spelling():
    assert matches(RingDevice(1, 1, "FE80:0::1", 1, "d", 1.0, "fe80::1", 1), {"ip": "fe80::1"})


def test_display_form():
    assert str(ONE) == 'd3r1z2-1.2.3.4:6200R5.6.7.8:6201/sda_"slow shelf"'
    assert str(RingDevice(1, 2, "::1", 80, "d", 1.0, "fe80::2", 81, "", 0)) == 'd0r1z2-[::1]:80R[fe80::2]:81/d_""'


def test_tier_names():
    known = {3: ONE}
    assert [devices.tier_name(ONE.tier[:n], known) for n in (1, 2, 3, 4)] == ["r1", "r1z2", "r1z2-1.2.3.4", "r1z2-1.2.3.4/sda"]
    assert devices.tier_name((1, 2, "::1", 9), known) == "r1z2-[::1]/IDd9"


@pytest.mark.parametrize(("text", "expected"), [
    ("1.2.3.4", "1.2.3.4"), ("[::1]", "::1"), ("FE80::1", "fe80::1"), ("Example.com", "example.com"), ("a-1.b", "a-1.b")])
def test_addresses(text, expected):
    assert devices.normal_address(text) == expected


@pytest.mark.parametrize("text", ["", "bad_host", "-a.com", "a-.com", "a..b", "x" * 64, ".".join(["a" * 60] * 5)])
def test_bad_addresses_are_refused(text):
    with pytest.raises(ValueError):
        devices.normal_address(text)


def test_a_device_keeps_unknown_fields_of_a_file():
    one = devices.from_dict({**ONE.as_dict(), "shelf": 4, "parts": 7})
    assert one == ONE and one.as_dict()["shelf"] == 4 and "parts" not in one.as_dict()


@pytest.mark.parametrize("missing", ["id", "zone", "ip", "port", "device", "weight"])
def test_a_device_without_a_field_is_refused(missing):
    fields = ONE.as_dict()
    del fields[missing]
    with pytest.raises(ValueError, match=missing):
        devices.from_dict(fields)


names = st.text("abcdefg-0123456789", min_size=1, max_size=9)
metas = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=12)
ips = st.ip_addresses().map(str)


@given(st.integers(0, 9), st.integers(0, 9), ips, st.integers(1, 65535), ips, st.integers(1, 65535), names, metas)
@settings(derandomize=True)
def test_what_is_shown_can_be_added_and_found(region, zone, ip, port, other_ip, other_port, name, meta):
    one = RingDevice(region, zone, ip, port, name, 1.0, other_ip, other_port, meta, 5)
    value = (f"r{region}z{zone}-{devices.shown_ip(ip)}:{port}R{devices.shown_ip(other_ip)}:{other_port}/{name}"
             + (f"_{meta}" if meta else ""))
    assert RingDevice(**parse_add_value(value), weight=1.0, id=5) == one
    assert matches(one, parse_search_value("d5" + value))


@given(st.text(max_size=40))
@settings(derandomize=True)
def test_any_text_parses_or_is_refused(text):
    for parse in (parse_add_value, parse_search_value, parse_change_value, devices.normal_address):
        try:
            parse(text)
        except ValueError:
            pass
