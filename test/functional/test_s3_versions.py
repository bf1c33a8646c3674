"""Versions and object lock in the S3 protocol (``spec: s3-api 2.9, 3.4, 3.15``), and what is deleted at once (3.7)."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from botocore.exceptions import ClientError

from test.support.client import Endpoint, unique
from test.support.s3 import OTHER, TESTER, client, refused, remove_bucket, signed
from test.support.store import Store


@pytest.fixture
def bucket(s3: Any) -> Iterator[str]:
    name = unique("versions")
    s3.create_bucket(Bucket=name)
    yield name
    remove_bucket(s3, name)


@pytest.fixture
def locked(s3: Any) -> Iterator[str]:
    """A bucket with object lock; what is kept under governance is removed with it."""
    name = unique("locked")
    s3.create_bucket(Bucket=name, ObjectLockEnabledForBucket=True)
    yield name
    listed = s3.list_object_versions(Bucket=name)
    for entry in [*listed.get("Versions", ()), *listed.get("DeleteMarkers", ())]:
        s3.delete_object(Bucket=name, Key=entry["Key"], VersionId=entry["VersionId"], BypassGovernanceRetention=True)
    s3.delete_bucket(Bucket=name)


def set_versioning(s3: Any, bucket: str, status: str) -> None:
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": status})


def listed(s3: Any, bucket: str) -> list[tuple[str, bool, bool]]:
    """Version id, is it a delete marker, is it the latest: as listed."""
    answer = s3.list_object_versions(Bucket=bucket)
    found = [(entry["VersionId"], False, entry["IsLatest"]) for entry in answer.get("Versions", ())]
    return found + [(entry["VersionId"], True, entry["IsLatest"]) for entry in answer.get("DeleteMarkers", ())]


def read(s3: Any, bucket: str, **more: Any) -> bytes:
    data: bytes = s3.get_object(Bucket=bucket, Key="k", **more)["Body"].read()
    return data


# -- versions ----------------------------------------------------------------------------------------------------------


def upload(s3: Any, bucket: str, body: bytes) -> tuple[str, str]:
    """An object of one part: its version and its ETag."""
    begun = s3.create_multipart_upload(Bucket=bucket, Key="k")["UploadId"]
    part = s3.upload_part(Bucket=bucket, Key="k", UploadId=begun, PartNumber=1, Body=body)
    done = s3.complete_multipart_upload(Bucket=bucket, Key="k", UploadId=begun,
                                        MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]})
    return done.get("VersionId", ""), done["ETag"]


def test_a_delete_with_a_condition_leaves_the_parts_of_the_version_behind_it(s3: Any, bucket: str) -> None:
    set_versioning(s3, bucket, "Enabled")
    version, etag = upload(s3, bucket, b"parts" * 1000)
    s3.delete_object(Bucket=bucket, Key="k", IfMatch=etag)
    with refused("NoSuchKey"):
        read(s3, bucket)
    assert read(s3, bucket, VersionId=version) == b"parts" * 1000


def test_a_bucket_that_may_not_go_keeps_the_parts_of_its_old_versions(s3: Any, bucket: str) -> None:
    set_versioning(s3, bucket, "Enabled")
    version, _ = upload(s3, bucket, b"parts" * 1000)
    s3.delete_object(Bucket=bucket, Key="k")  # now there is nothing but a delete marker to be seen
    with refused("BucketNotEmpty"):
        s3.delete_bucket(Bucket=bucket)
    assert read(s3, bucket, VersionId=version) == b"parts" * 1000


def test_an_abort_after_all_leaves_what_was_completed(s3: Any, bucket: str, cluster: Store) -> None:
    """As when the answer to Complete was lost, and with it the removal of the upload's marker."""
    upload(s3, bucket, b"parts" * 1000)
    account = cluster.login()
    (manifest,) = account.get(bucket, "k", query="multipart-manifest=get").expect(200).json()
    marker = manifest["name"].rpartition("/")[0].split("/", 2)[2]
    account.put(f"{bucket}+segments", marker, headers={"Content-Type": "application/directory"}).expect(201)
    with refused("NoSuchUpload"):
        s3.abort_multipart_upload(Bucket=bucket, Key="k", UploadId=marker.rpartition("/")[2])
    assert read(s3, bucket) == b"parts" * 1000


def test_a_null_version_behind_a_newer_one_is_copied(s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"old")
    set_versioning(s3, bucket, "Enabled")
    s3.put_object(Bucket=bucket, Key="k", Body=b"new")
    s3.copy_object(Bucket=bucket, Key="copy", CopySource={"Bucket": bucket, "Key": "k", "VersionId": "null"})
    assert s3.get_object(Bucket=bucket, Key="copy")["Body"].read() == b"old"



def test_what_was_before_versioning_is_null_and_stays_so(s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"old")
    set_versioning(s3, bucket, "Enabled")
    assert read(s3, bucket, VersionId="null") == b"old"
    new = s3.put_object(Bucket=bucket, Key="k", Body=b"new")["VersionId"]
    assert listed(s3, bucket) == [(new, False, True), ("null", False, False)]
    answer = s3.get_object(Bucket=bucket, Key="k", VersionId="null")
    assert (answer["Body"].read(), answer["VersionId"]) == (b"old", "null")
    s3.put_object_tagging(Bucket=bucket, Key="k", VersionId="null", Tagging={"TagSet": [{"Key": "a", "Value": "1"}]})
    assert s3.get_object_tagging(Bucket=bucket, Key="k", VersionId="null")["TagSet"] == [{"Key": "a", "Value": "1"}]
    assert s3.get_object_tagging(Bucket=bucket, Key="k")["TagSet"] == []
    s3.delete_object(Bucket=bucket, Key="k", VersionId="null")
    s3.delete_object(Bucket=bucket, Key="k", VersionId="null")  # gone already; the current version is another
    assert listed(s3, bucket) == [(new, False, True)]
    assert read(s3, bucket) == b"new"


def test_while_versioning_is_suspended_there_is_one_null(s3: Any, bucket: str) -> None:
    set_versioning(s3, bucket, "Enabled")
    kept = s3.put_object(Bucket=bucket, Key="k", Body=b"kept")["VersionId"]
    set_versioning(s3, bucket, "Suspended")
    for body in (b"1", b"2"):
        s3.put_object(Bucket=bucket, Key="k", Body=body)
        assert listed(s3, bucket) == [("null", False, True), (kept, False, False)]
    for _ in range(2):
        answer = s3.delete_object(Bucket=bucket, Key="k")
        assert (answer["DeleteMarker"], answer["VersionId"]) == (True, "null")
        assert listed(s3, bucket) == [(kept, False, False), ("null", True, True)]
    with refused("NoSuchKey"):
        read(s3, bucket)
    s3.delete_object(Bucket=bucket, Key="k", VersionId="null")
    assert listed(s3, bucket) == [(kept, False, True)]
    assert read(s3, bucket) == b"kept"


def test_delete_marker_is_told_from_what_never_was(s3: Any, bucket: str) -> None:
    set_versioning(s3, bucket, "Enabled")
    s3.put_object(Bucket=bucket, Key="k", Body=b"1")
    marker = s3.delete_object(Bucket=bucket, Key="k")
    assert marker["DeleteMarker"] is True
    with pytest.raises(ClientError) as caught:
        read(s3, bucket)
    headers = caught.value.response["ResponseMetadata"]["HTTPHeaders"]
    assert (headers["x-amz-delete-marker"], headers["x-amz-version-id"]) == ("true", marker["VersionId"])
    with refused("MethodNotAllowed", 405):
        read(s3, bucket, VersionId=marker["VersionId"])
    with refused("NoSuchVersion", 404):
        read(s3, bucket, VersionId="1000000000.00000")
    with refused("InvalidArgument", 400):
        read(s3, bucket, VersionId="nonsense")
    answer = s3.delete_object(Bucket=bucket, Key="k", VersionId=marker["VersionId"])
    assert answer["DeleteMarker"] is True
    assert read(s3, bucket) == b"1"


def test_versions_deleted_all_at_once_leave_nothing(s3: Any, bucket: str) -> None:
    set_versioning(s3, bucket, "Enabled")
    versions = [s3.put_object(Bucket=bucket, Key="k", Body=b"%d" % number)["VersionId"] for number in range(6)]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda version: s3.delete_object(Bucket=bucket, Key="k", VersionId=version), versions))
    assert listed(s3, bucket) == []
    with refused("NoSuchKey"):
        read(s3, bucket)


def test_case_C05_versions_are_listed_page_by_page(s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"null")
    set_versioning(s3, bucket, "Enabled")
    for number in range(4):
        s3.put_object(Bucket=bucket, Key="k", Body=b"%d" % number)
    whole, found = listed(s3, bucket), []
    more: dict[str, str] = {}
    while True:
        page = s3.list_object_versions(Bucket=bucket, MaxKeys=1, **more)
        found += [entry["VersionId"] for entry in page["Versions"]]
        if not page["IsTruncated"]:
            break
        more = {"KeyMarker": page["NextKeyMarker"], "VersionIdMarker": page["NextVersionIdMarker"]}
    assert found == [version for version, _, _ in whole]
    assert found[-1] == "null"


def test_markers_of_versions_that_are_none(s3: Any, bucket: str) -> None:
    with refused("InvalidArgument"):
        s3.list_object_versions(Bucket=bucket, VersionIdMarker="bogus")
    with refused("InvalidArgument"):
        s3.list_object_versions(Bucket=bucket, KeyMarker="", VersionIdMarker="bogus")
    assert s3.list_object_versions(Bucket=bucket, KeyMarker="", VersionIdMarker="null")["VersionIdMarker"] == ""


def test_copy_of_a_version_brings_it_back(s3: Any, bucket: str) -> None:
    set_versioning(s3, bucket, "Enabled")
    old = s3.put_object(Bucket=bucket, Key="k", Body=b"old")["VersionId"]
    s3.put_object(Bucket=bucket, Key="k", Body=b"new")
    answer = s3.copy_object(Bucket=bucket, Key="k", CopySource={"Bucket": bucket, "Key": "k", "VersionId": old})
    assert answer["CopySourceVersionId"] == old
    assert read(s3, bucket) == b"old"
    marker = s3.delete_object(Bucket=bucket, Key="k")["VersionId"]
    with refused("InvalidRequest"):
        s3.copy_object(Bucket=bucket, Key="x", CopySource={"Bucket": bucket, "Key": "k", "VersionId": marker})


def test_security_S12_reader_cannot_delete_a_version(endpoint: Endpoint, s3: Any, bucket: str) -> None:
    set_versioning(s3, bucket, "Enabled")
    s3.put_bucket_acl(Bucket=bucket, ACL="public-read")
    old = s3.put_object(Bucket=bucket, Key="k", Body=b"old", ACL="public-read")["VersionId"]
    new = s3.put_object(Bucket=bucket, Key="k", Body=b"new", ACL="public-read")["VersionId"]
    other = client(endpoint, OTHER)
    for version in (old, new):
        assert other.get_object(Bucket=bucket, Key="k", VersionId=version)["VersionId"] == version
        with refused("AccessDenied"):
            other.delete_object(Bucket=bucket, Key="k", VersionId=version)
    assert [version for version, _, _ in listed(s3, bucket)] == [new, old]


# -- object lock -------------------------------------------------------------------------------------------------------


def test_default_retention_keeps_versions(s3: Any, locked: str) -> None:
    rule = {"DefaultRetention": {"Mode": "GOVERNANCE", "Days": 1}}
    s3.put_object_lock_configuration(
        Bucket=locked, ObjectLockConfiguration={"ObjectLockEnabled": "Enabled", "Rule": rule}
    )
    found = s3.get_object_lock_configuration(Bucket=locked)["ObjectLockConfiguration"]
    assert found == {"ObjectLockEnabled": "Enabled", "Rule": rule}
    version = s3.put_object(Bucket=locked, Key="k", Body=b"1")["VersionId"]
    told = s3.head_object(Bucket=locked, Key="k")
    assert told["ObjectLockMode"] == "GOVERNANCE"
    assert timedelta(hours=23) < told["ObjectLockRetainUntilDate"] - datetime.now(UTC) < timedelta(hours=25)
    with refused("AccessDenied", 403):
        s3.delete_object(Bucket=locked, Key="k", VersionId=version)
    answer = s3.delete_objects(Bucket=locked, Delete={"Objects": [{"Key": "k", "VersionId": version}]})
    assert [(error["Code"], error["VersionId"]) for error in answer["Errors"]] == [("AccessDenied", version)]
    s3.put_object(Bucket=locked, Key="k", Body=b"2")
    assert s3.delete_object(Bucket=locked, Key="k")["DeleteMarker"] is True
    assert read(s3, locked, VersionId=version) == b"1"


def test_retention_is_extended_by_all_and_shortened_by_bypass(s3: Any, locked: str) -> None:
    soon, later = (datetime.now(UTC).replace(microsecond=0) + timedelta(days=days) for days in (1, 9))
    version = s3.put_object(Bucket=locked, Key="k", Body=b"1", ObjectLockMode="GOVERNANCE",
                            ObjectLockRetainUntilDate=soon)["VersionId"]

    def retain(mode: str, until: datetime, **more: Any) -> None:
        s3.put_object_retention(Bucket=locked, Key="k", VersionId=version,
                                Retention={"Mode": mode, "RetainUntilDate": until}, **more)

    retain("GOVERNANCE", later)
    assert s3.get_object_retention(Bucket=locked, Key="k")["Retention"]["RetainUntilDate"] == later
    with refused("AccessDenied"):
        retain("GOVERNANCE", soon)
    with refused("AccessDenied"):
        retain("COMPLIANCE", later)
    retain("GOVERNANCE", soon, BypassGovernanceRetention=True)
    assert s3.get_object_retention(Bucket=locked, Key="k")["Retention"]["RetainUntilDate"] == soon


def test_legal_hold_keeps_what_nothing_else_does(s3: Any, locked: str) -> None:
    version = s3.put_object(Bucket=locked, Key="k", Body=b"1", ObjectLockLegalHoldStatus="ON")["VersionId"]
    with refused("AccessDenied"):
        s3.delete_object(Bucket=locked, Key="k", VersionId=version, BypassGovernanceRetention=True)
    s3.put_object_legal_hold(Bucket=locked, Key="k", VersionId=version, LegalHold={"Status": "OFF"})
    assert s3.get_object_legal_hold(Bucket=locked, Key="k")["LegalHold"]["Status"] == "OFF"
    s3.delete_object(Bucket=locked, Key="k", VersionId=version)


def test_lock_survives_a_post_of_swift(cluster: Store, s3: Any, locked: str) -> None:
    """A client of the Swift API replaces all metadata: what the object was written with stays."""
    until = datetime.now(UTC) + timedelta(days=1)
    version = s3.put_object(Bucket=locked, Key="k", Body=b"1", ObjectLockMode="GOVERNANCE",
                            ObjectLockRetainUntilDate=until)["VersionId"]
    account = cluster.endpoint.login()
    account.post(locked, "k", headers={"X-Object-Meta-New": "1"}).expect(202)
    with refused("AccessDenied"):
        s3.delete_object(Bucket=locked, Key="k", VersionId=version)


def test_versioning_of_a_bucket_with_lock_stays_on(s3: Any, bucket: str, locked: str) -> None:
    with refused("InvalidBucketState", 409):
        set_versioning(s3, locked, "Suspended")
    with refused("ObjectLockConfigurationNotFoundError", 404):
        s3.get_object_lock_configuration(Bucket=bucket)
    with refused("InvalidBucketState", 409):
        s3.put_object_lock_configuration(Bucket=bucket, ObjectLockConfiguration={"ObjectLockEnabled": "Enabled"})
    s3.put_object(Bucket=bucket, Key="k")
    with refused("InvalidRequest", 400):
        s3.get_object_retention(Bucket=bucket, Key="k")
    with refused("InvalidRequest", 400):
        s3.put_object_legal_hold(Bucket=bucket, Key="k", LegalHold={"Status": "ON"})


# -- DeleteObjects -----------------------------------------------------------------------------------------------------


def delete_document(endpoint: Endpoint, bucket: str, document: bytes) -> tuple[int, bytes]:
    md5 = base64.b64encode(hashlib.md5(document, usedforsecurity=False).digest()).decode()
    answer = signed(endpoint, TESTER, "POST", f"/{bucket}", {"delete": ""}, document, {"content-md5": md5})
    return answer.status, answer.body


def test_case_C03_empty_quiet_is_not_quiet(endpoint: Endpoint, s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="k")
    status, body = delete_document(endpoint, bucket, b"<Delete><Quiet/><Object><Key>k</Key></Object></Delete>")
    assert status == 200
    assert b"<Deleted><Key>k</Key></Deleted>" in body


def test_case_C01_document_beyond_the_limit_deletes_nothing(endpoint: Endpoint, s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="k")
    document = b"<Delete><Object><Key>k</Key></Object></Delete>" + b" " * (3 << 20)
    status, body = delete_document(endpoint, bucket, document)
    assert (status, b"MalformedXML" in body) == (400, True)
    assert [entry["Key"] for entry in s3.list_objects_v2(Bucket=bucket)["Contents"]] == ["k"]


def test_security_R18_keys_of_a_document_are_taken_as_they_are(endpoint: Endpoint, s3: Any, bucket: str) -> None:
    """Blanks at the ends, character references, dots: none of them is another key."""
    keys = [" k ", "k\r", "../k", "a/../../b", "//", ".", "%2e%2e"]
    for key in keys[2:]:
        s3.put_object(Bucket=bucket, Key=key)
    s3.put_object(Bucket=bucket, Key="k")
    document = b"<Delete>" + b"".join(
        f"<Object><Key>{key.replace(chr(13), '&#13;')}</Key></Object>".encode() for key in keys
    ) + b"</Delete>"
    status, _ = delete_document(endpoint, bucket, document)
    assert status == 200
    assert [entry["Key"] for entry in s3.list_objects_v2(Bucket=bucket)["Contents"]] == ["k"]
