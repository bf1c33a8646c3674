"""Requests to the S3 front that no sane client sends: each a little or very wrong, most of them signed, all made of one seed."""

from __future__ import annotations

import hashlib
import random
import time
import zlib
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import quote, unquote_to_bytes
from xml.sax.saxutils import escape

from keelstore.common.headers import environ_key
from keelstore.common.http import Environ
from keelstore.common.middleware.s3api import signature as sign
from keelstore.common.middleware.s3api.resources import router
from keelstore.common.middleware.s3api.routing import BUCKET, OBJECT, SERVICE, SUB_RESOURCES

METHODS = ("GET", "PUT", "POST", "DELETE", "HEAD", "OPTIONS", "PATCH", "COPY", "get", "TRACE", "UPDATE")
CODINGS = ("STREAMING-UNSIGNED-PAYLOAD-TRAILER", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER",
           "STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD", "UNSIGNED-PAYLOAD", "STREAMING-", "0" * 64)
ODD = ("", "0", "1", "-1", "2", "10001", "99999999999999999999", "true", "null", "%", "%00", "\xff", "\xc3\xa9", "a b", "+", "../..", "'\"<&>", "x" * 3000,
       "bytes=0-0", "bytes=9-1", "*", '"x"', "2030-01-01T00:00:00Z", "Mon, 30 Nov 2026 00:00:00 GMT", "0001-01-01T00:00:00Z", "99999-01-01", "\t", "\x7f",
       "Enabled", "Suspended", "COMPLIANCE", "private", "public-read", "AES256", "aws:kms", "id=\"a:b\"", "uri=x", "a=1&b=2", "=", "²", "1e9", "0x10")
PARAMETERS = ("versionId", "partNumber", "max-keys", "max-parts", "max-uploads", "max-buckets", "marker", "prefix", "delimiter", "encoding-type",
              "list-type", "continuation-token", "start-after", "key-marker", "version-id-marker", "upload-id-marker", "part-number-marker",
              "fetch-owner", "response-content-type", "response-expires", "x-id", "format", "multipart-manifest", "temp_url_sig", "symlink", "bulk-delete")
HEADERS = ("Range", "If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since", "Content-Md5", "Content-Type", "Content-Encoding", "Cache-Control",
           "Expires", "Expect", "Origin", "Access-Control-Request-Method", "Access-Control-Request-Headers", "X-Amz-Acl", "X-Amz-Grant-Read", "X-Amz-Tagging",
           "X-Amz-Tagging-Directive", "X-Amz-Metadata-Directive", "X-Amz-Copy-Source", "X-Amz-Copy-Source-Range", "X-Amz-Copy-Source-If-Match",
           "X-Amz-Copy-Source-If-Modified-Since", "X-Amz-Storage-Class", "X-Amz-Server-Side-Encryption", "X-Amz-Server-Side-Encryption-Customer-Algorithm",
           "X-Amz-Server-Side-Encryption-Customer-Key", "X-Amz-Object-Lock-Mode", "X-Amz-Object-Lock-Retain-Until-Date", "X-Amz-Object-Lock-Legal-Hold",
           "X-Amz-Bypass-Governance-Retention", "X-Amz-Checksum-Crc32", "X-Amz-Checksum-Sha256", "X-Amz-Checksum-Algorithm", "X-Amz-Checksum-Type",
           "X-Amz-Checksum-Mode", "X-Amz-Sdk-Checksum-Algorithm", "X-Amz-Trailer", "X-Amz-Decoded-Content-Length", "X-Amz-Meta-A", "X-Amz-Meta-", "X-Amz-Mfa",
           "X-Amz-Object-Attributes", "X-Amz-Max-Parts", "X-Amz-Expected-Bucket-Owner", "X-Amz-Object-Ownership", "X-Amz-Bucket-Object-Lock-Enabled",
           "X-Amz-Mp-Object-Size", "X-Amz-If-Match-Size", "X-Amz-If-Match-Last-Modified-Time", "X-Amz-Website-Redirect-Location", "X-Amz-Date", "Date",
           "X-Object-Manifest", "X-Symlink-Target", "X-Static-Large-Object", "X-Auth-Token", "X-Delete-At", "X-Backend-Storage-Policy-Index", "X-Timestamp",
           "X-Copy-From", "Destination", "Transfer-Encoding")
ROUTES = sorted(router().keys())
TAGS = ("CreateBucketConfiguration", "LocationConstraint", "Delete", "Object", "Key", "VersionId", "Quiet", "ETag", "Size", "LastModifiedTime",
        "CompleteMultipartUpload", "Part", "PartNumber", "ChecksumCRC32", "VersioningConfiguration", "Status", "MfaDelete", "Tagging", "TagSet", "Tag", "Value",
        "AccessControlPolicy", "Owner", "ID", "AccessControlList", "Grant", "Grantee", "Permission", "URI", "CORSConfiguration", "CORSRule", "AllowedOrigin",
        "AllowedMethod", "MaxAgeSeconds", "LifecycleConfiguration", "Rule", "Filter", "Prefix", "And", "Expiration", "Days", "Date",
        "NoncurrentVersionExpiration", "NoncurrentDays", "AbortIncompleteMultipartUpload", "DaysAfterInitiation", "ObjectSizeGreaterThan",
        "ObjectLockConfiguration", "ObjectLockEnabled", "DefaultRetention", "Mode", "Years", "Retention", "RetainUntilDate", "LegalHold",
        "ServerSideEncryptionConfiguration", "ApplyServerSideEncryptionByDefault", "SSEAlgorithm", "PublicAccessBlockConfiguration", "BlockPublicAcls",
        "OwnershipControls", "ObjectOwnership", "WebsiteConfiguration", "NotificationConfiguration", "BucketLoggingStatus", "RequestPaymentConfiguration")
SIGNED = ("host", "content-md5", "content-type", "range")  # besides x-amz-*; there are headers that do not get as far as that
ROOTS = {"": "CreateBucketConfiguration", "delete": "Delete", "uploadId": "CompleteMultipartUpload", "versioning": "VersioningConfiguration",
         "tagging": "Tagging", "acl": "AccessControlPolicy", "cors": "CORSConfiguration", "lifecycle": "LifecycleConfiguration",
         "object-lock": "ObjectLockConfiguration", "retention": "Retention", "legal-hold": "LegalHold", "encryption": "ServerSideEncryptionConfiguration",
         "publicAccessBlock": "PublicAccessBlockConfiguration", "ownershipControls": "OwnershipControls", "website": "WebsiteConfiguration"}
GRANT = ('<AccessControlPolicy><Owner><ID>t:u</ID></Owner><AccessControlList><Grant><Grantee xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" '
         'xsi:type="CanonicalUser"><ID>t:u</ID></Grantee><Permission>FULL_CONTROL</Permission></Grant></AccessControlList></AccessControlPolicy>')
RIGHT = {  # documents that would do, to be damaged
    "delete": "<Delete><Object><Key>new</Key></Object><Object><Key>key</Key><VersionId>null</VersionId></Object><Quiet>true</Quiet></Delete>",
    "uploadId": "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>\"{etag}\"</ETag></Part></CompleteMultipartUpload>",
    "versioning": "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>", "acl": GRANT,
    "tagging": "<Tagging><TagSet><Tag><Key>k</Key><Value>v</Value></Tag></TagSet></Tagging>",
    "cors": "<CORSConfiguration><CORSRule><AllowedOrigin>*</AllowedOrigin><AllowedMethod>GET</AllowedMethod><MaxAgeSeconds>5</MaxAgeSeconds></CORSRule></CORSConfiguration>",
    "lifecycle": "<LifecycleConfiguration><Rule><ID>x</ID><Filter><Prefix>p</Prefix></Filter><Status>Enabled</Status><Expiration><Days>5</Days></Expiration></Rule>"
                 "</LifecycleConfiguration>",
    "object-lock": "<ObjectLockConfiguration><ObjectLockEnabled>Enabled</ObjectLockEnabled><Rule><DefaultRetention><Mode>GOVERNANCE</Mode><Days>1</Days>"
                   "</DefaultRetention></Rule></ObjectLockConfiguration>",
    "retention": "<Retention><Mode>GOVERNANCE</Mode><RetainUntilDate>2099-01-01T00:00:00Z</RetainUntilDate></Retention>",
    "legal-hold": "<LegalHold><Status>ON</Status></LegalHold>",
    "encryption": "<ServerSideEncryptionConfiguration><Rule><ApplyServerSideEncryptionByDefault><SSEAlgorithm>AES256</SSEAlgorithm>"
                  "</ApplyServerSideEncryptionByDefault></Rule></ServerSideEncryptionConfiguration>",
    "publicAccessBlock": "<PublicAccessBlockConfiguration><BlockPublicAcls>true</BlockPublicAcls></PublicAccessBlockConfiguration>",
    "ownershipControls": "<OwnershipControls><Rule><ObjectOwnership>ObjectWriter</ObjectOwnership></Rule></OwnershipControls>"}
LAUGHS = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10 if n else "lol"}">' for n in range(10))
POLICIES = ('{"Version":"2012-10-17","Statement":[]}', '{"Statement":{"Effect":"Allow","Principal":"*","Action":"s3:*","Resource":"arn:aws:s3:::b"}}',
            "[" * 3000, '{"Statement":[1,null,"x",{}]}', '{"Statement":[{"Effect":[],"Principal":{"AWS":{}},"Action":{"a":1},"Resource":null}]}', "null", "1e999",
            '{"Version":1e400,"Statement":"\\ud800"}', '{"a":1,"a":2}')


@dataclass
class Known:
    """What there is, so that some requests hit it."""

    user: tuple[str, str]
    buckets: Sequence[str]
    keys: Sequence[str]
    uploads: list[str] = field(default_factory=list)
    versions: list[str] = field(default_factory=list)


@dataclass
class Asked:
    """A request as it comes off the wire."""

    method: str
    path: str  # raw
    query: str
    headers: dict[str, str]  # octets as latin-1 text
    body: bytes

    def environ(self) -> Environ:
        made: Environ = {
            "REQUEST_METHOD": self.method, "PATH_INFO": unquote_to_bytes(self.path).decode("latin-1"), "RAW_PATH_INFO": self.path, "QUERY_STRING": self.query,
            "SCRIPT_NAME": "", "SERVER_NAME": "localhost", "SERVER_PORT": "80", "SERVER_PROTOCOL": "HTTP/1.1", "wsgi.url_scheme": "http",
            "swift.trans_id": "tx-fuzz", "REMOTE_ADDR": "127.0.0.1"}
        if self.headers.get("transfer-encoding") != "chunked":
            made["CONTENT_LENGTH"] = str(len(self.body))
        made.update((environ_key(name), value) for name, value in self.headers.items())
        return made


class Fuzz:
    def __init__(self, seed: int, known: Known):
        self.chance, self.known = random.Random(seed), known

    def odd(self) -> str:
        return self.chance.choice(ODD)

    def maybe(self, share: float) -> bool:
        return self.chance.random() < share

    # -- a request -----------------------------------------------------------------------------------------------------

    def request(self) -> Asked:
        chance = self.chance
        level, sub, method = chance.choice(ROUTES)  # mostly one that there is
        if self.maybe(0.15):
            sub = chance.choice(SUB_RESOURCES)
        if self.maybe(0.1):
            method = chance.choice(METHODS)
        query: list[tuple[str, str]] = []
        if sub:
            query.append((sub, self.value(sub) if sub == "uploadId" or self.maybe(0.1) else ""))
        query += [(name, self.value(name)) for name in chance.sample(PARAMETERS, chance.choice((0, 0, 0, 1, 2, 3)))]
        if sub == "uploadId" and self.maybe(0.6):
            query.append(("partNumber", chance.choice(("1", "2", "10000", "10001", "0"))))
        headers = {name.lower(): self.header(name) for name in chance.sample(HEADERS, chance.choice((0, 0, 0, 1, 1, 2, 3)))}
        body = self.form(headers) if (level, sub, method) == (BUCKET, "", "POST") else self.body(sub, headers) if method in ("PUT", "POST") or self.maybe(0.05) else b""
        asked = Asked(method, self.path(level), self.quoted(query), headers, body)
        if self.maybe(0.5) and "content-md5" not in headers:
            headers["content-md5"] = b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
        self.sign(asked)
        return asked

    def path(self, level: str) -> str:
        chance = self.chance
        if level == SERVICE:
            return "/"
        if self.maybe(0.04):
            return chance.choice(("/", "//", "/%2F", "/.", "/%00", "/" + "b" * 300, "/a%20b/k", "/.s3/buckets/x", "/v1/AUTH_t/b", "*", "/%FF/%FF"))
        bucket = chance.choice(tuple(self.known.buckets)) if self.maybe(0.93) else chance.choice(("none", "b+segments", "AUTH_t", "xn--a", "1.2.3.4", "Ab_"))
        if level != OBJECT and self.maybe(0.95):
            return f"/{bucket}" + ("/" if self.maybe(0.1) else "")
        key = chance.choice(tuple(self.known.keys)) if self.maybe(0.8) else chance.choice((
            "%FF", "a%00b", "//", "../x", ".", "%2e%2e/%2e", "k" * 1100, "%E2%80%A8", "%EF%BF%BF", "a%0Ab", "%C0%AF", "+", "%25", "k?x", "%ED%A0%80"))
        return f"/{bucket}/{key}"

    def value(self, name: str) -> str:
        if name == "uploadId" and self.known.uploads and self.maybe(0.8):
            return self.chance.choice(self.known.uploads)
        if name == "versionId" and self.known.versions and self.maybe(0.7):
            return self.chance.choice(self.known.versions)
        return self.odd()

    def header(self, name: str) -> str:
        chance = self.chance
        if name == "Transfer-Encoding":
            return "chunked"
        if name == "X-Amz-Copy-Source" and self.maybe(0.8):
            version = f"?versionId={self.value('versionId')}" if self.maybe(0.3) else ""
            return f"{chance.choice(('', '/'))}{chance.choice(tuple(self.known.buckets))}/{chance.choice(tuple(self.known.keys))}{version}"
        if name == "X-Amz-Copy-Source-Range" and self.maybe(0.6):
            return chance.choice(("bytes=0-1", "bytes=0-99999", "bytes=-1", "bytes=5-2", "bytes=0-0,2-2"))
        if name.startswith("X-Amz-Checksum-") and self.maybe(0.4):
            return chance.choice(("CRC32", "CRC64NVME", "SHA256", "COMPOSITE", "FULL_OBJECT", "ENABLED", "AAAAAA==", "AAAAAA==-2"))
        return self.odd().strip() or "x"

    def quoted(self, pairs: Sequence[tuple[str, str]]) -> str:
        return "&".join(name if not value and self.maybe(0.5) else f"{name}={value.replace('&', '%26') if self.maybe(0.1) else quote(value, encoding='latin-1')}"
                        for name, value in pairs).replace(" ", "%20").replace("\t", "%09")

    # -- bodies --------------------------------------------------------------------------------------------------------

    def body(self, sub: str, headers: dict[str, str]) -> bytes:
        chance = self.chance
        if self.maybe(0.15):
            return self.framed(headers)
        if sub == "policy" and self.maybe(0.9):
            return chance.choice(POLICIES).encode()
        if self.maybe(0.2):
            return chance.choice((b"", b"x", b"\0" * 100, chance.randbytes(chance.choice((1, 100, 5000))), b"<" * 5000, b"hello"))
        return self.xml(sub)

    def xml(self, sub: str) -> bytes:
        chance = self.chance
        root = ROOTS.get(sub) if self.maybe(0.9) else None
        if sub in RIGHT and self.maybe(0.6):
            text = RIGHT[sub].replace("{etag}", hashlib.md5(b"x" * 1000, usedforsecurity=False).hexdigest())
            if self.maybe(0.5):  # one element of it with something else in it, or twice, or not at all
                pieces = text.split("<")
                place = chance.randrange(1, len(pieces))
                pieces[place] = chance.choice((pieces[place] + escape(self.odd()), pieces[place] + "<".join(("", *pieces[place:place + 2])), chance.choice(pieces)))
                text = "<".join(pieces)
        else:
            text = self.element(root or chance.choice(TAGS), 0)
        if self.maybe(0.1):
            text = chance.choice((
                f"<!DOCTYPE d [{LAUGHS}]><{root}>&l9;</{root}>", f'<!DOCTYPE d [<!ENTITY e SYSTEM "file:///etc/passwd">]><{root}><Key>&e;</Key></{root}>',
                f'<!DOCTYPE d SYSTEM "http://127.0.0.1:1/d.dtd"><{root}/>', f"<{root}>" + "<a>" * 20_000 + "</a>" * 20_000 + f"</{root}>",
                "<a>" * 5000, f"<{root} " + " ".join(f'a{n}="{n}"' for n in range(2000)) + "/>", f"<{root}>{'x' * 100_000}</{root}>",
                f'<?xml version="1.0" encoding="utf-16"?>{text}', f'<?xml version="9.9" encoding="nope"?>{text}', "\ufeff" + text, " " + text,
                f"<{root}>" + "<Object><Key>k</Key></Object>" * 1500 + f"</{root}>", f"<{root}><![CDATA[{text}]]></{root}>", f"<{root}>&#0;&#xD800;&#x110000;</{root}>"))
        data = text.encode("utf-8", "surrogatepass")
        if self.maybe(0.1):
            data = bytearray(data)
            for _ in range(chance.choice((1, 3, 10))):
                data[chance.randrange(len(data))] = chance.randrange(256)
            return bytes(data)
        return data[:chance.randrange(len(data))] if self.maybe(0.05) else data

    def element(self, name: str, depth: int) -> str:
        chance = self.chance
        space = ' xmlns="http://s3.amazonaws.com/doc/2006-03-01/"' if depth == 0 and self.maybe(0.7) else ""
        if depth and (depth > 4 or self.maybe(0.45)):
            value = chance.choice(("Enabled", "Disabled", "1", "0", "-1", "true", "k", "key", "s3:*", "*", "GET", "FULL_CONTROL", "GOVERNANCE", "AES256",
                                   "2099-01-01T00:00:00Z", "not a date", *self.known.versions[:1], "&lt;", "99999999999999999999", "", "\u2028", "d41d8cd9"))
            return f"<{name}>{value}</{name}>"
        kids = "".join(self.element(chance.choice(TAGS), depth + 1) for _ in range(chance.choice((0, 1, 1, 2, 3))))
        return f"<{name}{space}>{kids}</{name}>"

    def framed(self, headers: dict[str, str]) -> bytes:
        """In frames of aws-chunked, mostly damaged."""
        chance = self.chance
        data = chance.randbytes(chance.choice((0, 1, 100, 9000)))
        headers["x-amz-content-sha256"] = chance.choice(CODINGS) if self.maybe(0.6) else CODINGS[0]
        headers["x-amz-decoded-content-length"] = str(len(data)) if self.maybe(0.8) else self.odd()
        if self.maybe(0.5):
            headers["content-encoding"] = "aws-chunked"
        extension = f";chunk-signature={'a' * 64}" if self.maybe(0.4) else ""
        made = f"{len(data):x}{extension}\r\n".encode() + data + b"\r\n" if data else b""
        made += f"0{extension}\r\n".encode()
        if self.maybe(0.5):
            headers["x-amz-trailer"] = "x-amz-checksum-crc32"
            value = b64encode(zlib.crc32(data).to_bytes(4, "big")).decode() if self.maybe(0.6) else self.odd()
            made += f"x-amz-checksum-crc32:{value}\r\n".encode("latin-1")
        made += b"\r\n"
        if self.maybe(0.6):
            made = self.damaged(made)
        return made[:chance.randrange(len(made))] if made and self.maybe(0.1) else made

    def form(self, headers: dict[str, str]) -> bytes:
        """As a browser sends it, mostly with something wrong in it."""
        chance, (user, key) = self.chance, self.known.user
        scope = sign.Scope(time.strftime("%Y%m%d", time.gmtime()), "us-east-1")
        policy = chance.choice((
            '{"expiration": "2099-01-01T00:00:00Z", "conditions": [["starts-with", "$key", ""], ["starts-with", "$x-amz-credential", ""], ["starts-with", "$bucket", ""], '
            '["starts-with", "$x-amz-algorithm", ""], ["starts-with", "$x-amz-date", ""], ["content-length-range", 0, 100]]}', *POLICIES,
            '{"expiration": "2099-01-01T00:00:00Z", "conditions": [[], {}, 1, null, ["eq"], ["eq", "$key"], ["content-length-range", "x", {}]]}',
            '{"expiration": 5, "conditions": {}}', '{"expiration": "2099-01-01T00:00:00Z"}', ""))
        encoded = b64encode(policy.encode()).decode() if self.maybe(0.9) else self.odd()
        fields = {"key": self.odd() or "new", "policy": encoded, "x-amz-algorithm": sign.ALGORITHM, "x-amz-date": f"{scope.date}T000000Z",
                  "x-amz-credential": f"{user}/{scope.date}/us-east-1/s3/aws4_request", "x-amz-signature": sign.signature(scope.key(key), encoded.encode("latin-1"))}
        if self.maybe(0.5):
            fields[chance.choice((*fields, "acl", "tagging", "success_action_status", "success_action_redirect", "x-amz-meta-a", "Content-Type"))] = self.odd()
        if self.maybe(0.1):
            del fields[chance.choice(tuple(fields))]
        made = "".join(f'--x\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in fields.items())
        made += f'--x\r\nContent-Disposition: form-data; name="file"; filename="{chance.choice(("f", self.odd()))}"\r\nContent-Type: text/x\r\n\r\nhello\r\n--x--\r\n'
        headers["content-type"] = "multipart/form-data; boundary=x" if self.maybe(0.95) else "multipart/form-data" + self.odd()
        return self.damaged(made.encode("latin-1")) if self.maybe(0.3) else made.encode("latin-1")

    def damaged(self, data: bytes) -> bytes:
        chance, made = self.chance, bytearray(data)
        for _ in range(chance.choice((1, 2, 5))):
            place = chance.randrange(len(made) + 1)
            made[place:place + chance.choice((0, 1, 3))] = chance.choice((b"", b"\r", b"\n", b"\r\n", b";", b"-", b"ffffffffffffffff", b"\0", b"f" * 9000))
        return bytes(made)

    # -- signatures ----------------------------------------------------------------------------------------------------

    def sign(self, asked: Asked) -> None:
        """With a signature that is right, mostly."""
        chance = self.chance
        asked.headers["host"] = "localhost"
        kind = chance.random()
        if kind < 0.07 or ("multipart/form-data" in asked.headers.get("content-type", "") and self.maybe(0.9)):
            return  # nobody's, or signed in its fields
        if kind < 0.12:
            asked.headers["authorization"] = chance.choice((
                "AWS", "AWS ", "AWS a", "AWS :", "AWS a:b:c", "AWS4-", "AWS4-HMAC-SHA256", "AWS4-HMAC-SHA256 ", "AWS4-HMAC-SHA256 Credential=",
                "AWS4-HMAC-SHA256 Credential=a/b/c/d/e, SignedHeaders=host, Signature=x", "AWS4-HMAC-SHA256 Credential=a,SignedHeaders=,Signature=",
                "AWS4-ECDSA-P256-SHA256 Credential=a", "AWS4-HMAC-SHA256 " + "Credential=a/b," * 1000, "AWS \xff:\xff", "Basic eDp5"))
            return
        now = time.gmtime(time.time() + (chance.choice((5000, -5000)) if self.maybe(0.02) else 0))
        stamp = time.strftime("%Y%m%dT%H%M%SZ", now)
        scope = sign.Scope(stamp[:8], "us-east-1")
        user, key = self.known.user
        if self.maybe(0.05):
            user, key = chance.choice(((user, "wrong"), ("nobody:x", "x"), ("", ""), ("\xff", "x"), ("a/b", "c"), ("x" * 5000, "y")))
        credential = f"{user}/{scope.date}/us-east-1/s3/aws4_request"
        names = tuple(sorted(name for name in asked.headers if name.startswith("x-amz-") or name in SIGNED))
        if kind < 0.25:  # a signed URL
            asked.query += "&" * bool(asked.query) + "&".join(f"{name}={quote(value, safe='', encoding='latin-1')}" for name, value in (
                ("X-Amz-Algorithm", sign.ALGORITHM), ("X-Amz-Credential", credential), ("X-Amz-Date", stamp),
                ("X-Amz-Expires", "300" if self.maybe(0.9) else self.odd()), ("X-Amz-SignedHeaders", ";".join(names))))
            payload = asked.headers.get("x-amz-content-sha256", sign.UNSIGNED_PAYLOAD)
        else:
            asked.headers.setdefault("x-amz-date", stamp)
            payload = asked.headers.setdefault("x-amz-content-sha256", hashlib.sha256(asked.body).hexdigest() if self.maybe(0.8) else sign.UNSIGNED_PAYLOAD)
            names = tuple(sorted(name for name in asked.headers if name.startswith("x-amz-") or name in SIGNED))
        lines = sign.canonical_headers(names, asked.headers.get)
        canonical = sign.canonical_request(asked.method, asked.path, sign.query_pairs(asked.query), names, lines or "", payload)
        signature = sign.signature(scope.key(key), sign.string_to_sign(stamp, scope, canonical))
        if self.maybe(0.03):
            signature = chance.choice((signature[:-1], "\xff", "", "0" * 64))
        if kind < 0.25:
            asked.query += f"&X-Amz-Signature={quote(signature, encoding='latin-1')}"
        else:
            asked.headers["authorization"] = f"{sign.ALGORITHM} Credential={credential}, SignedHeaders={';'.join(names)}, Signature={signature}"
