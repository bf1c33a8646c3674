"""ACLs of the S3 protocol, shared with Swift: each proxy decides by what the other has written, over storage of both makes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from test.support.client import unique
from test.support.peers import OURS, SWIFT, Peers
from test.support.preloaded import Preloaded
from test.support.s3 import client, refused
from test.support.stage import CONF

SECOND = ("test:tester2", "testing2")
S3_CONF = CONF.replace("use = egg:swift#s3api", "use = egg:swift#s3api\ns3_acl = true")
ALL_USERS = "http://acs.amazonaws.com/groups/global/AllUsers"


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory, swift_python: str, preloaded: Preloaded) -> Iterator[Peers]:
    peers = Peers(tmp_path_factory.mktemp("s3"), swift_python, preloaded=preloaded, proxy_conf=S3_CONF)
    try:
        peers.start_proxies(OURS, SWIFT)
        with peers.storage(OURS, SWIFT):
            yield peers
    finally:
        peers.stop_all()


def grants_of(answer: dict[str, Any]) -> set[tuple[str, str]]:
    return {(grant["Grantee"].get("ID") or grant["Grantee"]["URI"], grant["Permission"]) for grant in answer["Grants"]}


@pytest.mark.parametrize(("writer", "reader"), [(OURS, SWIFT), (SWIFT, OURS)])
def test_acls_mean_the_same_to_both(peers: Peers, writer: str, reader: str) -> None:
    """Of a bucket and its objects, given when they are made and changed afterwards, as one user and as another."""
    one, other = client(peers.proxy(writer)), client(peers.proxy(reader))
    second = client(peers.proxy(reader), SECOND)
    bucket = unique("acls")
    one.create_bucket(Bucket=bucket, ACL="public-read")
    assert grants_of(other.get_bucket_acl(Bucket=bucket)) == {("test:tester", "FULL_CONTROL"), (ALL_USERS, "READ")}
    second.list_objects(Bucket=bucket)
    with refused("AccessDenied"):
        second.put_object(Bucket=bucket, Key="o", Body=b"no")
    one.put_object(Bucket=bucket, Key="o", Body=b"data", Metadata={"a": "b"}, ACL="private")
    with refused("AccessDenied"):
        second.get_object(Bucket=bucket, Key="o")
    one.put_object_acl(Bucket=bucket, Key="o", GrantRead='id="test:tester2"', GrantFullControl='id="test:tester"')
    found = second.get_object(Bucket=bucket, Key="o")
    assert (found["Body"].read(), found["Metadata"]) == (b"data", {"a": "b"})
    assert grants_of(other.get_object_acl(Bucket=bucket, Key="o")) == {("test:tester", "FULL_CONTROL"), ("test:tester2", "READ")}
    one.put_object_acl(Bucket=bucket, Key="o", ACL="private")
    with refused("AccessDenied"):
        second.get_object(Bucket=bucket, Key="o")
    one.put_bucket_acl(Bucket=bucket, ACL="public-read-write")
    second.put_object(Bucket=bucket, Key="seconds", Body=b"x")
    with refused("AccessDenied"):
        one.get_object(Bucket=bucket, Key="seconds")
    other.put_bucket_acl(Bucket=bucket, ACL="private")
    with refused("AccessDenied"):
        client(peers.proxy(writer), SECOND).list_objects(Bucket=bucket)
    for key in ("o", "seconds"):
        one.delete_object(Bucket=bucket, Key=key)
    one.delete_bucket(Bucket=bucket)


def test_an_upload_in_parts_of_swift_whose_acl_we_change(peers: Peers) -> None:
    swift, ours, second = client(peers.proxy(SWIFT)), client(peers.proxy(OURS)), client(peers.proxy(SWIFT), SECOND)
    bucket = unique("acls")
    swift.create_bucket(Bucket=bucket)
    upload = swift.create_multipart_upload(Bucket=bucket, Key="o")["UploadId"]
    part = swift.upload_part(Bucket=bucket, Key="o", UploadId=upload, PartNumber=1, Body=b"y" * 70_000)
    parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    swift.complete_multipart_upload(Bucket=bucket, Key="o", UploadId=upload, MultipartUpload=parts)
    before = swift.head_object(Bucket=bucket, Key="o")
    listed = swift.list_objects(Bucket=bucket)["Contents"]
    ours.put_object_acl(Bucket=bucket, Key="o", ACL="public-read")
    after = swift.head_object(Bucket=bucket, Key="o")
    assert [after[name] for name in ("ETag", "LastModified", "ContentLength")] == [
        before[name] for name in ("ETag", "LastModified", "ContentLength")
    ]
    assert swift.list_objects(Bucket=bucket)["Contents"] == listed
    assert second.get_object(Bucket=bucket, Key="o")["Body"].read() == b"y" * 70_000
    swift.delete_object(Bucket=bucket, Key="o")
    swift.delete_bucket(Bucket=bucket)
