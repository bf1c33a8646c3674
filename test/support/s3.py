"""S3 clients for tests: boto3 with its default settings, requests signed by hand, requests that nobody signed."""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import boto3
import pytest
from botocore.exceptions import ClientError

from test.support.client import Account, Answer, Endpoint, unique

REGION = "us-east-1"
TESTER, OTHER, PLAIN = ("test:tester", "testing"), ("test2:tester2", "testing2"), ("test:tester3", "testing3")


def client(endpoint: Endpoint, user: tuple[str, str] = TESTER, **more: Any) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=endpoint.url,
        aws_access_key_id=user[0],
        aws_secret_access_key=user[1],
        region_name=REGION,
        **more,
    )


@contextmanager
def refused(code: str, status: int | None = None) -> Iterator[None]:
    """What is inside is answered with that error."""
    with pytest.raises(ClientError) as caught:
        yield
    response: dict[str, Any] = caught.value.response
    assert response["Error"]["Code"] == code, response
    if status is not None:
        assert response["ResponseMetadata"]["HTTPStatusCode"] == status


def signed(
    endpoint: Endpoint,
    user: tuple[str, str],
    method: str,
    path: str,
    query: Mapping[str, str] | None = None,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
    unsigned: Mapping[str, str] | None = None,
) -> Answer:
    """A request signed with version 4; ``unsigned`` headers are added afterwards."""
    given = {"x-amz-content-sha256": hashlib.sha256(body).hexdigest(), **(headers or {})}
    target, sent = signed_head(endpoint, user, method, path, query, given)
    return endpoint.request(method, target, {**sent, **(unsigned or {})}, body)


def signed_head(
    endpoint: Endpoint,
    user: tuple[str, str],
    method: str,
    path: str,
    query: Mapping[str, str] | None,
    headers: Mapping[str, str],
) -> tuple[str, dict[str, str]]:
    """Target and headers of a request signed with version 4; ``x-amz-content-sha256`` is among ``headers``."""
    now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    sent = {
        "host": f"{endpoint.host}:{endpoint.port}",
        "x-amz-date": now,
        **{name.lower(): value for name, value in headers.items()},
    }
    asked = "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in sorted((query or {}).items()))
    names = ";".join(sorted(sent))
    lines = "".join(f"{name}:{sent[name].strip()}\n" for name in sorted(sent))
    target = quote(path)
    canonical = "\n".join((method, target, asked, lines, names, sent["x-amz-content-sha256"]))
    scope = f"{now[:8]}/{REGION}/s3/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    key = ("AWS4" + user[1]).encode()
    for part in (*scope.split("/"), text):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    sent["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={user[0]}/{scope}, SignedHeaders={names}, Signature={key.hex()}"
    )
    return f"{target}?{asked}" if asked else target, sent


def remove_bucket(s3: Any, bucket: str) -> None:
    """A bucket, with all that its owner can see in it."""
    for upload in s3.list_multipart_uploads(Bucket=bucket).get("Uploads", ()):
        s3.abort_multipart_upload(Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])
    for page in s3.get_paginator("list_object_versions").paginate(Bucket=bucket):
        for entry in [*page.get("Versions", ()), *page.get("DeleteMarkers", ())]:
            s3.delete_object(Bucket=bucket, Key=entry["Key"], VersionId=entry["VersionId"])
    s3.delete_bucket(Bucket=bucket)


def check_native_headers(endpoint: Endpoint, s3: Any, swift: Account, bucket: str) -> None:
    """``bucket`` has an object ``secret``."""
    sent = {
        "X-Copy-From": f"/{bucket}/secret", "X-Copy-From-Account": "AUTH_test", "X-Symlink-Target": f"{bucket}/secret",
        "X-Symlink-Target-Account": "AUTH_test", "X-Symlink-Target-Etag": hashlib.md5(b"secret").hexdigest(),
        "X-Object-Manifest": f"{bucket}/secret", "X-Static-Large-Object": "True", "X-Versions-Enabled": "true", "X-Versions-Location": bucket,
        "X-History-Location": bucket, "X-Object-Sysmeta-Symlink-Target": f"{bucket}/secret", "X-Object-Sysmeta-Mine": "yes",
        "X-Object-Transient-Sysmeta-Mine": "yes", "X-Object-Meta-Mine": "yes", "X-Backend-Storage-Policy-Index": "1",
        "Destination": f"{bucket}/elsewhere", "X-Fresh-Metadata": "true", "X-Newest": "no", "X-Container-Read": ".r:*", "X-Container-Meta-Mine": "yes",
    }  # fmt: skip
    for headers in [{name: value} for name, value in sent.items()] + [sent]:
        inner = {name: value for name, value in headers.items() if re.match("X-(Object-|Container-)?(Sysmeta|Transient|Backend)", name)}
        outer = {name: value for name, value in headers.items() if name not in inner}
        signed(endpoint, TESTER, "PUT", f"/{bucket}/native", body=b"mine", headers=outer, unsigned=inner).expect(200)
        if inner:  # they are gone before anything is proven
            assert signed(endpoint, TESTER, "PUT", f"/{bucket}/forged", headers=inner).status == 403
        found = swift.get(bucket, "native").expect(200)
        assert found.body == b"mine" and s3.get_object(Bucket=bucket, Key="native")["Body"].read() == b"mine", headers
        assert not [name for name in found.headers if re.search("manifest|symlink|static|copied|mine", name.lower())], headers
        swift.get(bucket, "native", query="symlink=get").expect(200)
    other = unique("scope")
    signed(endpoint, TESTER, "PUT", f"/{other}", unsigned=sent).expect(200)
    made = swift.head(other).expect(204).headers
    assert made["X-Storage-Policy"] == "gold" and not [name for name in made if re.search("versions|history|mine|container-read$", name.lower())]
    assert "Status" not in s3.get_bucket_versioning(Bucket=other)
    s3.delete_bucket(Bucket=other)
    assert [entry["Key"] for entry in s3.list_objects_v2(Bucket=bucket)["Contents"]] == ["native", "secret"]
    s3.delete_object(Bucket=bucket, Key="native")
