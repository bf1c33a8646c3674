"""healthcheck: answer ``/healthcheck`` with 200 ``OK``, or 503 while the file ``disable_path`` exists.

Load balancers ask often, so it had best answer before anything else does: after catch_errors and gatekeeper, and first
in the storage servers' pipelines. Needs nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from keelstore.common.http import Environ, StartResponse, WSGIApp
from keelstore.common.options import option, parse

AFTER: Final[tuple[str, ...]] = ()
BEFORE: Final[tuple[str, ...]] = ()


@dataclass(frozen=True)
class HealthcheckOptions:
    """Options of ``[filter:healthcheck]``."""

    disable_path: str = option("", "While this file exists the answer is 503, so that load balancers leave the node alone.")


class Healthcheck:
    leaves_nodes_alone = True  # what a node asks of itself (``wsgi.build``)

    def __init__(self, app: WSGIApp, options: HealthcheckOptions):
        self.app, self._disable_path = app, options.disable_path

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        if environ["PATH_INFO"] != "/healthcheck":
            return self.app(environ, start_response)
        if self._disable_path and os.path.exists(self._disable_path):
            status, body = "503 Service Unavailable", b"DISABLED BY FILE"
        else:
            status, body = "200 OK", b"OK"
        start_response(status, [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
        return () if environ["REQUEST_METHOD"] == "HEAD" else (body,)


def filter_factory(global_conf: dict[str, str], **local_conf: str) -> Callable[[WSGIApp], Healthcheck]:
    options = parse(HealthcheckOptions, {**global_conf, **local_conf}, section="filter:healthcheck", local=local_conf,
                    known=("use", "set *", "log_*"))
    return lambda app: Healthcheck(app, options)
