"""What the Swift side answered, as an S3 error (``spec: s3-api 2.3``)."""

from __future__ import annotations

from collections.abc import Mapping

from keelstore.common.http import Response
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.request import S3Request


def check(request: S3Request, response: Response, *accepted: int) -> Response:
    """The response, if it is 2xx or named; else raises the S3Error that it means (its body is read for the reason)."""
    if 200 <= response.status < 300 or response.status in accepted:
        return response
    raise error_of(request, response)


def change_bucket(request: S3Request, headers: Mapping[str, str]) -> None:
    """Keep metadata or settings with the bucket. Raises S3Error."""
    check(request, request.swift("POST", request.bucket, headers=headers)).drain()
    request.forget()


def error_of(request: S3Request, response: Response) -> S3Error:
    status = response.status
    if request.method == "HEAD":
        response.close()
        text = ""
    else:
        try:
            text = response.read(65536).decode("utf-8", "replace")
        except ValueError:
            text = ""
    bucket, key = request.target.bucket, request.target.key
    if status == 404:
        if key is None:
            return S3Error("NoSuchBucket", BucketName=bucket)
        if not bucket or not request.container_info(bucket).is_success:
            return S3Error("NoSuchBucket", BucketName=bucket)
        return S3Error("NoSuchKey", Key=key)
    if status == 400:
        about_expiry = "X-Delete-At" in text or "X-Delete-After" in text
        return S3Error("InvalidArgument" if about_expiry else "InvalidRequest", text)
    if status == 401:
        return request.signed.mismatch() if request.signed is not None else S3Error("AccessDenied")
    if status == 403:
        return S3Error("QuotaExceeded", text) if "quota" in text else S3Error("AccessDenied")
    if status in (408, 499):
        return S3Error("RequestTimeout", headers={"Connection": "close"})
    if status == 409:
        if key is None and request.method == "DELETE":
            return S3Error("BucketNotEmpty", BucketName=bucket)
        return S3Error("BrokenMPU" if request.method in ("GET", "HEAD") else "ServiceUnavailable")
    if status == 411:
        return S3Error("MissingContentLength")
    if status == 412:
        return S3Error("PreconditionFailed")
    if status == 413:
        return S3Error("QuotaExceeded", text, status=403) if "quota" in text.lower() else S3Error("EntityTooLarge")
    if status == 416:
        return S3Error("InvalidRange", RangeRequested=request.header("Range"))
    if status == 422:
        return S3Error("BadDigest", ExpectedDigest=request.content_md5())
    if status in (429, 498):
        return S3Error("SlowDown", status=429 if request.options.ratelimit_as_client_error else 503)
    if status in (500, 503, 507):
        return S3Error("ServiceUnavailable", reason=str(status))
    return S3Error("InternalError", reason=f"unexpected_{status}")
