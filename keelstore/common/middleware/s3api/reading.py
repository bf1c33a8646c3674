"""The headers of an object or version, for operations that are about it and not its data."""

from __future__ import annotations

from keelstore.common.headers import Headers
from keelstore.common.http import Response
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.history import current_marker, real_version
from keelstore.common.middleware.s3api.metadata import DELETED_TYPE
from keelstore.common.middleware.s3api.outcome import error_of
from keelstore.common.middleware.s3api.request import S3Request
from keelstore.common.middleware.s3api.versions import shown_version, version_id_of


def head(request: S3Request, version: str | None, newest: bool = False) -> Response:
    """What a HEAD of the key, or of a version of it, is answered; closed. ``newest``: of all copies, not of the first."""
    query = {}
    if version is not None:
        query["version-id"] = real_version(request, request.key, version) or version
    headers = {"X-Newest": "true"} if newest else None
    response = request.swift("HEAD", request.bucket, request.key, query=query, headers=headers)
    response.close()
    return response


def headers_of(request: S3Request, newest: bool = False) -> tuple[Headers, str | None]:
    """Headers of the object that the request is about, and the version it names. Raises S3Error when there is none."""
    version = version_id_of(request.query.get("versionId"))
    if version is not None and version != "null" and "versions-enabled" not in request.bucket_info().sysmeta:
        raise S3Error("NoSuchVersion", Key=request.key, VersionId=version)
    response = head(request, version, newest)
    if not response.is_success:
        raise not_there(request, response, version)
    return response.headers, version


def is_marker(headers: Headers) -> bool:
    return headers.get("X-Backend-Content-Type", headers.get("Content-Type", "")).startswith(DELETED_TYPE)


def not_there(request: S3Request, response: Response, version: str | None) -> S3Error:
    """The error of an object that was not read; a delete marker is told from what never was."""
    if response.status != 404:
        return error_of(request, response)
    shown = {"x-amz-delete-marker": "false"}
    if is_marker(response.headers) or "X-Object-Version-Id" in response.headers:
        shown = {"x-amz-delete-marker": "true", "x-amz-version-id": version or "null"}
    error = error_of(request, response)
    if error.code != "NoSuchKey":
        return error
    if version is None:
        if request.target.bucket is not None and "versions-enabled" in request.bucket_info().sysmeta:
            marker = current_marker(request, request.key)
            if marker is not None:
                shown = {
                    "x-amz-delete-marker": "true",
                    "x-amz-version-id": shown_version(marker, request.bucket_info()),
                }
        return S3Error("NoSuchKey", headers=shown, Key=request.key)
    if "x-amz-version-id" in shown:
        shown["Allow"] = "DELETE"
        return S3Error("MethodNotAllowed", headers=shown, Method=request.method, ResourceType="DeleteMarker")
    return S3Error("NoSuchVersion", Key=request.key, VersionId=version)
