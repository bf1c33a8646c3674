"""Who may do what in the S3 protocol: ACLs, owners, anonymous requests, everything refused by default (``security: R05, R12, S03``)."""

from __future__ import annotations

import base64
import hashlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.config import Config

from keelstore.common.middleware.s3api.resources import router
from keelstore.common.middleware.s3api.routing import SERVICE
from test.support.client import Account, Endpoint, unique
from test.support.s3 import OTHER, PLAIN, TESTER, client, refused, remove_bucket, signed

CANNED = (
    "private",
    "public-read",
    "public-read-write",
    "authenticated-read",
    "bucket-owner-read",
    "bucket-owner-full-control",
    "log-delivery-write",
)
READABLE, WRITABLE = ("public-read", "public-read-write"), ("public-read-write",)
ALL_USERS = "http://acs.amazonaws.com/groups/global/AllUsers"


@pytest.fixture(scope="module")
def s3(store: Endpoint) -> Any:
    """test:tester, admin of AUTH_test."""
    return client(store)


@pytest.fixture(scope="module")
def s3_other(store: Endpoint) -> Any:
    """test2:tester2, admin of AUTH_test2."""
    return client(store, OTHER)


@pytest.fixture
def bucket(s3: Any) -> Iterator[str]:
    name = unique("access")
    s3.create_bucket(Bucket=name)
    yield name
    for upload in s3.list_multipart_uploads(Bucket=name).get("Uploads", ()):
        s3.abort_multipart_upload(Bucket=name, Key=upload["Key"], UploadId=upload["UploadId"])
    remove_bucket(s3, name)


def grants_of(answer: dict[str, Any]) -> set[tuple[str, str]]:
    return {(grant["Grantee"].get("ID") or grant["Grantee"]["URI"], grant["Permission"]) for grant in answer["Grants"]}


# -- nobody in particular ----------------------------------------------------------------------------------------------


def test_security_R12_anonymous_may_do_what_the_canned_acl_says_and_no_more(store: Endpoint, s3: Any, bucket: str) -> None:
    """Every canned ACL, on the bucket and on its object alike, with every verb."""
    s3.put_object(Bucket=bucket, Key="o", Body=b"secret")
    for name in CANNED:
        s3.put_bucket_acl(Bucket=bucket, ACL=name)
        s3.put_object_acl(Bucket=bucket, Key="o", ACL=name)
        b, o = f"/{bucket}", f"/{bucket}/o"
        reads = 200 if name in READABLE else 403
        may_write = name in WRITABLE

        def status(method: str, target: str, body: bytes | None = None, **headers: str) -> int:
            answer = store.request(method, target, {key.replace("_", "-"): value for key, value in headers.items()}, body)
            assert answer.status == 200 or b"secret" not in answer.body
            return answer.status

        for target in (b, f"{b}?list-type=2", f"{b}?versions", f"{b}?uploads"):
            assert status("GET", target) == reads, (name, target)
        assert status("HEAD", b) == reads, name
        assert status("GET", o) == status("HEAD", o) == reads, name
        assert status("GET", f"{b}/none") == (404 if name in READABLE else 403), name
        for target in (f"{b}?acl", f"{o}?acl", f"{b}?versioning", f"{b}?ownershipControls", f"{b}?publicAccessBlock"):
            assert status("PUT", target, x_amz_acl="public-read-write") in (400, 403), (name, target)
        for target in (f"{b}?acl", f"{o}?acl", f"{b}?ownershipControls", f"{b}?publicAccessBlock"):
            assert status("GET", target) == 403, (name, target)
        assert status("DELETE", b) == 403, name
        assert status("PUT", b) in (403, 409), name
        many = b"<Delete><Object><Key>n</Key></Object></Delete>"
        assert status("PUT", f"{b}/n", b"new") == (200 if may_write else 403), name
        md5 = base64.b64encode(hashlib.md5(many, usedforsecurity=False).digest()).decode()
        assert status("POST", f"{b}?delete", many, content_md5=md5) == (200 if may_write else 403), name
        assert status("POST", f"{b}/n?uploads") == (200 if may_write else 403), name
        assert status("DELETE", f"{b}/n") == (204 if may_write else 403), name
    assert s3.get_object(Bucket=bucket, Key="o")["Body"].read() == b"secret"


def test_security_R12_authenticated_read_is_for_everybody_with_a_key(s3: Any, s3_other: Any, bucket: str) -> None:
    s3.put_bucket_acl(Bucket=bucket, ACL="authenticated-read")
    s3.put_object(Bucket=bucket, Key="o", Body=b"x", ACL="authenticated-read")
    assert [entry["Key"] for entry in s3_other.list_objects(Bucket=bucket)["Contents"]] == ["o"]
    assert s3_other.get_object(Bucket=bucket, Key="o")["Body"].read() == b"x"
    with refused("AccessDenied"):
        s3_other.put_object(Bucket=bucket, Key="o", Body=b"y")


def test_security_R05_a_private_bucket_is_closed_on_every_route(store: Endpoint, s3: Any, bucket: str) -> None:
    """To nobody in particular, to another tenant, to a user of the same account without rights, to an expired signature."""
    s3.put_object(Bucket=bucket, Key="o", Body=b"secret", Metadata={"hidden": "secret"})
    upload = s3.create_multipart_upload(Bucket=bucket, Key="o")["UploadId"]
    before = s3.head_object(Bucket=bucket, Key="o")
    tried = 0
    for level, sub, method in sorted(router().keys()):
        if level == SERVICE or method == "OPTIONS":
            continue
        path = f"/{bucket}" if level == "BUCKET" else f"/{bucket}/o"
        query = {sub: upload if sub == "uploadId" else ""} if sub else {}
        if sub == "uploadId" and method == "PUT":
            query["partNumber"] = "1"
        needed = {"x-amz-object-attributes": "ETag"} if sub == "attributes" else {}
        allowed: tuple[int, ...] = (403, 405) if (level, sub, method) != ("BUCKET", "", "PUT") else (403, 409)
        if level == "OBJECT" and sub in ("retention", "legal-hold"):
            allowed = (400, 403)  # of a bucket without object lock
        if (level, sub, method) == ("BUCKET", "", "POST"):
            allowed = (403, 405, 412)  # no form
        target = path + ("?" + "&".join(f"{name}={value}" for name, value in query.items()) if query else "")
        answers = [store.request(method, target, needed, b"" if method in ("PUT", "POST") else None)]
        answers += [signed(store, user, method, path, query, headers=needed) for user in (OTHER, PLAIN)]
        for answer in answers:
            assert answer.status in allowed, (level, sub, method, answer.status, answer.body)
            assert b"secret" not in answer.body and "hidden" not in str(answer.headers)
        tried += 1
    assert tried > 20
    assert s3.head_object(Bucket=bucket, Key="o")["LastModified"] == before["LastModified"]
    assert store.request("GET", "/", {}).status in (401, 403, 404, 412)


def test_security_S03_rights_cannot_be_added_to_a_signed_url(store: Endpoint, s3: Any, bucket: str) -> None:
    for version in ("s3", "s3v4"):
        signer = client(store, config=Config(signature_version=version))
        url = signer.generate_presigned_url("put_object", Params={"Bucket": bucket, "Key": "o"})
        target = url.removeprefix(store.url)
        for name in ("acl", "grant-read", "grant-full-control", "grant-write-acp", "object-ownership"):
            assert store.request("PUT", target, {f"x-amz-{name}": "public-read"}, b"x").status == 403, (version, name)
    for user in (TESTER, OTHER):
        answer = signed(store, user, "PUT", f"/{bucket}/o", body=b"x", unsigned={"x-amz-acl": "public-read"})
        assert answer.status == 403
    store.request("PUT", target, {}, b"x").expect(200)
    assert grants_of(s3.get_object_acl(Bucket=bucket, Key="o")) == {("test:tester", "FULL_CONTROL")}


def test_anonymous_requests_for_buckets_that_there_are_not_get_the_answer_of_s3(store: Endpoint) -> None:
    name = unique("none")
    for method, target, code, status in (
        ("GET", f"/{name}/o", b"NoSuchBucket", 404),
        ("GET", f"/{name}?acl", b"NoSuchBucket", 404),
        ("PUT", f"/{name}", b"AccessDenied", 403),
        ("PUT", f"/{name}/o", b"NoSuchBucket", 404),
    ):
        answer = store.request(method, target, {}, None if method == "GET" else b"x")
        assert (answer.status, b"<Code>%b</Code>" % code in answer.body) == (status, True), (target, answer)


def test_anonymous_s3_takes_no_request_of_swift(store: Endpoint, account: Account, s3: Any) -> None:
    """Not even for buckets that are called as Swift's own paths are, nor with a token."""
    made = []
    try:
        for name in ("info", "auth", "endpoints", "v1.0", "recon"):
            s3.create_bucket(Bucket=name, ACL="public-read-write")
            made.append(name)
        assert store.request("GET", "/info").json()["swift"]
        assert store.request("GET", "/healthcheck").body.strip() == b"OK"
        store.request("GET", "/auth/v1.0", {"X-Auth-User": "test:tester", "X-Auth-Key": "testing"}).expect(200, 204)
        assert b"<Code>" not in store.request("GET", "/v1.0/AUTH_test/info").body
    finally:
        for name in made:
            s3.delete_bucket(Bucket=name)
    name = unique("swift")
    account.put(name).expect(201)
    for method, target, headers in (
        ("GET", f"/v1/AUTH_test/{name}", {}),
        ("GET", f"/{name}", {"X-Auth-Token": account.token}),
        ("GET", f"/{name}", {"Authorization": "Bearer x"}),
        ("GET", "/", {}),
        ("GET", "/xy", {}),
        ("OPTIONS", f"/v1/AUTH_test/{name}", {"Origin": "http://a"}),
    ):
        answer = store.request(method, target, headers)
        assert b"<Error>" not in answer.body and "x-amz-request-id" not in answer.headers, (target, answer)
    account.delete(name).expect(204)


# -- owners and others -------------------------------------------------------------------------------------------------


def test_a_written_object_is_its_writers(s3: Any, s3_other: Any, bucket: str) -> None:
    s3.put_bucket_acl(Bucket=bucket, ACL="public-read-write")
    s3_other.put_object(Bucket=bucket, Key="o", Body=b"x")
    assert s3_other.get_object_acl(Bucket=bucket, Key="o")["Owner"]["ID"] == "test2:tester2"
    for read in (s3.get_object, s3.head_object, s3.get_object_acl):
        with pytest.raises(s3.exceptions.ClientError, match=r"403|AccessDenied"):
            read(Bucket=bucket, Key="o")
    s3_other.put_object_acl(Bucket=bucket, Key="o", ACL="bucket-owner-full-control")
    assert s3.get_object(Bucket=bucket, Key="o")["Body"].read() == b"x"
    assert grants_of(s3.get_object_acl(Bucket=bucket, Key="o")) == {
        ("test2:tester2", "FULL_CONTROL"),
        ("test:tester", "FULL_CONTROL"),
    }
    s3.delete_object(Bucket=bucket, Key="o")


def test_what_nobody_in_particular_writes_is_the_bucket_owners(store: Endpoint, s3: Any, bucket: str) -> None:
    s3.put_bucket_acl(Bucket=bucket, ACL="public-read-write")
    store.request("PUT", f"/{bucket}/o", {}, b"x").expect(200)
    assert s3.get_object_acl(Bucket=bucket, Key="o")["Owner"]["ID"] == "test:tester"
    assert store.request("GET", f"/{bucket}/o").status == 403


def test_access_matrix(s3: Any, s3_other: Any, bucket: str) -> None:
    """What another user may do: the bucket's ACL is about listing and writing, the object's about reading."""
    for of_bucket in ("private", "public-read", "public-read-write"):
        s3.put_bucket_acl(Bucket=bucket, ACL=of_bucket)
        for of_object in ("private", "public-read", "public-read-write"):
            s3.put_object(Bucket=bucket, Key="o", Body=b"x", ACL=of_object)
            may = {"read": of_object != "private", "list": of_bucket != "private", "write": of_bucket == "public-read-write"}
            found = {
                "read": _works(s3_other.get_object, Bucket=bucket, Key="o"),
                "list": _works(s3_other.list_objects, Bucket=bucket),
                "write": _works(s3_other.put_object, Bucket=bucket, Key="p", Body=b"y"),
            }
            assert found == may, (of_bucket, of_object)
            source = {"Bucket": bucket, "Key": "o"}
            assert not _works(s3_other.put_object_acl, Bucket=bucket, Key="o", ACL="private")
            if of_bucket == "public-read-write":
                assert _works(s3_other.copy_object, Bucket=bucket, Key="p", CopySource=source) == may["read"]


def _works(call: Any, **arguments: Any) -> bool:
    try:
        call(**arguments)
    except call.__self__.exceptions.ClientError as error:
        assert error.response["Error"]["Code"] in ("AccessDenied", "403"), error
        return False
    return True


def test_a_url_signed_by_another_user_gives_his_rights(store: Endpoint, s3: Any, s3_other: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="o", Body=b"x")
    url = s3_other.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "o"})
    assert store.request("GET", url.removeprefix(store.url)).status == 403
    s3.put_object_acl(Bucket=bucket, Key="o", GrantRead='id="test2:tester2"')
    assert store.request("GET", url.removeprefix(store.url)).body == b"x"


def test_expected_bucket_owner(s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="o", Body=b"x", ExpectedBucketOwner="test:tester")
    source = {"Bucket": bucket, "Key": "o"}
    s3.copy_object(Bucket=bucket, Key="p", CopySource=source, ExpectedSourceBucketOwner="test:tester")
    with refused("AccessDenied", 403):
        s3.list_objects(Bucket=bucket, ExpectedBucketOwner="test2:tester2")
    with refused("AccessDenied", 403):
        s3.copy_object(Bucket=bucket, Key="p", CopySource=source, ExpectedSourceBucketOwner="test2:tester2")


def test_buckets_are_listed_for_their_owner_only(s3: Any, s3_other: Any, bucket: str) -> None:
    s3.put_bucket_acl(Bucket=bucket, ACL="public-read-write")
    mine, others = s3.list_buckets(), s3_other.list_buckets()
    assert bucket in [entry["Name"] for entry in mine["Buckets"]] and mine["Owner"]["ID"] == "test:tester"
    assert bucket not in [entry["Name"] for entry in others["Buckets"]] and others["Owner"]["ID"] == "test2:tester2"


def test_a_container_made_with_swift_is_for_the_admins_of_its_account(
    store: Endpoint, account: Account, s3: Any, s3_other: Any
) -> None:
    name, plain = unique("swift"), client(store, PLAIN)
    account.put(name).expect(201)
    account.put(name, "o", body=b"x").expect(201)
    try:
        assert s3.get_object(Bucket=name, Key="o")["Body"].read() == b"x"
        with refused("AccessDenied"):
            plain.get_object(Bucket=name, Key="o")
        with refused("AccessDenied"):
            plain.list_objects(Bucket=name)
        with refused("NoSuchBucket"):
            s3_other.list_objects(Bucket=name)
        s3.put_bucket_acl(Bucket=name, GrantRead='id="test:tester3"')
        assert s3.get_bucket_acl(Bucket=name)["Owner"]["ID"] == "test:tester"
        assert [entry["Key"] for entry in plain.list_objects(Bucket=name)["Contents"]] == ["o"]
    finally:
        account.empty(name)


# -- ACLs --------------------------------------------------------------------------------------------------------------


def test_acls_by_headers_and_by_document(s3: Any, bucket: str) -> None:
    s3.put_object(
        Bucket=bucket, Key="o", Body=b"x", GrantFullControl='id="test:tester"',
        GrantRead=f'id="test2:tester2", uri="{ALL_USERS}"', GrantWriteACP="id=test2:tester2",
    )  # fmt: skip
    expected = {
        ("test:tester", "FULL_CONTROL"), ("test2:tester2", "READ"), (ALL_USERS, "READ"), ("test2:tester2", "WRITE_ACP"),
    }  # fmt: skip
    found = s3.get_object_acl(Bucket=bucket, Key="o")
    assert grants_of(found) == expected
    s3.put_object_acl(Bucket=bucket, Key="o", ACL="private")
    s3.put_object_acl(
        Bucket=bucket, Key="o", AccessControlPolicy={"Owner": found["Owner"], "Grants": found["Grants"]}
    )
    assert grants_of(s3.get_object_acl(Bucket=bucket, Key="o")) == expected
    s3.put_bucket_acl(Bucket=bucket, AccessControlPolicy={"Owner": found["Owner"], "Grants": []})
    assert s3.get_bucket_acl(Bucket=bucket)["Grants"] == []
    s3.put_bucket_acl(Bucket=bucket, ACL="private")


def test_acls_that_are_refused(store: Endpoint, s3: Any, s3_other: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="o", Body=b"x")
    owner = {"ID": "test:tester"}

    def grant(**grantee: str) -> dict[str, Any]:
        return {"Owner": owner, "Grants": [{"Grantee": grantee, "Permission": "READ"}]}

    for put in (s3.put_bucket_acl, s3.put_object_acl):
        more = {"Bucket": bucket} if put == s3.put_bucket_acl else {"Bucket": bucket, "Key": "o"}
        for code, arguments in (
            ("InvalidArgument", {"ACL": "public-ready"}),
            ("InvalidArgument", {"GrantRead": "nonsense"}),
            ("InvalidArgument", {"GrantRead": 'uri="http://example.com/Everybody"'}),
            ("InvalidArgument", {"GrantRead": "id=nobody:here"}),
            ("UnresolvableGrantByEmailAddress", {"GrantRead": 'emailAddress="a@example.com"'}),
            ("InvalidRequest", {"ACL": "private", "GrantRead": "id=test2:tester2"}),
            ("UnexpectedContent", {"ACL": "private", "AccessControlPolicy": grant(Type="CanonicalUser", ID="test:tester")}),
            ("InvalidArgument", {"AccessControlPolicy": grant(Type="CanonicalUser", ID="AllUsers")}),
            ("InvalidArgument", {"AccessControlPolicy": grant(Type="CanonicalUser", ID="nobody:here")}),
            ("InvalidArgument", {"AccessControlPolicy": grant(Type="Group", URI="http://example.com/")}),
            ("UnresolvableGrantByEmailAddress",
             {"AccessControlPolicy": grant(Type="AmazonCustomerByEmail", EmailAddress="a@example.com")}),
            ("MalformedACLError", {"AccessControlPolicy": {"Grants": []}}),
            ("AccessDenied", {"AccessControlPolicy": {"Owner": {"ID": "test2:tester2"}, "Grants": []}}),
        ):  # fmt: skip
            with refused(code):
                put(**more, **arguments)
    for body, sent_code in (
        (b"", b"MissingSecurityHeader"),
        (b"<AccessControlPolicy>", b"MalformedACLError"),
        (b"<Other/>", b"MalformedACLError"),
        (b'<!DOCTYPE a [<!ENTITY e SYSTEM "file:///etc/passwd">]><AccessControlPolicy/>', b"MalformedACLError"),
        (b"<AccessControlPolicy>" + b" " * (200 << 10), b"MalformedACLError"),
    ):
        answer = signed(store, TESTER, "PUT", f"/{bucket}/o", {"acl": ""}, body)
        assert answer.status == 400 and b"<Code>%b</Code>" % sent_code in answer.body, answer
    with refused("AccessDenied"):
        s3_other.put_bucket_acl(Bucket=bucket, ACL="public-read")
    with refused("NoSuchKey"):
        s3.put_object_acl(Bucket=bucket, Key="none", ACL="private")
    assert grants_of(s3.get_object_acl(Bucket=bucket, Key="o")) == {("test:tester", "FULL_CONTROL")}


def test_changing_an_acl_changes_nothing_else(account: Account, s3: Any, bucket: str) -> None:
    """Neither data, metadata and time of an object, nor the ETag of an upload in parts."""
    s3.put_object(Bucket=bucket, Key="plain", Body=b"x" * 1000, ContentType="text/x", Metadata={"a": "b"}, CacheControl="no")
    upload = s3.create_multipart_upload(Bucket=bucket, Key="parts")["UploadId"]
    part = s3.upload_part(Bucket=bucket, Key="parts", UploadId=upload, PartNumber=1, Body=b"y" * 70_000)
    parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    s3.complete_multipart_upload(Bucket=bucket, Key="parts", UploadId=upload, MultipartUpload=parts)
    volatile = ("ResponseMetadata", "Body")
    for key in ("plain", "parts"):
        before = {**s3.get_object(Bucket=bucket, Key=key)}
        data = before["Body"].read()
        listed = [entry for entry in s3.list_objects(Bucket=bucket)["Contents"] if entry["Key"] == key]
        s3.put_object_acl(Bucket=bucket, Key=key, ACL="public-read")
        after = {**s3.get_object(Bucket=bucket, Key=key)}
        assert after["Body"].read() == data
        for name in volatile:
            before.pop(name), after.pop(name)
        assert after == before
        assert [entry for entry in s3.list_objects(Bucket=bucket)["Contents"] if entry["Key"] == key] == listed
    assert account.head(bucket, "plain").headers["X-Object-Meta-A"] == "b"
    assert account.get(bucket, "plain").body == b"x" * 1000


def test_changing_the_acl_of_a_version_makes_no_other(s3: Any, bucket: str) -> None:
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    ids = [s3.put_object(Bucket=bucket, Key="o", Body=body)["VersionId"] for body in (b"1", b"2")]
    for version in (ids[0], None):
        more = {"VersionId": version} if version else {}
        s3.put_object_acl(Bucket=bucket, Key="o", ACL="public-read", **more)
        assert (ALL_USERS, "READ") in grants_of(s3.get_object_acl(Bucket=bucket, Key="o", **more))
        if version:
            assert (ALL_USERS, "READ") not in grants_of(s3.get_object_acl(Bucket=bucket, Key="o"))
    listed = s3.list_object_versions(Bucket=bucket)["Versions"]
    assert [entry["VersionId"] for entry in listed] == ids[::-1]
    assert [s3.get_object(Bucket=bucket, Key="o", VersionId=version)["Body"].read() for version in ids] == [b"1", b"2"]
    with refused("NoSuchVersion"):
        s3.put_object_acl(Bucket=bucket, Key="o", ACL="private", VersionId="0000000001.00000")
    marker = s3.delete_object(Bucket=bucket, Key="o")["VersionId"]
    with refused("MethodNotAllowed", 405):
        s3.get_object_acl(Bucket=bucket, Key="o", VersionId=marker)


def test_changing_the_acl_of_a_null_version_makes_no_other(s3: Any, bucket: str) -> None:
    """Neither while it is the current one, nor when others have come."""

    def state() -> list[tuple[str, bool, str]]:
        return [(entry["VersionId"], entry["IsLatest"], entry["ETag"])
                for entry in s3.list_object_versions(Bucket=bucket)["Versions"]]  # fmt: skip

    def is_public(**more: str) -> bool:
        return (ALL_USERS, "READ") in grants_of(s3.get_object_acl(Bucket=bucket, Key="o", **more))

    s3.put_object(Bucket=bucket, Key="o", Body=b"null", ACL="public-read")
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    before = state()
    s3.put_object_acl(Bucket=bucket, Key="o", ACL="private")
    assert state() == before and [entry[0] for entry in before] == ["null"]
    assert not is_public() and not is_public(VersionId="null")
    newest = s3.put_object(Bucket=bucket, Key="o", Body=b"new")["VersionId"]
    before = state()
    s3.put_object_acl(Bucket=bucket, Key="o", ACL="public-read", VersionId="null")
    assert state() == before and {entry[0] for entry in before} == {"null", newest}
    assert is_public(VersionId="null") and not is_public()
    assert s3.get_object(Bucket=bucket, Key="o", VersionId="null")["Body"].read() == b"null"
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Suspended"})
    s3.put_object(Bucket=bucket, Key="o", Body=b"newer null")
    before = state()
    s3.put_object_acl(Bucket=bucket, Key="o", ACL="public-read")
    assert state() == before and is_public() and is_public(VersionId="null") and not is_public(VersionId=newest)
    assert s3.get_object(Bucket=bucket, Key="o")["Body"].read() == b"newer null"


def test_a_write_during_a_change_of_acl_is_not_lost(store: Endpoint, s3: Any, bucket: str) -> None:
    """The copy that changes an ACL is older than any write that was acknowledged meanwhile."""
    s3.put_object(Bucket=bucket, Key="o", Body=b"start")
    is_over = threading.Event()
    mine = client(store)

    def change() -> None:
        while not is_over.is_set():
            try:
                mine.put_object_acl(Bucket=bucket, Key="o", ACL="public-read")
            except mine.exceptions.ClientError as error:
                assert error.response["Error"]["Code"] == "OperationAborted", error

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for number in range(15):
            s3.put_object(Bucket=bucket, Key="o", Body=b"%d" % number)
            assert s3.get_object(Bucket=bucket, Key="o")["Body"].read() == b"%d" % number
    finally:
        is_over.set()
        thread.join()
    assert s3.get_object(Bucket=bucket, Key="o")["Body"].read() == b"14"


# -- ownership, public access ------------------------------------------------------------------------------------------


def test_bucket_owner_enforced(s3: Any, s3_other: Any, bucket: str) -> None:
    s3.put_bucket_acl(Bucket=bucket, ACL="public-read-write")
    s3_other.put_object(Bucket=bucket, Key="before", Body=b"x")
    rules = {"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]}
    with refused("InvalidBucketAclWithObjectOwnership", 400):
        s3.put_bucket_ownership_controls(Bucket=bucket, OwnershipControls=rules)
    s3.put_bucket_acl(Bucket=bucket, ACL="private")
    s3.put_bucket_ownership_controls(Bucket=bucket, OwnershipControls=rules)
    assert s3.get_bucket_ownership_controls(Bucket=bucket)["OwnershipControls"] == rules
    assert s3.get_object(Bucket=bucket, Key="before")["Body"].read() == b"x"  # whoever wrote it: it is the bucket owner's
    with refused("AccessDenied"):
        s3_other.get_object(Bucket=bucket, Key="before")
    for ACL in ("private", "public-read"):
        for call, more in (
            (s3.put_object, {"Key": "o"}),
            (s3.create_multipart_upload, {"Key": "o"}),
            (s3.copy_object, {"Key": "o", "CopySource": {"Bucket": bucket, "Key": "before"}}),
            (s3.put_object_acl, {"Key": "before"}),
            (s3.put_bucket_acl, {}),
        ):
            with refused("AccessControlListNotSupported", 400):
                call(Bucket=bucket, ACL=ACL, **more)
    s3.put_object(Bucket=bucket, Key="o", Body=b"y", ACL="bucket-owner-full-control")
    s3.delete_bucket_ownership_controls(Bucket=bucket)
    s3.delete_bucket_ownership_controls(Bucket=bucket)
    with refused("OwnershipControlsNotFoundError", 404):
        s3.get_bucket_ownership_controls(Bucket=bucket)
    with refused("AccessDenied"):
        s3.get_object(Bucket=bucket, Key="before")


def test_bucket_owner_preferred(s3: Any, s3_other: Any) -> None:
    name = unique("preferred")
    s3.create_bucket(Bucket=name, ObjectOwnership="BucketOwnerPreferred", ACL="public-read-write")
    s3_other.put_object(Bucket=name, Key="given", Body=b"x", ACL="bucket-owner-full-control")
    s3_other.put_object(Bucket=name, Key="kept", Body=b"x")
    upload = s3_other.create_multipart_upload(Bucket=name, Key="m", ACL="bucket-owner-full-control")["UploadId"]
    listed = s3.list_parts(Bucket=name, Key="m", UploadId=upload)
    assert (listed["Owner"]["ID"], listed["Initiator"]["ID"]) == ("test:tester", "test2:tester2")
    entry = s3.list_multipart_uploads(Bucket=name)["Uploads"][0]
    assert (entry["Owner"]["ID"], entry["Initiator"]["ID"]) == ("test:tester", "test2:tester2")
    s3.abort_multipart_upload(Bucket=name, Key="m", UploadId=upload)
    assert s3.get_object_acl(Bucket=name, Key="given")["Owner"]["ID"] == "test:tester"
    assert s3_other.get_object_acl(Bucket=name, Key="kept")["Owner"]["ID"] == "test2:tester2"
    with refused("AccessDenied"):
        s3_other.get_object(Bucket=name, Key="given")
    with refused("MalformedXML"):
        s3.put_bucket_ownership_controls(Bucket=name, OwnershipControls={"Rules": [{"ObjectOwnership": "Nobody"}]})
    with refused("AccessDenied"):
        s3_other.get_bucket_ownership_controls(Bucket=name)
    remove_bucket(s3, name)


def test_public_access_block(store: Endpoint, s3: Any, s3_other: Any, bucket: str) -> None:
    with refused("NoSuchPublicAccessBlockConfiguration", 404):
        s3.get_public_access_block(Bucket=bucket)
    s3.put_bucket_acl(Bucket=bucket, ACL="public-read")
    s3.put_object(Bucket=bucket, Key="o", Body=b"x", ACL="public-read")
    block = {"BlockPublicAcls": True, "IgnorePublicAcls": False, "BlockPublicPolicy": True, "RestrictPublicBuckets": False}
    s3.put_public_access_block(Bucket=bucket, PublicAccessBlockConfiguration=block)
    assert s3.get_public_access_block(Bucket=bucket)["PublicAccessBlockConfiguration"] == block
    for ACL in ("public-read", "public-read-write", "authenticated-read"):
        for call, more in ((s3.put_bucket_acl, {}), (s3.put_object, {"Key": "p"}), (s3.put_object_acl, {"Key": "o"})):
            with refused("AccessDenied", 403):
                call(Bucket=bucket, ACL=ACL, **more)
    with refused("AccessDenied", 403):
        s3.put_object(Bucket=bucket, Key="p", GrantRead=f'uri="{ALL_USERS}"')
    s3.put_object(Bucket=bucket, Key="p", Body=b"x", ACL="private")
    assert store.request("GET", f"/{bucket}/o").status == store.request("GET", f"/{bucket}").status == 200
    s3.put_public_access_block(Bucket=bucket, PublicAccessBlockConfiguration={"IgnorePublicAcls": True})
    assert store.request("GET", f"/{bucket}/o").status == store.request("GET", f"/{bucket}").status == 403
    with refused("AccessDenied"):
        s3_other.get_object(Bucket=bucket, Key="o")
    assert s3.get_object(Bucket=bucket, Key="o")["Body"].read() == b"x"
    s3.delete_public_access_block(Bucket=bucket)
    assert store.request("GET", f"/{bucket}/o").status == 200
    with refused("AccessDenied"):
        s3_other.put_public_access_block(Bucket=bucket, PublicAccessBlockConfiguration=block)


# -- names of buckets --------------------------------------------------------------------------------------------------


def test_a_name_belongs_to_one_account(account: Account, s3: Any, s3_other: Any) -> None:
    name = unique("name")
    s3.create_bucket(Bucket=name)
    with refused("BucketAlreadyExists", 409):
        s3_other.create_bucket(Bucket=name)
    account.delete(name).expect(204)  # with Swift, which knows of no names
    with refused("BucketAlreadyExists", 409):  # it may be just being made
        s3_other.create_bucket(Bucket=name)
    s3.create_bucket(Bucket=name)
    s3.delete_bucket(Bucket=name)
    s3_other.create_bucket(Bucket=name)
    with refused("AccessDenied", 403):
        s3.list_objects(Bucket=name)
    s3_other.delete_bucket(Bucket=name)
