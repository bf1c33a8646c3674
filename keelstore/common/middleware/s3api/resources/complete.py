"""Uploads in parts: complete one, abort one (``spec: s3-api 3.8``)."""

from __future__ import annotations

import binascii
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from keelstore.common import concurrency
from keelstore.common.headers import Headers
from keelstore.common.http import Response
from keelstore.common.middleware.s3api import acl, checksums, encrypting, kept_alive, locks, xml
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.etags import bare
from keelstore.common.middleware.s3api.exclusive import TTL_S
from keelstore.common.middleware.s3api.guard import guarded
from keelstore.common.middleware.s3api.history import written
from keelstore.common.middleware.s3api.outcome import check, error_of
from keelstore.common.middleware.s3api.request import OBJECT_SYSMETA, S3Request
from keelstore.common.middleware.s3api.resources.tagging import OBJECT_TAGS
from keelstore.common.middleware.s3api.routing import OBJECT, Route
from keelstore.common.middleware.s3api.stored_checksum import stored_checksum
from keelstore.common.middleware.s3api.upload import (
    CHECKSUM,
    Part,
    Upload,
    alone,
    find,
    is_complete,
    parts,
    upload_id_of,
)

MAX_BODY: Final = 4 << 20
HEADS_AT_ONCE: Final = 8


@dataclass(frozen=True)
class Wish:
    """A part as a client names it; ``checksums``: by algorithm name."""

    number: int
    etag: str
    checksums: dict[str, str] = field(default_factory=dict)


def complete(request: S3Request) -> Response:
    upload_id = upload_id_of(request)
    data = request.read_body(MAX_BODY, are_its_own=False)  # they are of the object to be
    wishes = _wishes(request, data, upload_id)

    def work() -> Response:
        with alone(request, request.key, upload_id, TTL_S):  # who asks again, before it is answered, gets that answer
            return _complete(request, upload_id, wishes)

    return kept_alive.respond(work, request.target.resource, request.trans_id)


def _wishes(request: S3Request, data: bytes, upload_id: str) -> list[Wish]:
    try:
        document = xml.parse(data, "CompleteMultipartUpload")
    except xml.XmlError:
        raise S3Error("MalformedXML") from None
    found: list[Wish] = []
    for element in document.children("Part"):
        number, etag = element.value("PartNumber"), element.value("ETag")
        if number is None or etag is None:
            raise S3Error("MalformedXML")
        if (
            not (number.strip().isascii() and number.strip().isdigit())
            or not 1 <= int(number) <= request.options.max_upload_part_num
        ):
            raise S3Error(
                "InvalidArgument",
                f"Part number must be an integer between 1 and {request.options.max_upload_part_num}, inclusive",
                ArgumentName="partNumber",
                ArgumentValue=number,
            )
        if found and int(number) < found[-1].number:
            raise S3Error("InvalidPartOrder", UploadId=upload_id)
        if found and int(number) == found[-1].number:
            found.pop()  # of a part that was sent again, the last counts
        sent = {
            name: value
            for name, algorithm in checksums.ALGORITHMS.items()
            if (value := element.value(algorithm.element)) is not None
        }
        found.append(Wish(int(number), bare(etag).lower(), sent))
    if not found:
        raise S3Error("MalformedXML")
    return found


def _complete(request: S3Request, upload_id: str, wishes: Sequence[Wish]) -> Response:
    etag = _etag_of(wishes, upload_id)
    try:
        upload = find(request)
    except S3Error as error:
        done = _done(request, upload_id, etag) if error.code == "NoSuchUpload" else None
        if done is None:
            raise
        kept = stored_checksum(done)
        name, kind = (f"{kept[0].name}={kept[1]}", kept[2]) if kept is not None else ("", "")
        return _answer(request, etag, done, name, kind)
    encrypting.of_part(request, upload.headers)
    known = parts(request, upload)
    stored = _checksums(request, upload, wishes)
    _check_parts(request, upload, wishes, known, stored)
    checksum, kind = _whole_checksum(request, upload, wishes, known, stored)
    headers = _headers(request, upload, etag)
    if checksum:
        headers[CHECKSUM] = f"{checksum};type={kind}"
    manifest = json.dumps(
        [{"path": f"/{request.segments}/{upload.part(wish.number)}", "etag": wish.etag} for wish in wishes]
    ).encode()
    with guarded(request) as guard:
        if guard is not None:
            guard.decide()
            headers |= guard.headers()
        response = request.swift(
            "PUT", request.bucket, request.key, query={"multipart-manifest": "put"}, headers=headers, body=manifest
        )
        if guard is not None:
            guard.settle(response)
    if response.status == 400:
        text = response.read(1 << 20).decode("utf-8", "replace")
        raise S3Error(
            "InvalidPart" if "Etag Mismatch" in text or "404" in text or "Not Found" in text else "InvalidRequest",
            "" if "Mismatch" in text or "Not Found" in text else text,
            UploadId=upload_id,
        )
    if response.status == 404:
        raise error_of(request, response)
    check(request, response).drain()
    request.swift("DELETE", request.segments, upload.marker).drain()  # whatever came of it: the object is whole
    return _answer(request, etag, response.headers, checksum, kind)


def _etag_of(wishes: Sequence[Wish], upload_id: str) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    for wish in wishes:
        try:
            digest.update(binascii.unhexlify(wish.etag))
        except (binascii.Error, ValueError):
            raise S3Error("InvalidPart", UploadId=upload_id, PartNumber=wish.number, ETag=wish.etag) from None
    return f"{digest.hexdigest()}-{len(wishes)}"


def _done(request: S3Request, upload_id: str, etag: str) -> Headers | None:
    """Headers of what this upload has become already, of these parts: then completing it again is no error."""
    response = request.swift("HEAD", request.bucket, request.key)
    response.close()
    is_ours = (
        response.is_success
        and response.headers.get(OBJECT_SYSMETA + "Upload-Id") == upload_id
        and response.headers.get(OBJECT_SYSMETA + "Etag") == etag
    )
    return response.headers if is_ours else None


def _check_parts(
    request: S3Request, upload: Upload, wishes: Sequence[Wish], known: dict[int, Part], stored: dict[int, Headers]
) -> None:
    """What can be known before the manifest is written, which looks at every part itself. Raises S3Error."""
    least = request.options.min_segment_size
    for place, wish in enumerate(wishes):
        part = known.get(wish.number)
        if part is None:
            continue  # not listed yet, or not there
        if part.etag and part.etag != wish.etag:
            raise S3Error("InvalidPart", UploadId=upload.upload_id, PartNumber=wish.number, ETag=wish.etag)
        if part.size < least and place < len(wishes) - 1:
            raise S3Error(
                "EntityTooSmall", ProposedSize=part.size, MinSizeAllowed=least, PartNumber=wish.number, ETag=wish.etag
            )
    total = request.header("X-Amz-Mp-Object-Size")
    if total is not None:
        found = sum(known[wish.number].size for wish in wishes if wish.number in known)
        if not total.isdigit() or int(total) != found:
            raise S3Error(
                "InvalidRequest",
                f"The provided 'x-amz-mp-object-size' header value {total} does not match what was computed: {found}",
            )


def _checksums(request: S3Request, upload: Upload, wishes: Sequence[Wish]) -> dict[int, Headers]:
    """Headers of the parts, read only when checksums have to be looked at."""
    if not upload.checksum_kind[0] and not any(wish.checksums for wish in wishes):
        return {}
    pool = concurrency.Pool(HEADS_AT_ONCE)

    def head(number: int) -> Headers:
        response = request.swift("HEAD", request.segments, upload.part(number))
        response.close()
        if response.status == 404:
            raise S3Error("InvalidPart", UploadId=upload.upload_id, PartNumber=number)
        return check(request, response).headers

    tasks = [(wish.number, pool.spawn(head, wish.number)) for wish in wishes]
    return {number: task.wait() for number, task in tasks}


def _whole_checksum(
    request: S3Request, upload: Upload, wishes: Sequence[Wish], known: dict[int, Part], stored: dict[int, Headers]
) -> tuple[str, str]:
    """``ALGORITHM=value`` of the object to be and its type, from those of its parts; empty words for none. Raises S3Error."""
    name, kind = upload.checksum_kind
    asked = (request.header("X-Amz-Checksum-Type") or "").upper()
    if name and asked and asked != kind:
        raise S3Error(
            "InvalidRequest",
            f"The upload was created using the {kind} checksum mode. The complete request must use the same "
            "checksum mode.",
        )
    values: list[tuple[str, int]] = []
    for wish in wishes:
        found, _, value = (
            stored[wish.number].get(CHECKSUM, "").partition(";")[0].partition("=") if stored else ("", "", "")
        )
        for sent_name, sent in wish.checksums.items():
            if found == sent_name and value != sent:
                raise S3Error("InvalidPart", UploadId=upload.upload_id, PartNumber=wish.number, ETag=wish.etag)
        if found == name and value:
            values.append((value, int(stored[wish.number].get("Content-Length", "0"))))
    if not name or len(values) != len(wishes):
        return "", ""
    algorithm = checksums.ALGORITHMS[name]
    if kind == checksums.COMPOSITE:
        whole = algorithm.composite(algorithm.decode(value) for value, _ in values)
    else:
        whole = algorithm.full((algorithm.decode(value), size) for value, size in values)
    claimed = request.header(algorithm.header)
    if claimed is not None and claimed not in (whole, whole.partition("-")[0]):
        raise S3Error("BadDigest", f"The {name.lower()} you specified did not match the calculated checksum.")
    return f"{name}={whole}", kind


def _headers(request: S3Request, upload: Upload, etag: str) -> dict[str, str]:
    """Of the manifest: what was said when the upload began."""
    marker, found = upload.headers, {}
    for name, value in marker.items():
        if name.startswith("X-Object-Meta-") or name in (
            "Content-Encoding",
            "Content-Language",
            "Content-Disposition",
            "Expires",
            "Cache-Control",
            "X-Robots-Tag",
            OBJECT_TAGS,
            locks.RETENTION,
            locks.LEGAL_HOLD,
            encrypting.MARK,
            encrypting.KMS_MARK,
        ):
            found[name] = value
    has_type = marker.get(OBJECT_SYSMETA + "Has-Content-Type")
    if has_type != "no":
        found["Content-Type"] = marker.get(OBJECT_SYSMETA + "Content-Type") or marker.get("Content-Type", "")
    else:
        found["Content-Type"] = "binary/octet-stream"
    for name, value in (
        ("Acl", marker.get(OBJECT_SYSMETA + "Tmpacl")),
        ("Etag", etag),
        ("Upload-Id", upload.upload_id),
    ):
        if value:
            found[OBJECT_SYSMETA + name] = value
    found["X-Object-Sysmeta-Container-Update-Override-Etag"] = f"; s3_etag={etag}"
    return found


def _answer(request: S3Request, etag: str, headers: Headers, checksum: str, kind: str) -> Response:
    writer = xml.Writer("CompleteMultipartUploadResult").leaf(
        "Location", f"{request.host_url}{request.listing_path(request.bucket, request.key)}"
    )
    writer.leaf("Bucket", request.bucket).leaf("Key", request.key).leaf("ETag", f'"{etag}"')
    if checksum:
        name, _, value = checksum.partition("=")
        writer.leaf(checksums.ALGORITHMS[name].element, value).leaf("ChecksumType", kind)
    found, made = Headers(), written(request, headers.get("X-Object-Version-Id"))
    if made is not None:
        found["x-amz-version-id"] = made
    encrypting.show(request, found)
    encrypting.show_stored(headers, found)  # of one that was completed before
    return Response(200, found, body=writer.to_bytes(), content_type="application/xml")


def abort(request: S3Request) -> Response:
    with alone(request, request.key, upload_id_of(request)):
        upload = find(request)
        if is_complete(request, request.key, upload.upload_id):
            request.swift("DELETE", request.segments, upload.marker).drain()
            raise S3Error("NoSuchUpload", UploadId=upload.upload_id)
        for number in parts(request, upload):
            check(request, request.swift("DELETE", request.segments, upload.part(number)), 404).drain()
        check(request, request.swift("DELETE", request.segments, upload.marker), 404).drain()
    return Response(204, content_type="text/html; charset=UTF-8")  # of no body at all: as Swift says it


ROUTES = (
    Route(OBJECT, "POST", complete, "s3:PutObject", acl.WRITE, sub="uploadId"),
    Route(OBJECT, "DELETE", abort, "s3:AbortMultipartUpload", acl.WRITE, sub="uploadId"),
)
