"""Drives minio-py against the store: ``python s3_minio.py HOST REGION BUCKET DIRECTORY``, keys in the environment. Ends with 0 if all is well."""

import io
import os
import sys
import urllib.request
from datetime import UTC, datetime, timedelta

from minio import Minio
from minio.commonconfig import ENABLED, ComposeSource, CopySource, Filter, Tags
from minio.deleteobjects import DeleteObject
from minio.error import S3Error
from minio.lifecycleconfig import Expiration, LifecycleConfig, Rule
from minio.retention import GOVERNANCE, Retention

host, region, bucket, home = sys.argv[1:]
MIB = 1 << 20
client = Minio(host, access_key=os.environ["AWS_ACCESS_KEY_ID"], secret_key=os.environ["AWS_SECRET_ACCESS_KEY"], secure=False)


def read(name, **how):
    response = client.get_object(bucket_name=bucket, object_name=name, **how)
    try:
        return response.read()
    finally:
        response.close()
        response.release_conn()


def refused(call, code, **arguments):
    try:
        call(bucket_name=bucket, **arguments)
    except S3Error as error:
        assert error.code == code, error
    else:
        raise AssertionError(f"{code} was expected")


assert not client.bucket_exists(bucket_name=bucket)
client.make_bucket(bucket_name=bucket, object_lock=True)
assert client.bucket_exists(bucket_name=bucket) and bucket in [entry.name for entry in client.list_buckets()]
assert client.get_bucket_versioning(bucket_name=bucket).status == ENABLED
refused(client.get_bucket_policy, "NoSuchBucketPolicy")
client.delete_bucket_tags(bucket_name=bucket)

small = client.put_object(bucket_name=bucket, object_name="dir/é 1+2", data=io.BytesIO(b"hello"), length=5, content_type="text/x", metadata={"Colour": "blue"})
stat = client.stat_object(bucket_name=bucket, object_name="dir/é 1+2")
assert (stat.size, stat.etag, stat.content_type, stat.version_id) == (5, small.etag, "text/x", small.version_id)
assert stat.metadata["x-amz-meta-colour"] == "blue"
assert read("dir/é 1+2") == b"hello" and read("dir/é 1+2", offset=1, length=3) == b"ell"
big = os.urandom(5 * MIB) + b"a" * 5 * MIB + b"end"
client.put_object(bucket_name=bucket, object_name="unknown", data=io.BytesIO(big), length=-1, part_size=5 * MIB)
assert read("unknown") == big
path = os.path.join(home, "file")
with open(path, "wb") as file:
    file.write(big)
client.fput_object(bucket_name=bucket, object_name="file", file_path=path, part_size=5 * MIB, num_parallel_uploads=2)
client.fget_object(bucket_name=bucket, object_name="file", file_path=path + "2")
with open(path + "2", "rb") as file:
    assert file.read() == big
client.copy_object(bucket_name=bucket, object_name="copy", source=CopySource(bucket_name=bucket, object_name="dir/é 1+2"))
client.compose_object(bucket_name=bucket, object_name="composed", sources=[ComposeSource(bucket_name=bucket, object_name="file"), ComposeSource(bucket_name=bucket, object_name="copy")])
assert read("composed") == big + b"hello"
refused(client.stat_object, "NoSuchKey", object_name="none")
assert sorted(entry.object_name for entry in client.list_objects(bucket_name=bucket)) == ["composed", "copy", "dir/", "file", "unknown"]
assert [entry.object_name for entry in client.list_objects(bucket_name=bucket, recursive=True, use_api_v1=True)] == ["composed", "copy", "dir/é 1+2", "file", "unknown"]

url = client.presigned_get_object(bucket_name=bucket, object_name="dir/é 1+2", response_headers={"response-content-type": "text/y"})
with urllib.request.urlopen(url, timeout=60) as answer:
    assert answer.read() == b"hello" and answer.headers["Content-Type"] == "text/y"
request = urllib.request.Request(client.presigned_put_object(bucket_name=bucket, object_name="signed"), b"signed", method="PUT")
urllib.request.urlopen(request, timeout=60).close()
assert read("signed") == b"signed"

tags = Tags.new_object_tags()
tags["a"] = "b"
client.set_object_tags(bucket_name=bucket, object_name="copy", tags=tags)
assert client.get_object_tags(bucket_name=bucket, object_name="copy") == {"a": "b"}
client.set_object_retention(bucket_name=bucket, object_name="signed", config=Retention(GOVERNANCE, datetime.now(UTC) + timedelta(days=1)))
assert client.get_object_retention(bucket_name=bucket, object_name="signed").mode == GOVERNANCE
client.enable_object_legal_hold(bucket_name=bucket, object_name="copy")
assert client.is_object_legal_hold_enabled(bucket_name=bucket, object_name="copy")
client.disable_object_legal_hold(bucket_name=bucket, object_name="copy")
rule = Rule(status=ENABLED, rule_filter=Filter(prefix="logs/"), rule_id="r", expiration=Expiration(days=3))
client.set_bucket_lifecycle(bucket_name=bucket, config=LifecycleConfig([rule]))
assert client.get_bucket_lifecycle(bucket_name=bucket).rules[0].expiration.days == 3

client.remove_object(bucket_name=bucket, object_name="copy")
versions = list(client.list_objects(bucket_name=bucket, recursive=True, include_version=True))
assert sorted(bool(entry.is_delete_marker) for entry in versions if entry.object_name == "copy") == [False, True]
doomed = [DeleteObject(entry.object_name, entry.version_id) for entry in versions]
errors = list(client.remove_objects(bucket_name=bucket, delete_object_list=doomed))
assert [(error.name, error.code) for error in errors] == [("signed", "AccessDenied")], errors  # it is retained
errors = list(client.remove_objects(bucket_name=bucket, delete_object_list=doomed, bypass_governance_mode=True))
assert not errors, errors
client.remove_bucket(bucket_name=bucket)
