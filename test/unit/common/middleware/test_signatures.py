import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelstore.common.middleware import signatures
from keelstore.common.middleware.signatures import (
    Refused,
    form_text,
    matching,
    parse_expires,
    parse_signature,
    sign,
    url_text,
)
from keelstore.common.middleware.temp_urls import Claim, examine

PATH, EXPIRES = "/v1/AUTH_a/c/o", 1700000000
SHA256 = "1b2618118ea6cef7046d1641fc84c989acecf59cd4a1b4f3b1ec9b7677e6d617"
SHA1 = "cf1cb4ca7ffbf542fd4bd4792d5feaafb1e6bda3"
SHA512 = "sha512:X3C507uCd7D-syYEgWXQIY4RMpQ8MaGazmdLyNSztmN9MeDmHgr2vaOQk8AH7v8PAYdMcCvttNzoTLywIrHt4g=="


@pytest.mark.parametrize(("signature", "text"), [
    (SHA256, url_text("GET", EXPIRES, PATH)),
    (SHA1, url_text("GET", EXPIRES, PATH)),
    (SHA512, url_text("GET", EXPIRES, PATH)),
    ("06afbed489e855e9bf76af8746ab50c8d14919dbd98bb5df61bbf21588c39812", url_text("GET", EXPIRES, "prefix:/v1/AUTH_a/c/pre")),
    ("f917e8f748de328bd03186657b60fa6f1c24ba58e936f20c1f6866cee4a99b41", url_text("GET", EXPIRES, PATH, "10.0.0.0/8")),
    ("3fde75158fab4f806bcefd167f16d6d6af0b0ba3c48f6e8bb9b2de0d6fe4f131", form_text("/v1/AUTH_a/c/pre", "", "1048576", "2", "1700000000")),
])
def test_vectors_of_the_field(signature, text):
    digest, found = parse_signature(signature)
    assert sign("mykey", digest, text) == found
    assert matching(found, digest, ["other", "mykey"], ["no", text]) == 1
    assert matching(found, digest, ["other", "mykey "], [text]) is None


@pytest.mark.parametrize("form", [
    "sha512:" + SHA512[7:].rstrip("="), "sha512:" + SHA512[7:].replace("-", "+").replace("_", "/"), SHA512,
])
def test_a_signature_in_base64_may_have_either_alphabet_and_no_padding(form):
    assert parse_signature(form) == parse_signature(SHA512)


@pytest.mark.parametrize("text", ["", "zz", SHA256 + "0", "sha256:" + SHA512[7:], "SHA512" + SHA512[6:], "md5:" + SHA512[7:],
                                  "sha512:é", "sha256:!!!!", "é" * 40, "a" * 1000, "sha1:"])
def test_what_is_no_signature_is_refused(text):
    with pytest.raises(Refused):
        parse_signature(text)


@given(st.sampled_from(signatures.DIGESTS), st.text(), st.text())
def test_all_forms_of_a_signature_are_one(digest, key, text):
    key, text = (value.encode("utf-8", "surrogatepass").decode("latin-1") for value in (key, text))
    signature = sign(key, digest, text)
    raw = bytes.fromhex(signature)
    for form in (signature, f"{digest}:{base64.b64encode(raw).decode()}", f"{digest}:{base64.urlsafe_b64encode(raw).decode().rstrip('=')}"):
        assert parse_signature(form) == (digest, signature)


@given(st.text())
def test_any_text_is_a_signature_or_refused(text):
    for parse in (parse_signature, parse_expires):
        try:
            parse(text)
        except Refused as refused:
            assert refused.check


@pytest.mark.parametrize(("text", "expected"), [
    ("1700000000", EXPIRES), ("2023-11-14T22:13:20Z", EXPIRES), (" 1700000000", EXPIRES), ("2147483646", 2147483646),
    ("99999999999999", 99999999999999), ("-5", -5),
])
def test_forms_of_an_expiry(text, expected):
    assert parse_expires(text) == expected


@pytest.mark.parametrize("text", ["", "x", "1.5", "2023-11-14T22:13:20", "2023-11-14", "2023-11-14T22:13:20+0000", "2023-13-14T22:13:20Z",
                                  "9" * 5000, "nan"])
def test_what_is_no_expiry_is_refused(text):
    with pytest.raises(Refused):
        parse_expires(text)


def claim(**changes):
    return Claim(**{"method": "GET", "path": PATH, "signature": SHA256, "expires": str(EXPIRES), **changes})


def check_of(now=EXPIRES - 1, address="10.1.2.3", methods=("GET", "HEAD", "PUT"), digests=signatures.DIGESTS, **changes):
    try:
        examine(claim(**changes), now, address, methods, digests)
    except Refused as refused:
        return refused.check
    return None


@pytest.mark.parametrize(("changes", "check"), [
    ({}, None),
    ({"now": EXPIRES}, None),
    ({"now": EXPIRES + 1}, "expired"),
    ({"signature": ""}, "no-signature"),
    ({"expires": ""}, "no-expires"),
    ({"expires": "soon"}, "expires-form"),
    ({"signature": "abc"}, "signature-form"),
    ({"signature": SHA1, "digests": ("sha256",)}, "digest-not-allowed"),
    ({"method": "DELETE"}, "method-not-allowed"),
    ({"path": "/v1/AUTH_a/c"}, "path"),
    ({"path": "/v1/AUTH_a/c/"}, "path"),
    ({"path": "/v1/AUTH_a/c//"}, "path"),
    ({"path": "/v1/AUTH_a"}, "path"),
    ({"path": "/v1.0/AUTH_a/c/o"}, "path"),
    ({"path": "/v2/AUTH_a/c/o"}, "path"),
    ({"path": "/v1//c/o"}, "path"),
    ({"path": "v1/AUTH_a/c/o"}, "path"),
    ({"prefix": "o"}, None),
    ({"prefix": ""}, None),
    ({"prefix": "p"}, "prefix"),
    ({"path": "/v1/AUTH_a/c", "prefix": ""}, None),
    ({"path": "/v1/AUTH_a/c", "prefix": "", "method": "PUT"}, "path"),
    ({"path": "/v1/AUTH_a/c", "prefix": "x"}, "path"),
    ({"ip_range": "10.0.0.0/8"}, None),
    ({"ip_range": "10.1.2.3"}, None),
    ({"ip_range": "10.1.2.4"}, "ip-range"),
    ({"ip_range": "10.1.2.3/8"}, "ip-range-form"),
    ({"ip_range": "everyone"}, "ip-range-form"),
    ({"ip_range": "2001:db8::/32"}, "ip-range"),
    ({"ip_range": "2001:db8::/32", "address": "2001:db8::1"}, None),
    ({"ip_range": "10.0.0.0/8", "address": ""}, "ip-range"),
])
def test_checks_of_a_url(changes, check):
    assert check_of(**changes) == check


def test_a_head_may_be_signed_for_what_grants_more():
    texts = examine(claim(method="HEAD"), 0, "", ("HEAD",), signatures.DIGESTS).texts
    assert [text.partition("\n")[0] for text in texts] == ["HEAD", "GET", "POST", "PUT"]
    assert check_of(method="HEAD", methods=("GET",)) == "method-not-allowed"


def test_security_S15_every_key_is_compared_in_constant_time(monkeypatch):
    compared = []

    def compare(one, two):
        compared.append((one, two))
        return one == two

    monkeypatch.setattr(signatures.hmac, "compare_digest", compare)
    right = sign("b", "sha1", "text")
    assert matching(right, "sha1", ["a", "b", "c"], ["text", "other"]) == 1
    assert len(compared) == 6
