import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelstore.common.acl import clean_acl, format_account_acl, parse_account_acl, parse_acl, referrer_allowed


@pytest.mark.parametrize(("raw", "cleaned"), [
    ("bob, sue", "bob,sue"), ("bob ,sue", "bob,sue"), (" ,, ", ""), ("", ""), (".referrer : *", ".r:*"),
    (".ref:*.example.com", ".r:.example.com"), (".r:-.thief.com", ".r:-.thief.com"), (".r: - *.thief.com", ".r:-.thief.com"),
    (".rlistings", ".rlistings"), ("account:user", "account:user"), ("*:*", "*:*"), (":x", ":x"), (".referer:a.b", ".r:a.b"),
    ("acct%2Cx, .r:*,.rlistings", "acct%2Cx,.r:*,.rlistings"),
])
def test_cleaning(raw, cleaned):
    assert clean_acl("X-Container-Read", raw) == cleaned


@pytest.mark.parametrize(("header", "raw"), [
    ("X-Container-Read", ".r:"), ("X-Container-Read", ".r:."), ("X-Container-Read", ".r:-"), ("X-Container-Read", ".unknown:x"),
    ("X-Container-Write", ".r:*"), ("x-container-write", ".ref:a"), ("X-Container-Read", ".r:*."),
])
def test_what_is_no_acl(header, raw):
    with pytest.raises(ValueError, match="ACL"):
        clean_acl(header, raw)


@given(st.text(alphabet=".r:-*, abc%", max_size=30))
def test_cleaning_twice_is_cleaning_once(raw):
    try:
        cleaned = clean_acl("X-Container-Read", raw)
    except ValueError:
        return
    assert clean_acl("X-Container-Read", cleaned) == cleaned


def test_parsing():
    assert parse_acl(".r:*,.r:-.x,a:b,%2Cc,.rlistings") == (["*", "-.x"], ["a:b", ",c", ".rlistings"])
    assert parse_acl(None) == ([], [])


@pytest.mark.parametrize(("referrer", "rules", "expected"), [
    ("http://www.example.com/x", [".example.com"], True), ("http://example.com", [".example.com"], False),
    ("http://example.com", ["example.com"], True), ("http://a.thief.com", ["*", "-.thief.com"], False),
    ("http://a.thief.com", ["-.thief.com", "*"], True), (None, ["*"], True), (None, ["unknown"], True), ("http://[x", ["*"], True),
    ("http://x", [], False), ("http://user@example.com:80/", ["example.com"], True), ("http://x", ["-*"], False),
])
def test_referrers(referrer, rules, expected):
    assert referrer_allowed(referrer, rules) is expected


@pytest.mark.parametrize("text", ["[]", "{", '{"x": []}', '{"admin": "a"}', '{"admin": [1]}', "1", "[" * 100000])
def test_bad_account_acls(text):
    with pytest.raises(ValueError):  # noqa: PT011 - the sentence is the client's
        parse_account_acl(text)


def test_account_acls():
    assert parse_account_acl(None) == parse_account_acl("") == parse_account_acl("{}") == {}
    assert format_account_acl({}) == ""
    acl = {"read-only": ["b"], "admin": ["\u00e9"]}
    assert format_account_acl(acl) == '{"admin":["\\u00e9"],"read-only":["b"]}'
    assert parse_account_acl(json.dumps(acl)) == acl
