"""Our HTTP/1.1 server: a listening socket, its connections (``httpconnection.py``), and a graceful end.

When all places are taken (``max_clients``), a new connection gets that of the one that has been idle longest, or of the one
that has been sending a request's head for longest. When all are at work it waits ``overload_wait`` seconds; then it, and all
that come until there is a place again, are answered 503 with Retry-After at once, whatever they ask. Where another worker has
places, it is left to take what comes.
"""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from keelstore.common import concurrency, sockets
from keelstore.common.admission import Admission
from keelstore.common.errors import WaitTimeout
from keelstore.common.headers import BUSY, REASON
from keelstore.common.http import REASONS, WSGIApp, status_line
from keelstore.common.httpconnection import LAST_WORDS_S, Connection
from keelstore.common.limits import Limits
from keelstore.common.metrics import Meter
from keelstore.common.options import not_negative, option, parse, positive
from keelstore.common.sockets import Stream
from keelstore.common.transid import make_trans_id


@dataclass(frozen=True)
class ServerOptions:
    """Options of ``[DEFAULT]`` that concern connections, and the limits of a request's head."""

    client_timeout_s: float = option(
        60.0, "Seconds that a client may be silent, or take for the head of a request; a proxy's, for 64 KiB of a body, too.",
        check=positive, names=("client_timeout",),
    )
    keepalive_timeout_s: float | None = option(
        None, "Seconds that a connection may be idle between requests; auto: client_timeout, 0: none is kept.",
        check=not_negative, names=("keepalive_timeout",),
    )
    max_clients: int | None = option(
        None, "Most connections of one worker at once, for each address that is listened on; auto: 1024, or fewer where the "
              "limit of open files asks for it. Beyond them, connections that wait for a request are closed, oldest first.",
        check=positive,
    )
    overload_wait_s: float = option(
        1.0, "Seconds that a new connection waits while max_clients are at work; it and those after it are then answered 503 "
             "with Retry-After.", check=not_negative, names=("overload_wait",),
    )
    overload_lag_s: float = option(
        0.25, "Seconds that a turn of all requests of a proxy's worker may take with 64 uploads or more at work; where it "
              "takes longer, more uploads are answered 503 with Retry-After before their bodies are read. 0: never.",
        check=not_negative, names=("overload_lag",),
    )
    require_proxy_protocol: bool = option(False, "Each connection begins with a PROXY line (version 1) of a balancer.")
    max_request_line: int = 8192  # these three come from the cluster file: server_options
    max_header_size: int = 8192
    max_headers: int = 201


def server_options(conf: Mapping[str, str], limits: Limits) -> ServerOptions:
    """The options of a merged ``[DEFAULT]`` with the cluster's limits. Raises ConfigError."""
    return replace(
        parse(ServerOptions, conf, section="DEFAULT"), max_request_line=limits.max_request_line,
        max_header_size=limits.max_header_size, max_headers=int(limits.max_header_count * 1.6),
    )


MAX_CLIENTS = 1024  # where the limit of open files is no concern
RETRY_AFTER_S = 1  # what is refused may be tried again so soon
REFUSALS = 256  # connections that are refused and heard out at once; more are refused and closed
BATCH = 64  # connections that are accepted before those that are there get a turn
_HEAR_OUT_S = 1.0  # that a refused client may take to close
_LOOK_S = 0.02  # between two looks for a connection that has become idle


class Server:
    """Serves one listening socket in the green threads of this process."""

    def __init__(
        self, sock: Any, app: WSGIApp, options: ServerOptions | None = None, logger: logging.Logger | None = None,
        ssl_context: ssl.SSLContext | None = None, meter: Meter | None = None, is_backend: bool = False,
    ):
        """``sock`` as ``sockets.listen`` gives; ``ssl_context`` as ``sockets.tls_context`` does;
        ``meter``: where requests are counted, if anywhere; ``is_backend``: its clients are servers and daemons, which may
        have little to say for long, and are told that a refusal is no fault of a device."""
        self.sock, self.app, self.options, self.meter = sock, app, options or ServerOptions(), meter
        self.logger = logger or logging.getLogger("keelstore.httpserver")
        self.ssl_context = ssl_context
        self.is_stopping = False
        timeout = self.options.keepalive_timeout_s
        self.keepalive_s = self.options.client_timeout_s if timeout is None else timeout
        self.idle: dict[Stream, bool] = {}  # connections that wait for a request, longest first; whether not their first
        self.half_heard: dict[Stream, None] = {}  # those in the middle of a request's head, longest first
        self.max_clients = self.options.max_clients or MAX_CLIENTS
        self._pool = concurrency.Pool(self.max_clients)
        self._refusal = {"Retry-After": str(RETRY_AFTER_S), **({REASON: BUSY} if is_backend else {})}
        self.pace_s = 0.0 if is_backend else self.options.client_timeout_s  # for each PACE bytes of a body
        self.admission = None if is_backend else Admission(self.options.overload_lag_s, self.logger)
        self._freed: concurrency.Event | None = None  # set when a place becomes free
        self._is_full = False
        self._refused = self._hears_out = 0
        self._others_have_room = getattr(sock, "has_room_elsewhere", None)
        self._stopped = concurrency.Event()
        self._acceptor: concurrency.Task | None = None

    def serve_forever(self) -> None:
        """Accept connections until :meth:`stop_accepting`. The socket is not closed: whoever made it does that."""
        if self.is_stopping:
            return
        self._acceptor = concurrency.spawn(self._accept)
        self._stopped.wait()

    def stop_accepting(self) -> None:
        """No further connections; those at rest are closed at once, those at work after their answer. Whoever has just come,
        or is in the middle of a request's head, has a moment to say what he wants.
        """
        self.is_stopping = True
        if self._acceptor is not None:
            self._acceptor.kill()
        self._stopped.set()
        for stream, has_been_served in list(self.idle.items()):
            if has_been_served:
                stream.shutdown_read()
        concurrency.spawn(self._end_silent)

    def _end_silent(self) -> None:
        concurrency.sleep(LAST_WORDS_S)
        for stream in [*self.idle, *self.half_heard]:
            stream.shutdown_read()

    def refuse_upload(self, environ: Any, start_response: Any) -> list[bytes]:
        """The application that answers an upload that is one too many."""
        trans_id = make_trans_id()
        start_response(status_line(503), [
            ("Content-Type", "text/plain"), ("X-Trans-Id", trans_id), ("X-Openstack-Request-Id", trans_id),
            *self._refusal.items()])
        return [b"Too many uploads at once.\n"]

    def drain(self, timeout_s: float) -> bool:
        """Stop accepting and wait for what is in flight; whether all ended within ``timeout_s``."""
        self.stop_accepting()
        try:
            with concurrency.time_limit(timeout_s):
                self._pool.wait_all()
        except WaitTimeout:
            return False
        return True

    @property
    def connections(self) -> int:
        return self._pool.running()

    def _accept(self) -> None:
        pool, number = self._pool, 0
        try:
            for sock, peer in sockets.accept(self.sock):
                is_refused = pool.free() <= 0 and not self._has_room_for(sock, peer)
                if is_refused:
                    self._refuse(sock, peer)
                else:
                    pool.start(self._serve, sock, peer)
                number += 1
                if not number % BATCH:
                    concurrency.sleep(0)  # a turn of the hub may be long: then so many come in with each
                if is_refused:
                    continue
                if pool.free() <= 0:
                    self._leave_to_others()
                elif self._is_full:
                    self._is_full = False
                    self.logger.warning("there are places again; %d connections were refused", self._refused)
        except Exception:
            if not self.is_stopping:
                self.logger.exception("accepting connections ended")
        finally:
            self._stopped.set()

    def _leave_to_others(self) -> None:
        """All places are taken: wait as long as another worker has any."""
        if self._others_have_room is not None:
            while self._pool.free() <= 0 and self._others_have_room(self.max_clients):
                self._wait_for_place(_LOOK_S)

    def _has_room_for(self, sock: Any, peer: Any) -> bool:
        """:meth:`_make_room` for this connection, which is refused when we are stopped meanwhile."""
        try:
            return self._make_room()
        except BaseException:
            self._refuse(sock, peer)
            raise

    def _make_room(self) -> bool:
        """All places are taken: whether one has become free for a new connection."""
        give_up = time.monotonic() + self.options.overload_wait_s
        while True:
            gives_way = self._end_one_that_waits()
            if self._is_full and not gives_way:
                return False
            if self._wait_for_place(_LOOK_S):
                return True
            if self._is_full:
                return False  # it had something to say after all
            if time.monotonic() >= give_up:
                self._is_full = True
                self._refused = 0
                self.logger.warning("all %d places for connections are taken (max_clients): refusing more", self.max_clients)

    def _end_one_that_waits(self) -> bool:
        """End the connection that has waited longest for a request, and has not just got one, or for the rest of a head."""
        for stream in self.idle:
            if not stream.is_readable():
                del self.idle[stream]  # the next gives way to the next
                stream.shutdown_read()
                return True
        for stream in self.half_heard:
            del self.half_heard[stream]
            stream.shutdown_read()
            return True
        return False

    def _wait_for_place(self, seconds: float) -> bool:
        self._freed = freed = concurrency.Event()
        try:
            freed.wait(seconds)
        except WaitTimeout:
            return self._pool.free() > 0
        finally:
            self._freed = None
        return True

    def _refuse(self, sock: Any, peer: Any) -> None:
        """Answer 503 to what a client will ask, or has asked, and close; costs little, and no place."""
        self._refused += 1
        if self.meter is not None:
            self.meter.record("other", 503, 0.0)
        if self._hears_out >= REFUSALS:
            self._tell_refusal(sock, 0.0)
        else:
            self._hears_out += 1
            concurrency.spawn(self._hear_out, sock)

    def _hear_out(self, sock: Any) -> None:
        try:
            self._tell_refusal(sock, _HEAR_OUT_S)
        finally:
            self._hears_out -= 1

    def _tell_refusal(self, sock: Any, seconds: float) -> None:
        stream = Stream(sock, seconds)
        try:
            if self.ssl_context is None and not self.options.require_proxy_protocol:
                hear_out_refusal(stream, self._refusal, seconds)
        except (OSError, WaitTimeout):
            pass
        finally:
            stream.close()

    def _serve(self, sock: Any, peer: Any) -> None:
        connection = None
        try:
            connection = Connection(self, sock, peer)
            connection.run()
        except (OSError, EOFError, WaitTimeout) as error:
            self.logger.debug("connection of %s ended: %s", peer, error)
        except Exception:
            self.logger.exception("connection of %s failed", peer)
        finally:
            if connection is not None:
                connection.close()
            else:
                sock.close()
            if self._freed is not None:
                self._freed.set()


def hear_out_refusal(stream: Stream, headers: Mapping[str, str], seconds: float) -> None:
    """Send a 503; then read on for ``seconds`` until the client closes, since what is unread would destroy the answer."""
    trans_id = make_trans_id()
    body = "All places for connections are taken.\n"
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    stream.send((
        f"HTTP/1.1 503 {REASONS[503]}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n{lines}"
        f"X-Trans-Id: {trans_id}\r\nX-Openstack-Request-Id: {trans_id}\r\nConnection: close\r\n\r\n{body}"
    ).encode("ascii"))
    give_up = time.monotonic() + seconds
    stream.shutdown_write()
    while stream.receive(65536, give_up - time.monotonic()):
        pass
