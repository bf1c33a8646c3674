"""copy: COPY an object, and PUT one with ``X-Copy-From``, within the cluster (``spec: client-api 5.6, middleware 16``).

A GET of the source, with the client's rights, feeds a PUT of the destination, which goes on down the pipeline as the client's
own request: quotas, large objects, versioning and encryption see a PUT. The GET is built of what a copy understands (range,
conditions, version, manifest); what the client sent besides does not reach the source. A request that a signed URL or form
authorized may not copy: its signature is for the destination only (security S01).

Stands after authentication, before quotas and large objects (and is put there when a pipeline lacks it). Needs nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from keelstore.common import concurrency
from keelstore.common.cluster import load_cluster
from keelstore.common.errors import (
    BadRequest,
    ConfigError,
    EntityTooLarge,
    PreconditionFailed,
    RequestError,
    WaitTimeout,
)
from keelstore.common.headers import Headers, environ_key, is_sysmeta, is_transient_sysmeta, is_true, is_user_meta
from keelstore.common.http import (
    SOURCE,
    Environ,
    Request,
    Response,
    StartResponse,
    WSGIApp,
    call_app,
    encode_query,
    error_response,
    status_line,
    wsgify,
)
from keelstore.common.internal import BodyOf, subrequest
from keelstore.common.limits import Limits
from keelstore.common.logs import logger_for
from keelstore.common.names import quoted
from keelstore.common.options import option, parse, positive

AFTER: Final = ("catch_errors", "gatekeeper", "proxy_logging", "memcache", "tempauth", "authtoken", "keystoneauth",
                "staticweb")
BEFORE: Final = ("container_quotas", "account_quotas", "slo", "dlo", "versioned_writes", "symlink", "encryption")

SIGNED_USERS: Final = frozenset({".wsgi.tempurl", ".wsgi.formpost"})
SOURCE_NAME: Final = "SSC"
ORIGINAL_METHOD: Final = "swift.orig_req_method"

# Of the request, what is meant for the source; and what has been done with when the destination is written.
_FOR_SOURCE: Final = ("Range", "If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since", "X-Auth-Token",
                      "X-Service-Token", "X-Backend-Allow-Reserved-Names")
_SOURCE_PARAMS: Final = ("multipart-manifest", "symlink", "version-id", "part-number")
_SPENT: Final = ("HTTP_RANGE", "HTTP_IF_MATCH", "HTTP_IF_NONE_MATCH", "HTTP_IF_MODIFIED_SINCE", "HTTP_IF_UNMODIFIED_SINCE",
                 "HTTP_X_COPY_FROM", "HTTP_X_COPY_FROM_ACCOUNT", "HTTP_DESTINATION", "HTTP_DESTINATION_ACCOUNT",
                 "HTTP_TRANSFER_ENCODING", "HTTP_EXPECT")
_SPENT_PARAMS: Final = frozenset({"multipart-manifest", "symlink", "version-id", "part-number", "heartbeat", "format"})
# Of the source's answer, what tells of that answer or that object only and is not copied.
_NOT_COPIED: Final = frozenset({
    "Content-Length", "Content-Range", "Content-Type", "Content-Location", "Etag", "Date", "Last-Modified", "Accept-Ranges",
    "Connection", "Keep-Alive", "Transfer-Encoding", "Server", "Vary", "Set-Cookie", "Location", "Www-Authenticate",
    "X-Timestamp", "X-Trans-Id", "X-Openstack-Request-Id", "X-Static-Large-Object", "X-Object-Manifest", "X-Manifest-Etag",
    "X-Parts-Count", "X-Object-Version-Id", "X-Copied-From", "X-Copied-From-Account", "X-Copied-From-Last-Modified",
    "X-Copied-From-Version-Id",
})  # fmt: skip
_OVERRIDES: Final = "X-Object-Sysmeta-Container-Update-Override-"


@dataclass(frozen=True)
class CopyOptions:
    """Options of ``[filter:copy]``."""

    yield_frequency: float = option(10.0, "Seconds between the blanks that keep a copy with heartbeat=on alive.",
                                    check=positive)
    swift_dir: str = option("/etc/swift", "Directory of the cluster file.")


class Copy:
    def __init__(self, app: WSGIApp, options: CopyOptions, limits: Limits | None = None, logger: Any = None):
        self.app, self.options, self.limits, self.log = app, options, limits or Limits(), logger

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        method = environ["REQUEST_METHOD"]
        if method == "PUT":
            if not environ.get("HTTP_X_COPY_FROM"):
                return self.app(environ, start_response)
        elif method != "COPY" and method != "OPTIONS":
            return self.app(environ, start_response)
        parts = environ["PATH_INFO"].split("/", 4)
        if len(parts) < 5 or not all(parts[1:]) or parts[0]:
            return self.app(environ, start_response)
        if method == "OPTIONS":
            return self._options(environ, start_response)
        return self._copy(environ, start_response)

    def _options(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """COPY is ours, so we add it to what the proxy allows."""

        def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            allows = [(name, f"{value}, COPY" if name.lower() in ("allow", "access-control-allow-methods") and value
                       else value) for name, value in headers]
            return start_response(status, allows)

        return self.app(environ, start)

    @wsgify
    def _copy(self, request: Request) -> WSGIApp:
        environ = request.environ
        if environ.get("REMOTE_USER") in SIGNED_USERS:
            raise BadRequest("A signed request cannot copy")
        names = _Names.of(request)
        _check_no_body(request)
        source = self._get_source(request, names)
        if source.status >= 300:
            return source
        length = source.headers.get("Content-Length")
        if length is None and source.app_iter is None:
            length = str(len(source.body or b""))
        if not length or not length.isascii() or not length.isdigit() or int(length) > self.limits.max_file_size:
            source.close()
            raise EntityTooLarge(f"The source is larger than {self.limits.max_file_size} bytes, or of unknown size; a large "
                                 "object of any size is copied with multipart-manifest=get")
        asks_heartbeat = is_true(request.params.get("heartbeat"))
        body = BodyOf(source, int(length))
        told = _aim_at_destination(request, names, source, body)
        if asks_heartbeat:
            return self._with_heartbeat(environ, names, body, told)
        return self._put(environ, body, told)

    def _get_source(self, request: Request, names: _Names) -> Response:
        headers = Headers({name: request.header(name) for name in _FOR_SOURCE})
        headers["X-Newest"] = "true"
        params: dict[str, str] = {name: request.params[name] for name in _SOURCE_PARAMS if name in request.params}
        if params.get("multipart-manifest") == "get":
            params["format"] = "raw"
        environ = subrequest(request.environ, "GET", names.source_path, headers=headers, query=encode_query(params),
                             source=SOURCE_NAME)
        return call_app(self.app, environ)

    def _put(self, environ: Environ, body: BodyOf, told: Headers) -> Response:
        """Write the destination and give its answer, with what was copied told if it worked."""
        try:
            response = call_app(self.app, environ)
        finally:
            body.close()
        if body.is_broken and response.status in (408, 499):
            response.drain()
            return Response(503)
        if response.is_success:
            response.headers.update(told)
        return response

    # -- heartbeat ---------------------------------------------------------------------------------------------------

    def _with_heartbeat(self, environ: Environ, names: _Names, body: BodyOf, told: Headers) -> Response:
        """202 at once, a blank now and then, and what came of it at the end."""
        is_json = "application/json" in environ.get("HTTP_ACCEPT", "")
        result = concurrency.Event()

        def work() -> None:
            try:
                answer = self._put(environ, body, told)
                result.set((status_line(answer.status), answer.headers, _whole_body(answer, environ)))
            except RequestError as error:
                answer = error_response(error)
                result.set((status_line(answer.status), answer.headers, error.reason.encode("utf-8")))
            except Exception:  # the answer has begun: all that is left is to say so in its body
                if self.log is not None:
                    self.log.exception("copying failed")
                result.set((status_line(500), Headers(), b""))

        def parts() -> Iterator[bytes]:
            concurrency.spawn(work)
            yield b" "
            while True:
                try:
                    status, headers, text = result.wait(self.options.yield_frequency)
                    break
                except WaitTimeout:
                    yield b" "
            yield _summary(status, headers, text, names.source, is_json)

        return Response(202, {"Content-Type": "application/json" if is_json else "text/plain"}, app_iter=parts())


@dataclass(frozen=True)
class _Names:
    """Both ends of a copy; text. ``source`` is ``container/object``."""

    version: str
    source_account: str
    source: str
    account: str
    destination: str

    @property
    def source_path(self) -> str:
        return f"/{self.version}/{self.source_account}/{self.source}"

    @property
    def destination_path(self) -> str:
        return f"/{self.version}/{self.account}/{self.destination}"

    @classmethod
    def of(cls, request: Request) -> _Names:
        """Raises PreconditionFailed for a header that names no object or account."""
        _, version, account, container, obj = request.path.split("/", 4)
        if request.method == "COPY":
            if not request.header("Destination"):
                raise PreconditionFailed("Destination header required", headers=_HTML)
            return cls(version, account, f"{container}/{obj}", _account_of(request, "Destination-Account", account),
                       _object_of(request, "Destination"))
        return cls(version, _account_of(request, "X-Copy-From-Account", account), _object_of(request, "X-Copy-From"),
                   account, f"{container}/{obj}")


_HTML: Final = {"Content-Type": "text/html; charset=UTF-8"}


def _decoded(wire: str) -> str:
    return unquote_to_bytes(wire.encode("latin-1")).decode("utf-8", "surrogateescape")


def _object_of(request: Request, name: str) -> str:
    """``[/]container/object`` of a percent-encoded header."""
    path = _decoded(request.header(name))
    path = path[1:] if path.startswith("/") else path
    container, slash, obj = path.partition("/")
    if not container or not slash or not obj:
        raise PreconditionFailed(f"{name} header must be of the form <container name>/<object name>", headers=_HTML)
    return f"{container}/{obj}"


def _account_of(request: Request, name: str, default: str) -> str:
    value = request.header(name)
    if value is None:
        return default
    account = _decoded(value)
    if not account:
        raise PreconditionFailed("Account name cannot be empty", headers=_HTML)
    if "/" in account:
        raise PreconditionFailed("Account name cannot contain slashes", headers=_HTML)
    return account


def _check_no_body(request: Request) -> None:
    """Raises BadRequest when there is one; a chunked body counts when it is not empty."""
    if request.content_length or (request.is_chunked and request.body_file.read(1)):
        raise BadRequest("Copy requests require a zero byte body", headers={"Connection": "close"})


def _aim_at_destination(request: Request, names: _Names, source: Response, body: BodyOf) -> Headers:
    """Turn the client's environ into the PUT of the destination; gives what is to be told of the copy."""
    environ = request.environ
    found = source.headers
    wants_manifest = request.params.get("multipart-manifest") == "get"
    is_slo = is_true(found.get("X-Static-Large-Object"))
    is_expanded = "X-Object-Manifest" in found and not wants_manifest

    copied = _metadata(found, is_true(request.header("X-Fresh-Metadata")))
    if wants_manifest and "X-Object-Manifest" in found:
        copied["X-Object-Manifest"] = found["X-Object-Manifest"]
    if source.status == 200 and not is_slo and not is_expanded and found.get("Etag"):
        copied["Etag"] = found["Etag"]
    else:
        for name in [name for name in copied if name.startswith(_OVERRIDES)]:
            del copied[name]
    if "Content-Type" in found:
        copied["Content-Type"] = found["Content-Type"]

    params = {name: value for name, value in request.params.items() if name not in _SPENT_PARAMS}
    if wants_manifest and is_slo:
        params["multipart-manifest"] = "put"
    if environ["REQUEST_METHOD"] == "COPY":
        environ[ORIGINAL_METHOD] = "COPY"
    for key in _SPENT:
        environ.pop(key, None)
    for name, value in copied.items():
        key = environ_key(name)
        if key not in environ or (key == "CONTENT_TYPE" and not environ[key]):
            environ[key] = value
    request.method = "PUT"
    request.path = names.destination_path
    request.params = params
    environ["wsgi.input"] = body
    environ["CONTENT_LENGTH"] = str(body.length)
    environ[SOURCE] = SOURCE_NAME

    told = Headers({
        "X-Copied-From-Account": quoted(names.source_account),
        "X-Copied-From": quoted(names.source),
        "X-Copied-From-Last-Modified": found.get("Last-Modified"),
        "X-Copied-From-Version-Id": found.get("X-Object-Version-Id"),
    })
    for name, value in request.header_items():
        if is_user_meta("object", name) or name == "X-Delete-At":
            told[name] = value
    return told


def _metadata(found: Headers, is_fresh: bool) -> Headers:
    """The headers of the source that become the destination's."""
    copied = Headers()
    for name, value in found.items():
        if is_fresh:
            if is_sysmeta("object", name):
                copied[name] = value
        elif name not in _NOT_COPIED and not name.startswith(("X-Backend-", "Access-Control-")):
            copied[name] = value
    return copied


def _whole_body(answer: Response, environ: Environ) -> bytes:
    """What the client would have been sent; the status line's page when there is no body of its own."""
    collected: list[Any] = []
    parts = answer(environ, lambda status, headers, exc_info=None: collected.append(headers))
    try:
        return b"".join(parts)
    finally:
        answer.close()


def _summary(status: str, headers: Headers, text: bytes, source: str, is_json: bool) -> bytes:
    """The end of a copy with heartbeat: status, body and headers of the PUT, as text or JSON."""
    shown: dict[str, str] = {"Response Status": status, "Response Body": text.decode("utf-8", "replace")}
    shown.update((name, value) for name, value in headers.items()
                 if not is_sysmeta("object", name) and not is_transient_sysmeta(name) and not name.startswith("X-Backend"))
    errors = [] if status.startswith("2") else [[quoted(source), status]]
    if is_json:
        return json.dumps({**shown, "Errors": errors}).encode("ascii")
    lines = [f"{name}: {value}\n" for name, value in sorted(shown.items())]
    lines.append("Errors:\n")
    lines += [f"{name}, {problem}\n" for name, problem in errors]
    return "".join(lines).encode("utf-8", "surrogateescape")


def filter_factory(global_conf: dict[str, str], **local_conf: str) -> Callable[[WSGIApp], Copy]:
    conf = {**global_conf, **local_conf}
    options = parse(CopyOptions, conf, section="filter:copy", local=local_conf,
                    known=("use", "set *", "log_*", "object_post_as_copy"))
    try:
        limits = load_cluster(options.swift_dir).limits
    except ConfigError:  # the proxy itself says so if that matters
        limits = Limits()
    logger = logger_for(conf, "copy")
    return lambda app: Copy(app, options, limits, logger)
