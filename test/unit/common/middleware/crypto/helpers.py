"""Both filters over a whole cluster in this process, or over a stand-in that keeps what it is asked."""

from __future__ import annotations

import logging
from base64 import b64encode
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from keelstore.common.headers import Headers
from keelstore.common.http import Environ, Response, WSGIApp
from keelstore.common.limits import Limits
from keelstore.common.middleware.crypto.encryption import Encryption
from keelstore.common.middleware.crypto.keymaster import KeyMaster
from keelstore.common.middleware.crypto.keys import RootSecrets
from test.support import fakes
from test.support.cluster import InProcessCluster

ROOT, OTHER = bytes(range(32)), bytes(range(1, 33))
ROOT_OPTION = b64encode(ROOT).decode()


def encrypted(app: WSGIApp, is_enabled: bool = True, by_id: Any = None, active: str | None = None, version: str = "2") -> KeyMaster:
    filtered = Encryption(app, is_enabled, Limits(), logging.getLogger("test.encryption"))
    return KeyMaster(filtered, RootSecrets(by_id or {None: ROOT}, active, version))


class Keeper:
    """Answers as it is told; keeps the last request, its body and its footers."""

    def __init__(self, response: Response | None = None):
        self.response = response or Response(201, body=b"")
        self.environ: Environ = {}
        self.body = b""
        self.footers = Headers()

    def __call__(self, environ: Environ, start_response: Any) -> Iterable[bytes]:
        self.environ, self.footers = environ, Headers()
        if environ["REQUEST_METHOD"] == "PUT":
            self.body = b"".join(iter(lambda: environ["wsgi.input"].read(7), b""))
            callback = environ.get("swift.callback.update_footers")
            if callback is not None:
                callback(self.footers)
        response = Response(self.response.status, Headers(self.response.headers), self.response.body, self.response.app_iter)
        return response(environ, start_response)


class EncryptedCluster(InProcessCluster):
    """``ask`` goes through the filters, ``raw`` to the proxy itself."""

    def __init__(self, root: Path, **filters: Any):
        super().__init__(root, nodes=3, devices=2)
        self.app: Any = encrypted(self.proxy, **filters)
        self.through(self.app, "PUT", "/v1/a/c")

    def through(self, app: WSGIApp, method: str, path: str, headers: dict[str, Any] | None = None, body: Any = b"", query: str = "",
                **extra: Any) -> Response:
        extra.setdefault("swift_owner", True)
        return fakes.ask(app, method, path, headers, body, query, **{"swift__cache": self.cache, **extra})

    def ask(self, method: str, path: str, headers: dict[str, Any] | None = None, body: Any = b"", query: str = "",
            **extra: Any) -> Response:
        return self.through(self.app, method, path, headers, body, query, **extra)

    def raw(self, method: str, path: str, headers: dict[str, Any] | None = None, body: Any = b"", query: str = "",
            **extra: Any) -> Response:
        return self.through(self.proxy, method, path, headers, body, query, **extra)
