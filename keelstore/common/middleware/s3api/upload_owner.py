"""Who began an upload in parts, and who will own what it becomes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from keelstore.common import concurrency
from keelstore.common.headers import Headers
from keelstore.common.info import ContainerInfo
from keelstore.common.middleware.s3api import acl
from keelstore.common.middleware.s3api.access import stored_bucket_acl
from keelstore.common.middleware.s3api.ownership import ENFORCED, ownership_of
from keelstore.common.middleware.s3api.request import OBJECT_SYSMETA, S3Request

INITIATOR: Final = OBJECT_SYSMETA + "Initiator"  # on a marker, where it is not the owner
FUTURE_ACL: Final = OBJECT_SYSMETA + "Tmpacl"
HEADS_AT_ONCE: Final = 8


def initiator_headers(request: S3Request, wanted: acl.Acl) -> dict[str, str]:
    """Of the marker of an upload whose object will have the ACL ``wanted``."""
    found = {FUTURE_ACL: wanted.encode()}
    if request.identity.user is not None and request.identity.user != wanted.owner:
        found[INITIATOR] = request.identity.user
    return found


def owners_of(request: S3Request, info: ContainerInfo, marker: Headers) -> tuple[str, str]:
    """Owner and initiator, by the headers of the upload's marker. Without ``s3_acl`` it is the user himself."""
    if not request.options.s3_acl:
        return request.user, request.user
    bucket_owner = stored_bucket_acl(info).owner or request.user
    owner = acl.decode(marker.get(FUTURE_ACL)).owner or bucket_owner
    initiator = marker.get(INITIATOR) or owner
    return bucket_owner if ownership_of(info) == ENFORCED else owner, initiator


def owners_of_all(request: S3Request, info: ContainerInfo, markers: Iterable[str]) -> dict[str, tuple[str, str]]:
    """``owners_of`` by marker name. The markers are read only where others than the bucket's owner may write."""
    found = stored_bucket_acl(info)
    is_shared = request.options.s3_acl and (
        found.owner != request.identity.user
        or any(grant.grantee != found.owner for grant in found.grants)
        or "s3api-policy" in info.sysmeta
    )
    if not is_shared:
        everybody = owners_of(request, info, Headers())
        return dict.fromkeys(markers, everybody)
    pool = concurrency.Pool(HEADS_AT_ONCE)

    def head(name: str) -> Headers:
        response = request.swift("HEAD", request.segments, name)
        response.close()
        return response.headers if response.is_success else Headers()

    tasks = [(name, pool.spawn(head, name)) for name in markers]
    return {name: owners_of(request, info, task.wait()) for name, task in tasks}
