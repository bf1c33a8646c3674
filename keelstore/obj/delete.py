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
from keelstore.common.headers import Headers
from keelstore.common.http import Request, Response
from keelstore.common.timestamp import ZERO, Timestamp
from keelstore.obj.request import next_part_power

if TYPE_CHECKING:
    from keelstore.obj.server import ObjectServer


def delete(server: ObjectServer, request: Request) -> Response:
    """The answer to DELETE. Raises RequestError, StorageError."""
    started = time.monotonic()
    timestamp = server.timestamp(request)
    names = server.split(request, 5, 5)
    policy = server.policy(request)
    wanted = _if_delete_at(request)
    part_power = next_part_power(request.environ)
    place = server.place(policy, names)
    existing, seen, delete_at, content_type = ZERO, ZERO, None, ""
    is_found = is_live = False
    try:
        stored = server.store.open(place, open_expired=True)
    except ObjectNotFound as error:
        if isinstance(error.timestamp, Timestamp):
            existing, is_found = error.timestamp, True
    else:
        stored.close()
        is_found = True
        existing, delete_at = stored.data_timestamp, stored.delete_at
        seen = stored.timestamp
        content_type = stored.metadata.get("Content-Type", "")
        is_live = not stored.is_expired(server.clock())
    if wanted is not None:
        if not is_found:
            raise RequestError(status=404)
        if existing >= timestamp:
            raise RequestError(status=409)
        if wanted != (delete_at or 0):
            raise PreconditionFailed("X-If-Delete-At and X-Delete-At do not match")
        is_live = True
        if seen != ZERO:
            timestamp = Timestamp(seen, offset=1)
    status = 404
    if is_live:
        status = 409 if existing >= timestamp else 204
    path_names = (names.account, names.container, names.obj)
    cleans_queue = request.environ.get("HTTP_X_BACKEND_CLEAN_EXPIRING_OBJECT_QUEUE", "yes").lower()
    if delete_at and cleans_queue not in ("no", "false", "0", "off", "f", "n") and not request.is_true_header(
        "X-Backend-Replication"
    ):
        server.updater.update_queue("DELETE", delete_at, request, place, path_names)
    if existing < timestamp:
        with disk_turns.ask(place.device, place.device_path, server.most_waiting) as turn:
            turn.begin()
            server.store.delete(place, timestamp, next_part_power=part_power, is_there=is_found)
        headers = Headers({"X-Timestamp": timestamp.internal})
        server.updater.update_listing("DELETE", request, place, path_names, headers)
    _log_if_slow(server, request, started)
    return Response(status, {
        "X-Backend-Timestamp": max(existing, timestamp).internal,
        "X-Backend-Content-Type": content_type,
    })  # fmt: skip


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
