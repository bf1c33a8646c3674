"""gatekeeper: keep headers that the parts of a cluster use among themselves from getting in or out.

Names in ``spec: client-api 17``. A client's ``X-Timestamp`` is moved to ``X-Backend-Inbound-X-Timestamp``, so that the
proxy sets its own. It works on WSGI environ keys, where ``-`` and ``_`` are one, so no spelling of a name slips through.

Stands right after catch_errors (and is put there when a pipeline lacks it). Needs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

from keelstore.common.http import Environ, StartResponse, WSGIApp
from keelstore.common.options import option, parse

AFTER: Final = ("catch_errors",)
BEFORE: Final = ("listing_formats", "container_sync", "ratelimit", "tempauth", "keystoneauth", "copy", "slo", "dlo")

_PREFIXES: Final = (
    "x-account-sysmeta-", "x-container-sysmeta-", "x-object-sysmeta-", "x-object-transient-sysmeta-", "x-backend",
)  # fmt: skip
_NAMES: Final = frozenset({
    "x-account-host", "x-account-device", "x-account-partition",
    "x-container-host", "x-container-device", "x-container-partition", "x-container-root-db-state",
    "x-delete-at-host", "x-delete-at-device", "x-delete-at-partition", "x-delete-at-container",
})  # fmt: skip
INBOUND_TIMESTAMP: Final = "HTTP_X_BACKEND_INBOUND_X_TIMESTAMP"


@lru_cache(maxsize=4096)
def is_internal(name: str) -> bool:
    """Whether no client may send or see a header of this name (``-`` or ``_``, any case)."""
    lowered = name.lower().replace("_", "-").strip()
    return lowered.startswith(_PREFIXES) or lowered in _NAMES


@lru_cache(maxsize=1024)
def internal_keys(keys: tuple[str, ...]) -> tuple[str, ...]:
    """Those of the keys of an environ that hold headers no client may send. Most requests have the keys of one before."""
    return tuple(key for key in keys if key[:7] == "HTTP_X_" and is_internal(key[5:]))


@dataclass(frozen=True)
class GatekeeperOptions:
    """Options of ``[filter:gatekeeper]``."""

    shunt_inbound_x_timestamp: bool = option(
        True, "Keep a client's X-Timestamp from setting the time of its write; the move needs a trusted front end if off.")
    allow_reserved_names_header: bool = option(
        False, "Let clients reach names of the reserved namespace with X-Allow-Reserved-Names; for tests and repair only.")


class Gatekeeper:
    def __init__(self, app: WSGIApp, options: GatekeeperOptions):
        self.app = app
        self._shunts = options.shunt_inbound_x_timestamp
        self._allows_reserved = options.allow_reserved_names_header

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        for key in internal_keys(tuple(environ)):
            del environ[key]
        if "HTTP_X_TIMESTAMP" in environ and self._shunts:
            environ[INBOUND_TIMESTAMP] = environ.pop("HTTP_X_TIMESTAMP")
        if "HTTP_X_ALLOW_RESERVED_NAMES" in environ and self._allows_reserved:
            environ["HTTP_X_BACKEND_ALLOW_RESERVED_NAMES"] = environ.pop("HTTP_X_ALLOW_RESERVED_NAMES")

        def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            shown = [header for header in headers if header[0][:2] not in _X or not is_internal(header[0])]
            if "swift.leave_relative_location" in environ:
                shown = [(name, relative(value)) if name.lower() == "location" else (name, value)
                         for name, value in shown]
            return start_response(status, shown) if exc_info is None else start_response(status, shown, exc_info)

        return self.app(environ, start)


_X: Final = frozenset({"X-", "x-", "X_", "x_"})


def relative(location: str) -> str:
    """A URL without its scheme and host."""
    parts = urlsplit(location)
    return urlunsplit(("", "", parts.path, parts.query, parts.fragment)) if parts.scheme or parts.netloc else location


def filter_factory(global_conf: dict[str, str], **local_conf: str) -> Callable[[WSGIApp], Gatekeeper]:
    options = parse(GatekeeperOptions, {**global_conf, **local_conf}, section="filter:gatekeeper", local=local_conf,
                    known=("use", "set *", "log_*"))
    return lambda app: Gatekeeper(app, options)
