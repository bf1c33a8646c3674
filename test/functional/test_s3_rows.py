"""Rows of the security and case pages that are about S3 (doc/design/security.md)."""

from __future__ import annotations

import base64
import hashlib
import re
import time
import zlib
from collections.abc import Iterator
from typing import Any

import pytest

from test.support.client import Account, Endpoint, unique
from test.support.s3 import TESTER, refused, remove_bucket, signed
from test.support.store import Store
from test.support.waiting import until

PART = 5 << 20
NOBODY = ("test:tester", "not the secret")


@pytest.fixture(scope="module")
def swift(cluster: Store) -> Account:
    """The account of the buckets."""
    return cluster.login()


@pytest.fixture
def bucket(s3: Any) -> Iterator[str]:
    name = unique("rows")
    s3.create_bucket(Bucket=name)
    yield name
    remove_bucket(s3, name)


def code_of(body: bytes) -> str:
    found = re.search(rb"<Code>(\w+)</Code>", body)
    return found[1].decode() if found else ""


def keys(s3: Any, bucket: str) -> list[str]:
    return [entry["Key"] for entry in s3.list_objects_v2(Bucket=bucket).get("Contents", ())]


def upload(s3: Any, bucket: str, key: str, *bodies: bytes) -> None:
    about = {"Bucket": bucket, "Key": key, "UploadId": s3.create_multipart_upload(Bucket=bucket, Key=key)["UploadId"]}
    parts = [{"PartNumber": number, "ETag": s3.upload_part(**about, PartNumber=number, Body=body)["ETag"]} for number, body in enumerate(bodies, 1)]
    s3.complete_multipart_upload(**about, MultipartUpload={"Parts": parts})


def test_security_S41_another_body_under_the_headers_of_one_is_refused(endpoint: Endpoint, s3: Any, bucket: str) -> None:
    headers = {"x-amz-content-sha256": hashlib.sha256(b"what was signed").hexdigest()}
    answer = signed(endpoint, TESTER, "PUT", f"/{bucket}/k", body=b"something else.", headers=headers)
    assert (answer.status, code_of(answer.body)) == (400, "XAmzContentSHA256Mismatch")
    streamed = {"x-amz-content-sha256": "STREAMING-AWS4-HMAC-SHA256-PAYLOAD", "x-amz-decoded-content-length": "5", "content-encoding": "aws-chunked"}
    body = b"5;chunk-signature=%s\r\nhello\r\n0;chunk-signature=%s\r\n\r\n" % (b"0" * 64, b"0" * 64)
    answer = signed(endpoint, TESTER, "PUT", f"/{bucket}/k", body=body, headers=streamed)
    assert (answer.status, code_of(answer.body)) == (403, "SignatureDoesNotMatch")
    assert keys(s3, bucket) == []
    with refused("404"):
        s3.head_object(Bucket=bucket, Key="k")


def test_security_S49_nothing_is_deleted_by_a_list_that_is_not_what_was_meant(endpoint: Endpoint, s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    body = b"<Delete><Object><Key>k</Key></Object></Delete>"
    for name, value in (
        ("content-md5", base64.b64encode(hashlib.md5(b"other").digest())),
        ("x-amz-checksum-sha256", base64.b64encode(hashlib.sha256(b"other").digest())),
        ("x-amz-checksum-crc32", base64.b64encode(zlib.crc32(b"other").to_bytes(4, "big"))),
    ):
        answer = signed(endpoint, TESTER, "POST", f"/{bucket}", {"delete": ""}, body, {name: value.decode()})
        assert (answer.status, code_of(answer.body)) == (400, "BadDigest"), name
        assert keys(s3, bucket) == ["k"]
    good = {"content-md5": base64.b64encode(hashlib.md5(body).digest()).decode()}
    answer = signed(endpoint, TESTER, "POST", f"/{bucket}", {"delete": ""}, body, good)
    assert (answer.status, keys(s3, bucket)) == (200, [])


@pytest.mark.parametrize("user", [NOBODY, ("nobody", "testing"), TESTER])
def test_security_R02_an_unsigned_trailer_needs_a_signature_all_the_same(endpoint: Endpoint, s3: Any, bucket: str, user: tuple[str, str]) -> None:
    check = base64.b64encode(zlib.crc32(b"hello").to_bytes(4, "big"))
    headers = {"x-amz-content-sha256": "STREAMING-UNSIGNED-PAYLOAD-TRAILER", "x-amz-decoded-content-length": "5", "content-encoding": "aws-chunked",
               "x-amz-trailer": "x-amz-checksum-crc32"}
    body = b"5\r\nhello\r\n0\r\nx-amz-checksum-crc32:%s\r\n\r\n" % check
    answer = signed(endpoint, user, "PUT", f"/{bucket}/k", body=body, headers=headers)
    assert answer.status == (200 if user is TESTER else 403), answer
    assert keys(s3, bucket) == (["k"] if user is TESTER else [])


def test_case_C11_access_keys_beyond_ascii_are_unknown(endpoint: Endpoint, bucket: str) -> None:
    wire = "ключ".encode().decode("latin-1")
    date = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    scope = f"{date[:8]}/us-east-1/s3/aws4_request"
    authorization = f"AWS4-HMAC-SHA256 Credential={wire}/{scope}, SignedHeaders=host;x-amz-date, Signature={'0' * 64}"
    asked = [
        endpoint.request("GET", f"/{bucket}", {"Authorization": authorization, "x-amz-date": date, "x-amz-content-sha256": "UNSIGNED-PAYLOAD"}),
        endpoint.request("GET", f"/{bucket}?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=%D0%BA%D0%BB%D1%8E%D1%87%2F{date[:8]}%2Fus-east-1%2Fs3%2Faws4_request"
                                f"&X-Amz-Date={date}&X-Amz-Expires=600&X-Amz-SignedHeaders=host&X-Amz-Signature={'0' * 64}"),
    ]
    assert [(answer.status, code_of(answer.body)) for answer in asked] == [(403, "InvalidAccessKeyId")] * 2


def test_case_C12_one_part_of_an_object(s3: Any, bucket: str) -> None:
    upload(s3, bucket, "k", b"a" * PART, b"the end")
    answer = s3.get_object(Bucket=bucket, Key="k", PartNumber=2)
    assert answer["Body"].read() == b"the end"
    assert (answer["ResponseMetadata"]["HTTPStatusCode"], answer["PartsCount"], answer["ContentRange"]) == \
        (206, 2, f"bytes {PART}-{PART + 6}/{PART + 7}")


def test_case_C13_parts_under_another_policy_than_the_bucket(s3: Any, swift: Account, bucket: str) -> None:
    swift.put(f"{bucket}+segments", headers={"X-Storage-Policy": "silver"}).expect(201)
    assert swift.head(bucket).expect(204).headers["X-Storage-Policy"] == "gold"
    upload(s3, bucket, "k", b"a" * PART, b"the end")
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"a" * PART + b"the end"
    assert swift.head(f"{bucket}+segments").headers["X-Storage-Policy"] == "silver"


def test_case_C13_parts_are_under_the_policy_of_their_bucket(s3: Any, swift: Account) -> None:
    bucket = unique("silver")
    swift.put(bucket, headers={"X-Storage-Policy": "silver"}).expect(201)
    upload(s3, bucket, "k", b"a" * PART, b"the end")
    assert swift.head(f"{bucket}+segments").headers["X-Storage-Policy"] == "silver"
    remove_bucket(s3, bucket)


ODD = ("a%b/x", "a+b/y", "a b/z", "é/ü", "q--r--s", "plain")


def test_case_C22_odd_prefixes_and_delimiters(endpoint: Endpoint, s3: Any, bucket: str) -> None:
    for key in ODD:
        s3.put_object(Bucket=bucket, Key=key, Body=b"")
    for key in ODD[:4]:
        prefix = key[:-1]
        assert [entry["Key"] for entry in s3.list_objects_v2(Bucket=bucket, Prefix=prefix)["Contents"]] == [key]
        raw = signed(endpoint, TESTER, "GET", f"/{bucket}", {"list-type": "2", "prefix": prefix}).body.decode()
        assert f"<Key>{key}</Key>" in raw and f"<Prefix>{prefix}</Prefix>" in raw and "<Delimiter>" not in raw
    assert [entry["Prefix"] for entry in s3.list_objects_v2(Bucket=bucket, Delimiter="/")["CommonPrefixes"]] == ["a b/", "a%b/", "a+b/", "é/"]
    for delimiter, prefixes in (("--", ["q--"]), ("%", ["a%"]), ("+", ["a+"]), (" ", ["a "]), ("é", ["é"])):
        for version in ("1", "2"):
            raw = signed(endpoint, TESTER, "GET", f"/{bucket}", {"list-type": "2", "delimiter": delimiter} if version == "2" else {"delimiter": delimiter}).body.decode()
            assert re.findall("<CommonPrefixes><Prefix>(.*?)</Prefix>", raw) == prefixes and f"<Delimiter>{delimiter}</Delimiter>" in raw
    empty = signed(endpoint, TESTER, "GET", f"/{bucket}", {"delimiter": ""})
    assert empty.status == 200 and b"<Delimiter>" not in empty.body and empty.body.count(b"<Key>") == len(ODD)


def test_case_C23_objects_of_parts_leave_nothing_behind(s3: Any, swift: Account, bucket: str) -> None:
    upload(s3, bucket, "a", b"a" * PART, b"the end")
    upload(s3, bucket, "b", b"b")
    assert len(swift.listing(f"{bucket}+segments")) == 3
    answer = s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": "a"}, {"Key": "b"}]})
    assert sorted(entry["Key"] for entry in answer["Deleted"]) == ["a", "b"]
    until(lambda: swift.listing(f"{bucket}+segments") == [], "the expirer has deleted the parts")


def test_case_C34_a_wrong_signature_is_told_what_was_signed(endpoint: Endpoint, bucket: str) -> None:
    answer = signed(endpoint, NOBODY, "GET", f"/{bucket}", {"prefix": "a b"})
    text = answer.body.decode()
    assert (answer.status, code_of(answer.body)) == (403, "SignatureDoesNotMatch")
    assert "<StringToSign>AWS4-HMAC-SHA256\n" in text.replace("&#10;", "\n")
    assert f"<CanonicalRequest>GET\n/{bucket}\nprefix=a%20b\n" in text.replace("&#10;", "\n")


@pytest.mark.parametrize("sub_resource", ["lifecycle", "encryption", "replication", "ownershipControls", "inventory", "policyStatus", "publicAccessBlock",
                                          "metrics", "analytics", "intelligent-tiering", "website", "logging", "notification", "accelerate",
                                          "requestPayment", "object-lock", "policy", "tagging", "cors"])
def test_case_C35_a_sub_resource_is_never_taken_for_the_bucket(endpoint: Endpoint, s3: Any, bucket: str, sub_resource: str) -> None:
    got = signed(endpoint, TESTER, "GET", f"/{bucket}", {sub_resource: ""})
    assert b"<ListBucketResult" not in got.body
    signed(endpoint, TESTER, "DELETE", f"/{bucket}", {sub_resource: ""})
    s3.head_bucket(Bucket=bucket)
    other = unique("none")
    put = signed(endpoint, TESTER, "PUT", f"/{other}", {sub_resource: ""})
    assert put.status >= 400, put
    with refused("404"):
        s3.head_bucket(Bucket=other)
