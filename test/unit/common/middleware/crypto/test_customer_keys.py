"""Objects whose body needs a key of the client beside ours, and writes that ask to be encrypted."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import md5
from typing import Any

import pytest

from keelstore.common.http import CUSTOMER_KEY, ENCRYPTS
from keelstore.common.middleware.crypto import cipher, meta
from test.unit.common.middleware.crypto.helpers import EncryptedCluster, encrypted

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
