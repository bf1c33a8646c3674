"""What an S3 request copies from: ``x-amz-copy-source`` and its conditions (``spec: s3-api 3.6``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote_to_bytes

from keelstore.common.headers import Headers
from keelstore.common.middleware.s3api import access, acl
from keelstore.common.middleware.s3api.encrypting import check_key
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.etags import object_etag
from keelstore.common.middleware.s3api.history import real_version
from keelstore.common.middleware.s3api.outcome import error_of
from keelstore.common.middleware.s3api.request import ETAG_IS_AT, S3Request
from keelstore.common.middleware.s3api.sse import COPY_SOURCE, CustomerKey
from keelstore.common.middleware.s3api.versions import version_id_of

MAX_COPY_BYTES: Final = 5 << 30
_CONDITIONS: Final = ("If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since")


@dataclass(frozen=True)
class CopySource:
    """``headers``: of the source as it was when the conditions were checked. ``key_of_customer``: that it is read with."""

    account: str
    bucket: str
    key: str
    version: str | None
    headers: Headers
    key_of_customer: CustomerKey | None = None

    @property
    def size(self) -> int:
        return int(self.headers.get("Content-Length", "0"))

    @property
    def etag(self) -> str:
        return object_etag(self.headers)

    @property
    def copied_version(self) -> str | None:
        return self.headers.get("X-Object-Version-Id")


def parse(text: str) -> tuple[str, str, str | None]:
    """Bucket, key and version of a header's value. The path is decoded once, ``+`` stays. Raises S3Error."""
    path, mark, query = text.partition("?")
    version = None
    if mark:
        name, _, version = query.partition("=")
        if name != "versionId":
            raise S3Error(
                "InvalidArgument",
                "Unsupported copy source parameter.",
                ArgumentName="x-amz-copy-source",
                ArgumentValue=text,
            )
    try:
        decoded = unquote_to_bytes(path.encode("latin-1")).decode()
    except UnicodeDecodeError:
        raise S3Error("InvalidURI", URI=text) from None
    if "\0" in decoded:
        raise S3Error("InvalidURI", URI=text)
    bucket, slash, key = decoded.removeprefix("/").partition("/")
    if not (bucket and slash and key):
        raise S3Error(
            "InvalidArgument",
            "Copy Source must mention the source bucket and key: sourcebucket/sourcekey",
            ArgumentName="x-amz-copy-source",
            ArgumentValue=text,
        )
    return bucket, key, version


def open_source(request: S3Request) -> CopySource:
    """The source that a request names: there, allowed, and as its conditions want it. Raises S3Error."""
    bucket, key, version = parse(request.header("X-Amz-Copy-Source"))
    account = request.account_of(bucket)
    expected = request.header("X-Amz-Source-Expected-Bucket-Owner")
    if expected is not None and request.options.s3_acl:
        access.check_expected(access.stored_bucket_acl(request.bucket_info(bucket, account)).owner, expected)
    headers: dict[str, str] = {"X-Backend-Etag-Is-At": ETAG_IS_AT}
    for name in _CONDITIONS:
        value = request.header(f"X-Amz-Copy-Source-{name}")
        if value:
            headers[name] = value
    named = version
    if version is not None and version_id_of(version):
        version = real_version(request, key, version, bucket, account)
    query = {"version-id": version} if version else {}
    response = request.swift("HEAD", bucket, key, account=account, headers=headers, query=query)
    response.close()
    if response.status == 404:
        if not request.container_info(bucket, account).is_success:
            raise S3Error("NoSuchBucket", BucketName=bucket)
        if version is not None and "X-Object-Version-Id" in response.headers:
            raise S3Error(
                "InvalidRequest",
                "The source of a copy request may not specifically refer to a delete marker by version id.",
            )
        raise S3Error("NoSuchVersion" if version is not None else "NoSuchKey", Key=key, VersionId=named)
    if response.status in (304, 412):
        raise S3Error("PreconditionFailed", Condition="x-amz-copy-source-If")
    if not response.is_success:
        raise error_of(request, response)
    access.check_object(request, response.headers, acl.READ, account=account, bucket=bucket, key=key)
    return CopySource(
        account, bucket, key, version, response.headers, check_key(request, response.headers, COPY_SOURCE)
    )
