"""The ACL that a request gives to what it makes or changes: by a canned name or by grants, in headers (``spec: s3-api 2.8``).

The bucket's ownership controls and public access block have their say here: what they forbid is refused, so every way of
setting an ACL leads through ``acl_for_bucket`` or ``acl_for_object``.
"""

from __future__ import annotations

from typing import Final

from keelstore.common.info import ContainerInfo
from keelstore.common.middleware.s3api import acl
from keelstore.common.middleware.s3api.access import stored_bucket_acl
from keelstore.common.middleware.s3api.acl_xml import GRANT_HEADERS, checked_size, parse_grants, unknown_user
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.identity import is_known
from keelstore.common.middleware.s3api.ownership import ENFORCED, PREFERRED, ownership_of
from keelstore.common.middleware.s3api.public_access import public_access_of
from keelstore.common.middleware.s3api.request import OBJECT_SYSMETA, S3Request

OWNER_FULL_CONTROL: Final = "bucket-owner-full-control"
# Without s3_acl: canned names as the ACLs of Swift's containers; '' is none.
_SWIFT_ACLS: Final = {
    "private": ("", ""),
    "bucket-owner-read": ("", ""),
    OWNER_FULL_CONTROL: ("", ""),
    "public-read": (".r:*,.rlistings", ""),
    "public-read-write": (".r:*,.rlistings", ".r:*"),
}


def acl_for_bucket(request: S3Request, owner: str, info: ContainerInfo | None = None) -> acl.Acl:
    """What the headers say; private when they say nothing. ``info``: of a bucket that is there. Raises S3Error."""
    grants, name = _asked(request)
    if info is not None and ownership_of(info) == ENFORCED and (grants is not None or name != OWNER_FULL_CONTROL):
        raise S3Error("AccessControlListNotSupported")
    if grants is None and not name:
        return _private(owner)
    return checked(request, _chosen(request, grants, name, owner), info)


def acl_for_object(request: S3Request, info: ContainerInfo, owner: str | None = None) -> acl.Acl:
    """What the headers say of an object in the bucket of ``info``. ``owner``: of an object that is there.

    A new object belongs to who writes it; what nobody in particular writes belongs to the bucket's owner, and so does
    everything under BucketOwnerEnforced, and what he is given full control of under BucketOwnerPreferred. Raises S3Error.
    """
    grants, name = _asked(request)
    bucket_owner = stored_bucket_acl(info).owner
    is_given = name == OWNER_FULL_CONTROL or (
        grants is not None and bucket_owner is not None and grants == [acl.Grant(bucket_owner, acl.FULL_CONTROL)]
    )
    rule = ownership_of(info)
    if rule == ENFORCED and (name or grants is not None) and not is_given:
        raise S3Error("AccessControlListNotSupported")
    if bucket_owner is not None and (rule == ENFORCED or (rule == PREFERRED and is_given)):
        return acl.Acl(bucket_owner).of_owner_only()
    owner = owner or request.identity.user or bucket_owner
    if owner is None:  # made with Swift, written by nobody: it has no more of an owner than its bucket
        return acl.Acl()
    if grants is None and not name:
        return _private(owner)
    return checked(request, _chosen(request, grants, name, owner, bucket_owner), info)


def object_acl_headers(request: S3Request) -> dict[str, str]:
    """Of a new object, as Swift's headers. Without ``s3_acl`` objects have none; the name is looked at. Raises S3Error."""
    if request.options.s3_acl:
        return {OBJECT_SYSMETA + "Acl": acl_for_object(request, request.bucket_info()).encode()}
    swift_acl_headers(request)
    return {}


def swift_acl_headers(request: S3Request) -> dict[str, str]:
    """Without ``s3_acl``: the ACL of a container that a canned name stands for; none without a name. Raises S3Error."""
    name = request.header("X-Amz-Acl")
    if not name:
        return {}
    if name in ("authenticated-read", "log-delivery-write"):
        raise S3Error("NotImplemented", f"The canned ACL {name} needs the option s3_acl.", Header="x-amz-acl")
    if name not in _SWIFT_ACLS:
        raise _unknown(name)
    read, write = _SWIFT_ACLS[name]
    return {"X-Container-Read": read, "X-Container-Write": write}


def checked(request: S3Request, found: acl.Acl, info: ContainerInfo | None) -> acl.Acl:
    """An ACL whose users exist, and that is no more public than the bucket of ``info`` allows. Raises S3Error."""
    checked_size(found)
    if info is not None and found.is_public and public_access_of(info).block_public_acls:
        raise S3Error("AccessDenied")
    for name in {grant.grantee for grant in found.grants}:
        if name in acl.GROUP_URIS or name in (found.owner, request.identity.user):
            continue
        if not is_known(request.environ, request.app, request.identity, name):
            raise unknown_user(name)
    return found


def sends_acl(request: S3Request) -> bool:
    """Whether the headers say anything of an ACL. Without ``s3_acl`` grants say nothing: Swift has no such users."""
    return bool(request.header("X-Amz-Acl")) or (
        request.options.s3_acl and any(request.header(name) for name in GRANT_HEADERS)
    )


def _asked(request: S3Request) -> tuple[list[acl.Grant] | None, str]:
    """Grants, or None, and a canned name, or ''."""
    name: str = request.header("X-Amz-Acl") or ""
    grants: list[acl.Grant] | None = None
    for header, permission in GRANT_HEADERS.items():
        text = request.header(header)
        if text:
            grants = [*(grants or ()), *parse_grants(permission, text)]
    if grants is not None and name:
        raise S3Error("InvalidRequest", "Specifying both Canned ACLs and Header Grants is not allowed")
    return grants, name


def _chosen(
    request: S3Request, grants: list[acl.Grant] | None, name: str, owner: str, bucket_owner: str | None = None
) -> acl.Acl:
    if grants is not None:
        return acl.Acl(owner, tuple(dict.fromkeys(grants)))
    found = acl.canned(name, owner, bucket_owner)
    if found is None:
        raise _unknown(name)
    return found


def _private(owner: str) -> acl.Acl:
    found = acl.canned("private", owner)
    assert found is not None
    return found


def _unknown(name: str) -> S3Error:
    return S3Error("InvalidArgument", ArgumentName="x-amz-acl", ArgumentValue=name)


