"""Containers whose rows are in shards: listings put together from them, and where an object's row goes (``spec: proxy 12``).

Which shards there are is asked of the root container each time; ``recheck_*_shard_ranges`` have no effect yet.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from keelstore.common.errors import RequestError
from keelstore.common.headers import is_true
from keelstore.common.http import Environ, Response, call_app, encode_query
from keelstore.common.info import ContainerInfo
from keelstore.common.internal import subrequest
from keelstore.common.limits import listing_limit
from keelstore.common.ranges import Namespace
from keelstore.proxy.reader import Reading, Target
from keelstore.proxy.request import ProxyRequest, common_headers

if TYPE_CHECKING:
    from keelstore.proxy.app import ProxyApp

HISTORY: Final = "swift.shard_listing_history"
MAX_LISTING: Final = 64 << 20  # bytes of one shard's page
_CONSTRAINTS = ("marker", "end_marker", "prefix", "delimiter", "path")


def parse_namespaces(body: bytes) -> list[Namespace]:
    """The shards that a container server tells. Raises ValueError."""
    found = json.loads(body)
    if not isinstance(found, list):
        raise ValueError("not a list")
    namespaces = []
    for item in found:
        if not (isinstance(item, dict) and all(isinstance(item.get(key), str) for key in ("name", "lower", "upper"))):
            raise ValueError("not a shard range")
        if "/" not in item["name"]:
            raise ValueError("not the name of a shard")
        namespaces.append(Namespace(item["name"], item["lower"], item["upper"]))
    return namespaces


# -- listings ----------------------------------------------------------------------------------------------------------


def page_of(namespace: Namespace, params: Mapping[str, str], last: Mapping[str, Any] | None) -> dict[str, str] | None:
    """The marker and end_marker of the page to ask one shard for, or None when it can be skipped. Pure.

    ``last`` is the last entry of the pages before.
    """
    is_reverse = is_true(params.get("reverse"))
    prefix, end_marker = params.get("prefix", ""), params.get("end_marker", "")
    lower, upper = namespace.lower, namespace.upper
    if prefix and ((upper and upper < prefix) or (lower > prefix and not lower.startswith(prefix))):
        return None
    subdir = last.get("subdir") if last else None
    if subdir and lower.startswith(subdir) and upper.startswith(subdir):
        return None
    marker = (last.get("name") or subdir or "") if last else params.get("marker", "")
    if is_reverse:
        if (marker and marker <= lower) or (end_marker and upper and upper < end_marker):
            return None
        if end_marker and namespace.holds(end_marker):
            return {"marker": marker, "end_marker": end_marker}
        # Names above a bound such as "a/" roll up to "a/" itself, which a shard would not list if told to end there.
        delimiter = params.get("delimiter")
        rolls_up = bool(lower) and bool(delimiter) and lower.endswith(delimiter or "")
        return {"marker": marker, "end_marker": f"{lower}\x00" if rolls_up else lower}
    if (marker and upper and marker >= upper) or (end_marker and lower >= end_marker):
        return None
    inside = bool(end_marker) and namespace.holds(end_marker)
    return {"marker": marker, "end_marker": end_marker if inside else f"{upper}\x00" if upper else ""}


def list_shards(app: ProxyApp, request: ProxyRequest, root: Response) -> Response:
    """The listing of a container out of its shards. ``root`` is the root's answer, whose body lists them.

    Raises RequestError (503) when a shard cannot be asked, or lists another policy's objects.
    """
    try:
        namespaces = parse_namespaces(root.read(MAX_LISTING))
    except (ValueError, RecursionError):
        raise RequestError(status=503) from None
    environ, params = request.environ, request.params
    visited = [*environ.get(HISTORY, ()), f"{request.account}/{request.container}"]
    maximum = app.cluster.limits.container_listing_limit
    limit = listing_limit(params.get("limit"), maximum)
    end_marker = params.get("end_marker")
    policy = root.headers.get("X-Backend-Record-Storage-Policy-Index",
                              root.headers.get("X-Backend-Storage-Policy-Index", "0"))
    entries: list[dict[str, Any]] = []
    for namespace in sorted(namespaces, key=lambda one: (one.lower, one.upper == "", one.upper),
                            reverse=is_true(params.get("reverse"))):
        if len(entries) >= limit:
            break
        page = page_of(namespace, params, entries[-1] if entries else None)
        if page is not None:
            query = {**params, **page, "format": "json", "limit": str(limit - len(entries))}
            query.pop("states", None)
            found = _ask_shard(app, environ, namespace, query, visited, policy)
            if end_marker:  # a shard that lies past it does not know it, and may roll names up to it
                found = [entry for entry in found if entry.get("subdir") != end_marker]
            entries += found
    headers = root.headers
    headers["X-Backend-Record-Type"] = "object"
    for name in ("X-Backend-Record-Shard-Format", "X-Backend-Override-Shard-Name-Filter", "Content-Length"):
        headers.pop(name, None)
    if len(entries) < limit and not any(params.get(name) for name in _CONSTRAINTS):
        headers["X-Container-Object-Count"] = str(sum("name" in entry for entry in entries))
        headers["X-Container-Bytes-Used"] = str(sum(entry.get("bytes", 0) for entry in entries))
    return Response(200, headers, json.dumps(entries).encode("ascii"), content_type="application/json; charset=utf-8")


def _ask_shard(app: ProxyApp, environ: Environ, namespace: Namespace, query: Mapping[str, str], visited: Sequence[str],
               policy: str) -> list[dict[str, Any]]:
    headers = {
        "X-Backend-Record-Type": "object" if namespace.name in visited else "auto",
        "X-Backend-Storage-Policy-Index": policy,
        "X-Backend-Allow-Reserved-Names": "true",
    }
    if "HTTP_X_NEWEST" in environ:
        headers["X-Newest"] = environ["HTTP_X_NEWEST"]
    asked = subrequest(environ, "GET", f"/v1/{namespace.name}", headers=headers, query=encode_query(dict(query)),
                       source="SH", pre_authed=True)
    asked[HISTORY] = list(visited)
    response = call_app(app, asked)
    try:
        body = response.read(MAX_LISTING)
        found = json.loads(body) if response.is_success else None
    except (ValueError, RecursionError):
        found = None
    own = response.headers.get("X-Backend-Record-Storage-Policy-Index",
                               response.headers.get("X-Backend-Storage-Policy-Index"))
    if not isinstance(found, list) or own != policy:
        app.logger.error("shard %s cannot be listed: status %d, policy %s in place of %s", namespace.name,
                         response.status, own, policy)
        raise RequestError(status=503)
    return found


# -- updates -----------------------------------------------------------------------------------------------------------


def shard_for(app: ProxyApp, request: ProxyRequest, info: ContainerInfo) -> tuple[str, str] | None:
    """(account, container) of the shard that takes the row of the request's object; None: the container itself."""
    if info.sharding_state not in ("sharding", "sharded"):
        return None
    ring = app.rings.container.current()
    part = ring.partition(app.cluster.hash_path.digest(request.account, request.container))
    asked = ProxyRequest(subrequest(request.environ, "GET", f"/v1/{request.account}/{request.container}", source="SH",
                                    pre_authed=True, headers={"X-Backend-Allow-Reserved-Names": "true"}))
    asked.timestamp = request.timestamp
    headers = common_headers(asked, app.headers["container"].forwarded(asked.environ))
    headers["X-Backend-Record-Type"] = "shard"
    headers["X-Backend-Record-Shard-Format"] = "namespace"
    query = encode_query({"format": "json", "states": "updating", "includes": request.obj})
    target = Target("container", part, f"/{request.account}/{request.container}", headers, query)
    response = Reading(app, asked, target, app.nodes("container", ring, part),
                       app.options.rebalance_missing_suppression_count).run()
    try:
        body = response.read(MAX_LISTING)
        if not response.is_success or response.headers.get("X-Backend-Record-Type", "").lower() != "shard":
            return None
        found = parse_namespaces(body)
    except (ValueError, RecursionError):
        return None
    if not found or found[0].name == f"{request.account}/{request.container}":
        return None
    account, _slash, container = found[0].name.partition("/")
    return account, container
