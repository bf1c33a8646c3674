"""What account and container servers share: brokers of their devices, stored metadata, listings, REPLICATE."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, TypeVar

from keelstore.common import db_transfer, fs, proof
from keelstore.common.broker import Broker, DatabaseNotFound
from keelstore.common.broker_cache import BrokerCache
from keelstore.common.broker_sync import Receiver
from keelstore.common.cluster import Cluster
from keelstore.common.errors import BadRequest, RingError
from keelstore.common.events import DATABASE, hint_change
from keelstore.common.headers import Headers, is_sys_or_user_meta, text_to_wire, wire_to_text
from keelstore.common.http import Request, Response
from keelstore.common.names import database_file, storage_path
from keelstore.common.ring.ring import Ring, RingFile
from keelstore.common.storage_server import Names, StorageServer, StorageServerOptions

B = TypeVar("B", bound=Broker)
ALSO_KNOWN: Final = (  # options of an app's section that others read
    "use", "set *", "log_*", "statsd_*", "bind_*", "workers", "user", "max_clients", "backlog", "client_timeout",
    "keepalive_timeout", "keep_idle", "cert_file", "key_file", "eventlet_debug", "nice_priority", "ionice_*",
    "stale_worker_timeout", "disable_fallocate", "recon_cache_path", "ring_ip", "require_proxy_protocol",
)  # fmt: skip
MAX_REPLICATE_BODY = 256 << 20  # bytes; a batch is at most per_diff rows of a few KiB

class DatabaseServer(StorageServer, Generic[B]):
    """Subclasses name their service and give ``make_broker`` and ``receiver``."""

    datadir: str = ""

    def __init__(self, options: StorageServerOptions, cluster: Cluster, logger: logging.Logger,
                 clock: Callable[[], float] = time.time):
        self.brokers: BrokerCache[B] = BrokerCache(self._broker)
        self._ring: RingFile | None = None
        super().__init__(options, cluster, logger, clock)

    def make_broker(self, path: str, device_path: str) -> B:
        raise NotImplementedError

    def receiver(self, broker: B) -> Receiver:
        raise NotImplementedError

    def _broker(self, device_path: str, partition: str, account: str, container: str) -> B:
        name_hash = self.cluster.hash_path.hexdigest(account, container or None)
        directory = f"{device_path}/{storage_path(self.datadir, partition, name_hash)}"
        return self.make_broker(database_file(directory), device_path)

    # -- metadata ------------------------------------------------------------------------------------------------------

    def stored_metadata(
        self, request: Request, timestamp: str, also: frozenset[str] = frozenset()
    ) -> dict[str, tuple[str, str]]:
        """The request's headers that are kept: user and system metadata, and those named in ``also`` (lower case).

        Raises BadRequest for what is not UTF-8.
        """
        found = {}
        for name, value in request.header_items():
            if is_sys_or_user_meta(self.service, name) or name.lower() in also:
                try:
                    text = wire_to_text(value)
                    f"{name}{text}".encode()
                    key = wire_to_text(name)
                    key.encode()
                except UnicodeEncodeError:
                    raise BadRequest("Metadata must be valid UTF-8") from None
                found[key] = (text, timestamp)
        return found

    @staticmethod
    def show_metadata(headers: Headers, metadata: Mapping[str, tuple[str, str]]) -> None:
        """Add every item that is not removed."""
        for key, (value, _) in metadata.items():
            if value != "":
                headers[text_to_wire(key)] = text_to_wire(value)

    # -- REPLICATE -----------------------------------------------------------------------------------------------------

    def replicate(self, request: Request) -> Response:
        names = self.split(request, 3, 3)
        name_hash = names.account
        if "/" in name_hash or name_hash in (".", "..") or not name_hash.isalnum():
            raise BadRequest(f"Invalid hash: {name_hash[:80].encode('unicode_escape').decode()}")
        device_path = self.device_path(names.device)
        self.check_space(device_path)
        if db_transfer.is_transfer(request):
            return self._said_of(request, names, db_transfer.take(request, device_path, self.reserve))
        try:
            call = json.loads(request.read_body(MAX_REPLICATE_BODY))
        except (ValueError, RecursionError):
            raise BadRequest("body is not JSON") from None
        if not isinstance(call, list) or not call:
            raise BadRequest("Invalid object type")
        directory = f"{device_path}/{storage_path(self.datadir, names.partition, name_hash)}"
        broker = self.make_broker(database_file(directory), device_path)
        receiver = self.receiver(broker)
        try:
            answer = receiver.answer(call[0], call[1:])
            if receiver.has_more or (call[0] == "complete_rsync" and answer.is_success):
                hint_change(DATABASE, device_path, broker.directory)
        except DatabaseNotFound:
            answer = Response(404)
            fs.make_directories(f"{device_path}/tmp", device_path)  # where a whole file will come to, by rsync maybe
        finally:
            broker.close()
        return self._said_of(request, names, answer)

    def _said_of(self, request: Request, names: Names, answer: Response) -> Response:
        """With what our replicators know from the headers: that whole files may come, and whether our word is a proof."""
        answer.headers[db_transfer.OFFER] = "yes"
        answer.headers.update(proof.said_of(self.ring(), names.partition, names.device, request.environ.get("HTTP_HOST")))
        return answer

    def ring(self) -> Ring | None:
        """The ring of our service, None where it cannot be had: a server serves without it."""
        if self._ring is None:
            try:
                self._ring = RingFile(self.cluster.ring_path(self.service), logger=self.logger)
            except (RingError, OSError):
                return None
        return self._ring.current()


def json_response(value: Any, status: int = 200) -> Response:
    return Response(status, body=json.dumps(value).encode("ascii"), content_type="application/json")


def listing_response(status_if_empty: int, headers: Headers, content_type: str, body: bytes) -> Response:
    headers["Content-Type"] = f"{content_type}; charset=utf-8"
    return Response(200 if body else status_if_empty, headers, body=body)
