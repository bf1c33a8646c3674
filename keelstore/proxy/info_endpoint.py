"""``/info``: what this cluster can do (``spec: client-api 13.1``)."""

from __future__ import annotations

import hmac
import json
import time
from typing import TYPE_CHECKING

from keelstore.common.http import Response
from keelstore.common.registry import published
from keelstore.proxy.request import ProxyRequest, Verb, allow_header

if TYPE_CHECKING:
    from keelstore.proxy.app import ProxyApp


def signature(key: str, method: str, expires: int) -> str:
    """What signs a request for the admin part."""
    return hmac.new(key.encode(), f"{method}\n{expires}\n/info".encode(), "sha1").hexdigest()


class InfoController:
    def __init__(self, app: ProxyApp):
        self.app = app
        self.verbs = {
            "GET": Verb(self.read, authorizes_late=True),
            "HEAD": Verb(self.read, authorizes_late=True),
            "OPTIONS": Verb(self.options, authorizes_late=True),
        }
        self.allow = allow_header(self.verbs)

    def read(self, request: ProxyRequest) -> Response:
        options = self.app.options
        if not options.expose_info:
            return Response(403)
        given, expires = request.params.get("swiftinfo_sig", ""), request.params.get("swiftinfo_expires", "")
        is_admin = False
        if given or expires:
            if not options.admin_key:
                return Response(403)
            if not (expires.isascii() and expires.isdigit() and len(expires) < 20) or int(expires) < time.time():
                return _unauthorized()
            methods = ("HEAD", "GET") if request.method == "HEAD" else (request.method,)
            valid = [signature(options.admin_key, method, int(expires)) for method in methods]
            if not given.isascii() or not any(hmac.compare_digest(given, one) for one in valid):
                return _unauthorized()
            is_admin = True
        headers = {}
        origin = request.header("Origin")
        if origin:
            headers = {"Access-Control-Allow-Origin": origin, "Vary": "Origin",
                       "Access-Control-Expose-Headers": "x-trans-id"}
        body = json.dumps(published(options.disallowed_sections, is_admin))
        return Response(200, headers, body=body, content_type="application/json; charset=UTF-8")

    def options(self, request: ProxyRequest) -> Response:
        return Response(200, {"Allow": "HEAD, GET, OPTIONS"}, body=b"", content_type="text/html; charset=UTF-8")


def _unauthorized() -> Response:
    return Response(401, {"Www-Authenticate": 'Swift realm="unknown"'})
