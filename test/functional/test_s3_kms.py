"""Encryption with a key that an S3 client names (aws:kms): really with that key, told as long as it is true, and with no other."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote_plus

import pytest
from botocore.exceptions import ClientError

from test.support.client import unique
from test.support.s3_clients import Keys
from test.support.store import Store, running

KEY = "keelstore"
NAMED = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": KEY}
PART = b"p" * (5 << 20)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """One that encrypts nothing by itself."""
    with running(tmp_path_factory.mktemp("kms") / "data", workers=1) as store:
        yield store


@pytest.fixture
def s3(store: Store) -> Any:
    return Keys.of_tester(store.endpoint).boto3()


@pytest.fixture
def bucket(s3: Any) -> str:
    name = unique("kms")
    s3.create_bucket(Bucket=name)
    return name


def told(answer: dict[str, Any]) -> tuple[str | None, str | None]:
    return answer.get("ServerSideEncryption"), answer.get("SSEKMSKeyId")


def code_of(call: Any, **arguments: Any) -> str:
    with pytest.raises(ClientError) as caught:
        call(**arguments)
    return str(caught.value.response["Error"]["Code"])


def crypto_metas(store: Store, bucket: str) -> list[str]:
    """What data files of the bucket say of the key of their body."""
    found = []
    for path in store.devices(1).rglob("*.data"):
        blob = b"".join(os.getxattr(path, name) for name in sorted(os.listxattr(path)) if "metadata" in name)
        if f"/AUTH_test/{bucket}".encode() in blob:
            found.append(unquote_plus(blob.decode("latin-1")))
    return found


def test_what_is_written_with_a_named_key(store: Store, s3: Any, bucket: str) -> None:
    assert told(s3.put_object(Bucket=bucket, Key="o", Body=b"swordfish", **NAMED)) == ("aws:kms", KEY)
    for answer in (s3.head_object(Bucket=bucket, Key="o"), got := s3.get_object(Bucket=bucket, Key="o")):
        assert told(answer) == ("aws:kms", KEY)
    assert got["Body"].read() == b"swordfish"
    metas = crypto_metas(store, bucket)
    assert metas and all(f'"secret_id": "{KEY}"' in meta for meta in metas)
    s3.put_object(Bucket=bucket, Key="empty", Body=b"", **NAMED)
    assert told(s3.head_object(Bucket=bucket, Key="empty")) == ("aws:kms", KEY)
    assert told(s3.put_object(Bucket=bucket, Key="ours", Body=b"x", ServerSideEncryption="AES256")) == ("AES256", None)
    assert told(s3.head_object(Bucket=bucket, Key="ours")) == ("AES256", None)
    assert s3.get_object(Bucket=bucket, Key="o", IfMatch=got["ETag"])["Body"].read() == b"swordfish"
    assert s3.list_objects_v2(Bucket=bucket, Prefix="o")["Contents"][0]["ETag"] == got["ETag"]


@pytest.mark.parametrize(("arguments", "code"), [
    ({"ServerSideEncryption": "aws:kms"}, "InvalidArgument"),
    ({"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "another"}, "KMS.NotFoundException"),
    ({"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "None"}, "KMS.NotFoundException"),
    ({"ServerSideEncryption": "aws:kms:dsse", "SSEKMSKeyId": KEY}, "NotImplemented"),
    ({**NAMED, "SSEKMSEncryptionContext": base64.b64encode(b"{}").decode()}, "NotImplemented"),
    ({"ServerSideEncryption": "AES256", "SSEKMSKeyId": KEY}, "InvalidArgument"),
])
def test_what_is_refused_stores_nothing(s3: Any, bucket: str, arguments: dict[str, str], code: str) -> None:
    assert code_of(s3.put_object, Bucket=bucket, Key="o", Body=b"x", **arguments) == code
    assert code_of(s3.create_multipart_upload, Bucket=bucket, Key="o", **arguments) == code
    assert "Contents" not in s3.list_objects_v2(Bucket=bucket)


def test_uploads_in_parts(store: Store, s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="source", Body=b"source", **NAMED)
    upload = s3.create_multipart_upload(Bucket=bucket, Key="o", **NAMED)
    assert told(upload) == ("aws:kms", KEY)
    of = {"Bucket": bucket, "Key": "o", "UploadId": upload["UploadId"]}
    first = s3.upload_part(**of, PartNumber=1, Body=PART)
    second = s3.upload_part_copy(**of, PartNumber=2, CopySource={"Bucket": bucket, "Key": "source"})
    assert told(first) == told(second) == ("aws:kms", KEY)
    parts = [{"PartNumber": 1, "ETag": first["ETag"]}, {"PartNumber": 2, "ETag": second["CopyPartResult"]["ETag"]}]
    for _ in range(2):  # who did not hear the answer asks again
        assert told(s3.complete_multipart_upload(**of, MultipartUpload={"Parts": parts})) == ("aws:kms", KEY)
    s3.put_object_tagging(Bucket=bucket, Key="o", Tagging={"TagSet": [{"Key": "a", "Value": "b"}]})  # writes the list of parts anew
    got = s3.get_object(Bucket=bucket, Key="o")
    assert told(got) == ("aws:kms", KEY) and got["Body"].read() == PART + b"source"
    metas = [meta for meta in crypto_metas(store, bucket) if "Crypto-Body-Meta" in meta]
    assert metas and all(f'"secret_id": "{KEY}"' in meta for meta in metas)


def test_metadata_stay_encrypted_when_tags_change(store: Store, s3: Any, bucket: str) -> None:
    word = "swordfish"
    for key, how in (("named", NAMED), ("ours", {"ServerSideEncryption": "AES256"})):
        s3.put_object(Bucket=bucket, Key=key, Body=b"x", Metadata={"word": word}, **how)
        s3.put_object_tagging(Bucket=bucket, Key=key, Tagging={"TagSet": [{"Key": "a", "Value": "b"}]})
        assert s3.head_object(Bucket=bucket, Key=key)["Metadata"] == {"word": word}
    for path in store.devices(1).rglob("*"):
        if path.is_file():
            assert not [name for name in os.listxattr(path) if word.encode() in os.getxattr(path, name)]


def test_versions_keep_their_own_encryption(store: Store, s3: Any, bucket: str) -> None:
    """What was there before the bucket had versions is copied when it is written over."""
    modes: dict[str, dict[str, str]] = {"named": NAMED, "ours": {"ServerSideEncryption": "AES256"}, "plain": {}}
    for key, how in modes.items():
        s3.put_object(Bucket=bucket, Key=key, Body=b"old " + key.encode(), **how)
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    customers = {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": "k" * 32}
    for key, how in zip(modes, ({}, customers, NAMED), strict=True):
        s3.put_object(Bucket=bucket, Key=key, Body=b"new", **how)
    for key, expected in (("named", ("aws:kms", KEY)), ("ours", ("AES256", None)), ("plain", (None, None))):
        got = s3.get_object(Bucket=bucket, Key=key, VersionId="null")
        assert told(got) == expected and got["Body"].read() == b"old " + key.encode(), key
    assert told(s3.head_object(Bucket=bucket, Key="plain")) == ("aws:kms", KEY)
    assert told(s3.head_object(Bucket=bucket, Key="named")) == (None, None)


def test_copies(s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="named", Body=b"data", **NAMED)
    s3.put_object(Bucket=bucket, Key="plain", Body=b"data")
    for source, arguments, expected in (("named", {}, (None, None)), ("plain", NAMED, ("aws:kms", KEY)),
                                        ("named", {"ServerSideEncryption": "AES256"}, ("AES256", None)), ("named", NAMED, ("aws:kms", KEY))):
        answer = s3.copy_object(Bucket=bucket, Key="copy", CopySource={"Bucket": bucket, "Key": source}, **arguments)
        got = s3.get_object(Bucket=bucket, Key="copy")
        assert told(answer) == told(got) == expected and got["Body"].read() == b"data", (source, arguments)


def test_the_default_of_a_bucket(s3: Any, bucket: str) -> None:
    def default(**how: str) -> dict[str, Any]:
        return {"Rules": [{"ApplyServerSideEncryptionByDefault": how}]}

    asked = default(SSEAlgorithm="aws:kms", KMSMasterKeyID=KEY)
    s3.put_bucket_encryption(Bucket=bucket, ServerSideEncryptionConfiguration=asked)
    assert s3.get_bucket_encryption(Bucket=bucket)["ServerSideEncryptionConfiguration"] == asked
    assert told(s3.put_object(Bucket=bucket, Key="o", Body=b"x")) == ("aws:kms", KEY)
    assert told(s3.head_object(Bucket=bucket, Key="o")) == ("aws:kms", KEY)
    assert told(s3.put_object(Bucket=bucket, Key="o", Body=b"x", ServerSideEncryption="AES256")) == ("AES256", None)
    for wrong, code in ((default(SSEAlgorithm="aws:kms", KMSMasterKeyID="another"), "KMS.NotFoundException"),
                        (default(SSEAlgorithm="AES256", KMSMasterKeyID=KEY), "InvalidArgument"),
                        (default(SSEAlgorithm="aws:kms:dsse", KMSMasterKeyID=KEY), "NotImplemented")):
        assert code_of(s3.put_bucket_encryption, Bucket=bucket, ServerSideEncryptionConfiguration=wrong) == code


def test_a_copy_through_swift_is_not_called_what_it_is_not(store: Store, s3: Any, bucket: str) -> None:
    """It takes system metadata along, but its data are encrypted as the store does by itself: here, not at all."""
    s3.put_object(Bucket=bucket, Key="o", Body=b"data", **NAMED)
    account = store.login()
    account.request("COPY", bucket, "o", headers={"Destination": f"{bucket}/copy"}).expect(201)
    assert account.get(bucket, "copy").expect(200).body == b"data"
    assert told(s3.head_object(Bucket=bucket, Key="copy")) == (None, None)


def test_without_its_secret_what_a_key_encrypted_cannot_be_read(store: Store, s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="o", Body=b"data", **NAMED)
    path = Path(store.etc()) / "keymaster.conf"
    text = path.read_text()
    lost = "".join(line for line in text.splitlines(keepends=True) if KEY not in line)
    try:
        path.write_text(lost)
        store.down()
        store.up()
        assert code_of(s3.get_object, Bucket=bucket, Key="o") == "ServiceUnavailable"
        assert code_of(s3.put_object, Bucket=bucket, Key="p", Body=b"x", **NAMED) == "NotImplemented"
    finally:
        path.write_text(text)
        store.down()
        store.up()
    assert s3.get_object(Bucket=bucket, Key="o")["Body"].read() == b"data"
