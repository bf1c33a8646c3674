"""Tags of objects and buckets: read from XML or from a header, checked, kept as one text (``spec: s3-api 3.11``). Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import parse_qsl, quote_plus

from keelstore.common.middleware.s3api.errors import S3Error
from keelstore.common.middleware.s3api.xml import Element, Writer

MAX_OBJECT_TAGS: Final = 10
MAX_BUCKET_TAGS: Final = 50
MAX_ENCODED: Final = 7000  # what a header of the storage servers has room for
_MAX_KEY, _MAX_VALUE = 128, 256
_FIT = re.compile(r"[\w\s+\-=.:/@]*\Z")  # letters, digits and blanks of any script, and these


def checked(pairs: Iterable[tuple[str, str]], most: int) -> dict[str, str]:
    """Tags by key, in order of their keys. Raises S3Error."""
    found: dict[str, str] = {}
    for key, value in pairs:
        if not key or len(key) > _MAX_KEY or not _FIT.match(key):
            raise S3Error("InvalidTag", "The TagKey you have provided is invalid", TagKey=key[:_MAX_KEY])
        if len(value) > _MAX_VALUE or not _FIT.match(value):
            raise S3Error("InvalidTag", "The TagValue you have provided is invalid", TagKey=key, TagValue=value[:_MAX_VALUE])
        if key in found:
            raise S3Error("InvalidTag", "Cannot provide multiple Tags with the same key", TagKey=key)
        found[key] = value
    if len(found) > most:
        raise S3Error("InvalidTag", f"There cannot be more than {most} tags")
    if len(encode(found)) > MAX_ENCODED:
        raise S3Error("InvalidTag", "The tags are too large to be kept together")
    return dict(sorted(found.items()))


def of_header(text: str, most: int = MAX_OBJECT_TAGS) -> dict[str, str]:
    """Of ``x-amz-tagging``: ``k=v&k2``, url-encoded. Raises S3Error."""
    try:
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=4 * most)
    except ValueError:
        raise S3Error("InvalidArgument", "The header 'x-amz-tagging' shall be encoded as UTF-8 then URLEncoded URL query "
                      "parameters without tag name duplicates.", ArgumentName="x-amz-tagging", ArgumentValue=text) from None
    return checked(pairs, most)


def of_document(document: Element, most: int) -> dict[str, str]:
    """Of a ``Tagging`` document. Raises S3Error."""
    tag_set = document.find("TagSet")
    if tag_set is None:
        raise S3Error("MalformedXML")
    pairs = []
    for tag in tag_set.children("Tag"):
        key, value = tag.value("Key"), tag.value("Value")
        if key is None or value is None:
            raise S3Error("MalformedXML")
        pairs.append((key, value))
    return checked(pairs, most)


def encode(tags: Mapping[str, str]) -> str:
    """As the system metadata holds them; '' for none."""
    return "&".join(f"{quote_plus(key)}={quote_plus(value)}" for key, value in tags.items())


def decode(text: str | None) -> dict[str, str]:
    return dict(parse_qsl(text, keep_blank_values=True)) if text else {}


def to_xml(tags: Mapping[str, str]) -> bytes:
    writer = Writer("Tagging").open("TagSet")
    for key, value in tags.items():
        writer.open("Tag").leaf("Key", key).leaf("Value", value).close()
    return writer.to_bytes()
