"""S3 clients for tests: boto3 with its default settings, requests signed by hand, requests that nobody signed."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import boto3
import pytest
from botocore.exceptions import ClientError

from test.support.client import Answer, Endpoint

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
