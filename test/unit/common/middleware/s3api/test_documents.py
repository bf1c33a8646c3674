"""Configuration documents of buckets: short ones with the container, long ones as objects."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import pytest

from keelstore.common.http import Request, Response, WSGIApp
from keelstore.common.info import ContainerInfo
from keelstore.common.middleware.s3api import documents
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.options import S3ApiOptions
from keelstore.common.middleware.s3api.request import S3Request
from keelstore.common.middleware.s3api.target import Target

SHORT, LONG = b"<short/>", b"<long>" + b"x" * 5000 + b"</long>"


class Swift:
    """Containers' system metadata and objects, and what was asked, in order."""

    def __init__(self) -> None:
        self.sysmeta: dict[str, str] = {}
        self.objects: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.containers = {"/v1/AUTH_a/b"}

    def __call__(self, environ: Any, start_response: Any) -> Any:
        request = Request(environ)
        path, method = environ["PATH_INFO"], environ["REQUEST_METHOD"]
        self.asked.append(f"{method} {path}")
        return self._answer(method, path, request)(environ, start_response)

    def _answer(self, method: str, path: str, request: Request) -> Response:
        if path.count("/") == 2:
            return Response(204)
        if path.count("/") == 3:
            if method == "PUT":
                self.containers.add(path)
                return Response(201, body=b"")
            for name, value in request.environ.items():
                if name.startswith("HTTP_X_CONTAINER_SYSMETA_"):
                    self.sysmeta[name[25:].replace("_", "-").lower()] = value
            return Response(204, {f"X-Container-Sysmeta-{name}": value for name, value in self.sysmeta.items()})
        if method == "PUT":
            if path.rsplit("/", path.count("/") - 3)[0] not in self.containers:
                return Response(404, body=b"")
            self.objects[path] = request.body_file.read()
            return Response(201, body=b"")
        if path not in self.objects:
            return Response(404, body=b"")
        if method == "DELETE":
            del self.objects[path]
            return Response(204)
        return Response(200, body=self.objects[path])

    @property
    def info(self) -> ContainerInfo:
        return ContainerInfo(status=204, sysmeta={name: value for name, value in self.sysmeta.items() if value})


def request_to(swift: WSGIApp, more: Mapping[str, Any] | None = None) -> S3Request:
    environ = {"REQUEST_METHOD": "PUT", "PATH_INFO": "/b", "QUERY_STRING": "", "HTTP_HOST": "h", **(more or {})}
    return S3Request(environ, swift, S3ApiOptions(s3_acl=True), Target("b"), None, lambda *_: "AUTH_a")


@pytest.mark.parametrize("data", [b"", SHORT, LONG], ids=["empty", "short", "long"])
def test_what_is_stored_is_loaded_again(data: bytes) -> None:
    swift = Swift()
    documents.store(request_to(swift), "policy", data)
    assert documents.load(request_to(swift), "policy", swift.info) == data
    assert documents.load(request_to(swift), "cors", swift.info) is None


def test_a_short_one_is_with_the_container_alone() -> None:
    swift = Swift()
    documents.store(request_to(swift), "policy", SHORT)
    assert swift.sysmeta == {"s3api-policy": "1:" + base64.b64encode(SHORT).decode()}
    assert swift.objects == {}


def test_a_long_one_is_there_before_the_container_names_it_and_goes_after() -> None:
    swift = Swift()
    documents.store(request_to(swift), "policy", LONG)
    (path,) = swift.objects
    assert path.startswith("/v1/.s3/documents/AUTH_a/b/policy/")
    assert swift.asked.index(f"PUT {path}") < swift.asked.index("POST /v1/AUTH_a/b")
    swift.asked.clear()
    documents.store(request_to(swift), "policy", SHORT)
    assert swift.objects == {}
    assert swift.asked.index("POST /v1/AUTH_a/b") < swift.asked.index(f"DELETE {path}")


def test_one_that_is_removed_is_gone() -> None:
    swift = Swift()
    documents.store(request_to(swift), "policy", LONG)
    documents.remove(request_to(swift), "policy")
    assert documents.load(request_to(swift), "policy", swift.info) is None
    assert swift.objects == {}


def test_a_document_that_cannot_be_had_is_an_error_and_not_none() -> None:
    swift = Swift()
    documents.store(request_to(swift), "policy", LONG)
    swift.objects.clear()
    with pytest.raises(S3Error) as caught:
        documents.load(request_to(swift), "policy", swift.info)
    assert caught.value.code == "ServiceUnavailable"
    swift.sysmeta["s3api-policy"] = "1:no base64"
    with pytest.raises(S3Error):
        documents.load(request_to(swift), "policy", swift.info)


def test_buckets_that_must_be_found_are_written_down() -> None:
    swift = Swift()
    documents.note_bucket(request_to(swift), "lifecycle")
    assert list(swift.objects) == ["/v1/.s3/lifecycle/AUTH_a/b"]
