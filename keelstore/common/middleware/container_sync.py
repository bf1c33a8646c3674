"""container_sync: writes that another cluster of our realm sends, to keep a container in step (``spec: middleware 7``).

``X-Container-Sync-Auth: <realm> <nonce> <signature>`` is signed with the realm's key and the container's own; a good one may
write with the time that the other cluster gives. ``/info`` lists realms and clusters. A refused one gets one and the same
answer, and the log says why.

Stands before authentication. Needs ``container-sync-realms.conf``.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from keelstore.common.errors import ConfigError
from keelstore.common.headers import is_true, wire_to_text
from keelstore.common.http import AUTHORIZE, AUTHORIZE_OVERRIDE, Environ, Request, Response, StartResponse, WSGIApp
from keelstore.common.info import container_info
from keelstore.common.logs import logger_for
from keelstore.common.middleware.gatekeeper import INBOUND_TIMESTAMP
from keelstore.common.middleware.url_keys import Scope, UrlKey, note
from keelstore.common.options import not_negative, option, parse
from keelstore.common.registry import register_info
from keelstore.common.sync_realms import Realms, signature

AFTER: Final = ("catch_errors", "gatekeeper", "memcache")
BEFORE: Final = ("tempauth", "authtoken", "keystoneauth", "staticweb", "copy", "slo", "dlo", "versioned_writes", "symlink")

_REFUSED: Final = "X-Container-Sync-Auth header not valid; contact cluster operator for support."
_HEADER: Final = "HTTP_X_CONTAINER_SYNC_AUTH"
_TO: Final = "HTTP_X_CONTAINER_SYNC_TO"


@dataclass(frozen=True)
class ContainerSyncOptions:
    """Options of ``[filter:container_sync]``."""

    allow_full_urls: bool = option(True, "Let X-Container-Sync-To be a plain URL, not only //realm/cluster/account/...")
    current: str = option("", "This cluster, as //REALM/CLUSTER, to be marked in /info.")
    swift_dir: str = option("/etc/swift", "Directory of container-sync-realms.conf.")
    mtime_check_interval: float = option(300.0, "Seconds between looks at that file.", check=not_negative)


class ContainerSync:
    def __init__(self, app: WSGIApp, options: ContainerSyncOptions, realms: Realms, logger: logging.Logger):
        self.app, self.options, self.realms, self.log = app, options, realms, logger
        self._current = tuple(part.upper() for part in options.current.strip("/").split("/")) if options.current else ()
        self.publish()

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        answer = None
        if _HEADER in environ:
            answer = self._check(Request(environ))
        elif _TO in environ:
            answer = self._check_target(Request(environ))
        elif environ["PATH_INFO"] == "/info":
            self.publish()
        return (self.app if answer is None else answer)(environ, start_response)

    def publish(self) -> None:
        """Tell ``/info`` of the realms that are known now."""
        register_info("container_sync", realms={
            name: {"clusters": {cluster: {"current": True} if (name, cluster) == self._current else {}
                                for cluster in realm.clusters}}
            for name, realm in self.realms.current().items()})

    def _check_target(self, request: Request) -> Response | None:
        """The answer that refuses where a container is to be synced to."""
        if request.method not in ("PUT", "POST") or not request.header("X-Container-Sync-To"):
            return None
        parts = request.path.split("/", 4)
        if len(parts) < 4 or not parts[3] or (len(parts) > 4 and parts[4]):
            return None
        if not self.options.allow_full_urls and not request.header("X-Container-Sync-To").strip().startswith("//"):
            return Response(400, body="Full URLs are not allowed for X-Container-Sync-To values. Only realm values of the "
                                      "format //realm/cluster/account/container are allowed.\n", content_type="text/plain")
        sysmeta = container_info(request.environ, self.app, parts[2], parts[3], source="CS").sysmeta
        if is_true(sysmeta.get("versions-enabled")) or is_true(request.header("X-Versions-Enabled")):
            return Response(400, body="Cannot enable container sync on a container with object versioning enabled.",
                            content_type="text/plain")
        return None

    def _check(self, request: Request) -> Response | None:
        """Let a write of another cluster pass, or give the answer that refuses it."""
        environ = request.environ
        parts = environ["PATH_INFO"].split("/", 4)
        if len(parts) < 5 or parts[0] or not all(parts[1:]) or not environ[_HEADER]:
            return None  # for objects only; authentication answers all else
        words = environ[_HEADER].split()
        if len(words) != 3:
            return self._refuse(request, "cs:not-3-args", "the header has not three words")
        name, nonce, given = words
        realm = self.realms.current().get(name.upper())
        if realm is None or not realm.key:
            return self._refuse(request, "cs:no-local-realm-key", f"the realm {name[:80]!r} is not known here, or has no key")
        user_key = container_info(environ, self.app, wire_to_text(parts[2]), wire_to_text(parts[3]), source="CS").sync_key
        if not user_key:
            return self._refuse(request, "cs:no-local-user-key", "the container is not there, or has no X-Container-Sync-Key")
        timestamp = environ.get(INBOUND_TIMESTAMP) or environ.get("HTTP_X_TIMESTAMP") or "0"
        is_valid = False
        for key in (realm.key, realm.key2):
            expected = signature(key, request.method, request.path_quoted(), timestamp, nonce, user_key) if key else ""
            is_valid |= given.isascii() and bool(expected) and hmac.compare_digest(expected, given)
        if not is_valid:
            return self._refuse(request, "cs:invalid-sig", f"the signature is not that of the realm {realm.name}")
        note(environ, "cs:valid")
        if INBOUND_TIMESTAMP in environ:
            environ["HTTP_X_TIMESTAMP"] = environ.pop(INBOUND_TIMESTAMP)
        environ[AUTHORIZE] = Scope(UrlKey("", parts[2], parts[3]))
        environ[AUTHORIZE_OVERRIDE] = True
        environ["swift.slo_override"] = environ["swift.symlink_override"] = True
        return None

    def _refuse(self, request: Request, tag: str, why: str) -> Response:
        note(request.environ, tag)
        self.log.info("Container sync refused: %s; %s %s (txn: %s)", why, request.method, request.path_quoted(),
                      request.trans_id)
        account = request.path.split("/", 3)[2]
        realm = quote(account.encode("utf-8", "surrogateescape"), safe="")
        return Response(401, {"Www-Authenticate": f'SwiftContainerSync realm="{realm}"'}, body=_REFUSED,
                        content_type="text/plain")


def filter_factory(global_conf: dict[str, str], **local_conf: str) -> Callable[[WSGIApp], ContainerSync]:
    conf = {**global_conf, **local_conf}
    options = parse(ContainerSyncOptions, conf, section="filter:container_sync", local=local_conf,
                    known=("use", "set *", "log_*"))
    parts: list[Any] = options.current.split("/")
    if options.current and (len(parts) != 4 or parts[:2] != ["", ""] or not all(parts[2:])):
        raise ConfigError("expected //REALM/CLUSTER", section="filter:container_sync", option="current",
                          value=options.current)
    logger = logger_for(conf, "container_sync")
    realms = Realms(options.swift_dir, options.mtime_check_interval, lambda text: logger.error("%s", text))
    return lambda app: ContainerSync(app, options, realms, logger)
