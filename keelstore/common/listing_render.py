"""Listings as JSON, XML and plain text (``spec: client-api 8.3-8.5``).

JSON is put together from strings: a page of 10,000 rows is the costliest answer an account or container server gives, and
building dicts first would double its cost. XML is well formed whatever a name holds: what XML 1.0 cannot spell becomes
U+FFFD, and tab, newline and carriage return are character references, so that parsers do not normalize them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from json.encoder import encode_basestring_ascii as quote_json
from typing import Final

from keelstore.common.errors import BadRequest, RequestError
from keelstore.common.headers import is_true
from keelstore.common.http import Request, best_match
from keelstore.common.limits import is_valid_text, listing_limit
from keelstore.common.listing import ListingQuery, Row, Subdir
from keelstore.common.timestamp import Timestamp

PLAIN, JSON, XML = "text/plain", "application/json", "application/xml"
OFFERS: Final = (PLAIN, JSON, XML, "text/xml")
_FORMATS: Final = {"json": JSON, "xml": XML, "plain": PLAIN}
_PARAMS: Final = ("path", "format", "marker", "prefix", "end_marker", "delimiter", "limit", "reverse")
XML_DECLARATION: Final = '<?xml version="1.0" encoding="UTF-8"?>\n'

_NOT_PLAIN: Final = re.compile("[&<>\"'\t\n\r\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_ESCAPES: Final = {
    "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&apos;", "\t": "&#9;", "\n": "&#10;", "\r": "&#13;",
}  # fmt: skip


def xml_text(text: str) -> str:
    """Text for an element's content or a quoted attribute."""
    if _NOT_PLAIN.search(text) is None:
        return text
    return _NOT_PLAIN.sub(lambda match: _ESCAPES.get(match[0], "\ufffd"), text)


# -- what the client asks for ------------------------------------------------------------------------------------------


def content_type_of(request: Request) -> str:
    """The form of the listing: the ``format`` parameter, else what Accept likes best. Raises RequestError 406, 400."""
    wanted = request.params.get("format")
    if wanted is not None:
        if not wanted.isascii() and not is_valid_text(wanted):
            raise BadRequest('"format" parameter not valid UTF-8')
        return _FORMATS.get(wanted.lower(), PLAIN)
    accept = request.environ.get("HTTP_ACCEPT")
    found = best_match(accept, OFFERS) if accept else PLAIN
    if found is None:
        raise RequestError(status=406)
    return found


def query_of(request: Request, maximum: int, has_path: bool) -> ListingQuery:
    """The listing parameters. Raises PreconditionFailed for a limit beyond ``maximum``, BadRequest for what is not UTF-8."""
    params = request.params
    shows_reserved = is_true(request.environ.get("HTTP_X_BACKEND_ALLOW_RESERVED_NAMES"))
    if not params:
        return ListingQuery(maximum, shows_reserved=shows_reserved)
    for name in _PARAMS:
        if not is_valid_text(params.get(name, ""), internal=True):
            raise BadRequest(f'"{name}" parameter not valid UTF-8')
    return ListingQuery(
        limit=listing_limit(params.get("limit"), maximum),
        marker=params.get("marker", ""),
        end_marker=params.get("end_marker", ""),
        prefix=params.get("prefix", ""),
        delimiter=params.get("delimiter", ""),
        path=params.get("path") if has_path else None,
        is_reverse=is_true(params.get("reverse")),
        shows_reserved=shows_reserved,
    )


# -- times -------------------------------------------------------------------------------------------------------------


class IsoTimes:
    """Normal timestamps as ``YYYY-MM-DDTHH:MM:SS.ffffff``, the seconds remembered: rows of a page come in bursts."""

    __slots__ = ("_seconds",)

    def __init__(self) -> None:
        self._seconds: dict[str, str] = {}

    def __call__(self, normal: str) -> str:
        """``normal``: ten digits, a dot, five digits, and anything; or a shorter number. Raises ValueError."""
        if len(normal) < 16:
            normal = Timestamp(normal).normal
        head = self._seconds.get(normal[:10])
        if head is None:
            t = time.gmtime(int(normal[:10]))
            head = self._seconds[normal[:10]] = (
                f"{t.tm_year:04d}-{t.tm_mon:02d}-{t.tm_mday:02d}T{t.tm_hour:02d}:{t.tm_min:02d}:{t.tm_sec:02d}."
            )
        return f"{head}{normal[11:16]}0"


# -- containers of an account ------------------------------------------------------------------------------------------

AccountRow = tuple[str, int, int, str, int]  # name, object count, bytes used, put timestamp, policy index


def account_json(entries: Iterable[Row | Subdir], policy_names: Mapping[int, str]) -> bytes:
    iso = IsoTimes()
    tails = {index: f', "storage_policy": {quote_json(name)}}}' for index, name in policy_names.items()}
    parts = []
    for entry in entries:
        if type(entry) is Subdir:
            parts.append(f'{{"subdir": {quote_json(entry.name)}}}')
        else:
            name, count, size, put_timestamp, policy = entry  # type: ignore[misc]
            parts.append(
                f'{{"name": {quote_json(name)}, "count": {count}, "bytes": {size}, '
                f'"last_modified": "{iso(put_timestamp)}"{tails.get(policy, "}")}'
            )
    return f"[{', '.join(parts)}]".encode("ascii")


def account_xml(account: str, entries: Iterable[Row | Subdir], policy_names: Mapping[int, str]) -> bytes:
    iso = IsoTimes()
    parts = [XML_DECLARATION, f'<account name="{xml_text(account)}">\n']
    for entry in entries:
        if type(entry) is Subdir:
            parts.append(f'<subdir name="{xml_text(entry.name)}" />\n')
        else:
            name, count, size, put_timestamp, policy = entry  # type: ignore[misc]
            known = policy_names.get(policy)
            policy_element = f"<storage_policy>{xml_text(known)}</storage_policy>" if known is not None else ""
            parts.append(
                f"<container><name>{xml_text(name)}</name><count>{count}</count><bytes>{size}</bytes>"
                f"<last_modified>{iso(put_timestamp)}</last_modified>{policy_element}</container>\n"
            )
    parts.append("</account>")
    return "".join(parts).encode("utf-8")


# -- objects of a container --------------------------------------------------------------------------------------------

# An object row: name, created_at (encoded timestamps), size, content type, etag.


def split_swift_bytes(content_type: str) -> tuple[str, str | None]:
    """``text/plain; swift_bytes=9`` to ``("text/plain", "9")``: the size that stands for the row's own."""
    if "swift_bytes" not in content_type:
        return content_type, None
    kept, found = [], None
    for part in content_type.split(";"):
        name, _, value = part.partition("=")
        if name.strip() == "swift_bytes":
            found = value.strip()
        else:
            kept.append(part)
    return ";".join(kept), found


def shown_size(size: int, swift_bytes: str | None) -> int:
    return int(swift_bytes) if swift_bytes is not None and swift_bytes.isascii() and swift_bytes.isdigit() else size


def container_json(entries: Iterable[Row | Subdir], meta_time: Callable[[str], str]) -> bytes:
    """``meta_time`` gives the normal form of the last of the timestamps that ``created_at`` holds."""
    iso = IsoTimes()
    types: dict[str, tuple[str, str | None]] = {}
    parts: list[str] = []
    append = parts.append
    quote = quote_json
    for entry in entries:
        if type(entry) is Subdir:
            append(f'{{"subdir": {quote(entry.name)}}}')
            continue
        name, created_at, size, content_type, etag = entry  # type: ignore[misc]
        known = types.get(content_type)
        if known is None:
            shown, swift_bytes = split_swift_bytes(content_type)
            known = quote(shown), swift_bytes
            if swift_bytes is None:
                types[content_type] = known
        if known[1] is not None:
            size = shown_size(size, known[1])
        when = created_at if len(created_at) == 16 else meta_time(created_at)
        append(
            f'{{"name": {quote(name)}, "bytes": {size}, "hash": {quote(etag)}, '
            f'"content_type": {known[0]}, "last_modified": "{iso(when)}"}}'
        )
    return f"[{', '.join(parts)}]".encode("ascii")


def container_xml(container: str, entries: Iterable[Row | Subdir], meta_time: Callable[[str], str]) -> bytes:
    iso = IsoTimes()
    parts = [XML_DECLARATION, f'<container name="{xml_text(container)}">']
    for entry in entries:
        if type(entry) is Subdir:
            shown = xml_text(entry.name)
            parts.append(f'<subdir name="{shown}"><name>{shown}</name></subdir>')
            continue
        name, created_at, size, content_type, etag = entry  # type: ignore[misc]
        content_type, swift_bytes = split_swift_bytes(content_type)
        parts.append(
            f"<object><name>{xml_text(name)}</name><hash>{xml_text(etag)}</hash>"
            f"<bytes>{shown_size(size, swift_bytes)}</bytes><content_type>{xml_text(content_type)}</content_type>"
            f"<last_modified>{iso(meta_time(created_at))}</last_modified></object>"
        )
    parts.append("</container>")
    return "".join(parts).encode("utf-8")


# -- both --------------------------------------------------------------------------------------------------------------


def plain(entries: Iterable[Row | Subdir]) -> bytes:
    """One name a line."""
    return "".join([f"{entry.name if type(entry) is Subdir else entry[0]}\n" for entry in entries]).encode("utf-8")  # type: ignore[index]
