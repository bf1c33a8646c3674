"""tempurl: requests that a URL itself authorizes, signed with a key of the account or container (``spec: middleware 9``).

The signature covers method, expiry and path; a good one lets the request pass authentication, and reach nothing beyond the
account or container whose key it was. What is refused gets one and the same bare answer; the log says which check failed,
and so does ``keelstore explain tempurl`` to who holds the key.

A signed request may not make one object stand for another (``security: S01, S11``): no copy, manifest or symlink.

Stands before authentication. Needs nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from os.path import basename
from typing import Any, Final
from urllib.parse import quote

from keelstore.common.headers import environ_key, text_to_wire, wire_to_text
from keelstore.common.http import Environ, Request, Response, StartResponse, WSGIApp, call_app, encode_query, http_date
from keelstore.common.logs import logger_for
from keelstore.common.middleware.signatures import DIGESTS, LAST_SECOND, Refused, digests_check, digests_info, matching
from keelstore.common.middleware.temp_urls import Claim, Examined, examine
from keelstore.common.middleware.url_keys import UNAUTHORIZED, UrlKey, counted, grant, note, url_keys
from keelstore.common.options import option, parse
from keelstore.common.registry import register_info
from keelstore.common.stats import NO_STATS, NoStats, stats_for

AFTER: Final = ("catch_errors", "gatekeeper", "memcache")
BEFORE: Final = ("tempauth", "authtoken", "keystoneauth", "staticweb", "copy", "slo", "dlo", "versioned_writes", "symlink")

USER: Final = ".wsgi.tempurl"
WEB_PAGE: Final = "keelstore.web_page"  # environ: set by staticweb when the answer is a page for a browser
_BARE: Final = "401 Unauthorized: Temp URL invalid\n"
# A write with one of these would store something that stands for another object.
_UNSAFE: Final = {environ_key(name): name for name in (
    "X-Object-Manifest", "X-Symlink-Target", "X-Symlink-Target-Account", "X-Symlink-Target-Etag", "X-Copy-From",
    "X-Copy-From-Account", "X-Fresh-Metadata")}
_KEPT_PARAMS: Final = ("temp_url_sig", "temp_url_expires", "temp_url_prefix", "temp_url_ip_range", "filename", "inline")
_WRITES: Final = frozenset({"PUT", "POST", "DELETE"})
_READS: Final = frozenset({"GET", "HEAD"})


@dataclass(frozen=True)
class TempUrlOptions:
    """Options of ``[filter:tempurl]``. Header lists are separated by blanks; a trailing ``*`` stands for any ending."""

    methods: tuple[str, ...] = option(("GET", "HEAD", "PUT", "POST", "DELETE"), "Methods that a URL may be signed for.",
                                      separator=" ")
    incoming_remove_headers: tuple[str, ...] = option(
        ("x-timestamp", "x-open-expired"), "Headers taken out of signed requests.", separator=" ")
    incoming_allow_headers: tuple[str, ...] = option((), "Headers left in although the list above has them.", separator=" ")
    outgoing_remove_headers: tuple[str, ...] = option(
        ("x-object-meta-*",), "Headers taken out of the answers to signed requests.", separator=" ")
    outgoing_allow_headers: tuple[str, ...] = option(
        ("x-object-meta-public-*",), "Headers left in although the list above has them.", separator=" ")
    allowed_digests: tuple[str, ...] = option(DIGESTS, "Digests of signatures: sha1 (for old clients), sha256, sha512.",
                                              separator=" ", check=digests_check)


class HeaderRules:
    """Which headers go: those that ``remove`` matches and ``allow`` does not."""

    def __init__(self, remove: Sequence[str], allow: Sequence[str]):
        self._remove, self._remove_prefixes = _patterns(remove)
        self._allow, self._allow_prefixes = _patterns(allow)

    def removes(self, name: str) -> bool:
        """Whether a header goes, by its name in lower case."""
        return (name in self._remove or name.startswith(self._remove_prefixes)) and not (
            name in self._allow or name.startswith(self._allow_prefixes))

    def clean_environ(self, environ: Environ) -> None:
        for key in [key for key in environ if key[:5] == "HTTP_" and self.removes(key[5:].lower().replace("_", "-"))]:
            del environ[key]

    def cleaned(self, headers: list[tuple[str, str]]) -> list[tuple[str, str]]:
        return [header for header in headers if not self.removes(header[0].lower())]


def _patterns(names: Iterable[str]) -> tuple[frozenset[str], tuple[str, ...]]:
    lowered = [name.lower().replace("_", "-") for name in names]
    return (frozenset(name for name in lowered if name[-1:] != "*"),
            tuple(name[:-1] for name in lowered if name[-1:] == "*"))


class TempUrl:
    def __init__(self, app: WSGIApp, options: TempUrlOptions, logger: logging.Logger, stats: NoStats = NO_STATS,
                 now: Callable[[], float] = time.time):
        self.app, self.options, self.log, self.stats, self._now = app, options, logger, stats, now
        self._methods = frozenset(options.methods)
        self._digests = frozenset(options.allowed_digests)
        self._incoming = HeaderRules(options.incoming_remove_headers, options.incoming_allow_headers)
        self._outgoing = HeaderRules(options.outgoing_remove_headers, options.outgoing_allow_headers)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        query = environ.get("QUERY_STRING")
        if not query or "temp_url_" not in query or environ["REQUEST_METHOD"] == "OPTIONS":
            return self.app(environ, start_response)
        request = Request(environ)
        params = request.params
        if "temp_url_sig" not in params and "temp_url_expires" not in params:
            return self.app(environ, start_response)
        try:
            found, key = self._verified(request)
        except Refused as refused:
            return self._refuse(environ, refused)(environ, start_response)
        problem = _unsafe(request)
        if problem is not None:
            note(environ, "tempurl:unsafe")
            return problem(environ, start_response)
        self.stats.increment(f"tempurl.digests.{found.digest}")
        self._incoming.clean_environ(environ)
        grant(environ, key, USER)
        environ["QUERY_STRING"] = encode_query({name: params[name] for name in _KEPT_PARAMS if name in params})
        if found.is_root:
            return self._page(environ, start_response, found, params)
        return self.app(environ, self._start(environ, start_response, found, params))

    def _verified(self, request: Request) -> tuple[Examined, UrlKey]:
        """What the URL claims, and the key that signed it. Raises Refused."""
        environ, params = request.environ, request.params
        prefix, ip_range = params.get("temp_url_prefix"), params.get("temp_url_ip_range")
        claim = Claim(request.method, environ["PATH_INFO"], params.get("temp_url_sig", ""),
                      params.get("temp_url_expires", ""), None if prefix is None else text_to_wire(prefix),
                      None if ip_range is None else text_to_wire(ip_range))
        found = examine(claim, self._now(), environ.get("REMOTE_ADDR", ""), self._methods, self._digests)
        keys = url_keys(environ, self.app, found.account, found.container, "TU")
        if not keys:
            raise Refused("no-key", "neither the account nor the container has a Temp-URL-Key")
        index = matching(found.signature, found.digest, [key.value for key in keys], found.texts)
        if index is None:
            raise Refused("signature", f"the {found.digest} signature is not that of this method, expiry and path with any "
                                       f"of the keys ({counted(keys)})")
        return found, keys[index]

    def _refuse(self, environ: Environ, refused: Refused) -> Response:
        note(environ, f"tempurl:{refused.check}")
        request = Request(environ)
        self.log.info("Temp URL refused: %s: %s; %s %s (txn: %s)", refused.check, refused, request.method,
                      request.path_quoted(), request.trans_id)
        return _bare(request.method)

    def _start(self, environ: Environ, start_response: StartResponse, found: Examined, params: dict[str, str]) -> Any:
        """``start_response`` with the headers of an answer to a signed request."""
        is_read, path = environ["REQUEST_METHOD"] in _READS, environ["PATH_INFO"]

        def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            headers = self._outgoing.cleaned(headers)
            if is_read and status[0] == "2":
                headers = _with_disposition(headers, path, found.expires, params, WEB_PAGE in environ)
            return start_response(status, headers) if exc_info is None else start_response(status, headers, exc_info)

        return start

    def _page(self, environ: Environ, start_response: StartResponse, found: Examined,
              params: dict[str, str]) -> Iterable[bytes]:
        """The container itself: only as a page for browsers, never as the listing that its API gives."""
        response = call_app(self.app, environ)
        if WEB_PAGE not in environ:
            response.close()
            return self._refuse(environ, Refused("no-page", "the container offers no page of its objects"))(
                environ, start_response)
        return response(environ, self._start(environ, start_response, found, params))


def _bare(method: str) -> Response:
    return Response(401, UNAUTHORIZED, body="" if method == "HEAD" else _BARE, content_type="text/html; charset=UTF-8")


def _unsafe(request: Request) -> Response | None:
    """400 for a write that would make the object stand for another one."""
    method, environ = request.method, request.environ
    if method in _READS:
        return None
    if method not in _WRITES:
        return Response(400, body=f"{method} is not allowed in this tempurl", content_type="text/html; charset=UTF-8")
    for key, name in _UNSAFE.items():
        if key in environ:
            return Response(400, body=f"The header '{name}' is not allowed in this tempurl",
                            content_type="text/html; charset=UTF-8")
    if method == "PUT" and "multipart-manifest" in request.params:
        return Response(400, body="A manifest is not allowed in this tempurl", content_type="text/html; charset=UTF-8")
    return None


def _with_disposition(headers: list[tuple[str, str]], path: str, expires: int, params: dict[str, str],
                      is_page: bool) -> list[tuple[str, str]]:
    """``headers`` with Content-Disposition, so that a browser saves the file unless told otherwise, and Expires."""
    stored, name = "", params.get("filename", "")
    kept = []
    for header in headers:
        lowered = header[0].lower()
        if lowered == "content-disposition":
            stored = header[1]
        elif lowered != "expires":
            kept.append(header)
    if is_page or "inline" in params:
        disposition = f"inline; {_file_name(name)}" if name else "inline"
    elif name:
        disposition = f"attachment; {_file_name(name)}"
    else:
        disposition = stored
    if not disposition:
        disposition = f"attachment; {_file_name(wire_to_text(basename(path.rstrip('/'))))}"
    return [*kept, ("Content-Disposition", disposition), ("Expires", http_date(min(expires, LAST_SECOND)))]


def _file_name(name: str) -> str:
    octets = name.encode("utf-8", "surrogateescape")
    return f"filename=\"{quote(octets, safe=' /')}\"; filename*=UTF-8''{quote(octets)}"


def filter_factory(global_conf: dict[str, str], **local_conf: str) -> Callable[[WSGIApp], TempUrl]:
    conf = {**global_conf, **local_conf}
    options = parse(TempUrlOptions, conf, section="filter:tempurl", local=local_conf, known=("use", "set *", "log_*"))
    register_info("tempurl", methods=list(options.methods),
                  incoming_remove_headers=list(options.incoming_remove_headers),
                  incoming_allow_headers=list(options.incoming_allow_headers),
                  outgoing_remove_headers=list(options.outgoing_remove_headers),
                  outgoing_allow_headers=list(options.outgoing_allow_headers),
                  **digests_info(options.allowed_digests))
    logger, stats = logger_for(conf, "tempurl"), stats_for(conf, "proxy-server")
    return lambda app: TempUrl(app, options, logger, stats)
