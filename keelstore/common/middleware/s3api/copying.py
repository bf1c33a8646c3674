"""Data that an S3 request copies within the cluster, with a checksum made on the way."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping

from keelstore.common.http import CUSTOMER_KEY, Response
from keelstore.common.internal import BodyOf
from keelstore.common.middleware.s3api.body import ProvenBody
from keelstore.common.middleware.s3api.checksums import Algorithm
from keelstore.common.middleware.s3api.copy_source import CopySource
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.outcome import check
from keelstore.common.middleware.s3api.request import S3Request
from keelstore.common.middleware.s3api.stored_checksum import keep_checksum


def copy_data(
    request: S3Request,
    source: CopySource,
    container: str,
    obj: str,
    headers: MutableMapping[str, str],
    algorithm: Algorithm,
    wanted: str | None = None,
) -> tuple[Response, str]:
    """Write what was read of ``source`` (of its range ``wanted``) to an object; gives the answer and the checksum made."""
    read: Mapping[str, str] = {"Range": wanted} if wanted else {}
    query = {"version-id": source.version} if source.version is not None else {}
    key = source.key_of_customer
    response = check(
        request,
        request.swift(
            "GET",
            source.bucket,
            source.key,
            account=source.account,
            headers=read,
            query=query,
            extra={CUSTOMER_KEY: key.key if key is not None else None},
        ),
    )
    try:
        data = BodyOf(response, int(response.headers["Content-Length"]))
        body = ProvenBody(data, data.length, None, {algorithm: None})
        footers = keep_checksum(body, headers)
        answer = request.swift("PUT", container, obj, headers=headers, body=body, length=body.length, footers=footers)
    finally:
        response.close()
    if data.is_broken:
        raise S3Error("ServiceUnavailable")
    return check(request, answer), body.value(algorithm)
