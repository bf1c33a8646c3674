"""The public access block of a bucket: get, put, delete (``spec: s3-api 3.17``). What it means is in ``new_acl`` and
``access``, and for policies where they are put and read."""

from __future__ import annotations

from typing import Final

from keelstore.common.http import Response
from keelstore.common.middleware.s3api import xml
from keelstore.common.middleware.s3api.access import needs_s3_acl
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.outcome import change_bucket
from keelstore.common.middleware.s3api.public_access import ELEMENTS, PublicAccess, decode
from keelstore.common.middleware.s3api.request import CONTAINER_SYSMETA, S3Request
from keelstore.common.middleware.s3api.routing import BUCKET, OWNER, Route

MAX_BODY: Final = 10240
KEPT: Final = CONTAINER_SYSMETA + "Public-Access-Block"
_FLAGS: Final = {"true": True, "false": False, "1": True, "0": False}


def get_block(request: S3Request) -> Response:
    found = decode(request.bucket_info().sysmeta.get("s3api-public-access-block"))
    if found is None:
        raise S3Error("NoSuchPublicAccessBlockConfiguration", BucketName=request.bucket)
    writer = xml.Writer("PublicAccessBlockConfiguration")
    for element, field in ELEMENTS.items():
        writer.leaf(element, getattr(found, field))
    return Response(200, body=writer.to_bytes(), content_type="application/xml")


def put_block(request: S3Request) -> Response:
    needs_s3_acl(request, "publicAccessBlock")
    request.bucket_info()
    document = request.read_xml("PublicAccessBlockConfiguration", MAX_BODY)
    flags = {}
    for element, field in ELEMENTS.items():
        flag = _FLAGS.get((document.value(element) or "false").strip().lower())
        if flag is None:
            raise S3Error("MalformedXML")
        flags[field] = flag
    change_bucket(request, {KEPT: PublicAccess(**flags).encode()})
    return Response(200, body=b"")


def delete_block(request: S3Request) -> Response:
    request.bucket_info()
    change_bucket(request, {KEPT: ""})
    return Response(204)


ROUTES = (
    Route(BUCKET, "GET", get_block, "s3:GetBucketPublicAccessBlock", OWNER, sub="publicAccessBlock"),
    Route(BUCKET, "PUT", put_block, "s3:PutBucketPublicAccessBlock", OWNER, sub="publicAccessBlock"),
    Route(BUCKET, "DELETE", delete_block, "s3:PutBucketPublicAccessBlock", OWNER, sub="publicAccessBlock"),
)
