"""s3token: who signed an S3 request, when the keys are EC2 credentials of Keystone (``spec: s3-api 2.2, 5.2``).

s3api to the left asks with ``s3api.auth_details`` in the environ. Keystone is told what was signed and the signature, and
says whose they are. With an account of ours that may read credentials, the secret is fetched too and kept in the shared cache
for a while (``s3secret/<access key>``, as Swift keeps it): requests that it proves do not ask Keystone at all, and bodies
signed chunk by chunk can be proven, which they cannot without it.

Rules: a service token goes with every question (``security: S30``; Keystone wants it since CVE-2025-65073). Nothing that
Keystone says reaches the client. No header of the client's tells of an identity (S32). An access key may end in
``:PROJECT``: then the request is for that project's account, if keystoneauth lets the user in.

Stands between s3api and keystoneauth; passes whatever s3api did not sign.
"""

from __future__ import annotations

import logging
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from keelstore.common.errors import ConfigError
from keelstore.common.headers import environ_key, text_to_wire
from keelstore.common.http import CACHE, Environ, Response, StartResponse, WSGIApp
from keelstore.common.logs import logger_for
from keelstore.common.middleware.keystoneauth import drop_identity
from keelstore.common.middleware.url_keys import note
from keelstore.common.options import not_negative, option, parse

AFTER: Final = ("catch_errors", "gatekeeper", "memcache", "authtoken", "s3api")
BEFORE: Final = ("keystoneauth",)

S3_DETAILS: Final = "s3api.auth_details"
TOKEN_INFO: Final = "keystone.token_info"
_CACHED: Final = "s3secret/"


def _seconds(value: float) -> str | None:
    return None if 0 < value <= 60 else "a number above 0, 60 at most"


@dataclass(frozen=True)
class S3TokenOptions:
    """Options of ``[filter:s3token]``.

    The account that asks Keystone is given as for authtoken: ``auth_url``, ``username``, ``password``, ``user_domain_name``,
    ``project_name``, ``project_domain_name`` and so on, after ``auth_type``.
    """

    auth_uri: str = option("", "Identity API with its version, such as http://keystone:5000/v3; must be set.")
    reseller_prefix: str = option("AUTH", "Prefix of accounts.")
    delay_auth_decision: bool = option(False, "Let a request that Keystone does not know pass, for filters to the right.")
    http_timeout: float = option(10.0, "Seconds that Keystone may take to answer.", check=_seconds)
    insecure: bool = option(False, "Do not verify Keystone's certificate.")
    cafile: str = option("", "Certificates to verify it with; empty: those of the system.")
    certfile: str = option("", "Certificate to show to Keystone.")
    keyfile: str = option("", "Its key.")
    secret_cache_duration: int = option(
        60, "Seconds that a secret, and with it the roles of its user, is used without asking; 0: never kept.",
        check=not_negative)
    auth_type: str = option("password", "How the account that asks Keystone is authenticated; a plugin of keystoneauth.")


@dataclass(frozen=True)
class Owner:
    """Whose an access key is: the headers that say so, and the project. What the cache holds, beside the secret."""

    headers: Mapping[str, str]
    project: Mapping[str, Any]


class BadAnswer(ValueError):
    """Keystone answered what is no token."""


class KeystoneUnavailable(Exception):
    """Keystone could not be asked, or had no answer."""


class UnknownKey(Exception):
    """Keystone has no such access key."""


class WrongSignature(Exception):
    """Keystone says that the signature is not that of the key, or the key's owner may not come in."""


class Keystone(Protocol):
    """The two questions."""

    def token_for(self, access: str, string_to_sign: bytes, signature: str) -> Any:
        """The body of the token. Raises UnknownKey, WrongSignature, KeystoneUnavailable."""

    def secret_of(self, user_id: str, access: str) -> str | None:
        """The secret of an access key, or None when it cannot be had."""

    @property
    def can_read_secrets(self) -> bool: ...


def owner_of(body: Any) -> Owner:
    """Who a token is for, as version 3 or 2 of the API says it. Raises BadAnswer."""
    try:
        if "token" in body:
            token = body["token"]
            user, project, roles = token["user"], token["project"], token.get("roles", ())
            domains = {
                "X-User-Domain-Id": user["domain"]["id"],
                "X-User-Domain-Name": user["domain"].get("name"),
                "X-Project-Domain-Id": project["domain"]["id"],
                "X-Project-Domain-Name": project["domain"].get("name"),
            }
        else:
            access = body["access"]
            user, project, roles = access["user"], access["token"]["tenant"], access["user"].get("roles", ())
            domains = {}
        found = {
            "X-Identity-Status": "Confirmed",
            "X-Roles": ",".join(role["name"] for role in roles),
            "X-User-Id": user["id"],
            "X-User-Name": user["name"],
            "X-Project-Id": project["id"],
            "X-Project-Name": project["name"],
            "X-Tenant-Id": project["id"],
            "X-Tenant-Name": project["name"],
            **domains,
        }
    except (KeyError, TypeError) as error:
        raise BadAnswer(f"{type(error).__name__}: {error}") from None
    if not all(isinstance(value, str) for value in found.values() if value is not None) or not project["id"]:
        raise BadAnswer("its names are not text")
    headers = {name: value for name, value in found.items() if value is not None}
    return Owner(headers, {"id": project["id"], "name": project["name"]})


class S3Token:
    def __init__(self, app: WSGIApp, options: S3TokenOptions, keystone: Keystone, logger: logging.Logger):
        self.app, self.options, self._keystone, self.log = app, options, keystone, logger
        prefix = options.reseller_prefix.strip().rstrip("_")
        self._prefix = f"{prefix}_" if prefix else ""
        self._keeps = options.secret_cache_duration if keystone.can_read_secrets else 0

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        details = environ.get(S3_DETAILS)
        if details is None:
            return self.app(environ, start_response)
        if TOKEN_INFO not in environ:
            drop_identity(environ)
        segments = environ["PATH_INFO"].split("/", 3)
        access, _, project = details["access_key"].partition(":")
        if len(segments) < 3 or segments[2] != text_to_wire(details["access_key"]) or not access:
            return self._refused(environ, start_response, "path", 401)
        try:
            owner = self._owner(environ, details, access)
        except KeystoneUnavailable as error:
            self.log.error("Keystone could not be asked about an S3 request: %s", error)
            return self._refused(environ, start_response, "unavailable", 503)
        except UnknownKey:
            details["unknown_key"] = True
            return self._refused(environ, start_response, "unknown-key", 401)
        except WrongSignature:
            return self._refused(environ, start_response, "signature", 401)
        for name, value in owner.headers.items():
            environ[environ_key(name)] = text_to_wire(value)
        environ[TOKEN_INFO] = {}  # keystoneauth believes the headers then
        segments[2] = self._prefix + text_to_wire(project or owner.project["id"])
        environ["PATH_INFO"] = "/".join(segments)
        return self.app(environ, start_response)

    def _refused(self, environ: Environ, start_response: StartResponse, reason: str, status: int) -> Iterable[bytes]:
        note(environ, f"s3token:{reason}")
        if self.options.delay_auth_decision and status == 401:
            return self.app(environ, start_response)
        return Response(status)(environ, start_response)

    def _owner(self, environ: Environ, details: Mapping[str, Any], access: str) -> Owner:
        cache, key = environ.get(CACHE), _CACHED + access
        check: Callable[[str], bool] = details["check_signature"]
        if self._keeps and cache is not None:
            kept = _kept(cache.get(key))
            if kept is not None and check(kept[1]):
                return kept[0]  # else it may have changed
        body = self._keystone.token_for(access, details["string_to_sign"], details["signature"])
        try:
            owner = owner_of(body)
        except BadAnswer as error:
            raise KeystoneUnavailable(f"its answer is no token: {error}") from None
        if self._keeps:
            secret = self._keystone.secret_of(owner.headers["X-User-Id"], access)
            if secret is not None and check(secret) and cache is not None:
                cache.set(key, [dict(owner.headers), dict(owner.project), secret], time=self._keeps)
        return owner


def _kept(value: Any) -> tuple[Owner, str] | None:
    """What the cache has, when it is what we or Swift put there."""
    if not isinstance(value, list | tuple) or len(value) != 3:
        return None
    headers, project, secret = value
    if not isinstance(headers, dict) or not isinstance(project, dict) or not isinstance(secret, str):
        return None
    if not project.get("id") or not all(isinstance(text, str) for text in headers.values()):
        return None
    return Owner(headers, project), secret


def encoded(string_to_sign: bytes) -> str:
    """What was signed, as Keystone takes it."""
    return urlsafe_b64encode(string_to_sign).decode()


def check_uri(text: str) -> str:
    """The base of Keystone's API without a slash at its end. Raises ConfigError."""
    def wrong(expected: str) -> ConfigError:
        return ConfigError(f"expected {expected}", section="filter:s3token", option="auth_uri", value=text)

    try:
        parts = urlsplit(text)
        port_is_good = parts.port is None or parts.port > 0
    except ValueError:
        raise wrong("a URL such as http://keystone:5000/v3") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_is_good:
        raise wrong("a URL such as http://keystone:5000/v3")
    if "?" in text or "#" in text or "@" in parts.netloc:
        raise wrong("a URL without a query, a fragment and a user")
    return text.rstrip("/")


def filter_factory(global_conf: dict[str, str], **local_conf: str) -> Callable[[WSGIApp], S3Token]:
    from keelstore.common.middleware.s3token_client import KeystoneClient  # which needs the extra 'keystone'

    conf = {**global_conf, **local_conf}
    options = parse(S3TokenOptions, conf, section="filter:s3token", local=local_conf,
                    known=("use", "set *", "log_*", "auth_*", "user*", "password", "project_*", "domain_*", "system_scope",
                           "trust_id", "region_name", "application_credential_*", "tenant_*", "auth_section"))
    uri = check_uri(options.auth_uri)
    logger = logger_for(conf, "s3token")
    keystone = KeystoneClient(uri, options, conf, logger)
    return lambda app: S3Token(app, options, keystone, logger)
