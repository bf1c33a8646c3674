from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from keelstore.common.errors import BadRequest, PreconditionFailed, RequestError
from keelstore.common.http import Request
from keelstore.common.listing import Subdir
from keelstore.common.listing_render import (
    IsoTimes,
    account_json,
    account_xml,
    container_json,
    container_xml,
    content_type_of,
    plain,
    query_of,
    split_swift_bytes,
    xml_text,
)
from keelstore.common.timestamp import Timestamp
from keelstore.container.rows import meta_time

NASTY = "<>&\"' \t\n\r\x01\x1f\x7f\ufffe\uffff é\U0001f600]]>"
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)


def request(query="", **environ):
    return Request({"REQUEST_METHOD": "GET", "PATH_INFO": "/", "QUERY_STRING": query, **environ})


def test_json_of_a_container():
    rows: list[tuple | Subdir] = [("é\"x", "1700000000.12345+1+a", 5, "text/plain;charset=x;swift_bytes=99", "etag"), Subdir("d/")]
    assert container_json(rows, meta_time) == (
        b'[{"name": "\\u00e9\\"x", "bytes": 99, "hash": "etag", "content_type": "text/plain;charset=x", '
        b'"last_modified": "2023-11-14T22:13:20.123560"}, {"subdir": "d/"}]'
    )
    assert container_json([], meta_time) == b"[]"


def test_json_of_an_account_leaves_out_an_unknown_policy():
    rows = [("c", 1, 2, "1700000000.00001", 0), ("d", 0, 0, "1700000000.00000", 9)]
    assert json.loads(account_json(rows, {0: "gold"})) == [
        {"name": "c", "count": 1, "bytes": 2, "last_modified": "2023-11-14T22:13:20.000010", "storage_policy": "gold"},
        {"name": "d", "count": 0, "bytes": 0, "last_modified": "2023-11-14T22:13:20.000000"},
    ]


@given(names, names)
def test_json_reads_back(name, etag):
    (entry,) = json.loads(container_json([(name, "1700000000.00000", 1, "t", etag)], meta_time))
    assert (entry["name"], entry["hash"]) == (name, etag)
    assert container_json([(name, "1700000000.00000", 1, "t", etag)], meta_time).isascii()


def shown(text):
    """What XML can spell of a text."""
    return "".join(c if c in "\t\n\r" or (ord(c) >= 0x20 and ord(c) not in (0xFFFE, 0xFFFF)) else "\ufffd" for c in text)


@given(names | st.just(NASTY))
def test_xml_is_well_formed_whatever_a_name_holds(name):
    # S17
    body = container_xml(name, [(name, "1700000000.00000", 1, name, name), Subdir(name)], meta_time)
    root = etree.fromstring(body)
    assert root.get("name") == shown(name)
    assert root.findtext("object/name") == shown(name)
    assert root.xpath("subdir/@name") == [shown(name)] == [root.findtext("subdir/name")]
    root = etree.fromstring(account_xml(name, [(name, 1, 2, "1700000000.00000", 0), Subdir(name)], {0: "p"}))
    assert root.get("name") == shown(name)
    assert root.findtext("container/name") == shown(name)
    assert root.xpath("subdir/@name") == [shown(name)]


def test_xml_has_the_documented_shape():
    assert account_xml("a", [("c", 1, 2, "1700000000.00000", 0), Subdir("d/")], {0: "gold"}) == (
        b'<?xml version="1.0" encoding="UTF-8"?>\n<account name="a">\n<container><name>c</name><count>1</count>'
        b"<bytes>2</bytes><last_modified>2023-11-14T22:13:20.000000</last_modified>"
        b'<storage_policy>gold</storage_policy></container>\n<subdir name="d/" />\n</account>'
    )
    assert container_xml("c", [("o", "1700000000.00000", 3, "t", "e"), Subdir("d/")], meta_time) == (
        b'<?xml version="1.0" encoding="UTF-8"?>\n<container name="c"><object><name>o</name><hash>e</hash>'
        b"<bytes>3</bytes><content_type>t</content_type><last_modified>2023-11-14T22:13:20.000000</last_modified>"
        b'</object><subdir name="d/"><name>d/</name></subdir></container>'
    )


def test_plain_is_one_name_a_line():
    assert plain([("é",), Subdir("d/")]) == "é\nd/\n".encode()


def test_xml_text_leaves_plain_text_alone():
    text = "plain é"
    assert xml_text(text) is text


@given(st.integers(0, 10**15 - 1))
def test_times_are_those_of_timestamp(raw):
    timestamp = Timestamp.from_raw(raw)
    assert IsoTimes()(timestamp.internal) == timestamp.isoformat


def test_a_short_time_is_read_too():
    assert IsoTimes()("0") == "1970-01-01T00:00:00.000000"


@pytest.mark.parametrize("text, expected", [
    ("text/plain", ("text/plain", None)),
    ("text/plain;swift_bytes=5", ("text/plain", "5")),
    ("text/plain; a=b; swift_bytes=5;c=d", ("text/plain; a=b;c=d", "5")),
])
def test_swift_bytes_is_split_off(text, expected):
    assert split_swift_bytes(text) == expected


@pytest.mark.parametrize("query, accept, expected", [
    ("", None, "text/plain"), ("format=json", "text/xml", "application/json"), ("format=XML", None, "application/xml"),
    ("format=nonsense", None, "text/plain"), ("", "application/json", "application/json"), ("", "text/xml", "text/xml"),
    ("", "*/*", "text/plain"), ("", "text/plain;q=0.1, application/xml", "application/xml"),
])
def test_form_of_the_listing(query, accept, expected):
    environ = {"HTTP_ACCEPT": accept} if accept else {}
    assert content_type_of(request(query, **environ)) == expected


def test_no_acceptable_form_is_406():
    with pytest.raises(RequestError) as caught:
        content_type_of(request(HTTP_ACCEPT="image/png"))
    assert caught.value.status == 406


def test_parameters_are_read():
    query = query_of(request("limit=5&marker=a%2F&end_marker=z&prefix=p&delimiter=//&reverse=on&path=x"), 10000, True)
    assert (query.limit, query.marker, query.end_marker, query.prefix, query.delimiter, query.path, query.is_reverse) == (
        5, "a/", "z", "p", "//", "x", True)
    assert query_of(request("path=x&limit=junk"), 10000, False).path is None


def test_bad_parameters():
    with pytest.raises(PreconditionFailed):
        query_of(request("limit=10001"), 10000, True)
    for name in ("marker", "prefix", "delimiter", "path", "end_marker", "format", "limit"):
        with pytest.raises(BadRequest):
            query_of(request(f"{name}=%FF"), 10000, True)
