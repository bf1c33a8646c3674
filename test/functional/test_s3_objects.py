"""Objects in the S3 protocol: conditions, ranges, parts, checksums, copies, tags (``spec: s3-api 3.5-3.11``)."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from botocore.exceptions import ClientError

from test.support.client import Endpoint, unique
from test.support.s3 import client, refused, remove_bucket
from test.support.store import Store

PART = 5 << 20
WRITERS = 20


@pytest.fixture(scope="module")
def s3(cluster: Store) -> Any:
    """Of the store of one node; what depends on the nodes asks for ``any_s3``."""
    return client(cluster.endpoint)


@pytest.fixture(scope="module")
def any_s3(store: Endpoint) -> Any:
    return client(store)


@pytest.fixture
def bucket(s3: Any) -> Iterator[str]:
    name = unique("objects")
    s3.create_bucket(Bucket=name)
    yield name
    for upload in s3.list_multipart_uploads(Bucket=name).get("Uploads", ()):
        s3.abort_multipart_upload(Bucket=name, Key=upload["Key"], UploadId=upload["UploadId"])
    remove_bucket(s3, name)


def read(s3: Any, bucket: str, key: str, **more: Any) -> bytes:
    data: bytes = s3.get_object(Bucket=bucket, Key=key, **more)["Body"].read()
    return data


def race(s3: Any, bucket: str, key: str, **condition: str) -> list[int]:
    """Numbers of the writers that were let."""

    def write(number: int) -> int | None:
        try:
            s3.put_object(Bucket=bucket, Key=key, Body=b"%d" % number, **condition)
        except ClientError as error:
            assert error.response["Error"]["Code"] == "PreconditionFailed"
            return None
        return number

    with ThreadPoolExecutor(WRITERS) as pool:
        return [number for number in pool.map(write, range(WRITERS)) if number is not None]


# -- conditional writes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("versioned", [False, True])
def test_one_of_twenty_makes_the_object(any_s3: Any, versioned: bool) -> None:
    s3, bucket = any_s3, unique("race")
    s3.create_bucket(Bucket=bucket)
    if versioned:
        s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    (winner,) = race(s3, bucket, "lease", IfNoneMatch="*")
    assert read(s3, bucket, "lease") == b"%d" % winner
    if versioned:
        assert len(s3.list_object_versions(Bucket=bucket)["Versions"]) == 1
    remove_bucket(s3, bucket)


def test_one_of_twenty_replaces_the_object(s3: Any, bucket: str) -> None:
    etag = s3.put_object(Bucket=bucket, Key="state", Body=b"first")["ETag"]
    (winner,) = race(s3, bucket, "state", IfMatch=etag)
    assert read(s3, bucket, "state") == b"%d" % winner


def test_condition_is_decided_when_the_body_has_come(s3: Any, bucket: str) -> None:
    """Who began first but ends last does not overwrite what has come in between."""

    class Slow:
        """Reads on only when the object is there."""

        def __init__(self) -> None:
            self.left = 1 << 20

        def __len__(self) -> int:
            return 1 << 20

        def read(self, size: int = -1) -> bytes:
            if self.left == 1 << 20:
                s3.put_object(Bucket=bucket, Key="k", Body=b"in between")
            data = b"s" * min(self.left, size if size >= 0 else self.left)
            self.left -= len(data)
            return data

        def tell(self) -> int:
            return (1 << 20) - self.left

        def seek(self, offset: int, whence: int = 0) -> int:
            self.left = (1 << 20) - offset if whence == 0 else 0
            return self.tell()

    with refused("PreconditionFailed"):
        s3.put_object(Bucket=bucket, Key="k", Body=Slow(), IfNoneMatch="*")
    assert read(s3, bucket, "k") == b"in between"


def test_what_is_missing_matches_nothing(s3: Any, bucket: str) -> None:
    with refused("NoSuchKey"):
        s3.put_object(Bucket=bucket, Key="k", IfMatch="*")
    s3.put_object(Bucket=bucket, Key="k", IfNoneMatch="*")
    with refused("PreconditionFailed"):
        s3.put_object(Bucket=bucket, Key="k", IfMatch='"other"')
    with refused("PreconditionFailed"):
        s3.copy_object(Bucket=bucket, Key="k", CopySource={"Bucket": bucket, "Key": "k"}, IfNoneMatch="*",
                       MetadataDirective="REPLACE")


def test_conditional_delete(s3: Any, bucket: str) -> None:
    etag = s3.put_object(Bucket=bucket, Key="k", Body=b"123")["ETag"]
    with refused("PreconditionFailed"):
        s3.delete_object(Bucket=bucket, Key="k", IfMatch='"other"')
    answer = s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": "k", "Size": 4}]})
    assert [error["Code"] for error in answer["Errors"]] == ["PreconditionFailed"]
    s3.delete_object(Bucket=bucket, Key="k", IfMatch=etag)
    s3.delete_object(Bucket=bucket, Key="k", IfMatch=etag)  # gone already


# -- reading -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "status", "length", "range_"),
    [
        ("bytes=0-3", 206, 4, "bytes 0-3/10"),
        ("bytes=7-", 206, 3, "bytes 7-9/10"),
        ("bytes=-4", 206, 4, "bytes 6-9/10"),
        ("bytes=5-100", 206, 5, "bytes 5-9/10"),
        ("bytes=3-1", 200, 10, None),
        ("lines=1-2", 200, 10, None),
    ],
)
def test_range_of_get_and_of_head(
    s3: Any, bucket: str, wanted: str, status: int, length: int, range_: str | None
) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"0123456789")
    for call in (s3.get_object, s3.head_object):
        answer = call(Bucket=bucket, Key="k", Range=wanted)
        found = answer["ResponseMetadata"]["HTTPStatusCode"], answer["ContentLength"], answer.get("ContentRange")
        assert found == (status, length, range_), call
    assert "ChecksumCRC32" not in s3.get_object(Bucket=bucket, Key="k", Range="bytes=0-3", ChecksumMode="ENABLED")


def test_range_that_cannot_be_had(s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"0123456789")
    s3.put_object(Bucket=bucket, Key="empty")
    for key, wanted in (("k", "bytes=10-"), ("empty", "bytes=0-0"), ("empty", "bytes=-1")):
        with refused("InvalidRange", 416):
            s3.get_object(Bucket=bucket, Key=key, Range=wanted)


def test_part_of_what_was_not_uploaded_in_parts(s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"0123456789")
    answer = s3.get_object(Bucket=bucket, Key="k", PartNumber=1)
    assert (answer["ContentRange"], answer["Body"].read()) == ("bytes 0-9/10", b"0123456789")
    with refused("InvalidPartNumber", 416):
        s3.get_object(Bucket=bucket, Key="k", PartNumber=2)
    with refused("InvalidArgument"):
        s3.get_object(Bucket=bucket, Key="k", PartNumber=0)
    s3.put_object(Bucket=bucket, Key="empty")
    assert s3.get_object(Bucket=bucket, Key="empty", PartNumber=1)["ResponseMetadata"]["HTTPStatusCode"] == 200


def test_what_was_not_modified_is_described(s3: Any, bucket: str) -> None:
    etag = s3.put_object(Bucket=bucket, Key="k", Body=b"x")["ETag"]
    with pytest.raises(ClientError) as caught:
        s3.get_object(Bucket=bucket, Key="k", IfNoneMatch=etag)
    told = caught.value.response["ResponseMetadata"]
    assert (told["HTTPStatusCode"], told["HTTPHeaders"]["etag"], told["HTTPHeaders"]["accept-ranges"]) == (304, etag, "bytes")


def test_listing_repeats_what_was_asked(s3: Any, bucket: str) -> None:
    assert s3.list_objects_v2(Bucket=bucket, StartAfter="")["StartAfter"] == ""
    assert s3.list_objects_v2(Bucket=bucket, StartAfter="a b")["StartAfter"] == "a b"
    assert "StartAfter" not in s3.list_objects_v2(Bucket=bucket)


# -- what is said of an object -----------------------------------------------------------------------------------------


def test_metadata_with_names_and_texts_of_all_kinds(s3: Any, bucket: str) -> None:
    sent = {"plain": "a", "with_underscore": "b", "with-dash": "c", "word": "=?UTF-8?Q?caf=C3=A9?="}
    s3.put_object(Bucket=bucket, Key="k", Metadata=sent)
    assert s3.head_object(Bucket=bucket, Key="k")["Metadata"] == sent


def test_tags_come_and_go_and_leave_all_else(s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"data", Tagging="a=1&b=x+y", Metadata={"m": "1"}, ContentType="text/x",
                  ContentEncoding="gzip", CacheControl="no-cache")
    before = s3.head_object(Bucket=bucket, Key="k")
    assert before["TagCount"] == 2
    tags = [{"Key": "z", "Value": "é"}]
    s3.put_object_tagging(Bucket=bucket, Key="k", Tagging={"TagSet": tags})
    assert s3.get_object_tagging(Bucket=bucket, Key="k")["TagSet"] == tags
    after = s3.head_object(Bucket=bucket, Key="k")
    for name in ("Metadata", "ContentType", "ContentEncoding", "CacheControl", "ETag", "ContentLength", "LastModified"):
        assert after[name] == before[name], name
    s3.delete_object_tagging(Bucket=bucket, Key="k")
    assert s3.get_object_tagging(Bucket=bucket, Key="k")["TagSet"] == []


def test_too_many_tags_change_nothing(s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="k", Tagging="a=1")
    with refused("InvalidTag"):
        s3.put_object_tagging(
            Bucket=bucket, Key="k", Tagging={"TagSet": [{"Key": f"{n}", "Value": ""} for n in range(11)]}
        )
    assert len(s3.get_object_tagging(Bucket=bucket, Key="k")["TagSet"]) == 1


def test_tags_of_a_bucket(s3: Any, bucket: str) -> None:
    with refused("NoSuchTagSet"):
        s3.get_bucket_tagging(Bucket=bucket)
    tags = [{"Key": "team", "Value": "storage"}]
    s3.put_bucket_tagging(Bucket=bucket, Tagging={"TagSet": tags})
    assert s3.get_bucket_tagging(Bucket=bucket)["TagSet"] == tags
    s3.delete_bucket_tagging(Bucket=bucket)
    with refused("NoSuchTagSet"):
        s3.get_bucket_tagging(Bucket=bucket)


def test_copy_takes_tags_and_checksum_along_unless_told_otherwise(s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"data", Tagging="a=1", Metadata={"m": "1"}, ChecksumAlgorithm="SHA256")
    source = {"Bucket": bucket, "Key": "k"}
    answer = s3.copy_object(Bucket=bucket, Key="same", CopySource=source)["CopyObjectResult"]
    digest = base64.b64encode(hashlib.sha256(b"data").digest()).decode()
    assert answer["ChecksumSHA256"] == digest
    assert s3.head_object(Bucket=bucket, Key="same", ChecksumMode="ENABLED")["ChecksumSHA256"] == digest
    assert s3.get_object_tagging(Bucket=bucket, Key="same")["TagSet"] == [{"Key": "a", "Value": "1"}]
    answer = s3.copy_object(Bucket=bucket, Key="other", CopySource=source, TaggingDirective="REPLACE", Tagging="b=2",
                            ChecksumAlgorithm="CRC32")["CopyObjectResult"]
    assert "ChecksumCRC32" in answer
    found = s3.head_object(Bucket=bucket, Key="other", ChecksumMode="ENABLED")
    assert (found["ChecksumCRC32"], found["Metadata"]) == (answer["ChecksumCRC32"], {"m": "1"})
    assert s3.get_object_tagging(Bucket=bucket, Key="other")["TagSet"] == [{"Key": "b", "Value": "2"}]


# -- uploads in parts --------------------------------------------------------------------------------------------------


def upload(s3: Any, bucket: str, key: str, numbers: tuple[int, ...] = (1, 2), **more: Any) -> dict[str, Any]:
    """Begin, upload parts, and give the arguments that complete it."""
    upload_id = s3.create_multipart_upload(Bucket=bucket, Key=key, **more)["UploadId"]
    sent = {"ChecksumAlgorithm": more["ChecksumAlgorithm"]} if "ChecksumAlgorithm" in more else {}
    parts = []
    for number in numbers:
        body = bytes([64 + number]) * (PART if number != numbers[-1] else 1)
        answer = s3.upload_part(Bucket=bucket, Key=key, UploadId=upload_id, PartNumber=number, Body=body, **sent)
        checksums = {name: value for name, value in answer.items() if name.startswith("Checksum") and name != "ChecksumType"}
        parts.append({"PartNumber": number, "ETag": answer["ETag"], **(checksums if sent else {})})
    return {"Bucket": bucket, "Key": key, "UploadId": upload_id, "MultipartUpload": {"Parts": parts}}


@pytest.mark.parametrize(
    ("algorithm", "kind"),
    [("CRC32", "COMPOSITE"), ("SHA256", "COMPOSITE"), ("CRC32C", "FULL_OBJECT"), ("CRC64NVME", "FULL_OBJECT")],
)
def test_checksum_of_an_upload_in_parts(s3: Any, bucket: str, algorithm: str, kind: str) -> None:
    wish = upload(s3, bucket, "k", (2, 5), ChecksumAlgorithm=algorithm, ChecksumType=kind, Tagging="a=1", Metadata={"m": "1"})
    name = f"Checksum{algorithm}"
    listed = s3.list_parts(Bucket=bucket, Key="k", UploadId=wish["UploadId"])["Parts"]
    assert [part[name] for part in listed] == [part[name] for part in wish["MultipartUpload"]["Parts"]]
    done = s3.complete_multipart_upload(**wish)
    assert done["ChecksumType"] == kind
    assert done[name].endswith("-2") == (kind == "COMPOSITE")
    assert s3.complete_multipart_upload(**wish)["ETag"] == done["ETag"]  # again is no error
    found = s3.head_object(Bucket=bucket, Key="k", ChecksumMode="ENABLED")
    assert (found[name], found["Metadata"], found["TagCount"]) == (done[name], {"m": "1"}, 1)
    told = s3.get_object_attributes(Bucket=bucket, Key="k", ObjectAttributes=["ETag", "Checksum", "ObjectParts", "ObjectSize"])
    assert (told["ETag"], told["ObjectSize"]) == (done["ETag"].strip('"'), PART + 1)
    parts = told["ObjectParts"]
    assert (parts["TotalPartsCount"], [part["PartNumber"] for part in parts["Parts"]]) == (2, [2, 5])
    assert [part[name] for part in parts["Parts"]] == [part[name] for part in listed]
    second = s3.get_object(Bucket=bucket, Key="k", PartNumber=2)
    assert (second["PartsCount"], second["Body"].read(), second["ETag"]) == (2, b"E", done["ETag"])


def test_checksum_that_a_complete_claims_is_checked(s3: Any, bucket: str) -> None:
    wish = upload(s3, bucket, "k", (1,), ChecksumAlgorithm="CRC32", ChecksumType="FULL_OBJECT")
    with refused("BadDigest"):
        s3.complete_multipart_upload(**wish, ChecksumCRC32="AAAAAA==")
    parts = [{**wish["MultipartUpload"]["Parts"][0], "ChecksumCRC32": "AAAAAA=="}]
    with refused("InvalidPart"):
        s3.complete_multipart_upload(**{**wish, "MultipartUpload": {"Parts": parts}})
    s3.complete_multipart_upload(**wish, ChecksumCRC32=wish["MultipartUpload"]["Parts"][0]["ChecksumCRC32"])


def test_what_was_copied_has_an_etag_to_be_asked_for(s3: Any, bucket: str) -> None:
    """Clients read on what they have begun to read, by its ETag."""
    s3.put_object(Bucket=bucket, Key="k", Body=b"hello")
    etags = [s3.copy_object(Bucket=bucket, Key=key, CopySource=f"{bucket}/k")["CopyObjectResult"]["ETag"] for key in ("copy", "other")]
    s3.put_object_acl(Bucket=bucket, Key="other", ACL="public-read")
    for key, etag in zip(("copy", "other"), etags, strict=True):
        assert read(s3, bucket, key, IfMatch=etag, Range="bytes=1-") == b"ello"
        with refused("304"):
            s3.get_object(Bucket=bucket, Key=key, IfNoneMatch=etag)
        s3.copy_object(Bucket=bucket, Key="again", CopySource=f"{bucket}/{key}", CopySourceIfMatch=etag)


def test_condition_that_does_not_hold_leaves_the_upload_open(s3: Any, bucket: str) -> None:
    wish = upload(s3, bucket, "k", (1,))
    with refused("NoSuchKey"):
        s3.complete_multipart_upload(**wish, IfMatch='"x"')
    etag = s3.put_object(Bucket=bucket, Key="k", Body=b"there")["ETag"]
    with refused("PreconditionFailed"):
        s3.complete_multipart_upload(**wish, IfNoneMatch="*")
    assert read(s3, bucket, "k") == b"there"
    s3.complete_multipart_upload(**wish, IfMatch=etag)
    assert read(s3, bucket, "k") == b"A"


def test_part_that_is_copied_has_the_checksum_of_the_upload(s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="source", Body=b"0123456789")
    upload_id = s3.create_multipart_upload(Bucket=bucket, Key="k", ChecksumAlgorithm="SHA256")["UploadId"]
    part = s3.upload_part_copy(Bucket=bucket, Key="k", UploadId=upload_id, PartNumber=1, CopySourceRange="bytes=2-4",
                               CopySource={"Bucket": bucket, "Key": "source"})["CopyPartResult"]
    digest = base64.b64encode(hashlib.sha256(b"234").digest()).decode()
    assert part["ChecksumSHA256"] == digest
    s3.complete_multipart_upload(
        Bucket=bucket, Key="k", UploadId=upload_id,
        MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part["ETag"], "ChecksumSHA256": digest}]},
    )
    assert read(s3, bucket, "k") == b"234"
    copied = s3.copy_object(Bucket=bucket, Key="plain", CopySource={"Bucket": bucket, "Key": "k"})["CopyObjectResult"]
    assert copied["ETag"] == f'"{hashlib.md5(b"234").hexdigest()}"'
    assert "ChecksumSHA256" not in copied


# -- bad input ---------------------------------------------------------------------------------------------------------


def test_case_C21_content_md5_that_is_none(s3: Any, bucket: str) -> None:
    with refused("InvalidDigest", 400):
        s3.put_object(Bucket=bucket, Key="k", Body=b"x", ContentMD5="!!!")
    with refused("BadDigest", 400):
        s3.put_object(Bucket=bucket, Key="k", Body=b"x", ContentMD5=base64.b64encode(b"0" * 16).decode())
    assert "Contents" not in s3.list_objects_v2(Bucket=bucket)


def test_checksum_without_its_padding_is_a_wrong_one(s3: Any, bucket: str) -> None:
    with refused("BadDigest", 400):
        s3.put_object(Bucket=bucket, Key="k", Body=b"x", ChecksumAlgorithm="SHA256", ChecksumSHA256="bad")
    assert "Contents" not in s3.list_objects_v2(Bucket=bucket)


def test_a_deletion_that_needs_a_second_factor_is_refused(s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    mfa = "serial 123456"
    for wanted in ({}, {"VersionId": "null"}):
        with refused("NotImplemented"):
            s3.delete_object(Bucket=bucket, Key="k", MFA=mfa, **wanted)
    with refused("NotImplemented"):
        s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": "k"}]}, MFA=mfa)
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"x"


@pytest.mark.parametrize(
    ("header", "value", "code"),
    [
        ("content-md5", "", "InvalidDigest"),
        ("x-amz-storage-class", "GLACIER", "InvalidStorageClass"),
        ("x-amz-website-redirect-location", "/elsewhere", "NotImplemented"),
        ("x-amz-checksum-foo", "AAAA", "InvalidRequest"),
        ("x-amz-checksum-crc32", "not base64", "InvalidRequest"),
        ("x-amz-checksum-crc32", "shrt", "InvalidRequest"),
        ("x-amz-checksum-crc32", "bad", "InvalidRequest"),
        ("x-amz-checksum-sha256", "AAAAAA==", "InvalidRequest"),
        ("x-amz-tagging", "a=1&a=2", "InvalidTag"),
        ("x-amz-object-lock-mode", "GOVERNANCE", "InvalidRequest"),
        ("if-modified-since", "Sun, 29 Nov 2026 18:10:53 GMT", "NotImplemented"),
    ],
)
def test_header_that_cannot_be_honoured_is_refused(s3: Any, bucket: str, header: str, value: str, code: str) -> None:
    def add(request: Any, **_: Any) -> None:
        for name in [name for name in request.headers if "checksum" in name.lower()]:
            del request.headers[name]
        request.headers[header] = value

    s3.meta.events.register_first("before-sign.s3.PutObject", add)
    try:
        with refused(code):
            s3.put_object(Bucket=bucket, Key="k", Body=b"")
    finally:
        s3.meta.events.unregister("before-sign.s3.PutObject", add)
    assert "Contents" not in s3.list_objects_v2(Bucket=bucket)
