"""ACLs of buckets and objects: get, put (``spec: s3-api 2.8``).

With ``s3_acl`` they are what S3 keeps. Without, a bucket's is what the ACL of Swift's container amounts to, an object's that
of its bucket.
"""

from __future__ import annotations

from typing import Final

from keelstore.common.http import Response
from keelstore.common.info import ContainerInfo
from keelstore.common.middleware.s3api import access, acl, acl_xml, xml
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.exclusive import exclusive
from keelstore.common.middleware.s3api.new_acl import (
    acl_for_bucket,
    acl_for_object,
    checked,
    sends_acl,
    swift_acl_headers,
)
from keelstore.common.middleware.s3api.outcome import change_bucket, check
from keelstore.common.middleware.s3api.ownership import ENFORCED, ownership_of
from keelstore.common.middleware.s3api.request import CONTAINER_SYSMETA, OBJECT_SYSMETA, S3Request
from keelstore.common.middleware.s3api.rewrite import head, rewrite
from keelstore.common.middleware.s3api.routing import BUCKET, OBJECT, Route
from keelstore.common.middleware.s3api.versions import shown_version, version_id_of

MAX_BODY: Final = 200 << 10
_PUBLIC: Final = ".r:*"


def get_bucket_acl(request: S3Request) -> Response:
    info = request.bucket_info()
    if not request.options.s3_acl:
        check(request, request.swift("HEAD", request.bucket)).close()
        return _answer(_of_swift(request, info))
    return _answer(access.bucket_acl(info) if ownership_of(info) == ENFORCED else access.stored_bucket_acl(info))


def get_object_acl(request: S3Request) -> Response:
    version = version_id_of(request.query.get("versionId"))
    found = access.found_or_hidden(request, lambda: head(request, version))
    info = request.bucket_info()
    if not request.options.s3_acl:
        return _answer(_of_swift(request, info))
    access.check_object(request, found, acl.READ_ACP, "s3:GetObjectAcl" if version is None else "s3:GetObjectVersionAcl")
    shown = access.object_acl(found, info) if ownership_of(info) == ENFORCED else access.stored_object_acl(found)
    answer = _answer(shown)
    if "X-Object-Version-Id" in found:
        answer.headers["x-amz-version-id"] = shown_version(found["X-Object-Version-Id"], info)
    return answer


def put_bucket_acl(request: S3Request) -> Response:
    info = request.bucket_info()
    document = _document(request, request.read_body(MAX_BODY, "MalformedACLError"))
    if not request.options.s3_acl:
        headers = swift_acl_headers(request) if document is None else _to_swift(document)
    else:
        owner = access.stored_bucket_acl(info).owner or request.user
        if document is None:
            wanted = acl_for_bucket(request, owner, info)
        else:
            wanted = _of_document(request, document, owner, info)
        headers = {CONTAINER_SYSMETA + "Acl": wanted.encode()}
    change_bucket(request, headers)
    return Response(200, body=b"")


def put_object_acl(request: S3Request) -> Response:
    if not request.options.s3_acl:
        raise S3Error("NotImplemented", "ACLs of objects need the option s3_acl.", Header="acl")
    version = version_id_of(request.query.get("versionId"))
    data = request.read_body(MAX_BODY, "MalformedACLError")  # which may take long
    with exclusive(request.environ, request.account, request.bucket, request.key):  # nobody restates it meanwhile
        found = access.found_or_hidden(request, lambda: head(request, version))
        access.check_object(
            request, found, acl.WRITE_ACP, "s3:PutObjectAcl" if version is None else "s3:PutObjectVersionAcl"
        )
        info = request.bucket_info()
        owner = access.stored_object_acl(found).owner or access.stored_bucket_acl(info).owner or request.user
        document = _document(request, data)
        if document is None:
            wanted = acl_for_object(request, info, owner)
        else:
            wanted = _of_document(request, document, owner, info)
        rewrite(request, found, version, {OBJECT_SYSMETA + "Acl": wanted.encode()})
    return Response(200, body=b"")


def _document(request: S3Request, data: bytes) -> xml.Element | None:
    """The document that was sent; None when headers say it. Raises S3Error for both and for neither."""
    in_headers = sends_acl(request)
    if not data.strip():
        if not in_headers:
            raise S3Error("MissingSecurityHeader", MissingHeaderName="x-amz-acl")
        return None
    if in_headers:
        raise S3Error("UnexpectedContent")
    try:
        return xml.parse(data)
    except xml.XmlError:
        raise S3Error("MalformedACLError") from None


def _of_document(request: S3Request, document: xml.Element, owner: str, info: ContainerInfo) -> acl.Acl:
    """The ACL of a document that leaves the owner as he is. Raises S3Error."""
    wanted = acl_xml.parse(document)
    if wanted.owner != owner:
        raise S3Error("AccessDenied")
    if ownership_of(info) == ENFORCED and wanted != acl.Acl(owner).of_owner_only():
        raise S3Error("AccessControlListNotSupported")
    return checked(request, wanted, info)


def _answer(found: acl.Acl) -> Response:
    return Response(200, body=acl_xml.write(found), content_type="application/xml")


def _of_swift(request: S3Request, info: ContainerInfo) -> acl.Acl:
    """What the rights of a container amount to: everything for who asks, and what everybody may."""
    grants = [acl.Grant(request.user, acl.FULL_CONTROL)]
    for granted, permission in ((info.read_acl, acl.READ), (info.write_acl, acl.WRITE)):
        if granted and _PUBLIC in granted.replace(" ", "").split(","):
            grants.append(acl.Grant(acl.ALL_USERS, permission))
    return acl.Acl(request.user, tuple(grants))


def _to_swift(document: xml.Element) -> dict[str, str]:
    """The rights of a container for the few documents that they can say. Raises S3Error."""
    found = acl_xml.parse(document)
    kinds = {(grant.grantee in acl.GROUP_URIS, grant.permission) for grant in found.grants}
    groups = {grant.grantee for grant in found.grants if grant.grantee in acl.GROUP_URIS}
    if not groups <= {acl.ALL_USERS} or not kinds <= {(False, acl.FULL_CONTROL), (True, acl.READ), (True, acl.WRITE)}:
        raise S3Error("MalformedACLError")
    if not kinds:
        raise S3Error("MalformedACLError")
    reads, writes = (True, acl.READ) in kinds, (True, acl.WRITE) in kinds
    return {
        "X-Container-Read": f"{_PUBLIC},.rlistings" if reads or writes else "",
        "X-Container-Write": _PUBLIC if writes else "",
    }


ROUTES = (
    Route(BUCKET, "GET", get_bucket_acl, "s3:GetBucketAcl", acl.READ_ACP, sub="acl"),
    Route(BUCKET, "PUT", put_bucket_acl, "s3:PutBucketAcl", acl.WRITE_ACP, sub="acl"),
    Route(OBJECT, "GET", get_object_acl, "s3:GetObjectAcl", acl.READ_ACP, sub="acl", on_object=True),
    Route(OBJECT, "PUT", put_object_acl, "s3:PutObjectAcl", acl.WRITE_ACP, sub="acl", on_object=True),
)
