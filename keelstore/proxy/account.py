"""Account verbs (``spec: client-api 3, proxy 7``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keelstore.common.acl import ACCOUNT_ACL_SYSMETA, format_account_acl, parse_account_acl
from keelstore.common.errors import BadRequest
from keelstore.common.headers import Headers, text_to_wire, wire_to_text
from keelstore.common.http import Response, encode_query
from keelstore.common.info import ACCOUNT_RECHECK, account_info_of, begin_change, cache_key, end_change, remember
from keelstore.common.limits import check_name_length, check_request, listing_limit
from keelstore.common.timestamp import Timestamp
from keelstore.proxy.fanout import Answer, are_all_good, outcome, to_quorum
from keelstore.proxy.reader import Reading, Target
from keelstore.proxy.request import ProxyRequest, Verb, allow_header, common_headers

if TYPE_CHECKING:
    from keelstore.proxy.app import ProxyApp

ACCOUNT_ACL = "X-Account-Access-Control"
HTML = "text/html; charset=UTF-8"


class AccountController:
    def __init__(self, app: ProxyApp):
        self.app = app
        self.verbs = {
            "GET": Verb(self.read), "HEAD": Verb(self.read), "POST": Verb(self.post), "OPTIONS": Verb(self.options),
            "DELETE": Verb(self.delete),  # where it is not allowed, a query string is complained of first
        }  # fmt: skip
        if app.options.allow_account_management:
            self.verbs["PUT"] = Verb(self.put)
            self.allow = allow_header(self.verbs)
        else:
            self.allow = allow_header({name: verb for name, verb in self.verbs.items() if name != "DELETE"})

    # -- reading -------------------------------------------------------------------------------------------------------

    def read(self, request: ProxyRequest) -> Response:
        app = self.app
        account = request.account
        check_length(app, "account", account)
        query = listing_query(request, app.cluster.limits.account_listing_limit) if request.method == "GET" else ""
        ring = app.rings.account.current()
        part = ring.partition(app.cluster.hash_path.digest(account))
        headers = common_headers(request, app.headers["account"].forwarded(request.environ))
        reading = Reading(app, request, Target("account", part, f"/{account}", headers, query, request.method),
                          app.nodes("account", ring, part), app.options.rebalance_missing_suppression_count)
        own = app.options
        response = reading.run(reading.nodes.primary_count if own.concurrent_gets else 1, stagger_s(app, None))
        if response.status == 404:
            if response.headers.get("X-Account-Status", "").lower() == "deleted":
                response.status, response.body = 410, None
                response.headers.pop("Content-Type", None)
            elif own.account_autocreate:
                response = faked_listing(request)
        response.headers[ACCOUNT_RECHECK] = own.recheck_account_existence
        remember(request.environ, cache_key(account),
                 account_info_of(response.status, response.headers, self._policy_index), own.recheck_account_existence)
        response.headers.pop("X-Put-Timestamp", None)
        if response.is_success:
            response.headers.setdefault("Accept-Ranges", "bytes")
            show_account_acl(request, response.headers)
            app.without_owner_headers(request, response)
        return response

    def _policy_index(self, name: str) -> int | None:
        policy = self.app.cluster.policies.by_name(name)
        return None if policy is None else policy.index

    # -- writing -------------------------------------------------------------------------------------------------------

    def put(self, request: ProxyRequest) -> Response:
        headers = self._headers(request)
        check_length(self.app, "account", request.account)
        return self._write(request, "PUT", headers)

    def post(self, request: ProxyRequest) -> Response:
        app = self.app
        check_length(app, "account", request.account)
        headers = self._headers(request)
        response = self._write(request, "POST", headers)
        if response.status == 404 and app.options.account_autocreate:
            if response.headers.get("X-Account-Status", "").lower() == "deleted":
                return response
            self.autocreate(request, request.account)
            response = self._write(request, "POST", headers)
        return response

    def delete(self, request: ProxyRequest) -> Response:
        if request.environ.get("QUERY_STRING"):
            # An extract-archive or bulk-delete that no middleware took: deleting the account is not what was meant.
            return Response(400, body="DELETE of an account takes no query string", content_type="text/plain")
        if not self.app.options.allow_account_management:
            return Response(405, {"Allow": self.allow}, content_type=HTML)
        headers = common_headers(request, self.app.headers["account"].forwarded(request.environ))
        return self._write(request, "DELETE", headers)

    def _headers(self, request: ProxyRequest) -> Headers:
        """The headers of a PUT or POST. Raises BadRequest for metadata beyond the limits."""
        environ = request.environ
        mapping = self.app.headers["account"]
        check_request(self.app.cluster.limits, "account", request)
        headers = mapping.forwarded(environ)
        mapping.removals(environ, headers)
        acl = environ.get("HTTP_X_ACCOUNT_ACCESS_CONTROL")
        if acl is not None and request.is_owner:
            try:
                headers[ACCOUNT_ACL_SYSMETA] = format_account_acl(parse_account_acl(wire_to_text(acl)))
            except ValueError as error:
                raise BadRequest(f"X-Account-Access-Control: {error}") from None
        return common_headers(request, headers)

    def _write(self, request: ProxyRequest, method: str, headers: Headers) -> Response:
        return outcome(self._send(request, request.account, method, headers))

    def _send(self, request: ProxyRequest, account: str, method: str, headers: Headers) -> list[Answer]:
        app = self.app
        ring = app.rings.account.current()
        part = ring.partition(app.cluster.hash_path.digest(account))
        nodes = app.nodes("account", ring, part, put_size=0 if method == "PUT" else None)
        answers, count = list[Answer](), nodes.primary_count
        begin_change(request.environ, account)
        try:
            answers = to_quorum(app, request, nodes, method, part, f"/{account}", [headers] * count)
        finally:
            end_change(request.environ, account, "", are_all_good(answers, count))
        return answers

    def autocreate(self, request: ProxyRequest, account: str) -> bool:
        """Create the account that a request needs; whether it is there now. Raises BadRequest for a name too long."""
        check_length(self.app, "account", account)
        headers = Headers()
        for name, value in request.header_items():
            if name.startswith("X-Account-Sysmeta-"):
                headers[name] = value
        common_headers(request, headers)
        headers["X-Timestamp"] = Timestamp(self.app.clock()).internal
        headers["X-Openstack-Request-Id"] = request.trans_id or "-"
        response = outcome(self._send(request, account, "PUT", headers))
        if response.is_success:
            self.app.logger.info("autocreate account %r (txn: %s)", account, request.trans_id)
            return True
        self.app.logger.warning("could not autocreate account %r: %d (txn: %s)", account, response.status,
                                request.trans_id)
        return False

    def options(self, request: ProxyRequest) -> Response:
        return Response(200, {"Allow": self.allow}, body=b"", content_type=HTML)


# -- shared with containers --------------------------------------------------------------------------------------------


def stagger_s(app: ProxyApp, timeout: float | None) -> float:
    own = app.options.concurrency_timeout if timeout is None else timeout
    return app.options.conn_timeout if own is None else own


def check_length(app: ProxyApp, level: str, name: str, account: str = "") -> None:
    """Raises BadRequest for a name that is too long; as a page, unlike other complaints."""
    try:
        check_name_length(app.cluster.limits, level, name, account)
    except BadRequest as error:
        raise BadRequest(error.reason, headers={"Content-Type": HTML}) from None


def listing_query(request: ProxyRequest, maximum: int) -> str:
    """The query of a listing for a backend: the client's parameters, JSON forced.

    Raises BadRequest for one that is not UTF-8, PreconditionFailed (412) for a limit beyond ``maximum``.
    """
    params = request.params
    if params:
        for value in params.values():
            if not value.isascii():
                try:
                    value.encode("utf-8")
                except UnicodeEncodeError:
                    raise BadRequest("parameters not utf8") from None
        listing_limit(params.get("limit"), maximum)
    return encode_query({**params, "format": "json"})


def faked_listing(request: ProxyRequest) -> Response:
    """The empty account that autocreate would make."""
    now = request.timestamp.normal
    headers = {
        "X-Account-Container-Count": "0",
        "X-Account-Object-Count": "0",
        "X-Account-Bytes-Used": "0",
        "X-Timestamp": now,
        "X-Backend-Fake-Account-Listing": "yes",
        "Content-Type": "application/json; charset=utf-8",
    }
    # Swift fakes a HEAD as 200; a client that asks for an account twice should not see it change from 200 to 204
    return Response(204 if request.method == "HEAD" else 200, headers, body=b"" if request.method == "HEAD" else b"[]")


def show_account_acl(request: ProxyRequest, headers: Headers) -> None:
    """Turn the stored account ACL into the header that owners see."""
    stored = headers.get(ACCOUNT_ACL_SYSMETA)
    if not stored:
        return
    try:
        acl = parse_account_acl(wire_to_text(stored))
    except ValueError:
        return
    if acl:
        headers[ACCOUNT_ACL] = text_to_wire(format_account_acl(acl))
