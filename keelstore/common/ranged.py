"""A whole answer, or the part of it that a Range header asks for, out of a body that can be read anywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from keelstore.common.byteranges import Multipart, Span, parse
from keelstore.common.http import Request, Response

ReadRange = Callable[[int, int], Iterable[bytes]]


def ranged_response(request: Request, response: Response, length: int, read_range: ReadRange) -> Response:
    """Give a 200 ``response`` (its headers made, its body not) the body that ``request`` asks for, and the status 206 or 416
    where it asks for a part.

    ``read_range(start, stop)`` gives the bytes from ``start`` up to ``stop``; called when its range is due and closed after
    it; not called for HEAD (which ignores Range), nor for 416. With one range, or none, what it gives is the body itself, so
    that a ``file_region`` of it counts.
    """
    headers = response.headers
    if request.method != "GET":
        headers["Content-Length"] = str(length)
        response.body, response.app_iter = b"", None
        return response
    header = request.header("Range")
    spans = parse(header, length) if header is not None and response.status == 200 else None
    if spans is None:
        headers["Content-Length"] = str(length)
        if length:
            response.body, response.app_iter = None, read_range(0, length)
        else:
            response.body, response.app_iter = b"", None
    elif not spans:
        response.status = 416
        headers["Content-Range"] = f"bytes */{length}"
        headers["Content-Type"] = "text/html; charset=UTF-8"
        headers["Content-Length"] = headers["Content-Encoding"] = None
        response.body = response.app_iter = None
    elif len(spans) == 1:
        span: Span = spans[0]
        response.status = 206
        headers["Content-Range"] = span.content_range(length)
        headers["Content-Length"] = str(span.size)
        response.body, response.app_iter = None, read_range(span.start, span.stop)
    else:
        parts = Multipart(spans, length, headers.get("Content-Type", "application/octet-stream"))
        response.status = 206
        headers["Content-Type"] = parts.content_type
        headers["Content-Length"] = str(parts.content_length)
        response.body, response.app_iter = None, parts.body(read_range)
    return response
