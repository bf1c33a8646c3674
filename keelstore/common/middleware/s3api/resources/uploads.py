"""Uploads in parts: begin one, list those begun (``spec: s3-api 3.8``)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from keelstore.common.headers import Headers
from keelstore.common.http import Response
from keelstore.common.middleware.s3api import acl, checksums, encrypting
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.metadata import from_client
from keelstore.common.middleware.s3api.new_acl import acl_for_object, swift_acl_headers
from keelstore.common.middleware.s3api.outcome import check
from keelstore.common.middleware.s3api.request import OBJECT_SYSMETA, S3Request
from keelstore.common.middleware.s3api.resources.listing import encoder
from keelstore.common.middleware.s3api.resources.object_lock import sent_lock
from keelstore.common.middleware.s3api.resources.tagging import OBJECT_TAGS, sent_tags
from keelstore.common.middleware.s3api.routing import BUCKET, OBJECT, Route
from keelstore.common.middleware.s3api.times import s3_time
from keelstore.common.middleware.s3api.upload import CHECKSUM_KIND, MARKER_TYPE, listing, new_id
from keelstore.common.middleware.s3api.upload_owner import initiator_headers, owners_of_all
from keelstore.common.middleware.s3api.xml import Writer


def create(request: S3Request) -> Response:
    if not request.options.allow_multipart_uploads:
        raise S3Error("NotImplemented", "Uploads in parts are switched off.")
    info = request.bucket_info()
    headers = from_client(request)
    headers[OBJECT_SYSMETA + "Has-Content-Type"] = "yes" if request.header("Content-Type") else "no"
    headers[OBJECT_SYSMETA + "Content-Type"] = headers.pop("Content-Type")
    headers["Content-Type"] = MARKER_TYPE
    algorithm, kind = checksum_kind(request)
    if algorithm:
        headers[CHECKSUM_KIND] = f"{algorithm};{kind}"
    if request.options.s3_acl:
        headers |= initiator_headers(request, acl_for_object(request, info))
    else:
        swift_acl_headers(request)
    headers |= sent_lock(request)
    headers |= encrypting.of_upload(request)
    tags = sent_tags(request)
    if tags:
        headers[OBJECT_TAGS] = tags
    upload_id = new_id()
    for attempt in range(2):
        response = request.swift("PUT", request.segments, f"{request.key}/{upload_id}", headers=headers)
        if response.status != 404 or attempt:
            break
        response.drain()
        _make_segments(request, info.storage_policy, info.read_acl, info.write_acl)
    check(request, response).drain()
    found = Headers()
    if algorithm:
        found["x-amz-checksum-algorithm"], found["x-amz-checksum-type"] = algorithm, kind
    encrypting.show(request, found)
    writer = Writer("InitiateMultipartUploadResult").leaf("Bucket", request.bucket).leaf("Key", request.key)
    return Response(200, found, body=writer.leaf("UploadId", upload_id).to_bytes(), content_type="application/xml")


def checksum_kind(request: S3Request) -> tuple[str, str]:
    """Algorithm and type that an upload is to have; two empty words for none. Raises S3Error."""
    name, kind = request.header("X-Amz-Checksum-Algorithm"), (request.header("X-Amz-Checksum-Type") or "").upper()
    if kind and kind not in (checksums.COMPOSITE, checksums.FULL_OBJECT):
        raise S3Error("InvalidRequest", "Value for x-amz-checksum-type header is invalid.")
    if not name:
        if kind:
            raise S3Error(
                "InvalidRequest",
                "The x-amz-checksum-type header can only be used with the x-amz-checksum-algorithm header.",
            )
        return "", ""
    algorithm = checksums.named(name)
    if algorithm is None:
        raise S3Error(
            "InvalidRequest",
            "Checksum algorithm provided is unsupported. Please try again with any of the valid types: "
            f"[{', '.join(checksums.ALGORITHMS)}]",
        )
    if kind and kind not in algorithm.types:
        raise S3Error(
            "InvalidRequest", f"The {kind} checksum type cannot be used with the {name.lower()} checksum algorithm."
        )
    return algorithm.name, kind or algorithm.types[0]


def _make_segments(request: S3Request, policy: int, read_acl: str | None, write_acl: str | None) -> None:
    """The container of a bucket's parts, under the policy of the bucket and with its rights."""
    headers = {"X-Backend-Storage-Policy-Index": str(policy)}
    if read_acl:
        headers["X-Container-Read"] = read_acl
    if write_acl:
        headers["X-Container-Write"] = write_acl
    response = request.swift("HEAD", request.bucket)
    response.close()
    name = response.headers.get("X-Storage-Policy")
    if name:
        headers = {**headers, "X-Storage-Policy": name}
    headers.pop("X-Backend-Storage-Policy-Index")
    check(request, request.swift("PUT", request.segments, headers=headers)).drain()


def list_uploads(request: S3Request) -> Response:
    request.bucket_info()
    query, coded = request.query, encoder(request)
    limit = min(request.number("max-uploads", 1000), 1000)
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    key_marker, id_marker = (
        query.get("key-marker", ""),
        query.get("upload-id-marker", "") if query.get("key-marker") else "",
    )
    found: list[tuple[str, str, dict[str, Any]]] = []  # (name, upload id or '', entry)
    truncated = False
    for item in _uploads(request, prefix, delimiter, key_marker, id_marker):
        if len(found) == limit:
            truncated = True
            break
        found.append(item)
    last = found[-1] if found else ("", "", {})
    writer = Writer("ListMultipartUploadsResult").leaf("Bucket", request.bucket).leaf("KeyMarker", coded(key_marker))
    writer.leaf("UploadIdMarker", id_marker)
    if len(found) < 2 and not truncated:  # as Swift's s3api tells them: of a whole list, too, if it is one
        last = ("", "", {})
    writer.leaf("NextKeyMarker", coded(last[0])).leaf("NextUploadIdMarker", last[1])
    writer.leaf("Delimiter", coded(delimiter) if delimiter else None).leaf("Prefix", coded(prefix) if prefix else None)
    writer.leaf("MaxUploads", limit).leaf("EncodingType", query.get("encoding-type") or None).leaf(
        "IsTruncated", truncated
    )
    owners = owners_of_all(request, request.bucket_info(), (entry["name"] for _, upload_id, entry in found if upload_id))
    for key, upload_id, entry in found:
        if upload_id:
            owner, initiator = owners[entry["name"]]
            writer.open("Upload").leaf("Key", coded(key)).leaf("UploadId", upload_id)
            writer.owner(initiator, "Initiator").owner(owner).leaf("StorageClass", "STANDARD")
            writer.leaf("Initiated", s3_time(entry["last_modified"])).close()
    for key, upload_id, _ in found:
        if not upload_id:
            writer.open("CommonPrefixes").leaf("Prefix", coded(key)).close()
    return Response(200, body=writer.to_bytes(), content_type="application/xml")


def _uploads(
    request: S3Request, prefix: str, delimiter: str, key_marker: str, id_marker: str
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(key, upload id, entry) of each upload in order, after the markers; (prefix, '', {}) of each common prefix."""
    shown = ""
    start = f"{key_marker}/{id_marker}" if id_marker else key_marker
    for entry in listing(request, request.segments, prefix=prefix, marker=start):
        key, _, upload_id = entry["name"].rpartition("/")
        if not key or len(upload_id) < 48 or entry.get("content_type") != MARKER_TYPE:  # a part
            continue
        if key_marker and (key < key_marker or (key == key_marker and (not id_marker or upload_id <= id_marker))):
            continue
        cut = key.find(delimiter, len(prefix)) if delimiter else -1
        if cut >= 0:
            common = key[: cut + len(delimiter)]
            if common != shown and common > key_marker:
                shown = common
                yield common, "", {}
            continue
        yield key, upload_id, entry


def _refuse_key(request: S3Request) -> Response:
    raise S3Error("InvalidRequest", "Key is not expected for the GET method ?uploads subresource")


ROUTES = (
    Route(OBJECT, "POST", create, "s3:PutObject", acl.WRITE, sub="uploads"),
    Route(OBJECT, "GET", _refuse_key, "s3:ListBucketMultipartUploads", acl.READ, sub="uploads"),
    Route(BUCKET, "GET", list_uploads, "s3:ListBucketMultipartUploads", acl.READ, sub="uploads"),
)
