"""slo: static large objects, one object made of many (``spec: middleware 19``).

A manifest (``PUT ?multipart-manifest=put``, a JSON list of segments) is checked against the segments that it names and stored
as an object; reading that object gives the segments' bytes one after the other, with an ETag and ranges of its own. What a
segment was when the manifest was written is what a read gives: one that is missing or has changed since is an error
(``common/segment_reader``). An object that is no manifest passes after a look at its answer's headers.

Stands after authentication, copy and staticweb; before versioned_writes, symlink and encryption. Needs nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import md5
from typing import Any, Final

from keelstore.common.byteranges import parse as parse_range
from keelstore.common.cluster import load_cluster
from keelstore.common.conditionals import evaluate
from keelstore.common.errors import BadRequest, ConfigError, RequestError
from keelstore.common.headers import Headers, is_true
from keelstore.common.http import (
    Environ,
    Request,
    Response,
    StartResponse,
    WSGIApp,
    call_app,
    error_response,
    parse_http_date,
)
from keelstore.common.internal import subrequest
from keelstore.common.logs import logger_for
from keelstore.common.middleware import slo_delete, slo_put
from keelstore.common.middleware.bodies import Answer
from keelstore.common.mime import content_types
from keelstore.common.names import HashPath, api_path
from keelstore.common.options import Check, not_negative, option, parse, positive
from keelstore.common.ranged import ranged_response
from keelstore.common.registry import register_info
from keelstore.common.relay import close
from keelstore.common.segment_reader import (
    MANIFEST_LIMIT,
    Pace,
    SegmentedBody,
    SegmentError,
    SegmentSource,
    add_name,
    base_of,
)
from keelstore.common.segments import (
    ManifestError,
    Segment,
    as_request,
    decode,
    etag_of,
    length_of,
    plan,
    span_of,
)
from keelstore.common.timestamp import Timestamp

AFTER: Final = ("catch_errors", "gatekeeper", "proxy_logging", "memcache", "tempurl", "tempauth", "authtoken", "keystoneauth",
                "staticweb", "copy", "container_quotas", "account_quotas")
BEFORE: Final = ("versioned_writes", "symlink", "keymaster", "kms_keymaster", "kmip_keymaster", "encryption")

OVERRIDE: Final = "swift.slo_override"
ETAG_IS_AT: Final = "HTTP_X_BACKEND_ETAG_IS_AT"
IGNORE_RANGE: Final = "HTTP_X_BACKEND_IGNORE_RANGE_IF_METADATA_PRESENT"
_CONDITIONS: Final = ("If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since")
_RESERVED: Final = ("X-Static-Large-Object is a reserved header. To create a static large object add query param "
                    "multipart-manifest=put.")
_UNREADABLE: Final = "Unable to load SLO manifest"
_LISTED_ETAGS = {name: re.compile(rb'"hash": "([^"\\;]*)((?:;[^"\\]*)?); ' + name.encode() + rb'=([^"\\;]*)((?:;[^"\\]*)?)"')
                 for name in ("slo_etag", "s3_etag")}


def _up_to(most: int) -> Check:
    def check(value: Any) -> str | None:
        return None if 1 <= value <= most else f"a number from 1 to {most}"

    return check


@dataclass(frozen=True)
class SloOptions:
    """Options of ``[filter:slo]``."""

    max_manifest_segments: int = option(1000, "Most objects that one manifest may name.", check=positive)
    max_manifest_size: int = option(8388608, "Largest manifest in bytes, as sent.", check=positive)
    rate_limit_under_size: int = option(1048576, "Segments smaller than this, in bytes, are read at a limited rate.",
                                        check=not_negative)
    rate_limit_after_segment: int = option(10, "So many small segments of a read come without a limit.", check=not_negative)
    rate_limit_segments_per_sec: float = option(1.0, "Small segments a second after that; 0: no limit.", check=not_negative)
    max_get_time: float = option(86400.0, "Seconds that one read may take.", check=positive)
    concurrency: int = option(2, "Segments looked at at once when a manifest is written.", check=_up_to(1000))
    delete_concurrency: int | None = option(None, "Segments deleted at once; auto: as concurrency.", check=_up_to(1000))
    yield_frequency: float = option(10.0, "Seconds between the blanks that keep a long request alive.", check=positive)
    allow_async_delete: bool = option(True, "Allow deletes that leave the segments to the expirer (async=on).")
    read_ahead: int = option(1, "Segments opened ahead of the one that is being sent.", check=not_negative)
    expiring_objects_container_divisor: int = option(86400, "Seconds of expiry times that share a queue container.",
                                                     check=positive)
    expiring_objects_account_name: str = option("expiring_objects", "Account of the expiry queue, without its dot.")
    swift_dir: str = option("/etc/swift", "Directory of the cluster file.")

    @property
    def deletes_at_once(self) -> int:
        return self.delete_concurrency or self.concurrency


class Slo:
    SOURCE: Final = "SLO"
    PASSED: Final = (("HTTP_X_AUTH_TOKEN", "X-Auth-Token"), ("HTTP_X_SERVICE_TOKEN", "X-Service-Token"),
                     ("HTTP_X_BACKEND_ALLOW_RESERVED_NAMES", "X-Backend-Allow-Reserved-Names"))
    """What sub-requests get of the client's headers: environ key, name."""

    def __init__(self, app: WSGIApp, options: SloOptions, hash_path: HashPath | None, logger: Any):
        self.app, self.options, self.hash_path, self.log = app, options, hash_path, logger
        self.content_types = content_types(options.swift_dir)
        self.pace = Pace(options.rate_limit_under_size, options.rate_limit_after_segment,
                         options.rate_limit_segments_per_sec, options.max_get_time, options.read_ahead)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        names = api_path(environ["PATH_INFO"])
        method = environ["REQUEST_METHOD"]
        if not names.obj:
            if method == "GET" and names.container:
                return self._list(environ, start_response)
            return self.app(environ, start_response)
        if environ.get(OVERRIDE):
            return self.app(environ, start_response)
        try:
            if method == "GET" or method == "HEAD":
                return self._read(environ, start_response)
            answer = self._write(Request(environ), method)
        except RequestError as error:
            answer = error_response(error)
        return answer(environ, start_response)

    def _write(self, request: Request, method: str) -> Any:
        if request.environ.get("QUERY_STRING"):
            wanted = request.params.get("multipart-manifest")
            if method == "PUT" and wanted == "put":
                return slo_put.put(self, request)
            if method == "DELETE" and wanted == "delete":
                return slo_delete.delete(self, request)
        if "HTTP_X_STATIC_LARGE_OBJECT" in request.environ:
            raise BadRequest(_RESERVED)
        return self.app

    # -- reading -------------------------------------------------------------------------------------------------------

    def _read(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        params = Request(environ).params if environ.get("QUERY_STRING") else {}
        if params.get("multipart-manifest") == "get":
            return self._read_manifest(environ, params.get("format") == "raw", start_response)
        if "HTTP_IF_MATCH" in environ or "HTTP_IF_NONE_MATCH" in environ:
            add_name(environ, ETAG_IS_AT, "x-object-sysmeta-slo-etag")
        if "HTTP_RANGE" in environ:
            add_name(environ, IGNORE_RANGE, "x-static-large-object")
        asked = environ.copy()  # as the client asked: filters further on may turn the request to another object
        answer = Answer(self.app, environ)
        if not is_manifest(answer.headers):
            start_response(answer.status, answer.headers)
            return answer.body
        response = _response_of(answer, environ)
        try:
            response = self._serve(Request(asked), response, params.get("part-number"))
        except RequestError as error:
            response.close()
            response = error_response(error)
        except SegmentError as error:
            self.log.warning("%s cannot be served: %s", Request(asked).path_quoted(), error)
            response.close()
            response = Response(error.status)
        return response(asked, start_response)

    def _serve(self, request: Request, response: Response, number: str | None) -> Response:
        """The large object that the manifest in ``response`` stands for. Raises RequestError, SegmentError."""
        part = _part_number(request, number)
        headers = response.headers
        lacks = slo_put.unread(headers)
        segments: list[Segment] | None = None
        if lacks or (response.status in (200, 206, 416) and (request.method == "GET" or part is not None)):
            response, segments = self._manifest(request, response)
            if segments is None:
                return response
            headers = response.headers
        if segments is None or not lacks:
            size, etag = _number(headers.get("X-Object-Sysmeta-Slo-Size")), headers.get("X-Object-Sysmeta-Slo-Etag", "")
        else:
            size, etag = length_of(segments), etag_of(segments)
        if segments is not None and length_of(segments) != size:
            raise RequestError(_UNREADABLE, status=500)
        headers["X-Manifest-Etag"] = headers.get("Etag", "").strip('"')
        headers["Etag"] = f'"{etag}"'
        if lacks:
            status = evaluate(request.method, request.header, etag, parse_http_date(headers.get("Last-Modified")))
            if status is not None:
                response.status, response.body, response.app_iter = status, b"", None
                headers["Content-Length"] = "0"
        if response.status not in (200, 206, 416):
            headers["Content-Type"] = headers.get("Content-Type", "").partition(";swift_bytes=")[0]
            return response
        response.status, response.app_iter, response.body = 200, None, b""
        headers.pop("Content-Range", None)
        headers["Accept-Ranges"] = "bytes"
        if part is not None and segments is not None:
            return self._serve_part(request, response, segments, part, size)
        if segments is None or request.method == "HEAD":
            headers["Content-Length"] = str(size)
            return response
        return self._serve_bytes(request, response, segments, size)

    def _ask_again(self, request: Request, method: str, headers: dict[str, Any]) -> Response:
        environ = request.environ
        headers.update((name, environ[key]) for key, name in self.PASSED if key in environ)
        headers["X-Open-Expired"] = environ.get("HTTP_X_OPEN_EXPIRED")
        return call_app(self.app, subrequest(environ, method, request.path, headers=headers, source=self.SOURCE,
                                             query=environ.get("QUERY_STRING", "")))

    def _manifest(self, request: Request, response: Response) -> tuple[Response, list[Segment] | None]:
        """The whole manifest. Without segments: the object has changed meanwhile, the response is its answer.

        Asked for again where the answer does not hold it: to HEAD, to a range that a server did not ignore, or to conditions
        that were held against the manifest instead of the large object. Raises RequestError.
        """
        if response.status != 200 or request.method == "HEAD":
            response.drain()
            first = _time_of(response.headers)
            response = self._ask_again(request, "GET", {"X-Newest": "true"})
            if response.status != 200:
                return response, None
            if not is_true(response.headers.get("X-Static-Large-Object")):  # overwritten by something plain
                response.close()
                return self._ask_again(request, request.method, {
                    name: request.header(name) for name in ("Range", *_CONDITIONS)}), None
            if _time_of(response.headers) < first:
                response.close()
                raise RequestError(status=503)
        try:
            return response, decode(response.read(MANIFEST_LIMIT))
        except (ManifestError, ValueError) as error:
            self.log.error("%s: %s: %s", _UNREADABLE, request.path_quoted(), error)
            raise RequestError(_UNREADABLE, status=500) from None

    def _serve_part(self, request: Request, response: Response, segments: list[Segment], part: int, size: int) -> Response:
        headers = response.headers
        headers["X-Parts-Count"] = str(len(segments))
        span = span_of(segments, part)
        if span is None:
            response.status = 416
            headers["Content-Range"] = f"bytes */{size}"
            headers["Content-Length"] = "0"
            response.body = b"The requested part number is not satisfiable" if request.method == "GET" else b""
            return response
        start, stop = span
        response.status = 206
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
        headers["Content-Length"] = str(stop - start)
        if request.method == "GET" and stop > start:
            response.body, response.app_iter = None, self._open(request, response, segments, start, stop)
        return response

    def _serve_bytes(self, request: Request, response: Response, segments: list[Segment], size: int) -> Response:
        """The whole, or the ranges asked for. The first segment of what is asked is open when this returns."""
        spans = parse_range(request.header("Range"), size)
        if spans is None:
            spans = [(0, size)] if size else []  # type: ignore[list-item]
        bodies: dict[tuple[int, int], SegmentedBody] = {}
        if spans:
            first = tuple(spans[0])
            bodies[first] = self._open(request, response, segments, *first)  # type: ignore[index]

        def read_range(start: int, stop: int) -> Iterable[bytes]:
            body = bodies.pop((start, stop), None)
            return body if body is not None else self._body(request, response, segments, start, stop)

        ranged_response(request, response, size, read_range)
        if bodies and response.app_iter is not None:  # several ranges: the first is taken when its turn comes
            response.app_iter = _Owning(response.app_iter, bodies)
        return response

    def _open(self, request: Request, response: Response, segments: list[Segment], start: int, stop: int) -> SegmentedBody:
        body = self._body(request, response, segments, start, stop)
        body.start()
        return body

    def _body(self, request: Request, response: Response, segments: list[Segment], start: int, stop: int) -> SegmentedBody:
        base = base_of(request.path, response.headers.get("Content-Location"))
        source = SegmentSource(self.app, request.environ, base, self.SOURCE, "SLO MultipartGET")
        return SegmentedBody(source, plan(segments, start, stop), self.pace)

    # -- the manifest itself -------------------------------------------------------------------------------------------

    def _read_manifest(self, environ: Environ, is_raw: bool, start_response: StartResponse) -> Iterable[bytes]:
        if not is_raw:
            answer = Answer(self.app, environ)
            if is_manifest(answer.headers) and answer.status[:3] != "416":
                answer.headers = [header for header in answer.headers if header[0].lower() != "content-type"]
                answer.headers.append(("Content-Type", "application/json; charset=utf-8"))
            start_response(answer.status, answer.headers)
            return answer.body
        asked = environ.copy()
        answer = Answer(self.app, environ)
        if not is_manifest(answer.headers):
            start_response(answer.status, answer.headers)
            return answer.body
        request, response = Request(asked), _response_of(answer, environ)
        try:
            if any(request.header(name) for name in _CONDITIONS):  # held against an ETag that what is sent does not have
                response.status = 412
            response, segments = self._manifest(request, response)
            if segments is not None:
                _as_raw(request, response, segments)
        except RequestError as error:
            response = error_response(error)
        return response(asked, start_response)

    # -- listings ------------------------------------------------------------------------------------------------------

    def _list(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """A container's listing, the ETags of large objects told apart from those of their manifests."""
        answer = Answer(self.app, environ)
        if answer.status[:3] != "200" or not _is_json(answer.headers):
            start_response(answer.status, answer.headers)
            return answer.body
        try:
            data = b"".join(answer.body)
        finally:
            close(answer.body)
        if b"; slo_etag=" in data or b"; s3_etag=" in data:
            for name in _LISTED_ETAGS:  # that of s3api too: uploads in parts are large objects
                data = with_etags(data, name)
            answer.headers = [header for header in answer.headers if header[0].lower() != "content-length"]
            answer.headers.append(("Content-Length", str(len(data))))
        start_response(answer.status, answer.headers)
        return (data,)


class _Owning:
    """A body of several ranges, and the first of them until it is taken."""

    def __init__(self, parts: Iterable[bytes], bodies: dict[tuple[int, int], SegmentedBody]):
        self._parts, self._bodies = parts, bodies

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._parts)

    def close(self) -> None:
        close(self._parts)
        while self._bodies:
            self._bodies.popitem()[1].close()


def is_manifest(headers: Iterable[tuple[str, str]]) -> bool:
    for name, value in headers:
        if len(name) == 21 and name.lower() == "x-static-large-object":
            return is_true(value)
    return False


def _is_json(headers: Iterable[tuple[str, str]]) -> bool:
    return any(len(name) == 12 and name.lower() == "content-type" and value.startswith("application/json")
               for name, value in headers)


def _response_of(answer: Answer, environ: Environ) -> Response:
    body = answer.body
    if environ["REQUEST_METHOD"] == "HEAD":
        close(body)
        body = ()
    headers = Headers(answer.headers)
    if type(body) is tuple or type(body) is list:
        return Response(int(answer.status[:3]), headers, b"".join(body))
    return Response(int(answer.status[:3]), headers, app_iter=body)


def _number(text: str | None) -> int:
    """Raises RequestError for what is no size."""
    if not text or not text.isascii() or not text.isdigit():
        raise RequestError(_UNREADABLE, status=500)
    return int(text)


def _part_number(request: Request, text: str | None) -> int | None:
    """Raises BadRequest."""
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()) or len(text) > 18 or not int(text):
        raise BadRequest("Part number must be an integer greater than 0")
    if "HTTP_RANGE" in request.environ:
        raise BadRequest("Range requests are not supported with part number queries")
    return int(text)


def _time_of(headers: Headers) -> Timestamp:
    """When an object was written, as its answer tells."""
    for name in ("X-Backend-Data-Timestamp", "X-Backend-Timestamp", "X-Timestamp"):
        text = headers.get(name)
        if text:
            try:
                return Timestamp(text)
            except ValueError:
                break
    return Timestamp(0)


def _as_raw(request: Request, response: Response, segments: list[Segment]) -> None:
    """Turn a manifest's answer into that for ``format=raw``."""
    data = as_request(segments)
    headers = response.headers
    headers["Etag"] = md5(data, usedforsecurity=False).hexdigest()
    status = evaluate(request.method, request.header, headers["Etag"], parse_http_date(headers.get("Last-Modified")))
    response.body = response.app_iter = None
    if status is not None:
        response.status, response.body = status, b""
        headers["Content-Length"] = "0"
        return
    response.status = 200
    ranged_response(request, response, len(data), lambda start, stop: (data[start:stop],))


def with_etags(listing: bytes, which: str) -> bytes:
    """A JSON listing, ``slo_etag`` or ``s3_etag`` taken out of the hashes into fields of their own."""
    mark = f"; {which}=".encode()
    found = _LISTED_ETAGS[which].sub(rb'"hash": "\1\2\4", "' + which.encode() + rb'": "\\"\3\\""', listing)
    if mark not in found:
        return found
    try:  # in another layout than that of our own servers; or it is part of a name
        entries = json.loads(found)
        for entry in entries:
            kept = []
            for part in entry.get("hash", "").split("; "):
                name, _, value = part.partition("=")
                if name == which:
                    entry[which] = f'"{value}"'
                else:
                    kept.append(part)
            if "hash" in entry:
                entry["hash"] = "; ".join(kept)
        return json.dumps(entries).encode("ascii")
    except (ValueError, TypeError, AttributeError):
        return found


def filter_factory(global_conf: dict[str, str], **local_conf: str) -> Callable[[WSGIApp], Slo]:
    conf = {**global_conf, **local_conf}
    options = parse(SloOptions, conf, section="filter:slo", local=local_conf, known=("use", "set *", "log_*"))
    try:
        hash_path: HashPath | None = load_cluster(options.swift_dir).hash_path
    except ConfigError:  # the proxy itself says so
        hash_path = None
    register_info("slo", max_manifest_segments=options.max_manifest_segments, max_manifest_size=options.max_manifest_size,
                  yield_frequency=int(options.yield_frequency), min_segment_size=1,
                  allow_async_delete=options.allow_async_delete)
    logger = logger_for(conf, "slo")
    return lambda app: Slo(app, options, hash_path, logger)
