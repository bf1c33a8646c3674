"""Versions of both makes over the same disks: what one keeps the other lists, reads, restores and deletes (issue 3, point 5)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from test.support.client import Account, unique
from test.support.peers import OURS, PROXY_CONF, SWIFT, Peers
from test.support.preloaded import Preloaded

ID = "X-Object-Version-Id"
FILTERS = """
[filter:slo]
use = egg:swift#slo
[filter:dlo]
use = egg:swift#dlo
[filter:versioned_writes]
use = egg:swift#versioned_writes
allow_versioned_writes = true
allow_object_versioning = true
[filter:symlink]
use = egg:swift#symlink
"""


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory, swift_python: str, preloaded: Preloaded) -> Iterator[Peers]:
    conf = PROXY_CONF.replace("copy proxy-logging proxy-server",
                              "copy slo dlo versioned_writes symlink proxy-logging proxy-server") + FILTERS
    peers = Peers(tmp_path_factory.mktemp("versions"), swift_python, preloaded=preloaded, proxy_conf=conf)
    try:
        peers.start_proxies(OURS, SWIFT)
        with peers.storage(OURS, SWIFT):
            yield peers
    finally:
        peers.stop_all()


@pytest.fixture(params=[(OURS, SWIFT), (SWIFT, OURS)], ids=lambda makes: f"{makes[0]}-writes-{makes[1]}-reads")
def pair(peers: Peers, request: pytest.FixtureRequest) -> tuple[Account, Account]:
    writer, reader = request.param
    account = peers.proxy(writer).login()
    return account, account.at(peers.proxy(reader))


def versions(account: Account, container: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = account.get(container, query="versions").expect(200).json()
    return [{**entry, "content_type": entry["content_type"].replace("; ", ";")} for entry in found]


def test_object_versioning(pair: tuple[Account, Account]) -> None:
    writer, reader = pair
    container = unique("versioned")
    writer.put(container).expect(201)
    writer.put(container, "é/n", body=b"null", headers={"X-Object-Meta-A": "null", "Content-Type": "t/null"}).expect(201)
    writer.post(container, headers={"X-Versions-Enabled": "true"}).expect(204)
    assert reader.head(container).headers["X-Versions-Enabled"] == "True"
    put = [(writer if number % 2 else reader).put(container, "é/n", body=b"x" * number,
                                                 headers={"Content-Type": f"t/{number}"}).expect(201).headers[ID]
           for number in (1, 2, 3)]
    marker = writer.delete(container, "é/n").expect(204).headers[ID]
    assert versions(writer, container) == versions(reader, container)
    found = versions(reader, container)
    assert [entry["version_id"] for entry in found][:4] == [marker, *put[::-1]]
    assert [entry["bytes"] for entry in found] == [0, 3, 2, 1, 4]
    null = reader.get(container, "é/n", query=f"version-id={found[4]['version_id']}").expect(200)
    assert (null.body, null.headers["X-Object-Meta-A"], null.headers["Content-Type"]) == (b"null", "null", "t/null")
    for account in pair:
        account.get(container, "é/n").expect(404)
        got = account.get(container, "é/n", query=f"version-id={marker}").expect(404)
        assert got.headers["Content-Type"].startswith("application/x-deleted")
    for account, other, version_id, body in ((writer, reader, put[0], b"x"), (reader, writer, put[1], b"xx")):
        account.put(container, "é/n", query=f"version-id={version_id}").expect(201)
        got = other.get(container, "é/n").expect(200)
        assert (got.body, got.headers[ID]) == (body, version_id)
        assert other.listing(container) == account.listing(container)
    reader.post(container, "é/n", headers={"X-Object-Meta-B": "posted"}).expect(202)
    assert writer.get(container, "é/n", query=f"version-id={put[1]}").headers["X-Object-Meta-B"] == "posted"
    gone = reader.delete(container, "é/n", query=f"version-id={put[1]}").expect(204)
    assert gone.headers["X-Object-Current-Version-Id"] == "null"
    writer.get(container, "é/n").expect(404)
    reader.delete(container).expect(409)
    for entry in versions(writer, container):
        writer.delete(container, entry["name"], query=f"version-id={entry['version_id']}").expect(204)
    reader.delete(container).expect(204)
    writer.head(container).expect(404)


def test_large_objects_and_links_with_versions(pair: tuple[Account, Account]) -> None:
    writer, reader = pair
    container, other = unique("versioned"), unique("plain")
    writer.put(other).expect(201)
    writer.put(other, "segment", body=b"x" * 1000).expect(201)
    writer.put(container).expect(201)
    writer.put(container, "link", headers={"X-Symlink-Target": f"{other}/segment"}).expect(201)
    writer.post(container, headers={"X-Versions-Enabled": "true"}).expect(204)
    manifest = json.dumps([{"path": f"/{other}/segment"}, {"path": f"/{other}/segment"}])
    large = writer.put(container, "slo", query="multipart-manifest=put", body=manifest).expect(201).headers[ID]
    reader.put(container, "slo", body=b"small").expect(201)
    reader.put(container, "link", body=b"no link").expect(201)
    assert versions(writer, container) == versions(reader, container)
    for account in pair:
        assert account.get(container, "slo", query=f"version-id={large}").expect(200).body == b"x" * 2000
        assert [entry["bytes"] for entry in versions(account, container) if entry["name"] == "slo"] == [5, 2000]
        old = next(entry for entry in versions(account, container) if entry["name"] == "link" and not entry["is_latest"])
        assert account.get(container, "link", query=f"version-id={old['version_id']}").expect(200).body == b"x" * 1000
    reader.put(container, "slo", query=f"version-id={large}").expect(201)  # the manifest again
    for account in pair:
        got = account.get(container, "slo").expect(200)
        assert (got.body, got.headers[ID], got.headers["X-Static-Large-Object"]) == (b"x" * 2000, large, "True")
    for entry in versions(writer, container):
        reader.delete(container, entry["name"], query=f"version-id={entry['version_id']}").expect(204)
    assert versions(writer, container) == []
    assert writer.get(other, "segment").expect(200).body == b"x" * 1000  # no version took what it leads to along
    reader.delete(container).expect(204)
    writer.head(container).expect(404)


def test_a_versioned_container_in_use_by_both(pair: tuple[Account, Account]) -> None:
    """Suspending, markers on markers, listing in pages, and a large object deleted with its segments."""
    writer, reader = pair
    container = unique("versioned")
    writer.put(container, headers={"X-Versions-Enabled": "true"}).expect(201)
    for name in ("a", "b"):
        writer.put(container, name, body=b"1").expect(201)
        reader.put(container, name, body=b"22").expect(201)
    reader.delete(container, "a").expect(204)
    writer.delete(container, "a").expect(204, 404)
    found = versions(writer, container)
    assert found == versions(reader, container)
    for account in pair:
        paged: list[dict[str, Any]] = []
        query = "versions&limit=2"
        while page := account.get(container, query=query).expect(200).json():
            paged += page
            query = f"versions&limit=2&marker={page[-1]['name']}&version_marker={page[-1]['version_id']}"
        assert [entry["version_id"] for entry in paged] == [entry["version_id"] for entry in found]
    manifest = json.dumps([{"path": f"/{container}/b"}])
    writer.put(container, "slo", query="multipart-manifest=put", body=manifest).expect(201)
    report = reader.delete(container, "slo", query="multipart-manifest=delete", headers={"Accept": "application/json"}).expect(200).json()
    assert (report["Response Status"], report["Number Deleted"]) == ("200 OK", 2)
    assert [account.head(container, "b").status for account in pair] == [404, 404]  # by a marker: it may be had back
    reader.post(container, headers={"X-Versions-Enabled": "false"}).expect(204)
    assert writer.head(container).headers["X-Versions-Enabled"] == "False"
    writer.put(container, "b", body=b"null").expect(201)
    reader.put(container, "b", body=b"null again").expect(201)
    newest = next(entry for entry in versions(writer, container) if entry["name"] == "b")
    assert (newest["bytes"], newest["version_id"]) == (10, "null")
    assert versions(writer, container) == versions(reader, container)
    for entry in versions(reader, container):
        writer.delete(container, entry["name"], query=f"version-id={entry['version_id']}").expect(204)
    assert reader.listing(container) == []
    writer.delete(container).expect(204)


@pytest.mark.parametrize("header", ["X-Versions-Location", "X-History-Location"])
def test_the_older_modes(pair: tuple[Account, Account], header: str) -> None:
    writer, reader = pair
    container, archive = unique("c"), unique("archive")
    writer.put(archive).expect(201)
    writer.put(container, headers={header: archive}).expect(201)
    assert reader.head(container).headers[header] == archive
    for number in range(1, 4):
        (writer if number % 2 else reader).put(container, "ö", body=b"x" * number).expect(201)
    assert [entry["bytes"] for entry in reader.listing(archive)] == [1, 2]
    assert all(entry["name"].startswith("002ö/") for entry in reader.listing(archive))
    if header == "X-History-Location":
        for account in pair:
            account.delete(container, "ö").expect(204, 404)
        assert [entry["bytes"] for entry in writer.listing(archive)] == [1, 2, 3, 0, 0]
        writer.post(container, headers={"X-Versions-Location": archive}).expect(204)
        reader.delete(container, "ö").expect(204)
        writer.delete(container, "ö").expect(204)
        assert reader.get(container, "ö").expect(200).body == b"xxx"
    else:
        for account, size in ((reader, 2), (writer, 1)):
            account.delete(container, "ö").expect(204)
            assert reader.get(container, "ö").expect(200).body == b"x" * size
        assert [account.delete(container, "ö").status for account in pair] == [204, 404]
