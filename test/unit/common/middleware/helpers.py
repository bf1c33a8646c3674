"""WSGI calls for middleware tests: an environ, a call that collects the answer, and small inner apps."""

from __future__ import annotations

import io
import json
from typing import Any

from keelstore.common.headers import Headers, environ_key
from keelstore.common.http import Environ, Response, WSGIApp
from keelstore.common.stats import NoStats


def make_environ(method: Any = "GET", path: Any = "/v1/AUTH_a/c/o", query: Any = "", body: Any = None,
                 headers: Any = None, **extra: Any) -> Environ:
    environ: Environ = {
        "REQUEST_METHOD": method, "PATH_INFO": path, "QUERY_STRING": query, "SCRIPT_NAME": "", "SERVER_NAME": "127.0.0.1",
        "SERVER_PORT": "8080", "SERVER_PROTOCOL": "HTTP/1.1", "REMOTE_ADDR": "10.1.2.3", "HTTP_HOST": "store:8080",
        "wsgi.url_scheme": "http", "wsgi.input": io.BytesIO(body or b""), "wsgi.errors": io.StringIO(),
    }  # fmt: skip
    if body is not None:
        environ["CONTENT_LENGTH"] = str(len(body))
    for name, value in (headers or {}).items():
        environ[environ_key(name)] = value
    environ.update(extra)
    return environ


class Got:
    """An answer as the server would have it."""

    def __init__(self, app: WSGIApp, environ: Environ, iterate: bool = True):
        self.starts: list[tuple[str, list[tuple[str, str]]]] = []
        self.raw: Any = app(environ, lambda status, headers, exc_info=None: self.starts.append((status, headers)))
        if iterate:
            try:
                self.body = b"".join(self.raw)
            finally:
                if hasattr(self.raw, "close"):
                    self.raw.close()

    @property
    def line(self) -> str:
        return self.starts[-1][0]

    @property
    def status(self) -> int:
        return int(self.line[:3])

    @property
    def headers(self) -> Headers:
        return Headers(self.starts[-1][1])

    def json(self) -> Any:
        return json.loads(self.body)


def call(app: WSGIApp, method: Any = "GET", path: Any = "/v1/AUTH_a/c/o", **kwargs: Any) -> Got:
    return Got(app, make_environ(method, path, **kwargs))


class Inner:
    """An inner app that answers as it is told, and keeps what it was asked."""

    def __init__(self, response: Response | None = None, **kwargs: Any):
        self.response, self.kwargs = response, kwargs
        self.asked: list[Environ] = []

    def __call__(self, environ: Environ, start_response: Any) -> Any:
        self.asked.append(environ)
        response = self.response or Response(**self.kwargs)
        return response(environ, start_response)


class CountingStats(NoStats):
    """Keeps what was counted."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def __bool__(self) -> bool:
        return True

    def increment(self, metric: str, sample_rate: float | None = None) -> None:
        self.counts[metric] = self.counts.get(metric, 0) + 1


class DictCache:
    """A Cache of one process, for tests; knows ``fails``."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.fails = False

    def get(self, key: str, raise_on_error: bool = False) -> Any:
        found = self.values.get(key)
        return json.loads(json.dumps(found))

    def set(self, key: str, value: Any, ttl_s: float = 0, *, serialize: bool = True, time: float = 0,
            raise_on_error: bool = False) -> None:
        if self.fails:
            from keelstore.common.cache import CacheError

            if raise_on_error:
                raise CacheError("down")
            return
        self.values[key] = value

    def delete(self, key: str) -> None:
        self.values.pop(key, None)

    def incr(self, key: str, delta: int = 1, ttl_s: float = 0, *, time: float = 0) -> int:
        if self.fails:
            from keelstore.common.cache import CacheError

            raise CacheError("down")
        self.values[key] = max(self.values.get(key, 0) + delta, 0) if key in self.values else max(delta, 0)
        return self.values[key]

    def decr(self, key: str, delta: int = 1, ttl_s: float = 0, *, time: float = 0) -> int:
        return self.incr(key, -delta)
