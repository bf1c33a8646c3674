"""One request to one storage node: in process when a role of this process has the node's address, over HTTP otherwise.

Both ways have the same semantics and raise the same errors: BackendTimeout (no answer in time), BackendError (anything else
that is no answer). An HTTP error status is an answer. See doc/design/architecture.md, "Backend calls".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from keelstore.common import localcall
from keelstore.common.duplex import Duplex, http_duplex, local_duplex
from keelstore.common.headers import Headers
from keelstore.common.http import Response, WSGIApp
from keelstore.common.httpclient import HttpClient, HttpUpload
from keelstore.common.localcall import LocalUpload
from keelstore.common.two_phase import Archive, Commit

Address = tuple[str, int]
RowTaker = Callable[[str, str], bool]  # device, partition

_local: dict[Address, WSGIApp] = {}  # the roles that this process serves


def serve_locally(address: Address, app: WSGIApp) -> None:
    """Calls of this process to ``address`` go to ``app`` from now on."""
    _local[address] = app


def stop_serving_locally(address: Address) -> None:
    _local.pop(address, None)


class Upload(Protocol):
    """A streamed body on its way to one node. Every method may raise BackendError or BackendTimeout; it is over then."""

    address: Address

    @property
    def continue_headers(self) -> Headers:
        """The headers of the last 100 Continue."""

    def ready(self, timeout_s: float | None = None) -> Response | None:
        """Wait for the node to want the body: None. Or its answer, if it gives one without reading: the upload is over."""

    def send(self, data: bytes | memoryview) -> None:
        """Part of the body; the caller does not change it while anyone holds it. Raises ValueError beyond the length."""

    def send_whole(self, body: Archive | Commit) -> None:
        """All of a body of a two-phase PUT; to be ended as any."""

    def end_body(self) -> None:
        """The end of the first body of a two-phase PUT; then ``ready`` again."""

    def finish(self, timeout_s: float | None = None) -> Response:
        """End the body and wait for the answer. Raises ValueError, and aborts, when bytes are missing to the length."""

    def abort(self) -> None:
        """Give up: the node sees a client that went away. Does nothing once it has answered."""


class Backend:
    """The way to all nodes. Holds connections at rest; one for a process, or for each of its roles."""

    def __init__(self, conn_timeout_s: float = 0.5, local: dict[Address, WSGIApp] | None = None):
        """``local``: addresses served in process, instead of those given to :func:`serve_locally`."""
        self._local = _local if local is None else local
        self._http = HttpClient(conn_timeout_s)

    def call(
        self, address: Address, method: str, path: str, headers: Headers, query: str = "", body: bytes = b"",
        timeout_s: float | None = 10.0, digest: Callable[[], str] | None = None,
    ) -> Response:
        """Send a whole request and wait for the head of its answer.

        A body that is there with the head, or was made whole by the callee, is ``response.body``; else iterate
        ``response.app_iter`` and close it. ``digest``: gives the hex MD5 of ``body``, for a callee in process.
        """
        app = self._local.get(address)
        if app is not None:
            return localcall.call(app, address, method, path, headers, query, body, timeout_s, digest)
        return self._http.call(address, method, path, headers, query, body, timeout_s)

    def row_taker(self, address: Address, method: str, path: str, headers: Headers) -> RowTaker | None:
        """What has a container server in this process take one row, on devices that are named to it, where that waits for
        nothing: ``ContainerServer.row_taker``. None: ask in full.
        """
        found = getattr(self._local.get(address), "row_taker", None)
        taker: RowTaker | None = None if found is None else found(method, path, headers)
        return taker

    def together(self, address: Address) -> Any:
        """What has devices of a node in this process make a small change together, ``obj/together.change`` without its
        server, the same for each of the node's addresses; None: ask each.
        """
        return getattr(self._local.get(address), "together", None)

    def upload(
        self, address: Address, path: str, headers: Headers, query: str = "", method: str = "PUT",
        length: int | None = None, timeout_s: float | None = 10.0, digest: Callable[[], str] | None = None,
    ) -> Upload:
        """Begin a request with a streamed body of ``length`` bytes (None: not known). Raises BackendError."""
        app = self._local.get(address)
        if app is not None:
            return LocalUpload(app, address, method, path, headers, query, length, timeout_s, digest)
        return HttpUpload(self._http, address, method, path, headers, query, length, timeout_s)

    def duplex(self, address: Address, method: str, path: str, headers: Headers, timeout_s: float = 10.0) -> Duplex:
        """Begin a request whose chunked body and whose answer stream at the same time (SSYNC), and wait for the head of
        the answer. Raises BackendError, BackendTimeout.
        """
        app = self._local.get(address)
        if app is not None:
            return local_duplex(app, address, method, path, headers, timeout_s)
        return http_duplex(address, method, path, headers, self._http.conn_timeout_s, timeout_s)

    def is_local(self, address: Address) -> bool:
        return address in self._local

    def close(self) -> None:
        """Close the connections at rest."""
        self._http.pool.close()
