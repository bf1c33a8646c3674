"""The object server: one WSGI application over the object devices of a node (``spec: backend-protocol 4``)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence

from keelstore.common import events, plainpickle
from keelstore.common.backend import Backend
from keelstore.common.cluster import Cluster, load_cluster
from keelstore.common.concurrency import Semaphore, sleep
from keelstore.common.errors import BadRequest, ConfigError, RequestError, RingError
from keelstore.common.headers import REBUILD_NOW
from keelstore.common.http import Request, Response
from keelstore.common.logs import logger_for
from keelstore.common.options import parse
from keelstore.common.policy import ErasureCodingPolicy, Policy
from keelstore.common.ring.ring import Ring, RingFile
from keelstore.common.stats import NoStats
from keelstore.common.storage_server import Handler, Names, StorageServer
from keelstore.obj import together
from keelstore.obj.delete import Delete
from keelstore.obj.get import get
from keelstore.obj.layout import is_suffix
from keelstore.obj.options import ObjectServerOptions
from keelstore.obj.place import Place
from keelstore.obj.post import post
from keelstore.obj.put import Put
from keelstore.obj.reader import Validation
from keelstore.obj.request import AllowedHeaders, check_partition
from keelstore.obj.seen import Rereads
from keelstore.obj.ssync.receiver import ssync
from keelstore.obj.store import ObjectStore
from keelstore.obj.together import Outcome, Wanted
from keelstore.obj.updates import ContainerUpdater


class ObjectServer(StorageServer):
    service = "object"

    def __init__(self, options: ObjectServerOptions, cluster: Cluster, backend: Backend, logger: logging.Logger,
                 clock: Callable[[], float] = time.time):
        self.options = options
        super().__init__(options, cluster, logger, clock)
        self.allowed = AllowedHeaders(options.allowed_headers)
        self.validation = Validation(options.etag_validate_pct, options.etag_validate_interval)
        self.rereads = Rereads(options.keep_cache_interval)
        self.store = ObjectStore(
            cluster.hash_path, reserve=self.reserve, reclaim_age_s=options.reclaim_age,
            commit_window_s=options.commit_window, bytes_per_sync=options.mb_per_sync << 20,
            allocates=not options.disable_fallocate, logger=logger, clock=clock,
        )  # fmt: skip
        self.most_waiting = options.max_waiting_for_device
        self.scanner = self.store.scanner()
        self.ssync_places = Semaphore(options.replication_concurrency) if options.replication_concurrency else None
        self._rings: dict[int, RingFile | None] = {}
        self.updater = ContainerUpdater(
            backend, cluster.hash_path, logger, wait_s=options.container_update_timeout,
            node_timeout_s=options.node_timeout, expirer_divisor=options.expiring_objects_container_divisor,
            expirer_account=options.expiring_objects_account_name,
        )  # fmt: skip

    def measure_by(self, stats: NoStats) -> None:
        super().measure_by(stats)
        self.updater.stats = self.store.stats = stats

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "PUT": self._slowly(self._telling(lambda request: Put(self, request).run())),
            "GET": lambda request: get(self, request),
            "HEAD": lambda request: get(self, request),
            "POST": self._telling(lambda request: post(self, request)),
            "DELETE": self._slowly(self._telling(lambda request: Delete(self, request).run())),
            "REPLICATE": self.replicate,
            "SSYNC": lambda request: ssync(self, request),
        }

    def _slowly(self, handler: Handler) -> Handler:
        """The handler, made to take at least the seconds of option ``slow``."""
        least_s = self.options.slow
        if not least_s:
            return handler

        def handle(request: Request) -> Response:
            started = time.monotonic()
            response = handler(request)
            sleep(max(0.0, started + least_s - time.monotonic()))
            return response

        return handle

    def _telling(self, handler: Handler) -> Handler:
        """The handler, which tells the replicator when a device took what belongs to another, so that it goes home soon."""

        def handle(request: Request) -> Response:
            response = handler(request)
            if response.status < 409 and not request.is_true_header("X-Backend-Replication"):
                self.tell_of_handoff(request)
            return response

        return handle

    def tell_of_handoff(self, request: Request) -> None:
        """The replicator, if what the request has changed belongs to another device: by the ring, and by the address at which
        the client of this request knows us.
        """
        if not events.is_heard():
            return
        policy, names = self.policy(request), self.split(request, 5, 5)
        ring, host = self.ring(policy), request.environ.get("HTTP_HOST")
        if ring is None or not host:
            return
        own = f"{host}/{names.device}"
        for node in ring.primaries(int(names.partition)):
            if node.key == own or f"{host_of(*node.replication_address)}/{node.device}" == own:
                return
        events.hint_change(events.HANDOFF, f"{self.options.devices}/{names.device}", str(policy.index), names.partition)

    def together(self, method: str, path: str, copies: Sequence[Wanted], body: bytes,
                 digest: Callable[[], str] | None) -> list[Outcome]:
        """See :func:`together.change`."""
        return together.change(self, method, path, copies, body, digest)

    # -- for the verbs -------------------------------------------------------------------------------------------------

    def policy(self, request: Request) -> Policy:
        """Of X-Backend-Storage-Policy-Index. Raises RequestError 503 for one that is not known here."""
        text = request.environ.get("HTTP_X_BACKEND_STORAGE_POLICY_INDEX")
        policy = self.cluster.policies.get(text)
        if policy is None:
            raise RequestError(f"No policy with index {(text or '')[:20]}", status=503)
        return policy

    def place(self, policy: Policy, names: Names) -> Place:
        """Raises DeviceUnavailable, BadRequest."""
        check_partition(names.partition)
        return self.store.place(names.device, self.device_path(names.device), policy, names.partition,
                                names.account, names.container, names.obj)

    def fragment_of(self, request: Request, policy: Policy) -> tuple[int | None, bool]:
        """The fragment index that a request names, and whether it is to be durable at once. Raises BadRequest."""
        if not isinstance(policy, ErasureCodingPolicy):
            return None, True
        text = request.environ.get("HTTP_X_BACKEND_SSYNC_FRAG_INDEX")
        if text is None or text == "None":
            text = request.environ.get("HTTP_X_OBJECT_SYSMETA_EC_FRAG_INDEX") if request.method == "PUT" else None
        is_durable = not request.is_true_header("X-Backend-No-Commit")
        return (None if text is None else self.fragment_index(text, policy)), is_durable

    @staticmethod
    def fragment_index(text: str | None, policy: Policy) -> int:
        """Raises BadRequest for what is none of the policy's."""
        count = policy.fragments if isinstance(policy, ErasureCodingPolicy) else 0
        if not text or not (text.isascii() and text.isdigit()) or int(text[:6]) >= count:
            raise BadRequest(f"Invalid fragment index {(text or '')[:20]!r}")
        return int(text)

    def ring(self, policy: Policy) -> Ring | None:
        """The ring of a policy, None where it cannot be had: an object server serves without it."""
        if policy.index not in self._rings:
            try:
                self._rings[policy.index] = RingFile(self.cluster.ring_path(policy.ring_name), logger=self.logger)
            except (RingError, OSError, ConfigError) as error:
                self.logger.warning("policy %s: %s", policy.name, error)
                self._rings[policy.index] = None
        found = self._rings[policy.index]
        return found.current() if found is not None else None

    def opens_expired(self, request: Request) -> bool:
        return request.is_true_header("X-Backend-Open-Expired") or request.is_true_header("X-Backend-Replication")

    def requeue(self, request: Request, place: Place, names: tuple[str, str, str], old: int | None, new: int | None,
                size: str, written: str = "") -> None:
        """Bring the expiry queue up to date with a change of X-Delete-At, unless a replicator made it. ``written``: when the
        data was, if not by this request.
        """
        if new is not None:
            self.updater.update_queue("PUT", new, request, place, names, size, written)
        if old and old != new:
            self.updater.update_queue("DELETE", old, request, place, names)

    # -- REPLICATE -----------------------------------------------------------------------------------------------------

    def replicate(self, request: Request) -> Response:
        """The suffix hashes of a partition, or the order to compute some anew."""
        names = self.split(request, 2, 3)
        policy = self.policy(request)
        device_path = self.device_path(names.device)
        check_partition(names.partition)
        if names.account:
            suffixes = [suffix for suffix in names.account.split("-") if is_suffix(suffix)]
            self.store.invalidate(names.device, device_path, policy, names.partition, suffixes)
            if request.is_true_header(REBUILD_NOW):
                events.hint_change(events.PARTITION, device_path, str(policy.index), names.partition)
            found = None
        else:
            found = self.store.hashes(names.device, device_path, policy, names.partition)
        return Response(200, body=plainpickle.dumps(found, 2), content_type="application/octet-stream")


def host_of(ip: str, port: int) -> str:
    """An address as the Host header of a request to it has it."""
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


def app_factory(global_conf: Mapping[str, str], **local_conf: str) -> ObjectServer:
    conf = {**global_conf, **local_conf}
    options = parse(ObjectServerOptions, conf, section="app:object-server")
    return ObjectServer(options, load_cluster(options.swift_dir), Backend(conn_timeout_s=options.conn_timeout),
                        logger_for(conf, "object-server"))  # fmt: skip
