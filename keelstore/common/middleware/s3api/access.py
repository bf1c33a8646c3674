"""Whether the sender of an S3 request may do what it asks, where S3's own ACLs decide (option ``s3_acl``).

Without it the requests to the right carry the user's rights and Swift's ACLs decide. One place asks and one table says
what for: the routes.
"""

from __future__ import annotations

from keelstore.common.headers import Headers
from keelstore.common.middleware.s3api import acl
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.request import S3Request
from keelstore.common.middleware.s3api.routing import ANYONE, OWNER, Route


def check(request: S3Request, route: Route) -> None:
    """Raises S3Error unless the route may be taken. Rights on an object are checked by its handler, who has read its ACL."""
    if not request.options.s3_acl:
        if request.signed is None:
            raise S3Error("AccessDenied")
        return
    if route.permission == ANYONE or route.on_object:
        return
    if route.permission == OWNER:
        if not owns(request, request.bucket_acl()):
            raise S3Error("AccessDenied")
    else:
        check_acl(request, request.bucket_acl(), route.permission)


def check_acl(request: S3Request, found: acl.Acl, permission: str) -> None:
    if found.owner is None and not found.grants:
        if request.options.allow_no_owner or request.identity.account == request.account:
            return
        raise S3Error("AccessDenied")
    if not found.allows(request.identity.user, permission):
        raise S3Error("AccessDenied")


def check_object(request: S3Request, headers: Headers, permission: str) -> None:
    """Of an object whose headers (its system metadata among them) were read."""
    if request.options.s3_acl:
        check_acl(request, object_acl(headers), permission)


def object_acl(headers: Headers) -> acl.Acl:
    return acl.decode(headers.get("X-Object-Sysmeta-S3api-Acl") or headers.get("X-Object-Sysmeta-Swift3-Acl"))


def owns(request: S3Request, found: acl.Acl) -> bool:
    if found.owner is None:
        return request.identity.account is not None and request.identity.account == request.account
    return found.owner == request.identity.user
