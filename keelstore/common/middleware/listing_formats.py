"""listing_formats: listings in the form the client wants: plain text, JSON or XML.

Downstream always lists as JSON, so that middlewares between here and there need to know one form; one that wants its
answer left alone sets ``environ["swift.format_listing"]`` to False. Names with NUL (the reserved namespace) are taken
out. What is no listing passes as it came. A client that wants JSON gets the very bytes: they are only parsed when they
hold a NUL.

Stands right of the first proxy-logging. Needs the API versions of the cluster file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from keelstore.common.cluster import load_cluster
from keelstore.common.errors import ConfigError, RequestError
from keelstore.common.headers import is_true
from keelstore.common.http import Environ, Request, Response, StartResponse, WSGIApp, call_app, error_response
from keelstore.common.limits import Limits
from keelstore.common.listing_render import JSON, PLAIN, XML_DECLARATION, content_type_of, xml_text
from keelstore.common.names import ApiPath, api_path
from keelstore.common.options import option, parse

AFTER: Final = ("catch_errors", "gatekeeper")
BEFORE: Final = ("copy", "slo", "dlo", "versioned_writes", "symlink", "encryption")

FORMAT_LISTING: Final = "swift.format_listing"
LISTING_TYPE: Final = "keelstore.listing_type"  # environ key: the form that the client's ``format`` asks for, '' without
MAX_LISTING: Final = 1024 * 10000 * 2  # bytes of JSON; more passes unconverted
_CONTAINER_FIELDS: Final = ("name", "count", "bytes", "last_modified")
_OBJECT_FIELDS: Final = ("name", "hash", "bytes", "content_type", "last_modified")


@dataclass(frozen=True)
class ListingFormatsOptions:
    """Options of ``[filter:listing_formats]``."""

    swift_dir: str = option("/etc/swift", "Directory of the cluster file.")


class ListingFormats:
    def __init__(self, app: WSGIApp, api_versions: Iterable[str] = Limits.valid_api_versions):
        self.app, self._versions = app, frozenset(api_versions)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        method = environ["REQUEST_METHOD"]
        if method != "GET" and method != "HEAD":
            return self.app(environ, start_response)
        names = api_path(environ["PATH_INFO"])
        if names.obj or names.version not in self._versions:
            return self.app(environ, start_response)
        request = Request(environ)
        try:
            content_type = content_type_of(request)
        except RequestError as error:
            return error_response(error)(environ, start_response)
        params = dict(request.params)
        says_format = "format" in params
        if params.get("format") != "json":
            params["format"] = "json"
            request.params = params
        environ[FORMAT_LISTING] = True
        environ[LISTING_TYPE] = content_type if says_format else ""
        response = call_app(self.app, environ)
        if environ.get(FORMAT_LISTING):
            shows_reserved = is_true(environ.get("HTTP_X_BACKEND_ALLOW_RESERVED_NAMES"))
            _convert(response, method == "HEAD", content_type, says_format, names, shows_reserved)
        return response(environ, start_response)


def _convert(response: Response, is_head: bool, content_type: str, says_format: bool, names: ApiPath,
             shows_reserved: bool) -> None:
    headers = response.headers
    if response.status not in (200, 204):
        return
    if is_head:
        response.close()
        response.app_iter, response.body = None, b""
        headers["Content-Type"] = f"{content_type}; charset=utf-8"
        headers["Content-Length"] = "0"
        _vary(response, says_format)
        return
    if headers.get("Content-Type", "").partition(";")[0].strip() != JSON:
        return
    _vary(response, says_format)
    length = headers.get("Content-Length", "")
    if not (length.isascii() and length.isdigit()) or int(length) > MAX_LISTING:
        return
    try:
        data = response.read(MAX_LISTING)
    except ValueError:  # longer than it said
        response.status, response.app_iter, response.body = 500, None, None
        return
    response.app_iter, response.body = None, data
    if content_type != JSON or (b"\\u0000" in data and not shows_reserved):
        found = converted(data, content_type, names.account, names.container, shows_reserved)
        if found is None:
            return
        response.body = found
        if not found:
            response.status = 204
    headers["Content-Type"] = f"{content_type}; charset=utf-8"
    headers["Content-Length"] = str(len(response.body or b""))


def _vary(response: Response, says_format: bool) -> None:
    if not says_format:
        vary = response.headers.get("Vary")
        response.headers["Vary"] = f"{vary}, Accept" if vary else "Accept"


def converted(data: bytes, content_type: str, account: str, container: str, shows_reserved: bool) -> bytes | None:
    """A JSON listing in another form, names in the reserved namespace left out; None for what is no listing.

    An empty ``container`` makes it the listing of the account.
    """
    try:
        entries = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if type(entries) is not list:
        return None
    try:
        if not shows_reserved and b"\\u0000" in data:
            entries = [entry for entry in entries
                       if "\x00" not in (entry["subdir"] if "subdir" in entry else entry["name"])]
        if content_type == JSON:
            return json.dumps(entries).encode("ascii")
        if content_type == PLAIN:
            return _bytes("".join([entry["name" if "name" in entry else "subdir"] + "\n" for entry in entries]))
        if container:
            return _bytes(_container_xml(_shown(container), entries))
        return _bytes(_account_xml(_shown(account), entries))
    except (KeyError, TypeError):
        return None


def _account_xml(account: str, entries: list[dict[str, Any]]) -> str:
    found = [f'{XML_DECLARATION}<account name="{xml_text(account)}">\n']
    for entry in entries:
        if "subdir" in entry:
            found.append(f'<subdir name="{xml_text(entry["subdir"])}" />\n')
            continue
        fields = [f"<{field}>{xml_text(str(entry[field]))}</{field}>" for field in _CONTAINER_FIELDS]
        if "storage_policy" in entry:
            fields.append(f"<storage_policy>{xml_text(str(entry['storage_policy']))}</storage_policy>")
        found.append(f"<container>{''.join(fields)}</container>\n")
    found.append("</account>")
    return "".join(found)


def _container_xml(container: str, entries: list[dict[str, Any]]) -> str:
    if not entries:
        return f'{XML_DECLARATION}<container name="{xml_text(container)}" />'
    found = [f'{XML_DECLARATION}<container name="{xml_text(container)}">']
    for entry in entries:
        if "subdir" in entry:
            name = xml_text(entry["subdir"])
            found.append(f'<subdir name="{name}"><name>{name}</name></subdir>')
            continue
        fields = [f"<{field}>{xml_text(str(entry[field]))}</{field}>" for field in _OBJECT_FIELDS]
        found.append(f"<object>{''.join(fields)}</object>")
    found.append("</container>")
    return "".join(found)


def _shown(name: str) -> str:
    """A name with what is no UTF-8 in it replaced."""
    return name if name.isascii() else name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _bytes(text: str) -> bytes:
    """UTF-8; lone surrogates, which JSON can spell and UTF-8 cannot, become question marks."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")


def filter_factory(global_conf: dict[str, str], **local_conf: str) -> Callable[[WSGIApp], ListingFormats]:
    options = parse(ListingFormatsOptions, {**global_conf, **local_conf}, section="filter:listing_formats",
                    local=local_conf, known=("use", "set *", "log_*"))
    try:
        versions = load_cluster(options.swift_dir).limits.valid_api_versions
    except ConfigError:  # the proxy itself says so if that matters
        versions = Limits.valid_api_versions
    return lambda app: ListingFormats(app, versions)
