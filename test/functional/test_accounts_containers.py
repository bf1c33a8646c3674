"""Accounts, containers and policies: what each verb answers, what is counted, what is refused (client API 3, 4, 13)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

import pytest

from test.support.client import Account, Endpoint, unique
from test.support.waiting import slowness, until


@pytest.fixture
def fresh(store: Endpoint) -> Account:
    """An account that does not exist yet, for its owner."""
    return Account(store, f"/v1/AUTH_{unique('fresh')}", store.login("admin:admin", "admin").token)


def test_an_account_that_does_not_exist_looks_empty(fresh: Account) -> None:
    assert fresh.get().status == 204
    assert fresh.listing() == []
    head = fresh.head().expect(200, 204)
    assert [head.headers[f"X-Account-{what}"] for what in ("Container-Count", "Object-Count", "Bytes-Used")] == ["0", "0", "0"]
    assert "X-Backend-Fake-Account-Listing" not in head.headers


def test_the_life_of_an_account(fresh: Account) -> None:
    fresh.put(headers={"X-Account-Meta-A": "1"}).expect(201)
    fresh.put().expect(202)
    fresh.post(headers={"X-Account-Meta-B": "2"}).expect(204)
    head = fresh.head().expect(204)
    assert (head.headers["X-Account-Meta-A"], head.headers["X-Account-Meta-B"]) == ("1", "2")
    assert re.fullmatch(r"\d{10}\.\d{5}", head.headers["X-Timestamp"])
    fresh.delete(query="anything").expect(400)
    fresh.delete().expect(204)
    fresh.get().expect(410)
    fresh.head().expect(410)
    fresh.put("c").expect(404, 403, 503)
    answer = fresh.put()
    assert (answer.status, answer.headers["X-Account-Status"]) == (403, "Deleted")
    fresh.post().expect(404, 403)


def test_autocreate_by_the_first_write(fresh: Account) -> None:
    fresh.post(headers={"X-Account-Meta-A": "1"}).expect(204)
    assert fresh.head().expect(204).headers["X-Account-Meta-A"] == "1"


def test_a_name_that_is_too_long(store: Endpoint) -> None:
    admin = store.login("admin:admin", "admin")
    long = Account(store, "/v1/AUTH_" + "x" * 252, admin.token)
    long.put("c").expect(400, 403, 404)
    long.get().expect(400)


def test_counters_follow(fresh: Account) -> None:
    fresh.put("one").expect(201)
    fresh.put("two", headers={"X-Storage-Policy": "silver"}).expect(201)
    for number in range(5):
        fresh.put("one", f"o{number}", body=b"x" * 10).expect(201)
    head = fresh.head("one")
    assert (head.headers["X-Container-Object-Count"], head.headers["X-Container-Bytes-Used"]) == ("5", "50")
    assert head.headers["X-Storage-Policy"] == "gold"
    assert fresh.head().headers["X-Account-Container-Count"] == "2"
    assert fresh.head().headers["X-Account-Storage-Policy-Gold-Container-Count"] == "1"
    assert fresh.head().headers["X-Account-Storage-Policy-Silver-Container-Count"] == "1"
    for number in range(5):
        fresh.delete("one", f"o{number}").expect(204)
    head = fresh.head("one")
    assert (head.headers["X-Container-Object-Count"], head.headers["X-Container-Bytes-Used"]) == ("0", "0")
    fresh.delete("one").expect(204)
    assert [entry["name"] for entry in fresh.listing()] == ["two"]
    assert fresh.head().headers["X-Account-Container-Count"] == "1"
    fresh.delete("two").expect(204)
    assert fresh.head().headers["X-Account-Container-Count"] == "0"
    fresh.delete().expect(204)


def test_the_life_of_a_container(account: Account) -> None:
    name = unique("life")
    for verb in ("GET", "HEAD", "POST", "DELETE"):
        account.request(verb, name).expect(404)
    made = account.put(name, headers={"X-Container-Meta-A": "1"}).expect(201)
    assert (made.headers["Content-Length"], made.body) == ("0", b"")
    assert account.put(name).status == 202
    account.post(name, headers={"X-Container-Meta-B": "2"}).expect(204)
    head = account.head(name).expect(204)
    assert (head.headers["X-Container-Meta-A"], head.headers["X-Container-Meta-B"]) == ("1", "2")
    assert "Last-Modified" in head.headers
    account.delete(name).expect(204)
    account.head(name).expect(404)
    account.put(name).expect(201)
    assert "X-Container-Meta-A" not in account.head(name).headers
    account.delete(name).expect(204)
    account.delete(name).expect(404)


@pytest.fixture
def silver(account: Account) -> Iterator[str]:
    name = unique("policy")
    account.put(name, headers={"X-Storage-Policy": "SILVER"}).expect(201)
    yield name
    account.empty(name)


def test_policies(account: Account, silver: str) -> None:
    assert account.head(silver).headers["X-Storage-Policy"] == "silver"
    account.put(silver).expect(202)
    account.put(silver, headers={"X-Storage-Policy": "silver"}).expect(202)
    account.put(silver, headers={"X-Storage-Policy": "gold"}).expect(409)
    account.put(unique(), headers={"X-Storage-Policy": "platinum"}).expect(400)
    account.put(silver, "o", body=b"in silver").expect(201)
    got = account.get(silver, "o").expect(200)
    assert got.body == b"in silver"
    assert not [name for name in got.headers if name.startswith("x-backend")]
    assert [entry["storage_policy"] for entry in account.listing(query=f"prefix={silver}")] == ["silver"]
    account.delete(silver, "o").expect(204)
    account.delete(silver).expect(204)
    account.put(silver, headers={"X-Storage-Policy": "gold"}).expect(201)  # a new life may have another policy
    account.put(silver, "o", body=b"in gold").expect(201)
    assert account.get(silver, "o").body == b"in gold"


def test_container_names_that_are_refused(account: Account) -> None:
    account.put("c" * 257).expect(400)
    answer = account.put("é" * 257)
    assert (answer.status, answer.headers["Content-Type"].partition(";")[0]) == (400, "text/html")


@pytest.mark.parametrize("names", [[], ["c"], ["c", "o"]])
@pytest.mark.parametrize("verb", ["PATCH", "MAKE", "REPLICATE", "SSYNC", "UPDATE", "TRACE", "get", "LINK"])
def test_methods_that_are_not_allowed(account: Account, names: list[str], verb: str) -> None:
    with account.endpoint.connect() as connection:
        answer = account.request(verb, *names, connection=connection)
        assert answer.status in (405, 400), answer
        if answer.status == 405:
            assert "GET" in answer.headers["Allow"]
    account.head().expect(200, 204)


def test_info(store: Endpoint) -> None:
    answer = store.request("GET", "/info").expect(200)
    found = answer.json()
    swift = found["swift"]
    expected = {
        "max_file_size": 5368709122, "max_meta_name_length": 128, "max_meta_value_length": 256, "max_meta_count": 90, "max_meta_overall_size": 4096,
        "max_header_size": 8192, "max_request_line": 8192, "max_object_name_length": 1024, "container_listing_limit": 10000,
        "account_listing_limit": 10000, "max_account_name_length": 256, "max_container_name_length": 256, "extra_header_count": 0,
        "strict_cors_mode": True, "account_autocreate": True, "allow_account_management": True,
    }
    assert {name: swift.get(name) for name in expected} == expected
    assert "valid_api_versions" not in swift and "auto_create_account_prefix" not in swift
    assert {"name": "gold", "aliases": "gold", "default": True} in swift["policies"]
    assert {"name": "silver", "aliases": "silver"} in swift["policies"]
    assert found["tempauth"] == {"account_acls": True}
    head = store.request("HEAD", "/info").expect(200)
    assert head.headers["Content-Type"] == answer.headers["Content-Type"] == "application/json; charset=UTF-8"
    store.request("GET", "/info?swiftinfo_sig=x&swiftinfo_expires=1").expect(401, 403)
    for verb in ("PUT", "POST", "DELETE"):
        store.request(verb, "/info").expect(405)


def test_healthcheck(store: Endpoint) -> None:
    answer = store.request("GET", "/healthcheck").expect(200)
    assert (answer.body, answer.headers["Content-Type"].partition(";")[0]) == (b"OK", "text/plain")


def test_every_answer_names_its_transaction(store: Endpoint, account: Account) -> None:
    seen = set()
    for method, path in (("GET", "/healthcheck"), ("GET", account.path), ("GET", "/v1/AUTH_none/c/o"), ("GET", "/nonsense"), ("GET", "/info")):
        answer = store.request(method, path, {"X-Trans-Id-Extra": "mark%20é" + "x" * 40})
        found = answer.headers["X-Trans-Id"]
        assert re.match(r"tx[0-9a-f]{21}-[0-9a-f]{10}-mark", found)
        assert answer.headers["X-Openstack-Request-Id"] == found
        seen.add(found)
    assert len(seen) == 5


def test_what_one_client_writes_the_next_one_sees_at_once(store: Endpoint, account: Account) -> None:
    """Read after write, over new connections (hence other workers and, with several nodes, other processes)."""
    for turn in range(20):
        name = unique("seen")
        account.head(name).expect(404)  # what is absent is cached
        account.put(name, headers={"X-Container-Meta-Turn": turn}).expect(201)
        assert account.head(name).expect(204).headers["X-Container-Meta-Turn"] == str(turn)
        account.put(name, "o", body=b"1").expect(201)
        assert account.get(name).lines == ["o"]
        account.post(name, headers={"X-Container-Read": ".r:*"}).expect(204)
        account.anonymous().get(name, "o").expect(200)
        account.post(name, headers={"X-Remove-Container-Read": "x"}).expect(204)
        account.anonymous().get(name, "o").expect(401)
        account.delete(name, "o").expect(204)
        account.delete(name).expect(204)
        account.get(name, "o").expect(404)
        until(partial(is_gone_for_writers, account, name), "the container is gone for writers", 2 * slowness())


def is_gone_for_writers(account: Account, container: str) -> bool:
    return account.put(container, "o", body=b"").status == 404
