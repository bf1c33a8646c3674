"""Any name that the API allows is stored, read, listed and deleted as it is (client API 9, security R18)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest
from lxml import etree

from test.support.client import Account, unique

AWKWARD = [
    "plain", "with space", " leading and trailing ", "percent%", "percent%2Fencoded", "%", "%%41", "question?mark", "a?b=c&d=e",
    "hash#tag", "quote\"double", "quote'single", "semi;colon", "plus+plus", "amp&amp;", "less<more>", "back\\slash", "new\nline",
    "carriage\rreturn", "tab\tbed", "emoji \U0001f600\U0001f469\u200d\U0001f680", "日本語", "né\u0301e", "\u202ereversed", "\ufeffbom",
    "\ufffe", "\x01control\x1f", "\x7fdelete", ".", "..", "../up", "a/../../b", "/leading", "//two", "a//b", "trailing/", "trailing//",
    "/", "a/./b", "~", "*", "[brackets]", "{braces}", "|pipe|", "colon:colon", "comma,comma", "equals=", "at@at", "$HOME", "`tick`",
    "x" * 1024, "é" * 1024, "\U0001f600" * 600, "/" * 1024, "%" * 1024,
]
CONTAINERS = ["with space", "percent%2F", "question?", "quote\"'", "emoji \U0001f600", "plus+", "new\nline", "..", ".", "c" * 256, "é" * 256, "%", "&<>"]


def label(name: str) -> str:
    return ascii(name[:12])


@pytest.mark.parametrize("name", AWKWARD, ids=label)
def test_an_object_of_any_name(account: Account, container: str, name: str) -> None:
    body = hashlib.sha256(name.encode()).digest()
    with account.endpoint.connect() as connection:
        put = account.put(container, name, body=body, connection=connection).expect(201)
        assert put.headers["Etag"] == hashlib.md5(body).hexdigest()
        assert account.get(container, name, connection=connection).expect(200).body == body
        account.post(container, name, headers={"X-Object-Meta-Mark": "yes"}, connection=connection).expect(202)
        head = account.head(container, name, connection=connection).expect(200)
        assert (head.headers["X-Object-Meta-Mark"], head.headers["Content-Length"]) == ("yes", "32")
        assert [entry["name"] for entry in account.listing(container)] == [name]
        assert account.get(container, connection=connection).expect(200).body == name.encode() + b"\n"
        account.delete(container, name, connection=connection).expect(204)
        account.get(container, name, connection=connection).expect(404)
        assert account.listing(container) == []


def test_all_names_are_listed_as_well_formed_xml(account: Account, container: str) -> None:
    names = [name for name in AWKWARD if len(name) < 100]
    with account.endpoint.connect() as connection:
        for name in names:
            account.put(container, name, connection=connection).expect(201)
    listed = [entry["name"] for entry in account.listing(container)]
    assert listed == sorted(names, key=lambda name: name.encode())
    body = account.get(container, query="format=xml").expect(200).body
    etree.fromstring(body)  # well formed whatever the names are: characters that XML cannot hold must not break it


def test_security_S17_names_in_xml_are_escaped_live(account: Account) -> None:
    name = unique('<&"\'>')
    account.put(name).expect(201)
    try:
        account.put(name, "<script>&'\"", headers={"Content-Type": 'text/<b>"&'}).expect(201)
        root = etree.fromstring(account.get(name, query="format=xml").body)
        assert root.get("name") == name
        assert (root[0].findtext("name"), root[0].findtext("content_type")) == ("<script>&'\"", 'text/<b>"&')
        root = etree.fromstring(account.get(query="format=xml").body)
        assert name in [child.findtext("name") for child in root]
    finally:
        account.empty(name)


@pytest.mark.parametrize("name", CONTAINERS, ids=label)
def test_a_container_of_any_name(account: Account, name: str) -> None:
    try:
        account.put(name).expect(201)
        account.put(name).expect(202)
        account.put(name, "o", body=b"x").expect(201)
        assert account.get(name).lines == ["o"]
        assert name in [entry["name"] for entry in account.listing()]
        account.delete(name).expect(409)
    finally:
        account.empty(name)
    account.head(name).expect(404)
    assert name not in [entry["name"] for entry in account.listing()]


@pytest.fixture
def pair(account: Account) -> Iterator[tuple[str, str]]:
    names = unique("one"), unique("two")
    for name in names:
        account.put(name).expect(201)
    yield names
    for name in names:
        account.empty(name)


def test_dots_and_slashes_are_opaque_and_stay_in_their_container(account: Account, pair: tuple[str, str]) -> None:
    one, two = pair
    for name in (f"../{two}/x", "..", "../..", f"a/../../{two}/y", f"/../{two}/z", "%2e%2e/x"):
        account.put(one, name, body=name.encode()).expect(201)
        assert account.get(one, name).expect(200).body == name.encode()
    assert account.listing(two) == []
    account.get(two, "x").expect(404)
    assert len(account.listing(one)) == 6


@pytest.mark.parametrize(("names", "status"), [
    ((b"c\xff", ), 412), ((b"c", b"o\xff\xfe"), 412), ((b"c", b"o\x00"), 412), ((b"\x00c", ), 412), ((b"c", b"\xed\xa0\x80"), 412),
    ((b"c", b"\xc0\xaf"), 412), ((b"n" * 257, ), 400), (("é" * 257, ), 400), (("", "x"), 404), (("a", "", "x"), None),
])
@pytest.mark.parametrize("method", ["PUT", "GET", "HEAD", "POST", "DELETE"])
def test_names_that_cannot_be(account: Account, names: tuple[bytes, ...], status: int | None, method: str) -> None:
    answer = account.request(method, *names)
    if status is None:
        assert answer.status in (200, 201, 202, 204, 404)  # an object "/x": a legal name
    elif status == 400 and method != "PUT":
        assert answer.status in (400, 404)
    else:
        assert answer.status == status, answer
    if answer.status == 412 and method != "HEAD":
        assert answer.body == b"Invalid UTF8 or contains NULL"


def test_names_that_are_too_long(account: Account, container: str) -> None:
    for name in ("o" * 1025, "é" * 1025):
        answer = account.put(container, name, body=b"x")
        assert answer.status == 400
    assert account.listing(container) == []


@pytest.mark.parametrize(("target", "status"), [
    ("/v1", 412), ("/v1/", 412), ("/nonsense", 412), ("/", 404), ("/v2/AUTH_test", 400), ("/v1//c", 404), ("/v1.0/AUTH_test", 204)])
def test_paths_that_are_no_account(account: Account, target: str, status: int) -> None:
    answer = account.endpoint.request("HEAD", target, {"X-Auth-Token": account.token})
    assert answer.status == status
    if status == 412:
        assert account.endpoint.request("GET", target, {"X-Auth-Token": account.token}).body == b"Bad URL"


def test_a_path_with_a_version_of_a_dot_is_the_same(account: Account, container: str) -> None:
    account.put(container, "o", body=b"1").expect(201)
    path = account.target(container, "o").replace("/v1/", "/v1.0/", 1)
    assert account.endpoint.request("GET", path, {"X-Auth-Token": account.token}).expect(200).body == b"1"


def test_an_absolute_target_is_accepted(account: Account, container: str) -> None:
    account.put(container, "o", body=b"1").expect(201)
    target = "http://elsewhere.example" + account.target(container, "o")
    assert account.endpoint.request("GET", target, {"X-Auth-Token": account.token}).expect(200).body == b"1"
