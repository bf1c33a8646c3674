import json
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelstore.common.http import Response
from keelstore.common.middleware.listing_formats import ListingFormats, converted
from test.unit.common.middleware.helpers import Inner, call

ACCOUNT = [{"name": "a<&\"'", "count": 1, "bytes": 2, "last_modified": "x", "storage_policy": "p"}, {"subdir": 's/<"'},
           {"name": "né", "count": 1, "bytes": 2, "last_modified": "x"}]
CONTAINER = [{"name": "a<&", "hash": "h", "bytes": 2, "content_type": "t", "last_modified": "x", "slo_etag": '"x"'},
             {"subdir": 's/<"'}]
NULL = {"name": "\x00b", "hash": "h", "bytes": 2, "content_type": "t", "last_modified": "x"}


def listing(entries, status=200, **headers):
    data = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return Inner(status=status, body=data, headers={
        "Content-Type": "application/json; charset=utf-8", "Content-Length": str(len(data)),
        **{name.replace("_", "-"): value for name, value in headers.items()}})


def ask(inner, path="/v1/a/c", query="", method="GET", **headers):
    return call(ListingFormats(inner), method, path, query=query,
                headers={name.replace("_", "-"): value for name, value in headers.items()})


def test_account_as_xml():
    got = ask(listing(ACCOUNT), '/v1/acc"<', "format=xml")
    assert got.headers["Content-Type"] == "application/xml; charset=utf-8"
    assert got.body.decode() == (
        '<?xml version="1.0" encoding="UTF-8"?>\n<account name="acc&quot;&lt;">\n'
        "<container><name>a&lt;&amp;&quot;&apos;</name><count>1</count><bytes>2</bytes><last_modified>x</last_modified>"
        "<storage_policy>p</storage_policy></container>\n"
        '<subdir name="s/&lt;&quot;" />\n'
        "<container><name>né</name><count>1</count><bytes>2</bytes><last_modified>x</last_modified></container>\n</account>")


def test_container_as_xml():
    got = ask(listing([*CONTAINER, NULL]), "/v1/a/c", "format=xml")
    assert got.body == (
        b'<?xml version="1.0" encoding="UTF-8"?>\n<container name="c"><object><name>a&lt;&amp;</name><hash>h</hash>'
        b"<bytes>2</bytes><content_type>t</content_type><last_modified>x</last_modified></object>"
        b'<subdir name="s/&lt;&quot;"><name>s/&lt;&quot;</name></subdir></container>')


def test_plain():
    got = ask(listing([*CONTAINER, NULL]))
    assert got.body == b'a<&\ns/<"\n'
    assert got.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert got.headers["Content-Length"] == str(len(got.body))
    assert got.headers["Vary"] == "Accept"


def test_json_passes_byte_for_byte_unless_a_name_is_reserved():
    data = b'[{"name":"a",  "odd spacing":1}]'
    assert ask(listing(data), query="format=json").body == data
    got = ask(listing([*CONTAINER, NULL]), query="format=json")
    assert got.json() == CONTAINER and got.headers["Content-Length"] == str(len(got.body))


def test_reserved_names_are_shown_to_who_may_see_them():
    got = ask(listing([NULL]), query="format=json", X_Backend_Allow_Reserved_Names="true")
    assert got.json() == [NULL]
    assert ask(listing([NULL]), X_Backend_Allow_Reserved_Names="true").body == b"\x00b\n"


@pytest.mark.parametrize(("query", "accept", "expected"), [
    ("", None, "text/plain"), ("", "*/*", "text/plain"), ("", "text/*;q=0.5", "text/plain"),
    ("", "application/json", "application/json"), ("", "application/xml", "application/xml"), ("", "text/xml", "text/xml"),
    ("", "text/plain;q=0.1, application/json", "application/json"), ("format=xml", "application/json", "application/xml"),
    ("format=zz", "application/json", "text/plain"), ("format=json", "image/png", "application/json"),
])
def test_negotiation(query, accept, expected):
    headers = {"Accept": accept} if accept else {}
    got = ask(listing(CONTAINER), query=query, **headers)
    assert got.headers["Content-Type"] == expected + "; charset=utf-8"
    assert ("Vary" in got.headers) == ("format" not in query)


@pytest.mark.parametrize(("accept", "status"), [("image/png", 406), ("bogus", 400), ('a;b="' + "\\" * 40, 400)])
def test_what_cannot_be_answered_is_not_asked_for(accept, status):
    inner = listing([])
    assert ask(inner, Accept=accept).status == status
    assert not inner.asked


def test_downstream_is_asked_for_json_and_keeps_the_other_parameters():
    inner = listing([])
    ask(inner, query="format=xml&limit=3&prefix=a%2Fb%C3%A9&marker=")
    assert inner.asked[0]["QUERY_STRING"] == "format=json&limit=3&prefix=a%2Fb%C3%A9&marker="
    ask(inner, query="format=json&x=1")
    assert inner.asked[1]["QUERY_STRING"] == "format=json&x=1"


@pytest.mark.parametrize(("query", "status", "body"), [
    ("", 204, b""), ("format=json", 200, b"[]"),
    ("format=xml", 200, b'<?xml version="1.0" encoding="UTF-8"?>\n<container name="c" />'),
])
def test_empty_listings(query, status, body):
    got = ask(listing([]), query=query)
    assert (got.status, got.body, got.headers["Content-Length"]) == (status, body, str(len(body)))


def test_empty_account_xml():
    assert ask(listing([]), "/v1/a", "format=xml").body == (
        b'<?xml version="1.0" encoding="UTF-8"?>\n<account name="a">\n</account>')


@pytest.mark.parametrize("status", [200, 204])
def test_head_names_type_and_no_length(status):
    got = ask(Inner(status=status, headers={"Content-Type": "application/json", "Vary": "Origin"}), method="HEAD",
              Accept="text/xml")
    assert got.status == status
    assert (got.headers["Content-Type"], got.headers["Content-Length"]) == ("text/xml; charset=utf-8", "0")
    assert got.headers["Vary"] == "Origin, Accept"


@pytest.mark.parametrize("data", [b"{}", b"[1]", b"nonsense", b'[{"x":1}]', b"null", b"[null]"])
def test_what_is_no_listing_passes_as_it_came(data):
    got = ask(listing(data))
    assert (got.status, got.body, got.headers["Content-Type"]) == (200, data, "application/json; charset=utf-8")


def test_errors_pass_as_they_came():
    got = ask(listing(b"[]", status=404))
    assert (got.status, got.body) == (404, b"[]")
    assert ask(Inner(status=200, body=b"<html>", content_type="text/html")).body == b"<html>"


def test_unknown_length_passes():
    inner = Inner(Response(200, {"Content-Type": "application/json"}, app_iter=iter([b"[", b"]"])))
    assert ask(inner).body == b"[]"


def test_huge_length_passes():
    inner = Inner(Response(200, {"Content-Type": "application/json", "Content-Length": str(1024 * 10000 * 2 + 1)},
                           app_iter=iter([b"[]"])))
    assert ask(inner).body == b"[]"


def test_downstream_can_keep_its_answer():
    def app(environ, start_response):
        environ["swift.format_listing"] = False
        return listing([])(environ, start_response)
    assert ask(app).body == b"[]"


@pytest.mark.parametrize(("method", "path"), [
    ("GET", "/v1/a/c/o"), ("GET", "/v2/a/c"), ("GET", "/v1//c"), ("GET", "/v1/a//o"), ("PUT", "/v1/a/c"), ("GET", "/info"),
    ("GET", "/v1"), ("GET", "/v1/"), ("POST", "/v1/a"), ("GET", "/v1/a/c//"),
])
def test_other_requests_pass(method, path):
    inner = Inner(body=b"x")
    got = ask(inner, path, "format=xml", method)
    assert got.body == b"x" and inner.asked[0]["QUERY_STRING"] == "format=xml"
    assert "swift.format_listing" not in inner.asked[0]


@pytest.mark.parametrize("path", ["/v1/a", "/v1/a/", "/v1/a/c", "/v1/a/c/", "/v1.0/a/c"])
def test_account_and_container_paths(path):
    inner = listing([])
    assert ask(inner, path).status == 204
    assert inner.asked[0]["swift.format_listing"] is True


@given(st.lists(st.text(min_size=1)), st.booleans())
def test_xml_is_well_formed_whatever_the_names(names, of_account):
    if of_account:
        entries = [{"name": n, "count": 0, "bytes": 0, "last_modified": "x"} for n in names]
    else:
        entries = [{"name": n, "hash": "h", "bytes": 0, "content_type": n, "last_modified": "x"} for n in names]
    entries += [{"subdir": n} for n in names]
    data = converted(json.dumps(entries).encode(), "application/xml", "a", "" if of_account else "c", False)
    assert data is not None
    root = ET.fromstring(data)
    assert len(root) == 2 * len([n for n in names if "\x00" not in n])


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_categories=["Cc"], exclude_characters="\ufffe\uffff"),
                        min_size=1)))
def test_xml_keeps_names(names):
    entries = [{"name": n, "hash": "h", "bytes": 0, "content_type": "t", "last_modified": "x"} for n in names]
    data = converted(json.dumps(entries).encode(), "text/xml", "a", "c", False)
    assert data is not None
    assert [found.findtext("name") for found in ET.fromstring(data)] == names
