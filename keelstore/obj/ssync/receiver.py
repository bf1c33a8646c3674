"""SSYNC, the receiving side: the object server takes in what another node offers of one partition.

A session is one request whose body and answer stream at the same time. First the sender lists what it has, and gets the list
of what is wanted; then it sends that, each object as a sub-request which runs through this same server.

**A stream out of step must do no harm.** A sub-request never reads the connection itself: it gets a body that is here
already, or one that ends where its Content-Length says; what it left unread is read away; after any error of reading
the session is over and the connection with it, so that bytes of a body cannot be taken for the next sub-request. And a
sub-request counts only for an object that was wanted a moment ago: no sender can delete, by mistake or on purpose, what
it did not offer.

Objects are taken in several at a time, so that they share the device's journal commits: small ones are read and then left
to themselves, and of one that is not large the end, its syncs above all, runs while the next is read.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from keelstore.common import fs, proof
from keelstore.common.concurrency import Event, Pool, Task
from keelstore.common.disk_calls import on_disk_thread
from keelstore.common.errors import (
    BadRequest,
    ClientDisconnect,
    ClientTimeout,
    LockTimeout,
    ObjectNotFound,
    ObjectStateChanged,
    RequestError,
    StorageError,
)
from keelstore.common.headers import Headers, environ_key
from keelstore.common.http import DIGEST, IN_PROCESS, Request, Response, call_app
from keelstore.common.httpinput import FileLike
from keelstore.common.localcall import BytesBody, make_environ
from keelstore.common.locks import lock_directory
from keelstore.common.policy import ErasureCodingPolicy
from keelstore.obj import layout
from keelstore.obj.fileset import FileSet
from keelstore.obj.place import Place
from keelstore.obj.request import check_partition
from keelstore.obj.ssync import protocol
from keelstore.obj.ssync.protocol import (
    ALL,
    CRLF,
    END,
    HASHED,
    MISSING_CHECK,
    START,
    UPDATES,
    Offer,
    SsyncError,
    Want,
)
from keelstore.obj.writer import WRITE_SIZE

if TYPE_CHECKING:
    from keelstore.obj.server import ObjectServer

BATCH = 256  # offers that are looked up in one visit to a disk thread
SMALL = 65536  # bytes of a body that is read before its sub-request begins
ENDS_ALONE = 16 << 20  # bytes of a body up to which the next sub-request begins when it has been read, not when it is safe
AT_ONCE = 8  # sub-requests; no more than one of them reads
PLACE_WAIT_S = 1.0  # for a place among the sessions: most take milliseconds, and to come again costs more than to wait


class SessionInput(FileLike):
    """What the sender says. ``patience_s``: how long a line may take, however its bytes trickle in."""

    __slots__ = ("_deadline", "_patience_s", "_source")

    def __init__(self, source: Any, patience_s: float):
        self._held = b""
        self._source, self._patience_s, self._deadline = source, patience_s, float("inf")

    def _more(self, size: int) -> bytes:
        if time.monotonic() > self._deadline:
            raise ClientTimeout()
        data: bytes = self._source.read1(size)
        return data

    def line(self, limit: int) -> bytes:
        """With its end. Raises ClientDisconnect, ClientTimeout, SsyncError."""
        if self._held:
            end = self._held.find(b"\n") + 1
            if end:
                line, self._held = self._held[:end], self._held[end:]
                return line
        self._deadline = time.monotonic() + self._patience_s
        line = self.readline(limit)
        self._deadline = float("inf")
        if not line:
            raise ClientDisconnect("the stream ended")
        if not line.endswith(b"\n"):
            raise SsyncError("a line is too long, or has no end")
        return line

    def small(self, size: int) -> bytes:
        """Exactly ``size`` bytes. Raises ClientDisconnect, ClientTimeout."""
        self._deadline = time.monotonic() + self._patience_s
        data = self.read(size)
        self._deadline = float("inf")
        if len(data) != size:
            raise ClientDisconnect("the stream ended within a body")
        return data


class PieceOf(FileLike):
    """The next ``size`` bytes of a stream, as the whole input of a sub-request. ``released`` is set when that will read
    no more of the stream: it has all, or has met an error, or has ended.
    """

    __slots__ = ("_error", "_source", "left", "released")
    step = WRITE_SIZE  # bytes that are best taken at once: of a sender in this process that is what it made, uncut

    def __init__(self, source: Any, size: int):
        self._held = b""
        self._source, self.left = source, size
        self._error: BaseException | None = None  # what broke the stream: nothing may be read from it any more
        self.released = Event()

    @property
    def ended(self) -> bool:
        return not self.left

    def _more(self, size: int) -> bytes:
        if self._error is not None:
            raise ClientDisconnect("the stream broke off")
        if not self.left:
            return b""
        try:
            data: bytes = self._source.read1(min(size, self.left))
        except BaseException as error:
            self._error = error
            self.released.set()
            raise
        if not data:
            self._error = ClientDisconnect("the stream ended within a body")
            self.released.set()
            raise self._error
        self.left -= len(data)
        if not self.left:
            self.released.set()
        return data

    def finish(self) -> None:
        """Read away what is left. Raises what broke the stream, whoever met it."""
        if self._error is not None:
            raise self._error
        while self.left:
            self._more(SMALL)


class Receiver:
    """One session. Made, it has checked the request (raises RequestError, StorageError); ``run`` does the work."""

    def __init__(self, server: ObjectServer, request: Request):
        self.server, self.environ = server, request.environ
        names = server.split(request, 2, 3)
        if names.account:
            raise BadRequest(f"Invalid path: {request.path[:200]}")
        check_partition(names.partition)
        self.device, self.partition = names.device, names.partition
        self.policy = server.policy(request)
        self.fragment = _fragment_index(request, self.policy)
        self.device_path = server.device_path(names.device)
        self.source = SessionInput(request.environ["wsgi.input"], server.options.client_timeout)
        self._is_hashed = IN_PROCESS in request.environ and request.is_true_header(HASHED)
        self._wanted: dict[str, Want] = {}
        self._pool = Pool(AT_ONCE)
        self._running: dict[str, Task] = {}
        self._failures = self._successes = 0
        self.host = str(request.environ.get("HTTP_HOST") or "")
        host, _, port = self.host.rpartition(":")
        self.address = (host.strip("[]"), int(port) if port.isascii() and port.isdigit() else 0)

    def response(self) -> Response:
        headers = Headers({"X-Backend-Accept-No-Commit": "True"})
        headers.update(proof.said_of(self.server.ring(self.policy), self.partition, self.device, self.host))
        return Response(200, headers, app_iter=self.run())

    # -- the session ---------------------------------------------------------------------------------------------------

    def run(self) -> Iterator[bytes]:
        """What is answered, piece by piece. Raises nothing: an error is the last line."""
        yield CRLF  # the sender waits for the head of the answer before it says anything
        error = b""
        try:
            with contextlib.ExitStack() as held:
                self._enter(held)
                yield from self._missing_check()
                yield from self._updates()
        except SsyncError as problem:
            error = protocol.encode_error(problem.status, str(problem))
        except ClientDisconnect:
            self.server.logger.info("SSYNC of %s/%s: the sender went away", self.device, self.partition)
        except ClientTimeout:
            error = protocol.encode_error(408, "the sender was silent too long")
        except LockTimeout as problem:
            error = protocol.encode_error(0, str(problem))
        except (RequestError, StorageError, OSError) as problem:
            error = protocol.encode_error(0, f"{type(problem).__name__}: {problem}"[:300])
        except Exception as problem:
            self.server.logger.exception("SSYNC of %s/%s failed", self.device, self.partition)
            error = protocol.encode_error(0, f"{type(problem).__name__}"[:300])
        if error:
            self.server.logger.warning("SSYNC of %s/%s broken off: %s", self.device, self.partition,
                                       error.decode("utf-8", "replace").strip())
            yield error

    def _enter(self, held: contextlib.ExitStack) -> None:
        """A place among the sessions of this process, the partition's lock and the device's."""
        options, places = self.server.options, self.server.ssync_places
        if places is not None:
            if not places.acquire(PLACE_WAIT_S):
                raise SsyncError("too many SSYNC sessions; try again later", 503)
            held.callback(places.release)
        datadir = layout.objects_dir(self.policy.index)
        path = f"{self.device_path}/{datadir}/{self.partition}"
        fs.make_directories(path, self.device_path)
        timeout_s = options.replication_lock_timeout
        held.enter_context(lock_directory(path, timeout_s, name="replication"))
        limit = options.replication_concurrency_per_device
        if limit:
            held.enter_context(lock_directory(self.device_path, timeout_s, limit=limit))
        held.callback(self._pool.wait_all)  # first of all: no sub-request may outlive the locks

    def _line(self) -> bytes:
        return self.source.line(max(self.server.options.network_chunk_size, 1024))

    def _expect(self, wanted: bytes) -> None:
        """Read up to the line that begins a section."""
        line = self._line()
        while not line.strip():
            line = self._line()
        if line.strip() != wanted:
            raise SsyncError(f"expected {wanted.decode()}, got {line[:120]!r}")

    # -- what is missing -----------------------------------------------------------------------------------------------

    def _missing_check(self) -> Iterator[bytes]:
        self._expect(MISSING_CHECK + START)
        answers: list[bytes] = []
        offers: list[Offer] = []
        end = MISSING_CHECK + END
        is_over = False
        while not is_over:
            line = self._line().strip()
            is_over = line == end
            if line and not is_over:
                offers.append(protocol.decode_offer(line))
            if offers and (is_over or len(offers) >= BATCH):
                for offer, want in zip(offers, self._wants_of(offers), strict=True):
                    if want:
                        self._wanted[offer.name_hash] = want
                        answers.append(protocol.encode_want(offer.name_hash, want) + CRLF)
                offers = []
        yield MISSING_CHECK + START + CRLF
        for start in range(0, len(answers), 1024):
            yield b"".join(answers[start : start + 1024])
        yield end + CRLF

    def _wants_of(self, offers: list[Offer]) -> list[Want]:
        """What is wanted of each. Fragments that wait here, and that the sender knows to be durable, are made so."""
        found = on_disk_thread(self.device, self._compare, offers)
        waiting = [number for number, want in enumerate(found) if want is None]
        for number in waiting:
            self._commit_fragment(offers[number])
        if waiting:
            again = on_disk_thread(self.device, self._compare, [offers[number] for number in waiting])
            for number, want in zip(waiting, again, strict=True):
                found[number] = want
        return [ALL if want is None else want for want in found]

    def _compare(self, offers: list[Offer]) -> list[Want | None]:
        """On a disk thread: what is wanted of each; None: it is to be made durable, then to be looked at again."""
        return [self._compare_one(offer) for offer in offers]

    def _place(self, offer: Offer) -> Place:
        return self.server.scanner.place_of_hash(self.device, self.device_path, self.policy, self.partition, offer.name_hash)

    def _compare_one(self, offer: Offer) -> Want | None:
        store, place = self.server.scanner, self._place(offer)
        try:
            found = store.look(place)
            want = protocol.wanted(offer, found)
            if self.policy.stores_fragments:
                return self._compare_fragment(offer, place, found, want)
            if not want and found.data is not None:
                # It may be deleted elsewhere on our word: so it must be more than a name.
                store.open(place, found=found, open_expired=True).close()
            return want
        except ObjectNotFound:  # quarantined
            return ALL
        except (ObjectStateChanged, StorageError, OSError) as error:
            self.server.logger.warning("SSYNC: %s cannot be looked at: %s", place.directory, error)
            return ALL

    def _compare_fragment(self, offer: Offer, place: Place, found: FileSet, want: Want) -> Want | None:
        if self.fragment is None:  # tombstones
            return want
        has, should_be_durable = protocol.holds_fragment(offer, found, self.fragment)
        if has and should_be_durable:
            return None
        if has:
            store = self.server.scanner
            mine = store.look(place, preferences=protocol.only_fragment(offer, found, self.fragment))
            store.open(place, found=mine, open_expired=True).close()  # more than a name, as above
            return Want(False, protocol.wanted(offer, mine).meta)
        if found.data is not None and found.timestamp == offer.data:
            return Want(True, want.meta)  # the same object, another fragment of it
        return want

    def _commit_fragment(self, offer: Offer) -> None:
        """The sender knows that the fragment which waits here is durable."""
        assert self.fragment is not None
        try:
            self.server.store.make_durable(self._place(offer), offer.data, self.fragment)
        except (ObjectStateChanged, StorageError, OSError) as error:
            self.server.logger.warning("SSYNC: a fragment of %s cannot be made durable: %s", offer.name_hash, error)

    # -- what is sent --------------------------------------------------------------------------------------------------

    def _updates(self) -> Iterator[bytes]:
        self._expect(UPDATES + START)
        end = UPDATES + END
        while True:
            line = self._line()
            stripped = line.strip()
            if stripped == end:
                break
            if stripped:
                self._take(line)
        self._pool.wait_all()
        self._check_failures()
        if self._failures:
            text = f"ERROR: With :UPDATES: {self._failures} failures to {self._successes} successes"
            yield protocol.encode_error(500, text.encode("ascii"))
            return
        yield UPDATES + START + CRLF
        yield end + CRLF

    def _take(self, line: bytes) -> None:
        """One sub-request, whose first line has been read. Raises SsyncError, ClientDisconnect, ClientTimeout."""
        method, path = protocol.decode_request(line)
        headers = self._headers()
        size = self._size(method, path, headers)
        name_hash = self._check_wanted(method, path)
        headers["X-Backend-Storage-Policy-Index"] = str(self.policy.index)
        headers["X-Backend-Replication"] = "True"
        if self.fragment is not None:
            headers["X-Backend-Ssync-Frag-Index"] = str(self.fragment)
        before = self._running.get(name_hash)
        if before is not None:
            before.wait()  # the same object's data goes before its metadata
        if size <= SMALL:
            body = self.source.small(size) if size else b""
            self._running[name_hash] = self._pool.spawn(self._run, name_hash, method, path, headers, BytesBody(body),
                                                        size)
        else:
            piece = PieceOf(self.source, size)
            task = self._running[name_hash] = self._pool.spawn(self._run, name_hash, method, path, headers, piece, size)
            piece.released.wait()
            if size > ENDS_ALONE:
                task.wait()
            piece.finish()
        self._check_failures()

    def _headers(self) -> Headers:
        headers = Headers()
        names: list[str] = []
        for _ in range(protocol.MAX_HEADERS):
            line = self._line()
            if not line.strip():
                headers["X-Backend-Replication-Headers"] = protocol.replicated_headers(names)
                return headers
            name, value = protocol.decode_header(line)
            names.append(name)
            headers[name] = value
        raise SsyncError("a sub-request has too many headers")

    @staticmethod
    def _size(method: str, path: str, headers: Headers) -> int:
        text = headers.get("Content-Length")
        if text is None and method == "PUT":
            raise SsyncError(f"No content-length sent for PUT {path[:120]}")
        if text is not None and not (text.isascii() and text.isdigit() and len(text) < 20):
            raise SsyncError(f"Content-Length {text[:40]} is no size")
        size = int(text or 0)
        if size and method != "PUT":
            raise SsyncError(f"{method} subrequest with content-length {size}")
        return size

    def _check_wanted(self, method: str, path: str) -> str:
        names = path[1:].split("/", 2)
        if not all(names):
            raise SsyncError(f"invalid path of a sub-request: {path[:120]!r}")
        name_hash = self.server.store.hash_path.digest(*names).hex()
        want = self._wanted.get(name_hash)
        if want is None or not (want.meta if method == "POST" else want.data):
            raise SsyncError(f"{method} of an object that was not asked for: {path[:120]!r}")
        return name_hash

    def _run(self, name_hash: str, method: str, path: str, headers: Headers, body: Any, size: int) -> None:
        """Let the server do it. After an error of reading, the next read of the stream raises."""
        environ = make_environ(self.address, method, f"/{self.device}/{self.partition}{path}", headers, "", body, None)
        if method == "PUT":
            environ["CONTENT_LENGTH"] = str(size)
            etag = headers.get("ETag")
            if etag and self._is_hashed:
                environ[DIGEST] = lambda: etag
        for key in ("HTTP_X_TRANS_ID", "HTTP_USER_AGENT"):
            if key in self.environ:
                environ[key] = self.environ[key]
        try:
            response = call_app(self.server, environ)
            response.close()
            is_success = response.is_success or response.status == 404
            if not is_success:
                self.server.logger.warning("SSYNC: %s %s on %s/%s: %d", method, path, self.device, self.partition,
                                           response.status)
        except Exception:
            self.server.logger.exception("SSYNC: %s %s on %s/%s", method, path, self.device, self.partition)
            is_success = False
        finally:
            self._running.pop(name_hash, None)
            if isinstance(body, PieceOf):
                body.released.set()
        if is_success:
            self._successes += 1
        else:
            self._failures += 1

    def _check_failures(self) -> None:
        options = self.server.options
        if protocol.too_many(self._failures, self._successes, options.replication_failure_threshold,
                             options.replication_failure_ratio):
            raise SsyncError(f"Too many {self._failures} failures to {self._successes} successes")


def _fragment_index(request: Request, policy: Any) -> int | None:
    if not isinstance(policy, ErasureCodingPolicy):
        return None
    text = request.environ.get(environ_key("X-Backend-Ssync-Frag-Index"))
    if text is None or text == "None":
        return None
    if not (text.isascii() and text.isdigit()) or int(text[:6]) >= policy.fragments:
        raise BadRequest(f"Invalid X-Backend-Ssync-Frag-Index {text[:20]!r}")
    return int(text)


def ssync(server: ObjectServer, request: Request) -> Response:
    """The answer to SSYNC. Raises RequestError, StorageError."""
    return Receiver(server, request).response()

