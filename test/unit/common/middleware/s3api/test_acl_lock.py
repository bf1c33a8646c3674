"""The ACL of an object is changed while nobody else restates that object, and a slow body keeps nobody waiting."""

from __future__ import annotations

from typing import Any

import pytest

from keelstore.common.http import Response
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.options import S3ApiOptions
from keelstore.common.middleware.s3api.request import S3Request
from keelstore.common.middleware.s3api.resources.acls import put_object_acl
from keelstore.common.middleware.s3api.target import Target
from test.support.exclusives import is_held


def test_object_is_read_under_the_lock_and_the_body_before() -> None:
    seen: list[tuple[str, bool]] = []

    class Body:
        def read(self, size: int = -1) -> bytes:
            seen.append(("body", is_held("AUTH_a", "b", "k")))
            return b""

    def swift(environ: Any, start_response: Any) -> Any:
        if environ["PATH_INFO"] == "/v1/AUTH_a/b/k":
            seen.append((environ["REQUEST_METHOD"], is_held("AUTH_a", "b", "k")))
            return Response(404, body=b"")(environ, start_response)
        return Response(204)(environ, start_response)

    environ = {"REQUEST_METHOD": "PUT", "PATH_INFO": "/b/k", "QUERY_STRING": "acl", "HTTP_HOST": "h",
               "HTTP_TRANSFER_ENCODING": "chunked", "HTTP_X_AMZ_ACL": "private", "wsgi.input": Body()}
    with pytest.raises(S3Error):
        put_object_acl(S3Request(environ, swift, S3ApiOptions(s3_acl=True), Target("b", "k"), None, lambda *_: "AUTH_a"))
    assert set(seen) == {("body", False), ("HEAD", True)} and not is_held("AUTH_a", "b", "k")
