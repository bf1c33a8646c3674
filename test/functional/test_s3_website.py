"""Web sites that were set up in the S3 protocol, and are served by Swift's ``staticweb``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from test.support.client import Account, Endpoint, unique
from test.support.s3 import TESTER, refused, remove_bucket, signed
from test.support.store import Store

NAME = "website-é"


@pytest.fixture
def bucket(s3: Any) -> Iterator[str]:
    name = unique("website")
    s3.create_bucket(Bucket=name)
    yield name
    remove_bucket(s3, name)


def test_a_bucket_is_a_web_site(cluster: Store, s3: Any, bucket: str) -> None:
    anonymous: Account = cluster.login().anonymous()
    site = {"IndexDocument": {"Suffix": "index.html"}, "ErrorDocument": {"Key": "error.html"}}
    s3.put_bucket_website(Bucket=bucket, WebsiteConfiguration=site)
    got = s3.get_bucket_website(Bucket=bucket)
    assert {key: got[key] for key in site} == site and "RoutingRules" not in got
    s3.put_object(Bucket=bucket, Key="index.html", Body=b"<p>here", ContentType="text/html")
    s3.put_object(Bucket=bucket, Key="404error.html", Body=b"<p>not here", ContentType="text/html")
    cluster.login().post(bucket, headers={"X-Container-Read": ".r:*,.rlistings"}).expect(204)
    answer = anonymous.get(bucket, "")
    assert (answer.status, answer.body) == (200, b"<p>here")
    missing = anonymous.get(bucket, "none")
    assert (missing.status, missing.body) == (404, b"<p>not here")
    s3.put_bucket_website(Bucket=bucket, WebsiteConfiguration={"IndexDocument": {"Suffix": NAME}})
    assert s3.get_bucket_website(Bucket=bucket)["IndexDocument"] == {"Suffix": NAME}
    assert "ErrorDocument" not in s3.get_bucket_website(Bucket=bucket)
    s3.delete_bucket_website(Bucket=bucket)
    with refused("NoSuchWebsiteConfiguration"):
        s3.get_bucket_website(Bucket=bucket)
    s3.delete_bucket_website(Bucket=bucket)


def test_what_swift_set_is_shown(cluster: Store, s3: Any, bucket: str) -> None:
    cluster.login().post(bucket, headers={"X-Container-Meta-Web-Index": "start.html"}).expect(204)
    assert s3.get_bucket_website(Bucket=bucket)["IndexDocument"] == {"Suffix": "start.html"}


@pytest.mark.parametrize(("configuration", "code"), [
    ({"RedirectAllRequestsTo": {"HostName": "example.com"}}, "NotImplemented"),
    ({"IndexDocument": {"Suffix": "i"}, "RoutingRules": [{"Redirect": {"HostName": "h"}}]}, "NotImplemented"),
    ({"ErrorDocument": {"Key": "error.html"}}, "MalformedXML"),
    ({"IndexDocument": {"Suffix": "a/index.html"}}, "InvalidArgument"),
    ({"IndexDocument": {"Suffix": ""}}, "InvalidArgument"),
    ({"IndexDocument": {"Suffix": "i"}, "ErrorDocument": {"Key": "e\n: x"}}, "InvalidArgument"),
])  # fmt: skip
def test_what_cannot_be_is_refused(s3: Any, bucket: str, configuration: dict[str, Any], code: str) -> None:
    with refused(code):
        s3.put_bucket_website(Bucket=bucket, WebsiteConfiguration=configuration)
    with refused("NoSuchWebsiteConfiguration"):
        s3.get_bucket_website(Bucket=bucket)


def test_a_document_of_something_else_is_refused(endpoint: Endpoint, bucket: str) -> None:
    for body in (b"", b"<WebsiteConfiguration", b"<CORSConfiguration/>"):
        assert signed(endpoint, TESTER, "PUT", f"/{bucket}", {"website": ""}, body=body).status == 400
