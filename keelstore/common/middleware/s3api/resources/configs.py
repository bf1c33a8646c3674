"""Configuration documents of buckets that are kept and given back as they are, and those that are never there.

Here: CORS, lifecycle, encryption; and the answers of what is not offered, which clients that look at everything
(Terraform) need (``spec: s3-api 3.12-3.17``). What they do is done elsewhere: ``cors``, ``lifecycle``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from keelstore.common.http import Response
from keelstore.common.middleware.s3api import cors_rules, documents, encrypting, lifecycle_rules, xml
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.request import S3Request
from keelstore.common.middleware.s3api.routing import BUCKET, OWNER, Handler, Route

MAX_BODY: Final = 1 << 20


@dataclass(frozen=True)
class Config:
    """``check``: raises S3Error for a document that is not one; gives what is kept, or None to keep it as it came.
    ``noted``: buckets that have one must be found."""

    sub: str
    root: str
    absent: str
    action: str
    check: Callable[[S3Request, xml.Element], bytes | None]
    noted: bool = False

    def routes(self) -> tuple[Route, ...]:
        put_action = f"s3:Put{self.action}"
        return (
            Route(BUCKET, "GET", self.get, f"s3:Get{self.action}", OWNER, sub=self.sub),
            Route(BUCKET, "PUT", self.put, put_action, OWNER, sub=self.sub),
            Route(BUCKET, "DELETE", self.delete, put_action, OWNER, sub=self.sub),
        )

    def get(self, request: S3Request) -> Response:
        data = documents.load(request, self.sub.lower())
        if data is None:
            raise S3Error(self.absent, BucketName=request.bucket)
        return Response(200, body=data, content_type="application/xml")

    def put(self, request: S3Request) -> Response:
        request.bucket_info()
        data = request.read_body(MAX_BODY)
        if not data.strip():
            raise S3Error("MissingRequestBodyError")
        try:
            document = xml.parse(data, self.root)
        except xml.XmlError:
            raise S3Error("MalformedXML") from None
        kept = self.check(request, document) or data
        if self.noted:
            documents.note_bucket(request, self.sub)
        documents.store(request, self.sub.lower(), kept)
        return Response(200, body=b"")

    def delete(self, request: S3Request) -> Response:
        documents.remove(request, self.sub.lower())
        return Response(204)


def _check_cors(_request: S3Request, document: xml.Element) -> None:
    cors_rules.read(document)


def _check_lifecycle(_request: S3Request, document: xml.Element) -> bytes:
    return lifecycle_rules.write(lifecycle_rules.read(document))


def _check_encryption(_request: S3Request, document: xml.Element) -> None:
    encrypting.needs_filter()
    encrypting.default_of(document, is_new=True)


CONFIGS: Final = (
    Config("cors", "CORSConfiguration", "NoSuchCORSConfiguration", "BucketCORS", _check_cors),
    Config("lifecycle", "LifecycleConfiguration", "NoSuchLifecycleConfiguration", "LifecycleConfiguration", _check_lifecycle,
           noted=True),
    Config("encryption", "ServerSideEncryptionConfiguration", "ServerSideEncryptionConfigurationNotFoundError",
           "EncryptionConfiguration", _check_encryption),
)  # fmt: skip


# -- what is not offered -----------------------------------------------------------------------------------------------


def _fixed(root: str, inner: bytes = b"") -> Handler:
    def get(request: S3Request) -> Response:
        request.bucket_info()
        return Response(200, body=xml.Writer(root).raw(inner).to_bytes(), content_type="application/xml")

    return get


def _absent(code: str) -> Handler:
    def get(request: S3Request) -> Response:
        request.bucket_info()
        raise S3Error(code, BucketName=request.bucket)

    return get


def _nothing_to_delete(request: S3Request) -> Response:
    request.bucket_info()
    return Response(204)


def _put_notification(request: S3Request) -> Response:
    request.bucket_info()
    document = request.read_xml("NotificationConfiguration", MAX_BODY, "MalformedXML")
    if next(document.children(), None) is not None:
        raise S3Error("NotImplemented", "Notifications are not implemented.", Header="notification")
    return Response(200, body=b"")


def _put_logging(request: S3Request) -> Response:
    request.bucket_info()
    document = request.read_xml("BucketLoggingStatus", MAX_BODY, "MalformedXML")
    if document.find("LoggingEnabled") is not None:
        raise S3Error("NotImplemented", "Access logs of buckets are not implemented.", Header="logging")
    return Response(200, body=b"")


def _read(sub: str, action: str, handler: Handler) -> Route:
    return Route(BUCKET, "GET", handler, f"s3:Get{action}", OWNER, sub=sub)


_OFFERED_NOT: Final = (
    _read("logging", "BucketLogging", _fixed("BucketLoggingStatus")),
    Route(BUCKET, "PUT", _put_logging, "s3:PutBucketLogging", OWNER, sub="logging"),
    _read("notification", "BucketNotification", _fixed("NotificationConfiguration")),
    Route(BUCKET, "PUT", _put_notification, "s3:PutBucketNotification", OWNER, sub="notification"),
    _read("requestPayment", "BucketRequestPayment", _fixed("RequestPaymentConfiguration", b"<Payer>BucketOwner</Payer>")),
    _read("accelerate", "AccelerateConfiguration", _fixed("AccelerateConfiguration")),
    _read("replication", "ReplicationConfiguration", _absent("ReplicationConfigurationNotFoundError")),
    Route(BUCKET, "DELETE", _nothing_to_delete, "s3:PutReplicationConfiguration", OWNER, sub="replication"),
)  # fmt: skip

ROUTES = (*(route for config in CONFIGS for route in config.routes()), *_OFFERED_NOT)
