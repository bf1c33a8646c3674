"""DeleteObjects (``spec: s3-api 3.7``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from keelstore.common import concurrency
from keelstore.common.errors import KeelstoreError
from keelstore.common.headers import environ_key
from keelstore.common.http import Response
from keelstore.common.middleware.s3api import access, acl, policy_access
from keelstore.common.middleware.s3api.checksums import BY_HEADER
from keelstore.common.middleware.s3api.conditions import DeleteConditions
from keelstore.common.middleware.s3api.deletion import Deleted, delete_object
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.metadata import refuse
from keelstore.common.middleware.s3api.request import S3Request
from keelstore.common.middleware.s3api.resources.object_lock import bypasses
from keelstore.common.middleware.s3api.routing import ANYONE, BUCKET, Route
from keelstore.common.middleware.s3api.versions import version_id_of
from keelstore.common.middleware.s3api.xml import Writer

MAX_BODY: Final = 10 << 20
_PROOFS: Final = tuple(environ_key(name) for name in BY_HEADER)


@dataclass(frozen=True)
class Wish:
    key: str
    version: str | None
    conditions: DeleteConditions | None = None


def delete_objects(request: S3Request) -> Response:
    """A policy may speak of some keys and not of others, so with one the right is asked for key by key."""
    refuse(request)
    by_key = request.options.s3_acl and policy_access.KEPT in request.bucket_info().sysmeta
    if not by_key:
        _check(request, None, None)
    limit = request.options.max_multi_delete_objects
    body_is_proven = request.header("Content-Md5") or any(name in request.environ for name in _PROOFS)
    if not body_is_proven and not request.header("X-Amz-Trailer"):
        raise S3Error(
            "InvalidRequest", "Missing required header for this request: Content-MD5 OR x-amz-checksum-*"
        )
    document = request.read_xml("Delete", min(2 * limit * 1024, MAX_BODY))
    wishes = []
    for element in document.children("Object"):
        key = element.value("Key")
        if not key:
            raise S3Error("UserKeyMustBeSpecified")
        conditions = DeleteConditions.made(
            element.value("ETag"), element.value("Size"), element.value("LastModifiedTime")
        )
        wishes.append(Wish(key, element.value("VersionId") or None, conditions))
    if not wishes or len(wishes) > limit:
        raise S3Error("MalformedXML")
    pool = concurrency.Pool(request.options.multi_delete_concurrency)
    forces = bypasses(request)
    tasks = [(wish, pool.spawn(_one, request, wish, forces, by_key)) for wish in wishes]
    writer = Writer("DeleteResult")
    is_quiet = (document.value("Quiet") or "").strip().lower() == "true"
    for wish, task in tasks:
        outcome: Deleted | S3Error = task.wait()
        if isinstance(outcome, S3Error):
            writer.open("Error").leaf("Key", wish.key).leaf("VersionId", wish.version).leaf("Code", outcome.code)
            writer.leaf("Message", outcome.message).close()
        elif not is_quiet:
            writer.open("Deleted").leaf("Key", wish.key).leaf("VersionId", wish.version)
            if outcome.is_marker:
                writer.leaf("DeleteMarker", True).leaf("DeleteMarkerVersionId", outcome.version)
            writer.close()
    return Response(200, body=writer.to_bytes(), content_type="application/xml")


def _check(request: S3Request, key: str | None, version: str | None) -> None:
    """Raises S3Error when the sender may not delete."""
    info = request.bucket_info()
    if request.options.s3_acl:
        action = "s3:DeleteObject" if version is None else "s3:DeleteObjectVersion"
        access.check_bucket(request, action, acl.WRITE, info, request.account, request.bucket, key)


def _one(request: S3Request, wish: Wish, forces: bool, by_key: bool) -> Deleted | S3Error:
    try:
        version = version_id_of(wish.version)
        if by_key:
            _check(request, wish.key, version)
        return delete_object(request, wish.key, version, conditions=wish.conditions, bypasses=forces)
    except S3Error as error:
        return error
    except KeelstoreError:
        return S3Error("InternalError")


ROUTES = (Route(BUCKET, "POST", delete_objects, "s3:DeleteObject", ANYONE, sub="delete"),)
