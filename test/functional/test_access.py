"""Who may do what: container ACLs, account ACLs, owners' headers, tokens (client API 11, middleware 13)."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from test.support.client import Account, Endpoint, unique


@pytest.fixture
def shared(account: Account, container: str) -> str:
    account.put(container, "o", body=b"data").expect(201)
    return container


def statuses(client: Account, container: str) -> dict[str, int]:
    """What a client may do with a container that holds ``o``; nothing of it is left changed but for new objects."""
    return {
        "GET o": client.get(container, "o").status, "HEAD o": client.head(container, "o").status, "list": client.get(container).status,
        "HEAD c": client.head(container).status, "PUT o": client.put(container, "new", body=b"x").status,
        "POST o": client.post(container, "new").status, "DELETE o": client.delete(container, "new").status,
        "POST c": client.post(container).status, "DELETE c": client.delete(container).status, "PUT c": client.put(container + "-x").status,
        "account": client.get().status,
    }


READ = {"GET o": 200, "HEAD o": 200}
LIST = {**READ, "list": 200, "HEAD c": 204}
WRITE = {"PUT o": 201, "POST o": 202, "DELETE o": 204}


@pytest.mark.parametrize(("acl", "granted"), [
    ({}, {}),
    ({"X-Container-Read": ".r:*"}, READ),
    ({"X-Container-Read": ".r:*,.rlistings"}, LIST),
    ({"X-Container-Read": ".rlistings"}, {}),
    ({"X-Container-Read": ".r:example.com"}, {}),
    ({"X-Container-Read": ".r:*,.r:-unknown"}, {}),
    ({"X-Container-Read": "test:tester3"}, {}),
    ({"X-Container-Write": "test:tester3"}, {}),
])
def test_security_R12_what_the_anonymous_may(account: Account, shared: str, acl: dict[str, str], granted: dict[str, int]) -> None:
    account.post(shared, headers=acl).expect(204)
    found = statuses(account.anonymous(), shared)
    assert found == {**dict.fromkeys(found, 401), **granted}


@pytest.mark.parametrize(("acl", "granted"), [
    ({}, {}),
    ({"X-Container-Read": "test2:tester2"}, LIST), ({"X-Container-Read": "test2"}, LIST), ({"X-Container-Read": "bob, test2:tester2"}, LIST),
    ({"X-Container-Read": "test2:other"}, {}), ({"X-Container-Write": "test2:tester2"}, WRITE),
    ({"X-Container-Read": "test2", "X-Container-Write": "test2:tester2"}, {**LIST, **WRITE}), ({"X-Container-Read": ".r:*"}, READ),
])
def test_what_another_account_may(account: Account, other: Account, shared: str, acl: dict[str, str], granted: dict[str, int]) -> None:
    account.post(shared, headers=acl).expect(204)
    found = statuses(other.of(account), shared)
    assert found == {**dict.fromkeys(found, 403), **granted}


def test_what_a_plain_user_of_the_account_may(account: Account, plain: Account, shared: str) -> None:
    found = statuses(plain, shared)
    assert found == dict.fromkeys(found, 403)
    account.post(shared, headers={"X-Container-Read": "test:tester3", "X-Container-Write": "test:tester3"}).expect(204)
    found = statuses(plain, shared)
    assert found == {**dict.fromkeys(found, 403), **LIST, **WRITE}


@pytest.mark.parametrize(("referer", "status"), [
    ("http://www.example.com/page", 200), ("http://example.com/", 401), ("http://bad.example.com/", 401), ("http://exact.net/x", 200),
    ("http://sub.exact.net/", 401), (None, 401), ("nonsense", 401), ("http://user@exact.net/", 200),
])
def test_referrers(account: Account, shared: str, referer: str | None, status: int) -> None:
    account.post(shared, headers={"X-Container-Read": ".referrer:*.example.com,.r:-bad.example.com,.ref:exact.net"}).expect(204)
    assert account.head(shared).headers["X-Container-Read"] == ".r:.example.com,.r:-bad.example.com,.r:exact.net"
    headers = {"Referer": referer} if referer else {}
    assert account.anonymous().get(shared, "o", headers=headers).status == status


@pytest.mark.parametrize(("name", "value", "clean"), [
    ("X-Container-Read", "bob, sue", "bob,sue"), ("X-Container-Read", ".referrer : *", ".r:*"), ("X-Container-Read", " a ,, b ", "a,b"),
    ("X-Container-Read", ".r:", None), ("X-Container-Read", ".r:.", None), ("X-Container-Read", ".x:y", None),
    ("X-Container-Write", ".r:*", None), ("X-Container-Write", "a:b,*:*", "a:b,*:*"), ("X-Container-Read", "*", "*"),
])
@pytest.mark.parametrize("verb", ["PUT", "POST"])
def test_grammar(account: Account, container: str, name: str, value: str, clean: str | None, verb: str) -> None:
    answer = account.request(verb, container, headers={name: value})
    if clean is None:
        answer.expect(400)
        assert name not in account.head(container).headers
    else:
        answer.expect(202, 204)
        assert account.head(container).headers[name] == clean
        account.post(container, headers={name.replace("X-", "X-Remove-", 1): "x"}).expect(204)
        assert name not in account.head(container).headers


def test_owners_headers_are_for_owners(account: Account, other: Account, container: str) -> None:
    headers = {"X-Container-Read": "test2:tester2,.r:*,.rlistings", "X-Container-Write": "test2:tester2", "X-Container-Sync-Key": "secret",
               "X-Container-Meta-Temp-Url-Key": "secret", "X-Container-Meta-Shown": "1"}
    account.post(container, headers=headers).expect(204)
    mine = account.head(container).headers
    assert {name for name in headers if name in mine} == set(headers)
    for client in (other.of(account), account.anonymous()):
        for answer in (client.head(container).expect(204), client.get(container)):
            assert {name for name in headers if name in answer.headers} == {"X-Container-Meta-Shown"}


def test_a_denial_names_the_realm(account: Account) -> None:
    answer = account.anonymous().get()
    assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, f'Swift realm="{account.name}"')
    assert account.endpoint.request("GET", "/v1").status in (401, 412)


def test_security_S14_the_realm_is_quoted_live(account: Account) -> None:
    path = '/v1/AUTH_x%0d%0aSet-Cookie:%20a=b%22%3Cscript%3E'
    answer = account.endpoint.request("GET", path)
    assert answer.status == 401
    realm = answer.headers["WWW-Authenticate"].removeprefix('Swift realm="').removesuffix('"')
    assert not set(realm) & set('\r\n"<>')
    assert "set-cookie" not in answer.headers
    for header in ("Location", "X-Trans-Id"):
        assert "Set-Cookie" not in str(answer.headers.get(header))


# -- account ACLs --------------------------------------------------------------------------------------------------------


@pytest.fixture
def acl_account(store: Endpoint) -> Iterator[tuple[Account, Account]]:
    """An account of its own with one object in ``c``: as its owner (a reseller admin) and as test2:tester2 sees it."""
    admin = store.login("admin:admin", "admin")
    own = Account(store, f"/v1/AUTH_{unique('acl')}", admin.token)
    own.put().expect(201)
    own.put("c").expect(201)
    own.put("c", "o", body=b"data").expect(201)
    yield own, store.login("test2:tester2", "testing2").of(own)
    own.empty("c")
    own.empty("c-x")


@pytest.mark.parametrize(("level", "granted"), [
    ("read-only", {**LIST, "account": 200}),
    ("read-write", {**LIST, **WRITE, "account": 200, "POST c": 204, "DELETE c": 409, "PUT c": 201}),
    ("admin", {**LIST, **WRITE, "account": 200, "POST c": 204, "DELETE c": 409, "PUT c": 201}),
])
def test_account_acls(acl_account: tuple[Account, Account], level: str, granted: dict[str, int]) -> None:
    own, visitor = acl_account
    own.post(headers={"X-Account-Access-Control": json.dumps({level: ["test2:tester2", "nobody"]})}).expect(204)
    assert own.head().headers["X-Account-Access-Control"] == json.dumps({level: ["test2:tester2", "nobody"]}, separators=(",", ":"))
    found = statuses(visitor, "c")
    assert found == {**dict.fromkeys(found, 403), **granted}
    shown = visitor.head()
    assert ("X-Account-Access-Control" in shown.headers) == (level == "admin")
    changed = visitor.post(headers={"X-Account-Meta-A": "1"}).status
    assert changed == (204 if level == "admin" else 403)
    own.post(headers={"X-Account-Access-Control": ""}).expect(204)
    found = statuses(visitor, "c")
    assert set(found.values()) == {403}


@pytest.mark.parametrize("value", ["not json", "[]", '"x"', '{"read-only": "test2"}', '{"read-only": [1]}', '{"other": ["x"]}', '{"admin": {}}'])
def test_account_acls_that_are_refused(acl_account: tuple[Account, Account], value: str) -> None:
    own, _ = acl_account
    for verb in ("PUT", "POST"):
        own.request(verb, headers={"X-Account-Access-Control": value}).expect(400)
    assert "X-Account-Access-Control" not in own.head().headers


# -- tokens --------------------------------------------------------------------------------------------------------------


def test_logging_in(store: Endpoint) -> None:
    first = store.authenticate("test:tester", "testing").expect(200)
    token = first.headers["X-Auth-Token"]
    assert token.startswith("AUTH_")
    assert first.headers["X-Storage-Token"] == token
    assert 0 < int(first.headers["X-Auth-Token-Expires"]) <= 86400
    assert first.headers["X-Storage-Url"] == f"{store.url}/v1/AUTH_test"
    for path, user, key in (("/auth/v1.0", "X-Storage-User", "X-Storage-Pass"), ("/auth/auth", "X-Auth-User", "X-Auth-Key")):
        again = store.request("GET", path, {user: "test:tester", key: "testing"}).expect(200)
        store.request("HEAD", "/v1/AUTH_test", {"X-Auth-Token": again.headers["X-Auth-Token"]}).expect(204)
        store.request("HEAD", "/v1/AUTH_test", {"X-Storage-Token": again.headers["X-Auth-Token"]}).expect(204)
    third = store.request("GET", "/auth/v1/test/auth", {"X-Storage-User": "tester", "X-Storage-Pass": "testing"}).expect(200)
    store.request("HEAD", "/v1/AUTH_test", {"X-Auth-Token": third.headers["X-Auth-Token"]}).expect(204)


@pytest.mark.parametrize(("user", "key"), [
    ("test:tester", "wrong"), ("test:tester", ""), ("test:nobody", "testing"), ("nobody:tester", "testing"), ("test", "testing"), ("", ""),
    ("test:tester", "testin"), ("test:tester", "testingg"), ("test:tester\u00e9", "testing"), (":", ":"), ("test:", "testing"), ("a" * 4000, "b"),
])
def test_bad_credentials(store: Endpoint, user: str, key: str) -> None:
    answer = store.authenticate(user, key)
    assert answer.status == 401
    assert answer.headers["WWW-Authenticate"].startswith("Swift realm=")
    assert "X-Auth-Token" not in answer.headers


def test_no_credentials_and_wrong_ways(store: Endpoint) -> None:
    store.request("GET", "/auth/v1.0").expect(401)
    store.request("POST", "/auth/v1.0", {"X-Auth-User": "test:tester", "X-Auth-Key": "testing"}).expect(405)
    store.request("GET", "/auth/nonsense", {"X-Auth-User": "test:tester", "X-Auth-Key": "testing"}).expect(400)
    mismatch = {"X-Auth-User": "other:tester", "X-Auth-Key": "testing"}
    store.request("GET", "/auth/v1/test/auth", mismatch).expect(401)


@pytest.mark.parametrize("token", [
    "nonsense", "AUTH_tk" + "0" * 32, "AUTH_tk", "AUTH_ftknonsense", "AUTH_zftkgAAAAABnonsense", "", " ", "AUTH_tk\u00e9", "a" * 7000, "AUTH_ftk" + "A" * 7000,
])
def test_bad_tokens(store: Endpoint, account: Account, token: str) -> None:
    with store.connect() as connection:
        bad = Account(store, account.path, token)
        for names in ([], ["c"], ["c", "o"]):
            for verb in ("GET", "PUT", "POST", "DELETE", "HEAD"):
                answer = bad.request(verb, *names, connection=connection)
                assert answer.status == 401, (verb, names)
        connection.request("GET", account.path, {"X-Auth-Token": account.token}).expect(200, 204)


def test_a_token_is_good_for_its_account_only(account: Account, other: Account) -> None:
    for verb in ("GET", "HEAD", "POST"):
        other.of(account).request(verb).expect(403)
    other.of(account).put(unique()).expect(403)
    nobody = Account(account.endpoint, "/v1/OTHER_thing", account.token)
    nobody.get().expect(401, 403)
    Account(account.endpoint, "/v1/SERVICE_test", account.token).get().expect(403)
    Account(account.endpoint, "/v1/.expiring_objects", account.token).get().expect(401, 403)


def test_a_service_account_needs_both_tokens(store: Endpoint, account: Account) -> None:
    service = store.login("test5:tester5", "testing5")
    both = Account(store, "/v1/SERVICE_test", account.token)
    both.head().expect(403)
    answer = both.head(headers={"X-Service-Token": service.token})
    answer.expect(200, 204)
    Account(store, "/v1/SERVICE_test", service.token).head().expect(403)
    both.head(headers={"X-Service-Token": "AUTH_tk" + "0" * 32}).expect(401, 403)


def test_a_reseller_admin_may_everything_but_hidden_accounts(store: Endpoint, account: Account, container: str) -> None:
    admin = store.login("admin:admin", "admin").of(account)
    admin.put(container, "by-admin", body=b"x").expect(201)
    assert account.get(container, "by-admin").body == b"x"
    Account(store, "/v1/.hidden", admin.token).get().expect(401, 403)
