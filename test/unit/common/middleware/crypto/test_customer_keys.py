"""Objects whose body needs a key of the client beside ours, and writes that ask to be encrypted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import md5
from typing import Any

import pytest

from keelstore.common.http import CUSTOMER_KEY, ENCRYPTS
from keelstore.common.middleware.crypto import cipher, meta
from keelstore.common.middleware.crypto.told import SEALED, WANTS_SEALED, as_read
from test.unit.common.middleware.crypto.helpers import ROOT, EncryptedCluster, encrypted

OBJ = "/v1/a/c/o"
BODY = b"a small body with a swordfish in it"
KEY, OTHER = bytes(range(32)), bytes(32)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: Any) -> Iterator[EncryptedCluster]:
    made = EncryptedCluster(tmp_path_factory.mktemp("cluster"))
    yield made
    made.close()


def with_key(key: bytes | None) -> dict[str, Any]:
    return {CUSTOMER_KEY.replace(".", "__"): key}


def test_a_body_is_read_with_the_key_that_it_was_written_with(cluster: EncryptedCluster) -> None:
    put = cluster.ask("PUT", OBJ, {"X-Object-Meta-A": "b"}, BODY, **with_key(KEY))
    assert (put.status, put.headers["Etag"]) == (201, md5(BODY).hexdigest())
    got = cluster.ask("GET", OBJ, {"Range": "bytes=20-28"}, **with_key(KEY))
    assert (got.status, got.body) == (206, b"swordfish")
    assert cluster.ask("GET", OBJ, **with_key(KEY)).body == BODY
    for key in (None, OTHER):
        refused = cluster.ask("GET", OBJ, **with_key(key))
        assert refused.status == 400 and BODY not in (refused.body or b"")
        head = cluster.ask("HEAD", OBJ, **with_key(key))
        assert (head.status, head.headers["Etag"], head.headers["X-Object-Meta-A"]) == (200, md5(BODY).hexdigest(), "b")
        assert not [name for name in head.headers if "sysmeta-crypto" in name.lower()]


def test_the_key_is_not_kept(cluster: EncryptedCluster) -> None:
    cluster.ask("PUT", OBJ, {}, BODY, **with_key(KEY))
    marks = []
    for _ in range(2):
        cluster.ask("PUT", OBJ, {}, BODY, **with_key(KEY))
        raw = cluster.raw("HEAD", OBJ)
        marks.append(raw.headers[meta.CUSTOMER])
        assert KEY.hex() not in str(raw.headers) and md5(KEY).hexdigest() not in str(raw.headers)
    assert marks[0] != marks[1]
    assert all(cipher.is_marked(KEY, mark) and not cipher.is_marked(OTHER, mark) for mark in marks)
    assert not cipher.is_marked(KEY, "") and not cipher.is_marked(KEY, "no base64:")


def test_a_manifest_is_read_without_the_key(cluster: EncryptedCluster) -> None:
    cluster.ask("PUT", OBJ, {"X-Static-Large-Object": "True"}, BODY, **with_key(KEY))
    assert cluster.ask("GET", OBJ).body == BODY


def test_an_empty_body_and_one_of_no_key_need_none(cluster: EncryptedCluster) -> None:
    cluster.ask("PUT", OBJ, {}, b"", **with_key(KEY))
    assert cluster.ask("GET", OBJ).body == b""
    cluster.ask("PUT", OBJ, {}, BODY)
    assert cluster.ask("GET", OBJ, **with_key(KEY)).body == BODY


@pytest.mark.parametrize("extra", [with_key(KEY), {ENCRYPTS.replace(".", "__"): True}], ids=["key", "asked"])
def test_what_asks_for_it_is_encrypted_where_nothing_else_is(cluster: EncryptedCluster, extra: dict[str, Any]) -> None:
    off = encrypted(cluster.proxy, is_enabled=False)
    cluster.through(off, "PUT", OBJ, {}, BODY)
    assert cluster.raw("GET", OBJ).body == BODY
    cluster.through(off, "PUT", OBJ, {}, BODY, **extra)
    assert cluster.raw("GET", OBJ).body != BODY
    assert cluster.through(off, "GET", OBJ, **extra).body == BODY


SEALS = {WANTS_SEALED.replace(".", "__"): True}


def moved(cluster: EncryptedCluster, app: Any, source: str, target: str) -> Any:
    """The answer to the write of ``target`` as a copy of ``source``, without the key of its owner."""
    found = cluster.through(app, "GET", source, **SEALS)
    assert found.status == 200 and found.body != BODY
    environ = {key.replace(".", "__"): value for key, value in as_read(found.headers).items()}
    headers = {"Etag": found.headers["Etag"], "X-Object-Meta-A": found.headers["X-Object-Meta-A"]}
    return cluster.through(app, "PUT", target, headers, found.body, **environ)


@pytest.mark.parametrize("is_enabled", [True, False])
def test_what_needs_a_key_is_moved_without_it(cluster: EncryptedCluster, is_enabled: bool) -> None:
    app = encrypted(cluster.proxy, is_enabled)
    cluster.through(app, "PUT", "/v1/a/d")
    cluster.through(app, "PUT", OBJ, {"X-Object-Meta-A": "b"}, BODY, **with_key(KEY))
    etag = md5(BODY).hexdigest()
    for source, target in ((OBJ, "/v1/a/d/moved"), ("/v1/a/d/moved", "/v1/a/c/again")):
        put = moved(cluster, app, source, target)
        assert (put.status, put.headers["Etag"]) == (201, etag)
        cluster.through(app, "PUT", source, {}, b"another", **with_key(OTHER))
        assert cluster.raw("GET", target).body != BODY
        for key in (None, OTHER):
            assert cluster.through(app, "GET", target, **with_key(key)).status == 400
            head = cluster.through(app, "HEAD", target, **with_key(key))
            assert (head.status, head.headers["Etag"], head.headers["X-Object-Meta-A"]) == (200, etag, "b")
            assert not [name for name in head.headers if "sealed" in name.lower() or "sysmeta-crypto" in name.lower()]
        got = cluster.through(app, "GET", target, {"Range": "bytes=20-28"}, **with_key(KEY))
        assert (got.status, got.body) == (206, b"swordfish")
        assert cluster.through(app, "GET", target, {"If-None-Match": etag}, **with_key(KEY)).status == 304
        assert cluster.through(app, "GET", target, {"If-Match": etag}, **with_key(KEY)).body == BODY
        assert cluster.through(app, "GET", target, {"If-Match": "0" * 32}, **with_key(KEY)).status == 412
    listing = cluster.through(app, "GET", "/v1/a/c", query="format=json&prefix=again").body
    assert json.loads(listing or b"")[0]["hash"] == etag


def test_what_is_moved_stays_under_the_root_secret_of_its_body(cluster: EncryptedCluster) -> None:
    before = encrypted(cluster.proxy, by_id={None: ROOT, "second": OTHER})
    after = encrypted(cluster.proxy, by_id={None: ROOT, "second": OTHER}, active="second")
    cluster.through(before, "PUT", OBJ, {"X-Object-Meta-A": "b"}, BODY, **with_key(KEY))
    assert moved(cluster, after, OBJ, "/v1/a/c/moved").status == 201
    raw = cluster.raw("HEAD", "/v1/a/c/moved").headers
    assert "second" not in raw[meta.BODY_META] and "second" in raw[meta.ETAG]
    assert cluster.through(after, "GET", "/v1/a/c/moved", **with_key(KEY)).body == BODY


def test_what_is_damaged_on_its_way_is_not_written(cluster: EncryptedCluster) -> None:
    cluster.ask("PUT", OBJ, {"X-Object-Meta-A": "b"}, BODY, **with_key(KEY))
    found = cluster.ask("GET", OBJ, **SEALS)
    environ = {key.replace(".", "__"): value for key, value in as_read(found.headers).items()}
    put = cluster.ask("PUT", "/v1/a/c/damaged", {"Etag": found.headers["Etag"]}, (found.body or b"")[:-1] + b"?", **environ)
    assert put.status == 422 and cluster.ask("HEAD", "/v1/a/c/damaged").status == 404


def test_a_body_that_needs_no_key_of_the_client_is_never_sealed(cluster: EncryptedCluster) -> None:
    cluster.ask("PUT", OBJ, {}, BODY)
    got = cluster.ask("GET", OBJ, **SEALS)
    assert got.body == BODY and as_read(got.headers)[SEALED] is None
