"""Object lock: the configuration of a bucket, the retention and the legal hold of an object (``spec: s3-api 3.15``).

What is locked is kept by ``deletion``, which every delete goes through: a bucket with a lock has versioning for good, so no
write takes anything away.
"""

from __future__ import annotations

import time
from typing import Final

from keelstore.common.headers import Headers
from keelstore.common.http import Response
from keelstore.common.info import ContainerInfo
from keelstore.common.middleware.s3api import access, acl, locks
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.outcome import change_bucket
from keelstore.common.middleware.s3api.reading import headers_of
from keelstore.common.middleware.s3api.request import CONTAINER_SYSMETA, S3Request
from keelstore.common.middleware.s3api.restate import restate, to_restate
from keelstore.common.middleware.s3api.routing import BUCKET, OBJECT, OWNER, Route
from keelstore.common.middleware.s3api.versions import ENABLED, status_of
from keelstore.common.middleware.s3api.xml import Writer

MAX_BODY: Final = 10240
LOCK: Final = CONTAINER_SYSMETA + "Object-Lock"
PROTECTED: Final = "Access Denied because object protected by object lock."
_MODE, _UNTIL, _HOLD = "X-Amz-Object-Lock-Mode", "X-Amz-Object-Lock-Retain-Until-Date", "X-Amz-Object-Lock-Legal-Hold"


def configuration_of(info: ContainerInfo) -> locks.Configuration | None:
    return locks.configuration(info.sysmeta.get("s3api-object-lock"))


def new_bucket_headers(request: S3Request) -> dict[str, str]:
    """Of a bucket that is to be made, when it is to have object lock: it has versions then, too."""
    if (request.header("X-Amz-Bucket-Object-Lock-Enabled") or "").strip().lower() != "true":
        return {}
    return {"X-Versions-Enabled": "true", LOCK: locks.Configuration().encode()}




def get_configuration(request: S3Request) -> Response:
    found = configuration_of(request.bucket_info())
    if found is None:
        raise S3Error("ObjectLockConfigurationNotFoundError", BucketName=request.bucket)
    return Response(200, body=found.to_xml(), content_type="application/xml")


def put_configuration(request: S3Request) -> Response:
    info = request.bucket_info()
    found = locks.configuration_of_document(request.read_xml("ObjectLockConfiguration", MAX_BODY, "MalformedXML"))
    if configuration_of(info) is None and status_of(info) != ENABLED:
        raise S3Error("InvalidBucketState", "Versioning must be 'Enabled' on the bucket to apply a Object Lock configuration")
    change_bucket(request, {LOCK: found.encode()})
    return Response(200, body=b"")


def sends_lock(request: S3Request) -> bool:
    """Whether a write itself says anything of a lock."""
    return any(request.header(name) is not None for name in (_MODE, _UNTIL, _HOLD))


def sent_lock(request: S3Request) -> dict[str, str]:
    """What a write of an object is to keep of its lock, asked for or by the bucket's default, as headers. Raises S3Error."""
    mode, until, hold = request.header(_MODE), request.header(_UNTIL), request.header(_HOLD)
    asks = sends_lock(request)
    info = request.bucket_info()
    if not asks and "s3api-object-lock" not in info.sysmeta:
        return {}
    found = configuration_of(info)
    if found is None:
        if asks:
            raise _no_lock()
        return {}
    kept: dict[str, str] = {}
    if (mode is None) != (until is None):
        raise S3Error(
            "InvalidArgument",
            "x-amz-object-lock-retain-until-date and x-amz-object-lock-mode must both be supplied",
            ArgumentName=(_MODE if mode is None else _UNTIL).lower(),
        )
    if mode is not None:
        kept[locks.RETENTION] = locks.retention(mode.upper(), until, time.time(), "InvalidArgument").encode()
    elif found.default is not None:
        kept[locks.RETENTION] = found.default.from_now(time.time()).encode()
    if hold is not None:
        if hold not in ("ON", "OFF"):
            raise S3Error("InvalidArgument", ArgumentName=_HOLD.lower(), ArgumentValue=hold)
        kept[locks.LEGAL_HOLD] = hold
    return kept


def show_lock(found: Headers, headers: Headers) -> None:
    """Add what a read of an object shows of its lock."""
    kept, hold = locks.retention_of(headers), locks.legal_hold_of(headers)
    if kept is not None:
        found["x-amz-object-lock-mode"], found["x-amz-object-lock-retain-until-date"] = kept.mode, kept.until
    if hold:
        found["x-amz-object-lock-legal-hold"] = hold


def bypasses(request: S3Request) -> bool:
    """Whether the sender wants, and may, do what governance forbids: the owner of the bucket may."""
    if (request.header("X-Amz-Bypass-Governance-Retention") or "").strip().lower() != "true":
        return False
    if not request.options.s3_acl:
        return request.identity.owns_account(request.environ)
    try:
        access.check_bucket(
            request,
            "s3:BypassGovernanceRetention",
            OWNER,
            request.bucket_info(),
            request.account,
            request.bucket,
            request.target.key,
        )
    except S3Error:
        return False
    return True


def _need_lock(request: S3Request) -> None:
    if configuration_of(request.bucket_info()) is None:
        raise _no_lock()


def _no_lock() -> S3Error:
    return S3Error("InvalidRequest", "Bucket is missing Object Lock Configuration")


def get_retention(request: S3Request) -> Response:
    _need_lock(request)
    headers, _ = headers_of(request)
    access.check_object(request, headers, acl.READ, "s3:GetObjectRetention")
    kept = locks.retention_of(headers)
    if kept is None:
        raise S3Error(
            "NoSuchObjectLockConfiguration", "The specified object does not have a ObjectLock configuration", Key=request.key
        )
    writer = Writer("Retention").leaf("Mode", kept.mode).leaf("RetainUntilDate", kept.until)
    return Response(200, body=writer.to_bytes(), content_type="application/xml")


def put_retention(request: S3Request) -> Response:
    _need_lock(request)
    document = request.read_xml("Retention", MAX_BODY, "MalformedXML")
    now_s, wanted = time.time(), None
    if next(document.children(), None) is not None:  # an empty document takes the retention away
        wanted = locks.retention(document.value("Mode"), document.value("RetainUntilDate"), now_s)
    with to_restate(request) as headers:
        if not locks.may_change(locks.retention_of(headers), wanted, now_s, bypasses(request)):
            raise S3Error("AccessDenied", PROTECTED)
        restate(request, headers, {locks.CHANGED_RETENTION: wanted.encode() if wanted is not None else "none"})
    return Response(200, body=b"")


def get_legal_hold(request: S3Request) -> Response:
    _need_lock(request)
    headers, _ = headers_of(request)
    access.check_object(request, headers, acl.READ, "s3:GetObjectLegalHold")
    hold = locks.legal_hold_of(headers)
    if not hold:
        raise S3Error(
            "NoSuchObjectLockConfiguration", "The specified object does not have a ObjectLock configuration", Key=request.key
        )
    return Response(200, body=Writer("LegalHold").leaf("Status", hold).to_bytes(), content_type="application/xml")


def put_legal_hold(request: S3Request) -> Response:
    _need_lock(request)
    status = request.read_xml("LegalHold", MAX_BODY, "MalformedXML").value("Status")
    if status not in ("ON", "OFF"):
        raise S3Error("MalformedXML")
    with to_restate(request) as headers:
        restate(request, headers, {locks.CHANGED_LEGAL_HOLD: status})
    return Response(200, body=b"")


ROUTES = (
    Route(BUCKET, "GET", get_configuration, "s3:GetBucketObjectLockConfiguration", OWNER, sub="object-lock"),
    Route(BUCKET, "PUT", put_configuration, "s3:PutBucketObjectLockConfiguration", OWNER, sub="object-lock"),
    Route(OBJECT, "GET", get_retention, "s3:GetObjectRetention", acl.READ, sub="retention", on_object=True),
    Route(OBJECT, "PUT", put_retention, "s3:PutObjectRetention", OWNER, sub="retention"),
    Route(OBJECT, "GET", get_legal_hold, "s3:GetObjectLegalHold", acl.READ, sub="legal-hold", on_object=True),
    Route(OBJECT, "PUT", put_legal_hold, "s3:PutObjectLegalHold", OWNER, sub="legal-hold"),
)
