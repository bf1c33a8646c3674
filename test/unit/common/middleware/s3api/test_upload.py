"""Uploads in parts: whether their parts may be deleted, and that nobody does while they become an object."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from keelstore.common.http import Request, Response
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.options import S3ApiOptions
from keelstore.common.middleware.s3api.request import S3Request
from keelstore.common.middleware.s3api.resources.complete import abort, complete
from keelstore.common.middleware.s3api.target import Target
from keelstore.common.middleware.s3api.upload import is_complete
from test.support.exclusives import is_held

ID = "A" * 48
MARKER, PART = f"/v1/AUTH_a/b+segments/k/{ID}", f"/v1/AUTH_a/b+segments/k/{ID}/1"
BODY = b"<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>" + b"0" * 32 + b"</ETag></Part></CompleteMultipartUpload>"


class Swift:
    """A bucket with an upload of one part. ``answers``: (method, path) to a status; ``versions``: of the key k."""

    def __init__(self, answers: dict[tuple[str, str], int] | None = None, versions: tuple[str, ...] = (), upload_id: str = ""):
        self.answers, self.versions, self.upload_id = answers or {}, versions, upload_id
        self.newest = True
        self.writes: list[tuple[str, str, bool]] = []

    def __call__(self, environ: Any, start_response: Any) -> Any:
        request, method, path = Request(environ), environ["REQUEST_METHOD"], environ["PATH_INFO"]
        if method in ("PUT", "DELETE"):
            self.writes.append((method, path, is_held("AUTH_a", "b", f"k/{ID}")))
        if path == "/v1/AUTH_a/b/k" and method == "HEAD":
            self.newest = self.newest and "HTTP_X_NEWEST" in environ and "swift.authorize_override" in environ
        return self._answer(method, path, request)(environ, start_response)

    def _answer(self, method: str, path: str, request: Request) -> Response:
        status = self.answers.get((method, path))
        if status is not None:
            return Response(status, body=b"")
        if method == "HEAD" and path == "/v1/AUTH_a/b/k":
            version = request.params.get("version-id")
            found = self.upload_id if version == (self.versions[-1] if self.versions else None) else "another"
            return Response(200, {"X-Object-Sysmeta-S3api-Upload-Id": found})
        if method == "HEAD" and path.count("/") == 3:
            return Response(204, {"X-Container-Sysmeta-Versions-Enabled": "True"} if self.versions else {})
        if method == "GET" and path == "/v1/AUTH_a/b":
            return Response(200, body=json.dumps([{"name": "k", "version_id": name} for name in self.versions]).encode())
        if method == "GET":
            entry = {"name": f"k/{ID}/1", "hash": "0" * 32, "bytes": 5, "last_modified": ""}
            return Response(200, body=json.dumps([entry]).encode())
        return Response({"PUT": 201, "DELETE": 204}.get(method, 200), body=b"")


def request_to(swift: Swift, body: bytes = b"") -> S3Request:
    environ = {"REQUEST_METHOD": "POST", "PATH_INFO": "/b/k", "QUERY_STRING": f"uploadId={ID}", "HTTP_HOST": "h",
               "CONTENT_LENGTH": str(len(body)), "wsgi.input": io.BytesIO(body), "wsgi.url_scheme": "http"}
    return S3Request(environ, swift, S3ApiOptions(), Target("b", "k"), None, lambda *_: "AUTH_a")


@pytest.mark.parametrize("versions", [(), ("2", "1")], ids=["plain", "versions"])
def test_all_copies_of_all_versions_are_asked(versions: tuple[str, ...]) -> None:
    assert is_complete(request_to(swift := Swift(versions=versions, upload_id=ID)), "k", ID)
    assert not is_complete(request_to(Swift(versions=versions, upload_id="other")), "k", ID)
    assert swift.newest


@pytest.mark.parametrize("method,path", [("HEAD", "/v1/AUTH_a/b/k"), ("GET", "/v1/AUTH_a/b")])
@pytest.mark.parametrize("status", [401, 403, 409, 503])
def test_a_doubt_is_an_error_and_nothing_is_deleted(method: str, path: str, status: int) -> None:
    swift = Swift({(method, path): status}, ("2", "1"), ID)
    with pytest.raises(S3Error) as caught:
        abort(request_to(swift))
    assert caught.value.code == "ServiceUnavailable" and swift.writes == []


def test_what_is_not_there_is_no_doubt() -> None:
    swift = Swift({("HEAD", "/v1/AUTH_a/b/k"): 404, ("GET", "/v1/AUTH_a/b"): 404}, ("2", "1"), ID)
    assert abort(request_to(swift)).status == 204
    assert swift.writes == [("DELETE", PART, True), ("DELETE", MARKER, True)] and not is_held("AUTH_a", "b", f"k/{ID}")


def test_manifest_is_written_while_nobody_aborts() -> None:
    swift = Swift()
    assert complete(request_to(swift, BODY)).status == 200
    assert swift.writes == [("PUT", "/v1/AUTH_a/b/k", True), ("DELETE", MARKER, True)] and not is_held("AUTH_a", "b", f"k/{ID}")
