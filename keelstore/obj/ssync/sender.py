"""SSYNC, the sending side: bring what a partition of a device here holds to another device.

Nothing is changed here. The outcome says which objects the other side now holds, as far as it said so itself, and whether its
word counts as a proof: a node that knows an older ring than we do, or that does not belong to the partition, may be about to
pass the partition on (``doc/formats/ssync.md``, 5).
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

from keelstore.common import concurrency
from keelstore.common.backend import Backend
from keelstore.common.concurrency import Task
from keelstore.common.disk_calls import on_disk_thread
from keelstore.common.duplex import Duplex
from keelstore.common.errors import BackendError, ObjectNotFound, StorageError
from keelstore.common.headers import Headers, is_true
from keelstore.common.policy import Policy
from keelstore.common.proof import is_proof
from keelstore.common.ring.ring import Node
from keelstore.obj import attributes, layout
from keelstore.obj.fileset import FileSet
from keelstore.obj.metadata import BadRecord
from keelstore.obj.place import Place
from keelstore.obj.reader import StoredObject, Validation
from keelstore.obj.ssync import protocol
from keelstore.obj.ssync.listing import Listed, objects_of, suffixes_of
from keelstore.obj.ssync.protocol import (
    CRLF,
    END,
    ERROR,
    HASHED,
    MAX_LINE,
    MISSING_CHECK,
    START,
    UPDATES,
    Offer,
    Part,
    SsyncError,
    Want,
)
from keelstore.obj.store import ObjectStore

LINES_AT_ONCE = 256  # offers that go out together
PIECE = 65536
MADE_AT_ONCE = 8  # bodies that are made for the peer (``Build``) while as many, or fewer, are sent; they begin together, so
# that they keep step, as what is hashed side by side must. The size of each, and of all that are made or in the making. A
# larger one begins when it is its turn: what it is made of comes from servers that give up on a reader that rests.
MADE_AHEAD = 4 << 20
ALL_MADE_AHEAD = 36 << 20
READ_ALL = Validation(100.0, 0.0)  # every body is checked as it is read: what is wrong must not spread


@dataclass(frozen=True)
class Source:
    """A partition on a device of this node. ``fragment``: only that fragment of each object (erasure coding); ``part``: what
    of it is offered.
    """

    device: str
    device_path: str
    policy: Policy
    partition: int
    fragment: int | None = None
    part: Part = Part.OBJECTS

    @property
    def partition_path(self) -> str:
        return f"{self.device_path}/{layout.objects_dir(self.policy.index)}/{self.partition}"


@dataclass
class Outcome:
    """Of one session. ``held``: what the peer holds as we do, by name hash; only complete when ``is_success``."""

    node: Node
    is_success: bool = False
    status: int = 0  # of the peer's answer, or of its error line; 0: none
    reason: str = ""
    is_proof: bool = False
    is_truncated: bool = False
    offered: int = 0
    skipped: int = 0  # wanted, and could not be sent
    sent: int = 0
    sent_bytes: int = 0
    took_s: float = 0.0
    held: dict[str, FileSet] = field(default_factory=dict)


class Built(Protocol):
    """A body that is made for the peer. Its pieces may end with a SsyncError: then it was not what it should be."""

    @property
    def size(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...  # in place of those of the object at hand; an empty one is left out

    def __iter__(self) -> Iterator[bytes]: ...

    def close(self) -> None: ...


Build = Callable[[StoredObject], "Built | None"]  # None: it cannot be made, and the log says why


class Sender:
    def __init__(self, store: ObjectStore, backend: Backend, logger: logging.Logger, *, node_timeout_s: float = 10.0,
                 http_timeout_s: float = 60.0, clock: Callable[[], float] = time.time, user_agent: str = "object-replicator"):
        """``store`` is one that remembers nothing (``ObjectStore.scanner``). ``node_timeout_s``: for the peer to take what is
        sent; ``http_timeout_s``: for each line that it says.
        """
        self._store, self._backend, self._log, self._clock = store, backend, logger, clock
        self._node_timeout_s, self._http_timeout_s = node_timeout_s, http_timeout_s
        self._agent = f"{user_agent} {os.getpid()}"

    def sync(self, source: Source, node: Node, suffixes: Iterable[str] | None = None, *, only: frozenset[str] | None = None,
             check_only: bool = False, max_objects: int = 0, ring_version: int | None = None,
             fragment: int | None = None, build: Build | None = None) -> Outcome:
        """One session; raises nothing that the peer or the network causes.

        ``suffixes`` None: all. ``only``: offer no other objects than these hashes. ``check_only``: send nothing, only ask.
        ``ring_version``: that of the ring by which ``node`` is a primary. ``fragment``: the one that the peer is to have,
        which ``build`` makes, if it is not that of ``source``.
        """
        outcome = Outcome(node)
        began = time.monotonic()
        duplex: Duplex | None = None
        try:
            duplex = self._connect(source, node, source.fragment if fragment is None else fragment, build is not None)
            outcome.status = duplex.status
            if duplex.status != 200:
                raise SsyncError(f"answered {duplex.status}", duplex.status)
            if source.part is Part.WAITING and not is_true(duplex.headers.get("X-Backend-Accept-No-Commit")):
                raise SsyncError("it does not take fragments that are not durable")
            outcome.is_proof = is_proof(duplex.headers, ring_version)
            session = _Session(self, source, duplex, outcome, build)
            session.begin()
            offered = session.offer(suffixes, only, max_objects)
            wants = session.wants(offered)
            outcome.held = {name_hash: found for name_hash, found in offered.items() if name_hash not in wants}
            session.update({} if check_only else wants)
            outcome.is_success = True
        except SsyncError as error:
            outcome.status, outcome.reason = error.status, str(error)
        except BackendError as error:
            outcome.status, outcome.reason = 0, self._told(duplex) or str(error)
        except (OSError, StorageError) as error:
            outcome.status, outcome.reason = 0, f"{type(error).__name__}: {error}"
        finally:
            if duplex is not None:
                duplex.close()
            outcome.took_s = time.monotonic() - began
        if not outcome.is_success:
            outcome.held = {}
        return outcome

    def _connect(self, source: Source, node: Node, fragment: int | None, is_made: bool) -> Duplex:
        headers = Headers({"X-Backend-Storage-Policy-Index": str(source.policy.index), "User-Agent": self._agent})
        if fragment is not None:
            headers["X-Backend-Ssync-Frag-Index"] = str(fragment)
        if node.index is not None:
            headers["X-Backend-Ssync-Node-Index"] = str(node.index)
        if is_made and self._backend.is_local(node.replication_address):
            headers[HASHED] = "true"
        return self._backend.duplex(node.replication_address, "SSYNC", f"/{node.device}/{source.partition}", headers,
                                    self._node_timeout_s)

    def _told(self, duplex: Duplex | None) -> str:
        """What a peer that stopped listening had to say."""
        if duplex is None:
            return ""
        try:
            while line := duplex.readline(MAX_LINE, 1.0):
                if line.startswith(ERROR):
                    return str(protocol.decode_error(line))
        except BackendError:
            pass
        return ""


@dataclass(slots=True)
class _Ready:
    """An object that is to be sent; ``opened`` None: its tombstone."""

    place: Place
    opened: StoredObject | None
    found: FileSet
    built: Built | None = None
    ahead: int = 0  # bytes of a body that was made ahead

    def close(self) -> None:
        if self.built is not None:
            self.built.close()
        if self.opened is not None:
            self.opened.close()


class _Session:
    """One session that has begun."""

    def __init__(self, sender: Sender, source: Source, duplex: Duplex, outcome: Outcome, build: Build | None):
        self._sender, self._source, self._duplex, self._outcome, self._build = sender, source, duplex, outcome, build
        self._store, self._log = sender._store, sender._log
        self._ahead = 0  # bytes of bodies that were made before their turn

    # -- lines ---------------------------------------------------------------------------------------------------------

    def _line(self) -> bytes:
        """The next line that says something, without its end. Raises SsyncError, BackendError."""
        while True:
            line = self._duplex.readline(MAX_LINE, self._sender._http_timeout_s)
            if not line:
                raise SsyncError("Early disconnect")
            if line.startswith(ERROR):
                raise protocol.decode_error(line)
            if not line.endswith(b"\n"):
                raise SsyncError("a line has no end")
            line = line.strip()
            if line:
                return line

    def _expect(self, wanted: bytes) -> None:
        line = self._line()
        if line != wanted:
            raise SsyncError(f"Unexpected response: {line[:120]!r}")

    def _hear_out(self) -> None:
        """A peer speaks before its turn only to break off. Raises SsyncError then."""
        if self._duplex.has_spoken():
            raise SsyncError(f"Unexpected response: {self._line()[:120]!r}")

    def begin(self) -> None:
        """The blank line that a receiver begins with. Raises SsyncError."""
        line = self._duplex.readline(MAX_LINE, self._sender._http_timeout_s)
        if line.startswith(ERROR):
            raise protocol.decode_error(line)
        if line.strip() or not line:
            raise SsyncError(f"Unexpected response: {line[:120]!r}" if line else "Early disconnect")

    # -- what is here --------------------------------------------------------------------------------------------------

    def offer(self, suffixes: Iterable[str] | None, only: frozenset[str] | None, max_objects: int) -> dict[str, FileSet]:
        """Say what we have; what was said."""
        offered: dict[str, FileSet] = {}
        lines = [MISSING_CHECK + START + CRLF]
        for item, offer in self._offers(suffixes):
            if only is not None and item.name_hash not in only:
                continue
            if max_objects and len(offered) >= max_objects:
                self._outcome.is_truncated = True
                break
            offered[item.name_hash] = item.found
            lines.append(protocol.encode_offer(offer) + CRLF)
            if len(lines) >= LINES_AT_ONCE:
                self._hear_out()
                self._duplex.send(*lines)
                lines = []
        lines.append(MISSING_CHECK + END + CRLF)
        self._duplex.send(*lines)
        self._outcome.offered = len(offered)
        return offered

    def _offers(self, suffixes: Iterable[str] | None) -> Iterator[tuple[Listed, Offer]]:
        source, store = self._source, self._store
        rules = store.rules(layout.fragment_count(source.policy))
        datadir = layout.objects_dir(source.policy.index)

        def quarantine(directory: str) -> None:
            store.quarantine_directory(directory, source.device_path, datadir, "cannot be listed")

        if suffixes is None:
            suffixes = on_disk_thread(source.device, suffixes_of, source.partition_path)
        todo = deque(suffixes)

        def some() -> list[Listed]:
            """What the next suffixes hold, as much as goes out together. On a disk thread."""
            listed: list[Listed] = []
            while todo and len(listed) < LINES_AT_ONCE:
                listed += objects_of(source.partition_path, todo.popleft(), rules, self._sender._clock(), quarantine)
            return listed

        while todo:
            for name_hash, found in on_disk_thread(source.device, some):
                chosen = protocol.select(found, source.part, source.fragment)
                offer = protocol.offer_of(name_hash, chosen) if chosen is not None else None
                if chosen is not None and offer is not None:
                    yield Listed(name_hash, chosen), offer

    def wants(self, offered: dict[str, FileSet]) -> dict[str, Want]:
        """What the peer wants of it."""
        self._expect(MISSING_CHECK + START)
        wants: dict[str, Want] = {}
        end = MISSING_CHECK + END
        while (line := self._line()) != end:
            name_hash, want = protocol.decode_want(line)
            if name_hash in offered and (want.data or self._source.part is not Part.WAITING):  # it has no metadata yet
                wants[name_hash] = want
        return wants

    # -- what is sent --------------------------------------------------------------------------------------------------

    def update(self, wants: dict[str, Want]) -> None:
        self._duplex.send(UPDATES + START + CRLF)
        sent: dict[str, FileSet] = {}
        with contextlib.closing(self._in_turn(wants)) as turns:
            for name_hash, want, ready in turns:
                try:
                    found = self._send(ready, want) if ready is not None else None
                finally:
                    if ready is not None:
                        ready.close()
                if found is not None:
                    sent[name_hash] = found
                else:
                    self._outcome.skipped += 1
        self._duplex.send(UPDATES + END + CRLF)
        self._expect(UPDATES + START)
        self._expect(UPDATES + END)
        self._duplex.end()
        self._outcome.held.update(sent)
        self._outcome.sent = len(sent)

    def _in_turn(self, wants: dict[str, Want]) -> Generator[tuple[str, Want, _Ready | None], None, None]:
        """Each object, ready to be sent, for the caller to close. Where bodies are made, the next few are in the making."""
        if self._build is None:
            for name_hash, want in wants.items():
                self._hear_out()
                yield name_hash, want, self._ready(name_hash)
            return
        todo = iter(wants.items())
        tasks: deque[tuple[str, Want, Task]] = deque()
        try:
            while True:
                some = islice(todo, MADE_AT_ONCE) if len(tasks) < MADE_AT_ONCE else ()
                for name_hash, want in some:
                    tasks.append((name_hash, want, concurrency.spawn(self._made_ahead, name_hash, want)))
                if not tasks:
                    return
                self._hear_out()
                name_hash, want, task = tasks.popleft()
                ready = task.wait()
                if ready is not None:
                    self._ahead -= ready.ahead
                    ready = self._made(ready, want)
                yield name_hash, want, ready
        finally:
            for _, _, task in tasks:
                with contextlib.suppress(Exception):
                    ready = task.wait()
                    if ready is not None:
                        ready.close()

    def _ready(self, name_hash: str) -> _Ready | None:
        """One object, opened; None when there is nothing to be sent any more."""
        source = self._source
        place = self._store.place_of_hash(source.device, source.device_path, source.policy, str(source.partition), name_hash)
        try:
            opened, found = on_disk_thread(source.device, self._open, place)
        except (StorageError, OSError, BadRecord) as error:
            self._log.warning("ssync: %s is skipped: %s", place.directory, error or type(error).__name__)
            return None
        return _Ready(place, opened, found)

    def _made_ahead(self, name_hash: str, want: Want) -> _Ready | None:
        """As :meth:`_ready`, and its body made if it may be by now."""
        ready = self._ready(name_hash)
        if ready is None or ready.opened is None:
            return ready
        size = ready.opened.size
        if not want.data or size > MADE_AHEAD or self._ahead + size > ALL_MADE_AHEAD:
            return ready
        ready.ahead = size
        self._ahead += size
        made = None
        try:
            made = self._made(ready, want)
        finally:
            if made is None:
                self._ahead -= size
        return made

    def _made(self, ready: _Ready, want: Want) -> _Ready | None:
        """With its body, where it is to have one that is made; None, and closed, where that cannot be."""
        if ready.opened is None or ready.built is not None or not want.data or self._build is None:
            return ready
        try:
            ready.built = self._build(ready.opened)
        finally:
            if ready.built is None:
                ready.close()
        return ready if ready.built is not None else None

    def _send(self, ready: _Ready, want: Want) -> FileSet | None:
        """What of it was sent. Raises what breaks the session."""
        if ready.opened is None:
            assert ready.found.tombstone is not None
            if not want.data:
                return None
            self._head("DELETE", ready.place, {"X-Timestamp": ready.found.tombstone.timestamp.internal})
            return ready.found
        return ready.found if self._send_object(ready.place, ready.opened, ready.built, want) else None

    def _open(self, place: Place) -> tuple[StoredObject | None, FileSet]:
        """The object; or None, and its tombstone, whose name is now known. On a disk thread."""
        found = protocol.select(self._store.look(place), self._source.part, self._source.fragment) or FileSet()
        if found.data is not None:
            return self._store.open(place, open_expired=True, found=found), found
        if found.tombstone is None:
            raise ObjectNotFound("is gone")
        path = f"{place.directory}/{found.tombstone.name}"
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            name = attributes.read(fd, lambda: os.pread(fd, os.fstat(fd).st_size, 0)).get("name", "")
        finally:
            os.close(fd)
        names = name[1:].split("/", 2)
        if len(names) < 3 or not all(names) or self._store.hash_path.digest(*names) != place.digest:
            raise BadRecord(f"{path} holds {name!r}, whose place is another")
        place.name = name
        return None, found

    def _send_object(self, place: Place, opened: StoredObject, built: Built | None, want: Want) -> bool:
        if want.data:
            if built is not None:
                self._put(place, opened, built, built.size, built.headers)
            else:
                body = opened.body(0, opened.size, READ_ALL, PIECE, keep_cache=False)
                self._put(place, opened, body, opened.size, {})
        meta = opened.meta_metadata
        if want.meta and meta is not None:
            headers = {name: value for name, value in meta.items() if name != "name"}
            stamp = opened.metadata.get("Content-Type-Timestamp")
            if stamp is not None:  # it may come from another file than the rest
                headers["Content-Type"], headers["Content-Type-Timestamp"] = opened.metadata["Content-Type"], stamp
            self._head("POST", place, headers)
        return want.data or meta is not None

    def _put(self, place: Place, opened: StoredObject, body: Iterable[bytes], size: int, changed: Mapping[str, str]) -> None:
        headers = {name: value for name, value in {**opened.data_metadata, **changed}.items() if name != "name"}
        if opened.found.durable != opened.data_timestamp:
            headers["X-Backend-No-Commit"] = "True"
        if not headers.get("ETag"):  # of a body that is not known before it was sent
            headers.pop("ETag", None)
        headers["Content-Length"] = str(size)
        self._head("PUT", place, headers)
        for piece in body:
            self._duplex.send(piece)
        self._outcome.sent_bytes += size

    def _head(self, method: str, place: Place, headers: dict[str, str]) -> None:
        try:
            head = protocol.encode_head(method, place.name, headers)
        except ValueError as error:  # never half a head: the session ends here, and the log says why
            raise SsyncError(f"{place.directory} cannot be sent: {error}") from None
        self._duplex.send(head)
