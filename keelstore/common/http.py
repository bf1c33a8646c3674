"""HTTP as the services see it: Request, Response, environ keys, and errors to statuses. Sole importer of WebOb.

``Request`` reads a WSGI environ in place and keeps nothing but what it has decoded; ``Response`` is a status, headers and a
body (bytes, or an iterable of bytes with ``close``) that is also a WSGI application. Both are ours because each request
builds several of them; of WebOb we use what parses the odd corners of HTTP (content negotiation).

Text and wire strings: paths and query parameters are text (UTF-8, surrogate escapes where the octets are not), header
values are wire strings (see ``headers.py``).
"""

from __future__ import annotations

import functools
import time
from calendar import timegm
from collections.abc import Callable, Iterable, Iterator
from email.utils import parsedate_tz
from html import escape
from typing import Any, Final
from urllib.parse import parse_qsl, quote

from webob.acceptparse import AcceptValidHeader

from keelstore.common.errors import BackendError, BadRequest, RequestError, WaitTimeout
from keelstore.common.headers import Headers, environ_key, header_of, is_true, title

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
WSGIApp = Callable[[Environ, StartResponse], Iterable[bytes]]

# Environ keys shared by middlewares (spec: proxy 17). Ours start with ``keelstore.``.
AUTHORIZE: Final = "swift.authorize"
AUTHORIZE_OVERRIDE: Final = "swift.authorize_override"
CLEAN_ACL: Final = "swift.clean_acl"
OWNER: Final = "swift_owner"
RESELLER: Final = "reseller_request"
CACHE: Final = "swift.cache"
INFOCACHE: Final = "swift.infocache"
TRANS_ID: Final = "swift.trans_id"
SOURCE: Final = "swift.source"
LOG_INFO: Final = "swift.log_info"
CUSTOMER_KEY: Final = "keelstore.customer_key"  # bytes that a client encrypts and decrypts the body with, or None
ENCRYPTS: Final = "keelstore.encrypts"  # a write is to be encrypted though the filter encrypts nothing by itself
KMS_KEY: Final = "keelstore.kms_key"  # id of the root secret that a write is encrypted with, in place of the active one
CRYPTO_BYPASS: Final = "swift.crypto.override"  # bodies and metadata pass as they are stored
IN_PLACE: Final = "keelstore.in_place"  # a write is for what has this very name: no version is made or kept
DIGEST: Final = "keelstore.digest"  # () -> hex MD5 of the body read so far, when the caller computes it anyway
BODY_CHECKED: Final = "X-Backend-Body-Checked"  # of an object server's answer: the MD5 of this body was right of late
IN_PROCESS: Final = "keelstore.in_process"  # True for a backend call that did not cross a socket

REASONS: Final[dict[int, str]] = {
    100: "Continue", 200: "OK", 201: "Created", 202: "Accepted", 204: "No Content", 206: "Partial Content",
    301: "Moved Permanently", 302: "Found", 303: "See Other", 304: "Not Modified", 307: "Temporary Redirect",
    400: "Bad Request", 401: "Unauthorized", 402: "Payment Required", 403: "Forbidden", 404: "Not Found",
    405: "Method Not Allowed", 406: "Not Acceptable", 408: "Request Timeout", 409: "Conflict", 410: "Gone",
    411: "Length Required", 412: "Precondition Failed", 413: "Request Entity Too Large",
    414: "Request URI Too Long", 415: "Unsupported Media Type", 416: "Requested Range Not Satisfiable",
    417: "Expectation Failed", 422: "Unprocessable Entity", 429: "Too Many Requests",
    431: "Request Header Fields Too Large", 497: "Blacklisted", 498: "Rate Limited", 499: "Client Disconnect",
    500: "Internal Error", 501: "Not Implemented", 502: "Bad Gateway", 503: "Service Unavailable",
    504: "Gateway Timeout", 505: "HTTP Version Not Supported", 507: "Insufficient Storage",
    529: "Too Many Backend Requests",
}  # fmt: skip

EXPLANATIONS: Final[dict[int, str]] = {
    202: "The request is accepted for processing.",
    301: "The resource has moved permanently.",
    302: "The resource has moved temporarily.",
    303: "The response to the request can be found under a different URI.",
    307: "The resource has moved temporarily.",
    400: "The server could not comply with the request since it is either malformed or otherwise incorrect.",
    401: "This server could not verify that you are authorized to access the document you requested.",
    402: "Access was denied for financial reasons.",
    403: "Access was denied to this resource.",
    404: "The resource could not be found.",
    405: "The method is not allowed for this resource.",
    406: "The resource is not available in a format acceptable to your browser.",
    408: "The server has waited too long for the request to be sent by the client.",
    409: "There was a conflict when trying to complete your request.",
    410: "This resource is no longer available.",
    411: "Content-Length header required.",
    412: "A precondition for this request was not met.",
    413: "The body of your request was too large for this server.",
    414: "The request URI was too long for this server.",
    415: "The request media type is not supported by this server.",
    416: "The Range requested is not available.",
    417: "Expectation failed.",
    422: "Unable to process the contained instructions",
    499: "The client was disconnected during request.",
    500: "The server has either erred or is incapable of performing the requested operation.",
    501: "The requested method is not implemented by this server.",
    502: "Bad gateway.",
    503: "The server is currently unavailable. Please try again at a later time.",
    504: "A timeout has occurred speaking to a backend server.",
    507: "There was not enough space to save the resource. Drive: {drive}",
}

_STATUS_LINES: Final = {code: f"{code} {reason}" for code, reason in REASONS.items()}
BODYLESS: Final = frozenset({204, 304})
MAX_READ: Final = 64 << 20  # bytes of a body read whole: a page of 10,000 of the longest names is less


def status_line(status: int) -> str:
    return _STATUS_LINES.get(status) or f"{status} Unknown"


class Request:
    """A view of one WSGI environ. Setting a header, the path or the method changes the environ."""

    __slots__ = ("_params", "_path", "environ")

    def __init__(self, environ: Environ):
        self.environ = environ
        self._path: str | None = None
        self._params: dict[str, str] | None = None

    @property
    def method(self) -> str:
        return self.environ["REQUEST_METHOD"]

    @method.setter
    def method(self, value: str) -> None:
        self.environ["REQUEST_METHOD"] = value

    @property
    def path(self) -> str:
        """The decoded path as text; octets that are not UTF-8 are surrogate escapes."""
        if self._path is None:
            wire = self.environ["PATH_INFO"]
            self._path = wire if wire.isascii() else wire.encode("latin-1").decode("utf-8", "surrogateescape")
        return self._path

    @path.setter
    def path(self, value: str) -> None:
        self._path = value
        self.environ["PATH_INFO"] = value if value.isascii() else text_path_to_wire(value)

    @property
    def params(self) -> dict[str, str]:
        """Query parameters as text, the last of equal names winning; octets that are not UTF-8 are surrogate escapes."""
        if self._params is None:
            query = self.environ.get("QUERY_STRING")
            self._params = dict(_pairs_of(query)) if query else {}
        return self._params

    @params.setter
    def params(self, value: dict[str, str]) -> None:
        self._params = value
        self.environ["QUERY_STRING"] = encode_query(value)

    def header(self, name: str, default: str | None = None) -> Any:
        """One header's wire string, by any spelling; the cheapest way to look."""
        return self.environ.get(environ_key(name), default)

    def set_header(self, name: str, value: str | None) -> None:
        """Set a header, or remove it with None."""
        if value is None:
            self.environ.pop(environ_key(name), None)
        else:
            self.environ[environ_key(name)] = value

    def headers(self) -> Headers:
        """A copy of all headers, Title-Cased."""
        found = Headers()
        for key, value in self.environ.items():
            name = header_of(key)
            if name is not None and type(value) is str:
                dict.__setitem__(found, name, value)
        return found

    def header_items(self) -> Iterator[tuple[str, str]]:
        for key, value in self.environ.items():
            name = header_of(key)
            if name is not None:
                yield name, value

    @property
    def content_length(self) -> int | None:
        """Declared body size in bytes; None when absent. Raises BadRequest when it is no number of 0 or more."""
        text = self.environ.get("CONTENT_LENGTH")
        if text is None or text == "":
            return None
        if not (text.isascii() and text.isdigit()):
            raise BadRequest(f"Invalid Content-Length: {text[:40]!r}")
        return int(text)

    @property
    def is_chunked(self) -> bool:
        return self.environ.get("HTTP_TRANSFER_ENCODING", "").lower() == "chunked"

    @property
    def body_file(self) -> Any:
        """``read(size)`` and ``readline()`` over the request's body."""
        return self.environ["wsgi.input"]

    def read_body(self, limit: int) -> bytes:
        """The whole body, at most ``limit`` bytes. Raises EntityTooLarge (413) beyond, also for chunked bodies."""
        length = self.content_length
        if length is not None and length > limit:
            raise RequestError("The body of the request is too large.", status=413)
        parts: list[bytes] = []
        size = 0
        while size <= limit:
            part = self.environ["wsgi.input"].read(limit + 1 - size)
            if not part:
                return b"".join(parts)
            parts.append(part)
            size += len(part)
        raise RequestError("The body of the request is too large.", status=413)

    @property
    def trans_id(self) -> str:
        return self.environ.get(TRANS_ID) or self.environ.get("HTTP_X_TRANS_ID", "")

    @property
    def host_url(self) -> str:
        """Scheme and host as the client named them, default ports stripped."""
        scheme = self.environ.get("wsgi.url_scheme", "http")
        host = self.environ.get("HTTP_HOST")
        if not host:
            host = f"{self.environ['SERVER_NAME']}:{self.environ['SERVER_PORT']}"
        if scheme == "http" and host.endswith(":80"):
            host = host[:-3]
        elif scheme == "https" and host.endswith(":443"):
            host = host[:-4]
        return f"{scheme}://{host}"

    def path_quoted(self) -> str:
        return quote(self.environ.get("SCRIPT_NAME", "") + self.environ["PATH_INFO"], safe="/", encoding="latin-1")

    def url(self) -> str:
        """The URL without query, as the client would spell it."""
        return self.host_url + self.path_quoted()

    def is_true_header(self, name: str) -> bool:
        return is_true(self.header(name))

    def call(self, app: WSGIApp) -> Response:
        """Run ``app`` on this environ and give its answer as a Response; the body is not read."""
        return call_app(app, self.environ)


@functools.lru_cache(maxsize=512)
def _pairs_of(query: str) -> tuple[tuple[str, str], ...]:
    """The parameters of a query string. Several filters ask for those of one request, and many requests have the same."""
    return tuple(parse_qsl(query, keep_blank_values=True, encoding="utf-8", errors="surrogateescape"))


def text_path_to_wire(path: str) -> str:
    return path.encode("utf-8", "surrogateescape").decode("latin-1")


def encode_query(params: dict[str, str]) -> str:
    return "&".join(
        f"{quote(k.encode('utf-8', 'surrogateescape'), safe='')}={quote(v.encode('utf-8', 'surrogateescape'), safe='')}"
        for k, v in params.items()
    )


def split_path(path: str, minimum: int, maximum: int, rest_with_last: bool = False) -> list[str | None]:
    """``/a/b/c`` to its segments, padded with None up to ``maximum``; a trailing slash is no segment.

    With ``rest_with_last`` the last segment holds the rest, slashes included. Raises ValueError when the count is outside
    ``minimum .. maximum``, when a segment but the last is empty, or when there is no leading slash.
    """
    found: list[str | None] = list(path[1:].split("/", maximum - 1 if rest_with_last else -1))
    if not found[-1] and len(found) > minimum:
        found.pop()
    if path[:1] != "/" or not minimum <= len(found) <= maximum or "" in found:
        raise ValueError(f"Invalid path: {quote(path.encode('utf-8', 'surrogateescape'))}")
    return found + [None] * (maximum - len(found))


Body = bytes | Iterable[bytes]


class Response:
    """A status, headers and a body; also a WSGI application.

    ``body`` bytes get a Content-Length; an iterable is sent as it comes, with the Content-Length that ``headers`` hold, if
    any, and its ``close`` is called at the end. For HEAD no body is sent. A relative Location becomes absolute unless the
    environ holds ``swift.leave_relative_location``.
    """

    __slots__ = ("app_iter", "body", "headers", "status")

    def __init__(
        self,
        status: int = 200,
        headers: Headers | dict[str, str] | None = None,
        body: bytes | str | None = None,
        app_iter: Iterable[bytes] | None = None,
        content_type: str | None = None,
    ):
        self.status = status
        self.headers = headers if type(headers) is Headers else Headers(headers or ())
        self.app_iter = app_iter
        self.body = body.encode("utf-8") if isinstance(body, str) else body
        if content_type is not None:
            self.headers["Content-Type"] = content_type

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        headers = self.headers
        if self.app_iter is None:
            body = self.body
            if body is None:
                body = b""
                if self.status >= 300 and self.status not in BODYLESS and "Content-Length" not in headers:
                    body = self._explain(environ)
            if "Content-Type" not in headers:
                dict.__setitem__(headers, "Content-Type", "text/html; charset=UTF-8")
            if self.status == 204 or body or "Content-Length" not in headers:
                dict.__setitem__(headers, "Content-Length", str(len(body)))
        if "Location" in headers and "swift.leave_relative_location" not in environ:
            location = headers["Location"]
            if location.startswith("/"):
                dict.__setitem__(headers, "Location", Request(environ).host_url + location)
        start_response(status_line(self.status), list(headers.items()))
        if environ["REQUEST_METHOD"] == "HEAD":
            self.close()
            return ()
        return self.app_iter if self.app_iter is not None else (body,) if body else ()

    def _explain(self, environ: Environ) -> bytes:
        text = EXPLANATIONS.get(self.status, "")
        if not text:
            return b""
        if self.status == 507:
            drive = environ.get("PATH_INFO", "").split("/")[1:2] or ["-"]
            text = text.format(drive=escape(drive[0]))
        return f"<html><h1>{REASONS.get(self.status, '')}</h1><p>{text}</p></html>".encode("latin-1")

    def read(self, limit: int = MAX_READ) -> bytes:
        """The whole body, closing it. Raises ValueError when it is longer than ``limit``."""
        if self.app_iter is None:
            return self.body or b""
        parts, size = [], 0
        try:
            for part in self.app_iter:
                parts.append(part)
                size += len(part)
                if size > limit:
                    raise ValueError(f"body is longer than {limit} bytes")
        finally:
            self.close()
        return b"".join(parts)

    def close(self) -> None:
        """Let go of the body without reading it."""
        close = getattr(self.app_iter, "close", None)
        if close is not None:
            close()

    def drain(self, limit: int = 65536) -> None:
        """Read and drop what is left of a short body, so that what gave it can be used again; then close.

        A body off the wire has a ``drain`` of its own, which is bounded in time; one made here is work that is to be done.
        """
        drain = getattr(self.app_iter, "drain", None)
        if drain is not None:
            drain()
        elif self.app_iter is not None:
            try:
                size = 0
                for part in self.app_iter:
                    size += len(part)
                    if size > limit:
                        break
            finally:
                self.close()


def call_app(app: WSGIApp, environ: Environ) -> Response:
    """Call a WSGI application and give its answer as a Response.

    Applications that call ``start_response`` late, in the first step of their iterator, are served too.
    """
    got: list[Any] = []

    def start_response(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> None:
        got[:] = (status, headers)

    body = app(environ, start_response)
    if not got:
        iterator = iter(body)
        first = next(iterator, b"")
        body = _Resumed(first, iterator, body)
    found = Headers()
    for name, value in got[1]:
        key = title(name)
        if key in ("Set-Cookie", "Vary", "Www-Authenticate") and dict.__contains__(found, key):
            value = f"{dict.__getitem__(found, key)}, {value}"
        dict.__setitem__(found, key, value)
    response = Response(int(got[0][:3]), found)
    if type(body) in (tuple, list):
        response.body = b"".join(body)
        response.app_iter = None
        if environ["REQUEST_METHOD"] == "HEAD" or not response.body:
            response.body = b""
    else:
        response.app_iter = body
    return response


class _Resumed:
    """An iterator whose first part has been taken already."""

    def __init__(self, first: bytes, rest: Iterator[bytes], owner: Iterable[bytes]):
        self._first, self._rest, self._owner = first, rest, owner

    def __iter__(self) -> Iterator[bytes]:
        if self._first:
            yield self._first
        yield from self._rest

    def close(self) -> None:
        close = getattr(self._owner, "close", None)
        if close is not None:
            close()


def error_response(error: RequestError) -> Response:
    """The answer to a RequestError: its status, its reason as plain text (or the standard page), its headers."""
    if not error.reason:
        return Response(error.status, Headers(error.headers))
    return Response(error.status, Headers(error.headers), body=error.reason,
                    content_type=error.headers.get("Content-Type", "text/plain"))


def failure_response(error: BaseException | None) -> Response:
    """The answer where nothing has been sent yet: a RequestError's own, 503 where nodes failed, else 500 (without reason)."""
    if isinstance(error, RequestError):
        return error_response(error)
    return Response(503 if isinstance(error, BackendError | WaitTimeout) else 500)


def wsgify(handler: Callable[[Any, Request], Any]) -> Callable[..., Iterable[bytes]]:
    """A method ``(self, request) -> WSGI app`` as a WSGI method. A RequestError that it raises becomes its answer."""

    @functools.wraps(handler)
    def wrapper(self: Any, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        try:
            answer = handler(self, Request(environ))
        except RequestError as error:
            answer = error_response(error)
        return answer(environ, start_response)

    return wrapper


# -- dates, content negotiation ----------------------------------------------------------------------------------------

_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


@functools.lru_cache(maxsize=1024)
def http_date(seconds: int) -> str:
    """An IMF-fixdate (RFC 9110 5.6.7) of whole seconds since the epoch."""
    t = time.gmtime(seconds)
    return (
        f"{_DAYS[t.tm_wday]}, {t.tm_mday:02d} {_MONTHS[t.tm_mon - 1]} {t.tm_year:04d} "
        f"{t.tm_hour:02d}:{t.tm_min:02d}:{t.tm_sec:02d} GMT"
    )


def parse_http_date(text: str | None) -> int | None:
    """Seconds since the epoch, or None for what is no date (RFC 9110: ignore it)."""
    if not text or len(text) > 64:
        return None
    try:
        parsed = parsedate_tz(text)
        if parsed is None:
            return None
        return timegm(parsed[:6] + (0, 0, 0)) - (parsed[9] or 0)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


MAX_ACCEPT: Final = 1024  # bytes; longer Accept headers are refused before they are parsed


def best_match(accept: str | None, offers: tuple[str, ...]) -> str | None:
    """The offer that an Accept header likes best, the first of equals; None when none will do.

    Raises BadRequest for a header that is malformed. Backslashes are refused and the length is bounded before the parser
    sees it: quoted pairs made such parsers take exponential time (CVE-2026-71190).
    """
    if not accept:
        return offers[0]
    if len(accept) > MAX_ACCEPT or "\\" in accept:
        raise BadRequest("Invalid Accept header")
    return _best_match(accept, offers)


@functools.lru_cache(maxsize=512)
def _best_match(accept: str, offers: tuple[str, ...]) -> str | None:
    try:
        acceptable = AcceptValidHeader(accept).acceptable_offers(offers)
    except ValueError:
        raise BadRequest("Invalid Accept header") from None
    return acceptable[0][0] if acceptable else None
