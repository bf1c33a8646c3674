"""A whole database file over the replication port, for peers that are ours: no rsync daemon is needed.

::

    REPLICATE /<device>/<partition>/<hash>
    Content-Type: application/vnd.sqlite3
    X-Backend-Database-Id: <id of the sender's database>

    <the file>

The answer is 201 with ``Etag``, the MD5 of what was stored as ``<device>/tmp/<id>``, just where an rsync would have put it; a
``complete_rsync`` or ``rsync_then_merge`` then takes it from there. A server that can do this says so in ``OFFER``, a header
of each of its answers to REPLICATE (``doc/formats/databases.md``).
"""

from __future__ import annotations

import os
from hashlib import md5
from typing import Any, Final

from keelstore.common import fs
from keelstore.common.disk_calls import on_disk_thread
from keelstore.common.errors import BackendError, BadRequest, ClientDisconnect, LengthRequired
from keelstore.common.headers import Headers
from keelstore.common.http import Request, Response
from keelstore.common.room import Reserve

OFFER: Final = "X-Keelstore-Takes-Databases"
TYPE: Final = "application/vnd.sqlite3"
ID: Final = "X-Backend-Database-Id"
PIECE: Final = 1 << 20  # bytes
MAX_ID: Final = 200
SENT: Final = "sent-"  # beginning of the names, in tmp, of copies that are being sent


def is_transfer(request: Request) -> bool:
    return bool(request.environ.get("CONTENT_TYPE") == TYPE)


def arrived_path(device_path: str, database_id: object) -> str:
    """Where a file that arrives waits. Raises ValueError."""
    if not isinstance(database_id, str) or not database_id or len(database_id) > MAX_ID or "/" in database_id \
            or "\0" in database_id or database_id.startswith("."):  # fmt: skip
        raise ValueError("expected the id of a database")
    return f"{device_path}/tmp/{database_id}"


def take(request: Request, device_path: str, reserve: Reserve) -> Response:
    """Store the file that a request brings. Raises RequestError, DeviceFull."""
    size = request.content_length
    if size is None:
        raise LengthRequired("Missing Content-Length header.")
    try:
        target = arrived_path(device_path, request.header(ID))
    except ValueError as error:
        raise BadRequest(f"Invalid {ID}: {error}") from None
    device = os.path.basename(device_path)
    new = on_disk_thread(device, _create, os.path.dirname(target), device_path, reserve, size)
    try:
        digest, left = md5(usedforsecurity=False), size
        source = request.body_file
        while left:
            data = source.read(min(PIECE, left))
            if not data:
                raise ClientDisconnect("the file ended early")
            digest.update(data)
            left -= len(data)
            on_disk_thread(device, fs.write_all, new.fd, data)
        on_disk_thread(device, fs.link_unsynced, new, target)  # whoever takes it into use syncs it
    finally:
        new.discard()
    return Response(201, {"Etag": digest.hexdigest()})


def _create(directory: str, device_path: str, reserve: Reserve, size: int) -> fs.NewFile:
    reserve.check(device_path, size)
    fs.make_directories(directory, device_path)
    return fs.create_file(directory)


def send(backend: Any, address: tuple[str, int], path: str, source: str, device: str, database_id: str, agent: str,
         timeout_s: float) -> int:  # fmt: skip
    """Send the file ``source``, which nobody changes, to a server that takes it. Gives its size.

    Raises BackendError, also when what was stored is not what was sent.
    """
    fd = on_disk_thread(device, os.open, source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = on_disk_thread(device, os.fstat, fd).st_size
        upload = backend.upload(address, path, Headers({"Content-Type": TYPE, ID: database_id, "User-Agent": agent}),
                                method="REPLICATE", length=size, timeout_s=timeout_s)
        try:
            answer = upload.ready(timeout_s)
            digest = md5(usedforsecurity=False)
            sent = 0
            while answer is None and sent < size:
                data = on_disk_thread(device, os.pread, fd, PIECE, sent)
                if not data:
                    raise BackendError("the copy of the database is gone", address)
                digest.update(data)
                upload.send(data)
                sent += len(data)
            if answer is None:
                answer = upload.finish(timeout_s)
        except BaseException:
            upload.abort()
            raise
        answer.drain()
        if answer.status != 201:
            raise BackendError(f"answered {answer.status} to a database file", address)
        if answer.headers.get("Etag") != digest.hexdigest():
            raise BackendError("stored another file than was sent", address)
        return size
    finally:
        os.close(fd)
