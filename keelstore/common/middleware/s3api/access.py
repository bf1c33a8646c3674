"""Whether the sender of an S3 request may do what it asks, where S3's own rules decide (option ``s3_acl``).

Without it the requests to the right carry the user's rights and Swift's ACLs decide. One place asks and one table says
what for: the routes. A right is given by the bucket's policy or by an ACL; what a policy denies nothing gives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from keelstore.common.headers import Headers
from keelstore.common.info import ContainerInfo
from keelstore.common.middleware.s3api import acl, policy_access
from keelstore.common.middleware.s3api.bucket_policy import ALLOW, DENY, NONE
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.ownership import ENFORCED, ownership_of
from keelstore.common.middleware.s3api.public_access import public_access_of
from keelstore.common.middleware.s3api.request import S3Request
from keelstore.common.middleware.s3api.routing import ANYONE, OWNER, Route

_TELL_OF_KEYS: Final = frozenset(("NoSuchKey", "NoSuchVersion", "MethodNotAllowed"))
Found = TypeVar("Found")


def policy_verdict(
    request: S3Request, action: str, info: ContainerInfo, bucket: str, key: str | None, headers: Headers | None
) -> str:
    """What the policy of ``bucket`` says of ``action`` on it, or on ``key`` in it: ALLOW, DENY or NONE.

    ``info`` is the bucket's (its system metadata hold the policy). ``headers`` are the object's, where they were read
    already; for a GET or HEAD of an object the question is asked once, then with them.
    """
    return NONE if policy_access.KEPT not in info.sysmeta else policy_access.verdict(
        request, action, info, bucket, key, headers
    )


def check(request: S3Request, route: Route) -> None:
    """Raises S3Error unless the route may be taken. Rights on an object are checked by its handler, who has read its ACL."""
    if not request.options.s3_acl:
        is_owner = route.permission != OWNER or request.identity.owns_account(request.environ)
        if request.signed is None or not is_owner:
            raise S3Error("AccessDenied")
        return
    expected = request.header("X-Amz-Expected-Bucket-Owner")
    if expected is not None and request.target.bucket is not None:
        check_expected(request.bucket_acl().owner, expected)
    if route.permission == ANYONE or route.on_object:
        return
    key = request.target.key
    check_bucket(request, route.action, route.permission, request.bucket_info(), request.account, request.bucket, key)


def check_expected(owner: str | None, expected: str) -> None:
    if owner != expected:
        raise S3Error("AccessDenied")


def check_bucket(
    request: S3Request,
    action: str,
    permission: str,
    info: ContainerInfo,
    account: str,
    bucket: str,
    key: str | None = None,
) -> None:
    """Raises S3Error unless the policy or the bucket's ACL allows ``action``; ``permission`` is what an ACL calls it."""
    verdict = policy_verdict(request, action, info, bucket, key, None)
    if verdict == DENY or (verdict != ALLOW and not _acl_allows(request, bucket_acl(info), permission, account)):
        raise S3Error("AccessDenied")


def check_object(
    request: S3Request,
    headers: Headers,
    permission: str,
    action: str = "s3:GetObject",
    *,
    account: str | None = None,
    bucket: str | None = None,
    key: str | None = None,
) -> None:
    """Raises S3Error unless ``action`` is allowed on an object whose headers (its system metadata among them) were read."""
    if not request.options.s3_acl:
        return
    account, bucket = account or request.account, bucket or request.bucket
    info = request.bucket_info(bucket, account)
    verdict = policy_verdict(request, action, info, bucket, key or request.key, headers)
    if verdict == ALLOW:
        return
    if verdict == DENY or not _acl_allows(request, object_acl(headers, info), permission, account):
        raise S3Error("AccessDenied")


def may_list(request: S3Request) -> bool:
    """Whether the sender may know which keys there are: to others what is missing is forbidden."""
    if not request.options.s3_acl:
        return True
    try:
        check_bucket(
            request, "s3:ListBucket", acl.READ, request.bucket_info(), request.account, request.bucket, request.key
        )
    except S3Error:
        return False
    return True


def found_or_hidden(request: S3Request, read: Callable[[], Found]) -> Found:
    """What ``read`` gives. That something is not there only those are told who may list the bucket. Raises S3Error."""
    try:
        return read()
    except S3Error as error:
        raise hidden(request, error) from None


def hidden(request: S3Request, error: S3Error) -> S3Error:
    """The error as the sender may see it."""
    if error.code in _TELL_OF_KEYS and not may_list(request):
        return S3Error("AccessDenied")
    return error


def needs_s3_acl(request: S3Request, name: str) -> None:
    """Raises S3Error where Swift's ACLs decide, and what is asked for would be without effect."""
    if not request.options.s3_acl:
        raise S3Error("NotImplemented", f"The sub-resource {name} needs the option s3_acl.", Header=name)


def bucket_acl(info: ContainerInfo) -> acl.Acl:
    """The ACL as it counts, with the bucket's ownership and public access settings."""
    found = stored_bucket_acl(info)
    if ownership_of(info) == ENFORCED:
        return found.of_owner_only()
    return found.without_public() if public_access_of(info).ignore_public_acls else found


def stored_bucket_acl(info: ContainerInfo) -> acl.Acl:
    return acl.decode(info.sysmeta.get("s3api-acl") or info.sysmeta.get("swift3-acl"))


def object_acl(headers: Headers, info: ContainerInfo) -> acl.Acl:
    """The ACL of an object as it counts, with the settings of its bucket."""
    if ownership_of(info) == ENFORCED:
        return stored_bucket_acl(info).of_owner_only()
    found = stored_object_acl(headers)
    return found.without_public() if public_access_of(info).ignore_public_acls else found


def stored_object_acl(headers: Headers) -> acl.Acl:
    return acl.decode(headers.get("X-Object-Sysmeta-S3api-Acl") or headers.get("X-Object-Sysmeta-Swift3-Acl"))


def owns(request: S3Request, found: acl.Acl) -> bool:
    """Whether the sender owns the bucket that the request is about, whose ACL is ``found``."""
    return _acl_allows(request, found, OWNER, request.account)


def _acl_allows(request: S3Request, found: acl.Acl, permission: str, account: str) -> bool:
    """What nobody is known to own (made with Swift) is for who may do everything in its account."""
    identity = request.identity
    if found.owner is None and not found.grants:
        if request.options.allow_no_owner and permission != OWNER:
            return True
        return identity.account == account and identity.owns_account(request.environ)
    if permission == OWNER:
        return identity.user is not None and found.owner == identity.user
    return found.allows(identity.user, permission)
