"""The proxy application: route a request, authorise it, dispatch it to the verb (``spec: client-api 1``)."""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from keelstore import SWIFT_VERSION, __version__
from keelstore.common import logs
from keelstore.common.acl import ACL
from keelstore.common.backend import Backend
from keelstore.common.cluster import Cluster, load_cluster
from keelstore.common.errors import BackendError, ClientDisconnect, ClientTimeout, RequestError, WaitTimeout
from keelstore.common.headers import is_true
from keelstore.common.http import (
    AUTHORIZE,
    TRANS_ID,
    Environ,
    Response,
    StartResponse,
    error_response,
    failure_response,
)
from keelstore.common.info import ContainerInfo, container_info
from keelstore.common.limits import is_valid_text
from keelstore.common.mime import content_types
from keelstore.common.names import reserved_problem
from keelstore.common.options import node_count, parse
from keelstore.common.paste_config import read_config
from keelstore.common.policy import ErasureCodingPolicy, Policy
from keelstore.common.registry import register_info
from keelstore.common.ring.ring import Ring
from keelstore.common.stats import NoStats, stats_for
from keelstore.common.timestamp import Timestamp
from keelstore.common.transid import make_trans_id
from keelstore.proxy import cors
from keelstore.proxy.account import AccountController
from keelstore.proxy.container import ContainerController
from keelstore.proxy.health import Health
from keelstore.proxy.info_endpoint import InfoController
from keelstore.proxy.object import ObjectController
from keelstore.proxy.options import (
    ALSO_KNOWN,
    PolicyOptions,
    ProxyOptions,
    lower_set,
    policy_options,
    read_affinity,
)
from keelstore.proxy.placement import Nodes, order_for_read
from keelstore.proxy.repair import Repair
from keelstore.proxy.request import HeaderMap, ProxyRequest
from keelstore.proxy.rings import Rings


class ProxyApp:
    """A WSGI application. It holds what the controllers work with; they keep no state of their own."""

    def __init__(
        self,
        options: ProxyOptions,
        cluster: Cluster,
        rings: Any,
        backend: Any,
        logger: logging.Logger,
        by_policy: Mapping[int, PolicyOptions] | None = None,
        clock: Callable[[], float] = time.time,
        shuffle: Callable[[list[Any]], None] = random.shuffle,
        stats: NoStats | None = None,
    ):
        self.stats = stats or NoStats()
        self.options, self.cluster, self.rings, self.backend = options, cluster, rings, backend
        self.logger, self.clock, self.shuffle = logger, clock, shuffle
        self.by_policy = by_policy or policy_options(options, cluster.policies, {})
        self.health = Health(options.error_suppression_limit, options.error_suppression_interval, options.timing_expiry,
                             time.monotonic, logger, self.stats)
        self.health.is_own = backend.is_local
        self.owner_headers = lower_set(options.swift_owner_headers)
        self.denied_hosts = lower_set(options.deny_host_headers)
        self.content_types = content_types(options.swift_dir)
        self.headers = {
            "account": HeaderMap("account"),
            "container": HeaderMap("container"),
            "object": HeaderMap("object", options.forwarded_object_headers),
        }
        self._affinity = {index: read_affinity(own.read_affinity) for index, own in self.by_policy.items()}
        self._common_affinity = read_affinity(options.read_affinity)
        self.repair = Repair(self)
        self.accounts = AccountController(self)
        self.containers = ContainerController(self)
        self.objects = ObjectController(self)
        self.info = InfoController(self)
        self.logged_app: Any = None  # set by the loader of the pipeline

    # -- WSGI ----------------------------------------------------------------------------------------------------------

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        request = ProxyRequest(environ)
        try:
            answer = self.handle(request)
        except RequestError as error:
            if self.stats and isinstance(error, (ClientDisconnect, ClientTimeout)):
                self._count_lost_client(request, error)
            answer = error_response(error)
        except (BackendError, WaitTimeout) as error:
            self.logger.error("%s %s: %s (txn: %s)", request.method, request.path_quoted(), error, request.trans_id)
            answer = failure_response(error)
        except Exception:
            self.stats.increment("errors")
            self.logger.exception("%s %s failed (txn: %s)", request.method, request.path_quoted(), request.trans_id)
            answer = Response(500)
        return answer(environ, start_response)

    def _count_lost_client(self, request: ProxyRequest, error: RequestError) -> None:
        """The field counts timeouts of clients for each kind of thing, disconnects for objects."""
        kind = ("account", "container", "object")[min(max(request.path.count("/") - 2, 0), 2)]
        if isinstance(error, ClientTimeout):
            self.stats.increment(f"{kind}.client_timeouts")
        elif kind == "object":
            self.stats.increment("object.client_disconnects")

    def handle(self, request: ProxyRequest) -> Any:
        """The answer, a WSGI application. Raises RequestError."""
        environ = request.environ
        _prepare(request, self.clock)
        request.content_length  # noqa: B018 - raises for what is no length
        path = request.path
        if not is_valid_text(path, is_true(environ.get("HTTP_X_BACKEND_ALLOW_RESERVED_NAMES"))):
            return Response(412, body="Invalid UTF8 or contains NULL", content_type="text/plain")
        controller = self._route(request, path)
        if self.denied_hosts:
            host = environ.get("HTTP_HOST", "").rsplit(":", 1)[0] if "HTTP_HOST" in environ else ""
            if host.lower() in self.denied_hosts or environ.get("HTTP_HOST", "").lower() in self.denied_hosts:
                return Response(403, body="Invalid host header", content_type="text/plain")
        if not environ.get(TRANS_ID):
            environ[TRANS_ID] = make_trans_id(self.options.trans_id_suffix)
        verb = controller.verbs.get(environ["REQUEST_METHOD"])
        if verb is None or (verb.is_private and not request.is_true_header("X-Backend-Allow-Private-Methods")):
            return Response(405, {"Allow": controller.allow}, content_type="text/html; charset=UTF-8")
        if not verb.authorizes_late:
            denied = self.authorize(request, None)
            if denied is not None:
                return denied
        response = verb.handler(request)
        if "HTTP_ORIGIN" in environ and verb.has_cors:
            response = cors.decorate(self, request, response)
        return response

    def _route(self, request: ProxyRequest, path: str) -> Any:
        if path == "/info":
            return self.info
        parts = path.split("/", 4)
        if parts[0] or len(parts) < 2 or not parts[1]:
            raise RequestError(status=404)
        parts += ["", "", ""]
        version, account, container, obj = parts[1:5]
        if not account:
            if container or obj:
                raise RequestError(status=404)
            raise RequestError("Bad URL", status=412)
        if version not in self.cluster.limits.valid_api_versions:
            raise RequestError(status=400)
        if not container and obj:
            raise RequestError(status=404)
        request.account, request.container, request.obj = account, container, obj
        if "\x00" in path:
            problem = reserved_problem(account, container, obj)
            if problem:
                raise RequestError(problem, status=400)
        return self.objects if obj else self.containers if container else self.accounts

    # -- for the controllers -------------------------------------------------------------------------------------------

    def authorize(self, request: ProxyRequest, acl: str | None) -> Any:
        """None when the request may go on, else the answer that says no."""
        environ = request.environ
        authorize = environ.get(AUTHORIZE)
        if authorize is None:
            return None
        request.acl = environ[ACL] = acl
        return authorize(request)

    def container_info(self, request: ProxyRequest) -> ContainerInfo:
        return container_info(request.environ, self.info_app, request.account, request.container,
                              skip_pct=self.options.container_existence_skip_cache_pct)

    @property
    def info_app(self) -> Any:
        """Where requests for info go: logged, but past the middlewares before."""
        return self.logged_app or self

    def nodes(self, kind: str, ring: Ring, part: int, policy: Policy | None = None, put_size: int | None = None) -> Nodes:
        """The nodes of a partition in the order for reading, at most ``request_node_count``; ``kind`` as in a Target.

        ``put_size``: for a PUT, which passes by devices that have no room for so many bytes.
        """
        own = self.options if policy is None else self.by_policy[policy.index]
        affinity = self._common_affinity if policy is None else self._affinity[policy.index]
        primaries = order_for_read(ring.primaries(part), own.sorting_method, affinity, self.health.timing_ms,
                                   self.shuffle, _parity_last(policy))
        if self.health.has_suspects:
            primaries.sort(key=self.health.is_suspect)
        return self.as_nodes(kind, primaries, lambda: ring.handoffs(part), put_size)

    def as_nodes(self, kind: str, primaries: list[Any], rest: Callable[[], Iterable[Any]],
                 put_size: int | None = None) -> Nodes:
        count = len(primaries)
        limit = node_count(self.options.request_node_count, count)
        is_limited = self.health.is_limited if put_size is None else self.health.passed_by(put_size)
        return Nodes(primaries, rest, limit, is_limited,
                     self._note_handoff(kind, count, limit - count) if self.options.log_handoffs else None)

    def _note_handoff(self, kind: str, primaries: int, expected: int) -> Callable[[Any], None]:
        used = [0]

        def note(node: Any) -> None:
            used[0] += 1
            if used[0] > expected:
                self.stats.increment(f"{kind}.handoff_count")
                self.logger.warning("handoff %s is asked, number %d", node.key, used[0])
                if used[0] - expected == primaries:
                    self.stats.increment(f"{kind}.handoff_all_count")

        return note

    def log_failure(self, error: BaseException) -> None:
        if isinstance(error, BackendError):
            self.logger.warning("backend request failed: %s", error)
        else:
            self.logger.error("backend request failed", exc_info=error)

    def without_owner_headers(self, request: ProxyRequest, response: Response) -> None:
        """Take from the answer what only the account's owner may see."""
        if not request.is_owner:
            hidden = [name for name in response.headers if name.lower() in self.owner_headers]
            for name in hidden:
                dict.__delitem__(response.headers, name)


def _parity_last(policy: Policy | None) -> Callable[[Any], bool] | None:
    """For the order of reading: an object is put together of its data fragments, and computed from others."""
    return (lambda node: policy.holds_parity(node.index)) if isinstance(policy, ErasureCodingPolicy) else None


def _prepare(request: ProxyRequest, clock: Callable[[], float]) -> None:
    """Settle time, token and framing of a request. Raises RequestError (400)."""
    environ = request.environ
    text = environ.get("HTTP_X_TIMESTAMP")
    if text is None:
        request.timestamp = Timestamp(clock())
    else:
        try:
            request.timestamp = Timestamp(text)
        except ValueError:
            raise RequestError("X-Timestamp should be a UNIX timestamp float value", status=400) from None
    environ["HTTP_X_TIMESTAMP"] = request.timestamp.internal
    if "HTTP_X_STORAGE_TOKEN" in environ and "HTTP_X_AUTH_TOKEN" not in environ:
        environ["HTTP_X_AUTH_TOKEN"] = environ["HTTP_X_STORAGE_TOKEN"]
    coding = environ.get("HTTP_TRANSFER_ENCODING")
    if coding is not None and coding.rpartition(",")[2].strip().lower() == "chunked":
        environ.pop("CONTENT_LENGTH", None)


def publish(options: ProxyOptions, cluster: Cluster) -> None:
    """Register what ``/info`` says of the proxy."""
    limits = cluster.limits
    policies = []
    for policy in cluster.policies:
        if policy.is_deprecated:
            continue
        entry: dict[str, Any] = {"name": policy.name, "aliases": ", ".join(policy.names)}
        if policy.is_default:
            entry["default"] = True
        policies.append(entry)
    register_info("keelstore", version=__version__)
    register_info(
        "swift",
        version=SWIFT_VERSION,
        strict_cors_mode=options.strict_cors_mode,
        policies=policies,
        allow_account_management=options.allow_account_management,
        account_autocreate=options.account_autocreate,
        allow_open_expired=options.allow_open_expired,
        max_file_size=limits.max_file_size,
        max_meta_name_length=limits.max_meta_name_length,
        max_meta_value_length=limits.max_meta_value_length,
        max_meta_count=limits.max_meta_count,
        max_header_size=limits.max_header_size,
        max_meta_overall_size=limits.max_meta_overall_size,
        max_object_name_length=limits.max_object_name_length,
        container_listing_limit=limits.container_listing_limit,
        account_listing_limit=limits.account_listing_limit,
        max_account_name_length=limits.max_account_name_length,
        max_container_name_length=limits.max_container_name_length,
        extra_header_count=limits.extra_header_count,
        max_request_line=limits.max_request_line,
        valid_api_versions=list(limits.valid_api_versions),
        auto_create_account_prefix=limits.auto_create_account_prefix,
    )


def app_factory(global_conf: dict[str, str], **local_conf: str) -> ProxyApp:
    """``[app:proxy-server]`` of a paste pipeline."""
    conf = {**global_conf, **local_conf}
    file = global_conf.get("__file__", "")
    options = parse(ProxyOptions, conf, section="app:proxy-server", file=file, known=ALSO_KNOWN, local=local_conf)
    cluster = load_cluster(options.swift_dir)
    sections = read_config(file).sections if file else {}
    by_policy = policy_options(options, cluster.policies, sections, file)
    rings = Rings(cluster)
    if options.write_legacy_ec_crc is not None:
        os.environ["LIBERASURECODE_WRITE_LEGACY_CRC"] = "1" if options.write_legacy_ec_crc else "0"
    publish(options, cluster)
    return ProxyApp(options, cluster, rings, Backend(conn_timeout_s=options.conn_timeout),
                    logs.logger_for(conf, "proxy-server"), by_policy, stats=stats_for(conf, "proxy-server"))
