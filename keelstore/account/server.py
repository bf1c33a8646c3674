"""The account server: one WSGI application over the account databases of a node (``spec: backend-protocol 2``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keelstore.account.broker import AccountBroker, AccountInfo, PolicyStat
from keelstore.account.options import AccountServerOptions
from keelstore.account.rows import time_text
from keelstore.common.broker import AlreadyExists
from keelstore.common.broker_steps import Connection
from keelstore.common.broker_sync import Receiver
from keelstore.common.cluster import load_cluster
from keelstore.common.db_server import ALSO_KNOWN, DatabaseServer, listing_response
from keelstore.common.errors import BadRequest
from keelstore.common.events import DATABASE, hint_change
from keelstore.common.headers import Headers, is_true
from keelstore.common.http import Request, Response
from keelstore.common.listing import Row, Subdir
from keelstore.common.listing_render import (
    JSON,
    PLAIN,
    account_json,
    account_xml,
    content_type_of,
    plain,
    query_of,
)
from keelstore.common.logs import logger_for
from keelstore.common.names import is_auto_create
from keelstore.common.options import parse
from keelstore.common.storage_server import Handler, Names
from keelstore.common.timestamp import Timestamp

ROW_TIMEOUT_S = 3.0  # a container server waits as long for its update to be taken


class AccountServer(DatabaseServer[AccountBroker]):
    service = "account"
    datadir = "accounts"

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "PUT": self.put, "DELETE": self.delete, "HEAD": self.head, "GET": self.get, "POST": self.post,
            "REPLICATE": self.replicate,
        }  # fmt: skip

    def make_broker(self, path: str, device_path: str) -> AccountBroker:
        return AccountBroker(path, device_path, self.logger)

    def receiver(self, broker: AccountBroker) -> Receiver:
        return AccountReceiver(broker)

    def _account(self, names: Names) -> AccountBroker:
        return self.brokers.get(self.device_path(names.device), names.partition, names.account, "")

    # -- verbs ---------------------------------------------------------------------------------------------------------

    def put(self, request: Request) -> Response:
        names = self.split(request, 3, 4)
        if names.container:
            return self._put_container(request, names)
        timestamp = self.timestamp(request).internal
        broker = self._account(names)
        self.check_space(broker.device_path)
        updates = self.stored_metadata(request, timestamp)
        if self._create(broker, names.account, timestamp):
            if updates:
                broker.write(lambda connection: broker.update_metadata(connection, updates, self.cluster.limits))
            hint_change(DATABASE, broker.device_path, broker.directory)
            return Response(201)
        info = broker.info()
        if info.is_status_deleted:
            return _deleted(info, Response(403, body="Recently deleted", content_type="text/plain"))
        was_deleted, is_deleted = broker.write(
            lambda connection: broker.put_account(connection, timestamp, updates, self.cluster.limits))  # fmt: skip
        hint_change(DATABASE, broker.device_path, broker.directory)
        if is_deleted:
            return Response(409)
        return Response(201 if was_deleted else 202)

    def _create(self, broker: AccountBroker, account: str, timestamp: str) -> bool:
        """Whether it was missing and is there now."""
        if broker.exists:
            return False
        try:
            broker.initialize(account, timestamp)
        except AlreadyExists:
            return False
        return True

    def _put_container(self, request: Request, names: Names) -> Response:
        environ = request.environ
        broker = self._account(names)
        self.check_space(broker.device_path)
        put_timestamp = _time(environ.get("HTTP_X_PUT_TIMESTAMP"), "X-Put-Timestamp")
        delete_timestamp = _time(environ.get("HTTP_X_DELETE_TIMESTAMP"), "X-Delete-Timestamp")
        count = _number(environ.get("HTTP_X_OBJECT_COUNT"), "X-Object-Count")
        size = _number(environ.get("HTTP_X_BYTES_USED"), "X-Bytes-Used")
        policy = _number(environ.get("HTTP_X_BACKEND_STORAGE_POLICY_INDEX", "0"), "X-Backend-Storage-Policy-Index")
        text = environ.get("HTTP_X_TIMESTAMP")
        timestamp = _time(text, "X-Timestamp") if text is not None else Timestamp.now(self.clock()).internal
        if is_auto_create(names.account) and not broker.exists:
            self._create(broker, names.account, timestamp)
        if is_true(environ.get("HTTP_X_ACCOUNT_OVERRIDE_DELETED")):
            if not broker.exists:
                return Response(404)
        elif not broker.takes_rows():
            return Response(404)
        broker.put_container(names.container, put_timestamp, delete_timestamp, count, size, policy,
                             ROW_TIMEOUT_S if "HTTP_X_TRANS_ID" in environ else None)  # fmt: skip
        hint_change(DATABASE, broker.device_path, broker.directory)
        return Response(204 if delete_timestamp > put_timestamp else 201)

    def delete(self, request: Request) -> Response:
        names = self.split(request, 3, 3)
        timestamp = self.timestamp(request).internal
        broker = self._account(names)

        def step(connection: Connection) -> AccountInfo | None:
            info = broker.info_in(connection)
            if info.is_deleted:
                return info
            broker.mark_deleted(connection, timestamp)
            return None

        info = broker.write(step)
        if info is not None:
            return _deleted(info, Response(404))
        hint_change(DATABASE, broker.device_path, broker.directory)
        return Response(204)

    def post(self, request: Request) -> Response:
        names = self.split(request, 3, 3)
        timestamp = self.timestamp(request).internal
        broker = self._account(names)
        self.check_space(broker.device_path)
        updates = self.stored_metadata(request, timestamp)

        def step(connection: Connection) -> AccountInfo | None:
            info = broker.info_in(connection)
            if info.is_deleted:
                return info
            broker.update_metadata(connection, updates, self.cluster.limits)
            return None

        info = broker.write(step)
        if info is not None:
            return _deleted(info, Response(404))
        hint_change(DATABASE, broker.device_path, broker.directory)
        return Response(204)

    def head(self, request: Request) -> Response:
        names = self.split(request, 3, 3)
        content_type = content_type_of(request)
        broker = self._account(names)
        info, stats = broker.read_settled(
            "head", lambda connection: (broker.info_in(connection), broker.policy_stats_in(connection)),
            may_be_stale=True)  # fmt: skip
        if info.is_deleted:
            return _deleted(info, Response(404))
        headers = self._headers(info, stats)
        headers["Content-Type"] = f"{content_type}; charset=utf-8"
        return Response(204, headers)

    def get(self, request: Request) -> Response:
        names = self.split(request, 3, 3)
        query = query_of(request, self.cluster.limits.account_listing_limit, has_path=False)
        content_type = content_type_of(request)
        broker = self._account(names)

        def step(connection: Connection) -> tuple[AccountInfo, list[PolicyStat], list[Row | Subdir]]:
            info = broker.info_in(connection)
            if info.is_deleted:
                return info, [], []
            return info, broker.policy_stats_in(connection), broker.list_in(connection, query)

        info, stats, entries = broker.read_fresh(step, may_be_stale=True)
        if info.is_deleted:
            return _deleted(info, Response(404))
        policy_names = {policy.index: policy.name for policy in self.cluster.policies}
        if content_type == PLAIN:
            body = plain(entries)
        elif content_type == JSON:
            body = account_json(entries, policy_names)
        else:
            body = account_xml(names.account, entries, policy_names)
        return listing_response(204, self._headers(info, stats), content_type, body)

    def _headers(self, info: AccountInfo, stats: list[PolicyStat]) -> Headers:
        headers = Headers({
            "X-Account-Container-Count": info.container_count,
            "X-Account-Object-Count": info.object_count,
            "X-Account-Bytes-Used": info.bytes_used,
            "X-Timestamp": Timestamp(info.created_at).normal,
            "X-PUT-Timestamp": Timestamp(info.put_timestamp).normal,
        })  # fmt: skip
        for stat in stats:
            policy = self.cluster.policies.get(stat.policy_index)
            if policy is not None:
                prefix = f"X-Account-Storage-Policy-{policy.name}"
                headers[f"{prefix}-Container-Count"] = str(stat.container_count)
                headers[f"{prefix}-Object-Count"] = str(stat.object_count)
                headers[f"{prefix}-Bytes-Used"] = str(stat.bytes_used)
        self.show_metadata(headers, info.metadata)
        return headers


class AccountReceiver(Receiver):
    broker: AccountBroker

    def info_in(self, connection: Connection) -> dict[str, Any]:
        info = super().info_in(connection)
        info["count"] = info.pop("container_count")
        return info


def _deleted(info: AccountInfo, response: Response) -> Response:
    if info.is_status_deleted:
        response.headers["X-Account-Status"] = "Deleted"
    return response


def _time(text: str | None, name: str) -> str:
    if text is None:
        raise BadRequest(f"Missing {name} header")
    try:
        return time_text(text)
    except ValueError:
        raise BadRequest(f"Invalid {name} header") from None


def _number(text: str | None, name: str) -> int:
    if text is None:
        raise BadRequest(f"Missing {name} header")
    if not (text.isascii() and text.removeprefix("-").isdigit() and len(text) < 19):
        raise BadRequest(f"Invalid {name} header")
    return int(text)


def app_factory(global_conf: Mapping[str, str], **local_conf: str) -> AccountServer:
    conf = {**global_conf, **local_conf}
    options = parse(AccountServerOptions, conf, section="app:account-server", known=ALSO_KNOWN, local=local_conf)
    return AccountServer(options, load_cluster(options.swift_dir), logger_for(conf, "account-server"))
