"""Our HTTP/1.1 server: a listening socket, its connections (``httpconnection.py``), and a graceful end."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from keelstore.common import concurrency, sockets
from keelstore.common.errors import WaitTimeout
from keelstore.common.http import WSGIApp
from keelstore.common.httpconnection import Connection
from keelstore.common.limits import Limits
from keelstore.common.metrics import Meter
from keelstore.common.options import not_negative, option, parse, positive
from keelstore.common.sockets import Stream


@dataclass(frozen=True)
class ServerOptions:
    """Options of ``[DEFAULT]`` that concern connections, and the limits of a request's head."""

    client_timeout_s: float = option(
        60.0, "Seconds that a client may be silent.", check=positive, names=("client_timeout",)
    )
    keepalive_timeout_s: float | None = option(
        None, "Seconds that a connection may be idle between requests; auto: client_timeout, 0: none is kept.",
        check=not_negative, names=("keepalive_timeout",),
    )
    max_clients: int = option(1024, "Most connections of one worker at once.", check=positive)
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


class Server:
    """Serves one listening socket in the green threads of this process."""

    def __init__(
        self, sock: Any, app: WSGIApp, options: ServerOptions | None = None, logger: logging.Logger | None = None,
        ssl_context: ssl.SSLContext | None = None, meter: Meter | None = None,
    ):
        """``sock`` as ``sockets.listen`` gives; ``ssl_context`` as ``sockets.tls_context`` does;
        ``meter``: where requests are counted, if anywhere."""
        self.sock, self.app, self.options, self.meter = sock, app, options or ServerOptions(), meter
        self.logger = logger or logging.getLogger("keelstore.httpserver")
        self.ssl_context = ssl_context
        self.is_stopping = False
        timeout = self.options.keepalive_timeout_s
        self.keepalive_s = self.options.client_timeout_s if timeout is None else timeout
        self.idle: dict[Stream, None] = {}  # connections that wait for a request, longest first
        self._pool = concurrency.Pool(self.options.max_clients)
        self._stopped = concurrency.Event()
        self._acceptor: concurrency.Task | None = None

    def serve_forever(self) -> None:
        """Accept connections until :meth:`stop_accepting`. The socket is not closed: whoever made it does that."""
        if self.is_stopping:
            return
        self._acceptor = concurrency.spawn(self._accept)
        self._stopped.wait()

    def stop_accepting(self) -> None:
        """No further connections; those at rest are closed at once, those at work after their answer."""
        self.is_stopping = True
        if self._acceptor is not None:
            self._acceptor.kill()
        self._stopped.set()
        for stream in list(self.idle):
            stream.shutdown_read()

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
        try:
            for sock, peer in sockets.accept(self.sock):
                if self._pool.free() <= 0:
                    self._make_room()
                self._pool.start(self._serve, sock, peer)
                concurrency.sleep(0)  # the new one starts, and another worker may take the next
        except Exception:
            if not self.is_stopping:
                self.logger.exception("accepting connections ended")
        finally:
            self._stopped.set()

    def _make_room(self) -> None:
        """All places are taken: the connection that has been idle longest gives way."""
        for stream in self.idle:
            stream.shutdown_read()
            return

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
