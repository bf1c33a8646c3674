"""Buckets: create, head, delete, location (``spec: s3-api 3.2``)."""

from __future__ import annotations

import json
import logging

from keelstore.common.http import Response
from keelstore.common.middleware.s3api import acl, documents, xml
from keelstore.common.middleware.s3api.access import needs_s3_acl
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.new_acl import acl_for_bucket, swift_acl_headers
from keelstore.common.middleware.s3api.outcome import check
from keelstore.common.middleware.s3api.ownership import ALL as OWNERSHIPS
from keelstore.common.middleware.s3api.ownership import ENFORCED, WRITER
from keelstore.common.middleware.s3api.request import CONTAINER_SYSMETA, S3Request
from keelstore.common.middleware.s3api.resources.object_lock import new_bucket_headers
from keelstore.common.middleware.s3api.routing import ANYONE, BUCKET, OWNER, Route
from keelstore.common.middleware.s3api.target import is_bucket_name

_log = logging.getLogger("keelstore.s3api")
MAX_BODY = 10240
_PAGE = 1000


def create(request: S3Request) -> Response:
    bucket = request.bucket
    if not is_bucket_name(bucket, request.options.dns_compliant_bucket_names):
        raise S3Error("InvalidBucketName", BucketName=bucket)
    if request.identity.user is None or request.identity.account is None:
        raise S3Error("AccessDenied")
    _check_location(request)
    account = request.identity.account
    if not request.identity.owns_account(request.environ):
        raise S3Error("AccessDenied")
    wanted, headers = _described(request)
    known = request.container_info(bucket, account)
    if known.is_success:
        return _made_already(request, acl.decode(known.sysmeta.get("s3api-acl")), wanted)
    index = request.index
    if index is not None and not index.claim(request.environ, bucket, account):
        raise S3Error("BucketAlreadyExists", BucketName=bucket)
    headers |= new_bucket_headers(request)
    response = check(request, request.swift("PUT", bucket, headers=headers, account=account))
    response.drain()
    if response.status == 202:
        request.forget()
        return _made_already(request, request.bucket_acl(), wanted)
    return Response(200, {"Location": f"/{bucket}"}, body=b"")


def _described(request: S3Request) -> tuple[acl.Acl, dict[str, str]]:
    """The ACL of a bucket to be, and all that is kept of it. Raises S3Error."""
    ownership = request.header("X-Amz-Object-Ownership")
    if ownership and ownership not in OWNERSHIPS:
        raise S3Error("InvalidArgument", ArgumentName="x-amz-object-ownership", ArgumentValue=ownership)
    if not request.options.s3_acl:
        if ownership and ownership != WRITER:
            needs_s3_acl(request, "ownershipControls")
        return acl.Acl(), swift_acl_headers(request)
    wanted = acl_for_bucket(request, request.user)
    headers = {CONTAINER_SYSMETA + "Acl": wanted.encode()}
    if ownership:
        headers[CONTAINER_SYSMETA + "Ownership"] = ownership
        if ownership == ENFORCED and set(wanted.grants) - set(wanted.of_owner_only().grants):
            raise S3Error("InvalidBucketAclWithObjectOwnership")
    return wanted, headers


def _made_already(request: S3Request, found: acl.Acl, wanted: acl.Acl) -> Response:
    """A bucket that is there is never changed. Its owner may ask for it again, as it is."""
    if found.owner not in (None, request.user):
        raise S3Error("BucketAlreadyExists", BucketName=request.bucket)
    if request.options.s3_acl and found.owner is not None:
        if set(found.grants) != set(wanted.grants):
            raise S3Error("BucketAlreadyExists", BucketName=request.bucket)
        return Response(200, {"Location": f"/{request.bucket}"}, body=b"")
    raise S3Error("BucketAlreadyOwnedByYou", BucketName=request.bucket)


def _check_location(request: S3Request) -> None:
    if not request.content_length() and request.content_length() is not None:
        return
    data = request.read_body(MAX_BODY)
    if not data.strip():
        return
    try:
        document = xml.parse(data, "CreateBucketConfiguration")
    except xml.XmlError:
        raise S3Error("MalformedXML") from None
    location = document.value("LocationConstraint")
    allowed = (None, "", request.options.location, request.options.location.lower(), *request.options.extra_regions)
    if location not in allowed and "*" not in request.options.extra_regions:
        raise S3Error("InvalidLocationConstraint", LocationConstraint=location)


def head(request: S3Request) -> Response:
    request.bucket_info()
    if not request.options.s3_acl:
        check(request, request.swift("HEAD", request.bucket)).close()
    return Response(
        200,
        {"x-amz-bucket-region": request.options.location, "x-amz-access-point-alias": "false"},
        body=b"",
        content_type="application/xml",
    )


def delete(request: S3Request) -> Response:
    """What fails once the bucket is gone is logged: a client who asked again would be told that there is none."""
    info = request.bucket_info()
    check(request, request.swift("DELETE", request.bucket)).drain()
    try:
        _delete_segments(request)  # not before: until the bucket is gone its objects may be made of them
    except S3Error as error:
        _log.warning("parts are left in %s/%s: %s (txn: %s)", request.account, request.segments, error, request.trans_id)
    documents.forget(request, info)
    if request.index is not None:
        request.index.release(request.environ, request.bucket, request.account)
    return Response(204)


def _delete_segments(request: S3Request) -> None:
    """What uploads in parts have left behind, and the container it is in."""
    for _ in range(1000):
        response = request.swift("GET", request.segments, query={"format": "json", "limit": str(_PAGE)})
        if response.status == 404:
            response.drain()
            return
        entries = json.loads(check(request, response).read() or b"[]")
        if not entries:
            break
        for entry in entries:
            check(request, request.swift("DELETE", request.segments, entry["name"]), 404).drain()
    check(request, request.swift("DELETE", request.segments), 404).drain()


def location(request: S3Request) -> Response:
    request.bucket_info()
    found = request.options.location
    body = xml.DECLARATION + (
        f'<LocationConstraint xmlns="{xml.NS}">'.encode()
        + xml.text_of("" if found == "us-east-1" else found)
        + b"</LocationConstraint>"
    )
    return Response(200, body=body, content_type="application/xml")


def refuse_post(request: S3Request) -> Response:
    """A POST that is no form of a browser, or a form with a signature elsewhere than in its fields."""
    raise S3Error("RequestIsNotMultiPartContent")


ROUTES = (
    Route(BUCKET, "PUT", create, "s3:CreateBucket", ANYONE),
    Route(BUCKET, "POST", refuse_post, "s3:PutObject", ANYONE),
    Route(BUCKET, "HEAD", head, "s3:ListBucket", acl.READ),
    Route(BUCKET, "DELETE", delete, "s3:DeleteBucket", OWNER),
    Route(BUCKET, "GET", location, "s3:GetBucketLocation", acl.READ, sub="location"),
)
