"""keystoneauth: who may do what, with identities that Keystone vouches for (``spec: middleware 14``).

The filter ``authtoken`` (of keystonemiddleware) before this one checks tokens and tells of the user in headers. These headers
are believed only when it has left its mark in the environ as well, which no client can send; else they are taken out
(``security: S32``). An account is a reseller prefix and a project's id; who has an operator role in that project owns it.

``decide`` is the whole rule, and pure. Denials get 401 (nobody known) or 403; the access line says why.

Stands after authtoken (and s3token, for S3), before whatever serves data. authtoken needs ``delay_auth_decision = true`` for
public containers, temporary URLs, forms and S3.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from keelstore.common import acl as acl_rules
from keelstore.common.headers import text_to_wire, wire_to_text
from keelstore.common.http import (
    AUTHORIZE,
    AUTHORIZE_OVERRIDE,
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
from keelstore.common.middleware.tempauth import has_sync_key, unauthorized
from keelstore.common.middleware.url_keys import note
from keelstore.common.options import option, parse

AFTER: Final = ("catch_errors", "gatekeeper", "memcache", "authtoken", "s3token")
BEFORE: Final = (
    "staticweb", "copy", "container_quotas", "account_quotas", "slo", "dlo", "versioned_writes", "symlink", "encryption",
)  # fmt: skip

IDENTITY: Final = "keystone.identity"
S3_DETAILS: Final = "s3api.auth_details"
MARKS: Final = ("keystone.token_info", "keystone.token_auth")  # environ: authtoken has seen to the headers
UNKNOWN: Final = "_unknown"  # as the stored domain of a project: nobody could tell when the account was made
_STORED: Final = "HTTP_X_ACCOUNT_SYSMETA_PROJECT_DOMAIN_ID"
_READS: Final = frozenset({"GET", "HEAD"})
_IDENTITY_PREFIXES: Final = (
    "HTTP_X_IDENTITY_", "HTTP_X_ROLE", "HTTP_X_USER", "HTTP_X_PROJECT_", "HTTP_X_TENANT", "HTTP_X_DOMAIN_",
    "HTTP_X_SERVICE_IDENTITY_", "HTTP_X_SERVICE_ROLE", "HTTP_X_SERVICE_USER_", "HTTP_X_SERVICE_PROJECT_",
    "HTTP_X_SERVICE_DOMAIN_", "HTTP_X_IS_ADMIN_PROJECT", "HTTP_OPENSTACK_SYSTEM_SCOPE",
)  # fmt: skip


@dataclass(frozen=True)
class KeystoneAuthOptions:
    """Options of ``[filter:keystoneauth]``.

    ``operator_roles``, ``service_roles`` and ``project_reader_roles`` may be set for one prefix: ``SERVICE_operator_roles``.
    """

    reseller_prefix: str = option("AUTH", "Prefixes of accounts, the first the usual one.")
    operator_roles: tuple[str, ...] = option(("admin", "swiftoperator"), "Roles that own the account of their project.")
    service_roles: tuple[str, ...] = option((), "Roles of the service token that must go with them; none: no such token.")
    project_reader_roles: tuple[str, ...] = option((), "Roles that may read all of the account of their project.")
    reseller_admin_role: str = option("ResellerAdmin", "Role that owns all accounts.")
    system_reader_roles: tuple[str, ...] = option((), "Roles on the system that may read all accounts.")
    default_domain_id: str = option("default", "Domain whose users and projects may stand by name in ACLs.")
    allow_names_in_acls: bool = option(True, "Let ACLs of that domain hold names besides ids.")
    allow_overrides: bool = option(True, "Leave requests alone that another middleware has authorized.")


@dataclass(frozen=True)
class PrefixRules:
    """What one reseller prefix asks for; role names in lower case."""

    prefix: str
    operator_roles: frozenset[str]
    service_roles: frozenset[str]
    reader_roles: frozenset[str]


@dataclass(frozen=True)
class Rules:
    """Longest prefix first."""

    prefixes: tuple[PrefixRules, ...]
    reseller_admin_role: str = "reselleradmin"
    system_reader_roles: frozenset[str] = frozenset()

    def of_account(self, account: str) -> PrefixRules | None:
        for rules in self.prefixes:
            if account.startswith(rules.prefix):
                return rules
        return None


@dataclass(frozen=True)
class Identity:
    """Who asks, in text; roles in lower case. Domains are None where a token of version 2 says none."""

    user_id: str
    user_name: str
    project_id: str
    project_name: str
    roles: frozenset[str] = frozenset()
    service_roles: frozenset[str] = frozenset()
    user_domain_id: str | None = None
    project_domain_id: str | None = None
    is_system: bool = False


@dataclass(frozen=True)
class Asked:
    """What is asked for. ``groups`` and ``referrers`` are the two kinds of entry of the container's ACL."""

    method: str
    account: str
    container: str
    obj: str
    groups: Collection[str] = ()
    referrers: Collection[str] = ()
    referrer: str | None = None
    has_sync_key: bool = False
    names_count: bool = False  # names, not just ids, may match in the ACL


@dataclass(frozen=True)
class Verdict:
    """``reason`` says in a word why it is denied."""

    is_allowed: bool
    is_owner: bool = False
    is_reseller: bool = False
    reason: str = ""


_ALLOWED: Final = Verdict(True)


def decide(rules: Rules, identity: Identity | None, asked: Asked) -> Verdict:
    """Whether ``identity`` (None: nobody known) may do what is asked, and as whom."""
    if asked.method == "OPTIONS":
        return _ALLOWED
    own = rules.of_account(asked.account)
    if identity is None:
        if own is None:
            return Verdict(False, reason="not-our-account")
        return _ALLOWED if _is_public(asked) else Verdict(False, reason="nobody")
    roles = identity.roles
    if rules.reseller_admin_role in roles:
        return Verdict(True, True, True)
    if asked.method in _READS and identity.is_system and roles & rules.system_reader_roles:
        return _ALLOWED
    if not asked.container and asked.method == "DELETE":
        return Verdict(False, reason="account-delete")
    if own is not None and asked.account != own.prefix + identity.project_id:
        own = None
    reason = "not-in-project" if own is None else "no-operator-role"
    if own is not None and roles & own.operator_roles:
        if not own.service_roles or identity.service_roles & own.service_roles:
            return Verdict(True, True)  # before the ACL, which would let an owner in as it does anybody
        reason = "no-service-role"
    if _is_named(identity, asked) or _is_public(asked):
        return _ALLOWED
    if own is None:
        return Verdict(False, reason=reason)
    if asked.method in _READS and roles & own.reader_roles:
        return _ALLOWED
    if not roles.isdisjoint(group.lower() for group in asked.groups):
        return _ALLOWED
    return Verdict(False, reason=reason)


def _is_public(asked: Asked) -> bool:
    if asked.has_sync_key:
        return True
    return bool((asked.obj or ".rlistings" in asked.groups)
                and acl_rules.referrer_allowed(asked.referrer, asked.referrers))


def _is_named(identity: Identity, asked: Asked) -> bool:
    """Whether the ACL has ``project:user``, each by id, as ``*`` or, where names count, by name."""
    projects, users = {identity.project_id, "*"}, {identity.user_id, "*"}
    if asked.names_count:
        projects.add(identity.project_name)
        users.add(identity.user_name)
    for group in asked.groups:
        project, colon, user = group.partition(":")
        if colon and project in projects and user in users and project and user:
            return True
    return False


class KeystoneAuth:
    def __init__(self, app: WSGIApp, options: KeystoneAuthOptions, rules: Rules):
        self.app, self.options, self.rules = app, options, rules
        self._domains = frozenset({options.default_domain_id, UNKNOWN})

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        if self.options.allow_overrides and environ.get(AUTHORIZE_OVERRIDE):
            if isinstance(known := environ.get(IDENTITY), Identity):  # s3api's, which asked us before
                self._note_domain(environ, known)
            if any(mark in environ for mark in MARKS):
                _drop_empty(environ)
            return self.app(environ, start_response)
        identity = identity_of(environ)
        environ[AUTHORIZE] = partial(self._authorize, identity)
        environ[CLEAN_ACL] = acl_rules.clean_acl
        if identity is not None:
            environ[IDENTITY] = identity
            environ["REMOTE_USER"] = text_to_wire(identity.project_name or identity.project_id or identity.user_id)
            if self.rules.reseller_admin_role in identity.roles:
                environ[RESELLER] = True
        if S3_DETAILS in environ and environ[S3_DETAILS].get("identify_only"):
            return Response(401 if identity is None else 204)(environ, start_response)
        method = environ["REQUEST_METHOD"]
        parts = environ["PATH_INFO"].split("/", 4)
        if len(parts) < 3 or parts[0] or not parts[2] or (len(parts) > 4 and parts[4]):
            return self.app(environ, start_response)
        is_account = len(parts) < 4 or not parts[3]
        if identity is not None and (method == "PUT" or (method == "POST" and is_account)):
            self._keep_domain(environ, identity, wire_to_text(parts[2]), is_account)
        elif is_account and method in _READS:
            return self.app(environ, _showing_domain(start_response))
        return self.app(environ, start_response)

    def _authorize(self, identity: Identity | None, request: Any) -> Response | None:
        """The authorization function of a request, and of all those that are made on its behalf."""
        environ = request.environ
        parts = [*Request(environ).path.split("/", 4), "", "", ""]
        account = parts[2] if not parts[0] else ""
        if not account:
            return self._denied(environ, identity, "path")
        referrers, groups = acl_rules.parse_acl(environ.get(acl_rules.ACL))
        asked = Asked(
            environ["REQUEST_METHOD"], account, parts[3], parts[4], groups, referrers, environ.get("HTTP_REFERER"),
            has_sync_key(environ), bool(groups) and identity is not None and self._names_count(environ, identity, account))
        verdict = decide(self.rules, identity, asked)
        if not verdict.is_allowed:
            return self._denied(environ, identity, verdict.reason)
        if verdict.is_owner:
            environ[OWNER] = True
        return None

    def _denied(self, environ: Environ, identity: Identity | None, reason: str) -> Response:
        note(environ, f"keystone:{reason}")
        return unauthorized(environ) if identity is None else Response(403)

    # -- domains -----------------------------------------------------------------------------------------------------

    def _names_count(self, environ: Environ, identity: Identity, account: str) -> bool:
        """Whether a name in an ACL of this account can mean only one user or project: all are of the default domain."""
        if not self.options.allow_names_in_acls:
            return False
        if any(domain is not None and domain not in self._domains
               for domain in (identity.user_domain_id, identity.project_domain_id)):
            return False
        stored = account_info(environ, self.app, account, source="KA").sysmeta.get("project-domain-id")
        return not stored or wire_to_text(stored) in self._domains

    def _note_domain(self, environ: Environ, identity: Identity) -> None:
        """As for a request of its own, for one that another middleware has authorized for ``identity``."""
        if environ["REQUEST_METHOD"] not in ("PUT", "POST"):
            return
        parts = environ["PATH_INFO"].split("/", 4)
        if len(parts) > 2 and parts[2] and not (len(parts) > 4 and parts[4]):
            is_account = len(parts) < 4 or not parts[3]
            if is_account or environ["REQUEST_METHOD"] == "PUT":
                self._keep_domain(environ, identity, wire_to_text(parts[2]), is_account)

    def _keep_domain(self, environ: Environ, identity: Identity, account: str, is_account: bool) -> None:
        """Have the domain of the account's project stored with the account, when it is made or written to."""
        own = self.rules.of_account(account)
        if own is None:
            return
        info = account_info(environ, self.app, account, source="KA")
        if not is_account and info.is_success and info.really_exists:
            return
        stored = wire_to_text(info.sysmeta.get("project-domain-id") or "")
        found = UNKNOWN
        if account == own.prefix + identity.project_id and identity.project_domain_id:
            found = identity.project_domain_id
        if stored in ("", UNKNOWN) and stored != found:
            environ[_STORED] = text_to_wire(found)


def _showing_domain(start_response: StartResponse) -> Any:
    def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
        for name, value in headers:
            if name == "X-Account-Sysmeta-Project-Domain-Id":
                headers = [*headers, ("X-Account-Project-Domain-Id", value)]
                break
        return start_response(status, headers) if exc_info is None else start_response(status, headers, exc_info)

    return start


def drop_identity(environ: Environ) -> None:
    """Take out every header that tells of an identity: the client has sent it."""
    for key in [key for key in environ if key.startswith(_IDENTITY_PREFIXES)]:
        del environ[key]


def _drop_empty(environ: Environ) -> None:
    """Take out the headers without a value that authtoken leaves where a token says nothing."""
    for key in [key for key, value in environ.items() if value is None and key.startswith("HTTP_")]:
        del environ[key]


def identity_of(environ: Environ) -> Identity | None:
    """Who authtoken says that is asking; None when it does not say, or has not been asked (headers of a client go then)."""
    if not any(mark in environ for mark in MARKS):
        drop_identity(environ)
        return None
    _drop_empty(environ)
    get = environ.get
    if get("HTTP_X_IDENTITY_STATUS") != "Confirmed" or get("HTTP_X_SERVICE_IDENTITY_STATUS") not in (None, "Confirmed"):
        return None

    def text(*names: str) -> str:
        for name in names:
            if get(name):
                return wire_to_text(environ[name])
        return ""

    return Identity(
        text("HTTP_X_USER_ID"), text("HTTP_X_USER_NAME", "HTTP_X_USER"),
        text("HTTP_X_PROJECT_ID", "HTTP_X_TENANT_ID"), text("HTTP_X_PROJECT_NAME", "HTTP_X_TENANT_NAME"),
        _roles(text("HTTP_X_ROLES", "HTTP_X_ROLE")), _roles(text("HTTP_X_SERVICE_ROLES")),
        text("HTTP_X_USER_DOMAIN_ID") or None, text("HTTP_X_PROJECT_DOMAIN_ID") or None,
        text("HTTP_OPENSTACK_SYSTEM_SCOPE").lower() == "all")


def _roles(text: str) -> frozenset[str]:
    return _lower(text.split(","))


def _lower(names: Iterable[str]) -> frozenset[str]:
    return frozenset(name.strip().lower() for name in names if name.strip())


@dataclass(frozen=True)
class _Own:
    """The options that a prefix may have of its own; None: the general one."""

    operator_roles: tuple[str, ...] | None = field(default=None, metadata={"names": ("operator_roles",)})
    service_roles: tuple[str, ...] | None = field(default=None, metadata={"names": ("service_roles",)})
    project_reader_roles: tuple[str, ...] | None = field(default=None, metadata={"names": ("project_reader_roles",)})


def rules_of(options: KeystoneAuthOptions, conf: Mapping[str, str]) -> Rules:
    """The rules of each prefix, from the general options and those of its own."""
    found: dict[str, PrefixRules] = {}
    for item in options.reseller_prefix.split(","):
        name = item.strip().strip("'\"").rstrip("_")
        prefix = f"{name}_" if name else ""
        own = parse(_Own, {key[len(prefix):] if prefix else key: value for key, value in conf.items()
                           if prefix and key.startswith(prefix)})
        found[prefix] = PrefixRules(
            prefix,
            _lower(options.operator_roles if own.operator_roles is None else own.operator_roles),
            _lower(options.service_roles if own.service_roles is None else own.service_roles),
            _lower(options.project_reader_roles if own.project_reader_roles is None else own.project_reader_roles))
    return Rules(tuple(sorted(found.values(), key=lambda rules: -len(rules.prefix))),
                 options.reseller_admin_role.strip().lower(), _lower(options.system_reader_roles))


def filter_factory(global_conf: dict[str, str], **local_conf: str) -> Callable[[WSGIApp], KeystoneAuth]:
    conf = {**global_conf, **local_conf}
    endings = ("_operator_roles", "_service_roles", "_project_reader_roles")
    options = parse(KeystoneAuthOptions, conf, section="filter:keystoneauth", local=local_conf,
                    known=("use", "set *", "log_*", *(name for name in local_conf if name.endswith(endings))))
    rules = rules_of(options, conf)
    return lambda app: KeystoneAuth(app, options, rules)
