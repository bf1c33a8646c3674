"""Tags of objects and buckets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelstore.common.middleware.s3api import tags, xml
from keelstore.common.middleware.s3api.errors import S3Error

_TEXT = st.text(st.characters(whitelist_categories=("Lu", "Ll", "Nd"), whitelist_characters="+-=._:/@ "), max_size=20)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {}),
        ("a=b", {"a": "b"}),
        ("b=2&a=1", {"a": "1", "b": "2"}),
        ("empty=&bare", {"empty": "", "bare": ""}),
        ("a+b=c%2Fd", {"a b": "c/d"}),
        ("%C3%A9=1", {"é": "1"}),
    ],
)
def test_header_is_read(text: str, found: dict[str, str]) -> None:
    assert tags.of_header(text) == found


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("a=1&a=2", "InvalidTag"),
        ("=x", "InvalidTag"),
        ("a=%00", "InvalidTag"),
        ("&".join(f"k{number}=v" for number in range(11)), "InvalidTag"),
        ("k" * 129 + "=v", "InvalidTag"),
        ("k=" + "v" * 257, "InvalidTag"),
        ("&".join(f"k{number}" for number in range(500)), "InvalidArgument"),
        ("%ff=1", "InvalidArgument"),
    ],
)
def test_header_is_refused(text: str, code: str) -> None:
    with pytest.raises(S3Error) as refused:
        tags.of_header(text)
    assert refused.value.code == code


def test_largest_tags_fit() -> None:
    wide = {f"{number:0128d}": "v" * 256 for number in range(10)}
    assert tags.of_header(tags.encode(wide)) == wide


def test_tags_that_no_header_could_hold_are_refused() -> None:
    with pytest.raises(S3Error) as refused:
        tags.checked(((f"{number}" + "é" * 120, "é" * 250) for number in range(10)), 10)
    assert refused.value.code == "InvalidTag"


@given(st.dictionaries(_TEXT.filter(bool), _TEXT, max_size=10))
def test_what_is_kept_is_what_was_said(found: dict[str, str]) -> None:
    assert tags.decode(tags.encode(tags.checked(found.items(), 10))) == found


@given(st.dictionaries(_TEXT.filter(bool), _TEXT, max_size=10))
def test_document_says_what_it_was_made_of(found: dict[str, str]) -> None:
    assert tags.of_document(xml.parse(tags.to_xml(tags.checked(found.items(), 10)), "Tagging"), 10) == found


@pytest.mark.parametrize(
    "text",
    [
        "<Tagging/>",
        "<Tagging><TagSet><Tag><Key>a</Key></Tag></TagSet></Tagging>",
        "<Tagging><TagSet><Tag><Value>a</Value></Tag></TagSet></Tagging>",
    ],
)
def test_document_without_what_it_needs_is_refused(text: str) -> None:
    with pytest.raises(S3Error) as refused:
        tags.of_document(xml.parse(text.encode(), "Tagging"), 10)
    assert refused.value.code == "MalformedXML"
