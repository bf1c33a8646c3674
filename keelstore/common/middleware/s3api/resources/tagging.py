"""Tags of buckets and of objects (``spec: s3-api 3.11``).

A bucket's are system metadata, ``Tagging``; an object's are *transient* system metadata, ``Tags``, which a POST changes
without touching the data. A POST through the Swift API that does not name them drops them, like all other metadata.
"""

from __future__ import annotations

from typing import Final

from keelstore.common.headers import Headers
from keelstore.common.http import Response
from keelstore.common.middleware.s3api import access, acl, tags
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.outcome import change_bucket
from keelstore.common.middleware.s3api.reading import headers_of
from keelstore.common.middleware.s3api.request import CONTAINER_SYSMETA, S3Request
from keelstore.common.middleware.s3api.restate import restate, to_restate
from keelstore.common.middleware.s3api.routing import BUCKET, OBJECT, OWNER, Route
from keelstore.common.middleware.s3api.versions import shown_version

MAX_BODY: Final = 1 << 20
OBJECT_TAGS: Final = "X-Object-Transient-Sysmeta-S3api-Tags"
_BUCKET_TAGS: Final = CONTAINER_SYSMETA + "Tagging"


def sent_tags(request: S3Request) -> str | None:
    """The tags that a write of an object names in its header, as they are kept; None when it names none. Raises S3Error."""
    text = request.header("X-Amz-Tagging")
    return None if text is None else tags.encode(tags.of_header(text))


def tag_count(headers: Headers) -> int:
    text = headers.get(OBJECT_TAGS)
    return text.count("&") + 1 if text else 0


def _shown(request: S3Request, headers: Headers) -> Headers:
    version = headers.get("X-Object-Version-Id")
    shown = {} if version is None else {"x-amz-version-id": shown_version(version, request.bucket_info())}
    return Headers(shown)


def get_object_tags(request: S3Request) -> Response:
    headers, _ = headers_of(request)
    access.check_object(request, headers, acl.READ, "s3:GetObjectTagging")
    return Response(
        200, _shown(request, headers), body=tags.to_xml(tags.decode(headers.get(OBJECT_TAGS))), content_type="application/xml"
    )


def put_object_tags(request: S3Request) -> Response:
    found = tags.of_document(request.read_xml("Tagging", MAX_BODY), tags.MAX_OBJECT_TAGS)
    with to_restate(request) as headers:
        restate(request, headers, {OBJECT_TAGS: tags.encode(found)})
    return Response(200, _shown(request, headers), body=b"")


def delete_object_tags(request: S3Request) -> Response:
    with to_restate(request) as headers:
        if OBJECT_TAGS in headers:
            restate(request, headers, {OBJECT_TAGS: ""})
    return Response(204, _shown(request, headers))


def get_bucket_tags(request: S3Request) -> Response:
    found = tags.decode(request.bucket_info().sysmeta.get("s3api-tagging"))
    if not found:
        raise S3Error("NoSuchTagSet", BucketName=request.bucket)
    return Response(200, body=tags.to_xml(found), content_type="application/xml")


def put_bucket_tags(request: S3Request) -> Response:
    request.bucket_info()
    found = tags.of_document(request.read_xml("Tagging", MAX_BODY), tags.MAX_BUCKET_TAGS)
    change_bucket(request, {_BUCKET_TAGS: tags.encode(found)})
    return Response(204)


def delete_bucket_tags(request: S3Request) -> Response:
    request.bucket_info()
    change_bucket(request, {_BUCKET_TAGS: ""})
    return Response(204)


ROUTES = (
    Route(OBJECT, "GET", get_object_tags, "s3:GetObjectTagging", acl.READ, sub="tagging", on_object=True),
    Route(OBJECT, "PUT", put_object_tags, "s3:PutObjectTagging", acl.WRITE, sub="tagging"),
    Route(OBJECT, "DELETE", delete_object_tags, "s3:DeleteObjectTagging", acl.WRITE, sub="tagging"),
    Route(BUCKET, "GET", get_bucket_tags, "s3:GetBucketTagging", OWNER, sub="tagging"),
    Route(BUCKET, "PUT", put_bucket_tags, "s3:PutBucketTagging", OWNER, sub="tagging"),
    Route(BUCKET, "DELETE", delete_bucket_tags, "s3:PutBucketTagging", OWNER, sub="tagging"),
)
