"""What account and container quotas share: numbers of quotas, and a refusal that only who may write gets to see."""

from __future__ import annotations

from typing import Any

from keelstore.common.http import Environ, Response
from keelstore.common.middleware.authorizing import denial


def is_quota(value: str) -> bool:
    """Whether a header sets a quota (a whole number) or takes it away (nothing)."""
    return not value or (value.isascii() and value.isdigit() and len(value) < 20)


def quota_of(value: str | None) -> int | None:
    """A stored quota; None for none."""
    return int(value) if value and is_quota(value) else None


def declared_bytes(environ: Environ) -> int:
    """The size that an upload declares; 0 when it is chunked."""
    text = environ.get("CONTENT_LENGTH")
    return int(text) if text and text.isascii() and text.isdigit() else 0


def exceeded(environ: Environ, write_acl: str | None, text: str) -> Any:
    """413, unless the request would not be allowed at all: then that answer."""
    denied = denial(environ, write_acl)
    if denied is not None:
        return denied
    return Response(413, body=text, content_type="text/html; charset=UTF-8")
