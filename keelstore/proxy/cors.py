"""Cross-origin requests (``spec: client-api 12``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from keelstore.common.http import Response, call_app
from keelstore.common.info import ContainerInfo, container_info
from keelstore.common.names import RESERVED, is_reserved
from keelstore.proxy.request import ProxyRequest, Verb

if TYPE_CHECKING:
    from keelstore.proxy.app import ProxyApp

EXPOSED: Final = (
    "cache-control", "content-language", "content-type", "expires", "last-modified", "pragma", "etag", "x-timestamp",
    "x-trans-id", "x-openstack-request-id",
)  # fmt: skip


def allowed_origins(app: ProxyApp, info: ContainerInfo) -> list[str]:
    own = (info.cors.get("allow_origin") or "").split()
    return [*own, *app.options.cors_allow_origin]


def is_allowed(app: ProxyApp, info: ContainerInfo, origin: str) -> bool:
    origins = allowed_origins(app, info)
    return "*" in origins or origin in origins


def decorate(app: ProxyApp, request: ProxyRequest, answer: Any) -> Any:
    """Add to the answer of a request with Origin what lets a script read it."""
    origin = request.header("Origin")
    if not origin or not request.container:
        return answer
    info = app.container_info(request)
    if is_reserved(request.container):  # of versions, say: what its container allows is meant for them too
        info = container_info(request.environ, app.info_app, request.account, request.container.rpartition(RESERVED)[2])
    if app.options.strict_cors_mode and not is_allowed(app, info, origin):
        return answer
    response = answer if isinstance(answer, Response) else call_app(answer, request.environ)
    headers = response.headers
    if "Access-Control-Expose-Headers" not in headers:
        names = dict.fromkeys(EXPOSED)
        names.update(dict.fromkeys(name.lower() for name in app.options.cors_expose_headers))
        names.update(dict.fromkeys(
            name.lower() for name in headers if name.startswith(("X-Container-Meta", "X-Object-Meta"))))
        names.update(dict.fromkeys((info.cors.get("expose_headers") or "").lower().split()))
        headers["Access-Control-Expose-Headers"] = ", ".join(names)
    if "Access-Control-Allow-Origin" not in headers:
        _allow(headers, info, origin)
    return response


def _allow(headers: Any, info: ContainerInfo, origin: str) -> None:
    if (info.cors.get("allow_origin") or "").strip() == "*":
        headers["Access-Control-Allow-Origin"] = "*"
    else:
        headers["Access-Control-Allow-Origin"] = origin
        _vary(headers, "Origin")


def _vary(headers: Any, name: str) -> None:
    known = headers.get("Vary")
    if known is None:
        headers["Vary"] = name
    elif name.lower() not in (part.strip().lower() for part in known.split(",")):
        headers["Vary"] = f"{known}, {name}"


def preflight(app: ProxyApp, request: ProxyRequest, verbs: Mapping[str, Verb], allow: str) -> Response:
    """The answer to OPTIONS on a container or an object."""
    origin = request.header("Origin")
    response = Response(200, {"Allow": allow}, body=b"", content_type="text/html; charset=UTF-8")
    if not origin:
        return response
    info = app.container_info(request)
    wanted = request.header("Access-Control-Request-Method")
    verb = verbs.get(wanted) if wanted else None
    if not is_allowed(app, info, origin) or verb is None or verb.is_private:
        response.status = 401
        return response
    headers = response.headers
    _allow(headers, info, origin)
    if info.cors.get("max_age") is not None:
        headers["Access-Control-Max-Age"] = info.cors["max_age"]
    headers["Access-Control-Allow-Methods"] = allow
    asked = request.header("Access-Control-Request-Headers")
    if asked:
        names = dict.fromkeys(part.strip() for part in asked.split(",") if part.strip())
        headers["Access-Control-Allow-Headers"] = ", ".join(names)
        _vary(headers, "Access-Control-Request-Headers")
    return response
