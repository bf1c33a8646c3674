"""dlo: dynamic large objects, all objects whose names begin alike read as one (``spec: middleware 20``).

An object with ``X-Object-Manifest: container/prefix`` stands for the objects under that prefix, in the order of the listing,
as it is when the object is read: what is uploaded later belongs to it too. Length and ETag come from the listing. A segment
that is not as large as the listing says is an error, since a length has been promised by then. An object without that
header passes after a look at its answer's headers.

Stands after authentication, copy and staticweb; before versioned_writes, symlink and encryption. Is put in when a pipeline
lacks it. Needs nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from hashlib import md5
from typing import Any, Final
from urllib.parse import quote, unquote_to_bytes

from keelstore.common.byteranges import parse_pairs
from keelstore.common.cluster import load_cluster
from keelstore.common.conditionals import evaluate
from keelstore.common.errors import BadRequest, ConfigError, RequestError
from keelstore.common.headers import Headers
from keelstore.common.http import (
    Environ,
    Request,
    Response,
    StartResponse,
    WSGIApp,
    call_app,
    encode_query,
    error_response,
    parse_http_date,
)
from keelstore.common.internal import subrequest
from keelstore.common.limits import Limits
from keelstore.common.logs import logger_for
from keelstore.common.middleware.bodies import Answer
from keelstore.common.names import api_path
from keelstore.common.options import not_negative, option, parse, positive
from keelstore.common.ranged import ranged_response
from keelstore.common.relay import close
from keelstore.common.segment_reader import Pace, SegmentedBody, SegmentError, SegmentSource, add_name, base_of
from keelstore.common.segments import ObjectSegment, length_of, plan, whole

AFTER: Final = ("catch_errors", "gatekeeper", "proxy_logging", "memcache", "tempurl", "tempauth", "authtoken", "keystoneauth",
                "staticweb", "copy", "container_quotas", "account_quotas")
BEFORE: Final = ("versioned_writes", "symlink", "keymaster", "kms_keymaster", "kmip_keymaster", "encryption")

SOURCE: Final = "DLO"
IGNORE_RANGE: Final = "HTTP_X_BACKEND_IGNORE_RANGE_IF_METADATA_PRESENT"
_CONDITIONS: Final = ("HTTP_IF_MATCH", "HTTP_IF_NONE_MATCH", "HTTP_IF_MODIFIED_SINCE", "HTTP_IF_UNMODIFIED_SINCE")
_PASSED: Final = (("HTTP_X_AUTH_TOKEN", "X-Auth-Token"), ("HTTP_X_SERVICE_TOKEN", "X-Service-Token"),
                  ("HTTP_X_OPEN_EXPIRED", "X-Open-Expired"), ("HTTP_X_NEWEST", "X-Newest"),
                  ("HTTP_X_BACKEND_ALLOW_RESERVED_NAMES", "X-Backend-Allow-Reserved-Names"))
_FORM: Final = "X-Object-Manifest must be in the format container/prefix"
_LISTING: Final = 64 << 20  # bytes of one page


@dataclass(frozen=True)
class DloOptions:
    """Options of ``[filter:dlo]``."""

    rate_limit_after_segment: int = option(10, "So many segments of a read come without a limit.", check=not_negative)
    rate_limit_segments_per_sec: float = option(1.0, "Segments a second after that; 0: no limit.", check=not_negative)
    max_get_time: float = option(86400.0, "Seconds that one read may take.", check=positive)
    read_ahead: int = option(1, "Segments opened ahead of the one that is being sent.", check=not_negative)
    swift_dir: str = option("/etc/swift", "Directory of the cluster file.")


@dataclass(frozen=True)
class Page:
    """A part of a prefix's listing. ``is_last``: nothing follows; ``marker``: where what follows begins."""

    segments: list[ObjectSegment]
    is_last: bool
    marker: str


class Dlo:
    def __init__(self, app: WSGIApp, options: DloOptions, limits: Limits | None = None, logger: Any = None):
        self.app, self.options, self.limits, self.log = app, options, limits or Limits(), logger
        self.pace = Pace(None, options.rate_limit_after_segment, options.rate_limit_segments_per_sec, options.max_get_time,
                         options.read_ahead)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        method = environ["REQUEST_METHOD"]
        if method == "PUT":
            if "HTTP_X_OBJECT_MANIFEST" in environ and api_path(environ["PATH_INFO"]).obj:
                try:
                    _check_form(environ["HTTP_X_OBJECT_MANIFEST"])
                except RequestError as error:
                    return error_response(error)(environ, start_response)
            return self.app(environ, start_response)
        if (method != "GET" and method != "HEAD") or not api_path(environ["PATH_INFO"]).obj:
            return self.app(environ, start_response)
        if environ.get("QUERY_STRING") and Request(environ).params.get("multipart-manifest") == "get":
            return self.app(environ, start_response)
        return self._read(environ, start_response)

    def _read(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        if "HTTP_RANGE" in environ:
            add_name(environ, IGNORE_RANGE, "x-object-manifest")
        asked = environ.copy()
        answer = Answer(self.app, environ)
        value = _manifest_of(answer.headers)
        if value is None or answer.status[:3] not in ("200", "206", "304", "412", "416"):
            start_response(answer.status, answer.headers)
            return answer.body
        close(answer.body)
        request = Request(asked)
        try:
            response = self._serve(request, Headers(answer.headers), int(answer.status[:3]), value)
        except RequestError as error:
            response = error_response(error)
        except SegmentError as error:
            if self.log is not None:
                self.log.warning("%s cannot be served: %s", request.path_quoted(), error)
            response = Response(error.status)
        return response(asked, start_response)

    def _serve(self, request: Request, headers: Headers, status: int, value: str) -> Response:
        """What the manifest stands for; ``status`` is that of the manifest itself. Raises RequestError, SegmentError."""
        environ = request.environ
        if status != 200:  # conditions or range were held against the manifest
            own = call_app(self.app, subrequest(
                environ, "HEAD", request.path, source=SOURCE, query=environ.get("QUERY_STRING", ""),
                headers={name: environ[key] for key, name in _PASSED if key in environ}))
            own.drain()
            if own.status != 200 or own.headers.get("X-Object-Manifest") != value:
                return own if own.status != 200 else Response(503)
            headers = own.headers
        container, prefix = named(value)
        base = base_of(request.path, headers.get("Content-Location"))
        page = self._page(environ, base, container, prefix, "")
        if isinstance(page, Response):
            return page
        response = Response(200, headers)
        headers["Accept-Ranges"] = "bytes"
        headers.pop("Content-Range", None)
        headers.pop("Content-Length", None)
        if page.is_last:
            headers["Etag"] = f'"{etag_of(page.segments)}"'
        if any(key in environ for key in _CONDITIONS):
            found = evaluate(request.method, request.header, headers.get("Etag"),
                             parse_http_date(headers.get("Last-Modified")))
            if found is not None:
                headers["Content-Length"] = "0"
                response.status, response.body = found, b""
                return response
        source = SegmentSource(self.app, environ, base, SOURCE, "DLO MultipartGET")
        if not page.is_last:
            response.app_iter = ()  # without a length, also to HEAD
            if request.method == "GET":
                pieces = plan(_unchecked(self._all(environ, base, container, prefix, page)))
                response.app_iter = _started(SegmentedBody(source, pieces, self.pace))
            return response
        _keep_single_range(request)
        segments = list(_unchecked(page.segments))
        return ranged_response(request, response, length_of(segments), lambda start, stop: _started(
            SegmentedBody(source, plan(segments, start, stop), self.pace)))

    # -- the listing ---------------------------------------------------------------------------------------------------

    def _page(self, environ: Environ, base: str, container: str, prefix: str, marker: str) -> Page | Response:
        """One page of the listing, with the client's rights; or the answer that there is instead."""
        params = {"format": "json", "prefix": prefix}
        if marker:
            params["marker"] = marker
        headers = {name: environ[key] for key, name in _PASSED if key in environ}
        headers["Accept"] = "application/json"
        response = call_app(self.app, subrequest(environ, "GET", f"{base}/{container}", headers=headers,
                                                 query=encode_query(params), source=SOURCE))
        if response.status == 204:
            response.drain()
            return Page([], True, "")
        if not response.is_success:
            return response
        try:
            entries = json.loads(response.read(_LISTING))
            segments = [self._segment(environ, base, container, entry) for entry in entries if "name" in entry]
            last = entries[-1]["name"] if entries else ""
        except (ValueError, KeyError, TypeError) as error:
            raise SegmentError(f"/{container}/{prefix}", f"the listing cannot be read: {error!r}", 503) from None
        return Page(segments, len(entries) < self.limits.container_listing_limit, last)

    def _segment(self, environ: Environ, base: str, container: str, entry: dict[str, Any]) -> ObjectSegment:
        path = f"/{container}/{entry['name']}"
        etag, size = str(entry["hash"]).partition(";")[0], int(entry["bytes"])
        if "symlink_path" in entry:  # its row tells of the link; what counts is where it leads
            if "symlink_bytes" in entry:
                return whole(path, int(entry["symlink_bytes"]), str(entry.get("symlink_etag", etag)))
            headers = {name: environ[key] for key, name in _PASSED if key in environ}
            response = call_app(self.app, subrequest(environ, "HEAD", base + path, headers=headers, source=SOURCE,
                                                     query="multipart-manifest=get"))
            response.drain()
            length = response.headers.get("Content-Length", "")
            if response.status != 200 or not length.isdigit():
                raise SegmentError(path, f"was answered {response.status}", 503 if response.status >= 500 else 409)
            return whole(path, int(length), response.headers.get("Etag", "").strip('"'))
        return whole(path, size, etag)

    def _all(self, environ: Environ, base: str, container: str, prefix: str, page: Page) -> Iterator[ObjectSegment]:
        """The segments of ``page`` and of all pages after it."""
        while True:
            yield from page.segments
            if page.is_last:
                return
            found = self._page(environ, base, container, prefix, page.marker)
            if isinstance(found, Response):
                found.drain()
                raise SegmentError(f"/{container}/{prefix}", f"its listing was answered {found.status}")
            page = found


def _unchecked(segments: Iterable[ObjectSegment]) -> Iterator[ObjectSegment]:
    """The segments without their ETags: a listing may be a moment behind an object that was written anew."""
    return (replace(segment, etag="") for segment in segments)


def _started(body: SegmentedBody) -> SegmentedBody:
    body.start()
    return body


def _manifest_of(headers: Iterable[tuple[str, str]]) -> str | None:
    for name, value in headers:
        if len(name) == 17 and name.lower() == "x-object-manifest":
            return value
    return None


def _check_form(value: str) -> None:
    """Raises BadRequest for what is no ``container/prefix``."""
    container, slash, prefix = value.partition("/")
    if not container or not slash or not prefix or prefix.startswith("/") or "?" in value or "&" in value:
        raise BadRequest(_FORM)


def named(value: str) -> tuple[str, str]:
    """Container and prefix, text, of a percent-encoded header. Raises SegmentError: a POST may have set anything."""
    container, _, prefix = unquote_to_bytes(value.encode("latin-1")).decode("utf-8", "surrogateescape").partition("/")
    if not container or not prefix:
        raise SegmentError(quote(value), "X-Object-Manifest does not name a container and a prefix")
    return container, prefix


def etag_of(segments: Iterable[ObjectSegment]) -> str:
    """The ETag of a dynamic large object, without quotes."""
    return md5("".join([segment.etag for segment in segments]).encode("utf-8", "surrogateescape"),
               usedforsecurity=False).hexdigest()


def _keep_single_range(request: Request) -> None:
    """Several ranges are not served: the header is ignored then (``spec: client-api 6.2``)."""
    pairs = parse_pairs(request.header("Range"))
    if pairs is not None and len(pairs) > 1:
        request.set_header("Range", None)


def filter_factory(global_conf: dict[str, str], **local_conf: str) -> Callable[[WSGIApp], Dlo]:
    conf = {**global_conf, **local_conf}
    options = parse(DloOptions, conf, section="filter:dlo", local=local_conf, known=("use", "set *", "log_*"))
    try:
        limits = load_cluster(options.swift_dir).limits
    except ConfigError:  # the proxy itself says so if that matters
        limits = Limits()
    logger = logger_for(conf, "dlo")
    return lambda app: Dlo(app, options, limits, logger)
