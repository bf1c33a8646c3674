"""versioned_writes: keep what is overwritten or deleted (``spec: middleware 21, 22``).

Two ways, both set per container. *Object versioning* (``X-Versions-Enabled: true``) keeps every version under an id, in a
hidden container; the object's name is a link to the current one. The older modes (``X-Versions-Location``,
``X-History-Location``) copy what is replaced into a container of the user's choice.

Stands after authentication, copy and large objects, before symlink and encryption (and is put there when a pipeline lacks
it). Object versioning needs symlink. A request for a container without versions costs a look at what is cached of it:
writes of objects before they go on, reads once the proxy has looked.

- ``names``: names of versions; ``listing``: listings of versions; ``inner``: the requests made for a client's
- ``objects``, ``containers``: object versioning; ``legacy``: the older modes
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from keelstore.common.cluster import load_cluster
from keelstore.common.errors import ConfigError, RequestError
from keelstore.common.headers import is_true
from keelstore.common.http import (
    IN_PLACE,
    INFOCACHE,
    Environ,
    Request,
    StartResponse,
    WSGIApp,
    error_response,
)
from keelstore.common.info import ContainerInfo, cache_key, container_info
from keelstore.common.limits import Limits
from keelstore.common.logs import logger_for
from keelstore.common.middleware.versioned_writes.containers import Containers
from keelstore.common.middleware.versioned_writes.inner import PERSISTED, Inner, params_without
from keelstore.common.middleware.versioned_writes.legacy import Legacy, location_of
from keelstore.common.middleware.versioned_writes.names import HIDDEN, NULL, Version
from keelstore.common.middleware.versioned_writes.objects import ID, Objects
from keelstore.common.names import RESERVED, api_path
from keelstore.common.options import option, parse
from keelstore.common.policy import Policies
from keelstore.common.registry import published, register_info

AFTER: Final = ("catch_errors", "gatekeeper", "proxy_logging", "memcache", "listing_formats", "tempauth", "authtoken",
                "keystoneauth", "staticweb", "copy", "container_quotas", "account_quotas", "slo", "dlo")
BEFORE: Final = ("symlink", "keymaster", "kms_keymaster", "kmip_keymaster", "encryption")

Header = tuple[str, str]
_DENIED: Final = frozenset({"401", "403"})
_LINKS: Final = ("content-location", "x-symlink-target")


@dataclass(frozen=True)
class VersionedWritesOptions:
    """Options of ``[filter:versioned_writes]``."""

    allow_versioned_writes: bool | None = option(
        None, "Allow X-Versions-Location and X-History-Location. Unset: only as far as container servers allow_versions.")
    allow_object_versioning: bool = option(False, "Allow X-Versions-Enabled; needs symlink.")
    forwarded_object_headers: tuple[str, ...] = option(
        (), "Further headers that objects keep; as for the proxy, where object servers have more allowed_headers.")
    swift_dir: str = option("/etc/swift", "Directory of the cluster file.")


class VersionedWrites:
    def __init__(self, app: WSGIApp, options: VersionedWritesOptions, limits: Limits | None = None,
                 policies: Policies | None = None, logger: logging.Logger | None = None):
        self.app, self.options = app, options
        limits = limits or Limits()
        self._versions = frozenset(limits.valid_api_versions)
        persisted = PERSISTED | {name.strip().title() for name in options.forwarded_object_headers}
        self._inner = Inner(app, "OV", limits.max_file_size, persisted)
        self._objects = Objects(app, self._inner, limits)
        self._legacy = Legacy(app, Inner(app, "VW", limits.max_file_size, persisted))
        self._containers = Containers(app, self._inner, limits, policies, options.allow_versioned_writes,
                                      logger or logging.getLogger("keelstore.versioned_writes"))
        self._allows_versioning = options.allow_object_versioning
        self._allows_legacy = options.allow_versioned_writes

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        names = api_path(environ["PATH_INFO"])
        if names.version not in self._versions or names.container[:1] == RESERVED or IN_PLACE in environ:
            return self.app(environ, start_response)
        method = environ["REQUEST_METHOD"]
        if names.obj:
            if (method == "GET" or method == "HEAD") and "version-id" not in environ.get("QUERY_STRING", ""):
                return self._read(environ, start_response) if self._allows_versioning else self.app(environ, start_response)
            answer = self._object
        elif names.container:
            answer = self._container
        elif method == "GET" and self._allows_versioning:
            answer = self._account
        else:
            return self.app(environ, start_response)
        try:
            app = answer(Request(environ))
        except RequestError as error:
            app = error_response(error)
        return app(environ, start_response)

    # -- accounts, containers ------------------------------------------------------------------------------------------

    def _account(self, request: Request) -> Any:
        return self._containers.list_account(request)

    def _container(self, request: Request) -> Any:
        method = request.method
        if method == "GET" or method == "HEAD":
            return self._containers.read(request, self._allows_versioning)
        if method == "PUT" or method == "POST":
            return self._containers.write(request, self._allows_versioning)
        if method == "DELETE" and self._allows_versioning:
            return self._containers.delete(request)
        return self.app

    # -- objects -------------------------------------------------------------------------------------------------------

    def _object(self, request: Request) -> Any:
        environ, method = request.environ, request.method
        is_plain = False  # what is current is to go, whether it is a version or not
        if self._allows_versioning:
            if "version-id" in environ.get("QUERY_STRING", ""):
                version_id = request.params.get("version-id")
                if version_id == NULL and method == "DELETE":
                    request.params = params_without(request, "version-id")
                    is_plain = True
                elif version_id:
                    return _Shown(self._objects.of_version(request, version_id))
            if method == "POST":
                return self._objects.post(request)
            if method == "GET" or method == "HEAD":
                return lambda env, start_response: self._read(env, start_response)
        if method != "PUT" and method != "DELETE":
            return self.app
        info = container_info(environ, self.app, source="OV" if self._allows_versioning else "VW")
        if not info.is_success:
            return self.app
        sysmeta = info.sysmeta
        if sysmeta and self._allows_versioning and not is_plain and sysmeta.get("versions-container") and is_true(
                sysmeta.get("versions-enabled")):
            return self._objects.put(request, info) if method == "PUT" else self._objects.delete(request, info)
        if sysmeta or info.versions:
            archive, mode = location_of(info, self._allows_legacy)
            if archive:
                if method == "PUT":
                    return self._legacy.put(request, info, archive)
                return self._legacy.delete(request, info, archive, mode)
        return self.app

    def _read(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """A read of what is current: the proxy's answer, with the version named."""
        infocache = environ.setdefault(INFOCACHE, {})

        def start(status: str, headers: list[Header], exc_info: Any = None) -> Any:
            names = api_path(environ["PATH_INFO"])
            info = infocache.get(cache_key(names.account, names.container))
            if isinstance(info, ContainerInfo) and info.sysmeta.get("versions-container") and status[:3] not in _DENIED:
                headers = named(headers, names.container)
            else:
                headers = shown(headers)
            return start_response(status, headers)

        return self.app(environ, start)


class _Shown:
    """An answer whose headers tell nothing of where versions are kept."""

    def __init__(self, answer: WSGIApp):
        self.answer = answer

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        return self.answer(environ, lambda status, headers, exc_info=None: start_response(status, shown(headers)))


def _version_in(value: str) -> tuple[str, Version] | None:
    """What comes before, and the version, in a path that leads to a hidden container."""
    before, _, after = value.partition(HIDDEN)
    version = Version.of(HIDDEN + after)
    return None if version is None else (before, version)


def shown(headers: list[Header]) -> list[Header]:
    """Headers with paths to hidden containers put as a client may ask for them."""
    for index, (name, value) in enumerate(headers):
        if HIDDEN in value and name.lower() in _LINKS:
            found = _version_in(value)
            if found is not None:
                headers = [*headers]
                headers[index] = name, f"{found[0]}{found[1].shown}"
    return headers


def named(headers: list[Header], container: str) -> list[Header]:
    """As :func:`shown`, with the id of the version that was read added. ``container`` is that of the request."""
    version_id: str | None = NULL
    for name, value in headers:
        lower = name.lower()
        if lower in _LINKS:
            found = _version_in(value)
            if found is not None and found[1].container == container:
                version_id = found[1].id
            elif lower == "content-location" and version_id == NULL:
                version_id = None  # a link led elsewhere: whether by way of a version of this object is not known here
        elif lower == "x-object-version-id":
            version_id = None
            break
    headers = shown(headers)
    return headers if version_id is None else [*headers, (ID, version_id)]


def filter_factory(global_conf: dict[str, str], **local_conf: str) -> Callable[[WSGIApp], VersionedWrites]:
    conf = {**global_conf, **local_conf}
    section = "filter:versioned_writes"
    options = parse(VersionedWritesOptions, conf, section=section, local=local_conf, known=("use", "set *", "log_*"))
    if options.allow_object_versioning and "symlink" not in published():
        raise ConfigError("object versioning needs the filter symlink, after versioned_writes in the pipeline",
                          section=section, option="allow_object_versioning", value="true")
    limits, policies = Limits(), None
    try:
        cluster = load_cluster(options.swift_dir)
        limits, policies = cluster.limits, cluster.policies
    except ConfigError:  # the proxy itself says so if that matters
        pass
    if options.allow_versioned_writes:
        register_info("versioned_writes", allowed_flags=["x-versions-location", "x-history-location"])
    if options.allow_object_versioning:
        register_info("object_versioning")
    logger = logger_for(conf, "versioned_writes")
    return lambda app: VersionedWrites(app, options, limits, policies, logger)
