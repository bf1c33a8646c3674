"""What a request says of its body, by how it is signed (``spec: s3-api 1.3-1.5``)."""

from __future__ import annotations

import hashlib
import io
from typing import Any

import pytest

from keelstore.common.headers import environ_key
from keelstore.common.middleware.s3api.authentication import Signed
from keelstore.common.middleware.s3api.body import BodyRefused
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.options import S3ApiOptions
from keelstore.common.middleware.s3api.request import S3Request
from keelstore.common.middleware.s3api.signature import UNSIGNED_PAYLOAD
from keelstore.common.middleware.s3api.target import Target

BODY, FRAMED, PLAIN = b"hello", b"5\r\nhello\r\n0\r\n\r\n", "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
RIGHT, WRONG = hashlib.sha256(BODY).hexdigest(), "0" * 64


def outcome(kind: str, said: str | None, body: bytes = BODY, **headers: str) -> str:
    """The code of the error that reading the body ends with; '' for none."""
    environ: dict[str, Any] = {"REQUEST_METHOD": "PUT", "PATH_INFO": "/b/k", "QUERY_STRING": "", "CONTENT_LENGTH": str(len(body)),
                               "wsgi.input": io.BytesIO(body)}
    environ |= {environ_key(name.replace("_", "-")): value for name, value in headers.items()}
    if said is not None:
        environ["HTTP_X_AMZ_CONTENT_SHA256"] = said
    signed = Signed(kind, "k", "s", b"", payload_hash=(said or UNSIGNED_PAYLOAD) if kind.startswith("v4") else UNSIGNED_PAYLOAD) \
        if kind else None
    request = S3Request(environ, lambda *_: [], S3ApiOptions(), Target("b", "k"), signed, lambda *_: None)
    try:
        found = request.open_body()
        assert found.read() == b"hello"
    except S3Error as error:
        return error.code
    except BodyRefused:
        assert request.body is not None and request.body.failure is not None
        return request.body.failure.code
    return ""


@pytest.mark.parametrize("kind", ["v4", "v4-query", "v2", "v2-query"])
def test_a_hash_that_was_sent_must_be_that_of_the_body(kind: str) -> None:
    assert [outcome(kind, said) for said in (RIGHT, RIGHT.upper(), UNSIGNED_PAYLOAD, WRONG)] == \
        ["", "", "", "XAmzContentSHA256Mismatch"]


@pytest.mark.parametrize("kind", ["v4-query", "v2", "v2-query"])
def test_only_version_4_in_headers_has_frames(kind: str) -> None:
    assert [outcome(kind, said) for said in ("unsigned-payload", "nonsense")] == ["XAmzContentSHA256Mismatch"] * 2
    assert outcome(kind, PLAIN) == "MissingContentLength"
    assert outcome(kind, PLAIN, x_amz_decoded_content_length="5") == "XAmzContentSHA256Mismatch"
    assert outcome(kind, PLAIN, FRAMED, x_amz_decoded_content_length="5") == "IncompleteBody"


@pytest.mark.parametrize("kind", ["v4", ""])
def test_frames_are_taken_off(kind: str) -> None:
    assert outcome(kind, PLAIN, FRAMED, x_amz_decoded_content_length="5") == ""
    assert outcome(kind, PLAIN, BODY, x_amz_decoded_content_length="5") == "IncompleteBody"


@pytest.mark.parametrize("headers", [
    {"x_amz_checksum_crc32": "bad", "x_amz_checksum_sha256": "bad"},
    {"x_amz_checksum_crc32": "NhCmhg==", "x_amz_trailer": "x-amz-checksum-crc32"},
    {"x_amz_trailer": "x-amz-checksum-crc32, x-amz-checksum-sha1"},
])
def test_one_checksum_is_enough(headers: dict[str, str]) -> None:
    assert outcome("v4", UNSIGNED_PAYLOAD, **headers) == "InvalidRequest"


def test_what_a_signed_url_says_of_a_checksum_is_of_no_body() -> None:
    """AWS's SDK for JavaScript signs the checksum of nothing into URLs that others upload to."""
    environ: dict[str, Any] = {"REQUEST_METHOD": "PUT", "PATH_INFO": "/b/k", "CONTENT_LENGTH": "5", "wsgi.input": io.BytesIO(BODY),
                               "QUERY_STRING": "x-amz-checksum-crc32=AAAAAA%3D%3D&x-amz-sdk-checksum-algorithm=CRC32&x-amz-acl=private"}
    signed = Signed("v4-query", "k", "s", b"", payload_hash=UNSIGNED_PAYLOAD)
    request = S3Request(environ, lambda *_: [], S3ApiOptions(), Target("b", "k"), signed, lambda *_: None)
    assert request.open_body().read() == BODY and request.header("X-Amz-Acl") == "private"
