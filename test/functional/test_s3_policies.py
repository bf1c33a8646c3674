"""Policies of buckets, forms of browsers, lifecycle headers and encryption in the S3 protocol (``spec: s3-api 1.8, 3.13-3.16``)."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from test.support.client import Answer, Endpoint, unique
from test.support.s3 import OTHER, TESTER, client, refused, remove_bucket
from test.support.store import Store, running


@pytest.fixture(scope="module")
def s3_other(endpoint: Endpoint) -> Any:
    return client(endpoint, OTHER)


@pytest.fixture
def bucket(s3: Any) -> Iterator[str]:
    name = unique("policies")
    s3.create_bucket(Bucket=name)
    yield name
    s3.delete_bucket_policy(Bucket=name)
    remove_bucket(s3, name)


def set_policy(s3: Any, bucket: str, *statements: Mapping[str, Any]) -> str:
    arn = f"arn:aws:s3:::{bucket}"
    found = [{"Effect": "Allow", "Principal": "*", "Resource": [arn, f"{arn}/*"], **statement} for statement in statements]
    text = json.dumps({"Version": "2012-10-17", "Statement": found})
    s3.put_bucket_policy(Bucket=bucket, Policy=text)
    return text


# -- policies ----------------------------------------------------------------------------------------------------------


def test_a_policy_is_kept_as_it_came(s3: Any, bucket: str) -> None:
    with refused("NoSuchBucketPolicy", 404):
        s3.get_bucket_policy(Bucket=bucket)
    text = set_policy(s3, bucket, {"Action": "s3:GetObject"})
    assert s3.get_bucket_policy(Bucket=bucket)["Policy"] == text
    assert s3.get_bucket_policy_status(Bucket=bucket)["PolicyStatus"]["IsPublic"]
    long = set_policy(s3, bucket, *({"Action": "s3:GetObject", "Sid": f"number {n}"} for n in range(60)))
    assert len(long) > 4096
    assert s3.get_bucket_policy(Bucket=bucket)["Policy"] == long
    s3.delete_bucket_policy(Bucket=bucket)
    with refused("NoSuchBucketPolicy"):
        s3.get_bucket_policy(Bucket=bucket)


def test_a_bucket_that_is_made_anew_has_no_policy(s3: Any) -> None:
    bucket = unique("anew")
    for number in (1, 60):
        s3.create_bucket(Bucket=bucket)
        with refused("NoSuchBucketPolicy"):
            s3.get_bucket_policy(Bucket=bucket)
        set_policy(s3, bucket, *({"Action": "s3:GetObject", "Sid": f"number {n}"} for n in range(number)))
        s3.delete_bucket(Bucket=bucket)
    s3.create_bucket(Bucket=bucket)
    with refused("NoSuchBucketPolicy"):
        s3.get_bucket_policy(Bucket=bucket)
    s3.delete_bucket(Bucket=bucket)


def test_others_may_do_what_a_policy_allows(s3: Any, s3_other: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="public/a", Body=b"a", Tagging="kind=open")
    s3.put_object(Bucket=bucket, Key="private/a", Body=b"a")
    with refused("AccessDenied"):
        s3_other.get_object(Bucket=bucket, Key="public/a")
    set_policy(
        s3,
        bucket,
        {"Action": "s3:GetObject", "Resource": f"arn:aws:s3:::{bucket}/public/*", "Principal": {"AWS": "test2:tester2"}},
        {"Action": "s3:ListBucket", "Condition": {"StringLike": {"s3:prefix": "public/*"}}},
        {"Action": "s3:GetObjectTagging", "Condition": {"StringEquals": {"s3:ExistingObjectTag/kind": "open"}}},
    )
    assert s3_other.get_object(Bucket=bucket, Key="public/a")["Body"].read() == b"a"
    assert s3_other.list_objects_v2(Bucket=bucket, Prefix="public/")["KeyCount"] == 1
    assert s3_other.get_object_tagging(Bucket=bucket, Key="public/a")["TagSet"]
    with refused("404"):
        s3_other.head_object(Bucket=bucket, Key="public/none")
    with refused("403"):
        s3_other.head_object(Bucket=bucket, Key="private/none")
    for call, arguments in (
        (s3_other.get_object, {"Key": "private/a"}),
        (s3_other.get_object_tagging, {"Key": "private/a"}),
        (s3_other.list_objects_v2, {}),
        (s3_other.put_object, {"Key": "public/b"}),
        (s3_other.delete_object, {"Key": "public/a"}),
    ):
        with refused("AccessDenied", 403):
            call(Bucket=bucket, **arguments)


def test_versions_are_allowed_by_their_own_action(s3: Any, s3_other: Any, bucket: str) -> None:
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    old = s3.put_object(Bucket=bucket, Key="k", Body=b"old")["VersionId"]
    s3.put_object(Bucket=bucket, Key="k", Body=b"new")
    mine = unique("mine")
    s3_other.create_bucket(Bucket=mine)
    source = {"Bucket": bucket, "Key": "k"}
    set_policy(s3, bucket, {"Action": "s3:GetObject"})
    assert s3_other.get_object(Bucket=bucket, Key="k")["Body"].read() == b"new"
    s3_other.copy_object(Bucket=mine, Key="k", CopySource=source)
    with refused("AccessDenied"):
        s3_other.get_object(Bucket=bucket, Key="k", VersionId=old)
    with refused("AccessDenied"):
        s3_other.copy_object(Bucket=mine, Key="k", CopySource=source | {"VersionId": old})
    set_policy(s3, bucket, {"Action": "s3:GetObjectVersion"})
    assert s3_other.get_object(Bucket=bucket, Key="k", VersionId=old)["Body"].read() == b"old"
    s3_other.copy_object(Bucket=mine, Key="k", CopySource=source | {"VersionId": old})
    with refused("AccessDenied"):
        s3_other.get_object(Bucket=bucket, Key="k")
    remove_bucket(s3_other, mine)


def test_denial_wins_also_over_the_owner_who_can_still_mend_it(s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"a")
    set_policy(s3, bucket, {"Effect": "Deny", "Action": "s3:*"})
    with refused("AccessDenied"):
        s3.get_object(Bucket=bucket, Key="k")
    with refused("AccessDenied"):
        s3.list_objects_v2(Bucket=bucket)
    assert s3.get_bucket_policy(Bucket=bucket)["Policy"]
    s3.delete_bucket_policy(Bucket=bucket)
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"a"


def test_what_is_denied_is_not_deleted_among_others(s3: Any, bucket: str) -> None:
    for key in ("keep/a", "go/a"):
        s3.put_object(Bucket=bucket, Key=key)
    set_policy(s3, bucket, {"Effect": "Deny", "Action": "s3:DeleteObject*", "Resource": f"arn:aws:s3:::{bucket}/keep/*"})
    answer = s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": "keep/a"}, {"Key": "go/a"}]})
    assert [entry["Key"] for entry in answer["Deleted"]] == ["go/a"]
    assert [(entry["Key"], entry["Code"]) for entry in answer["Errors"]] == [("keep/a", "AccessDenied")]


def test_a_public_access_block_keeps_public_policies_out(s3: Any, s3_other: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"a")
    set_policy(s3, bucket, {"Action": "s3:GetObject"})
    assert s3_other.get_object(Bucket=bucket, Key="k")
    s3.put_public_access_block(
        Bucket=bucket, PublicAccessBlockConfiguration={"RestrictPublicBuckets": True, "BlockPublicPolicy": True}
    )
    with refused("AccessDenied"):
        s3_other.get_object(Bucket=bucket, Key="k")
    with refused("AccessDenied"):
        set_policy(s3, bucket, {"Action": "s3:GetObject"})
    set_policy(s3, bucket, {"Action": "s3:GetObject", "Principal": {"AWS": "test2:tester2"}})
    assert s3_other.get_object(Bucket=bucket, Key="k")


def test_what_is_no_policy_is_refused(s3: Any, bucket: str) -> None:
    for text in ("x", "{}", json.dumps({"Statement": {"Effect": "Allow"}})):
        with refused("MalformedPolicy", 400):
            s3.put_bucket_policy(Bucket=bucket, Policy=text)


# -- forms -------------------------------------------------------------------------------------------------------------


def form(fields: Mapping[str, str], data: bytes = b"data", name: str = "a.txt", end: bytes = b"") -> tuple[str, bytes]:
    """Content-Type and body."""
    parts = [
        f'--b0undary\r\nContent-Disposition: form-data; name="{field}"\r\n\r\n{value}\r\n'.encode()
        for field, value in fields.items()
    ]
    head = f'--b0undary\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'.encode()
    return "multipart/form-data; boundary=b0undary", b"".join((*parts, head, data, end or b"\r\n--b0undary--\r\n"))


def post(endpoint: Endpoint, bucket: str, fields: Mapping[str, str], data: bytes = b"data", **more: Any) -> Answer:
    kind, body = form(fields, data, **more)
    return endpoint.request("POST", f"/{bucket}", {"Content-Type": kind}, body)


def signed_v2(bucket: str, conditions: list[Any], user: tuple[str, str] = TESTER) -> dict[str, str]:
    document = {"expiration": "2035-01-01T00:00:00Z", "conditions": conditions}
    policy = base64.b64encode(json.dumps(document).encode()).decode()
    signature = base64.b64encode(hmac.digest(user[1].encode(), policy.encode(), "sha1")).decode()
    return {"AWSAccessKeyId": user[0], "policy": policy, "signature": signature}


def code_of(answer: Answer) -> str:
    return answer.body.decode().partition("<Code>")[2].partition("</Code>")[0]


def test_a_form_that_boto3_signed_uploads(endpoint: Endpoint, s3: Any, bucket: str) -> None:
    made = s3.generate_presigned_post(
        bucket,
        "up/${filename}",
        Fields={"Content-Type": "text/plain", "x-amz-meta-who": "me", "success_action_status": "201"},
        Conditions=[{"Content-Type": "text/plain"}, {"x-amz-meta-who": "me"}, {"success_action_status": "201"}],
    )
    answer = post(endpoint, bucket, made["fields"], name="C:\\home\\a.txt")
    assert answer.status == 201, answer.body
    assert b"<Key>up/a.txt</Key>" in answer.body
    assert answer.headers["Location"].endswith(f"/{bucket}/up/a.txt")
    found = s3.get_object(Bucket=bucket, Key="up/a.txt")
    assert (found["Body"].read(), found["ContentType"], found["Metadata"]) == (b"data", "text/plain", {"who": "me"})
    assert found["ETag"] == answer.headers["Etag"] == f'"{hashlib.md5(b"data").hexdigest()}"'


def test_a_large_file_passes_and_a_checksum_is_looked_at(endpoint: Endpoint, s3: Any, bucket: str) -> None:
    data = bytes(range(256)) * 20000
    fields = {"key": "k", **signed_v2(bucket, [{"bucket": bucket}, {"key": "k"}])}
    checksum = base64.b64encode(hashlib.sha256(data).digest()).decode()
    assert post(endpoint, bucket, {**fields, "x-amz-checksum-sha256": checksum}, data).status == 204
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == data
    wrong = base64.b64encode(bytes(32)).decode()
    answer = post(endpoint, bucket, {**fields, "x-amz-checksum-sha256": wrong}, b"other")
    assert (answer.status, code_of(answer)) == (400, "BadDigest")
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == data


def test_where_a_form_sends_the_browser(endpoint: Endpoint, bucket: str) -> None:
    url = "http://example.com/done?a=b#c"
    conditions = [{"bucket": bucket}, {"key": "k 1"}, {"success_action_redirect": url}]
    answer = post(endpoint, bucket, {"key": "k 1", "success_action_redirect": url, **signed_v2(bucket, conditions)})
    etag = hashlib.md5(b"data").hexdigest()
    assert answer.status == 303
    assert answer.headers["Location"] == f"http://example.com/done?a=b&bucket={bucket}&key=k%201&etag=%22{etag}%22#c"


def test_security_R06_what_the_policy_of_a_form_does_not_name_is_refused(endpoint: Endpoint, s3: Any, bucket: str) -> None:
    bound = [{"bucket": bucket}, ["starts-with", "$key", "foo"]]
    for conditions, fields, data, code in (
        (bound, {"key": "bar"}, b"", "AccessDenied"),
        (bound[1:], {"key": "foo"}, b"", "AccessDenied"),
        ([{"bucket": "other"}, *bound[1:]], {"key": "foo"}, b"", "AccessDenied"),
        (bound, {"key": "foo", "acl": "public-read"}, b"", "AccessDenied"),
        (bound, {"key": "foo", "x-amz-meta-a": "b"}, b"", "AccessDenied"),
        ([*bound, ["content-length-range", 2, 3]], {"key": "foo"}, b"x", "EntityTooSmall"),
        ([*bound, ["content-length-range", 2, 3]], {"key": "foo"}, b"x" * 100_000, "EntityTooLarge"),
        ([{}], {"key": "foo"}, b"", "InvalidPolicyDocument"),
        (bound, {}, b"", "InvalidArgument"),
    ):
        answer = post(endpoint, bucket, {**fields, **signed_v2(bucket, conditions)}, data)
        assert code_of(answer) == code, (conditions, fields, answer.body)
    fields = {"key": "foo", **signed_v2(bucket, bound)}
    for change, code in (
        ({"signature": "x"}, "SignatureDoesNotMatch"),
        ({"AWSAccessKeyId": "test:nobody"}, "InvalidAccessKeyId"),
    ):
        assert code_of(post(endpoint, bucket, {**fields, **change})) == code
    del fields["policy"]
    assert code_of(post(endpoint, bucket, fields)) == "InvalidArgument"
    assert "Contents" not in s3.list_objects_v2(Bucket=bucket)


def test_security_R04_a_form_reaches_no_other_place(endpoint: Endpoint, s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="secret", Body=b"secret")
    for place in (".s3", f"{bucket}+segments", "v1"):
        answer = post(endpoint, place, {"key": "k", **signed_v2(place, [{"bucket": place}, {"key": "k"}])})
        assert answer.status in (400, 401, 403, 404, 405, 412), answer.status
    conditions: list[Any] = [{"bucket": bucket}, ["starts-with", "$key", ""]]
    assert post(endpoint, bucket, {"key": "\x00versions\x00k", **signed_v2(bucket, conditions)}).status == 400
    smuggled = {"x-amz-copy-source": f"/{bucket}/secret", "x-object-manifest": f"{bucket}/s", "x-copy-from": f"{bucket}/secret"}
    conditions += [["starts-with", f"${name}", ""] for name in smuggled]
    assert post(endpoint, bucket, {"key": "k", **smuggled, **signed_v2(bucket, conditions)}).status == 204
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"data"
    broken = {"key": "k", "Content-Type": "a\r\nX-Evil: b", **signed_v2(bucket, [*conditions, ["starts-with", "$content-type", ""]])}
    assert post(endpoint, bucket, broken).status == 400


def test_half_a_form_stores_nothing(endpoint: Endpoint, s3: Any, bucket: str) -> None:
    fields = {"key": "k", **signed_v2(bucket, [{"bucket": bucket}, {"key": "k"}])}
    second = b'\r\n--b0undary\r\nContent-Disposition: form-data; name="file"\r\n\r\nx\r\n--b0undary--\r\n'
    for end, code in ((b"\r\n", "MalformedPOSTRequest"), (second, "IncorrectNumberOfFilesInPostRequest")):
        answer = post(endpoint, bucket, fields, end=end)
        assert (answer.status, code_of(answer)) == (400, code)
    assert code_of(post(endpoint, bucket, {**fields, "x-ignore-a": "x" * 21000})) == "MaxPostPreDataLengthExceededError"
    assert "Contents" not in s3.list_objects_v2(Bucket=bucket)
    answer = endpoint.request("POST", f"/{bucket}", {"Content-Type": "text/plain"}, b"x")
    assert (answer.status, code_of(answer)) == (412, "RequestIsNotMultiPartContent")


def test_nobodys_form_needs_a_bucket_that_everybody_may_write_to(endpoint: Endpoint, s3: Any, bucket: str) -> None:
    assert post(endpoint, bucket, {"key": "k"}).status == 403
    s3.put_bucket_acl(Bucket=bucket, ACL="public-read-write")
    assert post(endpoint, bucket, {"key": "k", "acl": "public-read"}).status == 204
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"data"


# -- lifecycle, encryption ---------------------------------------------------------------------------------------------


def test_clients_are_told_when_an_object_will_end(s3: Any, bucket: str) -> None:
    rules = [
        {"ID": "one day", "Status": "Enabled", "Filter": {"Prefix": "a/"}, "Expiration": {"Days": 1}},
        {"ID": "tagged", "Status": "Enabled", "Filter": {"Tag": {"Key": "t", "Value": "1"}}, "Expiration": {"Days": 2}},
    ]
    s3.put_bucket_lifecycle_configuration(Bucket=bucket, LifecycleConfiguration={"Rules": rules})
    assert s3.get_bucket_lifecycle_configuration(Bucket=bucket)["Rules"] == rules
    answers = [s3.put_object(Bucket=bucket, Key="a/k"), s3.get_object(Bucket=bucket, Key="a/k")]
    assert all(answer["Expiration"].endswith('rule-id="one%20day"') for answer in answers)
    assert 'rule-id="tagged"' in s3.put_object(Bucket=bucket, Key="k", Tagging="t=1")["Expiration"]
    assert 'rule-id="tagged"' in s3.head_object(Bucket=bucket, Key="k")["Expiration"]
    assert "Expiration" not in s3.put_object(Bucket=bucket, Key="other")
    s3.delete_bucket_lifecycle(Bucket=bucket)
    assert "Expiration" not in s3.head_object(Bucket=bucket, Key="a/k")
    with refused("NoSuchLifecycleConfiguration"):
        s3.get_bucket_lifecycle_configuration(Bucket=bucket)


KEY = {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": "0" * 32}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """One whose disks are looked at. It encrypts nothing unless it is asked to."""
    with running(tmp_path_factory.mktemp("asked") / "data", workers=1) as store:
        yield store


def is_on_disk(store: Store, data: bytes) -> bool:
    return any(data in path.read_bytes() for path in store.devices().rglob("*.data"))


def test_what_is_asked_for_is_encrypted(store: Store) -> None:
    s3 = client(store.endpoint)
    bucket = unique("encrypted")
    s3.create_bucket(Bucket=bucket)
    s3.put_object(Bucket=bucket, Key="plain", Body=b"plain swordfish")
    assert is_on_disk(store, b"plain swordfish")
    answer = s3.put_object(Bucket=bucket, Key="asked", Body=b"asked swordfish", ServerSideEncryption="AES256")
    assert answer["ServerSideEncryption"] == "AES256"
    rule = {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}
    s3.put_bucket_encryption(Bucket=bucket, ServerSideEncryptionConfiguration={"Rules": [rule]})
    assert s3.put_object(Bucket=bucket, Key="default", Body=b"default swordfish")["ServerSideEncryption"] == "AES256"
    for key in ("asked", "default"):
        found = s3.get_object(Bucket=bucket, Key=key)
        assert (found["Body"].read(), found["ServerSideEncryption"]) == (f"{key} swordfish".encode(), "AES256")
        assert not is_on_disk(store, f"{key} swordfish".encode())


def test_what_a_client_gave_its_key_for_needs_that_key(store: Store) -> None:
    s3, other = client(store.endpoint), KEY | {"SSECustomerKey": "1" * 32}
    bucket = unique("keys")
    s3.create_bucket(Bucket=bucket)
    answer = s3.put_object(Bucket=bucket, Key="k", Body=b"keyed swordfish", Metadata={"a": "b"}, **KEY)
    assert answer["SSECustomerAlgorithm"] == "AES256"
    assert s3.get_object(Bucket=bucket, Key="k", Range="bytes=6-", **KEY)["Body"].read() == b"swordfish"
    assert s3.head_object(Bucket=bucket, Key="k", **KEY)["Metadata"] == {"a": "b"}
    assert not is_on_disk(store, b"keyed swordfish") and not is_on_disk(store, b"0" * 32)
    for wrong in ({}, other):
        with refused("InvalidRequest", 400):
            s3.get_object(Bucket=bucket, Key="k", **wrong)
        with refused("400"):
            s3.head_object(Bucket=bucket, Key="k", **wrong)
    s3.put_object(Bucket=bucket, Key="plain", Body=b"x")
    with refused("InvalidRequest"):
        s3.get_object(Bucket=bucket, Key="plain", **KEY)
    account = store.endpoint.login()
    assert account.get(f"{bucket}/k").status == 400  # Swift's clients have no key to give
    source = {"CopySource": {"Bucket": bucket, "Key": "k"}}
    with refused("InvalidRequest"):
        s3.copy_object(Bucket=bucket, Key="copy", **source)
    from_key = {f"CopySource{name}": value for name, value in KEY.items()}
    s3.copy_object(Bucket=bucket, Key="copy", **source, **from_key, **other)
    assert s3.get_object(Bucket=bucket, Key="copy", **other)["Body"].read() == b"keyed swordfish"
    s3.copy_object(Bucket=bucket, Key="open", **source, **from_key)
    assert s3.get_object(Bucket=bucket, Key="open")["Body"].read() == b"keyed swordfish"
    for key in ("k", "copy", "open", "plain"):
        s3.delete_object(Bucket=bucket, Key=key)
    s3.delete_bucket(Bucket=bucket)


def test_an_upload_in_parts_needs_its_key_throughout(store: Store) -> None:
    s3 = client(store.endpoint)
    bucket = unique("parts")
    s3.create_bucket(Bucket=bucket)
    upload = s3.create_multipart_upload(Bucket=bucket, Key="k", **KEY)["UploadId"]
    about = {"Bucket": bucket, "Key": "k", "UploadId": upload}
    with refused("InvalidRequest"):
        s3.upload_part(**about, PartNumber=1, Body=b"x")
    bodies = (b"a" * (5 << 20), b"keyed swordfish")
    parts = [
        {"PartNumber": number, "ETag": s3.upload_part(**about, PartNumber=number, Body=body, **KEY)["ETag"]}
        for number, body in enumerate(bodies, 1)
    ]
    with refused("InvalidRequest"):
        s3.complete_multipart_upload(**about, MultipartUpload={"Parts": parts})
    s3.complete_multipart_upload(**about, MultipartUpload={"Parts": parts}, **KEY)
    assert s3.get_object(Bucket=bucket, Key="k", **KEY)["Body"].read() == b"".join(bodies)
    assert s3.get_object(Bucket=bucket, Key="k", Range="bytes=-9", **KEY)["Body"].read() == b"swordfish"
    with refused("InvalidRequest"):
        s3.get_object(Bucket=bucket, Key="k")
    s3.delete_object(Bucket=bucket, Key="k")
    assert "Contents" not in s3.list_objects_v2(Bucket=bucket)


def test_a_store_without_encryption_says_so(store: Store) -> None:
    store.edit("proxy-server.conf", (" keymaster encryption ", " "))
    store.reload()
    s3, bucket = client(store.endpoint), unique("open")
    s3.create_bucket(Bucket=bucket)
    for wish in ({"ServerSideEncryption": "AES256"}, {"ServerSideEncryption": "aws:kms"}, KEY):
        with refused("NotImplemented", 501):
            s3.put_object(Bucket=bucket, Key="k", Body=b"secret", **wish)
    s3.delete_bucket(Bucket=bucket)
