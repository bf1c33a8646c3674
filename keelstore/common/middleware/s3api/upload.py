"""An upload in parts that has begun: its marker object, its parts, and how they lie in Swift (``spec: s3-api 2.5``)."""

from __future__ import annotations

import base64
import json
import re
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final

from keelstore.common.headers import Headers
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.exclusive import WAIT_S, exclusive
from keelstore.common.middleware.s3api.history import id_of, versions_of
from keelstore.common.middleware.s3api.outcome import check
from keelstore.common.middleware.s3api.request import OBJECT_SYSMETA, S3Request
from keelstore.common.middleware.s3api.versions import status_of

MARKER_TYPE: Final = "application/directory"
CHECKSUM_KIND: Final = OBJECT_SYSMETA + "Checksum-Kind"  # on a marker: algorithm;type
CHECKSUM: Final = OBJECT_SYSMETA + "Checksum"
_ID = re.compile(r"[A-Za-z0-9_.~-]{1,128}\Z")
ID_LENGTH: Final = 48
_PAGE = 1000


def is_complete(request: S3Request, key: str, upload_id: str) -> bool:
    """Whether an object is made of the upload's parts, and only its marker was left: then they must stay. Raises S3Error.

    No means that the parts may be deleted. So all copies are asked, and whatever leaves a doubt is an error. The user's own
    rights do not count: nothing but the answer comes of it. To be called while ``alone``, or when nobody can complete it
    any more.
    """
    ids: list[str | None] = [None]
    if status_of(request.bucket_info()):
        ids += [id_of(entry) for entry in versions_of(request, key, must=True)]
    for version in ids:
        query = {"version-id": version} if version is not None else {}
        response = request.swift(
            "HEAD", request.bucket, key, query=query, headers={"X-Newest": "true"}, as_cluster=True
        )
        response.close()
        if not response.is_success and response.status != 404:
            raise S3Error("ServiceUnavailable", reason=f"head_{response.status}")
        if response.headers.get(OBJECT_SYSMETA + "Upload-Id") == upload_id:
            return True
    return False


def alone(
    request: S3Request, key: str, upload_id: str, wait_s: float = WAIT_S
) -> AbstractContextManager[None]:
    """While an upload is completed or aborted: the parts that one makes an object of are not deleted by the other."""
    return exclusive(request.environ, request.account, request.bucket, f"{key}/{upload_id}", wait_s)


def new_id() -> str:
    return base64.urlsafe_b64encode(str(uuid.uuid4()).encode()).decode().rstrip("=")


@dataclass(frozen=True)
class Part:
    number: int
    etag: str
    size: int
    last_modified: str


@dataclass(frozen=True)
class Upload:
    """``headers``: of the marker."""

    key: str
    upload_id: str
    headers: Headers

    @property
    def prefix(self) -> str:
        return f"{self.key}/{self.upload_id}/"

    @property
    def marker(self) -> str:
        return f"{self.key}/{self.upload_id}"

    def part(self, number: int) -> str:
        return f"{self.prefix}{number}"

    @property
    def checksum_kind(self) -> tuple[str, str]:
        """Algorithm and type that the upload was begun with; two empty words for none."""
        name, _, kind = self.headers.get(CHECKSUM_KIND, "").partition(";")
        return name, kind


def upload_id_of(request: S3Request) -> str:
    found = request.query.get("uploadId", "")
    if not _ID.match(found):
        raise S3Error("NoSuchUpload", UploadId=found)
    return found


def find(request: S3Request) -> Upload:
    """The upload that the query names. Raises S3Error when there is none."""
    upload_id = upload_id_of(request)
    response = request.swift("HEAD", request.segments, f"{request.key}/{upload_id}")
    response.close()
    if response.status == 404:
        request.bucket_info()
        raise S3Error("NoSuchUpload", UploadId=upload_id)
    return Upload(request.key, upload_id, check(request, response).headers)


def listing(request: S3Request, container: str, **query: str) -> Iterator[dict[str, Any]]:
    """All entries of a container's listing, page by page; none when there is no such container."""
    marker = query.pop("marker", "")
    while True:
        response = request.swift(
            "GET", container, query={"format": "json", "limit": str(_PAGE), "marker": marker, **query}
        )
        if response.status == 404:
            response.drain()
            return
        entries = json.loads(check(request, response).read() or b"[]")
        yield from entries
        if len(entries) < _PAGE:
            return
        marker = entries[-1].get("name") or entries[-1]["subdir"]


def parts(request: S3Request, upload: Upload) -> dict[int, Part]:
    """The parts that are there, by number, ascending."""
    found = {}
    for entry in listing(request, request.segments, prefix=upload.prefix):
        digits = entry["name"][len(upload.prefix) :]
        if digits.isascii() and digits.isdigit():
            found[int(digits)] = Part(
                int(digits), entry["hash"].partition(";")[0].strip(), entry["bytes"], entry["last_modified"]
            )
    return dict(sorted(found.items()))
