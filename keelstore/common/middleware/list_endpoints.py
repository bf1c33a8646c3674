"""list_endpoints: where the replicas of an account, container or object are, for programs that work beside the data
(``spec: middleware 31``).

``GET /endpoints/[v1/|v2/]account[/container[/object]]``. It answers everybody, and with addresses of the inside: to be used
only where all clients may know these, and no client may reach them.

Stands anywhere before authentication. Needs the rings.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from keelstore.common.cluster import Cluster, load_cluster
from keelstore.common.http import Environ, Request, Response, StartResponse, WSGIApp
from keelstore.common.info import container_info
from keelstore.common.options import option, parse
from keelstore.common.ring.ring import RingFile

AFTER: Final = ("catch_errors", "gatekeeper", "memcache")
BEFORE: Final = ("tempauth", "authtoken", "keystoneauth")

_VERSIONS: Final = {"v1": 1, "v1.0": 1, "v2": 2, "v2.0": 2}


def _prefix_check(value: str) -> str | None:
    return None if value.strip("/") else "a path of at least one segment"


@dataclass(frozen=True)
class ListEndpointsOptions:
    """Options of ``[filter:list-endpoints]``."""

    list_endpoints_path: str = option("/endpoints/", "Path that is answered.", check=_prefix_check)
    swift_dir: str = option("/etc/swift", "Directory of the cluster file and the rings.")


class ListEndpoints:
    def __init__(self, app: WSGIApp, options: ListEndpointsOptions, cluster: Cluster,
                 ring: Callable[[str], Any] | None = None):
        self.app, self.cluster = app, cluster
        self._prefix = f"/{options.list_endpoints_path.strip('/')}/"
        self._open: dict[str, RingFile] = {}
        self._ring = ring or self._current_ring

    def _current_ring(self, name: str) -> Any:
        found = self._open.get(name)
        if found is None:
            found = self._open[name] = RingFile(self.cluster.ring_path(name))
        return found.current()

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        if not environ["PATH_INFO"].startswith(self._prefix):
            return self.app(environ, start_response)
        return self._answer(Request(environ))(environ, start_response)

    def _answer(self, request: Request) -> Response:
        if request.method != "GET":
            return Response(405, {"Allow": "GET"})
        path = request.path[len(self._prefix):]
        version = 1
        first, _, rest = path.partition("/")
        if first in _VERSIONS:
            version, path = _VERSIONS[first], rest
        elif first.startswith("v") and "_" not in first:
            return _bad(f"Unsupported version {first[:80]!r}")
        account, _, rest = path.partition("/")
        container, _, obj = rest.partition("/")
        if not account:
            return _bad("No account specified")
        if obj and not container:
            return _bad("No container specified")
        headers: dict[str, str] = {}
        name = "account"
        if obj:
            info = container_info(request.environ, self.app, account, container, source="LE")
            policy = self.cluster.policies.get(info.storage_policy)
            if policy is None:
                return Response(503)
            name, headers = policy.ring_name, {"X-Backend-Storage-Policy-Index": str(policy.index)}
        elif container:
            name = "container"
        ring = self._ring(name)
        part = ring.partition(self.cluster.hash_path.digest(account, container or None, obj or None))
        shown = quote("/".join(filter(None, (account, container, obj))).encode("utf-8", "surrogateescape"))
        found = [f"http://{node.key.rpartition('/')[0]}/{node.device}/{part}/{shown}" for node in ring.primaries(part)]
        return Response(200, body=json.dumps({"endpoints": found, "headers": headers} if version == 2 else found),
                        content_type="application/json")


def _bad(text: str) -> Response:
    return Response(400, body=text, content_type="text/plain; charset=UTF-8")


def filter_factory(global_conf: dict[str, str], **local_conf: str) -> Callable[[WSGIApp], ListEndpoints]:
    options = parse(ListEndpointsOptions, {**global_conf, **local_conf}, section="filter:list-endpoints", local=local_conf,
                    known=("use", "set *", "log_*"))
    cluster = load_cluster(options.swift_dir)
    return lambda app: ListEndpoints(app, options, cluster)
