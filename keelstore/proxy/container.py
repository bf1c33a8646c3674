"""Container verbs (``spec: client-api 4, proxy 8``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keelstore.common.acl import clean_acl
from keelstore.common.errors import BadRequest, Forbidden, NotFound, RequestError
from keelstore.common.headers import Headers, is_true, title
from keelstore.common.http import CLEAN_ACL, RESELLER, Response
from keelstore.common.info import (
    CONTAINER_RECHECK,
    AccountInfo,
    account_info,
    begin_change,
    cache_key,
    container_info_of,
    end_change,
    remember,
)
from keelstore.common.limits import check_request
from keelstore.common.names import is_auto_create
from keelstore.proxy import cors
from keelstore.proxy.account import check_length, listing_query, stagger_s
from keelstore.proxy.fanout import Answer, are_all_good, outcome, to_quorum
from keelstore.proxy.placement import share_updates
from keelstore.proxy.reader import Reading, Target
from keelstore.proxy.request import ProxyRequest, Verb, allow_header, common_headers
from keelstore.proxy.sharded import list_shards

if TYPE_CHECKING:
    from keelstore.proxy.app import ProxyApp

_AUTO = {"X-Backend-Record-Type": "auto", "X-Backend-Record-Shard-Format": "namespace",
         "X-Backend-Include-Deleted": "false"}
MAX_UPDATE_BODY = 64 << 20  # of the private UPDATE: 10,000 rows of the longest names
SHARDING_SYSMETA = "X-Container-Sysmeta-Sharding"


class ContainerController:
    def __init__(self, app: ProxyApp):
        self.app = app
        self.verbs = {
            "GET": Verb(self.read, authorizes_late=True, has_cors=True),
            "HEAD": Verb(self.read, authorizes_late=True, has_cors=True),
            "PUT": Verb(self.put, has_cors=True),
            "POST": Verb(self.post, has_cors=True),
            "DELETE": Verb(self.delete, has_cors=True),
            "OPTIONS": Verb(self.options),
            "UPDATE": Verb(self.update, is_private=True),
        }
        self.allow = allow_header(self.verbs)
        self._owner_only = tuple(title(name) for name in app.owner_headers if name.startswith("x-container-"))

    def _place(self, request: ProxyRequest) -> tuple[Any, int, str]:
        """Ring, partition and path."""
        ring = self.app.rings.container.current()
        part = ring.partition(self.app.cluster.hash_path.digest(request.account, request.container))
        return ring, part, f"/{request.account}/{request.container}"

    def _account(self, request: ProxyRequest) -> AccountInfo:
        return account_info(request.environ, self.app.info_app, request.account,
                            skip_pct=self.app.options.account_existence_skip_cache_pct)

    # -- reading -------------------------------------------------------------------------------------------------------

    def read(self, request: ProxyRequest) -> Response:
        app = self.app
        if not request.account.startswith("."):
            account = self._account(request)
            if not account.is_success or not account.really_exists:
                denied = app.authorize(request, None)
                if denied is not None:
                    return denied
                if account.status // 100 == 5:
                    raise RequestError(status=503)
                raise NotFound
        query = ""
        if request.method == "GET":
            query = listing_query(request, app.cluster.limits.container_listing_limit)
        response = self.listing(request, query)
        recheck = app.options.recheck_container_existence
        response.headers[CONTAINER_RECHECK] = recheck
        if "X-Backend-Cached-Results" not in response.headers:
            remember(request.environ, cache_key(request.account, request.container),
                     container_info_of(response.status, response.headers), recheck)
        denied = app.authorize(request, response.headers.get("X-Container-Read"))
        if denied is not None:
            response.close()
            return denied
        response.headers.pop("X-Put-Timestamp", None)
        if response.is_success:
            response.headers.setdefault("Accept-Ranges", "bytes")
            if request.environ.get(RESELLER) and SHARDING_SYSMETA in response.headers:
                response.headers["X-Container-Sharding"] = str(is_true(response.headers[SHARDING_SYSMETA]))
        app.without_owner_headers(request, response)
        return response

    def listing(self, request: ProxyRequest, query: str) -> Response:
        """GET or HEAD from the container servers, and from the shards when the container has them."""
        app = self.app
        ring, part, path = self._place(request)
        headers = common_headers(request, app.headers["container"].forwarded(request.environ))
        may_shard = request.method == "GET" and headers.get("X-Backend-Record-Type", "").lower() not in ("object", "shard")
        if may_shard:
            dict.update(headers, _AUTO)
            query = f"{query}&states=listing"
        reading = Reading(app, request, Target("container", part, path, headers, query, request.method),
                          app.nodes("container", ring, part), app.options.rebalance_missing_suppression_count)
        response = reading.run(reading.nodes.primary_count if app.options.concurrent_gets else 1, stagger_s(app, None))
        if may_shard and response.is_success and response.headers.get("X-Backend-Record-Type", "").lower() == "shard":
            return list_shards(app, request, response)
        return response

    # -- writing -------------------------------------------------------------------------------------------------------

    def put(self, request: ProxyRequest) -> Response:
        app = self.app
        self._clean_acls(request)
        check_request(app.cluster.limits, "container", request)
        policy_index = self._policy_index(request)
        headers = self._headers(request)
        check_length(app, "container", request.container, request.account)
        account = self._account(request)
        if not account.is_success or not account.really_exists:
            if account.status // 100 == 5:
                raise RequestError(status=503)
            if account.status == 410 or not app.options.account_autocreate:
                raise NotFound
            if not app.accounts.autocreate(request, request.account):
                raise RequestError(status=503)
            account = self._account(request)
        limit = app.options.max_containers_per_account
        if 0 < limit <= account.container_count and request.account not in app.options.max_containers_whitelist:
            if not app.container_info(request).is_success:
                raise Forbidden(f"Reached container limit of {limit}")
        if policy_index is None:
            headers["X-Backend-Storage-Policy-Default"] = str(app.cluster.policies.default.index)
        else:
            headers["X-Backend-Storage-Policy-Index"] = str(policy_index)
        return self._write(request, "PUT", headers, with_account_update=True)

    def post(self, request: ProxyRequest) -> Response:
        app = self.app
        self._clean_acls(request)
        check_request(app.cluster.limits, "container", request)
        headers = self._headers(request)
        self._need_account(request)
        return self._write(request, "POST", headers)

    def delete(self, request: ProxyRequest) -> Response:
        self._need_account(request)
        headers = common_headers(request, self.app.headers["container"].forwarded(request.environ))
        response = self._write(request, "DELETE", headers, with_account_update=True)
        if response.status == 202:  # nothing was there
            return Response(404)
        return response

    def update(self, request: ProxyRequest) -> Response:
        """Rows of objects for every replica of the container; for daemons."""
        if request.header("X-Backend-Storage-Policy-Index") is None:
            raise BadRequest("X-Backend-Storage-Policy-Index header is required")
        if not is_auto_create(request.account):  # those come with their first row
            self._need_account(request)
        headers = common_headers(request, self.app.headers["container"].forwarded(request.environ))
        headers["Content-Type"] = "application/json"
        body = request.read_body(MAX_UPDATE_BODY)
        ring, part, path = self._place(request)
        nodes = self.app.nodes("container", ring, part)
        return outcome(to_quorum(self.app, request, nodes, "UPDATE", part, path, [headers] * nodes.primary_count,
                                 body=body))

    def options(self, request: ProxyRequest) -> Response:
        return cors.preflight(self.app, request, self.verbs, self.allow)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _need_account(self, request: ProxyRequest) -> None:
        account = self._account(request)
        if account.is_success and account.really_exists:
            return
        if account.status // 100 == 5:
            raise RequestError(status=503)
        raise NotFound

    def _clean_acls(self, request: ProxyRequest) -> None:
        """Bring ACL headers into their normal form, in the request itself. Raises BadRequest."""
        environ = request.environ
        clean = environ.get(CLEAN_ACL)
        for name, key in (("x-container-read", "HTTP_X_CONTAINER_READ"), ("x-container-write", "HTTP_X_CONTAINER_WRITE")):
            value = environ.get(key)
            if value:
                try:
                    environ[key] = (clean or clean_acl)(name, value)
                except ValueError as error:
                    raise BadRequest(str(error)) from None

    def _policy_index(self, request: ProxyRequest) -> int | None:
        """The policy that the client names. Raises BadRequest for one that is unknown or deprecated."""
        name = request.header("X-Storage-Policy")
        if not name:
            return None
        policy = self.app.cluster.policies.by_name(name)
        if policy is None:
            raise BadRequest(f'Invalid X-Storage-Policy "{name[:128]}"')
        if policy.is_deprecated:
            raise BadRequest(f'Storage Policy "{policy.name}" is deprecated')
        return policy.index

    def _headers(self, request: ProxyRequest) -> Headers:
        """The headers of a PUT or POST; those that only owners may set are dropped for others."""
        environ = request.environ
        mapping = self.app.headers["container"]
        headers = mapping.forwarded(environ)
        mapping.removals(environ, headers)
        if not request.is_owner:
            for name in self._owner_only:
                dict.pop(headers, name, None)
        if environ.get(RESELLER) and "HTTP_X_CONTAINER_SHARDING" in environ:
            headers[SHARDING_SYSMETA] = str(is_true(environ["HTTP_X_CONTAINER_SHARDING"]))
        return common_headers(request, headers)

    def _write(self, request: ProxyRequest, method: str, headers: Headers, with_account_update: bool = False) -> Response:
        app = self.app
        ring, part, path = self._place(request)
        nodes = app.nodes("container", ring, part, put_size=0 if method == "PUT" else None)
        count = nodes.primary_count
        each = [headers] * count
        if with_account_update:
            each = self._with_account_updates(request, headers, count)
        names, answers = (request.environ, request.account, request.container), list[Answer]()
        begin_change(*names)
        try:
            answers = to_quorum(app, request, nodes, method, part, path, each)
        finally:
            end_change(*names, are_all_good(answers, count))
        return outcome(answers)

    def _with_account_updates(self, request: ProxyRequest, headers: Headers, count: int) -> list[Headers]:
        """One set of headers for each container server, the account servers dealt out among them."""
        app = self.app
        ring = app.rings.account.current()
        part = ring.partition(app.cluster.hash_path.digest(request.account))
        replication = request.uses_replication_network
        found = []
        for share in share_updates(ring.primaries(part), count):
            own = headers.copy()
            if share:
                dict.update(own, {
                    "X-Account-Partition": str(part),
                    "X-Account-Host": ",".join(host_of(node, replication) for node in share),
                    "X-Account-Device": ",".join(node.device for node in share),
                })  # fmt: skip
            found.append(own)
        return found


def host_of(node: Any, use_replication: bool = False) -> str:
    """``ip:port`` as update headers have it."""
    ip, port = node.replication_address if use_replication else node.address
    return f"{ip}:{port}"
