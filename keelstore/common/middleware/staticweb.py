"""staticweb: containers as web sites: index files, listings as HTML, error pages (``spec: middleware 15``).

For GET and HEAD of anonymous visitors, of temporary URLs, and of who sends ``X-Web-Mode: true``; all others get the API.
What a visitor sees is what the container's ACL lets him read: every page and listing is asked for with his own rights.
Settings are metadata of the container: ``Web-Index``, ``Web-Error``, ``Web-Listings``, ``Web-Listings-CSS``,
``Web-Listings-Label`` and ``Web-Directory-Type``.

Stands right after authentication: before it, private containers would be open to everybody (``security: S21``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from keelstore.common.headers import Headers, is_true, text_to_wire, wire_to_text
from keelstore.common.http import AUTHORIZE, Environ, Request, Response, StartResponse, WSGIApp, call_app
from keelstore.common.info import ContainerInfo, container_info
from keelstore.common.internal import subrequest
from keelstore.common.middleware.authorizing import denial
from keelstore.common.middleware.listing_formats import FORMAT_LISTING
from keelstore.common.middleware.tempurl import USER as TEMPURL_USER
from keelstore.common.middleware.tempurl import WEB_PAGE
from keelstore.common.middleware.web_pages import PAGE_HEADERS, link_query, listing_page, no_listing_page
from keelstore.common.options import option, parse
from keelstore.common.registry import register_info

AFTER: Final = ("catch_errors", "gatekeeper", "memcache", "listing_formats", "tempurl", "tempauth", "authtoken",
                "keystoneauth")
BEFORE: Final = ("copy", "container_quotas", "account_quotas", "slo", "dlo", "versioned_writes", "symlink", "encryption")

SOURCE_NAME: Final = "SW"
# Of the visitor's request, what an index page answers to as well.
_FOR_INDEX: Final = ("Range", "If-Range", "If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since",
                     "X-Auth-Token", "X-Newest")
_MAX_LISTING: Final = 64 << 20  # bytes of JSON: 10,000 of the longest names are 40 MB


def _base_check(value: str) -> str | None:
    parts = urlsplit(value)
    is_good = parts.scheme in ("http", "https", "") and (parts.netloc or parts.scheme) and not parts.path.strip("/")
    return None if is_good or not value else "http://HOST, //HOST or https://, or nothing"


@dataclass(frozen=True)
class StaticWebOptions:
    """Options of ``[filter:staticweb]``."""

    url_base: str = option("", "Scheme and host of redirects, where a front end has others: https://web.example.com, "
                               "//web.example.com or https://. Empty: those of the request.", check=_base_check)


@dataclass(frozen=True)
class Site:
    """How a container wants to be shown. Text."""

    account: str
    container: str
    read_acl: str | None
    index: str
    error: str
    listings: str
    css: str
    label: str
    directory_type: str

    @classmethod
    def of(cls, account: str, container: str, info: ContainerInfo) -> Site:
        def text(name: str) -> str:
            return wire_to_text(info.meta.get(name) or "").strip()

        return cls(account, container, info.read_acl, text("web-index"), text("web-error"), text("web-listings"),
                   text("web-listings-css"), text("web-listings-label"),
                   text("web-directory-type") or "application/directory")

    @property
    def is_web(self) -> bool:
        """Whether the container is a site at all; one that says no to listings is."""
        return bool(self.index or self.listings)

    @property
    def has_listings(self) -> bool:
        return is_true(self.listings)

    def path(self, obj: str = "") -> str:
        return f"/v1/{self.account}/{self.container}" + (f"/{obj}" if obj else "")

    def title(self, prefix: str) -> str:
        return f"{self.label or self.path()}/{prefix}"


class StaticWeb:
    def __init__(self, app: WSGIApp, options: StaticWebOptions):
        self.app, self.options = app, options

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        user = environ.get("REMOTE_USER")
        if user and user != TEMPURL_USER and "HTTP_X_WEB_MODE" not in environ:
            return self.app(environ, start_response)
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD") or AUTHORIZE not in environ:
            return self.app(environ, start_response)
        wants_web = is_true(environ.get("HTTP_X_WEB_MODE"))
        if user and user != TEMPURL_USER and not wants_web:
            return self.app(environ, start_response)
        request = Request(environ)
        parts = request.path.split("/", 4)
        if len(parts) < 4 or parts[0] or parts[1] not in ("v1", "v1.0") or not parts[2] or not parts[3]:
            return self.app(environ, start_response)
        obj = parts[4] if len(parts) > 4 else ""
        if obj:
            answer = self._object(request, parts[2], parts[3], obj)
        else:
            answer = self._container(request, parts[2], parts[3], len(parts) > 4, wants_web)
        return answer(environ, start_response)

    # -- what was asked for ------------------------------------------------------------------------------------------

    def _container(self, request: Request, account: str, container: str, has_slash: bool, wants_web: bool) -> WSGIApp:
        environ = request.environ
        info = container_info(environ, self.app, account, container, source=SOURCE_NAME)
        if not info.is_success:
            return self.app
        site = Site.of(account, container, info)
        if not site.is_web:
            return Response(404) if wants_web else self.app
        environ[FORMAT_LISTING] = False  # whatever follows is a page, not a listing to be converted
        denied = denial(environ, site.read_acl)
        if denied is not None:
            return self._error(request, site, call_app(denied, environ))
        environ[WEB_PAGE] = True
        if not has_slash:
            return self._redirect(request)
        if site.index:
            page = self._get(request, site.path(site.index), {name: request.header(name) for name in _FOR_INDEX})
            if page.status != 404:
                return page
            page.drain()
        return self._listing(request, site, "")

    def _object(self, request: Request, account: str, container: str, obj: str) -> WSGIApp:
        environ = request.environ
        response = call_app(self.app, environ)
        if response.status != 404 and not _may_be_marker(response):
            return response
        site = Site.of(account, container, container_info(environ, self.app, account, container, source=SOURCE_NAME))
        if not site.is_web or (response.status != 404 and not _is_of_type(response, site.directory_type)):
            return response
        has_slash = obj.endswith("/")
        if site.index:
            page = self._get(request, site.path(f"{obj}{'' if has_slash else '/'}{site.index}"),
                             {name: request.header(name) for name in _FOR_INDEX})
            if page.status != 404:
                response.close()
                if page.status < 400 and not has_slash:
                    page.close()
                    return self._redirect(request)
                environ[WEB_PAGE] = True
                return page
            page.drain()
        if has_slash:
            response.drain()
            return self._listing(request, site, obj)
        found = self._list(request, site, f"{obj}/", limit="1")
        if found is None or isinstance(found, Response) or not found:
            if response.status != 404:  # a marker with nothing beneath
                response.drain()
                response = Response(404)
            return self._error(request, site, response)
        response.drain()
        return self._redirect(request)

    # -- what is answered --------------------------------------------------------------------------------------------

    def _listing(self, request: Request, site: Site, prefix: str) -> WSGIApp:
        if not site.has_listings:
            page = no_listing_page(site.title(prefix), site.index, prefix, site.css)
            return self._error(request, site, Response(404, PAGE_HEADERS, body=page.encode("utf-8", "replace")))
        entries = self._list(request, site, prefix, delimiter="/")
        if isinstance(entries, Response):
            return self._error(request, site, entries)
        if prefix and not entries:
            return self._error(request, site, Response(404))
        params = request.params if request.environ.get("REMOTE_USER") == TEMPURL_USER else {}
        has_parent = bool(prefix) and len(prefix) > len(params.get("temp_url_prefix", ""))
        page = listing_page(site.title(prefix), prefix, entries, site.css, link_query(params), has_parent)
        request.environ[WEB_PAGE] = True
        return Response(200, PAGE_HEADERS, body=page.encode("utf-8", "replace"))

    def _list(self, request: Request, site: Site, prefix: str, **params: str) -> list[dict[str, Any]] | Response:
        """Entries of a listing made with the visitor's rights, or what was answered instead."""
        query = {"format": "json", **params}
        if prefix:
            query["prefix"] = prefix
        environ = subrequest(request.environ, "GET", site.path(), query=query, source=SOURCE_NAME,
                             headers={"X-Auth-Token": request.header("X-Auth-Token")})
        response = call_app(self.app, environ)
        if not response.is_success:
            return response
        found = json.loads(response.read(_MAX_LISTING) or b"[]")
        return found if isinstance(found, list) else []

    def _get(self, request: Request, path: str, headers: dict[str, str | None]) -> Response:
        environ = subrequest(request.environ, request.method, path, source=SOURCE_NAME,
                             headers=Headers({name: value for name, value in headers.items() if value is not None}))
        return call_app(self.app, environ)

    def _error(self, request: Request, site: Site, response: Response) -> Response:
        """``response`` with the site's own page for its status, when there is one that the visitor may read."""
        if not site.error or response.status not in (401, 403, 404):
            return response
        page = self._get(request, site.path(f"{response.status}{site.error}"),
                         {"X-Auth-Token": request.header("X-Auth-Token")})
        if page.status != 200:
            page.drain()
            return response
        response.drain()
        page.status = response.status
        if "Www-Authenticate" in response.headers:
            page.headers["Www-Authenticate"] = response.headers["Www-Authenticate"]
        return page

    def _redirect(self, request: Request) -> Response:
        location = request.path_quoted() + "/"
        base = self.options.url_base
        if base:
            scheme, host, *_ = urlsplit(base)
            own_scheme, _, own_host = request.host_url.partition("://")
            location = f"{scheme or own_scheme}://{host or own_host}{location}"
        return Response(301, {"Location": location})


def _may_be_marker(response: Response) -> bool:
    """Whether an object is so small that it may only mark a directory."""
    if not response.is_success:
        return False
    length = response.headers.get("Content-Length")
    if length is None:
        return response.app_iter is None and len(response.body or b"") <= 1
    return length in ("0", "1")


def _is_of_type(response: Response, kind: str) -> bool:
    return response.headers.get("Content-Type", "").partition(";")[0].strip() == text_to_wire(kind)


def filter_factory(global_conf: dict[str, str], **local_conf: str) -> Callable[[WSGIApp], StaticWeb]:
    options = parse(StaticWebOptions, {**global_conf, **local_conf}, section="filter:staticweb", local=local_conf,
                    known=("use", "set *", "log_*"))
    register_info("staticweb")
    return lambda app: StaticWeb(app, options)
