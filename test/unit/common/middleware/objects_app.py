"""An app that stores objects and lists containers in memory, as the proxy would, for tests of filters above it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from hashlib import md5
from typing import Any

from keelstore.common.byteranges import parse
from keelstore.common.conditionals import evaluate
from keelstore.common.headers import Headers, is_sysmeta, is_user_meta
from keelstore.common.http import Environ, Request, Response, http_date, parse_http_date

_KEPT = ("X-Static-Large-Object", "X-Object-Manifest", "X-Delete-At")


@dataclass
class Object:
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)
    when: int = 1_000_000_000

    @property
    def etag(self) -> str:
        return md5(self.body).hexdigest()


class ObjectsApp:
    """``objects`` by path (``/v1/a/c/o``, text). ``denied``: paths that answer 403. ``obeys_range``: as an old object server,
    which does not know of the header that makes it ignore one. ``asked``: method and path of every request."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.denied: set[str] = set()
        self.fails: dict[str, int] = {}
        self.obeys_range = False
        self.environs: list[Environ] = []
        self.closed = 0
        self.streams = False

    @property
    def asked(self) -> list[str]:
        return [f"{environ['REQUEST_METHOD']} {Request(environ).path}" for environ in self.environs]

    def put(self, path: str, body: bytes = b"", **headers: str) -> Object:
        made = Object(body, {name.replace("_", "-"): value for name, value in headers.items()})
        self.objects[f"/v1/a{path}"] = made
        return made

    def __call__(self, environ: Environ, start_response: Any) -> Any:
        self.environs.append(environ)
        request = Request(environ)
        path, method = request.path, request.method
        authorize = environ.get("swift.authorize")
        denied = authorize(request) if authorize else None
        if denied is not None:
            return denied(environ, start_response)
        if path in self.denied:
            return Response(403)(environ, start_response)
        if path in self.fails:
            return Response(self.fails[path])(environ, start_response)
        if method == "UPDATE":
            return Response(202)(environ, start_response)
        if path.count("/") == 3:
            return self.list(request, path)(environ, start_response)
        if method == "PUT":
            return self.store(request, path)(environ, start_response)
        found = self.objects.get(path)
        if found is None:
            return Response(404)(environ, start_response)
        if method == "DELETE":
            del self.objects[path]
            return Response(204)(environ, start_response)
        if method == "POST":
            return Response(202, {name: value for name, value in found.headers.items() if is_sysmeta("object", name)}, b"")(
                environ, start_response)
        return self.read(request, found)(environ, start_response)

    def store(self, request: Request, path: str) -> Response:
        body = request.read_body(1 << 30)
        headers = {name: value for name, value in request.header_items()
                   if name in _KEPT or is_sysmeta("object", name) or is_user_meta("object", name)}
        headers["Content-Type"] = request.header("Content-Type", "application/octet-stream")
        made = self.objects[path] = Object(body, headers)
        if request.header("Etag", made.etag) != made.etag:
            return Response(422)
        return Response(201, {"Etag": made.etag, "Last-Modified": http_date(made.when)}, b"")

    def read(self, request: Request, found: Object) -> Response:
        headers = Headers({"Content-Type": "application/octet-stream", **found.headers})
        headers["Content-Type"] = headers["Content-Type"].partition(";swift_bytes=")[0]
        headers.update({"Etag": found.etag, "Last-Modified": http_date(found.when), "X-Timestamp": f"{found.when:010}.00000",
                        "Content-Length": str(len(found.body))})
        etag = found.etag
        for name in request.header("X-Backend-Etag-Is-At", "").split(","):
            etag = headers.get(name.strip() or "-", etag)
        status = evaluate(request.method, request.header, etag, parse_http_date(headers["Last-Modified"]))
        if status is not None:
            headers["Content-Length"] = "0"
            return Response(status, headers, b"")
        if request.method == "HEAD":
            return Response(200, headers, b"")
        ignored = any((name.strip() or "-") in headers
                      for name in request.header("X-Backend-Ignore-Range-If-Metadata-Present", "").split(","))
        spans = parse(request.header("Range"), len(found.body)) if not ignored or self.obeys_range else None
        body = found.body
        if spans is not None:
            if not spans:
                headers.update({"Content-Range": f"bytes */{len(body)}", "Content-Length": "0"})
                return Response(416, headers, b"")
            start, stop = spans[0]
            headers.update({"Content-Range": f"bytes {start}-{stop - 1}/{len(body)}", "Content-Length": str(stop - start)})
            return Response(206, headers, body[start:stop])
        if self.streams:
            return Response(200, headers, app_iter=_Parts(self, body))
        return Response(200, headers, body)

    def list(self, request: Request, path: str) -> Response:
        """In pages of three."""
        if not any(name.startswith(f"{path}/") for name in self.objects):
            return Response(404)
        prefix, marker = request.params.get("prefix", ""), request.params.get("marker", "")
        entries = []
        for name, found in sorted(self.objects.items()):
            own = name[len(path) + 1:]
            if name.startswith(f"{path}/") and own.startswith(prefix) and own > marker:
                override = found.headers.get("X-Object-Sysmeta-Container-Update-Override-Etag", found.etag)
                size = found.headers.get("Content-Type", "").partition(";swift_bytes=")[2] or len(found.body)
                entries.append({"name": own, "bytes": int(size), "hash": override, "content_type": "a/b",
                                "last_modified": "2001-09-09T01:46:40.000000"})
        return Response(200, {"Content-Type": "application/json; charset=utf-8"}, json.dumps(entries[:3]).encode())


class _Parts:
    def __init__(self, app: ObjectsApp, body: bytes):
        self._app, self._body = app, body

    def __iter__(self) -> Any:
        return iter([self._body[:3], self._body[3:]])

    def close(self) -> None:
        self._app.closed += 1
