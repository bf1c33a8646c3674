"""Symlinks: dynamic and static, in chains, across accounts, and with copies and large objects (middleware 23)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, unquote

import pytest

from test.support.client import Account, Answer, unique

EMPTY = hashlib.md5(b"").hexdigest()
BODY = b"the target"
ETAG = hashlib.md5(BODY).hexdigest()


def link(asker: Account, container: str, name: str, target: str, **more: str) -> Answer:
    headers = {"X-Symlink-Target": target, **{f"X-Symlink-Target-{key.title()}": value for key, value in more.items()}}
    return asker.put(container, name, headers=headers, body=b"")


@pytest.fixture
def target(account: Account, container: str) -> str:
    account.put(container, "t", body=BODY, headers={"Content-Type": "a/b", "X-Object-Meta-Of": "target"}).expect(201)
    return f"{container}/t"


@pytest.fixture
def neighbour(other: Account) -> Iterator[str]:
    """A container of the other account."""
    name = unique("n")
    other.put(name).expect(201)
    yield name
    other.empty(name)


def row(account: Account, container: str, name: str) -> dict[str, Any]:
    return next(item for item in account.listing(container) if item["name"] == name)


def test_a_link_reads_as_its_target(account: Account, container: str, target: str) -> None:
    link(account, container, "l", target).expect(201)
    answer, head = account.get(container, "l").expect(200), account.head(container, "l").expect(200)
    assert answer.body == BODY
    for got in (answer, head):
        assert got.headers["Content-Location"] == account.target(container, "t")
        assert (got.headers["Etag"], got.headers["Content-Type"], got.headers["X-Object-Meta-Of"]) == (ETAG, "a/b", "target")
        assert got.headers["Content-Length"] == str(len(BODY)) and "X-Symlink-Target" not in got.headers
    assert account.get(container, "l", headers={"Range": "bytes=4-5"}).expect(206).body == BODY[4:6]
    account.get(container, "l", headers={"If-None-Match": ETAG}).expect(304)
    account.get(container, "l", headers={"If-Match": EMPTY}).expect(412)
    assert account.get(container, "l", headers={"If-Match": ETAG}).expect(200).body == BODY
    account.get(container, "l", headers={"Range": "bytes=100-"}).expect(416)


def test_the_link_itself(account: Account, container: str, target: str) -> None:
    account.put(container, "l", headers={"X-Symlink-Target": target, "X-Object-Meta-Of": "link"}, body=b"").expect(201)
    for got in (account.get(container, "l", query="symlink=get"), account.head(container, "l", query="symlink=get")):
        assert (got.status, got.body, got.headers["X-Symlink-Target"]) == (200, b"", target)
        assert (got.headers["Content-Type"], got.headers["Etag"]) == ("application/symlink", EMPTY)
        assert got.headers["X-Object-Meta-Of"] == "link" and "Content-Location" not in got.headers
    assert row(account, container, "l")["symlink_path"] == account.target(container, "t")
    assert row(account, container, "l")["bytes"] == 0 and row(account, container, "l")["hash"] == EMPTY
    account.delete(container, "l").expect(204)
    assert account.get(container, "t").expect(200).body == BODY


def test_a_target_may_come_and_go(account: Account, container: str) -> None:
    link(account, container, "l", f"{container}/later").expect(201)
    answer = account.get(container, "l").expect(404)
    assert answer.headers["Content-Location"] == account.target(container, "later")
    account.put(container, "later", body=b"now").expect(201)
    assert account.get(container, "l").expect(200).body == b"now"


def test_a_static_link_leads_to_what_it_was_made_for(account: Account, container: str, target: str) -> None:
    for etag in (ETAG, f'"{ETAG}"'):
        link(account, container, "s", target, etag=etag).expect(201)
    assert account.get(container, "s").expect(200).body == BODY
    shown = account.head(container, "s", query="symlink=get").expect(200).headers
    assert (shown["X-Symlink-Target-Etag"], shown["X-Symlink-Target-Bytes"], shown["Content-Type"]) == (ETAG, str(len(BODY)), "a/b")
    listed = row(account, container, "s")
    assert (listed["symlink_etag"], listed["symlink_bytes"], listed["bytes"]) == (ETAG, len(BODY), 0)
    account.put(container, "t", body=b"something else").expect(201)
    for method in ("GET", "HEAD"):
        answer = account.request(method, container, "s").expect(409)
        assert answer.headers["Content-Location"] == account.target(container, "t")
    assert b"does not match X-Symlink-Target-Etag header" in account.get(container, "s").body
    account.delete(container, "t").expect(204)
    account.get(container, "s").expect(404)


def test_a_static_link_needs_its_target(account: Account, container: str, target: str) -> None:
    link(account, container, "s", target, etag="abc").expect(409)
    assert link(account, container, "s", f"{container}/no", etag=ETAG).expect(409).body == b"X-Symlink-Target does not exist"
    for etag in ("a;b", 'a"b', "a\\b"):
        link(account, container, "s", target, etag=etag).expect(400)
    account.head(container, "s", query="symlink=get").expect(404)


@pytest.mark.parametrize("value,status", [
    ("/c/t", 412), ("c", 412), ("c/", 412), ("", 412), ("/", 412), ("c//t", 201), ("c%2Ft", 201), ("c/t%20%C3%A9", 201)])
def test_the_form_of_a_target(account: Account, container: str, value: str, status: int) -> None:
    link(account, container, "l", value).expect(status)
    if status == 201:
        shown = account.head(container, "l", query="symlink=get").headers["X-Symlink-Target"]
        assert shown == value.replace("%2F", "/")


def test_what_a_link_may_not_be(account: Account, container: str, target: str) -> None:
    assert link(account, container, "l", f"{container}/l").expect(400).body == b"Symlink cannot target itself"
    link(account, container, "l", f"{container}/l", account=account.name).expect(400)
    account.put(container, "l", headers={"X-Symlink-Target": target}, body=b"x").expect(400)
    account.put(container, "l", headers={"X-Symlink-Target": target, "Transfer-Encoding": "chunked"}, body=iter([b"x"])).expect(400)
    account.put(container, "l", headers={"X-Symlink-Target": target, "Transfer-Encoding": "chunked"}, body=iter([])).expect(201)
    for name in ("a/b", "a%2Fb", ""):
        link(account, container, "l2", target, account=name).expect(412)


def test_a_post_changes_the_link_and_tells_of_the_target(account: Account, container: str, target: str) -> None:
    link(account, container, "s", target, etag=ETAG).expect(201)
    answer = account.post(container, "s", headers={"X-Object-Meta-New": "1"}).expect(307)
    assert answer.headers["Location"] == account.target(container, "t") and answer.headers["X-Symlink-Target-Etag"] == ETAG
    shown = account.head(container, "s", query="symlink=get").headers
    assert (shown["X-Object-Meta-New"], shown["X-Symlink-Target-Etag"]) == ("1", ETAG)
    assert "X-Object-Meta-New" not in account.head(container, "s").headers
    account.post(container, "s", headers={"X-Symlink-Target": target}).expect(400)
    account.post(container, "t", headers={"X-Object-Meta-New": "2"}).expect(202)


def test_chains_are_short(account: Account, container: str, target: str) -> None:
    link(account, container, "1", target).expect(201)
    link(account, container, "2", f"{container}/1").expect(201)
    link(account, container, "3", f"{container}/2").expect(201)
    assert account.get(container, "2").expect(200).body == BODY
    assert account.get(container, "3").expect(409).body == b"Too many levels of symbolic links, maximum allowed is 2"
    link(account, container, "1", f"{container}/2").expect(201)
    account.get(container, "2").expect(409)
    account.head(container, "2").expect(409)


def test_static_and_dynamic_links_in_chains(account: Account, container: str, target: str) -> None:
    link(account, container, "static", target, etag=ETAG).expect(201)
    link(account, container, "to static", f"{container}/static", etag=ETAG).expect(201)
    assert account.get(container, "to static").expect(200).body == BODY
    assert account.head(container, "to static", query="symlink=get").headers["X-Symlink-Target-Bytes"] == str(len(BODY))
    link(account, container, "dynamic", target).expect(201)
    link(account, container, "to dynamic", f"{container}/dynamic", etag=ETAG).expect(409)
    link(account, container, "to dynamic", f"{container}/dynamic", etag=EMPTY).expect(201)
    assert account.get(container, "to dynamic").expect(200).body == BODY


def test_security_S52_every_object_of_the_way_is_asked_for_leave(account: Account, other: Account, container: str,
                                                                neighbour: str) -> None:
    other.put(neighbour, "t é", body=b"theirs").expect(201)
    account.put(container, "t é", body=b"ours").expect(201)
    link(account, container, "l", f"{neighbour}/{quote('t é')}", account=other.name).expect(201)
    account.get(container, "l").expect(403)
    assert link(account, container, "s", f"{neighbour}/{quote('t é')}", account=other.name,
                etag=hashlib.md5(b"theirs").hexdigest()).expect(403)
    other.post(neighbour, headers={"X-Container-Read": account.user}).expect(204)
    answer = account.get(container, "l").expect(200)
    assert answer.body == b"theirs" and answer.headers["Content-Location"] == other.target(neighbour, "t é")
    assert row(account, container, "l")["symlink_path"] == other.target(neighbour, "t é")
    other.of(account).get(container, "l").expect(403)


@pytest.mark.parametrize("name", ["AUTH_tést", "AUTH_test%20x", "AUTH_%7Btest%7D"])
def test_security_S52_an_account_is_what_its_quoted_name_says(account: Account, container: str, target: str, name: str) -> None:
    link(account, container, "l", target, account=quote(name, safe="%")).expect(201)
    answer = account.get(container, "l").expect(403)
    assert answer.headers["Content-Location"].split("/")[2] == quote(name, safe="%")


@pytest.mark.parametrize("path", ["../x/t", "./t", "%2e%2e/t", "t/..", "a\\..\\t"])
def test_security_R18_a_target_is_a_name(account: Account, container: str, path: str) -> None:
    link(account, container, "l", f"{container}/{path}").expect(201)
    account.get(container, "l").expect(404)
    account.put(container, unquote(path), body=b"right").expect(201)
    assert account.get(container, "l").expect(200).body == b"right"


def test_copies(account: Account, container: str, target: str) -> None:
    link(account, container, "s", target, etag=ETAG).expect(201)
    account.request("COPY", container, "s", headers={"Destination": f"{container}/body"}).expect(201)
    copied = account.get(container, "body", query="symlink=get").expect(200)
    assert copied.body == BODY and "X-Symlink-Target" not in copied.headers
    account.request("COPY", container, "s", query="symlink=get", headers={"Destination": f"{container}/link"}).expect(201)
    shown = account.head(container, "link", query="symlink=get").expect(200).headers
    assert (shown["X-Symlink-Target"], shown["X-Symlink-Target-Etag"]) == (target, ETAG)
    assert account.get(container, "link").expect(200).body == BODY


def test_large_objects(account: Account, container: str, target: str) -> None:
    manifest = json.dumps([{"path": f"/{target}"}, {"path": f"/{target}", "range": "0-2"}]).encode()
    account.put(container, "slo", query="multipart-manifest=put", body=manifest).expect(201)
    slo = account.head(container, "slo").headers
    link(account, container, "s", f"{container}/slo", etag=slo["X-Manifest-Etag"]).expect(201)
    link(account, container, "no", f"{container}/slo", etag=slo["Etag"]).expect(409)
    answer = account.get(container, "s").expect(200)
    assert answer.body == BODY + BODY[:3] and answer.headers["Etag"] == slo["Etag"]
    assert account.get(container, "s", headers={"Range": "bytes=8-11"}).expect(206).body == (BODY + BODY)[8:12]
    listed = row(account, container, "s")
    assert (listed["symlink_bytes"], listed["symlink_etag"], listed["slo_etag"]) == (
        len(BODY) + 3, slo["X-Manifest-Etag"], slo["Etag"])
    link(account, container, "l", target).expect(201)
    account.put(container, "of links", query="multipart-manifest=put", body=json.dumps([{"path": f"/{container}/l"}])).expect(201)
    assert account.get(container, "of links").expect(200).body == BODY
    account.delete(container, "s", query="multipart-manifest=delete").expect(200)
    account.head(container, "t").expect(404)


def test_a_link_expires_by_itself(account: Account, container: str, target: str) -> None:
    account.put(container, "l", headers={"X-Symlink-Target": target, "X-Delete-After": "1000"}, body=b"").expect(201)
    assert "X-Delete-At" in account.head(container, "l", query="symlink=get").headers
    assert "X-Delete-At" not in account.head(container, "l").headers


def test_listings_in_other_forms(account: Account, container: str, target: str) -> None:
    link(account, container, "s", target, etag=ETAG).expect(201)
    assert account.get(container).lines == ["s", "t"]
    assert b"symlink" not in account.get(container, query="format=xml").body
