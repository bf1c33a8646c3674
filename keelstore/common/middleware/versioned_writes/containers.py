"""Containers and accounts with object versioning (``spec: middleware 22``)."""

from __future__ import annotations

import json
import logging
from typing import Any, Final

from keelstore.common.errors import BadRequest, PreconditionFailed, RequestError
from keelstore.common.headers import Headers, is_true
from keelstore.common.http import Environ, Request, Response, WSGIApp, best_match, call_app, encode_query
from keelstore.common.info import ContainerInfo, container_info
from keelstore.common.limits import Limits, check_name_length
from keelstore.common.middleware.authorizing import denial
from keelstore.common.middleware.listing_formats import FORMAT_LISTING, LISTING_TYPE
from keelstore.common.middleware.versioned_writes import legacy
from keelstore.common.middleware.versioned_writes.inner import HTML, Inner
from keelstore.common.middleware.versioned_writes.listing import (
    Entry,
    VersionsPage,
    VersionsQuery,
    hidden_account_params,
    with_hidden_bytes,
    with_link_shown,
)
from keelstore.common.middleware.versioned_writes.names import HIDDEN, decoded, hidden_container
from keelstore.common.names import quoted
from keelstore.common.policy import Policies

ENABLED: Final = "X-Container-Sysmeta-Versions-Enabled"
CONTAINER: Final = "X-Container-Sysmeta-Versions-Container"
_JSON: Final = "application/json"
_LEGACY_TOO: Final = ("Cannot enable object versioning on a container that is already using the legacy versioned writes "
                      "feature.")
_SYNCED: Final = "Cannot enable object versioning on a container configured as source of container syncing."
_NO_SYNC: Final = "Cannot configure container sync on a container with object versioning configured."
_FAILED: Final = "Error enabling object versioning"
_NOT_EMPTY: Final = "Delete all versions before deleting container."


class Containers:
    """The verbs of containers, and GET of accounts."""

    def __init__(self, app: WSGIApp, inner: Inner, limits: Limits, policies: Policies | None,
                 allow_legacy: bool | None, logger: logging.Logger):
        self.app, self.inner, self.limits, self.policies, self.log = app, inner, limits, policies, logger
        self._allow_legacy = allow_legacy

    # -- writing -------------------------------------------------------------------------------------------------------

    def write(self, request: Request, is_allowed: bool) -> Any:
        """PUT or POST. Raises RequestError."""
        environ = request.environ
        wish = environ.get("HTTP_X_VERSIONS_ENABLED", "")
        wants_sync = bool(environ.get("HTTP_X_CONTAINER_SYNC_TO"))
        wants_legacy = bool(environ.get("HTTP_X_VERSIONS_LOCATION") or environ.get("HTTP_X_HISTORY_LOCATION"))
        if not wish and not wants_sync and not wants_legacy:
            legacy.settle_container(environ, self._allow_legacy, False)
            return self.app
        if wish and not is_allowed:
            if is_true(wish):
                raise PreconditionFailed("Object versioning is disabled", headers={"Content-Type": HTML})
            wish = ""
        enables = is_true(wish)
        info = container_info(environ, self.app, source=self.inner.source)
        has_versions = bool(info.sysmeta.get("versions-container"))
        if wants_sync and (has_versions or enables):
            raise BadRequest(_NO_SYNC, headers={"Content-Type": HTML})
        if enables and info.is_success and (info.sysmeta.get("versions-location") or info.versions):
            raise BadRequest(_LEGACY_TOO, headers={"Content-Type": HTML})
        legacy.settle_container(environ, self._allow_legacy, has_versions or enables)
        if not wish:
            return self.app
        if not enables:
            environ["HTTP_X_CONTAINER_SYSMETA_VERSIONS_ENABLED"] = "False"
            return self.app
        return self._enable(request, info)

    def _enable(self, request: Request, info: ContainerInfo) -> Any:
        environ = request.environ
        if info.is_success and info.sync_to:
            raise BadRequest(_SYNCED, headers={"Content-Type": HTML})
        policy = self.policies.get(info.storage_policy) if info.is_success and self.policies is not None else None
        if policy is not None and policy.is_deprecated:
            raise BadRequest("Cannot enable object versioning on a container that uses a deprecated storage policy.",
                             headers={"Content-Type": HTML})
        no = denial(environ, None)
        if no is not None:
            return no
        if not info.is_success and request.method == "POST":
            return self.app  # 404
        _, version, account, container = request.path.rstrip("/").split("/", 3)
        check_name_length(self.limits, "container", container, account)
        hidden = hidden_container(container)
        path = f"/{version}/{account}/{hidden}"
        made = self._create(environ, path, policy.name if policy is not None else request.header("X-Storage-Policy"))
        environ["HTTP_X_CONTAINER_SYSMETA_VERSIONS_ENABLED"] = "True"
        environ["HTTP_X_CONTAINER_SYSMETA_VERSIONS_CONTAINER"] = quoted(hidden)
        answer = call_app(self.app, environ)
        if not answer.is_success and made == 201:
            self.inner.done(self.inner.ask(environ, "DELETE", path))
        return answer

    def _create(self, environ: Environ, path: str, policy: str | None) -> int:
        """Make the hidden container, with the policy of the other; gives the status. Raises RequestError."""
        response = self.inner.ask(environ, "PUT", path, {"X-Storage-Policy": policy} if policy else {})
        if response.is_success:
            response.drain()
            return response.status
        if response.status == 400:  # the client's own fault: a policy that is none
            raise BadRequest(response.read(65536).decode("utf-8", "replace"))
        response.drain()
        raise RequestError(_FAILED, status=500, headers={"Content-Type": HTML})

    def delete(self, request: Request) -> Any:
        """Both containers, once no version is left. Raises RequestError."""
        environ = request.environ
        info = container_info(environ, self.app, source=self.inner.source)
        versions = info.sysmeta.get("versions-container")
        if not info.is_success or not versions:
            return self.app
        no = denial(environ, None)
        if no is not None:
            return no
        path = f"{request.path.rstrip('/').rpartition('/')[0]}/{decoded(versions)}"
        found = self._entries(environ, path, {"format": "json", "limit": "1"})
        if found:
            raise RequestError(_NOT_EMPTY, status=409, headers={"Content-Type": HTML})
        answer = call_app(self.app, environ)
        if answer.is_success and found is not None:
            status = self.inner.done(self.inner.ask(environ, "DELETE", path))
            if status // 100 != 2 and status != 404:
                self.log.error("the container of versions of %s could not be deleted: %d", request.path_quoted(), status)
        return answer

    # -- reading -------------------------------------------------------------------------------------------------------

    def read(self, request: Request, is_allowed: bool) -> Any:
        """GET or HEAD. Raises RequestError."""
        if is_allowed and "versions" in request.params and request.method == "GET":
            return self._list_versions(request)
        answer = call_app(self.app, request.environ)
        if answer.is_success:
            legacy.show_container(answer.headers)
            if CONTAINER in answer.headers or ENABLED in answer.headers:
                self._show(request, answer)
        return answer

    def _show(self, request: Request, answer: Response) -> None:
        """Tell of versioning, and let links to versions look as those versions."""
        headers = answer.headers
        headers["X-Versions-Enabled"] = str(is_true(headers.get(ENABLED)))
        versions = headers.get(CONTAINER)
        if not versions:
            return
        base, _, container = request.path.rstrip("/").rpartition("/")
        hidden = self.inner.ask(request.environ, "HEAD", f"{base}/{decoded(versions)}")
        hidden.drain()
        _add_bytes(headers, hidden.headers)
        if request.method != "GET" or not headers.get("Content-Type", "").startswith(_JSON):
            return
        data = answer.read()
        answer.app_iter = None
        if HIDDEN.encode() in data:
            data = _json([with_link_shown(entry, container) for entry in json.loads(data)])
        answer.body = data
        headers["Content-Length"] = str(len(data))

    def _list_versions(self, request: Request) -> Any:
        environ = request.environ
        _check_acceptable(request)
        environ[FORMAT_LISTING] = False  # only JSON can tell of versions
        query = VersionsQuery.of(request.params, self.limits.container_listing_limit)
        environ["QUERY_STRING"] = encode_query(query.of_container())
        answer = call_app(self.app, environ)
        if answer.status not in (200, 204):
            return answer
        legacy.show_container(answer.headers)
        base, _, container = request.path.rstrip("/").rpartition("/")
        page = VersionsPage(query, container)
        page.add_container(json.loads(answer.read() or b"[]"))
        of_marker = query.of_marker()
        if of_marker is not None:
            page.add_marker(self._entries(environ, f"{base}/{container}", of_marker) or [])
        headers = answer.headers
        versions = headers.get(CONTAINER)
        if ENABLED in headers:
            headers["X-Versions-Enabled"] = str(is_true(headers[ENABLED]))
        # A container made anew may have versions of the one before, which it does not know of.
        hidden = decoded(versions) if versions else hidden_container(container)
        response = self._list(environ, f"{base}/{hidden}", query.of_hidden())
        if response is not None:
            _add_bytes(headers, response.headers)
            page.add_hidden(json.loads(response.read() or b"[]"))
        answer.status, answer.app_iter, answer.body = 200, None, _json(page.entries())
        headers["Content-Type"] = f"{_JSON}; charset=utf-8"
        headers["Content-Length"] = str(len(answer.body))
        return answer

    def _list(self, environ: Environ, path: str, query: dict[str, str]) -> Response | None:
        """A listing; None when the container is not there. Raises RequestError (503) when that cannot be told."""
        response = self.inner.ask(environ, "GET", path, query=query)
        if response.status in (200, 204):
            return response
        response.drain()
        if response.status == 404:
            return None
        raise RequestError(status=503)

    def _entries(self, environ: Environ, path: str, query: dict[str, str]) -> list[Entry] | None:
        response = self._list(environ, path, query)
        return None if response is None else json.loads(response.read() or b"[]")

    # -- accounts ------------------------------------------------------------------------------------------------------

    def list_account(self, request: Request) -> Any:
        """GET of an account: what versions hold is added to what their containers hold."""
        environ = request.environ
        params = dict(request.params)
        answer = call_app(self.app, environ)
        if answer.status not in (200, 204) or not answer.headers.get("Content-Type", "").startswith(_JSON):
            return answer
        hidden = self._entries(environ, request.path.rstrip("/"), hidden_account_params(params))
        if not hidden:
            return answer
        text = params.get("limit", "")
        limit = int(text) if text.isascii() and text.isdigit() else self.limits.account_listing_limit
        entries = with_hidden_bytes(json.loads(answer.read() or b"[]"), hidden, limit, is_true(params.get("reverse")))
        answer.app_iter, answer.body, answer.status = None, _json(entries), 200
        answer.headers["Content-Length"] = str(len(answer.body))
        return answer


def _json(entries: list[Entry]) -> bytes:
    return json.dumps(entries).encode("ascii")


def _add_bytes(headers: Headers, hidden: Headers) -> None:
    """Count the bytes of versions as the container's."""
    own, more = headers.get("X-Container-Bytes-Used", ""), hidden.get("X-Container-Bytes-Used", "")
    if own.isdigit() and more.isdigit():
        headers["X-Container-Bytes-Used"] = str(int(own) + int(more))


def _check_acceptable(request: Request) -> None:
    """Raises RequestError (406) for a client that does not want JSON."""
    asked = request.environ.get(LISTING_TYPE)
    wanted = asked if asked is not None else request.params.get("format")
    if wanted:
        if wanted.lower() not in ("json", _JSON):
            raise RequestError(status=406)
    elif best_match(request.environ.get("HTTP_ACCEPT"), (_JSON,)) is None:
        raise RequestError(status=406)
