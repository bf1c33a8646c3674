"""Shard ranges over HTTP: what GET, PUT and REPLICATE of the container server do with them (``spec: backend-protocol 3``)."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable
from typing import Any

from keelstore.common import ranges
from keelstore.common.broker_steps import Connection
from keelstore.common.broker_sync import Receiver
from keelstore.common.errors import BadRequest
from keelstore.common.headers import Headers, is_true
from keelstore.common.http import Request, Response
from keelstore.common.limits import is_valid_text
from keelstore.common.ranges import ShardRange
from keelstore.common.timestamp import Timestamp
from keelstore.container import shard_rows
from keelstore.container.broker import SHARDED, ContainerBroker, ContainerInfo
from keelstore.container.policy_rule import PolicyClaim
from keelstore.container.shard_rows import all_ranges, own_range

_PARAMS = ("marker", "end_marker", "includes", "reverse", "states")


def list_ranges(
    request: Request, info: ContainerInfo, connection: Connection, headers: Headers
) -> tuple[bytes, Headers]:
    """The JSON of the shard ranges that a GET asks for, and the headers with what is to be said of it.

    Raises BadRequest.
    """
    params, environ = request.params, request.environ
    for name in _PARAMS:
        if not is_valid_text(params.get(name, ""), internal=True):
            raise BadRequest(f'"{name}" parameter not valid UTF-8')
    words = [word.strip() for word in params.get("states", "").split(",") if word.strip()]
    try:
        states = ranges.parse_states(",".join(words)) if words else None
    except ValueError:
        raise BadRequest("Bad state") from None
    marker, end_marker = params.get("marker", ""), params.get("end_marker", "")
    includes, is_reverse = params.get("includes", ""), is_true(params.get("reverse"))
    include_deleted = is_true(environ.get("HTTP_X_BACKEND_INCLUDE_DELETED"))
    is_short = environ.get("HTTP_X_BACKEND_RECORD_SHARD_FORMAT", "").lower() == "namespace"
    include_own = "auditing" in words
    fills_gaps = "listing" in words or "updating" in words
    if is_short and (include_deleted or include_own):
        raise BadRequest("No shard ranges in namespace format with deleted or auditing ones")
    headers = Headers(headers)
    if environ.get("HTTP_X_BACKEND_OVERRIDE_SHARD_NAME_FILTER", "").lower() == "sharded" and info.db_state == SHARDED:
        marker = end_marker = includes = ""
        is_reverse = False
        headers["X-Backend-Override-Shard-Name-Filter"] = "true"
    stored = all_ranges(connection)
    own = own_range(connection)
    found = ranges.select(
        (shard for shard in stored if include_own or shard.name != own.name),
        marker=marker, end_marker=end_marker, includes=includes, states=states, include_deleted=include_deleted,
        is_reverse=is_reverse,
    )  # fmt: skip
    if fills_gaps and not (includes and found):
        found = _with_filler(found, own, marker, end_marker, includes, is_reverse)
    headers["X-Backend-Record-Type"] = "shard"
    headers["X-Backend-Record-Shard-Format"] = "namespace" if is_short else "full"
    return json.dumps([_shown(shard, is_short) for shard in found]).encode("ascii"), headers


def _with_filler(
    found: list[ShardRange], own: ShardRange, marker: str, end_marker: str, includes: str, is_reverse: bool
) -> list[ShardRange]:
    if is_reverse:
        marker, end_marker = end_marker, marker
    if includes:
        return [own] if own.holds(includes) else []
    forward = found[::-1] if is_reverse else found
    gap = ranges.filler(forward, own, marker, end_marker)
    if gap is None:
        return found
    return [gap, *found] if is_reverse else [*found, gap]


def _shown(shard: ShardRange, is_short: bool) -> dict[str, Any]:
    if is_short:
        return {"name": shard.name, "lower": shard.lower, "upper": shard.upper}
    shown = shard.to_dict()
    shown["last_modified"] = shard.timestamp.isoformat
    return shown


def parse_ranges(body: bytes) -> list[ShardRange]:
    """Raises BadRequest ``Invalid body: …``."""
    try:
        data = json.loads(body)
        if not isinstance(data, list):
            raise ValueError("expected a list of shard ranges")
        return [ShardRange.from_dict(item) for item in data]
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"Invalid body: {error}") from None


class ContainerReceiver(Receiver):
    """Replication of containers: policy index and shard ranges besides the rows."""

    broker: ContainerBroker

    def __init__(self, broker: ContainerBroker, logger: logging.Logger):
        super().__init__(broker)
        self.logger = logger

    def operations(self) -> dict[str, Callable[..., Response]]:
        return {
            **super().operations(),
            "merge_shard_ranges": self.merge_shard_ranges, "get_shard_ranges": self.get_shard_ranges,
        }  # fmt: skip

    def info_in(self, connection: Connection) -> dict[str, Any]:
        info = super().info_in(connection)
        found = self.broker.info_in(connection)
        info.pop("object_count", None)
        info["count"], info["bytes_used"], info["db_state"] = found.object_count, found.bytes_used, found.db_state
        info["shard_max_row"] = self.broker.max_row(connection, "shard_range")
        return info

    def merge_more(self, connection: Connection, more: list[Any]) -> None:
        """``status_changed_at, count, storage_policy_index``: settle which policy the container has.

        A replica that differs from ours may have told the account its own counts after we told ours, and an account takes
        what comes last; if it is a handoff it will be gone before it can tell better ones. So we tell ours again.
        """
        if self.broker.info_dict(connection)["hash"] != self._remote_hash:
            self.broker.set_reported(connection, "0", "0", 0, 0)
        if len(more) < 3:
            return
        put, delete = self._remote_times
        self.broker.settle_policy(connection, PolicyClaim(int(more[2]), put, delete, Timestamp(more[0] or "0"),
                                                          int(more[1] or 0)))  # fmt: skip

    _remote_times = (Timestamp(0), Timestamp(0))
    _remote_hash = ""

    def sync(self, max_row: int, remote_hash: str, remote_id: str, created_at: str, put_timestamp: str,
             delete_timestamp: str, metadata: str, *more: Any) -> Response:  # fmt: skip
        self._remote_times, self._remote_hash = (Timestamp(put_timestamp), Timestamp(delete_timestamp)), remote_hash
        return super().sync(max_row, remote_hash, remote_id, created_at, put_timestamp, delete_timestamp, metadata,
                            *more)  # fmt: skip

    def more_of(self, connection: Connection) -> list[ShardRange]:
        return all_ranges(connection)

    def add_more(self, connection: Connection, more: list[ShardRange]) -> None:
        shard_rows.merge_ranges(connection, more)

    def may_replace(self, connection: Connection) -> bool:
        return not shard_rows.is_sharding_initiated(connection)

    def merge_shard_ranges(self, items: list[dict[str, Any]], _source: str | None = None) -> Response:
        new = [ShardRange.from_dict(item) for item in items]
        self.broker.write(lambda connection: merge_remote_ranges(connection, new, self.logger))
        return Response(202)

    def get_shard_ranges(self) -> Response:
        found = self.broker.read_fresh(all_ranges)
        body = json.dumps([shard.to_dict() for shard in found]).encode("ascii")
        return Response(200, body=body, content_type="application/json")


def merge_remote_ranges(connection: Connection, new: Iterable[ShardRange], logger: logging.Logger) -> None:
    """Merge what a peer knows of shards. Its account of our own range without an epoch would make us forget the file that
    holds our rows: that is left out.
    """
    own = shard_rows.stored_own_range(connection)
    kept = []
    for shard in new:
        if own is not None and own.epoch is not None and shard.name == own.name and shard.epoch is None:
            if ranges.merge(shard, own) is not None:
                logger.warning("Ignoring remote osr w/o epoch: %s", shard.to_dict())
            continue
        kept.append(shard)
    shard_rows.merge_ranges(connection, kept)
