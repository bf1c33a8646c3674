"""Listings of containers and accounts (client API 8): the worked examples, every form, full pages."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

import pytest
from lxml import etree

from keelstore.common.cluster import load_cluster
from keelstore.common.ring.ring import RingFile
from test.support.client import Account, Endpoint, unique
from test.support.store import Store

WORKED = [  # query, entries: a subdir is written as a name with a leading "+"
    ("", "a b/1 b/2 c"),
    ("delimiter=/", "a +b/ c"),
    ("delimiter=/&marker=b/", "c"),
    ("delimiter=/&marker=b/1", "+b/ c"),
    ("delimiter=/&prefix=b/", "b/1 b/2"),
    ("delimiter=/&prefix=b", "+b/"),
    ("path=", "a c"),
    ("path=b", "b/1 b/2"),
    ("path=b/", "b/1 b/2"),
    ("reverse=on&delimiter=/", "c +b/ a"),
    ("reverse=on&marker=b/2", "b/1 a"),
    ("marker=a&end_marker=c", "b/1 b/2"),
    ("reverse=true", "c b/2 b/1 a"),
    ("reverse=no", "a b/1 b/2 c"),
    ("reverse=1&marker=c&end_marker=a", "b/2 b/1"),
    ("limit=2", "a b/1"),
    ("limit=2&delimiter=/", "a +b/"),
    ("limit=2&marker=b/1", "b/2 c"),
    ("limit=0", ""),
    ("limit=-1", "a b/1 b/2 c"),
    ("limit=many", "a b/1 b/2 c"),
    ("limit=", "a b/1 b/2 c"),
    ("end_marker=b/2", "a b/1"),
    ("marker=zz", ""),
    ("end_marker=a", ""),
    ("prefix=b/", "b/1 b/2"),
    ("prefix=nothing", ""),
    ("prefix=b/1&delimiter=/", "b/1"),
    ("delimiter=b/", "a +b/ c"),
    ("delimiter=1", "a +b/1 b/2 c"),
    ("delimiter=", "a b/1 b/2 c"),
    ("delimiter=nowhere", "a b/1 b/2 c"),
    ("path=b&delimiter=1&prefix=a", "b/1 b/2"),
    ("path=b&limit=1", "b/1"),
    ("path=b&marker=b/1", "b/2"),
]


@pytest.fixture(scope="module")
def worked(account: Account) -> Iterator[str]:
    name = unique("listing")
    account.put(name).expect(201)
    for obj in ("a", "b/1", "b/2", "c"):
        account.put(name, obj, body=obj.encode(), headers={"Content-Type": "text/x-test"}).expect(201)
    yield name
    account.empty(name)


def plain_form(entries: str) -> list[str]:
    return [entry.removeprefix("+") for entry in entries.split()]


@pytest.mark.parametrize(("query", "entries"), WORKED)
def test_worked_examples_in_json(account: Account, worked: str, query: str, entries: str) -> None:
    shown = ["+" + entry["subdir"] if "subdir" in entry else entry["name"] for entry in account.listing(worked, query=query)]
    assert shown == entries.split()


@pytest.mark.parametrize(("query", "entries"), WORKED)
def test_worked_examples_in_plain_text(account: Account, worked: str, query: str, entries: str) -> None:
    answer = account.get(worked, query=query)
    assert answer.lines == plain_form(entries)
    assert answer.status == (200 if entries else 204)
    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"


@pytest.mark.parametrize(("query", "entries"), WORKED)
def test_worked_examples_in_xml(account: Account, worked: str, query: str, entries: str) -> None:
    answer = account.get(worked, query=f"format=xml&{query}").expect(200)
    assert answer.headers["Content-Type"] == "application/xml; charset=utf-8"
    root = etree.fromstring(answer.body)
    assert (root.tag, root.get("name")) == ("container", worked)
    shown = ["+" + str(child.get("name")) if child.tag == "subdir" else str(child.findtext("name")) for child in root]
    assert shown == entries.split()


def test_an_entry_in_every_form(account: Account, worked: str) -> None:
    entry = account.listing(worked, query="prefix=a")[0]
    stamp = entry.pop("last_modified")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}", stamp)
    digest = hashlib.md5(b"a").hexdigest()
    assert entry == {"name": "a", "hash": digest, "bytes": 1, "content_type": "text/x-test"}
    body = account.get(worked, query="format=xml&prefix=a").body
    assert body.startswith(b'<?xml version="1.0" encoding="UTF-8"?>\n')
    child = etree.fromstring(body)[0]
    assert [(part.tag, part.text) for part in child] == [
        ("name", "a"), ("hash", digest), ("bytes", "1"), ("content_type", "text/x-test"), ("last_modified", stamp)]
    subdir = etree.fromstring(account.get(worked, query="format=xml&prefix=b&delimiter=/").body)[0]
    assert (subdir.tag, subdir.get("name"), subdir.findtext("name")) == ("subdir", "b/", "b/")
    assert account.listing(worked, query="prefix=b&delimiter=/") == [{"subdir": "b/"}]


@pytest.mark.parametrize(("accept", "expected"), [
    (None, "text/plain"), ("*/*", "text/plain"), ("text/*", "text/plain"), ("application/*", "application/json"),
    ("application/json", "application/json"), ("application/xml", "application/xml"), ("text/xml", "text/xml"),
    ("text/xml;q=0.3, application/json;q=0.9", "application/json"), ("text/plain;q=0.1, application/xml", "application/xml"),
    ("image/png", 406), ("text/plain;charset=\x01", 400), ("nonsense", 400),
])
@pytest.mark.parametrize("level", ["account", "container"])
def test_the_form_follows_accept(account: Account, worked: str, accept: str | None, expected: str | int, level: str) -> None:
    names = [worked] if level == "container" else []
    answer = account.get(*names, headers={"Accept": accept} if accept else {})
    if isinstance(expected, int):
        assert answer.status == expected
        return
    assert answer.status == 200
    assert answer.headers["Content-Type"] == f"{expected}; charset=utf-8"
    assert answer.headers["Vary"] == "Accept"
    head = account.head(*names, headers={"Accept": accept} if accept else {})
    assert (head.status, head.headers["Content-Type"]) == (204, f"{expected}; charset=utf-8")


@pytest.mark.parametrize(("form", "expected"), [
    ("json", "application/json"), ("xml", "application/xml"), ("plain", "text/plain"), ("pdf", "text/plain")])
def test_the_format_parameter_wins_over_accept(account: Account, worked: str, form: str, expected: str) -> None:
    answer = account.get(worked, query=f"format={form}", headers={"Accept": "text/xml"}).expect(200)
    assert answer.headers["Content-Type"] == f"{expected}; charset=utf-8"
    assert "Vary" not in answer.headers


def test_an_empty_container_in_every_form(account: Account, container: str) -> None:
    plain = account.get(container)
    assert (plain.status, plain.body) == (204, b"")
    answer = account.get(container, query="format=json")
    assert (answer.status, answer.body) == (200, b"[]")
    root = etree.fromstring(account.get(container, query="format=xml").expect(200).body)
    assert (root.tag, len(root)) == ("container", 0)


@pytest.mark.parametrize("level", ["account", "container"])
def test_a_limit_above_the_maximum_is_412(account: Account, worked: str, level: str) -> None:
    names = [worked] if level == "container" else []
    assert account.get(*names, query="limit=10001").status == 412
    assert account.get(*names, query="limit=10000").status == 200


@pytest.mark.parametrize("parameter", ["marker", "end_marker", "prefix", "delimiter", "path", "limit", "format", "reverse"])
def test_a_parameter_that_is_not_utf8_is_400(account: Account, worked: str, parameter: str) -> None:
    assert account.get(worked, query=f"{parameter}=%ff%fe").status == 400


def test_names_sort_by_their_utf8_octets_and_page(account: Account, container: str) -> None:
    names = ["A", "Z", "a", "a b", "a+b", "a/", "a/b", "aa", "é", "z", "Ā", "日本", "\U0001f600", "�", "a\nb", "a%2fb", "0", "~"]
    with account.endpoint.connect() as connection:
        for name in names:
            account.put(container, name, connection=connection).expect(201)
    ordered = sorted(names, key=lambda name: name.encode())
    assert [entry["name"] for entry in account.listing(container)] == ordered
    assert [entry["name"] for entry in account.listing(container, query="reverse=1")] == ordered[::-1]
    paged: list[str] = []
    while page := account.listing(container, query=f"limit=3&marker={quote(paged[-1] if paged else '')}"):
        paged += [entry["name"] for entry in page]
    assert paged == ordered
    root = etree.fromstring(account.get(container, query="format=xml").body)
    assert [child.findtext("name") for child in root] == ordered
    assert account.get(container, query="format=json").body.isascii()


def test_a_delimiter_of_many_characters(account: Account, container: str) -> None:
    for name in ("a--x", "a--y", "a-z", "b", "c日本1", "c日本2"):
        account.put(container, name).expect(201)
    assert account.listing(container, query="delimiter=--")[0] == {"subdir": "a--"}
    assert account.get(container, query="delimiter=--").lines == ["a--", "a-z", "b", "c日本1", "c日本2"]
    assert account.get(container, query="delimiter=" + quote("日本")).lines == ["a--x", "a--y", "a-z", "b", "c日本"]
    assert account.get(container, query="delimiter=--&prefix=a&limit=1&marker=a--").lines == ["a-z"]


def test_account_listings(account: Account) -> None:
    base = unique("al")
    names = [f"{base}-{suffix}" for suffix in ("a", "b=1", "b=2", "c")]
    for name in names:
        account.put(name).expect(201)
    try:
        short = [name.removeprefix(base + "-") for name in account.get(query=f"prefix={base}-").lines]
        assert short == ["a", "b=1", "b=2", "c"]
        listed = account.listing(query=f"prefix={base}-&delimiter==")
        assert [entry.get("subdir") for entry in listed] == [None, f"{base}-b=", None]
        entry = account.listing(query=f"prefix={base}-a")[0]
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}", entry.pop("last_modified"))
        policy = entry.pop("storage_policy")
        assert entry == {"name": names[0], "count": 0, "bytes": 0}
        root = etree.fromstring(account.get(query=f"format=xml&prefix={base}-&delimiter==").body)
        assert (root.tag, root.get("name")) == ("account", account.name)
        assert [child.tag for child in root] == ["container", "subdir", "container"]
        assert [part.tag for part in root[0]] == ["name", "count", "bytes", "last_modified", "storage_policy"]
        assert root[0].findtext("storage_policy") == policy
        assert account.get(query=f"prefix={base}-&reverse=1&limit=2").lines == names[:1:-1]
        assert account.get(query=f"prefix={base}-&marker={names[0]}&end_marker={names[3]}").lines == names[1:3]
    finally:
        for name in names:
            account.delete(name).expect(204)


COUNT = 10_000
EMPTY = hashlib.md5(b"").hexdigest()


def by_requests(account: Account, container: str, names: list[str], method: str) -> None:
    """PUT or DELETE of each object, by sixteen clients at once."""
    def every(part: list[str]) -> None:
        with account.endpoint.connect() as connection:
            for name in part:
                account.request(method, container, name, connection=connection).expect(201, 204)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(every, [names[start::16] for start in range(16)]))


def by_rows(store: Store, account: Account, container: str, names: list[str], method: str) -> None:
    """The rows alone, as a reconciler brings them: one UPDATE of each replica."""
    etc = str(store.etc())
    ring = RingFile(f"{etc}/container.ring.gz").current()
    part = ring.partition(load_cluster(etc).hash_path.digest(account.name, container))
    now = f"{time.time():.5f}"
    rows = [{"name": name, "created_at": now, "size": 0, "content_type": "x/y", "etag": EMPTY, "deleted": int(method == "DELETE"), "storage_policy_index": 0}
            for name in names]
    for node in ring.primaries(part):
        headers = {"X-Timestamp": now, "X-Backend-Storage-Policy-Index": "0"}
        Endpoint(*node.address).request("UPDATE", f"/{node.device}/{part}/{account.name}/{container}", headers, json.dumps(rows)).expect(202)


@pytest.fixture(scope="module")
def ten_thousand(running: Store | None, account: Account) -> Iterator[tuple[str, list[str]]]:
    """A container of 10,002 objects in 101 pseudo-directories: a twentieth of them real, of the others the rows alone (to save time)."""
    container = unique("many")
    account.put(container).expect(201)
    names = [f"dir{number % 100:02}/object {number:05}" for number in range(COUNT)] + ["top", "zé"]
    real, bare = (names[::20], [name for number, name in enumerate(names) if number % 20]) if running else (names, [])
    by_requests(account, container, real, "PUT")
    if running:
        by_rows(running, account, container, bare, "PUT")
    yield container, sorted(names)
    if running:
        by_rows(running, account, container, bare, "DELETE")
    by_requests(account, container, real, "DELETE")
    # a container is deleted at once after its last object
    account.delete(container).expect(204)


def test_ten_thousand_objects_in_full_pages(account: Account, ten_thousand: tuple[str, list[str]]) -> None:
    container, names = ten_thousand
    page = account.listing(container)
    assert [entry["name"] for entry in page] == names[:COUNT]
    rest = account.listing(container, query="marker=" + quote(names[COUNT - 1]))
    assert [entry["name"] for entry in rest] == names[COUNT:]
    assert account.get(container).lines == names[:COUNT]
    root = etree.fromstring(account.get(container, query="format=xml").body)
    assert [child.findtext("name") for child in root] == names[:COUNT]
    assert [entry["name"] for entry in account.listing(container, query="reverse=1")] == names[::-1][:COUNT]
    head = account.head(container)
    assert head.headers["X-Container-Object-Count"] == str(len(names))


def test_pages_are_full_when_names_roll_up(account: Account, ten_thousand: tuple[str, list[str]]) -> None:
    container, _ = ten_thousand
    entries: list[dict[str, Any]] = []
    marker = ""
    while page := account.listing(container, query=f"delimiter=/&limit=10&marker={quote(marker)}"):
        entries += page
        marker = page[-1].get("subdir") or page[-1]["name"]
        assert len(page) == 10 or len(entries) == 102
    assert [entry.get("subdir") or entry["name"] for entry in entries] == [f"dir{n:02}/" for n in range(100)] + ["top", "zé"]
    assert len(account.listing(container, query="path=dir07")) == 100
