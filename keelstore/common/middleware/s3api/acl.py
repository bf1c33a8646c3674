"""ACLs of S3: who owns a thing and who may do what with it (``spec: s3-api 2.8``). Pure; kept as Swift's s3api keeps them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Final

READ, WRITE, READ_ACP, WRITE_ACP, FULL_CONTROL = "READ", "WRITE", "READ_ACP", "WRITE_ACP", "FULL_CONTROL"
PERMISSIONS: Final = (READ, WRITE, READ_ACP, WRITE_ACP, FULL_CONTROL)
ALL_USERS, AUTHENTICATED_USERS, LOG_DELIVERY = "AllUsers", "AuthenticatedUsers", "LogDelivery"
GROUP_URIS: Final = {
    ALL_USERS: "http://acs.amazonaws.com/groups/global/AllUsers",
    AUTHENTICATED_USERS: "http://acs.amazonaws.com/groups/global/AuthenticatedUsers",
    LOG_DELIVERY: "http://acs.amazonaws.com/groups/s3/LogDelivery",
}
GROUPS: Final = {uri: name for name, uri in GROUP_URIS.items()}
_PUBLIC: Final = (ALL_USERS, AUTHENTICATED_USERS)
LOG_DELIVERY_USER: Final = ".log_delivery"


@dataclass(frozen=True)
class Grant:
    """``grantee``: a user's id, or the name of a group."""

    grantee: str
    permission: str

    def applies_to(self, user: str | None) -> bool:
        """``user`` None: nobody in particular."""
        if self.grantee == ALL_USERS:
            return True
        if user is None:
            return False
        return (
            self.grantee == AUTHENTICATED_USERS
            or self.grantee == user
            or (self.grantee == LOG_DELIVERY and user.endswith(":" + LOG_DELIVERY_USER))
        )


@dataclass(frozen=True)
class Acl:
    """``owner`` None: nobody is known to own it."""

    owner: str | None = None
    grants: tuple[Grant, ...] = ()

    def allows(self, user: str | None, permission: str) -> bool:
        """Whether ``user`` has ``permission`` by a grant. The owner may always read and change the ACL itself."""
        if user is not None and user == self.owner and permission in (READ_ACP, WRITE_ACP):
            return True
        return any(grant.permission in (permission, FULL_CONTROL) and grant.applies_to(user) for grant in self.grants)

    @property
    def is_public(self) -> bool:
        return any(grant.grantee in _PUBLIC for grant in self.grants)

    def without_public(self) -> Acl:
        return replace(self, grants=tuple(grant for grant in self.grants if grant.grantee not in _PUBLIC))

    def of_owner_only(self) -> Acl:
        return Acl(self.owner, (Grant(self.owner, FULL_CONTROL),)) if self.owner is not None else self

    def encode(self) -> str:
        """As the system metadata of Swift's s3api holds it."""
        return self._encoded

    @cached_property
    def _encoded(self) -> str:
        return json.dumps(
            {
                "Owner": self.owner,
                "Grant": [{"Permission": grant.permission, "Grantee": grant.grantee} for grant in self.grants],
            },
            separators=(",", ":"),
        )


@lru_cache(maxsize=1024)
def decode(text: str | None) -> Acl:
    """What ``encode`` made, or Swift; an ACL without owner for anything else."""
    try:
        value = json.loads(text or "")
        grants = tuple(Grant(str(item["Grantee"]), str(item["Permission"])) for item in value["Grant"])
        return Acl(None if value["Owner"] is None else str(value["Owner"]), grants)
    except (ValueError, KeyError, TypeError, RecursionError):
        return Acl()


@lru_cache(maxsize=1024)
def canned(name: str, owner: str, bucket_owner: str | None = None) -> Acl | None:
    """The ACL that a canned name stands for; None for an unknown one. ``bucket_owner`` is for objects."""
    more: Iterable[tuple[str, str]] | None = {
        "private": (),
        "public-read": ((ALL_USERS, READ),),
        "public-read-write": ((ALL_USERS, READ), (ALL_USERS, WRITE)),
        "authenticated-read": ((AUTHENTICATED_USERS, READ),),
        "bucket-owner-read": ((bucket_owner, READ),) if bucket_owner and bucket_owner != owner else (),
        "bucket-owner-full-control": ((bucket_owner, FULL_CONTROL),) if bucket_owner and bucket_owner != owner else (),
        "log-delivery-write": ((LOG_DELIVERY, WRITE), (LOG_DELIVERY, READ_ACP)),
        "aws-exec-read": (),
    }.get(name)
    if more is None:
        return None
    return Acl(owner, (Grant(owner, FULL_CONTROL), *(Grant(grantee, permission) for grantee, permission in more)))
