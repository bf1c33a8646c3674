"""Ownership controls of a bucket: get, put, delete (``spec: s3-api 3.17``). They mean what ``new_acl`` and ``access`` say."""

from __future__ import annotations

from typing import Final

from keelstore.common.http import Response
from keelstore.common.middleware.s3api import xml
from keelstore.common.middleware.s3api.access import needs_s3_acl, stored_bucket_acl
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.outcome import change_bucket
from keelstore.common.middleware.s3api.ownership import ALL, ENFORCED, ownership_of
from keelstore.common.middleware.s3api.request import CONTAINER_SYSMETA, S3Request
from keelstore.common.middleware.s3api.routing import BUCKET, OWNER, Route

MAX_BODY: Final = 10240
KEPT: Final = CONTAINER_SYSMETA + "Ownership"


def get_ownership(request: S3Request) -> Response:
    found = ownership_of(request.bucket_info())
    if not found:
        raise S3Error("OwnershipControlsNotFoundError", BucketName=request.bucket)
    writer = xml.Writer("OwnershipControls").open("Rule").leaf("ObjectOwnership", found)
    return Response(200, body=writer.to_bytes(), content_type="application/xml")


def put_ownership(request: S3Request) -> Response:
    needs_s3_acl(request, "ownershipControls")
    info = request.bucket_info()
    rules = list(request.read_xml("OwnershipControls", MAX_BODY).children("Rule"))
    wanted = rules[0].value("ObjectOwnership") if len(rules) == 1 else None
    if wanted not in ALL:
        raise S3Error("MalformedXML")
    found = stored_bucket_acl(info)
    if wanted == ENFORCED and set(found.grants) - set(found.of_owner_only().grants):
        raise S3Error(
            "InvalidBucketAclWithObjectOwnership",
            "Bucket cannot have ACLs set with ObjectOwnership's BucketOwnerEnforced setting",
        )
    change_bucket(request, {KEPT: wanted or ""})
    return Response(200, body=b"")


def delete_ownership(request: S3Request) -> Response:
    request.bucket_info()
    change_bucket(request, {KEPT: ""})
    return Response(204)


ROUTES = (
    Route(BUCKET, "GET", get_ownership, "s3:GetBucketOwnershipControls", OWNER, sub="ownershipControls"),
    Route(BUCKET, "PUT", put_ownership, "s3:PutBucketOwnershipControls", OWNER, sub="ownershipControls"),
    Route(BUCKET, "DELETE", delete_ownership, "s3:PutBucketOwnershipControls", OWNER, sub="ownershipControls"),
)
