import pytest

from keelstore.common.http import Response
from test.support.fakes import DOWN

A, C = "/v1/AUTH_a", "/v1/AUTH_a/c"


def answering(method, status, **headers):
    return lambda call: (status, headers) if call.kind == "container" and call.method == method else None


def test_head_and_get(proxy):
    proxy.backend.container_headers.update({"X-Container-Read": "r", "X-Container-Write": "w", "X-Container-Meta-A": "b",
                                            "X-Container-Sync-Key": "k"})
    response = proxy.ask("HEAD", C)
    assert response.status == 204
    assert (response.headers["X-Container-Read"], response.headers["X-Storage-Policy"]) == ("r", "gold")
    hidden = proxy.ask("GET", C, swift_owner=False).headers
    assert hidden["X-Container-Meta-A"] == "b"
    for name in ("X-Container-Read", "X-Container-Write", "X-Container-Sync-Key"):
        assert name not in hidden


@pytest.mark.parametrize(("replies", "expected"), [
    ([404] * 5, 404), ([404, DOWN, DOWN, DOWN, DOWN], 503), ([DOWN] * 5, 503), ([DOWN, 204], 204),
    ([(204, {"X-Put-Timestamp": "0000000000.00000"})] * 3 + [404] * 2, 404),
])
def test_read_status_matrix(make_proxy, replies, expected):
    proxy = make_proxy(handoffs=2)
    proxy.script("container", "HEAD", *replies)
    assert proxy.ask("HEAD", C).status == expected


@pytest.mark.parametrize(("method", "replies", "expected"), [
    ("PUT", [201, 201, 201], 201), ("PUT", [202, 202, 202], 202), ("PUT", [201, 202, 202], 202), ("PUT", [201, DOWN, DOWN], 503),
    ("PUT", [409, 409, 201], 409), ("POST", [204, 204, 404], 204), ("POST", [404, 404, 404], 404),
    ("DELETE", [204, 204, 204], 204), ("DELETE", [409, 409, 409], 409), ("DELETE", [404, 404, 204], 404),
    ("DELETE", [204, 503, DOWN], 503),
])
def test_write_status_matrix(make_proxy, method, replies, expected):
    proxy = make_proxy(handoffs=0)
    proxy.script("container", method, *replies)
    assert proxy.ask(method, C).status == expected


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "POST", "DELETE"])
def test_without_an_account_all_is_404(proxy, method):
    proxy.backend.rules.append(lambda call: 404 if call.kind == "account" else None)
    assert proxy.ask(method, C).status == 404
    assert not proxy.sent("container", method)


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "POST", "DELETE"])
def test_an_account_that_cannot_be_asked_is_503(proxy, method):
    proxy.backend.rules.append(lambda call: DOWN if call.kind == "account" else None)
    assert proxy.ask(method, C).status == 503


def test_dot_accounts_need_no_account(proxy):
    proxy.backend.rules.append(lambda call: 404 if call.kind == "account" else None)
    assert proxy.ask("GET", "/v1/.expiring_objects/1").status == 204


def test_put_creates_the_account(make_proxy):
    proxy = make_proxy(account_autocreate=True)
    made = []

    def accounts(call):
        if call.kind != "account":
            return 201 if call.method == "PUT" else None
        if call.method == "PUT":
            made.append(call)
            return 201
        return 204 if made else 404

    proxy.backend.rules.append(accounts)
    assert proxy.ask("PUT", C).status == 201
    assert len(made) == 3


def test_put_when_the_account_cannot_be_made_is_503(make_proxy):
    proxy = make_proxy(account_autocreate=True)
    proxy.backend.rules.append(lambda call: (403 if call.method == "PUT" else 404) if call.kind == "account" else None)
    assert proxy.ask("PUT", C).status == 503


def test_account_updates_are_dealt_out(proxy):
    proxy.backend.rules.append(lambda call: 201 if call.method == "PUT" else None)
    proxy.ask("PUT", C)
    sent = [call.headers for call in proxy.sent("container", "PUT")]
    assert sorted(own["X-Account-Host"] for own in sent) == [f"10.0.0.{n}:6202" for n in range(3)]
    assert sorted(own["X-Account-Device"] for own in sent) == ["ac0", "ac1", "ac2"]
    assert {own["X-Backend-Storage-Policy-Default"] for own in sent} == {"0"}
    proxy.script("container", "POST", 204, 204, 204)
    proxy.ask("POST", C)
    assert "X-Account-Host" not in proxy.sent("container", "POST")[0].headers


@pytest.mark.parametrize(("name", "expected"), [("silver", "1"), ("SILVER", "1"), ("gold", "0"), ("first", "0")])
def test_policy_by_name(proxy, name, expected):
    proxy.backend.rules.append(lambda call: 201 if call.method == "PUT" else None)
    assert proxy.ask("PUT", C, {"X-Storage-Policy": name}).status == 201
    assert proxy.sent("container", "PUT")[0].headers["X-Backend-Storage-Policy-Index"] == expected


@pytest.mark.parametrize("headers", [
    {"X-Storage-Policy": "nosuch"}, {"X-Container-Read": ".r:"}, {"X-Container-Write": ".r:*"}, {"X-Container-Read": ".x:y"},
    {"X-Container-Meta-A": "\xff"}, {f"X-Container-Meta-{n}": "v" for n in range(91)},
])
def test_bad_put_is_400(proxy, headers):
    assert proxy.ask("PUT", C, headers).status == 400
    assert not proxy.sent("container", "PUT")


def test_acls_are_cleaned_and_the_owners(proxy):
    proxy.backend.rules.append(lambda call: 201 if call.method == "PUT" else None)
    proxy.ask("PUT", C, {"X-Container-Read": " .referrer : *, bob ,", "X-Remove-Container-Write": "x"})
    sent = proxy.sent("container", "PUT")[0].headers
    assert (sent["X-Container-Read"], sent["X-Container-Write"]) == (".r:*,bob", "")
    proxy.backend.calls.clear()
    assert proxy.ask("PUT", C, {"X-Container-Read": "bob", "X-Container-Meta-A": "b"}, swift_owner=False).status == 201
    sent = proxy.sent("container", "PUT")[0].headers
    assert "X-Container-Read" not in sent
    assert sent["X-Container-Meta-A"] == "b"


def test_most_containers_of_an_account(make_proxy):
    proxy = make_proxy(max_containers_per_account=3, max_containers_whitelist=("AUTH_big",))
    proxy.backend.rules.append(lambda call: 404 if call.method == "HEAD" and call.kind == "container" else None)
    proxy.backend.rules.append(lambda call: 201 if call.method == "PUT" else None)
    assert proxy.ask("PUT", C).status == 403
    assert proxy.ask("PUT", "/v1/AUTH_big/c").status == 201
    proxy = make_proxy(max_containers_per_account=3)
    proxy.backend.rules.append(lambda call: 202 if call.method == "PUT" else None)
    assert proxy.ask("PUT", C).status == 202  # it is there already


def test_over_long_names_are_a_page(proxy):
    response = proxy.ask("PUT", f"{A}/{'c' * 257}")
    assert (response.status, response.headers["Content-Type"]) == (400, "text/html; charset=UTF-8")


def test_info_is_cached_as_swift_does(proxy):
    proxy.backend.container_headers.update({
        "X-Container-Read": "r", "X-Container-Meta-Access-Control-Allow-Origin": "http://x", "X-Container-Meta-A": "b",
        "X-Container-Sysmeta-S": "t", "X-Backend-Storage-Policy-Index": "1", "X-Backend-Put-Timestamp": "2.00000"})
    proxy.ask("HEAD", C)
    assert proxy.cache.get("container/AUTH_a/c") == {
        "status": 204, "read_acl": "r", "write_acl": None, "sync_to": None, "sync_key": None, "object_count": "5",
        "bytes": "7", "versions": None, "storage_policy": "1",
        "cors": {"allow_origin": "http://x", "expose_headers": None, "max_age": None}, "meta": {"a": "b"},
        "sysmeta": {"s": "t"}, "sharding_state": "unsharded", "created_at": "0000000001.00000", "put_timestamp": "2.00000",
        "delete_timestamp": None, "status_changed_at": None}


def test_writes_forget_what_was_cached(proxy):
    proxy.backend.rules.append(lambda call: {"PUT": 202, "POST": 204, "DELETE": 204}.get(call.method))
    for method in ("PUT", "POST", "DELETE"):
        proxy.ask("HEAD", C)
        assert "container/AUTH_a/c" in proxy.cache.values
        proxy.ask(method, C)
        assert "container/AUTH_a/c" not in proxy.cache.values


def test_cached_container_serves_object_requests(proxy):
    for _ in range(3):
        proxy.ask("GET", f"{C}/o")
    assert len(proxy.sent("container", "HEAD")) == 1
    assert len(proxy.sent("account", "HEAD")) == 1


def test_update_is_private(proxy):
    assert proxy.ask("UPDATE", C, body=b"[]").status == 405
    proxy.script("container", "UPDATE", 202, 202, 202)
    response = proxy.ask("UPDATE", C, {"X-Backend-Allow-Private-Methods": "true", "Content-Length": "2",
                                       "X-Backend-Storage-Policy-Index": "0"}, body=b"[]")
    assert response.status == 202
    assert [call.body for call in proxy.sent("container", "UPDATE")] == [b"[]"] * 3


# -- authorisation -----------------------------------------------------------------------------------------------------


def denying(seen):
    def authorize(request):
        seen.append(request.acl)
        return None if request.acl == "yes" else Response(403)

    return authorize


@pytest.mark.parametrize(("path", "method", "acls"), [
    (C, "GET", ["yes"]), (f"{C}/o", "GET", ["yes"]), (f"{C}/o", "HEAD", ["yes"]),
])
def test_the_read_acl_is_what_authorisation_sees(proxy, path, method, acls):
    proxy.backend.container_headers["X-Container-Read"] = "yes"
    seen: list[str | None] = []
    response = proxy.ask(method, path, swift__authorize=denying(seen))
    assert response.status != 403
    assert seen == acls


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE"])
def test_the_write_acl_is_for_objects(proxy, method):
    proxy.backend.container_headers["X-Container-Write"] = "yes"
    seen: list[str | None] = []
    proxy.ask(method, f"{C}/o", swift__authorize=denying(seen))
    assert seen == ["yes"]
    assert proxy.ask(method, C, swift__authorize=denying(seen)).status == 403
    assert seen == ["yes", None]


def test_missing_things_are_not_told_to_strangers(proxy):
    proxy.backend.rules.append(lambda call: 404)
    for path in (C, f"{C}/o"):
        assert proxy.ask("GET", path, swift__authorize=denying([])).status == 403
