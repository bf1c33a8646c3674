"""PUT of an object: check, read the body, store it, tell the container (``spec: backend-protocol 4.1, 4.2``)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import md5
from typing import TYPE_CHECKING

from keelstore.common import aligned, disk_turns
from keelstore.common.errors import (
    BadRequest,
    ClientDisconnect,
    ClientTimeout,
    EntityTooLarge,
    LengthRequired,
    ObjectCollision,
    ObjectDeleted,
    ObjectNotFound,
    ObjectStateChanged,
    PreconditionFailed,
    RequestError,
    UnprocessableEntity,
)
from keelstore.common.fs import Steps
from keelstore.common.headers import Headers
from keelstore.common.http import DIGEST, Request, Response
from keelstore.common.limits import check_name_length, check_request, check_size
from keelstore.common.timestamp import Timestamp
from keelstore.common.two_phase import Archive, Commit
from keelstore.obj.fileset import FileSet
from keelstore.obj.mime_put import MimeDocuments
from keelstore.obj.request import check_delete_at, footer_metadata, next_part_power, put_metadata, update_overrides
from keelstore.obj.writer import SMALL, make_directory

if TYPE_CHECKING:
    from keelstore.obj.server import ObjectServer

_CONTINUE = (("X-Obj-Metadata-Footer", "yes"),)
_CONTINUE_TWO_PHASE = (*_CONTINUE, ("X-Obj-Multiphase-Commit", "yes"))
EMPTY_MD5 = md5(usedforsecurity=False).hexdigest()


class Put:
    """One PUT request; ``run`` gives its answer."""

    __slots__ = ("body", "environ", "fragment", "is_durable", "made", "names", "old_delete_at", "part_power", "place",
                 "policy", "request", "server", "stored", "timestamp", "turn")  # fmt: skip

    def __init__(self, server: ObjectServer, request: Request):
        self.server, self.request, self.environ = server, request, request.environ

    def run(self) -> Response:
        server, environ = self.server, self.environ
        size = self.read_head()
        policy = self.policy
        has_documents = ("HTTP_X_BACKEND_OBJ_METADATA_FOOTER" in environ
                         or "HTTP_X_BACKEND_OBJ_MULTIPHASE_COMMIT" in environ)
        if not has_documents and self.fragment is None and policy.stores_fragments:
            raise BadRequest("No fragment index")
        with disk_turns.ask(self.place.device, self.place.device_path, server.most_waiting) as self.turn:
            self.look()
            if has_documents:
                metadata, footer = self._store_mime(size)
            elif size is not None and size <= SMALL:
                metadata, footer = self._store_small(size), None
            else:
                metadata, footer = self._store_streamed(size), None
        self._tell(metadata, footer)
        return Response(201, {"Etag": metadata["ETag"]})

    def read_head(self) -> int | None:
        """Everything but the body: the length of that, None when it is chunked. Raises RequestError, StorageError."""
        server, request = self.server, self.request
        self.timestamp = server.timestamp(request)
        names = server.split(request, 5, 5)
        self.policy = policy = server.policy(request)
        size = self._check_headers(names.obj)
        self.part_power = next_part_power(self.environ)
        self.place = server.place(policy, names)
        self.names = (names.account, names.container, names.obj)
        self.fragment, self.is_durable = server.fragment_of(request, policy)
        self.old_delete_at: int | None = None
        return size

    # -- one of several devices that are asked together (``together.py``) ------------------------------------------------

    def is_usual(self, body: bytes) -> bool:
        """Whether it can be done together with those of other devices, with this body. Raises RequestError."""
        digest = self.environ.get(DIGEST)
        if self.policy.stores_fragments or self.part_power is not None or digest is None:
            return False
        etag = digest()
        self.check_etag(etag)
        self.body, self.stored = body, self.metadata(len(body), etag, None)
        return True

    def beside(self, request: Request, device: str) -> Put:
        """The same for another device. Raises DeviceUnavailable."""
        found = Put(self.server, request)
        found.timestamp, found.names, found.fragment, found.old_delete_at = self.timestamp, self.names, None, None
        found.place = self.place.on(device, self.server.device_path(device))
        found.body, found.stored = self.body, self.stored
        return found

    def prepare(self) -> None:
        """Make the hash directory, and :meth:`look` into it, unless it is new. Raises as that does; DeviceUnavailable,
        DeviceFull, OSError.
        """
        is_new, self.made = make_directory(self.place)
        if not is_new:
            self.look()

    def steps(self) -> Steps:
        """What is to be written, once it is prepared."""
        return self.server.store.writing(self.place, self.timestamp, self.body, self.stored, self.made)

    def answer(self) -> Response:
        headers = Headers()
        dict.__setitem__(headers, "Etag", self.stored["ETag"])
        return Response(201, headers)

    # -- checks --------------------------------------------------------------------------------------------------------

    def _check_headers(self, name: str) -> int | None:
        """The length of the body, None when it is chunked. Raises RequestError."""
        request, environ, limits = self.request, self.environ, self.server.cluster.limits
        size = request.content_length
        if request.is_chunked:
            size = None
            announced = environ.get("HTTP_X_BACKEND_OBJ_CONTENT_LENGTH")
            if announced:
                if not (announced.isascii() and announced.isdigit()):
                    raise BadRequest("Invalid X-Backend-Obj-Content-Length header")
                check_size(limits, int(announced))
        elif size is None:
            raise LengthRequired("Missing Content-Length header.")
        check_size(limits, size)
        check_name_length(limits, "object", name)
        if not environ.get("CONTENT_TYPE"):
            raise BadRequest("No content type")
        check_delete_at(request, self.timestamp)
        if not request.is_true_header("X-Backend-Replication"):  # what one device holds another must be able to take
            check_request(limits, "object", request)
        return size

    def look(self) -> None:
        """Raises PreconditionFailed for If-None-Match, RequestError 409 when something as new is there."""
        server, place = self.server, self.place
        try:
            found = server.store.look(place)
            if found.data is None and found.tombstone is None:
                return
            if self.fragment is not None and found.durable == self.timestamp and self._is_another_fragment(found):
                return
            stored = server.store.open(place, found=found)
        except ObjectDeleted as error:
            existing = error.timestamp
        except (ObjectNotFound, ObjectStateChanged):
            return
        except ObjectCollision as error:
            raise RequestError(str(error)[:200], status=403) from None
        else:
            stored.close()
            wanted = self.environ.get("HTTP_IF_NONE_MATCH")
            if wanted and (wanted == "*" or stored.metadata.get("ETag") in _tags(wanted)):
                raise PreconditionFailed()
            existing = stored.data_timestamp
            self.old_delete_at = stored.delete_at
        if isinstance(existing, Timestamp) and existing >= self.timestamp:
            raise RequestError(status=409, headers={"X-Backend-Timestamp": existing.internal})

    def _is_another_fragment(self, found: FileSet) -> bool:
        """Whether what a replicator brings is a fragment that is not here yet, of the very object that is here."""
        members = found.fragments.get(self.timestamp, ())
        return bool(members) and all(file.fragment != self.fragment for file in members)

    # -- the body ------------------------------------------------------------------------------------------------------

    def metadata(self, size: int, etag: str, footer: Headers | None) -> dict[str, str]:
        environ = self.environ
        metadata = {
            "X-Timestamp": self.timestamp.internal,
            "Content-Type": environ["CONTENT_TYPE"],
            "Content-Length": str(size),
            "ETag": etag,
        }
        metadata.update(put_metadata(environ))
        if footer:
            metadata.update(footer_metadata(footer))
        metadata.update(self.server.allowed.of(environ))
        metadata["name"] = self.place.name
        return metadata

    def check_etag(self, etag: str, footer: Headers | None = None) -> None:
        wanted = (footer.get("Etag") if footer else None) or self.environ.get("HTTP_ETAG")
        if wanted and wanted.strip('"').lower() != etag:
            raise UnprocessableEntity()

    def _store_small(self, size: int) -> dict[str, str]:
        environ, server = self.environ, self.server
        body = environ["wsgi.input"].read(size) if size else b""
        if len(body) != size:
            raise ClientDisconnect()
        digest = environ.get(DIGEST)
        etag = digest() if digest is not None else md5(body, usedforsecurity=False).hexdigest() if body else EMPTY_MD5
        self.check_etag(etag)
        metadata = self.metadata(size, etag, None)
        self.turn.begin()
        server.store.write(self.place, self.timestamp, body, metadata, next_part_power=self.part_power,
                           fragment=self.fragment, is_durable=self.is_durable)
        return metadata

    def _large_pieces(self, size: int) -> Iterator[bytes | memoryview]:
        """As :meth:`_pieces`, such as can be written past the page cache."""
        source = self.environ["wsgi.input"]
        take = getattr(type(source), "take", None)  # the pieces of a proxy in this process
        pieces = aligned.pieces(source, size) if take is None else iter(lambda: take(source, aligned.PIECE), b"")
        left = size
        for data in pieces:
            left -= len(data)
            yield data
            if not left:
                return
        if left:
            raise ClientDisconnect()

    def _pieces(self, size: int | None) -> Iterator[bytes]:
        """The body as it comes, exactly ``size`` bytes or up to its end. Raises ClientDisconnect, EntityTooLarge."""
        source = self.environ["wsgi.input"]
        read = getattr(source, "read1", None) or source.read
        step = getattr(source, "step", 0) or self.server.options.network_chunk_size
        left = size
        limit = self.server.cluster.limits.max_file_size
        total = 0
        while left is None or left > 0:
            data = read(step if left is None else min(left, step))
            if not data:
                if left is not None:
                    raise ClientDisconnect()
                return
            total += len(data)
            if left is None:
                if total > limit:
                    raise EntityTooLarge("Your request is too large.")
            else:
                left -= len(data)
            yield data

    def _receive(self, pieces: Iterator[bytes | memoryview], size: int | None, digests: bool,
                 finish: Callable[[int, str], dict[str, str]]) -> dict[str, str]:
        """Store a body that comes in pieces; ``finish(size, etag)`` is asked for its metadata once it is there."""
        server = self.server
        began = time.monotonic()
        deadline = began + server.options.max_upload_time
        upload = server.store.upload(self.place, size, digests=digests, turn=self.turn)
        try:
            for piece in pieces:
                upload.write(piece)
                del piece  # its memory may be used again
                if time.monotonic() > deadline:
                    server.stats.increment("PUT.timeouts")
                    raise ClientTimeout()
            if server.stats:
                server.stats.transfer_rate(f"PUT.{self.place.device}.timing", time.monotonic() - began, upload.size)
            upload.flush()
            metadata = finish(upload.size, upload.digest if digests else self.environ[DIGEST]())
            server.store.commit(upload, self.place, self.timestamp, metadata, next_part_power=self.part_power,
                                fragment=self.fragment, is_durable=self.is_durable)
            return metadata
        finally:
            upload.abort()

    def _store_streamed(self, size: int | None) -> dict[str, str]:
        environ = self.environ
        announced = environ.get("HTTP_X_BACKEND_OBJ_CONTENT_LENGTH") if size is None else None

        def finish(received: int, etag: str) -> dict[str, str]:
            if announced and received != int(announced):
                raise ClientDisconnect()
            self.check_etag(etag)
            return self.metadata(received, etag, None)

        expected = int(announced) if announced else size
        pieces = self._pieces(size) if size is None or size < aligned.LARGE else self._large_pieces(size)
        return self._receive(pieces, expected, DIGEST not in environ, finish)

    def _store_mime(self, size: int | None) -> tuple[dict[str, str], Headers]:
        environ, server = self.environ, self.server
        is_two_phase = self.request.is_true_header("X-Backend-Obj-Multiphase-Commit")
        if is_two_phase:
            if not self.policy.stores_fragments:
                raise RequestError("Two-phase commit is for erasure coded policies.", status=501)
            self.is_durable = False
        boundary = environ.get("HTTP_X_BACKEND_OBJ_MULTIPART_MIME_BOUNDARY")
        if not boundary:
            raise BadRequest("no MIME boundary")
        announced = environ.get("HTTP_X_BACKEND_OBJ_CONTENT_LENGTH")
        expected = int(announced) if announced else None
        source = environ["wsgi.input"]
        set_headers = getattr(source, "set_continue_headers", None)
        if set_headers is not None:
            set_headers(_CONTINUE_TWO_PHASE if is_two_phase else _CONTINUE)
        documents = MimeDocuments(source, boundary, server.options.network_chunk_size)
        handed, noted = None, 0
        if expected is not None and expected <= SMALL and hasattr(type(source), "take_whole"):
            server.reserve.check(self.place.device_path, expected)  # before the body is asked for
            handed = source.take_whole()
        if isinstance(handed, Archive):
            footer = handed.footer
            metadata, noted = self._store_archive(handed, expected)
        else:
            metadata, footer = self._store_documents(documents, expected)
        if is_two_phase:  # the fragment is on disk; until the proxy confirms that enough others are, it does not count
            assert self.fragment is not None
            source.send_continue()
            if handed is None or not isinstance(source.take_whole(), Commit):
                documents.commit()
            self.turn.begin()
            server.store.make_durable(self.place, self.timestamp, self.fragment, next_part_power=self.part_power,
                                      noted=noted)
            if handed is None:
                with suppress(ClientDisconnect, ClientTimeout):  # what is done is done, and the container is to hear of it
                    documents.drain()
        return metadata, footer

    def _store_archive(self, archive: Archive, expected: int | None) -> tuple[dict[str, str], int]:
        """What a proxy in this process hands over: all in one call. The metadata, and what the commit is to be told."""
        if archive.size != expected:
            raise ClientDisconnect()
        digest = self.environ.get(DIGEST)
        etag = digest() if digest is not None else md5(archive.data, usedforsecurity=False).hexdigest()
        metadata = self._fragment_metadata(archive.size, etag, archive.footer)
        self.turn.begin()
        try:
            noted = self.server.store.write(self.place, self.timestamp, archive.data, metadata,
                                            next_part_power=self.part_power, fragment=self.fragment,
                                            is_durable=self.is_durable)
        finally:
            self.turn.end()  # the second phase waits for uploads that have no turn yet
        return metadata, noted

    def _fragment_metadata(self, size: int, etag: str, footer: Headers) -> dict[str, str]:
        self.check_etag(etag, footer)
        if self.policy.stores_fragments:
            self.fragment = self.server.fragment_index(footer.get("X-Object-Sysmeta-Ec-Frag-Index"), self.policy)
        return self.metadata(size, etag, footer)

    def _store_documents(self, documents: MimeDocuments, expected: int | None) -> tuple[dict[str, str], Headers]:
        limit = self.server.cluster.limits.max_file_size
        footers = []

        def pieces() -> Iterator[bytes | memoryview]:
            total = 0
            for data in documents.object_body(expected):
                total += len(data)
                if total > limit:
                    raise EntityTooLarge("Your request is too large.")
                yield data
                del data  # its memory may be used again

        def finish(received: int, etag: str) -> dict[str, str]:
            if expected is not None and received != expected:
                raise ClientDisconnect()
            footer = documents.footer()
            documents.drain()
            footers.append(footer)
            return self._fragment_metadata(received, etag, footer)

        # A proxy in this process has hashed the whole body before it sends the footer, which the body ends with.
        return self._receive(pieces(), expected, DIGEST not in self.environ, finish), footers[0]

    # -- afterwards ----------------------------------------------------------------------------------------------------

    def _tell(self, metadata: dict[str, str], footer: Headers | None) -> None:
        """Expiry queue and listing."""
        environ, updater = self.environ, self.server.updater
        delete_at = environ.get("HTTP_X_DELETE_AT")
        if (delete_at or self.old_delete_at) and not self.request.is_true_header("X-Backend-Replication"):
            self.server.requeue(self.request, self.place, self.names, self.old_delete_at,
                                int(delete_at) if delete_at else None,
                                metadata.get("X-Object-Sysmeta-Ec-Content-Length") or metadata["Content-Length"])
        if environ.get("HTTP_X_CONTAINER_PARTITION"):
            updater.update_listing("PUT", self.request, self.place, self.names, self.row(metadata, footer))

    def row(self, metadata: dict[str, str] | None = None, footer: Headers | None = None) -> Headers:
        """What the container is told."""
        metadata = self.stored if metadata is None else metadata
        headers = Headers()
        dict.update(headers, {
            "X-Size": metadata["Content-Length"],
            "X-Content-Type": metadata["Content-Type"],
            "X-Timestamp": metadata["X-Timestamp"],
            "X-Etag": metadata["ETag"],
        })  # fmt: skip
        headers.update(update_overrides(self.environ, footer))
        return headers


def _tags(header: str) -> set[str]:
    return {tag.strip().strip('"') for tag in header.split(",")}
