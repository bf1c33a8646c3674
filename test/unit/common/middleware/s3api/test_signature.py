"""Signatures of versions 4 and 2 against the published vectors (``spec: s3-api 1.6``)."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from keelstore.common.headers import environ_key
from keelstore.common.middleware.s3api import signature as sign
from keelstore.common.middleware.s3api.authentication import Signed, kind_of, read
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.options import S3ApiOptions

SECRET, KEY = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "AKIAIOSFODNN7EXAMPLE"
NOW = 1369353600.0  # 2013-05-24T00:00:00Z
OPTIONS = S3ApiOptions()


def environ_of(method: str, target: str, headers: dict[str, str]) -> dict[str, Any]:
    path, _, query = target.partition("?")
    environ: dict[str, Any] = {"REQUEST_METHOD": method, "PATH_INFO": path, "RAW_PATH_INFO": path, "QUERY_STRING": query}
    for name, value in headers.items():
        environ[environ_key(name)] = value
    return environ


def signed(method: str, target: str, headers: dict[str, str], names: str, signature: str) -> Signed:
    environ = environ_of(method, target, {
        "Host": "examplebucket.s3.amazonaws.com", "X-Amz-Date": "20130524T000000Z", "X-Amz-Content-Sha256": sign.EMPTY_SHA256,
        "Authorization": f"AWS4-HMAC-SHA256 Credential={KEY}/20130524/us-east-1/s3/aws4_request, SignedHeaders={names}, "
                         f"Signature={signature}", **headers})
    return read(environ, kind_of(environ), OPTIONS, "", NOW)


BASE = "host;x-amz-content-sha256;x-amz-date"


@pytest.mark.parametrize(("method", "target", "headers", "names", "signature"), [
    ("GET", "/test.txt", {"Range": "bytes=0-9"}, "host;range;x-amz-content-sha256;x-amz-date",
     "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"),
    ("PUT", "/test$file.text", {"Date": "Fri, 24 May 2013 00:00:00 GMT", "X-Amz-Storage-Class": "REDUCED_REDUNDANCY",
                                "X-Amz-Content-Sha256": hashlib.sha256(b"Welcome to Amazon S3.").hexdigest()},
     "date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class",
     "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"),
    ("GET", "/?lifecycle", {}, BASE, "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
    ("GET", "/?max-keys=2&prefix=J", {}, BASE, "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
])
def test_a_published_vector_of_version_4(method: str, target: str, headers: dict[str, str], names: str, signature: str) -> None:
    claim = signed(method, target, headers, names, signature)
    assert claim.check(SECRET) and claim.signing_key
    assert not claim.check(SECRET + "x") and claim.signing_key is None


def test_a_published_signed_url_of_version_4() -> None:
    environ = environ_of("GET", "/test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1"
                                "%2Fs3%2Faws4_request&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host&"
                                "X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404",
                         {"Host": "examplebucket.s3.amazonaws.com"})
    assert kind_of(environ) == "v4-query"
    assert read(environ, "v4-query", OPTIONS, "", NOW + 86399).check(SECRET)
    with pytest.raises(S3Error, match="Request has expired"):
        read(environ, "v4-query", OPTIONS, "", NOW + 86401)
    with pytest.raises(S3Error, match="not valid yet"):
        read(environ, "v4-query", OPTIONS, "", NOW - 901)


@pytest.mark.parametrize(("expires", "text", "status"), [
    ("604801", "less than a week", 400), (str((1 << 63) - 1), "less than a week", 400), ("-1", "non-negative", 400),
    ("1e3", "a number", 400), (str(1 << 63), "a number", 400), ("0", "has expired", 403),
    ("-7", "has expired", 403), ("-1000", "has expired", 403), (str(-1 << 62), "has expired", 403),
])
def test_a_signed_url_must_end_within_a_week(expires: str, text: str, status: int) -> None:
    environ = environ_of("GET", "/b/k?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=k%2F20130524%2Fus-east-1%2Fs3%2Faws4_request"
                                f"&X-Amz-Date=20130524T000000Z&X-Amz-Expires={expires}&X-Amz-SignedHeaders=host&X-Amz-Signature=00", {"Host": "h"})
    with pytest.raises(S3Error) as caught:
        read(environ, "v4-query", OPTIONS, "", NOW)
    assert caught.value.code == ("AuthorizationQueryParametersError" if status == 400 else "AccessDenied")
    assert text in caught.value.message and caught.value.status == status


@pytest.mark.parametrize(("target", "date", "signature"), [
    ("/johnsmith/photos/puppy.jpg", "Tue, 27 Mar 2007 19:36:42 +0000", "bWq2s1WEIj+Ydj0vQ697zp+IXMU="),
    ("/awsexamplebucket1/?acl", "Tue, 27 Mar 2007 19:44:46 +0000", "82ZHiFIjc+WbcwFKGUVEQspPn+0="),
])
def test_a_published_vector_of_version_2(target: str, date: str, signature: str) -> None:
    environ = environ_of("GET", target, {"Date": date, "Authorization": f"AWS {KEY}:{signature}"})
    assert read(environ, kind_of(environ), OPTIONS, "", 1175024202.0).check(SECRET)
    with pytest.raises(S3Error, match="authorization mechanism"):
        read(environ, "v2", S3ApiOptions(allow_signature_v2=False), "", 1175024202.0)


def test_a_published_signed_url_of_version_2() -> None:
    environ = environ_of("GET", f"/awsexamplebucket1/photos/puppy.jpg?AWSAccessKeyId={KEY}&Expires=1175139620&Signature="
                                "1No4mq5ETf02z8aet9voy6gui6E%3D", {})
    assert read(environ, kind_of(environ), OPTIONS, "", 1175024202.0).check(SECRET)


@pytest.mark.parametrize("header", ["X-Amz-Copy-Source", "X-Amz-Acl", "X-Amz-Meta-A", "X-Amz-Checksum-Sha256", "X-Amz-Tagging"])
def test_security_S03_R01_headers_that_act_must_be_signed(header: str) -> None:
    with pytest.raises(S3Error) as caught:
        signed("PUT", "/o", {header: "x"}, BASE, "0" * 64)
    assert (caught.value.code, caught.value.fields) == ("AccessDenied", {"HeadersNotSigned": header.lower()})


@pytest.mark.parametrize(("credential", "code"), [
    ("k", "AuthorizationHeaderMalformed"), ("k/20130524/us-east-1/s4/aws4_request", "AuthorizationHeaderMalformed"),
    ("k/20130524/mars/s3/aws4_request", "AuthorizationHeaderMalformed"), ("k/20130523/us-east-1/s3/aws4_request", "AuthorizationHeaderMalformed"),
    ("k/20130524/us-east-1/s3/aws5_request", "AuthorizationHeaderMalformed"), ("k/x/us-east-1/s3/aws4_request", "AuthorizationHeaderMalformed"),
])
def test_a_wrong_scope_is_named(credential: str, code: str) -> None:
    environ = environ_of("GET", "/b", {"Host": "h", "X-Amz-Date": "20130524T000000Z", "X-Amz-Content-Sha256": sign.EMPTY_SHA256,
                                       "Authorization": f"AWS4-HMAC-SHA256 Credential={credential},SignedHeaders=host,Signature=00"})
    with pytest.raises(S3Error) as caught:
        read(environ, "v4", OPTIONS, "", NOW)
    assert caught.value.code == code
    if "mars" in credential:
        assert caught.value.fields["Region"] == "us-east-1"


@pytest.mark.parametrize(("date", "code"), [("", "AccessDenied"), ("nonsense", "AccessDenied"), ("20130524T001501Z", "RequestTimeTooSkewed"),
                                            ("99990524T000000Z", "RequestTimeTooSkewed"), ("20139924T000000Z", "AccessDenied")])
def test_a_wrong_time_is_refused(date: str, code: str) -> None:
    with pytest.raises(S3Error) as caught:
        signed("GET", "/b", {"X-Amz-Date": date}, BASE, "00")
    assert caught.value.code == code


@pytest.mark.parametrize("date", ["", "Bad Date"])
def test_an_x_amz_date_counts_before_the_date_also_when_it_is_none(date: str) -> None:
    environ = environ_of("GET", "/b", {"Date": "Tue, 27 Mar 2007 19:36:42 +0000", "X-Amz-Date": date, "Authorization": f"AWS {KEY}:x"})
    with pytest.raises(S3Error) as caught:
        read(environ, "v2", OPTIONS, "", 1175024202.0)
    assert caught.value.code == "AccessDenied"
