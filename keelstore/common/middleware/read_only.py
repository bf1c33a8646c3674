"""read_only: refuse writes, to the whole cluster or to accounts marked so (``spec: middleware 12``).

The account's system metadata ``Read-Only`` (true or false) overrides the option. A COPY counts as a write to the account of
its destination.

Stands after ratelimit, before whatever writes. Needs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote_to_bytes

from keelstore.common.headers import is_true, wire_to_text
from keelstore.common.http import Environ, Response, StartResponse, WSGIApp
from keelstore.common.info import account_info
from keelstore.common.options import option, parse
from keelstore.common.registry import register_info

AFTER: Final = ("catch_errors", "gatekeeper", "memcache", "ratelimit")
BEFORE: Final = ("copy", "slo", "dlo", "versioned_writes", "symlink", "encryption")


@dataclass(frozen=True)
class ReadOnlyOptions:
    """Options of ``[filter:read_only]``."""

    read_only: bool = option(False, "Refuse writes to all accounts that are not marked Read-Only: false.")
    allow_deletes: bool = option(False, "Let DELETE pass all the same.")


class ReadOnly:
    def __init__(self, app: WSGIApp, options: ReadOnlyOptions):
        self.app, self.options = app, options
        self._writes = frozenset({"COPY", "POST", "PUT"} | (set() if options.allow_deletes else {"DELETE"}))

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] in self._writes and self._is_refused(environ):
            return Response(405, body="Writes are disabled for this account.", content_type="text/html; charset=UTF-8")(
                environ, start_response)
        return self.app(environ, start_response)

    def _is_refused(self, environ: Environ) -> bool:
        parts = environ["PATH_INFO"].split("/", 3)
        if len(parts) < 3 or parts[0] or parts[1] not in ("v1", "v1.0") or not parts[2]:
            return False
        account = wire_to_text(parts[2])
        target = environ.get("HTTP_DESTINATION_ACCOUNT")
        if target and environ["REQUEST_METHOD"] == "COPY":
            account = unquote_to_bytes(target.encode("latin-1")).decode("utf-8", "surrogateescape")
        setting = account_info(environ, self.app, account, source="RO").sysmeta.get("read-only")
        return is_true(setting) if setting else self.options.read_only


def filter_factory(global_conf: dict[str, str], **local_conf: str) -> Callable[[WSGIApp], ReadOnly]:
    options = parse(ReadOnlyOptions, {**global_conf, **local_conf}, section="filter:read_only", local=local_conf,
                    known=("use", "set *", "log_*"))
    if options.read_only:
        register_info("read_only")
    return lambda app: ReadOnly(app, options)
