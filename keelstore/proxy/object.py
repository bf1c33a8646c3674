"""Object verbs (``spec: client-api 5, proxy 9, 10``)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from keelstore.common.errors import BadRequest, LengthRequired, NotFound, RequestError
from keelstore.common.expiry import expirer_container
from keelstore.common.headers import Headers, is_true, wire_to_text
from keelstore.common.http import Response
from keelstore.common.info import ContainerInfo
from keelstore.common.limits import check_name_length, check_request, check_size, is_utf8
from keelstore.common.names import quoted, visible_name
from keelstore.common.options import node_count
from keelstore.common.policy import ErasureCodingPolicy, Policy
from keelstore.common.quorum import quorum_size
from keelstore.common.timestamp import normalize_delete_at
from keelstore.proxy import cors, erasure, erasure_read, replicated, together
from keelstore.proxy.account import stagger_s
from keelstore.proxy.body import with_resume
from keelstore.proxy.container import host_of
from keelstore.proxy.fanout import Answer, outcome, to_quorum
from keelstore.proxy.options import write_affinity
from keelstore.proxy.placement import Nodes, order_for_delete, order_for_write, share_updates, updates_needed
from keelstore.proxy.reader import Reading, Target
from keelstore.proxy.request import ProxyRequest, Verb, allow_header, common_headers
from keelstore.proxy.sharded import shard_for

if TYPE_CHECKING:
    from keelstore.proxy.app import ProxyApp

MOST_BUSY = 32  # devices in a row that are busy, beyond which no others are looked for
POLICY_KEY = "HTTP_X_BACKEND_STORAGE_POLICY_INDEX"
MAX_SHARED = 4096  # container partitions of which is remembered who tells whom
_WHOLE = re.compile(r"\A\s*[+-]?[0-9]{1,4000}\s*\Z")


class ObjectController:
    def __init__(self, app: ProxyApp):
        self.app = app
        self.verbs = {
            "GET": Verb(self.read, authorizes_late=True, has_cors=True),
            "HEAD": Verb(self.read, authorizes_late=True, has_cors=True),
            "PUT": Verb(self.put, authorizes_late=True, has_cors=True),
            "POST": Verb(self.post, authorizes_late=True, has_cors=True),
            "DELETE": Verb(self.delete, authorizes_late=True, has_cors=True),
            "OPTIONS": Verb(self.options),
        }
        self.allow = allow_header(self.verbs)
        self._shared: tuple[Any, dict[tuple[int, int, int, bool], tuple[int, list[tuple[str, str]]]]] = (None, {})
        self._write_affinity = {index: write_affinity(own.write_affinity) for index, own in app.by_policy.items()}

    # -- what every verb begins with -----------------------------------------------------------------------------------

    def _container(self, request: ProxyRequest) -> tuple[ContainerInfo, Policy]:
        """What is known of the container, and the policy of the object. Raises RequestError (501, 503)."""
        info = self.app.container_info(request)
        if info.status // 100 == 5:
            raise RequestError(status=503)
        given = request.environ.get(POLICY_KEY)
        policy = self.app.cluster.policies.get(info.storage_policy if given is None else given)
        if policy is None:
            raise RequestError(status=503)
        if given is None:
            request.environ[POLICY_KEY] = str(policy.index)
        return info, policy

    def _headers(self, request: ProxyRequest, policy: Policy, ring: Any) -> Headers:
        environ = request.environ
        headers = common_headers(request, self.app.headers["object"].forwarded(environ))
        dict.__setitem__(headers, "X-Backend-Storage-Policy-Index", str(policy.index))
        if ring.next_part_power is not None:
            dict.__setitem__(headers, "X-Backend-Next-Part-Power", str(ring.next_part_power))
        if "HTTP_X_OPEN_EXPIRED" in environ and self.app.options.allow_open_expired:
            if is_true(environ["HTTP_X_OPEN_EXPIRED"]):
                headers["X-Backend-Open-Expired"] = "true"
        return headers

    def _place(self, request: ProxyRequest, policy: Policy) -> tuple[Any, int, str]:
        """Ring, partition and path."""
        ring = self.app.rings.object(policy).current()
        digest = self.app.cluster.hash_path.digest(request.account, request.container, request.obj)
        return ring, ring.partition(digest), f"/{request.account}/{request.container}/{request.obj}"

    def _writable(self, request: ProxyRequest) -> tuple[ContainerInfo, Policy]:
        """As ``_container``, authorised by the write ACL. Raises Denied or NotFound."""
        info, policy = self._container(request)
        if info.sync_key:
            request.environ["swift_sync_key"] = info.sync_key
        denied = self.app.authorize(request, info.write_acl)
        if denied is not None:
            raise Denied(denied)
        if not info.is_success:
            raise NotFound
        return info, policy

    # -- reading -------------------------------------------------------------------------------------------------------

    def read(self, request: ProxyRequest) -> Any:
        app = self.app
        info, policy = self._container(request)
        denied = app.authorize(request, info.read_acl)
        if denied is not None:
            return denied
        ring, part, path = self._place(request, policy)
        headers = self._headers(request, policy, ring)
        method = request.method
        own = app.by_policy[policy.index]
        reading = Reading(app, request, Target("object", part, path, headers, "", method),
                          app.nodes("object", ring, part, policy), own.rebalance_missing_suppression_count,
                          own.sorting_method == "timing")
        stagger = stagger_s(app, own.concurrency_timeout)
        if isinstance(policy, ErasureCodingPolicy):
            erasure_read.prepare(headers)
            if method == "GET":
                response = erasure_read.get(app, request, policy, reading, own, stagger)
            else:
                response = reading.run(policy.ndata if own.concurrent_gets else 1, stagger)
                erasure_read.as_object(response.headers, is_head=True)
        else:
            response = reading.run(reading.nodes.primary_count if own.concurrent_gets else 1, stagger)
        if reading.source is not None or response.status < 400 or response.status == 416:
            found = response.headers
            kind = dict.get(found, "Content-Type")
            if kind is not None and "swift_bytes" in kind:
                dict.__setitem__(found, "Content-Type", without_swift_bytes(kind))
            dict.__setitem__(found, "Accept-Ranges", "bytes")
            if reading.source is not None and method == "GET" and response.app_iter is not None and not reading.is_newest:
                response.app_iter = with_resume(app, request, reading, response)
        return self._advised(response, ring, part)

    # -- writing -------------------------------------------------------------------------------------------------------

    def put(self, request: ProxyRequest) -> Any:
        app, environ = self.app, request.environ
        if environ.get("HTTP_IF_NONE_MATCH", "*").strip() != "*":
            return Response(400, body="If-None-Match only supports *", content_type="text/plain")
        try:
            info, policy = self._writable(request)
        except Denied as denied:
            return denied.answer
        detect = is_true(environ.pop("HTTP_X_DETECT_CONTENT_TYPE", None))
        if detect or not environ.get("CONTENT_TYPE"):
            environ["CONTENT_TYPE"] = app.content_types.of(visible_name(request.obj))
        self._check_put(request)
        ring, part, path = self._place(request, policy)
        headers = self._headers(request, policy, ring)
        nodes = self._nodes_for_put(ring, part, policy, erasure.stored_size(policy, request.content_length))
        count = nodes.primary_count
        if app.health.has_busy:
            self._check_busy(ring, part, policy.write_quorum(count))
        each = self._with_updates(request, info, headers, count, policy.write_quorum(count))
        if isinstance(policy, ErasureCodingPolicy):
            response = erasure.put(app, request, policy, nodes, part, path, each)
        else:
            response = replicated.put(app, request, policy, nodes, part, path, each)
        return self._advised(response, ring, part)

    def _advised(self, response: Any, ring: Any, part: int) -> Any:
        """The response; with when to try again, where devices have refused for being slow."""
        health = self.app.health
        if response.status == 503 and health.has_busy and any(map(health.is_busy, ring.primaries(part))):
            response.headers["Retry-After"] = "1"
        return response

    def _check_busy(self, ring: Any, part: int, quorum: int) -> None:
        """Raises RequestError 503, with nothing of the body read, while too few devices would take it: the others have just
        refused one for being slow."""
        is_busy, left, busy = self.app.health.is_busy, quorum, 0
        for node in chain(ring.primaries(part), ring.handoffs(part)):
            if is_busy(node):
                busy += 1
                if busy > MOST_BUSY:
                    break
            else:
                left -= 1
                if not left:
                    return
        if busy:
            raise RequestError("The devices for this object are busy.", status=503, headers={"Retry-After": "1"})

    def _check_put(self, request: ProxyRequest) -> None:
        """Raises RequestError for what is wrong with the request, in the field's order."""
        environ, limits = request.environ, self.app.cluster.limits
        coding = environ.get("HTTP_TRANSFER_ENCODING")
        if coding:
            if "," in coding:
                raise RequestError("Unsupported Transfer-Coding header value specified in Transfer-Encoding header",
                                   status=501)
            if coding.lower() != "chunked":
                raise BadRequest("Invalid Transfer-Encoding header value")
        length = request.content_length
        check_size(limits, length)
        if length is None and coding != "chunked":
            raise LengthRequired("Missing Content-Length header.")
        check_name_length(limits, "object", request.obj)
        settle_expiry(request)
        check_content_type(request)
        check_request(limits, "object", request)

    def _nodes_for_put(self, ring: Any, part: int, policy: Policy, size: int) -> Nodes:
        app = self.app
        affinity = self._write_affinity[policy.index]
        if not affinity:
            return app.nodes("object", ring, part, policy, size)
        primaries = ring.primaries(part)
        local = node_count(app.by_policy[policy.index].write_affinity_node_count, len(primaries))
        first, rest = order_for_write(primaries, ring.handoffs(part), affinity, local)
        app.shuffle(first)
        return app.as_nodes("object", first, lambda: rest, size)

    def post(self, request: ProxyRequest) -> Any:
        app = self.app
        try:
            info, policy = self._writable(request)
        except Denied as denied:
            return denied.answer
        settle_expiry(request)
        check_content_type(request)
        check_request(app.cluster.limits, "object", request)
        ring, part, path = self._place(request, policy)
        headers = self._headers(request, policy, ring)
        nodes = app.nodes("object", ring, part, policy)
        each = self._with_updates(request, info, headers, nodes.primary_count, quorum_size(nodes.primary_count))
        answers = to_quorum(app, request, nodes, "POST", part, path, each)
        quorum = None
        stored = sum(answer.status == 202 for answer in answers)
        if 0 < stored < quorum_size(len(answers)):
            # Some copies were found where no primary is: try as many handoffs as primaries lack the object.
            missing = sum(answer.status == 404 for answer in answers)
            done = {answer.index for answer in answers if answer.status == 202}
            again = [own for index, own in enumerate(each) if index not in done][:missing]
            if again:
                more = to_quorum(app, request, nodes, "POST", part, path, again)
                answers = [*answers, *more]
                quorum = quorum_size(round(ring.replica_count))
        response = outcome(answers, quorum)
        if response.status == 404 and stored:
            return Response(503)
        return self._advised(response, ring, part)

    def delete(self, request: ProxyRequest) -> Any:
        app = self.app
        try:
            info, policy = self._writable(request)
        except Denied as denied:
            return denied.answer
        ring, part, path = self._place(request, policy)
        headers = self._headers(request, policy, ring)
        affinity = self._write_affinity[policy.index]
        if affinity:
            primaries, rest, count = order_for_delete(
                ring.primaries(part), ring.handoffs(part), affinity,
                app.by_policy[policy.index].write_affinity_handoff_delete_count)
            nodes = app.as_nodes("object", primaries, lambda: rest)
        else:
            nodes = app.nodes("object", ring, part, policy)
            count = nodes.primary_count
        each = self._with_updates(request, info, headers, count, quorum_size(count))
        answers: Sequence[Answer] = together.to_quorum(app, request, nodes, "DELETE", part, path, each)
        return self._advised(outcome(answers, None, {404: 204}), ring, part)

    def options(self, request: ProxyRequest) -> Response:
        return cors.preflight(self.app, request, self.verbs, self.allow)

    # -- container updates ---------------------------------------------------------------------------------------------

    def _with_updates(self, request: ProxyRequest, info: ContainerInfo, headers: Headers, count: int,
                      quorum: int) -> list[Headers]:
        """One set of headers for each of ``count`` object servers, of which ``quorum`` are enough, with the container servers
        that it is to tell."""
        app, replication = self.app, request.uses_replication_network
        ring = app.rings.container.current()
        shard = shard_for(app, request, info)
        part = ring.partition(app.cluster.hash_path.digest(*(shard or (request.account, request.container))))
        needed, shares = self._shares(ring, part, count, quorum, replication)
        put, found, partition = dict.__setitem__, [], str(part)
        asks_cleaning = "X-Backend-Clean-Expiring-Object-Queue" not in headers
        for index, (hosts, devices) in enumerate(shares):
            own = Headers(headers)
            if asks_cleaning:
                put(own, "X-Backend-Clean-Expiring-Object-Queue", "t" if index < 2 else "f")
            if hosts:
                put(own, "X-Container-Partition", partition)
                put(own, "X-Container-Host", hosts)
                put(own, "X-Container-Device", devices)
                put(own, "X-Container-Root-Db-State", info.sharding_state)
                if shard is not None:
                    put(own, "X-Backend-Quoted-Container-Path", quoted(f"{shard[0]}/{shard[1]}"))
            found.append(own)
        delete_at = request.environ.get("HTTP_X_DELETE_AT")
        if delete_at and request.method in ("PUT", "POST"):
            self._with_expiry(request, found, delete_at, needed, replication)
        return found

    def _shares(self, ring: Any, part: int, count: int, quorum: int, replication: bool) -> tuple[int, list[tuple[str, str]]]:
        """How many container servers are to be told, and by each of ``count`` object servers which: hosts and devices. That
        is the same for all objects of a container, and remembered."""
        if self._shared[0] is not ring or len(self._shared[1]) >= MAX_SHARED:
            self._shared = ring, {}
        found = self._shared[1].get((part, count, quorum, replication))
        if found is None:
            primaries = ring.primaries(part)
            needed = updates_needed(len(primaries), count, quorum)
            found = needed, [
                (",".join([host_of(node, replication) for node in share]), ",".join([node.device for node in share]))
                for share in share_updates(primaries, count, needed)
            ]
            self._shared[1][part, count, quorum, replication] = found
        return found

    def _with_expiry(self, request: ProxyRequest, headers: list[Headers], delete_at: str, count: int,
                     replication: bool) -> None:
        """Add where the object servers enter the object into the queue of what expires."""
        app = self.app
        account = f".{app.options.expiring_objects_account_name}"
        container = expirer_container(
            int(delete_at), app.options.expiring_objects_container_divisor,
            app.cluster.hash_path.digest(request.account, request.container, request.obj))
        ring = app.rings.container.current()
        part = ring.partition(app.cluster.hash_path.digest(account, container))
        shares = share_updates(ring.primaries(part), len(headers), count, backwards=True)
        for own, share in zip(headers, shares, strict=True):
            if share:
                dict.update(own, {
                    "X-Delete-At-Container": container,
                    "X-Delete-At-Partition": str(part),
                    "X-Delete-At-Host": ",".join(host_of(node, replication) for node in share),
                    "X-Delete-At-Device": ",".join(node.device for node in share),
                })  # fmt: skip


class Denied(Exception):
    """Authorisation said no; ``answer`` is what it answers."""

    def __init__(self, answer: Any):
        super().__init__()
        self.answer = answer


def settle_expiry(request: ProxyRequest) -> None:
    """Turn X-Delete-After and X-Delete-At into one ten-digit X-Delete-At. Raises BadRequest."""
    environ = request.environ
    now = int(request.timestamp)
    after = environ.pop("HTTP_X_DELETE_AFTER", None)
    if after is not None and after != "":
        if not _WHOLE.match(after):
            raise BadRequest("Non-integer X-Delete-After")
        when = now + int(after)
        if when <= now:
            raise BadRequest("X-Delete-After in past")
        environ["HTTP_X_DELETE_AT"] = normalize_delete_at(when)
        return
    at = environ.get("HTTP_X_DELETE_AT")
    if at is not None:
        if not _WHOLE.match(at):
            raise BadRequest("Non-integer X-Delete-At")
        if int(at) <= now:
            raise BadRequest("X-Delete-At in past")
        environ["HTTP_X_DELETE_AT"] = normalize_delete_at(int(at))


def check_content_type(request: ProxyRequest) -> None:
    """Raises BadRequest for a Content-Type that is not UTF-8, or carries parameters that only middlewares may set."""
    kind = request.environ.get("CONTENT_TYPE")
    if not kind:
        return
    if not is_utf8(kind):
        raise BadRequest("Please specify a valid Content-Type")
    if ";" in kind and not request.environ.get("swift.content_type_overridden"):
        for parameter in wire_to_text(kind).split(";")[1:]:
            if parameter.strip().lower().startswith("swift_"):
                raise BadRequest("Invalid Content-Type, swift_* is not a valid parameter name.")


def without_swift_bytes(content_type: str) -> str:
    """The content type as the client gave it."""
    parts = content_type.split(";")
    return ";".join(part for part in parts if not part.strip().startswith("swift_bytes="))
