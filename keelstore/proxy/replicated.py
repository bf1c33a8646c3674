"""Writing whole copies of an object to a quorum of devices (``spec: proxy 9.2``).

A small body of known size is read first and sent whole, to all nodes at once; a node that fails is replaced by the next even
after the body was read. Any other body streams: connections are made first, then each piece goes to all of them.
The pieces of a large one (``common/aligned.py``) are hashed on a native thread while the next is received.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Sequence
from hashlib import md5
from typing import TYPE_CHECKING, Any

from keelstore.common import aligned
from keelstore.common.backend import Upload
from keelstore.common.disk_calls import Begun, begin_on_disk_thread
from keelstore.common.errors import ClientDisconnect, RequestError
from keelstore.common.headers import Headers
from keelstore.common.http import Response, http_date
from keelstore.common.quorum import have_quorum
from keelstore.proxy import together
from keelstore.proxy.fanout import (
    FAILURES,
    Answer,
    early_answer,
    gather,
    note_failure,
    outcome,
    pad,
    read_short,
    upload_in_turn,
)
from keelstore.proxy.placement import Nodes
from keelstore.proxy.request import ProxyRequest

if TYPE_CHECKING:
    from keelstore.common.policy import Policy
    from keelstore.proxy.app import ProxyApp

SMALL = 65536  # bytes; up to this a body is read before it is sent
HASHED_APART = 131072  # bytes of a piece from which on its hashing is worth a native thread
FOOTERS = "swift.callback.update_footers"


def put(app: ProxyApp, request: ProxyRequest, policy: Policy, nodes: Nodes, part: int, path: str,
        headers: Sequence[Headers]) -> Response:
    """Store the request's body under ``headers``, one set for each copy; the answer for the client.

    Raises RequestError for what is wrong with the body (408, 413, 499).
    """
    length = request.content_length
    # A node that already has the object must be heard before any other gets the body.
    is_conditional = "HTTP_IF_NONE_MATCH" in request.environ
    if length is not None and length <= SMALL and not is_conditional:
        return _put_small(app, request, length, nodes, part, path, headers)
    return _Streaming(app, request, policy, nodes, part, path, headers).run(length)


def read_body(request: ProxyRequest, size: int) -> bytes:
    """Up to ``size`` bytes of the client's body. Raises RequestError (408, 499)."""
    try:
        data: bytes = request.environ["wsgi.input"].read(size)
    except RequestError:
        raise
    except (OSError, ValueError, EOFError) as error:
        raise ClientDisconnect from error
    return data


def read_pieces(request: ProxyRequest, length: int) -> Iterator[bytes | memoryview]:
    """As :func:`read_body`, a large body in pieces."""
    try:
        yield from aligned.pieces(request.environ["wsgi.input"], length)
    except RequestError:
        raise
    except (OSError, ValueError, EOFError) as error:
        raise ClientDisconnect from error


class _Digest:
    """The hex MD5 of a body, computed when first asked for: once for all nodes of this process."""

    __slots__ = ("_body", "_found")

    def __init__(self, body: bytes):
        self._body, self._found = body, ""

    def __call__(self) -> str:
        if not self._found:
            self._found = md5(self._body, usedforsecurity=False).hexdigest()
        return self._found


def _put_small(app: ProxyApp, request: ProxyRequest, length: int, nodes: Nodes, part: int, path: str,
               headers: Sequence[Headers]) -> Response:
    body = read_body(request, length) if length else b""
    while len(body) < length:  # the input of a middleware may give less than asked for
        more = read_body(request, length - len(body))
        if not more:
            raise ClientDisconnect
        body += more
    digest = _Digest(body)
    footers = _footers(request)
    if footers:
        if "Etag" not in headers[0]:  # the client's is to be checked by the servers
            footers.setdefault("Etag", digest())
        for own in headers:
            own.update(footers)
    return conclude(request, together.to_quorum(app, request, nodes, "PUT", part, path, headers, body, digest))


def conclude(request: ProxyRequest, answers: Sequence[Answer]) -> Response:
    """The client's answer to a PUT. A node with something newer means that this object was stored and replaced: 202."""
    etag, status, stored = None, 201, 0
    for answer in answers:
        if answer.status == 409:
            return Response(202)
        if answer.status // 100 == 2:
            own = dict.get(answer.headers, "Etag", "").strip('"')
            if etag is not None and own != etag:
                return Response(500)
            etag = own
            stored += answer.status == 201
    if not stored or stored != len(answers):
        response = outcome(answers)
        if not response.is_success:
            return response
        status = response.status
    headers = Headers()
    put = dict.__setitem__
    put(headers, "Content-Type", "text/html; charset=UTF-8")
    if etag:
        put(headers, "Etag", etag)
    put(headers, "Last-Modified", http_date(request.timestamp.ceil()))
    return Response(status, headers, body=b"")


def _footers(request: ProxyRequest) -> Headers | None:
    """What a middleware wants stored that it knows only once the body has passed (encryption)."""
    callback = request.environ.get(FOOTERS)
    if callback is None:
        return None
    footers = Headers()
    callback(footers)
    return footers


class _Streaming:
    """A PUT whose body streams."""

    def __init__(self, app: ProxyApp, request: ProxyRequest, policy: Policy, nodes: Nodes, part: int, path: str,
                 headers: Sequence[Headers]):
        self.app, self.request, self.nodes, self.part, self.path = app, request, nodes, part, path
        self.headers = headers
        self.count = len(headers)
        self.quorum = policy.write_quorum(self.count)
        self.use_replication = request.uses_replication_network
        self.received = 0
        self.hasher = md5(usedforsecurity=False)
        self.is_hashed = False  # for nodes of this process, and for footers; the others hash anyway
        self.live: list[tuple[Any, Upload]] = []
        self.answers: list[Answer] = []  # of nodes that need no body
        self.boundary = b""

    def run(self, length: int | None) -> Response:
        sent_length = length or None  # an empty body goes chunked, so that 100 Continue has a body to wait for
        if FOOTERS in self.request.environ:
            self.boundary = secrets.token_hex(32).encode()
            for own in self.headers:
                own["X-Backend-Obj-Metadata-Footer"] = "yes"
                own["X-Backend-Obj-Multipart-Mime-Boundary"] = self.boundary.decode()
                if length is not None:
                    own["X-Backend-Obj-Content-Length"] = str(length)
            sent_length = None
        try:
            self._connect(sent_length)
            early = self._early()
            if early is not None:
                return early
            if self.boundary:
                self._send(b"--" + self.boundary + b"\r\nX-Document: object body\r\n\r\n")
            self._transfer(length)
            if self.boundary:
                self._send(self._footer_document())
            return self._finish()
        finally:
            for _node, upload in self.live:
                upload.abort()

    # -- connections ---------------------------------------------------------------------------------------------------

    def _connect(self, length: int | None) -> None:
        def job(own: Headers) -> Callable[[], Answer | None]:
            return lambda: self._connect_one(own, length)

        gather([job(own) for own in self.headers], lambda _found: False, 0, self.app.log_failure)

    def _connect_one(self, headers: Headers, length: int | None) -> None:
        offers = ("X-Obj-Metadata-Footer",) if self.boundary else ()
        found = upload_in_turn(self.app, self.nodes, self.part, self.path, headers, length, self._digest, offers,
                               self.use_replication)
        if isinstance(found, Answer):
            self.answers.append(found)
        elif found is not None:
            self.live.append(found)

    def _early(self) -> Response | None:
        """The client's answer when the nodes' first ones already settle it."""
        return early_answer(self.answers, len(self.live), self.count, self.quorum, self.request.environ)

    # -- the body ------------------------------------------------------------------------------------------------------

    def _digest(self) -> str:
        if not self.is_hashed:
            raise ValueError("the body was not hashed, since no node of this process takes it")
        return self.hasher.hexdigest()

    def _transfer(self, length: int | None) -> None:
        limit = self.app.cluster.limits.max_file_size
        size = self.app.options.client_chunk_size
        is_local = self.app.backend.is_local
        is_hashed = self.is_hashed = bool(self.boundary) or any(is_local(upload.address) for _node, upload in self.live)
        if length is not None and length >= aligned.LARGE and not self.boundary:
            self._transfer_large(length)
        while length is None or self.received < length:
            data = read_body(self.request, size if length is None else min(size, length - self.received))
            if not data:
                break
            self.received += len(data)
            if self.received > limit:
                raise RequestError("Your request is too large.", status=413)
            if is_hashed:
                self.hasher.update(data)
            self._send(data)
        if length is not None and self.received < length:
            raise ClientDisconnect

    def _transfer_large(self, length: int) -> None:
        """A body whose pieces the nodes' disks take as they are: received once, hashed once, while the next one comes."""
        update = self.hasher.update
        hashing: Begun | None = None
        for data in read_pieces(self.request, length):
            self.received += len(data)
            if hashing is not None:
                hashing.wait()
                hashing = None
            if self.is_hashed:
                if len(data) >= HASHED_APART:
                    hashing = begin_on_disk_thread("digests", update, data)
                else:
                    update(data)
                if hashing is not None and self.received == length:  # with the last piece the nodes ask for the digest
                    hashing.wait()
            self._send(data)

    def _send(self, data: bytes | memoryview) -> None:
        failed = None
        for pair in self.live:
            try:
                pair[1].send(data)
            except FAILURES as error:
                self.app.health.failed(pair[0], f"PUT {self.path}", error)
                pair[1].abort()
                failed = [pair] if failed is None else [*failed, pair]
        if failed is not None:
            self.live = [pair for pair in self.live if pair not in failed]
            if len(self.live) < self.quorum:
                raise RequestError(status=503)

    def _footer_document(self) -> bytes:
        footers = _footers(self.request) or Headers()
        if "Etag" not in self.headers[0]:  # the client's is to be checked by the servers
            footers.setdefault("Etag", self._digest())
        document = json.dumps(footers).encode("ascii")
        check = md5(document, usedforsecurity=False).hexdigest().encode()
        return (
            b"\r\n--" + self.boundary + b"\r\nX-Document: object metadata\r\nContent-MD5: " + check + b"\r\n\r\n"
            + document + b"\r\n--" + self.boundary + b"--\r\n"
        )  # fmt: skip

    def _finish(self) -> Response:
        app = self.app
        live, self.live = self.live, []
        index = int(self.headers[0]["X-Backend-Storage-Policy-Index"])
        if len(live) + len(self.answers) < self.count:
            app.repair.ask(index, self.part, self.path)

        def job(node: Any, upload: Upload) -> Callable[[], Answer | None]:
            def run() -> Answer | None:
                try:
                    response = upload.finish(app.options.node_timeout)
                    body = read_short(response, app.options.node_timeout)
                except (*FAILURES, ValueError) as error:
                    upload.abort()
                    app.health.failed(node, f"PUT {self.path}", error)
                    app.repair.ask(index, self.part, self.path)
                    return None
                note_failure(app, node, "PUT", self.path, response.status, response.headers,
                             self.received if self.request.content_length is not None else 0)
                if response.status >= 500:
                    app.repair.ask(index, self.part, self.path)
                return Answer(response.status, response.headers, body, node)

            return run

        early = [answer.status for answer in self.answers]
        found = gather(
            [job(node, upload) for node, upload in live],
            lambda answers: have_quorum([*early, *(answer.status for answer in answers)], self.count),
            app.options.post_quorum_timeout,
            app.log_failure,
        )
        return conclude(self.request, pad([*self.answers, *found], self.count))
