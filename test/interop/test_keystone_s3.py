"""S3 with EC2 credentials of a real Keystone: scenario 5 of the sources step by step, and what an access key may do."""

from __future__ import annotations

import hashlib
import json
import time
from contextlib import closing
from typing import Any

import pytest
from pymemcache.client.base import Client

from test.support.client import unique
from test.support.keystone import Ec2, Keystone, KeystoneStore, User
from test.support.s3 import client, refused, signed


@pytest.fixture(scope="module")
def project(keystone: Keystone) -> str:
    return keystone.project(unique("s3project"))


@pytest.fixture(scope="module")
def owner(keystone: Keystone, project: str) -> User:
    return keystone.user(unique("s3owner"), swiftoperator=project)


@pytest.fixture(scope="module")
def key(keystone: Keystone, owner: User, project: str) -> Ec2:
    return keystone.ec2(owner, project)


@pytest.fixture(scope="module")
def s3(keystone_store: KeystoneStore, key: Ec2) -> Any:
    return client(keystone_store.endpoint, key.pair)


@pytest.fixture(scope="module")
def bucket(s3: Any) -> str:
    name = unique("bucket")
    s3.create_bucket(Bucket=name)
    return name


def test_scenario_5_s3_request_with_keystone(keystone: Keystone, keystone_store: KeystoneStore, owner: User, project: str, key: Ec2, s3: Any,
                                             bucket: str) -> None:
    etag = s3.put_object(Bucket=bucket, Key="key", Body=b"scenario five")["ETag"]
    assert etag == f'"{hashlib.md5(b"scenario five").hexdigest()}"'
    assert s3.get_object(Bucket=bucket, Key="key")["Body"].read() == b"scenario five"
    swift = keystone_store.account(keystone.token(owner, project), project)
    assert swift.get(bucket, "key").expect(200).body == b"scenario five"  # it is the project's account
    assert [one["Name"] for one in s3.list_buckets()["Buckets"]].count(bucket) == 1
    wrong = client(keystone_store.endpoint, (key.access, "f" * 32))
    with refused("SignatureDoesNotMatch", 403):
        wrong.put_object(Bucket=bucket, Key="key", Body=b"forged")
    with refused("InvalidAccessKeyId", 403):
        client(keystone_store.endpoint, ("0" * 32, "f" * 32)).list_buckets()
    assert s3.get_object(Bucket=bucket, Key="key")["Body"].read() == b"scenario five"


def test_the_owner_has_the_names_that_keystone_knows(keystone: Keystone, owner: User, project: str, s3: Any, bucket: str) -> None:
    name = keystone.ask("GET", f"projects/{project}")["project"]["name"]
    assert s3.list_buckets()["Owner"]["ID"] == f"{name}:{owner.name}"
    assert s3.get_bucket_acl(Bucket=bucket)["Owner"]["ID"] == f"{name}:{owner.name}"


def test_an_account_made_through_s3_keeps_the_domain_of_its_project(keystone: Keystone, keystone_store: KeystoneStore) -> None:
    domain = keystone.domain(unique("s3domain"))
    project = keystone.project("p", domain)
    user = keystone.user("u", domain, admin=project)
    client(keystone_store.endpoint, keystone.ec2(user, project).pair).create_bucket(Bucket=unique("bucket"))
    account = keystone_store.account(keystone.token(user, project), project)
    assert account.head().expect(204).headers["X-Account-Project-Domain-Id"] == domain


def test_multipart_upload_and_signed_url(keystone_store: KeystoneStore, s3: Any, bucket: str) -> None:
    upload = s3.create_multipart_upload(Bucket=bucket, Key="big")["UploadId"]
    data = [b"a" * (5 << 20), b"b" * 100]
    parts = [{"PartNumber": number, "ETag": s3.upload_part(Bucket=bucket, Key="big", UploadId=upload, PartNumber=number, Body=body)["ETag"]}
             for number, body in enumerate(data, 1)]
    s3.complete_multipart_upload(Bucket=bucket, Key="big", UploadId=upload, MultipartUpload={"Parts": parts})
    url = s3.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "big"}, ExpiresIn=60)
    answer = keystone_store.endpoint.request("GET", url.partition(str(keystone_store.endpoint.port))[2]).expect(200)
    assert answer.body == b"".join(data)


def test_bodies_that_are_signed_in_chunks_are_proven(keystone_store: KeystoneStore, key: Ec2, bucket: str) -> None:
    chunks = [b"x" * 65536, b"tail"]
    assert _put_signed_chunks(keystone_store, key, f"/{bucket}/chunked", chunks).status == 200
    answer = signed(keystone_store.endpoint, key.pair, "GET", f"/{bucket}/chunked").expect(200)
    assert answer.body == b"".join(chunks)
    refused = _put_signed_chunks(keystone_store, key, f"/{bucket}/forged", chunks, forge=True)
    assert refused.status == 403 and b"SignatureDoesNotMatch" in refused.body
    assert signed(keystone_store.endpoint, key.pair, "GET", f"/{bucket}/forged").status == 404


def _put_signed_chunks(store: KeystoneStore, key: Ec2, path: str, chunks: list[bytes], forge: bool = False) -> Any:
    """A PUT as the SDKs for Java send it."""
    import hmac

    now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    scope = f"{now[:8]}/us-east-1/s3/aws4_request"
    sent = {"host": f"{store.endpoint.host}:{store.endpoint.port}", "x-amz-content-sha256": "STREAMING-AWS4-HMAC-SHA256-PAYLOAD",
            "x-amz-date": now, "x-amz-decoded-content-length": str(sum(map(len, chunks)))}
    names = ";".join(sorted(sent))
    lines = "".join(f"{name}:{sent[name]}\n" for name in sorted(sent))
    canonical = "\n".join(("PUT", path, "", lines, names, sent["x-amz-content-sha256"]))
    signing_key = ("AWS4" + key.secret).encode()
    for part in scope.split("/"):
        signing_key = hmac.digest(signing_key, part.encode(), "sha256")

    def sign(text: str) -> str:
        return hmac.digest(signing_key, text.encode(), "sha256").hex()

    seed = previous = sign(f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}")
    body = b""
    for chunk in [*chunks, b""]:
        empty = hashlib.sha256(b"").hexdigest()
        previous = sign(f"AWS4-HMAC-SHA256-PAYLOAD\n{now}\n{scope}\n{previous}\n{empty}\n{hashlib.sha256(chunk).hexdigest()}")
        body += f"{len(chunk):x};chunk-signature={previous}\r\n".encode() + chunk + b"\r\n"
    if forge:
        body = body.replace(b"tail", b"tale")
    sent["content-encoding"] = "aws-chunked"
    sent["authorization"] = f"AWS4-HMAC-SHA256 Credential={key.access}/{scope}, SignedHeaders={names}, Signature={seed}"
    return store.endpoint.request("PUT", path, sent, body)


def test_a_secret_is_kept_so_that_keystone_is_asked_once(keystone: Keystone, keystone_store: KeystoneStore, key: Ec2, s3: Any, bucket: str) -> None:
    s3.head_bucket(Bucket=bucket)
    before = keystone.process.output.count("/s3tokens")
    for _ in range(3):
        s3.head_bucket(Bucket=bucket)
    assert keystone.process.output.count("/s3tokens") == before
    with refused("SignatureDoesNotMatch"):
        client(keystone_store.endpoint, (key.access, "wrong")).list_buckets()
    s3.head_bucket(Bucket=bucket)


def test_secrets_are_kept_in_memcached_as_swift_keeps_them(keystone_store: KeystoneStore, key: Ec2, s3: Any, bucket: str, project: str) -> None:
    if keystone_store.memcached is None:
        pytest.skip("there is no memcached")
    s3.head_bucket(Bucket=bucket)
    name = hashlib.md5(f"s3secret/{key.access}".encode()).hexdigest()
    with closing(Client(("127.0.0.1", keystone_store.memcached))) as memcached:
        headers, owner, secret = json.loads(memcached.get(name))
    assert headers["X-Project-Id"] == headers["X-Tenant-Id"] == owner["id"] == project and secret == key.secret


def test_roles_bind_s3_as_they_bind_swift(keystone: Keystone, keystone_store: KeystoneStore, s3: Any, bucket: str, project: str) -> None:
    s3.put_object(Bucket=bucket, Key="seen", Body=b"1")
    reader = client(keystone_store.endpoint, keystone.ec2(reading := keystone.user(unique("reader"), reader=project), project).pair)
    assert reading.id and reader.get_object(Bucket=bucket, Key="seen")["Body"].read() == b"1"
    with refused("AccessDenied", 403):
        reader.put_object(Bucket=bucket, Key="seen", Body=b"2")
    with refused("AccessDenied", 403):
        reader.create_bucket(Bucket=unique("bucket"))
    plain = client(keystone_store.endpoint, keystone.ec2(keystone.user(unique("plain"), plain=project), project).pair)
    with refused("AccessDenied", 403):
        plain.get_object(Bucket=bucket, Key="seen")


def test_a_key_with_a_project_reaches_that_account_when_it_may(keystone: Keystone, keystone_store: KeystoneStore, project: str, s3: Any,
                                                                bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="elsewhere", Body=b"e")
    home = keystone.project(unique("home"))
    operator = keystone.ec2(keystone.user(unique("operator"), swiftoperator=home), home)
    reseller = keystone.ec2(keystone.user(unique("reseller"), ResellerAdmin=home), home)
    with refused("AccessDenied", 403):
        client(keystone_store.endpoint, (f"{operator.access}:{project}", operator.secret)).get_object(Bucket=bucket, Key="elsewhere")
    through = client(keystone_store.endpoint, (f"{reseller.access}:{project}", reseller.secret))
    assert through.get_object(Bucket=bucket, Key="elsewhere")["Body"].read() == b"e"


def test_a_key_that_is_deleted_is_unknown(keystone: Keystone, keystone_store: KeystoneStore, owner: User, project: str) -> None:
    key = keystone.ec2(owner, project)
    keystone.ask("DELETE", f"users/{owner.id}/credentials/OS-EC2/{key.access}")
    with refused("InvalidAccessKeyId", 403):
        client(keystone_store.endpoint, key.pair).list_buckets()


def test_security_S30_a_refusal_says_nothing_of_keystone(keystone: Keystone, keystone_store: KeystoneStore, key: Ec2, bucket: str) -> None:
    assert keystone.call("POST", "s3tokens", {"credentials": {"access": key.access, "token": "eA==", "signature": "x"}}, "none").status_code == 401
    for pair in ((key.access, "wrong"), ("unknown", "wrong"), (f"{key.access}:other", "wrong"), ("../../tokens", "wrong")):
        answer = signed(keystone_store.endpoint, pair, "GET", f"/{bucket}")
        assert answer.status in (400, 403), pair
        text = answer.body.decode().replace(answer.headers["x-amz-request-id"], "").lower()  # it may hold any letters
        assert "keystone" not in text and "identity" not in text and "not authorized" not in text and "ec2" not in text
    claims = {"X-Identity-Status": "Confirmed", "X-Roles": "admin", "X-Project-Id": "p", "X-User-Id": "u"}
    assert signed(keystone_store.endpoint, (key.access, "wrong"), "GET", f"/{bucket}", unsigned=claims).status == 403


def test_security_S31_a_key_has_what_its_maker_had(keystone: Keystone, keystone_store: KeystoneStore, project: str, s3: Any, bucket: str) -> None:
    """A key made with a restricted application credential is as restricted, or is not made: this Keystone has the fix."""
    user = keystone.user(unique("restricted"), swiftoperator=project, member=project, reader=project)
    made = keystone.ask("POST", f"users/{user.id}/application_credentials", {"application_credential": {
        "name": "readonly", "roles": [{"name": "reader"}]}}, keystone.token(user, project))["application_credential"]
    token = keystone.login({"methods": ["application_credential"], "application_credential": {"id": made["id"], "secret": made["secret"]}})
    answer = keystone.call("POST", f"users/{user.id}/credentials/OS-EC2", {"tenant_id": project}, token)
    if answer.ok:
        found = answer.json()["credential"]
        with refused("AccessDenied", 403):
            client(keystone_store.endpoint, (found["access"], found["secret"])).put_object(Bucket=bucket, Key="written", Body=b"w")
    else:
        assert answer.status_code == 403


def test_security_S02_native_headers_do_nothing_with_keystone_either(keystone: Keystone, keystone_store: KeystoneStore, owner: User, project: str,
                                                                     key: Ec2, bucket: str) -> None:
    swift = keystone_store.account(keystone.token(owner, project), project)
    swift.put(bucket, "secret", body=b"secret").expect(201)
    for name, value in (("X-Copy-From", f"/{bucket}/secret"), ("X-Symlink-Target", f"{bucket}/secret"), ("X-Object-Manifest", f"{bucket}/secret"),
                        ("X-Static-Large-Object", "True")):
        signed(keystone_store.endpoint, key.pair, "PUT", f"/{bucket}/native", body=b"mine", headers={name: value}).expect(200)
        assert swift.get(bucket, "native").expect(200).body == b"mine", name


def test_version_2_signatures_too(keystone_store: KeystoneStore, key: Ec2, bucket: str) -> None:
    from botocore.config import Config

    old = client(keystone_store.endpoint, key.pair, config=Config(signature_version="s3"))
    old.put_object(Bucket=bucket, Key="v2", Body=b"two")
    assert old.get_object(Bucket=bucket, Key="v2")["Body"].read() == b"two"
