"""A request whose body and whose answer stream at the same time, in process or over a connection of its own.

One green thread drives it: it says something, then it listens. Both sides must agree on who speaks when: what is said while
the other side speaks too waits in a bounded buffer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NoReturn

from keelstore.common import concurrency, sockets
from keelstore.common.errors import BackendError, BackendTimeout, WaitTimeout
from keelstore.common.headers import Headers
from keelstore.common.http import BODYLESS, Response, WSGIApp, call_app
from keelstore.common.httpbody import Chunked, Fixed, Source, UntilClose, Wire
from keelstore.common.httpclient import make_head, read_answer
from keelstore.common.httpinput import FileLike
from keelstore.common.httpparse import CHUNKED, ProtocolError
from keelstore.common.localcall import Pipe, make_environ
from keelstore.common.sockets import Stream

Address = tuple[str, int]
_ERRORS = (OSError, EOFError, WaitTimeout, ProtocolError)
QUEUED_PARTS = 16  # of an answer in process that nobody has taken yet


class _Answer(FileLike):
    """The answer as a file over ``more(size)``."""

    __slots__ = ("_source",)

    def __init__(self, more: Callable[[int], bytes]):
        self._held = b""
        self._source = more

    def _more(self, size: int) -> bytes:
        return self._source(size)


class Duplex:
    """``status`` and ``headers`` are the answer's. Close it when done. After an error of ``send`` the peer may still be
    heard; any other error closes it.
    """

    def __init__(self, address: Address, what: str):
        self.address, self._what = address, what
        self.status, self.headers = 0, Headers()
        self._answer = _Answer(self._more)

    def send(self, *pieces: bytes) -> None:
        """Say something; each piece is a chunk of its own. Raises BackendError, BackendTimeout."""
        raise NotImplementedError

    def end(self) -> None:
        """Nothing more will be said."""
        raise NotImplementedError

    def has_spoken(self) -> bool:
        """Whether the other side has said more since it was listened to last, or has gone away. What came with what was
        read already may be overlooked.
        """
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def _more(self, size: int) -> bytes:
        raise NotImplementedError

    def _set_timeout(self, timeout_s: float) -> None:
        raise NotImplementedError

    def readline(self, limit: int, timeout_s: float) -> bytes:
        """The next line with its end; cut at ``limit`` bytes or at the end of the answer; b'' at the end."""
        self._set_timeout(timeout_s)
        try:
            return self._answer.readline(limit)
        except _ERRORS as error:
            self._fail(error)

    def read(self, limit: int, timeout_s: float) -> bytes:
        """The answer's next bytes, up to ``limit`` of them."""
        self._set_timeout(timeout_s)
        try:
            return self._answer.read(limit)
        except _ERRORS as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> NoReturn:
        self.close()
        kind = BackendTimeout if isinstance(error, WaitTimeout) else BackendError
        raise kind(f"{self._what}: {error or type(error).__name__}", node=self.address) from error


class _HttpDuplex(Duplex):
    def __init__(self, address: Address, what: str, stream: Stream, timeout_s: float):
        super().__init__(address, what)
        self._stream, self._wire, self._timeout_s = stream, Wire(stream), timeout_s
        self._source: Source | None = None

    def begin(self, head: bytes, method: str) -> None:
        wire = self._wire
        try:
            self._stream.send(head)
            answer = read_answer(wire, method, self._timeout_s)
        except _ERRORS as error:
            self._fail(error)
        self.status, self.headers = answer.status, answer.headers
        length = answer.length
        if answer.status in BODYLESS:
            length = 0
        self._source = (UntilClose(wire) if length is None else Chunked(wire) if length == CHUNKED
                        else Fixed(wire, length))

    def send(self, *pieces: bytes) -> None:
        parts: list[bytes | bytearray | memoryview] = []
        for piece in pieces:
            if piece:
                parts += (b"%x\r\n" % len(piece), piece, b"\r\n")
        joined = sum(map(len, parts)) <= 65536
        try:
            self._stream.timeout = self._timeout_s
            if joined:
                self._stream.send(b"".join(parts))
            else:
                for start in range(0, len(parts), 512):  # the kernel takes at most 1024 at once
                    self._stream.send_parts(parts[start : start + 512])
        except WaitTimeout as error:
            self._fail(error)
        except OSError as error:  # not closed: it may have said why it does not listen any more
            raise BackendError(f"{self._what}: {error}", node=self.address) from error

    def end(self) -> None:
        try:
            self._stream.timeout = self._timeout_s
            self._stream.send(b"0\r\n\r\n")
        except _ERRORS as error:
            self._fail(error)

    def has_spoken(self) -> bool:
        return self._stream.fd < 0 or self._stream.is_readable()

    def close(self) -> None:
        self._stream.close()

    def _set_timeout(self, timeout_s: float) -> None:
        self._stream.timeout = timeout_s

    def _more(self, size: int) -> bytes:
        assert self._source is not None
        return self._source.more(size)


def http_duplex(
    address: Address, method: str, path: str, headers: Headers, conn_timeout_s: float, timeout_s: float
) -> Duplex:
    """See ``Backend.duplex``."""
    what = f"{method} {path[:200]}"
    try:
        head = make_head(address, method, path, headers, "", "Transfer-Encoding: chunked\r\n")
        stream = sockets.connect(address, conn_timeout_s, timeout_s)
    except (*_ERRORS, ValueError) as error:
        kind = BackendTimeout if isinstance(error, WaitTimeout) else BackendError
        raise kind(f"{what}: {error or type(error).__name__}", node=address) from error
    duplex = _HttpDuplex(address, what, stream, timeout_s)
    try:
        duplex.begin(head, method)
    except BaseException:
        duplex.close()
        raise
    return duplex


class _LocalDuplex(Duplex):
    """The application runs in a green thread of its own: one pipe leads to it, one queue from it."""

    def __init__(self, app: WSGIApp, address: Address, method: str, path: str, headers: Headers, timeout_s: float):
        super().__init__(address, f"{method} {path[:200]}")
        self._pipe, self._timeout_s, self._wait_s = Pipe(), timeout_s, timeout_s
        self._parts = concurrency.Queue(QUEUED_PARTS)
        self._rest: deque[bytes] = deque()
        self._is_over = False
        environ = make_environ(address, method, path, headers, "", self._pipe, None)
        environ["HTTP_TRANSFER_ENCODING"] = "chunked"
        self._head = concurrency.Event()
        self._task = concurrency.spawn(self._run, app, environ)

    def _run(self, app: WSGIApp, environ: dict[str, Any]) -> None:
        """Ends with b'', or with the error that broke the answer off."""
        response: Response | None = None
        last: bytes | Exception = b""
        try:
            response = call_app(app, environ)
            self._head.set(response)
            for part in response.app_iter or (response.body or b"",):
                if part:
                    self._parts.put(part)
                if self._is_over:
                    break
        except Exception as error:
            last = error
            self._head.set(error)
        finally:
            if response is not None:
                response.close()
            self._pipe.finish()
            if not self._is_over:
                self._parts.put(last)

    def begin(self) -> None:
        try:
            answer = self._head.wait(self._timeout_s)
        except WaitTimeout as error:
            self._fail(error)
        if isinstance(answer, Exception):
            self._fail(answer)
        self.status, self.headers = answer.status, answer.headers

    def send(self, *pieces: bytes) -> None:
        if self._is_over:
            raise BackendError(f"{self._what}: is over", node=self.address)
        try:
            for piece in pieces if sum(map(len, pieces)) > 65536 else (b"".join(pieces),):
                self._pipe.put(piece, self._timeout_s)
        except WaitTimeout as error:
            self._fail(error)

    def end(self) -> None:
        self._pipe.end()

    def has_spoken(self) -> bool:
        return self._is_over or len(self._parts) > 0

    def close(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._pipe.abort()
            while len(self._parts):
                self._parts.get(0)  # lets the application go on to its end, unheard

    def _set_timeout(self, timeout_s: float) -> None:
        self._wait_s = timeout_s

    def _more(self, size: int) -> bytes:
        if not self._rest:
            if self._is_over:
                return b""
            part = self._parts.get(self._wait_s)
            if isinstance(part, Exception):
                raise EOFError(f"the answer broke off: {type(part).__name__}: {part}")
            if not part:
                self._is_over = True
                return b""
            self._rest.append(part)
        data: bytes = self._rest.popleft()
        if len(data) > size:
            self._rest.appendleft(data[size:])
        return data[:size]


def local_duplex(app: WSGIApp, address: Address, method: str, path: str, headers: Headers, timeout_s: float) -> Duplex:
    """See ``Backend.duplex``."""
    duplex = _LocalDuplex(app, address, method, path, headers, timeout_s)
    try:
        duplex.begin()
    except BaseException:
        duplex.close()
        raise
    return duplex
