"""Parts of an upload: put one, copy one, list them (``spec: s3-api 3.8``)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from keelstore.common import concurrency
from keelstore.common.headers import Headers
from keelstore.common.http import Response
from keelstore.common.middleware.s3api import acl, checksums, encrypting, kept_alive
from keelstore.common.middleware.s3api.copy_source import MAX_COPY_BYTES, open_source
from keelstore.common.middleware.s3api.copying import copy_data
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.gathering import SMALL, gathered
from keelstore.common.middleware.s3api.outcome import check
from keelstore.common.middleware.s3api.request import S3Request
from keelstore.common.middleware.s3api.resources.copies import LONG_BYTES, NOT_COPIED, copy_answer
from keelstore.common.middleware.s3api.resources.listing import encoder
from keelstore.common.middleware.s3api.routing import OBJECT, Route
from keelstore.common.middleware.s3api.stored_checksum import keep_checksum, stored_checksum
from keelstore.common.middleware.s3api.times import s3_time
from keelstore.common.middleware.s3api.upload import CHECKSUM, Part, Upload, find, parts
from keelstore.common.middleware.s3api.upload_owner import owners_of
from keelstore.common.middleware.s3api.xml import Writer

MAX_PART_BYTES: Final = 5 << 30
HEADS_AT_ONCE: Final = 8
_RANGE = re.compile(r"bytes=(\d{1,18})-(\d{1,18})\Z")


def put_part(request: S3Request) -> Response:
    """UploadPart and UploadPartCopy."""
    number = request.number("partNumber", 0)
    if "partNumber" not in request.query or not 1 <= number <= request.options.max_upload_part_num:
        raise S3Error(
            "InvalidArgument",
            f"Part number must be an integer between 1 and {request.options.max_upload_part_num}, inclusive",
            ArgumentName="partNumber",
            ArgumentValue=request.query.get("partNumber"),
        )
    upload = find(request)
    encrypting.of_part(request, upload.headers)
    if request.header("X-Amz-Copy-Source"):
        return _copy_part(request, upload, number)
    request.need_length()
    length = request.content_length()
    if length is not None and length > MAX_PART_BYTES:
        raise S3Error("EntityTooLarge", ProposedSize=length, MaxSizeAllowed=MAX_PART_BYTES)
    headers: dict[str, str] = {}
    md5 = request.content_md5()
    if md5 is not None:
        headers["ETag"] = md5
    name, kind = upload.checksum_kind
    compute = (checksums.ALGORITHMS[name],) if name and kind == checksums.FULL_OBJECT else ()
    body = request.open_body(compute)
    sent = [
        algorithm for algorithm in body.expected if algorithm not in compute or body.expected[algorithm] is not None
    ]
    if name and ((kind == checksums.COMPOSITE and not sent) or any(algorithm.name != name for algorithm in sent)):
        actual = sent[0].name.lower() if sent else "null"
        raise S3Error(
            "InvalidRequest",
            f"Checksum Type mismatch occurred, expected checksum Type: {name.lower()}, actual checksum Type: {actual}",
        )
    with gathered(body, at_most=SMALL) as data:
        footers = keep_checksum(body, headers)
        response = check(
            request,
            request.swift(
                "PUT",
                request.segments,
                upload.part(number),
                headers=headers,
                body=data,
                length=body.length,
                footers=footers,
            ),
        )
    response.drain()
    found = Headers({"ETag": f'"{response.headers.get("Etag", "").strip(chr(34))}"'})
    for algorithm in body.expected:
        found[algorithm.header] = body.value(algorithm)
    encrypting.show(request, found)
    if (modified := response.headers.get("Last-Modified")) is not None:
        found["Last-Modified"] = modified
    return Response(200, found, body=b"", content_type="text/html; charset=UTF-8")  # as Swift says of no body


def _copy_part(request: S3Request, upload: Upload, number: int) -> Response:
    source = open_source(request)
    headers = {
        "X-Copy-From": request.listing_path(source.bucket, source.key),
        "X-Copy-From-Account": source.account,
        "X-Fresh-Metadata": "True",
        CHECKSUM: "",
        encrypting.KMS_MARK: "",
        **NOT_COPIED,
    }
    wanted, length = request.header("X-Amz-Copy-Source-Range"), source.size
    if wanted:
        found = _RANGE.match(wanted)
        if found is None or int(found[1]) > int(found[2]):
            raise S3Error(
                "InvalidArgument",
                "The x-amz-copy-source-range value must be of the form bytes=first-last where first and last "
                "are the zero-based offsets of the first and last bytes to copy",
                ArgumentName="x-amz-copy-source-range",
                ArgumentValue=wanted,
            )
        if int(found[2]) >= source.size:
            raise S3Error(
                "InvalidRange",
                f"Range specified is not valid for source object of size: {source.size}",
                ArgumentName="x-amz-copy-source-range",
                ArgumentValue=wanted,
            )
        headers["Range"], length = wanted, int(found[2]) - int(found[1]) + 1
    name, _ = upload.checksum_kind
    if length > MAX_COPY_BYTES:
        raise S3Error(
            "InvalidRequest",
            f"The specified copy source is larger than the maximum allowable size for a copy source: {MAX_COPY_BYTES}",
        )

    def copy() -> Response:
        if name or source.key_of_customer is not None or upload.headers.get(encrypting.MARK):
            algorithm = checksums.ALGORITHMS[name or "CRC64NVME"]
            response, value = copy_data(
                request, source, request.segments, upload.part(number), {}, algorithm, wanted or None
            )
            response.drain()
            made = (algorithm, value, checksums.FULL_OBJECT) if name else None
            return copy_answer(request, response, source, "CopyPartResult", made)
        query = {"version-id": source.version} if source.version is not None else {}
        response = check(
            request, request.swift("PUT", request.segments, upload.part(number), headers=headers, query=query)
        )
        response.drain()
        return copy_answer(request, response, source, "CopyPartResult")

    if length < LONG_BYTES:
        return copy()
    return kept_alive.respond(copy, request.target.resource, request.trans_id)


def list_parts(request: S3Request) -> Response:
    coded = encoder(request)
    limit = min(request.number("max-parts", request.options.max_parts_listing), request.options.max_parts_listing)
    marker = request.number("part-number-marker", 0)
    upload = find(request)
    found = [part for number, part in parts(request, upload).items() if number > marker]
    shown = found[:limit]
    writer = (
        Writer("ListPartsResult")
        .leaf("Bucket", request.bucket)
        .leaf("Key", coded(request.key))
        .leaf("UploadId", upload.upload_id)
    )
    owner, initiator = owners_of(request, request.bucket_info(), upload.headers)
    writer.owner(initiator, "Initiator").owner(owner).leaf("StorageClass", "STANDARD").leaf(
        "PartNumberMarker", marker
    )
    writer.leaf("NextPartNumberMarker", shown[-1].number if shown else 0).leaf("MaxParts", limit)
    writer.leaf("EncodingType", request.query.get("encoding-type") or None).leaf("IsTruncated", len(found) > len(shown))
    name, kind = upload.checksum_kind
    if name:
        writer.leaf("ChecksumAlgorithm", name).leaf("ChecksumType", kind)
    kept = _checksums(request, upload, shown) if name else {}
    for part in shown:
        writer.open("Part").leaf("PartNumber", part.number).leaf("LastModified", s3_time(part.last_modified))
        writer.leaf("ETag", f'"{part.etag}"').leaf("Size", part.size)
        checksum = kept.get(part.number)
        if checksum is not None:
            writer.leaf(checksum[0].element, checksum[1])
        writer.close()
    return Response(200, body=writer.to_bytes(), content_type="application/xml")


def _checksums(
    request: S3Request, upload: Upload, listed: Sequence[Part]
) -> dict[int, tuple[checksums.Algorithm, str, str] | None]:
    """By number, of the parts of an upload that has them: each part keeps its own, so each is asked."""
    pool = concurrency.Pool(HEADS_AT_ONCE)

    def head(number: int) -> tuple[checksums.Algorithm, str, str] | None:
        response = request.swift("HEAD", request.segments, upload.part(number))
        response.close()
        return stored_checksum(response.headers) if response.is_success else None

    tasks = [(part.number, pool.spawn(head, part.number)) for part in listed]
    return {number: task.wait() for number, task in tasks}


ROUTES = (
    Route(OBJECT, "PUT", put_part, "s3:PutObject", acl.WRITE, sub="uploadId"),
    Route(OBJECT, "GET", list_parts, "s3:ListMultipartUploadParts", acl.READ, sub="uploadId"),
)
