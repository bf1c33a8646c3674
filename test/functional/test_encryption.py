"""A live store that encrypts, on one node and on four: clients notice nothing, disks and logs know nothing (issue 3)."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from test.support.client import Account, unique
from test.support.store import Store, running

WORD = "swordfish"
BODIES = {"empty": b"", "small": b"a swordfish", "large": (b"a swordfish among fishes, " * 10_000)[:200_003]}


def etag(body: bytes) -> str:
    return hashlib.md5(body).hexdigest()


@pytest.fixture(scope="module", params=[1, 4], ids=["one-node", "four-nodes"])
def encrypted(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Store]:
    with running(tmp_path_factory.mktemp("encrypted") / "data", "--encrypt", nodes=request.param, workers=1) as store:
        yield store


@pytest.fixture
def account(encrypted: Store) -> Account:
    return encrypted.login()


@pytest.fixture
def container(account: Account) -> Iterator[str]:
    name = unique("c")
    account.put(name).expect(201)
    yield name
    account.empty(name)


def files(store: Store) -> bytes:
    """All that the disks hold: contents, extended attributes, and names."""
    found = []
    for number in range(1, store.nodes + 1):
        for path in store.devices(number).rglob("*"):
            if path.is_file():
                found += [path.read_bytes(), *(os.getxattr(path, name) for name in os.listxattr(path)), bytes(path)]
    return b"\n".join(found)


def secret(store: Store) -> str:
    (line,) = [line for line in (store.etc() / "keymaster.conf").read_text().splitlines() if line.startswith("encryption_root_secret ")]
    return line.partition("=")[2].strip()


def test_objects(account: Account, container: str) -> None:
    for name, body in BODIES.items():
        headers = {"X-Object-Meta-Word": WORD, "X-Object-Meta-Other": "välue", "ETag": etag(body)}
        assert account.put(container, name, body=body, headers=headers).expect(201).headers["Etag"] == etag(body)
        account.put(container, "bad", body=body, headers={"ETag": "0" * 32}).expect(422)
        got = account.get(container, name).expect(200)
        assert (got.body, got.headers["Etag"], got.headers["X-Object-Meta-Word"]) == (body, etag(body), WORD)
        assert got.headers.text("X-Object-Meta-Other") == "välue"
        assert not [header for header in got.headers if "crypto" in header]
        account.get(container, name, headers={"If-None-Match": etag(body)}).expect(304)
        account.post(container, name, headers={"X-Object-Meta-Word": "posted"}).expect(202)
        assert account.head(container, name).headers["X-Object-Meta-Word"] == "posted"
        account.request("COPY", container, name, headers={"Destination": f"{container}/copy of {name}"}).expect(201)
        assert account.get(container, f"copy of {name}").expect(200).body == body
    body = BODIES["large"]
    assert account.get(container, "large", headers={"Range": "bytes=100001-100010"}).expect(206).body == body[100_001:100_011]
    parts = account.get(container, "large", headers={"Range": "bytes=1-5,70000-70005,-3"}).expect(206)
    assert all(part in parts.body for part in (body[1:6], body[70_000:70_006], body[-3:]))
    assert len(parts.body) == int(parts.headers["Content-Length"])
    account.put(container, "chunked", body=iter([body[:70_000], body[70_000:]]), headers={"Transfer-Encoding": "chunked"}).expect(201)
    assert account.get(container, "chunked").expect(200).body == body
    assert {entry["name"]: entry["hash"] for entry in account.listing(container) if entry["name"] in BODIES} == {
        name: etag(body) for name, body in BODIES.items()}
    assert etag(body) in account.get(container, headers={"Accept": "application/xml"}).expect(200).body.decode()


def test_large_objects(account: Account, container: str) -> None:
    segments = [BODIES["large"], b"the end"]
    for number, body in enumerate(segments):
        account.put(container, f"segments/{number}", body=body).expect(201)
    manifest = [{"path": f"/{container}/segments/{number}", "etag": etag(body)} for number, body in enumerate(segments)]
    put = account.put(container, "slo", query="multipart-manifest=put", body=json.dumps(manifest).encode()).expect(201)
    account.put(container, "dlo", headers={"X-Object-Manifest": f"{container}/segments/"}).expect(201)
    account.put(container, "link", headers={"X-Symlink-Target": f"{container}/slo"}).expect(201)
    whole = b"".join(segments)
    for name in ("slo", "dlo", "link"):
        assert account.get(container, name).expect(200).body == whole
        assert account.get(container, name, headers={"Range": "bytes=-12"}).expect(206).body == whole[-12:]
    account.get(container, "slo", headers={"If-Match": put.headers["Etag"]}).expect(200)
    account.get(container, "slo", headers={"If-None-Match": put.headers["Etag"]}).expect(304)
    entries = {entry["name"]: entry for entry in account.listing(container)}
    assert (entries["slo"]["slo_etag"], entries["slo"]["bytes"]) == (put.headers["Etag"], len(whole))
    assert entries["link"]["symlink_path"] == account.target(container, "slo")
    assert [entry["hash"] for entry in account.get(container, "slo", query="multipart-manifest=get").json()] == [
        etag(body) for body in segments]


def test_case_C18_scripts_may_read_metadata_that_is_encrypted(account: Account, container: str) -> None:
    account.post(container, headers={"X-Container-Meta-Access-Control-Allow-Origin": "*"}).expect(204)
    account.put(container, "o", body=b"x", headers={"X-Object-Meta-Word": WORD}).expect(201)
    got = account.get(container, "o", headers={"Origin": "http://example.com"}).expect(200)
    assert "x-object-meta-word" in got.headers["Access-Control-Expose-Headers"].split(", ")


def test_disks_hold_nothing_in_the_clear(encrypted: Store, account: Account, container: str) -> None:
    for name, body in BODIES.items():
        account.put(container, name, body=body, headers={"X-Object-Meta-Word": "Wal" + WORD}).expect(201)
    held = files(encrypted)
    assert container.encode() in held  # names are not secret, and this looks where it should
    for text in (WORD, etag(BODIES["small"]), etag(BODIES["large"]), secret(encrypted)):
        assert text.encode() not in held


def test_security_S09_R11_secrets_are_in_no_log(encrypted: Store, account: Account, container: str) -> None:
    account.put(container, "o", body=b"x", headers={"X-Object-Meta-Word": WORD}).expect(201)
    account.get(container, "o").expect(200)
    for number in range(1, encrypted.nodes + 1):
        log = encrypted.log(number)
        assert "Traceback" not in log
        for text in (secret(encrypted), "encryption_root_secret", WORD, "body_key"):
            assert text not in log
        assert (encrypted.etc(number) / "keymaster.conf").stat().st_mode & 0o077 == 0
        assert secret(encrypted) not in (encrypted.etc(number) / "proxy-server.conf").read_text()


def test_switching_off_and_on_again(tmp_path: Any) -> None:
    store = Store.new(tmp_path / "data", workers=1)
    names = ("before", "encrypted", "off", "again")
    try:
        for name, arguments in zip(names, ([], ["--encrypt"], ["--no-encrypt"], ["--encrypt"]), strict=True):
            store.up(*arguments)
            account = store.login()
            account.put("c")
            account.put("c", name, body=name.encode(), headers={"X-Object-Meta-Word": WORD + name}).expect(201)
            for known in names[:names.index(name) + 1]:
                got = account.get("c", known, headers={"If-Match": etag(known.encode())}).expect(200)
                assert (got.body, got.headers["X-Object-Meta-Word"]) == (known.encode(), WORD + known)
            assert {entry["name"]: entry["hash"] for entry in account.listing("c")} == {
                known: etag(known.encode()) for known in names[:names.index(name) + 1]}
            held = files(store)
            assert ((WORD + name).encode() in held) is (name in ("before", "off"))
            store.down()
    finally:
        store.command("down", check=False)
