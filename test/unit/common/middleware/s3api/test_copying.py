"""Data copied within the cluster: what is not whole is not stored."""

from types import SimpleNamespace

import pytest

from keelstore.common.errors import ClientDisconnect
from keelstore.common.headers import Headers
from keelstore.common.http import Response
from keelstore.common.middleware.s3api.checksums import ALGORITHMS
from keelstore.common.middleware.s3api.copying import copy_data
from keelstore.common.middleware.s3api.errors import S3Error

SOURCE = SimpleNamespace(bucket="b", key="k", account=None, version=None, key_of_customer=None)


class Request:
    """``parts`` are the source's, said to be ten bytes."""

    def __init__(self, *parts):
        self.parts, self.stored = parts, None

    def swift(self, method, container, obj, body=None, **_kwargs):
        if method == "GET":
            return Response(200, Headers({"Content-Length": "10"}), app_iter=iter(self.parts))
        try:
            self.stored = body.read()
        except ClientDisconnect:
            return Response(499)
        return Response(201)


def test_all_is_copied():
    request = Request(b"01234", b"56789")
    response, checksum = copy_data(request, SOURCE, "c", "o", {}, ALGORITHMS["CRC32"])
    assert (response.status, request.stored, checksum) == (201, b"0123456789", "poTHxg==")


@pytest.mark.parametrize("parts", [(b"01234",), (b"01234", b"567890")])
def test_a_source_of_another_length_is_the_clusters_fault(parts):
    request = Request(*parts)
    with pytest.raises(S3Error) as caught:
        copy_data(request, SOURCE, "c", "o", {}, ALGORITHMS["CRC32"])
    assert caught.value.code == "ServiceUnavailable" and request.stored is None
