"""Encryption of what an S3 request writes and reads, done by the filter ``encryption`` to the right (``spec: s3-api 3.16``).

The filter finds in the environ what is asked for: ``CUSTOMER_KEY``, with which it wraps the key of the body, ``ENCRYPTS``,
for a write where it else encrypts nothing, and ``KMS_KEY``, the root secret to do it with. Without the filter nothing would
be encrypted, so what asks for it is refused. Keys of a key manager are root secrets of the filter ``keymaster``, those that
its option ``kms_keys`` offers.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from keelstore.common.headers import Headers
from keelstore.common.http import CUSTOMER_KEY, ENCRYPTS, KMS_KEY
from keelstore.common.middleware.crypto.told import CIPHER, SECRET_ID
from keelstore.common.middleware.s3api import documents, sse, xml
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.request import OBJECT_SYSMETA, S3Request
from keelstore.common.middleware.s3api.sse import AES256, KMS, CustomerKey, Wanted
from keelstore.common.registry import registered

MARK: Final = OBJECT_SYSMETA + "Sse-C"  # of an object, or of the marker of an upload in parts: the key's
SSE: Final = OBJECT_SYSMETA + "Sse"  # of such a marker: its parts are to be encrypted
KMS_MARK: Final = OBJECT_SYSMETA + "Sse-Kms"  # of an object, or of such a marker: the id of the key
DEFAULT: Final = "encryption"  # the document of a bucket
_BUCKET_DEFAULT: Final = f"s3api-{DEFAULT}"
_SHOWN, _SHOWN_KEY = sse.ALGORITHM.lower(), sse.KMS_KEY_ID.lower()


def needs_filter() -> None:
    """Raises S3Error where nothing can be encrypted."""
    if registered("encryption") is None:
        raise S3Error(
            "NotImplemented", "This store has no encryption: the filter is not in its pipeline.", Header=sse.ALGORITHM.lower()
        )


def offered() -> Collection[str]:
    """Ids of the keys that may be named."""
    found: Collection[str] = (registered("keymaster") or {}).get("kms_keys", ())
    return found


def default_of(document: xml.Element, is_new: bool = False) -> Wanted:
    """What the document of a bucket wants for writes that ask for nothing. Raises S3Error."""
    rules = list(document.children("Rule"))
    default = rules[0].find("ApplyServerSideEncryptionByDefault") if len(rules) == 1 else None
    if default is None:
        raise S3Error("MalformedXML")
    algorithm, key = default.value("SSEAlgorithm"), default.value("KMSMasterKeyID")
    if algorithm == KMS:
        return Wanted(sse.kms_key(key, offered(), "SSEAlgorithm"))
    if algorithm == "aws:kms:dsse":
        raise S3Error("NotImplemented", "Encryption in two layers is not implemented.", Header="SSEAlgorithm")
    if algorithm != AES256:
        raise S3Error("MalformedXML")
    if key and is_new:
        raise S3Error("InvalidArgument", "A key of a key manager is only for aws:kms.", ArgumentName="KMSMasterKeyID")
    return Wanted()


def _default(request: S3Request) -> Wanted | None:
    """What the bucket wants. Raises S3Error."""
    if _BUCKET_DEFAULT not in request.bucket_info().sysmeta or registered("encryption") is None:
        return None
    data = documents.load(request, DEFAULT)
    return default_of(xml.parse(data)) if data else None  # it was looked at when it came


def of_write(request: S3Request) -> dict[str, str]:
    """Prepare to write an object as its headers, or its bucket, want it; gives what the object is to keep. Raises S3Error."""
    wanted = sse.wanted(request.header, offered())
    key = sse.customer_key(request.header)
    if key is not None:
        needs_filter()
        request.environ[CUSTOMER_KEY] = key.key
        return {MARK: key.mark()}
    if wanted is not None:
        needs_filter()
    else:
        wanted = _default(request)
    if wanted is None:
        return {}
    request.environ[ENCRYPTS] = True
    if wanted.kms_key is None:
        return {}
    request.environ[KMS_KEY] = wanted.kms_key
    return {KMS_MARK: wanted.kms_key}


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
    if key := marker.get(KMS_MARK):
        request.environ[KMS_KEY] = key


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
        found.pop(_SHOWN, None)
        found.pop(_SHOWN_KEY, None)
    elif request.method != "GET" and request.method != "HEAD":
        filtering = registered("encryption")
        if key := request.environ.get(KMS_KEY):
            found[_SHOWN], found[_SHOWN_KEY] = KMS, key
        elif request.environ.get(ENCRYPTS) or (filtering is not None and filtering.get("enabled")):
            found[_SHOWN] = AES256


def show_stored(headers: Headers, found: Headers) -> None:
    """Add to the answer ``found`` how the object whose ``headers`` were read is encrypted."""
    is_encrypted, key = headers.get(CIPHER) is not None, headers.get(KMS_MARK)
    # A copy that a client of Swift makes has the mark, but not the key; of nothing there is nothing to encrypt.
    if key and (headers.get(SECRET_ID) == key if is_encrypted else headers.get("Content-Length") == "0"):
        found[_SHOWN], found[_SHOWN_KEY] = KMS, key
    elif is_encrypted:
        found[_SHOWN] = AES256
