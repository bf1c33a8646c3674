"""domain_remap: accounts and containers as host names (``spec: middleware 29``).

``http://container.account.storage.example.com/object`` becomes ``/v1/account/container/object``, and URLs in the answer
become what the client knows. Host names know neither ``_`` nor case: the first ``-`` of an account stands for ``_``, and the
case of its prefix is put right.

Stands before listing_formats and authentication, after cname_lookup. Needs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlsplit, urlunsplit

from keelstore.common.http import Environ, Response, StartResponse, WSGIApp
from keelstore.common.options import option, parse
from keelstore.common.registry import register_info

AFTER: Final = ("catch_errors", "gatekeeper", "cname_lookup")
BEFORE: Final = ("listing_formats", "container_sync", "bulk", "tempurl", "formpost", "ratelimit", "tempauth", "authtoken",
                 "keystoneauth", "staticweb")

_LOCATIONS: Final = frozenset({"location", "content-location"})


@dataclass(frozen=True)
class DomainRemapOptions:
    """Options of ``[filter:domain_remap]``."""

    storage_domain: tuple[str, ...] = option(("example.com",), "Domains below which accounts and containers are.")
    path_root: str = option("v1", "First segment of the paths that are made.")
    reseller_prefixes: tuple[str, ...] = option(("AUTH",), "Prefixes of accounts, in the case that they have.")
    default_reseller_prefix: str = option("", "Prefix of accounts whose host name has none; empty: those pass unchanged.")
    mangle_client_paths: bool = option(False, "Take path_root from the front of the client's path, for clients of old.")


class DomainRemap:
    def __init__(self, app: WSGIApp, options: DomainRemapOptions):
        self.app, self.options = app, options
        self._domains = tuple("." + domain.lower().lstrip(".") for domain in options.storage_domain if domain.strip("."))
        self._prefixes = {prefix.lower().rstrip("_"): prefix.rstrip("_") for prefix in options.reseller_prefixes}
        self._root = options.path_root.strip("/")

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        host = environ.get("HTTP_HOST") or environ.get("SERVER_NAME", "")
        if not self._domains:
            return self.app(environ, start_response)
        name = host.partition(":")[0] if host[:1] != "[" else ""
        lowered = name.lower()
        for domain in self._domains:
            if lowered.endswith(domain):
                return self._remap(environ, start_response, name[:-len(domain)])
        return self.app(environ, start_response)

    def _remap(self, environ: Environ, start_response: StartResponse, name: str) -> Iterable[bytes]:
        container, dot, account = name.rpartition(".")
        if not account:
            return self.app(environ, start_response)
        if "." in container or (dot and not container):
            return Response(400, body="Bad domain in host header", content_type="text/plain")(environ, start_response)
        full = self._account(account)
        if full is None:
            return self.app(environ, start_response)
        base = f"/{self._root}/{full}" + (f"/{container}" if container else "")
        path = environ["PATH_INFO"]
        if self.options.mangle_client_paths and (path == f"/{self._root}" or path.startswith(f"/{self._root}/")):
            path = path[len(self._root) + 1:]
        environ["PATH_INFO"] = base + (path if path.startswith("/") else f"/{path}")
        shown = quote(base, encoding="latin-1")

        def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            headers = [(key, _outside(value, shown)) if key.lower() in _LOCATIONS else (key, value) for key, value in headers]
            return start_response(status, headers) if exc_info is None else start_response(status, headers, exc_info)

        return self.app(environ, start)

    def _account(self, name: str) -> str | None:
        """The account that a label stands for; None for one that is none of ours."""
        if "_" not in name and "-" in name:
            name = name.replace("-", "_", 1)
        prefix, line, rest = name.partition("_")
        known = self._prefixes.get(prefix.lower()) if line else None
        if known is not None:
            return f"{known}_{rest}"
        default = self.options.default_reseller_prefix
        return f"{default.rstrip('_')}_{name}" if default else None


def _outside(url: str, base: str) -> str:
    """A URL of the inside as the client, whose host name stands for ``base``, knows it."""
    parts = urlsplit(url)
    if not parts.path.startswith(f"{base}/"):
        return url
    return urlunsplit((parts.scheme, parts.netloc, parts.path[len(base):], parts.query, parts.fragment))


def filter_factory(global_conf: dict[str, str], **local_conf: str) -> Callable[[WSGIApp], DomainRemap]:
    options = parse(DomainRemapOptions, {**global_conf, **local_conf}, section="filter:domain_remap", local=local_conf,
                    known=("use", "set *", "log_*"))
    register_info("domain_remap", default_reseller_prefix=options.default_reseller_prefix or None)
    return lambda app: DomainRemap(app, options)
