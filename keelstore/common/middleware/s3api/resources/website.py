"""A bucket as a web site: get, put, delete (``spec: s3-api 3.17``).

The site itself is Swift's: the ``staticweb`` filter serves it at the container's own URL, by the same two settings, whoever
made them. What it does not do (redirects, rules) is refused.
"""

from __future__ import annotations

from typing import Final

from keelstore.common.headers import text_to_wire, wire_to_text
from keelstore.common.http import Response
from keelstore.common.middleware.s3api import xml
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.outcome import change_bucket
from keelstore.common.middleware.s3api.request import S3Request
from keelstore.common.middleware.s3api.routing import BUCKET, OWNER, Route

MAX_BODY: Final = 1 << 17
INDEX: Final = "X-Container-Meta-Web-Index"
ERROR: Final = "X-Container-Meta-Web-Error"


def get_website(request: S3Request) -> Response:
    meta = request.bucket_info().meta
    index, error = wire_to_text(meta.get("web-index", "")), wire_to_text(meta.get("web-error", ""))
    if not index and not error:
        raise S3Error("NoSuchWebsiteConfiguration", BucketName=request.bucket)
    writer = xml.Writer("WebsiteConfiguration")
    if index:
        writer.open("IndexDocument").leaf("Suffix", index).close()
    if error:
        writer.open("ErrorDocument").leaf("Key", error).close()
    return Response(200, body=writer.to_bytes(), content_type="application/xml")


def put_website(request: S3Request) -> Response:
    request.bucket_info()
    document = request.read_xml("WebsiteConfiguration", MAX_BODY, "MalformedXML")
    for name in ("RedirectAllRequestsTo", "RoutingRules"):
        if document.find(name) is not None:
            raise S3Error("NotImplemented", "Redirects of web sites are not implemented.", Header=name)
    index, error = document.find("IndexDocument"), document.find("ErrorDocument")
    if index is None:
        raise S3Error("MalformedXML")
    change_bucket(request, {
        INDEX: _name(index.value("Suffix"), "IndexDocument Suffix", has_slash=False),
        ERROR: _name(error.value("Key"), "ErrorDocument Key") if error is not None else "",
    })  # fmt: skip
    return Response(200, body=b"")


def _name(text: str | None, what: str, has_slash: bool = True) -> str:
    """As a header has it. Raises S3Error for what is no name of a page."""
    if not text or text != text.strip() or not text.isprintable() or (not has_slash and "/" in text):
        raise S3Error("InvalidArgument", f"The {what} is not well formed", ArgumentName=what, ArgumentValue=text or "")
    return text_to_wire(text)


def delete_website(request: S3Request) -> Response:
    request.bucket_info()
    change_bucket(request, {INDEX: "", ERROR: ""})
    return Response(204)


ROUTES = (
    Route(BUCKET, "GET", get_website, "s3:GetBucketWebsite", OWNER, sub="website"),
    Route(BUCKET, "PUT", put_website, "s3:PutBucketWebsite", OWNER, sub="website"),
    Route(BUCKET, "DELETE", delete_website, "s3:DeleteBucketWebsite", OWNER, sub="website"),
)
