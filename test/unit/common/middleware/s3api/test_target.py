"""What a request is about, by its path or its host."""

from __future__ import annotations

import pytest

from keelstore.common.middleware.s3api.copy_source import parse
from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.target import Target, target_of


@pytest.mark.parametrize(("path", "host", "target"), [
    ("/", "h", Target()), ("/b", "h", Target("b")), ("/b/", "h", Target("b")), ("/b//k", "h", Target("b", "/k")), ("/b/k/é", "h", Target("b", "k/é")),
    ("/", "b.s3.test", Target("b", by_host=True)), ("/k", "b.c.s3.test:80", Target("b.c", "k", True)), ("/b/k", "s3.test", Target("b", "k")),
])  # fmt: skip
def test_targets(path: str, host: str, target: Target) -> None:
    assert target_of(path, host, ("s3.test",)) == target


@pytest.mark.parametrize(("path", "code"), [("/b/\udcff", "InvalidURI"), ("/b/a\0b", "InvalidURI"), ("/a\0b", "InvalidURI"), ("/b/" + "é" * 513, "KeyTooLongError")])
def test_what_no_key_can_be_is_the_clients_error(path: str, code: str) -> None:
    with pytest.raises(S3Error) as caught:
        target_of(path, "h", ())
    assert caught.value.code == code


@pytest.mark.parametrize("source", ["b/a%00b", "b/%FF"])
def test_no_source_of_a_copy_either(source: str) -> None:
    with pytest.raises(S3Error) as caught:
        parse(source)
    assert caught.value.code == "InvalidURI"
