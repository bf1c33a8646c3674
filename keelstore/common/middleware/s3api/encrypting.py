"""Encryption of what an S3 request writes and reads, done by the filter ``encryption`` to the right (``spec: s3-api 3.16``).

The filter finds in the environ what is asked for: ``CUSTOMER_KEY``, with which it wraps the key of the body, and
``ENCRYPTS``, for a write where it else encrypts nothing. Without the filter nothing would be encrypted, so what asks for it
is refused.
"""

from __future__ import annotations

from typing import Final

from keelstore.common.headers import Headers
from keelstore.common.http import CUSTOMER_KEY, ENCRYPTS
from keelstore.common.middleware.s3api import sse
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.request import OBJECT_SYSMETA, S3Request
from keelstore.common.middleware.s3api.sse import AES256, CustomerKey
from keelstore.common.registry import registered

MARK: Final = OBJECT_SYSMETA + "Sse-C"  # of an object, or of the marker of an upload in parts: the key's
SSE: Final = OBJECT_SYSMETA + "Sse"  # of such a marker: its parts are to be encrypted
BUCKET_DEFAULT: Final = "s3api-encryption"


def needs_filter() -> None:
    """Raises S3Error where nothing can be encrypted."""
    if registered("encryption") is None:
        raise S3Error(
            "NotImplemented", "This store has no encryption: the filter is not in its pipeline.", Header=sse.ALGORITHM.lower()
        )


def of_write(request: S3Request) -> dict[str, str]:
    """Prepare to write an object as its headers, or its bucket, want it; gives what the object is to keep. Raises S3Error."""
    asked = sse.wants_encryption(request.header)
    key = sse.customer_key(request.header)
    if key is not None:
        needs_filter()
        request.environ[CUSTOMER_KEY] = key.key
        return {MARK: key.mark()}
    if asked:
        needs_filter()
    if asked or (BUCKET_DEFAULT in request.bucket_info().sysmeta and registered("encryption") is not None):
        request.environ[ENCRYPTS] = True
    return {}


def of_upload(request: S3Request) -> dict[str, str]:
    """As ``of_write``, of an upload in parts: what its marker is to keep."""
    kept = of_write(request)
    if request.environ.get(ENCRYPTS):
        kept[SSE] = AES256
    return kept


def of_part(request: S3Request, marker: Headers) -> None:
    """Prepare to write a part, or to complete the upload that ``marker`` began. Raises S3Error for the wrong key."""
    check_key(request, marker)
    if marker.get(SSE):
        needs_filter()
        request.environ[ENCRYPTS] = True


def of_read(request: S3Request) -> None:
    """Prepare to read an object. Raises S3Error for headers that are none of a read, or not right."""
    sse.refuse_on_read(request.header)
    key = sse.customer_key(request.header)
    if key is not None:
        request.environ[CUSTOMER_KEY] = key.key


def check_key(request: S3Request, headers: Headers, prefix: str = sse.CUSTOMER) -> CustomerKey | None:
    """The key that goes with an object whose ``headers`` were read; the environ has it. Raises S3Error for any other."""
    mark, key = headers.get(MARK) or None, sse.customer_key(request.header, prefix)
    if mark is None:
        if key is not None:
            raise S3Error("InvalidRequest", "The encryption parameters are not applicable to this object.")
        return None
    if key is None:
        raise S3Error(
            "InvalidRequest",
            "The object was stored using a form of Server Side Encryption. The correct parameters must be provided to "
            "retrieve the object.",
        )
    if not key.fits(mark):
        raise S3Error("InvalidRequest", "The provided encryption parameters did not match the ones used originally.")
    if prefix == sse.CUSTOMER:
        request.environ[CUSTOMER_KEY] = key.key
    return key


def show(request: S3Request, found: Headers) -> None:
    """Add to the answer ``found`` how what was written, or read, is encrypted."""
    if request.environ.get(CUSTOMER_KEY) is not None:
        found["x-amz-server-side-encryption-customer-algorithm"] = AES256
        found["x-amz-server-side-encryption-customer-key-MD5"] = request.header(f"{sse.CUSTOMER}-Key-Md5") or ""
        found.pop("x-amz-server-side-encryption", None)
    elif request.method != "GET" and request.method != "HEAD":
        filtering = registered("encryption")
        if request.environ.get(ENCRYPTS) or (filtering is not None and filtering.get("enabled")):
            found["x-amz-server-side-encryption"] = AES256
