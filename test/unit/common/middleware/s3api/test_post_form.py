"""Forms of browsers: their fields, their file, and where they send the browser."""

from __future__ import annotations

import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelstore.common.errors import RequestError
from keelstore.common.httpinput import FileLike
from keelstore.common.middleware.form_data import Form
from keelstore.common.middleware.s3api import post_form, post_policy
from keelstore.common.middleware.s3api.errors import S3Error


class Source(FileLike):
    """A body that comes in pieces of ``piece`` bytes."""

    def __init__(self, data: bytes, piece: int = 7):
        super().__init__()
        self._source, self._piece = io.BytesIO(data), piece

    def _more(self, size: int) -> bytes:
        return self._source.read(min(size, self._piece))


def part(name: str, value: bytes, more: str = "") -> bytes:
    return f'--b\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'.encode() + value + b"\r\n"


def read(*parts: bytes, end: bytes = b"--b--\r\n", policy: post_policy.PostPolicy | None = None) -> tuple[dict[str, str], bytes]:
    """Fields and file. Raises S3Error and RequestError."""
    found = iter(Form(Source(b"".join(parts) + end), b"b"))
    fields, file = post_form._fields(found)
    return fields, post_form._File(file, found, policy).read()


def code_of(*parts: bytes, **more: Any) -> str:
    with pytest.raises(S3Error) as caught:
        read(*parts, **more)
    return caught.value.code


FILE = part("file", b"data\r\n--x", '; filename="a"')


def test_fields_come_before_the_file_and_what_is_after_it_is_not_looked_at() -> None:
    fields, data = read(part("KEY", b"k"), part("x-amz-meta-a", "ü".encode()), FILE, part("acl", b"public-read"))
    assert (fields, data) == ({"key": "k", "x-amz-meta-a": "ü"}, b"data\r\n--x")


def test_a_field_may_have_a_file_name_and_is_none_the_less_a_field() -> None:
    assert read(part("key", b"k", '; filename="key"'), FILE)[0] == {"key": "k"}


@pytest.mark.parametrize(
    ("parts", "end", "code"),
    [
        ((part("key", b"k"),), b"--b--\r\n", "InvalidArgument"),
        ((part("key", b"k"), part("Key", b"l"), FILE), b"--b--\r\n", "InvalidArgument"),
        ((part("key", b"k" * 21000), FILE), b"--b--\r\n", "MaxPostPreDataLengthExceededError"),
        (tuple(part(f"x-ignore-{n}", b"x" * 100) for n in range(300)), b"--b--\r\n", "MaxPostPreDataLengthExceededError"),
        ((FILE, FILE), b"--b--\r\n", "IncorrectNumberOfFilesInPostRequest"),
        ((FILE,), b"", "MalformedPOSTRequest"),
    ],
)
def test_what_is_no_such_form(parts: tuple[bytes, ...], end: bytes, code: str) -> None:
    assert code_of(*parts, end=end) == code


def test_the_size_of_the_file_is_looked_at_as_it_comes() -> None:
    def policy(least: int | None, most: int | None) -> post_policy.PostPolicy:
        return post_policy.PostPolicy(0, (), least, most)

    assert read(FILE, policy=policy(9, 9))[1] == b"data\r\n--x"
    assert code_of(FILE, policy=policy(10, 20)) == "EntityTooSmall"
    assert code_of(FILE, policy=policy(0, 8)) == "EntityTooLarge"


@given(st.lists(st.sampled_from([b"--b", b"--", b"\r\n", b"file", b'Content-Disposition: form-data; name="', b'"', b"x", b"\x00"])))
def test_any_body_is_a_form_or_refused(pieces: list[bytes]) -> None:
    for head in (b"", b"--b\r\n", part("key", b"k")):
        try:
            read(head + b"".join(pieces), end=b"")
        except (S3Error, RequestError):
            pass


@pytest.mark.parametrize(
    ("name", "expected"),
    [("a.txt", "a.txt"), ("/home/me/a.txt", "a.txt"), ("C:\\home\\a.txt", "a.txt"), ("..", ".."), ("", "")],
)
def test_the_name_of_a_file_is_without_its_directory(name: str, expected: str) -> None:
    assert post_form._base_name(name) == expected


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://a/b?c#d", True),
        ("https://a", True),
        ("", False),
        ("/here", False),
        ("javascript:alert(1)", False),
        ("http://a b", False),
        ("http://a\r\nSet-Cookie: b", False),
        ("http://[", False),
        ("http://", False),
    ],
)
def test_browsers_are_sent_to_urls_only(url: str, expected: bool) -> None:
    assert post_form._is_url(url) is expected


def test_what_is_taken_for_a_form() -> None:
    kind = "multipart/form-data; boundary=b"
    assert post_form.is_form({"REQUEST_METHOD": "POST", "CONTENT_TYPE": kind})
    assert not post_form.is_form({"REQUEST_METHOD": "POST", "CONTENT_TYPE": kind, "QUERY_STRING": "delete"})
    assert not post_form.is_form({"REQUEST_METHOD": "PUT", "CONTENT_TYPE": kind})
    assert not post_form.is_form({"REQUEST_METHOD": "POST", "CONTENT_TYPE": "text/plain"})
    assert not post_form.is_form({"REQUEST_METHOD": "POST"})
