"""Policies of buckets: what is one, and what it says."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelstore.common.middleware.s3api.bucket_policy import ALLOW, DENY, NONE, Asked, Policy, read
from keelstore.common.middleware.s3api.errors import S3Error

BUCKET = "arn:aws:s3:::b"


def statement(**fields: Any) -> dict[str, Any]:
    found = {"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": f"{BUCKET}/*"} | fields
    return {name: value for name, value in found.items() if value is not None}


def policy(*statements: dict[str, Any], bucket: str = "b") -> Policy:
    return read(json.dumps({"Version": "2012-10-17", "Statement": list(statements)}).encode(), bucket)


def asked(
    action: str = "s3:GetObject", resource: str = "b/k", user: str | None = "test:tester", **facts: str | tuple[str, ...]
) -> Asked:
    known = {
        name.replace("__", ":").replace("_", "-"): (value,) if isinstance(value, str) else value
        for name, value in facts.items()
    }
    accounts = frozenset() if user is None else frozenset((user.partition(":")[0],))
    return Asked(user, accounts, action.lower(), resource, known.get)


def test_what_is_allowed_denied_and_neither() -> None:
    found = policy(statement(), statement(Effect="Deny", Resource=f"{BUCKET}/secret/*"))
    assert found.verdict(asked()) == ALLOW
    assert found.verdict(asked(resource="b/secret/k")) == DENY
    assert found.verdict(asked("s3:PutObject")) == NONE
    assert found.verdict(asked(resource="c/k")) == NONE


def test_denial_wins_in_any_order() -> None:
    both = [statement(), statement(Effect="Deny")]
    assert policy(*both).verdict(asked()) == policy(*reversed(both)).verdict(asked()) == DENY


@pytest.mark.parametrize(
    ("principal", "user", "expected"),
    [
        ("*", None, ALLOW),
        ({"AWS": "*"}, None, ALLOW),
        ({"AWS": ["arn:aws:iam::test:user/tester"]}, "test:tester", ALLOW),
        ({"AWS": "arn:aws:iam::test:user/other"}, "test:tester", NONE),
        ({"AWS": "arn:aws:iam:::user/test:tester"}, "test:tester", ALLOW),
        ({"AWS": "arn:aws:iam::test:root"}, "test:tester", ALLOW),
        ({"AWS": "arn:aws:iam::test:root"}, "test2:tester", NONE),
        ({"AWS": "test"}, "test:tester", ALLOW),
        ({"AWS": "test:tester"}, "test:tester", ALLOW),
        ({"AWS": "test:tester"}, None, NONE),
        ({"CanonicalUser": "test:tester"}, "test:tester", ALLOW),
        ({"Service": "logging.s3.amazonaws.com"}, "test:tester", NONE),
    ],
)
def test_principals(principal: Any, user: str | None, expected: str) -> None:
    assert policy(statement(Principal=principal)).verdict(asked(user=user)) == expected


def test_what_is_not_named() -> None:
    found = policy(statement(Effect="Deny", Principal=None, NotPrincipal={"AWS": "test:tester"}))
    assert found.verdict(asked()) == NONE
    assert found.verdict(asked(user="test:other")) == found.verdict(asked(user=None)) == DENY
    found = policy(statement(Action=None, NotAction="s3:Put*"))
    assert (found.verdict(asked()), found.verdict(asked("s3:PutObject"))) == (ALLOW, NONE)
    found = policy(statement(Resource=None, NotResource=f"{BUCKET}/a*"))
    assert (found.verdict(asked()), found.verdict(asked(resource="b/ab"))) == (ALLOW, NONE)


@pytest.mark.parametrize("action", ["s3:GetObject", "S3:getobject", "s3:Get*", "s3:*", "*", "s3:?etObject"])
def test_actions(action: str) -> None:
    assert policy(statement(Action=action)).verdict(asked()) == ALLOW


@pytest.mark.parametrize(
    ("operator", "key", "value", "facts", "expected"),
    [
        ("StringEquals", "s3:prefix", "a", {"s3__prefix": "a"}, True),
        ("StringEquals", "s3:prefix", ["a", "b"], {"s3__prefix": "b"}, True),
        ("StringEquals", "s3:prefix", "a", {"s3__prefix": "A"}, False),
        ("StringEquals", "s3:prefix", "a", {}, False),
        ("StringEqualsIfExists", "s3:prefix", "a", {}, True),
        ("StringEqualsIgnoreCase", "S3:Prefix", "a", {"s3__prefix": "A"}, True),
        ("StringNotEquals", "s3:prefix", ["a", "b"], {"s3__prefix": "c"}, True),
        ("StringNotEquals", "s3:prefix", ["a", "b"], {"s3__prefix": "b"}, False),
        ("StringNotEquals", "s3:prefix", "a", {}, True),
        ("StringLike", "s3:prefix", "public/*", {"s3__prefix": "public/x"}, True),
        ("StringNotLike", "s3:prefix", "public/*", {"s3__prefix": "public/x"}, False),
        ("StringLike", "s3:prefix", "${aws:username}/*", {"s3__prefix": "ann/x", "aws__username": "ann"}, True),
        ("StringLike", "s3:prefix", "${aws:username}/*", {"s3__prefix": "bob/x", "aws__username": "ann"}, False),
        ("StringLike", "s3:prefix", "${aws:username}*", {"s3__prefix": "x"}, False),
        ("NumericLessThanEquals", "s3:max-keys", 10, {"s3__max_keys": "10"}, True),
        ("NumericLessThan", "s3:max-keys", "10", {"s3__max_keys": "10"}, False),
        ("NumericGreaterThan", "s3:max-keys", "10", {"s3__max_keys": "many"}, False),
        ("NumericNotEquals", "s3:max-keys", "10", {"s3__max_keys": "11"}, True),
        ("DateGreaterThan", "aws:CurrentTime", "2020-01-01T00:00:00Z", {"aws__currenttime": "2021-01-01T00:00:00Z"}, True),
        ("DateLessThan", "aws:CurrentTime", "2020-01-01", {"aws__currenttime": "2021-01-01T00:00:00Z"}, False),
        ("DateLessThan", "aws:EpochTime", "100", {"aws__epochtime": "99"}, True),
        ("Bool", "aws:SecureTransport", "false", {"aws__securetransport": "false"}, True),
        ("Bool", "aws:SecureTransport", False, {"aws__securetransport": "true"}, False),
        ("IpAddress", "aws:SourceIp", "10.0.0.0/8", {"aws__sourceip": "10.2.3.4"}, True),
        ("IpAddress", "aws:SourceIp", "10.0.0.0/8", {"aws__sourceip": "::ffff:10.2.3.4"}, True),
        ("IpAddress", "aws:SourceIp", ["10.0.0.0/8", "fe80::/10"], {"aws__sourceip": "fe80::1"}, True),
        ("IpAddress", "aws:SourceIp", "10.0.0.0/8", {"aws__sourceip": "11.2.3.4"}, False),
        ("NotIpAddress", "aws:SourceIp", "10.0.0.0/8", {"aws__sourceip": "11.2.3.4"}, True),
        ("IpAddress", "aws:SourceIp", "10.0.0.0/8", {"aws__sourceip": "nobody"}, False),
        ("Null", "s3:x-amz-acl", "true", {}, True),
        ("Null", "s3:x-amz-acl", True, {"s3__x_amz_acl": "private"}, False),
        ("Null", "s3:x-amz-acl", "false", {"s3__x_amz_acl": "private"}, True),
        ("ForAllValues:StringEquals", "s3:RequestObjectTagKeys", ["a", "b"], {"s3__requestobjecttagkeys": ("a",)}, True),
        ("ForAllValues:StringEquals", "s3:RequestObjectTagKeys", ["a"], {"s3__requestobjecttagkeys": ("a", "c")}, False),
        ("ForAllValues:StringEquals", "s3:RequestObjectTagKeys", ["a"], {}, True),
        ("ForAnyValue:StringEquals", "s3:RequestObjectTagKeys", ["a"], {"s3__requestobjecttagkeys": ("a", "c")}, True),
        ("ForAnyValue:StringEquals", "s3:RequestObjectTagKeys", ["a"], {}, False),
    ],
)
def test_conditions(operator: str, key: str, value: Any, facts: dict[str, Any], expected: bool) -> None:
    found = policy(statement(Condition={operator: {key: value}}))
    assert found.verdict(asked(**facts)) == (ALLOW if expected else NONE)


def test_all_conditions_must_hold() -> None:
    condition = {"StringEquals": {"s3:prefix": "a", "s3:delimiter": "/"}, "Bool": {"aws:SecureTransport": "true"}}
    found = policy(statement(Condition=condition))
    facts = {"s3__prefix": "a", "s3__delimiter": "/", "aws__securetransport": "true"}
    assert found.verdict(asked(**facts)) == ALLOW
    for name in facts:
        assert found.verdict(asked(**(facts | {name: "x"}))) == NONE


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"[]",
        b"{}",
        b"{" * 100_000,
        b'{"Version": "2020-01-01", "Statement": []}',
        b'{"Statement": []}',
        b'{"Statement": ["x"]}',
        *(
            json.dumps({"Statement": [item]}).encode()
            for item in (
                statement(Effect="allow"),
                statement(Effect=None),
                statement(Principal=None),
                statement(Principal={}),
                statement(Principal={"AWS": []}),
                statement(Principal={"AWS": "arn:aws:iam::test:nobody"}),
                statement(Principal={"Other": "*"}),
                statement(Principal=None, NotPrincipal="*"),
                statement(NotPrincipal="*"),
                statement(Action="sts:AssumeRole"),
                statement(Action=[]),
                statement(Action=7),
                statement(Action=None),
                statement(Resource="arn:aws:s3:::other/*"),
                statement(Resource="b/*"),
                statement(Resource=None),
                statement(Resource=[f"{BUCKET}/*", "arn:aws:s3:::other"]),
                statement(Condition=[]),
                statement(Condition={"StringEqual": {"s3:prefix": "a"}}),
                statement(Condition={"StringEquals": {"s3:no-such-key": "a"}}),
                statement(Condition={"StringEquals": {"s3:prefix": []}}),
                statement(Condition={"StringEquals": {"s3:prefix": {}}}),
                statement(Condition={"StringEquals": "a"}),
                statement(Condition={"IpAddress": {"aws:SourceIp": "here"}}),
                statement(Condition={"NumericEquals": {"s3:max-keys": "many"}}),
                statement(Condition={"DateEquals": {"aws:CurrentTime": "today"}}),
                statement(Condition={"Bool": {"aws:SecureTransport": "maybe"}}),
                statement(Condition={"Null": {"s3:prefix": "maybe"}}),
                statement(Other=1),
            )
        ),
        b'{"Statement": [], "Id": "' + b"x" * 21000 + b'"}',
    ],
)
def test_what_is_no_policy(document: bytes) -> None:
    with pytest.raises(S3Error) as caught:
        read(document, "b")
    assert caught.value.code == "MalformedPolicy"


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["Statement", "Effect", "Action", "Principal", "Resource", "Condition"]), inner),
    )
)
def test_any_document_is_a_policy_or_refused(document: Any) -> None:
    try:
        read(json.dumps(document).encode(), "b")
    except S3Error as error:
        assert error.code == "MalformedPolicy"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, True),
        ({"Effect": "Deny"}, False),
        ({"Principal": {"AWS": "arn:aws:iam::test:root"}}, False),
        ({"Condition": {"IpAddress": {"aws:SourceIp": "10.0.0.0/32"}}}, False),
        ({"Condition": {"IpAddress": {"aws:SourceIp": "0.0.0.0/0"}}}, True),
        ({"Condition": {"NotIpAddress": {"aws:SourceIp": "10.0.0.0/32"}}}, True),
        ({"Condition": {"StringLike": {"aws:Referer": "http://x/*"}}}, True),
        ({"Condition": {"StringEqualsIfExists": {"aws:SourceAccount": "1"}}}, True),
    ],
)
def test_public_is_what_everybody_may(fields: dict[str, Any], expected: bool) -> None:
    assert policy(statement(**fields)).is_public is expected
