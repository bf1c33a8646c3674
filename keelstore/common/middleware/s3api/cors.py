"""CORS of buckets: preflights answered, and headers added to what a browser asked for (``spec: s3-api 2.10, 3.12``).

The rules are the bucket's CORS configuration; where there is none, what the container says to Swift's clients
(``X-Container-Meta-Access-Control-Allow-Origin``); for preflights then the option ``cors_preflight_allow_origin``.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from keelstore.common.http import Response
from keelstore.common.info import ContainerInfo
from keelstore.common.middleware.s3api import cors_rules, documents, xml
from keelstore.common.middleware.s3api.cors_rules import METHODS, CorsRule
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.request import S3Request

_DENIED: Final = "CORSResponse: This CORS request is not allowed: Origin, "
_WHY: Final = "Access-Control-Request-Method or Access-Control-Request-Headers are not in the rules of the bucket."


def preflight(request: S3Request) -> Response:
    """The answer to OPTIONS. Raises S3Error for what is not allowed."""
    origin, method = request.header("Origin"), request.header("Access-Control-Request-Method")
    if not origin:
        raise S3Error("BadRequest", "Insufficient information. Origin request header needed.")
    if method not in METHODS:
        raise S3Error("BadRequest", f"Invalid Access-Control-Request-Method: {method}")
    asked = [
        name for part in (request.header("Access-Control-Request-Headers") or "").split(",") if (name := part.strip())
    ]
    try:
        rules = _rules(request)
    except S3Error as error:
        if error.status // 100 == 5:
            raise
        rules = ()
    rule = cors_rules.match(rules or _by_option(request), origin, method, asked)
    if rule is None:
        raise S3Error("AccessForbidden", _DENIED + _WHY, Method=method, ResourceType="BUCKET")
    return Response(200, rule.answer(origin, asked), body=b"")


def add_headers(request: S3Request, response: Response) -> None:
    """What a browser needs to let its page see the answer, whatever its status."""
    origin = request.header("Origin")
    if not origin or request.target.bucket is None:
        return
    method = request.header("Access-Control-Request-Method") or request.method
    with suppress(S3Error):
        rule = cors_rules.match(_rules(request), origin, method)
        if rule is not None:
            response.headers.update(rule.answer(origin))


def _rules(request: S3Request) -> tuple[CorsRule, ...]:
    """None for a bucket that has none, or whose cannot be understood. Raises S3Error."""
    info = request.bucket_info()
    data = documents.load(request, "cors", info)
    try:
        return _of_container(info) if data is None else cors_rules.read(xml.parse(data))
    except xml.XmlError:
        return ()


def _of_container(info: ContainerInfo) -> tuple[CorsRule, ...]:
    origins = tuple((info.cors.get("allow_origin") or "").split())
    exposed = tuple((info.cors.get("expose_headers") or "").split())
    return (CorsRule(METHODS, origins, ("*",), exposed, info.cors.get("max_age")),) if origins else ()


def _by_option(request: S3Request) -> tuple[CorsRule, ...]:
    origins = request.options.cors_preflight_allow_origin
    return (CorsRule(METHODS, origins, ("*",)),) if origins else ()
