"""The document of an error (``spec: s3-api 4``)."""

from __future__ import annotations

import pytest

from keelstore.common.middleware.s3api import xml
from keelstore.common.middleware.s3api.errors import CODES, S3Error


@pytest.mark.parametrize("code", sorted(CODES))
def test_a_document_says_what_went_wrong_and_in_which_request(code: str) -> None:
    found = xml.parse(S3Error(code, "a < b", Key="k&", Nothing=None).to_xml("/b/k", "tx1"), "Error")
    assert [found.value(name) for name in ("Code", "Message", "Key", "Nothing", "RequestId", "HostId")] == \
        [code, "a < b", "k&", None, "tx1", "tx1"]
    assert found.value("Resource") == (None if code in ("InvalidRequest", "MalformedXML") else "/b/k")


def test_the_answer_to_a_head_has_no_body() -> None:
    assert not b"".join(S3Error("NoSuchKey").response("/b/k", "tx1", "HEAD").app_iter or ())
    assert S3Error("NoSuchKey").response("/b/k", "tx1", "GET").status == 404
