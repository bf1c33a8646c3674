"""The head of an answer: status and headers of an application to octets, and how its body will be framed. Pure but for the
clock of the Date header.

A value that an application gives may come from a request or a disk; one that holds CR, LF or NUL would let its author write
headers, or a whole answer, of his own. Such an answer is refused here (ValueError) and never written.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final, NamedTuple

from keelstore.common.http import http_date
from keelstore.common.httpparse import is_plain

_OURS: Final = frozenset({"content-length", "connection", "transfer-encoding", "date", "keep-alive", "upgrade"})
_CLOSE: Final = "Connection: close\r\n\r\n"
_KEEP: Final = "Connection: keep-alive\r\n\r\n"

_date_second = 0
_date_line = ""


class AnswerHead(NamedTuple):
    """``data`` ends with the blank line; ``length`` is the stated one."""

    data: bytes
    length: int | None
    has_body: bool
    chunked: bool
    keep_alive: bool


def make_head(
    status: str, headers: Iterable[tuple[str, str]], method: str, size: int | None, http10: bool, keep_alive: bool,
    says_so: bool = False,
) -> AnswerHead:
    """The head of an answer whose body has ``size`` bytes (None: not known). Raises ValueError when it cannot be sent.

    ``says_so``: the client asked for the connection to be kept, and is told that it is; HTTP/1.1 keeps it without a word.
    """
    length: int | None = None
    count = 2
    date = ""
    text = f"HTTP/1.1 {status}\r\n"
    for name, value in headers:
        lower = name.lower()
        if lower in _OURS:
            if lower == "content-length":
                if not (value.isascii() and value.isdigit()):
                    raise ValueError(f"Content-Length {value!r}")
                length = int(value)
            elif lower == "connection":
                keep_alive = keep_alive and "close" not in value.lower()
                continue
            elif lower == "date":
                date = value
                continue
            else:
                continue
        text += f"{name}: {value}\r\n"
        count += 1
    has_body = method != "HEAD" and status[:3] not in ("204", "304") and status[:1] != "1"
    chunked = False
    if length is None and has_body:
        if size is not None:
            length = size
            text += f"Content-Length: {size}\r\n"
            count += 1
        elif http10:
            keep_alive = False
        else:
            chunked = True
            text += "Transfer-Encoding: chunked\r\n"
            count += 1
    text += f"Date: {date}\r\n" if date else _date()
    count += 1
    if not keep_alive:
        text += _CLOSE
        count += 1
    elif http10 or says_so:
        text += _KEEP
        count += 1
    else:
        text += "\r\n"
    data = text.encode("latin-1")
    if not is_plain(data, count):
        raise ValueError("control character in a header")
    return AnswerHead(data, length, has_body, chunked, keep_alive)


def _date() -> str:
    global _date_second, _date_line
    now = int(time.time())
    if now != _date_second:
        _date_second, _date_line = now, f"Date: {http_date(now)}\r\n"
    return _date_line
