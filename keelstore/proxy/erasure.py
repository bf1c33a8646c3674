"""Writing an object as fragments, in two phases (``spec: proxy 13``).

Each node gets the fragments of one index, segment after segment, in a MIME document, then a footer of metadata that is
known only at the end (the object's ETag and size, the archive's ETag); when a quorum has that on disk, and not before,
all are told to commit. A crash in between leaves fragments that are not durable: nobody reads them as an object, and the
reconstructor completes or reclaims them.

The client's bytes are hashed once, each fragment archive once for all nodes that hold it, side by side; a node in this
process takes the proxy's digest. MD5 of large pieces runs on a native thread while the next segment is read and encoded
(it releases the interpreter's lock; the encoding does not, and stays here).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from keelstore.common.codec import Codec, codec_for
from keelstore.common.concurrency import Task, spawn
from keelstore.common.digests import Digests, digests
from keelstore.common.disk_calls import on_disk_thread
from keelstore.common.errors import ClientDisconnect, RequestError, UnprocessableEntity
from keelstore.common.headers import Headers
from keelstore.common.http import Response, http_date
from keelstore.common.policy import ErasureCodingPolicy, Policy
from keelstore.common.quorum import have_quorum
from keelstore.common.two_phase import BODY_HEAD, Archive, Commit, encoded_footer
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
from keelstore.proxy.fragments import EC_ETAG, EC_INDEX, EC_LENGTH, EC_PREFIX, assign_fragments
from keelstore.proxy.placement import Nodes
from keelstore.proxy.replicated import FOOTERS, SMALL, read_body
from keelstore.proxy.request import ProxyRequest
from keelstore.proxy.rounds import Round

if TYPE_CHECKING:
    from keelstore.proxy.app import ProxyApp

HASHED_APART = 65536  # bytes of a segment from which on its hashing is worth a native thread
EC_SCHEME, EC_SEGMENT_SIZE = f"{EC_PREFIX}Scheme", f"{EC_PREFIX}Segment-Size"
_OFFERS = ("X-Obj-Metadata-Footer", "X-Obj-Multiphase-Commit")  # what a node must know of
OVERRIDE_ETAG = "X-Backend-Container-Update-Override-Etag"
OVERRIDE_SIZE = "X-Backend-Container-Update-Override-Size"


def put(app: ProxyApp, request: ProxyRequest, policy: ErasureCodingPolicy, nodes: Nodes, part: int, path: str,
        headers: Sequence[Headers]) -> Response:
    """Store the request's body under ``headers``, one set for each node; the answer for the client.

    Raises RequestError for what is wrong with the body (408, 413, 422, 499), or 503.
    """
    return _FragmentPut(app, request, policy, nodes, part, path, headers).run(request.content_length)


def stored_size(policy: Policy, length: int | None) -> int:
    """The bytes that each node has to store of a body of ``length``; 0 where that is not known."""
    if not length or not isinstance(policy, ErasureCodingPolicy):
        return length or 0
    return codec_for(policy.scheme, policy.ndata, policy.nparity).archive_size(length, policy.segment_size)


class _Slot:
    """A node that takes one fragment archive."""

    __slots__ = ("archives", "fragment", "node", "upload")

    def __init__(self) -> None:
        self.node: Any = None
        self.upload: Any = None
        self.fragment = -1
        self.archives: Digests | None = None

    def digest(self) -> str:
        """The MD5 of what it was sent; asked for when the body has passed."""
        assert self.archives is not None
        return self.archives.hexdigest(self.fragment)


class _FragmentPut:
    def __init__(self, app: ProxyApp, request: ProxyRequest, policy: ErasureCodingPolicy, nodes: Nodes, part: int,
                 path: str, headers: Sequence[Headers]):
        self.app, self.request, self.policy, self.nodes, self.part, self.path = app, request, policy, nodes, part, path
        self.headers = headers
        self.codec: Codec = codec_for(policy.scheme, policy.ndata, policy.nparity)
        self.count = len(headers)
        self.quorum = policy.write_quorum(self.count)
        self.use_replication = request.uses_replication_network
        self.digests = digests(policy.fragments + 1)  # of the archives, then of the whole
        self.size = 0
        self.live: list[_Slot] = []
        self.answers: list[Answer] = []  # of nodes that need no body
        self.boundary = secrets.token_hex(32)
        self.wanted_etag: str | None = None
        self._hashing: list[Task] = []

    def run(self, length: int | None) -> Response:
        self._prepare_headers(length)
        body = None
        if length is not None and length <= SMALL and "HTTP_IF_NONE_MATCH" not in self.request.environ:
            body = self._read_segment(length)  # before any node is troubled
            if len(body) < length:
                raise ClientDisconnect
        try:
            self._connect()
            early = self._early()
            if early is not None:
                return early
            self._assign()
            fragments: list[bytes] | None = None
            if body is not None:
                fragments = self._encode(body)
            else:
                self._send([BODY_HEAD.format(self.boundary).encode()] * self.policy.fragments)
                self._transfer(length)
            self._wait_for_hashes()
            if not self._write(fragments, self._footers()):
                return Response(503)
            return self._commit()
        finally:
            for slot in self.live:
                slot.upload.abort()

    def _prepare_headers(self, length: int | None) -> None:
        archive = None if length is None else str(self.codec.archive_size(length, self.policy.segment_size))
        for own in self.headers:
            etag = own.pop("Etag", None)  # of the whole, which no node sees
            self.wanted_etag = self.wanted_etag or etag
            own["X-Backend-Obj-Metadata-Footer"] = "yes"
            own["X-Backend-Obj-Multiphase-Commit"] = "yes"
            own["X-Backend-Obj-Multipart-Mime-Boundary"] = self.boundary
            if archive is not None:
                own["X-Backend-Obj-Content-Length"] = archive

    # -- connections ---------------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        def job(own: Headers) -> Callable[[], Answer | None]:
            return lambda: self._connect_one(own)

        gather([job(own) for own in self.headers], lambda _found: False, 0, self.app.log_failure)

    def _connect_one(self, headers: Headers) -> None:
        slot = _Slot()
        found = upload_in_turn(self.app, self.nodes, self.part, self.path, headers, None, slot.digest, _OFFERS,
                               self.use_replication)
        if isinstance(found, Answer):
            self.answers.append(found)
        elif found is not None:
            slot.node, slot.upload = found
            self.live.append(slot)

    def _early(self) -> Response | None:
        """The client's answer when the nodes' first ones already settle it."""
        return early_answer(self.answers, len(self.live), self.count, self.quorum, self.request.environ)

    def _assign(self) -> None:
        places = [None if slot.node.is_handoff else slot.node.index for slot in self.live]
        for slot, fragment in zip(self.live, assign_fragments(places, self.policy.fragments), strict=True):
            slot.fragment, slot.archives = fragment, self.digests

    def _failed(self, slot: _Slot, error: BaseException) -> None:
        slot.upload.abort()
        self.app.health.failed(slot.node, f"PUT {self.path}", error)

    def _note_failure(self, slot: _Slot, response: Response) -> None:
        note_failure(self.app, slot.node, "PUT", self.path, response.status, response.headers,
                     stored_size(self.policy, self.request.content_length))

    # -- the body ------------------------------------------------------------------------------------------------------

    def _read_segment(self, size: int) -> bytes:
        """The next ``size`` bytes of the body, fewer at its end. Raises RequestError."""
        parts, left, step = [], size, self.app.options.client_chunk_size
        while left:
            data = read_body(self.request, min(step, left))
            if not data:
                break
            parts.append(data)
            left -= len(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _transfer(self, length: int | None) -> None:
        limit, size = self.app.cluster.limits.max_file_size, self.policy.segment_size
        while length is None or self.size < length:
            wanted = size if length is None else min(size, length - self.size)
            segment = self._read_segment(wanted)
            if length is not None and len(segment) < wanted:
                raise ClientDisconnect
            if segment:
                if self.size + len(segment) > limit:
                    raise RequestError("Your request is too large.", status=413)
                self._send(self._encode(segment))
            if len(segment) < wanted:
                break

    def _encode(self, segment: bytes) -> list[bytes]:
        """The fragments of the next segment, which is counted and hashed, too."""
        self.size += len(segment)
        if not segment:
            return [b""] * self.policy.fragments
        fragments = self.codec.encode(segment)
        self._wait_for_hashes()
        pieces = [*fragments, segment]
        if len(segment) < HASHED_APART:
            self.digests.update(pieces)
        else:
            self._hashing = [spawn(on_disk_thread, "digests", call) for call in self.digests.calls(pieces)]
        return fragments

    def _wait_for_hashes(self) -> None:
        for task in self._hashing:
            task.wait()
        self._hashing = []

    def _send(self, pieces: Sequence[bytes]) -> None:
        """Each node its fragment's piece, all at once, so that waiting for slow ones does not add up. Raises RequestError
        503 when too few are left.
        """
        failed: list[_Slot] = []

        def job(slot: _Slot) -> Callable[[], None]:
            def run() -> None:
                try:
                    slot.upload.send(pieces[slot.fragment])
                except FAILURES as error:
                    self._failed(slot, error)
                    failed.append(slot)

            return run

        gather([job(slot) for slot in self.live], lambda _found: False, 0, self.app.log_failure)
        if failed:
            self.live = [slot for slot in self.live if slot not in failed]
            if len(self.live) < self.quorum:
                raise RequestError(status=503)

    # -- the end -------------------------------------------------------------------------------------------------------

    def _footers(self) -> Headers:
        """The metadata that all fragments have in common. Raises UnprocessableEntity when the body is not what the
        client said it would be.
        """
        etag = self.digests.hexdigest(self.policy.fragments)
        extra = Headers()
        callback = self.request.environ.get(FOOTERS)
        if callback is not None:
            callback(extra)
        wanted = extra.pop("Etag", None) or self.wanted_etag
        if wanted and wanted.strip('"').lower() != etag:
            raise UnprocessableEntity
        footers = Headers()
        dict.update(footers, {
            EC_ETAG: etag,
            EC_LENGTH: str(self.size),
            EC_SCHEME: self.codec.description,
            EC_SEGMENT_SIZE: str(self.policy.segment_size),
            OVERRIDE_ETAG: etag,
            OVERRIDE_SIZE: str(self.size),
        })  # fmt: skip
        for name, value in extra.items():
            if not name.startswith(EC_PREFIX):
                footers[name] = str(value)
        return footers

    def _footer(self, common: Headers, fragment: int) -> Headers:
        own = Headers(common)
        dict.__setitem__(own, EC_INDEX, str(fragment))
        dict.__setitem__(own, "Etag", self.digests.hexdigest(fragment))
        return own

    def _write(self, fragments: Sequence[bytes] | None, common: Headers) -> bool:
        """First phase: whether a quorum has its archives on disk; ``self.live`` are the nodes that have. ``fragments``: all
        of the archives, where nothing of them was sent. ``common``: the metadata that all of them have.
        """
        slots, self.live = self.live, []
        boundary = self.boundary

        def send(slot: _Slot) -> None:
            own = self._footer(common, slot.fragment)
            if fragments is None:
                slot.upload.send(encoded_footer(boundary, own))
            else:
                slot.upload.send_whole(Archive(boundary, fragments[slot.fragment], own))
            slot.upload.end_body()

        def hear(slot: _Slot, timeout_s: float) -> bool | None:
            response = slot.upload.ready(timeout_s)
            if response is None:
                self.live.append(slot)
                return True
            response.close()
            slot.upload.abort()
            self._note_failure(slot, response)
            self.app.logger.warning("PUT %s: %s answered %d before the commit", self.path, slot.node.key, response.status)
            return None

        conversation = Round(self.app.options.node_timeout, send, hear, self._failed, self.app.log_failure)
        conversation.run(slots, None if fragments is None else "when_ready", lambda _found: False, 0)
        return len(self.live) >= self.quorum

    def _commit(self) -> Response:
        """Second phase. From here on the object may be there whatever the client hears."""
        app, request = self.app, self.request
        slots, self.live = self.live, []
        index = self.policy.index
        if len(slots) + len(self.answers) < self.count:
            app.repair.ask(index, self.part, self.path)
        confirmation = Commit(self.boundary)

        def hear(slot: _Slot, timeout_s: float) -> Answer:
            response = slot.upload.finish(timeout_s)
            body = read_short(response, app.options.node_timeout)
            self._note_failure(slot, response)
            if response.status >= 500:
                app.repair.ask(index, self.part, self.path)
            return Answer(response.status, response.headers, body, slot.node)

        def failed(slot: _Slot, error: BaseException) -> None:
            self._failed(slot, error)
            app.repair.ask(index, self.part, self.path)

        conversation = Round(app.options.node_timeout, lambda slot: slot.upload.send_whole(confirmation), hear, failed,
                             app.log_failure)
        found = conversation.run(
            slots, "when_done", lambda answers: have_quorum([answer.status for answer in answers], self.count, self.quorum),
            app.options.post_quorum_timeout)
        response = outcome(pad([*self.answers, *found], self.count), self.quorum)
        if not response.is_success:
            return response
        answer = Response(201, body=b"", content_type="text/html; charset=UTF-8")
        dict.__setitem__(answer.headers, "Etag", self.digests.hexdigest(self.policy.fragments))
        dict.__setitem__(answer.headers, "Last-Modified", http_date(request.timestamp.ceil()))
        return answer
