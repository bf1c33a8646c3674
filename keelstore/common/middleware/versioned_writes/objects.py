"""Objects of a container with object versioning (``spec: middleware 22``).

A write puts the data into the hidden container, under a name made of the object's and of the request's time, and then lets
the object's own name be a static link to it. So a version never moves and never changes but for POSTs, and a crash between
the two writes leaves a version too many, never one too few. What was written without versioning is copied to a version of
its own before it is replaced.

The link is stored with the request's time, offset 1: it is newer than a delete of the same moment, and what follows is newer
than both. It expires (X-Delete-At), its version does not.
"""

from __future__ import annotations

from typing import Any, Final

from keelstore.common.errors import BadRequest, EntityTooLarge, LengthRequired, RequestError
from keelstore.common.headers import Headers, is_true
from keelstore.common.http import Request, Response, WSGIApp, call_app
from keelstore.common.info import ContainerInfo, container_info
from keelstore.common.limits import Limits, check_name_length
from keelstore.common.middleware.authorizing import denial
from keelstore.common.middleware.versioned_writes.inner import (
    EMPTY_MD5,
    FOOTERS,
    HTML,
    OVERRIDE_ETAG,
    S3_ETAG,
    TYPE_OVERRIDDEN,
    VERSIONS_LINK,
    Inner,
    failure,
    is_link,
    link_parameters,
    listed_etag,
    params_without,
    settle_timestamp,
)
from keelstore.common.middleware.versioned_writes.names import (
    MARKER_TYPE,
    NULL,
    Version,
    hidden_container,
    parse_version_id,
    version_name,
)
from keelstore.common.timestamp import Timestamp

ID: Final = "X-Object-Version-Id"
CURRENT_ID: Final = "X-Object-Current-Version-Id"
_NOT_VERSIONED: Final = "version-aware operations require that the container is versioned"
_MISSING: Final = "Container does not exist: its versions cannot be kept. Enable versioning again to repair it."
_MAX_LINK: Final = 7000  # bytes of a link's target, which must fit into headers of 8 KiB
_TARGET: Final = "X-Object-Sysmeta-Symlink-Target"

# Of a read of a certain version, what of the request is about the read.
_READ: Final = ("Range", "If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since", "X-Newest", "X-Auth-Token",
                "X-Service-Token", "X-Open-Expired", "X-Backend-Etag-Is-At",
                "X-Backend-Ignore-Range-If-Metadata-Present")
# Of a write, what describes the object, besides what objects keep.
_WRITE: Final = ("X-Object-", "X-Symlink-", "X-Backend-Container-Update-Override-")
_WRITE_ALSO: Final = frozenset({"Etag", "X-Detect-Content-Type"})
_CARRIED: Final = (FOOTERS, TYPE_OVERRIDDEN, "swift.symlink_override")  # environ keys
_FOUND: Final = frozenset({200, 206, 304, 412, 416})  # what a read is answered of an object that is there
_EXPIRY: Final = frozenset({"X-Delete-At", "X-Delete-After"})
_NOT_OF_LINK: Final = frozenset({"X-Object-Manifest", "X-Static-Large-Object"})


class Objects:
    """The verbs of objects. ``info`` is what is known of the container; it has had versioning on."""

    def __init__(self, app: WSGIApp, inner: Inner, limits: Limits):
        self.app, self.inner, self.limits = app, inner, limits

    # -- without version-id --------------------------------------------------------------------------------------------

    def put(self, request: Request, info: ContainerInfo) -> Any:
        """A new version. Raises RequestError."""
        environ = request.environ
        if environ.get("HTTP_IF_NONE_MATCH", "*").strip() != "*":
            raise BadRequest("If-None-Match only supports *")
        length = request.content_length
        if length is None and "HTTP_TRANSFER_ENCODING" not in environ:
            raise LengthRequired("Missing Content-Length header.")
        if length is not None and length > self.inner.max_file_size:
            raise EntityTooLarge
        no = denial(environ, info.write_acl)
        if no is not None:
            return no
        version = self._new_version(request)
        self._need_hidden(request)
        self._keep_null(request, is_welcome="HTTP_IF_NONE_MATCH" not in environ)
        sent = self._described(request)
        data = {name: value for name, value in sent.items() if name not in _EXPIRY}
        body = _Counted(environ["wsgi.input"])
        extra: dict[str, Any] = {key: environ[key] for key in _CARRIED if key in environ}
        if "HTTP_TRANSFER_ENCODING" in environ:
            extra["HTTP_TRANSFER_ENCODING"] = environ["HTTP_TRANSFER_ENCODING"]
        response = self.inner.ask(environ, "PUT", self._path(request, version),
                                  {**data, "X-Timestamp": version.timestamp.internal},
                                  body=body if length is None else environ["wsgi.input"], length=length, extra=extra)
        if response.status != 201:
            return _passed_on(response)
        response.drain()
        etag = (sent.get("X-Symlink-Target-Etag") or response.headers.get("Etag", "")).strip('" ')
        size = sent.get("X-Object-Sysmeta-Slo-Size") or str(body.size if length is None else length)
        own = Headers({name: value for name, value in sent.items() if name not in _NOT_OF_LINK and
                       not name.startswith(("X-Object-Sysmeta-", "X-Object-Transient-", "X-Symlink-", "X-Backend-"))})
        own.pop("Etag", None)
        if "X-Symlink-Target" in sent and "Content-Type" not in sent:  # it has become that of a symlink, or of its target
            found = self.inner.current(environ, self._path(request, version), "HEAD")
            if found is not None:
                found.close()
                own["Content-Type"] = found.headers.get("Content-Type")
        answer = self._link(request, version, etag, size, own, sent)
        if answer.is_success:
            answer.headers["Etag"] = response.headers.get("Etag")
            answer.headers[ID] = version.id
        return answer

    def delete(self, request: Request, info: ContainerInfo) -> Any:
        """A delete marker as the newest version, and nothing as the current one. Raises RequestError."""
        environ = request.environ
        no = denial(environ, info.write_acl)
        if no is not None:
            return no
        version = self._new_version(request)
        self._need_hidden(request)
        self._keep_null(request)
        status = self.inner.write_marker(environ, self._path(request, version), version.timestamp)
        if status // 100 != 2:
            raise failure(status)
        answer = call_app(self.app, environ)
        answer.headers[ID] = version.id
        return answer

    def post(self, request: Request) -> Any:
        """New metadata: of the object, and when that is a link to a version, of the version too."""
        environ = request.environ
        sent = self._described(request)
        timestamp = settle_timestamp(environ)
        answer = call_app(self.app, environ)
        if answer.status != 307:
            return answer
        location = answer.headers.get("Location", "").split("/", 3)
        version = Version.of(location[-1])
        _, _v1, _account, container, obj = request.path.split("/", 4)
        if version is None or version.container != container or version.obj != obj:
            return answer
        answer.drain()
        own = {name: value for name, value in sent.items() if name not in _EXPIRY and not name.startswith(
            ("X-Object-Sysmeta-", "X-Symlink-", "X-Backend-"))}
        return self.inner.ask(environ, "POST", self._path(request, version),
                              {**own, "X-Timestamp": timestamp.internal})

    # -- with version-id -----------------------------------------------------------------------------------------------

    def of_version(self, request: Request, text: str) -> Any:
        """A request with ``version-id=text``. Raises RequestError."""
        method = request.method
        if method == "POST":
            raise BadRequest("POST to a specific version is not allowed", headers={"Content-Type": HTML})
        if method == "OPTIONS":
            request.params = params_without(request, "version-id")
            return self.app
        try:
            timestamp = parse_version_id(text)
        except ValueError:
            raise _invalid() from None
        if timestamp is None:
            if method == "PUT":
                raise _invalid()
            return self._of_null(request)
        environ = request.environ
        info = container_info(environ, self.app, source=self.inner.source)
        if not info.sysmeta.get("versions-container"):
            raise BadRequest(_NOT_VERSIONED, headers={"Content-Type": HTML})
        _, _v1, _account, container, obj = request.path.split("/", 4)
        version = Version(container, obj, timestamp)
        if method in ("GET", "HEAD"):
            return self._read_version(request, version)
        if method == "DELETE":
            return self._delete_version(request, version)
        if method == "PUT":
            return self._restore(request, info, version)
        return self.app  # which knows no such method

    def _read_version(self, request: Request, version: Version) -> Any:
        environ = request.environ
        headers = Headers({name: request.header(name) for name in _READ})
        answer = self.inner.ask(environ, request.method, self._path(request, version), headers,
                                query=params_without(request, "version-id"), pre_authed=False)
        if answer.status in _FOUND and answer.headers.get("Content-Type") == MARKER_TYPE:
            answer.close()
            return Response(404, {"Content-Type": MARKER_TYPE, ID: version.id})
        if answer.status in _FOUND:
            answer.headers[ID] = version.id
        return answer

    def _of_null(self, request: Request) -> Any:
        """Reading what was written without versioning."""
        request.params = params_without(request, "version-id")
        if request.method not in ("GET", "HEAD"):
            return self.app
        answer = call_app(self.app, request.environ)
        if is_link(answer.headers) or self._leads_to_version(request, answer.headers.get("Content-Location")):
            answer.close()
            return Response(404)
        if answer.is_success:
            answer.headers[ID] = NULL
        return answer

    def _leads_to_version(self, request: Request, location: str | None) -> bool:
        version = Version.of(location.split("/", 3)[-1]) if location else None
        _, _v1, _account, container, obj = request.path.split("/", 4)
        return version is not None and version.container == container and version.obj == obj

    def _delete_version(self, request: Request, version: Version) -> Any:
        """Remove a version for good, the link first if it points there: nothing may ever point nowhere."""
        environ = request.environ
        path = self._path(request, version)
        no = self._denied(request, path)
        if no is not None:
            return no
        timestamp = settle_timestamp(environ)
        current = self.inner.current(environ, request.path, "HEAD")
        linked = None
        if current is not None:
            current.close()
            linked = Version.of(current.headers.get("X-Symlink-Target") or current.headers.get(_TARGET)) if is_link(
                current.headers) else None
        headers = {"X-Timestamp": timestamp.internal}
        if linked is not None and linked.timestamp == version.timestamp:
            status = self.inner.done(self.inner.ask(environ, "DELETE", request.path, headers))
            if status // 100 != 2 and status != 404:
                raise RequestError(status=status if status // 100 == 4 else 503)
            linked = None
        answer = self.inner.ask(environ, "DELETE", path, headers)
        answer.headers[ID] = version.id
        answer.headers[CURRENT_ID] = linked.id if linked is not None else NULL
        return answer

    def _restore(self, request: Request, info: ContainerInfo, version: Version) -> Any:
        """Let the object be a link to an older version."""
        environ = request.environ
        length = request.content_length
        if length or (request.is_chunked and request.body_file.read(1)):
            raise BadRequest("PUT version-id requests require a zero byte body", headers={"Connection": "close"})
        if length is None:
            raise LengthRequired("Missing Content-Length header.")
        no = denial(environ, info.write_acl)
        if no is not None:
            return no
        settle_timestamp(environ)
        found = self.inner.current(environ, self._path(request, version), "HEAD")
        if found is not None:
            found.close()
        if found is None or found.headers.get("Content-Type") == MARKER_TYPE:
            raise RequestError("The specified version does not exist", status=404)
        if is_true(info.sysmeta.get("versions-enabled")):
            self._keep_null(request)
        headers = found.headers
        etag = headers.get("X-Symlink-Target-Etag") or headers.get("Etag", "").strip('"')
        size = headers.get("X-Object-Sysmeta-Slo-Size") or headers.get("Content-Length", "0")
        answer = self._link(request, version, etag, size, Headers({"Content-Type": headers.get("Content-Type")}),
                            headers)
        if answer.is_success:
            answer.headers["Etag"] = etag
            answer.headers[ID] = version.id
        return answer

    # -- steps ---------------------------------------------------------------------------------------------------------

    @staticmethod
    def _path(request: Request, version: Version) -> str:
        _, v1, account, _rest = request.path.split("/", 3)
        return f"/{v1}/{account}/{hidden_container(version.container)}/{version_name(version.obj, version.timestamp)}"

    def _denied(self, request: Request, path: str) -> Any:
        """The hidden container has no ACL: what is done to its versions is for the account's owners."""
        asked = Request(dict(request.environ))
        asked.path = path
        return denial(asked.environ, None)

    def _new_version(self, request: Request) -> Version:
        timestamp = settle_timestamp(request.environ)
        _, _v1, _account, container, obj = request.path.split("/", 4)
        check_name_length(self.limits, "object", obj)
        version = Version(container, obj, timestamp)
        if len(version.target) > _MAX_LINK:
            raise BadRequest(f"Object name is too long for a container with versioning: a link to it would have "
                             f"{len(version.target)} bytes")
        return version

    def _need_hidden(self, request: Request) -> None:
        """Raises RequestError (500) when the hidden container has been lost: nothing is to be replaced then."""
        _, _v1, account, container, _obj = request.path.split("/", 4)
        info = container_info(request.environ, self.app, account, hidden_container(container), self.inner.source)
        if info.status // 100 == 5:
            raise RequestError(status=503)
        if not info.is_success:
            raise RequestError(_MISSING, status=500)

    def _keep_null(self, request: Request, is_welcome: bool = True) -> None:
        """Copy what was written without versioning to a version of its own. Raises RequestError.

        Unless ``is_welcome`` there may be no current object at all (412): to find that out when the version has been written
        would leave it behind.
        """
        current = self.inner.current(request.environ, request.path)
        if current is None:
            return
        if not is_welcome:
            current.close()
            raise RequestError(status=412)
        if is_link(current.headers):
            current.drain()
            return
        _, _v1, _account, container, obj = request.path.split("/", 4)
        version = Version(container, obj, Timestamp(current.headers.get("X-Timestamp", "0")))
        status = self.inner.copy(request.environ, current, self._path(request, version))
        if status // 100 != 2:
            raise failure(status)

    def _described(self, request: Request) -> Headers:
        """The headers of a request that describe the object."""
        kept = self.inner.persisted
        found = Headers()
        for name, value in request.header_items():
            if name in kept or name in _EXPIRY or name in _WRITE_ALSO or name.startswith(_WRITE):
                found[name] = value
        return found

    def _link(self, request: Request, version: Version, etag: str, size: str, own: Headers,
              about: Headers) -> Response:
        """Let the object's name be a link to ``version``, which ``about`` is of; ``own`` is what it is to have besides."""
        environ = request.environ
        headers = own.copy()
        kind = headers.get("Content-Type")
        if kind and "swift_" in kind:
            headers["Content-Type"] = ";".join(
                part for part in kind.split(";") if not part.strip().startswith("swift_bytes="))
        headers.update({
            "X-Timestamp": Timestamp(environ["HTTP_X_TIMESTAMP"], offset=1).internal,
            "If-None-Match": request.header("If-None-Match"),
            VERSIONS_LINK: "true",
            "X-Object-Sysmeta-Allow-Reserved-Names": "true",
            "X-Object-Sysmeta-Symloop-Extend": "true",
            _TARGET: version.target,
            f"{_TARGET}-Etag": etag,
            f"{_TARGET}-Bytes": size,
        })
        slo_etag = about.get("X-Object-Sysmeta-Slo-Etag")
        listed = listed_etag(etag, slo_etag, about.get(S3_ETAG)) if slo_etag else EMPTY_MD5
        headers[OVERRIDE_ETAG] = "; ".join([listed, *link_parameters(headers)])
        return self.inner.ask(environ, "PUT", request.path, headers)


class _Counted:
    """A body whose length is known when it has been read."""

    __slots__ = ("_source", "size")

    def __init__(self, source: Any):
        self._source, self.size = source, 0

    def read(self, size: int = -1) -> bytes:
        data: bytes = self._source.read(size)
        self.size += len(data)
        return data

    def read1(self, size: int = 65536) -> bytes:
        data: bytes = getattr(self._source, "read1", self._source.read)(size)
        self.size += len(data)
        return data

    def readline(self, size: int = -1) -> bytes:
        data: bytes = self._source.readline(size)
        self.size += len(data)
        return data


def _invalid() -> BadRequest:
    return BadRequest("Invalid version parameter", headers={"Content-Type": HTML})


def _passed_on(response: Response) -> Any:
    """The answer to the write of a version, for the client: what a missing hidden container says is not for it."""
    if response.status == 404:
        response.drain()
        raise failure(404)
    response.headers.pop(ID, None)
    return response


