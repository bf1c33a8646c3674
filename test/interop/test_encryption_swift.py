"""Encryption at rest of both makes, with the same root secrets, over the same disks: what one wrote the other reads (issue 3, 5)."""

from __future__ import annotations

import hashlib
import json
import os
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import pytest

from test.support.client import Account, unique
from test.support.peers import OURS, PROXY_CONF, SWIFT, Peers
from test.support.preloaded import Preloaded

OLD, NEW = (b64encode(bytes(range(start, start + 32))).decode() for start in (0, 100))
LARGE_OBJECTS = "slo dlo versioned_writes symlink"
FILTERS = f"""
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
[filter:keymaster]
use = egg:swift#keymaster
encryption_root_secret = {OLD}
encryption_root_secret_new = {NEW}
active_root_secret_id = ACTIVE
meta_version_to_write = VERSION
[filter:encryption]
use = egg:swift#encryption
"""
WORD = "swordfish"
BODY = (b"a swordfish among fishes, " * 5000)[:100_003]


def proxy_conf(active: str, version: str) -> str:
    text = PROXY_CONF.replace("proxy-logging proxy-server", "keymaster encryption proxy-logging proxy-server")
    if " slo " not in text:
        text = text.replace(" keymaster encryption ", f" {LARGE_OBJECTS} keymaster encryption ")
    return text + FILTERS.replace("ACTIVE", active).replace("VERSION", version)


@pytest.fixture(scope="module", params=[("", "2"), ("new", "3"), ("", "1")], ids=["version 2", "version 3, new secret", "version 1"])
def peers(tmp_path_factory: pytest.TempPathFactory, swift_python: str, preloaded: Preloaded, request: pytest.FixtureRequest) -> Iterator[Peers]:
    peers = Peers(tmp_path_factory.mktemp("encrypted"), swift_python, preloaded=preloaded, proxy_conf=proxy_conf(*request.param))
    try:
        peers.start_proxies(OURS, SWIFT)
        # our object servers for one site and Swift's for the other
        with peers.storage(OURS, SWIFT):
            yield peers
    finally:
        peers.stop_all()


@pytest.fixture(params=[(OURS, SWIFT), (SWIFT, OURS)], ids=lambda makes: f"{makes[0]}-writes-{makes[1]}-reads")
def pair(peers: Peers, request: pytest.FixtureRequest) -> tuple[Account, Account]:
    writer, reader = request.param
    account = peers.proxy(writer).login()
    return account, account.at(peers.proxy(reader))


def etag(body: bytes) -> str:
    return hashlib.md5(body).hexdigest()


def hashes(account: Account, container: str) -> dict[str, Any]:
    return {entry["name"]: entry["hash"] for entry in account.listing(container)}


@pytest.mark.parametrize("body", [b"", b"a swordfish", BODY], ids=["empty", "small", "large"])
def test_objects(peers: Peers, pair: tuple[Account, Account], body: bytes) -> None:
    writer, reader = pair
    container, names = unique("c"), ["plain", "né日本", "/slash first", "per%20cent"]
    writer.put(container).expect(201)
    for name in names:
        headers = {"X-Object-Meta-Word": WORD, "X-Object-Meta-Other": "välue", "X-Object-Meta-Empty": "", "Content-Type": "text/x"}
        put = writer.put(container, name, body=body, headers=headers).expect(201)
        assert put.headers["Etag"] == etag(body)
        for method in ("GET", "HEAD"):
            got = reader.request(method, container, name).expect(200)
            assert (got.body if method == "GET" else body) == body
            assert (got.headers["Etag"], got.headers["Content-Length"]) == (etag(body), str(len(body)))
            assert (got.headers["X-Object-Meta-Word"], got.headers.text("X-Object-Meta-Other")) == (WORD, "välue")
            assert not [header for header in got.headers if "crypto" in header]
            assert reader.request(method, container, name, headers={"If-None-Match": f'"{etag(body)}"'}).status == 304
            assert reader.request(method, container, name, headers={"If-Match": "x"}).status == 412
        assert reader.get(container, name, headers={"If-Match": etag(body)}).expect(200).body == body
        if body:
            assert reader.get(container, name, headers={"Range": "bytes=5-8"}).expect(206).body == body[5:9]
            parts = reader.get(container, name, headers={"Range": "bytes=0-0,-3"}).expect(206)
            assert body[:1] in parts.body and body[-3:] in parts.body and len(parts.body) == int(parts.headers["Content-Length"])
    assert hashes(reader, container) == hashes(writer, container) == {name: etag(body) for name in names}
    for name in names:
        reader.post(container, name, headers={"X-Object-Meta-Word": "posted"}).expect(202)
        head = writer.head(container, name).expect(200)
        assert head.headers["X-Object-Meta-Word"] == "posted" and "X-Object-Meta-Other" not in head.headers
        reader.request("COPY", container, name, headers={"Destination": f"{container}/copy"}).expect(201)
        got = writer.get(container, "copy").expect(200)
        assert (got.body, got.headers["Etag"], got.headers["X-Object-Meta-Word"]) == (body, etag(body), "posted")
        assert hashes(writer, container)["copy"] == etag(body)
    for name in [*names, "copy"]:
        reader.delete(container, name).expect(204)
        writer.get(container, name).expect(404)
    writer.delete(container).expect(204)


def test_nothing_of_it_is_on_the_disks_in_the_clear(peers: Peers, pair: tuple[Account, Account]) -> None:
    writer, _reader = pair
    container = unique("c")
    writer.put(container).expect(201)
    writer.put(container, "o", body=BODY, headers={"X-Object-Meta-Word": WORD}).expect(201)
    for path in peers.devices.rglob("*"):
        if path.is_file():
            content = b"\n".join([path.read_bytes(), *(os.getxattr(path, name) for name in os.listxattr(path))])
            assert WORD.encode() not in content and etag(BODY).encode() not in content, path
    writer.delete(container, "o").expect(204)
    writer.delete(container).expect(204)


def test_large_objects_and_links(pair: tuple[Account, Account]) -> None:
    writer, reader = pair
    container = unique("c")
    writer.put(container).expect(201)
    segments = [b"first " * 100, b"second " * 100]
    for number, body in enumerate(segments):
        writer.put(container, f"seg/{number}", body=body).expect(201)
    manifest = [{"path": f"/{container}/seg/{number}", "etag": etag(body), "size_bytes": len(body)} for number, body in enumerate(segments)]
    put = writer.request("PUT", container, "slo", query="multipart-manifest=put", body=json.dumps(manifest).encode()).expect(201)
    writer.put(container, "dlo", headers={"X-Object-Manifest": f"{container}/seg/"}).expect(201)
    writer.put(container, "link", headers={"X-Symlink-Target": f"{container}/slo"}).expect(201)
    writer.put(container, "static", headers={"X-Symlink-Target": f"{container}/seg/0", "X-Symlink-Target-Etag": etag(segments[0])}).expect(201)
    whole = b"".join(segments)
    for name, body in (("slo", whole), ("dlo", whole), ("link", whole), ("static", segments[0])):
        assert reader.get(container, name).expect(200).body == body
        assert reader.get(container, name, headers={"Range": "bytes=590-619"}).body == body[590:620]
        assert reader.head(container, name).headers["Content-Length"] == str(len(body))
    assert reader.head(container, "slo").headers["Etag"] == put.headers["Etag"]
    assert reader.get(container, "slo", headers={"If-None-Match": put.headers["Etag"]}).status == 304
    assert reader.listing(container) == writer.listing(container)
    entries = {entry["name"]: entry for entry in reader.listing(container)}
    assert entries["slo"]["slo_etag"] == put.headers["Etag"] and entries["slo"]["bytes"] == len(whole)
    assert entries["link"]["symlink_path"].endswith("/slo") and entries["static"]["symlink_etag"] == etag(segments[0])
    reader.request("DELETE", container, "slo", query="multipart-manifest=delete").expect(200)
    for name in ("dlo", "link", "static"):
        reader.delete(container, name).expect(204)
    reader.delete(container).expect(204)


def test_versions(pair: tuple[Account, Account]) -> None:
    writer, reader = pair
    container = unique("v")
    writer.put(container, headers={"X-Versions-Enabled": "true"}).expect(201)
    ids = [writer.put(container, "o", body=body, headers={"X-Object-Meta-Word": WORD}).expect(201).headers["X-Object-Version-Id"]
           for body in (b"one", b"two")]
    for version, body in zip(ids, (b"one", b"two"), strict=True):
        got = reader.get(container, "o", query=f"version-id={version}").expect(200)
        assert (got.body, got.headers["Etag"], got.headers["X-Object-Meta-Word"]) == (body, etag(body), WORD)
    listed = reader.get(container, query="versions&format=json").json()
    assert {entry["version_id"]: entry["hash"] for entry in listed} == {ids[0]: etag(b"one"), ids[1]: etag(b"two")}
    for version in ids:
        reader.delete(container, "o", query=f"version-id={version}").expect(204)
    reader.delete(container).expect(204)


def test_the_older_versions(pair: tuple[Account, Account]) -> None:
    writer, reader = pair
    for header in ("X-Versions-Location", "X-History-Location"):
        container, archive = unique("v"), unique("archive")
        writer.put(archive).expect(201)
        writer.put(container, headers={header: archive}).expect(201)
        for account, body in ((writer, b"one"), (reader, b"two"), (writer, b"three")):
            account.put(container, "o", body=body, headers={"X-Object-Meta-Word": WORD}).expect(201)
        kept = [reader.get(archive, name).expect(200) for name in hashes(reader, archive)]
        assert [(got.body, got.headers["Etag"], got.headers["X-Object-Meta-Word"]) for got in kept] == [
            (b"one", etag(b"one"), WORD), (b"two", etag(b"two"), WORD)]
        assert hashes(writer, archive) == hashes(reader, archive)
        assert list(hashes(reader, archive).values()) == [etag(b"one"), etag(b"two")]
        reader.delete(container, "o").expect(204)
        if header == "X-Versions-Location":
            got = writer.get(container, "o").expect(200)
            assert (got.body, got.headers["Etag"], got.headers["X-Object-Meta-Word"]) == (b"two", etag(b"two"), WORD)
            assert hashes(writer, container) == {"o": etag(b"two")}
        else:
            writer.get(container, "o").expect(404)
            assert [reader.get(archive, name).body for name in hashes(writer, archive)] == [b"one", b"two", b"three", b""]
        writer.post(container, headers={f"X-Remove-{header[2:]}": "x"}).expect(204)
        for place in (container, archive):
            for name in hashes(reader, place):
                reader.delete(place, name).expect(204)
            writer.delete(place).expect(204)
