"""DELETE of an object (``spec: backend-protocol 4.5``).

A tombstone is written even where there is nothing to delete: the object may be on its way. One that would be older
than what is here is not: it would only take room (CVE-2013-4155).

An expirer deletes what was to go at a time, and its request has that time. This node may be one that missed a newer PUT made
before that time, to which the time does not apply: so its tombstone is just newer than what it has seen, not as new as the
request. Else it would win over the newer object everywhere, which was acknowledged.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from keelstore.common import disk_turns
from keelstore.common.errors import BadRequest, ObjectNotFound, PreconditionFailed, RequestError
from keelstore.common.fs import Steps
from keelstore.common.headers import Headers
from keelstore.common.http import Request, Response
from keelstore.common.timestamp import ZERO, Timestamp
from keelstore.obj.request import next_part_power

if TYPE_CHECKING:
    from keelstore.obj.server import ObjectServer


class Delete:
    """One DELETE request; ``run`` gives its answer."""

    __slots__ = ("_content_type", "_existing", "_is_found", "_sole", "_started", "_status", "_wanted", "names",
                 "old_delete_at", "part_power", "place", "request", "server", "timestamp")  # fmt: skip

    def __init__(self, server: ObjectServer, request: Request):
        self.server, self.request = server, request
        self._started = time.monotonic()

    def run(self) -> Response:
        """Raises RequestError, StorageError."""
        server, request = self.server, self.request
        self.read_head()
        self.look()
        cleans_queue = request.environ.get("HTTP_X_BACKEND_CLEAN_EXPIRING_OBJECT_QUEUE", "yes").lower()
        if self.old_delete_at and cleans_queue not in ("no", "false", "0", "off", "f", "n") and not request.is_true_header(
            "X-Backend-Replication"
        ):
            server.updater.update_queue("DELETE", self.old_delete_at, request, self.place, self.names)
        if self._existing < self.timestamp:
            with disk_turns.ask(self.place.device, self.place.device_path, server.most_waiting) as turn:
                turn.begin()
                server.store.delete(self.place, self.timestamp, next_part_power=self.part_power, is_there=self._is_found,
                                    sole=self._sole)
            server.updater.update_listing("DELETE", request, self.place, self.names, self.row())
        return self.answer()

    def read_head(self) -> None:
        """Raises RequestError, StorageError."""
        server, request = self.server, self.request
        self.timestamp = server.timestamp(request)
        names = server.split(request, 5, 5)
        policy = server.policy(request)
        self._wanted = _if_delete_at(request)
        self.part_power = next_part_power(request.environ)
        self.place = server.place(policy, names)
        self.names = (names.account, names.container, names.obj)

    def look(self) -> None:
        """At what is there. Raises RequestError, StorageError."""
        server, timestamp = self.server, self.timestamp
        existing, seen, delete_at, content_type = ZERO, ZERO, None, ""
        is_found = is_live = False
        sole = ""
        try:
            stored = server.store.open(self.place, open_expired=True)
        except ObjectNotFound as error:
            if isinstance(error.timestamp, Timestamp):
                existing, is_found = error.timestamp, True
        else:
            stored.close()
            is_found, sole = True, stored.sole
            existing, delete_at = stored.data_timestamp, stored.delete_at
            seen = stored.timestamp
            content_type = stored.metadata.get("Content-Type", "")
            is_live = not stored.is_expired(server.clock())
        if self._wanted is not None:
            if not is_found:
                raise RequestError(status=404)
            if existing >= timestamp:
                raise RequestError(status=409)
            if self._wanted != (delete_at or 0):
                raise PreconditionFailed("X-If-Delete-At and X-Delete-At do not match")
            is_live = True
            if seen != ZERO:
                self.timestamp = timestamp = Timestamp(seen, offset=1)
        self._status = 404
        if is_live:
            self._status = 409 if existing >= timestamp else 204
        self._existing, self._is_found, self.old_delete_at, self._content_type = existing, is_found, delete_at, content_type
        self._sole = sole

    def row(self) -> Headers:
        """What the container is told."""
        return Headers({"X-Timestamp": self.timestamp.internal})

    def answer(self) -> Response:
        _log_if_slow(self.server, self.request, self._started)
        return Response(self._status, {
            "X-Backend-Timestamp": max(self._existing, self.timestamp).internal,
            "X-Backend-Content-Type": self._content_type,
        })  # fmt: skip

    # -- one of several devices that are asked together (``together.py``) ------------------------------------------------

    def is_usual(self, _body: bytes) -> bool:
        """Whether it can be done together with those of other devices."""
        return self.part_power is None and self._wanted is None

    def beside(self, request: Request, device: str) -> Delete:
        """The same for another device. Raises DeviceUnavailable."""
        found = Delete(self.server, request)
        found.timestamp, found.names, found._wanted = self.timestamp, self.names, None
        found.place = self.place.on(device, self.server.device_path(device))
        return found

    def prepare(self) -> None:
        """As :meth:`look`."""
        self.look()

    def steps(self) -> Steps | None:
        """What is to be written, if anything."""
        if self._existing >= self.timestamp:
            return None
        return self.server.store.deleting(self.place, self.timestamp, is_there=self._is_found, sole=self._sole)


def _if_delete_at(request: Request) -> int | None:
    text = request.environ.get("HTTP_X_IF_DELETE_AT")
    if text is None:
        return None
    try:
        return int(text) if text.isdigit() else int(Timestamp(text))  # expirers send the form of a timestamp
    except ValueError:
        raise BadRequest("Bad X-If-Delete-At header value") from None


def _log_if_slow(server: ObjectServer, request: Request, started: float) -> None:
    limit = server.options.slow_delete_log_threshold_seconds
    taken = time.monotonic() - started
    if 0 <= limit < taken:
        server.logger.warning("DELETE %s took %.1f s (txn: %s)", request.path_quoted(), taken, request.trans_id)
