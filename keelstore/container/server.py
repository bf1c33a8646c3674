"""The container server: one WSGI application over the container databases of a node (``spec: backend-protocol 3``)."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from urllib.parse import quote

from keelstore.common.backend import Backend, RowTaker
from keelstore.common.broker import AlreadyExists, DatabaseNotFound
from keelstore.common.broker_steps import Connection
from keelstore.common.cluster import Cluster, load_cluster
from keelstore.common.db_server import ALSO_KNOWN, DatabaseServer, listing_response
from keelstore.common.disk_calls import on_disk_thread
from keelstore.common.errors import BadRequest, NotFound, RequestError, StorageError
from keelstore.common.events import CONTAINER, DATABASE, hint_change
from keelstore.common.headers import Headers, is_true
from keelstore.common.http import Request, Response, http_date
from keelstore.common.limits import is_valid_text
from keelstore.common.listing_render import (
    JSON,
    PLAIN,
    container_json,
    container_xml,
    content_type_of,
    plain,
    query_of,
)
from keelstore.common.logs import logger_for
from keelstore.common.names import is_auto_create
from keelstore.common.options import parse
from keelstore.common.storage_server import Handler, Names, check_segment
from keelstore.common.sync_realms import Realms
from keelstore.common.timestamp import ZERO, Timestamp
from keelstore.container import rows, sync_to
from keelstore.container.broker import SHARDED, SHARDING, ContainerBroker, ContainerInfo, PutOutcome
from keelstore.container.options import ContainerServerOptions
from keelstore.container.rows import meta_time
from keelstore.container.shard_rows import merge_ranges
from keelstore.container.sharding_server import ContainerReceiver, list_ranges, parse_ranges
from keelstore.container.updates import AccountUpdater, Caller, targets

MAX_ROWS_BODY = 64 << 20  # bytes of an UPDATE's or a shard PUT's JSON
_STORED = frozenset({"x-container-read", "x-container-write", "x-container-sync-key", "x-container-sync-to"})


class ContainerServer(DatabaseServer[ContainerBroker]):
    service = "container"
    datadir = "containers"

    def __init__(self, options: ContainerServerOptions, cluster: Cluster, backend: Caller, logger: logging.Logger,
                 clock: Callable[[], float] = time.time):
        self.options = options
        self.updater = AccountUpdater(backend, options.node_timeout, logger)
        self.stored = _STORED | {"x-versions-location"} if options.allow_versions else _STORED
        self.realms = Realms(options.swift_dir, on_error=lambda text: logger.error("%s", text))
        super().__init__(options, cluster, logger, clock)

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "PUT": self.put, "DELETE": self.delete, "HEAD": self.head, "GET": self.get, "POST": self.post,
            "UPDATE": self.update, "REPLICATE": self.replicate,
        }  # fmt: skip

    def make_broker(self, path: str, device_path: str) -> ContainerBroker:
        return ContainerBroker(path, device_path, self.logger)

    def receiver(self, broker: ContainerBroker) -> ContainerReceiver:
        return ContainerReceiver(broker, self.logger)

    def _container(self, names: Names) -> ContainerBroker:
        return self.brokers.get(self.device_path(names.device), names.partition, names.account, names.container)

    # -- rows ----------------------------------------------------------------------------------------------------------

    def _put_row(self, request: Request, names: Names, timestamp: str, broker: ContainerBroker) -> Response:
        environ = request.environ
        size = environ.get("HTTP_X_SIZE")
        if size is None or not (size.isascii() and size.isdigit() and len(size) < 19):
            raise BadRequest("Missing or invalid X-Size header")
        content_type, etag = environ.get("HTTP_X_CONTENT_TYPE"), environ.get("HTTP_X_ETAG")
        if content_type is None or etag is None:
            raise BadRequest(f"Missing {'X-Etag' if content_type is not None else 'X-Content-Type'} header")
        if not content_type.isascii():
            content_type = content_type.encode("latin-1").decode("utf-8", "replace")
        if not etag.isascii():
            raise BadRequest("Invalid X-Etag header")
        redirect = self._ready_for_row(request, names, timestamp, broker)
        if redirect is not None:
            return redirect
        broker.put_object(
            names.obj, timestamp, int(size), content_type, etag, self._row_policy(request),
            _time(environ.get("HTTP_X_CONTENT_TYPE_TIMESTAMP")), _time(environ.get("HTTP_X_META_TIMESTAMP")),
        )  # fmt: skip
        hint_change(CONTAINER, broker.device_path, broker.directory)
        return Response(201)

    def _delete_row(self, request: Request, names: Names, timestamp: str, broker: ContainerBroker) -> Response:
        redirect = self._ready_for_row(request, names, timestamp, broker)
        if redirect is not None:
            return redirect
        broker.delete_object(names.obj, timestamp, self._row_policy(request))
        hint_change(CONTAINER, broker.device_path, broker.directory)
        return Response(204)

    def at_once(self, method: str, path: str, headers: Headers) -> Response | None:
        """The answer to a request of this process for one row, where it is the usual one and waits for nothing: what
        ``__call__`` would do and say, for a third of the cost. None: nothing has been done, ask in full.
        """
        _, device, partition, rest = path.split("/", 3) if path.count("/") > 2 else ("", "", "", "")
        take = self.row_taker(method, f"/{rest}", headers)
        if take is None or not take(device, partition):
            return None
        return Response(201 if method == "PUT" else 204, _TAKEN.copy(), body=b"")

    def row_taker(self, method: str, path: str, headers: Headers) -> RowTaker | None:
        """What does :meth:`at_once` for several devices, with ``/account/container/object`` read once. Given device and
        partition it says whether the row was taken; False or None: nothing has been done, ask in full.
        """
        if (method != "PUT" and method != "DELETE") or self.stats or self.logger.isEnabledFor(logging.DEBUG):
            return None
        get: Callable[..., Any] = partial(dict.get, headers)
        policy = get("X-Backend-Storage-Policy-Index", "0")
        parts = path.split("/", 3)
        if (len(parts) != 4 or not all(parts[1:]) or "\0" in path or not is_valid_text(path)
                or not (policy.isascii() and policy.isdigit() and len(policy) < 10)
                or not is_true(get("X-Backend-Accept-Redirect"))):
            return None
        _, account, container, name = parts
        is_put = method == "PUT"
        try:
            timestamp = Timestamp(headers["X-Timestamp"]).internal
            if is_put:
                size, content_type, etag = headers["X-Size"], headers["X-Content-Type"], headers["X-Etag"]
                if not (size.isdigit() and len(size) < 19 and (size + content_type + etag).isascii()):
                    return None
                record = (name, timestamp, int(size), content_type, etag, 0, int(policy),
                          _time(get("X-Content-Type-Timestamp")), _time(get("X-Meta-Timestamp")))  # fmt: skip
            else:
                record = rows.deletion(name, timestamp, int(policy))
        except (RequestError, KeyError, ValueError):
            return None  # in full it is answered as it must be

        def take(device: str, partition: str) -> bool:
            started = time.time()
            try:
                check_segment("partition", partition)
                device_path = self.device_path_to_try(device)
                broker = self.brokers.get(device_path, partition, account, container)
                if (is_put and not self.reserve.allows(device_path)) or not broker.put_record_at_once(record):
                    return False
            except (RequestError, StorageError, OSError):
                return False
            hint_change(CONTAINER, device_path, broker.directory)
            if self.meter is not None:
                self.meter.record(method, 201 if is_put else 204, time.time() - started)
            return True

        return take

    def _ready_for_row(
        self, request: Request, names: Names, timestamp: str, broker: ContainerBroker
    ) -> Response | None:
        """See that there is a database for the row; a Response when it belongs elsewhere. Raises NotFound."""
        if not broker.exists and not self._auto_create(request, names, timestamp, broker, needs_policy=False):
            raise NotFound()
        environ = request.environ
        if not is_true(environ.get("HTTP_X_BACKEND_ACCEPT_REDIRECT")):
            return None
        shard = broker.redirect_for(names.obj)
        if shard is None:
            return None
        plain_location = f"/{shard.name}/{names.obj}"
        location = quote(plain_location)
        if location != plain_location and not is_true(environ.get("HTTP_X_BACKEND_ACCEPT_QUOTED_LOCATION")):
            return None  # an old object server would take the quoted name for the name; the sharder moves the row later
        environ["swift.leave_relative_location"] = True
        return Response(301, {
            "Location": location, "X-Backend-Location-Is-Quoted": "true",
            "X-Backend-Redirect-Timestamp": shard.timestamp.internal,
        })  # fmt: skip

    def _auto_create(
        self, request: Request, names: Names, timestamp: str, broker: ContainerBroker, needs_policy: bool = True
    ) -> bool:
        """Create what system accounts need, or the request asks for. Whether it is there now.

        ``needs_policy``: the request must then name the policy (else BadRequest).
        """
        wish = request.environ.get("HTTP_X_BACKEND_AUTO_CREATE")
        if wish is not None:
            may = is_true(wish)
        else:
            may = is_auto_create(names.account) and not names.account.startswith(".shards_")
        if not may:
            return False
        if needs_policy and "HTTP_X_BACKEND_STORAGE_POLICY_INDEX" not in request.environ:
            raise BadRequest("X-Backend-Storage-Policy-Index header is required")
        self._create(broker, names, timestamp, self._row_policy(request))
        return True

    def _create(self, broker: ContainerBroker, names: Names, timestamp: str, policy_index: int) -> bool:
        """Whether it was missing and is there now."""
        if broker.exists:
            return False
        try:
            broker.initialize(names.account, names.container, timestamp[:16], policy_index)
        except AlreadyExists:
            return False
        return True

    def _row_policy(self, request: Request) -> int:
        text = request.environ.get("HTTP_X_BACKEND_STORAGE_POLICY_INDEX")
        if text is None:
            return 0
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            raise BadRequest(f"Invalid X-Backend-Storage-Policy-Index {text[:40]!r}")
        return int(text)

    # -- verbs ---------------------------------------------------------------------------------------------------------

    def put(self, request: Request) -> Response:
        names = self.split(request, 4, 5)
        timestamp = self.timestamp(request).internal
        broker = self._container(names)
        self.check_space(broker.device_path)
        if names.obj:
            return self._put_row(request, names, timestamp, broker)
        if request.environ.get("HTTP_X_BACKEND_RECORD_TYPE", "").lower() == "shard":
            return self._put_ranges(request, names, timestamp, broker)
        return self._put_container(request, names, timestamp, broker)

    def _put_container(self, request: Request, names: Names, timestamp: str, broker: ContainerBroker) -> Response:
        targets(request)  # a bad request changes nothing
        self._check_sync_to(request)
        wanted = self._policy_wish(request, "X-Backend-Storage-Policy-Index")
        default = self._policy_wish(request, "X-Backend-Storage-Policy-Default")
        if default is None:
            default = self.cluster.policies.default.index
        updates = self.stored_metadata(request, timestamp, self.stored)
        limits = self.cluster.limits
        if self._create(broker, names, timestamp, default if wanted is None else wanted):
            outcome = PutOutcome(True, default if wanted is None else wanted)
            if updates:
                broker.write(lambda connection: broker.store_metadata(connection, updates, limits))
        else:
            outcome = broker.write(
                lambda connection: broker.put_container(connection, timestamp, wanted, default, updates, limits))
        policy_header = {"X-Backend-Storage-Policy-Index": str(outcome.policy_index)}
        if outcome.is_conflict:
            return Response(409, policy_header)
        self._update_sync_link(broker, updates)
        if not self._tell_account(request, names, broker):
            return Response(404)
        return Response(201 if outcome.is_created else 202, policy_header)

    def _put_ranges(self, request: Request, names: Names, timestamp: str, broker: ContainerBroker) -> Response:
        new = parse_ranges(request.read_body(MAX_ROWS_BODY))
        is_created = False
        if not broker.exists:
            if not self._auto_create(request, names, timestamp, broker):
                raise NotFound()
            is_created = True
        updates = self.stored_metadata(request, timestamp, self.stored)

        def step(connection: Connection) -> int:
            broker.store_metadata(connection, updates, self.cluster.limits)
            merge_ranges(connection, new)
            return broker.info_in(connection).storage_policy_index

        index = broker.write(step)
        hint_change(DATABASE, broker.device_path, broker.directory)
        return Response(201 if is_created else 202, {"X-Backend-Storage-Policy-Index": str(index)})

    def delete(self, request: Request) -> Response:
        names = self.split(request, 4, 5)
        timestamp = self.timestamp(request).internal
        broker = self._container(names)
        if names.obj:
            return self._delete_row(request, names, timestamp, broker)
        targets(request)
        was_there = broker.write(lambda connection: broker.delete_container(connection, timestamp))
        if was_there is None:
            return Response(409)
        on_disk_thread(broker.device, sync_to.update_link, broker.device_path, f"{broker.base}.db", broker.path, False)
        if not self._tell_account(request, names, broker):
            return Response(404)
        return Response(204 if was_there else 404)

    def post(self, request: Request) -> Response:
        names = self.split(request, 4, 4)
        timestamp = self.timestamp(request).internal
        self._check_sync_to(request)
        broker = self._container(names)
        self.check_space(broker.device_path)
        updates = self.stored_metadata(request, timestamp, self.stored)
        moves_time = not is_true(request.environ.get("HTTP_X_BACKEND_NO_TIMESTAMP_UPDATE"))

        def step(connection: Connection) -> ContainerInfo | None:
            info = broker.info_in(connection)
            if info.is_deleted:
                return info
            if moves_time:
                broker.update_put_timestamp(connection, timestamp)
            broker.store_metadata(connection, updates, self.cluster.limits)
            return None

        info = broker.write(step)
        if info is not None:
            return Response(404, backend_headers(info))
        hint_change(DATABASE, broker.device_path, broker.directory)
        self._update_sync_link(broker, updates)
        return Response(204)

    def update(self, request: Request) -> Response:
        """Rows from a sharder or reconciler, merged at once."""
        names = self.split(request, 4, 4)
        timestamp = self.timestamp(request).internal
        broker = self._container(names)
        self.check_space(broker.device_path)
        try:
            items = json.loads(request.read_body(MAX_ROWS_BODY))
            if not isinstance(items, list):
                raise ValueError("expected a list of rows")
            for item in items:
                broker.check_item(item)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise BadRequest(f"Invalid JSON: {error}") from None
        if not broker.exists and not self._auto_create(request, names, timestamp, broker):
            raise NotFound()
        broker.write(lambda connection: broker.merge_rows(connection, items))
        hint_change(CONTAINER, broker.device_path, broker.directory)
        return Response(202)

    def head(self, request: Request) -> Response:
        names = self.split(request, 4, 4)
        content_type = content_type_of(request)
        broker = self._container(names)
        try:
            info = broker.info(may_be_stale=True)
        except DatabaseNotFound:
            return Response(404, dict(_ABSENT))
        headers = backend_headers(info)
        if info.is_deleted:
            return Response(404, headers)
        self._show(headers, info)
        headers["Content-Type"] = f"{content_type}; charset=utf-8"
        return Response(204, headers)

    def get(self, request: Request) -> Response:
        names = self.split(request, 4, 4)
        broker = self._container(names)
        record_type = request.environ.get("HTTP_X_BACKEND_RECORD_TYPE", "").lower()
        query = query_of(request, self.cluster.limits.container_listing_limit, has_path=True)
        content_type = content_type_of(request)
        override_deleted = is_true(request.environ.get("HTTP_X_BACKEND_OVERRIDE_DELETED"))
        policy_index = None
        if "HTTP_X_BACKEND_STORAGE_POLICY_INDEX" in request.environ:
            policy_index = self._row_policy(request)

        def step(connection: Connection) -> Response:
            info = broker.info_in(connection)
            headers = backend_headers(info)
            wants_ranges = record_type == "shard" or (record_type == "auto" and info.db_state in (SHARDING, SHARDED))
            if info.is_deleted and not (wants_ranges and override_deleted):
                return Response(404, headers)
            self._show(headers, info)
            if wants_ranges:
                body, headers = list_ranges(request, info, connection, headers)
                return listing_response(200, headers, JSON, body)
            index = info.storage_policy_index if policy_index is None else policy_index
            entries = broker.list_in(connection, query, index)
            headers["X-Backend-Record-Type"] = "object"
            headers["X-Backend-Record-Storage-Policy-Index"] = str(index)
            if content_type == PLAIN:
                body = plain(entries)
            elif content_type == JSON:
                body = container_json(entries, meta_time)
            else:
                body = container_xml(names.container, entries, meta_time)
            return listing_response(204, headers, content_type, body)

        try:
            return broker.read_fresh(step, may_be_stale=True)
        except DatabaseNotFound:
            return Response(404, dict(_ABSENT))

    # -- parts ---------------------------------------------------------------------------------------------------------

    def _policy_wish(self, request: Request, name: str) -> int | None:
        text = request.header(name)
        if text is None or text == "":
            return None
        policy = self.cluster.policies.get(text)
        if policy is None:
            raise BadRequest(f"Invalid {name} {text[:40]!r}")
        return policy.index

    def _check_sync_to(self, request: Request) -> None:
        value = request.environ.get("HTTP_X_CONTAINER_SYNC_TO")
        if value:
            realms = {name: frozenset(realm.clusters) for name, realm in self.realms.current().items()}
            problem = sync_to.problem_of(value, self.options.allowed_sync_hosts, realms)
            if problem:
                raise BadRequest(problem)

    def _update_sync_link(self, broker: ContainerBroker, updates: Mapping[str, tuple[str, str]]) -> None:
        if sync_to.TO not in updates and sync_to.KEY not in updates:
            return
        metadata = broker.read(broker.metadata)
        is_synced = all(metadata.get(key, ("", ""))[0] for key in (sync_to.TO, sync_to.KEY))
        try:
            on_disk_thread(broker.device, sync_to.update_link, broker.device_path, f"{broker.base}.db", broker.path,
                           is_synced)
        except OSError as error:
            self.logger.warning("%s: its link in sync_containers could not be updated: %s", broker.path, error)

    def _tell_account(self, request: Request, names: Names, broker: ContainerBroker) -> bool:
        hint_change(CONTAINER, broker.device_path, broker.directory)
        if "HTTP_X_ACCOUNT_PARTITION" not in request.environ:
            return True
        return self.updater.tell(request, names.account, names.container, broker.info())

    def _show(self, headers: Headers, info: ContainerInfo) -> None:
        put_timestamp = Timestamp(info.put_timestamp)
        headers["X-Container-Object-Count"] = str(info.object_count)
        headers["X-Container-Bytes-Used"] = str(info.bytes_used)
        headers["X-Timestamp"] = Timestamp(info.created_at).normal
        headers["X-PUT-Timestamp"] = put_timestamp.normal
        headers["X-Backend-Sharding-State"] = info.db_state
        self.show_metadata(headers, info.metadata)
        headers["Last-Modified"] = http_date(put_timestamp.ceil())


def backend_headers(info: ContainerInfo) -> Headers:
    """What every answer about a container tells, also that it is gone."""
    return Headers({
        "X-Backend-Timestamp": Timestamp(info.created_at).internal,
        "X-Backend-PUT-Timestamp": Timestamp(info.put_timestamp).internal,
        "X-Backend-DELETE-Timestamp": Timestamp(info.delete_timestamp).internal,
        "X-Backend-Status-Changed-At": Timestamp(info.status_changed_at).internal,
        "X-Backend-Storage-Policy-Index": str(info.storage_policy_index),
    })  # fmt: skip


_TAKEN = Headers({"Content-Type": "text/html; charset=UTF-8", "Content-Length": "0"})  # of an answer without more to say
_ABSENT = {
    "X-Backend-Timestamp": ZERO.internal, "X-Backend-PUT-Timestamp": ZERO.internal,
    "X-Backend-DELETE-Timestamp": ZERO.internal, "X-Backend-Status-Changed-At": ZERO.internal,
    "X-Backend-Storage-Policy-Index": "0",
}  # fmt: skip


def _time(text: str | None) -> str | None:
    if text is None:
        return None
    try:
        return Timestamp(text).internal
    except ValueError:
        raise BadRequest("Invalid X-Content-Type-Timestamp or X-Meta-Timestamp header") from None


def app_factory(global_conf: Mapping[str, str], **local_conf: str) -> ContainerServer:
    conf = {**global_conf, **local_conf}
    options = parse(ContainerServerOptions, conf, section="app:container-server", known=ALSO_KNOWN, local=local_conf)
    return ContainerServer(options, load_cluster(options.swift_dir), Backend(conn_timeout_s=options.conn_timeout),
                           logger_for(conf, "container-server"))  # fmt: skip
