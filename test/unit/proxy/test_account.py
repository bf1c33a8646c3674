import json

import pytest

from test.support.fakes import DOWN

A = "/v1/AUTH_a"


def absent(call):
    return 404 if call.kind == "account" and call.method in ("HEAD", "GET", "POST") else None


def test_head_and_get(proxy):
    proxy.backend.account_headers.update({"X-Account-Meta-A": "b", "X-Put-Timestamp": "1.00000"})
    response = proxy.ask("HEAD", A)
    assert (response.status, response.headers["X-Account-Meta-A"]) == (204, "b")
    assert response.headers["Accept-Ranges"] == "bytes"
    assert "X-Put-Timestamp" not in response.headers
    proxy.ask("GET", A, query="format=xml&prefix=x%20y")
    assert proxy.sent("account", "GET")[0].query == "format=json&prefix=x%20y"


@pytest.mark.parametrize(("replies", "expected"), [
    ([404] * 5, 404), ([404, DOWN, DOWN, DOWN, DOWN], 503), ([DOWN] * 5, 503), ([DOWN, 204], 204),
    ([(404, {"X-Account-Status": "Deleted"})] * 5, 410),
])
def test_status_matrix(make_proxy, replies, expected):
    proxy = make_proxy(handoffs=2)
    proxy.script("account", "HEAD", *replies)
    assert proxy.ask("HEAD", A).status == expected


def test_autocreate_fakes_an_empty_account(make_proxy):
    proxy = make_proxy(account_autocreate=True)
    proxy.backend.rules.append(absent)
    response = proxy.ask("GET", A)
    assert (response.status, response.body) == (200, b"[]")
    assert response.headers["X-Account-Container-Count"] == "0"
    assert response.headers["Content-Type"] == "application/json; charset=utf-8"
    assert proxy.ask("HEAD", A).status == 204


def test_autocreate_on_post(make_proxy):
    proxy = make_proxy(account_autocreate=True)
    proxy.script("account", "POST", 404, 404, 404, 204, 204, 204)
    proxy.backend.rules.append(lambda call: 201 if call.method == "PUT" else absent(call))
    assert proxy.ask("POST", A, {"X-Account-Meta-A": "b", "X-Account-Sysmeta-S": "t"}).status == 204
    put = proxy.sent("account", "PUT")[0].headers
    assert put["X-Account-Sysmeta-S"] == "t"
    assert "X-Account-Meta-A" not in put


@pytest.mark.parametrize(("managed", "method", "query", "expected"), [
    (False, "PUT", "", 405), (False, "DELETE", "", 405), (False, "DELETE", "x=y", 400), (True, "DELETE", "x=y", 400),
    (True, "PUT", "", 201), (True, "DELETE", "", 204), (False, "COPY", "", 405),
])
def test_management(make_proxy, managed, method, query, expected):
    proxy = make_proxy(allow_account_management=managed)
    proxy.backend.rules.append(lambda call: {"PUT": 201, "DELETE": 204}.get(call.method))
    response = proxy.ask(method, A, query=query)
    assert response.status == expected
    if expected == 405:
        allowed = {"GET", "HEAD", "POST", "OPTIONS"} | ({"PUT", "DELETE"} if managed else set())
        assert set(response.headers["Allow"].split(", ")) == allowed


def test_metadata_is_transferred_and_removed(proxy):
    proxy.script("account", "POST", 204, 204, 204)
    proxy.ask("POST", A, {"X-Account-Meta-A": "b", "X-Remove-Account-Meta-C": "x", "X-Remove-Account-Meta-A": "x",
                          "X-Container-Meta-D": "e", "X-Foo": "bar", "Cookie": "secret", "X-Auth-Token": "t"})
    sent = proxy.sent("account", "POST")[0].headers
    assert sent["X-Account-Meta-A"] == "b"
    assert sent["X-Account-Meta-C"] == ""
    for name in ("X-Container-Meta-D", "X-Foo", "Cookie", "X-Auth-Token", "X-Remove-Account-Meta-C"):
        assert name not in sent


@pytest.mark.parametrize("headers", [
    {"X-Account-Meta-A": "\xff"}, {"X-Account-Meta-": "x"}, {f"X-Account-Meta-{n}": "v" for n in range(91)},
    {"X-Account-Access-Control": "{"}, {"X-Account-Access-Control": '{"foo": []}'},
    {"X-Account-Access-Control": '{"admin": "x"}'}, {"X-Account-Access-Control": "[]"},
])
def test_bad_metadata_is_400(proxy, headers):
    assert proxy.ask("POST", A, headers).status == 400
    assert not proxy.sent("account", "POST")


def test_account_acl_is_the_owners(proxy):
    proxy.script("account", "POST", 204, 204, 204)
    proxy.ask("POST", A, {"X-Account-Access-Control": '{"read-only": ["x"],  "admin":["\xc3\xa9"]}'})
    stored = proxy.sent("account", "POST")[0].headers["X-Account-Sysmeta-Core-Access-Control"]
    assert json.loads(stored) == {"admin": ["\u00e9"], "read-only": ["x"]}
    assert stored == '{"admin":["\\u00e9"],"read-only":["x"]}'
    proxy.backend.account_headers["X-Account-Sysmeta-Core-Access-Control"] = stored
    proxy.backend.account_headers["X-Account-Meta-Temp-Url-Key"] = "secret"
    shown = proxy.ask("HEAD", A).headers
    assert shown["X-Account-Access-Control"] == stored
    assert shown["X-Account-Meta-Temp-Url-Key"] == "secret"
    hidden = proxy.ask("HEAD", A, swift_owner=False).headers
    assert "X-Account-Access-Control" not in hidden
    assert "X-Account-Meta-Temp-Url-Key" not in hidden


@pytest.mark.parametrize(("path", "query", "expected"), [
    ("/v1/" + "a" * 257, "", 400), ("/v1/" + "a" * 256, "", 204), ("/v1/." + "a" * 511, "", 204), (A, "limit=10001", 412),
    (A, "limit=x", 204), (A, "marker=%FF", 400), (A, "limit=10000", 204),
])
def test_names_and_parameters(proxy, path, query, expected):
    assert proxy.ask("GET", path, query=query).status == expected


def test_info_is_cached_as_swift_does(proxy):
    proxy.backend.account_headers.update({
        "X-Account-Bytes-Used": "12", "X-Account-Object-Count": "4", "X-Account-Meta-Color": "Red",
        "X-Account-Sysmeta-S": "t", "X-Account-Storage-Policy-Gold-Container-Count": "2",
        "X-Account-Storage-Policy-Gold-Bytes-Used": "9"})
    proxy.ask("HEAD", A)
    assert proxy.cache.get("account/AUTH_a") == {
        "status": 204, "container_count": "3", "total_object_count": "4", "bytes": "12", "meta": {"color": "Red"},
        "sysmeta": {"s": "t"}, "storage_policies": {"0": {"container_count": 2, "bytes": 9}},
        "account_really_exists": True}
    assert proxy.cache.ttls["account/AUTH_a"] == 60


def test_absence_is_cached_for_less(proxy):
    proxy.backend.rules.append(absent)
    proxy.ask("HEAD", A)
    assert proxy.cache.ttls["account/AUTH_a"] == 6
    assert proxy.ask("PUT", f"{A}/c").status == 404
    assert len(proxy.sent("account", "HEAD")) == 6


def test_doubt_is_not_cached(proxy):
    proxy.backend.rules.append(lambda call: DOWN)
    proxy.ask("HEAD", A)
    assert not proxy.cache.values
