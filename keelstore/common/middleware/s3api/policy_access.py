"""What a bucket's policy says of the request at hand: puts the question to ``bucket_policy``."""

from __future__ import annotations

import calendar
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Final
from urllib.parse import parse_qsl, unquote

from keelstore.common.headers import Headers, wire_to_text
from keelstore.common.info import ContainerInfo
from keelstore.common.middleware.s3api import acl, documents, tags
from keelstore.common.middleware.s3api.bucket_policy import (
    ALLOW,
    DENY,
    EXISTING_TAG,
    NONE,
    REQUEST_TAG,
    Asked,
    Policy,
    read,
)
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.history import real_version
from keelstore.common.middleware.s3api.public_access import public_access_of
from keelstore.common.middleware.s3api.request import S3Request

NAME: Final = "policy"
KEPT: Final = "s3api-policy"
_OBJECT_TAGS: Final = "X-Object-Transient-Sysmeta-S3api-Tags"
# The owner can always mend a policy that locks him out.
_OF_OWNER: Final = frozenset(("s3:GetBucketPolicy", "s3:PutBucketPolicy", "s3:DeleteBucketPolicy"))
_OF_VERSION: Final = {
    f"s3:{verb}Object{what}": f"s3:{verb}ObjectVersion{what}"
    for verb, what in (
        ("Get", ""), ("Delete", ""), ("Get", "Acl"), ("Put", "Acl"), ("Get", "Tagging"), ("Put", "Tagging"),
        ("Delete", "Tagging"), ("Get", "Attributes"),
    )
}  # fmt: skip
_BY_HEADER, _BY_QUERY = "REST-HEADER", "REST-QUERY-STRING"
_AUTH_TYPES: Final = {"v4": _BY_HEADER, "v2": _BY_HEADER, "v4-query": _BY_QUERY, "v2-query": _BY_QUERY}


@lru_cache(256)
def _policy(data: bytes) -> Policy:
    return read(data)


def policy_of(
    request: S3Request, info: ContainerInfo, bucket: str | None = None, account: str | None = None
) -> Policy | None:
    """The policy of a bucket; None when there is none. Raises S3Error."""
    if KEPT not in info.sysmeta:
        return None
    data = documents.load(request, NAME, info, bucket, account)
    return None if data is None else _policy(data)


def verdict(
    request: S3Request, action: str, info: ContainerInfo, bucket: str, key: str | None, headers: Headers | None
) -> str:
    """As ``access.policy_verdict``."""
    if KEPT not in info.sysmeta:
        return NONE
    if action in _OF_OWNER and _is_owner(request, info):
        return NONE
    is_own = bucket == request.target.bucket
    account = request.account if is_own else request.account_of(bucket)
    policy = policy_of(request, info, bucket, account)
    if policy is None:
        return NONE
    if action in _OF_VERSION and _names_version(request, action, is_own and key == request.target.key):
        action = _OF_VERSION[action]
    resource = bucket if key is None or "Bucket" in action else f"{bucket}/{key}"
    facts = Facts(request, account, bucket, key, headers)
    found = policy.verdict(Asked(request.identity.user, accounts_of(request), action.lower(), resource, facts.lookup))
    if found == ALLOW and policy.is_public and public_access_of(info).restrict_public_buckets:
        return ALLOW if request.identity.account == account else NONE
    return found


def _names_version(request: S3Request, action: str, is_target: bool) -> bool:
    """Whether the question is about a version: of the request's object, or of the source that it copies from."""
    source = request.header("X-Amz-Copy-Source")
    if source and action == "s3:GetObject":
        return "?versionId=" in source
    return is_target and "versionId" in request.query


def accounts_of(request: S3Request) -> frozenset[str]:
    """What policies may call the account of the sender: as Swift does, or as his id begins."""
    identity = request.identity
    if identity.user is None:
        return frozenset()
    return frozenset(name for name in (identity.account, identity.user.partition(":")[0]) if name)


def _is_owner(request: S3Request, info: ContainerInfo) -> bool:
    owner = acl.decode(info.sysmeta.get("s3api-acl") or info.sysmeta.get("swift3-acl")).owner
    return owner is not None and owner == request.identity.user


class Facts:
    """The values of a request that conditions ask for, each found when it is asked for."""

    def __init__(self, request: S3Request, account: str, bucket: str, key: str | None, headers: Headers | None):
        self._request, self._account, self._bucket, self._key, self._headers = request, account, bucket, key, headers

    def lookup(self, key: str) -> tuple[str, ...] | None:
        """``key``: in lower case."""
        known = _FACTS.get(key)
        if known is not None:
            value = known(self)
        elif key.startswith("s3:x-amz-"):
            value = self._request.header(key[3:].title())
        elif key.startswith((EXISTING_TAG, REQUEST_TAG)):
            return self._tag(key)
        elif key == "s3:requestobjecttagkeys":
            names = tuple(self._sent_tags())
            return names or None
        else:
            value = None
        return None if value is None else (value,)

    def _tag(self, key: str) -> tuple[str, ...] | None:
        kind, _, name = key.partition("/")
        found = self._existing_tags() if kind + "/" == EXISTING_TAG else self._sent_tags()
        return tuple(value for tag, value in found.items() if tag.lower() == name) or None

    def _sent_tags(self) -> dict[str, str]:
        return dict(parse_qsl(self._request.header("X-Amz-Tagging") or "", keep_blank_values=True))

    def _existing_tags(self) -> dict[str, str]:
        if self._key is None:
            return {}
        if self._headers is None:
            self._headers = self._read()
        return tags.decode(self._headers.get(_OBJECT_TAGS))

    def _read(self) -> Headers:
        request = self._request
        version = request.query.get("versionId") if self._key == request.target.key else None
        version = real_version(request, self._key or "", version, self._bucket, self._account)
        query = {"version-id": version} if version else {}
        response = request.swift("HEAD", self._bucket, self._key, query=query, account=self._account)
        response.close()
        if response.status >= 500:
            raise S3Error("ServiceUnavailable", reason=str(response.status))
        return response.headers if response.is_success else Headers()

    # -- single facts ------------------------------------------------------------------------------------------------

    def _query(self, name: str) -> str | None:
        return self._request.query.get(name)

    def _prefix(self) -> str | None:
        """Who may know of a key may list it: there the key is the prefix."""
        return self._key if self._key is not None else self._query("prefix")

    def _referer(self) -> str | None:
        return self._request.environ.get("HTTP_REFERER")

    def _user_agent(self) -> str | None:
        return self._request.environ.get("HTTP_USER_AGENT")

    def _source_ip(self) -> str | None:
        return self._request.environ.get("REMOTE_ADDR")

    def _is_secure(self) -> str:
        return "true" if self._request.environ.get("wsgi.url_scheme") == "https" else "false"

    def _user(self) -> str | None:
        return self._request.identity.user

    def _user_name(self) -> str | None:
        user = self._request.identity.user
        return None if user is None else user.rpartition(":")[2]

    def _account_name(self) -> str | None:
        user = self._request.identity.user
        return None if user is None else user.partition(":")[0]

    def _arn(self) -> str | None:
        user = self._request.identity.user
        return None if user is None else f"arn:aws:iam::{user.partition(':')[0]}:user/{user.partition(':')[2]}"

    def _kind(self) -> str:
        return "Anonymous" if self._request.identity.user is None else "User"

    def _signature_version(self) -> str | None:
        signed = self._request.signed
        return None if signed is None else "AWS4-HMAC-SHA256" if signed.is_v4 else "AWS"

    def _auth_type(self) -> str | None:
        signed = self._request.signed
        return None if signed is None else _AUTH_TYPES.get(signed.kind, "POST")

    def _signature_age(self) -> str | None:
        """In thousandths of a second."""
        signed = self._request.signed
        if signed is None or len(signed.timestamp) != 16:
            return None
        signed_at = calendar.timegm(time.strptime(signed.timestamp, "%Y%m%dT%H%M%SZ"))
        return str(round((time.time() - signed_at) * 1000))

    def _copy_source(self) -> str | None:
        text = self._request.header("X-Amz-Copy-Source")
        return unquote(wire_to_text(text).partition("?")[0]).removeprefix("/") if text else None

    def _region(self) -> str:
        return self._request.options.location


def _header(name: str) -> Callable[[Facts], str | None]:
    def fact(facts: Facts) -> str | None:
        value: str | None = facts._request.header(name)
        return value

    return fact


_FACTS: Final[dict[str, Callable[[Facts], str | None]]] = {
    "aws:currenttime": lambda facts: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    "aws:epochtime": lambda facts: str(int(time.time())),
    "aws:referer": Facts._referer,
    "aws:useragent": Facts._user_agent,
    "aws:sourceip": Facts._source_ip,
    "aws:securetransport": Facts._is_secure,
    "aws:userid": Facts._user,
    "aws:username": Facts._user_name,
    "aws:principalaccount": Facts._account_name,
    "aws:principalarn": Facts._arn,
    "aws:principaltype": Facts._kind,
    "aws:requestedregion": Facts._region,
    "s3:locationconstraint": Facts._region,
    "s3:prefix": Facts._prefix,
    "s3:delimiter": lambda facts: facts._query("delimiter"),
    "s3:max-keys": lambda facts: facts._query("max-keys"),
    "s3:versionid": lambda facts: facts._query("versionId"),
    "s3:signatureversion": Facts._signature_version,
    "s3:authtype": Facts._auth_type,
    "s3:signatureage": Facts._signature_age,
    "s3:x-amz-copy-source": Facts._copy_source,
    "s3:if-match": _header("If-Match"),
    "s3:if-none-match": _header("If-None-Match"),
    "s3:object-lock-mode": _header("X-Amz-Object-Lock-Mode"),
    "s3:object-lock-retain-until-date": _header("X-Amz-Object-Lock-Retain-Until-Date"),
    "s3:object-lock-legal-hold": _header("X-Amz-Object-Lock-Legal-Hold"),
}

__all__ = ("ALLOW", "DENY", "NONE", "policy_of", "verdict")
