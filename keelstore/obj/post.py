"""POST of an object: new metadata for data that stays (``spec: backend-protocol 4.4``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keelstore.common import disk_turns
from keelstore.common.errors import ObjectNotFound, RequestError
from keelstore.common.headers import Headers, is_sysmeta
from keelstore.common.http import Environ, Request, Response
from keelstore.common.limits import check_request
from keelstore.common.timestamp import Timestamp
from keelstore.obj.reader import StoredObject
from keelstore.obj.request import (
    check_delete_at,
    content_type_timestamp,
    next_part_power,
    post_metadata,
    stored_overrides,
    swift_bytes_of,
)

if TYPE_CHECKING:
    from keelstore.obj.server import ObjectServer


def post(server: ObjectServer, request: Request) -> Response:
    """The answer to POST. Raises RequestError, StorageError."""
    environ = request.environ
    timestamp = server.timestamp(request)
    names = server.split(request, 5, 5)
    policy = server.policy(request)
    check_delete_at(request, timestamp)
    type_time = content_type_timestamp(environ, timestamp)
    if not request.is_true_header("X-Backend-Replication"):  # what one device holds another must be able to take
        check_request(server.cluster.limits, "object", request)
    part_power = next_part_power(environ)
    place = server.place(policy, names)
    fragment, _ = server.fragment_of(request, policy)
    try:
        stored = server.store.open(place, open_expired=server.opens_expired(request), fragment=fragment)
    except ObjectNotFound as error:
        headers = {}
        if isinstance(error.timestamp, Timestamp):
            headers["X-Backend-Timestamp"] = error.timestamp.internal
        return Response(404, headers)
    stored.close()
    is_newer = timestamp > stored.timestamp
    has_newer_type = type_time is not None and type_time > stored.content_type_timestamp
    if not is_newer and not (has_newer_type and stored.meta_metadata is not None):
        raise RequestError(status=409, headers={"X-Backend-Timestamp": stored.timestamp.internal})
    metadata = _new_metadata(server, environ, stored, timestamp, type_time if has_newer_type else None)
    metadata["name"] = place.name
    stamp = Timestamp(metadata["X-Timestamp"])
    with disk_turns.ask(place.device, place.device_path, server.most_waiting) as turn:
        turn.begin()
        server.store.write_meta(place, stamp, metadata, next_part_power=part_power)
    path_names = (names.account, names.container, names.obj)
    if is_newer and not request.is_true_header("X-Backend-Replication"):
        new = environ.get("HTTP_X_DELETE_AT")
        server.requeue(request, place, path_names, stored.delete_at, int(new) if new else None,
                       stored.metadata["Content-Length"], stored.data_timestamp.internal)
    content_type = metadata.get("Content-Type") or stored.data_metadata.get("Content-Type", "")
    if environ.get("HTTP_X_CONTAINER_PARTITION"):
        server.updater.update_listing("PUT", request, place, path_names,
                                      _row(stored, stamp, content_type, metadata.get("Content-Type-Timestamp")))
    headers = {"X-Backend-Content-Type": content_type}
    for name, value in stored.data_metadata.items():
        if is_sysmeta("object", name):
            headers[name] = value
    return Response(202, headers)


def _new_metadata(server: ObjectServer, environ: Environ, stored: StoredObject, timestamp: Timestamp,
                  type_time: Timestamp | None) -> dict[str, str]:
    """What the new metadata file holds; ``type_time`` is given when the request's content type is the newest."""
    if timestamp > stored.timestamp:
        metadata = {"X-Timestamp": timestamp.internal}
        metadata.update(post_metadata(environ))
        metadata.update(server.allowed.of(environ))
    else:
        metadata = dict(stored.meta_metadata or {})
        metadata.setdefault("X-Timestamp", stored.timestamp.internal)
    metadata.pop("Content-Type", None)
    metadata.pop("Content-Type-Timestamp", None)
    if type_time is not None:
        metadata["Content-Type"] = environ["CONTENT_TYPE"]
        metadata["Content-Type-Timestamp"] = type_time.internal
    elif stored.content_type_timestamp != stored.data_timestamp:
        metadata["Content-Type"] = stored.metadata["Content-Type"]
        metadata["Content-Type-Timestamp"] = stored.content_type_timestamp.internal
    return metadata


def _row(stored: StoredObject, stamp: Timestamp, content_type: str, type_time: str | None) -> Headers:
    """What the container is told."""
    data = stored.data_metadata
    _, swift_bytes = swift_bytes_of(data.get("Content-Type", ""))
    if swift_bytes is not None and swift_bytes_of(content_type)[1] is None:
        content_type = f"{content_type};swift_bytes={swift_bytes}"
    headers = Headers({
        "X-Size": data.get("X-Object-Sysmeta-Ec-Content-Length") or data["Content-Length"],
        "X-Content-Type": content_type,
        "X-Timestamp": stored.data_timestamp.internal,
        "X-Content-Type-Timestamp": type_time or stored.data_timestamp.internal,
        "X-Meta-Timestamp": stamp.internal,
        "X-Etag": data.get("X-Object-Sysmeta-Ec-Etag") or data.get("ETag", ""),
    })  # fmt: skip
    headers.update(stored_overrides(data))
    return headers


