"""An object that a browser's form uploads: POST of ``multipart/form-data`` to a bucket (``spec: s3-api 1.8``).

The fields come before the file, so they are read first, and small; then it is known who signed, what the policy of the form
allows, and how the object is to be called. The file is the body of an ordinary PutObject, made of the fields that mean
something there: what a form may say is an allow-list (``security: R04, R06, S03``). It is stored only when the form has come
to its end, with one file in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import quote, urlsplit

from keelstore.common.errors import RequestError
from keelstore.common.headers import Headers, environ_key, wire_to_text
from keelstore.common.http import Environ, Response
from keelstore.common.httpinput import FileLike
from keelstore.common.middleware.form_data import Form, Part, boundary_of
from keelstore.common.middleware.s3api import access, acl, authentication, post_policy, tags, xml
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.identity import identify
from keelstore.common.middleware.s3api.request import S3Request
from keelstore.common.middleware.s3api.resources import objects
from keelstore.common.middleware.s3api.routing import OBJECT, Route
from keelstore.common.middleware.s3api.target import MAX_KEY_BYTES, Target

FORM_KIND: Final = "form"
MAX_FIELDS_BYTES: Final = 20 << 10
FILE: Final = "file"
_FILENAME: Final = "${filename}"
_PUT: Final = Route(OBJECT, "PUT", objects.put, "s3:PutObject", acl.WRITE)
# Fields that are headers of a PutObject, by lower-case name.
_AS_HEADER: Final = {
    "acl": "X-Amz-Acl",
    "content-type": "Content-Type",
    "cache-control": "Cache-Control",
    "content-disposition": "Content-Disposition",
    "content-encoding": "Content-Encoding",
    "content-language": "Content-Language",
    "expires": "Expires",
    "x-amz-acl": "X-Amz-Acl",
    "x-amz-storage-class": "X-Amz-Storage-Class",
    "x-amz-website-redirect-location": "X-Amz-Website-Redirect-Location",
}
_AS_HEADER_PREFIXES: Final = (
    "x-amz-meta-", "x-amz-checksum-", "x-amz-grant-", "x-amz-object-lock-", "x-amz-server-side-encryption",
)  # fmt: skip
# What the form's own request says of itself and not of the object.
_DROPPED: Final = (
    "HTTP_X_AMZ_", "HTTP_IF_", "HTTP_RANGE", "HTTP_CONTENT_", "HTTP_CACHE_CONTROL", "HTTP_EXPIRES", "HTTP_X_DELETE_",
    "HTTP_X_ROBOTS_TAG", "HTTP_TRANSFER_ENCODING", "CONTENT_", "HTTP_EXPECT", "QUERY_STRING",
)  # fmt: skip


def is_form(environ: Environ) -> bool:
    """Whether a request without signature is such an upload, if it is for a bucket."""
    return (
        environ["REQUEST_METHOD"] == "POST"
        and environ.get("CONTENT_TYPE", "")[:19].lower() == "multipart/form-data"
        and not environ.get("QUERY_STRING")
    )


def upload(request: S3Request, now_s: float) -> Response:
    """``request``: the form's, of nobody yet. Raises S3Error."""
    boundary = boundary_of(request.environ.get("CONTENT_TYPE", ""))
    if boundary is None:
        raise S3Error("MalformedPOSTRequest")
    try:
        parts = iter(Form(request.environ["wsgi.input"], boundary))
        fields, file = _fields(parts)
    except RequestError as error:
        raise _malformed(error) from None
    key = fields.get("key", "").replace(_FILENAME, _base_name(wire_to_text(file.file_name or "")))
    if not key:
        raise S3Error(
            "InvalidArgument",
            "Bucket POST must contain a field named 'key'. If it is specified, please check the order of the fields.",
            ArgumentName="key",
            ArgumentValue="",
        )
    fields["key"] = key
    if len(key.encode("utf-8", "replace")) > MAX_KEY_BYTES:
        raise S3Error("KeyTooLongError")
    if "\x00" in key or any("\ud800" <= char <= "\udfff" for char in key):
        raise S3Error("InvalidArgument", "The key is not valid.", ArgumentName="key")
    policy = _authenticated(request, fields, now_s)
    content = _File(file, parts, policy)
    inner = _as_put(request, fields, content)
    access.check(inner, _PUT)
    try:
        stored = objects.put(inner)
    except RequestError:
        if inner.body is not None and inner.body.failure is not None:
            raise inner.body.failure from None
        raise
    finally:
        for name in ("s3api.backend_path", "swift.backend_path"):
            if name in inner.environ:
                request.environ[name] = inner.environ[name]
    return _answer(request, fields, stored)


def _fields(parts: Iterator[Part]) -> tuple[dict[str, str], Part]:
    """The fields by lower-case name, as text, and the file that follows them. Raises S3Error and RequestError."""
    found: dict[str, str] = {}
    left = MAX_FIELDS_BYTES
    for part in parts:
        name = wire_to_text(part.name).lower()
        if name == FILE:
            return found, part
        value = part.value(left + 1)
        left -= len(value) + len(name)
        if left < 0:
            raise S3Error("MaxPostPreDataLengthExceededError")
        if name in found:
            raise S3Error("InvalidArgument", f"POST requires exactly one {name}", ArgumentName=name)
        if name:
            found[name] = wire_to_text(value)
    raise S3Error(
        "InvalidArgument", "POST requires exactly one file upload per request.", ArgumentName=FILE, ArgumentValue="0"
    )


def _base_name(text: str) -> str:
    """Of a file; some browsers send whole paths, of Windows too."""
    return text.replace("\\", "/").rpartition("/")[2]


def _malformed(error: RequestError) -> S3Error:
    if error.status == 408:
        return S3Error("RequestTimeout", headers={"Connection": "close"})
    return S3Error("MalformedPOSTRequest", reason=error.reason.removeprefix("FormPost: ")[:60])


# -- who, and whether --------------------------------------------------------------------------------------------------


def _authenticated(request: S3Request, fields: Mapping[str, str], now_s: float) -> post_policy.PostPolicy | None:
    """The policy, whose form it allows; the request is its signer's from now on. None for nobody's form. Raises S3Error."""
    encoded = fields.get("policy")
    signs = any(name in fields for name in ("awsaccesskeyid", "signature", "x-amz-credential", "x-amz-signature"))
    if encoded is None:
        if signs:
            raise S3Error(
                "InvalidArgument",
                "Bucket POST must contain a field named 'policy'. If it is specified, please check the order of the fields.",
                ArgumentName="policy",
            )
        return None
    request.signed = authentication.read_form(fields, encoded, request.options)
    access_key = request.signed.access_key
    request.environ["swift.access_logging"] = {
        "user_id": access_key if len(access_key) <= 128 else access_key[:125] + "..."
    }
    request.identity = identify(request.environ, request.app, request.signed)
    policy = post_policy.read(encoded)
    policy.check(fields, request.bucket, now_s)
    return policy


# -- the object --------------------------------------------------------------------------------------------------------


def _as_put(request: S3Request, fields: Mapping[str, str], content: FileLike) -> S3Request:
    """The PutObject that the form amounts to. Raises S3Error."""
    environ = {key: value for key, value in request.environ.items() if not key.startswith(_DROPPED)}
    for name, value in fields.items():
        header = _AS_HEADER.get(name) or (name if name.startswith(_AS_HEADER_PREFIXES) else None)
        if header is None:
            continue
        if not value.isprintable() or not name.isascii() or not name.isprintable() or " " in name:
            raise S3Error("InvalidArgument", "A field holds a control character.", ArgumentName=name)
        environ[environ_key(header)] = value.encode("utf-8", "surrogateescape").decode("latin-1")
    if "tagging" in fields:
        environ["HTTP_X_AMZ_TAGGING"] = _tags(fields["tagging"])
    environ |= {
        "REQUEST_METHOD": "PUT",
        "QUERY_STRING": "",
        "HTTP_TRANSFER_ENCODING": "chunked",
        "wsgi.input": content,
    }
    target = Target(request.bucket, fields["key"], request.target.by_host)
    inner = S3Request(environ, request.app, request.options, target, request.signed, request.locate, request.index)
    inner.identity = request.identity
    return inner


def _tags(text: str) -> str:
    try:
        return tags.encode(tags.of_document(xml.parse(text.encode("utf-8", "replace"), "Tagging"), tags.MAX_OBJECT_TAGS))
    except xml.XmlError:
        raise S3Error("MalformedXML") from None


class _File(FileLike):
    """The content of the file. Raises S3Error before its end when the form is not whole, or the size not the right one."""

    __slots__ = ("_least", "_most", "_part", "_parts", "_size")

    def __init__(self, part: Part, parts: Iterator[Part], policy: post_policy.PostPolicy | None):
        super().__init__()
        self._part, self._parts, self._size = part, parts, 0
        self._least = policy.least or 0 if policy is not None else 0
        most = policy.most if policy is not None else None
        self._most = objects.MAX_PUT_BYTES if most is None else min(most, objects.MAX_PUT_BYTES)

    def _more(self, size: int) -> bytes:
        try:
            data = self._part.read1(size)
            if not data:
                self._check_rest()
        except RequestError as error:
            raise _malformed(error) from None
        self._size += len(data)
        if self._size > self._most:
            raise S3Error("EntityTooLarge", ProposedSize=self._size, MaxSizeAllowed=self._most)
        if not data and self._size < self._least:
            raise S3Error("EntityTooSmall", ProposedSize=self._size, MinSizeAllowed=self._least)
        return data

    def _check_rest(self) -> None:
        for part in self._parts:
            if part.name.lower() == FILE:
                raise S3Error("IncorrectNumberOfFilesInPostRequest")


# -- the answer --------------------------------------------------------------------------------------------------------


def _answer(request: S3Request, fields: Mapping[str, str], stored: Response) -> Response:
    headers, etag = Headers(stored.headers), stored.headers["ETag"]
    headers.pop("Content-Length", None)
    place = quote(f"/{fields['key']}" if request.target.by_host else f"/{request.bucket}/{fields['key']}", safe="/~")
    redirect = fields.get("success_action_redirect") or fields.get("redirect") or ""
    if _is_url(redirect):
        names = {"bucket": request.bucket, "key": fields["key"], "etag": etag}
        query = "&".join(f"{name}={quote(value, safe='~')}" for name, value in names.items())
        url, hash_sign, fragment = redirect.partition("#")
        headers["Location"] = f"{url}{'&' if '?' in url else '?'}{query}{hash_sign}{fragment}"
        return Response(303, headers, body=b"")
    location = headers["Location"] = request.host_url + place
    status = fields.get("success_action_status", "")
    if status == "201":
        writer = xml.Writer("PostResponse", namespace="").leaf("Location", location).leaf("Bucket", request.bucket)
        body = writer.leaf("Key", fields["key"]).leaf("ETag", etag).to_bytes()
        return Response(201, headers, body=body, content_type="application/xml")
    return Response(200 if status == "200" else 204, headers, body=b"")


def _is_url(text: str) -> bool:
    """Whether a browser can be sent there."""
    if not text.isascii() or not text.isprintable() or " " in text:
        return False
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.netloc)


