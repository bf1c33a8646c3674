"""What the S3 protocol is to be here as a whole, and what it is not (issue 6): each kind of request once, and security rows that are about all of it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import socket
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from awscrt import checksums as crt
from botocore.config import Config
from lxml import etree

from keelstore.common.middleware.s3api.routing import SUB_RESOURCES
from test.functional.conftest import FOREIGN
from test.support.client import Endpoint, unique
from test.support.programs import run
from test.support.s3 import TESTER, check_native_headers, client, refused, remove_bucket, signed, signed_head
from test.support.s3_clients import go_program, python_clients
from test.support.store import Store

# Priority X of the specification, at every level; and what of others cannot be set, or does not belong there.
NEVER = (
    "abac", "analytics", "annotation", "intelligent-tiering", "inventory", "metadataConfiguration", "metadataInventoryTable", "metadataJournalTable",
    "metadataAnnotationTable", "metadataTable", "metrics", "renameObject", "restore", "select", "session", "torrent",
)  # fmt: skip
NOT_SET = {
    "accelerate": "<AccelerateConfiguration><Status>Enabled</Status></AccelerateConfiguration>", "replication": "<ReplicationConfiguration/>",
    "logging": "<BucketLoggingStatus><LoggingEnabled><TargetBucket>b</TargetBucket><TargetPrefix/></LoggingEnabled></BucketLoggingStatus>",
    "notification": "<NotificationConfiguration><QueueConfiguration/></NotificationConfiguration>",
    "requestPayment": "<RequestPaymentConfiguration><Payer>Requester</Payer></RequestPaymentConfiguration>",
}  # fmt: skip
NOT_OF_OBJECTS = ("encryption", "lifecycle", "policy", "cors", "website", "versioning", "publicAccessBlock", "ownershipControls")


@pytest.fixture
def bucket(s3: Any) -> Iterator[str]:
    name = unique("scope")
    s3.create_bucket(Bucket=name)
    yield name
    remove_bucket(s3, name)


def read(s3: Any, bucket: str, key: str, **more: Any) -> bytes:
    data: bytes = s3.get_object(Bucket=bucket, Key=key, **more)["Body"].read()
    return data


# -- what is not there -------------------------------------------------------------------------------------------------


def test_what_is_out_of_scope_says_so_at_every_level_and_does_nothing(endpoint: Endpoint, s3: Any, bucket: str) -> None:
    assert {*NEVER, *NOT_SET, *NOT_OF_OBJECTS} <= set(SUB_RESOURCES)
    s3.put_object(Bucket=bucket, Key="k", Body=b"kept")
    every = ("GET", "PUT", "POST", "DELETE")
    asked = [(path, name, method) for name in NEVER for path in (f"/{bucket}", f"/{bucket}/k", f"/{bucket}/new") for method in every]
    asked += [(f"/{bucket}", name, "PUT") for name in NOT_SET]
    asked += [(path, name, method) for name in NOT_OF_OBJECTS for path in (f"/{bucket}/k", f"/{bucket}/new") for method in every]
    for path, name, method in asked:
        answer = signed(endpoint, TESTER, method, path, {name: ""}, NOT_SET.get(name, "<x/>").encode() if method in ("PUT", "POST") else b"")
        assert answer.status == 501 and b"<Code>NotImplemented</Code>" in answer.body, (method, path, name, answer)
    assert read(s3, bucket, "k") == b"kept"
    assert [entry["Key"] for entry in s3.list_objects_v2(Bucket=bucket)["Contents"]] == ["k"]


# -- checksums ---------------------------------------------------------------------------------------------------------

CHECKSUMS: dict[str, Callable[[bytes], bytes]] = {
    "CRC32": lambda data: zlib.crc32(data).to_bytes(4, "big"),
    "CRC32C": lambda data: crt.crc32c(data).to_bytes(4, "big"),
    "CRC64NVME": lambda data: crt.crc64nvme(data).to_bytes(8, "big"),
    "SHA1": lambda data: hashlib.sha1(data).digest(),
    "SHA256": lambda data: hashlib.sha256(data).digest(),
}


@pytest.mark.parametrize("algorithm", CHECKSUMS)
def test_every_checksum_is_proven_kept_and_told(endpoint: Endpoint, s3: Any, bucket: str, algorithm: str) -> None:
    data, name = b"0123456789" * 1000, f"Checksum{algorithm}"
    right, wrong = (base64.b64encode(CHECKSUMS[algorithm](text)).decode() for text in (data, b"something else"))
    assert s3.put_object(Bucket=bucket, Key="k", Body=data, ChecksumAlgorithm=algorithm)[name] == right
    unasked = client(endpoint, config=Config(response_checksum_validation="when_required"))
    for call in ("get_object", "head_object"):
        assert getattr(s3, call)(Bucket=bucket, Key="k", ChecksumMode="ENABLED")[name] == right
        assert name not in getattr(unasked, call)(Bucket=bucket, Key="k")
    assert s3.get_object_attributes(Bucket=bucket, Key="k", ObjectAttributes=["Checksum"])["Checksum"][name] == right
    with refused("BadDigest", 400):
        s3.put_object(Bucket=bucket, Key="k", Body=b"another", **{name: wrong})
    for value, status in ((right, 200), (wrong, 400)):  # after the body, in a trailer
        body = b"%x\r\n%b\r\n0\r\nx-amz-checksum-%b:%b\r\n\r\n" % (len(data), data, algorithm.lower().encode(), value.encode())
        headers = {
            "x-amz-content-sha256": "STREAMING-UNSIGNED-PAYLOAD-TRAILER", "x-amz-decoded-content-length": str(len(data)),
            "content-encoding": "aws-chunked", "x-amz-trailer": f"x-amz-checksum-{algorithm.lower()}",
        }  # fmt: skip
        answer = signed(endpoint, TESTER, "PUT", f"/{bucket}/trailer", body=body, headers=headers)
        assert answer.status == status and (status == 200 or b"BadDigest" in answer.body), answer
    assert s3.get_object(Bucket=bucket, Key="trailer", ChecksumMode="ENABLED")[name] == right
    assert read(s3, bucket, "k") == data


# -- browsers ----------------------------------------------------------------------------------------------------------


def test_cors_rules_of_a_bucket_are_applied(endpoint: Endpoint, s3: Any, bucket: str) -> None:
    rules = [
        {"AllowedOrigins": ["https://*.example"], "AllowedMethods": ["GET", "PUT"], "AllowedHeaders": ["x-amz-*"], "ExposeHeaders": ["ETag"],
         "MaxAgeSeconds": 77},
        {"AllowedOrigins": ["*"], "AllowedMethods": ["HEAD"]},
    ]  # fmt: skip
    s3.put_bucket_cors(Bucket=bucket, CORSConfiguration={"CORSRules": rules})
    assert s3.get_bucket_cors(Bucket=bucket)["CORSRules"] == rules
    s3.put_object(Bucket=bucket, Key="k", Body=b"x", ACL="public-read")
    path, mine = f"/{bucket}/k", "https://app.example"

    def preflight(origin: str, method: str, headers: str = "") -> Any:
        sent = {"Origin": origin, "Access-Control-Request-Method": method, **({"Access-Control-Request-Headers": headers} if headers else {})}
        return endpoint.request("OPTIONS", path, sent)

    answer = preflight(mine, "PUT", "x-amz-meta-a, X-Amz-Date").expect(200)
    told = answer.headers
    assert (told["Access-Control-Allow-Origin"], told["Access-Control-Max-Age"]) == (mine, "77")
    assert {"GET", "PUT"} == {word.strip() for word in told["Access-Control-Allow-Methods"].split(",")}
    assert {"x-amz-meta-a", "x-amz-date"} == {word.strip().lower() for word in told["Access-Control-Allow-Headers"].split(",")}
    assert preflight("https://anybody.test", "HEAD").expect(200).headers["Access-Control-Allow-Origin"] == "*"
    for origin, method, headers in (("https://anybody.test", "GET", ""), (mine, "DELETE", ""), (mine, "PUT", "x-other")):
        no = preflight(origin, method, headers)
        assert no.status == 403 and b"AccessForbidden" in no.body, (origin, method, headers)
        assert not [name for name in no.headers if name.lower().startswith("access-control")]
    got = endpoint.request("GET", path, {"Origin": mine}).expect(200)
    assert (got.headers["Access-Control-Allow-Origin"], got.headers["Access-Control-Expose-Headers"]) == (mine, "ETag")
    assert "origin" in got.headers["Vary"].lower()
    assert "Access-Control-Allow-Origin" not in endpoint.request("GET", path, {"Origin": "https://anybody.test"}).expect(200).headers
    refusal = endpoint.request("PUT", path, {"Origin": mine}, b"y")
    assert refusal.status == 403 and refusal.headers["Access-Control-Allow-Origin"] == mine  # scripts are to see why
    s3.delete_bucket_cors(Bucket=bucket)
    assert "Access-Control-Allow-Origin" not in endpoint.request("GET", path, {"Origin": mine}).expect(200).headers
    assert preflight(mine, "PUT").status == 403


def test_security_R09_only_who_signs_chooses_response_headers(endpoint: Endpoint, s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"x", ACL="public-read", ContentType="text/plain")
    wanted = {
        "ContentType": "text/html", "ContentLanguage": "de", "Expires": "Thu, 01 Jan 2099 00:00:00 GMT", "CacheControl": "no-store",
        "ContentDisposition": 'attachment; filename="a b"', "ContentEncoding": "x-none",
    }  # fmt: skip
    asked = {f"Response{name}": value for name, value in wanted.items()}
    for answer in (s3.get_object(Bucket=bucket, Key="k", **asked), s3.head_object(Bucket=bucket, Key="k", **asked)):
        found = answer["ResponseMetadata"]["HTTPHeaders"]
        names = {name: re.sub("(?<=.)([A-Z])", r"-\1", name).lower() for name in wanted}
        assert {name: found[names[name]] for name in wanted} == wanted
    url = s3.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "k", "ResponseContentType": "text/html"})
    target = url.partition(str(endpoint.port))[2]
    assert endpoint.request("GET", target).expect(200).headers["Content-Type"] == "text/html"
    assert endpoint.request("GET", target.replace("text%2Fhtml", "text%2Fxml")).status == 403
    for name in wanted:
        query = "response-" + re.sub("(?<=.)([A-Z])", r"-\1", name).lower()
        nobody = endpoint.request("GET", f"/{bucket}/k?{query}=text/html")
        assert nobody.status == 400 and b"InvalidRequest" in nobody.body, name
    found = s3.get_object(Bucket=bucket, Key="k", ResponseContentType="text/html\r\nX-Evil: yes")["ResponseMetadata"]["HTTPHeaders"]
    assert "x-evil" not in found and found["content-type"].startswith("text/html ")


# -- security rows -----------------------------------------------------------------------------------------------------


def test_security_S02_headers_of_swift_do_nothing(endpoint: Endpoint, s3: Any, bucket: str, cluster: Store) -> None:
    swift = cluster.login()
    s3.put_object(Bucket=bucket, Key="secret", Body=b"secret")
    check_native_headers(endpoint, s3, swift, bucket)


def frames(body: bytes, size: int) -> tuple[dict[str, str], bytes]:
    """Headers and body of a PUT in signed chunks, and in unsigned ones with a trailer."""
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[at:at + size] for at in range(0, len(body), size)))
    trailer = b"0\r\nx-amz-checksum-crc32:%b\r\n\r\n" % base64.b64encode(zlib.crc32(body).to_bytes(4, "big"))
    headers = {
        "x-amz-content-sha256": "STREAMING-UNSIGNED-PAYLOAD-TRAILER", "x-amz-decoded-content-length": str(len(body)),
        "content-encoding": "aws-chunked", "x-amz-trailer": "x-amz-checksum-crc32",
    }  # fmt: skip
    return headers, chunks + trailer


def test_security_S06_a_body_cut_anywhere_stores_nothing_and_holds_nobody_up(endpoint: Endpoint, s3: Any, bucket: str) -> None:
    data = b"x" * 20_000
    headers, body = frames(data, 8192)
    cuts = (0, 1, 3, 100, 8198, 8199, 8203, len(body) - 45, len(body) - 30, len(body) - 3, len(body) - 1)
    for cut in cuts:
        for is_closed in (True, False):  # the rest never comes; or the body is said to be so short
            length = len(body) if is_closed else cut
            target, sent = signed_head(endpoint, TESTER, "PUT", f"/{bucket}/k", None, {**headers, "content-length": str(length)})
            head = "".join([f"PUT {target} HTTP/1.1\r\n", *(f"{name}: {value}\r\n" for name, value in sent.items()), "\r\n"]).encode()
            with socket.create_connection((endpoint.host, endpoint.port), timeout=60) as sock:
                sock.sendall(head + body[:cut])
                if is_closed:
                    sock.shutdown(socket.SHUT_WR)
                received = b""
                while b"</Error>" not in received and (more := sock.recv(65536)):
                    received += more
            assert is_closed or (received.split(b" ")[1] == b"400" and b"<Code>IncompleteBody</Code>" in received), (cut, received)
            assert not received or received.split(b" ")[1][:1] == b"4", (cut, received)
    assert endpoint.request("GET", "/healthcheck").status == 200
    assert "Contents" not in s3.list_objects_v2(Bucket=bucket)
    signed(endpoint, TESTER, "PUT", f"/{bucket}/k", body=body, headers=headers).expect(200)
    assert read(s3, bucket, "k") == data


DOCUMENTS = (
    ("PUT", "", "", "CreateBucketConfiguration"), ("POST", "", "delete", "Delete"), ("PUT", "", "versioning", "VersioningConfiguration"),
    ("PUT", "", "acl", "AccessControlPolicy"), ("PUT", "/k", "acl", "AccessControlPolicy"), ("PUT", "", "cors", "CORSConfiguration"),
    ("PUT", "", "lifecycle", "LifecycleConfiguration"), ("PUT", "", "tagging", "Tagging"), ("PUT", "/k", "tagging", "Tagging"),
    ("PUT", "", "object-lock", "ObjectLockConfiguration"), ("PUT", "/k", "retention", "Retention"), ("PUT", "/k", "legal-hold", "LegalHold"),
    ("PUT", "", "encryption", "ServerSideEncryptionConfiguration"), ("PUT", "", "publicAccessBlock", "PublicAccessBlockConfiguration"),
    ("PUT", "", "ownershipControls", "OwnershipControls"), ("PUT", "", "website", "WebsiteConfiguration"),
    ("POST", "/k", "uploadId", "CompleteMultipartUpload"),
)  # fmt: skip
LAUGHS = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10 if n else "lol"}">' for n in range(10))
DTDS = ('<!ENTITY e SYSTEM "file:///etc/passwd">', '<!ENTITY % p SYSTEM "file:///etc/passwd">%p;', LAUGHS + '<!ENTITY e "&l9;">', '<!ENTITY e "x">')


@pytest.mark.parametrize("entities", DTDS, ids=["external", "parameter", "laughs", "internal"])
def test_security_S08_no_document_has_entities(endpoint: Endpoint, s3: Any, entities: str) -> None:
    bucket = unique("locked")
    s3.create_bucket(Bucket=bucket, ObjectLockEnabledForBucket=True)
    s3.put_object(Bucket=bucket, Key="k", Body=b"kept")
    upload = s3.create_multipart_upload(Bucket=bucket, Key="k")["UploadId"]
    for method, key, sub, root in DOCUMENTS:
        path = f"/{bucket}{key}" if sub else f"/{bucket}-other"
        inner = "<Object><Key>&e;</Key></Object>" if sub == "delete" else "<Tag>&e;</Tag>"
        body = f"<!DOCTYPE {root} [{entities}]><{root}>{inner}</{root}>".encode()
        digest = base64.b64encode(hashlib.md5(body).digest()).decode()
        answer = signed(endpoint, TESTER, method, path, {sub: upload if sub == "uploadId" else ""} if sub else {}, body, {"content-md5": digest})
        assert answer.status == 400 and re.search(b"<Code>Malformed(XML|ACLError)</Code>", answer.body), (sub, answer)
        assert b"root:" not in answer.body and b"lollol" not in answer.body
    assert read(s3, bucket, "k") == b"kept"
    remove_bucket(s3, bucket)


DOTTED = ("../k", "../../k", "a/../../k", "./k", ".", "..", "%2e%2e/k", "a//k", "a/./k", "..%2fk", "a/", "\\..\\k")


def test_security_R18_keys_are_names_and_no_paths(endpoint: Endpoint, s3: Any, bucket: str, cluster: Store) -> None:
    """In the path, in a copy's source, in a listing's prefix and in a document."""
    swift, other = cluster.login(), unique("scope")
    s3.create_bucket(Bucket=other)
    s3.put_object(Bucket=other, Key="k", Body=b"another bucket's")
    for number, key in enumerate(DOTTED):
        s3.put_object(Bucket=bucket, Key=key, Body=b"%d" % number)
    assert sorted(entry["name"] for entry in swift.listing(bucket)) == sorted(DOTTED)
    for number, key in enumerate(DOTTED):
        assert read(s3, bucket, key) == b"%d" % number
        assert s3.list_objects_v2(Bucket=bucket, Prefix=key)["Contents"][0]["Key"] == key
        s3.copy_object(Bucket=bucket, Key="copy", CopySource={"Bucket": bucket, "Key": key})
        assert read(s3, bucket, "copy") == b"%d" % number
    for name in (f"../{other}/k", f"%2e%2e/{other}/k", f"../../{other}/k"):
        with refused("NoSuchKey", 404):
            s3.copy_object(Bucket=bucket, Key="copy", CopySource={"Bucket": bucket, "Key": name})
        with refused("NoSuchKey", 404):
            s3.get_object(Bucket=bucket, Key=name)
        s3.delete_object(Bucket=bucket, Key=name)
    answer = s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": key} for key in (*DOTTED, f"../{other}/k")]})
    assert len(answer["Deleted"]) == len(DOTTED) + 1
    assert [entry["Key"] for entry in s3.list_objects_v2(Bucket=bucket)["Contents"]] == ["copy"]
    assert read(s3, other, "k") == b"another bucket's"
    remove_bucket(s3, other)


DOCUMENT = {
    "ListBucketResult", "ListVersionsResult", "Name", "Prefix", "Marker", "NextMarker", "MaxKeys", "KeyCount", "Delimiter", "EncodingType", "IsTruncated",
    "StartAfter", "KeyMarker", "VersionIdMarker", "Contents", "Version", "Key", "LastModified", "ETag", "Size", "StorageClass", "Owner", "ID", "DisplayName",
    "VersionId", "IsLatest", "CommonPrefixes", "ChecksumAlgorithm", "ChecksumType",
}  # fmt: skip
NAMES = ("<k>&\"'", "]]>", "\x01\x1f\x7f", "a\ufffe\uffff", "\u2028", "é\u0301", "a\r\nb", " ", "%3Cx%3E", "\U0001f600")


def test_security_S17_names_do_not_break_out_of_documents(endpoint: Endpoint, s3: Any, bucket: str) -> None:
    """Of keys, prefixes and markers, as they are and quoted; clients that quote get each name back."""
    for name in NAMES:
        s3.put_object(Bucket=bucket, Key=f"{name}/k", Body=b"")
    for query in ({"list-type": "2"}, {"versions": ""}, {}, {"delimiter": "/"}, {"list-type": "2", "delimiter": "/"}):
        for more in ({}, {"encoding-type": "url"}):
            answer = signed(endpoint, TESTER, "GET", f"/{bucket}", {**query, **more}).expect(200)
            found = {element.tag.rpartition("}")[2] for element in etree.fromstring(answer.body, etree.XMLParser(recover=not more)).iter()}
            assert found <= DOCUMENT, found
    for name in NAMES:
        for query in ({"list-type": "2", "prefix": name}, {"prefix": name, "delimiter": name, "marker": name, "encoding-type": "url"}):
            answer = signed(endpoint, TESTER, "GET", f"/{bucket}", query).expect(200)
            assert {element.tag.rpartition("}")[2] for element in etree.fromstring(answer.body, etree.XMLParser(recover=True)).iter()} <= DOCUMENT
    assert sorted(entry["Key"] for entry in s3.list_objects_v2(Bucket=bucket)["Contents"]) == sorted(f"{name}/k" for name in NAMES)
    assert sorted(entry["Prefix"] for entry in s3.list_objects(Bucket=bucket, Delimiter="/")["CommonPrefixes"]) == sorted(f"{name}/" for name in NAMES)
    gone = s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": f"{name}/k"} for name in NAMES if name.isprintable()]})
    assert sorted(entry["Key"] for entry in gone["Deleted"]) == sorted(f"{name}/k" for name in NAMES if name.isprintable())


def test_security_R20_an_empty_secret_never_signs(endpoint: Endpoint, s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    for user in (("test:tester", ""), ("test:", ""), (":", ""), ("test:nobody", ""), ("test", "")):
        for method in ("GET", "PUT"):
            assert signed(endpoint, user, method, f"/{bucket}/k").status == 403, (user, method)
        ends = int(time.time()) + 600
        digest = base64.b64encode(hmac.digest(b"", f"GET\n\n\n{ends}\n/{bucket}/k".encode(), "sha1")).decode()
        query = urlencode({"AWSAccessKeyId": user[0], "Expires": ends, "Signature": digest})
        assert endpoint.request("GET", f"/{bucket}/k?{query}").status == 403, user
    assert read(s3, bucket, "k") == b"x"


# -- signatures of version 2 -------------------------------------------------------------------------------------------


def test_signatures_of_version_2_are_an_option(endpoint: Endpoint, bucket: str) -> None:
    """On as the store comes; off is tested with the filter (``test_signature``)."""
    old = client(endpoint, config=Config(signature_version="s3"))
    old.put_object(Bucket=bucket, Key="a b/é", Body=b"two")
    assert read(old, bucket, "a b/é") == b"two"
    url = old.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "a b/é"}, ExpiresIn=600)
    assert endpoint.request("GET", url.partition(str(endpoint.port))[2]).expect(200).body == b"two"
    with refused("SignatureDoesNotMatch", 403):
        client(endpoint, (TESTER[0], "wrong"), config=Config(signature_version="s3")).list_objects(Bucket=bucket)


# -- the one-command start ---------------------------------------------------------------------------------------------


@pytest.mark.skipif(FOREIGN is not None, reason="starts a store")
def test_what_up_tells_to_try_works_as_it_stands(tmp_path: Path) -> None:
    """In a shell, line by line: curl, swift, aws, rclone."""
    store, programs = Store.new(tmp_path / "data", workers=1), tmp_path / "programs"
    programs.mkdir()
    (programs / "swift").write_text(f'#!/bin/sh\nexec {sys.executable} -m swiftclient.shell "$@"\n')
    (programs / "swift").chmod(0o755)
    (programs / "aws").symlink_to(python_clients() / "aws")
    (programs / "rclone").symlink_to(go_program("rclone", "newest"))
    (tmp_path / "README.md").write_text("read me")
    try:
        told = store.up().stdout
        lines = [line.strip() for line in told.partition("Try:\n")[2].splitlines()]
        assert [re.sub("^(AWS_[A-Z_]+=[^ ]+ )*", "", line).split()[0] for line in lines[:-1]] == ["curl", "swift", "aws", "rclone"]
        assert lines[-1].endswith(f" status --data {store.data}")
        for line in lines[:-1]:
            said = run(["sh", "-c", f'PATH="{programs}:$PATH"; {line}'], tmp_path)
            assert not line.startswith("curl") or re.search("^X-Storage-Url: http", said, re.MULTILINE), said
        status = store.status()
        s3 = client(store.endpoint, (status["user"], status["key"]))
        assert read(s3, "photos", "README.md") == read(s3, "pictures", "README.md") == b"read me"
    finally:
        store.down()
