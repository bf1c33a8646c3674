"""Quotas against live clusters (middleware 17, 18; cases C09, C27)."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from test.support.client import Account, Endpoint, unique


@pytest.fixture
def limited(store: Endpoint) -> Iterator[tuple[Account, Account]]:
    """An account of its own: as a reseller admin sees it, and as its owner."""
    admin, user = store.login("admin:admin", "admin"), store.login()
    path = "/v1/AUTH_" + unique("quota")
    boss, owner = (Account(store, path, one.token) for one in (admin, user))
    boss.put(headers={"X-Account-Access-Control": json.dumps({"admin": ["test:tester"]})}).expect(201)
    boss.post(headers={"X-Account-Access-Control": json.dumps({"admin": ["test:tester"]})}).expect(204)
    yield boss, owner
    boss.delete().expect(204)


def test_case_C27_the_first_upload_of_a_fresh_account(limited: tuple[Account, Account]):
    boss, owner = limited
    boss.post(headers={"X-Account-Quota-Bytes": "3"}).expect(204)
    owner.put("c").expect(201)
    assert owner.put("c", "o", body=b"1234").expect(413).body == b"Upload exceeds quota."
    owner.put("c", "o", body=b"123").expect(201)
    boss.put("c", "o2", body=b"1234").expect(201)
    assert owner.head().headers["X-Account-Quota-Bytes"] == "3"
    for target in ("X-Account-Quota-Bytes", "X-Remove-Account-Quota-Bytes", "X-Account-Meta-Quota-Bytes"):
        owner.post(headers={target: "99"}).expect(403)
    boss.post(headers={"X-Account-Quota-Bytes": "many"}).expect(400)
    boss.empty("c")


def test_case_C09_both_quotas_at_once(limited: tuple[Account, Account]):
    boss, owner = limited
    boss.post(headers={"X-Account-Quota-Bytes": "1", "X-Account-Quota-Count": "0"}).expect(204)
    owner.put("c", headers={"X-Container-Meta-Quota-Bytes": "1", "X-Container-Meta-Quota-Count": "0"}).expect(201)
    for _ in range(2):
        owner.put("c", "o", body=b"12").expect(413)
    boss.empty("c")


def test_a_policy_has_a_quota_of_its_own(limited: tuple[Account, Account]):
    boss, owner = limited
    boss.post(headers={"X-Account-Quota-Bytes-Policy-Silver": "2"}).expect(204)
    owner.put("gold").expect(201)
    owner.put("silver", headers={"X-Storage-Policy": "silver"}).expect(201)
    owner.put("gold", "o", body=b"123").expect(201)
    assert owner.put("silver", "o", body=b"123").expect(413).body == b"Upload exceeds policy quota."
    boss.post(headers={"X-Remove-Account-Quota-Bytes-Policy-Silver": "x"}).expect(204)
    owner.put("silver", "o", body=b"123").expect(201)
    for name in ("gold", "silver"):
        boss.empty(name)


def test_containers(account: Account, other: Account, container: str):
    account.post(container, headers={"X-Container-Meta-Quota-Bytes": "5"}).expect(204)
    account.put(container, "o", body=b"123456").expect(413)
    account.put(container, "o", body=b"12345").expect(201)
    other.of(account).put(container, "o", body=b"123456").expect(403)
    account.post(container, headers={"X-Container-Meta-Quota-Bytes": "some"}).expect(400)
    account.request("COPY", container, "o", headers={"Destination": f"{container}/copy"})
