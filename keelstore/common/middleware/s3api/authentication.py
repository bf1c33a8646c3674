"""Who signed a request: reads what version 4 and version 2 put into headers and query (``spec: s3-api 1.2-1.7``).

Whether the signature is right only the auth filter to the right can tell, who knows the secret: it calls ``Signed.check``.
"""

from __future__ import annotations

import calendar
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import mktime_tz, parsedate_tz
from functools import lru_cache
from typing import Any, Final

from keelstore.common.headers import environ_key
from keelstore.common.http import Environ
from keelstore.common.middleware.s3api import signature as sign
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.options import S3ApiOptions

MAX_EXPIRES_S: Final = 7 * 86400
LONG_AGO_S: Final = 5
# Headers that act, and so must be signed when they are there (security: S03, R01). Version 4 signs the names of its choice.
_MUST_BE_SIGNED = "HTTP_X_AMZ_"
_NEEDS_NO_SIGNATURE = frozenset(
    ("HTTP_X_AMZ_CONTENT_SHA256", "HTTP_X_AMZ_DATE", "HTTP_X_AMZN_TRACE_ID", "HTTP_X_AMZ_TE")
)
_HEX64 = re.compile(r"[0-9a-fA-F]{64}\Z")
_SPLIT = re.compile(r"[,\s]+")
STREAMS: Final = frozenset(
    (
        "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
        "STREAMING-AWS4-HMAC-SHA256-PAYLOAD",
        "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER",
    )
)
_ECDSA = frozenset(("STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD", "STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD-TRAILER"))


@dataclass
class Signed:
    """A request's claim. ``kind``: ``v4``, ``v4-query``, ``v2``, ``v2-query``. ``signing_key``: after a right check."""

    kind: str
    access_key: str
    signature: str
    string_to_sign: bytes
    timestamp: str = ""  # of version 4, as signed
    scope: sign.Scope | None = None
    names: tuple[str, ...] = ()  # signed headers, lower case
    canonical_request: str = ""
    payload_hash: str = sign.UNSIGNED_PAYLOAD
    also_signed: bytes = b""  # another text that a right signature of version 2 may be of
    signing_key: bytes | None = field(default=None, repr=False)
    _known: dict[str, bool] = field(default_factory=dict, repr=False)

    @property
    def is_v4(self) -> bool:
        return self.kind.startswith("v4")

    def check(self, secret: str) -> bool:
        """Whether ``secret`` made the signature. The key is kept then, for the chunks of a body that is signed too."""
        known = self._known.get(secret)
        if known is None:
            if self.scope is not None:
                key = self.scope.key(secret)
                known = sign.same(sign.signature(key, self.string_to_sign), self.signature)
                self.signing_key = key if known else None
            else:
                texts = (self.string_to_sign, self.also_signed) if self.also_signed else (self.string_to_sign,)
                known = any(sign.same(sign.signature_v2(secret, text), self.signature) for text in texts)
            self._known = {secret: known}
        return known

    def mismatch(self, text: str | None = None, provided: str | None = None) -> S3Error:
        """What is told to whose signature is wrong: all that is needed to find out why. ``text``: what is signed, where that
        is a chunk of the body and not the request; ``provided``: the chunk's signature."""
        signed = self.string_to_sign if text is None else text.encode("latin-1")
        fields: dict[str, Any] = {
            "AWSAccessKeyId": self.access_key,
            "StringToSign": signed.decode("latin-1"),
            "SignatureProvided": self.signature if provided is None else provided,
            "StringToSignBytes": signed.hex(" "),
        }
        if self.is_v4:
            fields["CanonicalRequest"] = self.canonical_request
            fields["CanonicalRequestBytes"] = self.canonical_request.encode("latin-1").hex(" ")
        return S3Error("SignatureDoesNotMatch", **fields)


def kind_of(environ: Environ) -> str:
    """How a request is signed; '' when it is not, at the price of two look-ups."""
    query = environ.get("QUERY_STRING")
    if query:
        if "X-Amz-Credential=" in query or "X-Amz-Algorithm=" in query:
            return "v4-query"
        if "AWSAccessKeyId=" in query:
            return "v2-query"
    header = environ.get("HTTP_AUTHORIZATION")
    if header and header.startswith("AWS"):
        return "v4" if header.startswith("AWS4-") else "v2" if header.startswith("AWS ") else ""
    return ""


def read(environ: Environ, kind: str, options: S3ApiOptions, bucket_of_host: str, now_s: float) -> Signed:
    """The claim of a request, its time checked. Raises S3Error."""
    query = environ.get("QUERY_STRING", "")
    pairs = sign.query_pairs(query)
    if kind.endswith("-query") and environ.get("HTTP_AUTHORIZATION", "").startswith("AWS"):
        raise S3Error(
            "InvalidArgument",
            "Only one auth mechanism allowed; only the X-Amz-Algorithm query parameter, Signature query string "
            "parameter or the Authorization header should be specified",
            ArgumentName="Authorization",
        )
    if kind.startswith("v4"):
        return _read_v4(environ, kind, options, pairs, now_s)
    if not options.allow_signature_v2:
        raise _no_v2()
    return _read_v2(environ, kind, options, bucket_of_host, pairs, now_s)


def read_form(fields: Mapping[str, str], policy: str, options: S3ApiOptions) -> Signed:
    """The claim of a form whose ``policy`` is signed. ``fields``: by lower-case name. Raises S3Error."""

    def get(name: str) -> str:
        value = fields.get(name)
        if not value:
            raise S3Error("InvalidArgument", f"Bucket POST must contain a field named '{name}'.", ArgumentName=name)
        return value

    names, text = tuple(sorted(fields)), policy.encode("utf-8", "surrogateescape")
    if "x-amz-signature" in fields or "x-amz-credential" in fields:
        algorithm = get("x-amz-algorithm")
        if algorithm != sign.ALGORITHM:
            raise S3Error(
                "InvalidArgument", f'X-Amz-Algorithm only supports "{sign.ALGORITHM}"', ArgumentName="x-amz-algorithm"
            )
        access_key, scope = _credential(get("x-amz-credential"), "InvalidArgument")
        timestamp = get("x-amz-date")
        if not re.fullmatch(r"\d{8}T\d{6}Z", timestamp) or timestamp[:8] != scope.date:
            raise S3Error("InvalidArgument", "The field x-amz-date is not valid.", ArgumentName="x-amz-date")
        _check_region(scope, options, "InvalidArgument")
        return Signed("v4-post", access_key, get("x-amz-signature"), text, timestamp, scope, names)
    if not options.allow_signature_v2:
        raise _no_v2()
    return Signed("v2-post", get("awsaccesskeyid"), get("signature"), text, names=names)


def _no_v2() -> S3Error:
    return S3Error(
        "InvalidRequest",
        "The authorization mechanism you have provided is not supported. Please use AWS4-HMAC-SHA256.",
    )


# -- version 4 ---------------------------------------------------------------------------------------------------------


def _read_v4(environ: Environ, kind: str, options: S3ApiOptions, pairs: sign.Pairs, now_s: float) -> Signed:
    by_query = kind == "v4-query"
    given = _query_fields(pairs) if by_query else _header_fields(environ)
    malformed = "AuthorizationQueryParametersError" if by_query else "AuthorizationHeaderMalformed"
    access_key, scope = _credential(given["Credential"], malformed)
    timestamp = given["Date"] if by_query else _date_header(environ)
    signed_at = _parse_time(timestamp)
    if by_query:
        _check_expiry(given["Expires"], timestamp, signed_at, now_s, options)
    else:
        _check_skew(signed_at, now_s, options)
    if len(timestamp) == 16 and timestamp[:8] != scope.date:
        raise S3Error(
            malformed,
            f'Invalid credential date "{scope.date}". This date is not the same as X-Amz-Date: "{timestamp[:8]}".',
        )
    _check_region(scope, options, malformed)
    names = tuple(sorted(name for name in given["SignedHeaders"].lower().split(";") if name))
    if "host" not in names:
        raise S3Error(
            "AccessDenied", "There were headers present in the request which were not signed", HeadersNotSigned="host"
        )
    _check_all_signed(environ, names)
    payload = environ.get("HTTP_X_AMZ_CONTENT_SHA256")
    if not by_query:
        payload = _checked_payload(payload)
    elif payload is None:
        payload = dict(pairs).get(b"X-Amz-Content-Sha256", sign.UNSIGNED_PAYLOAD.encode()).decode("latin-1")
    headers = sign.canonical_headers(names, lambda name: environ.get(environ_key(name)))
    if len(timestamp) != 16:  # a Date header: it is the ISO form that is signed
        timestamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(signed_at))
    canonical = sign.canonical_request(
        environ["REQUEST_METHOD"], _raw_path(environ), pairs, names, headers or "", payload
    )
    found = Signed(
        kind,
        access_key,
        given["Signature"],
        sign.string_to_sign(timestamp, scope, canonical),
        timestamp,
        scope,
        names,
        canonical,
        payload,
    )
    if headers is None:
        raise found.mismatch()
    return found


def _raw_path(environ: Environ) -> str:
    raw = environ.get("RAW_PATH_INFO")
    return str(raw) if raw is not None else sign.quote(environ["PATH_INFO"].encode("latin-1"))


def _header_fields(environ: Environ) -> dict[str, str]:
    text = environ["HTTP_AUTHORIZATION"]
    algorithm, _, rest = text.partition(" ")
    if algorithm != sign.ALGORITHM:
        raise S3Error(
            "NotImplemented" if algorithm.startswith("AWS4-ECDSA") else "InvalidArgument",
            "Unsupported Authorization Type",
            ArgumentName="Authorization",
            ArgumentValue=algorithm,
        )
    found = dict(part.partition("=")[::2] for part in _SPLIT.split(rest.strip()) if part)
    for name, code in (
        ("Credential", "AuthorizationHeaderMalformed"),
        ("SignedHeaders", "AuthorizationHeaderMalformed"),
        ("Signature", "AccessDenied"),
    ):
        if not found.get(name):
            raise S3Error(
                code,
                f"The authorization header is malformed; the field {name} is missing."
                if code != "AccessDenied"
                else "",
            )
    return found


def _query_fields(pairs: sign.Pairs) -> dict[str, str]:
    found = {name.decode("latin-1"): value.decode("latin-1") for name, value in pairs}
    fields = {}
    for name in ("Algorithm", "Credential", "Date", "Expires", "SignedHeaders", "Signature"):
        value = found.get(f"X-Amz-{name}")
        if not value:
            raise S3Error(
                "AuthorizationQueryParametersError",
                f"Query-string authentication version 4 requires the X-Amz-{name} parameter.",
            )
        fields[name] = value
    if fields["Algorithm"] != sign.ALGORITHM:
        raise S3Error("AuthorizationQueryParametersError", f'X-Amz-Algorithm only supports "{sign.ALGORITHM}"')
    return fields


def _credential(text: str, malformed: str) -> tuple[str, sign.Scope]:
    parts = text.split("/")
    if len(parts) != 5 or not parts[0]:
        raise S3Error(
            malformed, 'The Credential is malformed; expecting "<YOUR-AKID>/YYYYMMDD/REGION/SERVICE/aws4_request".'
        )
    access_key, date, region, service, terminal = parts
    if service != sign.SERVICE:
        raise S3Error(malformed, f'The service "{service}" in the Credential is wrong; expecting "{sign.SERVICE}".')
    if terminal != sign.TERMINAL:
        raise S3Error(malformed, f'The terminal "{terminal}" in the Credential is wrong; expecting "{sign.TERMINAL}".')
    if not re.fullmatch(r"\d{8}", date):
        raise S3Error(malformed, f'The date "{date}" in the Credential is wrong; expecting YYYYMMDD.')
    return access_key, sign.Scope(date, region, service)


def _check_region(scope: sign.Scope, options: S3ApiOptions, malformed: str) -> None:
    expected = options.location
    if (
        scope.region in (expected, expected.lower())
        or scope.region in options.extra_regions
        or "*" in options.extra_regions
    ):
        return
    raise S3Error(
        malformed,
        f"The authorization header is malformed; the region '{scope.region}' is wrong; expecting '{expected}'",
        Region=expected,
        headers={"x-amz-bucket-region": expected},
    )


def _check_all_signed(environ: Environ, names: tuple[str, ...]) -> None:
    keys = {environ_key(name) for name in names}
    for key in environ:
        if key.startswith(_MUST_BE_SIGNED) and key not in keys and key not in _NEEDS_NO_SIGNATURE:
            raise S3Error(
                "AccessDenied",
                "There were headers present in the request which were not signed",
                HeadersNotSigned=key[5:].replace("_", "-").replace("=5F", "_").lower(),
            )


def _checked_payload(value: str | None) -> str:
    if value is None:
        raise S3Error("InvalidRequest", "Missing required header for this request: x-amz-content-sha256")
    if _HEX64.match(value) or value == sign.UNSIGNED_PAYLOAD or value in STREAMS:
        return value
    if value in _ECDSA:
        raise S3Error("NotImplemented", f"{value} is not supported.")
    raise S3Error(
        "InvalidArgument",
        "x-amz-content-sha256 must be UNSIGNED-PAYLOAD, STREAMING-UNSIGNED-PAYLOAD-TRAILER, "
        "STREAMING-AWS4-HMAC-SHA256-PAYLOAD, STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER or a valid sha256 value.",
        ArgumentName="x-amz-content-sha256",
        ArgumentValue=value,
    )


# -- version 2 ---------------------------------------------------------------------------------------------------------


def _read_v2(
    environ: Environ, kind: str, options: S3ApiOptions, bucket_of_host: str, pairs: sign.Pairs, now_s: float
) -> Signed:
    get: Callable[..., str] = environ.get
    if kind == "v2-query":
        found = {name.decode("latin-1"): value.decode("latin-1") for name, value in pairs}
        access_key, claimed, date = (
            found.get("AWSAccessKeyId", ""),
            found.get("Signature", ""),
            found.get("Expires", ""),
        )
        if not (access_key and claimed and date):
            raise S3Error(
                "AccessDenied",
                "Query-string authentication requires the Signature, Expires and AWSAccessKeyId parameters",
            )
        try:
            expires = float(date)
        except ValueError:
            expires = -1
        if not 0 <= expires < 1 << 31:
            raise S3Error("AccessDenied", f"Invalid date (should be seconds since epoch): {date}")
        if expires < now_s:
            raise S3Error("AccessDenied", "Request has expired", Expires=_iso(expires), ServerTime=_iso(now_s))
    else:
        access_key, colon, claimed = get("HTTP_AUTHORIZATION", "")[4:].strip().rpartition(":")
        if not (colon and access_key and claimed):
            raise S3Error(
                "InvalidArgument",
                "AWS authorization header is invalid. Expected AwsAccessKeyId:signature",
                ArgumentName="Authorization",
            )
        _check_skew(_parse_time(_date_header(environ)), now_s, options)
        date = "" if "HTTP_X_AMZ_DATE" in environ else get("HTTP_DATE", "")
    amz = [
        (key[5:].replace("_", "-").replace("=5F", "_").lower(), value.strip())
        for key, value in environ.items()
        if key.startswith("HTTP_X_AMZ_")
    ]
    path = _raw_path(environ)

    def text_of(path: str) -> bytes:
        content_type = get("CONTENT_TYPE", "")
        return sign.string_to_sign_v2(
            environ["REQUEST_METHOD"], path, bucket_of_host, pairs, date, get("HTTP_CONTENT_MD5", ""), content_type, amz
        )

    # Newer clients sign a slash after a bucket that they do not send.
    also = text_of(path + "/") if not bucket_of_host and path.count("/") == 1 and len(path) > 1 else b""
    return Signed(kind, access_key, claimed, text_of(path), also_signed=also)


# -- times -------------------------------------------------------------------------------------------------------------


def _date_header(environ: Environ) -> str:
    found = environ.get("HTTP_X_AMZ_DATE")  # also when it is empty, which is no time
    return str(found if found is not None else environ.get("HTTP_DATE", ""))


def _parse_time(text: str) -> float:
    """Seconds since the epoch of an ISO basic or RFC 2822 time. Raises S3Error."""
    try:
        if len(text) == 16 and text[8] == "T" and text[15] == "Z":
            found = _parse_basic_time(text)
        else:
            parsed = parsedate_tz(text)
            found = (
                float(mktime_tz(parsed))
                if parsed
                else float(calendar.timegm(time.strptime(text[:19], "%Y-%m-%dT%H:%M:%S")))
            )
    except (ValueError, OverflowError, TypeError):
        found = -1.0
    if found < 0:
        raise S3Error("AccessDenied", "AWS authentication requires a valid Date or x-amz-date header")
    return found


@lru_cache(maxsize=256)  # what is signed in one second has one time
def _parse_basic_time(text: str) -> float:
    return float(calendar.timegm(time.strptime(text, "%Y%m%dT%H%M%SZ")))


def _check_skew(signed_at: float, now_s: float, options: S3ApiOptions) -> None:
    if abs(now_s - signed_at) > options.allowable_clock_skew:
        raise S3Error(
            "RequestTimeTooSkewed",
            RequestTime=_iso(signed_at),
            ServerTime=_iso(now_s),
            MaxAllowedSkewMilliseconds=options.allowable_clock_skew * 1000,
        )


def _check_expiry(text: str, timestamp: str, signed_at: float, now_s: float, options: S3ApiOptions) -> None:
    wrong = "AuthorizationQueryParametersError"
    if not re.fullmatch(r"[+-]?\d{1,19}", text) or int(text) >= 1 << 63:
        raise S3Error(wrong, "X-Amz-Expires should be a number")
    # AWS and Swift answer 400 to what is no time; RGW, and ceph/s3-tests with it, 403. What would have ended long ago has.
    if int(text) < 0 and signed_at + int(text) + LONG_AGO_S >= now_s:
        raise S3Error(wrong, "X-Amz-Expires must be non-negative")
    if int(text) > MAX_EXPIRES_S:
        raise S3Error(
            wrong,
            "X-Amz-Expires must be less than a week (in seconds); that is, the given X-Amz-Expires must be less than "
            "604800 seconds",
        )
    if len(timestamp) != 16:
        raise S3Error(wrong, "X-Amz-Date must be in the ISO8601 Long Format \"yyyyMMdd'T'HHmmss'Z'\"")
    if signed_at > now_s + options.allowable_clock_skew:
        raise S3Error("AccessDenied", "Request is not valid yet", ServerTime=_iso(now_s))
    if signed_at + int(text) < now_s or int(text) == 0:
        raise S3Error(
            "AccessDenied",
            "Request has expired",
            Expires=_iso(signed_at + int(text)),
            ServerTime=_iso(now_s),
        )


def _iso(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(max(0, min(seconds, 253402300799))))
