import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelstore.common.middleware.s3api import acl

USERS = st.from_regex(r"[a-z]{1,6}:[a-z]{1,6}", fullmatch=True)
GRANTS = st.builds(acl.Grant, USERS | st.sampled_from(sorted(acl.GROUP_URIS)), st.sampled_from(acl.PERMISSIONS))
ACLS = st.builds(acl.Acl, st.none() | USERS, st.lists(GRANTS, max_size=6).map(tuple))


@given(ACLS)
def test_what_is_kept_is_read_again(found: acl.Acl) -> None:
    assert acl.decode(found.encode()) == found


def test_it_is_kept_as_swift_keeps_it() -> None:
    found = acl.canned("public-read", "a:b")
    assert found is not None
    assert json.loads(found.encode()) == {
        "Owner": "a:b",
        "Grant": [
            {"Permission": "FULL_CONTROL", "Grantee": "a:b"},
            {"Permission": "READ", "Grantee": "AllUsers"},
        ],
    }


@pytest.mark.parametrize("text", [None, "", "nonsense", "[]", "{}", '{"Owner": "a"}', '{"Owner": "a", "Grant": [1]}', "[" * 100_000])
def test_what_is_no_acl_is_nobodys(text: str | None) -> None:
    assert acl.decode(text) == acl.Acl()


ANYBODY, SOMEBODY, OWNER, BUCKET_OWNER = None, "x:y", "a:b", "c:d"
# name: {who: what he may do with an object}
RIGHTS: dict[str, dict[str | None, str]] = {
    "private": {},
    "public-read": {ANYBODY: "READ", SOMEBODY: "READ", BUCKET_OWNER: "READ"},
    "public-read-write": {ANYBODY: "READ WRITE", SOMEBODY: "READ WRITE", BUCKET_OWNER: "READ WRITE"},
    "authenticated-read": {SOMEBODY: "READ", BUCKET_OWNER: "READ"},
    "bucket-owner-read": {BUCKET_OWNER: "READ"},
    "bucket-owner-full-control": {BUCKET_OWNER: "READ WRITE READ_ACP WRITE_ACP FULL_CONTROL"},
    "log-delivery-write": {"z:.log_delivery": "WRITE READ_ACP"},
    "aws-exec-read": {},
}


@pytest.mark.parametrize("name", sorted(RIGHTS))
def test_security_R12_canned_acls(name: str) -> None:
    found = acl.canned(name, OWNER, BUCKET_OWNER)
    assert found is not None
    for user in (ANYBODY, SOMEBODY, BUCKET_OWNER, "z:.log_delivery", "", "AllUsers", "AuthenticatedUsers"):
        expected = RIGHTS[name].get(user, RIGHTS[name].get(SOMEBODY, "") if user is not None else "").split()
        assert [right for right in acl.PERMISSIONS if found.allows(user, right)] == expected, user
    assert all(found.allows(OWNER, right) for right in acl.PERMISSIONS)
    assert found.is_public == (ANYBODY in RIGHTS[name] or SOMEBODY in RIGHTS[name])


def test_an_unknown_canned_name_is_none() -> None:
    assert acl.canned("public-ready", OWNER) is None


def test_the_owner_always_reads_and_changes_the_acl_but_nothing_else() -> None:
    found = acl.Acl(OWNER)
    assert [right for right in acl.PERMISSIONS if found.allows(OWNER, right)] == ["READ_ACP", "WRITE_ACP"]
    assert not any(acl.Acl().allows(None, right) for right in acl.PERMISSIONS)


@given(ACLS, st.none() | USERS, st.sampled_from(acl.PERMISSIONS))
def test_without_what_is_public_nobody_has_more(found: acl.Acl, user: str | None, right: str) -> None:
    less = found.without_public()
    assert not less.is_public and not less.allows(None, right)
    assert found.allows(user, right) or not less.allows(user, right)
