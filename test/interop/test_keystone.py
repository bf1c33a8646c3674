"""Identities of a real Keystone: tokens of every kind, roles, service tokens, and scenario 1 of the sources step by step."""

from __future__ import annotations

import json
import time
from contextlib import closing
from datetime import UTC, datetime

import pytest
from pymemcache.client.base import Client

from test.support.client import Account, unique
from test.support.keystone import DEFAULT, Keystone, KeystoneStore, User
from test.support.signing import temp_url
from test.support.waiting import until


@pytest.fixture(scope="module")
def project(keystone: Keystone) -> str:
    return keystone.project(unique("project"))


@pytest.fixture(scope="module")
def owner(keystone: Keystone, project: str) -> User:
    return keystone.user(unique("owner"), swiftoperator=project)


@pytest.fixture(scope="module")
def account(keystone: Keystone, keystone_store: KeystoneStore, owner: User, project: str) -> Account:
    """The project's account, as its owner sees it, with a container ``c`` and an object ``o``."""
    found = keystone_store.account(keystone.token(owner, project), project)
    found.put("c").expect(201)
    found.put("c", "o", body=b"data").expect(201)
    return found


def test_scenario_1_container_and_account_with_keystone(keystone: Keystone, keystone_store: KeystoneStore) -> None:
    project = keystone.project(unique("new"))
    user = keystone.user(unique("user"), swiftoperator=project)
    account = keystone_store.account(keystone.token(user, project), project)
    admin = keystone_store.account(keystone.admin, project)
    assert admin.head().status == 403  # another project's
    account.put("photos", headers={"X-Storage-Policy": "gold"}).expect(201)  # the account is made with it
    assert account.head("photos").expect(204).headers["X-Storage-Policy"] == "gold"
    assert [entry["name"] for entry in account.listing()] == ["photos"]
    account.put("photos", headers={"X-Storage-Policy": "gold"}).expect(202)
    account.put("photos", headers={"X-Storage-Policy": "silver"}).expect(409)
    account.put("other", headers={"X-Storage-Policy": "nonesuch"}).expect(400)
    found = account.head().expect(204).headers
    assert found["X-Account-Project-Domain-Id"] == DEFAULT
    assert found["X-Account-Container-Count"] == "1"


def test_names_of_a_domain_that_is_not_the_default_are_kept_with_the_account(keystone: Keystone, keystone_store: KeystoneStore) -> None:
    domain = keystone.domain(unique("domain"))
    project = keystone.project("demo", domain)
    account = keystone_store.account(keystone.token(keystone.user("demo", domain, admin=project), project), project)
    account.put("c", headers={"X-Container-Read": "demo:demo"}).expect(201)
    account.put("c", "o", body=b"x").expect(201)
    assert account.head().expect(204).headers["X-Account-Project-Domain-Id"] == domain
    namesake_project = keystone.project("demo")
    namesake = keystone.user("demo", member=namesake_project)
    asked = keystone_store.account(keystone.token(namesake, namesake_project), project)
    assert asked.get("c", "o").status == 403
    account.post("c", headers={"X-Container-Read": f"{namesake_project}:{namesake.id}"}).expect(204)
    assert asked.get("c", "o").expect(200).body == b"x"


@pytest.mark.parametrize(("role", "read", "write", "make", "remove_account"), [
    ("admin", 200, 201, 201, 403), ("swiftoperator", 200, 201, 201, 403), ("reader", 200, 403, 403, 403), ("member", 200, 403, 403, 403), ("plain", 403, 403, 403, 403),
    ("ResellerAdmin", 200, 201, 201, 405),
])
def test_role_matrix(keystone: Keystone, keystone_store: KeystoneStore, account: Account, project: str, role: str, read: int, write: int,
                     make: int, remove_account: int) -> None:
    """Keystone's roles imply others: an admin is a member, who is a reader."""
    user = keystone.user(unique(role), **{role: project})
    asked = keystone_store.account(keystone.token(user, project), project)
    assert asked.get("c", "o").status == read
    assert asked.get("c").status == asked.get().status == read
    assert asked.put("c", unique("o"), body=b"x").status == write
    assert asked.put(unique("c")).status == make
    if role != "ResellerAdmin":
        assert asked.delete().status == remove_account


def test_only_a_reseller_admin_has_the_accounts_of_others(keystone: Keystone, keystone_store: KeystoneStore, account: Account, project: str) -> None:
    other = keystone.project(unique("other"))
    for role, status in (("ResellerAdmin", 200), ("admin", 403), ("reader", 403)):
        token = keystone.token(keystone.user(unique(role), **{role: other}), other)
        assert keystone_store.account(token, project).get("c", "o").status == status, role


def test_a_reader_of_the_system_reads_all_accounts(keystone: Keystone, keystone_store: KeystoneStore, account: Account, project: str) -> None:
    user = keystone.user(unique("system"))
    keystone.ask("PUT", f"system/users/{user.id}/roles/{keystone.role('reader')}")
    asked = keystone_store.account(keystone.token(user, {"system": {"all": True}}), project)
    assert asked.get("c", "o").expect(200).body == b"data"
    assert asked.put("c", "p", body=b"").status == 403


def test_acls_name_users_roles_and_everybody(keystone: Keystone, keystone_store: KeystoneStore, account: Account, project: str) -> None:
    other = keystone.project(unique("other"))
    user = keystone.user(unique("guest"), member=other)
    inside = keystone.user(unique("inside"), plain=project)
    asked = keystone_store.account(keystone.token(user, other), project)
    colleague = keystone_store.account(keystone.token(inside, project), project)
    account.put("shared").expect(201)
    account.put("shared", "o", body=b"s").expect(201)
    for acl, guest, member, nobody in (
        (f"{other}:{user.id}", 200, 403, 401), (f"*:{user.id}", 200, 403, 401), (f"{other}:*", 200, 403, 401), ("plain", 403, 200, 401),
        (f"*:{user.name}", 200, 403, 401), (".r:*", 200, 200, 200), ("*:*", 200, 200, 401),
    ):
        account.post("shared", headers={"X-Container-Read": acl}).expect(204)
        found = [one.get("shared", "o").status for one in (asked, colleague, asked.anonymous())]
        assert found == [guest, member, nobody], acl


def test_an_owner_is_shown_the_acl_of_a_public_container(account: Account) -> None:
    account.put("public", headers={"X-Container-Read": ".r:*,.rlistings", "X-Container-Write": "*:*", "X-Container-Sync-Key": "k"}).expect(201)
    for answer in (account.head("public").expect(204), account.get("public").expect(200, 204)):
        shown = answer.headers
        assert (shown["X-Container-Read"], shown["X-Container-Write"], shown["X-Container-Sync-Key"]) == (".r:*,.rlistings", "*:*", "k")
    assert "X-Container-Read" not in account.anonymous().head("public").expect(204).headers


def test_a_temporary_url_counts_with_a_token_too(account: Account) -> None:
    account.put("temporary").expect(201)
    account.post("temporary", headers={"X-Container-Meta-Temp-URL-Key": "key"}).expect(204)
    path = f"{account.path}/temporary/o"
    for token in ({}, {"X-Auth-Token": account.token}, {"X-Auth-Token": "nonsense"}):
        for method, status in (("PUT", 201), ("POST", 202), ("HEAD", 200), ("GET", 200), ("DELETE", 204)):
            body = b"signed" if method == "PUT" else None
            account.endpoint.request(method, temp_url(path, "key", method), token, body).expect(status)


def test_without_a_token_or_with_a_bad_one_401(keystone_store: KeystoneStore, account: Account, project: str) -> None:
    assert account.anonymous().get("c", "o").status == 401
    for token in ("nonsense", "gAAAAA" + "x" * 180, "AUTH_tk" + "0" * 32):
        answer = keystone_store.account(token, project).get("c", "o")
        assert answer.status == 401, token
        assert "Keystone" in answer.headers["Www-Authenticate"] or "Swift" in answer.headers["Www-Authenticate"]


def test_security_S32_identity_headers_of_a_client_count_for_nothing(keystone_store: KeystoneStore, account: Account, project: str) -> None:
    claimed = {"X-Identity-Status": "Confirmed", "X-Roles": "admin,ResellerAdmin", "X-Project-Id": project, "X-Tenant-Id": project,
               "X-User-Id": "u", "X-Service-Identity-Status": "Confirmed", "X-Service-Roles": "service", "X-Is-Admin-Project": "True"}
    assert account.anonymous().get("c", "o", headers=claimed).status == 401
    assert keystone_store.account("nonsense", project).get("c", "o", headers=claimed).status == 401


def test_a_revoked_token_is_refused_when_the_cache_has_forgotten_it(keystone: Keystone, keystone_store: KeystoneStore, account: Account,
                                                                    owner: User, project: str) -> None:
    token = keystone.token(owner, project)
    keystone.revoke(token)
    assert keystone_store.account(token, project).get("c", "o").status == 401


def test_a_role_that_is_withdrawn_ends_tokens(keystone: Keystone, keystone_store: KeystoneStore, account: Account, project: str) -> None:
    user = keystone.user(unique("leaver"), admin=project)
    token = keystone.token(user, project)
    keystone.withdraw(user, "admin", project)
    assert keystone_store.account(token, project).get("c", "o").status == 401


def _text(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def test_application_credentials_and_expired_tokens(keystone: Keystone, keystone_store: KeystoneStore, account: Account, owner: User,
                                                   project: str) -> None:
    token = keystone.token(owner, project)
    for lifetime_s in (4, 20, 60):  # as short as the machine allows
        ends = time.time() + lifetime_s
        made = keystone.ask("POST", f"users/{owner.id}/application_credentials", {"application_credential": {
            "name": unique("app"), "expires_at": _text(ends)}}, token)["application_credential"]
        login = {"methods": ["application_credential"], "application_credential": {"id": made["id"], "secret": made["secret"]}}
        try:
            asked = keystone_store.account(keystone.login(login), project)
            assert asked.get("c", "o").expect(200).body == b"data"  # it is in the cache from now on
            break
        except AssertionError:
            if time.time() < ends or lifetime_s == 60:
                raise
    until(lambda: asked.get("c", "o").status == 401, "the token has expired", 60 + lifetime_s)
    assert time.time() > ends - 1
    service = keystone.token(keystone_store.service, keystone_store.service_project)
    answer = asked.get("c", "o", headers={"X-Service-Token": service})
    assert answer.status == 200, "with a service token a service finishes what a user began"


def test_an_application_credential_has_the_roles_it_was_given(keystone: Keystone, keystone_store: KeystoneStore, account: Account, project: str) -> None:
    user = keystone.user(unique("both"), swiftoperator=project, reader=project)
    made = keystone.ask("POST", f"users/{user.id}/application_credentials", {"application_credential": {
        "name": "readonly", "roles": [{"name": "reader"}]}}, keystone.token(user, project))["application_credential"]
    login = {"methods": ["application_credential"], "application_credential": {"id": made["id"], "secret": made["secret"]}}
    asked = keystone_store.account(keystone.login(login), project)
    assert asked.get("c", "o").status == 200
    assert asked.put("c", "p", body=b"x").status == 403


def test_a_trust_gives_its_roles_and_ends_with_it(keystone: Keystone, keystone_store: KeystoneStore, account: Account, project: str) -> None:
    trustor = keystone.user(unique("trustor"), swiftoperator=project)
    home = keystone.project(unique("home"))
    trustee = keystone.user(unique("trustee"), member=home)
    token = keystone.token(trustor, project)
    trust = keystone.ask("POST", "OS-TRUST/trusts", {"trust": {
        "trustor_user_id": trustor.id, "trustee_user_id": trustee.id, "project_id": project, "impersonation": False,
        "roles": [{"name": "swiftoperator"}]}}, token)["trust"]["id"]
    scoped = keystone.token(trustee, {"OS-TRUST:trust": {"id": trust}})
    again = keystone.token(trustee, {"OS-TRUST:trust": {"id": trust}})
    assert keystone_store.account(scoped, project).put("c", unique("o"), body=b"x").status == 201
    keystone.ask("DELETE", f"OS-TRUST/trusts/{trust}", token=token)
    assert keystone_store.account(again, project).get("c", "o").status == 401


def test_service_accounts_want_a_service_token_too(keystone: Keystone, keystone_store: KeystoneStore, owner: User, project: str) -> None:
    asked = keystone_store.account(keystone.token(owner, project), project, "SERVICE_")
    service = {"X-Service-Token": keystone.token(keystone_store.service, keystone_store.service_project)}
    assert asked.put("images").status == 403
    asked.put("images", headers=service).expect(201)
    asked.put("images", "o", headers=service, body=b"i").expect(201)
    assert asked.get("images", "o", headers=service).expect(200).body == b"i"
    assert asked.get("images", "o").status == 403
    assert asked.get("images", "o", headers={"X-Service-Token": asked.token}).status in (401, 403)  # without the role
    admin = keystone_store.account(keystone.token(keystone.user(unique("admin"), admin=project), project), project, "SERVICE_")
    assert admin.get("images", "o").status == 403  # though an admin is a reader, too
    alone = keystone_store.account(service["X-Service-Token"], project, "SERVICE_")
    assert alone.get("images", "o", headers=service).status == 403  # a service alone is not the project


def test_tokens_are_asked_about_once(keystone: Keystone, keystone_store: KeystoneStore, account: Account, owner: User, project: str) -> None:
    asked = keystone_store.account(keystone.token(owner, project), project)
    asked.get("c", "o").expect(200)
    before = _questions(keystone)
    for _ in range(3):
        asked.get("c", "o").expect(200)
    assert _questions(keystone) == before


def test_tokens_are_kept_in_memcached(keystone: Keystone, keystone_store: KeystoneStore, account: Account, owner: User, project: str) -> None:
    if keystone_store.memcached is None:
        pytest.skip("there is no memcached")
    asked = keystone_store.account(keystone.token(owner, project), project)
    asked.get("c", "o").expect(200)
    before = _questions(keystone)
    asked.get("c", "o").expect(200)
    assert _questions(keystone) == before
    with closing(Client(("127.0.0.1", keystone_store.memcached))) as memcached:
        memcached.flush_all(noreply=False)
    asked.get("c", "o").expect(200)
    assert _questions(keystone) == before + 1


def _questions(keystone: Keystone) -> int:
    return keystone.process.output.count("/v3/auth/tokens")


def test_info_is_open_and_tells_nothing_of_keystone(keystone_store: KeystoneStore) -> None:
    found = json.loads(keystone_store.endpoint.request("GET", "/info").expect(200).body)
    assert "keystone" not in json.dumps(found).lower() or "keystoneauth" in found
