"""The error codes of S3: their statuses, their texts, and the XML they are answered with (``spec: s3-api 4``)."""

from __future__ import annotations

from typing import Any, Final

from keelstore.common.errors import KeelstoreError
from keelstore.common.http import Response
from keelstore.common.middleware.s3api.xml import DECLARATION, text_of

# code: (status, message)
CODES: Final[dict[str, tuple[int, str]]] = {
    "AccessControlListNotSupported": (400, "The bucket does not allow ACLs."),
    "AccessDenied": (403, "Access Denied."),
    "AccessForbidden": (403, "CORSResponse: This CORS request is not allowed."),
    "AccountProblem": (403, "There is a problem with the account that keeps the operation from completing."),
    "AuthorizationHeaderMalformed": (400, "The authorization header that was sent is not valid."),
    "AuthorizationQueryParametersError": (400, "The authorization query parameters that were sent are not valid."),
    "BadDigest": (400, "The Content-MD5 you specified did not match what we received."),
    "BadRequest": (400, "The request is not valid."),
    "BrokenMPU": (409, "Parts of this object are missing."),
    "BucketAlreadyExists": (409, "The requested bucket name is not available. Choose another."),
    "BucketAlreadyOwnedByYou": (409, "The bucket exists already, and it is yours."),
    "BucketNotEmpty": (409, "The bucket is not empty."),
    "ConditionalRequestConflict": (409, "A conflicting operation was under way. Try again."),
    "EntityTooLarge": (400, "The object is larger than the maximum allowed size."),
    "EntityTooSmall": (400, "The part or object is smaller than the minimum allowed size."),
    "ExpiredToken": (400, "The security token has expired."),
    "IllegalLocationConstraintException": (400, "The location constraint does not fit this endpoint."),
    "IllegalVersioningConfigurationException": (400, "The versioning configuration is not valid."),
    "IncompleteBody": (400, "The request body terminated unexpectedly"),
    "IncorrectNumberOfFilesInPostRequest": (400, "POST needs exactly one file per request."),
    "InternalError": (500, "We met an internal error. Try again."),
    "InvalidAccessKeyId": (403, "The access key does not exist."),
    "InvalidArgument": (400, "Invalid argument."),
    "InvalidBucketAclWithObjectOwnership": (400, "The bucket cannot have ACLs with this object ownership."),
    "InvalidBucketName": (400, "The bucket name is not valid."),
    "InvalidBucketState": (409, "The request does not fit the present state of the bucket."),
    "InvalidChunkSizeError": (403, "Only the last chunk is allowed to have a size less than 8192 bytes"),
    "InvalidDigest": (400, "The Content-MD5 you specified was invalid."),
    "InvalidEncryptionAlgorithmError": (400, "The encryption request is not valid. Valid is AES256."),
    "InvalidLocationConstraint": (400, "The location constraint is not valid."),
    "InvalidObjectState": (403, "The operation does not fit the present state of the object."),
    "InvalidPart": (
        400,
        "One or more of the specified parts could not be found.  The part may not have been uploaded, or the specified "
        "entity tag may not match the part's entity tag.",
    ),
    "InvalidPartNumber": (416, "The requested partnumber is not satisfiable"),
    "InvalidPartOrder": (400, "The parts are not in ascending order of their numbers."),
    "InvalidPolicyDocument": (400, "The policy document of the form is not valid."),
    "InvalidRange": (416, "The requested range is not satisfiable."),
    "InvalidRequest": (400, "The request is not valid."),
    "InvalidRetentionPeriod": (400, "The retention period is not valid."),
    "InvalidStorageClass": (400, "The storage class is not valid."),
    "InvalidTag": (400, "The tag is not valid."),
    "InvalidTargetBucketForLogging": (400, "The target bucket for logging is not valid."),
    "InvalidToken": (400, "The security token is not valid."),
    "InvalidURI": (400, "The URI could not be parsed."),
    "KMS.NotFoundException": (400, "There is no such key that may be used here."),
    "KeyTooLongError": (400, "The key is too long."),
    "MalformedACLError": (400, "The XML is not well-formed or does not fit the schema of an ACL."),
    "MalformedPOSTRequest": (400, "The body of the POST request is not well-formed multipart/form-data."),
    "MalformedPolicy": (400, "The policy is not valid."),
    "MalformedTrailerError": (
        400,
        "The request contained trailing data that was not well-formed or did not conform to our published schema.",
    ),
    "MalformedXML": (
        400,
        "The XML you provided was not well-formed or did not validate against our published schema",
    ),
    "MaxPostPreDataLengthExceededError": (400, "The fields before the file are too large."),
    "MetadataTooLarge": (400, "The metadata headers exceed the maximum allowed size."),
    "MethodNotAllowed": (405, "The method is not allowed against this resource."),
    "MissingContentLength": (411, "You must provide the Content-Length HTTP header."),
    "MissingRequestBodyError": (400, "The request body is empty."),
    "MissingSecurityHeader": (400, "A required header is missing."),
    "NoLoggingStatusForKey": (400, "There is no such thing as a logging status for a key."),
    "NoSuchBucket": (404, "The bucket does not exist."),
    "NoSuchBucketPolicy": (404, "The bucket has no policy."),
    "NoSuchCORSConfiguration": (404, "The bucket has no CORS configuration."),
    "NoSuchKey": (404, "The specified key does not exist."),
    "NoSuchLifecycleConfiguration": (404, "The bucket has no lifecycle configuration."),
    "NoSuchObjectLockConfiguration": (404, "The object has no object lock configuration."),
    "NoSuchPublicAccessBlockConfiguration": (404, "The bucket has no public access block configuration."),
    "NoSuchTagSet": (404, "The bucket has no tags."),
    "NoSuchUpload": (404, "The upload does not exist: it may have been aborted or completed."),
    "NoSuchVersion": (404, "The version does not exist."),
    "NoSuchWebsiteConfiguration": (404, "The bucket has no website configuration."),
    "NotImplemented": (501, "Not implemented."),
    "ObjectLockConfigurationNotFoundError": (404, "Object Lock configuration does not exist for this bucket"),
    "OperationAborted": (409, "A conflicting operation on this resource is under way. Try again."),
    "OwnershipControlsNotFoundError": (404, "The bucket has no ownership controls."),
    "PermanentRedirect": (301, "The bucket must be addressed at another endpoint."),
    "PreconditionFailed": (412, "A precondition that was given does not hold."),
    "QuotaExceeded": (403, "The quota is exceeded."),
    "ReplicationConfigurationNotFoundError": (404, "The bucket has no replication configuration."),
    "RequestIsNotMultiPartContent": (412, "A bucket POST must be of type multipart/form-data."),
    "RequestTimeTooSkewed": (403, "The difference between the time of the request and the time here is too large."),
    "RequestTimeout": (400, "The body was not received in time."),
    "ServerSideEncryptionConfigurationNotFoundError": (404, "The bucket has no encryption configuration."),
    "ServiceUnavailable": (503, "Try again later."),
    "SignatureDoesNotMatch": (
        403,
        "The request signature we calculated does not match the signature you provided. Check your key and signing method.",
    ),
    "SlowDown": (503, "Reduce the rate of requests."),
    "TooManyBuckets": (400, "No more buckets are allowed."),
    "UnexpectedContent": (400, "The request does not support content."),
    "UnresolvableGrantByEmailAddress": (400, "No account has the e-mail address that was given."),
    "UserKeyMustBeSpecified": (400, "A key must be given."),
    "XAmzContentSHA256Mismatch": (
        400,
        "The provided 'x-amz-content-sha256' header does not match what was computed.",
    ),
}  # fmt: skip


# What is said of headers or a body names no resource: so does AWS, and Swift's suite expects it.
_ABOUT_THE_REQUEST: Final = frozenset({"InvalidRequest", "MalformedXML"})


class S3Error(KeelstoreError):
    """What an S3 client is told. ``code`` is one of CODES; ``fields`` are the extra elements, in order; None is left out.

    ``headers`` go into the answer; ``reason`` (a word) goes into the access line and the metrics.
    """

    def __init__(
        self,
        code: str,
        message: str = "",
        *,
        status: int | None = None,
        reason: str = "",
        headers: dict[str, str] | None = None,
        **fields: Any,
    ):
        known_status, known_message = CODES[code]
        self.code, self.message, self.reason = code, message or known_message, reason
        self.status = known_status if status is None else status
        self.headers, self.fields = headers or {}, fields
        super().__init__(f"{code}: {self.message}")

    def to_xml(self, resource: str, request_id: str, declare: bool = True) -> bytes:
        """The ``Error`` document. ``declare``: begin with the XML declaration (not inside an answer that has begun)."""
        parts = [
            DECLARATION if declare else b"",
            b"<Error><Code>",
            self.code.encode(),
            b"</Code><Message>",
            text_of(self.message),
            b"</Message>",
        ]
        for name, value in self.fields.items():
            if value is not None:
                parts += (f"<{name}>".encode(), text_of(str(value)), f"</{name}>".encode())
        if self.code not in _ABOUT_THE_REQUEST:
            parts += (b"<Resource>", text_of(resource), b"</Resource>")
        parts += (
            b"<RequestId>",
            text_of(request_id),
            b"</RequestId><HostId>",
            text_of(request_id),
            b"</HostId></Error>",
        )
        return b"".join(parts)

    def response(self, resource: str, request_id: str, method: str = "") -> Response:
        """The answer to a request of that method; to a HEAD without any body, so that it announces none either."""
        body = b"" if method == "HEAD" or self.status in (204, 304) else self.to_xml(resource, request_id)
        return Response(self.status, dict(self.headers), body=body, content_type="application/xml")
