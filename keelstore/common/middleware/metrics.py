"""metrics: the page ``/metrics`` of a proxy, for Prometheus: its requests by method and status, and how long they took.

Storage servers have theirs by ``recon``, on ports that clients do not reach. A proxy's port is open to everybody, so this
filter answers nobody unless it is told whom: those who come from an address of ``allow_from``, and through no proxy that
says so (X-Forwarded-For, Forwarded), or who know ``bearer_token``. For all others there is no such page.

Do not list an address from which a load balancer forwards what anybody asks: use the token there.

Stands early, beside healthcheck. Needs nothing.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from keelstore.common.http import Environ, Response, StartResponse, WSGIApp
from keelstore.common.metrics import TEXT_TYPE, Meter, Page
from keelstore.common.options import option, parse

AFTER: Final = ("catch_errors",)
BEFORE: Final[tuple[str, ...]] = ()


def _networks_problem(value: tuple[str, ...]) -> str | None:
    for text in value:
        try:
            ipaddress.ip_network(text)
        except ValueError:
            return "addresses or networks, such as 127.0.0.0/8, 10.1.2.3"
    return None


@dataclass(frozen=True)
class MetricsOptions:
    """Options of ``[filter:metrics]``."""

    metrics_path: str = option("/metrics", "Path of the page.")
    allow_from: tuple[str, ...] = option((), "Networks whose hosts may read the page; empty: none may.",
                                          check=_networks_problem)
    bearer_token: str = option("", "Whoever sends it ('Authorization: Bearer TOKEN') may read the page; empty: nobody.")


class Metrics:
    meter: Meter | None = None  # of the role; set when the pipeline is built

    def __init__(self, app: WSGIApp, options: MetricsOptions):
        self.app, self._path, self._token = app, options.metrics_path, options.bearer_token.encode()
        self._networks = [ipaddress.ip_network(text) for text in options.allow_from]

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        if environ["PATH_INFO"] != self._path or environ["REQUEST_METHOD"] not in ("GET", "HEAD") or not self._may(environ):
            return self.app(environ, start_response)
        page = Page()
        if self.meter is not None:
            self.meter.write(page)
        return Response(200, body=page.text(), content_type=TEXT_TYPE)(environ, start_response)

    def _may(self, environ: Environ) -> bool:
        given = environ.get("HTTP_AUTHORIZATION", "")
        if self._token and given[:7].lower() == "bearer ":
            return hmac.compare_digest(given[7:].strip().encode("latin-1"), self._token)
        if not self._networks or "HTTP_X_FORWARDED_FOR" in environ or "HTTP_FORWARDED" in environ:
            return False
        try:
            address = ipaddress.ip_address(environ.get("REMOTE_ADDR", ""))
        except ValueError:
            return False
        return any(address in network for network in self._networks)


def filter_factory(global_conf: dict[str, str], **local_conf: str) -> Callable[[WSGIApp], Metrics]:
    options = parse(MetricsOptions, {**global_conf, **local_conf}, section="filter:metrics", local=local_conf,
                    known=("use", "set *"))
    return lambda app: Metrics(app, options)
