"""One client's connection: requests in, answers out, in order, in one green thread; WSGI 1.0 inside.

What it promises:

- Bytes of one request are never taken for another: heads are parsed strictly (``httpparse.py``), and after any doubt, or with
  more than a little of a body unread, the connection is closed.
- An answer that broke off never looks whole: the connection is reset.
- Every wait is bounded: a head must arrive within ``client_timeout`` from its first byte, a body must move within it,
  and, but for that of a storage server's client, PACE bytes (``httpinput.py``) further within it.

Beyond WSGI: ``environ["RAW_PATH_INFO"]``; the methods of ``wsgi.input`` in ``httpinput.py``; an answer may have a method
``file_region() -> (fd, offset, count) | None``: its whole body as part of an open file, sent without passing through Python;
``file_region_sent()``, if it has that, is called when all of it was sent. Or a method ``file_pieces() -> iterator | None``:
the body in order as bytes, such regions, and bytes that have arrived on another connection (``relay.Arrived``), iterated over
instead of the answer itself where its Content-Length is known.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from keelstore.common import concurrency
from keelstore.common.errors import KeelstoreError, RequestError, WaitTimeout
from keelstore.common.http import REASONS, WSGIApp, failure_response, status_line
from keelstore.common.httpanswer import make_head
from keelstore.common.httpbody import Chunked, Fixed, Wire
from keelstore.common.httpinput import NoBody, RequestBody, UnreadableBody
from keelstore.common.httpparse import CHUNKED, MAX_HEAD, UNKNOWN, ProtocolError, parse_request
from keelstore.common.proxyprotocol import MAX_LINE, parse_proxy_line
from keelstore.common.relay import Arrived, file_pieces, file_region, file_region_sent, send_on
from keelstore.common.send_ahead import LARGE
from keelstore.common.sockets import Stream
from keelstore.common.transid import make_trans_id

if TYPE_CHECKING:
    from keelstore.common.httpserver import Server

RECEIVE = 32768  # bytes asked for when a head is awaited
SMALL = 65536  # a part up to this size is joined to the head; a body up to this size is read away after the answer
DRAIN_S = 2.0  # for that reading away
LINGER_S, LINGER_BYTES = 3.0, 32 << 20  # how long, and how much, a client that still sends is heard out before the close
LAST_WORDS_S = 0.5  # that a connection without a request has to make one, when the server stops


class _Gone(Exception):
    """The client does not take the answer."""


class _Broken(Exception):
    """The application broke its answer off; ``__cause__`` is what it raised, if anything."""


class Connection:
    __slots__ = (
        "_asks_to_keep", "_base", "_head_sent", "_headers", "_is_http10", "_method", "_peer", "_served", "_status", "server",
        "stream", "wire",
    )

    def __init__(self, server: Server, sock: Any, peer: Any):
        self.server, self._peer = server, peer
        self.stream = Stream(sock, server.options.client_timeout_s)
        self.wire = Wire(self.stream)
        self._base: dict[str, Any] = {}
        self._served = 0
        self._status: str | None = None
        self._headers: list[tuple[str, str]] = []
        self._head_sent = self._is_http10 = self._asks_to_keep = False
        self._method = ""

    def close(self) -> None:
        self.server.idle.pop(self.stream, None)
        self.server.half_heard.pop(self.stream, None)
        self.stream.close()

    def run(self) -> None:
        """Serve until either side has enough. Raises OSError, EOFError, WaitTimeout when the client is to blame."""
        local = self.stream.sock.getsockname()
        remote = self._peer if type(self._peer) is tuple else ("", 0)
        if type(local) is not tuple:
            local = ("", 0)
        is_secure = False
        if self.server.options.require_proxy_protocol:
            try:
                told = parse_proxy_line(self._read_proxy_line())
            except ProtocolError as error:
                self._refuse(error)
                return
            if told.source is not None and told.destination is not None:
                remote, local = told.source, told.destination
                is_secure = local[1] == 443
        if self.server.ssl_context is not None:
            self.stream = self.stream.to_tls(self.server.ssl_context)
            self.wire = Wire(self.stream)
            self.server.half_heard[self.stream] = None
            with concurrency.time_limit(self.stream.timeout):
                self.stream.handshake()
            self.server.half_heard.pop(self.stream, None)
            is_secure = True
        self._base = _base_environ(remote, local, is_secure)
        while self._serve_one():
            self._served += 1
            self.stream.end_request()

    # -- heads

    def _read_head(self) -> bytes | None:
        """The next request's head without its blank line, or None when there is none. Raises ProtocolError."""
        wire = self.wire
        data = wire.pending[wire.start :] if wire.start else wire.pending
        if not data:
            server, stream = self.server, self.stream
            wait_s = server.keepalive_s if self._served else None
            if server.is_stopping:
                if self._served:
                    stream.shutdown_read()  # as of those that were at rest: what has arrived is answered, nothing waited for
                else:
                    wait_s = LAST_WORDS_S
            server.idle[stream] = self._served > 0
            try:
                data = stream.receive(RECEIVE, wait_s)
            except (WaitTimeout, OSError):
                return None
            finally:
                server.idle.pop(stream, None)
            if not data:
                return None
        end = data.find(b"\r\n\r\n")
        if end > 0 and data[0] > 0x20:
            wire.pending, wire.start = data[end + 4 :], 0
            return data[:end]
        self.server.half_heard[self.stream] = None
        try:
            return self._read_slow_head(data)
        finally:
            self.server.half_heard.pop(self.stream, None)

    def _read_slow_head(self, data: bytes) -> bytes | None:
        """As :meth:`_read_head`, for a head that comes in pieces, or begins with what should not be there."""
        options = self.server.options
        give_up = time.monotonic() + options.client_timeout_s
        buffer, checked, skipped, line_end = bytearray(data), 0, 0, -1
        while True:
            while skipped < 2 and buffer.startswith(b"\r\n"):
                del buffer[:2]  # RFC 9112 2.2: old clients end a body with a line break
                skipped, checked = skipped + 1, 0
            if buffer and buffer[0] <= 0x20 and not (skipped < 2 and buffer == b"\r"):
                raise ProtocolError("Bad request syntax")
            fresh = buffer[checked - 1 :] if checked and buffer[checked - 1] != 0x0A else buffer[checked:]
            if fresh.count(b"\n") != fresh.count(b"\r\n"):
                raise ProtocolError("Line end without CR")
            if line_end < 0:
                line_end = buffer.find(b"\r\n", max(checked - 1, 0))
                if (len(buffer) if line_end < 0 else line_end) + 2 >= options.max_request_line:
                    raise ProtocolError("", 414)
                if line_end >= 0 and buffer.count(b" ", 0, line_end) < 2:
                    self.wire.pending, self.wire.start = b"", 0
                    return bytes(buffer[:line_end])  # HTTP/0.9, or an error: nothing after it counts
            end = buffer.find(b"\r\n\r\n", max(checked - 3, 0))
            if end >= 0:
                self.wire.pending, self.wire.start = bytes(buffer[end + 4 :]), 0
                return bytes(buffer[:end])
            if len(buffer) > MAX_HEAD + options.max_request_line:
                raise ProtocolError("Headers too large")
            checked = len(buffer)
            try:
                more = self.stream.receive(RECEIVE, give_up - time.monotonic())
            except WaitTimeout:
                if not buffer:
                    return None
                raise ProtocolError(REASONS[408], 408) from None
            if not more:
                return None
            buffer += more

    def _read_proxy_line(self) -> bytes:
        """The balancer's line, byte by byte so that nothing that follows is lost."""
        give_up = time.monotonic() + self.server.options.client_timeout_s
        line = b""
        while not line.endswith(b"\n") and len(line) <= MAX_LINE:
            data = self.stream.receive(1, give_up - time.monotonic())
            if not data:
                raise EOFError("closed before the PROXY line")
            line += data
        return line

    def _refuse(self, error: ProtocolError) -> None:
        """Answer what is no request that can be served, and close."""
        self.server.logger.info("request of %s refused: %d %s", self._peer, error.status, error.reason)
        trans_id = make_trans_id()
        reason = error.reason or REASONS[error.status]
        body = f"{error.status} {reason}\n" if error.reason else ""
        head = (
            f"HTTP/1.1 {error.status} {reason}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
            f"X-Trans-Id: {trans_id}\r\nX-Openstack-Request-Id: {trans_id}\r\nConnection: close\r\n\r\n"
        )
        try:
            self.stream.send((head + body).encode("latin-1"))
        except (OSError, WaitTimeout):
            return
        self._linger()

    # -- one request

    def _serve_one(self) -> bool:
        """Serve the next request; whether another may follow."""
        server, wire = self.server, self.wire
        try:
            data = self._read_head()
            if data is None:
                return False
            environ = self._base.copy()
            options = server.options
            head = parse_request(data, environ, options.max_request_line, options.max_header_size, options.max_headers)
        except ProtocolError as error:
            self._refuse(error)
            return False
        length = head.length
        body: RequestBody | NoBody
        if length == 0:
            body = NoBody()
        elif length == UNKNOWN:
            body = UnreadableBody()
        else:
            source = Chunked(wire) if length == CHUNKED else Fixed(wire, length)
            if head.expects_continue:
                body = RequestBody(source, environ, self.stream.send, server.pace_s)
            else:
                body = RequestBody(source, None, None, server.pace_s)
        environ["wsgi.input"] = body
        self._is_http10 = head.version != 11
        connection = environ.get("HTTP_CONNECTION")
        self._asks_to_keep = connection is not None and "keep-alive" in connection.lower()
        self._method = environ["REQUEST_METHOD"]  # the application may change it for those behind it
        if server.meter is None:
            return self._answer(environ, body, head.keep_alive and server.keepalive_s > 0)
        method, started = self._method, time.monotonic()
        if not length or server.admission is None:
            is_kept = self._answer(environ, body, head.keep_alive and server.keepalive_s > 0)
        elif server.admission.admits():
            try:
                is_kept = self._answer(environ, body, head.keep_alive and server.keepalive_s > 0)
            finally:
                server.admission.ended()
        else:
            is_kept = self._answer(environ, body, head.keep_alive and server.keepalive_s > 0, server.refuse_upload)
        status = self._status  # as the application gave it
        server.meter.record(method, int(status[:3]) if status and status[:3].isdigit() else 500, time.monotonic() - started)
        return is_kept

    def _start_response(self, status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Callable[[bytes], None]:
        if exc_info is not None:
            try:
                if self._head_sent:
                    raise exc_info[1].with_traceback(exc_info[2])
            finally:
                exc_info = None
        elif self._status is not None:
            raise AssertionError("start_response was called twice")
        self._status, self._headers = status, headers
        return _no_write

    def _answer(
        self, environ: dict[str, Any], body: RequestBody | NoBody, keep_alive: bool, app: WSGIApp | None = None
    ) -> bool:
        """Call the application and send what it gives; whether the connection may be used again."""
        self._status, self._head_sent = None, False
        result: Any = None
        try:
            try:
                result = (app or self.server.app)(environ, self._start_response)
            except RequestError as error:
                result = self._own_answer(error, environ)
            except Exception as error:
                self.server.logger.exception("%s failed", _shown(environ))
                result = self._own_answer(error, environ)
            if type(result) in (tuple, list) and self._status is not None:
                try:
                    data = b"".join(result)
                except TypeError:
                    self.server.logger.error("%s: a part of the answer is not bytes", _shown(environ))
                    data = self._own_answer(None, environ)[0]
                keep_alive = self._send_whole(data, environ, body, keep_alive)
            else:
                keep_alive = self._send_parts(result, environ, body, keep_alive)
        except (_Gone, _Broken) as error:
            self.server.logger.debug("the answer to %s broke off: %s", _shown(environ), error)
            self.stream.abort()
            return False
        finally:
            close = getattr(result, "close", None)
            if close is not None:
                try:
                    close()
                except Exception:
                    self.server.logger.exception("closing the answer to %s failed", _shown(environ))
        if keep_alive and (body.ended or self._read_away(body)):
            return True
        if not body.ended or self.stream.is_readable():
            self._linger()
        return False

    def _own_answer(self, error: BaseException | None, environ: dict[str, Any]) -> list[bytes]:
        """Our answer where the application failed: the error's status, 503 or 500."""
        self._status = None
        response = failure_response(error)
        if isinstance(error, RequestError):
            return list(response(environ, self._start_response))
        trans_id = environ.get("swift.trans_id") or make_trans_id()
        self._start_response(status_line(response.status), [
            ("Content-Type", "text/plain"), ("X-Trans-Id", trans_id), ("X-Openstack-Request-Id", trans_id),
        ])
        return [b"An error occurred"]

    def _send_whole(
        self, data: bytes, environ: dict[str, Any], body: RequestBody | NoBody, keep_alive: bool
    ) -> bool:
        """Send an answer whose body is at hand; whether the connection may be kept."""
        if self.server.is_stopping or (keep_alive and not body.ended and not _nearly_read(body)):
            keep_alive = False
        for _ in range(2):
            try:
                head = make_head(self._status or "", self._headers, self._method, len(data), self._is_http10, keep_alive,
                                 self._asks_to_keep)
                if not head.has_body or head.length == len(data):
                    break
                reason = f"{len(data)} bytes where {head.length} were announced"
            except (ValueError, TypeError, AttributeError) as error:
                reason = str(error)
            self.server.logger.error("%s: the answer cannot be sent: %s", _shown(environ), reason)
            data = self._own_answer(None, environ)[0]
        self._head_sent = True
        try:
            if not data or not head.has_body:
                self.stream.send(head.data)
            elif len(data) <= SMALL:
                self.stream.send(head.data + data)
            else:
                self.stream.send_parts([head.data, data])
        except (OSError, WaitTimeout) as error:
            raise _Gone(str(error)) from error
        return head.keep_alive

    def _send_parts(
        self, result: Iterable[bytes], environ: dict[str, Any], body: RequestBody | NoBody, keep_alive: bool
    ) -> bool:
        """Send an answer that comes in parts; whether the connection may be kept."""
        region = self._region(result)
        pieces = self._file_pieces(result) if region is None else None
        parts: Iterator[Any] = self._parts(result if pieces is None else pieces, environ, pieces is not None)
        first: Any = None  # bytes, or a region of a file
        try:
            if region is None:
                first = next(parts, None)
            if self._status is None:
                raise _Broken("start_response was not called")
            if self.server.is_stopping or not (body.ended or _may_be_read(body)):
                keep_alive = False
            head = make_head(self._status, self._headers, self._method, None, self._is_http10, keep_alive,
                             self._asks_to_keep)
        except (_Broken, ValueError, TypeError, AttributeError) as error:
            cause = error.__cause__
            if not isinstance(cause, KeelstoreError):
                self.server.logger.error("%s: the answer cannot be sent: %s", _shown(environ), error)
            data = b"".join(self._own_answer(cause, environ))
            return self._send_whole(data, environ, body, False)
        self._head_sent = True
        if not body.ended and isinstance(body, RequestBody):
            body.forget_continue()
        stream = self.stream
        is_large = head.has_body and head.length is not None and head.length >= LARGE
        if is_large:
            stream.begin_large()
        try:
            if not head.has_body:
                stream.send(head.data)
            elif region is not None and region[2] == head.length:
                stream.send_parts([head.data])
                stream.send_file(*region)
                file_region_sent(result)
            elif head.chunked:
                start = head.data
                while first is not None:
                    stream.send_parts([b"%b%x\r\n" % (start, len(first)), first, b"\r\n"])
                    start = b""
                    first = next(parts, None)
                stream.send(start + b"0\r\n\r\n")
            else:
                if region is not None:
                    first = next(parts, None)
                self._send_counted(head.data, head.length, first, parts, environ)
            if is_large:
                stream.end_large()
        except (OSError, WaitTimeout, EOFError) as error:
            raise _Gone(str(error)) from error
        return head.keep_alive

    def _send_counted(
        self, start: bytes, length: int | None, first: Any, parts: Iterator[Any], environ: dict[str, Any]
    ) -> None:
        """A body of ``length`` bytes; with None it ends with the connection. A byte too many is not sent."""
        send, sent = self.stream.send, 0
        while first is not None:
            is_region = type(first) is tuple
            sent += first[2] if is_region else len(first)
            if length is not None and sent > length:
                self.server.logger.error("%s: the answer is longer than the %d bytes announced", _shown(environ), length)
                raise _Broken("longer than announced")
            if is_region:
                if start:
                    self.stream.send_parts([start])
                    start = b""
                self.stream.send_file(*first)
            elif type(first) is Arrived:
                if start:
                    self.stream.send_parts([start])
                    start = b""
                send_on(first, self.stream)
            elif start:
                if len(first) <= SMALL:
                    send(start + first)
                else:
                    self.stream.send_parts([start, first])
                start = b""
            else:
                send(first)
            first = next(parts, None)
        if start:
            send(start)
        if length is not None and sent < length:
            self.server.logger.error("%s: the answer ended after %d of %d bytes", _shown(environ), sent, length)
            raise _Broken("shorter than announced")

    def _parts(self, result: Iterable[Any], environ: dict[str, Any], has_regions: bool = False) -> Iterator[Any]:
        """The parts that are not empty. What the application raises becomes a _Broken."""
        allowed = (tuple, Arrived, bytearray, memoryview) if has_regions else (bytearray, memoryview)
        try:
            for part in result:
                if part:
                    if part.__class__ is not bytes and not isinstance(part, allowed):
                        raise TypeError("a part of the answer is not bytes")
                    yield part
        except KeelstoreError as error:
            self.server.logger.warning("%s: the answer broke off: %s", _shown(environ), error)
            raise _Broken(str(error)) from error
        except Exception as error:
            self.server.logger.exception("%s: the answer broke off", _shown(environ))
            raise _Broken(str(error)) from error

    def _region(self, result: Iterable[bytes]) -> tuple[int, int, int] | None:
        if self._status is None or self.stream.is_tls:
            return None
        return file_region(result)

    def _file_pieces(self, result: Any) -> Iterator[Any] | None:
        if self._status is None or self.stream.is_tls or not hasattr(result, "file_pieces"):
            return None
        if not any(len(name) == 14 and name.lower() == "content-length" for name, _value in self._headers):
            return None
        return file_pieces(result)

    # -- the end of a request, or of the connection

    def _read_away(self, body: RequestBody | NoBody) -> bool:
        """Read the little that is left of a body; whether the next request can be read."""
        if not isinstance(body, RequestBody) or not _nearly_read(body):
            return False
        stream, timeout = self.stream, self.stream.timeout
        stream.timeout = min(DRAIN_S, timeout or DRAIN_S)
        give_up = time.monotonic() + DRAIN_S
        left = SMALL
        try:
            while left > 0 and time.monotonic() < give_up:
                data = body.read1(SMALL)
                if not data:
                    return body.ended
                left -= len(data)
        except RequestError:
            return False
        finally:
            stream.timeout = timeout
        return body.ended

    def _linger(self) -> None:
        """Close in a way that lets the client read the answer: a reset, which unread bytes cause, would destroy it."""
        stream = self.stream
        stream.shutdown_write()
        give_up = time.monotonic() + (LINGER_S if not self.server.is_stopping else LINGER_S / 10)
        left = LINGER_BYTES
        try:
            while left > 0:
                data = stream.receive(SMALL, give_up - time.monotonic())
                if not data:
                    return
                left -= len(data)
        except (OSError, WaitTimeout):
            return


def _nearly_read(body: RequestBody | NoBody) -> bool:
    """Whether so little of the body is left that it will be read away."""
    if not isinstance(body, RequestBody) or body.failed or body.awaits_continue:
        return False
    source = body.source
    if isinstance(source, Fixed):
        return source.remaining <= SMALL
    return isinstance(source, Chunked) and source.end_if_buffered()


def _may_be_read(body: RequestBody | NoBody) -> bool:
    """Whether an application that answers in parts may still read the body to its end."""
    return isinstance(body, RequestBody) and not body.failed and not body.awaits_continue


def _no_write(data: bytes) -> None:
    raise NotImplementedError("the write function of WSGI is not offered; return an iterable")


def _shown(environ: dict[str, Any]) -> str:
    return f"{environ.get('REQUEST_METHOD')} {str(environ.get('RAW_PATH_INFO'))[:200]!r}"


def _base_environ(remote: Any, local: Any, is_secure: bool) -> dict[str, Any]:
    """What all requests of a connection have in common."""
    environ = {
        "SCRIPT_NAME": "",
        "SERVER_NAME": local[0],
        "SERVER_PORT": str(local[1]),
        "REMOTE_ADDR": remote[0],
        "REMOTE_PORT": str(remote[1]),
        "GATEWAY_INTERFACE": "CGI/1.1",
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "https" if is_secure else "http",
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": True,
        "wsgi.run_once": False,
    }
    if is_secure:
        environ["HTTPS"] = "on"
    return environ
