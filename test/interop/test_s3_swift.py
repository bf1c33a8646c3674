"""S3 through both makes over the same disks: uploads in parts, ACLs and versions of one are the other's too (issue 6).

Swift's s3api and ours keep what they keep under the same names (``doc/formats/s3.md``). Each test writes with one and reads with
the other, both ways.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from botocore.config import Config

from test.support.client import unique
from test.support.peers import OURS, PROXY_CONF, SWIFT, Peers
from test.support.preloaded import Preloaded
from test.support.s3 import OTHER, client, refused

FILTERS = """
[filter:s3api]
use = egg:swift#s3api
s3_acl = true
min_segment_size = 1
[filter:bulk]
use = egg:swift#bulk
[filter:slo]
use = egg:swift#slo
[filter:versioned_writes]
use = egg:swift#versioned_writes
allow_object_versioning = true
[filter:symlink]
use = egg:swift#symlink
"""
# Swift's s3api knows no checksums that a client sends by itself with what it can not store.
PLAIN = Config(request_checksum_calculation="when_required", response_checksum_validation="when_required",
               retries={"total_max_attempts": 1})


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory, swift_python: str, preloaded: Preloaded) -> Iterator[Peers]:
    conf = PROXY_CONF.replace(" tempauth ", " s3api bulk tempauth ").replace(
        "copy proxy-logging proxy-server", "copy slo versioned_writes symlink proxy-logging proxy-server")
    peers = Peers(tmp_path_factory.mktemp("s3"), swift_python, preloaded=preloaded, proxy_conf=conf + FILTERS)
    try:
        peers.start_proxies(OURS, SWIFT)
        with peers.storage(OURS, SWIFT):
            yield peers
    finally:
        peers.stop_all()


@pytest.fixture(params=[(OURS, SWIFT), (SWIFT, OURS)], ids=lambda makes: f"{makes[0]}-writes-{makes[1]}-reads")
def pair(peers: Peers, request: pytest.FixtureRequest) -> tuple[Any, Any]:
    writer, reader = (client(peers.proxy(make), config=PLAIN) for make in request.param)
    return writer, reader


def test_upload_in_parts(pair: tuple[Any, Any]) -> None:
    """Begun by one, a part from each, completed by the other, read and deleted by either."""
    writer, reader = pair
    bucket = unique("parts")
    writer.create_bucket(Bucket=bucket)
    upload = writer.create_multipart_upload(Bucket=bucket, Key="é/k", ContentType="t/x", Metadata={"m": "1"})["UploadId"]
    begun = reader.list_multipart_uploads(Bucket=bucket)["Uploads"]
    assert [(entry["Key"], entry["UploadId"]) for entry in begun] == [("é/k", upload)]
    etags = [
        s3.upload_part(Bucket=bucket, Key="é/k", UploadId=upload, PartNumber=number, Body=b"%d" % number * 5)["ETag"]
        for number, s3 in ((1, writer), (2, reader))
    ]
    for s3 in pair:
        assert [part["ETag"] for part in s3.list_parts(Bucket=bucket, Key="é/k", UploadId=upload)["Parts"]] == etags
    parts = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(etags, 1)]
    done = reader.complete_multipart_upload(Bucket=bucket, Key="é/k", UploadId=upload, MultipartUpload={"Parts": parts})
    for s3 in pair:
        found = s3.get_object(Bucket=bucket, Key="é/k")
        assert found["Body"].read() == b"1" * 5 + b"2" * 5
        assert (found["ETag"], found["ContentType"], found["Metadata"]) == (done["ETag"], "t/x", {"m": "1"})
        assert [entry["ETag"] for entry in s3.list_objects_v2(Bucket=bucket)["Contents"]] == [done["ETag"]]
        assert s3.get_object(Bucket=bucket, Key="é/k", PartNumber=2)["Body"].read() == b"2" * 5
        again = s3.complete_multipart_upload(Bucket=bucket, Key="é/k", UploadId=upload, MultipartUpload={"Parts": parts})
        assert again["ETag"] == done["ETag"]
        assert "Uploads" not in s3.list_multipart_uploads(Bucket=bucket)
    writer.delete_object(Bucket=bucket, Key="é/k")
    reader.delete_bucket(Bucket=bucket)


def test_copy_of_an_upload_in_parts_is_one_plain_object(peers: Peers, pair: tuple[Any, Any]) -> None:
    writer, _ = pair
    bucket = unique("copies")
    writer.create_bucket(Bucket=bucket)
    upload = writer.create_multipart_upload(Bucket=bucket, Key="k")["UploadId"]
    etag = writer.upload_part(Bucket=bucket, Key="k", UploadId=upload, PartNumber=1, Body=b"data")["ETag"]
    writer.complete_multipart_upload(Bucket=bucket, Key="k", UploadId=upload,
                                     MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": etag}]})
    ours = client(peers.proxy(OURS), config=PLAIN)
    copied = ours.copy_object(Bucket=bucket, Key="copy", CopySource={"Bucket": bucket, "Key": "k"})["CopyObjectResult"]
    for s3 in pair:
        found = s3.get_object(Bucket=bucket, Key="copy")
        assert (found["Body"].read(), found["ETag"]) == (b"data", copied["ETag"])


def test_acl(peers: Peers, pair: tuple[Any, Any]) -> None:
    writer, reader = pair
    bucket = unique("acl")
    writer.create_bucket(Bucket=bucket, ACL="public-read")
    writer.put_object(Bucket=bucket, Key="k", Body=b"1", ACL="authenticated-read")

    def told(s3: Any) -> tuple[Any, ...]:
        bucket_acl, object_acl = s3.get_bucket_acl(Bucket=bucket), s3.get_object_acl(Bucket=bucket, Key="k")
        return tuple(
            (answer["Owner"]["ID"], sorted((grant["Permission"], grant["Grantee"].get("ID") or grant["Grantee"]["URI"])
                                           for grant in answer["Grants"]))
            for answer in (bucket_acl, object_acl)
        )

    assert told(writer) == told(reader)
    reader.put_object_acl(Bucket=bucket, Key="k", ACL="private")
    assert told(writer) == told(reader)
    assert writer.get_object(Bucket=bucket, Key="k")["Body"].read() == b"1"


def test_versions(pair: tuple[Any, Any]) -> None:
    writer, reader = pair
    bucket = unique("versions")
    writer.create_bucket(Bucket=bucket)
    writer.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    assert reader.get_bucket_versioning(Bucket=bucket)["Status"] == "Enabled"
    ids = [s3.put_object(Bucket=bucket, Key="k", Body=b"%d" % number)["VersionId"]
           for number, s3 in ((1, writer), (2, reader), (3, writer))]
    marker = reader.delete_object(Bucket=bucket, Key="k")["VersionId"]
    for s3 in pair:
        listed = s3.list_object_versions(Bucket=bucket)
        assert [entry["VersionId"] for entry in listed["Versions"]] == ids[::-1]
        assert [(entry["VersionId"], entry["IsLatest"]) for entry in listed["DeleteMarkers"]] == [(marker, True)]
        assert [s3.get_object(Bucket=bucket, Key="k", VersionId=version)["Body"].read() for version in ids] == [
            b"1", b"2", b"3"]
        with refused("NoSuchKey"):
            s3.get_object(Bucket=bucket, Key="k")
    writer.delete_object(Bucket=bucket, Key="k", VersionId=marker)
    for s3 in pair:
        assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"3"


def test_what_only_ours_keeps_does_not_disturb_swift(peers: Peers) -> None:
    ours, swift = (client(peers.proxy(make), config=PLAIN) for make in (OURS, SWIFT))
    bucket = unique("more")
    ours.create_bucket(Bucket=bucket, ObjectLockEnabledForBucket=True)
    version = ours.put_object(Bucket=bucket, Key="k", Body=b"1", Tagging="a=1", ObjectLockLegalHoldStatus="ON",
                              ChecksumAlgorithm="SHA256")["VersionId"]
    assert swift.get_object(Bucket=bucket, Key="k")["Body"].read() == b"1"
    swift.put_object(Bucket=bucket, Key="k", Body=b"2")
    assert ours.get_object(Bucket=bucket, Key="k")["Body"].read() == b"2"
    assert ours.get_object_tagging(Bucket=bucket, Key="k", VersionId=version)["TagSet"] == [{"Key": "a", "Value": "1"}]
    with refused("AccessDenied"):
        ours.delete_object(Bucket=bucket, Key="k", VersionId=version)
    with refused("AccessDenied"):
        client(peers.proxy(OURS), OTHER, config=PLAIN).get_object(Bucket=bucket, Key="k")
