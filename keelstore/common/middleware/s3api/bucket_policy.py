"""Policies of buckets: read from JSON, checked, and what they say of a request (``spec: s3-api 3.14``). Pure.

A statement applies when its principal, action, resource and all its conditions fit. One that denies wins over any that
allows. What no statement speaks of is left to the ACL.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from keelstore.common.middleware.s3api import policy_conditions
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.patterns import fits
from keelstore.common.middleware.s3api.policy_conditions import BadCondition, Condition, Lookup

MAX_BYTES: Final = 20 << 10
VERSIONS: Final = ("2012-10-17", "2008-10-17")
ALLOW, DENY, NONE = "allow", "deny", ""
EXISTING_TAG: Final = "s3:existingobjecttag/"
REQUEST_TAG: Final = "s3:requestobjecttag/"
_RESOURCE: Final = re.compile(r"arn:(?:aws|aws-cn|aws-us-gov|\*):s3:([^:]*):([^:]*):(.+)\Z", re.DOTALL)
_PRINCIPAL: Final = re.compile(r"arn:(?:aws|aws-cn|aws-us-gov):(?:iam|sts)::([^:]*):(root|(?:user|role|assumed-role)/.+)\Z")
_VARIABLE: Final = re.compile(r"\$\{([^}]*)\}")
_LITERALS: Final = {"*": "*", "?": "?", "$": "$"}
# Keys that a condition may name. What is not here is taken for a mistake: a condition that never sees a value is a hole.
KEYS: Final = frozenset((
    "aws:currenttime", "aws:epochtime", "aws:referer", "aws:securetransport", "aws:sourceip", "aws:useragent", "aws:userid",
    "aws:username", "aws:principalarn", "aws:principaltype", "aws:principalaccount", "aws:requestedregion",
    "s3:prefix", "s3:delimiter", "s3:max-keys", "s3:versionid", "s3:signatureversion", "s3:authtype", "s3:signatureage",
    "s3:locationconstraint", "s3:requestobjecttagkeys", "s3:if-match", "s3:if-none-match",
    "s3:object-lock-mode", "s3:object-lock-retain-until-date", "s3:object-lock-legal-hold",
))  # fmt: skip
# Keys of facts that there are none of here: never present.
ABSENT_KEYS: Final = frozenset((
    "aws:sourcearn", "aws:sourceaccount", "aws:sourceorgid", "aws:sourceorgpaths", "aws:sourceowner", "aws:sourcevpc",
    "aws:sourcevpce", "aws:vpcsourceip", "aws:principalorgid", "aws:principalorgpaths", "aws:principalisawsservice",
    "aws:principalservicename", "aws:principalservicenameslist", "aws:multifactorauthpresent", "aws:multifactorauthage",
    "aws:tokenissuetime", "aws:federatedprovider", "aws:viaawsservice", "aws:calledvia", "aws:calledviafirst",
    "aws:calledvialast", "aws:resourceaccount", "aws:resourceorgid", "aws:resourceorgpaths", "aws:tagkeys",
    "s3:dataaccesspointaccount", "s3:dataaccesspointarn", "s3:accesspointnetworkorigin",
    "s3:inventoryaccessibleoptionalfields", "s3:tlsversion", "s3:resourceaccount", "s3:objectownership",
    "s3:object-lock-remaining-retention-days",
))  # fmt: skip
_KEY_PREFIXES: Final = (
    "s3:x-amz-", EXISTING_TAG, REQUEST_TAG, "aws:principaltag/", "aws:requesttag/", "aws:resourcetag/", "s3:buckettag/",
)  # fmt: skip
# What narrows a policy for everybody so far that it is not public.
_NARROWING: Final = frozenset((
    "aws:sourceip", "aws:sourcearn", "aws:sourceaccount", "aws:sourceowner", "aws:sourcevpc", "aws:sourcevpce",
    "aws:principalorgid", "aws:userid", "aws:username", "aws:principalarn", "aws:principalaccount",
    "s3:dataaccesspointarn", "s3:dataaccesspointaccount", "s3:x-amz-server-side-encryption-aws-kms-key-id",
))  # fmt: skip


@dataclass(frozen=True)
class Asked:
    """What is asked of a policy. ``user`` None: nobody in particular. ``accounts``: names that the user's account goes by.
    ``resource``: ``bucket`` or ``bucket/key``. ``lookup``: the values of a condition's key."""

    user: str | None
    accounts: frozenset[str]
    action: str
    resource: str
    lookup: Lookup

    def expand(self, text: str) -> str | None:
        """With the variables replaced; None when the request has no value for one."""
        if "${" not in text:
            return text
        parts = []
        for place, part in enumerate(_VARIABLE.split(text)):
            value: str | None = part
            if place % 2:
                name, _, default = part.partition(",")
                found = self.lookup(name.strip().lower()) if name not in _LITERALS else (_LITERALS[name],)
                value = found[0] if found else default.strip().strip("'") or None
            if value is None:
                return None
            parts.append(value)
        return "".join(parts)


@dataclass(frozen=True)
class Principals:
    """Whom a statement is about. ``users``: ids; ``accounts``: everybody of these accounts."""

    everybody: bool = False
    users: frozenset[str] = frozenset()
    accounts: frozenset[str] = frozenset()

    def fits(self, asked: Asked) -> bool:
        if self.everybody:
            return True
        return asked.user is not None and (asked.user in self.users or not self.accounts.isdisjoint(asked.accounts))


@dataclass(frozen=True)
class Statement:
    """``not_*``: it is about everything but these. Actions are in lower case; resources without ``arn:aws:s3:::``."""

    allows: bool
    principals: Principals
    actions: tuple[str, ...]
    resources: tuple[str, ...]
    conditions: tuple[Condition, ...] = ()
    not_principals: bool = False
    not_actions: bool = False
    not_resources: bool = False

    def applies(self, asked: Asked) -> bool:
        return (
            any(fits(pattern, asked.action) for pattern in self.actions) != self.not_actions
            and self.principals.fits(asked) != self.not_principals
            and any(_fits_resource(pattern, asked) for pattern in self.resources) != self.not_resources
            and all(condition.holds(asked.lookup, asked.expand) for condition in self.conditions)
        )

    @property
    def is_public(self) -> bool:
        return (
            self.allows
            and (self.principals.everybody or self.not_principals)
            and not any(condition.narrows and condition.key in _NARROWING for condition in self.conditions)
        )


def _fits_resource(pattern: str, asked: Asked) -> bool:
    expanded = asked.expand(pattern)
    return expanded is not None and fits(expanded, asked.resource)


@dataclass(frozen=True)
class Policy:
    statements: tuple[Statement, ...]

    def verdict(self, asked: Asked) -> str:
        found = NONE
        for statement in self.statements:
            if statement.allows and found == ALLOW:
                continue
            if statement.applies(asked):
                if not statement.allows:
                    return DENY
                found = ALLOW
        return found

    @property
    def is_public(self) -> bool:
        return any(statement.is_public for statement in self.statements)

    @property
    def asks_for_tags(self) -> bool:
        """Whether it wants to know what tags an object has."""
        return any(
            condition.key.startswith(EXISTING_TAG) for statement in self.statements for condition in statement.conditions
        )


# -- reading -----------------------------------------------------------------------------------------------------------


def read(data: bytes, bucket: str | None = None) -> Policy:
    """Raises S3Error for what is no policy, or none of ``bucket``."""
    if len(data) > MAX_BYTES:
        raise _malformed("Policies must not be larger than 20 KiB")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        raise _malformed("Policies must be valid JSON and the first byte must be '{'") from None
    if not isinstance(document, dict):
        raise _malformed("Policies must be valid JSON and the first byte must be '{'")
    if not set(document) <= {"Version", "Id", "Statement"}:
        raise _malformed("Unknown field in the policy")
    if document.get("Version", VERSIONS[0]) not in VERSIONS:
        raise _malformed("The policy must contain a valid version string")
    statements = document.get("Statement")
    listed: list[Any] = statements if isinstance(statements, list) else [statements]
    if not listed or not all(isinstance(item, dict) for item in listed):
        raise _malformed("Could not parse the policy: Statement is empty!")
    return Policy(tuple(_statement(item, bucket) for item in listed))


def _malformed(message: str) -> S3Error:
    return S3Error("MalformedPolicy", message)


_FIELDS: Final = frozenset((
    "Sid", "Effect", "Principal", "NotPrincipal", "Action", "NotAction", "Resource", "NotResource", "Condition",
))  # fmt: skip


def _statement(item: dict[str, Any], bucket: str | None) -> Statement:
    if not set(item) <= _FIELDS:
        raise _malformed("Unknown field in a statement")
    effect = item.get("Effect")
    if effect not in ("Allow", "Deny"):
        raise _malformed(f"Invalid effect: {effect}")
    principal, not_principal = _one_of(item, "Principal", "NotPrincipal")
    if not_principal and effect == "Allow":
        raise _malformed("Allow with NotPrincipal is not allowed")
    actions, not_actions = _one_of(item, "Action", "NotAction")
    resources, not_resources = _one_of(item, "Resource", "NotResource")
    conditions = item.get("Condition", {})
    if not isinstance(conditions, dict):
        raise _malformed("Condition must be an object")
    try:
        read_conditions = policy_conditions.read_all(conditions)
    except BadCondition as error:
        raise _malformed(f"Policy has an invalid condition: {error}") from None
    for condition in read_conditions:
        known = condition.key in KEYS or condition.key in ABSENT_KEYS or condition.key.startswith(_KEY_PREFIXES)
        if not known:
            raise _malformed("Policy has an invalid condition key")
    return Statement(
        effect == "Allow",
        _principals(principal),
        tuple(map(_action, _texts(actions, "action"))),
        tuple(_resource(text, bucket) for text in _texts(resources, "resource")),
        read_conditions,
        not_principal,
        not_actions,
        not_resources,
    )


def _one_of(item: Mapping[str, Any], name: str, opposite: str) -> tuple[Any, bool]:
    if (name in item) == (opposite in item):
        raise _malformed(f"Missing required field {name}")
    return (item[opposite], True) if opposite in item else (item[name], False)


def _texts(value: Any, what: str) -> Iterable[str]:
    listed = value if isinstance(value, list) else [value]
    if not listed or not all(isinstance(text, str) and text for text in listed):
        raise _malformed(f"Policy has invalid {what}")
    return listed


def _action(text: str) -> str:
    text = text.lower()
    if text == "*":
        return text
    if not text.startswith("s3:") or not text[3:].replace("*", "a").replace("?", "a").isalnum():
        raise _malformed("Policy has invalid action")
    return text


def _resource(text: str, bucket: str | None) -> str:
    if text == "*":
        return text
    found = _RESOURCE.match(text)
    if found is None:
        raise _malformed("Policy has invalid resource")
    path = found[3]
    if bucket is not None and not fits(path.partition("/")[0], bucket):
        raise _malformed("Policy has invalid resource")
    return path


def _principals(value: Any) -> Principals:
    if value == "*":
        return Principals(everybody=True)
    if not isinstance(value, dict) or not value:
        raise _malformed("Invalid principal in policy")
    users, accounts, everybody = set(), set(), False
    for kind, texts in value.items():
        if kind not in ("AWS", "CanonicalUser", "Service", "Federated"):
            raise _malformed("Invalid principal in policy")
        for text in _texts(texts, "principal"):
            if kind in ("Service", "Federated"):
                continue  # there are none here
            if kind == "CanonicalUser":
                users.add(text)
            elif text == "*":
                everybody = True
            elif found := _PRINCIPAL.match(text):
                account, who = found[1], found[2]
                if who == "root":
                    accounts.add(account)
                else:
                    name = who.partition("/")[2]
                    users.add(name if ":" in name or not account else f"{account}:{name}")
            elif re.fullmatch(r"[\w.@+=-]{1,128}", text):
                accounts.add(text)
            elif re.fullmatch(r"[\w.@+=-]{1,128}:[\w.@+=-]{1,128}", text):
                users.add(text)
            else:
                raise _malformed("Invalid principal in policy")
    return Principals(everybody, frozenset(users), frozenset(accounts))


