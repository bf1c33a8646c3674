"""API limits (``[swift-constraints]`` of the cluster file) and the pure checks of names, headers and sizes.

Each check returns None, or raises the RequestError that answers the client. Header names and values are wire strings, names
of accounts, containers and objects text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from keelstore.common.errors import BadRequest, EntityTooLarge, PreconditionFailed
from keelstore.common.headers import LEVELS, is_user_meta, wire_to_text
from keelstore.common.names import RESERVED
from keelstore.common.options import not_negative, option, positive

if TYPE_CHECKING:
    from keelstore.common.http import Request

RESERVED_ROOM = 64  # characters that a reserved name may have beyond the limit: a prefix, or a timestamp with offset


@dataclass(frozen=True)
class Limits:
    """Options of ``[swift-constraints]``."""

    max_file_size: int = option(5368709122, "Largest object in bytes that one PUT may create.", check=positive)
    max_meta_name_length: int = option(128, "Longest metadata name in bytes, without its prefix.", check=positive)
    max_meta_value_length: int = option(256, "Longest metadata value in bytes.", check=positive)
    max_meta_count: int = option(90, "Most metadata items of one account, container or object.", check=positive)
    max_meta_overall_size: int = option(4096, "Most bytes of metadata names and values together.", check=positive)
    max_header_size: int = option(8192, "Longest header line in bytes.", check=positive)
    max_request_line: int = option(8192, "Longest request line in bytes.", check=positive)
    max_object_name_length: int = option(1024, "Longest object name in characters.", check=positive)
    container_listing_limit: int = option(10000, "Most entries of one container listing.", check=positive)
    account_listing_limit: int = option(10000, "Most entries of one account listing.", check=positive)
    max_account_name_length: int = option(256, "Longest account name in characters.", check=positive)
    max_container_name_length: int = option(256, "Longest container name in characters.", check=positive)
    valid_api_versions: tuple[str, ...] = option(("v1", "v1.0"), "First path segments that are answered.")
    extra_header_count: int = option(0, "Headers allowed beyond max_meta_count + 36.", check=not_negative)
    auto_create_account_prefix: str = option(".", "First character of the system's own accounts.")

    @property
    def max_header_count(self) -> int:
        return self.max_meta_count + 36 + max(self.extra_header_count, 0)


def check_name_length(limits: Limits, level: str, name: str, account: str = "") -> None:
    """Raises BadRequest for an account, container or object name that is too long (characters; double in dot accounts)."""
    limit = {
        "account": limits.max_account_name_length,
        "container": limits.max_container_name_length,
        "object": limits.max_object_name_length,
    }[level]
    if level != "object" and (account or name).startswith("."):
        limit *= 2
    if name.startswith(RESERVED):  # made here of a client's name, which had to be within the limit
        limit += RESERVED_ROOM
    if len(name) > limit:
        kind = level.capitalize()
        raise BadRequest(f"{kind} name length of {len(name)} longer than {limit}")


def check_metadata(limits: Limits, level: str, headers: Iterable[tuple[str, str]]) -> None:
    """Raises BadRequest for user metadata, or any header value, beyond the limits. At the limit is allowed."""
    prefix = len(f"x-{level}-meta-")
    count = total = 0
    for name, value in headers:
        if len(value) > limits.max_header_size:
            raise BadRequest(f"Header value too long: {name[:limits.max_meta_name_length]}")
        if name[:prefix].lower() != f"x-{level}-meta-":
            continue
        key = name[prefix:]
        if not key:
            raise BadRequest("Metadata name cannot be empty")
        if level != "object":
            for text in (key, value):
                if not is_utf8(text):
                    raise BadRequest("Metadata must be valid UTF-8")
        count += 1
        total += len(key) + len(value)
        if len(key) > limits.max_meta_name_length:
            raise BadRequest(f"Metadata name too long: {prefix and name}")
        if len(value) > limits.max_meta_value_length:
            raise BadRequest(f"Metadata value longer than {limits.max_meta_value_length}: {name}")
        if count > limits.max_meta_count:
            raise BadRequest(f"Too many metadata items; max {limits.max_meta_count}")
        if total > limits.max_meta_overall_size:
            raise BadRequest(f"Total metadata too large; max {limits.max_meta_overall_size}")


def check_request(limits: Limits, level: str, request: Request) -> None:
    """As :func:`check_metadata` for the headers of a request. Nearly all have no metadata, and none that is too long."""
    metadata, longest = _METADATA_KEYS[level], limits.max_header_size
    for key, value in request.environ.items():
        if (key[:5] == "HTTP_" or key in _BARE_KEYS) and (len(value) > longest or key.startswith(metadata)):
            check_metadata(limits, level, request.header_items())
            return


_METADATA_KEYS: Final = {level: f"HTTP_X_{level.upper()}_META_" for level in LEVELS}
_BARE_KEYS: Final = frozenset({"CONTENT_TYPE", "CONTENT_LENGTH"})


def check_merged_metadata(limits: Limits, level: str, metadata: Mapping[str, str]) -> None:
    """As :func:`check_metadata` for the whole stored set of an account or container (text values, '' are removed items)."""
    prefix = len(f"x-{level}-meta-")
    items = [(name[prefix:], value) for name, value in metadata.items() if value and is_user_meta(level, name)]
    if len(items) > limits.max_meta_count:
        raise BadRequest(f"Too many metadata items; max {limits.max_meta_count}")
    if sum(len(name) + len(value) for name, value in items) > limits.max_meta_overall_size:
        raise BadRequest(f"Total metadata too large; max {limits.max_meta_overall_size}")


def check_size(limits: Limits, size: int | None) -> None:
    if size is not None and size > limits.max_file_size:
        raise EntityTooLarge("Your request is too large.")


def is_utf8(wire: str) -> bool:
    """Whether a wire string is UTF-8 without NUL or surrogates."""
    if wire.isascii():
        return "\x00" not in wire
    try:
        wire.encode("latin-1").decode("utf-8")
    except (UnicodeDecodeError, UnicodeEncodeError):
        return False
    return "\x00" not in wire


def is_valid_text(text: str, internal: bool = False) -> bool:
    """Whether text (a decoded path) was UTF-8: no surrogates, and no NUL unless ``internal``."""
    if not internal and "\x00" in text:
        return False
    if text.isascii():
        return True
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def listing_limit(text: str | None, maximum: int) -> int:
    """The ``limit`` parameter: digits up to ``maximum``; anything else is the maximum. Raises PreconditionFailed beyond."""
    if not text or not text.isascii() or not text.isdigit():
        return maximum
    value = int(text) if len(text) < 20 else maximum + 1
    if value > maximum:
        raise PreconditionFailed(f"Maximum limit is {maximum}")
    return value


def format_header_for_log(value: str) -> str:
    """A client's value, safe to print: text, control characters escaped, at most 200 characters."""
    return wire_to_text(value)[:200].encode("unicode_escape").decode("ascii")
