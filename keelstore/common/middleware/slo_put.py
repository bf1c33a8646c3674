"""Writing the manifest of a static large object: ``PUT ?multipart-manifest=put`` (``spec: middleware 19.1``)."""

from __future__ import annotations

import io
import time
from dataclasses import dataclass
from hashlib import md5
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from keelstore.common import concurrency, work_report
from keelstore.common.errors import (
    BadRequest,
    EntityTooLarge,
    LengthRequired,
    RequestError,
    UnprocessableEntity,
)
from keelstore.common.headers import Headers, is_true, wire_to_text
from keelstore.common.http import Environ, Request, Response, call_app, error_response, parse_http_date, status_line
from keelstore.common.internal import subrequest
from keelstore.common.middleware.slo_manifest import Found, Wish, parse, resolve
from keelstore.common.segment_reader import MANIFEST_LIMIT
from keelstore.common.segments import ManifestError, Segment, decode, encode, etag_of, length_of

if TYPE_CHECKING:
    from keelstore.common.middleware.slo import Slo

AGENT = "SLO MultipartPUT"
_LISTED_ETAG = "HTTP_X_OBJECT_SYSMETA_CONTAINER_UPDATE_OVERRIDE_ETAG"
_BAD_TYPE = "Invalid Content-Type, swift_* is not a valid parameter name."


@dataclass(frozen=True)
class _Outcome:
    """``response`` is that of the whole request; ``errors`` what is wrong with segments."""

    response: Response
    errors: list[tuple[str, str]]


def put(slo: Slo, request: Request) -> Any:
    """The answer to the PUT of a manifest. Raises RequestError."""
    environ = request.environ
    if environ.get("HTTP_X_COPY_FROM"):
        raise RequestError("Multipart Manifest PUTs cannot be COPY requests", status=405)
    _check_content_type(environ)
    body = _read_body(request, slo.options.max_manifest_size)
    _, version, account, container, obj = request.path.split("/", 4)
    wishes = parse(body, f"/{container}/{obj}", slo.options.max_manifest_segments)
    form = work_report.format_of(request.header("Accept")) or work_report.TEXT

    def work() -> _Outcome:
        found = _look_up(slo, environ, f"/{version}/{account}", {wish.path for wish in wishes if type(wish) is Wish})
        segments, errors = resolve(wishes, found)
        if errors:
            return _Outcome(Response(400), errors)
        return _Outcome(_store(slo, request, segments, obj), [])

    if is_true(request.params.get("heartbeat")):
        body_parts = work_report.KeptAlive(form, lambda: _report(slo, work, environ, form), slo.options.yield_frequency,
                                           is_eager=True)
        return Response(202, content_type=form, app_iter=body_parts)
    outcome = work()
    if outcome.errors:
        return Response(400, body=work_report.render(form, "upload", {}, outcome.errors), content_type=form)
    return outcome.response


def _check_content_type(environ: Environ) -> None:
    kind = environ.get("CONTENT_TYPE")
    if kind and ";" in kind:
        for parameter in wire_to_text(kind).split(";")[1:]:
            if parameter.strip().lower().startswith("swift_"):
                raise BadRequest(_BAD_TYPE)


def _read_body(request: Request, limit: int) -> bytes:
    """The whole body, however it is framed. Raises LengthRequired, EntityTooLarge."""
    if request.content_length is None and not request.is_chunked:
        raise LengthRequired("Missing Content-Length header.")
    try:
        body = request.read_body(limit)
    except RequestError as error:
        if error.status == 413:
            raise EntityTooLarge(f"Manifest File > {limit} bytes") from None
        raise
    length = request.content_length
    if length is not None and len(body) < length:
        raise RequestError(status=499)
    return body


# -- the segments ------------------------------------------------------------------------------------------------------


def _look_up(slo: Slo, environ: Environ, base: str, paths: set[str]) -> dict[str, Found]:
    """What is known of each path, ``concurrency`` of them asked at once."""
    pool = concurrency.Pool(slo.options.concurrency)
    tasks = [(path, pool.spawn(_head, slo, environ, base, path)) for path in sorted(paths)]
    return {path: task.wait() for path, task in tasks}


def _head(slo: Slo, environ: Environ, base: str, path: str) -> Found:
    response = _ask(slo, environ, "HEAD", base + path)
    response.drain()
    if not response.is_success:
        return Found(problem=status_line(response.status))
    headers = response.headers
    size, etag = headers.get("Content-Length", ""), headers.get("Etag", "").strip('"')
    is_manifest = is_true(headers.get("X-Static-Large-Object"))
    if is_manifest:
        size, etag = headers.get("X-Object-Sysmeta-Slo-Size", ""), headers.get("X-Object-Sysmeta-Slo-Etag", "")
        if not (size and etag):
            known = _computed(slo, environ, base + path)
            if isinstance(known, str):
                return Found(problem=known)
            size, etag = str(length_of(known)), etag_of(known)
    if not size.isdigit():
        return Found(problem="503 Service Unavailable")
    return Found(int(size), etag, wire_to_text(headers.get("Content-Type", "")), _iso(headers.get("Last-Modified")),
                 is_manifest)


def _computed(slo: Slo, environ: Environ, path: str) -> list[Segment] | str:
    """The segments of a manifest written before its size and ETag were kept with it; or the problem."""
    response = _ask(slo, environ, "GET", path)
    if not response.is_success:
        response.drain()
        return status_line(response.status)
    try:
        return decode(response.read(MANIFEST_LIMIT))
    except (ManifestError, ValueError):
        return "Invalid manifest"


def _ask(slo: Slo, environ: Environ, method: str, path: str) -> Response:
    """The answer for the object itself: a manifest of either kind is not followed."""
    headers = {name: environ[key] for key, name in slo.PASSED if key in environ}
    headers["User-Agent"] = f"{environ.get('HTTP_USER_AGENT', '')} {AGENT}".strip()
    return call_app(slo.app, subrequest(environ, method, path, headers=headers, query="multipart-manifest=get",
                                        source=slo.SOURCE))


def _iso(last_modified: str | None) -> str:
    seconds = parse_http_date(last_modified)
    t = time.gmtime(seconds if seconds is not None else 0)
    return time.strftime("%Y-%m-%dT%H:%M:%S.000000", t)


# -- the manifest ------------------------------------------------------------------------------------------------------


def _store(slo: Slo, request: Request, segments: list[Segment], obj: str) -> Response:
    """Write the manifest as the client's own PUT."""
    environ = request.environ
    etag, size = etag_of(segments), length_of(segments)
    expected = environ.get("HTTP_ETAG")
    if expected and expected.strip('"') != etag:
        raise UnprocessableEntity
    data = encode(segments)
    digest = md5(data, usedforsecurity=False).hexdigest()
    if is_true(environ.pop("HTTP_X_DETECT_CONTENT_TYPE", None)) or not environ.get("CONTENT_TYPE"):
        environ["CONTENT_TYPE"] = slo.content_types.of(obj)
    environ["CONTENT_TYPE"] += f";swift_bytes={size}"
    environ["swift.content_type_overridden"] = True
    more = environ.get(_LISTED_ETAG, "")  # s3api lists the ETag that S3 clients see as well: "; s3_etag=..."
    for key in ("HTTP_TRANSFER_ENCODING", "HTTP_EXPECT"):
        environ.pop(key, None)
    environ.update({
        "wsgi.input": io.BytesIO(data),
        "CONTENT_LENGTH": str(len(data)),
        "HTTP_ETAG": digest,
        "HTTP_X_STATIC_LARGE_OBJECT": "True",
        "HTTP_X_OBJECT_SYSMETA_SLO_ETAG": etag,
        "HTTP_X_OBJECT_SYSMETA_SLO_SIZE": str(size),
        _LISTED_ETAG: f"{digest}{more if more.startswith(';') else ''}; slo_etag={etag}",
    })
    response = call_app(slo.app, environ)
    if response.is_success:
        response.headers["Etag"] = f'"{etag}"'
    return response


def _report(slo: Slo, work: Any, environ: Environ, form: str) -> bytes:
    """What came of it, as the end of an answer that has begun."""
    errors: list[tuple[str, str]] = []
    try:
        outcome = work()
        response, errors = outcome.response, outcome.errors
    except RequestError as error:
        response = error_response(error)
    except Exception:
        slo.log.exception("writing the manifest %s failed", quote(environ["PATH_INFO"], encoding="latin-1"))
        response = Response(500)
    values: dict[str, Any] = {"Response Status": status_line(response.status), "Response Body": ""}
    if response.is_success:
        response.drain()
        values["Etag"] = response.headers.get("Etag", "")
        values["Last Modified"] = response.headers.get("Last-Modified", "")
    elif response.app_iter is None and not response.body:
        values["Response Body"] = work_report.explained(response.status)
    else:
        values["Response Body"] = response.read(1 << 20).decode("utf-8", "replace")
    return work_report.render(form, "upload", values, errors)


def unread(headers: Headers) -> bool:
    """Whether a manifest's headers lack its size and ETag (written by an old version)."""
    return "X-Object-Sysmeta-Slo-Size" not in headers or "X-Object-Sysmeta-Slo-Etag" not in headers
