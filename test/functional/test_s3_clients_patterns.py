"""What boto3's transfers, Hadoop, table formats and search engines do with a store, request by request (``spec: s3-clients 2.1, 5``)."""

from __future__ import annotations

import io
import random
from typing import Any

import pytest
from boto3.s3.transfer import TransferConfig

from test.support.s3 import refused
from test.support.s3_clients import Keys

PART = 5 << 20


@pytest.fixture
def s3(s3_keys: Keys) -> Any:
    return s3_keys.boto3()


@pytest.fixture
def bucket(s3: Any, bucket_to_be: str) -> str:
    s3.create_bucket(Bucket=bucket_to_be)
    return bucket_to_be


def exists(s3: Any, bucket: str, path: str) -> str:
    """What Hadoop's S3A finds at a path: an object, a marker of a directory, or something below."""
    for key in (path, path + "/"):
        try:
            s3.head_object(Bucket=bucket, Key=key)
        except s3.exceptions.ClientError as error:
            assert error.response["Error"]["Code"] == "404"
        else:
            return "file" if key == path else "marker"
    found = s3.list_objects_v2(Bucket=bucket, Prefix=path + "/", Delimiter="/", MaxKeys=2)
    return "directory" if found["KeyCount"] else ""


def test_transfers_of_boto3(s3: Any, bucket: str) -> None:
    """In parts, of files and of streams; read by ranges of what has the ETag that it began with; copied in parts."""
    big = random.Random(3).randbytes(2 * (8 << 20) + 77)
    s3.upload_fileobj(io.BytesIO(big), bucket, "big", ExtraArgs={"ContentType": "text/x", "Metadata": {"a": "b"}})
    s3.copy({"Bucket": bucket, "Key": "big"}, bucket, "copy", Config=TransferConfig(multipart_threshold=8 << 20))
    s3.copy_object(Bucket=bucket, Key="once", CopySource={"Bucket": bucket, "Key": "big"})
    for key, tag in (("big", '-3"'), ("copy", '-3"'), ("once", '"')):
        head, back = s3.head_object(Bucket=bucket, Key=key), io.BytesIO()
        assert head["ETag"].endswith(tag) and head["ContentType"] == "text/x" and head["Metadata"] == {"a": "b"}
        s3.download_fileobj(bucket, key, back)
        assert back.getvalue() == big, key


def test_directories_of_hadoop(s3: Any, bucket: str) -> None:
    s3.head_bucket(Bucket=bucket)
    with refused("NoSuchBucket", 404):
        s3.get_bucket_acl(Bucket=bucket + "-none")  # how older ones look for a bucket
    s3.put_object(Bucket=bucket, Key="dir/", Body=b"", ContentType="application/x-directory")
    s3.put_object(Bucket=bucket, Key="dir/sub/file", Body=b"x" * 100)
    assert [exists(s3, bucket, path) for path in ("dir", "dir/sub", "dir/sub/file", "none")] == ["marker", "directory", "file", ""]
    found = s3.list_objects_v2(Bucket=bucket, Prefix="dir/", Delimiter="/", MaxKeys=1000)
    assert [entry["Key"] for entry in found["Contents"]] == ["dir/"] and found["CommonPrefixes"] == [{"Prefix": "dir/sub/"}]

    # A file is read on from where it was left, if it is still the same one.
    etag = s3.head_object(Bucket=bucket, Key="dir/sub/file")["ETag"]
    part = s3.get_object(Bucket=bucket, Key="dir/sub/file", Range="bytes=90-199", IfMatch=etag)  # beyond its end
    assert part["Body"].read() == b"x" * 10 and part["ContentRange"] == "bytes 90-99/100"
    with refused("InvalidRange", 416):
        s3.get_object(Bucket=bucket, Key="dir/sub/file", Range="bytes=100-")
    s3.copy_object(Bucket=bucket, Key="renamed", CopySource=f"{bucket}/dir/sub/file", CopySourceIfMatch=etag)
    s3.put_object(Bucket=bucket, Key="dir/sub/file", Body=b"y" * 100)
    for call, more in ((s3.get_object, {"IfMatch": etag}), (s3.copy_object, {"CopySource": f"{bucket}/dir/sub/file", "CopySourceIfMatch": etag})):
        with refused("PreconditionFailed", 412):
            call(Bucket=bucket, Key="dir/sub/file", **more)
    s3.put_object(Bucket=bucket, Key="create", Body=b"", IfNoneMatch="*")
    with refused("PreconditionFailed", 412):
        s3.put_object(Bucket=bucket, Key="create", Body=b"", IfNoneMatch="*")
    page = [{"Key": f"none/{number}"} for number in range(248)] + [{"Key": "renamed"}, {"Key": "dir/sub/file"}]
    answer = s3.delete_objects(Bucket=bucket, Delete={"Objects": page, "Quiet": True})
    assert "Errors" not in answer and "Deleted" not in answer
    assert exists(s3, bucket, "dir/sub") == exists(s3, bucket, "renamed") == ""


def test_committers(s3: Any, s3_keys: Keys, bucket: str) -> None:
    """A task uploads, another process completes, and cleans up what tasks left."""

    def begin(key: str) -> str:
        upload: str = s3.create_multipart_upload(Bucket=bucket, Key=key)["UploadId"]
        assert upload in [entry["UploadId"] for entry in s3.list_multipart_uploads(Bucket=bucket, Prefix=key).get("Uploads", ())]  # at once
        return upload

    done, left, last = begin("out/part-0"), begin("out/part-1"), begin("register")
    for number, size in ((1, PART), (2, 10)):
        s3.upload_part(Bucket=bucket, Key="out/part-0", UploadId=done, PartNumber=number, Body=b"%d" % number * size)
    driver = s3_keys.boto3()
    uploads = driver.list_multipart_uploads(Bucket=bucket, Prefix="out/")["Uploads"]
    assert [(entry["Key"], entry["UploadId"]) for entry in uploads] == [("out/part-0", done), ("out/part-1", left)]
    parts = driver.list_parts(Bucket=bucket, Key="out/part-0", UploadId=done)["Parts"]
    document = {"Parts": [{"PartNumber": part["PartNumber"], "ETag": part["ETag"]} for part in parts]}
    first = driver.complete_multipart_upload(Bucket=bucket, Key="out/part-0", UploadId=done, MultipartUpload=document, IfNoneMatch="*")
    assert first["ETag"].endswith('-2"')
    etag = driver.head_object(Bucket=bucket, Key="out/part-0")["ETag"]
    assert driver.get_object(Bucket=bucket, Key="out/part-0", Range=f"bytes={PART - 1}-{PART}", IfMatch=etag)["Body"].read() == b"12"
    driver.abort_multipart_upload(Bucket=bucket, Key="out/part-1", UploadId=left)
    with refused("NoSuchUpload", 404):
        driver.upload_part(Bucket=bucket, Key="out/part-1", UploadId=left, PartNumber=1, Body=b"late")

    # A register of a search engine: an empty part is a value too, and who began from another one loses.
    empty = s3.upload_part(Bucket=bucket, Key="register", UploadId=last, PartNumber=1, Body=b"")["ETag"]
    document = {"Parts": [{"PartNumber": 1, "ETag": empty}]}
    assert s3.complete_multipart_upload(Bucket=bucket, Key="register", UploadId=last, MultipartUpload=document)["ETag"]
    assert s3.get_object(Bucket=bucket, Key="register")["Body"].read() == b""
    etag = s3.head_object(Bucket=bucket, Key="register")["ETag"]
    s3.put_object(Bucket=bucket, Key="register", Body=b"1", IfMatch=etag)  # as object_store and Delta do
    with refused("PreconditionFailed", 412):
        s3.put_object(Bucket=bucket, Key="register", Body=b"2", IfMatch=etag)


def test_what_terraform_asks_of_a_new_bucket(s3: Any, bucket: str) -> None:
    """In this order; each answered as the provider takes for "none"."""
    s3.head_bucket(Bucket=bucket)
    asked: tuple[tuple[str, str], ...] = (
        ("policy", "NoSuchBucketPolicy"), ("acl", ""), ("cors", "NoSuchCORSConfiguration"), ("website", "NoSuchWebsiteConfiguration"), ("versioning", ""),
        ("accelerate_configuration", ""), ("request_payment", ""), ("logging", ""), ("lifecycle_configuration", "NoSuchLifecycleConfiguration"),
        ("replication", "ReplicationConfigurationNotFoundError"), ("encryption", "ServerSideEncryptionConfigurationNotFoundError"), ("location", ""),
        ("tagging", "NoSuchTagSet"), ("ownership_controls", "OwnershipControlsNotFoundError"))  # fmt: skip
    for name, code in asked:
        call = getattr(s3, f"get_bucket_{name}")
        if not code:
            call(Bucket=bucket)
            continue
        with refused(code, 404):
            call(Bucket=bucket)
    for call, code in ((s3.get_object_lock_configuration, "ObjectLockConfigurationNotFoundError"), (s3.get_public_access_block, "NoSuchPublicAccessBlockConfiguration")):
        with refused(code, 404):
            call(Bucket=bucket)
