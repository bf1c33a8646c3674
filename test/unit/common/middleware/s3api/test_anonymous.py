from typing import Any

import pytest

from keelstore.common.middleware.s3api.anonymous import bucket_of
from keelstore.common.middleware.s3api.options import S3ApiOptions

OPTIONS = S3ApiOptions(storage_domain=("s3.example.com",))


def asked(path: str, method: str = "GET", query: str = "", **more: str) -> dict[str, Any]:
    return {"REQUEST_METHOD": method, "PATH_INFO": path, "QUERY_STRING": query, "HTTP_HOST": "example.com", **more}


@pytest.mark.parametrize(
    ("environ", "bucket"),
    [
        (asked("/bucket"), "bucket"),
        (asked("/bucket/a/b"), "bucket"),
        (asked("/bucket/v1/AUTH_test/c"), "bucket"),
        (asked("/v1stuff/a"), "v1stuff"),
        (asked("/bucket", HTTP_AUTHORIZATION=""), "bucket"),
        (asked("/a/b", HTTP_HOST="bucket.s3.example.com"), "bucket"),
        (asked("/info", HTTP_HOST="bucket.s3.example.com:8080"), "bucket"),
    ],
)
def test_what_may_be_for_a_bucket(environ: dict[str, Any], bucket: str) -> None:
    assert bucket_of(environ, OPTIONS) == bucket


@pytest.mark.parametrize(
    "environ",
    [
        asked("/"),
        asked("/ab"),
        asked("/v1/AUTH_test/c/o"),
        asked("/v1.0/AUTH_test/c/o"),
        asked("/v1/AUTH_test/c/o", HTTP_HOST="bucket.s3.example.com"),
        asked("/info"),
        asked("/auth/v1.0"),
        asked("/healthcheck"),
        asked("/endpoints/AUTH_test/c/o"),
        asked("/AUTH_test/c"),
        asked("//bucket"),
        asked("/bucket", "OPTIONS"),
        asked("/bucket", "COPY"),
        asked("/bucket", "REPLICATE"),
        asked("/bucket/o", query="temp_url_sig=1&temp_url_expires=2"),
        asked("/bucket", HTTP_AUTHORIZATION="Bearer x"),
        asked("/bucket", HTTP_X_AUTH_TOKEN="x"),
        asked("/bucket", HTTP_X_STORAGE_TOKEN="x"),
        asked("/bucket", HTTP_X_AUTH_USER="x"),
        asked("/b\xc3\xbccket"),
    ],
)
def test_what_is_left_to_swift(environ: dict[str, Any]) -> None:
    assert bucket_of(environ, OPTIONS) is None
