"""etag_quoter: ETags of objects in quotes, as RFC 9110 8.8.3 wants them and some caches need (``spec: middleware 26``).

``X-Container-Rfc-Compliant-Etags`` and ``X-Account-Rfc-Compliant-Etags`` (true, false, or nothing) say it for a container or
an account; the container's word goes before the account's, and that before the option.

Stands right after cache. Needs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from keelstore.common.headers import is_true
from keelstore.common.http import Environ, StartResponse, WSGIApp
from keelstore.common.info import account_info, container_info
from keelstore.common.names import api_path
from keelstore.common.options import option, parse
from keelstore.common.registry import register_info

AFTER: Final = ("catch_errors", "gatekeeper", "memcache")
BEFORE: Final = ("tempauth", "authtoken", "keystoneauth", "copy", "slo", "dlo", "versioned_writes", "symlink")

_KEY: Final = "rfc-compliant-etags"
_LEVELS: Final = ("ACCOUNT", "CONTAINER")
# The headers that say it for an account or container, and the system metadata that keeps it.
_SETTINGS: Final = tuple((f"HTTP_X_{level}_RFC_COMPLIANT_ETAGS", f"HTTP_X_REMOVE_{level}_RFC_COMPLIANT_ETAGS",
                          f"HTTP_X_{level}_SYSMETA_RFC_COMPLIANT_ETAGS") for level in _LEVELS)
_STORED: Final = {f"x-{level.lower()}-sysmeta-{_KEY}": f"X-{level.title()}-Rfc-Compliant-Etags" for level in _LEVELS}


@dataclass(frozen=True)
class EtagQuoterOptions:
    """Options of ``[filter:etag-quoter]``."""

    enable_by_default: bool = option(False, "Quote ETags where neither container nor account says anything.")


class EtagQuoter:
    def __init__(self, app: WSGIApp, options: EtagQuoterOptions):
        self.app, self.options = app, options

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        method = environ["REQUEST_METHOD"]
        if method == "DELETE" or method == "OPTIONS":
            return self.app(environ, start_response)
        if method == "PUT" or method == "POST":
            for given, removing, stored in _SETTINGS:
                if given in environ:
                    environ[stored] = str(is_true(environ[given])) if environ[given] else ""
                elif removing in environ:
                    environ[stored] = ""

        def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            headers = self._changed(environ, headers)
            return start_response(status, headers) if exc_info is None else start_response(status, headers, exc_info)

        return self.app(environ, start)

    def _changed(self, environ: Environ, headers: list[tuple[str, str]]) -> list[tuple[str, str]]:
        for place, (name, value) in enumerate(headers):
            size = len(name)
            if size == 4:
                if name.lower() == "etag" and value[:1] != '"' and value[:3] != 'W/"' and self._quotes(environ):
                    return [*headers[:place], (name, f'"{value}"'), *headers[place + 1:]]
            elif size > 36 and value:
                shown = _STORED.get(name.lower())
                if shown is not None:
                    return [*headers, (shown, value)]
        return headers

    def _quotes(self, environ: Environ) -> bool:
        """Whether the ETag of an answer is to be quoted: that of an object, where its container wants it so."""
        if not api_path(environ["PATH_INFO"]).obj:  # other filters may have changed it: this is where the object is
            return False
        wish = container_info(environ, self.app, source="EQ").sysmeta.get(_KEY)
        if not wish:
            wish = account_info(environ, self.app, source="EQ").sysmeta.get(_KEY)
        return is_true(wish) if wish else self.options.enable_by_default


def filter_factory(global_conf: dict[str, str], **local_conf: str) -> Callable[[WSGIApp], EtagQuoter]:
    options = parse(EtagQuoterOptions, {**global_conf, **local_conf}, section="filter:etag-quoter", local=local_conf,
                    known=("use", "set *", "log_*"))
    register_info("etag_quoter", enable_by_default=options.enable_by_default)
    return lambda app: EtagQuoter(app, options)
