"""The older modes of versioning: what is replaced is copied to an archive container (``spec: middleware 21``).

``X-Versions-Location`` (*stack*): a DELETE brings the newest archived version back. ``X-History-Location`` (*history*): a
DELETE archives the object and a delete marker. Whoever may write to the container may do both; the archive is written and
read with the rights of the cluster (security S12: nothing of it is touched before the client is known to have that right).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from keelstore.common.errors import BadRequest, PreconditionFailed, RequestError
from keelstore.common.headers import Headers
from keelstore.common.http import Environ, Request, Response, WSGIApp
from keelstore.common.info import ContainerInfo
from keelstore.common.limits import is_valid_text
from keelstore.common.middleware.authorizing import denial
from keelstore.common.middleware.versioned_writes.inner import HTML, Inner, settle_timestamp
from keelstore.common.middleware.versioned_writes.names import (
    MARKER_TYPE,
    archive_name,
    archive_prefix,
    decoded,
    is_archive_name,
)
from keelstore.common.timestamp import Timestamp

LOCATION: Final = "X-Container-Sysmeta-Versions-Location"
MODE: Final = "X-Container-Sysmeta-Versions-Mode"
_KEYS: Final = (("HTTP_X_VERSIONS_LOCATION", "HTTP_X_REMOVE_VERSIONS_LOCATION", "stack"),
                ("HTTP_X_HISTORY_LOCATION", "HTTP_X_REMOVE_HISTORY_LOCATION", "history"))
_PAGE: Final = 100  # archived versions looked at in one go; the first is the one, as a rule


# -- containers --------------------------------------------------------------------------------------------------------


def settle_container(environ: Environ, allowed: bool | None, has_versions: bool) -> None:
    """Turn the headers of a container's PUT or POST into what is stored of them. Raises RequestError.

    ``has_versions``: object versioning is in use, or about to be.
    """
    wanted = [(environ[key], mode) for key, _remove, mode in _KEYS if environ.get(key)]
    if len(wanted) > 1:
        raise BadRequest("Only one of x-versions-location or x-history-location may be specified")
    if wanted:
        location, mode = wanted[0]
        if allowed is None and mode == "stack":
            return  # the container servers decide, as they are configured
        if not allowed:
            raise PreconditionFailed("Versioned Writes is disabled")
        _check_location(location)
        if has_versions:
            raise BadRequest("Cannot configure versioned writes on a container that uses object versioning.",
                             headers={"Content-Type": HTML})
        _store(environ, location, mode)
    elif any(key in environ or remove in environ for key, remove, _mode in _KEYS):
        _store(environ, "", "")


def _store(environ: Environ, location: str, mode: str) -> None:
    for key, remove, _mode in _KEYS:
        environ.pop(key, None)
        environ.pop(remove, None)
    environ["HTTP_X_VERSIONS_LOCATION"] = ""  # also what a container server may have kept of its own
    environ["HTTP_X_CONTAINER_SYSMETA_VERSIONS_LOCATION"] = location
    environ["HTTP_X_CONTAINER_SYSMETA_VERSIONS_MODE"] = mode


def _check_location(location: str) -> None:
    name = decoded(location)
    if "/" in name:
        raise PreconditionFailed("Container name cannot contain slashes", headers={"Content-Type": HTML})
    if not is_valid_text(name):  # nor of the reserved namespace: versions of others are kept there
        raise PreconditionFailed("Container name is not valid", headers={"Content-Type": HTML})


def show_container(headers: Headers) -> None:
    """Tell in a container's answer what was set."""
    location = headers.get(LOCATION)
    if location:
        is_history = headers.get(MODE) == "history"
        headers["X-History-Location" if is_history else "X-Versions-Location"] = location


def location_of(info: ContainerInfo, allowed: bool | None) -> tuple[str, str]:
    """Archive container (text, '' when there is none) and mode of what is known of a container."""
    if allowed is False:
        return "", ""
    location = (info.sysmeta.get("versions-location") if allowed else None) or info.versions
    if not location:
        return "", ""
    mode = info.sysmeta.get("versions-mode") if allowed else None
    return decoded(location), "history" if mode == "history" else "stack"


# -- objects -----------------------------------------------------------------------------------------------------------


class Legacy:
    """PUT and DELETE of objects of a container with an archive."""

    def __init__(self, app: WSGIApp, inner: Inner):
        self.app, self.inner = app, inner

    def put(self, request: Request, info: ContainerInfo, archive: str) -> Any:
        """Archive what is there, then go on with the client's own request. Raises RequestError."""
        environ = request.environ
        no = denial(environ, info.write_acl)
        if no is not None:
            return no
        if request.content_length is None and "HTTP_TRANSFER_ENCODING" not in environ:
            return self.app  # which refuses it: nothing is to be archived for that
        self._archive(request, archive)
        return self.app

    def delete(self, request: Request, info: ContainerInfo, archive: str, mode: str) -> Any:
        """Raises RequestError."""
        no = denial(request.environ, info.write_acl)
        if no is not None:
            return no
        return self._mark(request, archive) if mode == "history" else self._pop(request, archive)

    def _archive(self, request: Request, archive: str) -> None:
        """Copy the current object, if there is one, to the archive."""
        environ, path = request.environ, request.path
        current = self.inner.current(environ, path)
        if current is None:
            return
        _, version, account, _container, obj = path.split("/", 4)
        name = archive_name(obj, Timestamp(current.headers.get("X-Timestamp", "0")))
        try:
            status = self.inner.copy(environ, current, f"/{version}/{account}/{archive}/{name}")
        except RequestError as error:
            raise _failure(error.status) from error
        if status // 100 != 2:
            raise _failure(status)

    def _mark(self, request: Request, archive: str) -> Any:
        environ = request.environ
        timestamp = settle_timestamp(environ)
        self._archive(request, archive)
        _, version, account, _container, obj = request.path.split("/", 4)
        status = self.inner.write_marker(environ, f"/{version}/{account}/{archive}/{archive_name(obj, timestamp)}", timestamp)
        if status // 100 != 2:
            raise _failure(status)
        return self.app

    def _pop(self, request: Request, archive: str) -> Any:
        """Bring the newest archived version back, and take it out of the archive; without one, delete.

        Markers that history mode has left: over an object, the newest stands for the object's absence before it, so that a
        DELETE only deletes. Where nothing is, the DELETE takes the newest away, and brings back what lies below unless that
        is a marker too.
        """
        environ = request.environ
        base = "/".join(request.path.split("/", 3)[:3])
        obj = request.path.split("/", 4)[4]
        entries = self._archived(environ, f"{base}/{archive}", obj)
        newest = next(entries, None)
        taken: list[str] = []
        if newest is not None and _is_marker(newest):
            if self._exists(environ, request.path):
                return self.app
            taken.append(newest["name"])
            newest = next(entries, None)
            if newest is not None and _is_marker(newest):
                newest = None
        while newest is not None:
            path = f"{base}/{archive}/{newest['name']}"
            found = self.inner.current(environ, path)
            if found is not None:
                status = self.inner.copy(environ, found, request.path)
                if status // 100 != 2:
                    raise RequestError(status=status if status // 100 == 4 else 503)
                taken.append(newest["name"])
                break
            newest = next(entries, None)  # gone, though it was listed
        if not taken:
            return self.app
        response = Response(204)
        for name in taken:
            status = self.inner.done(self.inner.ask(environ, "DELETE", f"{base}/{archive}/{name}"))
            if status // 100 != 2 and status != 404:
                raise RequestError(status=status if status // 100 == 4 else 503)
        return response

    def _exists(self, environ: Environ, path: str) -> bool:
        found = self.inner.current(environ, path, "HEAD")
        if found is not None:
            found.close()
        return found is not None

    def _archived(self, environ: Environ, path: str, obj: str) -> Iterator[dict[str, Any]]:
        """The archived versions of an object, the newest first. Raises RequestError when they cannot be listed."""
        query = {"format": "json", "prefix": archive_prefix(obj), "reverse": "true", "limit": str(_PAGE)}
        while True:
            response = self.inner.ask(environ, "GET", path, query=query)
            if response.status == 404:
                response.drain()
                return
            if response.status != 200:
                response.drain()
                raise RequestError(status=503)
            page = json.loads(response.read())
            yield from (entry for entry in page if is_archive_name(entry.get("name", ""), obj))
            if len(page) < _PAGE:
                return
            query["marker"] = page[-1]["name"]


def _is_marker(entry: dict[str, Any]) -> bool:
    return entry.get("content_type") == MARKER_TYPE


def _failure(status: int) -> RequestError:
    """Whatever is wrong with the archive, the client's own request could not have been at fault: 412."""
    return PreconditionFailed(headers={"Content-Type": HTML}) if status // 100 == 4 else RequestError(status=503)
