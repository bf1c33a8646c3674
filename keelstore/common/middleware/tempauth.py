"""tempauth: users and keys in the configuration, tokens in the shared cache or in themselves.

A client gets a token from ``<auth_prefix>v1.0`` with its user and key. Tokens lie in ``swift.cache``, so every worker of
a node (with memcached, every node) knows them and they outlive a worker; with a Fernet key a token carries its groups
itself, and outlives the cache too. There are no users but those configured, and an empty key never matches.

Groups of a user: ``account``, ``account:user``, those configured; ``.admin`` stands for ownership of the account,
``.reseller_admin`` for that of all, ``.reseller_reader`` for reading all.

A refusal is bare; the access line says which check failed (``tempauth:token-expired``, ``tempauth:needs-write`` ...).

Stands after cache, before whatever serves data. Needs ``swift.cache`` unless a Fernet key is active.
"""

from __future__ import annotations

import hmac
import json
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from keelstore.common import acl as acl_rules
from keelstore.common.cache import CacheError
from keelstore.common.errors import ConfigError
from keelstore.common.headers import text_to_wire, wire_to_text
from keelstore.common.http import (
    AUTHORIZE,
    AUTHORIZE_OVERRIDE,
    CACHE,
    CLEAN_ACL,
    OWNER,
    RESELLER,
    Environ,
    Request,
    Response,
    StartResponse,
    WSGIApp,
)
from keelstore.common.info import account_info
from keelstore.common.logs import logger_for
from keelstore.common.middleware.tempauth_conf import Rules, User, rules_of, users_of
from keelstore.common.middleware.tempauth_tokens import FernetTokens
from keelstore.common.middleware.url_keys import note
from keelstore.common.options import one_of, option, parse, positive
from keelstore.common.registry import register_info
from keelstore.common.stats import NO_STATS, NoStats, stats_for

AFTER: Final = ("catch_errors", "gatekeeper", "memcache")
BEFORE: Final = (
    "staticweb", "copy", "container_quotas", "account_quotas", "slo", "dlo", "versioned_writes", "symlink", "encryption",
)  # fmt: skip

S3_DETAILS: Final = "s3api.auth_details"
_READS: Final = frozenset({"GET", "HEAD"})


@dataclass(frozen=True)
class TempAuthOptions:
    """Options of ``[filter:tempauth]``.

    Besides these: ``user_<account>_<user> = <key> [group] ... [url]`` (``user64_`` with both names in base64 without
    ``=``), ``fernet_key_<id>``, and ``[<prefix>_]require_group``.
    """

    auth_prefix: str = option("/auth/", "Path under which tokens are given.")
    token_life: float = option(86400.0, "Seconds that a token is good for.", check=positive)
    allow_overrides: bool = option(True, "Leave requests alone that another middleware has authorized.")
    storage_url_scheme: str = option("default", "Scheme of storage URLs: default (that of the request), http or https.",
                                     check=one_of("default", "http", "https"))
    active_fernet_key_id: str = option("", "Fernet key that new tokens are made with; empty: they lie in the cache.")
    rules: Rules = field(default_factory=Rules)
    users: Mapping[str, User] = field(default_factory=dict)


class TempAuth:
    def __init__(self, app: WSGIApp, options: TempAuthOptions, logger: logging.Logger, stats: NoStats = NO_STATS,
                 fernet: FernetTokens | None = None, now: Callable[[], float] = time.time):
        self.app, self.options, self.log, self.stats, self._now = app, options, logger, stats, now
        self._fernet = fernet
        self._prefixes = options.rules.prefixes
        self._prefix = self._prefixes[0]  # that of tokens and storage URLs
        self._auth_prefix = f"/{options.auth_prefix.strip('/')}/"
        self._metric = f"tempauth.{self._prefix or 'NONE'}."

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        if self.options.allow_overrides and environ.get(AUTHORIZE_OVERRIDE):
            return self.app(environ, start_response)
        path = environ["PATH_INFO"]
        if path.startswith(self._auth_prefix):
            return self._give_token(Request(environ))(environ, start_response)
        if S3_DETAILS in environ:
            self._check_s3(environ)
            if environ[S3_DETAILS].get("identify_only"):
                return Response(204)(environ, start_response)
            return self.app(environ, start_response)
        token = environ.get("HTTP_X_AUTH_TOKEN") or environ.get("HTTP_X_STORAGE_TOKEN")
        if token and token.startswith(self._prefix):
            groups = self._groups_of(environ, token)
            if groups is None:
                note(environ, f"tempauth:{self._token_problem(environ, token)}")
                if self._prefix:
                    self.stats.increment(self._metric + "unauthorized")
                    return unauthorized(environ)(environ, start_response)
                self.stats.increment(self._metric + "token_denied")
                environ.setdefault(AUTHORIZE, self.denied)
            else:
                service_token = environ.get("HTTP_X_SERVICE_TOKEN")
                if service_token:
                    added = self._groups_of(environ, service_token)
                    if added:
                        groups = f"{groups},{added}"
                self._identify(environ, groups)
        elif self._prefix:
            segments = path.split("/", 3)
            if len(segments) > 2 and self._prefix_of(wire_to_text(segments[2])) is not None:
                self._decide(environ)
            elif AUTHORIZE not in environ:
                environ[AUTHORIZE] = self.denied
        elif AUTHORIZE not in environ:
            self._decide(environ)
        return self.app(environ, start_response)

    def _identify(self, environ: Environ, groups: str) -> None:
        environ["REMOTE_USER"] = text_to_wire(groups)
        self._decide(environ)
        if ".reseller_admin" in groups.split(","):
            environ[RESELLER] = True

    def _decide(self, environ: Environ) -> None:
        environ[AUTHORIZE] = self.authorize
        environ[CLEAN_ACL] = acl_rules.clean_acl

    # -- tokens ------------------------------------------------------------------------------------------------------

    def _groups_of(self, environ: Environ, token: str) -> str | None:
        """The groups of a token, or None when it is not (or no longer) good."""
        fernet = self._fernet
        if fernet is not None:
            groups = fernet.groups_of(token, self._prefix)
            if groups is not None:
                return groups
        found = self._cached_token(environ.get(CACHE), token)
        return found[1] if found else None

    def _token_problem(self, environ: Environ, token: str) -> str:
        """Which check a token failed, in a word for the log."""
        found = environ[CACHE].get(f"{self._prefix}/token/{token}") if environ.get(CACHE) is not None else None
        if found is not None:
            return "token-expired"
        return (self._fernet.problem_of(token, self._prefix) if self._fernet else None) or "token-unknown"

    def _cached_token(self, cache: Any, token: str) -> tuple[float, str] | None:
        """Expiry and groups of a token that lies in the cache and is still good."""
        if cache is None:
            return None
        found = cache.get(f"{self._prefix}/token/{token}")
        if not isinstance(found, list | tuple) or len(found) != 2:
            return None
        expires, groups = found
        if not isinstance(expires, int | float) or not isinstance(groups, str) or expires < self._now():
            return None
        return expires, groups

    def _give_token(self, request: Request) -> Response:
        if request.method != "GET":
            return Response(405, {"Allow": "GET"})
        account, name, key, problem = self._credentials(request)
        if problem is not None:
            return problem
        full_name = f"{account}:{name}"
        user = self.options.users.get(full_name)
        matches = hmac.compare_digest((user.key if user else secrets.token_hex()).encode("utf-8", "surrogateescape"),
                                      key.encode("utf-8", "surrogateescape"))
        if user is None or not user.key or not matches:
            note(request.environ, "tempauth:unknown-user" if user is None else "tempauth:wrong-key")
            self.stats.increment(self._metric + "token_denied")
            return unauthorized(request.environ, account)
        groups = self.options.rules.groups_of(user)
        try:
            token, expires = self._token_for(request.environ.get(CACHE), full_name, groups)
        except CacheError as error:
            self.log.error("No token could be given: %s", error)
            self.stats.increment(self._metric + "errors")
            return Response(503)
        headers = {
            "X-Auth-Token": token,
            "X-Storage-Token": token,
            "X-Auth-Token-Expires": str(max(int(expires - self._now()), 0)),
            "X-Storage-Url": self._url_of(request, user),
        }
        return Response(200, headers, body=b"")

    def _credentials(self, request: Request) -> tuple[str, str, str, Response | None]:
        """Account, user and key of a request for a token; or what is to be answered instead."""
        parts = request.path[len(self._auth_prefix):].split("/")
        header = request.header
        if parts == [""]:
            return "", "", "", Response(404)
        if parts[0] == "v1" and len(parts) >= 3 and parts[2] == "auth" and parts[1]:
            account = parts[1]
            name = header("X-Storage-User")
            if name is None:
                named, _, name = wire_to_text(header("X-Auth-User") or "").partition(":")
                if named != account:
                    return "", "", "", self._denied_token(request, account, "user-mismatch")
            else:
                name = wire_to_text(name)
            key = header("X-Storage-Pass") or header("X-Auth-Key")
        elif parts[0] in ("auth", "v1.0"):
            account, colon, name = wire_to_text(header("X-Auth-User") or header("X-Storage-User") or "").partition(":")
            if not colon:
                return "", "", "", self._denied_token(request, "")
            key = header("X-Auth-Key") or header("X-Storage-Pass")
        else:
            return "", "", "", Response(400)
        if not account or not name or not key:
            return "", "", "", self._denied_token(request, account)
        return account, name, wire_to_text(key), None

    def _denied_token(self, request: Request, account: str, check: str = "no-credentials") -> Response:
        note(request.environ, f"tempauth:{check}")
        self.stats.increment(self._metric + "token_denied")
        return unauthorized(request.environ, account or "unknown")

    def _token_for(self, cache: Any, full_name: str, groups: str) -> tuple[str, float]:
        """A token and when it expires: that which the user has already, else a new one. Raises CacheError."""
        user_key = f"{self._prefix}/user/{full_name}"
        if cache is not None:
            known = cache.get(user_key)
            if isinstance(known, str):
                found = self._cached_token(cache, known)
                if found and sorted(found[1].split(",")) == sorted(groups.split(",")):
                    return known, found[0]
        now, life = self._now(), self.options.token_life
        if self._fernet is not None and self._fernet.is_active:
            return self._fernet.make(groups, self._prefix), now + life
        if cache is None:
            raise CacheError("there is neither a cache nor an active Fernet key")
        token = f"{self._prefix}tk{secrets.token_hex(16)}"
        cache.set(f"{self._prefix}/token/{token}", [now + life, groups], time=life, raise_on_error=True)
        cache.set(user_key, token, time=life, raise_on_error=True)
        return token, now + life

    def _url_of(self, request: Request, user: User) -> str:
        url = text_to_wire(self.options.rules.url_of(user))
        if not url.startswith("$HOST"):
            return url
        host = request.host_url
        if self.options.storage_url_scheme != "default":
            host = f"{self.options.storage_url_scheme}://{host.partition('://')[2]}"
        return host + url.removeprefix("$HOST")

    def _check_s3(self, environ: Environ) -> None:
        """A request signed with a user's key: ``access_key`` is ``account:user``, ``check_signature`` tells of a key."""
        details = environ[S3_DETAILS]
        name = details["access_key"]
        user = self.options.users.get(name)
        if user is None or not user.key or not details["check_signature"](user.key):
            details["unknown_key"] = user is None
            environ[AUTHORIZE] = self.denied
            return
        account = self.options.rules.url_of(user).rpartition("/")[2]
        segments = environ["PATH_INFO"].split("/", 3)
        if len(segments) > 2 and segments[2] == text_to_wire(name):
            segments[2] = text_to_wire(account)
            environ["PATH_INFO"] = "/".join(segments)
        self._identify(environ, f"{self.options.rules.groups_of(user)},{account}" if ".admin" in user.groups
                       else self.options.rules.groups_of(user))

    # -- authorization -----------------------------------------------------------------------------------------------

    def _prefix_of(self, account: str) -> str | None:
        """The longest of our prefixes that an account starts with, '' last; None when it is not ours."""
        for prefix in self.options.rules.longest_first:
            if account.startswith(prefix):
                return prefix
        return None

    def authorize(self, request: Any) -> Response | None:
        """None when the request may go on, else the answer. ``environ[acl.ACL]`` is the container's ACL, once known."""
        environ = request.environ
        segments = Request(environ).path.split("/", 4)
        account = segments[2] if len(segments) > 2 and segments[0] == "" else ""
        if not account:
            return self.denied(request)
        container = segments[3] if len(segments) > 3 else ""
        obj = segments[4] if len(segments) > 4 else ""
        prefix = self._prefix_of(account)
        if prefix is None:
            return self.denied(request)
        method = environ["REQUEST_METHOD"]
        if not container and method in ("PUT", "POST"):
            problem = _account_acl_problem(environ.get("HTTP_X_ACCOUNT_ACCESS_CONTROL"))
            if problem is not None:
                return problem
        user = environ.get("REMOTE_USER")
        groups = wire_to_text(user).split(",") if user else ()
        if ".reseller_admin" in groups and account != prefix and not account.startswith(prefix + "."):
            environ[OWNER] = True
            return None
        if ".reseller_reader" in groups and method in _READS and account != prefix:
            return None
        if account in groups and (container or method not in ("PUT", "DELETE")):
            required = self.options.rules.require_group.get(prefix)
            if not required or required in groups:
                environ[OWNER] = True
                return None
        if has_sync_key(environ):
            return None
        if method == "OPTIONS":
            return None
        rules, allowed = acl_rules.parse_acl(environ.get(acl_rules.ACL))
        if rules and (obj or ".rlistings" in allowed) and acl_rules.referrer_allowed(environ.get("HTTP_REFERER"), rules):
            return None
        for group in groups:
            if group in allowed:
                return None
        if groups and (container or method not in ("PUT", "DELETE")):
            level = self._account_level(environ, account, groups)
            if level == "admin":
                environ[OWNER] = True
                return None
            if level == "read-write" and (container or method in _READS):
                return None
            if level == "read-only" and method in _READS:
                return None
        return self.denied(request)

    def _account_level(self, environ: Environ, account: str, groups: Iterable[str]) -> str | None:
        """The most that the account's own ACL grants one of the groups."""
        sysmeta = account_info(environ, self.app, account, source="TA").sysmeta
        text = sysmeta.get("core-access-control") if sysmeta else None
        if not text:
            return None
        try:
            found = acl_rules.parse_account_acl(wire_to_text(text))
        except ValueError:
            return None
        for level in acl_rules.ACCOUNT_ACL_LEVELS:
            if not set(groups).isdisjoint(found.get(level, ())):
                return level
        return None

    def denied(self, request: Any) -> Response:
        """403 for who is known, 401 for who is not."""
        note(request.environ, f"tempauth:{self._missing(request.environ)}")
        if request.environ.get("REMOTE_USER"):
            self.stats.increment(self._metric + "forbidden")
            return Response(403)
        self.stats.increment(self._metric + "unauthorized")
        return unauthorized(request.environ)


    def _missing(self, environ: Environ) -> str:
        """What would have let the request pass, in a word for the log."""
        segments = environ["PATH_INFO"].split("/", 4)
        if len(segments) < 3 or self._prefix_of(wire_to_text(segments[2])) is None:
            return "not-ours"
        if not environ.get("REMOTE_USER"):
            return "token-foreign" if environ.get("HTTP_X_AUTH_TOKEN") or environ.get("HTTP_X_STORAGE_TOKEN") else "no-token"
        is_read = environ["REQUEST_METHOD"] in _READS
        if len(segments) > 4 and segments[4]:
            return "needs-read" if is_read else "needs-write"
        return "needs-listing" if is_read and len(segments) > 3 and segments[3] else "needs-owner"


def has_sync_key(environ: Environ) -> bool:
    """Whether the request carries the container's own synchronization key (the old style of container sync)."""
    key, given = environ.get("swift_sync_key"), environ.get("HTTP_X_CONTAINER_SYNC_KEY")
    if not key or not given or not ("HTTP_X_TIMESTAMP" in environ or "HTTP_X_BACKEND_INBOUND_X_TIMESTAMP" in environ):
        return False
    return hmac.compare_digest(key.encode("utf-8", "surrogateescape"), given.encode("utf-8", "surrogateescape"))


def _account_acl_problem(value: str | None) -> Response | None:
    if not value:
        return None
    text = wire_to_text(value)
    try:
        acl_rules.parse_account_acl(text)
    except ValueError as error:
        shown = json.dumps(text[:1024])[1:-1].replace('\\"', '"')
        return Response(400, body=f"X-Account-Access-Control invalid: {error}\n\nInput: {shown}\n",
                        content_type="text/plain; charset=UTF-8")
    return None


def unauthorized(environ: Environ, account: str | None = None) -> Response:
    """401 with the realm quoted, so that nothing of the path can end the header or the string."""
    if account is None:
        segments = Request(environ).path.split("/", 3)
        account = segments[2] if len(segments) > 2 and segments[2] not in ("v1.0", "auth") else ""
    realm = quote(account.encode("utf-8", "surrogateescape"), safe="") or "unknown"
    return Response(401, {"Www-Authenticate": f'Swift realm="{realm}"'})


def filter_factory(global_conf: dict[str, str], **local_conf: str) -> Callable[[WSGIApp], TempAuth]:
    conf = {**global_conf, **local_conf}
    rules = rules_of(conf)
    known = ("use", "set *", "log_*", "user_*", "user64_*", "fernet_key_*", "reseller_prefix",
             *(name for name in local_conf if name.endswith("require_group")))
    parsed = parse(TempAuthOptions, {key: value for key, value in conf.items() if key not in ("rules", "users")},
                   section="filter:tempauth", local=local_conf, known=known)
    options = TempAuthOptions(
        auth_prefix=parsed.auth_prefix or "/auth/",
        token_life=parsed.token_life,
        allow_overrides=parsed.allow_overrides,
        storage_url_scheme=parsed.storage_url_scheme,
        active_fernet_key_id=parsed.active_fernet_key_id,
        rules=rules,
        users=users_of(conf),
    )
    fernet = None
    keys = {name.removeprefix("fernet_key_"): key for name, key in conf.items() if name.startswith("fernet_key_")}
    if keys or options.active_fernet_key_id:
        fernet = FernetTokens(keys, options.active_fernet_key_id, options.token_life)
    if not options.auth_prefix.strip("/"):
        raise ConfigError("expected a path of at least one segment", section="filter:tempauth", option="auth_prefix",
                          value=options.auth_prefix)
    register_info("tempauth", account_acls=True)
    logger, stats = logger_for(conf, "tempauth"), stats_for(conf, "proxy-server")
    return lambda app: TempAuth(app, options, logger, stats, fernet)
