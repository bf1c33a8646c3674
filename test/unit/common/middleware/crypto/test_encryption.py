"""The filter ``encryption`` over a whole cluster: what is stored is not readable, what is read is what was written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import md5
from pathlib import Path
from typing import Any

import pytest

from keelstore.common.byteranges import parse
from keelstore.common.http import BODY_CHECKED
from keelstore.common.middleware.copy import Copy, CopyOptions
from keelstore.common.middleware.crypto import meta
from test.unit.common.middleware.crypto.helpers import OTHER, ROOT, EncryptedCluster, encrypted

OBJ, CON = "/v1/a/c/o", "/v1/a/c"
SECRET_WORD = "swordfish"
SMALL = b"a small body with a swordfish in it"
LARGE = bytes(range(256)) * 800 + b"swordfish"  # more than is sent whole


def etag(body: bytes) -> str:
    return md5(body).hexdigest()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: Any) -> Iterator[EncryptedCluster]:
    made = EncryptedCluster(tmp_path_factory.mktemp("cluster"))
    yield made
    made.close()


def listed(cluster: EncryptedCluster, raw: bool = False) -> dict[str, Any]:
    found = (cluster.raw if raw else cluster.ask)("GET", CON, query="format=json")
    return {entry["name"]: entry for entry in json.loads(found.body or b"[]")}


@pytest.mark.parametrize("body", [SMALL, LARGE], ids=["small", "large"])
def test_what_is_stored_is_not_what_was_sent(cluster: EncryptedCluster, body: bytes, tmp_path: Path) -> None:
    put = cluster.ask("PUT", OBJ, {"X-Object-Meta-Word": SECRET_WORD, "X-Object-Meta-Empty": "", "Content-Type": "text/x"}, body)
    assert (put.status, put.headers["Etag"]) == (201, etag(body))
    raw = cluster.raw("GET", OBJ)
    assert raw.body != body and len(raw.body or b"") == len(body)
    assert raw.headers["Etag"] == etag(raw.body or b"") != etag(body)
    assert "X-Object-Meta-Word" not in raw.headers and raw.headers["X-Object-Meta-Empty"] == ""
    for path in cluster.root.rglob("*.data"):
        assert SECRET_WORD.encode() not in path.read_bytes()
    got = cluster.ask("GET", OBJ)
    assert (got.status, got.body, got.headers["Etag"]) == (200, body, etag(body))
    assert got.headers["X-Object-Meta-Word"] == SECRET_WORD and got.headers["X-Object-Meta-Empty"] == ""
    assert got.headers["X-Backend-Crypto-Cipher"] == "AES_CTR_256"
    assert not [name for name in got.headers if "sysmeta-crypto" in name.lower()]
    got.headers.pop(BODY_CHECKED, None)  # of a body that the server has read before
    head = cluster.ask("HEAD", OBJ)
    assert {**head.headers, "X-Trans-Id": ""} == {**got.headers, "X-Trans-Id": ""}
    entry, stored = listed(cluster)["o"], listed(cluster, raw=True)["o"]
    assert (entry["hash"], entry["bytes"], entry["content_type"]) == (etag(body), len(body), "text/x")
    assert etag(body) not in stored["hash"] and etag(raw.body or b"") not in stored["hash"]


def test_chunked_bodies(cluster: EncryptedCluster) -> None:
    for body in (LARGE, b""):
        import io

        put = cluster.ask("PUT", OBJ, {"Transfer-Encoding": "chunked"}, io.BytesIO(body))
        assert (put.status, put.headers["Etag"]) == (201, etag(body))
        assert cluster.ask("GET", OBJ).body == body


def test_an_empty_body_is_not_encrypted_but_its_metadata_is(cluster: EncryptedCluster) -> None:
    assert cluster.ask("PUT", OBJ, {"X-Object-Meta-Word": SECRET_WORD}).status == 201
    raw = cluster.raw("HEAD", OBJ)
    assert raw.headers["Etag"] == etag(b"") and meta.BODY_META not in raw.headers and meta.LISTING_ETAG not in raw.headers
    got = cluster.ask("GET", OBJ)
    assert (got.body, got.headers["Etag"], got.headers["X-Object-Meta-Word"]) == (b"", etag(b""), SECRET_WORD)
    assert "X-Backend-Crypto-Cipher" not in got.headers
    assert listed(cluster)["o"]["hash"] == etag(b"")


def test_writing_the_same_twice_stores_different_octets(cluster: EncryptedCluster) -> None:
    cluster.ask("PUT", OBJ, {}, SMALL)
    first = cluster.raw("GET", OBJ).body
    cluster.ask("PUT", OBJ, {}, SMALL)
    assert cluster.raw("GET", OBJ).body != first


@pytest.mark.parametrize("body", [SMALL, LARGE, b""], ids=["small", "large", "empty"])
@pytest.mark.parametrize("form", ["{}", '"{}"'])
def test_an_announced_etag_is_that_of_the_plain_body(cluster: EncryptedCluster, body: bytes, form: str) -> None:
    assert cluster.ask("PUT", OBJ, {"Etag": form.format(etag(body).upper())}, body).status == 201
    refused = cluster.ask("PUT", "/v1/a/c/refused", {"Etag": form.format(etag(body + b"x"))}, body)
    assert refused.status == 422
    assert cluster.ask("GET", "/v1/a/c/refused").status == 404


@pytest.mark.parametrize("body", [SMALL, LARGE], ids=["small", "large"])
def test_a_put_that_must_not_replace(cluster: EncryptedCluster, body: bytes) -> None:
    path = f"/v1/a/c/new-{len(body)}"
    assert cluster.ask("PUT", path, {"If-None-Match": "*"}, body).headers["Etag"] == etag(body)
    refused = cluster.ask("PUT", path, {"If-None-Match": "*"}, b"x")
    assert refused.status == 412 and cluster.ask("GET", path).body == body


@pytest.mark.parametrize("asked", ["bytes=0-0", "bytes=15-16", "bytes=16-40", "bytes=100000-", "bytes=-1", "bytes=-30", "bytes=5-204000"])
def test_a_range(cluster: EncryptedCluster, asked: str) -> None:
    cluster.ask("PUT", OBJ, {}, LARGE)
    got = cluster.ask("GET", OBJ, {"Range": asked})
    (span,) = parse(asked, len(LARGE)) or []
    assert (got.status, got.body) == (206, LARGE[span.start:span.stop])
    assert got.headers["Content-Range"] == span.content_range(len(LARGE))


@pytest.mark.parametrize("body", [SMALL, LARGE], ids=["small", "large"])
def test_several_ranges(cluster: EncryptedCluster, body: bytes) -> None:
    cluster.ask("PUT", OBJ, {"Content-Type": "text/x"}, body)
    got = cluster.ask("GET", OBJ, {"Range": "bytes=0-3,17-20,-5"})
    assert got.status == 206
    boundary = got.headers["Content-Type"].partition("boundary=")[2]
    expected = b"".join(
        f"--{boundary}\r\nContent-Type: text/x\r\nContent-Range: bytes {start}-{stop - 1}/{len(body)}\r\n\r\n".encode()
        + body[start:stop] + b"\r\n" for start, stop in ((0, 4), (17, 21), (len(body) - 5, len(body))))
    assert got.body == expected + f"--{boundary}--".encode()
    assert got.headers["Content-Length"] == str(len(got.body or b""))


def test_ranges_that_cannot_be_given(cluster: EncryptedCluster) -> None:
    cluster.ask("PUT", OBJ, {"X-Object-Meta-Word": SECRET_WORD}, SMALL)
    got = cluster.ask("GET", OBJ, {"Range": "bytes=100-"})
    assert got.status == 416 and not [name for name in got.headers if "crypto" in name.lower()]
    assert got.headers.get("Etag", etag(SMALL)) == etag(SMALL)


def test_conditions_are_on_the_plain_etag(cluster: EncryptedCluster) -> None:
    cluster.ask("PUT", OBJ, {"X-Object-Meta-Word": SECRET_WORD}, SMALL)
    own, raw = etag(SMALL), cluster.raw("HEAD", OBJ).headers["Etag"]
    for method in ("GET", "HEAD"):
        for header, status in (
            ({"If-Match": own}, 200), ({"If-Match": f'"x", "{own}"'}, 200), ({"If-Match": "x"}, 412), ({"If-Match": "*"}, 200),
            ({"If-None-Match": f'"{own}"'}, 304), ({"If-None-Match": "x"}, 200), ({"If-None-Match": "*"}, 304),
            ({"If-Match": raw}, 412), ({"If-None-Match": raw}, 200),
        ):
            got = cluster.ask(method, OBJ, header)
            assert got.status == status, (method, header)
            if status != 412:
                assert got.headers["Etag"] == own and got.headers["X-Object-Meta-Word"] == SECRET_WORD
            assert not [name for name in got.headers if "sysmeta-crypto" in name.lower()]


def test_conditions_on_what_is_not_encrypted(cluster: EncryptedCluster) -> None:
    cluster.raw("PUT", OBJ, {}, SMALL)
    assert cluster.ask("GET", OBJ, {"If-Match": etag(SMALL)}).body == SMALL
    assert cluster.ask("GET", OBJ, {"If-None-Match": etag(SMALL)}).status == 304
    assert listed(cluster)["o"]["hash"] == etag(SMALL)


def test_a_post_replaces_metadata(cluster: EncryptedCluster) -> None:
    cluster.ask("PUT", OBJ, {"X-Object-Meta-Old": "x"}, SMALL)
    assert cluster.ask("POST", OBJ, {"X-Object-Meta-Word": "sch\xc3\xb6n", "Content-Type": "text/y"}).status == 202
    got = cluster.ask("GET", OBJ)
    assert got.body == SMALL and "X-Object-Meta-Old" not in got.headers
    assert got.headers["X-Object-Meta-Word"] == "sch\xc3\xb6n"
    assert listed(cluster)["o"]["hash"] == etag(SMALL) and listed(cluster)["o"]["content_type"] == "text/y"
    assert "X-Object-Meta-Word" not in cluster.raw("HEAD", OBJ).headers


def test_limits_are_on_the_plain_metadata(cluster: EncryptedCluster) -> None:
    headers = {f"X-Object-Meta-{number:02}": "v" * 40 for number in range(90)}
    assert cluster.ask("PUT", OBJ, headers, SMALL).status == 201
    assert {name: cluster.ask("HEAD", OBJ).headers[name] for name in headers} == headers
    for method in ("PUT", "POST"):
        assert cluster.ask(method, OBJ, {"X-Object-Meta-A": "v" * 256}, b"").is_success
        refused = cluster.ask(method, OBJ, {"X-Object-Meta-A": "v" * 257}, b"")
        assert refused.status == 400 and b"longer than 256" in (refused.body or b"")
        assert cluster.ask(method, OBJ, {f"X-Object-Meta-{number}": "v" for number in range(91)}, b"").status == 400


def test_names_that_are_not_ascii(cluster: EncryptedCluster) -> None:
    for version in "123":
        app = encrypted(cluster.proxy, version=version)
        for path in ("/v1/a/c/ä", "/v1/a/c//ä/x"):
            assert cluster.through(app, "PUT", path, {"X-Object-Meta-A": "b"}, SMALL).status == 201
            for reader in (app, cluster.app):
                got = cluster.through(reader, "GET", path, {"If-Match": etag(SMALL)})
                assert (got.status, got.body, got.headers["X-Object-Meta-A"]) == (200, SMALL, "b")
        assert listed(cluster)["ä"]["hash"] == listed(cluster)["/ä/x"]["hash"] == etag(SMALL)


def test_rotated_secrets(cluster: EncryptedCluster) -> None:
    cluster.ask("PUT", OBJ, {"X-Object-Meta-A": "b"}, SMALL)
    rotated = encrypted(cluster.proxy, by_id={None: ROOT, "new": OTHER}, active="new")
    got = cluster.through(rotated, "GET", OBJ, {"If-Match": etag(SMALL)})
    assert (got.status, got.body, got.headers["X-Object-Meta-A"]) == (200, SMALL, "b")
    assert cluster.through(rotated, "POST", OBJ, {"X-Object-Meta-A": "c"}).status == 202
    got = cluster.through(rotated, "GET", OBJ)  # its body has the old secret, its metadata the new one
    assert (got.body, got.headers["X-Object-Meta-A"]) == (SMALL, "c")
    cluster.through(rotated, "PUT", "/v1/a/c/new", {}, LARGE)
    assert cluster.through(rotated, "GET", "/v1/a/c/new", {"If-None-Match": etag(LARGE)}).status == 304
    found = json.loads(cluster.through(rotated, "GET", CON, query="format=json").body or b"")
    assert {entry["name"]: entry["hash"] for entry in found if entry["name"] in ("o", "new")} == {
        "o": etag(SMALL), "new": etag(LARGE)}
    # without the new secret: unknown, and no reading of nonsense
    assert listed(cluster)["new"]["hash"] == "<unknown>" and listed(cluster)["o"]["hash"] == etag(SMALL)
    for method in ("GET", "HEAD"):
        assert cluster.ask(method, "/v1/a/c/new").status == 500
        assert cluster.ask(method, OBJ).status == 500


def test_another_secret_of_the_same_id_is_noticed(cluster: EncryptedCluster, caplog: Any) -> None:
    cluster.ask("PUT", OBJ, {}, SMALL)
    wrong = encrypted(cluster.proxy, by_id={None: OTHER})
    got = cluster.through(wrong, "GET", OBJ)
    assert (got.status, got.body) == (500, b"Error decrypting object")
    assert "root secret" in caplog.text and OTHER.hex() not in caplog.text
    found = json.loads(cluster.through(wrong, "GET", CON, query="format=json").body or b"")
    assert {entry["hash"] for entry in found if entry["name"] == "o"} == {"<unknown>"}


def test_switched_off_it_still_reads(cluster: EncryptedCluster) -> None:
    cluster.ask("PUT", OBJ, {"X-Object-Meta-A": "b"}, SMALL)
    off = encrypted(cluster.proxy, is_enabled=False)
    got = cluster.through(off, "GET", OBJ, {"If-Match": etag(SMALL)})
    assert (got.body, got.headers["X-Object-Meta-A"]) == (SMALL, "b")
    assert cluster.through(off, "PUT", OBJ, {"X-Object-Meta-A": "b"}, SMALL).headers["Etag"] == etag(SMALL)
    assert cluster.raw("GET", OBJ).body == SMALL and cluster.raw("GET", OBJ).headers["X-Object-Meta-A"] == "b"


def test_the_override_bypasses_all(cluster: EncryptedCluster) -> None:
    cluster.ask("PUT", OBJ, {}, SMALL)
    got = cluster.ask("GET", OBJ, swift__crypto__override=True)
    assert got.body == cluster.raw("GET", OBJ).body and got.headers[meta.BODY_META]
    cluster.ask("PUT", OBJ, {}, SMALL, swift__crypto__override=True)
    assert cluster.raw("GET", OBJ).body == SMALL


def test_what_a_listing_is_told_by_others_is_encrypted_too(cluster: EncryptedCluster) -> None:
    told = f"{etag(SMALL)}; slo_etag={etag(b'x')}"
    for body in (SMALL, LARGE, b""):
        cluster.ask("PUT", OBJ, {meta.LISTING_ETAG: told}, body)
        assert listed(cluster)["o"]["hash"] == told
        assert "slo_etag" not in listed(cluster, raw=True)["o"]["hash"]
        assert cluster.ask("HEAD", OBJ).headers[meta.LISTING_ETAG] == told
        cluster.ask("POST", OBJ, {"X-Object-Meta-A": "b", "Content-Type": "text/z"})
        assert listed(cluster)["o"]["hash"] == told


def test_copies_are_encrypted_anew(cluster: EncryptedCluster) -> None:
    app = Copy(encrypted(cluster.proxy), CopyOptions())
    for body in (SMALL, LARGE, b""):
        cluster.ask("PUT", OBJ, {"X-Object-Meta-A": "b"}, body)
        copied = cluster.through(app, "COPY", OBJ, {"Destination": "c/copy"})
        assert (copied.status, copied.headers["Etag"]) == (201, etag(body))
        got = cluster.ask("GET", "/v1/a/c/copy")
        assert (got.body, got.headers["Etag"], got.headers["X-Object-Meta-A"]) == (body, etag(body), "b")
        assert listed(cluster)["copy"]["hash"] == etag(body)
        if body:
            assert json.dumps("/a/c/copy") in meta.unquote_plus(cluster.raw("HEAD", "/v1/a/c/copy").headers[meta.BODY_META])


def test_case_C18_scripts_may_read_decrypted_metadata(cluster: EncryptedCluster) -> None:
    cluster.ask("POST", CON, {"X-Container-Meta-Access-Control-Allow-Origin": "*"})
    cluster.ask("PUT", OBJ, {"X-Object-Meta-Word": SECRET_WORD, "X-Object-Meta-Empty": ""}, SMALL)
    got = cluster.ask("GET", OBJ, {"Origin": "http://example.com"})
    exposed = [name.strip() for name in got.headers["Access-Control-Expose-Headers"].split(",")]
    assert {"etag", "x-object-meta-word", "x-object-meta-empty"} <= set(exposed) and len(set(exposed)) == len(exposed)
    assert not [name for name in exposed if "sysmeta" in name]


def test_a_plain_object_is_passed_through_untouched(cluster: EncryptedCluster) -> None:
    cluster.raw("PUT", OBJ, {"X-Object-Meta-A": "b"}, LARGE)
    got = cluster.ask("GET", OBJ, {"Range": "bytes=3-9,20-30"})
    assert got.status == 206 and cluster.ask("GET", OBJ).body == LARGE
    assert cluster.ask("GET", OBJ, {"Range": "bytes=3-9"}).body == LARGE[3:10]


@pytest.mark.parametrize("body", [b"", SMALL, LARGE, LARGE * 8], ids=["empty", "small", "large", "two segments"])
def test_over_erasure_coding(cluster: EncryptedCluster, body: bytes) -> None:
    cluster.ask("PUT", "/v1/a/ec", {"X-Storage-Policy": "ec42"})
    put = cluster.ask("PUT", "/v1/a/ec/o", {"X-Object-Meta-Word": SECRET_WORD, "Etag": etag(body)}, body)
    assert (put.status, put.headers["Etag"]) == (201, etag(body))
    assert cluster.ask("PUT", "/v1/a/ec/bad", {"Etag": "0" * 32}, body).status == 422
    got = cluster.ask("GET", "/v1/a/ec/o")
    assert (got.status, got.body, got.headers["Etag"], got.headers["X-Object-Meta-Word"]) == (200, body, etag(body), SECRET_WORD)
    assert cluster.ask("GET", "/v1/a/ec/o", {"If-None-Match": etag(body)}).status == 304
    assert cluster.ask("GET", "/v1/a/ec/o", {"If-Match": "x"}).status == 412
    (entry,) = json.loads(cluster.ask("GET", "/v1/a/ec", query="format=json").body or b"")
    assert (entry["hash"], entry["bytes"]) == (etag(body), len(body))
    if body:
        assert cluster.raw("GET", "/v1/a/ec/o").body != body
        assert cluster.ask("GET", "/v1/a/ec/o", {"Range": "bytes=5-20"}).body == body[5:21]
        parts = cluster.ask("GET", "/v1/a/ec/o", {"Range": "bytes=1-4,-9"})
        assert parts.status == 206 and body[1:5] in (parts.body or b"") and body[-9:] in (parts.body or b"")
        assert parts.headers["Content-Length"] == str(len(parts.body or b""))


def test_resuming_from_another_node(cluster: EncryptedCluster) -> None:
    cluster.ask("PUT", "/v1/a/c/resumed", {}, LARGE)
    first = next(path for path in cluster.root.rglob("*.data") if path.stat().st_size == len(LARGE))
    first.unlink()
    for _ in range(4):
        assert cluster.ask("GET", "/v1/a/c/resumed").body == LARGE
