"""CORS rules of buckets: read, and matched."""

from __future__ import annotations

import pytest

from keelstore.common.middleware.s3api import cors_rules, xml
from keelstore.common.middleware.s3api.cors_rules import CorsRule, match
from keelstore.common.middleware.s3api.errors import S3Error


def read(*rules: str) -> tuple[CorsRule, ...]:
    return cors_rules.read(xml.parse(f"<CORSConfiguration>{''.join(rules)}</CORSConfiguration>".encode()))


def rule(origin: str = "*", method: str = "GET", more: str = "") -> str:
    return f"<CORSRule><AllowedMethod>{method}</AllowedMethod><AllowedOrigin>{origin}</AllowedOrigin>{more}</CORSRule>"


def test_all_of_a_rule_is_read() -> None:
    more = (
        "<ID>x</ID><AllowedHeader>x-amz-*</AllowedHeader><ExposeHeader>ETag</ExposeHeader><MaxAgeSeconds>30</MaxAgeSeconds>"
        "<AllowedMethod>PUT</AllowedMethod>"
    )
    assert read(rule("http://a", more=more)) == (CorsRule(("GET", "PUT"), ("http://a",), ("x-amz-*",), ("ETag",), "30"),)


@pytest.mark.parametrize(
    ("document", "code"),
    [
        ("", "MalformedXML"),
        (rule() * 101, "MalformedXML"),
        ("<CORSRule><AllowedMethod>GET</AllowedMethod></CORSRule>", "MalformedXML"),
        ("<CORSRule><AllowedOrigin>*</AllowedOrigin></CORSRule>", "MalformedXML"),
        (rule(method="PATCH"), "InvalidRequest"),
        (rule(method="get"), "InvalidRequest"),
        (rule("http://*.*"), "InvalidRequest"),
        (rule(more="<AllowedHeader>*-*</AllowedHeader>"), "InvalidRequest"),
        (rule(more="<ExposeHeader>x-*</ExposeHeader>"), "InvalidRequest"),
        (rule(more="<ExposeHeader>a\nSet-Cookie: b</ExposeHeader>"), "InvalidRequest"),
        (rule(more="<MaxAgeSeconds>soon</MaxAgeSeconds>"), "MalformedXML"),
    ],
)
def test_what_is_no_configuration(document: str, code: str) -> None:
    with pytest.raises(S3Error) as caught:
        read(document)
    assert caught.value.code == code


def test_security_R08_no_setting_can_write_another_header() -> None:
    for more in ("<AllowedHeader>a\r\nb: c</AllowedHeader>", "<ExposeHeader>a\r\nb: c</ExposeHeader>"):
        with pytest.raises(S3Error):
            read(rule(more=more))
    with pytest.raises(S3Error):
        read(rule("http://a\r\nSet-Cookie: b"))
    with pytest.raises(S3Error):
        read(rule(more="<MaxAgeSeconds>1\nb: c</MaxAgeSeconds>"))


@pytest.mark.parametrize(
    ("pattern", "origin", "expected"),
    [
        ("*suffix", "foo.suffix", True),
        ("*suffix", "foo.bar", False),
        ("*suffix", "foo.suffix.get", False),
        ("start*end", "startend", True),
        ("start*end", "start1end", True),
        ("start*end", "start1.end.x", False),
        ("start*end", "starend", False),
        ("prefix*", "prefix", True),
        ("prefix*", "bla.prefix", False),
        ("http://a", "http://A", False),
        ("*", "null", True),
    ],
)
def test_origins(pattern: str, origin: str, expected: bool) -> None:
    assert (match(read(rule(pattern)), origin, "GET") is not None) is expected


def test_the_first_rule_that_allows_all_of_it_answers() -> None:
    rules = read(rule("http://a", "PUT"), rule("http://a", more="<AllowedHeader>X-One</AllowedHeader>"), rule())
    assert match(rules, "http://a", "PUT") is rules[0]
    assert match(rules, "http://a", "GET", ["x-one"]) is rules[1]
    assert match(rules, "http://b", "GET") is rules[2]
    assert match(rules, "http://b", "GET", ["x-one"]) is None
    assert match(rules, "http://b", "PUT") is None


def test_an_origin_that_was_named_may_send_credentials() -> None:
    named, any_origin = read(rule("http://*"), rule())
    answer = named.answer("http://a", ["X-One", "X-Two"])
    assert answer["Access-Control-Allow-Origin"] == "http://a"
    assert answer["Access-Control-Allow-Credentials"] == "true"
    assert answer["Access-Control-Allow-Headers"] == "X-One, X-Two"
    assert "Origin" in answer["Vary"]
    answer = any_origin.answer("http://a")
    assert answer["Access-Control-Allow-Origin"] == "*"
    assert "Access-Control-Allow-Credentials" not in answer
