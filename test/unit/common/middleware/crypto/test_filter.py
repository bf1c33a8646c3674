"""The filter ``encryption`` over an app that answers as it is told: damage, footers of others, what Swift wrote."""

from __future__ import annotations

import json
from base64 import b64decode
from hashlib import md5
from pathlib import Path
from typing import Any

import pytest

from keelstore.common.errors import BackendError
from keelstore.common.headers import Headers
from keelstore.common.http import Response
from keelstore.common.middleware.crypto import meta
from keelstore.common.middleware.crypto.encryption import Encryption, filter_factory
from keelstore.common.middleware.crypto.keys import CALLBACK
from keelstore.common.middleware.crypto.listing import decrypted_listing
from keelstore.common.registry import forget_all, published
from test.support.fakes import Breaking
from test.unit.common.middleware.crypto.helpers import OTHER, ROOT, Keeper, encrypted
from test.unit.common.middleware.helpers import Inner, call

WRITTEN = json.loads((Path(__file__).parent / "written_by_swift.json").read_text())
OBJ = "/v1/a/c/o"
HELLO = "5d41402abc4b2a76b9719d911017c592"
FOOTERS = "swift.callback.update_footers"
SECRETS = {None: ROOT, "new": OTHER}


def stored(headers: dict[str, str] | None = None, body: bytes = b"hello", **kwargs: Any) -> tuple[Headers, bytes]:
    """What a PUT leaves behind."""
    keeper = Keeper()
    assert call(encrypted(keeper, **kwargs), "PUT", OBJ, body=body, headers=headers or {}).status == 201
    found = Headers((key[5:].replace("_", "-"), value) for key, value in keeper.environ.items() if key.startswith("HTTP_X_OBJECT"))
    found.update(keeper.footers)
    found["Etag"] = md5(keeper.body).hexdigest()
    found["Content-Length"] = str(len(keeper.body))
    found["Content-Type"] = "text/plain"
    return found, keeper.body


def read(headers: Headers, body: Any = b"", status: int = 200, method: str = "GET", **kwargs: Any) -> Any:
    response = Response(status, Headers(headers), body) if isinstance(body, bytes) else Response(status, Headers(headers), app_iter=body)
    return call(encrypted(Keeper(response), by_id=SECRETS), method, path=kwargs.pop("path", OBJ), **kwargs)


@pytest.mark.parametrize("item", WRITTEN, ids=[item["name"] for item in WRITTEN])
def test_what_swift_wrote_is_read(item: dict[str, Any]) -> None:
    got = read(Headers(item["headers"]), b64decode(item["body"]), path=item["path"])
    assert (got.status, got.body) == (200, item["plain"].encode())
    assert got.headers["Etag"] == md5(got.body).hexdigest()
    assert {name: got.headers[name] for name in item["user"]} == item["user"]
    hashes = [{"name": "o", "hash": item["headers"].get(meta.LISTING_ETAG, item["headers"]["Etag"])}]
    container = item["path"].rsplit("/", item["path"].count("/") - 3)[0]
    listing = read(Headers({"Content-Type": "application/json; charset=utf-8"}), json.dumps(hashes).encode(), path=container)
    assert json.loads(listing.body) == [{"name": "o", "hash": item["listed"]}]


def test_case_C17_what_swift_wrote_under_python_2_is_read() -> None:
    item = next(item for item in WRITTEN if item["name"] == "version 2")
    headers = {}
    for name, value in item["headers"].items():
        own = meta.quoted_key_id({"v": "2", "path": "/a/c\xc3\xa4/\xc3\xa4"})
        headers[name] = value.replace(own, meta.quoted_key_id({"v": "2", "path": "/a/cä/ä"}))
    assert headers != item["headers"]
    headers["Content-Type"] = "message/rfc822"
    got = read(Headers(headers), b64decode(item["body"]), path=item["path"])
    assert (got.body, got.headers["X-Object-Meta-A"], got.headers["Content-Type"]) == (b"two", "b", "message/rfc822")
    rows = json.dumps([{"name": "ä", "hash": headers[meta.LISTING_ETAG]}]).encode()
    listing = read(Headers({"Content-Type": "application/json"}), rows, path="/v1/a/c\xc3\xa4")
    assert json.loads(listing.body) == [{"name": "ä", "hash": md5(b"two").hexdigest()}]


# -- answers that cannot be given ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "value"), [
    (meta.BODY_META, None), (meta.ETAG, None), (meta.BODY_META, "junk"), (meta.ETAG, "junk"), (meta.ETAG_MAC, "junk"),
    (meta.BODY_META, meta.text_meta(bytes(16))), (meta.USER_META, "junk"), (meta.USER_META_PREFIX + "A", "junk"),
    (meta.USER_META_PREFIX + "A", "YWJj; swift_meta=junk"), (meta.LISTING_ETAG, "YWJj; swift_meta=junk"),
    (meta.BODY_META, meta.encode({"cipher": "AES_CTR_256", "iv": "AAAAAAAAAAAAAAAAAAAAAA==", "key_id": {"v": "2"}})),
])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_damaged_crypto_meta_is_an_error(name: str, value: str | None, method: str, caplog: Any) -> None:
    headers, body = stored({"X-Object-Meta-A": "b"})
    headers[name] = value
    source = Breaking([body])
    got = read(headers, source, method=method)
    assert (got.status, got.headers["Content-Type"]) == (500, "text/plain") and source.is_closed
    assert got.body == (b"" if method == "HEAD" else got.body) and body not in got.body
    assert OBJ in caplog.text and "hello" not in caplog.text and ROOT.hex() not in caplog.text


def test_user_metadata_without_what_it_shares_has_the_objects_own_key() -> None:
    headers, body = stored({"X-Object-Meta-A": "b"})
    del headers[meta.USER_META]
    assert read(headers, body).headers["X-Object-Meta-A"] == "b"


@pytest.mark.parametrize("status", [304, 404, 412, 416])
def test_headers_of_other_answers_are_decrypted_too(status: int) -> None:
    headers, _ = stored({"X-Object-Meta-A": "b"})
    headers["Content-Length"] = "0"
    got = read(headers, b"", status)
    assert (got.status, got.headers["Etag"], got.headers["X-Object-Meta-A"]) == (status, HELLO, "b")
    assert "X-Backend-Crypto-Cipher" not in got.headers and not [name for name in got.headers if "Sysmeta-Crypto" in name]


@pytest.mark.parametrize("headers", [{}, {"Content-Range": "junk"}, {"Content-Type": "multipart/byteranges"}])
def test_a_part_that_does_not_tell_where_it_is_from_is_an_error(headers: dict[str, str]) -> None:
    found, body = stored()
    found.update(headers)
    assert read(found, body, 206).status == 500


@pytest.mark.parametrize("sizes", [[1], [7], [64], [1000]])
def test_several_ranges_in_any_pieces(sizes: list[int]) -> None:
    headers, sealed = stored(body=bytes(range(256)))
    parts = [(0, 3), (250, 255), (16, 31)]

    def message(data: bytes) -> bytes:
        return b"".join(b"--B\r\nContent-Type: x\r\ncontent-range:  bytes %d-%d/256\r\n\r\n%b\r\n" % (a, b, data[a:b + 1])
                        for a, b in parts) + b"--B--"

    whole = message(sealed)
    headers["Content-Type"], headers["Content-Length"] = "multipart/byteranges;boundary=B", str(len(whole))
    source = Breaking([whole[at:at + sizes[0]] for at in range(0, len(whole), sizes[0])])
    got = read(headers, source, 206)
    assert got.body == message(bytes(range(256))) and source.is_closed
    for cut in (3, 40, len(whole) - 1):
        with pytest.raises(BackendError):
            read(headers, Breaking([whole[:cut]]), 206)


def test_a_body_that_breaks_off_breaks_off() -> None:
    headers, body = stored()
    source = Breaking([body[:2]], BackendError("gone"))
    with pytest.raises(BackendError):
        read(headers, source)
    assert source.is_closed


def test_without_a_keymaster_nothing_is_given_or_taken() -> None:
    headers, body = stored()
    keeper = Keeper(Response(200, headers, body))
    app = encrypted(keeper).app
    for method in ("PUT", "POST", "GET"):
        got = call(app, method, body=b"hello", headers={"X-Object-Meta-A": "b"})
        assert (got.status, got.body) == (500, b"Unable to retrieve encryption keys.")
    assert keeper.body == b""
    keeper.response = Response(200, {"Content-Type": "application/json"}, json.dumps([{"hash": headers[meta.LISTING_ETAG]}]))
    assert call(app, "GET", "/v1/a/c").status == 500


@pytest.mark.parametrize("fetch", [lambda key_id=None: {}, lambda key_id=None: {"object": b"short", "container": b"short", "id": {}},
                                   lambda key_id=None: 1 / 0])
def test_a_foreign_keymaster_that_fails_is_an_error(fetch: Any) -> None:
    headers, body = stored()
    keeper = Keeper(Response(200, headers, body))
    app = encrypted(keeper).app
    for method in ("PUT", "POST", "GET"):
        got = call(app, method, body=b"hello", headers={"X-Object-Meta-A": "b", "If-Match": "x"}, **{CALLBACK: fetch})
        assert got.status == 500
    assert keeper.body == b""


# -- writes ----------------------------------------------------------------------------------------------------------------


def test_footers_of_others() -> None:
    def others(footers: Any) -> None:
        footers.update({"Etag": HELLO, "X-Object-Sysmeta-Other": "1", meta.LISTING_ETAG: "told; s3_etag=1"})

    keeper = Keeper()
    assert call(encrypted(keeper), "PUT", body=b"hello", headers={"Etag": "bad"}, **{FOOTERS: others}).status == 201
    assert keeper.footers["X-Object-Sysmeta-Other"] == "1" and "Etag" not in keeper.footers
    listing = json.dumps([{"hash": keeper.footers[meta.LISTING_ETAG]}]).encode()
    assert json.loads(decrypted_listing(listing, keeper.environ[CALLBACK], print)) == [{"hash": "told; s3_etag=1"}]


@pytest.mark.parametrize(("headers", "footers", "listed"), [
    ({}, {}, HELLO),
    ({meta.LISTING_ETAG: "header"}, {}, "header"),
    ({meta.LISTING_ETAG: "header"}, {meta.LISTING_ETAG: "footer"}, "footer"),
    ({"X-Backend-Container-Update-Override-Etag": "old"}, {}, "old"),
    ({meta.LISTING_ETAG: "header"}, {"X-Backend-Container-Update-Override-Etag": "old"}, "header"),
    ({}, {"X-Backend-Container-Update-Override-Etag": "old"}, "old"),
])
def test_what_the_listing_says(headers: dict[str, str], footers: dict[str, str], listed: str) -> None:
    keeper = Keeper()
    call(encrypted(keeper), "PUT", body=b"hello", headers=headers, **{FOOTERS: lambda found: found.update(footers)})
    listing = json.dumps([{"hash": keeper.footers[meta.LISTING_ETAG]}]).encode()
    assert json.loads(decrypted_listing(listing, keeper.environ[CALLBACK], print)) == [{"hash": listed}]
    assert "X-Backend-Container-Update-Override-Etag" not in keeper.footers


def test_an_etag_of_nothing_that_a_listing_is_told_of_an_empty_body_stays() -> None:
    keeper = Keeper()
    call(encrypted(keeper), "PUT", body=b"", headers={meta.LISTING_ETAG: md5().hexdigest()})
    assert keeper.footers == {}


def test_the_etag_of_an_error_is_left_alone() -> None:
    keeper = Keeper(Response(503, {"Etag": "x"}, b""))
    assert call(encrypted(keeper), "PUT", body=b"hello").headers["Etag"] == "x"


def test_the_body_can_be_read_as_a_file() -> None:
    bodies = []

    def app(environ: Any, start_response: Any) -> Any:
        source = environ["wsgi.input"]
        bodies.append(source.read1(3) + source.read(4) + source.readline() + source.read() + source.read(1))
        return Response(201, body=b"")(environ, start_response)

    call(encrypted(app), "PUT", body=b"hello\nworld, and more")
    assert len(bodies[0]) == len(b"hello\nworld, and more")


@pytest.mark.parametrize(("method", "path"), [
    ("PUT", "/v1/a/c"), ("POST", "/v1/a/c"), ("DELETE", "/v1/a/c/o"), ("PUT", "/v1/a/c/"), ("GET", "/v1/a"), ("GET", "/info"),
    ("HEAD", "/v1/a/c"), ("OPTIONS", "/v1/a/c/o"),
])
def test_what_is_none_of_its_business(method: str, path: str) -> None:
    inner = Inner(status=200, body=b"x")
    got = call(encrypted(inner), method, path, headers={"X-Object-Meta-A": "b", "X-Container-Meta-B": "c"})
    assert got.status == 200 and inner.asked[0]["HTTP_X_OBJECT_META_A"] == "b" and FOOTERS not in inner.asked[0]


def test_conditions() -> None:
    inner = Inner(status=200)
    call(encrypted(inner, by_id=SECRETS), "GET", OBJ, headers={
        "If-Match": f'"{HELLO}", *,, abc', "If-None-Match": "*", "X-Backend-Etag-Is-At": "X-Object-Sysmeta-Slo-Etag"})
    asked = inner.asked[0]
    tags = asked["HTTP_IF_MATCH"].split(", ")
    assert tags[:2] == [f'"{HELLO}"', '"D5ckKoirY8I4rsEMTMZgun6mACpjkSJJjH1ws4T6psI="']
    assert len(tags) == 7 and "*" in tags and '"abc"' in tags
    assert asked["HTTP_IF_NONE_MATCH"] == "*"
    assert asked["HTTP_X_BACKEND_ETAG_IS_AT"] == "X-Object-Sysmeta-Slo-Etag,X-Object-Sysmeta-Crypto-Etag-Mac"
    call(encrypted(inner), "GET", headers={"If-None-Match": "*"})
    assert "HTTP_X_BACKEND_ETAG_IS_AT" not in inner.asked[1]


# -- listings --------------------------------------------------------------------------------------------------------------


def test_only_etags_of_a_listing_change() -> None:
    headers, _ = stored()
    rows: list[dict[str, Any]] = [{"name": '"hash": "x; swift_meta=y"', "hash": headers[meta.LISTING_ETAG], "bytes": 5}, {"subdir": "hash"},
            {"hash": "plain; slo_etag=\"1\"", "name": "swift_meta=\u00e4"}, {"hash": "YWJj; swift_meta=junk", "name": "hash"},
            {"hash": headers[meta.LISTING_ETAG].replace("AES", "DES"), "name": "z"}]
    for indent in (None, 1):
        data = json.dumps(rows, indent=indent).encode()
        got = read(Headers({"Content-Type": "application/json; charset=utf-8", "Content-Length": str(len(data))}), data, path="/v1/a/c")
        found = json.loads(got.body)
        assert [row.get("hash") for row in found] == [HELLO, None, 'plain; slo_etag="1"', "<unknown>", "<unknown>"]
        assert [dict(row, hash=0) for row in found] == [dict(row, hash=0) for row in rows]
        assert got.headers["Content-Length"] == str(len(got.body))


@pytest.mark.parametrize(("status", "kind"), [(200, "text/plain"), (404, "application/json")])
def test_what_is_no_listing_is_left_alone(status: int, kind: str) -> None:
    data = b'[{"hash": "YWJj; swift_meta=junk"}]'
    assert read(Headers({"Content-Type": kind}), data, status, path="/v1/a/c").body == data


# -- configuration ---------------------------------------------------------------------------------------------------------


def test_factory(tmp_path: Path) -> None:
    forget_all()
    app = filter_factory({"swift_dir": str(tmp_path)}, disable_encryption="yes")(Inner(status=200))
    assert isinstance(app, Encryption) and not app.is_enabled
    assert "encryption" not in published() and published(admin=True)["admin"]["encryption"] == {"enabled": False}
    filter_factory({"swift_dir": str(tmp_path)})
    assert published(admin=True)["admin"]["encryption"] == {"enabled": True}
    forget_all()
