"""A backend call in process: the WSGI application of a role is called directly.

The same semantics as over HTTP, because it is the same application: when the caller's patience ends, the application is not
interrupted but runs on unheard; what it raises is the caller's BackendError; a body that differs from its Content-Length is
an error, not an answer.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from keelstore.common import concurrency
from keelstore.common.errors import BackendError, BackendTimeout, ClientDisconnect, ClientTimeout, WaitTimeout
from keelstore.common.headers import Headers, environ_key
from keelstore.common.http import BODYLESS, DIGEST, IN_PROCESS, Response, WSGIApp, call_app, text_path_to_wire
from keelstore.common.httpinput import CONTINUE_HEADERS, FileLike
from keelstore.common.relay import Region, close, file_region
from keelstore.common.two_phase import Archive, Commit

Address = tuple[str, int]

QUEUED_BYTES = 256 * 1024  # of an upload between sender and application
READ_TIMEOUT_S = 120.0  # an application waits so long for a sender that has forgotten it
_FRAMING = ("HTTP_TRANSFER_ENCODING", "HTTP_EXPECT", "HTTP_CONNECTION", "HTTP_HOST", "CONTENT_LENGTH")
_NO_HEADERS: tuple[tuple[str, str], ...] = ()


def make_environ(
    address: Address, method: str, path: str, headers: Headers, query: str, body: Any, digest: Callable[[], str] | None
) -> dict[str, Any]:
    """The environ of a request; the caller adds what frames its body."""
    environ: dict[str, Any] = {}
    for name, value in headers.items():
        environ[environ_key(name)] = value
    for key in _FRAMING:
        environ.pop(key, None)
    ip, port = address[0], str(address[1])
    wire = path if path.isascii() else text_path_to_wire(path)
    environ.update({
        "REQUEST_METHOD": method,
        "SCRIPT_NAME": "",
        "PATH_INFO": wire,
        "RAW_PATH_INFO": wire,
        "QUERY_STRING": query,
        "SERVER_NAME": ip,
        "SERVER_PORT": port,
        "SERVER_PROTOCOL": "HTTP/1.1",
        "REMOTE_ADDR": ip,
        "REMOTE_PORT": "0",
        "HTTP_HOST": f"{ip}:{port}",
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.errors": sys.stderr,
        "wsgi.input": body,
        "wsgi.multithread": True,
        "wsgi.multiprocess": True,
        "wsgi.run_once": False,
        IN_PROCESS: True,
    })
    if digest is not None:
        environ[DIGEST] = digest
    return environ


class BytesBody(FileLike):
    """The input of a request whose body is at hand; a read of all of it copies nothing."""

    __slots__ = ("_at", "_data")
    ended = True  # nothing of it can be left on a wire

    def __init__(self, data: bytes):
        self._held = b""
        self._data, self._at = data, 0

    def _more(self, size: int) -> bytes:
        data, at = self._data, self._at
        if not at and size >= len(data):
            self._at = len(data)
            return data
        self._at = at + size
        return data[at : at + size]

    def set_continue_headers(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Nobody waits to go on."""

    def send_continue(self) -> None:
        raise ClientDisconnect("the request has no further body")


def at_once(app: WSGIApp, address: Address, method: str, path: str, headers: Headers) -> Response | None:
    """The answer of an app that can give it without waiting; None: nothing has been done, it is to be asked in full."""
    asked = getattr(app, "at_once", None)
    if asked is None:
        return None
    try:
        answer: Response | None = asked(method, path, headers)
    except Exception as error:
        raise BackendError(f"{method} {path[:200]}: {type(error).__name__}: {error}", node=address) from error
    return answer


def call(
    app: WSGIApp, address: Address, method: str, path: str, headers: Headers, query: str, body: bytes,
    timeout_s: float | None, digest: Callable[[], str] | None,
) -> Response:
    """See ``Backend.call``. An app may have ``at_once(method, path, headers)``: the answer to a request without a body where
    giving it waits for nothing, else None, with nothing done. That needs no green thread, and no environ.
    """
    if not body and not query:
        answer = at_once(app, address, method, path, headers)
        if answer is not None:
            return answer
    environ = make_environ(address, method, path, headers, query, BytesBody(body), digest)
    if body or method in ("PUT", "POST"):
        environ["CONTENT_LENGTH"] = str(len(body))
    try:
        response = concurrency.run_apart(timeout_s, call_app, app, environ)
    except WaitTimeout:
        raise BackendTimeout(f"{method} {path[:200]}: no answer within {timeout_s} s", node=address) from None
    except Exception as error:
        raise BackendError(f"{method} {path[:200]}: {type(error).__name__}: {error}", node=address) from error
    return checked(response, method, address, timeout_s)


def checked(response: Response, method: str, address: Address, timeout_s: float | None) -> Response:
    """A role's answer as a backend's: no body where none may be, and none of a wrong length."""
    if response.app_iter is None and response.body is not None:
        if method == "HEAD" or response.status in BODYLESS:
            response.body = b""
        else:
            length = response.headers.get("Content-Length")
            if length is not None and length != str(len(response.body)):
                raise BackendError(f"{method}: {len(response.body)} bytes where {length[:20]} were announced", node=address)
        return response
    if method == "HEAD" or response.status in BODYLESS:
        response.close()
        response.app_iter, response.body = None, b""
        return response
    response.app_iter = LocalBody(response, address, timeout_s)
    return response


class LocalBody:
    """The body of an answer, part by part."""

    __slots__ = ("_address", "_closed", "_iterator", "_left", "_source", "_timeout_s")

    def __init__(self, response: Response, address: Address, timeout_s: float | None):
        self._source: Any = response.app_iter
        self._iterator: Iterator[bytes] | None = None
        length = response.headers.get("Content-Length")
        self._left = int(length) if length is not None and length.isdigit() else None
        self._address, self._timeout_s = address, timeout_s
        self._closed = False

    def __iter__(self) -> LocalBody:
        return self

    def __next__(self) -> bytes:
        if self._closed:
            raise StopIteration
        try:
            with concurrency.time_limit(self._timeout_s):
                if self._iterator is None:
                    self._iterator = iter(self._source)
                part = next(self._iterator)
        except StopIteration:
            self.close()
            if self._left:
                raise BackendError(f"the body ended {self._left} bytes early", node=self._address) from None
            raise
        except WaitTimeout:
            self.close()
            raise BackendTimeout(f"no part of the body within {self._timeout_s} s", node=self._address) from None
        except Exception as error:
            self.close()
            raise BackendError(f"the body broke off: {type(error).__name__}: {error}", node=self._address) from error
        if self._left is not None:
            self._left -= len(part)
            if self._left < 0:
                self.close()
                raise BackendError("the body is longer than announced", node=self._address)
        return part

    def file_region(self) -> Region | None:
        """The whole body as (fd, offset, count), while nothing of it has been read and it is that."""
        if self._iterator is not None or self._closed:
            return None
        found = file_region(self._source)
        return found if found is not None and (self._left is None or found[2] == self._left) else None

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            close(self._source)


class Pipe(FileLike):
    """An upload's body between its sender and the application; bounded. Both sides are green threads of one hub."""

    __slots__ = (
        "_at", "_ended", "_environ", "_handed", "_is_asked", "_pairs", "_parts", "_queued", "_readable", "_writable",
        "aborted", "asked", "continue_headers", "finished", "heard",
    )

    def __init__(self) -> None:
        self._held = b""
        self._parts: deque[bytes | memoryview] = deque()
        self._handed: Archive | Commit | None = None  # a whole body, instead of parts
        self._queued = 0
        self._at = 0  # of the first part that has been read
        self._ended = False  # of the current body
        self.aborted = False
        self.finished = False  # the application has answered
        self._readable: concurrency.Event | None = None
        self._writable: concurrency.Event | None = None
        self._is_asked = False
        self.asked = concurrency.Event()  # the application wants the current body (True), or has answered (False)
        self.heard: Callable[[], None] | None = None  # to be called then
        self._environ: dict[str, Any] | None = None
        self._pairs: Iterable[tuple[str, str]] = _NO_HEADERS
        self.continue_headers = Headers()

    # the application's side

    @property
    def ended(self) -> bool:
        return self._ended and not self._parts and self._handed is None

    def _more(self, size: int) -> bytes:
        part = self._part(size)
        return part if isinstance(part, bytes) else bytes(part)

    def take(self, size: int) -> bytes | memoryview:
        """As ``read1``, but as a view of the sender's memory where that is how it was sent: for who does not copy."""
        return self.read1(size) if self._held else self._part(size)

    def take_whole(self) -> Archive | Commit | None:
        """The current body, where the sender has handed it over whole; None: it is to be read."""
        self._wait_for_more()
        handed, self._handed = self._handed, None
        return handed

    def _wait_for_more(self) -> None:
        """Until there is something, or the body has ended."""
        if not self._is_asked:
            self._ask()
        while not self._parts and self._handed is None:
            if self.aborted:
                raise ClientDisconnect("the sender gave up")
            if self._ended:
                return
            self._readable = concurrency.Event()
            try:
                self._readable.wait(READ_TIMEOUT_S)
            except WaitTimeout:
                raise ClientTimeout(f"the sender was silent for {READ_TIMEOUT_S} s") from None
            finally:
                self._readable = None

    def _part(self, size: int) -> bytes | memoryview:
        parts = self._parts
        if not parts or not self._is_asked:
            self._wait_for_more()
            if self._handed is not None:  # by who does not know of it
                handed, self._handed = self._handed, None
                parts.append(handed.encoded())
                self._queued += len(parts[0])
            elif not parts:
                return b""
        part, at = parts[0], self._at
        self._at = at + size
        if self._at >= len(part):
            parts.popleft()
            self._at = 0
        if at or len(part) > size:
            part = part[at : at + size]
        self._queued -= len(part)
        if self._writable is not None and self._queued < QUEUED_BYTES:
            self._writable.set()
        return part

    def _ask(self) -> None:
        pairs = self._pairs or (self._environ or {}).get(CONTINUE_HEADERS) or _NO_HEADERS
        self._pairs, self._environ = _NO_HEADERS, None
        self.continue_headers = Headers(pairs)
        self._is_asked = True
        self.asked.set(True)
        self.call_heard()

    def call_heard(self) -> None:
        heard, self.heard = self.heard, None
        if heard is not None:
            heard()

    def set_environ(self, environ: dict[str, Any]) -> None:
        self._environ = environ

    def set_continue_headers(self, pairs: Iterable[tuple[str, str]]) -> None:
        self._pairs = tuple(pairs)

    def send_continue(self) -> None:
        if not self.ended or self.aborted:
            raise ClientDisconnect("the body before has not ended")
        self._ended = False
        self._ask()

    # the sender's side

    def hand(self, body: Archive | Commit) -> None:
        """All of the current body."""
        if not self.finished:
            self._handed, self._ended = body, True
            self._wake_reader()

    def put(self, data: bytes | memoryview, timeout_s: float | None) -> None:
        """Raises WaitTimeout when there is no room for ``timeout_s``. Once the application has answered, data is dropped."""
        while self._queued >= QUEUED_BYTES and not self.finished:
            self._writable = concurrency.Event()
            try:
                self._writable.wait(timeout_s)
            finally:
                self._writable = None
        if self.finished or not data:
            return
        self._parts.append(data)
        self._queued += len(data)
        self._wake_reader()

    def end(self) -> None:
        self._ended = True
        self._wake_reader()

    def renew(self) -> None:
        """The current body has ended; the next request to go on is a new one."""
        self.asked = concurrency.Event()

    def abort(self) -> None:
        self.aborted = True
        self._handed = None
        self._parts.clear()
        self._at = 0
        self._wake_reader()

    def finish(self) -> None:
        self.finished = True
        self._handed = None
        self._parts.clear()
        self._at = 0
        self._environ = None
        if self._writable is not None:
            self._writable.set()
        self.asked.set(False)

    def _wake_reader(self) -> None:
        if self._readable is not None:
            self._readable.set()


class LocalUpload:
    """See ``Backend.upload``; the application runs in a green thread of its own."""

    def __init__(
        self, app: WSGIApp, address: Address, method: str, path: str, headers: Headers, query: str, length: int | None,
        timeout_s: float | None, digest: Callable[[], str] | None,
    ):
        self.address, self._method, self._timeout_s = address, method, timeout_s
        self._left = length
        self._pipe = pipe = Pipe()
        environ = make_environ(address, method, path, headers, query, pipe, digest)
        if length is None:
            environ["HTTP_TRANSFER_ENCODING"] = "chunked"
        else:
            environ["CONTENT_LENGTH"] = str(length)
        environ["HTTP_EXPECT"] = "100-continue"
        pipe.set_environ(environ)
        self._error: Exception | None = None
        self._response: Response | None = None
        self._done = concurrency.Event()
        self._is_finished = False
        concurrency.start_all([partial(self._run, app, environ)])

    def _run(self, app: WSGIApp, environ: dict[str, Any]) -> None:
        try:
            self._response = call_app(app, environ)
        except Exception as error:
            self._error = error
        self._pipe.finish()
        self._done.set()
        self._pipe.call_heard()
        if self._pipe.aborted and self._response is not None:
            self._response.close()

    @property
    def continue_headers(self) -> Headers:
        return self._pipe.continue_headers

    def ready(self, timeout_s: float | None = None) -> Response | None:
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        try:
            if self._pipe.asked.wait(timeout_s):
                return None
        except WaitTimeout:
            raise BackendTimeout(f"{self._method}: no 100 Continue within {timeout_s} s", node=self.address) from None
        return self._answer()

    def when_ready(self, heard: Callable[[], None]) -> None:
        """Have ``heard`` called as soon as :meth:`ready` waits for nothing: here, or on the application's green thread. It
        must not raise, nor wait.
        """
        self._pipe.heard = heard
        if self._pipe.asked.is_set:
            self._pipe.call_heard()

    def when_done(self, heard: Callable[[], None]) -> None:
        """As :meth:`when_ready`, for :meth:`finish`, when the last body has been sent whole."""
        self._pipe.heard = heard
        if self._done.is_set:
            self._pipe.call_heard()

    def send(self, data: bytes | memoryview) -> None:
        if self._left is not None:
            if len(data) > self._left:
                raise ValueError("more bytes than the announced length")
            self._left -= len(data)
        try:
            self._pipe.put(data, self._timeout_s)
        except WaitTimeout:
            raise BackendTimeout(f"{self._method}: takes no data for {self._timeout_s} s", node=self.address) from None
        if self._error is not None:
            self._answer()

    def send_whole(self, body: Archive | Commit) -> None:
        self._pipe.hand(body)
        if self._error is not None:
            self._answer()

    def end_body(self) -> None:
        self._pipe.renew()
        self._pipe.end()
        if self._pipe.finished:
            self._pipe.asked.set(False)

    def finish(self, timeout_s: float | None = None) -> Response:
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        if self._left and not self._pipe.finished:
            self.abort()
            raise ValueError("fewer bytes than the announced length")
        self._pipe.end()
        try:
            self._done.wait(timeout_s)
        except WaitTimeout:
            raise BackendTimeout(f"{self._method}: no answer within {timeout_s} s", node=self.address) from None
        return self._answer()

    def abort(self) -> None:
        """Give up; the application sees a client that went away. Does nothing once an answer was given."""
        if not self._is_finished:
            self._is_finished = True
            self._pipe.abort()
            if self._response is not None:
                self._response.close()

    def _answer(self) -> Response:
        self._is_finished = True
        if self._error is not None or self._response is None:
            error = self._error
            raise BackendError(f"{self._method}: {type(error).__name__}: {error}", node=self.address) from error
        return checked(self._response, self._method, self.address, self._timeout_s)
