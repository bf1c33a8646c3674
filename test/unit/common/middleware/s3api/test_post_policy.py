"""Policies of forms."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.post_policy import PostPolicy, read

NOW = 1_700_000_000.0
LATER = "2030-01-01T00:00:00Z"


def encoded(document: Any) -> str:
    return base64.b64encode(json.dumps(document).encode()).decode()


def policy(*conditions: Any, expiration: str = LATER) -> PostPolicy:
    return read(encoded({"expiration": expiration, "conditions": list(conditions)}))


def code_of(found: PostPolicy, fields: dict[str, str], bucket: str = "b") -> str:
    try:
        found.check(fields, bucket, NOW)
    except S3Error as error:
        return error.code
    return ""


GOOD: tuple[Any, ...] = ({"bucket": "b"}, ["starts-with", "$key", "foo"], {"acl": "private"})
FIELDS = {"key": "foo.txt", "acl": "private", "policy": "p", "signature": "s", "awsaccesskeyid": "a"}


def test_what_the_conditions_say_is_allowed() -> None:
    assert code_of(policy(*GOOD), FIELDS) == ""
    upper: Any = ({"bUcKeT": "b"}, ["StArTs-WiTh", "$KeY", "foo"], {"AcL": "private"})
    assert code_of(policy(*upper), FIELDS) == ""
    assert code_of(policy(*GOOD), FIELDS | {"x-ignore-foo": "bar", "submit": "Go", "x-amz-checksum-crc32": "x"}) == ""


@pytest.mark.parametrize(
    ("conditions", "fields", "bucket"),
    [
        (GOOD, {"key": "bar"}, "b"),
        (GOOD, {"acl": "public-read"}, "b"),
        (GOOD, {}, "other"),
        (GOOD, {"x-amz-meta-a": "b"}, "b"),
        (GOOD[1:], {}, "b"),
        ((*GOOD, ["starts-with", "$x-amz-meta-foo", "bar"]), {}, "b"),
        ((*GOOD, {"bucket": "c"}), {}, "b"),
    ],
)
def test_security_R06_all_else_is_refused(conditions: Any, fields: dict[str, str], bucket: str) -> None:
    assert code_of(policy(*conditions), FIELDS | fields, bucket) == "AccessDenied"


def test_its_time_ends() -> None:
    assert code_of(policy(*GOOD, expiration="2020-01-01T00:00:00Z"), FIELDS) == "AccessDenied"


def test_ranges_of_lengths_are_met_all_together() -> None:
    found = policy(["content-length-range", 1, 10], ["content-length-range", "3", "20"])
    assert (found.least, found.most) == (3, 10)
    assert (policy().least, policy().most) == (None, None)


@pytest.mark.parametrize(
    "document",
    [
        [],
        {},
        {"expiration": LATER},
        {"conditions": []},
        {"EXPIRATION": LATER, "conditions": []},
        {"expiration": LATER, "CONDITIONS": []},
        {"expiration": "2030-01-01 00:00:00", "conditions": []},
        {"expiration": 7, "conditions": []},
        {"expiration": LATER, "conditions": {}},
        *(
            {"expiration": LATER, "conditions": [condition]}
            for condition in (
                {},
                [],
                "x",
                ["eq", "key", "v"],
                ["eq", "$key"],
                ["like", "$key", "v"],
                ["starts-with", "$bucket", ""],
                ["starts-with", "$x-amz-credential", ""],
                ["content-length-range", 0],
                ["content-length-range", 0, "many"],
                ["content-length-range", -1, 5],
                {"key": ["v"]},
            )
        ),
    ],
)
def test_what_is_no_policy(document: Any) -> None:
    with pytest.raises(S3Error) as caught:
        read(encoded(document))
    assert caught.value.code == "InvalidPolicyDocument"


@given(st.text(max_size=40))
def test_any_text_is_a_policy_or_refused(text: str) -> None:
    with pytest.raises(S3Error):
        read(text)
