"""The policy of a bucket: get, put, delete, and whether it makes the bucket public (``spec: s3-api 3.14``)."""

from __future__ import annotations

from typing import Final

from keelstore.common.http import Response
from keelstore.common.middleware.s3api import bucket_policy, documents
from keelstore.common.middleware.s3api.access import bucket_acl, needs_s3_acl
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.policy_access import NAME, policy_of
from keelstore.common.middleware.s3api.public_access import public_access_of
from keelstore.common.middleware.s3api.request import S3Request
from keelstore.common.middleware.s3api.routing import BUCKET, OWNER, Route
from keelstore.common.middleware.s3api.xml import Writer

_ROOM: Final = 1024  # bytes that a body may have beyond what a policy may, so that it is told why


def get_policy(request: S3Request) -> Response:
    data = documents.load(request, NAME)
    if data is None:
        raise S3Error("NoSuchBucketPolicy", BucketName=request.bucket)
    return Response(200, body=data, content_type="application/json")


def put_policy(request: S3Request) -> Response:
    needs_s3_acl(request, "policy")
    info = request.bucket_info()
    data = request.read_body(bucket_policy.MAX_BYTES + _ROOM, "MalformedPolicy")
    policy = bucket_policy.read(data, request.bucket)
    if policy.is_public and public_access_of(info).block_public_policy:
        raise S3Error("AccessDenied")
    documents.store(request, NAME, data)
    return Response(204)


def delete_policy(request: S3Request) -> Response:
    documents.remove(request, NAME)
    return Response(204)


def get_status(request: S3Request) -> Response:
    """Public by its policy or by its ACL, as both count now."""
    info = request.bucket_info()
    policy = policy_of(request, info)
    by_policy = policy is not None and policy.is_public and not public_access_of(info).restrict_public_buckets
    is_public = by_policy or (request.options.s3_acl and bucket_acl(info).is_public)
    body = Writer("PolicyStatus").leaf("IsPublic", is_public).to_bytes()
    return Response(200, body=body, content_type="application/xml")


ROUTES = (
    Route(BUCKET, "GET", get_policy, "s3:GetBucketPolicy", OWNER, sub="policy"),
    Route(BUCKET, "PUT", put_policy, "s3:PutBucketPolicy", OWNER, sub="policy"),
    Route(BUCKET, "DELETE", delete_policy, "s3:DeleteBucketPolicy", OWNER, sub="policy"),
    Route(BUCKET, "GET", get_status, "s3:GetBucketPolicyStatus", OWNER, sub="policyStatus"),
)
