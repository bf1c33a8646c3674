"""Deleting a bucket: once it is gone all the rest is done, and the client told so, whatever becomes of the parts."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from keelstore.common.http import Response
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.index import BucketIndex
from keelstore.common.middleware.s3api.options import S3ApiOptions
from keelstore.common.middleware.s3api.request import S3Request
from keelstore.common.middleware.s3api.resources.bucket import delete
from keelstore.common.middleware.s3api.target import Target

BUCKET, SEGMENTS, POLICY, NAME = "/v1/AUTH_a/b", "/v1/AUTH_a/b+segments", "/v1/.s3/documents/AUTH_a/b/policy/d", "/v1/.s3/buckets/b"


class Swift:
    """A bucket with a long policy and a part that was left. ``answers``: (method, path) to a status."""

    def __init__(self, answers: dict[tuple[str, str], int]):
        self.answers, self.deleted, self.parts = answers, list[str](), ["k/u/1"]

    def __call__(self, environ: Any, start_response: Any) -> Any:
        return self._answer(environ["REQUEST_METHOD"], environ["PATH_INFO"])(environ, start_response)

    def _answer(self, method: str, path: str) -> Response:
        if (status := self.answers.get((method, path))) is not None:
            return Response(status, body=b"")
        if method == "DELETE":
            self.deleted.append(path)
            self.parts = [] if path.startswith(SEGMENTS + "/") else self.parts
            return Response(204)
        if path == BUCKET:
            return Response(204, {"X-Container-Sysmeta-S3api-Policy": "2:d"})
        if method == "GET" and path == SEGMENTS:
            return Response(200, body=json.dumps([{"name": name} for name in self.parts]).encode())
        return Response(200, body=b"AUTH_a" if path.startswith("/v1/.s3/") else b"")


def request_to(swift: Swift) -> S3Request:
    environ = {"REQUEST_METHOD": "DELETE", "PATH_INFO": "/b", "QUERY_STRING": "", "HTTP_HOST": "h"}
    return S3Request(environ, swift, S3ApiOptions(), Target("b"), None, lambda *_: "AUTH_a", BucketIndex(swift))


@pytest.mark.parametrize("method,path,status", [("GET", SEGMENTS, 503), ("DELETE", f"{SEGMENTS}/k/u/1", 503), ("DELETE", SEGMENTS, 409)])
def test_what_fails_of_the_parts_does_not_keep_the_rest(method: str, path: str, status: int, caplog: pytest.LogCaptureFixture) -> None:
    swift = Swift({(method, path): status})
    with caplog.at_level(logging.WARNING, "keelstore.s3api"):
        assert delete(request_to(swift)).status == 204
    assert swift.deleted[0] == BUCKET and swift.deleted[-2:] == [POLICY, NAME]
    assert "parts are left in AUTH_a/b+segments" in caplog.text


def test_parts_go_after_the_bucket_and_stay_with_it() -> None:
    swift = Swift({})
    assert delete(request_to(swift)).status == 204
    assert swift.deleted[:3] == [BUCKET, f"{SEGMENTS}/k/u/1", SEGMENTS] and len(swift.deleted) == 5
    swift = Swift({("DELETE", BUCKET): 409})
    with pytest.raises(S3Error) as caught:
        delete(request_to(swift))
    assert caught.value.code == "BucketNotEmpty" and swift.deleted == []
