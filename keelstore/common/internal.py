"""Requests that keelstore makes of itself: sub-requests of middlewares, and the client of daemons.

``subrequest`` builds a *new* environ out of an allow-list (``spec: proxy 17``), so nothing else of a client's request can
reach the servers behind; ``InternalClient`` sends a daemon's requests through a pipeline in its own process.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from keelstore.common.concurrency import sleep
from keelstore.common.errors import ClientDisconnect, KeelstoreError
from keelstore.common.headers import Headers, environ_key
from keelstore.common.http import (
    AUTHORIZE,
    AUTHORIZE_OVERRIDE,
    CACHE,
    CRYPTO_BYPASS,
    CUSTOMER_KEY,
    ENCRYPTS,
    IN_PLACE,
    INFOCACHE,
    KMS_KEY,
    OWNER,
    SOURCE,
    TRANS_ID,
    Environ,
    Request,
    Response,
    WSGIApp,
    call_app,
    encode_query,
    text_path_to_wire,
)
from keelstore.common.httpinput import FileLike

PRE_AUTHED_USER: Final = ".wsgi.pre_authed"

# What a sub-request inherits; all else of the client's request stays behind.
INHERITED: Final = (
    "HTTP_USER_AGENT", "HTTP_HOST", "HTTP_ORIGIN", "HTTP_ACCESS_CONTROL_REQUEST_METHOD", "HTTP_REFERER",
    "HTTP_X_USER_ID", "HTTP_X_PROJECT_ID", "REMOTE_USER", "REMOTE_ADDR", "SCRIPT_NAME", "SERVER_NAME", "SERVER_PORT",
    "SERVER_PROTOCOL", CACHE, INFOCACHE, SOURCE, TRANS_ID, AUTHORIZE, AUTHORIZE_OVERRIDE, "swift.base_labels",
    "swift.shard_listing_history", "wsgi.url_scheme", "wsgi.errors", "wsgi.multithread", "wsgi.multiprocess",
    "wsgi.run_once", "wsgi.version", "keelstore.start_time", CRYPTO_BYPASS, CUSTOMER_KEY, ENCRYPTS, IN_PLACE,
    KMS_KEY,
)  # fmt: skip

_DEFAULTS: Final[Environ] = {
    "SCRIPT_NAME": "", "SERVER_NAME": "127.0.0.1", "SERVER_PORT": "80", "SERVER_PROTOCOL": "HTTP/1.1",
    "wsgi.version": (1, 0), "wsgi.url_scheme": "http", "wsgi.multithread": False, "wsgi.multiprocess": False,
    "wsgi.run_once": False,
}  # fmt: skip


@contextmanager
def lent(environ: Environ, keys: Mapping[str, Any]) -> Iterator[None]:
    """``environ`` has ``keys`` inside, for the sub-requests that are made there, and afterwards what it had."""
    before = {key: environ[key] for key in keys if key in environ}
    environ.update(keys)
    try:
        yield
    finally:
        for key in keys:
            environ.pop(key, None)
        environ.update(before)


def _always(_request: Request) -> None:
    """The authorisation function of pre-authorised sub-requests."""


def subrequest(
    environ: Environ,
    method: str,
    path: str,
    *,
    headers: Mapping[str, str] | None = None,
    body: bytes | Iterable[bytes] | Any = b"",
    length: int | None = None,
    query: str | Mapping[str, str] = "",
    source: str | None = None,
    pre_authed: bool = False,
) -> Environ:
    """A new environ for a request made on behalf of the one in ``environ``.

    ``path`` is text; ``query`` an encoded query string, or parameters; ``body`` bytes, or an object with ``read(size)``,
    whose size is ``length`` (None: unknown, sent chunked). ``pre_authed`` asks with the rights of the cluster itself.
    """
    found: Environ = {key: environ[key] for key in INHERITED if key in environ}
    for key, value in _DEFAULTS.items():
        found.setdefault(key, value)
    if "wsgi.errors" not in found:
        found["wsgi.errors"] = io.StringIO()
    found["REQUEST_METHOD"] = method
    found["PATH_INFO"] = path if path.isascii() else text_path_to_wire(path)
    found["QUERY_STRING"] = query if isinstance(query, str) else encode_query(dict(query))
    if hasattr(body, "read"):
        found["wsgi.input"] = body
        if length is None:
            found["HTTP_TRANSFER_ENCODING"] = "chunked"
        else:
            found["CONTENT_LENGTH"] = str(length)
    else:
        data = body if isinstance(body, bytes) else b"".join(body)
        found["wsgi.input"] = io.BytesIO(data)
        found["CONTENT_LENGTH"] = str(len(data))
    if headers:
        for name, value in headers.items():
            if value is not None:
                found[environ_key(name)] = value
    if source is not None:
        found[SOURCE] = source
    if pre_authed:
        found["REMOTE_USER"] = PRE_AUTHED_USER
        found[AUTHORIZE] = _always
        found[AUTHORIZE_OVERRIDE] = True
        found[OWNER] = True
    return found


class SourceEnded(ClientDisconnect):
    """What is copied ended early or broke off: to who reads it as a request's body, the client has gone."""


class BodyOf(FileLike):
    """The body of an answer, ``length`` bytes, as the body of another request.

    Where it ends early, breaks off, or has a part that goes beyond it, reading raises SourceEnded and ``is_broken`` is set:
    what is made of it must not look whole.
    """

    __slots__ = ("_left", "_parts", "_response", "is_broken", "length")

    def __init__(self, response: Response, length: int):
        super().__init__()
        self.length = self._left = length
        self.is_broken = False
        self._response = response
        self._parts = iter(response.app_iter if response.app_iter is not None else (response.body or b"",))

    def _more(self, size: int) -> bytes:
        if not self._left:
            return b""
        try:
            data = next(self._parts, b"")
            while not data:
                data = next(self._parts)
        except StopIteration:
            raise self._broken(f"the source ended {self._left} bytes early") from None
        except Exception as error:
            raise self._broken(f"the source broke off: {error}") from error
        self._left -= len(data)
        if self._left < 0:
            raise self._broken("the source is longer than it said")
        self._held = data[size:]
        return data[:size]

    def _broken(self, text: str) -> SourceEnded:
        self.is_broken = True
        return SourceEnded(text)

    def close(self) -> None:
        self._response.close()


class UnexpectedResponse(KeelstoreError):
    """An internal request was answered with a status that the caller did not name. ``status``, ``headers``, ``body``."""

    def __init__(self, text: str, status: int, headers: Headers, body: bytes):
        super().__init__(text)
        self.status, self.headers, self.body = status, headers, body


class InternalClient:
    """Requests of a daemon through ``app``, a pipeline that ends in a proxy, as a user that may do everything.

    Each request is tried up to ``tries`` times while it fails or is answered 5xx, with growing pauses between. Names are
    text.
    """

    def __init__(self, app: WSGIApp, user_agent: str, tries: int = 3, use_replication_network: bool = False,
                 pause_s: float = 2.0):
        if tries < 1:
            raise ValueError("tries must be at least 1")
        self.app, self.user_agent, self.tries, self.pause_s = app, user_agent, tries, pause_s
        self.use_replication_network = use_replication_network

    def request(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str] | None = None,
        acceptable: Iterable[int] = (2,),
        body: bytes | Any = b"",
        length: int | None = None,
        params: Mapping[str, str] | None = None,
    ) -> Response:
        """The answer; its body is not read unless it is an error. ``acceptable``: statuses, or classes (2 for 2xx).

        Raises UnexpectedResponse for any other status, and the last error when no try was answered. A ``body`` that is an
        object is rewound (``seek(0)``) between tries.
        """
        wanted = frozenset(acceptable)
        sent = Headers(headers or {})
        sent["User-Agent"] = self.user_agent
        sent.setdefault("X-Backend-Allow-Reserved-Names", "true")
        if self.use_replication_network:
            sent["X-Backend-Use-Replication-Network"] = "true"
        failure: KeelstoreError | OSError | None = None
        pause = self.pause_s
        for attempt in range(self.tries):
            if attempt:
                if hasattr(body, "seek"):
                    body.seek(0)
                sleep(pause)
                pause *= 2
            environ = subrequest({}, method, path, headers=sent, body=body, length=length, query=params or "",
                                 pre_authed=True)
            try:
                response = call_app(self.app, environ)
            except (KeelstoreError, OSError) as error:
                failure = error
                continue
            if response.status in wanted or response.status // 100 in wanted:
                return response
            text = response.read(1 << 20)
            failure = UnexpectedResponse(f"{method} {path}: unexpected response {response.status}", response.status,
                                         response.headers, text)
            if response.status < 500:
                break
        assert failure is not None
        raise failure

    # -- accounts and containers -------------------------------------------------------------------------------------

    def list_container(self, account: str, container: str, **params: str) -> Iterator[dict[str, Any]]:
        """The entries of a container, page by page; a container that is not there has none."""
        return self._list(make_path(account, container), params)

    def list_account(self, account: str, **params: str) -> Iterator[dict[str, Any]]:
        return self._list(make_path(account), params)

    def _list(self, path: str, params: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        query = {**params, "format": "json"}
        while True:
            response = self.request("GET", path, acceptable=(2, 404), params=query)
            if response.status != 200:
                response.drain()
                return
            page = json.loads(response.read())
            if not page:
                return
            yield from page
            query["marker"] = page[-1].get("name", page[-1].get("subdir"))

    def create_container(self, account: str, container: str, headers: Mapping[str, str] | None = None) -> None:
        self.request("PUT", make_path(account, container), headers).drain()

    def delete_container(self, account: str, container: str, headers: Mapping[str, str] | None = None,
                         acceptable: Iterable[int] = (2, 404)) -> int:
        response = self.request("DELETE", make_path(account, container), headers, acceptable)
        response.drain()
        return response.status

    def metadata(self, account: str, container: str = "", obj: str = "", acceptable: Iterable[int] = (2,)) -> Headers:
        """The headers of a HEAD."""
        response = self.request("HEAD", make_path(account, container, obj), acceptable=acceptable)
        response.drain()
        return response.headers

    def set_metadata(self, headers: Mapping[str, str], account: str, container: str = "", obj: str = "") -> None:
        self.request("POST", make_path(account, container, obj), headers).drain()

    # -- objects -----------------------------------------------------------------------------------------------------

    def get_object(self, account: str, container: str, obj: str, headers: Mapping[str, str] | None = None,
                   acceptable: Iterable[int] = (2,), params: Mapping[str, str] | None = None) -> Response:
        return self.request("GET", make_path(account, container, obj), headers, acceptable, params=params)

    def put_object(self, body: bytes | Any, account: str, container: str, obj: str,
                   headers: Mapping[str, str] | None = None, length: int | None = None,
                   acceptable: Iterable[int] = (2,)) -> Headers:
        response = self.request("PUT", make_path(account, container, obj), headers, acceptable, body, length)
        response.drain()
        return response.headers

    def delete_object(self, account: str, container: str, obj: str, headers: Mapping[str, str] | None = None,
                      acceptable: Iterable[int] = (2, 404)) -> int:
        """The status of the answer."""
        response = self.request("DELETE", make_path(account, container, obj), headers, acceptable)
        response.drain()
        return response.status


def make_path(account: str, container: str = "", obj: str = "") -> str:
    """``/v1/account[/container[/object]]`` as text."""
    path = f"/v1/{account}"
    if container:
        path = f"{path}/{container}"
        if obj:
            path = f"{path}/{obj}"
    return path
