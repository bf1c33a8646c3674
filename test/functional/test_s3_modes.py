"""The S3 protocol as operators set it up besides: without ``s3_acl``, and with buckets in host names."""

from __future__ import annotations

import io
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.config import Config

from test.functional.conftest import FOREIGN
from test.support.client import Account, Endpoint, unique
from test.support.s3 import OTHER, PLAIN, TESTER, check_native_headers, client, refused, remove_bucket, signed
from test.support.signing import FORM_TYPE, form_body
from test.support.store import Store, running

ALL_USERS = "http://acs.amazonaws.com/groups/global/AllUsers"
pytestmark = pytest.mark.skipif(FOREIGN is not None, reason="changes the configuration of the store")


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """One that encrypts."""
    with running(tmp_path_factory.mktemp("s3modes") / "store", "--encrypt", workers=1) as store:
        yield store


@pytest.fixture(scope="module")
def hosts(own: Store) -> Store:
    """With ``s3_acl``, buckets below ``s3.test``, and encryption of what asks for it only."""
    own.edit("proxy-server.conf", ("[filter:encryption]\n", "[filter:encryption]\ndisable_encryption = true\n"))
    own.edit("proxy-server.conf", ("s3_acl = true\n", "s3_acl = true\nstorage_domain = s3.test\n"))
    own.reload()
    return own


@pytest.fixture(scope="module")
def swift(hosts: Store) -> Store:
    """Without ``s3_acl``."""
    hosts.edit("proxy-server.conf", ("s3_acl = true\n", "s3_acl = false\n"))
    hosts.reload()
    return hosts


@pytest.fixture
def account(swift: Store) -> Account:
    return swift.endpoint.login()


def grants_of(answer: dict[str, Any]) -> set[tuple[str, str]]:
    return {(grant["Grantee"].get("ID") or grant["Grantee"]["URI"], grant["Permission"]) for grant in answer["Grants"]}


@pytest.mark.parametrize("is_enabled", [True, False])
def test_a_change_of_acl_leaves_encrypted_what_is(is_enabled: bool, own: Store, request: pytest.FixtureRequest) -> None:
    """Whoever's key it is encrypted with: the owner of the ACL need not have it."""
    store = own if is_enabled else request.getfixturevalue("hosts")
    s3, bucket = client(store.endpoint), unique("sealed")
    s3.create_bucket(Bucket=bucket)
    keys = {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": b"k" * 32}
    s3.put_object(Bucket=bucket, Key="asked", Body=b"x" * 1000, ServerSideEncryption="AES256", Metadata={"a": "b"})
    s3.put_object(Bucket=bucket, Key="keyed", Body=b"y" * 1000, **keys)
    upload = s3.create_multipart_upload(Bucket=bucket, Key="parts", ServerSideEncryption="AES256")["UploadId"]
    part = s3.upload_part(Bucket=bucket, Key="parts", UploadId=upload, PartNumber=1, Body=b"z" * 70_000)
    parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    s3.complete_multipart_upload(Bucket=bucket, Key="parts", UploadId=upload, MultipartUpload=parts)
    listed = s3.list_objects(Bucket=bucket)["Contents"]
    for key, more in (("asked", {}), ("keyed", keys), ("parts", {})):
        before = s3.get_object(Bucket=bucket, Key=key, **more)
        data = before["Body"].read()
        s3.put_object_acl(Bucket=bucket, Key=key, ACL="public-read")
        after = s3.get_object(Bucket=bucket, Key=key, **more)
        assert after["Body"].read() == data
        for name in ("Body", "ResponseMetadata"):
            del before[name], after[name]
        assert after == before, key
        assert (ALL_USERS, "READ") in grants_of(s3.get_object_acl(Bucket=bucket, Key=key))
    assert s3.head_object(Bucket=bucket, Key="asked")["ServerSideEncryption"] == "AES256"
    assert s3.list_objects(Bucket=bucket)["Contents"] == listed
    assert store.endpoint.request("GET", f"/{bucket}/asked").body == b"x" * 1000
    for path in store.devices().rglob("*.data"):
        assert b"xxxxxxxx" not in path.read_bytes() and b"yyyyyyyy" not in path.read_bytes()
    for key in ("asked", "keyed", "parts"):
        s3.delete_object(Bucket=bucket, Key=key)
    s3.delete_bucket(Bucket=bucket)


@pytest.mark.parametrize("is_enabled", [True, False])
def test_what_a_customer_has_encrypted_is_kept_without_the_key(
    is_enabled: bool, own: Store, request: pytest.FixtureRequest
) -> None:
    """Versions were not kept yet when it was written: who replaces or deletes it need not have its key."""
    store = own if is_enabled else request.getfixturevalue("hosts")
    s3, bucket = client(store.endpoint), unique("kept")
    s3.create_bucket(Bucket=bucket)
    mine, others = ({"SSECustomerAlgorithm": "AES256", "SSECustomerKey": key * 32} for key in (b"m", b"o"))
    bodies = {key: key[:1].encode() * 100_000 for key in ("plain", "keyed", "deleted")}
    etags = {
        key: s3.put_object(Bucket=bucket, Key=key, Body=body, Metadata={"of": key}, **mine)["ETag"] for key, body in bodies.items()
    }
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    s3.put_object(Bucket=bucket, Key="plain", Body=b"new")
    s3.put_object(Bucket=bucket, Key="keyed", Body=b"new", **others)
    s3.delete_object(Bucket=bucket, Key="deleted")
    assert s3.get_object(Bucket=bucket, Key="plain")["Body"].read() == b"new"
    assert s3.get_object(Bucket=bucket, Key="keyed", **others)["Body"].read() == b"new"
    old = [version for version in s3.list_object_versions(Bucket=bucket)["Versions"] if not version["IsLatest"]]
    assert {version["Key"]: (version["ETag"], version["Size"], version["VersionId"]) for version in old} == {
        key: (etag, 100_000, "null") for key, etag in etags.items()
    }
    for key, body in bodies.items():
        null: Any = {"Bucket": bucket, "Key": key, "VersionId": "null"}
        found = s3.get_object(**null, **mine)
        assert (found["Body"].read(), found["ETag"], found["Metadata"]) == (body, etags[key], {"of": key})
        assert s3.get_object(**null, **mine, Range="bytes=99990-")["Body"].read() == body[-10:]
        assert s3.get_object(**null, **mine, IfMatch=etags[key])["ETag"] == etags[key]
        with refused("304"):
            s3.get_object(**null, **mine, IfNoneMatch=etags[key])
        with refused("InvalidRequest"):
            s3.get_object(**null)
        with refused("InvalidRequest"):
            s3.get_object(**null, **others)
        source = {"CopySource": null, **{f"CopySource{name}": value for name, value in mine.items()}}
        s3.copy_object(Bucket=bucket, Key=key, **source)
        assert s3.get_object(Bucket=bucket, Key=key)["Body"].read() == body


def test_anonymous_requests_by_host_name(hosts: Store) -> None:
    s3, bucket = client(hosts.endpoint), unique("vhost")
    s3.create_bucket(Bucket=bucket, ACL="public-read")
    for key in ("info", "a/b", "v2/x"):
        s3.put_object(Bucket=bucket, Key=key, Body=key.encode(), ACL="public-read")
    s3.put_object(Bucket=bucket, Key="secret", Body=b"x")
    host = {"Host": f"{bucket}.s3.test:{hosts.port}"}
    for key in ("info", "a/b", "v2/x"):
        assert hosts.endpoint.request("GET", f"/{key}", host).body == key.encode()
    assert hosts.endpoint.request("GET", "/secret", host).status == 403
    assert b"<Key>a/b</Key>" in hosts.endpoint.request("GET", "/?list-type=2", host).body
    assert b"NoSuchKey" in hosts.endpoint.request("GET", "/none", host).body
    token = hosts.endpoint.login()
    path = f"/v1/AUTH_test/{bucket}/secret"
    assert hosts.endpoint.request("GET", path, {**host, "X-Auth-Token": token.token}).body == b"x"
    assert b"<Code>" not in hosts.endpoint.request("GET", path, host).body
    none = {"Host": f"{unique('none')}.s3.test"}
    assert b"NoSuchBucket" in hosts.endpoint.request("GET", "/a", none).body


def test_case_C34_buckets_in_host_names(hosts: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve = socket.getaddrinfo

    def loopback(host: Any, *arguments: Any, **more: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        return resolve("127.0.0.1" if name is not None and f".{name}".endswith(".s3.test") else name, *arguments, **more)

    monkeypatch.setattr(socket, "getaddrinfo", loopback)
    s3 = client(Endpoint("s3.test", hosts.port), config=Config(s3={"addressing_style": "virtual"}, proxies={}))
    bucket, asked = unique("vhost"), list[str]()
    s3.meta.events.register("before-send.s3", lambda request, **_: asked.append(request.url))
    s3.create_bucket(Bucket=bucket)
    keys = ["a b+c%é", "x//y", f"{bucket}/k", "v1/AUTH_test/c/o", "info"]
    for key in keys:
        s3.put_object(Bucket=bucket, Key=key, Body=key.encode())
        assert s3.get_object(Bucket=bucket, Key=key)["Body"].read() == key.encode()
    assert [entry["Key"] for entry in s3.list_objects_v2(Bucket=bucket)["Contents"]] == sorted(keys)
    s3.copy_object(Bucket=bucket, Key="copy", CopySource={"Bucket": bucket, "Key": keys[0]})
    s3.upload_fileobj(io.BytesIO(bytes(9 << 20)), bucket, "parts")
    assert s3.head_object(Bucket=bucket, Key="parts")["ContentLength"] == 9 << 20
    url = s3.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": keys[0]})
    host, target = url.removeprefix("http://").partition("/")[::2]
    assert hosts.endpoint.request("GET", f"/{target}", {"Host": host}).body == keys[0].encode()
    form = s3.generate_presigned_post(bucket, "form")
    fields = form_body(form["fields"], [("f", b"by a form", "text/plain")]).replace(b'name="file0"', b'name="file"')
    assert hosts.endpoint.request("POST", "/", {"Host": f"{bucket}.s3.test:{hosts.port}", "Content-Type": FORM_TYPE}, fields).status == 204
    everything = [{"Key": entry["Key"]} for entry in s3.list_objects_v2(Bucket=bucket)["Contents"]]
    assert len(everything) == len(keys) + 3
    assert len(s3.delete_objects(Bucket=bucket, Delete={"Objects": everything})["Deleted"]) == len(everything)
    s3.delete_bucket(Bucket=bucket)
    assert asked and all(each.startswith(f"http://{bucket}.s3.test:{hosts.port}") for each in asked)


def test_canned_acls_become_those_of_the_container(swift: Store, account: Account) -> None:
    s3, bucket = client(swift.endpoint), unique("swift")
    s3.create_bucket(Bucket=bucket, ACL="public-read")
    s3.put_object(Bucket=bucket, Key="o", Body=b"x")
    nobody = account.anonymous()
    owner = ("test:tester", "FULL_CONTROL")
    steps: tuple[tuple[str, set[tuple[str, str]], int], ...] = (
        ("public-read", {owner, (ALL_USERS, "READ")}, 200),
        ("private", {owner}, 401),
        ("bucket-owner-full-control", {owner}, 401),
    )
    for name, grants, reads in steps:
        s3.put_bucket_acl(Bucket=bucket, ACL=name)
        for found in (s3.get_bucket_acl(Bucket=bucket), s3.get_object_acl(Bucket=bucket, Key="o")):
            assert (found["Owner"]["ID"], grants_of(found)) == ("test:tester", grants), name
        assert nobody.get(bucket, "o").status == nobody.get(bucket).status == reads, name
        assert nobody.put(bucket, "p", body=b"y").status == 401, name
    for name, code in (("authenticated-read", "NotImplemented"), ("public-ready", "InvalidArgument")):
        for call, more in ((s3.put_bucket_acl, {"Bucket": bucket}), (s3.put_object, {"Bucket": bucket, "Key": "q"})):
            with refused(code):
                call(ACL=name, **more)
        with refused(code):
            s3.create_bucket(Bucket=unique("swift"), ACL=name)
    with refused("NotImplemented"):
        s3.put_object_acl(Bucket=bucket, Key="o", ACL="private")
    with refused("InvalidRequest"):  # tempauth lets nobody write without a name
        s3.put_bucket_acl(Bucket=bucket, ACL="public-read-write")
    with refused("MissingSecurityHeader"):
        s3.put_bucket_acl(Bucket=bucket, GrantRead="id=test:tester3")
    account.empty(bucket)


def test_documents_become_those_of_the_container(swift: Store, account: Account) -> None:
    s3, bucket = client(swift.endpoint), unique("swift")
    s3.create_bucket(Bucket=bucket)

    def document(*grants: tuple[dict[str, str], str]) -> dict[str, Any]:
        return {"Owner": {"ID": "test:tester"}, "Grants": [{"Grantee": who, "Permission": what} for who, what in grants]}

    me, all_users = {"Type": "CanonicalUser", "ID": "test:tester"}, {"Type": "Group", "URI": ALL_USERS}
    s3.put_bucket_acl(Bucket=bucket, AccessControlPolicy=document((me, "FULL_CONTROL"), (all_users, "READ")))
    assert account.head(bucket).headers["X-Container-Read"] == ".r:*,.rlistings"
    s3.put_bucket_acl(Bucket=bucket, AccessControlPolicy=document((me, "FULL_CONTROL")))
    assert "X-Container-Read" not in account.head(bucket).headers
    for bad in (document((me, "READ")), document((all_users, "READ_ACP")), document()):
        with refused("MalformedACLError"):
            s3.put_bucket_acl(Bucket=bucket, AccessControlPolicy=bad)
    for body, headers, code in ((b"", {}, b"MissingSecurityHeader"), (b"<x/>", {"x-amz-acl": "private"}, b"UnexpectedContent")):
        answer = signed(swift.endpoint, TESTER, "PUT", f"/{bucket}", {"acl": ""}, body, headers)
        assert answer.status == 400 and b"<Code>%b</Code>" % code in answer.body
    account.empty(bucket)


def test_swifts_rights_decide(swift: Store, account: Account) -> None:
    """Of another user of the account, of another account, of nobody; on buckets, objects and what is set of buckets."""
    s3, plain, bucket = client(swift.endpoint), client(swift.endpoint, PLAIN), unique("swift")
    s3.create_bucket(Bucket=bucket)
    s3.put_object(Bucket=bucket, Key="o", Body=b"secret")
    denied: dict[str, Any] = {"Bucket": bucket}
    for call, more in (
        (plain.list_objects, {}),
        (plain.get_bucket_acl, {}),
        (plain.put_bucket_acl, {"ACL": "public-read"}),
        (plain.get_object_acl, {"Key": "o"}),
        (plain.get_object, {"Key": "o"}),
        (plain.put_object, {"Key": "p", "Body": b"x"}),
        (plain.get_bucket_ownership_controls, {}),
        (plain.delete_public_access_block, {}),
        (plain.delete_bucket, {}),
        (plain.create_bucket, {}),
    ):
        with refused("AccessDenied", 403):
            call(**denied, **more)
    account.post(bucket, headers={"X-Container-Read": "test:tester3"}).expect(204)
    assert plain.get_object(Bucket=bucket, Key="o")["Body"].read() == b"secret"
    assert signed(swift.endpoint, OTHER, "GET", f"/{bucket}/o").status == 404  # a bucket's name is of the account
    for target in (f"/{bucket}/o", f"/{bucket}", f"/{bucket}?acl"):
        answer = swift.endpoint.request("GET", target)
        assert answer.status >= 400 and b"<Error>" not in answer.body  # nobody's request is Swift's
    settings: tuple[tuple[Any, dict[str, Any]], ...] = (
        (s3.put_public_access_block, {"PublicAccessBlockConfiguration": {"BlockPublicAcls": True}}),
        (s3.put_bucket_ownership_controls, {"OwnershipControls": {"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]}}),
    )
    for call, setting in settings:
        with refused("NotImplemented", 501):
            call(**denied, **setting)
    account.empty(bucket)


def test_security_S02_headers_of_swift_do_nothing_without_s3_acl(swift: Store, account: Account) -> None:
    s3, bucket = client(swift.endpoint), unique("native")
    s3.create_bucket(Bucket=bucket)
    s3.put_object(Bucket=bucket, Key="secret", Body=b"secret")
    check_native_headers(swift.endpoint, s3, account, bucket)
    remove_bucket(s3, bucket)
