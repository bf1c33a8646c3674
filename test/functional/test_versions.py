"""Versions on live clusters: object versioning, the older modes, and what Heat does with a container that is its own archive."""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from test.support.client import Account, Answer, unique

ID, CURRENT = "X-Object-Version-Id", "X-Object-Current-Version-Id"


@pytest.fixture
def versioned(account: Account) -> Iterator[str]:
    """A new container with versions."""
    name = unique("versioned")
    account.put(name, headers={"X-Versions-Enabled": "true"}).expect(201)
    yield name
    remove(account, name)


def remove(account: Account, container: str) -> None:
    for entry in versions(account, container):
        account.delete(container, entry["name"], query=f"version-id={entry['version_id']}").expect(204)
    account.empty(container)


def versions(account: Account, container: str, query: str = "") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = account.get(container, query=f"versions&{query}").expect(200).json()
    return found


def ids(entries: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(entry["name"], entry["version_id"]) for entry in entries]


def test_a_life_with_versions(account: Account, versioned: str) -> None:
    put = [account.put(versioned, "döc.txt", body=body).expect(201).headers[ID] for body in (b"1", b"22", b"333")]
    assert account.get(versioned, "döc.txt").expect(200).body == b"333"
    assert [account.get(versioned, "döc.txt", query=f"version-id={one}").body for one in put] == [b"1", b"22", b"333"]
    assert account.get(versioned, "döc.txt", query=f"version-id={put[1]}", headers={"Range": "bytes=1-"}).body == b"2"
    assert account.head(versioned).headers["X-Container-Bytes-Used"] == "6"
    marker = account.delete(versioned, "döc.txt").expect(204).headers[ID]
    assert account.get(versioned, "döc.txt").status == 404
    assert account.listing(versioned) == []
    found = versions(account, versioned)
    assert ids(found) == [("döc.txt", one) for one in (marker, *put[::-1])]
    assert [entry["is_latest"] for entry in found] == [True, False, False, False]
    account.put(versioned, "döc.txt", query=f"version-id={put[0]}").expect(201)
    assert account.get(versioned, "döc.txt").body == b"1"
    assert account.delete(versioned).status == 409
    gone = account.delete(versioned, "döc.txt", query=f"version-id={put[0]}").expect(204)
    assert (gone.headers[ID], gone.headers[CURRENT]) == (put[0], "null")
    account.get(versioned, "döc.txt").expect(404)


def test_case_C05_versions_are_paged_one_by_one(account: Account, container: str) -> None:
    for name in ("a", "b"):
        account.put(container, name, body=b"null").expect(201)
    account.post(container, headers={"X-Versions-Enabled": "true"}).expect(204)
    for _ in range(3):
        account.put(container, "a", body=b"x").expect(201)
    account.post(container, headers={"X-Versions-Enabled": "false"}).expect(204)
    account.put(container, "a", body=b"null again").expect(201)
    whole = ids(versions(account, container))
    assert [name for name, _ in whole] == ["a"] * 5 + ["b"] and whole[0][1] == whole[5][1] == "null"
    paged: list[tuple[str, str]] = []
    query = "limit=1"
    while page := ids(versions(account, container, query)):
        paged += page
        query = f"limit=1&marker={page[0][0]}&version_marker={page[0][1]}"
    assert paged == whole
    remove(account, container)


def test_case_C06_no_upload_as_the_null_version(account: Account, versioned: str) -> None:
    account.put(versioned, "o", query="version-id=null").expect(400)


def test_case_C10_an_upload_without_length_leaves_the_connection_sane(account: Account, versioned: str) -> None:
    account.put(versioned, "canary", body=b"alive").expect(201)
    head = f"Host: x\r\nX-Auth-Token: {account.token}\r\n\r\n"
    with socket.create_connection((account.endpoint.host, account.endpoint.port), timeout=60) as sock:
        sock.sendall(f"PUT {account.target(versioned, 'o')} HTTP/1.1\r\n{head}"
                     f"GET {account.target(versioned, 'canary')} HTTP/1.1\r\n{head}".encode())
        held = b""
        while b"alive" not in held:
            data = sock.recv(65536)
            assert data, held
            held += data
    assert held.startswith(b"HTTP/1.1 411 ") and b"HTTP/1.1 200 OK" in held
    assert [entry["name"] for entry in versions(account, versioned)] == ["canary"]


def test_case_C24_large_objects_keep_their_size(account: Account, container: str) -> None:
    archive, segments = unique("archive"), unique("segments")
    for name in (archive, segments):
        account.put(name).expect(201)
    account.post(container, headers={"X-Versions-Location": archive}).expect(204)
    account.put(segments, "1", body=b"x" * 5000).expect(201)
    manifest = json.dumps([{"path": f"/{segments}/1"}, {"path": f"/{segments}/1"}])
    account.put(container, "slo", query="multipart-manifest=put", body=manifest).expect(201)
    account.put(container, "slo", body=b"small").expect(201)
    entry = account.listing(archive)[0]
    assert entry["bytes"] == 10000 and "slo_etag" in entry
    assert account.get(archive, entry["name"]).expect(200).body == b"x" * 10000
    account.delete(container, "slo").expect(204)
    assert account.listing(container)[0]["bytes"] == 10000
    assert account.get(container, "slo").body == b"x" * 10000
    for name in (archive, segments):
        account.empty(name)


def test_large_objects_have_versions(account: Account, versioned: str) -> None:
    segments = unique("segments")
    account.put(segments).expect(201)
    account.put(segments, "1", body=b"x" * 5000).expect(201)
    manifest = json.dumps([{"path": f"/{segments}/1"}, {"path": f"/{segments}/1"}])
    first = account.put(versioned, "slo", query="multipart-manifest=put", body=manifest).expect(201)
    assert account.listing(versioned)[0]["bytes"] == 10000
    account.put(versioned, "slo", body=b"small").expect(201)
    assert [entry["bytes"] for entry in versions(account, versioned)] == [5, 10000]
    old = account.get(versioned, "slo", query=f"version-id={first.headers[ID]}").expect(200)
    assert (old.body, old.headers["Etag"]) == (b"x" * 10000, first.headers["Etag"])
    account.put(versioned, "slo", query=f"version-id={first.headers[ID]}").expect(201)
    entry = account.listing(versioned)[0]
    assert (entry["bytes"], entry["slo_etag"]) == (10000, first.headers["Etag"])
    assert account.get(versioned, "slo").body == b"x" * 10000
    account.empty(segments)


def test_old_versions_can_be_copied(account: Account, versioned: str) -> None:
    old = account.put(versioned, "o", body=b"old", headers={"X-Object-Meta-A": "1"}).expect(201).headers[ID]
    account.put(versioned, "o", body=b"new").expect(201)
    for query, body in ((f"version-id={old}", b"old"), ("", b"new")):
        copied = account.request("COPY", versioned, "o", query=query, headers={"Destination": f"{versioned}/copy"}).expect(201)
        assert copied.headers["X-Copied-From-Version-Id"] == (old if query else versions(account, versioned)[-2]["version_id"])
        assert account.get(versioned, "copy").body == body
    copied = account.request("COPY", versioned, "o", query=f"version-id={old}", headers={"Destination": f"{versioned}/o"})
    assert copied.expect(201).headers[ID] not in (None, old)
    assert account.get(versioned, "o").body == b"old"


def test_security_S12_rights_on_versions(account: Account, plain: Account, versioned: str) -> None:
    mine = plain.of(account)
    old, current = (account.put(versioned, "o", body=body).expect(201).headers[ID] for body in (b"1", b"22"))
    account.post(versioned, headers={"X-Container-Read": "test:tester3"}).expect(204)
    assert mine.get(versioned, "o").expect(200).body == b"22"
    for query in ("", f"version-id={old}", f"version-id={current}", "version-id=null"):
        mine.delete(versioned, "o", query=query).expect(403)
    mine.put(versioned, "o", query=f"version-id={old}").expect(403)
    mine.put(versioned, "o", body=b"333").expect(403)
    mine.post(versioned, headers={"X-Versions-Enabled": "false"}).expect(403)
    mine.anonymous().get(versioned, "o", query=f"version-id={old}").expect(401)
    assert ids(versions(account, versioned)) == [("o", current), ("o", old)]


def test_security_S12_rights_on_archives(account: Account, plain: Account, container: str) -> None:
    mine = plain.of(account)
    archive = unique("archive")
    account.put(archive, headers={"X-Container-Read": "test:tester3", "X-Container-Write": "test:tester3"}).expect(201)
    for header in ("X-Versions-Location", "X-History-Location"):
        account.post(container, headers={header: archive, "X-Container-Read": "test:tester3"}).expect(204)
        for body in (b"1", b"22"):
            account.put(container, "o", body=body).expect(201)
        before = account.listing(archive)
        mine.delete(container, "o").expect(403)
        mine.put(container, "o", body=b"333").expect(403)
        assert (account.get(container, "o").body, account.listing(archive)) == (b"22", before)
    account.post(container, headers={"X-Remove-History-Location": "x"}).expect(204)
    account.empty(archive)


def test_security_S51_a_version_that_leads_elsewhere(account: Account, plain: Account, versioned: str) -> None:
    secret = unique("secret")
    account.put(secret).expect(201)
    account.put(secret, "o", body=b"secret").expect(201)
    account.put(versioned, "link", headers={"X-Symlink-Target": f"{secret}/o"}).expect(201)
    account.put(versioned, "plain", body=b"open").expect(201)
    account.post(versioned, headers={"X-Container-Read": "test:tester3"}).expect(204)
    mine = plain.of(account)
    assert mine.get(versioned, "plain").expect(200).body == b"open"
    assert b"secret" not in mine.get(versioned, "link").expect(403).body
    assert account.get(versioned, "link").expect(200).body == b"secret"
    account.empty(secret)


def signed(account: Account, method: str, key: str, *names: str) -> str:
    path = account.target(*names)
    expires = 2145916800  # 2038, as Heat has it
    text = f"{method}\n{expires}\n{account.path}/{'/'.join(names)}"
    signature = hmac.new(key.encode(), text.encode(), hashlib.sha256).hexdigest()
    return f"{path}?temp_url_sig={signature}&temp_url_expires={expires}"


def test_heat_signals_in_a_container_that_is_its_own_archive(account: Account) -> None:
    """H4 to H8 and H13 of Heat's requests: signals stack up, are read, and are popped until 404."""
    stack = unique("stack")
    account.post(headers={"X-Account-Meta-Temp-Url-Key": "secret"}).expect(204)
    account.put(stack, headers={"X-Versions-Location": stack}).expect(201)
    account.put(stack, headers={"X-Versions-Location": stack}).expect(202)
    account.put(stack, "handle", body=b"in progress").expect(201)
    url = signed(account, "PUT", "secret", stack, "handle")
    bodies = [json.dumps({"status": "SUCCESS", "id": number}).encode() for number in range(3)]
    for body in bodies:
        sent = {"Content-Type": "application/x-www-form-urlencoded"}
        account.endpoint.request("PUT", url, sent, body).expect(201)
    names = [entry["name"] for entry in account.listing(stack)]
    assert len(names) == 4 and all("handle" in name for name in names)
    assert sorted(account.get(stack, name).expect(200).body for name in names) == sorted([b"in progress", *bodies])
    account.delete(stack, names[0]).expect(204)  # an archived one, by its name: gone, and not archived again
    assert len(account.listing(stack)) == 3
    statuses: list[int] = []
    while not statuses or statuses[-1] != 404:
        statuses.append(account.delete(stack, "handle").status)
        assert len(statuses) < 10
    assert statuses == [204, 204, 204, 404]
    account.delete(stack).expect(204)


def test_signed_urls_of_versioned_objects(account: Account, versioned: str) -> None:
    account.post(versioned, headers={"X-Container-Meta-Temp-Url-Key": "container key"}).expect(204)
    put = account.endpoint.request("PUT", signed(account, "PUT", "container key", versioned, "o"), {}, b"one").expect(201)
    assert account.get(versioned, "o", query=f"version-id={put.headers[ID]}").body == b"one"
    got: Answer = account.endpoint.request("GET", signed(account, "GET", "container key", versioned, "o"))
    assert got.expect(200).body == b"one"


def test_the_account_counts_versions(account: Account, versioned: str) -> None:
    for body in (b"1", b"22"):
        account.put(versioned, "o", body=body).expect(201)
    names = [entry["name"] for entry in account.listing(query=f"prefix={quote(versioned)}")]
    assert names == [versioned]
    assert all("\x00" not in name for name in account.get().expect().lines)


def test_what_clients_may_not_reach(account: Account, versioned: str) -> None:
    account.put(versioned, "o", body=b"1").expect(201)
    hidden = f"\x00versions\x00{versioned}"
    assert account.get(hidden).status == 412
    assert account.get(hidden, headers={"X-Backend-Allow-Reserved-Names": "true"}).status == 412
    headers = account.get(versioned, "o", query="symlink=get").headers
    assert not [name for name in headers if "sysmeta" in name]
    assert "%00" not in str(dict(headers))


def test_info_tells_of_versions(account: Account) -> None:
    info = account.endpoint.request("GET", "/info").expect(200).json()
    assert info["object_versioning"] == {}
    assert info["versioned_writes"] == {"allowed_flags": ["x-versions-location", "x-history-location"]}
